package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gslbd/state"
)

// maxSkew is how far a client's clock may be from this one's: an order that was given long ago must not come into force
// by being sent again.
const maxSkew = 30 * time.Second

// Force accepts an order. It returns ErrInvalid for one that cannot be read, ErrNotFound for one whose target is not
// there, ErrRefused for one that is too old or whose id is known with another content, and ErrUnavailable if it could not
// be kept.
func (c *Control) Force(ctx context.Context, o Order, by Caller) (Receipt, error) {
	r, err := c.force(ctx, o)
	c.audit("order", r, err, by, o.Author, o.Reason, zap.String("id", o.ID), zap.String("action", o.Action),
		zap.Stringer("target", o.Target), expiry(o.Expires))
	return r, err
}

func (c *Control) force(ctx context.Context, o Order) (Receipt, error) {
	rec := Record{Order: &o}
	if err := c.judge(rec); err != nil {
		return Receipt{}, err
	}
	now := c.now()
	if _, known := c.set.Load().record(rec.kind()); !known {
		if !o.Expires.IsZero() && !o.Expires.After(now) {
			return Receipt{}, fmt.Errorf("control: %w: the order expired at %s, which is past", ErrRefused, clock(o.Expires))
		}
		v := c.view(now)
		if v.snap != nil && v.matched([]*Order{&o})[0] == 0 {
			what, pattern := o.Target.normal()
			return Receipt{}, fmt.Errorf("control: %w: no %s %s; there are %s", ErrNotFound, what, quote(pattern), listed(there(what, v.snap)))
		}
	}
	shared, repeated, err := c.accept(ctx, rec)
	if err != nil {
		return Receipt{}, err
	}
	r := Receipt{ID: o.ID, Node: c.opts.Node, Shared: shared, Repeated: repeated, Warnings: []string{}}
	if v := c.view(c.now()); v.snap != nil && o.Action != Up && v.inForce(&o, v.now) {
		r.Warnings = append(r.Warnings, v.emptied(&o)...)
	}
	return r, nil
}

// judge refuses what cannot be read, what is known with another content, and what is new here although its author's
// clock says that it is not new. A record that is known is not judged by its age: sending it again is no new order.
func (c *Control) judge(rec Record) error {
	if err := rec.validate(); err != nil {
		return err
	}
	if (rec.Order != nil && len(rec.Order.Also) > 0) || (rec.Evacuation != nil && len(rec.Evacuation.Zones) > 0) {
		return fmt.Errorf("control: %w: also and zones are between gslbd; give one order for each", ErrInvalid)
	}
	set := c.set.Load()
	if err := set.conflict(rec); err != nil {
		return err
	}
	if _, known := set.record(rec.kind()); known {
		return nil
	}
	off := rec.createdAt().Sub(c.now())
	if off.Abs() <= maxSkew {
		return nil
	}
	side := "behind"
	if off > 0 {
		side = "ahead of"
	}
	return fmt.Errorf("control: %w: created is %s %s the clock of %s, and at most %s is allowed; set the clocks right, or give a new order",
		ErrRefused, off.Abs().Round(time.Second), side, c.opts.Node, maxSkew)
}

// audit logs what was ordered, and by whom, whether or not it was accepted.
func (c *Control) audit(what string, r Receipt, err error, by Caller, author, reason string, fields ...zap.Field) {
	fields = append(fields, zap.String("author", author), zap.String("reason", reason), zap.String("remote", by.Remote), zap.String("auth", by.Auth))
	switch {
	case errors.Is(err, ErrNothing):
		c.log.Info(what+" of nothing", append(fields, zap.Error(err))...)
		return
	case err != nil:
		fields = append(fields, zap.Error(err))
		for i := range fields {
			fields[i] = shortened(fields[i])
		}
		c.log.Warn(what+" refused", fields...)
		return
	}
	c.log.Info(what+" accepted", append(fields, zap.String("shared", r.Shared), zap.Bool("repeated", r.Repeated), zap.Strings("warnings", r.Warnings))...)
}

// maxRefused is how many characters a field of a refused order has in the log: it may be of anybody who reaches the
// listener, and as long as a request. What is accepted is bounded, and stands whole.
const maxRefused = 200

// shortened returns the field, or its beginning as text with how long it was.
func shortened(f zap.Field) zap.Field {
	values := zapcore.NewMapObjectEncoder()
	f.AddTo(values)
	text, ok := values.Fields[f.Key].(string)
	if !ok {
		text = fmt.Sprint(values.Fields[f.Key])
	}
	n := 0
	for i := range text {
		if n++; n > maxRefused {
			return zap.String(f.Key, fmt.Sprintf("%s… (%d characters)", text[:i], utf8.RuneCountInString(text)))
		}
	}
	return f
}

// expiry is for the log; nothing where the record never expires.
func expiry(at time.Time) zap.Field {
	if at.IsZero() {
		return zap.Skip()
	}
	return zap.Time("expires", at)
}

// Clear ends an order. It returns ErrNotFound for an id that this gslbd does not know, beside the errors of Force.
func (c *Control) Clear(ctx context.Context, t Tombstone, by Caller) (Receipt, error) {
	r, err := c.clear(ctx, t)
	c.audit("clearing", r, err, by, t.Author, t.Reason, zap.String("id", t.ID))
	return r, err
}

func (c *Control) clear(ctx context.Context, t Tombstone) (Receipt, error) {
	rec := Record{Tombstone: &t}
	if err := c.judge(rec); err != nil {
		return Receipt{}, err
	}
	set := c.set.Load()
	if set.evacuations[t.ID] != nil {
		return Receipt{}, fmt.Errorf("control: %w: %s is an evacuation, which a restoration ends", ErrRefused, t.ID)
	}
	o := set.orders[t.ID]
	if o == nil && set.ended(t.ID) == nil {
		var known []string
		for _, o := range set.ordersInForce(c.now()) {
			known = append(known, fmt.Sprintf("%s (%s %s)", o.ID, o.Action, o.Target))
		}
		return Receipt{}, fmt.Errorf("control: %w: %s knows no order %s; in force are %s", ErrNotFound, c.opts.Node, quote(t.ID), listed(known))
	}
	r := Receipt{ID: t.ID, Node: c.opts.Node, Warnings: []string{}}
	was := set.ended(t.ID)
	if was != nil { // who cleared it first stays on record
		rec = Record{Tombstone: was}
	}
	var err error
	if r.Shared, _, err = c.accept(ctx, rec); err != nil {
		return Receipt{}, err
	}
	r.Repeated = was != nil
	return r, nil
}

// Orders returns the orders in force, the oldest first.
func (c *Control) Orders() []OrderState {
	v := c.view(c.now())
	in := v.ordersInForce(v.now)
	all := make([]OrderState, 0, len(in))
	for i, members := range v.matched(in) {
		all = append(all, OrderState{Order: *in[i], Shared: c.sharedAs(Record{Order: in[i]}), Members: members})
	}
	return all
}

// sharedAs returns who has the record, as in Receipt.
func (c *Control) sharedAs(r Record) string {
	switch {
	case c.etcd == nil:
		return notShared
	case c.etcd.has(r):
		return byEtcd
	}
	return onlyHere
}

// index returns the index of the orders' targets.
func (v *view) index(orders []*Order) *index {
	targets := make([]Target, len(orders))
	for i, o := range orders {
		targets[i] = o.Target
	}
	return newIndex(targets, v.names, v.snap)
}

// matched returns how many members each of the orders is for now.
func (v *view) matched(orders []*Order) []int {
	count := make([]int, len(orders))
	if v.snap == nil {
		return count
	}
	x := v.index(orders)
	for _, svc := range v.snap.Services {
		for _, mb := range svc.Members {
			in, _ := x.matching(svc.Name, mb.Name, mb.Site.Name, mb.Site.Zone).first(len(orders))
			for _, i := range in {
				count[i]++
			}
		}
	}
	return count
}

// emptied warns of the services that the order leaves without a member that is up.
func (v *view) emptied(o *Order) []string {
	x := v.index([]*Order{o})
	var all []string
	for _, svc := range v.snap.Services {
		hit, left := false, false
		for _, mb := range svc.Members {
			hit = hit || x.matching(svc.Name, mb.Name, mb.Site.Name, mb.Site.Zone) != nil
			left = left || (mb.AnyUp() && mb.Forced < state.ForcedDrain)
		}
		if hit && !left {
			all = append(all, svc.Name)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("no member is left that is up and not forced away: %s", listed(all))}
}

// orders returns what the view puts in force, for the Store. The functions keep the view.
func (v *view) orders() state.Orders {
	in := v.ordersInForce(v.now)
	// The most restrictive first, and of those the newest: the first that matches is in force, the others are told of.
	slices.SortStableFunc(in, func(a, b *Order) int {
		return cmp.Or(-cmp.Compare(a.forced(), b.forced()), -a.Created.Compare(b.Created), -strings.Compare(a.ID, b.ID))
	})
	x := v.index(in)
	why, also := make([]string, len(in)), make([]string, len(in))
	for i, o := range in {
		why[i], also[i] = o.why(), o.Action+" "+short(o.ID)
	}
	v.picture() // all that is much work is done before the Store asks
	latches := v.latchesInForce()
	return state.Orders{
		Force: func(service, member, site, zone string) state.Force {
			f := v.evacuationForce(service, member, site, zone)
			some, all := x.matching(service, member, site, zone).first(maxNamed + 1)
			if all > 0 && in[some[0]].forced() > f.Forced {
				i := some[0]
				f.Forced, f.Why, f.Since = in[i].forced(), why[i], in[i].Created
				some, all = some[1:], all-1
			}
			if all > 0 {
				var others []string
				for _, i := range some[:min(all, maxNamed)] {
					others = append(others, also[i])
				}
				f.Why += "; also ordered: " + cut(others, all)
			}
			return f
		},
		Latch: func(service string) state.Latch { return latches[service] },
		Site:  v.siteOrders,
	}
}

// forced is what the order forces members to.
func (o *Order) forced() state.Forced {
	switch o.Action {
	case Down:
		return state.ForcedDown
	case Drain:
		return state.ForcedDrain
	}
	return state.ForcedUp
}

// why tells people who ordered it and for what reason.
func (o *Order) why() string {
	until := ""
	if !o.Expires.IsZero() {
		until = ", until " + clock(o.Expires)
	}
	return fmt.Sprintf("%s, by %s (order %s%s)", o.Reason, o.Author, short(o.ID), until)
}
