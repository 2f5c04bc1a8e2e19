package policy

import (
	"errors"
	"fmt"
	"time"

	"gslbd/state"
)

// rtt keeps the members whose site is near the client in the network's view: a round trip of at most
// max(best x (1+tolerance), best + toleranceAbs). The value is what state makes of the last samples; a query never waits for one.
// Only values of one method are compared.
type rtt struct {
	tolerance    float64
	toleranceAbs time.Duration
	maxAge       time.Duration // older values are no data
	requireData  bool          // reject the candidates without data, instead of keeping them beside the near ones
}

func newRTT(o StepOptions) (Metric, error) {
	if o.Tolerance < 0 || o.ToleranceAbs < 0 {
		return nil, errors.New("tolerance and tolerance_abs must not be negative")
	}
	if o.MaxAge <= 0 {
		return nil, errors.New("max_age must be above 0")
	}
	return rtt{tolerance: o.Tolerance, toleranceAbs: o.ToleranceAbs, maxAge: o.MaxAge, requireData: o.RequireData}, nil
}

// Keep implements Metric.
//
// An ECS prefix that is shorter than the table's networks makes it abstain, and still widens the scope to their length:
// that tells the resolver to send more, and to keep this answer for no more than the prefix that it sent (RFC 7871,
// section 7.2.1).
func (m rtt) Keep(q *Query, set []Candidate) int {
	c := q.client()
	if !c.prefix.IsValid() {
		return Abstain
	}
	length := q.Snapshot.RTT.Bits(c.prefix.Addr())
	if c.ecs {
		q.Widen(length)
		if c.prefix.Bits() < length {
			if q.Trace != nil {
				q.note("%s is shorter than /%d", c, length)
			}
			return Abstain
		}
	}
	key := q.Snapshot.RTT.Key(c.prefix.Addr())
	return m.keep(q, set, q.Snapshot.RTT.Row(key))
}

// keep compares the candidates by the row of the client's network; nil: nothing is known of it.
func (m rtt) keep(q *Query, set []Candidate, row *state.RTTRow) int {
	oldest := q.Snapshot.RTT.Moment(q.Now.Add(-m.maxAge))
	var method, last state.RTTMethod
	if row != nil {
		if method, last = row.Methods(); method != last {
			method = common(set, row, oldest)
		}
	}
	for i := range set {
		c := &set[i]
		value, ok := roundTrip(c, row, method, oldest)
		c.Value, c.NoData = float64(value), !ok
	}
	if q.Trace != nil {
		trace(q, set, row, method, oldest)
	}
	best, known := lowest(set)
	limit := max(best*(1+m.tolerance), best+float64(m.toleranceAbs))
	switch {
	case m.requireData:
		return keep(set, func(c *Candidate) bool { return !c.NoData && c.Value <= limit })
	case known < 2:
		return Abstain
	}
	return keepUpTo(set, limit)
}

// roundTrip returns the candidate's fresh value by the method, if its site may be believed.
func roundTrip(c *Candidate, row *state.RTTRow, method state.RTTMethod, oldest state.RTTMoment) (time.Duration, bool) {
	if believed(c)&(1<<method) == 0 {
		return 0, false
	}
	return row.Fresh(c.Member.Site.ID, method, oldest)
}

// believed returns by which methods the candidate's site may be believed, as RTTRow.FreshBy does. A blind site knows the
// connections of its clients as well as any.
func believed(c *Candidate) uint8 {
	switch {
	case c.Site.Freshness == state.Stale || c.Site.Freshness == state.Dead:
		return 0
	case c.Site.RTTBlind:
		return 1 << state.RTTPassive
	}
	return 1<<state.RTTMethods - 1
}

// common returns the method by which the candidates are compared where the row has several: passive if two candidates
// have it, since it is what the users see; else the one that the most have, and of those the first.
func common(set []Candidate, row *state.RTTRow, oldest state.RTTMoment) state.RTTMethod {
	var have [state.RTTMethods]int
	for i := range set {
		c := &set[i]
		methods := row.FreshBy(c.Member.Site.ID, oldest) & believed(c)
		for m := range have {
			have[m] += int(methods >> m & 1)
		}
	}
	if have[state.RTTPassive] >= 2 {
		return state.RTTPassive
	}
	best := 0
	for m := range have {
		if have[m] > have[best] {
			best = m
		}
	}
	return state.RTTMethod(best)
}

// trace records what was compared, and what was not since it is of another method.
func trace(q *Query, set []Candidate, row *state.RTTRow, method state.RTTMethod, oldest state.RTTMoment) {
	q.numbers(set, func(c *Candidate) string { return milliseconds(time.Duration(c.Value)) })
	q.note("%s", q.client())
	if row == nil {
		return
	}
	first, last := row.Methods()
	if last != state.RTTICMP {
		q.note("%s, by %s", q.client(), method)
	}
	for i := range set {
		c := &set[i]
		for other := first; c.NoData && other <= last; other++ {
			if value, ok := roundTrip(c, row, other, oldest); ok {
				q.number(c.Member, "", fmt.Sprintf("%s by %s only: %s", milliseconds(value), other, noData))
				break
			}
		}
	}
}
