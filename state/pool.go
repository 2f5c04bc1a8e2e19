package state

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A share is what the pool of a service is decided by.
type share struct {
	backups       bool // there are any
	alive, backup bool // a primary is healthy; a backup is
	up, size      int  // of the primaries' servers
	ratio         float64
}

// A hold is what failback remembers of a service (docs/operations.md, "The pool").
type hold struct {
	on    bool // the primaries suffice again, and the backups stay in force
	why   string
	since time.Time // of failback: delay: since when the primaries suffice; zero: that does not count now

	// Of failback: manual.
	latch    string // id of the latch under which the service was last in its backups
	passed   bool   // that one no longer holds the service here: it went back when no backup was healthy
	failback string // id of the last order to fail back that was seen
	released bool   // it was ordered back while the backups were in force
	unproven bool   // it is in its backups since before its primaries were measured
}

// evalPool decides which pool of the service is in force (docs/operations.md, "The pool"). The caller holds mu, and has
// evaluated the members' health.
func (s *Store) evalPool(svc *service, now time.Time) {
	svc.ordered = false
	sh := svc.share(false)
	if sh != svc.poolShare || svc.poolWhy == "" {
		svc.poolShare, svc.poolWhy = sh, sh.why()
	}
	before, first, staged := svc.hold, !svc.poolSet, svc.stagedPool
	if svc.hold.unproven && !svc.unmeasured(now, s.cfg.DeadAfter) {
		svc.hold.unproven = sh.holds() && !svc.latched() // then it goes back; else it has failed over
	}
	ended := s.evalHold(svc, sh, now)
	pool := sh.pool(svc.hold.on)
	if !svc.poolSet || pool != svc.pool {
		s.setPool(svc, pool, now)
	}
	if svc.latched() && svc.pool == Backup {
		svc.hold.latch, svc.hold.passed = svc.latch.ID, false
	}
	if svc.hold.unproven {
		s.wakeAt(svc.began.Add(s.cfg.DeadAfter))
	}
	svc.stagedPool = svc.poolAfterStages()
	if !first && svc.stagedPool != staged && staged != pool { // that of moved clients only is left like any other
		svc.poolMoved = now
	}

	h := &svc.hold
	switch {
	case h.on && !before.on:
		s.info("failback held", zap.String("service", svc.cfg.Name), zap.String("why", svc.poolReason()))
	case !h.on && before.on:
		s.info("failback no longer held", zap.String("service", svc.cfg.Name), zap.String("why", ended))
	}
	s.unsaved = s.unsaved || *h != before
}

// setPool puts a pool in force.
func (s *Store) setPool(svc *service, pool Role, now time.Time) {
	first := !svc.poolSet
	svc.poolSet, svc.pool, svc.poolSince = true, pool, now
	svc.hold.released = false
	svc.hold.unproven = pool == Backup && svc.unmeasured(now, s.cfg.DeadAfter)
	s.unsaved = true
	if first {
		return
	}
	svc.poolMoved = now
	svc.poolTransitions++
	s.warn("pool changed", zap.String("service", svc.cfg.Name), zap.Stringer("pool", pool), zap.String("why", svc.poolReason()))
}

// unmeasured reports whether the service has only just begun and nothing has told of some of its primaries yet. To be in
// the backups then proves no failure, and one gslbd that starts must not latch the whole fleet.
func (svc *service) unmeasured(now time.Time, deadAfter time.Duration) bool {
	if now.Sub(svc.began) >= deadAfter {
		return false
	}
	for _, m := range svc.members {
		if m.cfg.Role == Primary && !m.health[V4].known && !m.health[V6].known {
			return true
		}
	}
	return false
}

// evalHold says whether failback holds the service in its backups, which only can be while the primaries suffice and a
// backup is healthy. It returns why not, for the log.
func (s *Store) evalHold(svc *service, sh share, now time.Time) (ended string) {
	h := &svc.hold
	if f := svc.latch.Failback; f != "" && f != h.failback {
		h.failback = f
		h.released = h.released || svc.pool == Backup
	}
	since := h.since
	h.on, h.why, h.since = false, "", time.Time{}
	switch {
	case !sh.holds():
		return "the primaries no longer suffice"
	case !sh.backup:
		h.passed = h.passed || (svc.latch.ID != "" && h.latch == svc.latch.ID)
		return "no backup is healthy"
	case svc.cfg.Failback == FailbackAuto:
		return "failback is auto"
	case !svc.keeps():
		return "an operator has ordered it"
	}
	switch delay := svc.cfg.FailbackDelay; {
	case svc.latched():
		h.why = fmt.Sprintf("failback manual, until \"gslbctl failback %s\": %s", svc.cfg.Name, svc.latch.Why)
	case svc.cfg.Failback == FailbackManual:
		h.why = fmt.Sprintf("failback manual, until \"gslbctl failback %s\"", svc.cfg.Name)
	case s.blind.frozen: // nobody knows whether the primaries still suffice
		h.why = svc.pausedWhy()
	default:
		h.since = since
		if since.IsZero() {
			h.since = now
		}
		until := h.since.Add(delay)
		h.why = fmt.Sprintf("failback delay: the primaries must suffice for %s", delay)
		switch {
		case now.Before(until):
			s.wakeAt(until)
		case svc.unheard(now, s.cfg.DeadAfter): // whether they still do is not known
			h.why += ", and must be heard of after the restart"
			s.wakeAt(svc.began.Add(s.cfg.DeadAfter))
		default:
			h.since, h.why = time.Time{}, ""
			return fmt.Sprintf("the primaries have sufficed for %s", delay)
		}
	}
	h.on = true
	return ""
}

// pauseHold stops a delay that runs, since nobody knows whether the primaries suffice throughout: it begins again with
// the first publication after blindness. The caller holds mu.
func (s *Store) pauseHold(svc *service) {
	if h := &svc.hold; !h.since.IsZero() {
		h.since, h.why = time.Time{}, svc.pausedWhy()
		s.unsaved = true
	}
}

func (svc *service) pausedWhy() string {
	return fmt.Sprintf("failback delay: the primaries must suffice for %s, counted from the end of blindness", svc.cfg.FailbackDelay)
}

// keeps reports whether failback would keep the service in its backups if the primaries sufficed.
func (svc *service) keeps() bool {
	inBackups := svc.poolSet && svc.pool == Backup
	switch svc.cfg.Failback {
	case FailbackDelay:
		return inBackups
	case FailbackManual:
		return svc.latched() || (inBackups && !svc.hold.released && !svc.hold.unproven)
	}
	return false
}

// latched reports whether a latch holds the service in its backups, whoever of the fleet failed over.
func (svc *service) latched() bool {
	return svc.latch.ID != "" && !(svc.hold.passed && svc.hold.latch == svc.latch.ID)
}

// unlatched reports whether this gslbd has failed over and no latch stands for that.
func (svc *service) unlatched() bool {
	return svc.cfg.Failback == FailbackManual && svc.pool == Backup && !svc.hold.released && !svc.hold.unproven && !svc.latched()
}

// poolAfterStages returns the pool that would be in force if all staged orders stood at 100 %.
func (svc *service) poolAfterStages() Role {
	for _, m := range svc.members {
		if len(m.moved) > 0 {
			return svc.share(true).pool(svc.keeps())
		}
	}
	return svc.pool
}

// poolReason says why the pool is in force.
func (svc *service) poolReason() string {
	if svc.hold.on {
		return svc.poolWhy + "; held: " + svc.hold.why
	}
	return svc.poolWhy
}

// share counts the members and servers that the table asks for. When staged, members that staged orders move clients away
// from are counted as if they were evacuated.
func (svc *service) share(staged bool) share {
	sh := share{backups: svc.hasBackups, ratio: svc.cfg.FailoverRatio}
	for _, m := range svc.members {
		// Orders that take a member out of new answers take it out of both sides of the share.
		if m.forced >= ForcedDrain || (staged && len(m.moved) > 0) {
			continue
		}
		healthy := m.anyUp()
		if m.cfg.Role == Backup {
			sh.backup = sh.backup || healthy
			continue
		}
		sh.alive = sh.alive || healthy
		up, size := m.poolServers(healthy)
		sh.up, sh.size = sh.up+up, sh.size+size
	}
	return sh
}

// holds reports whether row 1 of the table does. Nothing left to count is a share of 0.
func (sh share) holds() bool {
	if sh.ratio == 0 {
		return sh.alive
	}
	return sh.size > 0 && float64(sh.up) >= sh.ratio*float64(sh.size)-1e-9
}

// pool applies the three rows of the table, in their order; keep holds back the change from the second to the first.
func (sh share) pool(keep bool) Role {
	if sh.backup && (keep || !sh.holds()) {
		return Backup
	}
	return Primary
}

func (sh share) why() string {
	why := "no primary member is healthy"
	switch {
	case !sh.backups:
		return "no backups"
	case sh.ratio != 0:
		why = fmt.Sprintf("%d of %d primary servers healthy, ratio %g", sh.up, sh.size, sh.ratio)
	case sh.alive:
		why = "a primary member is healthy"
	}
	if !sh.holds() && !sh.backup {
		why += "; no backup is healthy"
	}
	return why
}

func (m *member) up(f Family) bool { return m.has(f) && m.health[f].up }

func (m *member) anyUp() bool { return m.up(V4) || m.up(V6) }

// poolServers returns how many servers the member brings into the failover share, and how many of them are healthy. A
// member without server data counts as one. One whose data is not fresh keeps its number, all in its own state. One
// that is forced up counts all of its servers, and as one if none of them counts.
func (m *member) poolServers(healthy bool) (up, size int) {
	c := m.servers
	if !c.known || (m.forced == ForcedUp && c.size == 0) {
		c.up, c.size = 1, 1
	}
	switch {
	case !healthy:
		return 0, c.size
	case m.forced == ForcedUp, !m.countsServers():
		return c.size, c.size
	}
	return c.up, c.size
}

// countsServers reports whether the last report's servers count one by one. What was known before a restart does until
// the site speaks or its time to do so is over.
func (m *member) countsServers() bool {
	return m.servers.known && m.servers.fresh && (m.site.freshness == Fresh || m.site.restored())
}

// restored reports whether the site has not spoken since a restart, and still may be as it was before.
func (st *site) restored() bool { return st.freshness == Stale && !st.graceUntil.IsZero() }

// unheard reports whether the service stays in its backups by what was known before a restart: some primary that had a
// source has not been told of since. It lasts dead_after at most.
func (svc *service) unheard(now time.Time, deadAfter time.Duration) bool {
	for _, m := range svc.members {
		if m.cfg.Role != Primary || m.forced != NotForced {
			continue
		}
		for f := range m.health {
			h := &m.health[f]
			if (h.report.ever && m.site.restored()) || (h.check.has && h.check.at.IsZero() && now.Sub(svc.began) < deadAfter) {
				return true
			}
		}
	}
	return false
}
