package sitereport

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cloudflare/ipvs"
)

// maxIPVSTable bounds what is read of /proc/net/ip_vs in bytes: above 100,000 destinations.
const maxIPVSTable = 16 << 20

// IPVSOptions configure an IPVS reader.
type IPVSOptions struct {
	VirtualServers []IPVSVirtualServer
}

// An IPVSVirtualServer is one service of the kernel's IPVS.
type IPVSVirtualServer struct {
	Name string

	// Mark is the firewall mark of the service; 0: it is found by Address, Port and Protocol.
	Mark uint32

	// Address, Port and Protocol (tcp or udp) are reported as they are.
	Address  netip.Addr
	Port     uint16
	Protocol string
}

// An IPVS reads the kernel's own load balancer (LVS) by netlink, which needs CAP_NET_ADMIN, and without that from
// /proc/net/ip_vs.
//
// IPVS checks nothing: whoever watches its servers, such as keepalived, takes those that failed out of the service. So a
// destination is up, with weight 0 it is in drain, and one that was taken out is not listed any more. A service without any
// destination serves nobody, and is reported with one server that is down.
//
// Sessions are the active connections. New sessions and traffic are what the counters of the services grew by; /proc has
// only those of all services together. Replies are counted only where IPVS translates addresses (masquerading), so
// with any destination of another kind the traffic to clients is not known.
//
// An IPVS is for one reader at a time.
type IPVS struct {
	// Fixed at construction.
	opts IPVSOptions
	proc string // /proc/net
	open func() (ipvs.Client, error)

	// Owned by Read.
	client      ipvs.Client // nil: not opened
	known       map[string][]Server
	bytes       meter
	connections growth
}

// NewIPVS returns a reader. Whether the kernel has IPVS is for Read to say, because it may be loaded later.
func NewIPVS(opts IPVSOptions) *IPVS {
	return &IPVS{opts: opts, proc: "/proc/net", open: ipvs.New, known: make(map[string][]Server)}
}

// An ipvsTable is what the kernel says of its services.
type ipvsTable struct {
	services map[ipvsKey]*ipvsService
	total    *ipvsCounters // of all services together; nil: each has its own
}

// An ipvsKey is what a service is found by: its mark, or the rest.
type ipvsKey struct {
	mark     uint32
	at       netip.AddrPort
	protocol string
}

type ipvsService struct {
	destinations []ipvsDestination
	counters     ipvsCounters
}

type ipvsDestination struct {
	at             netip.AddrPort
	weight, active uint64
	masquerade     bool
}

type ipvsCounters struct{ connections, in, out uint64 }

func (k ipvsKey) String() string {
	if k.mark > 0 {
		return fmt.Sprintf("fwmark %d", k.mark)
	}
	return k.at.String() + "/" + k.protocol
}

func (v *IPVSVirtualServer) key() ipvsKey {
	if v.Mark > 0 {
		return ipvsKey{mark: v.Mark}
	}
	return ipvsKey{at: netip.AddrPortFrom(v.Address.Unmap(), v.Port), protocol: v.Protocol}
}

// Read reads the kernel's services once.
func (r *IPVS) Read(context.Context) (Reading, error) {
	t, err := r.table()
	if err == nil {
		return r.interpret(time.Now(), t), nil
	}
	r.bytes.reset()
	r.connections.reset()
	var out Reading
	for i := range r.opts.VirtualServers {
		out.VirtualServers = append(out.VirtualServers, r.unknown(&r.opts.VirtualServers[i], err.Error()))
	}
	return out, fmt.Errorf("ipvs: %w", err)
}

// unknown reports a virtual server of which only the names of its servers are known.
func (r *IPVS) unknown(v *IPVSVirtualServer, reason string) VirtualServer {
	return VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Servers: unknownServers(r.known[v.Name], reason)}
}

// table asks the kernel by netlink, else reads its files.
func (r *IPVS) table() (*ipvsTable, error) {
	t, err := r.byNetlink()
	if err == nil {
		return t, nil
	}
	t, fromFile := r.byProc()
	switch {
	case fromFile == nil:
		return t, nil
	case errors.Is(fromFile, fs.ErrNotExist) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		return nil, errors.New("the kernel has no IPVS here: load it (modprobe ip_vs), or take ipvs out of the agent's file")
	}
	return nil, fmt.Errorf("netlink: %w; and %w", err, fromFile)
}

// byNetlink asks the kernel.
func (r *IPVS) byNetlink() (*ipvsTable, error) {
	if r.client == nil {
		c, err := r.open()
		if err != nil {
			return nil, err
		}
		r.client = c
	}
	services, err := r.client.Services()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // that means: there are none
		r.hangUp()
		return nil, err
	}
	wanted := make(map[ipvsKey]bool) // others may be thousands
	for i := range r.opts.VirtualServers {
		wanted[r.opts.VirtualServers[i].key()] = true
	}
	t := &ipvsTable{services: make(map[ipvsKey]*ipvsService)}
	for _, s := range services {
		k := ipvsKey{mark: s.FWMark}
		if k.mark == 0 {
			k.at = netip.AddrPortFrom(s.Address.Unmap(), s.Port)
			switch s.Protocol {
			case ipvs.TCP:
				k.protocol = "tcp"
			case ipvs.UDP:
				k.protocol = "udp"
			}
		}
		stats := s.Stats64
		if stats == (ipvs.Stats{}) { // kernels before 4.1 have none
			stats = s.Stats
		}
		service := t.add(k, ipvsCounters{stats.Connections, stats.IncomingBytes, stats.OutgoingBytes})
		if !wanted[k] {
			continue
		}
		destinations, err := r.client.Destinations(s.Service)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.hangUp()
			return nil, err
		}
		for _, d := range destinations {
			service.destinations = append(service.destinations, ipvsDestination{
				at: netip.AddrPortFrom(d.Address.Unmap(), d.Port), weight: uint64(d.Weight), active: uint64(d.ActiveConnections),
				masquerade: d.FwdMethod == ipvs.Masquerade,
			})
		}
	}
	return t, nil
}

// hangUp lets go of a client that failed.
func (r *IPVS) hangUp() {
	if c, ok := r.client.(io.Closer); ok { // which the interface does not promise
		_ = c.Close()
	}
	r.client = nil
}

// add adds a service. Of one mark there may be one of each address family, which are taken together.
func (t *ipvsTable) add(k ipvsKey, c ipvsCounters) *ipvsService {
	s := t.services[k]
	if s == nil {
		s = new(ipvsService)
		t.services[k] = s
	}
	s.counters.connections += c.connections
	s.counters.in += c.in
	s.counters.out += c.out
	return s
}

// byProc reads the kernel's files.
func (r *IPVS) byProc() (*ipvsTable, error) {
	f, err := os.Open(filepath.Join(r.proc, "ip_vs"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	most := &io.LimitedReader{R: f, N: maxIPVSTable}
	t, err := parseIPVSTable(most)
	if most.N == 0 {
		err = fmt.Errorf("it is longer than %d bytes", maxIPVSTable)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	name := filepath.Join(r.proc, "ip_vs_stats")
	stats, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if t.total, err = parseIPVSStats(string(stats)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// parseIPVSTable reads /proc/net/ip_vs. Numbers of addresses, ports and marks are hexadecimal, the others are not.
func parseIPVSTable(r io.Reader) (*ipvsTable, error) {
	t := &ipvsTable{services: make(map[ipvsKey]*ipvsService)}
	var service *ipvsService
	lines, n := bufio.NewScanner(r), 0
	for lines.Scan() {
		n++
		fields := strings.Fields(lines.Text())
		if n <= 3 { // the version, and what the columns are
			if n == 1 && !strings.HasPrefix(lines.Text(), "IP Virtual Server") {
				return nil, fmt.Errorf("line 1 is %q, and should tell the version of IPVS", printable(lines.Text(), 60))
			}
			continue
		}
		ok := false
		switch {
		case len(fields) >= 6 && fields[0] == "->" && service != nil:
			var d ipvsDestination
			if d, ok = parseIPVSDestination(fields[1:]); ok {
				service.destinations = append(service.destinations, d)
			}
		case len(fields) >= 3 && fields[0] == "FWM":
			mark, err := strconv.ParseUint(fields[1], 16, 32)
			if ok = err == nil && mark > 0; ok {
				service = t.add(ipvsKey{mark: uint32(mark)}, ipvsCounters{})
			}
		case len(fields) >= 3 && fields[0] != "->":
			var at netip.AddrPort
			if at, ok = parseIPVSAddress(fields[1]); ok {
				service = t.add(ipvsKey{at: at, protocol: strings.ToLower(fields[0])}, ipvsCounters{})
			}
		}
		if !ok {
			return nil, fmt.Errorf("line %d is not understood: %q", n, printable(lines.Text(), 100))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if n < 3 {
		return nil, fmt.Errorf("it is cut off after line %d", n)
	}
	return t, nil
}

// parseIPVSDestination reads what follows the arrow: address, way of forwarding, weight and connections.
func parseIPVSDestination(fields []string) (d ipvsDestination, ok bool) {
	if d.at, ok = parseIPVSAddress(fields[0]); !ok {
		return d, false
	}
	var err, err2 error
	d.masquerade = fields[1] == "Masq"
	d.weight, err = strconv.ParseUint(fields[2], 10, 32)
	d.active, err2 = strconv.ParseUint(fields[3], 10, 32)
	return d, err == nil && err2 == nil
}

// parseIPVSAddress reads an address as the kernel writes it: C0A80016:0CEA, or [2001:...]:0050.
func parseIPVSAddress(s string) (netip.AddrPort, bool) {
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(s[at+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	host := s[:at]
	if inner, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return netip.AddrPortFrom(a, uint16(port)), err == nil && a.Is6() && a.Zone() == ""
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), uint16(port)), true
}

// parseIPVSStats reads the totals of /proc/net/ip_vs_stats, which are hexadecimal: connections, packets in and out, bytes in
// and out, on the third line.
func parseIPVSStats(s string) (*ipvsCounters, error) {
	lines := strings.Split(s, "\n")
	if len(lines) < 3 {
		return nil, errors.New("it is cut off")
	}
	fields := strings.Fields(lines[2])
	if len(fields) != 5 {
		return nil, fmt.Errorf("line 3 has %d numbers, and should have 5", len(fields))
	}
	var c ipvsCounters
	for i, to := range map[int]*uint64{0: &c.connections, 3: &c.in, 4: &c.out} {
		n, err := strconv.ParseUint(fields[i], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("line 3: %q is not a number", printable(fields[i], 40))
		}
		*to = n
	}
	return &c, nil
}

// interpret makes a reading of the kernel's table.
func (r *IPVS) interpret(now time.Time, t *ipvsTable) Reading {
	var out Reading
	var sessions uint64
	complete, replies := true, true
	bytes, connections := make(map[string]traffic), make(map[string]float64)
	for i := range r.opts.VirtualServers {
		v := &r.opts.VirtualServers[i]
		service := t.services[v.key()]
		if service == nil {
			complete = false
			var names []string
			for k := range t.services {
				names = append(names, k.String())
			}
			reason := fmt.Sprintf("IPVS has no service %s; it has %s", v.key(), list(names))
			out.Warnings = append(out.Warnings, fmt.Sprintf("virtual server %q: %s", v.Name, reason))
			out.VirtualServers = append(out.VirtualServers, r.unknown(v, reason))
			continue
		}
		vs := VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Sessions: new(uint64)}
		for _, d := range service.destinations {
			name := d.at.String()
			if d.at.Port() == 0 { // that of the client's packet
				name = d.at.Addr().String()
			}
			s := Server{Name: name, Address: name, State: StateUp}
			if d.weight == 0 {
				s.State, s.Reason = StateDrain, "weight 0"
			}
			vs.Servers = append(vs.Servers, s)
			*vs.Sessions += d.active
			replies = replies && d.masquerade
		}
		r.known[v.Name] = vs.Servers
		if len(vs.Servers) == 0 {
			vs.Servers = []Server{{Name: v.Name + "/none", State: StateDown, Reason: "IPVS has no destination left for " + v.key().String()}}
		}
		out.VirtualServers = append(out.VirtualServers, vs)
		sessions += *vs.Sessions
		bytes[v.Name] = traffic{in: service.counters.in, out: service.counters.out}
		connections[v.Name] = float64(service.counters.connections)
	}
	if t.total != nil {
		const all = "\x00all" // no virtual server is called so
		bytes = map[string]traffic{all: {in: t.total.in, out: t.total.out}}
		connections = map[string]float64{all: float64(t.total.connections)}
	}
	if complete {
		out.Load.Sessions = &sessions
	} else {
		bytes, connections = nil, nil
	}
	out.Load.BitsPerSecIn, out.Load.BitsPerSecOut = r.bytes.rate(now, bytes)
	if !replies {
		out.Load.BitsPerSecOut = nil
	}
	out.Load.NewSessions = perSecond(r.connections.rates(now, connections))
	return out
}
