package state

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Blindness (docs/operations.md): when all feeds fail at once, the fault is ours. It is guarded by Store.mu.
type blindness struct {
	on    bool
	since time.Time
	why   string

	// frozen says that measured states do not change: while blind, and also while sites are dying with none fresh, since
	// what may turn out to be blindness must not first take the members of the sites that died a moment before the
	// last. Either all die, which is blindness, or one reports, and then the deaths count at once.
	frozen bool

	// After blindness a member that was up is held until something measured after it began says that it is down, or
	// until thawUntil: the first report of one site is no news of the others, and a check needs several successes.
	from, thawUntil time.Time
}

// thawing reports whether a member that was up before blindness and does not resolve to up is still to be held.
func (b *blindness) thawing(m *member, h *health, now time.Time) bool {
	if !now.Before(b.thawUntil) {
		return false
	}
	if r := &h.report; r.ever && r.state == coverageSpeaks && !r.up && m.site.reportAt.After(b.from) {
		return false
	}
	if r := &h.report; r.ever && r.state == coverageUnlisted && m.site.reportAt.After(b.from) {
		return false
	}
	c := &h.check
	return !(c.has && !c.unrunnable && !c.up && !c.unreachable && c.at.After(b.from))
}

// evalBlindness decides whether the feeds have failed. The caller holds mu, and has evaluated the sites.
func (s *Store) evalBlindness(now time.Time) {
	b := &s.blind
	var fresh, stale, died int
	for _, st := range s.siteOrder {
		switch {
		case st.freshness == Fresh:
			fresh++
		case st.freshness == Stale:
			stale++
		case st.freshness == Dead && now.Sub(st.deadAt) < s.cfg.DeadAfter:
			died++
		}
	}
	if fresh > 0 {
		s.endBlindness("a fresh report", now)
		return
	}
	checks := s.surveyChecks(now)
	if checks.up {
		s.endBlindness("a check that succeeded", now)
		return
	}
	if b.on {
		if s.lastReport().IsZero() && !slices.ContainsFunc(s.svcOrder, func(svc *service) bool { return svc.cfg.HasCheck }) {
			s.endBlindness("a reload that left no check", now) // which alone could have ended it
		}
		return
	}
	b.frozen = false
	switch {
	case died >= 2 && stale == 0:
		s.beginBlindness(fmt.Sprintf("all %d sites that reported died within %s, and no own check succeeds", died, s.cfg.DeadAfter), now)
		s.undo(s.lastReport()) // checks that are quicker than dead_after have failed meanwhile
	case checks.blind:
		s.beginBlindness(fmt.Sprintf("own checks of all %d sites began to time out at once, and no report is fresh", checks.sites), now)
		s.undo(checks.from)
	case died > 0 && stale > 0:
		b.frozen = true
	}
}

func (s *Store) beginBlindness(why string, now time.Time) {
	s.blind = blindness{on: true, since: now, why: why, frozen: true}
	s.unsaved = true
	s.warn("blind", zap.String("why", why))
}

func (s *Store) endBlindness(why string, now time.Time) {
	b := &s.blind
	b.frozen = false
	if !b.on {
		return
	}
	grace := s.cfg.StaleAfter
	for _, svc := range s.svcOrder {
		if svc.cfg.HasCheck {
			grace = max(grace, 3*svc.cfg.CheckInterval)
		}
	}
	s.info("blindness over", zap.String("why", why), zap.Duration("lasted", now.Sub(b.since)))
	s.blind = blindness{from: b.since, thawUntil: now.Add(grace)}
	s.unsaved = true
}

// A survey is what all own checks say together.
type survey struct {
	up    bool // one succeeds, which shows that the network works
	blind bool // all that succeeded before began to fail at once, by timeout or unreachable only
	sites int
	from  time.Time // when the first of them began to fail
}

// surveyChecks looks at the own checks of all members. Checks that had been failing for longer do not count, unless
// their last result proves that the network works.
func (s *Store) surveyChecks(now time.Time) survey {
	var out survey
	var last time.Time
	var window time.Duration
	// A success shows that the network works only if it came when reports should have come and did not: a rare check last
	// ran before the reports ended, and takes a while to fail often enough.
	silent := s.lastReport().Add(s.cfg.StaleAfter)
	standing := false
	each := func(visit func(m *member, c *checkSource)) {
		for _, svc := range s.svcOrder {
			if !svc.cfg.HasCheck {
				continue
			}
			window = max(window, svc.cfg.CheckInterval)
			for _, m := range svc.members {
				for f := range m.health {
					// One of before a restart has not spoken yet.
					if c := &m.health[f].check; c.has && !c.unrunnable && !c.at.IsZero() {
						visit(m, c)
					}
				}
			}
		}
	}
	each(func(_ *member, c *checkSource) {
		standing = standing || c.up
		out.up = out.up || (c.ok && !c.at.Before(silent))
		if !c.up && c.everUp && c.failSince.After(last) {
			last = c.failSince
		}
	})
	if standing || last.IsZero() || now.Sub(last) >= s.cfg.DeadAfter {
		return out
	}
	// A check is down after its last allowed failure; each of those comes up to a tenth of an interval late, so that
	// checks that began to fail within one interval are down within one and a half.
	begin := last.Add(-window * 3 / 2)
	out.from, out.blind = last, true
	sites := map[*site]bool{}
	each(func(m *member, c *checkSource) {
		recent := c.everUp && !c.failSince.Before(begin)
		switch {
		case recent && !c.unreachable, !recent && !c.unreachable && !c.at.Before(begin):
			out.blind = false
		case recent:
			sites[m.site] = true
			if c.failSince.Before(out.from) {
				out.from = c.failSince
			}
		}
	})
	out.sites = len(sites)
	out.blind = out.blind && out.sites >= 2
	return out
}

// lastReport returns when a report last arrived; zero: never.
func (s *Store) lastReport() (last time.Time) {
	for _, st := range s.siteOrder {
		if st.reportAt.After(last) {
			last = st.reportAt
		}
	}
	return last
}

// undo takes back the members that own checks took down since from, on the way into blindness. A check whose failure
// proves that the network works keeps its word, and so does a report.
func (s *Store) undo(from time.Time) {
	for _, svc := range s.svcOrder {
		for _, m := range svc.members {
			for f := range m.health {
				h := &m.health[f]
				c := &h.check
				failed := c.everUp && !c.up && c.unreachable && !c.failSince.Before(from)
				if failed && (!h.report.ever || h.report.up) && h.resolved && !h.raw && h.set && !h.up && !h.since.Before(from) {
					h.raw, h.rawWhy = true, "blind: as before own checks began to fail"
				}
			}
		}
	}
}
