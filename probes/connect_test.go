package probes

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// alone runs the test in a process of its own, all of which is in a network namespace of its own: a Prober opens the sockets
// of its TCP probes from any thread. It returns true in that process; in the other one the test is over.
func alone(t *testing.T) bool {
	t.Helper()
	const marker = "PROBES_TEST_ALONE"
	if os.Getenv(marker) == t.Name() {
		command(t, "ip", "link", "set", "lo", "up")
		return true
	}
	_, err := exec.LookPath("ip")
	needs(t, err == nil, "the program ip")
	needs(t, os.Geteuid() == 0, "root, to make a network namespace")
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	c.Env = append(os.Environ(), marker+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// A resolver is reached by TCP if it accepts or resets, and not if the network says that it cannot be reached, whatever
// the error is: then nobody knows who said it.
func TestProberTCP(t *testing.T) {
	if !alone(t) {
		return
	}
	ends := make(chan error, 16)
	withRouter(t, func() {
		command(t, "ip", "route", "add", "unreachable", "198.51.100.0/24")
		command(t, "ip", "route", "add", "unreachable", "2001:db8:1::/48")
		command(t, "ip", "route", "add", "blackhole", "203.0.113.0/24")
		for _, addr := range []string{"10.9.0.3/24", "10.9.0.4/24", "10.9.0.5/24"} {
			command(t, "ip", "address", "add", addr, "dev", "inner")
		}
		command(t, "iptables", "-A", "INPUT", "-d", "10.9.0.4", "-p", "tcp", "-j", "REJECT", "--reject-with", "icmp-port-unreachable")
		for _, addr := range []string{"10.9.0.3:53", "[fd00:9::2]:53", "10.9.0.5:53"} {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					if addr != "10.9.0.5:53" { // which closes at once
						_, err = conn.Read(make([]byte, 1))
						ends <- err
					}
					conn.Close()
				}
			}()
		}
	})
	addr := netip.MustParseAddr
	// What refuses settles a probe before the timeout of the one that is silent, and before its SYN is sent again.
	early := probe(t, ProberOptions{Methods: []string{MethodTCP}, Count: 1, Timeout: 700 * time.Millisecond}, 3,
		addr("203.0.113.1"), addr("10.9.0.2"), addr("10.9.0.4"), addr("2001:db8:1::1"))
	if _, ok := early[addr("203.0.113.1")]; ok {
		t.Errorf("the silent one came before another: %+v", early)
	}
	before := descriptors(t)
	got := probe(t, ProberOptions{Methods: []string{MethodTCP}, Timeout: 300 * time.Millisecond}, 8,
		addr("10.9.0.5"), addr("10.9.0.3"), addr("fd00:9::2"), addr("10.9.0.2"), addr("10.9.0.4"), addr("198.51.100.1"), addr("2001:db8:1::1"), addr("203.0.113.1"))
	for a, lost := range map[string]bool{
		"10.9.0.3": false, "fd00:9::2": false, "10.9.0.5": false, // accepted
		"10.9.0.2":     false, // reset
		"10.9.0.4":     true,  // port unreachable, which the kernel calls a refused connection as well
		"198.51.100.1": true, "2001:db8:1::1": true, "203.0.113.1": true,
	} {
		r := got[addr(a)]
		if r.Method != MethodTCP || r.Lost != lost || (r.RTT <= 0) != lost || r.RTT > 200*time.Millisecond {
			t.Errorf("%s: %+v, want lost %v", a, r, lost)
		}
	}
	for range 6 {
		if err := <-ends; !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("a connection ended with %v, want a reset", err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, were %d", after, before)
	}
}

// More silent targets than there may be connections wait for each other, hold up none that is measured by ICMP, and leave
// no descriptor behind.
func TestProberTCPIsBounded(t *testing.T) {
	if !alone(t) {
		return
	}
	withRouter(t, func() { command(t, "ip", "route", "add", "blackhole", "203.0.0.0/16") })
	results := make(chan RTT, 4*maxConnections)
	p, err := NewProber(ProberOptions{Rate: maxRate, Timeout: 200 * time.Millisecond, Result: func(r RTT) { results <- r }})
	if err != nil {
		t.Fatal(err)
	}
	targets := loopbacks(maxConnections)
	for _, ping := range targets {
		b := ping.As4()
		silent := netip.AddrFrom4([4]byte{203, 0, b[2], b[3]})
		if !p.Queue(silent, MethodTCP) || !p.Queue(ping, MethodICMP) {
			t.Fatal("not queued")
		}
	}
	before, most := descriptors(t), 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for range 2 * len(targets) {
		r := <-results
		if r.Lost != (r.Method == MethodTCP) {
			t.Errorf("%+v", r)
		}
		most = max(most, descriptors(t))
	}
	// Those in flight at the end are forgotten.
	for _, ping := range targets {
		b := ping.As4()
		p.Queue(netip.AddrFrom4([4]byte{203, 0, b[2], b[3]}), MethodTCP)
	}
	for descriptors(t) < before+maxConnections/2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if most > before+maxConnections+32 {
		t.Errorf("%d descriptors at a time", most-before)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, were %d", after, before)
	}
}
