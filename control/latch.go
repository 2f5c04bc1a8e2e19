package control

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"gslbd/state"
)

// latchEvery is the least time between two latches of one service by one gslbd: one that has no effect must not be made
// again every second.
const latchEvery = 10 * time.Second

// lastFailback returns the newest failback of each service.
func (s *set) lastFailbacks() map[string]*Failback {
	last := map[string]*Failback{}
	for _, f := range s.failbacks {
		if l := last[f.Service]; l == nil || newer(f.Created, f.ID, l.Created, l.ID) {
			last[f.Service] = f
		}
	}
	return last
}

func newer(created time.Time, id string, than time.Time, thanID string) bool {
	return created.After(than) || (created.Equal(than) && id > thanID)
}

// latchEnds returns when each latch was ended by a failback or a tombstone; one that is in force has no entry.
func (s *set) latchEnds() map[string]time.Time {
	ends := map[string]time.Time{}
	end := func(id string, at time.Time) {
		if s.latches[id] != nil && ends[id].Before(at) {
			ends[id] = at
		}
	}
	last := s.lastFailbacks()
	for id, l := range s.latches {
		if f := last[l.Service]; f != nil && l.Created.Before(f.Created) {
			end(id, f.Created)
		}
		if t := s.ended(id); t != nil {
			end(id, t.Created)
		}
	}
	for _, f := range s.failbacks {
		for _, id := range f.Latches {
			end(id, f.Created)
		}
	}
	return ends
}

// latchesInForce returns the latch of each service that has one or had a failback: the newest, for a gslbd that has gone
// back by itself remembers which one no longer holds it.
func (s *set) latchesInForce() map[string]state.Latch {
	ends := s.latchEnds()
	newest := map[string]*Latch{}
	for id, l := range s.latches {
		if _, ended := ends[id]; ended {
			continue
		}
		if n := newest[l.Service]; n == nil || newer(l.Created, l.ID, n.Created, n.ID) {
			newest[l.Service] = l
		}
	}
	all := map[string]state.Latch{}
	for service, f := range s.lastFailbacks() {
		all[service] = state.Latch{Failback: f.ID}
	}
	for service, l := range newest {
		one := all[service]
		one.ID, one.Why = l.ID, l.Why
		all[service] = one
	}
	return all
}

// latch records latches for the services that this gslbd holds in their backups and that have none.
func (c *Control) latch(now time.Time) {
	snap := c.opts.Store.Snapshot()
	if snap == nil {
		return
	}
	var recs []Record
	set := c.set.Load()
	for _, svc := range snap.Services {
		if svc.Unlatched && now.Sub(c.latchedAt[svc.Name]) >= latchEvery {
			c.latchedAt[svc.Name] = now
			l := set.newLatch(svc, c.opts.Node, now)
			recs = append(recs, Record{Latch: &l})
		}
	}
	c.ours(recs)
	for _, r := range recs {
		c.log.Info("failback latch made", zap.String("service", r.Latch.Service), zap.String("id", r.Latch.ID), zap.String("why", r.Latch.Why))
	}
}

// newLatch returns a latch for the service, later than the ones before and whatever ended them: a clock may be behind
// another's.
func (s *set) newLatch(svc *state.Service, node string, now time.Time) Latch {
	created := now
	after := func(t time.Time) {
		if !created.After(t) {
			created = t.Add(time.Millisecond)
		}
	}
	if f := s.lastFailbacks()[svc.Name]; f != nil {
		after(f.Created)
	}
	for _, l := range s.latches {
		if l.Service == svc.Name {
			after(l.Created)
		}
	}
	return Latch{
		ID: uuid.Must(uuid.NewV7()).String(), Created: created.UTC().Round(0), Service: svc.Name, Node: node,
		Why: fmt.Sprintf("%s failed over at %s: %s", node, clock(svc.PoolSince), svc.PoolWhy),
	}
}

// Failback ends the latches of a service. It returns ErrNotFound for a service that is not there and ErrRefused while
// its primaries do not suffice, beside the errors of Force.
func (c *Control) Failback(ctx context.Context, f Failback, by Caller) (Receipt, error) {
	r, err := c.failback(ctx, f)
	c.audit("failback", r, err, by, f.Author, f.Reason, zap.String("id", f.ID), zap.String("service", f.Service))
	return r, err
}

func (c *Control) failback(ctx context.Context, f Failback) (Receipt, error) {
	rec := Record{Failback: &f}
	if err := c.judge(rec); err != nil {
		return Receipt{}, err
	}
	set := c.set.Load()
	r := Receipt{ID: f.ID, Node: c.opts.Node, Warnings: []string{}}
	if known := set.failbacks[f.ID]; known != nil {
		rec.Failback = known
	} else {
		v := c.view(c.now())
		var svc *state.Service
		if v.snap != nil {
			svc = v.snap.ServiceByName(canonical(f.Service))
		}
		if svc == nil {
			known := "none"
			if v.snap != nil {
				known = listed(there("service", v.snap))
			}
			return Receipt{}, fmt.Errorf("control: %w: no service %s; there are %s", ErrNotFound, quote(f.Service), known)
		}
		// Those that are not older than the failback are named, since a clock may be ahead of the operator's. It is later than
		// the last one, whoever's clock was ahead: that is how the Store knows that it is another.
		f.Service, f.Latches = svc.Name, nil
		if last := set.lastFailbacks()[svc.Name]; last != nil && !f.Created.After(last.Created) {
			f.Created = last.Created.Add(time.Millisecond)
		}
		latched := false
		ends := set.latchEnds()
		for id, l := range set.latches {
			if _, ended := ends[id]; l.Service == svc.Name && !ended {
				latched = true
				if !l.Created.Before(f.Created) {
					f.Latches = append(f.Latches, id)
				}
			}
		}
		nothing, err := judgeFailback(svc, latched)
		if err != nil {
			return Receipt{}, err
		}
		if nothing != "" {
			r.Repeated, r.Shared, r.Warnings = true, c.sharedAs(rec), append(r.Warnings, nothing)
			return r, nil
		}
	}
	var err error
	r.Shared, r.Repeated, err = c.accept(ctx, rec)
	if err != nil {
		return Receipt{}, err
	}
	return r, nil
}

// judgeFailback refuses a failback that the primaries cannot bear. nothing says why there is nothing to do; "": there is.
func judgeFailback(svc *state.Service, latched bool) (nothing string, err error) {
	backups := svc.Pool == state.Backup
	switch {
	case svc.Failback != state.FailbackManual:
		return fmt.Sprintf("nothing to do: %s has failback %s, and goes back by itself", svc.Name, svc.Failback), nil
	case backups && !svc.Held:
		return "", fmt.Errorf("control: %w: the primaries of %s do not suffice: %s", ErrRefused, svc.Name, svc.PoolWhy)
	case !backups && !latched:
		return fmt.Sprintf("nothing to do: the primaries of %s are in force, and nothing holds it elsewhere", svc.Name), nil
	}
	return "", nil
}
