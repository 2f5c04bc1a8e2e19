package policy

import (
	"errors"
	"time"

	"gslbd/state"
)

// rtt keeps the members whose site is near the client in the network's view: a round trip of at most
// max(best x (1+tolerance), best + toleranceAbs). The value is a median that state holds; a query never waits for one.
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
	for i := range set {
		c := &set[i]
		c.NoData = true
		if row == nil || c.Site.RTTBlind || c.Site.Freshness == state.Stale || c.Site.Freshness == state.Dead {
			continue
		}
		if value, ok := row.Fresh(c.Member.Site.ID, oldest); ok {
			c.Value, c.NoData = float64(value), false
		}
	}
	q.numbers(set, func(c *Candidate) string { return milliseconds(time.Duration(c.Value)) })
	if q.Trace != nil {
		q.note("%s", q.client())
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
