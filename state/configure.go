package state

import (
	"net/netip"
	"slices"
	"time"

	"gslbd/geo"
)

// A service is the private state of one service. It is guarded by Store.mu.
type service struct {
	cfg     ServiceConfig // owned: its slices are copies
	id      uint32
	index   int       // in the snapshot
	touched bool      // it is in Store.touched
	due     time.Time // the next change that time alone brings; zero: none
	members []*member

	began time.Time // when this process was first configured with it

	hasBackups      bool
	serving         [2]bool // a member that may be answered was up, at the last publication
	down            [2]bool // it was logged that none is
	pool            Role
	poolSet         bool
	poolSince       time.Time
	poolWhy         string
	poolShare       share // what poolWhy tells of
	poolTransitions uint64
	stagedPool      Role
	latch           Latch // as ordered
	hold            hold
	ordered         bool // orders have changed since the pool was last judged

	rotation  *Rotation
	counters  *Counters // nil in a preview
	recent    *reservoir
	decayedAt time.Time
	poolMoved time.Time // when the pool, or that of staged orders, was last left; zero: it is not known to have been
}

// A member is the private state of one member. It is guarded by Store.mu.
type member struct {
	cfg  MemberConfig // owned: its slices are copies
	site *site
	hash uint64

	forced      Forced
	forcedWhy   string
	forcedSince time.Time
	moved       []Stage // never changed, since snapshots share it

	health      [2]health
	listed      map[string]string // the agent that last listed a virtual server that the member names
	servers     serverCount
	transitions uint64
	counts      *MemberCounts
	apart       *Selections // of Member.SelectedApart
}

// member returns the member of this name, or nil. A map would take more memory than the few members.
func (svc *service) member(name string) *member {
	for _, m := range svc.members {
		if m.cfg.Name == name {
			return m
		}
	}
	return nil
}

// has reports whether the member can answer for the family.
func (m *member) has(f Family) bool { return m.cfg.CNAME != "" || m.cfg.Addresses[f].IsValid() }

func withDefaults(c *Config) Config {
	d := *c
	set := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&d.StaleAfter, 15*time.Second)
	set(&d.DeadAfter, 60*time.Second)
	d.RTT = d.RTT.withDefaults()
	d.Sites, d.Services = nil, nil
	return d
}

func (c RTTConfig) withDefaults() RTTConfig {
	if c.PrefixV4 <= 0 {
		c.PrefixV4 = 24
	}
	if c.PrefixV6 <= 0 {
		c.PrefixV6 = 56
	}
	if c.Refresh <= 0 {
		c.Refresh = 5 * time.Minute
	}
	if c.SilentFor <= 0 {
		c.SilentFor = 10 * time.Minute
	}
	if c.MaxTargets <= 0 {
		c.MaxTargets = 100_000
	}
	if c.MaxSites <= 0 {
		c.MaxSites = 8
	}
	if len(c.Methods) == 0 {
		c.Methods = []RTTMethod{RTTICMP}
	}
	c.Exempt, c.Methods = slices.Clone(c.Exempt), slices.Clone(c.Methods)
	return c
}

// configure builds the private state of c around what it keeps of the present one. The caller holds mu.
func (s *Store) configure(c *Config, now time.Time) {
	first := !s.configured
	s.configured = true
	s.epoch++
	s.cfg = withDefaults(c)
	s.zones = c.Zones
	s.unsaved = true

	oldSites := s.sites
	s.sites = make(map[string]*site, len(c.Sites))
	s.siteOrder = s.siteOrder[:0:0]
	for _, sc := range c.Sites {
		st := oldSites[sc.Name]
		if st == nil {
			st = &site{since: now, agents: map[string]*agentReport{}}
			st.id = s.siteID(sc.Name)
		}
		if sc.Resume <= 0 {
			sc.Resume = 0.9
		}
		if sc.Hold <= 0 {
			sc.Hold = 30 * time.Second
		}
		st.cfg = sc
		st.info = &SiteInfo{
			Name: sc.Name, ID: st.id, Index: len(s.siteOrder), Zone: sc.Zone, Region: sc.Region,
			Location: geo.NewLocation(sc.Location), Cost: sc.Cost,
		}
		st.members = nil
		st.reconfigured()
		s.sites[sc.Name] = st
		s.siteOrder = append(s.siteOrder, st)
	}

	oldServices := s.services
	s.services = make(map[string]*service, len(c.Services))
	s.svcOrder = s.svcOrder[:0:0]
	for _, sc := range c.Services {
		svc := s.configureService(oldServices[sc.Name], sc, now)
		svc.index, svc.touched, svc.due = len(s.svcOrder), false, time.Time{}
		s.services[sc.Name] = svc
		s.svcOrder = append(s.svcOrder, svc)
	}
	s.published = make([]*Service, len(s.svcOrder))
	s.touched, s.timed = nil, map[*service]struct{}{}
	s.touchAll()

	if old, c := s.rtt, s.cfg.RTT; old.bits4 != c.PrefixV4 || old.bits6 != c.PrefixV6 || old.max != c.MaxTargets {
		s.rtt = NewRTTTable(c)
		if old.bits4 == c.PrefixV4 && old.bits6 == c.PrefixV6 {
			s.rtt.adopt(old)
		}
	}
	s.targets.configure(s.cfg.RTT, s.rtt, s.targetSites(), s.targetServices())
	s.clients.configure(s.svcOrder)
	if first && s.restored != nil {
		s.restore(s.restored, now)
		s.restored = nil
	}
	for _, st := range s.siteOrder {
		if a := st.agents[st.holder]; a != nil {
			s.cover(st, a)
		}
		for _, a := range st.agents {
			a.match(st)
		}
	}
	s.applyOrders()
	s.applySiteOrders()
}

func (s *Store) configureService(old *service, sc ServiceConfig, now time.Time) *service {
	sc.Aliases = slices.Clone(sc.Aliases)
	sc.LastResort = slices.Clone(sc.LastResort)
	if sc.Answers < 1 {
		sc.Answers = 1
	}
	if sc.HalfLife <= 0 {
		sc.HalfLife = time.Minute
	}
	if sc.CheckInterval <= 0 {
		sc.CheckInterval = 10 * time.Second
	}
	members := sc.Members
	sc.Members = nil

	svc := &service{began: now, poolSince: now, decayedAt: now}
	if old != nil {
		*svc = *old
	} else {
		counts := new(serviceCounts)
		svc.rotation, svc.counters, svc.recent = &counts.rotation, &counts.counters, &reservoir{mask: &counts.sampled}
	}
	svc.cfg = sc
	svc.id = s.serviceID(sc.Name)
	svc.members = make([]*member, 0, len(members))
	var fresh []member // one allocation for those that are new
	var counts []MemberCounts
	var apart []Selections
	svc.hasBackups = false
	names := make([]string, 0, len(members))
	longestTTL := sc.TTL // of an answer that may have named a member which is new here
	if old != nil {
		longestTTL = max(longestTTL, old.cfg.TTL)
	}
	var joining []*member
	for i, mc := range members {
		st := s.sites[mc.Site]
		if st == nil { // config refuses it; a member without a site could not be judged
			continue
		}
		mc.VirtualServers = slices.Clone(mc.VirtualServers)
		for f := range mc.Addresses {
			mc.Addresses[f] = mc.Addresses[f].Unmap()
		}
		var m *member
		if old != nil {
			if m = old.member(mc.Name); m == nil {
				m = old.renamed(mc, members, svc.members)
			}
		}
		if m == nil || m.site.cfg.Name != mc.Site {
			if fresh == nil {
				fresh = make([]member, 0, len(members)-i)
				counts, apart = make([]MemberCounts, len(members)), make([]Selections, len(members))
			}
			fresh = append(fresh, member{counts: &counts[i], apart: &apart[i]})
			counts[i].HandedOut.start(s.began, now, longestTTL)
			m = &fresh[len(fresh)-1]
		} else if m.cfg.Role != mc.Role || m.cfg.Weight <= 0 {
			joining = append(joining, m)
		} else {
			m.reweigh(mc.Weight)
		}
		for f := range m.health {
			m.health[f].reconfigured(sc.HasCheck, m.cfg.Addresses[f] != mc.Addresses[f])
		}
		m.cfg, m.site, m.hash = mc, st, HashName(mc.Name)
		st.members = append(st.members, covered{svc, m})
		svc.members = append(svc.members, m)
		names = append(names, mc.Name)
		svc.hasBackups = svc.hasBackups || mc.Role == Backup
	}
	for _, m := range joining {
		svc.rejoin(m)
	}
	svc.counters = svc.counters.follow(s.shards, names)
	return svc
}

// renamed returns the member that c is another name of: one of the same site and addresses that members no longer names,
// and that is not taken; nil: there is none. A new name must not make what is down one that nobody has measured.
func (svc *service) renamed(c MemberConfig, members []MemberConfig, taken []*member) *member {
	for _, m := range svc.members {
		if m.cfg.Site == c.Site && m.cfg.Addresses == c.Addresses && m.cfg.CNAME == c.CNAME && !slices.Contains(taken, m) &&
			!slices.ContainsFunc(members, func(other MemberConfig) bool { return other.Name == m.cfg.Name }) {
			return m
		}
	}
	return nil
}

// applyOrders asks what is ordered for every member and service. The caller holds mu.
func (s *Store) applyOrders() {
	for _, svc := range s.svcOrder {
		for _, m := range svc.members {
			var f Force
			if s.orders.Force != nil {
				f = s.orders.Force(svc.cfg.Name, m.cfg.Name, m.site.cfg.Name, m.site.cfg.Zone)
			}
			moved := !slices.Equal(f.Stages, m.moved)
			if f.Forced == m.forced && f.Why == m.forcedWhy && f.Since.Equal(m.forcedSince) && !moved {
				continue
			}
			s.touch(svc)
			svc.ordered = svc.ordered || f.Forced != m.forced || moved
			back := m.forced >= ForcedDrain && f.Forced < ForcedDrain
			m.forced, m.forcedWhy, m.forcedSince, m.moved = f.Forced, f.Why, f.Since, slices.Clone(f.Stages)
			if back {
				svc.rejoin(m)
			}
		}
		var l Latch
		if s.orders.Latch != nil && svc.hasBackups && svc.cfg.Failback == FailbackManual {
			l = s.orders.Latch(svc.cfg.Name)
		}
		if l != svc.latch {
			s.touch(svc)
			svc.ordered, svc.latch = true, l
		}
	}
}

func (s *Store) siteID(name string) uint16 {
	id, ok := s.siteIDs[name]
	if !ok {
		id = uint16(len(s.siteIDs))
		s.siteIDs[name] = id
	}
	return id
}

func (s *Store) serviceID(name string) uint32 {
	id, ok := s.serviceIDs[name]
	if !ok {
		id = uint32(len(s.serviceIDs) + 1)
		s.serviceIDs[name] = id
	}
	return id
}

func (s *Store) targetSites() []targetSite {
	var all []targetSite
	for _, st := range s.siteOrder {
		all = append(all, targetSite{id: st.id, location: st.info.Location})
	}
	return all
}

// targetServices maps the services that use round trips to the sites that may probe for them.
func (s *Store) targetServices() map[uint32][]uint16 {
	all := map[uint32][]uint16{}
	for _, svc := range s.svcOrder {
		if !svc.cfg.UsesRTT {
			continue
		}
		var ids []uint16
		for _, m := range svc.members {
			if !slices.Contains(ids, m.site.id) {
				ids = append(ids, m.site.id)
			}
		}
		all[svc.id] = ids
	}
	return all
}

// probeable reports whether addr may ever be a probe target: a unicast address of one host. Private and loopback
// resolvers are legitimate; the operator exempts those that are not.
func probeable(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast() &&
		addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
