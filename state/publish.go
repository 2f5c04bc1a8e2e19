package state

import (
	"net/netip"
	"slices"
	"time"
)

// publish resolves what may have changed at this moment and publishes it. The order matters: sites before blindness,
// blindness before whatever it freezes, health before the pool. The caller holds mu.
//
// All sites are looked at, and those services that something has touched: one whose member's report, check or orders say
// something else, whose site has become fresh, stale or dead, or whose time has come. The others are in the next snapshot
// as they were in the last.
func (s *Store) publish(now time.Time) {
	s.dirty = false
	s.due = time.Time{}
	s.publishedAt = now
	for _, st := range s.siteOrder {
		s.evalSite(st, now)
	}
	before := s.blind
	s.evalBlindness(now)
	if s.blind != before {
		s.touchAll()
	}
	frozen := s.blind.frozen
	for _, st := range s.siteOrder {
		st.gone = st.freshness == Dead && (st.gone || (!frozen && !now.Before(s.blind.thawUntil)))
	}
	if !frozen {
		for _, st := range s.siteOrder {
			s.evalCapacity(st, now)
		}
	}
	for svc := range s.timed {
		if !now.Before(svc.due) {
			s.touch(svc)
		}
	}
	s.evalServices(now)
	s.version++
	s.snapshot.Store(s.build(now))
}

// touch has the service resolved again at the next publication. The caller holds mu.
func (s *Store) touch(svc *service) {
	if !svc.touched {
		svc.touched = true
		s.touched = append(s.touched, svc)
	}
}

// touchSite touches every service with a member at the site.
func (s *Store) touchSite(st *site) {
	for _, c := range st.members {
		s.touch(c.svc)
	}
}

func (s *Store) touchAll() {
	for _, svc := range s.svcOrder {
		s.touch(svc)
	}
}

// evalServices resolves health and pools of the services that are touched, and makes what is published of them. The
// caller holds mu, and has evaluated sites and blindness.
func (s *Store) evalServices(now time.Time) {
	if len(s.touched) > 0 {
		s.published = slices.Clone(s.published)
	}
	slices.SortFunc(s.touched, func(a, b *service) int { return a.index - b.index }) // what is logged has that order
	others := s.due
	rest := resting()
	for i, svc := range s.touched {
		if i%restAfter == restAfter-1 {
			rest()
		}
		svc.touched = false
		s.due = time.Time{}
		s.evalHealth(svc, now)
		// A reload may have taken the backups away; a pool without members would answer nothing. What is ordered holds
		// whatever is known.
		if !s.blind.frozen || !svc.poolSet || svc.ordered || (svc.pool == Backup && !svc.hasBackups) {
			s.evalPool(svc, now)
		} else {
			s.pauseHold(svc)
		}
		s.evalServing(svc)
		s.published[svc.index] = svc.snapshot(now)
		if svc.due = s.due; svc.due.IsZero() {
			delete(s.timed, svc)
		} else {
			s.timed[svc] = struct{}{}
		}
	}
	s.touched = s.touched[:0]
	s.due = others
	for svc := range s.timed {
		s.wakeAt(svc.due)
	}
}

// build makes the snapshot of what publish has resolved.
func (s *Store) build(now time.Time) *Snapshot {
	snap := &Snapshot{
		Version: s.version, Epoch: s.epoch, Published: now,
		Sites:    make([]*Site, len(s.siteOrder)),
		Services: s.published,
		RTT:      s.rtt, Geo: s.geo, Zones: s.zones,
		Calm: true, Blind: s.blind.on, BlindSince: s.blind.since, BlindWhy: s.blind.why,
	}
	sites := make([]Site, len(s.siteOrder)) // one allocation for all
	for i, st := range s.siteOrder {
		sites[i] = st.snapshot()
		snap.Sites[i] = &sites[i]
		snap.Calm = snap.Calm && !sites[i].Overloaded && sites[i].Shed == 0
	}
	return snap
}

// snapshot returns what is published of the service.
func (svc *service) snapshot(now time.Time) *Service {
	out := &Service{
		Name: svc.cfg.Name, Aliases: svc.cfg.Aliases, Index: svc.index, TTL: svc.cfg.TTL, Answers: svc.cfg.Answers,
		OnAllDown: svc.cfg.OnAllDown, LastResort: svc.lastResort(), SlowStart: svc.cfg.SlowStart,
		PolicyName: svc.cfg.PolicyName, Chain: svc.cfg.Chain,
		Pool: svc.pool, PoolSince: svc.poolSince, PoolWhy: svc.poolReason(), PoolTransitions: svc.poolTransitions,
		PoolServersUp: svc.poolShare.up, PoolServers: svc.poolShare.size,
		Failback: svc.cfg.Failback, Held: svc.hold.on, HeldWhy: svc.hold.why,
		Unlatched: svc.unlatched(), StagedPool: svc.stagedPool, MinServing: svc.cfg.MinServing,
		Rotation: svc.rotation, Counters: svc.counters,
		Members: make([]*Member, len(svc.members)),
		id:      svc.id, usesRTT: svc.cfg.UsesRTT, sampled: svc.recent.mask,
	}
	if until := svc.hold.since.Add(svc.cfg.FailbackDelay); !svc.hold.since.IsZero() && until.After(now) {
		out.HeldUntil = until
	}
	members := make([]Member, len(svc.members)) // one allocation for all
	for i, m := range svc.members {
		members[i] = m.snapshot(i, svc)
		out.Members[i] = &members[i]
	}
	if c, ok := out.Chain.(interface{ Prepare(*Service) }); ok {
		c.Prepare(out)
	}
	return out
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
func (m *member) snapshot(index int, svc *service) Member {
	out := Member{
		Name: m.cfg.Name, Index: index, Site: m.site.info, Addr: m.cfg.Addresses, CNAME: m.cfg.CNAME,
		Weight: m.cfg.Weight, Preference: m.cfg.Preference, Role: m.cfg.Role, Hash: m.hash,
		InPool: m.cfg.Role == svc.pool, InStagedPool: m.cfg.Role == svc.stagedPool,
		Forced: m.forced, ForcedWhy: m.forcedWhy, ForcedSince: m.forcedSince, Moved: m.moved, Transitions: m.transitions, MemberCounts: m.counts, SelectedApart: m.apart,
	}
	if m.servers.known && m.servers.fresh && m.site.freshness == Fresh {
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
