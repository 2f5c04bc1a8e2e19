package sitereport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// tcpInfo makes the attribute of a socket with a smoothed round trip, acknowledged so long ago.
func tcpInfo(rtt, acknowledged time.Duration) []byte {
	b := make([]byte, attributeHeader+248)
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], diagInfo)
	info := b[attributeHeader:]
	binary.NativeEndian.PutUint32(info[56:], uint32(acknowledged.Milliseconds()))
	binary.NativeEndian.PutUint32(info[68:], uint32(rtt.Microseconds()))
	return b
}

// connection makes the description of a client's connection.
func connection(local, remote netip.AddrPort, cookie uint64, rtt time.Duration) []byte {
	b := socketAt(unix.AF_INET, local)
	if remote.Addr().Is6() {
		b[0] = unix.AF_INET6
	}
	binary.BigEndian.PutUint16(b[6:], remote.Port())
	copy(b[24:40], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint64(b[44:], cookie)
	b = append(b, 5, 0, 8, 0, 0, 0, 0, 0) // INET_DIAG_SHUTDOWN
	return append(b, tcpInfo(rtt, 0)...)
}

func TestRoundTrip(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("[2001:db8:1:2::3]:5555")
	whole := connection(local, remote, 7, 30*time.Millisecond)
	idle := append(socketAt(unix.AF_INET, local), tcpInfo(30*time.Millisecond, 31*time.Second)...)
	tests := []struct {
		name string
		s    diagSocket
		want time.Duration
	}{
		{"of now", whole, 30 * time.Millisecond},
		{"of before the last scan", idle, 0},
		{"not known", append(socketAt(unix.AF_INET, local), tcpInfo(0, 0)...), 0},
		{"without attributes", socketAt(unix.AF_INET, local), 0},
		{"of an old kernel", append(socketAt(unix.AF_INET, local), 24, 0, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20), 0},
		{"broken off", whole[:len(whole)-1], 0},
		{"of no length", append(socketAt(unix.AF_INET, local), 0, 0, 2, 0), 0},
	}
	for _, tc := range tests {
		if rtt, ok := roundTrip(tc.s, 30*time.Second); ok != (tc.want > 0) || ok && rtt != tc.want {
			t.Errorf("%s: %v, %t", tc.name, rtt, ok)
		}
	}
	if s := diagSocket(whole); s.remote() != remote || s.cookie() != 7 {
		t.Errorf("%v, %d", s.remote(), s.cookie())
	}
}

// A collected is what a scan hands on.
type collected map[string]time.Duration

// scanOf scans connections: by client, a round trip each.
func scanOf(c *clientNetworks, now time.Time, cookie *uint64, clients map[string]time.Duration) collected {
	c.begin()
	for client, rtt := range clients {
		*cookie++
		c.add(netip.MustParseAddr(client), *cookie, rtt)
	}
	got := collected{}
	c.end(now, func(p netip.Prefix, rtt time.Duration, _ int) { got[p.String()] = rtt.Round(time.Millisecond) })
	return got
}

// TestClientNetworks: a value is the median of a network's connections, of at least three different ones, and special
// networks tell of no client.
func TestClientNetworks(t *testing.T) {
	c := &clientNetworks{interval: 30 * time.Second, least: 3, most: 100, index: map[uint64]int{}}
	now, cookie := time.Now(), uint64(0)
	const ms = time.Millisecond
	got := scanOf(c, now, &cookie, map[string]time.Duration{
		"20.0.1.1": 30 * ms, "20.0.1.2": 31 * ms, "20.0.1.200": 900 * ms, // one is on a bad line
		"20.0.2.1": 50 * ms, "20.0.2.2": 50 * ms, // too few
		"2a00:1:2:300::1": 80 * ms, "2a00:1:2:3ff::1": 80 * ms, "2a00:1:2:3aa::1": 80 * ms, "2a00:1:2:400::1": 9 * ms,
		"10.1.1.1": 1 * ms, "10.1.1.2": 1 * ms, "10.1.1.3": 1 * ms, "127.0.0.1": 1 * ms,
		"fd00::1": 1 * ms, "fd00::2": 1 * ms, "fd00::3": 1 * ms, "fe80::1": 1 * ms,
	})
	if d := cmp.Diff(collected{"20.0.1.0/24": 31 * ms, "2a00:1:2:300::/56": 80 * ms}, got, cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= b/20 })); d != "" {
		t.Error(d)
	}
	// The two connections are still the same two.
	one := func(now time.Time, cookies ...uint64) (n int) {
		c.begin()
		for _, k := range cookies {
			c.add(netip.MustParseAddr("20.0.3.1"), k, 50*ms)
		}
		c.end(now, func(netip.Prefix, time.Duration, int) { n++ })
		return n
	}
	for i := range 6 {
		if one(now.Add(time.Duration(i)*30*time.Second), 101, 102) != 0 {
			t.Fatal("two connections count twice")
		}
	}
	if one(now.Add(3*time.Minute), 103) != 1 {
		t.Error("the third within five minutes makes no value")
	}
}

// TestClientNetworksFollow: a value that stays is sent every four minutes, one that changed each minute, five times.
func TestClientNetworksFollow(t *testing.T) {
	c := &clientNetworks{interval: 30 * time.Second, least: 3, most: 100, index: map[uint64]int{}}
	start, cookie := time.Now(), uint64(0)
	var sent []string
	for i := range 40 {
		now, rtt := start.Add(time.Duration(i)*30*time.Second), 30*time.Millisecond
		if i >= 20 {
			rtt = 90 * time.Millisecond
		}
		for _, v := range scanOf(c, now, &cookie, map[string]time.Duration{"20.0.1.1": rtt, "20.0.1.2": rtt, "20.0.1.3": rtt}) {
			sent = append(sent, fmt.Sprintf("%v %v", now.Sub(start), v.Round(10*time.Millisecond)))
		}
	}
	want := []string{
		"0s 30ms", "1m0s 30ms", "2m0s 30ms", "3m0s 30ms", "4m0s 30ms", "8m0s 30ms",
		"11m0s 90ms", "12m0s 90ms", "13m0s 90ms", "14m0s 90ms", "15m0s 90ms", "19m0s 90ms",
	}
	if d := cmp.Diff(want, sent); d != "" {
		t.Error(d)
	}
}

// TestClientNetworksStayFresh: at the longest interval too, and where the connections come as slowly as makes a value at all,
// a value that stays as it is comes again before the last is ten minutes old.
func TestClientNetworksStayFresh(t *testing.T) {
	const interval = time.Minute
	for _, every := range []int{1, 2, 3} { // scans with a connection that is acknowledged on; values are of two
		c := &clientNetworks{interval: interval, least: 2, most: 100, index: map[uint64]int{}}
		now, last := time.Now(), time.Time{}
		for i := range 600 {
			// Scans begin an interval after each other, and end now later, now sooner.
			now = now.Add(interval + time.Duration(i%5-2)*10*time.Millisecond)
			c.begin()
			if i%every == 0 {
				c.add(netip.MustParseAddr("20.0.1.1"), uint64(i), 30*time.Millisecond)
			}
			c.end(now, func(netip.Prefix, time.Duration, int) {
				if gap := now.Sub(last); !last.IsZero() && gap >= 10*time.Minute {
					t.Errorf("a connection every %d scans: %v between two values", every, gap)
				}
				last = now
			})
		}
		if last.IsZero() {
			t.Errorf("a connection every %d scans: no value", every)
		}
	}
}

// TestClientNetworksBounded: of more networks than may be kept, those with the most connections are, whatever comes
// between.
func TestClientNetworksBounded(t *testing.T) {
	c := &clientNetworks{interval: 30 * time.Second, least: 3, most: 50, index: map[uint64]int{}}
	now, cookie, random := time.Now(), uint64(0), rand.New(rand.NewPCG(1, 2))
	busy := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{20, 1, byte(i), 9}) }
	for scan := range 3 {
		c.begin()
		for i := range 40_000 {
			cookie++
			c.add(netip.AddrFrom4([4]byte{30 + byte(scan), byte(i >> 8), byte(i), 1}), cookie, time.Millisecond)
			cookie++
			c.add(busy(random.IntN(50)), cookie, 20*time.Millisecond)
			if len(c.all) > 100 {
				t.Fatalf("%d networks are kept", len(c.all))
			}
		}
		got := map[netip.Prefix]bool{}
		c.end(now.Add(time.Duration(scan)*time.Minute), func(p netip.Prefix, _ time.Duration, _ int) { got[p] = true })
		for i := range 50 {
			if p, _ := busy(i).Prefix(24); !got[p] {
				t.Errorf("scan %d: %s is missing", scan, p)
			}
		}
		if len(c.all) != 50 || len(c.index) != 50 {
			t.Errorf("%d networks, %d in the index", len(c.all), len(c.index))
		}
	}
	for i := range 11 {
		c.begin()
		c.end(now.Add(time.Duration(5+i)*time.Minute), func(netip.Prefix, time.Duration, int) { t.Error("a value of nothing") })
	}
	if len(c.all) != 0 {
		t.Errorf("%d networks are kept that nobody comes from", len(c.all))
	}
}

func TestRTTHistogram(t *testing.T) {
	for _, rtt := range []time.Duration{150 * time.Microsecond, time.Millisecond, 7 * time.Millisecond, 29 * time.Millisecond, 333 * time.Millisecond, 4 * time.Second} {
		var h rttHistogram
		for i := range 201 { // evenly from 80 % to 120 %
			h.add(rtt*8/10 + rtt*4/10*time.Duration(i)/200)
		}
		if m := h.median(); (m - rtt).Abs() > rtt/50 {
			t.Errorf("%v became %v", rtt, m)
		}
	}
	var h rttHistogram
	if h.median() != 0 {
		t.Error("a median of nothing")
	}
	for range 100_000 {
		h.add(time.Hour)
		h.add(0)
	}
	h.add(time.Hour)
	h[0]--
	if m := h.median(); m < 7*time.Second || m > 9*time.Second {
		t.Errorf("a median of %v", m)
	}
}

func TestEndpoints(t *testing.T) {
	a := netip.MustParseAddr
	e := endpointsOf([]VirtualServer{
		{Name: "own", Address: a("192.0.2.1"), Port: 443, Protocol: "tcp"},
		{Name: "own, again", Address: a("::ffff:192.0.2.1"), Port: 443},
		{Name: "behind NAT", Address: a("198.51.100.1"), Port: 8443},
		{Name: "no address", Port: 80},
		{Name: "no port", Address: a("192.0.2.1")},
		{Name: "udp", Address: a("192.0.2.1"), Port: 53, Protocol: "udp"},
	}, map[netip.Addr]bool{a("192.0.2.1"): true})
	if d := cmp.Diff([]uint16{80, 443, 8443}, e.ports); d != "" {
		t.Error(d)
	}
	for where, want := range map[string]bool{
		"192.0.2.1:443": true, "192.0.2.9:443": false, "10.0.0.5:8443": true, "10.0.0.5:80": true, "192.0.2.1:53": false, "192.0.2.1:40000": false,
	} {
		if e.has(netip.MustParseAddrPort(where)) != want {
			t.Errorf("%s: %t", where, !want)
		}
	}
}

// TestPacer: whatever the scan costs, it takes a tenth of the time, and ends at once when it must.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var used time.Duration
		p := pacer{ctx: ctx, used: func() time.Duration { return used + time.Hour }, started: time.Now(), before: time.Hour}
		for range 1000 {
			used += time.Millisecond
			if err := p.pause(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(p.started) + p.ahead(); took != 10*time.Second {
			t.Errorf("a second of work took %v", took)
		}
		cancel()
		used += time.Second
		if err := p.pause(); err == nil {
			t.Error("it goes on")
		}
	})
}

// A transport answers reports as its test says.
type transport func(*Report) (status int, err error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	rep, err := Decode(r.Body, MaxReport)
	if err != nil {
		return nil, err
	}
	status, err := f(rep)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(`{"accepted": true}`)), Header: http.Header{}}, nil
}

// TestAgentPassive: values are sent until they are acknowledged, beside the results of probes, and a report says why there
// are none.
func TestAgentPassive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		var warnings []string
		n := 0
		a, err := NewAgent(AgentOptions{
			Site: "seoul", Servers: []string{"http://a"}, Passive: &PassiveOptions{},
			Transport: transport(func(r *Report) (int, error) {
				for _, t := range r.RTTs {
					got = append(got, fmt.Sprintf("%d: %v %v %s of %d after %d s", n, t.Prefix, *t.Millis, t.Method, *t.Connections, t.AgeMS/5000*5))
				}
				warnings = r.Warnings
				if n++; n < 3 { // one report, twice
					return 0, errors.New("connection refused")
				}
				return http.StatusOK, nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		a.passive.result(netip.MustParsePrefix("20.0.1.0/24"), 30500*time.Microsecond, 12, time.Now())
		time.Sleep(19 * time.Second) // the bubble's time
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{"0: 20.0.1.0/24 30.5 tcp of 12 after 0 s", "1: 20.0.1.0/24 30.5 tcp of 12 after 0 s", "2: 20.0.1.0/24 30.5 tcp of 12 after 5 s"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if len(warnings) != 1 || !strings.Contains(warnings[0], "round trips of clients: no virtual server of TCP has a port") {
			t.Errorf("warnings %q", warnings)
		}
	})
	for _, o := range []PassiveOptions{{MinConnections: 33}, {MinConnections: -1}, {MaxPrefixes: -1}} {
		if _, err := NewAgent(AgentOptions{Site: "seoul", Servers: []string{"http://a"}, Passive: &o}); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// inNamespace moves the test into a network namespace in which 1.1.1.1 and 2a00:53::1 are the machine's, and clients may
// have any address of 20.0.0.0/8, 10.0.0.0/8 and 2a00::/16.
func inNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	_, err := exec.LookPath("ip")
	if err != nil || unix.Unshare(unix.CLONE_NEWNET) != nil {
		if os.Getenv("E2E") == "require" {
			t.Fatal("needs the program ip and root, to make a network namespace, and E2E=require forbids to skip")
		}
		t.Skip("SKIP: needs the program ip and root, to make a network namespace")
	}
	for name, value := range map[string]string{"net/ipv6/ip_nonlocal_bind": "1", "net/core/somaxconn": "65535", "net/ipv4/tcp_syncookies": "0"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{
		"link set lo up", "address add 1.1.1.1/32 dev lo", "address add 2a00:53::1/128 dev lo nodad",
		"route add local 20.0.0.0/8 dev lo", "route add local 10.0.0.0/8 dev lo", "-6 route add local 2a00::/16 dev lo",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
}

// A tcpServer is a listening socket of the test's namespace.
type tcpServer struct {
	fd int
	at unix.Sockaddr
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func serveTCP(t testing.TB, at string) tcpServer {
	t.Helper()
	family, sa := sockaddr(netip.MustParseAddrPort(at))
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Listen(fd, 50_000)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return tcpServer{fd, sa}
}

// connect opens a connection from the address, which lasts until the test ends. The server need not accept it, so it costs
// one descriptor.
func (s tcpServer) connect(t testing.TB, from netip.Addr) {
	t.Helper()
	family, sa := sockaddr(netip.AddrPortFrom(from, 0))
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Connect(fd, s.at)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// TestPassiveScan reads real sockets: those of clients at the virtual servers count, those to the servers behind, to
// others and out of private networks do not.
func TestPassiveScan(t *testing.T) {
	inNamespace(t)
	web, web6, behind, other := serveTCP(t, "1.1.1.1:443"), serveTCP(t, "[2a00:53::1]:443"), serveTCP(t, "20.99.99.1:8080"), serveTCP(t, "20.0.0.1:443")
	for i := range 4 {
		web.connect(t, netip.AddrFrom4([4]byte{20, 0, 1, byte(i + 1)}))
		web.connect(t, netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}))
		web6.connect(t, netip.AddrFrom16([16]byte{0x2a, 0, 0, 1, 0, 2, 3, byte(i), 15: 1}))
		behind.connect(t, netip.MustParseAddr("1.1.1.1"))
		other.connect(t, netip.AddrFrom4([4]byte{20, 0, 7, byte(i + 1)}))
	}
	web.connect(t, netip.MustParseAddr("20.0.2.1"))

	var got []string
	p, err := newPassive(PassiveOptions{}, nil, func(prefix netip.Prefix, rtt time.Duration, connections int, _ time.Time) {
		if rtt > time.Second {
			t.Errorf("%s: %v on loopback", prefix, rtt)
		}
		got = append(got, fmt.Sprint(prefix, " ", connections))
	})
	if err != nil {
		t.Fatal(err)
	}
	p.watch([]VirtualServer{
		{Name: "web", Address: netip.MustParseAddr("1.1.1.1"), Port: 443, Protocol: "tcp"},
		{Name: "web6", Address: netip.MustParseAddr("2a00:53::1"), Port: 443, Protocol: "tcp"},
		{Name: "more", Address: netip.MustParseAddr("1.1.1.1"), Port: 80, Protocol: "tcp"},
		{Name: "yet more", Address: netip.MustParseAddr("1.1.1.1"), Port: 65535, Protocol: "tcp"},
	})
	if err := p.scan(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"20.0.1.0/24 4", "2a00:1:2:300::/56 4"}, got); d != "" {
		t.Error(d)
	}

	if n, measured, err := CheckPassive(t.Context(), *p.servers.Load()); n != 9 || measured != 9 || err != nil {
		t.Errorf("%d connections of clients, %d measured, %v", n, measured, err)
	}

	p.watch([]VirtualServer{{Name: "web", Protocol: "tcp"}})
	if err := p.scan(t.Context(), time.Minute, nil); err == nil || !strings.Contains(err.Error(), "has a port") {
		t.Errorf("without a port: %v", err)
	}
}

// TestDiagRequestFilter: the kernel takes the list of ports, from one to as many as fit.
func TestDiagRequestFilter(t *testing.T) {
	inNamespace(t)
	serveTCP(t, "1.1.1.1:443").connect(t, netip.MustParseAddr("20.0.1.1"))
	for _, n := range []int{1, 2, 100, maxFilterPorts, maxFilterPorts + 1} {
		for _, place := range []int{0, n / 2, n - 1} {
			r := diagRequest{}
			for i := range n {
				r.ports = append(r.ports, uint16(1000+i))
			}
			sockets := func() (sockets int) {
				if err := establishedSockets(t.Context(), r, func(diagSocket) { sockets++ }); err != nil {
					t.Fatalf("%d ports: %v", n, err)
				}
				return sockets
			}
			if got := sockets(); got != 0 && n <= maxFilterPorts {
				t.Errorf("%d ports, none of them right: %d sockets", n, got)
			}
			r.ports[place] = 443
			if got := sockets(); got != 1 && n <= maxFilterPorts {
				t.Errorf("%d ports, the right one at %d: %d sockets", n, place, got)
			}
		}
	}
}

// BenchmarkPassiveDecode reads a made-up answer of 1,000,000 connections out of 100,000 networks; one operation is all
// of them.
func BenchmarkPassiveDecode(b *testing.B) {
	const each, datagrams = 80, 12_500
	local := netip.MustParseAddrPort("192.0.2.1:443")
	message := netlinkMessage(sockDiagByFamily, connection(local, netip.MustParseAddrPort("20.0.0.1:5555"), 1, 30*time.Millisecond))
	datagram := slices.Repeat(message, each)
	c := clientNetworks{interval: 30 * time.Second, least: 3, most: 10_000, index: map[uint64]int{}}
	e := endpointsOf([]VirtualServer{{Address: local.Addr(), Port: 443}}, map[netip.Addr]bool{local.Addr(): true})
	b.ReportAllocs()
	for b.Loop() {
		c.begin()
		n := uint32(0)
		for range datagrams {
			for i := range each {
				n++
				at := datagram[i*len(message)+netlinkHeader:]
				network := n * 2654435761 % 100_000 // all over them, the lower ones more often
				network = min(network, n*2246822519%100_000)
				copy(at[24:28], []byte{20 + byte(network>>16), byte(network >> 8), byte(network), byte(n)})
				binary.NativeEndian.PutUint64(at[44:], uint64(n))
			}
			if _, err := parseSocketDump(datagram, func(s diagSocket) {
				if rtt, ok := roundTrip(s, time.Minute); ok && e.has(s.local()) {
					c.add(s.remote().Addr(), s.cookie(), rtt)
				}
			}); err != nil {
				b.Fatal(err)
			}
		}
		c.end(time.Now(), func(netip.Prefix, time.Duration, int) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each/datagrams, "ns/socket")
}

// BenchmarkPassiveScan scans as many real connections as this process may have descriptors, at most 50,000; the other ends
// of them are there for the kernel's filter. It tells the processor time of a connection, the kernel's included.
func BenchmarkPassiveScan(b *testing.B) {
	inNamespace(b)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	connections := int(min(limit.Cur-100, 50_000))
	web := serveTCP(b, "1.1.1.1:443")
	for i := range connections {
		web.connect(b, netip.AddrFrom4([4]byte{20, byte(i >> 12), byte(i >> 4), byte(i&15 + 1)}))
	}
	values := 0
	p, err := newPassive(PassiveOptions{}, nil, func(netip.Prefix, time.Duration, int, time.Time) { values++ })
	if err != nil {
		b.Fatal(err)
	}
	p.watch([]VirtualServer{{Name: "web", Address: netip.MustParseAddr("1.1.1.1"), Port: 443}})
	before := threadTime()
	for b.Loop() {
		if err := p.scan(b.Context(), time.Hour, nil); err != nil {
			b.Fatal(err)
		}
	}
	used := threadTime() - before
	b.ReportMetric(float64(used)/float64(b.N)/float64(connections), "cpu-ns/connection")
	b.ReportMetric(float64(connections), "connections")
	if values < connections/20 {
		b.Fatalf("%d values", values)
	}
}
