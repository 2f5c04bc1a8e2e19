package policy

import (
	"errors"
	"fmt"
)

// connectionLoad keeps the members whose site opens few new sessions: the mean of the last reports, in sessions per
// second, x 100 / weight, within tolerance of the lowest. With a limit it keeps those at or below the limit instead,
// before weighting.
//
// A site from which a share of the clients is held back opens fewer for that alone. It is compared by what it would open
// for all of them, or the others would be sent there to make up for it.
type connectionLoad struct {
	tolerance     float64
	toleranceRate float64 // sessions per second
	limit         float64 // sessions per second; 0: off
}

func newConnectionLoad(o StepOptions) (Metric, error) {
	if o.Tolerance < 0 || o.ToleranceRate < 0 || o.Limit < 0 {
		return nil, errors.New("tolerance, tolerance_abs and limit must not be negative")
	}
	return connectionLoad{tolerance: o.Tolerance, toleranceRate: o.ToleranceRate, limit: o.Limit}, nil
}

// Keep implements Metric. A limit needs one candidate with data, a comparison two. When all that have data are above the
// limit it rejects everyone and so is skipped: the whole load should not go to a site that has fallen silent.
func (m connectionLoad) Keep(q *Query, set []Candidate) int {
	held := false
	for i := range set {
		c := &set[i]
		c.Value, c.NoData = c.Site.NewSessions, !c.Site.HasNewSessions
		if m.limit == 0 {
			open := openTo(q, c)
			held = held || open < 1
			c.Value *= 100 / weight(c) / open
		}
	}
	q.numbers(set, func(c *Candidate) string { return fmt.Sprintf("%.4g/s", c.Value) })
	best, known := lowest(set)
	switch {
	case m.limit > 0 && known > 0:
		if q.Trace != nil {
			q.note("limit %.4g/s", m.limit)
		}
		if best > m.limit {
			return 0
		}
		return keepUpTo(set, m.limit)
	case known < 2:
		return Abstain
	}
	if held && q.Trace != nil {
		q.note("as if no clients were held back")
	}
	return keepUpTo(set, max(best*(1+m.tolerance), best+m.toleranceRate))
}

// openTo returns the share of clients that staged orders, shedding and slow start do not hold back from the member. It is
// at least leastOpen, since little is known of how many the last few would be.
func openTo(q *Query, c *Candidate) float64 {
	open := 1 - c.Site.Shed
	if q.scratch.ready {
		return max(open, leastOpen)
	}
	open *= 1 - heldBack(q, c.Member)
	for i := range c.Moved {
		open *= 1 - c.Moved[i].Share
	}
	return max(open, leastOpen)
}

const leastOpen = 0.01
