package state

import (
	"net/netip"

	"gslbd/geo"
)

const (
	// mostAhead is how many clients and services an Ahead takes, and membersAhead how many members of each service.
	mostAhead    = geo.MostAhead
	membersAhead = 16

	// largeServices and largeRows are from where on what queries read has no room in the processor's caches.
	largeServices = 512
	largeRows     = 16384
)

// Large reports whether there is so much to look up that a query waits for memory more than it computes. Then it is worth
// while to read ahead.
func (s *Snapshot) Large() bool {
	return len(s.Services) >= largeServices || len(s.RTT.shards)*len(*s.RTT.shards[0].slots.Load()) >= largeRows
}

// An Ahead reads what some decisions will read, each of them soon after by the same worker, so that it is in the
// processor's caches then: Begin, then Client for each, then Networks and Services, and End. The decisions one after the other would
// wait for memory each, and here the loads wait together. It decides nothing.
//
// A processor has many loads under way at once only where few instructions lie between them, and none that needs what they
// bring. So each step is a loop of its own, and between two steps of one way, other ways take one.
//
// Hot path: no allocation, no lock. An Ahead belongs to one goroutine.
type Ahead struct {
	snap    *Snapshot
	n       int // clients
	clients [mostAhead]clientAhead
	geo     geo.Ahead
	loaded  uint64 // so that the compiler keeps the loads; nobody reads it
}

// A clientAhead is where the row of a client's network is looked for, and what is found there.
type clientAhead struct {
	slots     []rttSlot
	h, hi, lo uint64
	row       *RTTRow
}

// A ServiceAhead is a service that is asked for addresses of a family.
type ServiceAhead struct {
	*Service
	Family Family
}

// Begin is for decisions by s from now on, after an End.
func (a *Ahead) Begin(s *Snapshot) {
	a.snap = s
	a.geo.Begin(s.Geo)
}

// End lets go of the snapshot, and of what was added.
func (a *Ahead) End() {
	for i := range a.clients[:a.n] {
		a.clients[i].slots, a.clients[i].row = nil, nil
	}
	a.snap, a.n = nil, 0
	a.geo.End()
}

// Client adds the client of a decision. Beyond the first 16 it does nothing.
func (a *Ahead) Client(addr netip.Addr) {
	if a.n == mostAhead || !addr.IsValid() {
		return
	}
	c, t := &a.clients[a.n], a.snap.RTT
	c.hi, c.lo = t.network(addr)
	c.h = t.hash(c.hi, c.lo)
	c.slots = *t.shard(c.h).slots.Load()
	a.geo.Add(addr)
	a.n++
}

// Networks takes the first steps for all clients.
func (a *Ahead) Networks() {
	clients := a.clients[:a.n]
	for i := range clients {
		c := &clients[i]
		c.row = c.slots[c.h&uint64(len(c.slots)-1)].row.Load() // the address may be read after the row only; mostly it is the network's
	}
	a.geo.Blocks()
}

// Services takes the others, for the clients and for their services, of which it reads the first 16. The worker counts in this
// shard.
func (a *Ahead) Services(services []ServiceAhead, shard int) {
	services = services[:min(len(services), mostAhead)]
	clients := a.clients[:a.n]
	if len(services) > 0 && services[0].Rotation == nil {
		return // no Store has made them
	}
	sum := a.loaded
	for i := range services {
		svc := &services[i]
		sum += uint64(svc.Ready[svc.Family].Reason)
	}
	for i := range clients {
		c := &clients[i]
		c.row = a.snap.RTT.row(c.slots, c.h, c.hi, c.lo)
	}
	for i := range services {
		svc := &services[i]
		sum += svc.Rotation.Turn[V4].Load() + uint64(svc.Counters.reasons) // what else is counted there stands with these
	}
	a.geo.Descend()
	for i := range services {
		svc := &services[i]
		c := svc.candidatesAhead()
		for k := 0; k < len(c); k += 2 { // two on a line
			sum += uint64(c[k].Site)
		}
	}
	for i := range clients {
		if row := clients[i].row; row != nil && len(row.points) > 0 {
			sum += uint64(row.oldest) + uint64(row.points[len(row.points)-1])
		}
	}
	for i := range services {
		svc := &services[i]
		c := svc.Counters
		cells := c.cells.all[c.cells.of(shard):]
		sum += cells[0].Load() + cells[c.reasons].Load() + cells[c.reasons+lineCells].Load()
	}
	a.geo.Records()
	for i := range services {
		svc := &services[i]
		c := svc.candidatesAhead()
		for k := 0; k < len(c); k += 2 { // two on a line
			sum += uint64(c[k].Counts.Selected[V4].Load())
		}
	}
	a.loaded = sum
}

func (svc *ServiceAhead) candidatesAhead() []ReadyCandidate {
	c := svc.Ready[svc.Family].Candidates
	return c[:min(len(c), membersAhead)]
}
