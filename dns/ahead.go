package dns

import (
	"net/netip"

	"gslbd/state"
)

// mostAhead is how many queries a Responder looks ahead at. What those of a whole batch read has no room in the processor's
// first cache.
const mostAhead = 16

// ahead is what a Responder knows of the queries that it has looked ahead at.
type ahead struct {
	queries  [mostAhead]query
	verdicts [mostAhead]int    // of parse
	messages [mostAhead][]byte // that queries are of
	at, n    int               // n were read, and those from at on are to be answered

	names    [mostAhead]*name // of queries
	families [mostAhead]state.Family
	slots    [mostAhead]*nameSlot
	nodes    [mostAhead]*node
	services [mostAhead]state.ServiceAhead
	state    state.Ahead
	loaded   uint64 // so that the compiler keeps the loads; nobody reads it
}

// take returns what was read of a message, if it is the next of those that were looked ahead at, else nil.
func (a *ahead) take(msg []byte) (*query, int) {
	if a.at == a.n {
		return nil, 0
	}
	i := a.at
	if m := a.messages[i]; len(m) != len(msg) || len(m) == 0 || &m[0] != &msg[0] {
		a.at = a.n
		return nil, 0
	}
	a.at++
	return &a.queries[i], a.verdicts[i]
}

// forget lets go of all that was read.
func (a *ahead) forget() {
	for i := range a.n {
		a.queries[i].name.zone, a.messages[i] = nil, nil
	}
	a.at, a.n = 0, 0
	a.state.End()
}

// LookAhead readies the processor's caches for some queries of a batch that came over UDP, up to mostAhead, which are
// answered one by one after it, as they are; remotes[i] sent queries[i]. A query of many services from many networks waits
// for some twenty loads of memory, most of which need the one before. Here the queries take each step together, so that
// they wait together. No answer depends on it, and where there is little to look up it does nothing.
//
// Hot path: no allocation, no lock.
func (r *Responder) LookAhead(queries [][]byte, remotes []netip.AddrPort) {
	if len(queries) < 2 || r.snap == nil || r.tables == nil || !r.snap.Large() {
		return
	}
	if r.ahead == nil {
		r.ahead = new(ahead) // once, and not for the many that serve TCP
	}
	a, use := r.ahead, r.options(false)
	a.forget()
	a.n = min(len(queries), mostAhead)
	a.state.Begin(r.snap)
	n := 0
	for i, msg := range queries[:a.n] {
		q := &a.queries[i]
		a.messages[i], a.verdicts[i] = msg, q.parse(msg, use)
		if a.verdicts[i] != 0 || q.end == 0 {
			continue
		}
		z := r.tables.zoneOf(&q.name, q.name.labels)
		if z == nil {
			continue
		}
		q.name.zone, q.name.hash = z, z.names.hash(q.name.suffix(q.name.labels))
		a.names[n], a.slots[n], a.families[n] = &q.name, z.names.first(q.name.hash), q.family()
		n++
		if q.ecs.present && q.ecs.prefix.Bits() > 0 {
			a.state.Client(q.ecs.prefix.Addr())
		} else {
			a.state.Client(remotes[i].Addr().Unmap())
		}
	}
	for _, s := range a.slots[:n] {
		a.loaded += s.hash
	}
	a.state.Networks()
	for i, nm := range a.names[:n] {
		a.nodes[i] = nm.zone.names.likely(nm.hash)
	}
	for _, n := range a.nodes[:n] {
		if n != nil && n.service != nil {
			a.loaded += uint64(n.name[0])
		}
	}
	services := a.services[:0]
	for i, n := range a.nodes[:n] {
		if n != nil && n.service != nil && int(n.service.index) < len(r.snap.Services) {
			services = append(services, state.ServiceAhead{Service: r.snap.Services[n.service.index], Family: a.families[i]})
		}
	}
	a.state.Services(services, r.shard)
	clear(a.slots[:])
	clear(a.nodes[:])
	clear(a.services[:])
}
