package state

import "slices"

// Preview returns the snapshot that would be in force now if force, in place of Orders.Force, said what is ordered for the
// members: with their health, the pools and the pools of staged orders judged by it. It is worked out on a copy by what
// publications are made of, and of that copy nothing remains: nothing is published, logged, counted or kept.
//
// It is nil before the first Configure. Its Rotation and Selected are copies; its Counters are nil, and its HandedOut are
// those in force, since nobody is to be answered out of it.
func (s *Store) Preview(force func(service, member, site, zone string) Force) *Snapshot {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.configured {
		return nil
	}
	p := &Store{
		timed: map[*service]struct{}{},
		cfg:   s.cfg, configured: true, version: s.version, epoch: s.epoch, siteOrder: s.siteOrder, sites: s.sites,
		rtt: s.rtt, geo: s.geo, zones: s.zones, blind: s.blind, orders: s.orders,
	}
	p.orders.Force = force
	p.svcOrder = make([]*service, len(s.svcOrder))
	for i, svc := range s.svcOrder {
		p.svcOrder[i] = svc.copy()
	}
	p.published = make([]*Service, len(p.svcOrder))
	p.applyOrders()
	p.touchAll()
	p.evalServices(now)
	return p.build(now)
}

// copy returns a service whose evaluation changes nothing of svc. The sites are shared.
func (svc *service) copy() *service {
	c := *svc
	c.counters, c.touched = nil, false
	c.rotation = new(Rotation)
	for f := range c.rotation.Turn {
		c.rotation.Turn[f].Store(svc.rotation.Turn[f].Load())
	}
	members := make([]member, len(svc.members)) // one allocation for all
	c.members = make([]*member, len(svc.members))
	for i, m := range svc.members {
		n := &members[i]
		*n = *m
		n.counts, n.apart = m.counts.Clone(), m.apart.Clone()
		for f := range n.health {
			n.health[f].flips = slices.Clip(m.health[f].flips)
		}
		c.members[i] = n
	}
	return &c
}
