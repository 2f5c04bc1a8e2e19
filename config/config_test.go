package config_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/config"
)

// comments returns what follows "# WORD: " at the beginning of a file's lines.
func comments(t *testing.T, path, word string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "# "+word+": "); ok {
			out = append(out, strings.TrimSuffix(rest, "\n"))
		}
	}
	return out
}

// eachFile runs test for every configuration in the directory.
func eachFile(t *testing.T, dir string, test func(t *testing.T, path string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../testdata/config", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) { test(t, path) })
	}
}

// faults loads path and returns its faults as "LINE: PATH: MESSAGE".
func faults(t *testing.T, err error, path string) []string {
	t.Helper()
	var all config.Errors
	if !errors.As(err, &all) {
		t.Fatalf("got %v, want an Errors", err)
	}
	var out []string
	for _, e := range all {
		if e.File != path {
			t.Errorf("fault %q is not about this file", e)
		}
		s := e.Msg
		if e.Path != "" {
			s = e.Path + ": " + s
		}
		if e.Line > 0 {
			s = fmt.Sprintf("%d: %s", e.Line, s)
		}
		out = append(out, s)
	}
	return out
}

func TestBadFiles(t *testing.T) {
	eachFile(t, "bad", func(t *testing.T, path string) {
		c, _, err := config.Load(path)
		if c != nil {
			t.Error("a faulty file gave a configuration")
		}
		if diff := cmp.Diff(comments(t, path, "want"), faults(t, err, path)); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
	eachFile(t, "agent-bad", func(t *testing.T, path string) {
		a, _, err := config.LoadAgent(path)
		if a != nil {
			t.Error("a faulty file gave a configuration")
		}
		if diff := cmp.Diff(comments(t, path, "want"), faults(t, err, path)); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
}

func TestGoodFiles(t *testing.T) {
	check := func(t *testing.T, path string, warnings []string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range warnings {
			got = append(got, strings.TrimPrefix(strings.TrimPrefix(w, path+":"), " "))
		}
		want := comments(t, path, "warn")
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("warnings (-want +got):\n%s", diff)
		}
	}
	eachFile(t, "good", func(t *testing.T, path string) {
		_, warnings, err := config.Load(path)
		check(t, path, warnings, err)
	})
	eachFile(t, "agent-good", func(t *testing.T, path string) {
		_, warnings, err := config.LoadAgent(path)
		check(t, path, warnings, err)
	})
}

func good(t *testing.T, name string) *config.Config {
	t.Helper()
	c, _, err := config.Load("../testdata/config/good/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNames(t *testing.T) {
	c := good(t, "names")
	var got [][]string
	for _, s := range c.Services {
		got = append(got, append([]string{s.Name, s.Zone}, s.Aliases...))
	}
	want := [][]string{
		{"gslb.test", "gslb.test"},
		{"*.cdn.gslb.test", "gslb.test", "*.deep.gslb.test", "www.deep.gslb.test", "_sip.gslb.test"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := c.Services[1].Members[0].CNAME; got != "edge1.example.net" {
		t.Errorf("cname is %q", got)
	}
	if c.Zones[1].ECS || !c.Zones[0].ECS {
		t.Error("zones[].ecs is not what was written")
	}

	c = good(t, "case-differs")
	if c.Site("SiteA") == nil || c.Site("sitea") == nil || c.Site("SITEA") != nil {
		t.Error("sites that differ in case only are not kept apart")
	}
	if got := c.Services[0].Name; got != "www.gslb.test" {
		t.Errorf("service is %q", got)
	}
	if got := c.Services[0].Members[1].Addresses[1]; got != netip.MustParseAddr("2001:db8::1") {
		t.Errorf("address is %s", got)
	}
	if c := good(t, "odd-names"); c.Site("123") == nil || c.Site("true") == nil || c.Site("off") == nil || c.Policy("1") == nil {
		t.Error("odd names are lost")
	}
}

func TestAnchors(t *testing.T) {
	c := good(t, "anchors")
	busan, daegu := c.Site("busan"), c.Site("daegu")
	if busan.Zone != "z2" || busan.Location.Country != "KR" || busan.Capacity.Hold != 2*time.Minute {
		t.Errorf("busan is %+v", busan)
	}
	if daegu.Location.Country != "KR" || daegu.Capacity.Sessions != 900000 || daegu.Capacity.Resume != 0.8 || daegu.Capacity.Hold != 90*time.Second {
		t.Errorf("daegu is %+v", daegu)
	}
}

func TestFailover(t *testing.T) {
	c := good(t, "failover")
	want := []string{"nodata", "nodata", "backup"}
	for i, s := range c.Services {
		if s.OnAllDown != want[i] {
			t.Errorf("%s: on_all_down is %s, want %s", s.Name, s.OnAllDown, want[i])
		}
	}
	if c.Services[0].Failover.Ratio != 0.5 {
		t.Error("ratio is lost")
	}
	// A weight given to one member leaves the others at the default.
	if m := c.Services[2].Members; m[0].Weight != 0 || m[1].Weight != 100 {
		t.Errorf("weights are %d and %d", m[0].Weight, m[1].Weight)
	}
}

func TestFailback(t *testing.T) {
	draining := func(enabled bool, timeout time.Duration) config.ConnectionDraining {
		return config.ConnectionDraining{Enabled: enabled, Timeout: timeout}
	}
	want := []config.Failover{
		{Failback: "delay", FailbackDelay: 5 * time.Minute, ConnectionDraining: draining(true, 10*time.Second)},
		{Failback: "manual", FailbackDelay: time.Minute, ConnectionDraining: draining(false, 5*time.Minute)},
		{Failback: "auto", FailbackDelay: time.Minute, ConnectionDraining: draining(true, 5*time.Minute)},
	}
	minServing := []int{2, 0, 1}
	for i, s := range good(t, "failback").Services {
		if diff := cmp.Diff(want[i], s.Failover); diff != "" || s.MinServing != minServing[i] {
			t.Errorf("%s: min_serving is %d, failover (-want +got):\n%s", s.Name, s.MinServing, diff)
		}
	}
}

func TestEvacuation(t *testing.T) {
	c := good(t, "evacuation")
	want := config.Exec{Command: []string{"/bin/sh", "-e", "-c", "-e"}, Timeout: 5 * time.Minute}
	if diff := cmp.Diff(want, c.Evacuation.Exec); diff != "" {
		t.Errorf("exec (-want +got):\n%s", diff)
	}
	if want := (config.Etcd{Endpoints: []string{"http://127.0.0.1:2379", "http://[::1]:2379"}, Prefix: "/fleets/one"}); !cmp.Equal(want, c.State.Etcd) {
		t.Errorf("etcd is %+v", c.State.Etcd)
	}
	// A relative path is relative to the file, like all of them.
	path := write(t, "evacuation: {exec: {command: [bin/evacuate, bin/evacuate]}}\n")
	program := filepath.Join(filepath.Dir(path), "bin", "evacuate")
	if err := os.Mkdir(filepath.Dir(program), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Evacuation.Exec.Command; !slices.Equal(got, []string{program, "bin/evacuate"}) {
		t.Errorf("command is %q", got)
	}
	// Also where the file itself is given by a relative path: what has no slash would be looked for in PATH.
	program = filepath.Join(filepath.Dir(path), "evacuate")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("evacuation: {exec: {command: [./evacuate]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(path))
	if c, _, err = config.Load(filepath.Base(path)); err != nil {
		t.Fatal(err)
	}
	if got := c.Evacuation.Exec.Command; !filepath.IsAbs(got[0]) || filepath.Base(got[0]) != "evacuate" {
		t.Errorf("command is %q", got)
	}
}

func TestChecks(t *testing.T) {
	c := good(t, "checks")
	base := config.HealthCheck{Interval: 10 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	want := make([]config.HealthCheck, 6)
	for i := range want {
		want[i] = base
	}
	want[0].Type = "icmp"
	want[1].Type = "tcp"
	want[2].Type, want[2].Port, want[2].Send, want[2].Expect = "udp", 123, "\x1b\x00", "ok"
	want[3].Type, want[3].Path, want[3].Host, want[3].ExpectCodes, want[3].Body = "http", "/healthz?full=1", "www.example.com:8080", []int{200, 204}, "^ok"
	want[4] = config.HealthCheck{Type: "https", Path: "/", ExpectCodes: []int{200}, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 1, Fall: 1}
	want[5].Type, want[5].Name, want[5].Record = "dns", "example.com", "SOA"
	ports := []uint16{0, 25, 123, 80, 443, 53}
	for i, s := range c.Services {
		if diff := cmp.Diff(want[i], *s.HealthCheck); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.Name, diff)
		}
		if got := s.HealthCheck.PortFor(s.Members[0].Port); got != ports[i] {
			t.Errorf("%s: port %d, want %d", s.Name, got, ports[i])
		}
	}
}

// write writes a configuration and returns its path.
func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaults(t *testing.T) {
	path := write(t, "sites: [{name: a}]\n")
	c, _, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.DNS; !slices.Equal(got.Listen, []string{"127.0.0.1:5300"}) || !got.ECS || got.MaxUDPPayload != 1232 ||
		got.DrainTime != 5*time.Second || got.TCP != (config.TCP{IdleTimeout: 10 * time.Second, MaxConnections: 1000, MaxConnectionsPerClient: 100}) {
		t.Errorf("dns is %+v", got)
	}
	if got := c.Reports; got.Listen != "127.0.0.1:8054" || got.Interval != 5*time.Second || got.StaleAfter != 15*time.Second || got.DeadAfter != time.Minute {
		t.Errorf("reports is %+v", got)
	}
	if got := c.Admin; got.Listen != "127.0.0.1:8053" || !got.TelemetryPerService {
		t.Errorf("admin is %+v", got)
	}
	if want := filepath.Join(filepath.Dir(path), "state"); c.State.Directory != want {
		t.Errorf("state.directory is %s, want %s", c.State.Directory, want)
	}
	if got := c.RTT; !slices.Equal(got.Methods, []string{"icmp"}) || got.Prefix != (config.RTTPrefix{IPv4: 24, IPv6: 56}) ||
		got.Refresh != 5*time.Minute || got.SilentFor != 10*time.Minute || got.MaxTargets != 100_000 || got.MaxSites != 8 || len(got.Exempt) != 0 {
		t.Errorf("rtt is %+v", got)
	}
	if got := c.Sites[0].Capacity; got != (config.Capacity{Resume: 0.9, Hold: 30 * time.Second}) {
		t.Errorf("capacity is %+v", got)
	}
	if got := c.Log; got != (config.Log{Level: "info", Format: "json"}) {
		t.Errorf("log is %+v", got)
	}

	// The shipped policies, by name; and every metric's parameters.
	want := map[string]string{
		"default":        "health capacity rtt geo connection-load preference least-selected static",
		"active-standby": "health capacity preference static",
		"nearest":        "health capacity geo least-selected static",
		"fastest":        "health capacity rtt geo static",
		"spread":         "health capacity static",
	}
	if len(c.Policies) != len(want) {
		t.Errorf("%d policies, want %d", len(c.Policies), len(want))
	}
	for name, metrics := range want {
		var got []string
		for _, s := range c.Policy(name).Steps {
			got = append(got, s.Metric)
		}
		if strings.Join(got, " ") != metrics {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := c.Policy("spread").Steps[2].Method; got != "weighted" {
		t.Errorf("spread's method is %s", got)
	}
	path = write(t, "policies: [{name: mine, chain: [{metric: headroom}, {metric: probe-latency}, {metric: active-servers}, {metric: cost, enabled: false}]}]\n")
	c, _, err = config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	steps := append(slices.Clone(c.Policy("default").Steps), c.Policy("mine").Steps...)
	if diff := cmp.Diff([]config.Step{
		{Metric: "health", Enabled: true},
		{Metric: "capacity", Enabled: true},
		{Metric: "rtt", Enabled: true, Tolerance: 0.1, ToleranceAbs: 5 * time.Millisecond, MaxAge: 10 * time.Minute},
		{Metric: "geo", Enabled: true, Levels: []string{"override", "distance", "subdivision", "country", "continent"}, ToleranceKm: 100},
		{Metric: "connection-load", Enabled: true, Tolerance: 1, ToleranceRate: 5},
		{Metric: "preference", Enabled: true},
		{Metric: "least-selected", Enabled: true, HalfLife: time.Minute},
		{Metric: "static", Enabled: true, Method: "round-robin"},
		{Metric: "headroom", Enabled: true, Tolerance: 0.1},
		{Metric: "probe-latency", Enabled: true, Tolerance: 0.1},
		{Metric: "active-servers", Enabled: true},
		{Metric: "cost"},
	}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}

	// A policy of the file replaces the shipped one.
	c, _, err = config.Load(write(t, "policies: [{name: default, chain: [{metric: static}]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Policy("default").Steps; len(got) != 1 || len(c.Policies) != 5 {
		t.Errorf("default is %+v of %d policies", got, len(c.Policies))
	}
}

func TestUnits(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint64
	}{
		{"1bps", 1},
		{"1kbps", 1e3},
		{"900Mbps", 900e6},
		{"1.5Gbps", 1_500_000_000},
		{"0.000001Tbps", 1e6},
		{"1000000Tbps", 1e18},
		{"0.1Gbps", 100_000_000},
		{"off", 0},
	} {
		c, _, err := config.Load(write(t, "sites: [{name: a, capacity: {bandwidth: "+tt.text+"}}]\n"))
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
		} else if got := c.Sites[0].Capacity.Bandwidth; got != tt.want {
			t.Errorf("%s is %d, want %d", tt.text, got, tt.want)
		}
	}
	for text, want := range map[string]config.Threshold{"3": {Count: 3}, "50%": {Share: 0.5}, "100%": {Share: 1}, `"2"`: {Count: 2}} {
		c, _, err := config.Load(write(t, "sites: [{name: a}]\nzones: [{name: x.test, file: config.yaml}]\n"+
			"services: [{name: x.test, min_healthy: "+text+", members: [{name: a, site: a, addresses: [192.0.2.1]}]}]\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := c.Services[0].MinHealthy; got != want {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	path := write(t, "dns: {max_udp_payload: 4096}\nadmin: {telemetry_per_service: true}\n")
	for name, value := range map[string]string{
		"GSLBD_DNS__MAX_UDP_PAYLOAD":          "1400", // over the file
		"GSLBD_DNS__TCP__IDLE_TIMEOUT":        "3s",   // absent from the file, and so is its section
		"GSLBD_ADMIN__TELEMETRY_PER_SERVICE":  "false",
		"GSLBD_LOG__QUERIES":                  "0.5",
		"GSLBD_DNS__NSID":                     "007", // text is text
		"GSLBD_STATE__DIRECTORY":              "/nowhere/state",
		"GSLBD_DNS__RATE_LIMIT__SLIP":         "3",
		"GSLBD_REPORTS__TLS__CERTIFICATE":     "", // an empty value is a value
		"GSLBCTL_SERVER":                      "http://127.0.0.1:8053",
		"XGSLBD_DNS__ECS":                     "false",
		"GSLBD_DNS__MAX_UDP_PAYLOD":           "1",
		"GSLBD_dns__ecs":                      "false",
		"GSLBD":                               "1",
		"GSLB_AGENT_INTERVAL":                 "x",
		"GSLBD_DNS__COOKIES__ENABLED":         "false", // it is true without
		"GSLBD_DNS__RATE_LIMIT__EXEMPT_COUNT": "1",
	} {
		t.Setenv(name, value)
	}
	c, warnings, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.DNS.MaxUDPPayload != 1400 || c.DNS.TCP.IdleTimeout != 3*time.Second || c.Admin.TelemetryPerService || c.Log.Queries != 0.5 ||
		c.DNS.NSID != "007" || c.State.Directory != "/nowhere/state" || c.DNS.RateLimit.Slip != 3 || !c.DNS.ECS || c.DNS.Cookies.Enabled {
		t.Errorf("environment is not over the file: %+v", c)
	}
	slices.Sort(warnings)
	want := []string{
		path + ": zones: there are none: every query will be refused",
		"environment GSLBD_DNS__MAX_UDP_PAYLOD: matches no setting and has no effect; did you mean \"GSLBD_DNS__MAX_UDP_PAYLOAD\"?",
		"environment GSLBD_DNS__RATE_LIMIT__EXEMPT_COUNT: matches no setting and has no effect",
		"environment GSLBD_dns__ecs: matches no setting and has no effect; did you mean \"GSLBD_DNS__ECS\"?",
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings are %q", warnings)
	}
}

func TestEnvironmentRefused(t *testing.T) {
	path := write(t, "{}\n")
	for _, tt := range []struct{ name, value, want string }{
		{"GSLBD_DNS__MAX_UDP_PAYLOAD", "1232.5", `dns.max_udp_payload: "1232.5" is not a whole number in decimal digits`},
		{"GSLBD_DNS__MAX_UDP_PAYLOAD", "", `dns.max_udp_payload: "" is not a whole number in decimal digits`},
		{"GSLBD_DNS__MAX_UDP_PAYLOAD", "100", `dns.max_udp_payload: 100 is not between 512 and 4096`},
		{"GSLBD_DNS__ECS", "yes", `dns.ecs: "yes" is not true or false`},
		{"GSLBD_RTT__REFRESH", "30", `rtt.refresh: "30" is not a time: write a number and ms, s, m or h, such as 5m`},
		{"GSLBD_RTT__REFRESH", "0", `rtt.refresh: "0" is not a time: write a number and ms, s, m or h, such as 5m`},
		{"GSLBD_LOG__QUERIES", "nan", `log.queries: "nan" is not a number: write digits, such as 5 or 0.5`},
		{"GSLBD_LOG__LEVEL", "", `log.level: must not be empty`},
		{"GSLBD_REPORTS__LISTEN", "localhost:1", `reports.listen: "localhost:1" is not an address to listen on: write an IP address and a port, such as 127.0.0.1:5300, [::1]:5300, or :5300 for every address`},
		{"GSLBD_DNS__COOKIES__ENABLED", "on", `dns.cookies.enabled: "on" is not true or false`},
		{"GSLBD_ADMIN__LISTEN", "192.0.2.1:80", `admin.listen: 192.0.2.1:80 can be reached from other machines, which needs admin.token_file or admin.tls.client_ca: write one of them, or listen on loopback`},
		{"GSLBD_DNS__LISTEN", "127.0.0.1:53", `stands for a list or an entry of one, and the environment sets single values only: write it in the file`},
		{"GSLBD_SITES__0__NAME", "seoul", `stands for a list or an entry of one, and the environment sets single values only: write it in the file`},
		{"GSLBD_SITES__NAME", "seoul", `stands for a list or an entry of one, and the environment sets single values only: write it in the file`},
		{"GSLBD_DNS__TCP", "1", `stands for a section, and the environment sets single values only: add __ and a key`},
	} {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			t.Setenv(tt.name, tt.value)
			c, _, err := config.Load(path)
			if want := "environment " + tt.name + ": " + tt.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if c != nil {
				t.Error("a faulty variable gave a configuration")
			}
		})
	}

	t.Run("agent", func(t *testing.T) {
		t.Setenv("GSLB_AGENT_RTT__RATE", "7")
		t.Setenv("GSLB_AGENT_SITE", "busan")
		a, _, err := config.LoadAgent("../testdata/config/agent-good/checks.yaml")
		if err != nil || a.RTT.Rate != 7 || a.Site != "busan" {
			t.Errorf("got %+v, %v", a, err)
		}
		// The environment may give what the file lacks.
		text := "servers: [\"http://127.0.0.1:1\"]\nhaproxy: [{socket: /a, virtual_servers: [{name: a, frontend: f, backend: b}]}]\n"
		if a, _, err = config.LoadAgent(write(t, text)); err != nil || a.Site != "busan" {
			t.Errorf("got %+v, %v", a, err)
		}
	})
}

func TestAgentFile(t *testing.T) {
	a, _, err := config.LoadAgent("../testdata/config/agent-good/haproxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &config.Agent{
		Site: "seoul", Agent: "lb1", Interval: 5 * time.Second,
		Servers:    []string{"http://192.0.2.1:8054", "https://gslbd2.example.com"},
		RTT:        config.AgentRTT{Enabled: true, Rate: 200, Methods: []string{"icmp"}},
		PassiveRTT: config.PassiveRTT{Interval: 30 * time.Second, MinConnections: 3, MaxPrefixes: 10_000},
		HAProxy: []config.HAProxy{
			{Socket: "/run/haproxy/admin.sock", Timeout: 2 * time.Second, VirtualServers: []config.HAProxyVirtualServer{
				{Name: "web", Frontend: "fe-https", Backend: "be-app", Address: netip.MustParseAddr("203.0.113.10"), Port: 443, Protocol: "tcp"},
			}},
			{Socket: "127.0.0.1:9999", Timeout: 500 * time.Millisecond, VirtualServers: []config.HAProxyVirtualServer{
				{Name: "dns", Frontend: "_fe:1", Backend: "be-dns", Protocol: "udp"},
			}},
			{Socket: "[::1]:9999", Timeout: 2 * time.Second, VirtualServers: []config.HAProxyVirtualServer{
				{Name: "mail", Frontend: "mail", Backend: "mail", Protocol: "tcp"},
			}},
		},
		Keepalived: config.Keepalived{PIDFile: "/run/keepalived.pid"},
		Linux:      config.Linux{Sessions: true},
		Log:        config.AgentLog{Level: "info", Format: "json"},
	}
	if diff := cmp.Diff(want, a, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if a, _, err = config.LoadAgent("../testdata/config/agent-good/counters.yaml"); err != nil || a.Counters.Table != "filter" || len(a.Counters.Programs) != 2 {
		t.Errorf("counters are %+v, %v", a.Counters, err)
	}
	if a, _, err = config.LoadAgent("../testdata/config/agent-good/checks.yaml"); err != nil {
		t.Fatal(err)
	}
	if vs := a.VirtualServers[0]; vs.Protocol != "tcp" || vs.Check.Host != "www.example.com" || vs.Check.Path != "/" || !vs.Check.Verify ||
		vs.Servers[1].Address != netip.MustParseAddrPort("[2001:db8::20]:443") {
		t.Errorf("virtual server is %+v", vs)
	}
	if a.RTT.Enabled || a.Linux != (config.Linux{Interface: "eth0.100"}) {
		t.Errorf("rtt is %+v, linux is %+v", a.RTT, a.Linux)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Skip("this machine has no name: ", err)
	}
	text := "site: a\nservers: [\"http://127.0.0.1:1\"]\nhaproxy: [{socket: /a, virtual_servers: [{name: a, frontend: f, backend: b}]}]\n"
	if a, _, err = config.LoadAgent(write(t, text)); err != nil || a.Agent != host {
		t.Errorf("agent is %+v, %v; want %s", a, err, host)
	}
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	const text = "admin: {listen: \"0.0.0.0:8053\", token_file: token}\nsites: [{name: a, token_file: token}]\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(dir, "token")
	for _, tt := range []struct {
		content string
		mode    os.FileMode
		want    string // after the path
	}{
		{"s3cret\n", 0o600, ""},
		{"  s3cret  ", 0o400, ""},
		{"s3cret", 0o640, token + " can be read or written by others than its owner (mode 0640): run chmod 600 " + token},
		{"s3cret", 0o604, token + " can be read or written by others than its owner (mode 0604): run chmod 600 " + token},
		{"", 0o600, token + " is empty"},
		{" \n", 0o600, token + " is empty"},
		{"two words", 0o600, token + " line 1 is not a single word of printable ASCII"},
		{"a\rb", 0o600, token + " line 1 is not a single word of printable ASCII"},
		{"a\n\nb", 0o600, token + " line 2 is not a single word of printable ASCII"},
		{"a\nb\nc\nd", 0o600, token + " has more than 3 lines: the token in force, and at most two others that are still accepted"},
		{strings.Repeat("x", 4097), 0o600, token + " has more than 4096 bytes, and cannot be meant"},
	} {
		_ = os.Remove(token)
		if err := os.WriteFile(token, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(token, tt.mode); err != nil {
			t.Fatal(err)
		}
		c, _, err := config.Load(path)
		if tt.want != "" {
			want := path + ":1: admin.token_file: " + tt.want + "\n" + path + ":2: sites[0].token_file: " + tt.want
			if err == nil || err.Error() != want {
				t.Errorf("%q %v: got  %v\nwant %s", tt.content, tt.mode, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q %v: %v", tt.content, tt.mode, err)
			continue
		}
		if len(c.Admin.Tokens) != 1 || string(c.Admin.Tokens[0]) != "s3cret" || len(c.Sites[0].Tokens) != 1 || string(c.Sites[0].Tokens[0]) != "s3cret" || c.Admin.TokenFile != token {
			t.Errorf("%d tokens of %s", len(c.Admin.Tokens), c.Admin.TokenFile)
		}
	}
	if err := errors.Join(os.Chmod(token, 0o600), os.WriteFile(token, []byte("new\r\n old\n\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if tokens, err := config.ReadTokens(token); err != nil || len(tokens) != 2 || string(tokens[0]) != "new" || string(tokens[1]) != "old" {
		t.Errorf("two lines are %d tokens, %v", len(tokens), err)
	}
	if c, _, err := config.Load(path); err != nil || len(c.Admin.Tokens) != 2 || len(c.Sites[0].Tokens) != 2 {
		t.Errorf("two lines: %v", err)
	}
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(token, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), token+" is not a file") {
		t.Errorf("a directory as secret: %v", err)
	}
}

// TestCookieSecrets checks the file of the secrets of cookies, whose errors never show a secret.
func TestCookieSecrets(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte("dns: {cookies: {secret_file: secret}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const a, b, c, d = "000102030405060708090a0b0c0d0e0f", "101112131415161718191A1B1C1D1E1F", "202122232425262728292a2b2c2d2e2f", "303132333435363738393a3b3c3d3e3f"
	secret := filepath.Join(dir, "secret")
	for _, tt := range []struct {
		content string
		mode    os.FileMode
		secrets int
		want    string // after the path
	}{
		{a, 0o600, 1, ""},
		{a + "\n" + b + "\n", 0o400, 2, ""},
		{"\n" + a + "\r\n " + b + "\r\n" + c + "\r\n\n", 0o600, 3, ""},
		{a, 0o640, 0, " can be read or written by others than its owner (mode 0640): run chmod 600 " + secret},
		{"\n", 0o600, 0, " is empty"},
		{a[:31], 0o600, 0, " line 1 is not a secret of 32 hexadecimal digits: `openssl rand -hex 16` makes one"},
		{a + "\n" + b + "00", 0o600, 0, " line 2 is not a secret of 32 hexadecimal digits: `openssl rand -hex 16` makes one"},
		{a + "\n\n" + b, 0o600, 0, " line 2 is not a secret of 32 hexadecimal digits: `openssl rand -hex 16` makes one"},
		{a + "\n" + a[:30] + "0g", 0o600, 0, " line 2 is not a secret of 32 hexadecimal digits: `openssl rand -hex 16` makes one"},
		{a + "\n" + b + "\n" + strings.ToLower(b), 0o600, 0, " line 3 repeats the secret of line 2"},
		{strings.Join([]string{a, b, c, d}, "\n"), 0o600, 0, " has more than 3 lines: the secret in force, and at most two others that are still accepted"},
	} {
		_ = os.Remove(secret)
		if err := os.WriteFile(secret, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(secret, tt.mode); err != nil {
			t.Fatal(err)
		}
		c, _, err := config.Load(path)
		if tt.want != "" {
			want := path + ":1: dns.cookies.secret_file: " + secret + tt.want
			if err == nil || err.Error() != want {
				t.Errorf("%q: got  %v\nwant %s", tt.content, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.content, err)
			continue
		}
		got := c.DNS.Cookies
		if !got.Enabled || len(got.Secrets) != tt.secrets || string(got.Secrets[0]) != "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f" || got.SecretFile != secret {
			t.Errorf("%q gives %d secrets", tt.content, len(got.Secrets))
		}
		if text := fmt.Sprintf("%v %+v %#v %x", got, got, got, got.Secrets); strings.Contains(text, "\x01") || strings.Contains(text, "0001") {
			t.Errorf("a secret is printed: %s", text)
		}
	}
}

// TestKeyFile checks that private keys are held to the rules of a secret, and that the paths beside them are resolved.
func TestKeyFile(t *testing.T) {
	for _, tt := range []struct {
		section, text string
		got           func(*config.Config) []string
	}{
		{
			"dns.tls", "dns:\n  tls: {listen: [\":8853\"], certificate: c.pem, key: k.pem}\n",
			func(c *config.Config) []string { return []string{c.DNS.TLS.Certificate, c.DNS.TLS.Key} },
		},
		{
			"admin.tls", "admin: {listen: \":8053\",\n  tls: {certificate: c.pem, key: k.pem, client_ca: c.pem}}\n",
			func(c *config.Config) []string {
				return []string{c.Admin.TLS.Certificate, c.Admin.TLS.Key, c.Admin.TLS.ClientCA}
			},
		},
		{
			"state.etcd", "state:\n  etcd: {endpoints: [\"https://127.0.0.1:2379\"], certificate: c.pem, key: k.pem, ca: c.pem}\n",
			func(c *config.Config) []string {
				return []string{c.State.Etcd.Certificate, c.State.Etcd.Key, c.State.Etcd.CA}
			},
		},
	} {
		t.Run(tt.section, func(t *testing.T) {
			path := write(t, tt.text)
			certificate, key := filepath.Join(filepath.Dir(path), "c.pem"), filepath.Join(filepath.Dir(path), "k.pem")
			for _, file := range []string{certificate, key} {
				if err := os.WriteFile(file, []byte("PEM"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := path + ":2: " + tt.section + ".key: " + key + " can be read or written by others than its owner (mode 0644): run chmod 600 " + key
			if _, _, err := config.Load(path); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if err := os.Chmod(key, 0o400); err != nil {
				t.Fatal(err)
			}
			c, _, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{certificate, key, certificate}[:len(tt.got(c))], tt.got(c)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if err := os.Remove(certificate); err != nil {
				t.Fatal(err)
			}
			if _, _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), ":2: "+tt.section+".certificate: stat "+certificate) {
				t.Errorf("a missing certificate: %v", err)
			}
		})
	}
}

func TestLoadUnreadable(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := config.Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, _, err := config.Load(dir); err == nil {
		t.Error("a directory was read")
	}
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, []byte(strings.Repeat("# x\n", 128<<20/4+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := config.Load(large); err == nil || err.Error() != large+": has more than 128 MiB, and cannot be meant" {
		t.Errorf("large file: %v", err)
	}
}

func TestManyFaults(t *testing.T) {
	var b strings.Builder
	b.WriteString("rtt:\n  exempt:\n")
	for i := range 3000 {
		fmt.Fprintf(&b, "    - x%d\n", i)
	}
	_, _, err := config.Load(write(t, b.String()))
	var all config.Errors
	if !errors.As(err, &all) || len(all) != 1000 {
		t.Fatalf("got %d faults", len(all))
	}
	if n := strings.Count(err.Error(), "\n"); n != 100 || !strings.HasSuffix(err.Error(), "\n(and 900 more)") {
		t.Errorf("the text has %d lines", n+1)
	}
	if got := errors.Unwrap(err); got != nil || !errors.Is(err, all[999]) {
		t.Error("the single faults cannot be found")
	}
}

// TestSecuredReports checks what is said of settings that leave reports open to whoever is on the path.
func TestSecuredReports(t *testing.T) {
	dir := t.TempDir()
	secret, others := filepath.Join(dir, "secret"), filepath.Join(dir, "others")
	if err := errors.Join(os.WriteFile(secret, []byte("s3cret\n"), 0o600), os.WriteFile(others, []byte("s3cret\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	const plain = "reports.listen: 0.0.0.0:8054 takes reports of other machines in plain HTTP: whoever is on the path can read the sites' tokens, and report for them; write reports.tls"
	const loopback = "sites[0].token_file: is empty: reports of a are taken from loopback only, although reports.listen is 0.0.0.0:8054"
	for _, tt := range []struct{ reports, token, want string }{
		{`listen: "127.0.0.1:8054"`, secret, ""},
		{`listen: "0.0.0.0:8054"`, secret, plain},
		{`listen: "0.0.0.0:8054"`, `""`, loopback},
		{`listen: "0.0.0.0:8054", tls: {certificate: SECRET, key: SECRET}`, secret, ""},
		{`listen: "0.0.0.0:8054", tls: {certificate: SECRET, key: SECRET}`, `""`, loopback},
		{`listen: "0.0.0.0:8054", tls: {certificate: SECRET, key: SECRET, client_ca: SECRET}`, `""`, ""},
		{`tls: {certificate: SECRET, key: OTHERS}`, secret, "reports.tls.key: " + others + " can be read or written by others than its owner (mode 0644): run chmod 600 " + others},
	} {
		text := strings.NewReplacer("SECRET", secret, "OTHERS", others).Replace("reports: {" + tt.reports + "}\nsites: [{name: a, token_file: " + tt.token + "}]\n")
		_, warnings, err := config.Load(write(t, text))
		said := strings.Join(warnings, "\n")
		if err != nil {
			said += err.Error()
		}
		if !strings.Contains(said, tt.want) || tt.want == "" && strings.Contains(said, ".token_file") || tt.want != plain && strings.Contains(said, "reports.listen:") {
			t.Errorf("%s, %s: %s", tt.reports, tt.token, said)
		}
	}

	const rest = "\nsite: a\nvirtual_servers: [{name: w, address: 192.0.2.1, port: 1, servers: [{name: s, address: \"10.1.1.1:1\"}], check: {type: tcp}}]\n"
	for _, tt := range []struct{ text, want string }{
		{`servers: ["http://127.0.0.1:8054", "http://[::1]:8054", "http://localhost:8054"]` + "\ntoken_file: SECRET", ""},
		{`servers: ["https://192.0.2.1:8054"]` + "\ntoken_file: SECRET\ntls: {ca: SECRET, certificate: SECRET, key: SECRET}", ""},
		{`servers: ["http://192.0.2.1:8054"]`, ""},
		{`servers: ["https://192.0.2.1", "http://192.0.2.1:8054"]` + "\ntoken_file: SECRET", "servers[1]: http://192.0.2.1:8054 is sent the token in plain HTTP: whoever is on the path can read it"},
		{`servers: ["http://192.0.2.1:8054"]` + "\ntls: {ca: SECRET}", "tls.ca: has no effect: no entry of servers is https"},
		{`servers: ["https://192.0.2.1:8054"]` + "\ntls: {certificate: SECRET}", "tls.key: is missing, and tls.certificate is of no use without it"},
		{`servers: ["https://192.0.2.1:8054"]` + "\ntls: {certificate: SECRET, key: OTHERS}", "tls.key: " + others + " can be read or written by others"},
		{`servers: ["https://192.0.2.1:8054"]` + "\ntoken_file: OTHERS", "token_file: " + others + " can be read or written by others"},
	} {
		_, warnings, err := config.LoadAgent(write(t, strings.NewReplacer("SECRET", secret, "OTHERS", others).Replace(tt.text+rest)))
		said := strings.Join(warnings, "\n")
		if err != nil {
			said += err.Error()
		}
		if !strings.Contains(said, tt.want) || tt.want == "" && said != "" {
			t.Errorf("%s: %s", tt.text, said)
		}
	}
}

func TestSecretHides(t *testing.T) {
	s := config.Admin{Tokens: []config.Secret{"s3cret"}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if got := fmt.Sprintf(format, s); strings.Contains(got, "s3cret") || strings.Contains(got, "733363726574") {
			t.Errorf("%s shows the secret: %s", format, got)
		}
		if got := fmt.Sprintf(format, s.Tokens[0]); got != "(secret)" {
			t.Errorf("%s gives %s", format, got)
		}
	}
	if text, err := s.Tokens[0].MarshalText(); string(text) != "(secret)" || err != nil || s.Tokens[0].String() != "(secret)" {
		t.Errorf("text is %s, %v", text, err)
	}
}

func TestNeedsRestart(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	load := func(text, secret string) *config.Config {
		if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := config.Load(write(t, strings.ReplaceAll(text, "TOKEN", token)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := load("state: {directory: /a}\n", "a")
	if got := load("state: {directory: /a}\nlog: {level: debug}\ndns: {ecs: false, drain_time: 1s}\nreports: {interval: 1s}\nevacuation: {exec: {command: [/bin/sh]}}\n", "a").NeedsRestart(old); got != nil {
		t.Errorf("needs a restart: %q", got)
	}
	other := load(`
dns: {listen: ["127.0.0.1:1", "[::1]:1"], nsid: a, version: b, ecs: false, max_udp_payload: 512, tcp: {idle_timeout: 2m, max_connections: 9, max_connections_per_client: 8}, tls: {listen: ["127.0.0.1:4"], certificate: TOKEN, key: TOKEN}}
reports: {listen: "127.0.0.1:2", tls: {certificate: TOKEN, key: TOKEN}}
admin: {listen: "127.0.0.1:3", token_file: TOKEN, telemetry_per_service: false, tls: {certificate: TOKEN, key: TOKEN}}
state: {directory: /b, etcd: {endpoints: ["https://192.0.2.1:1", "https://192.0.2.2:1"], prefix: /c, certificate: TOKEN, key: TOKEN, ca: TOKEN}}
log: {format: text, queries: 0.5}
`, "a")
	want := []string{
		"dns.listen: 127.0.0.1:5300 is in force, 127.0.0.1:1, [::1]:1 needs a restart",
		"dns.nsid: nothing is in force, a needs a restart",
		"dns.version: nothing is in force, b needs a restart",
		"dns.max_udp_payload: 1232 is in force, 512 needs a restart",
		"dns.tcp.idle_timeout: 10s is in force, 2m needs a restart",
		"dns.tcp.max_connections: 1000 is in force, 9 needs a restart",
		"dns.tcp.max_connections_per_client: 100 is in force, 8 needs a restart",
		"dns.tls.listen: nothing is in force, 127.0.0.1:4 needs a restart",
		"reports.listen: 127.0.0.1:8054 is in force, 127.0.0.1:2 needs a restart",
		"reports.tls: HTTP is in force, HTTPS needs a restart",
		"admin.listen: 127.0.0.1:8053 is in force, 127.0.0.1:3 needs a restart",
		"admin.tls: HTTP is in force, HTTPS needs a restart",
		"admin.telemetry_per_service: true is in force, false needs a restart",
		"state.directory: /a is in force, /b needs a restart",
		"state.etcd.endpoints: nothing is in force, https://192.0.2.1:1, https://192.0.2.2:1 needs a restart",
		"state.etcd.prefix: /gslbd is in force, /c needs a restart",
		"state.etcd.certificate: nothing is in force, " + token + " needs a restart",
		"state.etcd.key: nothing is in force, " + token + " needs a restart",
		"state.etcd.ca: nothing is in force, " + token + " needs a restart",
		"log.format: json is in force, text needs a restart",
		"log.queries: 0 is in force, 0.5 needs a restart",
	}
	if diff := cmp.Diff(want, other.NeedsRestart(old)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	back := old.NeedsRestart(other)
	if len(back) != len(want) {
		t.Errorf("the other way: %q", back)
	}
	if want := "dns.tls.listen: 127.0.0.1:4 is in force, its removal needs a restart"; !slices.Contains(back, want) {
		t.Errorf("the other way lacks %q: %q", want, back)
	}
	const text = "admin: {token_file: TOKEN}\n"
	before, after := load(text, "old-word"), load(text, "new-word")
	after.State = before.State // which lies beside each file
	if got := after.NeedsRestart(before); len(got) != 0 {
		t.Errorf("another secret: %q", got)
	}
}

// TestBadScenarios does for scenarios what TestBadFiles does for configurations.
func TestBadScenarios(t *testing.T) {
	c := &config.Config{Sites: []config.Site{{Name: "seoul", Capacity: config.Capacity{Sessions: 10}}, {Name: "virginia"}}}
	eachFile(t, "scenario-bad", func(t *testing.T, path string) {
		s, err := config.LoadScenario(path, c)
		if s != nil {
			t.Error("a faulty file gave a scenario")
		}
		if diff := cmp.Diff(comments(t, path, "want"), faults(t, err, path)); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
}

// TestGoodScenarios loads what docs/simulate.md explains.
func TestGoodScenarios(t *testing.T) {
	c := &config.Config{Sites: []config.Site{{Name: "seoul", Capacity: config.Capacity{Sessions: 10}}, {Name: "virginia"}}}
	eachFile(t, "scenario-good", func(t *testing.T, path string) {
		s, err := config.LoadScenario(path, c)
		if err != nil {
			t.Fatal(err)
		}
		if tr := s.Traffic; tr != nil {
			want := config.Traffic{
				SessionsPerSecond: 1500, SessionLength: 2 * time.Minute, BitsPerSession: 1e6, ReportDelay: 5 * time.Second, Floor: 90 * time.Second,
				FloorShare: 0.15, BreaksAt: 1.2, BreaksAfter: 10 * time.Second, Repair: 5 * time.Minute,
			}
			if diff := cmp.Diff(want, *tr); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		} else if s.Duration != 30*time.Minute || len(s.Events) != 4 || s.Events[1].Sites[0].Share != 0.25 || s.Events[0].Sites[1].State != "up" || s.RTTs[0].RTT != 500*time.Microsecond {
			t.Errorf("%+v", s)
		}
	})
}
