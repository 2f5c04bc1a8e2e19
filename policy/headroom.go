package policy

import (
	"errors"
	"fmt"
)

// headroom keeps the members whose site has the most free sessions below its threshold, within tolerance of the most
// (100 % and more keep everyone). It is optional.
type headroom struct{ tolerance float64 }

func newHeadroom(o StepOptions) (Metric, error) {
	if o.Tolerance < 0 {
		return nil, errors.New("tolerance must not be negative")
	}
	return headroom{tolerance: o.Tolerance}, nil
}

// Keep implements Metric. A site without a sessions threshold has no data, and neither has one whose reports do not tell of
// sessions.
func (m headroom) Keep(q *Query, set []Candidate) int {
	for i := range set {
		c := &set[i]
		c.Value, c.NoData = 0, !c.Site.HasSessions || c.Site.SessionsLimit == 0
		if c.Site.SessionsLimit > c.Site.Sessions {
			c.Value = -float64(c.Site.SessionsLimit - c.Site.Sessions) // so that the lowest is the best
		}
	}
	q.numbers(set, func(c *Candidate) string { return fmt.Sprintf("%.0f free sessions", max(-c.Value, 0)) })
	best, known := lowest(set)
	if known < 2 {
		return Abstain
	}
	return keepUpTo(set, best*(1-m.tolerance))
}
