package dns_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"gslbd/dns"
)

// A running is a Server that runs.
type running struct {
	*dns.Server
	t    *testing.T
	addr netip.AddrPort
	stop context.CancelFunc
	done chan error
}

// start runs a server of the conformance zone on a free port of loopback, unless opts says where.
func start(t *testing.T, opts dns.Options) *running {
	t.Helper()
	if opts.Listen == nil {
		opts.Listen = []string{"127.0.0.1:0"}
	}
	if opts.ECS = true; opts.Store == nil {
		opts.Store = conformanceWorld(t).store
	}
	s, err := dns.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Server: s, t: t, addr: s.Addrs()[0], stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err, ok := <-r.done:
			if ok && err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the server does not stop")
		}
	})
	return r
}

// wait stops the server and waits for its end.
func (r *running) wait() {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Error(err)
		}
		close(r.done)
	case <-time.After(10 * time.Second):
		r.t.Fatal("the server does not stop")
	}
}

func (r *running) dial(network string) net.Conn {
	r.t.Helper()
	c, err := net.Dial(network, r.addr.String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// frame packs queries for TCP.
func frame(t *testing.T, queries ...*mdns.Msg) []byte {
	t.Helper()
	var b []byte
	for _, q := range queries {
		wire := pack(t, q)
		b = binary.BigEndian.AppendUint16(b, uint16(len(wire)))
		b = append(b, wire...)
	}
	return b
}

// readFrame reads one reply over TCP.
func readFrame(c io.Reader) (*mdns.Msg, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	wire := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, wire); err != nil {
		return nil, fmt.Errorf("cut off: %w", err)
	}
	m := new(mdns.Msg)
	return m, m.Unpack(wire)
}

// wantWWW checks one answer for www.gslb.test.
func wantWWW(t *testing.T, m *mdns.Msg, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got := show(m); got != "NOERROR aa\nan www.gslb.test. 300 IN A 192.0.2.10" {
		t.Fatal(got)
	}
}

// telemetry returns what a server exports, one value a line.
func telemetry(t *testing.T, s *dns.Server) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.Metric {
			b.WriteString(f.GetName())
			for _, l := range m.Label {
				b.WriteString(" " + l.GetValue())
			}
			fmt.Fprintf(&b, " %v\n", m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
		}
	}
	return b.String()
}

func TestServeUDP(t *testing.T) {
	s := start(t, dns.Options{})
	c := s.dial("udp")
	// More than two batches, sent at once.
	const n = 100
	for i := range n {
		q := question("www.gslb.test.", "A")
		q.Id = uint16(i)
		if _, err := c.Write(pack(t, q)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(pack(t, question("big.gslb.test.", "TXT"))); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("short")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	seen := map[uint16]bool{}
	for range n + 1 {
		k, err := c.Read(buf)
		if err != nil {
			t.Fatalf("after %d replies: %v", len(seen), err)
		}
		m := new(mdns.Msg)
		if err := m.Unpack(buf[:k]); err != nil {
			t.Fatal(err)
		}
		if !m.Truncated {
			wantWWW(t, m, nil)
			seen[m.Id] = true
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d ids answered", len(seen), n)
	}
	s.wait() // all counted
	got := telemetry(t, s.Server)
	for _, want := range []string{
		"gslbd_queries_total NOERROR udp A 100\n", "gslbd_queries_total NOERROR udp TXT 1\n", "gslbd_truncated_total 1\n",
		"gslbd_queries_dropped_total malformed 1\n", "gslbd_queries_dropped_total oversize 1\n",
		"gslbd_queries_dropped_total source_port 0\n", "gslbd_queries_dropped_total send 0\n",
		"gslbd_tcp_connections 0\n", "gslbd_query_duration_seconds 0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// TestUDPWildcard checks that replies come from the address that was asked, of either family.
func TestUDPWildcard(t *testing.T) {
	s := start(t, dns.Options{Listen: []string{":0"}})
	for i, addr := range s.Addrs() {
		hosts, client := []string{"127.0.0.1", "127.0.0.7"}, "127.0.0.3" // to itself, the kernel would answer from there
		if addr.Addr().Is6() {
			hosts, client = []string{"::1"}, "::1"
		}
		for _, host := range hosts {
			c, err := net.ListenPacket("udp", net.JoinHostPort(client, "0"))
			if err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), s.Addrs()[i].Port()))
			if _, err := c.WriteTo(pack(t, question("www.gslb.test.", "A")), to); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 512)
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				t.Fatal(err)
			}
			if from.String() != to.String() {
				t.Errorf("asked %s, answered from %s", to, from)
			}
			m := new(mdns.Msg)
			wantWWW(t, m, m.Unpack(buf[:n]))
		}
	}
}

// TestUDPPortZero checks that a datagram from port 0 costs neither the worker nor the batch that it came with.
func TestUDPPortZero(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_UDP)
	if err != nil {
		t.Skipf("SKIPPED: a raw socket needs root: %v", err)
	}
	defer syscall.Close(fd)
	s := start(t, dns.Options{Workers: 1})
	wire := pack(t, question("www.gslb.test.", "A"))
	datagram := binary.BigEndian.AppendUint16(nil, 0)
	datagram = binary.BigEndian.AppendUint16(datagram, s.addr.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(8+len(wire)))
	datagram = append(datagram, 0, 0) // no checksum
	datagram = append(datagram, wire...)
	c := s.dial("udp")
	for range 5 {
		if err := syscall.Sendto(fd, datagram, 0, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 512)
	for range 5 {
		if _, err := c.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	s.wait()
	if got := telemetry(t, s.Server); !strings.Contains(got, "gslbd_queries_dropped_total source_port 5\n") {
		t.Error(got)
	}
}

// TestPipelining sends many queries in one write, over few and many segments, and half-closes (RFC 7766 section 6.2.1).
func TestPipelining(t *testing.T) {
	s := start(t, dns.Options{})
	c := s.dial("tcp")
	var queries []*mdns.Msg
	for i := range 200 {
		q := question("www.gslb.test.", "A")
		if i%10 == 3 {
			q = question("big.gslb.test.", "TXT", edns(512)) // the size does not bound TCP
		}
		q.Id = uint16(i)
		queries = append(queries, q)
	}
	all := frame(t, queries...)
	go func() {
		_, _ = c.Write(all[:1])
		for _, b := range all[1:20] {
			_, _ = c.Write([]byte{b})
		}
		_, _ = c.Write(all[20:])
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	for i := range queries {
		m, err := readFrame(c)
		if err != nil {
			t.Fatalf("reply %d: %v", i, err)
		}
		if int(m.Id) != i || m.Truncated {
			t.Fatalf("reply %d: id %d, TC %v", i, m.Id, m.Truncated)
		}
		if i%10 == 3 {
			if len(m.Answer) != 14 {
				t.Fatalf("reply %d: %d records", i, len(m.Answer))
			}
		} else {
			wantWWW(t, m, nil)
		}
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the half close: %v", err)
	}
}

// TestLargeQuery sends a query that needs the reading buffer to grow.
func TestLargeQuery(t *testing.T) {
	s := start(t, dns.Options{})
	c := s.dial("tcp")
	q := question("www.gslb.test.", "A", edns(1232, raw(12, make([]byte, 60000)...)))
	if _, err := c.Write(frame(t, q, q)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if m, err := readFrame(c); err != nil || m.Rcode != 0 || len(m.Answer) != 1 {
			t.Fatal(m, err)
		}
	}
}

// TestIdle checks that a connection without a query, or with one that never ends, is closed by a FIN, and not before its
// time.
func TestIdle(t *testing.T) {
	s := start(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: 300 * time.Millisecond}})
	began := time.Now()
	silent, dripping := s.dial("tcp"), s.dial("tcp")
	if _, err := silent.Write(frame(t, question("www.gslb.test.", "A"))); err != nil {
		t.Fatal(err)
	}
	m, err := readFrame(silent)
	wantWWW(t, m, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = dripping.Write([]byte{1, 0})
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				_, _ = dripping.Write([]byte{0})
			}
		}
	})
	for _, c := range []net.Conn{silent, dripping} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d octets, %v", n, err)
		}
		if d := time.Since(began); d < 150*time.Millisecond {
			t.Errorf("closed after %v", d)
		}
	}
	close(stop)
	wg.Wait()
}

// TestIdleRace sends queries about when the idle timeout strikes: each is answered, or the connection has ended by a
// FIN before; never is it reset. That the time has come tells the end of a connection that was opened just before.
func TestIdleRace(t *testing.T) {
	s := start(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: 60 * time.Millisecond}})
	query := frame(t, question("www.gslb.test.", "A"))
	var wg sync.WaitGroup
	for range 40 { // pairs: a client has at most 100 connections
		before, c := s.dial("tcp"), s.dial("tcp")
		wg.Go(func() {
			if n, err := before.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("idle: %d octets, %v", n, err)
			}
			if _, err := c.Write(query); err != nil {
				t.Errorf("write: %v", err)
			}
			if _, err := readFrame(c); err != nil && err != io.EOF {
				t.Errorf("read: %v", err)
			}
		})
	}
	wg.Wait()
}

// TestShedding opens as many connections as there may be, and one more with a query: the longest idle makes room.
func TestShedding(t *testing.T) {
	tests := []struct {
		name string
		tcp  dns.TCPOptions
	}{
		{"all", dns.TCPOptions{MaxConnections: 4}},
		{"client", dns.TCPOptions{MaxConnectionsPerClient: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, dns.Options{TCP: tt.tcp})
			query := frame(t, question("www.gslb.test.", "A"))
			talk := func(c net.Conn) {
				t.Helper()
				if _, err := c.Write(query); err != nil {
					t.Fatal(err)
				}
				m, err := readFrame(c)
				wantWWW(t, m, err)
			}
			var conns []net.Conn
			for range 4 {
				c := s.dial("tcp")
				talk(c)
				conns = append(conns, c)
			}
			talk(conns[0]) // now the second is the longest idle
			talk(s.dial("tcp"))
			if n, err := conns[1].Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("the longest idle: %d octets, %v", n, err)
			}
			for _, i := range []int{0, 2, 3} {
				talk(conns[i])
			}
			if got := telemetry(t, s.Server); !strings.Contains(got, "gslbd_tcp_connections 4\n") || !strings.Contains(got, "gslbd_tcp_connections_shed_total 1\n") {
				t.Error(got)
			}
		})
	}
}

// TestSlowReader checks that a client that does not read holds up nobody. Whoever waited for it would wait for its idle
// timeout, which is longer than the test's connections last.
func TestSlowReader(t *testing.T) {
	s := start(t, dns.Options{Workers: 1, TCP: dns.TCPOptions{IdleTimeout: time.Minute}})
	slow := s.dial("tcp")
	_ = slow.(*net.TCPConn).SetReadBuffer(2048)
	var many []*mdns.Msg
	for range 2000 {
		many = append(many, question("big.gslb.test.", "TXT"))
	}
	all := frame(t, many...)
	go func() { _, _ = slow.Write(all) }()
	for range 20 {
		c := s.dial("tcp")
		if _, err := c.Write(frame(t, question("www.gslb.test.", "A"))); err != nil {
			t.Fatal(err)
		}
		m, err := readFrame(c)
		wantWWW(t, m, err)
		c.Close()
	}
}

// TestNoQueries checks that a peer that sends what gets no answer is sent away, after the replies that it has earned.
func TestNoQueries(t *testing.T) {
	s := start(t, dns.Options{})
	for _, garbage := range []string{"\x00\x00", "\x00\x05short", "\x00\x0c\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		c := s.dial("tcp")
		if _, err := c.Write(append(frame(t, question("www.gslb.test.", "A")), garbage+"more"...)); err != nil {
			t.Fatal(err)
		}
		m, err := readFrame(c)
		wantWWW(t, m, err)
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("after %q: %d octets, %v", garbage, n, err)
		}
	}
}

// TestStop stops a server under load: what it has taken it answers, and its port is free at once. It stops when that is
// done, not when DrainTime is over, for which nobody here would wait.
func TestStop(t *testing.T) {
	s := start(t, dns.Options{DrainTime: time.Minute, Listen: []string{"127.0.0.2:0"}})
	idle, busy := s.dial("tcp"), s.dial("tcp")
	query := frame(t, question("www.gslb.test.", "A"))
	for _, c := range []net.Conn{idle, busy} {
		if _, err := c.Write(query); err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(c); err != nil {
			t.Fatal(err)
		}
	}
	udp := s.dial("udp")
	for range 50 {
		if _, err := udp.Write(query[2:]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := busy.Write(query); err != nil {
		t.Fatal(err)
	}
	s.wait()
	m, err := readFrame(busy)
	wantWWW(t, m, err)
	for _, c := range []net.Conn{idle, busy} {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection ended by %v", err)
		}
	}
	buf := make([]byte, 512)
	for i := range 50 {
		if _, err := udp.Read(buf); err != nil {
			t.Fatalf("UDP reply %d: %v", i, err)
		}
	}
	ln, err := net.Listen("tcp", s.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
}

// TestKeptProcs checks that a worker that keeps its P while it waits for a query holds up neither the collector nor a stop, and
// answers while it waits so and when it has waited longer, in poll.
func TestKeptProcs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	s := start(t, dns.Options{Workers: 1})
	c := &mdns.Conn{Conn: s.dial("udp")}
	for i := range 50 {
		switch {
		case i%10 == 0:
			<-time.After(30 * time.Millisecond) // more than two ticks of a kernel that has few
		case i%2 == 1:
			runtime.GC()
		}
		if err := c.WriteMsg(question("www.gslb.test.", "A")); err != nil {
			t.Fatal(err)
		}
		m, err := c.ReadMsg()
		wantWWW(t, m, err)
	}
	s.wait()
}

func TestBindErrors(t *testing.T) {
	s := start(t, dns.Options{})
	tests := []struct {
		listen []string
		want   string
	}{
		{[]string{s.addr.String()}, "dns: listen " + s.addr.String() + ": listen udp4 " + s.addr.String() + ": bind: address already in use: another DNS server or gslbd has it"},
		{[]string{"127.0.0.1:0", s.addr.String()}, "address already in use"},
		{[]string{"192.0.2.1:0"}, "no interface has this address"},
		{[]string{"127.0.0.1"}, "it is not HOST:PORT"},
		{[]string{"localhost:53"}, "the host is not a literal address"},
		{[]string{":http"}, `"http" is not a port`},
	}
	for _, tt := range tests {
		other, err := dns.New(dns.Options{Listen: tt.listen})
		if err != nil {
			t.Fatal(err)
		}
		err = other.Bind()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want %q", tt.listen, err, tt.want)
		}
		if len(other.Addrs()) != 0 {
			t.Errorf("%v: still bound to %v", tt.listen, other.Addrs())
		}
	}
	// The same, when only TCP is taken.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other, _ := dns.New(dns.Options{Listen: []string{ln.Addr().String()}})
	if err := other.Bind(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("TCP taken: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	listen := []string{"127.0.0.1:0"}
	for want, opts := range map[string]dns.Options{
		"dns: listen: no address is given":                       {},
		"dns: max_udp_payload: 511 is not between 512 and 4096":  {Listen: listen, MaxUDPPayload: 511},
		"dns: max_udp_payload: 4097 is not between 512 and 4096": {Listen: listen, MaxUDPPayload: 4097},
		"dns: nsid: 129 octets are more than 128":                {Listen: listen, NSID: strings.Repeat("x", 129)},
		"dns: version: 256 octets are more than 255":             {Listen: listen, Version: strings.Repeat("x", 256)},
		"dns: log.queries: 1.5 is not between 0 and 1":           {Listen: listen, QueryLog: 1.5},
		"dns: dnstap.share: -1 is not between 0 and 1":           {Listen: listen, Tap: dns.TapOptions{Share: -1}},
		"dns: a limit cannot be negative":                        {Listen: listen, DrainTime: -1},
	} {
		if _, err := dns.New(opts); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestIdleHoldsNothing checks that a socket or slot that has nothing to do keeps no snapshot from being freed, and with
// it the zones and the geo databases of its day: each of many could hold another day's.
func TestIdleHoldsNothing(t *testing.T) {
	store := serviceWorld(t).store
	s := start(t, dns.Options{Store: store})
	for _, network := range []string{"udp", "tcp"} {
		c := &mdns.Conn{Conn: s.dial(network)}
		if err := c.WriteMsg(question("www.gslb.test.", "A")); err != nil {
			t.Fatal(err)
		}
		if m, err := c.ReadMsg(); err != nil || len(m.Answer) == 0 {
			t.Fatal(m, err)
		}
	}
	old := weak.Make(store.Snapshot())
	store.SetGeo(nil) // publishes another
	for deadline := time.Now().Add(5 * time.Second); old.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("the snapshot before is still held")
		}
	}
}

// TestNothingLeftBehind counts descriptors around a server's life.
func TestNothingLeftBehind(t *testing.T) {
	open := func() (files []string) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		for _, e := range entries {
			file, _ := os.Readlink("/proc/self/fd/" + e.Name()) // none for the folder's own
			files = append(files, e.Name()+" "+file)
		}
		return files
	}
	start(t, dns.Options{}).wait() // opens what the runtime keeps
	before := open()
	for range 5 {
		start(t, dns.Options{}).wait()
	}
	// What wakes a worker closes when the last who uses it is done, which can be the one who woke it.
	for began := time.Now(); len(open()) > len(before); runtime.Gosched() {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("open before: %q, and after: %q", before, open())
		}
	}
}
