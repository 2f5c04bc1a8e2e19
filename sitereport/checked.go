package sitereport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"gslbd/probes"
)

// CheckedOptions configure a Checked reader.
type CheckedOptions struct {
	VirtualServers []CheckedVirtualServer

	// Sessions says whether this machine's established TCP sockets at the virtual servers' addresses and ports are
	// counted as their sessions. That is right where this machine ends the clients' connections (a proxy); one that
	// forwards packets has no sockets for them.
	Sessions bool

	// Interface is the network interface whose counters are the site's traffic; "": traffic is not reported.
	Interface string

	Log *zap.Logger // for the checks; default: none
}

// A CheckedVirtualServer is a virtual server whose servers the agent checks itself.
type CheckedVirtualServer struct {
	Name     string
	Address  netip.Addr // without one, sessions are counted by Port alone
	Port     uint16
	Protocol string // tcp or udp; Linux knows no sessions of udp
	Servers  []CheckedServer
}

// A CheckedServer is one server and how it is checked. The check's Key is set by NewChecked.
type CheckedServer struct {
	Name    string
	Address string // as reported
	Check   probes.Check
}

// A Checked reads the states of servers off the agent's own checks, and load off Linux. Run runs the checks.
//
// A server is unknown until its first check is done. The first Read waits for those as long as its context allows, so
// that a restart of the agent does not report servers as unknown which were up before.
type Checked struct {
	// Fixed at construction.
	opts    CheckedOptions
	monitor *probes.Monitor
	first   chan struct{} // closed when every check has a result
	sysfs   string

	mu      sync.Mutex
	results map[string]probes.Result // guarded by mu: the last result by key
	checks  int                      // guarded by mu: how many have none yet

	// Owned by Read.
	waited bool
	meter  meter
}

// NewChecked returns a reader. An interface that does not exist is a warning of every Read and no error here, because it
// may come up later than the agent.
func NewChecked(opts CheckedOptions) *Checked {
	c := &Checked{opts: opts, first: make(chan struct{}), sysfs: "/sys/class/net", results: make(map[string]probes.Result)}
	c.monitor = probes.NewMonitor(probes.MonitorOptions{Notify: c.notify, Log: opts.Log})
	var checks []probes.Check
	for i, v := range opts.VirtualServers {
		for j, s := range v.Servers {
			s.Check.Key = checkKey(i, j)
			checks = append(checks, s.Check)
		}
	}
	c.checks = len(checks)
	if c.checks == 0 {
		close(c.first)
	}
	c.monitor.Set(checks)
	return c
}

func checkKey(virtualServer, server int) string {
	return strconv.Itoa(virtualServer) + "/" + strconv.Itoa(server)
}

// String names the reader for operators.
func (c *Checked) String() string { return "own checks" }

// Run runs the checks until ctx is done.
func (c *Checked) Run(ctx context.Context) error { return c.monitor.Run(ctx) }

func (c *Checked) notify(r probes.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.results[r.Key]; !known {
		if c.checks--; c.checks == 0 {
			close(c.first)
		}
	}
	c.results[r.Key] = r
}

// Read returns the present states, and reads the load.
func (c *Checked) Read(ctx context.Context) (Reading, error) {
	if !c.waited {
		c.waited = true
		select {
		case <-c.first:
		case <-ctx.Done():
		}
	}
	r := Reading{Yields: AllFigures}
	c.states(&r)
	if c.opts.Sessions {
		c.sessions(ctx, &r)
	}
	if c.opts.Interface != "" {
		r.WholeSite = true
		id, t, err := interfaceTraffic(c.sysfs, c.opts.Interface)
		if err != nil {
			r.Warnings = append(r.Warnings, err.Error()+", so no traffic is reported")
			c.meter.reset()
		} else {
			r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = c.meter.rate(time.Now(), map[string]traffic{id: t})
		}
	}
	return r, nil
}

// states adds the virtual servers.
func (c *Checked) states(r *Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range c.opts.VirtualServers {
		out := VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol}
		for j, s := range v.Servers {
			server := Server{Name: s.Name, Address: s.Address, State: StateUnknown, Reason: "not checked yet"}
			if last, ok := c.results[checkKey(i, j)]; ok {
				switch {
				case last.Unrunnable:
					server.Reason = "check error: " + last.Err
					r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: server %q cannot be checked: %s", v.Name, s.Name, last.Err))
				case last.Up:
					server.State, server.Reason = StateUp, ""
				default:
					server.State, server.Reason = StateDown, last.Err
				}
			}
			out.Servers = append(out.Servers, server)
		}
		r.VirtualServers = append(r.VirtualServers, out)
	}
}

// sessions adds the sessions of the virtual servers and their sum.
func (c *Checked) sessions(ctx context.Context, r *Reading) {
	at, anywhere := make(map[netip.AddrPort]uint64), make(map[uint16]uint64)
	for _, v := range c.opts.VirtualServers {
		switch {
		case v.Protocol == "udp":
		case v.Address.IsValid():
			at[netip.AddrPortFrom(v.Address.Unmap(), v.Port)] = 0
		default:
			anywhere[v.Port] = 0
		}
	}
	if len(at)+len(anywhere) == 0 {
		return
	}
	var sum uint64
	err := establishedSockets(ctx, diagRequest{}, func(s diagSocket) {
		local := s.local()
		_, here := at[local]
		if here {
			at[local]++
		}
		_, there := anywhere[local.Port()]
		if there {
			anywhere[local.Port()]++
		}
		if here || there {
			sum++
		}
	})
	if err != nil {
		r.Warnings = append(r.Warnings, err.Error()+", so no sessions are reported")
		return
	}
	complete := true
	for i, v := range c.opts.VirtualServers {
		if v.Protocol == "udp" {
			continue
		}
		n := anywhere[v.Port]
		if v.Address.IsValid() {
			n = at[netip.AddrPortFrom(v.Address.Unmap(), v.Port)]
		}
		if n == 0 && v.Address.IsValid() && !ownAddress(v.Address) {
			// Behind NAT there would never be a socket at this address, and 0 would be wrong. On a standby machine it
			// would be right, but says nothing that gslbd needs.
			complete = false
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s is not an address of this machine now, so its sessions are not known", v.Name, v.Address))
			continue
		}
		r.VirtualServers[i].Sessions = &n
	}
	if complete {
		r.Load.Sessions = &sum
	}
}

// ownAddress says whether the machine has the address.
func ownAddress(a netip.Addr) bool {
	if a.IsLoopback() {
		return true // all of 127.0.0.0/8 is
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, n := range addrs {
		if p, ok := n.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(p.IP); ok && own.Unmap() == a.Unmap() {
				return true
			}
		}
	}
	return false
}
