package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
)

// probe runs a Prober until it has told n outcomes, and returns them by address.
func probe(t *testing.T, opts ProberOptions, n int, targets ...netip.Addr) map[netip.Addr]RTT {
	t.Helper()
	got := map[netip.Addr]RTT{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	opts.Result = func(r RTT) {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := got[r.Addr]; twice {
			t.Errorf("two outcomes for %v", r.Addr)
		}
		if got[r.Addr] = r; len(got) == n {
			cancel()
		}
	}
	p, err := NewProber(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range targets {
		if !p.Queue(addr) {
			t.Errorf("%v was not queued", addr)
		}
	}
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(got) != n {
		t.Errorf("%d outcomes, want %d", len(got), n)
	}
	return got
}

func loopbacks(n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{127, 1, byte(i / 250), byte(1 + i%250)})
	}
	return addrs
}

// serveDNS answers port 53 of addr until the test ends.
func serveDNS(t *testing.T, addr string, reply func(query *dns.Msg) *dns.Msg) {
	t.Helper()
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if m := reply(q); m != nil {
			_ = w.WriteMsg(m)
		}
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { conn.Close() })
}

// Both ways to ping must reach many targets without a loss: on datagram sockets the kernel replaces the id, and on raw
// ones every reply comes with its IP header.
func TestProberAnswered(t *testing.T) {
	for _, mode := range []struct {
		name  ICMPMode
		group string
	}{{Unprivileged, "0 0"}, {Raw, "1 0"}} {
		t.Run(string(mode.name), func(t *testing.T) {
			inNamespace(t, mode.group)
			for _, v6 := range []bool{false, true} {
				if got, err := CanICMP(v6); err != nil || got != mode.name {
					t.Fatalf("CanICMP(%v) = %v, %v", v6, got, err)
				}
			}
			targets := append(loopbacks(50), netip.IPv6Loopback())
			targets = append(targets, targets[7], netip.MustParseAddr("::ffff:127.1.0.9")) // both are queued already
			for addr, r := range probe(t, ProberOptions{}, 51, targets...) {
				if r.Lost || r.Method != MethodICMP || r.RTT <= 0 || r.RTT > 20*time.Millisecond {
					t.Errorf("%v: %+v", addr, r)
				}
			}
		})
	}
}

func TestProberSilentRefusedAndDNS(t *testing.T) {
	for _, group := range []string{"0 0", "1 0"} {
		t.Run(group, func(t *testing.T) {
			inNamespace(t, group)
			withRouter(t, func() {
				setSysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
				command(t, "ip", "route", "add", "unreachable", "198.51.100.0/24")
				command(t, "ip", "route", "add", "unreachable", "2001:db8:1::/48")
				command(t, "ip", "route", "add", "blackhole", "203.0.113.0/24")
				for _, addr := range []string{"10.9.0.3/24", "10.9.0.4/24", "10.9.0.5/24"} {
					command(t, "ip", "address", "add", addr, "dev", "inner")
				}
				serveDNS(t, "10.9.0.3:53", func(q *dns.Msg) *dns.Msg {
					if q.RecursionDesired {
						t.Error("the probe asks for recursion")
					}
					return new(dns.Msg).SetRcode(q, dns.RcodeRefused)
				})
				answerFromElsewhere(t, "10.9.0.4:53", "10.9.0.5:53")
			})
			silent, silentWithDNS := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.9.0.3")
			refused4, refused6 := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")
			elsewhere := netip.MustParseAddr("10.9.0.4")
			// An ICMP error settles a probe without waiting for the timeout, and so does a lack of a route: before the one that
			// is silent and was queued first. (This comes first, since a router says so at most five times at once to the same
			// host.)
			command(t, "ip", "route", "add", "unreachable", "192.0.2.0/24")
			for addr, r := range probe(t, ProberOptions{Timeout: 5 * time.Second}, 3, silentWithDNS, refused4, refused6, netip.MustParseAddr("192.0.2.1")) {
				if !r.Lost || r.Method != MethodICMP || addr == silentWithDNS {
					t.Errorf("%v: %+v, want the others lost", addr, r)
				}
			}
			got := probe(t, ProberOptions{Methods: []string{"icmp", "dns"}, Timeout: 300 * time.Millisecond}, 5,
				silent, silentWithDNS, refused4, refused6, elsewhere)
			for _, addr := range []netip.Addr{silent, refused4, refused6, elsewhere} {
				if r := got[addr]; !r.Lost || r.RTT != 0 || r.Method != MethodDNS {
					t.Errorf("%v: %+v, want lost after dns", addr, r)
				}
			}
			if r := got[silentWithDNS]; r.Lost || r.Method != MethodDNS || r.RTT <= 0 || r.RTT > 100*time.Millisecond {
				t.Errorf("silent to ICMP only: %+v", r)
			}
		})
	}
}

// An ICMP error that one target met must not fail the packet to the next, which is where the kernel reports it.
func TestSocketPendingError(t *testing.T) {
	inNamespace(t, "0 0")
	withRouter(t, func() { command(t, "ip", "route", "add", "unreachable", "198.51.100.0/24") })
	s, err := openICMP(false, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	send := func(seq uint16, to string) error {
		return s.send(appendEcho(nil, false, 1, seq, cookie{}), netip.AddrPortFrom(netip.MustParseAddr(to), 0))
	}
	// The first packets over a new link may get lost.
	pending := false
	for try := 0; !pending && try < 5; try++ {
		if err := send(1, "198.51.100.1"); err != nil {
			t.Fatal(err)
		}
		if err := s.conn.Control(func(fd uintptr) {
			for range 100 {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 10) // for POLLERR
				if pending = n == 1; pending || (err != nil && err != unix.EINTR) {
					break
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if !pending {
		t.Fatal("no ICMP error came")
	}
	if err := send(2, "10.9.0.2"); err != nil {
		t.Errorf("the next packet: %v", err)
	}
	defer time.AfterFunc(10*time.Second, s.close).Stop()
	quote, err := s.receive()
	for err == nil && !quote.quote {
		quote, err = s.receive() // the reply may be read first
	}
	if err != nil || quote.from.Addr() != netip.MustParseAddr("198.51.100.1") {
		t.Errorf("quote %+v, %v", quote, err)
	}
}

// answerFromElsewhere answers DNS at one address from another, as no client may accept.
func answerFromElsewhere(t *testing.T, at, from string) {
	t.Helper()
	asked, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Error(err)
		return
	}
	answering, err := net.ListenPacket("udp", from)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { asked.Close(); answering.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, client, err := asked.ReadFrom(buf)
			if err != nil {
				return
			}
			buf[2] |= 0x80
			_, _ = answering.WriteTo(buf[:n], client)
		}
	}()
}

func TestProberNotPermitted(t *testing.T) {
	inNamespace(t, "1 0")
	withoutNetRaw(t)
	p, err := NewProber(ProberOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(t.Context())
	if !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "net.ipv4.ping_group_range") || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("Run: %v", err)
	}
	if _, err := CanICMP(true); err == nil || !strings.Contains(err.Error(), "net.ipv4.ping_group_range, which is for IPv6 too") {
		t.Errorf("IPv6: %v", err)
	}
	// With DNS beside it, DNS alone is used.
	serveDNS(t, "127.0.9.2:53", func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetReply(q) })
	addr := netip.MustParseAddr("127.0.9.2")
	if r := probe(t, ProberOptions{Methods: []string{"icmp", "dns"}}, 1, addr)[addr]; r.Lost || r.Method != MethodDNS {
		t.Errorf("without ICMP: %+v", r)
	}
	// A health check says so as well, and is no failure.
	out := (&checker{}).run(t.Context(), Check{Type: ICMP, Addr: addr, Timeout: time.Second})
	if !out.Unrunnable || out.OK || out.Unreachable || !strings.Contains(out.Err, "CAP_NET_RAW") {
		t.Errorf("check: %+v", out)
	}
}

func TestProberRate(t *testing.T) {
	inNamespace(t, "1 0")
	const n, rate = 300, 1000
	start := time.Now()
	probe(t, ProberOptions{Count: 1, Rate: rate}, n, loopbacks(n)...)
	if took, least := time.Since(start), n*time.Second/rate*9/10; took < least {
		t.Errorf("%d packets at %d a second took %v, want at least %v", n, rate, took, least)
	}
}

func TestProberQueue(t *testing.T) {
	p, err := NewProber(ProberOptions{MaxQueue: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		addr    string
		methods []string
		want    bool
	}{
		{"127.0.0.1", nil, true},
		{"127.0.0.1", nil, true}, // once more is once
		{"0.0.0.0", nil, false},
		{"::", nil, false},
		{"224.0.0.1", nil, false},
		{"ff02::1", nil, false},
		{"fe80::1%lo", nil, false},
		{"255.255.255.255", nil, false},
		{"127.0.0.2", []string{"traceroute"}, false},
		{"127.0.0.2", []string{"traceroute", "dns", "dns"}, true},
		{"127.0.0.3", nil, false}, // full
	} {
		if got := p.Queue(netip.MustParseAddr(step.addr), step.methods...); got != step.want {
			t.Errorf("Queue(%s, %q) = %v", step.addr, step.methods, got)
		}
	}
	if got := p.active[netip.MustParseAddr("127.0.0.2")].methods; !slices.Equal(got, []string{"dns"}) {
		t.Errorf("methods %q", got)
	}
	if p.Queue(netip.Addr{}) {
		t.Error("the zero address was queued")
	}
	if got := counted(t, p, MethodICMP, "dropped"); got != 1 {
		t.Errorf("%v dropped, want 1", got)
	}
	for _, opts := range []ProberOptions{{Methods: []string{"quic"}}, {Count: -1}, {Count: 11}, {Rate: -1}, {Rate: 10001}, {Timeout: -1}, {Timeout: time.Minute}, {MaxQueue: -1}} {
		if _, err := NewProber(opts); err == nil {
			t.Errorf("NewProber(%+v) accepts it", opts)
		}
	}
}

// counted returns one value of gslbd_probes_total or gslb_agent_probes_total.
func counted(t *testing.T, c prometheus.Collector, method, result string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || !strings.HasSuffix(families[0].GetName(), "_probes_total") {
		t.Fatalf("gathered %v, %v", families, err)
	}
	for _, m := range families[0].Metric {
		if label(m, "method") == method && label(m, "result") == result {
			return m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no series for %s, %s", method, result)
	return 0
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.Label {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// Forged, foreign and repeated answers do not count, and parallel probes are never mixed up.
func TestProberAnswer(t *testing.T) {
	near, far, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	const id = 77
	header := func(from, to netip.Addr) []byte {
		b := make([]byte, 20)
		b[0], b[9] = 0x45, protocolICMP4
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		return b
	}
	reply := func(from netip.Addr, id, seq uint16, c cookie) datagram {
		echo := appendEcho(header(from, stranger), false, id, seq, c)
		echo[20] = echoReply4
		return datagram{payload: echo, from: netip.AddrPortFrom(from, 0)}
	}
	quote := func(router, to netip.Addr, id, seq uint16, c cookie, cut int) datagram {
		b := append(header(router, stranger), unreachable4, 1, 0, 0, 0, 0, 0, 0)
		b = appendEcho(append(b, header(stranger, to)...), false, id, seq, c)
		return datagram{payload: b[:len(b)-cut], from: netip.AddrPortFrom(router, 0)}
	}
	c1, c2 := cookie{1}, cookie{2}
	for _, tt := range []struct {
		name  string
		in    []datagram
		reads []time.Duration // one for each
		want  []RTT           // in order of settlement
	}{
		{"each its own", []datagram{reply(near, id, 1, c1), reply(far, id, 2, c2)}, []time.Duration{1, 200}, []RTT{{Addr: near, RTT: 1}, {Addr: far, RTT: 200}}},
		{"in the other order", []datagram{reply(far, id, 2, c2), reply(near, id, 1, c1)}, []time.Duration{200, 201}, []RTT{{Addr: far, RTT: 200}, {Addr: near, RTT: 201}}},
		{"from another address", []datagram{reply(far, id, 1, c1), reply(stranger, id, 2, c2)}, []time.Duration{1, 1}, nil},
		{"forged without the cookie", []datagram{reply(near, id, 1, c2), reply(near, id, 1, cookie{})}, []time.Duration{1, 1}, nil},
		{"of another process", []datagram{reply(near, id+1, 1, c1)}, []time.Duration{1}, nil},
		{"duplicates", []datagram{reply(near, id, 1, c1), reply(near, id, 1, c1), reply(near, id, 1, c1)}, []time.Duration{5, 6, 7}, []RTT{{Addr: near, RTT: 5}}},
		{"unreachable", []datagram{quote(stranger, near, id, 1, c1, 0)}, []time.Duration{3}, []RTT{{Addr: near, Lost: true}}},
		{"unreachable, short quote", []datagram{quote(stranger, near, id, 1, c1, 16)}, []time.Duration{3}, []RTT{{Addr: near, Lost: true}}},
		{"unreachable, then a reply", []datagram{quote(stranger, near, id, 1, c1, 0), reply(near, id, 1, c1)}, []time.Duration{3, 4}, []RTT{{Addr: near, Lost: true}}},
		{"unreachable, another target", []datagram{quote(stranger, far, id, 1, c1, 0)}, []time.Duration{3}, nil},
		{"unreachable, forged", []datagram{quote(stranger, near, id, 1, c2, 0)}, []time.Duration{3}, nil},
		{"reply without a whole cookie", []datagram{{payload: reply(near, id, 1, c1).payload[:36], from: netip.AddrPortFrom(near, 0)}}, []time.Duration{3}, nil},
		{"cut off", []datagram{{payload: reply(near, id, 1, c1).payload[:27], from: netip.AddrPortFrom(near, 0)}}, []time.Duration{3}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := NewProber(ProberOptions{Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			s := &socket{method: MethodICMP, mode: Raw, id: id}
			for seq, addr := range []netip.Addr{near, far} {
				key := flightKey{s, seq + 1}
				target := &target{addr: addr, methods: p.methods, sent: 1, tried: MethodICMP, open: []flightKey{key}, best: -1}
				p.active[addr] = target
				p.flights[key] = &flight{target: target, cookie: []cookie{c1, c2}[seq]}
			}
			var got []RTT
			for i, d := range tt.in {
				if r, ok := p.answer(s, d, stamp{wall: int64(tt.reads[i]), mono: tt.reads[i]}); ok {
					got = append(got, r)
				}
			}
			if len(got) != len(tt.want) {
				t.Fatalf("outcomes %+v, want %+v", got, tt.want)
			}
			for i, want := range tt.want {
				if got[i].Addr != want.Addr || got[i].RTT != want.RTT || got[i].Lost != want.Lost {
					t.Errorf("outcome %+v, want %+v", got[i], want)
				}
			}
			if want := 2 - len(tt.want); len(p.active) != want || len(p.flights) != want {
				t.Errorf("%d targets and %d packets are left, want %d", len(p.active), len(p.flights), want)
			}
		})
	}
}

// An answer to a DNS probe comes from port 53 of who was asked, with the id and the question.
func TestProberDNSAnswer(t *testing.T) {
	asked := netip.MustParseAddr("192.0.2.1")
	good := appendQuery(nil, 7)
	good[2] |= 0x80
	otherID, otherQuestion, query := appendQuery(nil, 8), append(append([]byte(nil), good...), 0), appendQuery(nil, 7)
	otherID[2] |= 0x80
	otherQuestion[14] = 1
	for _, tt := range []struct {
		name    string
		payload []byte
		from    string
		want    bool
	}{
		{"answer", good, "192.0.2.1:53", true},
		{"another port", good, "192.0.2.1:54", false},
		{"another address", good, "192.0.2.2:53", false},
		{"another id", otherID, "192.0.2.1:53", false},
		{"another question", otherQuestion, "192.0.2.1:53", false},
		{"the query itself", query, "192.0.2.1:53", false},
		{"cut off", good[:16], "192.0.2.1:53", false},
	} {
		p, err := NewProber(ProberOptions{Count: 1, Methods: []string{MethodDNS}})
		if err != nil {
			t.Fatal(err)
		}
		s := &socket{method: MethodDNS}
		key := flightKey{s, 7}
		target := &target{addr: asked, methods: p.methods, sent: 1, tried: MethodDNS, open: []flightKey{key}, best: -1}
		p.active[asked], p.flights[key] = target, &flight{target: target}
		r, ok := p.answer(s, datagram{payload: tt.payload, from: netip.MustParseAddrPort(tt.from)}, stamp{wall: 9, mono: 9})
		if ok != tt.want || (ok && (r.Addr != asked || r.RTT != 9 || r.Method != MethodDNS)) {
			t.Errorf("%s: %+v, %v", tt.name, r, ok)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	sent := stamp{wall: int64(1000 * time.Second), mono: 50 * time.Second}
	at := func(wall, mono time.Duration) stamp { return stamp{sent.wall + int64(wall), sent.mono + mono} }
	for _, tt := range []struct {
		name     string
		read     stamp
		received time.Duration // after sent.wall
		want     time.Duration
	}{
		{"the kernel's time, not ours", at(40*ms, 40*ms), 30 * ms, 30 * ms},
		{"slewed clock", at(40*ms+20*time.Microsecond, 40*ms), 30 * ms, 30 * ms},
		{"clock set back before receipt", at(-960*ms, 40*ms), -970 * ms, 40 * ms},
		{"clock set forward before receipt", at(1040*ms, 40*ms), 1030 * ms, 40 * ms},
		{"clock set forward by little", at(60*ms, 40*ms), 50 * ms, 40 * ms},
		{"clock set after receipt", at(3600*time.Second, 40*ms), 30 * ms, 40 * ms},
		{"no time from the kernel", at(40*ms, 40*ms), -time.Duration(sent.wall), 40 * ms},
		{"a time after we read it", at(40*ms, 40*ms), 50 * ms, 40 * ms},
	} {
		if got := roundTrip(sent, tt.read, sent.wall+int64(tt.received)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A Prober that has gone idle starts again, and Run leaves no descriptor behind.
func TestProberIdleAndClose(t *testing.T) {
	inNamespace(t, "1 0")
	before := descriptors(t)
	results := make(chan RTT)
	p, err := NewProber(ProberOptions{Count: 2, Result: func(r RTT) { results <- r }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	var failure error
	go func() {
		defer cancel()
		for i := range 3 {
			want := netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})
			if !p.Queue(want) {
				failure = fmt.Errorf("%v was not queued", want)
			}
			if r := <-results; r.Addr != want || r.Lost {
				failure = fmt.Errorf("outcome %+v for %v", r, want)
			}
		}
	}()
	if err := p.Run(ctx); err != nil || failure != nil {
		t.Error(err, failure)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if got := counted(t, p, MethodICMP, "answered"); got != 3 {
		t.Errorf("%v succeeded, want 3", got)
	}
}
