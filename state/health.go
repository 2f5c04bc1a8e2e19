package state

import (
	"time"

	"go.uber.org/zap"
)

const (
	// Flap damping: more than flapLimit transitions within flapWindow hold a member down for flapHold (docs/operations.md).
	flapLimit  = 5
	flapWindow = 10 * time.Minute
	flapHold   = 5 * time.Minute
)

const (
	dampedWhy  = "damped: more than 5 transitions in 10 minutes"
	dampedLast = "the last member that is up; otherwise " + dampedWhy
)

// coverage says how the holder's last report covers a member.
type coverage uint8

const (
	coverageSpeaks   coverage = iota
	coverageSilent            // listed without health, or the agent that told of it no longer holds the site
	coverageUnlisted          // the same agent no longer lists its virtual server
)

// A reportSource is what reports say of one family of a member.
type reportSource struct {
	ever        bool // some report told of it; without that the rest means nothing
	agent       string
	state       coverage
	silentSince time.Time
	up          bool // the last word
	why         string
}

// A checkSource is what the own check says of one family of a member.
type checkSource struct {
	has         bool // there is a result that is a source
	up          bool
	ok          bool   // the last run succeeded; one that is up may have begun to fail
	why         string // of down
	unreachable bool
	everUp      bool
	at          time.Time // of the last result
	failSince   time.Time
	unrunnable  bool
	err         string // "check error: …" while unrunnable
	errUnknown  string // the same with what unknown_as makes of it
	latency     time.Duration
}

// apply takes in a result. It reports whether anything but its time changed.
func (c *checkSource) apply(r CheckResult, now time.Time) bool {
	before := *c
	c.at = now
	if r.Unrunnable {
		c.unrunnable = true
		if c.err != "check error: "+r.Err {
			c.err = "check error: " + r.Err
			c.errUnknown = "never measured (unknown_as); " + c.err
		}
		return !before.unrunnable || before.err != c.err
	}
	c.unrunnable, c.err, c.errUnknown = false, "", ""
	if r.Up {
		c.everUp = true
		if r.Latency > 0 {
			c.latency = r.Latency
		}
		c.failSince, c.why = time.Time{}, ""
	} else {
		if !c.has || c.up || c.failSince.IsZero() {
			c.failSince = now
		}
		if c.why != "check: "+r.Err {
			c.why = "check: " + r.Err
		}
	}
	c.has, c.up, c.unreachable = true, r.Up, r.Unreachable
	c.ok = r.Up && r.Err == ""
	return before.has != c.has || before.at.IsZero() || before.up != c.up || before.ok != c.ok || before.why != c.why || before.unrunnable ||
		before.unreachable != c.unreachable || before.latency != c.latency
}

// A health is the state of one family of a member.
type health struct {
	report reportSource
	check  checkSource

	// raw is what the sources say together; resolved says that it has been worked out at least once, known that there
	// was a source at least once.
	resolved bool
	known    bool
	raw      bool
	rawWhy   string
	flips    []time.Time // of raw, within flapWindow, oldest first

	dampedUntil time.Time

	// What is published.
	set       bool
	up        bool
	why       string
	since     time.Time
	recovered time.Time
	lastGood  bool
	was       bool // up, before the present publication
}

// reconfigured drops what a new configuration makes meaningless: an own check that is no longer made, or that was of
// another address. A member that only such a check had covered is one that no source has covered.
func (h *health) reconfigured(hasCheck, moved bool) {
	if !hasCheck {
		if !h.report.ever && (h.check.has || h.check.unrunnable) {
			h.resolved, h.known = false, false
		}
		h.check = checkSource{}
	}
	if moved {
		h.check.has, h.check.latency = false, 0
	}
}

// resolve says whether the member's family is up: when every source that it has says so (docs/operations.md).
func (s *Store) resolve(svc *service, m *member, f Family, now time.Time) (up bool, why string) {
	h := &m.health[f]
	c := &h.check
	checked := c.has && !c.unrunnable

	reported, reportUp, reportWhy := h.report.ever, h.report.up, h.report.why
	if reported {
		if lost, why := s.lost(m.site, &h.report, now); lost {
			switch svc.cfg.OnDead {
			case DeadKeep:
			case DeadDown:
				reportUp, reportWhy = false, why
			default:
				if checked {
					reported = false
				} else {
					reportUp, reportWhy = false, why
				}
			}
		}
	}
	switch {
	case reported && !reportUp:
		return false, reportWhy
	case checked && !c.up:
		return false, c.why
	case reported && checked:
		return true, "report and check"
	case reported:
		return true, "report"
	case checked:
		return true, "check"
	case h.known && c.unrunnable: // it could be run before: the last state stands
		return h.raw, c.err
	case h.known:
		return h.raw, h.rawWhy
	}
	// unknown_as is for a member that no source has ever covered: where one tells of the other family, that is the better
	// guess. The servers behind both addresses are the same ones, and a dead site must not be answered to one family for
	// ever because nobody looks.
	if other := &m.health[f.Other()]; m.has(f.Other()) && (other.known || other.report.ever || other.check.has && !other.check.unrunnable) {
		up, why = s.resolve(svc, m, f.Other(), now)
		return up, "as " + f.Other().String() + ", since nothing tells of " + f.String() + ": " + why
	}
	if c.unrunnable {
		return svc.cfg.UnknownUp, c.errUnknown
	}
	return svc.cfg.UnknownUp, "never measured (unknown_as)"
}

// lost reports whether what reports last said of a member no longer holds, and why.
func (s *Store) lost(st *site, r *reportSource, now time.Time) (bool, string) {
	switch {
	case st.freshness == Dead:
		return true, "report dead"
	case r.state == coverageUnlisted && r.up && r.why != "":
		return true, r.why
	case r.state == coverageUnlisted:
		return true, "no longer in the report"
	case r.state == coverageSilent:
		until := r.silentSince.Add(s.cfg.DeadAfter)
		if !now.Before(until) {
			return true, "no health in the report"
		}
		s.wakeAt(until)
	}
	return false, ""
}

// evalHealth resolves the members of a service and says which are up. The caller holds mu.
func (s *Store) evalHealth(svc *service, now time.Time) {
	var others [2]bool // some member that may answer is up, damping and orders included
	for _, m := range svc.members {
		for f := range m.health {
			if !m.has(Family(f)) {
				continue
			}
			h := &m.health[f]
			if !s.blind.frozen || !h.resolved {
				s.evalRaw(svc, m, Family(f), now)
			}
			if m.forced == ForcedUp || (h.raw && !h.damped(now) && m.forced < ForcedDrain) {
				others[f] = true
			}
		}
	}
	for _, m := range svc.members {
		for f := range m.health {
			h := &m.health[f]
			h.was = h.set && h.up
			if !m.has(Family(f)) {
				h.up, h.set, h.why = false, false, ""
				continue
			}
			up, why := h.raw, h.rawWhy
			if h.damped(now) {
				s.wakeAt(h.dampedUntil)
				switch {
				case h.raw && !others[f]: // never the last member that is up
					why = dampedLast
				case h.raw:
					up, why = false, dampedWhy
				}
			}
			if m.forced == ForcedUp {
				up, why = true, "forced up"
			}
			s.publishHealth(svc, m, Family(f), up, why, now)
		}
	}
}

// serves reports whether a member that may be answered is up.
func (svc *service) serves(f Family) bool {
	for _, m := range svc.members {
		if m.cfg.Role == svc.pool && m.forced < ForcedDown && m.up(f) {
			return true
		}
	}
	return false
}

// evalServing tells when the last member that may be answered goes down, which on_all_down decides of. The caller holds
// mu, and has evaluated the pool.
func (s *Store) evalServing(svc *service) {
	for f := range svc.serving {
		before := svc.serving[f]
		svc.serving[f] = svc.serves(Family(f))
		switch {
		case before && !svc.serving[f]:
			for _, m := range svc.members {
				m.health[f].lastGood = m.health[f].was
			}
			svc.down[f] = true
			s.error("service has no member up", zap.String("service", svc.cfg.Name), zap.Stringer("family", Family(f)),
				zap.Stringer("on_all_down", svc.cfg.OnAllDown))
		case svc.down[f] && svc.serving[f]:
			svc.down[f] = false
			s.info("service has a member up again", zap.String("service", svc.cfg.Name), zap.Stringer("family", Family(f)))
		}
	}
}

// damped reports whether flap damping holds the member down.
func (h *health) damped(now time.Time) bool { return now.Before(h.dampedUntil) }

// evalRaw resolves one family of a member and counts its transitions.
func (s *Store) evalRaw(svc *service, m *member, f Family, now time.Time) {
	h := &m.health[f]
	up, why := s.resolve(svc, m, f, now)
	if h.resolved && h.raw && !up && s.blind.thawing(m, h, now) {
		s.wakeAt(s.blind.thawUntil)
		return
	}
	h.known = h.known || h.report.ever || (h.check.has && !h.check.unrunnable)
	flipped := h.resolved && up != h.raw
	if !h.resolved || flipped {
		s.unsaved = true
	}
	h.resolved, h.raw, h.rawWhy = true, up, why
	if !flipped {
		return
	}
	for len(h.flips) > 0 && now.Sub(h.flips[0]) >= flapWindow {
		h.flips = h.flips[1:]
	}
	h.flips = append(h.flips, now)
	if len(h.flips) > flapLimit && !h.damped(now) {
		h.flips = nil
		h.dampedUntil = now.Add(flapHold)
		s.warn("member damped", zap.String("service", svc.cfg.Name), zap.String("member", m.cfg.Name),
			zap.Stringer("family", f), zap.Duration("for", flapHold))
	}
}

// publishHealth sets what is published of one family of a member, and tells of a transition.
func (s *Store) publishHealth(svc *service, m *member, f Family, up bool, why string, now time.Time) {
	h := &m.health[f]
	h.why = why
	if h.set && h.up == up {
		return
	}
	first := !h.set
	h.set, h.up, h.since = true, up, now
	s.unsaved = true
	if up {
		svc.join(m, f)
	}
	if first {
		return
	}
	m.transitions++
	fields := []zap.Field{
		zap.String("service", svc.cfg.Name), zap.String("member", m.cfg.Name), zap.String("site", m.site.cfg.Name),
		zap.Stringer("family", f), zap.String("why", why),
	}
	if up {
		h.recovered = now
		s.info("member up", fields...)
	} else {
		s.warn("member down", fields...)
	}
}
