package sitereport_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gslbd/probes"
	"gslbd/sitereport"
)

// listen returns a listener on loopback which accepts and keeps connections until the test ends.
func listen(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// closed returns a port where nobody listens, on an address of loopback that nobody else uses: on 127.0.0.1 a connection
// of another test may have the port before the program that it is for.
func closed(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

func checkedServer(name string, at netip.AddrPort) sitereport.CheckedServer {
	return sitereport.CheckedServer{Name: name, Address: at.String(), Check: probes.Check{
		Type: probes.TCP, Addr: at.Addr(), Port: at.Port(), Interval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond, Rise: 1, Fall: 1,
	}}
}

// start runs a reader's checks until the test ends.
func start(t *testing.T, opts sitereport.CheckedOptions) *sitereport.Checked {
	t.Helper()
	c := sitereport.NewChecked(opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestCheckedStates checks real servers: the first reading waits for the first results.
func TestCheckedStates(t *testing.T) {
	up, down := listen(t), closed(t)
	c := start(t, sitereport.CheckedOptions{VirtualServers: []sitereport.CheckedVirtualServer{{
		Name: "web", Address: netip.MustParseAddr("127.0.0.1"), Port: 443, Protocol: "tcp",
		Servers: []sitereport.CheckedServer{
			checkedServer("s1", up), checkedServer("s2", down),
			checkedServer("s3", netip.AddrPortFrom(up.Addr(), 0)), // cannot be run
		},
	}}})
	r, err := c.Read(t.Context())
	if err != nil || len(r.VirtualServers) != 1 || r.Load != (sitereport.Load{}) {
		t.Fatalf("%+v, %v", r, err)
	}
	s := r.VirtualServers[0].Servers
	if s[0].State != "up" || s[0].Reason != "" || s[0].Address != up.String() {
		t.Errorf("%+v", s[0])
	}
	if s[1].State != "down" || !strings.Contains(s[1].Reason, "refused") {
		t.Errorf("%+v", s[1])
	}
	if s[2].State != "unknown" || !strings.HasPrefix(s[2].Reason, "check error: ") {
		t.Errorf("%+v", s[2])
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], `server "s3" cannot be checked`) {
		t.Errorf("%q", r.Warnings)
	}
}

// TestCheckedUnknown reads before any check is done, with as little time as there is.
func TestCheckedUnknown(t *testing.T) {
	c := sitereport.NewChecked(sitereport.CheckedOptions{VirtualServers: []sitereport.CheckedVirtualServer{{
		Name: "web", Servers: []sitereport.CheckedServer{checkedServer("s1", netip.MustParseAddrPort("127.0.0.1:9"))},
	}}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for range 2 {
		r, err := c.Read(ctx)
		if err != nil || r.VirtualServers[0].Servers[0].State != "unknown" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// TestCheckedSessions counts real sockets: 500 connections to one virtual server, 20 to another one.
func TestCheckedSessions(t *testing.T) {
	web, other, dual := listen(t), listen(t), listen(t)
	l6, err := net.Listen("tcp", net.JoinHostPort("", "0")) // dual-stack where the machine has IPv6
	if err != nil {
		t.Fatal(err)
	}
	defer l6.Close()
	dual = netip.AddrPortFrom(dual.Addr(), netip.MustParseAddrPort(l6.Addr().String()).Port())
	connect := func(to netip.AddrPort, n int) (conns []net.Conn) {
		for range n {
			conn, err := net.Dial("tcp4", to.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			conns = append(conns, conn)
		}
		return conns
	}
	c := sitereport.NewChecked(sitereport.CheckedOptions{
		Sessions:  true,
		Interface: "lo",
		VirtualServers: []sitereport.CheckedVirtualServer{
			{Name: "web", Address: web.Addr(), Port: web.Port(), Protocol: "tcp"},
			{Name: "anywhere", Port: other.Port(), Protocol: "tcp"},
			{Name: "dual", Address: netip.MustParseAddr("127.0.0.1"), Port: dual.Port(), Protocol: "tcp"},
			{Name: "idle", Address: netip.MustParseAddr("127.0.0.2"), Port: web.Port(), Protocol: "tcp"},
			{Name: "dns", Address: web.Addr(), Port: 53, Protocol: "udp"},
		},
	})
	many := connect(web, 500)
	connect(other, 20)
	connect(dual, 3)
	expect := func(want ...int) {
		t.Helper()
		r, err := c.Read(t.Context())
		if err != nil || len(r.Warnings) > 0 {
			t.Fatalf("%q, %v", r.Warnings, err)
		}
		sum := 0
		for i, n := range want {
			sum += n
			if s := r.VirtualServers[i].Sessions; s == nil || *s != uint64(n) {
				t.Errorf("%s: sessions %v, want %d", r.VirtualServers[i].Name, s, n)
			}
		}
		if s := r.VirtualServers[4].Sessions; s != nil {
			t.Errorf("udp has %d sessions", *s)
		}
		if s := r.Load.Sessions; s == nil || *s != uint64(sum) {
			t.Errorf("the site: sessions %v, want %d", s, sum)
		}
	}
	expect(500, 20, 3, 0)
	for _, conn := range many[:400] {
		conn.Close() // our end; the server's is then in CLOSE-WAIT, which is not established
	}
	// The kernel closes the servers' ends in its own time.
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if r, err := c.Read(t.Context()); err != nil || *r.VirtualServers[0].Sessions == 100 {
			break
		}
	}
	expect(100, 20, 3, 0)
	r, _ := c.Read(t.Context())
	if r.Load.BitsPerSecIn == nil || r.Load.BitsPerSecOut == nil || !r.WholeSite {
		t.Errorf("the counters of lo give no rate: %+v", r.Load)
	}
}

// TestCheckedForeignAddress has a VIP that is not on this machine (NAT, or a standby): 0 would be a guess.
func TestCheckedForeignAddress(t *testing.T) {
	c := sitereport.NewChecked(sitereport.CheckedOptions{
		Sessions:       true,
		VirtualServers: []sitereport.CheckedVirtualServer{{Name: "web", Address: netip.MustParseAddr("192.0.2.1"), Port: 443, Protocol: "tcp"}},
	})
	r, err := c.Read(t.Context())
	if err != nil || r.Load.Sessions != nil || r.VirtualServers[0].Sessions != nil || len(r.Warnings) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
