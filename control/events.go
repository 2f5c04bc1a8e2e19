package control

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// An Event is something that was ordered, or the end of it, for the history.
type Event struct {
	ID      string    `json:"id"`   // KIND/ID of the record; with /expired for the end that time brings
	Time    time.Time `json:"time"` // by the clock of whoever gave it
	Message string    `json:"message"`
	Service string    `json:"service,omitempty"` // where it is for one service by name
	Target  string    `json:"target"`
	Author  string    `json:"author,omitempty"`
	Reason  string    `json:"reason,omitempty"`
}

// Events returns what was ordered since, and what ended, the oldest first: of what this gslbd knows, which is at least of
// the last 30 days. Service and site are patterns (path.Match) of what it must be for; "": any. What they match is a matter
// of the present configuration.
func (c *Control) Events(since time.Time, service, site string) []Event {
	v := c.view(c.now())
	all := v.events(since)
	if service != "" || site != "" {
		all = slices.DeleteFunc(all, func(e event) bool { return !v.concerns(e, canonical(service), site) })
	}
	slices.SortFunc(all, func(a, b event) int { return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.ID, b.ID)) })
	out := make([]Event, len(all))
	for i, e := range all {
		out[i] = e.Event
	}
	return out
}

// An event is an Event with the members that it is for, by targets of orders.
type event struct {
	Event
	targets []Target
}

func newEvent(id, message string, at time.Time, author, reason string, targets ...Target) event {
	e := event{Event{ID: id, Time: at, Message: message, Author: author, Reason: reason}, targets}
	var texts []string
	for _, t := range targets {
		texts = append(texts, t.String())
		if t.Service != "" {
			e.Service = t.Service
		}
	}
	e.Target = strings.Join(texts, ", ")
	return e
}

// events returns the events of the set since, in no order.
func (v *view) events(since time.Time) []event {
	all := slices.DeleteFunc(v.expired(), func(e event) bool { return e.Time.Before(since) })
	add := func(id, message string, at time.Time, author, reason string, targets ...Target) {
		if !at.Before(since) && !at.After(v.now.Add(maxSkew)) {
			all = append(all, newEvent(id, message, at, author, reason, targets...))
		}
	}
	for r := range v.all() {
		switch {
		case r.Order != nil:
			for i, o := range r.Order.contents() {
				add(contentKey(r, i), o.Action+" ordered", o.Created, o.Author, o.Reason, o.Target)
			}
		case r.Evacuation != nil:
			e := r.Evacuation
			add(r.key(), "evacuation ordered ("+strings.Join(e.Types, ", ")+")", e.Created, e.Author, e.Reason, e.targets()...)
		case r.Restoration != nil:
			for _, one := range r.Restoration.contents() {
				var targets []Target
				for _, id := range one.Evacuations {
					if e := v.evacuations[id]; e != nil {
						targets = append(targets, e.targets()...)
					}
				}
				add(r.key(), "restoration ordered ("+strings.Join(one.Types, ", ")+")", one.Created, one.Author, one.Reason, targets...)
			}
		case r.Latch != nil:
			add(r.key(), "failback latched", r.Latch.Created, r.Latch.Node, r.Latch.Why, Target{Service: r.Latch.Service})
		case r.Failback != nil:
			add(r.key(), "failback ordered", r.Failback.Created, r.Failback.Author, r.Failback.Reason, Target{Service: r.Failback.Service})
		case r.Tombstone != nil:
			t := r.Tombstone
			id, typ, part := strings.Cut(t.ID, "/")
			switch e := v.evacuations[id]; {
			case v.set.orders[t.ID] != nil:
				o := v.set.orders[t.ID]
				add(r.key(), o.Action+" order cleared", t.Created, t.Author, t.Reason, o.Target)
			case part && e != nil && !strings.Contains(typ, "/"): // else of one line of the ledger
				add(r.key(), "evacuation over ("+typ+")", t.Created, t.Author, t.Reason, e.targets()...)
			}
		}
	}
	return all
}

// contentKey is the key of the content with that number of an order: others are given under the id of the first.
func contentKey(r Record, number int) string {
	if number == 0 {
		return r.key()
	}
	return fmt.Sprintf("%s/%d", r.key(), number)
}

// expired returns the events of what time has ended, in no order: what nobody had ended, or asked to end, before.
func (v *view) expired() []event {
	var all []event
	over := func(at time.Time) bool { return !at.IsZero() && !at.After(v.now) }
	for r := range v.all() {
		switch {
		case r.Order != nil:
			for i, o := range r.Order.contents() {
				if ended := v.ended(o.ID); over(o.Expires) && (ended == nil || o.Expires.Before(ended.Created)) {
					all = append(all, newEvent(contentKey(r, i)+"/expired", o.Action+" order expired", o.Expires, "", "", o.Target))
				}
			}
		case r.Evacuation != nil:
			e := r.Evacuation
			if over(e.Expires) && slices.ContainsFunc(e.Types, func(typ string) bool { return v.wasInForce(e, typ, e.Expires) }) {
				all = append(all, newEvent(r.key()+"/expired", "evacuation expired", e.Expires, "", "", e.targets()...))
			}
		}
	}
	return all
}

// wasInForce reports whether a type of the evacuation was neither ended nor being restored just before at.
func (v *view) wasInForce(e *Evacuation, typ string, at time.Time) bool {
	if ended := v.ended(e.partID(typ)); ended != nil && ended.Created.Before(at) {
		return false
	}
	for _, all := range v.restorations {
		for _, r := range all.contents() {
			if r.Created.Before(at) && slices.Contains(r.Evacuations, e.ID) && slices.Contains(r.Types, typ) {
				return false
			}
		}
	}
	return true
}

// targets returns the zones as targets of orders.
func (e *Evacuation) targets() []Target {
	all := []Target{{Zone: e.Zone}}
	for _, z := range e.Zones {
		all = append(all, Target{Zone: z})
	}
	return all
}

// concerns reports whether the event is for a member of such a service at such a site.
func (v *view) concerns(e event, service, site string) bool {
	if v.snap == nil {
		return false
	}
	matches := func(pattern string, names ...string) bool {
		return pattern == "" || slices.ContainsFunc(names, func(name string) bool {
			ok, err := path.Match(pattern, name)
			return ok && err == nil
		})
	}
	x := newIndex(e.targets, v.names, v.snap)
	for _, svc := range v.snap.Services {
		if !matches(service, append([]string{svc.Name}, svc.Aliases...)...) {
			continue
		}
		for _, m := range svc.Members {
			if matches(site, m.Site.Name) && x.matching(svc.Name, m.Name, m.Site.Name, m.Site.Zone) != nil {
				return true
			}
		}
	}
	return false
}
