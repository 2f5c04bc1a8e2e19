package state

import "time"

// publish resolves everything at this moment and publishes it. The order matters: sites before blindness, blindness
// before whatever it freezes, health before the pool. The caller holds mu.
func (s *Store) publish(now time.Time) {
	s.dirty = false
	s.due = time.Time{}
	s.publishedAt = now
	for _, st := range s.siteOrder {
		s.evalSite(st, now)
	}
	s.evalBlindness(now)
	frozen := s.blind.frozen
	for _, st := range s.siteOrder {
		st.gone = st.freshness == Dead && (st.gone || (!frozen && !now.Before(s.blind.thawUntil)))
	}
	if !frozen {
		for _, st := range s.siteOrder {
			s.evalCapacity(st, now)
		}
	}
	s.evalServices(now)
	s.version++
	s.snapshot.Store(s.build(now))
}

// evalServices resolves health and pools. The caller holds mu, and has evaluated sites and blindness.
func (s *Store) evalServices(now time.Time) {
	for _, svc := range s.svcOrder {
		s.evalHealth(svc, now)
		// A reload may have taken the backups away; a pool without members would answer nothing.
		if !s.blind.frozen || !svc.poolSet || (svc.pool == Backup && !svc.hasBackups) {
			s.evalPool(svc, now)
		}
	}
}

// build makes the snapshot of what publish has resolved. All of it is new: at 5,000 services of 4 members that costs a
// few milliseconds (see BenchmarkPublish), and the members must point to the sites of the same moment.
func (s *Store) build(now time.Time) *Snapshot {
	snap := &Snapshot{
		Version: s.version, Epoch: s.epoch, Published: now,
		Sites:    make([]*Site, len(s.siteOrder)),
		Services: make([]*Service, len(s.svcOrder)),
		RTT:      s.rtt, Geo: s.geo, Zones: s.zones,
		Blind: s.blind.on, BlindSince: s.blind.since, BlindWhy: s.blind.why,
	}
	// One allocation for all of a kind.
	sites := make([]Site, len(s.siteOrder))
	services := make([]Service, len(s.svcOrder))
	total := 0
	for _, svc := range s.svcOrder {
		total += len(svc.members)
	}
	members := make([]Member, total)
	pointers := make([]*Member, total)

	for i, st := range s.siteOrder {
		st.index = i
		sites[i] = st.snapshot(i)
		snap.Sites[i] = &sites[i]
	}
	next := 0
	for i, svc := range s.svcOrder {
		out := &services[i]
		snap.Services[i] = out
		*out = Service{
			Name: svc.cfg.Name, Aliases: svc.cfg.Aliases, Index: i, TTL: svc.cfg.TTL, Answers: svc.cfg.Answers,
			OnAllDown: svc.cfg.OnAllDown, LastResort: svc.cfg.LastResort, SlowStart: svc.cfg.SlowStart,
			PolicyName: svc.cfg.PolicyName, Chain: svc.cfg.Chain,
			Pool: svc.pool, PoolSince: svc.poolSince, PoolWhy: svc.poolWhy, PoolTransitions: svc.poolTransitions,
			Rotation: svc.rotation, Counters: svc.counters,
			id: svc.id, usesRTT: svc.cfg.UsesRTT, recent: svc.recent,
		}
		first := next
		for j, m := range svc.members {
			members[next] = m.snapshot(j, svc.pool, &sites[m.site.index])
			pointers[next] = &members[next]
			next++
		}
		out.Members = pointers[first:next:next]
	}
	return snap
}

// snapshot returns what is published of the member.
func (m *member) snapshot(index int, pool Role, at *Site) Member {
	out := Member{
		Name: m.cfg.Name, Index: index, Site: at, Addr: m.cfg.Addresses, CNAME: m.cfg.CNAME,
		Weight: m.cfg.Weight, Preference: m.cfg.Preference, Role: m.cfg.Role, InPool: m.cfg.Role == pool, Hash: m.hash,
		Forced: m.forced, ForcedWhy: m.forcedWhy, Transitions: m.transitions, Selected: m.selected, HandedOut: m.handedOut,
	}
	if m.servers.known && m.servers.fresh && at.Freshness == Fresh {
		out.HasServers, out.ServersUp, out.Servers = true, m.servers.up, m.servers.size
	}
	for f := range m.health {
		h := &m.health[f]
		if !m.has(Family(f)) {
			continue
		}
		out.Up[f], out.Since[f], out.Why[f], out.Recovered[f], out.LastGood[f] = h.up, h.since, h.why, h.recovered, h.lastGood
		if h.check.unrunnable {
			out.CheckError[f] = h.check.err
		}
		if h.check.latency > 0 {
			out.HasLatency[f], out.Latency[f] = true, h.check.latency
		}
	}
	return out
}
