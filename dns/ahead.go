package dns

import (
	"hash/maphash"
	"net/netip"

	"gslbd/state"
)

// mostAhead is how many queries a Responder looks ahead at. What those of a whole batch read has no room in the processor's
// first cache.
const mostAhead = 16

// ahead is what a Responder needs to look ahead.
type ahead struct {
	q        query
	slots    [mostAhead]*nameSlot
	nodes    [mostAhead]*node
	services [mostAhead]*state.Service
	clients  [mostAhead]netip.Addr
	loaded   uint64 // so that the compiler keeps the loads; nobody reads it
}

// LookAhead readies the processor's caches for some queries of a batch, up to mostAhead, which are answered one by one
// after it; remotes[i] sent queries[i]. A query of many services from many networks waits for some thirty loads of
// memory, most of which need the one before. Here the queries take each step together, so that they wait together. No
// answer depends on it, and where there is little to look up it does nothing.
//
// Hot path: no allocation, no lock.
func (r *Responder) LookAhead(queries [][]byte, remotes []netip.AddrPort) {
	if len(queries) < 2 || r.snap == nil || r.tables == nil || !r.snap.Large() {
		return
	}
	a := &r.ahead
	n, use := 0, optionSet{ecs: r.ecs && r.tables.ecs}
	for i, msg := range queries[:min(len(queries), mostAhead)] {
		if a.q.parse(msg, use) != 0 || a.q.end == 0 {
			continue
		}
		z := r.tables.zoneOf(&a.q.name, a.q.name.labels)
		if z == nil {
			continue
		}
		a.clients[n] = remotes[i].Addr().Unmap()
		if a.q.ecs.present && a.q.ecs.prefix.Bits() > 0 {
			a.clients[n] = a.q.ecs.prefix.Addr()
		}
		a.slots[n] = z.names.slot(maphash.Bytes(z.names.seed, a.q.name.suffix(a.q.name.labels)))
		n++
	}
	for i, s := range a.slots[:n] {
		a.nodes[i] = s.node // mostly that of the name
	}
	for _, n := range a.nodes[:n] {
		if n != nil && n.service != nil {
			a.loaded += uint64(n.name[0])
		}
	}
	services := a.services[:0]
	for _, n := range a.nodes[:n] {
		if n != nil && n.service != nil && n.service.index < len(r.snap.Services) {
			services = append(services, r.snap.Services[n.service.index])
		}
	}
	a.loaded += r.snap.LookAhead(services, a.clients[:n], r.shard)
	clear(a.slots[:])
	clear(a.nodes[:])
	clear(a.services[:])
}
