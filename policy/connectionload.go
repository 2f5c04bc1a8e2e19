package policy

import (
	"errors"
	"fmt"
)

// connectionLoad keeps the members whose site opens few new sessions: the mean of the last reports, in sessions per
// second, x 100 / weight, within tolerance of the lowest. With a limit it keeps those at or below the limit instead,
// before weighting.
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
	for i := range set {
		c := &set[i]
		c.Value, c.NoData = c.Site.NewSessions, !c.Site.HasNewSessions
		if m.limit == 0 {
			c.Value *= 100 / weight(c)
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
	return keepUpTo(set, max(best*(1+m.tolerance), best+m.toleranceRate))
}
