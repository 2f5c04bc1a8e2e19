package state

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// evalPool decides which pool of the service is in force (design section 6, the table). The caller holds mu, and has
// evaluated the members' health.
func (s *Store) evalPool(svc *service, now time.Time) {
	pool, why := Primary, "no backups"
	if svc.hasBackups {
		pool, why = svc.choosePool()
	}
	first := !svc.poolSet
	changed := pool != svc.pool
	svc.poolWhy = why
	if !first && !changed {
		return
	}
	svc.poolSet, svc.pool, svc.poolSince = true, pool, now
	s.unsaved = true
	if first {
		return
	}
	svc.poolTransitions++
	s.warn("pool changed", zap.String("service", svc.cfg.Name), zap.Stringer("pool", pool), zap.String("why", why))
}

// choosePool applies the three rows of the table, in their order.
func (svc *service) choosePool() (Role, string) {
	var alive, backups bool // a healthy primary, a healthy backup
	var up, size int        // of the primaries' servers
	for _, m := range svc.members {
		// Orders that take a member out of new answers take it out of both sides of the share.
		if m.forced >= ForcedDrain {
			continue
		}
		healthy := m.anyUp()
		if m.cfg.Role == Backup {
			backups = backups || healthy
			continue
		}
		alive = alive || healthy
		u, n := m.poolServers(healthy)
		up, size = up+u, size+n
	}
	ratio := svc.cfg.FailoverRatio
	var holds bool
	var why string
	if ratio == 0 {
		holds, why = alive, "no primary member is healthy"
		if alive {
			why = "a primary member is healthy"
		}
	} else {
		holds = size > 0 && float64(up) >= ratio*float64(size)-1e-9
		why = fmt.Sprintf("%d of %d primary servers healthy, ratio %g", up, size, ratio)
	}
	switch {
	case holds:
		return Primary, why
	case backups:
		return Backup, why
	}
	return Primary, why + "; no backup is healthy"
}

func (m *member) anyUp() bool {
	return (m.has(V4) && m.health[V4].up) || (m.has(V6) && m.health[V6].up)
}

// poolServers returns how many servers the member brings into the failover share, and how many of them are healthy. A
// member without server data counts as one. One whose data is not fresh keeps its number, all in its own state. One
// that is forced up counts all of its servers.
func (m *member) poolServers(healthy bool) (up, size int) {
	c := m.servers
	if !c.known {
		c.up, c.size = 1, 1
	}
	switch {
	case !healthy:
		return 0, c.size
	case !c.known, m.forced == ForcedUp, !c.fresh, m.site.freshness != Fresh:
		return c.size, c.size
	}
	return c.up, c.size
}
