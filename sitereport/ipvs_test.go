package sitereport

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudflare/ipvs"
	"github.com/google/go-cmp/cmp"
)

// What a kernel of version 5.10 writes.
const (
	ipvsHead = "IP Virtual Server version 1.2.1 (size=4096)\n" +
		"Prot LocalAddress:Port Scheduler Flags\n" +
		"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	ipvsProc = ipvsHead +
		"TCP  CB00710A:01BB wlc \n" +
		"  -> 0A01010A:01BB      Masq    100    248        2         \n" +
		"  -> 0A010114:01BB      Masq    0      3          0         \n" +
		"TCP  [2001:0db8:0000:0000:0000:0000:0000:0010]:01BB sh (sh-port) \n" +
		"  -> [2001:0db8:0000:0000:0000:0000:0000:0110]:01BB      Route   1      1          1         \n" +
		"UDP  CB00710A:0035 rr ops \n" +
		"  -> 0A01010A:0035      Masq    1      7          0         \n" +
		"FWM  0000000A wlc persistent 300 FFFFFFFF\n" +
		"  -> 0A01011E:0000      Tunnel  5      4          9         \n" +
		"FWM  0000000A IPv6 wlc \n" +
		"TCP  CB00710B:0050 wlc \n"
	ipvsStats = "   Total Incoming Outgoing         Incoming         Outgoing\n" +
		"   Conns  Packets  Packets            Bytes            Bytes\n" +
		" 16AA370 E33656E5        0     51D8C8883AB3                0\n" +
		"\n" +
		" Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s\n" +
		"       4    1FB3C        0          1282A8F                0\n"
)

var (
	ipvsWeb   = IPVSVirtualServer{Name: "web", Address: netip.MustParseAddr("203.0.113.10"), Port: 443, Protocol: "tcp"}
	ipvsWeb6  = IPVSVirtualServer{Name: "web6", Address: netip.MustParseAddr("2001:db8::10"), Port: 443, Protocol: "tcp"}
	ipvsDNS   = IPVSVirtualServer{Name: "dns", Address: netip.MustParseAddr("203.0.113.10"), Port: 53, Protocol: "udp"}
	ipvsMark  = IPVSVirtualServer{Name: "mark", Mark: 10, Protocol: "tcp"}
	ipvsEmpty = IPVSVirtualServer{Name: "empty", Address: netip.MustParseAddr("203.0.113.11"), Port: 80, Protocol: "tcp"}
)

// newProcIPVS returns a reader without netlink, whose files are in dir.
func newProcIPVS(t *testing.T, dir, table, stats string, servers ...IPVSVirtualServer) *IPVS {
	t.Helper()
	r := NewIPVS(IPVSOptions{VirtualServers: servers})
	r.open = func() (ipvs.Client, error) { return nil, syscall.EPERM }
	r.proc = dir
	for name, text := range map[string]string{"ip_vs": table, "ip_vs_stats": stats} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// summary writes a reading on few lines.
func summary(r Reading) string {
	var b strings.Builder
	for _, v := range r.VirtualServers {
		fmt.Fprintf(&b, "%s", v.Name)
		if v.Sessions != nil {
			fmt.Fprintf(&b, " %d", *v.Sessions)
		}
		for _, s := range v.Servers {
			fmt.Fprintf(&b, ", %s %s", s.Name, s.State)
		}
		b.WriteString("\n")
	}
	l := r.Load
	if l.Sessions != nil {
		fmt.Fprintf(&b, "sessions %d\n", *l.Sessions)
	}
	if l.NewSessions != nil {
		fmt.Fprintf(&b, "new %.1f\n", *l.NewSessions)
	}
	if l.BitsPerSecIn != nil {
		fmt.Fprintf(&b, "in %d\n", *l.BitsPerSecIn)
	}
	if l.BitsPerSecOut != nil {
		fmt.Fprintf(&b, "out %d\n", *l.BitsPerSecOut)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// TestIPVSProc reads what an agent without CAP_NET_ADMIN reads.
func TestIPVSProc(t *testing.T) {
	r := newProcIPVS(t, t.TempDir(), ipvsProc, ipvsStats, ipvsWeb, ipvsWeb6, ipvsDNS, ipvsMark, ipvsEmpty)
	got, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := `web 251, 10.1.1.10:443 up, 10.1.1.20:443 drain
web6 1, [2001:db8::110]:443 up
dns 7, 10.1.1.10:53 up
mark 4, 10.1.1.30 up
empty 0, empty/none down
sessions 263
`
	if d := cmp.Diff(want, summary(got)); d != "" {
		t.Error(d)
	}
	if s := got.VirtualServers[4].Servers[0]; s.Reason != "IPVS has no destination left for 203.0.113.11:80/tcp" {
		t.Errorf("reason %q", s.Reason)
	}
}

// TestIPVSMissing names what there is in place of what is not.
func TestIPVSMissing(t *testing.T) {
	r := newProcIPVS(t, t.TempDir(), ipvsProc, ipvsStats, ipvsWeb, ipvsEmpty)
	r.opts.VirtualServers[1].Port = 81
	got, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := `web 251, 10.1.1.10:443 up, 10.1.1.20:443 drain
empty
warning: virtual server "empty": IPVS has no service 203.0.113.11:81/tcp; it has 203.0.113.10:443/tcp, 203.0.113.10:53/udp, 203.0.113.11:80/tcp, [2001:db8::10]:443/tcp, fwmark 10
`
	if d := cmp.Diff(want, summary(got)); d != "" {
		t.Error(d)
	}
}

// TestIPVSFails reports what it knew as unknown, and no load, where the kernel cannot be read any more.
func TestIPVSFails(t *testing.T) {
	tests := []struct {
		name, table, stats, err string
	}{
		{"gone", "-", "-", "the kernel has no IPVS here: load it (modprobe ip_vs)"},
		{"empty", "", ipvsStats, "cut off after line 0"},
		{"another file", "hello\n", ipvsStats, `line 1 is "hello"`},
		{"a server without a service", ipvsHead + "  -> 0A01010A:01BB      Masq    100    248        2\n", ipvsStats, "line 4 is not understood"},
		{"a broken address", ipvsHead + "TCP  CB0071:01BB wlc\n", ipvsStats, "line 4 is not understood"},
		{"a broken port", ipvsHead + "TCP  CB00710A:1BBBB wlc\n", ipvsStats, "line 4 is not understood"},
		{"an address without a port", ipvsHead + "TCP  CB00710A wlc\n", ipvsStats, "line 4 is not understood"},
		{"mark 0", ipvsHead + "FWM  00000000 wlc\n", ipvsStats, "line 4 is not understood"},
		{"a negative weight", ipvsHead + "TCP  CB00710A:01BB wlc\n  -> 0A01010A:01BB      Masq    -1    248        2\n", ipvsStats, "line 5 is not understood"},
		{"cut off", strings.TrimSuffix(ipvsProc, "0050 wlc \n"), ipvsStats, "line 14 is not understood"},
		{"endless", ipvsProc + strings.Repeat("TCP  CB00710B:0050 wlc \n", 1<<20), ipvsStats, "it is longer than 16777216 bytes"},
		{"no totals", ipvsProc, "", "it is cut off"},
		{"short totals", ipvsProc, "a\nb\n1 2 3\n", "line 3 has 3 numbers"},
		{"no numbers", ipvsProc, "a\nb\n1 2 3 4 x\n", `"x" is not a number`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			r := newProcIPVS(t, dir, ipvsProc, ipvsStats, ipvsWeb)
			if _, err := r.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"ip_vs": tc.table, "ip_vs_stats": tc.stats} {
				err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)
				if text == "-" {
					err = os.Remove(filepath.Join(dir, name))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := r.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.err) || !strings.HasPrefix(err.Error(), "ipvs: ") {
				t.Errorf("error %v", err)
			}
			if d := cmp.Diff("web, 10.1.1.10:443 unknown, 10.1.1.20:443 unknown\n", summary(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestIPVSTotals makes rates of the totals, which are those of all services.
func TestIPVSTotals(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	r := newProcIPVS(t, dir, ipvsHead+"TCP  CB00710A:01BB wlc\n  -> 0A01010A:01BB      Masq    100    248        2\n", ipvsStats, ipvsWeb)
	read := func(conns, in, out uint64) string {
		t.Helper()
		text := fmt.Sprintf("a\nb\n%8X %8X %8X %16X %16X\n\n", conns, 1, 1, in, out)
		if err := os.WriteFile(filepath.Join(dir, "ip_vs_stats"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := r.table()
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(5 * time.Second)
		_, load, _ := strings.Cut(summary(r.interpret(now, table)), "sessions 248\n")
		return load
	}
	for i, s := range []struct {
		conns, in, out uint64
		want           string
	}{
		{1000, 100_000, 200_000, ""},
		{1010, 105_000, 300_000, "new 2.0\nin 8000\nout 160000\n"},
		{5, 100, 100, ""}, // the counters were zeroed
		{15, 5_100, 100, "new 2.0\nin 8000\nout 0\n"},
		{20_000_000_000, 5_100, 100, "in 0\nout 0\n"}, // more than any machine takes
	} {
		if got := read(s.conns, s.in, s.out); got != s.want {
			t.Errorf("step %d: %q", i, got)
		}
	}
}

// A fakeIPVS answers as the kernel does over netlink.
type fakeIPVS struct {
	ipvs.Client  // what is not asked for
	services     []ipvs.ServiceExtended
	destinations map[string][]ipvs.DestinationExtended
	err          error
	closed       bool
}

func (f *fakeIPVS) Close() error {
	f.closed = true
	return nil
}

func (f *fakeIPVS) Services() ([]ipvs.ServiceExtended, error) {
	if f.err == nil && len(f.services) == 0 {
		return nil, fs.ErrNotExist
	}
	return f.services, f.err
}

func (f *fakeIPVS) Destinations(s ipvs.Service) ([]ipvs.DestinationExtended, error) {
	d, ours := f.destinations[fmt.Sprint(s.Address, s.Port, s.FWMark, s.Family)]
	if !ours {
		return nil, errors.New("asked for a service that nobody wants to know of")
	}
	if len(d) == 0 {
		return nil, fs.ErrNotExist
	}
	return d, nil
}

// TestIPVSNetlink reads each service's own counters.
func TestIPVSNetlink(t *testing.T) {
	web := ipvs.Service{Address: ipvsWeb.Address, Port: 443, Family: ipvs.INET, Protocol: ipvs.TCP}
	other := ipvs.Service{Address: ipvsWeb.Address, Port: 80, Family: ipvs.INET, Protocol: ipvs.TCP}
	mark4, mark6 := ipvs.Service{FWMark: 10, Family: ipvs.INET}, ipvs.Service{FWMark: 10, Family: ipvs.INET6}
	stats := func(n uint64) ipvs.Stats {
		return ipvs.Stats{Connections: n, IncomingBytes: 100 * n, OutgoingBytes: 1000 * n}
	}
	destination := func(addr string, port uint16, weight, active uint32, kind ipvs.ForwardType) ipvs.DestinationExtended {
		return ipvs.DestinationExtended{
			Destination:       ipvs.Destination{Address: netip.MustParseAddr(addr), Port: port, Weight: weight, FwdMethod: kind},
			ActiveConnections: active, InactiveConnections: 99,
		}
	}
	at := func(n uint64) []ipvs.ServiceExtended {
		return []ipvs.ServiceExtended{
			{Service: web, Stats64: stats(n), Stats: stats(7)},
			{Service: other, Stats64: stats(5 * n)},
			{Service: mark4, Stats: stats(n)}, // a kernel without counters of 64 bits
			{Service: mark6, Stats: stats(n)},
		}
	}
	f := &fakeIPVS{services: at(1000), destinations: map[string][]ipvs.DestinationExtended{
		"203.0.113.10 443 0 INET": {destination("10.1.1.10", 443, 1, 20, ipvs.Masquerade), destination("10.1.1.20", 443, 0, 1, ipvs.Masquerade)},
		"invalid IP 0 10 INET":    {destination("10.1.1.30", 0, 1, 2, ipvs.Masquerade)},
		"invalid IP 0 10 INET6":   {destination("2001:db8::30", 0, 1, 3, ipvs.Masquerade)},
	}}
	r := NewIPVS(IPVSOptions{VirtualServers: []IPVSVirtualServer{ipvsWeb, ipvsMark}})
	r.proc = t.TempDir() // has no files
	r.open = func() (ipvs.Client, error) { return f, nil }
	now := time.Now()
	read := func() string {
		t.Helper()
		now = now.Add(5 * time.Second)
		table, err := r.table()
		if err != nil {
			t.Fatal(err)
		}
		return summary(r.interpret(now, table))
	}
	servers := "web 21, 10.1.1.10:443 up, 10.1.1.20:443 drain\nmark 5, 10.1.1.30 up, 2001:db8::30 up\nsessions 26\n"
	if d := cmp.Diff(servers, read()); d != "" {
		t.Error(d)
	}
	f.services = at(1050) // three services that are ours, each by 50 connections in 5 seconds
	if d := cmp.Diff(servers+"new 30.0\nin 24000\nout 240000\n", read()); d != "" {
		t.Error(d)
	}
	// Replies of one server go past the machine: what is counted of the others is not the whole.
	f.destinations["203.0.113.10 443 0 INET"][0].FwdMethod = ipvs.DirectRoute
	f.services = at(1060)
	if d := cmp.Diff(servers+"new 6.0\nin 4800\n", read()); d != "" {
		t.Error(d)
	}
	// No service at all.
	f.services = nil
	want := "web, 10.1.1.10:443 unknown, 10.1.1.20:443 unknown\nmark, 10.1.1.30 unknown, 2001:db8::30 unknown\n"
	if got := read(); !strings.HasPrefix(got, want) || !strings.Contains(got, "IPVS has no service fwmark 10; it has none") || strings.Contains(got, "sessions") {
		t.Error(got)
	}
	// Neither netlink nor files.
	f.err = errors.New("out of order")
	got, err := r.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), "netlink: out of order; and open ") || summary(got) != want {
		t.Errorf("%s, %v", summary(got), err)
	}
	if r.client != nil || !f.closed {
		t.Error("a client that failed is used again, or kept open")
	}
}

// TestIPVSHere reads this machine's kernel: one without IPVS is named so.
func TestIPVSHere(t *testing.T) {
	got, err := NewIPVS(IPVSOptions{VirtualServers: []IPVSVirtualServer{ipvsWeb}}).Read(t.Context())
	if _, missing := os.Stat("/proc/net/ip_vs"); missing != nil {
		if err == nil || err.Error() != "ipvs: the kernel has no IPVS here: load it (modprobe ip_vs), or take ipvs out of the agent's file" {
			t.Errorf("error %v", err)
		}
	} else if err != nil {
		t.Error(err)
	}
	if got.Load != (Load{}) || len(got.VirtualServers) != 1 {
		t.Errorf("%+v", got)
	}
}

func FuzzParseIPVS(f *testing.F) {
	f.Add(ipvsProc, ipvsStats)
	f.Add(ipvsHead+"FWM  0000000A IPv6 wlc \n", "a\nb\n1 2 3 4 5")
	f.Fuzz(func(t *testing.T, table, stats string) {
		if got, err := parseIPVSTable(strings.NewReader(table)); err == nil {
			for k, s := range got.services {
				if k.mark == 0 && (!k.at.IsValid() || k.protocol == "") {
					t.Fatalf("a service without an address: %+v", k)
				}
				for _, d := range s.destinations {
					if !d.at.IsValid() {
						t.Fatal("a destination without an address")
					}
				}
			}
		}
		if c, err := parseIPVSStats(stats); (c == nil) != (err != nil) {
			t.Fatal(c, err)
		}
	})
}
