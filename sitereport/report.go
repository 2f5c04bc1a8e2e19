package sitereport

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"gslbd/state"
)

// MaxReport is the largest report that a receiver reads, in bytes (docs/agent.md).
const MaxReport = 4 << 20

// MaxAgents is how many agents of one site a receiver tells apart within a minute.
const MaxAgents = 16

// Limits of a report. A report beyond them is refused whole, because half a report would be taken for a whole one.
const (
	MaxName           = 255    // bytes of a name, an address or an agent's boot_id
	MaxReason         = 256    // bytes of a server's reason that are kept; what is longer is cut
	MaxVirtualServers = 10_000 // in a report
	MaxServers        = 50_000 // in a report, behind all virtual servers
	MaxRTTs           = 50_000 // in a report
	MaxSessions       = 1e12   // open sessions
	MaxNewSessions    = 1e9    // new sessions per second
	MaxBits           = 1e15   // bits per second
	MaxRTTMillis      = 60_000 // a round trip, in milliseconds
	MaxAgeMillis      = 1e12   // the age of a round trip, in milliseconds
	MaxWarnings       = 100    // of the agent, each as long as MaxReason
)

// A Report is what an agent posts to /v1/sites/{site}/report (docs/agent.md). Only Site is required. What is absent
// is unknown, which is not the same as 0; hence the pointers.
type Report struct {
	Site string `json:"site"`

	// Agent tells several agents of one site apart; absent, it is "default".
	Agent string `json:"agent,omitempty"`

	// BootID is another one at every start of the agent, and Sequence grows by one with every report of a boot. A
	// report that is sent again carries the sequence that it had. Without them nothing tells an old report from a new
	// one.
	BootID   string  `json:"boot_id,omitempty"`
	Sequence *uint64 `json:"sequence,omitempty"`

	Load           *Load           `json:"load,omitempty"`
	VirtualServers []VirtualServer `json:"virtual_servers,omitempty"`
	RTTs           []RTT           `json:"rtts,omitempty"`

	// UnknownMethod is set by Decode: a method of round trips that it does not know and has left out; "": there was none.
	UnknownMethod string `json:"-"`

	// Drained are the servers that the agent sets to drain after this report or has set to drain, because every gslbd asked
	// for it, and that are not out of it yet. That they are told of before is what lets gslbd restore them whenever the
	// agent dies.
	Drained []state.DrainedServers `json:"drained,omitempty"`
	// Warnings are what the agent could not do, and why, for the status of gslbd.
	Warnings []string `json:"warnings,omitempty"`
}

// Load is the load of the site's SLB.
type Load struct {
	Sessions      *uint64  `json:"sessions,omitempty"`                // open now
	NewSessions   *float64 `json:"new_sessions_per_second,omitempty"` // sessions per second
	BitsPerSecIn  *uint64  `json:"bits_per_second_in,omitempty"`      // from clients
	BitsPerSecOut *uint64  `json:"bits_per_second_out,omitempty"`     // to clients
}

// A VirtualServer is one VIP and port on the SLB. It has a name or an address, or both.
type VirtualServer struct {
	Name     string     `json:"name,omitempty"`
	Address  netip.Addr `json:"address,omitzero"`
	Port     uint16     `json:"port,omitempty"`     // 0: not given
	Protocol string     `json:"protocol,omitempty"` // "tcp", "udp" or ""
	Sessions *uint64    `json:"sessions,omitempty"` // open now

	// Servers are the machines behind it. Without any, the report says nothing of the virtual server's health.
	Servers []Server `json:"servers,omitempty"`
}

// The states of a Server. StateUnknown counts as if the server were not listed, and is what an absent state means.
const (
	StateUp      = "up"
	StateDown    = "down"
	StateDrain   = "drain"
	StateMaint   = "maint"
	StateUnknown = "unknown"
)

// A Server is one machine behind a virtual server. The same Address in two virtual servers is the same machine.
type Server struct {
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"` // "10.1.1.10:443"; not interpreted
	State   string `json:"state,omitempty"`   // one of the State constants
	Reason  string `json:"reason,omitempty"`  // why it is in that state, for people
}

// An RTT is one round trip from the site to a resolver, or the loss of one.
type RTT struct {
	Resolver netip.Addr   `json:"resolver,omitzero"`
	Prefix   netip.Prefix `json:"prefix,omitzero"`  // in place of Resolver, for round trips of real clients: at least /24 or /56
	Millis   *float64     `json:"rtt_ms,omitempty"` // the round trip in milliseconds; absent when Lost
	Lost     bool         `json:"lost,omitempty"`
	Method   string       `json:"method,omitempty"` // of a Resolver: "icmp", "tcp" or "dns"; absent: icmp
	AgeMS    uint64       `json:"age_ms"`           // how long before the report was sent it was measured

	Connections *uint64 `json:"connections,omitempty"` // with Prefix: how many the round trip is of, at least
}

// An Answer is what a receiver says to a report. With a status other than 200 only Error is set.
type Answer struct {
	Accepted bool `json:"accepted"`

	// IntervalMS is how long the agent shall wait between reports, in milliseconds. It overrides the agent's file.
	IntervalMS int64 `json:"interval_ms,omitempty"`

	Probe       []ProbeTarget          `json:"probe"`                   // resolvers to measure now, at most 2,000
	Services    []ServiceState         `json:"services"`                // the site's services
	Drain       []string               `json:"drain"`                   // virtual servers to drain
	Restore     []state.DrainedServers `json:"restore,omitempty"`       // servers in drain to set back
	DeadAfterMS int64                  `json:"dead_after_ms,omitempty"` // within which the agent must have reached a gslbd for its word to count
	Warnings    []string               `json:"warnings"`                // what gslbd could not make sense of, for the agent's log

	Error string `json:"error,omitempty"` // what is wrong and where, when the report was refused
}

// A ProbeTarget is a resolver whose round trip the site shall measure.
type ProbeTarget struct {
	Resolver netip.Addr `json:"resolver"`
	Methods  []string   `json:"methods,omitempty"` // in the order to try; absent: icmp
}

// probeTarget does not name the methods where they are only icmp, which is what agents do by themselves.
func probeTarget(t state.ProbeTarget) ProbeTarget {
	p := ProbeTarget{Resolver: t.Resolver}
	if !slices.Equal(t.Methods, []state.RTTMethod{state.RTTICMP}) {
		for _, m := range t.Methods {
			p.Methods = append(p.Methods, m.String())
		}
	}
	return p
}

// The states of a service at a site.
const (
	ServiceActive   = "active"
	ServiceDraining = "draining" // it left the virtual servers, whose sessions may stay until the deadline
	ServiceInactive = "inactive"
)

// A ServiceState says what state a service is in at the site. One that has primaries and backups there has two of them.
type ServiceState struct {
	Name           string   `json:"name"`
	State          string   `json:"state"`
	DeadlineMS     int64    `json:"deadline_ms,omitempty"` // of draining: milliseconds from now; 0: it has passed
	VirtualServers []string `json:"virtual_servers,omitempty"`
}

// AgentName returns the agent's name, "default" when it gave none.
func (r *Report) AgentName() string {
	if r.Agent == "" {
		return "default"
	}
	return r.Agent
}

// Measured returns the report in the words of package state. r must come from Decode, which keeps it within bounds.
// Traffic of which only one direction is given counts the other as 0: utilisation is that of the busier direction.
func (r *Report) Measured() *state.Report {
	m := &state.Report{Site: r.Site, Agent: r.AgentName(), Drained: r.Drained, Warnings: r.Warnings}
	if l := r.Load; l != nil {
		if l.Sessions != nil {
			m.HasSessions, m.Sessions = true, *l.Sessions
		}
		if l.NewSessions != nil {
			m.HasNewSessions, m.NewSessions = true, *l.NewSessions
		}
		if l.BitsPerSecIn != nil {
			m.HasBits, m.BitsIn = true, *l.BitsPerSecIn
		}
		if l.BitsPerSecOut != nil {
			m.HasBits, m.BitsOut = true, *l.BitsPerSecOut
		}
	}
	m.VirtualServers = make([]state.VirtualServer, len(r.VirtualServers))
	for i, v := range r.VirtualServers {
		m.VirtualServers[i] = v.measured()
	}
	m.RTTs = make([]state.RTTSample, len(r.RTTs))
	for i, t := range r.RTTs {
		m.RTTs[i] = t.measured()
	}
	return m
}

func (v *VirtualServer) measured() state.VirtualServer {
	m := state.VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol}
	m.Servers = make([]state.Server, len(v.Servers))
	for i, s := range v.Servers {
		m.Servers[i] = state.Server{Name: s.Name, Address: s.Address, State: serverState(s.State), Reason: s.Reason}
	}
	return m
}

func serverState(word string) state.ServerState {
	switch word {
	case StateUp:
		return state.ServerUp
	case StateDown:
		return state.ServerDown
	case StateDrain:
		return state.ServerDrain
	case StateMaint:
		return state.ServerMaint
	}
	return state.ServerUnknown
}

func (t *RTT) measured() state.RTTSample {
	m := state.RTTSample{
		Resolver: t.Resolver,
		Lost:     t.Lost,
		Age:      time.Duration(t.AgeMS) * time.Millisecond,
	}
	if t.Prefix.IsValid() {
		m.Resolver, m.Method = t.Prefix.Addr(), state.RTTPassive
		if t.Connections != nil {
			m.Connections = int(*t.Connections)
		}
	} else {
		m.Method, _ = state.ParseRTTMethod(t.Method)
	}
	if t.Millis != nil {
		m.RTT = time.Duration(math.Round(*t.Millis * float64(time.Millisecond)))
	}
	return m
}
