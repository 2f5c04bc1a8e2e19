//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Link is how packets travel from one region to another, in one direction.
type Link struct {
	Delay    time.Duration
	Jitter   time.Duration // up to this much more, evenly
	Loss     float64       // share of packets, 0..1
	DropICMP bool
	Cut      bool
}

// A Network is a set of hosts and the router between them. Create one with New. What it has built ends with the test.
type Network struct {
	t   testing.TB
	dir string

	hosts  []*Host
	closed chan struct{}

	mu        sync.RWMutex
	processes []*Process                          // guarded by mu
	routes    map[netip.Addr]*Host                // guarded by mu
	links     map[[2]string]*atomic.Pointer[Link] // guarded by mu: by region or host name, from and to
	pipes     map[[2]*Host]chan packet            // guarded by mu
}

type packet struct {
	due  time.Time
	data []byte
}

// pipeLength is how many packets are on their way between two hosts; more are lost, as in a router.
const pipeLength = 8192

// New returns an empty network. It skips the test, loudly, where it cannot be built, and fails it where E2E=require.
func New(t testing.TB) *Network {
	t.Helper()
	Need(t, os.Geteuid() == 0, "root")
	_, err := exec.LookPath("ip")
	Need(t, err == nil, "the program ip")
	_, err = os.Stat("/dev/net/tun")
	Need(t, err == nil, "/dev/net/tun")
	dir, err := os.MkdirTemp("", "gslbd-lab")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(dir, 0o755) // programs that give up root read their files there
	n := &Network{
		t: t, dir: dir, routes: map[netip.Addr]*Host{}, links: map[[2]string]*atomic.Pointer[Link]{}, pipes: map[[2]*Host]chan packet{},
		closed: make(chan struct{}),
	}
	t.Cleanup(n.close)
	return n
}

// Need skips the test loudly when something is missing, and fails it where E2E=require.
func Need(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("E2E") == "require":
		t.Fatalf("E2E=require, and %s is missing", what)
	default:
		os.Stderr.WriteString("SKIPPED " + t.Name() + ": needs " + what + "\n")
		t.Skipf("needs %s", what)
	}
}

// Program returns the path of a program that the test needs.
func Program(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if info, err := os.Stat(dir + "/" + name); err == nil && info.Mode()&0o111 != 0 {
			return dir + "/" + name
		}
	}
	Need(t, false, "the program "+name)
	return ""
}

// Host adds a host with addresses, the first of which it sends from.
func (n *Network) Host(name, region string, addrs ...string) *Host {
	n.t.Helper()
	var parsed []netip.Addr
	for _, a := range addrs {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	h, err := newHost(n, name, region, parsed)
	if err != nil {
		n.t.Fatal(err)
	}
	n.hosts = append(n.hosts, h)
	for _, a := range parsed {
		n.Route(a, h)
	}
	go n.receive(h)
	return h
}

// Route has packets to the address carried to the host.
func (n *Network) Route(a netip.Addr, to *Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.routes[a] = to
}

// RouteTo is Route for an address in text.
func (n *Network) RouteTo(a string, to *Host) { n.Route(netip.MustParseAddr(a), to) }

// Set sets how packets travel between two regions or hosts, both ways. What is said of a host counts before what is said
// of its region.
func (n *Network) Set(a, b string, l Link) {
	n.SetOneWay(a, b, l)
	n.SetOneWay(b, a, l)
}

// SetOneWay is Set for packets from a to b.
func (n *Network) SetOneWay(a, b string, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.links[[2]string{a, b}]
	if p == nil {
		p = new(atomic.Pointer[Link])
		n.links[[2]string{a, b}] = p
	}
	p.Store(&l)
}

// Change alters the link between two regions or hosts, both ways.
func (n *Network) Change(a, b string, alter func(*Link)) {
	for _, way := range [][2]string{{a, b}, {b, a}} {
		l := n.link(way[0], way[1])
		alter(&l)
		n.SetOneWay(way[0], way[1], l)
	}
}

func (n *Network) link(a, b string) Link {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if p := n.links[[2]string{a, b}]; p != nil {
		return *p.Load()
	}
	return Link{}
}

// between returns the link from one host to another.
func (n *Network) between(from, to *Host) Link {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, way := range [...][2]string{{from.Name, to.Name}, {from.Name, to.Region}, {from.Region, to.Name}, {from.Region, to.Region}} {
		if p := n.links[way]; p != nil {
			return *p.Load()
		}
	}
	return Link{}
}

// receive takes the packets that a host sends.
func (n *Network) receive(from *Host) {
	buf := make([]byte, 65536)
	for {
		size, err := from.tun.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			select {
			case <-n.closed:
				return
			case <-time.After(time.Millisecond):
				continue
			}
		}
		dst, icmp, ok := parse(buf[:size])
		if !ok {
			continue
		}
		n.mu.RLock()
		to := n.routes[dst]
		n.mu.RUnlock()
		if to == nil || to == from {
			continue
		}
		l := n.between(from, to)
		if l.Cut || (l.DropICMP && icmp) || (l.Loss > 0 && rand.Float64() < l.Loss) {
			continue
		}
		delay := l.Delay
		if l.Jitter > 0 {
			delay += rand.N(l.Jitter)
		}
		select {
		case n.pipe(from, to) <- packet{time.Now().Add(delay), append([]byte(nil), buf[:size]...)}:
		default: // the link is full
		}
	}
}

// pipe returns the way from one host to another. Packets keep their order on it.
func (n *Network) pipe(from, to *Host) chan packet {
	key := [2]*Host{from, to}
	n.mu.RLock()
	p := n.pipes[key]
	n.mu.RUnlock()
	if p != nil {
		return p
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p = n.pipes[key]; p == nil {
		p = make(chan packet, pipeLength)
		n.pipes[key] = p
		go n.carry(p, to)
	}
	return p
}

func (n *Network) carry(p chan packet, to *Host) {
	for {
		select {
		case <-n.closed:
			return
		case pk := <-p:
			if wait := time.Until(pk.due); wait > 0 {
				time.Sleep(wait)
			}
			_, _ = to.tun.Write(pk.data) // a host that is gone loses it
		}
	}
}

// parse returns where a packet goes, and whether it is an ICMP echo or the reply to one.
func parse(b []byte) (dst netip.Addr, icmp, ok bool) {
	if len(b) < 20 {
		return dst, false, false
	}
	switch b[0] >> 4 {
	case 4:
		if int(binary.BigEndian.Uint16(b[2:])) > len(b) {
			return dst, false, false
		}
		return netip.AddrFrom4([4]byte(b[16:20])), b[9] == 1, true
	case 6:
		if len(b) < 40 {
			return dst, false, false
		}
		return netip.AddrFrom16([16]byte(b[24:40])), b[6] == 58, true
	}
	return dst, false, false
}

// close ends the programs, then the hosts.
func (n *Network) close() {
	var all sync.WaitGroup
	for i := len(n.processes) - 1; i >= 0; i-- {
		all.Go(n.processes[i].stop)
	}
	all.Wait()
	if n.t.Failed() {
		for _, p := range n.processes {
			n.t.Logf("output of %s on %s:\n%s", p.name, p.host.Name, p.Log())
		}
	}
	close(n.closed)
	for _, h := range n.hosts {
		h.tun.Close()
		close(h.calls)
	}
	_ = os.RemoveAll(n.dir) // it may hold what a program still writes; the system's temporary folder is emptied anyway
}
