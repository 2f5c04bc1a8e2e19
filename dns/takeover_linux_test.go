package dns_test

import (
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// A process that was to take over, and gave up, leaves the socket that both have non-blocking. Who goes on makes it block again,
// and answers meanwhile.
func TestSocketAfterFailedTakeover(t *testing.T) {
	plain, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	addr := plain.LocalAddr().(*net.UDPAddr).AddrPort()
	shared, err := plain.File()
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	raw, err := shared.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nonblocking := func(set bool) (is bool) {
		err := raw.Control(func(fd uintptr) {
			if set {
				_ = syscall.SetNonblock(int(fd), true)
			}
			flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
			is = flags&syscall.O_NONBLOCK != 0
		})
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	s := start(t, dns.Options{Listen: []string{addr.String()}, HandedUDP: func(netip.AddrPort) []*net.UDPConn { return []*net.UDPConn{plain} }})
	c := &mdns.Conn{Conn: s.dial("udp")}
	for _, set := range []bool{false, true} {
		if nonblocking(set) != set {
			t.Fatalf("the socket is non-blocking: %t", !set)
		}
		for began := time.Now(); ; runtime.Gosched() {
			if err := c.WriteMsg(question("www.gslb.test.", "A")); err != nil {
				t.Fatal(err)
			}
			m, err := c.ReadMsg()
			wantWWW(t, m, err)
			if !nonblocking(false) {
				break
			}
			if time.Since(began) > 10*time.Second {
				t.Fatal("the socket stays non-blocking")
			}
		}
	}
	s.wait()
}
