package state

import "net/netip"

const (
	// mostAhead is how many networks or services a LookAhead looks at, and membersAhead how many members of each.
	mostAhead    = 16
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

// LookAhead reads what decisions for the services will read, each of them soon after by the worker with this shard, so that
// it is in the processor's caches then: the decisions one after the other would wait for memory each, and here the loads
// wait together. addrs are the clients. It decides nothing: the number that it returns only makes the compiler keep the
// loads.
//
// Hot path: no allocation, no lock.
func (s *Snapshot) LookAhead(services []*Service, addrs []netip.Addr, shard int) uint64 {
	services = services[:min(len(services), mostAhead)]
	var sum uint64
	for _, svc := range services {
		if svc.Rotation == nil {
			return sum // no Store has made it
		}
		sum += uint64(svc.Ready[V4].Reason)
	}
	sum += s.RTT.lookAhead(addrs) + s.Geo.LookAhead(addrs)
	for _, svc := range services {
		sum += svc.Rotation.Turn[V4].Load() + uint64(svc.Counters.reasons) // what else is counted there stands with these
	}
	for _, svc := range services {
		c := svc.candidatesAhead()
		for i := 0; i < len(c); i += 2 { // two on a line
			sum += uint64(c[i].Site)
		}
	}
	for _, svc := range services {
		c := svc.candidatesAhead()
		for i := 0; i < len(c); i += 2 { // two on a line
			sum += uint64(c[i].Counts.Selected[V4].Load())
		}
	}
	for _, svc := range services {
		c := svc.Counters
		cells := c.cells.all[c.cells.of(shard):]
		sum += cells[0].Load() + cells[c.reasons].Load() + cells[c.reasons+lineCells].Load()
	}
	return sum
}

func (svc *Service) candidatesAhead() []ReadyCandidate {
	c := svc.Ready[V4].Candidates
	return c[:min(len(c), membersAhead)]
}

// lookAhead reads the rows of the clients' networks. What it computes stands apart from what it loads, since a processor has
// many loads under way at once only where few instructions lie between them.
func (t *RTTTable) lookAhead(addrs []netip.Addr) (sum uint64) {
	type place struct {
		slots     []rttSlot
		h, hi, lo uint64
	}
	var places [mostAhead]place
	var slots [mostAhead]*rttSlot
	n := 0
	for _, addr := range addrs[:min(len(addrs), mostAhead)] {
		if addr.IsValid() {
			p := &places[n]
			p.hi, p.lo = t.network(addr)
			p.h = t.hash(p.hi, p.lo)
			p.slots = *t.shard(p.h).slots.Load()
			slots[n] = &p.slots[p.h&uint64(len(p.slots)-1)]
			n++
		}
	}
	var rows [mostAhead]*RTTRow
	for i, sl := range slots[:n] {
		rows[i] = sl.row.Load() // the address may be read after the row only; mostly it is the network's
	}
	for i := range places[:n] {
		p := &places[i]
		rows[i] = t.row(p.slots, p.h, p.hi, p.lo)
	}
	for _, row := range rows[:n] {
		if row != nil && len(row.points) > 0 {
			sum += uint64(row.oldest) + uint64(row.points[len(row.points)-1])
		}
	}
	return sum
}
