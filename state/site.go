package state

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	// loadWindow is the number of reports that connection-load is the mean of (docs/policies.md).
	loadWindow = 5
	// shedStep is the most that the share of shed clients moves with one report: two points.
	shedStep = 0.02
	// guardWindow is over about how many reports the means of trend go.
	guardWindow = 60
	// maxAgents bounds the agents of one site whose reports are kept. A pair of SLBs is usual.
	maxAgents = 8
)

// A site is the private state of one site. It is guarded by Store.mu.
type site struct {
	cfg     SiteConfig
	id      uint16
	info    *SiteInfo // of cfg; never changed, since snapshots share it
	members []covered // of all services, in the order of the configuration

	agents map[string]*agentReport // the last report of each agent
	holder string                  // the agent that holds the site; "": none yet

	// reportAt is the arrival of the holder's last report; zero: never. graceUntil, when set, says that the report is of
	// before a restart: the site is stale until then, whatever the report's age, and dead after it.
	reportAt   time.Time
	graceUntil time.Time
	freshness  Freshness
	since      time.Time
	deadAt     time.Time // when freshness became Dead
	gone       bool      // it is dead, and neither blindness nor what it leaves behind kept that from its members
	load       load      // of the holder's last report
	mutedAt    time.Time // since when the holder's reports list virtual servers and nothing of their health; zero: they do not

	newSessions []float64 // the last loadWindow, oldest first

	// What capacity remembers. highAt is the last report at or above resume; loadAt the last report that had a
	// utilisation.
	overloaded      bool
	overloadedSince time.Time
	overloadedWhy   string
	highAt, loadAt  time.Time
	shed            float64
	trend           trend   // of cascade_guard
	heading         float64 // likewise; 0: nothing is known

	servers  serverCount // behind all virtual servers of the last report
	warnings []string

	orders    SiteOrders // what the agents are to do
	agentView            // what the agents with fresh reports say of it

	rttBlind      bool
	rttBlindSince time.Time
}

// A trend is what a site usually bears, and how many new sessions usually bring it that.
type trend struct {
	utilisation, newSessions float64 // slow means
}

// A covered member is one that a report of the site may cover.
type covered struct {
	svc *service
	m   *member
}

type load struct {
	hasSessions     bool
	sessions        uint64
	hasNewSessions  bool
	newSessions     float64
	hasBits         bool
	bitsIn, bitsOut uint64
}

// An agentReport is what is kept of an agent's last report.
type agentReport struct {
	name    string
	at      time.Time
	since   time.Time // of the agent's first report
	load    load
	virtual []VirtualServer // own copies

	drained  []DrainedServers // own copies
	inDrain  []DrainedServers
	warnings []string
	matched  [][]string // by member of the site, as in site.members: the virtual servers that match it
	listed   []string   // those of all members
}

func newAgentReport(r *Report, now time.Time) *agentReport {
	a := &agentReport{
		name: r.Agent, at: now, since: now,
		load: load{r.HasSessions, r.Sessions, r.HasNewSessions, r.NewSessions, r.HasBits, r.BitsIn, r.BitsOut},
	}
	if a.name == "" {
		a.name = "default"
	}
	a.virtual = slices.Clone(r.VirtualServers)
	for i := range a.virtual {
		vs := &a.virtual[i]
		vs.Address = vs.Address.Unmap()
		vs.Servers = slices.Clone(vs.Servers)
	}
	a.keepDraining(r)
	return a
}

// speaks reports whether the report carries health.
func (a *agentReport) speaks() bool {
	return slices.ContainsFunc(a.virtual, func(vs VirtualServer) bool { return newVirtualHealth(&vs).speaks })
}

// sameHealth reports whether two reports say the same of the servers, so that coverage need not be worked out again.
func (a *agentReport) sameHealth(b *agentReport) bool {
	return slices.EqualFunc(a.virtual, b.virtual, func(x, y VirtualServer) bool {
		return x.Name == y.Name && x.Address == y.Address && x.Port == y.Port && x.Protocol == y.Protocol &&
			slices.Equal(x.Servers, y.Servers)
	})
}

// receive keeps the report a and, if its agent holds the site, applies it. The caller holds mu.
func (s *Store) receive(st *site, a *agentReport) {
	before := st.agents[a.name]
	if before != nil {
		a.since = before.since
	} else if len(st.agents) >= maxAgents {
		st.forgetAgent()
	}
	st.agents[a.name] = a
	if before != nil && before.sameListing(a) {
		a.matched, a.listed = before.matched, before.listed
	} else {
		a.match(st)
	}
	switch {
	case st.holder == a.name:
		s.apply(st, a, before != nil && st.graceUntil.IsZero() && before.sameHealth(a))
	case st.holder == "":
		st.holder = a.name
		s.apply(st, a, false)
	case !st.graceUntil.IsZero() || !a.at.Before(st.reportAt.Add(s.cfg.StaleAfter)):
		s.takeOver(st, a)
	case !st.mutedAt.IsZero() && !a.at.Before(st.mutedAt.Add(s.cfg.StaleAfter)) && a.speaks():
		// The holder cannot read its SLB, from which the VIPs may have moved to that of the other.
		s.takeOver(st, a)
	}
}

// forgetAgent makes room: it drops the agent, other than the holder, that has been silent the longest.
func (st *site) forgetAgent() {
	var oldest *agentReport
	for _, a := range st.agents {
		if a.name != st.holder && (oldest == nil || a.at.Before(oldest.at)) {
			oldest = a
		}
	}
	if oldest != nil {
		delete(st.agents, oldest.name)
	}
}

// takeOver makes a's agent the holder of the site.
func (s *Store) takeOver(st *site, a *agentReport) {
	s.info("agent took over", zap.String("site", st.cfg.Name), zap.String("agent", a.name), zap.String("from", st.holder))
	st.holder = a.name
	st.newSessions, st.trend = nil, trend{}
	s.unsaved = true
	s.apply(st, a, false)
}

// apply takes in a report of the holder.
func (s *Store) apply(st *site, a *agentReport, sameHealth bool) {
	gap := st.reportAt.IsZero() || !a.at.Before(st.reportAt.Add(s.cfg.StaleAfter)) || !st.graceUntil.IsZero()
	st.reportAt = a.at
	st.graceUntil = time.Time{}
	st.load = a.load
	if a.load.hasNewSessions {
		if len(st.newSessions) == loadWindow {
			st.newSessions = append(st.newSessions[:0], st.newSessions[1:]...)
		}
		st.newSessions = append(st.newSessions, a.load.newSessions)
	} else {
		st.newSessions = st.newSessions[:0]
	}
	s.applyCapacity(st, a.at, gap)
	switch {
	case len(a.virtual) == 0 || a.speaks():
		st.mutedAt = time.Time{}
	case st.mutedAt.IsZero():
		st.mutedAt = a.at
	}
	if !sameHealth {
		s.cover(st, a)
		s.unsaved = true
	}
	if a.at.Before(s.blind.thawUntil) { // it may end what blindness left, also if it is like the last
		s.touchSite(st)
	}
}

// applyCapacity judges the load of a report that arrived at now. A gap says that the site had been silent: what it did
// not say is no proof of calm, so the time that counts towards hold begins again.
func (s *Store) applyCapacity(st *site, now time.Time, gap bool) {
	u, why, ok := st.measure()
	if !ok {
		return // the verdict stands until the last known utilisation is as old as a dead report
	}
	st.loadAt = now
	over := u >= 1
	if st.cfg.ShedFrom > 0 {
		st.heading = st.head(u)
		target := min(max((max(u, st.heading)-st.cfg.ShedFrom)/(1-st.cfg.ShedFrom), 0), 1)
		st.shed += min(max(target-st.shed, -shedStep), shedStep)
		if target == 0 && st.shed < 1e-9 { // what rounding leaves of many steps
			st.shed = 0
		}
		// Who sheds gradually leaves gradually: a verdict at once would send all clients away, and with them the load that
		// makes the next site overloaded (docs/capacity.md).
		over = over && st.shed > 1-1e-9
	}
	if u >= st.cfg.Resume || gap {
		st.highAt = now
	}
	switch {
	case over && !st.overloaded:
		st.overloaded, st.overloadedSince, st.overloadedWhy = true, now, why
		s.unsaved = true
		s.warn("site overloaded", zap.String("site", st.cfg.Name), zap.String("why", why))
	case u >= 1:
		st.overloadedWhy = why
	case st.overloaded && now.Sub(st.highAt) >= st.cfg.Hold:
		s.relieve(st, fmt.Sprintf("under %g%% of the thresholds for %s", 100*st.cfg.Resume, st.cfg.Hold))
	case st.overloaded:
		st.overloadedWhy = fmt.Sprintf("now at %.0f%% of the thresholds, eligible again after %s under %g%%", 100*u, st.cfg.Hold, 100*st.cfg.Resume)
	}
}

// head returns the utilisation that the new sessions of the last reports lead to, by the usual relation of the two: in the
// long run the sessions that are open are in proportion to those that begin (Little's law). It is 0 without cascade_guard,
// or without new sessions.
func (st *site) head(u float64) float64 {
	if !st.cfg.CascadeGuard || len(st.newSessions) == 0 {
		return 0
	}
	recent := st.meanNewSessions()
	t := &st.trend
	if t.newSessions == 0 {
		*t = trend{u, recent}
	}
	t.utilisation += (u - t.utilisation) / guardWindow
	t.newSessions += (recent - t.newSessions) / guardWindow
	if t.newSessions <= 0 {
		return 0
	}
	return t.utilisation * recent / t.newSessions
}

// meanNewSessions returns the mean of the last reports that told of new sessions. There is one at least.
func (st *site) meanNewSessions() float64 {
	sum := 0.0
	for _, v := range st.newSessions {
		sum += v
	}
	return sum / float64(len(st.newSessions))
}

func (s *Store) relieve(st *site, why string) {
	st.overloaded, st.overloadedSince, st.overloadedWhy = false, time.Time{}, ""
	s.unsaved = true
	for _, c := range st.members {
		c.svc.rejoin(c.m)
	}
	s.info("site eligible again", zap.String("site", st.cfg.Name), zap.String("why", why))
}

// measure returns the utilisation of the last report, and which threshold it comes from. ok is false without a
// threshold or without a figure for one.
func (st *site) measure() (u float64, why string, ok bool) {
	if st.cfg.SessionsLimit > 0 && st.load.hasSessions {
		u, ok = float64(st.load.sessions)/float64(st.cfg.SessionsLimit), true
		why = "sessions"
	}
	if st.cfg.BandwidthLimit > 0 && st.load.hasBits {
		b := float64(max(st.load.bitsIn, st.load.bitsOut)) / float64(st.cfg.BandwidthLimit)
		if !ok || b > u {
			u, why = b, "bandwidth"
		}
		ok = true
	}
	if u >= 1 {
		switch why {
		case "sessions":
			why = fmt.Sprintf("%d sessions of %d", st.load.sessions, st.cfg.SessionsLimit)
		case "bandwidth":
			why = fmt.Sprintf("%d bits per second of %d", max(st.load.bitsIn, st.load.bitsOut), st.cfg.BandwidthLimit)
		}
	}
	return u, why, ok
}

// reconfigured drops what new thresholds make meaningless. What the last report says is judged again with the next.
func (st *site) reconfigured() {
	if st.cfg.SessionsLimit == 0 && st.cfg.BandwidthLimit == 0 {
		st.overloaded, st.overloadedSince, st.overloadedWhy = false, time.Time{}, ""
		st.loadAt, st.shed = time.Time{}, 0
	}
	if st.cfg.ShedFrom <= 0 {
		st.shed = 0
	}
	if st.cfg.ShedFrom <= 0 || !st.cfg.CascadeGuard {
		st.trend, st.heading = trend{}, 0
	}
}

// evalSite finds out who holds the site and how fresh its report is. The caller holds mu.
func (s *Store) evalSite(st *site, now time.Time) {
	if !st.reportAt.IsZero() && !now.Before(st.reportAt.Add(s.cfg.StaleAfter)) {
		var best *agentReport
		for _, a := range st.agents {
			if now.Before(a.at.Add(s.cfg.StaleAfter)) && (best == nil || a.at.After(best.at)) {
				best = a
			}
		}
		if best != nil {
			s.takeOver(st, best)
		}
	}
	s.viewAgents(st, now)
	var f Freshness
	staleAt, deadAt := st.reportAt.Add(s.cfg.StaleAfter), st.reportAt.Add(s.cfg.DeadAfter)
	switch {
	case st.reportAt.IsZero():
		f = NeverReported
	case !st.graceUntil.IsZero():
		f = Dead
		if now.Before(st.graceUntil) {
			f = Stale
			s.wakeAt(st.graceUntil)
		}
	case now.Before(staleAt):
		f = Fresh
		s.wakeAt(staleAt)
	case now.Before(deadAt):
		f = Stale
		s.wakeAt(deadAt)
	default:
		f = Dead
	}
	if f == st.freshness {
		return
	}
	st.freshness, st.since = f, now
	s.unsaved = true
	s.touchSite(st)
	site, agent := zap.String("site", st.cfg.Name), zap.String("agent", st.holder)
	switch f {
	case Fresh:
		s.info("site fresh", site, agent)
	case Stale:
		s.warn("site stale", site, agent, zap.Duration("age", now.Sub(st.reportAt)))
	case Dead:
		st.deadAt = now
		s.warn("site dead", site, agent, zap.Duration("age", now.Sub(st.reportAt)))
	}
}

// evalCapacity ends a verdict that nothing supports any more: one whose load is as old as a dead report
// (docs/policies.md: it stands until a fresh report or until the site is dead). The caller holds mu.
func (s *Store) evalCapacity(st *site, now time.Time) {
	if !st.overloaded && st.shed == 0 {
		return
	}
	until := st.loadAt.Add(s.cfg.DeadAfter)
	if now.Before(until) {
		s.wakeAt(until)
		return
	}
	st.shed = 0
	s.unsaved = true
	if st.overloaded {
		s.relieve(st, "no load known for "+s.cfg.DeadAfter.String())
	}
}

// snapshot returns what is published of the site.
func (st *site) snapshot() Site {
	fresh := st.freshness == Fresh
	out := Site{
		SiteInfo:  st.info,
		Freshness: st.freshness, ReportAt: st.reportAt, Agent: st.holder, Since: st.since,
		SessionsLimit: st.cfg.SessionsLimit, BandwidthLimit: st.cfg.BandwidthLimit,
		Overloaded: st.overloaded, OverloadedSince: st.overloadedSince, OverloadedWhy: st.overloadedWhy, Shed: st.shed, Heading: st.heading,
		RTTBlind: st.rttBlind, RTTBlindSince: st.rttBlindSince, Warnings: st.warnings,
	}
	if st.freshness == Dead {
		out.Warnings = nil // of a report that no longer counts
	}
	if len(st.said) > 0 {
		out.Warnings = slices.Concat(st.said, out.Warnings) // what is left undone before what is odd
	}
	out.Drained, out.InDrain, out.Listed = st.drained, st.inDrain, st.listed
	if !fresh {
		return out
	}
	if l := st.load; l.hasSessions || l.hasBits {
		out.HasLoad = true
		out.HasSessions, out.Sessions = l.hasSessions, l.sessions
		out.HasBits, out.BitsIn, out.BitsOut = l.hasBits, l.bitsIn, l.bitsOut
	}
	out.Utilisation, _, out.HasUtilisation = st.measure()
	if len(st.newSessions) > 0 {
		out.HasNewSessions, out.NewSessions = true, st.meanNewSessions()
	}
	if st.servers.known {
		out.HasServers, out.ServersUp = true, st.servers.up
	}
	return out
}
