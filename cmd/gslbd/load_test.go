package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gslbd/control"
	"gslbd/geo"
	"gslbd/probes"
	"gslbd/state"
)

// What the file says reaches the rooms: each value of a service that differs from its default, by family where there are
// two.
func TestLoadCompiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("gslb.test.zone", "@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300\n@ 3600 IN NS ns1\nns1 3600 IN A 192.0.2.1\n")
	path := write("gslbd.yaml", `
reports: {interval: 2s, stale_after: 7s, dead_after: 9s}
rtt: {methods: [icmp, dns], prefix: {ipv4: 22, ipv6: 48}, refresh: 1m, silent_for: 3m, max_targets: 5, max_sites: 3, exempt: [10.0.0.0/8]}
geo: {overrides: [{prefix: 10.20.0.0/16, site: seoul}, {prefix: 10.30.0.0/16, country: JP}]}
sites:
  - {name: seoul, zone: z1, region: r1, location: {country: KR}, cost: 7, capacity: {sessions: 10, bandwidth: 20kbps, resume: 80%, hold: 5m, shed_from: 70%, cascade_guard: true}}
zones: [{name: gslb.test, file: gslb.test.zone}]
services:
  - name: www.gslb.test
    aliases: [w.gslb.test]
    policy: fastest
    ttl: 20
    answers: 2
    min_healthy: 50%
    on_all_down: last-known-good
    on_dead: keep
    unknown_as: down
    slow_start: 30s
    min_serving: 2
    failover: {ratio: 0.5, failback: delay, failback_delay: 90s, connection_draining: {timeout: 40s}}
    health_check: {type: https, path: /h, host: www.gslb.test, expect: [200, 204], interval: 3s, timeout: 1s, rise: 4, fall: 5, verify: false}
    members:
      - {name: a, site: seoul, addresses: ["2001:db8:1::1", 192.0.2.10], weight: 30, preference: 40, port: 8443, protocol: tcp, virtual_servers: [vs]}
      - {name: b, site: seoul, addresses: [192.0.2.11], role: backup}
  - name: db.gslb.test
    policy: fastest
    failover: {failback: manual, connection_draining: {enabled: false}}
    members: [{name: a, site: seoul, cname: a.example.net}]
zone_aliases: [{id: z1, names: [zone-a, zone-b]}]
evacuation: {exec: {command: [/bin/sh, -e], timeout: 3m}}
`)
	g, db, err := load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := db.LookupOverride(netip.MustParseAddr("10.20.1.1")); r.Site != "seoul" {
		t.Errorf("override is %+v", r)
	}
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8:1::1")
	want := &state.Config{
		StaleAfter: 7 * time.Second, DeadAfter: 9 * time.Second,
		RTT: state.RTTConfig{
			PrefixV4: 22, PrefixV6: 48, Refresh: time.Minute, SilentFor: 3 * time.Minute, MaxTargets: 5, MaxSites: 3, Methods: []state.RTTMethod{state.RTTICMP, state.RTTDNS},
			Exempt: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		},
		Sites: []state.SiteConfig{{
			Name: "seoul", Zone: "z1", Region: "r1", Location: geo.Location{Continent: "AS", Country: "KR"}, Cost: 7,
			SessionsLimit: 10, BandwidthLimit: 20000, Resume: 0.8, Hold: 5 * time.Minute, ShedFrom: 0.7, CascadeGuard: true,
		}},
		Services: []state.ServiceConfig{{
			Name: "www.gslb.test", Aliases: []string{"w.gslb.test"}, TTL: 20, Answers: 2, MinHealthy: state.Threshold{Share: 0.5},
			OnAllDown: state.AllDownLastKnownGood, OnDead: state.DeadKeep, UnknownUp: false, SlowStart: 30 * time.Second, FailoverRatio: 0.5,
			Failback: state.FailbackDelay, FailbackDelay: 90 * time.Second, DrainTimeout: 40 * time.Second, MinServing: 2,
			PolicyName: "fastest", UsesRTT: true, HalfLife: time.Minute, HasCheck: true, CheckInterval: 3 * time.Second,
			Members: []state.MemberConfig{
				{
					Name: "a", Site: "seoul", Addresses: [2]netip.Addr{v4, v6}, Weight: 30, Preference: 40, Port: 8443, Protocol: "tcp",
					VirtualServers: []string{"vs"},
				},
				{Name: "b", Site: "seoul", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.11")}, Weight: 100, Preference: 100, Role: state.Backup},
			},
		}, {
			Name: "db.gslb.test", TTL: 30, Answers: 1, MinHealthy: state.Threshold{Count: 1}, UnknownUp: true,
			Failback: state.FailbackManual, FailbackDelay: time.Minute, MinServing: 1, PolicyName: "fastest", UsesRTT: true, HalfLife: time.Minute,
			Members: []state.MemberConfig{{Name: "a", Site: "seoul", CNAME: "a.example.net", Weight: 100, Preference: 100}},
		}},
	}
	opts := cmp.Options{
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(geo.Location{}),
		cmpopts.IgnoreFields(state.Config{}, "Zones"), cmpopts.IgnoreFields(state.ServiceConfig{}, "Chain"),
	}
	if diff := cmp.Diff(want, g.state, opts); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	orders := control.Config{
		ZoneAliases: []control.ZoneAlias{{ID: "z1", Names: []string{"zone-a", "zone-b"}}}, ReportInterval: 2 * time.Second,
		Exec: control.ExecConfig{Command: []string{"/bin/sh", "-e"}, Timeout: 3 * time.Minute},
	}
	if diff := cmp.Diff(orders, g.orders, cmpopts.IgnoreUnexported(control.ExecConfig{})); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
	check := probes.Check{
		Key: "www.gslb.test a ipv6", Type: probes.HTTPS, Addr: v6, Port: 8443, Path: "/h", Host: "www.gslb.test", ExpectCodes: []int{200, 204},
		Interval: 3 * time.Second, Timeout: time.Second, Rise: 4, Fall: 5,
	}
	if len(g.checks) != 3 {
		t.Fatalf("%d checks, want one for each address", len(g.checks))
	}
	if diff := cmp.Diff(check, g.checks[1], cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreFields(probes.Check{}, "DNSType")); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
	result := checkResult(probes.Result{Key: check.Key, Up: true, Latency: time.Millisecond})
	if result.Service != "www.gslb.test" || result.Member != "a" || result.Family != state.V6 || !result.Up || result.Latency != time.Millisecond {
		t.Errorf("result is %+v", result)
	}
}

// All that is wrong is said at once, whichever room finds it.
func TestLoadSaysAllThatIsWrong(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bad.zone": "@ 3600 IN NS ns1\n",
		"bad.mmdb": "no database",
		"gslbd.yaml": "geo: {databases: [bad.mmdb]}\nsites: [{name: a}]\nzones: [{name: gslb.test, file: bad.zone}]\n" +
			"services: [{name: www.gslb.test, members: [{name: a, site: a, addresses: [192.0.2.1]}]}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "gslbd.yaml")
	says := func(all ...string) {
		t.Helper()
		_, _, err := load(path, nil)
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range all {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not name %s: %v", want, err)
			}
		}
	}
	says("bad.zone", "bad.mmdb")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "site: a,", "site: seol,", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	says(`unknown site "seol"`, "bad.zone", "bad.mmdb")
}
