package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
)

// picture returns what the evacuations of the view come to.
func (v *view) picture() *picture {
	v.once.Do(func() { v.pic = newPicture(v) })
	return v.pic
}

// step does what time and the measured state bring: it writes the ledger, ends what is put back, and starts the program
// of type exec. Run calls it once a second and after every change.
func (c *Control) step(ctx context.Context, now time.Time) { c.stepOn(ctx, c.view(now)) }

func (c *Control) stepOn(ctx context.Context, v *view) {
	if v.snap == nil {
		return // nothing is configured yet, so that nothing is gone
	}
	pic := v.picture()
	c.evac.offer(pic)
	recs, gone := pic.ledger(&c.evac)
	if !c.note(recs, gone) {
		return
	}
	c.forget(ctx)
	c.evac.start(ctx, c, pic)
}

// note writes lines and ends of the ledger. Where the disk takes nothing they hold all the same, and are written later:
// they are worked out again after a restart, for nothing in them is more than what the records before them come to.
// ok is false if a test has stopped this gslbd.
func (c *Control) note(recs []Record, gone []*Taken) (ok bool) {
	if len(recs) == 0 {
		return true
	}
	if c.evac.beforeWrite != nil && c.evac.beforeWrite() != nil {
		return false
	}
	c.ours(recs)
	for _, t := range gone {
		c.log.Warn("resource gone, nothing to restore", zap.String("id", t.ID))
	}
	return true
}

// forget takes away the marks of records that are purged.
func (c *Control) forget(ctx context.Context) {
	old := map[string]string{}
	c.mu.Lock()
	set := c.set.Load() // has the record of every mark, which is set after it
	for key := range c.marks {
		id, execute := strings.CutPrefix(key, executeMark)
		restored, restore := strings.CutPrefix(key, restoreMark)
		if (execute && set.evacuations[id] == nil) || (restore && set.restorations[restored] == nil) {
			old[key] = ""
		}
	}
	c.mu.Unlock()
	if len(old) > 0 {
		_ = c.keep(ctx, old) // Problems tells, and the next step tries again
	}
}

// keep is acceptMarked for what no caller waits for.
func (c *Control) keep(ctx context.Context, marks map[string]string, recs ...Record) error {
	if c.evac.beforeWrite != nil {
		if err := c.evac.beforeWrite(); err != nil {
			return err
		}
	}
	_, _, err := c.acceptMarked(ctx, marks, recs...)
	return err
}

// progress is what this gslbd remembers of evacuations while it runs. It may all be forgotten: what matters is in the
// journal.
type progress struct {
	beforeWrite func() error // of tests, which stop a Control between two writes; nil otherwise

	// Owned by Run.
	offered map[string]time.Time // when the agents were first told to set back the servers of a line, by its id

	programs
}

// offer notes which lines the agents are told to set back.
func (g *progress) offer(pic *picture) {
	offered := map[string]time.Time{}
	for _, e := range pic.all {
		p := e.part(TypeAgent)
		if p == nil || !p.free || p.heir != nil {
			continue
		}
		for _, t := range p.lines {
			offered[t.ID] = pic.now
			if at, ok := g.offered[t.ID]; ok {
				offered[t.ID] = at
			}
		}
	}
	g.offered = offered
}

// ledger returns the records that are to be written now: lines of what has been taken, tombstones of what has been put
// back and of the parts that are over with it. gone are lines of what is not there any more.
func (pic *picture) ledger(g *progress) (recs []Record, gone []*Taken) {
	w := &writer{pic: pic}
	w.drained()
	for _, e := range pic.all {
		for _, p := range e.parts {
			switch {
			case p.heir != nil && len(p.lines) > 0 && p.typ != TypeMember:
				w.handOver(p)
			case p.typ == TypeMember && p.stays():
				w.members(p)
			case p.typ == TypeMember && p.free && p.open():
				for _, t := range p.lines {
					w.back(p, t, !slices.ContainsFunc(e.zone.members, func(m zoneMember) bool { return m.resource() == t.Resource }))
				}
				w.over(p)
			case p.typ == TypeAgent && p.free && p.open():
				w.servers(p, g)
			case p.typ == TypeExec && p.free && p.open() && len(p.lines) == 0:
				w.over(p)
			}
		}
	}
	return w.recs, w.gone
}

// maxSiteLines is how many servers of a site the ledger holds, which is as many as one report may list. An agent that names
// others in each report must not fill the disk.
const maxSiteLines = 50_000

// A writer gathers the records that are to be written.
type writer struct {
	pic  *picture
	recs []Record
	gone []*Taken
}

// take adds a line.
func (w *writer) take(e *evacuation, typ, resource, more string, removed []string, at time.Time) {
	id := e.takenID(typ, resource) + more
	if len(id) > maxID || !printable(id) {
		return
	}
	w.recs = append(w.recs, Record{Taken: &Taken{
		ID: id, Evacuation: e.ID, Zone: e.zone.id, Type: typ, Resource: resource, Removed: removed,
		Created: at.UTC().Round(0), Author: e.Author, Reason: e.Reason,
	}})
}

// sameMoment is how long after an evacuation was given a member counts as taken by it at once, not as one that came later.
const sameMoment = time.Minute

// members adds lines for members that came into the zone while it is evacuated, or that another gslbd does not know.
func (w *writer) members(p *part) {
	for _, m := range p.of.zone.members {
		id := p.of.takenID(TypeMember, m.resource())
		if w.pic.taken[id] == nil && w.pic.ended(id) == nil {
			at := p.of.Created // so that gslbd that learn of it at different moments write the same line
			if w.pic.now.Sub(at) > sameMoment {
				at = w.pic.now
			}
			w.take(p.of, TypeMember, m.resource(), "", m.addresses(), at)
		}
	}
}

// drained adds lines for the servers that agents say they have set to drain. Whatever an agent has drained gets a line,
// also when the evacuation has ended meanwhile, or nothing would ever set it back.
func (w *writer) drained() {
	known, lines := map[string]bool{}, map[string]int{}
	for _, e := range w.pic.all {
		if p := e.part(TypeAgent); p != nil {
			for _, t := range p.lines {
				site, _ := t.server()
				lines[site]++
				known[t.Resource+"/"+strings.Join(t.Removed, "/")] = true
			}
		}
	}
	for _, z := range w.pic.zones {
		for _, s := range z.sites {
			for _, d := range s.Drained {
				for _, server := range d.Servers {
					resource := s.Name + "/" + d.VirtualServer
					if known[resource+"/"+server] {
						continue
					}
					if lines[s.Name] == maxSiteLines {
						break
					}
					if e := w.drainedFor(z, resource+"/"+server); e != nil {
						lines[s.Name]++
						w.take(e, TypeAgent, resource, "/"+server, []string{server}, w.pic.now)
					}
				}
			}
		}
	}
}

// drainedFor returns the evacuation that a drained server belongs to: the oldest that asks for it, else the newest that
// ever did; nil: none.
func (w *writer) drainedFor(z *zone, server string) *evacuation {
	var last *evacuation
	for _, e := range w.pic.inZone[z.id] {
		p := e.part(TypeAgent)
		if p == nil || w.pic.ended(e.takenID(TypeAgent, server)) != nil {
			continue
		}
		if p.begun && p.stays() {
			return e
		}
		last = e
	}
	return last
}

// handOver gives the lines of a part that ends to the evacuation that still wants the resources out.
func (w *writer) handOver(p *part) {
	to := p.heir.of
	for _, t := range p.lines {
		more := strings.TrimPrefix(t.ID, p.of.takenID(t.Type, t.Resource))
		w.take(to, t.Type, t.Resource, more, t.Removed, w.pic.now)
		w.end(p, t.ID, "handed over to evacuation "+to.ID)
	}
}

// servers ends the lines of the servers that a later report shows out of drain, and of those that are gone.
func (w *writer) servers(p *part, g *progress) {
	left := 0
	for _, t := range p.lines {
		name, vs := t.server()
		sites := w.pic.snap.Sites // the site may have been moved to another zone
		i := slices.IndexFunc(sites, func(s *state.Site) bool { return s.Name == name })
		switch {
		case i < 0:
			w.back(p, t, true)
		case outOfDrain(sites[i], vs, t.Removed, g.offered[t.ID]):
			w.back(p, t, false)
		default:
			left++
		}
	}
	if left == 0 {
		w.over(p)
	}
}

// outOfDrain reports whether a report that came after the agent was told to set the servers back shows none of them in
// drain.
func outOfDrain(s *state.Site, vs string, servers []string, told time.Time) bool {
	if s.Freshness != state.Fresh || told.IsZero() || !s.ReportAt.After(told) {
		return false
	}
	for _, list := range [][]state.DrainedServers{s.InDrain, s.Drained} {
		for _, d := range list {
			if d.VirtualServer == vs && slices.ContainsFunc(d.Servers, func(n string) bool { return slices.Contains(servers, n) }) {
				return false
			}
		}
	}
	return true
}

// back ends a line whose resource has been put back, or is gone.
func (w *writer) back(p *part, t *Taken, gone bool) {
	if gone {
		w.gone = append(w.gone, t)
	}
	w.end(p, t.ID, p.endedBy())
}

// over ends a part of which nothing is left.
func (w *writer) over(p *part) {
	if !p.ended && !p.elsewhere {
		w.end(p, p.of.partID(p.typ), p.endedBy())
	}
}

func (w *writer) end(p *part, id, why string) {
	w.recs = append(w.recs, Record{Tombstone: &Tombstone{ID: id, Created: w.pic.now.UTC().Round(0), Author: p.endedWhose(), Reason: why}})
}

// endedBy says for people why a part ends.
func (p *part) endedBy() string {
	switch {
	case len(p.by) == 0:
		return "the evacuation expired"
	case p.by[0].Reason == "":
		return "restored"
	}
	return p.by[0].Reason
}

// endedWhose says who ends it.
func (p *part) endedWhose() string {
	if len(p.by) > 0 {
		return p.by[0].Author
	}
	return p.of.Author
}
