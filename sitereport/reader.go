package sitereport

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Reader reads what one source at a site knows: an SLB, or the agent's own checks.
//
// Read must return when ctx is done. When the source cannot be read it returns an error which says what to do, together
// with a Reading that lists its virtual servers with servers of state unknown and has no load: a virtual server that
// vanished from a report would be taken for one that was removed, and a load of 0 for an idle site. An Agent never calls
// Read again before the last call returned.
type Reader interface {
	Read(ctx context.Context) (Reading, error)
}

// An Actor is a Reader that can also act on what it reads. Its methods are never called while another of them, or Read,
// has not returned. Virtual servers and servers are named as in a Reading.
type Actor interface {
	Reader

	// Shares returns the virtual servers, the given one among them, whose servers and sessions are those of the given one:
	// whoever acts on one acts on all. It returns none for a virtual server that is not this reader's.
	Shares(virtualServer string) []string

	// May returns why nothing can be done, or nil when something may.
	May(ctx context.Context) error

	// EndSessions ends the sessions that are open at the virtual server's servers, and does nothing else to them.
	EndSessions(ctx context.Context, virtualServer string) error

	// Drain sets those of the servers to drain that are up now, and returns them; with an error, those that may have been set.
	Drain(ctx context.Context, virtualServer string, servers []string) ([]string, error)

	// Ready sets those of the servers to ready that are in drain now, and returns them, likewise.
	Ready(ctx context.Context, virtualServer string, servers []string) ([]string, error)
}

// A Reading is what a Reader read.
type Reading struct {
	// Load is the load of the source. What is nil is not known.
	Load Load

	// WholeSite says that the bits per second in Load are all that the site carries (an interface's counters), so that
	// those of other readers are part of them and must not be added.
	WholeSite bool

	// Supplies are the figures in Load of a reader without virtual servers, which are those of other readers' virtual
	// servers; of a reading that failed, the figures that it lacks.
	Supplies Figures `json:",omitzero"`

	// Yields are the figures of a reader with virtual servers that others may supply. Its own count where none does.
	Yields Figures `json:",omitzero"`

	VirtualServers []VirtualServer

	// Elsewhere are the virtual addresses that this machine does not serve, and why. Whatever any reader says of their
	// virtual servers is not reported, nor any load, since this machine's is not that of the site.
	Elsewhere map[netip.Addr]string `json:",omitempty"`

	// Warnings say what the operator should put right. They do not keep the rest from being reported.
	Warnings []string
}

// Figures are some of the figures of a Load.
type Figures uint8

// The figures of a Load.
const (
	FigureSessions Figures = 1 << iota
	FigureNewSessions
	FigureBitsIn
	FigureBitsOut

	AllFigures = FigureSessions | FigureNewSessions | FigureBitsIn | FigureBitsOut
)

// figures returns those that are known.
func (l *Load) figures() (known Figures) {
	if l.Sessions != nil {
		known |= FigureSessions
	}
	if l.NewSessions != nil {
		known |= FigureNewSessions
	}
	if l.BitsPerSecIn != nil {
		known |= FigureBitsIn
	}
	if l.BitsPerSecOut != nil {
		known |= FigureBitsOut
	}
	return known
}

// merge adds up what all readers of a site read. A figure that any of them lacks is absent from the sum, because part of
// a site's load looks like a site with room to spare. A reader without virtual servers has no sessions to lack, but for
// the figures that it supplies for those of others.
func merge(readings []Reading) (*Load, []VirtualServer) {
	readings = served(readings)
	var supplied Figures
	var servers []VirtualServer
	for _, r := range readings {
		if len(r.VirtualServers) == 0 {
			supplied |= r.Supplies
		}
		servers = append(servers, r.VirtualServers...)
	}
	load := Load{
		Sessions:      sum(readings, supplied, FigureSessions, func(l *Load) *uint64 { return l.Sessions }),
		NewSessions:   sum(readings, supplied, FigureNewSessions, func(l *Load) *float64 { return l.NewSessions }),
		BitsPerSecIn:  sum(readings, supplied, FigureBitsIn, func(l *Load) *uint64 { return l.BitsPerSecIn }),
		BitsPerSecOut: sum(readings, supplied, FigureBitsOut, func(l *Load) *uint64 { return l.BitsPerSecOut }),
	}
	if i := slices.IndexFunc(readings, func(r Reading) bool { return r.WholeSite }); i >= 0 {
		load.BitsPerSecIn, load.BitsPerSecOut = readings[i].Load.BitsPerSecIn, readings[i].Load.BitsPerSecOut
	}
	// A receiver refuses a whole report for one name that it cannot print, or that is missing, so what came from an SLB is made printable.
	for i := range servers {
		v := &servers[i]
		v.Servers = slices.Clone(v.Servers)
		for j := range v.Servers {
			s := &v.Servers[j]
			s.Name, s.Address, s.Reason = printable(s.Name, MaxName), printable(s.Address, MaxName), printable(s.Reason, MaxReason)
			if s.Name == "" && s.Address == "" {
				s.Name = "nameless"
			}
		}
	}
	if load == (Load{}) {
		return nil, servers
	}
	return &load, servers
}

// served returns what the readings say of the virtual addresses that this machine serves.
func served(readings []Reading) []Reading {
	elsewhere := make(map[netip.Addr]string)
	for _, r := range readings {
		maps.Copy(elsewhere, r.Elsewhere)
	}
	if len(elsewhere) == 0 {
		return readings
	}
	readings = slices.Clone(readings)
	for i := range readings {
		r := &readings[i]
		r.Load = Load{}
		r.VirtualServers = slices.Clone(r.VirtualServers)
		for j := range r.VirtualServers {
			v := &r.VirtualServers[j]
			if why, ok := elsewhere[v.Address.Unmap()]; ok {
				v.Sessions, v.Servers = nil, unknownServers(v.Servers, why)
			}
		}
	}
	return readings
}

// sum adds up one figure of the readers that have to give it.
func sum[T uint64 | float64](readings []Reading, supplied, figure Figures, of func(*Load) *T) (total *T) {
	first := true
	for i := range readings {
		r := &readings[i]
		owed := r.Supplies&figure != 0
		if len(r.VirtualServers) > 0 {
			owed = r.Yields&supplied&figure == 0
		}
		switch {
		case !owed:
		case first:
			first, total = false, of(&r.Load)
		default:
			total = add(total, of(&r.Load))
		}
	}
	return total
}

// add returns a new sum, or nil when either is unknown.
func add[T uint64 | float64](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	sum := *a + *b
	return &sum
}

// unknownServers returns the servers with the state unknown.
func unknownServers(servers []Server, reason string) []Server {
	servers = slices.Clone(servers)
	for i := range servers {
		servers[i].State, servers[i].Reason = StateUnknown, reason
	}
	return servers
}

// printable replaces what cannot be printed by spaces and cuts s to at most most bytes.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		cut := most
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return strings.TrimSpace(s)
}

// list names at most ten of what exists, for a warning that something else does not.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	if len(names) > 10 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:10], ", "), len(names)-10)
	}
	return strings.Join(names, ", ")
}
