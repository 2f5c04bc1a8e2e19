package control

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// A set is the union of the records that this gslbd knows. A Control replaces its set as a whole: what is reachable from
// one that others may see does not change any more.
type set struct {
	orders       map[string]*Order // by id, as all of these
	evacuations  map[string]*Evacuation
	taken        map[string]*Taken
	restorations map[string]*Restoration
	latches      map[string]*Latch
	failbacks    map[string]*Failback
	tombstones   map[string]*Tombstone
}

func newSet() *set {
	return &set{
		orders: map[string]*Order{}, evacuations: map[string]*Evacuation{}, taken: map[string]*Taken{},
		restorations: map[string]*Restoration{}, latches: map[string]*Latch{}, failbacks: map[string]*Failback{},
		tombstones: map[string]*Tombstone{},
	}
}

func (s *set) clone() *set {
	return &set{
		orders: maps.Clone(s.orders), evacuations: maps.Clone(s.evacuations), taken: maps.Clone(s.taken),
		restorations: maps.Clone(s.restorations), latches: maps.Clone(s.latches), failbacks: maps.Clone(s.failbacks),
		tombstones: maps.Clone(s.tombstones),
	}
}

// record returns the record of a kind and id; ok is false if the set has none.
func (s *set) record(kind, id string) (r Record, ok bool) {
	switch kind {
	case "order":
		r.Order = s.orders[id]
		return r, r.Order != nil
	case "evacuation":
		r.Evacuation = s.evacuations[id]
		return r, r.Evacuation != nil
	case "taken":
		r.Taken = s.taken[id]
		return r, r.Taken != nil
	case "restoration":
		r.Restoration = s.restorations[id]
		return r, r.Restoration != nil
	case "latch":
		r.Latch = s.latches[id]
		return r, r.Latch != nil
	case "failback":
		r.Failback = s.failbacks[id]
		return r, r.Failback != nil
	case "tombstone":
		r.Tombstone = s.tombstones[id]
		return r, r.Tombstone != nil
	}
	return Record{}, false
}

// put adds the record or takes the place of the one of the same kind and id.
func (s *set) put(r Record) {
	switch {
	case r.Order != nil:
		s.orders[r.Order.ID] = r.Order
	case r.Evacuation != nil:
		s.evacuations[r.Evacuation.ID] = r.Evacuation
	case r.Taken != nil:
		s.taken[r.Taken.ID] = r.Taken
	case r.Restoration != nil:
		s.restorations[r.Restoration.ID] = r.Restoration
	case r.Latch != nil:
		s.latches[r.Latch.ID] = r.Latch
	case r.Failback != nil:
		s.failbacks[r.Failback.ID] = r.Failback
	case r.Tombstone != nil:
		s.tombstones[r.Tombstone.ID] = r.Tombstone
	}
}

// merged returns what the set must hold once r is added to it, and whether that is anything new.
func (s *set) merged(r Record) (Record, bool) {
	old, ok := s.record(r.kind())
	if !ok {
		return r, true
	}
	m := merge(old, r)
	return m, !same(m, old)
}

// add adds the record to the union. It reports whether that changed the set.
func (s *set) add(r Record) (added bool) {
	m, added := s.merged(r)
	if added {
		s.put(m)
	}
	return added
}

// remove takes the record of a kind and id out: only what can have no effect any more (see purgeable).
func (s *set) remove(kind, id string) {
	switch kind {
	case "order":
		delete(s.orders, id)
	case "evacuation":
		delete(s.evacuations, id)
	case "taken":
		delete(s.taken, id)
	case "restoration":
		delete(s.restorations, id)
	case "latch":
		delete(s.latches, id)
	case "failback":
		delete(s.failbacks, id)
	case "tombstone":
		delete(s.tombstones, id)
	}
}

// all yields every record.
func (s *set) all() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for _, v := range s.orders {
			if !yield(Record{Order: v}) {
				return
			}
		}
		for _, v := range s.evacuations {
			if !yield(Record{Evacuation: v}) {
				return
			}
		}
		for _, v := range s.taken {
			if !yield(Record{Taken: v}) {
				return
			}
		}
		for _, v := range s.restorations {
			if !yield(Record{Restoration: v}) {
				return
			}
		}
		for _, v := range s.latches {
			if !yield(Record{Latch: v}) {
				return
			}
		}
		for _, v := range s.failbacks {
			if !yield(Record{Failback: v}) {
				return
			}
		}
		for _, v := range s.tombstones {
			if !yield(Record{Tombstone: v}) {
				return
			}
		}
	}
}

// ended returns the tombstone of the id, or nil.
func (s *set) ended(id string) *Tombstone { return s.tombstones[id] }

// inForce reports whether one of the contents of an order is in force at now.
func (s *set) inForce(o *Order, now time.Time) bool {
	return s.ended(o.ID) == nil && (o.Expires.IsZero() || now.Before(o.Expires))
}

// ordersInForce returns the orders in force at now, the oldest first.
func (s *set) ordersInForce(now time.Time) []*Order {
	var in []*Order
	for _, all := range s.orders {
		for _, o := range all.contents() {
			if s.inForce(o, now) {
				in = append(in, o)
			}
		}
	}
	slices.SortStableFunc(in, func(a, b *Order) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return in
}

func same(a, b Record) bool { return string(a.encode()) == string(b.encode()) }

// keepEnded is how long what has ended is kept: a gslbd that was away for less learns of it in time, and does not bring
// the record back without the tombstone. purgeEvery is how often the journal is looked through.
const (
	keepEnded  = 30 * 24 * time.Hour
	purgeEvery = time.Hour
)

// purgeable returns the records that ended so long ago that nobody needs them. The records around one evacuation or
// order go together; a tombstone always goes last or with what it ends. gone are services that have not been configured
// for as long: nothing holds them, nor goes back.
func (s *set) purgeable(now time.Time, gone map[string]bool) []Record {
	before := now.Add(-keepEnded)
	// group is what goes together: a latch, failback or restoration alone; all else by the id that its own begins with.
	group := func(kind, id string) string {
		switch kind {
		case "latch", "failback", "restoration":
			return kind + "/" + id
		}
		id, _, _ = strings.Cut(id, "/")
		return id
	}
	live := map[string]bool{} // groups of which something is in force or ended lately
	keep := func(kind, id string, ended time.Time) {
		if ended.IsZero() || ended.After(before) {
			live[group(kind, id)] = true
			live[group("tombstone", id)] = true // which goes with it
		}
	}
	ended := func(id string) (at time.Time) {
		if t := s.ended(id); t != nil {
			at = t.Created
		}
		return at
	}
	for id, o := range s.orders {
		at := ended(id)
		for _, one := range o.contents() {
			if ended(id).IsZero() {
				at = one.Expires
			}
			keep("order", id, at)
		}
	}
	for id, e := range s.evacuations {
		for _, typ := range e.Types {
			keep("evacuation", id, ended(id+"/"+typ))
		}
	}
	for id := range s.taken {
		keep("taken", id, ended(id))
	}
	for id, t := range s.tombstones {
		keep("tombstone", id, t.Created)
	}
	for id, r := range s.restorations {
		for _, one := range r.contents() {
			at := one.Created
			if slices.ContainsFunc(one.Evacuations, func(e string) bool { return s.evacuations[e] != nil }) {
				at = time.Time{}
			}
			keep("restoration", id, at)
		}
	}
	ends := s.latchEnds()
	newest := s.latchesInForce()
	for id, l := range s.latches {
		at := ends[id]
		if at.IsZero() && (newest[l.Service].ID != id || gone[l.Service]) {
			at = l.Created // another one stands for it, or there is nothing to hold
		}
		keep("latch", id, at)
	}
	last := s.lastFailbacks()
	for id, f := range s.failbacks {
		at := f.Created
		// The last one ends latches that may still arrive; another may be the only end of one that is kept.
		if (last[f.Service] == f && !gone[f.Service]) || slices.ContainsFunc(f.Latches, func(l string) bool { return live[group("latch", l)] }) {
			at = time.Time{}
		}
		keep("failback", id, at)
	}
	var out []Record
	for r := range s.all() {
		if !live[group(r.kind())] {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { // tombstones last
		switch {
		case (a.Tombstone != nil) == (b.Tombstone != nil):
			return strings.Compare(a.key(), b.key())
		case a.Tombstone != nil:
			return 1
		}
		return -1
	})
	return out
}
