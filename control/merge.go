package control

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// merge returns the one record that two of the same key make: all that either orders. It does not matter which is a and
// which is b, nor how often or in which order several are merged, so that all gslbd end with the same. Two that differ
// were given under one id to gslbd that knew different things or were cut off from each other, or are a tombstone given
// twice: of what cannot be added up, such as an author, the older stays.
func merge(a, b Record) Record {
	switch {
	case same(a, b):
		return a
	case a.Order != nil && b.Order != nil:
		return Record{Order: mergeOrders(a.Order, b.Order)}
	case a.Evacuation != nil && b.Evacuation != nil:
		return Record{Evacuation: mergeEvacuations(a.Evacuation, b.Evacuation)}
	case a.Restoration != nil && b.Restoration != nil:
		return Record{Restoration: mergeRestorations(a.Restoration, b.Restoration)}
	case a.Failback != nil && b.Failback != nil:
		fa, fb := *a.Failback, *b.Failback
		fa.Latches = union(fa.Latches, fb.Latches)
		fb.Latches = fa.Latches
		a, b = Record{Failback: &fa}, Record{Failback: &fb}
	}
	ta, tb := a.createdAt(), b.createdAt()
	if tb.Before(ta) || (tb.Equal(ta) && bytes.Compare(b.encode(), a.encode()) < 0) {
		return b
	}
	return a
}

// union returns all that is in a or b, once and in order.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// mergeOrders keeps both: each is in force as it was given.
func mergeOrders(a, b *Order) *Order {
	all := slices.Concat(a.contents(), b.contents())
	slices.SortFunc(all, func(x, y *Order) int {
		return cmp.Or(x.Created.Compare(y.Created), bytes.Compare(Record{Order: x}.encode(), Record{Order: y}.encode()))
	})
	all = slices.CompactFunc(all, func(x, y *Order) bool { return same(Record{Order: x}, Record{Order: y}) })
	out := *all[0]
	for _, o := range all[1:] {
		out.Also = append(out.Also, *o)
	}
	return &out
}

// contents returns what was given under the order's id, which is one order unless clients used an id twice.
func (o *Order) contents() []*Order {
	if len(o.Also) == 0 {
		return []*Order{o}
	}
	first := *o
	first.Also = nil
	all := []*Order{&first}
	for i := range o.Also {
		all = append(all, &o.Also[i])
	}
	return all
}

// mergeEvacuations adds up zones and types. The longer expiry holds. Stages that differ are none: everybody is moved away
// at once; those without type member say nothing of that.
func mergeEvacuations(a, b *Evacuation) *Evacuation {
	if cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.Author, a.Author), strings.Compare(b.Reason, a.Reason)) < 0 {
		a, b = b, a
	}
	out := *a
	out.Created, out.Expires = a.Created.UTC(), later(a.Expires, b.Expires).UTC()
	if a.Expires.IsZero() || b.Expires.IsZero() {
		out.Expires = time.Time{}
	}
	zones := union(a.zones(), b.zones())
	out.Zone, out.Zones = zones[0], zones[1:]
	out.Types = slices.DeleteFunc(slices.Clone(types[:]), func(typ string) bool {
		return !slices.Contains(a.Types, typ) && !slices.Contains(b.Types, typ)
	})
	switch inA, inB := slices.Contains(a.Types, TypeMember), slices.Contains(b.Types, TypeMember); {
	case inB && !inA:
		out.Stages, out.PauseMS = b.Stages, b.PauseMS
	case inA == inB && (!inA || a.PauseMS != b.PauseMS || !slices.Equal(a.Stages, b.Stages)):
		out.Stages, out.PauseMS = nil, 0
	}
	return &out
}

// zones returns the zones that are evacuated: one, unless clients used an id twice.
func (e *Evacuation) zones() []string { return append([]string{e.Zone}, e.Zones...) }

// mergeRestorations keeps both, and as one those of the same types: gslbd that knew of different evacuations.
func mergeRestorations(a, b *Restoration) *Restoration {
	byTypes := map[string]*Restoration{}
	for _, r := range slices.Concat(a.contents(), b.contents()) {
		one := *r
		one.Created, one.Types, one.Evacuations = r.Created.UTC(), union(r.Types, nil), union(r.Evacuations, nil)
		key := strings.Join(one.Types, " ")
		if old := byTypes[key]; old != nil {
			one.Evacuations = union(one.Evacuations, old.Evacuations)
			if byAge(old, &one) < 0 {
				one.Created, one.Author, one.Reason = old.Created, old.Author, old.Reason
			}
		}
		byTypes[key] = &one
	}
	all := slices.SortedFunc(maps.Values(byTypes), func(x, y *Restoration) int { return cmp.Or(byAge(x, y), slices.Compare(x.Types, y.Types)) })
	out := *all[0]
	for _, r := range all[1:] {
		out.Also = append(out.Also, *r)
	}
	return &out
}

func byAge(x, y *Restoration) int {
	return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.Author, y.Author), strings.Compare(x.Reason, y.Reason))
}

// contents returns what was given under the restoration's id.
func (r *Restoration) contents() []*Restoration {
	if len(r.Also) == 0 {
		return []*Restoration{r}
	}
	first := *r
	first.Also = nil
	all := []*Restoration{&first}
	for i := range r.Also {
		all = append(all, &r.Also[i])
	}
	return all
}
