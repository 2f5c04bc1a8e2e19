package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gslbd/sitereport"
)

// TestKernelAndSNMP checks and reports once with readers of which none can read anything here.
func TestKernelAndSNMP(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("community", "s3cret-community\n", 0o600)
	save := write("iptables-save", "#!/bin/sh\necho denied >&2\nexit 4\n", 0o700)
	file := write("agent.yaml", `
site: seoul
agent: lb1
servers: ["http://127.0.0.1:1"]
rtt: {enabled: false}
ipvs: {virtual_servers: [{name: lvs, fwmark: 4294967295, address: 203.0.113.1}]}
keepalived:
  addresses: [203.0.113.2]
  pid_file: none.pid
  virtual_servers: [{name: vrrp, address: 203.0.113.2}]
snmp:
  - version: v2c
    address: 127.0.0.1:1
    timeout: 100ms
    community_file: community
    virtual_servers: [{name: device, address: 203.0.113.3, states: [{column: .1.3.6.1, up: [1]}]}]
counters: {from: iptables, in: [a], out: [b], programs: [`+save+`]}
`, 0o600)
	p, err := load(file, true)
	if err != nil {
		t.Fatal(err)
	}
	if p.virtualServers != 3 {
		t.Errorf("%d virtual servers", p.virtualServers)
	}
	var out bytes.Buffer
	if err := p.check(t.Context(), &out); err == nil {
		t.Error("all is well")
	}
	pid := filepath.Join(dir, "none.pid")
	for _, want := range []string{
		"ipvs: ", "fwmark 4294967295", // by a kernel that has IPVS
		"keepalived: 1 virtual servers, 1 servers: 1 unknown\nkeepalived: keepalived of vrrp is unknown: keepalived does not run here: there is no " + pid +
			"\nkeepalived: warning: keepalived does not run here: there is no " + pid +
			"\nkeepalived: 203.0.113.2 is not served here: keepalived does not run here: there is no " + pid + "\n",
		"snmp 127.0.0.1:1: FAILED: ",
		"counters of table filter: FAILED: " + save + ": it ended with exit status 4: denied\n",
	} {
		if want == "fwmark 4294967295" && strings.Contains(out.String(), "ipvs: FAILED: the kernel has no IPVS here: load it (modprobe ip_vs)") {
			continue
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "s3cret") {
		t.Errorf("a secret is shown:\n%s", &out)
	}

	out.Reset()
	if err := p.once(t.Context(), &out, true); err != nil {
		t.Fatal(err)
	}
	var r sitereport.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, v := range r.VirtualServers {
		names += v.Name + " "
		for _, s := range v.Servers {
			if s.State != sitereport.StateUnknown {
				t.Errorf("%+v", v)
			}
		}
	}
	if names != "lvs vrrp device " || r.Load != nil || len(r.Warnings) < 4 {
		t.Errorf("%s", &out)
	}
}

// TestSummary says what readers without virtual servers read.
func TestSummary(t *testing.T) {
	sessions, rate, bits := uint64(7), 1.5, uint64(1000)
	here, there := map[netip.Addr]string{}, map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "standby"}
	for want, r := range map[string]sitereport.Reading{
		"nothing": {},
		"not known from one reading: bits a second in, bits a second out": {WholeSite: true},
		"bits a second in 1000, bits a second out 1000":                   {WholeSite: true, Load: sitereport.Load{BitsPerSecIn: &bits, BitsPerSecOut: &bits}},
		"sessions 7, not known from one reading: new sessions a second":   {Supplies: sitereport.FigureSessions | sitereport.FigureNewSessions, Load: sitereport.Load{Sessions: &sessions}},
		"sessions 7, new sessions a second 1.5":                           {Supplies: sitereport.FigureSessions, Load: sitereport.Load{Sessions: &sessions, NewSessions: &rate}},
		"all addresses are served here":                                   {Yields: sitereport.AllFigures, Elsewhere: here},
		"addresses that are not served here: 1":                           {Yields: sitereport.AllFigures, Elsewhere: there},
		"1 virtual servers, 2 servers: 1 down, 1 up":                      {VirtualServers: []sitereport.VirtualServer{{Servers: []sitereport.Server{{State: "up"}, {State: "down"}}}}},
	} {
		if got := summary(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
