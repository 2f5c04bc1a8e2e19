package state

import (
	"net/netip"
	"slices"
	"time"
)

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
		// A reload may have taken the backups away; a pool without members would answer nothing. What is ordered holds
		// whatever is known.
		if !s.blind.frozen || !svc.poolSet || svc.ordered || (svc.pool == Backup && !svc.hasBackups) {
			s.evalPool(svc, now)
		} else {
			s.pauseHold(svc)
		}
		s.evalServing(svc)
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
			OnAllDown: svc.cfg.OnAllDown, LastResort: svc.lastResort(), SlowStart: svc.cfg.SlowStart,
			PolicyName: svc.cfg.PolicyName, Chain: svc.cfg.Chain,
			Pool: svc.pool, PoolSince: svc.poolSince, PoolWhy: svc.poolReason(), PoolTransitions: svc.poolTransitions,
			PoolServersUp: svc.poolShare.up, PoolServers: svc.poolShare.size,
			Failback: svc.cfg.Failback, Held: svc.hold.on, HeldWhy: svc.hold.why,
			Unlatched: svc.unlatched(), StagedPool: svc.stagedPool, MinServing: svc.cfg.MinServing,
			Rotation: svc.rotation, Counters: svc.counters,
			id: svc.id, usesRTT: svc.cfg.UsesRTT, recent: svc.recent,
		}
		if until := svc.hold.since.Add(svc.cfg.FailbackDelay); !svc.hold.since.IsZero() && until.After(now) {
			out.HeldUntil = until
		}
		first := next
		for j, m := range svc.members {
			members[next] = m.snapshot(j, svc, &sites[m.site.index])
			pointers[next] = &members[next]
			next++
		}
		out.Members = pointers[first:next:next]
	}
	return snap
}

// lastResort returns the addresses of last_resort without those of members that no rule may answer.
func (svc *service) lastResort() []netip.Addr {
	var out []netip.Addr
	if len(svc.cfg.LastResort) == 0 {
		return nil
	}
	for _, m := range svc.members {
		if m.forced < ForcedDown && len(m.moved) == 0 {
			continue
		}
		if out == nil {
			out = slices.Clone(svc.cfg.LastResort)
		}
		out = slices.DeleteFunc(out, func(a netip.Addr) bool { return slices.Contains(m.cfg.Addresses[:], a) })
	}
	if out == nil {
		return svc.cfg.LastResort
	}
	return out
}

// snapshot returns what is published of the member, which is one of svc.
func (m *member) snapshot(index int, svc *service, at *Site) Member {
	out := Member{
		Name: m.cfg.Name, Index: index, Site: at, Addr: m.cfg.Addresses, CNAME: m.cfg.CNAME,
		Weight: m.cfg.Weight, Preference: m.cfg.Preference, Role: m.cfg.Role, Hash: m.hash,
		InPool: m.cfg.Role == svc.pool, InStagedPool: m.cfg.Role == svc.stagedPool,
		Forced: m.forced, ForcedWhy: m.forcedWhy, ForcedSince: m.forcedSince, Moved: m.moved, Transitions: m.transitions, Selected: m.selected[0], SelectedApart: m.selected[1],
		HandedOut: m.handedOut,
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
