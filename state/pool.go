package state

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A share is what the pool of a service is decided by.
type share struct {
	alive, backup bool // a primary is healthy; a backup is
	up, size      int  // of the primaries' servers
	ratio         float64
}

// evalPool decides which pool of the service is in force (docs/operations.md, "The pool"). The caller holds mu, and has
// evaluated the members' health.
func (s *Store) evalPool(svc *service, now time.Time) {
	pool := Primary
	if svc.hasBackups {
		sh := svc.share()
		pool = sh.pool()
		if sh != svc.poolShare || svc.poolWhy == "" {
			svc.poolShare, svc.poolWhy = sh, sh.why()
		}
	} else {
		svc.poolShare, svc.poolWhy = share{}, "no backups"
	}
	if svc.poolSet && pool == svc.pool {
		return
	}
	first := !svc.poolSet
	svc.poolSet, svc.pool, svc.poolSince = true, pool, now
	s.unsaved = true
	if first {
		return
	}
	svc.poolMoved = now
	svc.poolTransitions++
	s.warn("pool changed", zap.String("service", svc.cfg.Name), zap.Stringer("pool", pool), zap.String("why", svc.poolWhy))
}

// share counts the members and servers that the table asks for.
func (svc *service) share() share {
	sh := share{ratio: svc.cfg.FailoverRatio}
	for _, m := range svc.members {
		// Orders that take a member out of new answers take it out of both sides of the share.
		if m.forced >= ForcedDrain {
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

// pool applies the three rows of the table, in their order.
func (sh share) pool() Role {
	if !sh.holds() && sh.backup {
		return Backup
	}
	return Primary
}

func (sh share) why() string {
	why := "no primary member is healthy"
	switch {
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
