package policy

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gslbd/state"
)

// leastSelected keeps the members with the fewest selections per weight. state counts and decays them, by family and
// apart for clients that something is held back from; they are only read here.
type leastSelected struct {
	halfLife time.Duration // for state, by way of Chain.HalfLife
}

func newLeastSelected(o StepOptions) (Metric, error) {
	if o.HalfLife <= 0 {
		return nil, errors.New("half_life must be above 0")
	}
	return leastSelected{halfLife: o.HalfLife}, nil
}

// perWeight returns what a candidate's count is for its weight.
func perWeight(count *atomic.Int64, c *Candidate) float64 {
	return float64(count.Load()) / state.SelectedUnit / weight(c)
}

// Keep implements Metric.
func (leastSelected) Keep(q *Query, set []Candidate) int {
	for i := range set {
		c := &set[i]
		c.Value, c.NoData = 0, false
		switch {
		case q.scratch.apart:
			if s := c.SelectedApart; s != nil {
				c.Value = perWeight(&s[q.Family], c)
			}
		case c.Counts != nil:
			c.Value = perWeight(&c.Counts.Selected[q.Family], c)
		}
	}
	q.numbers(set, func(c *Candidate) string { return fmt.Sprintf("%.4g selections", c.Value*weight(c)) })
	if q.Trace != nil {
		if q.scratch.apart {
			q.note("decayed, per weight, %s only, of clients that are held back from some member", q.Family)
		} else {
			q.note("decayed, per weight, %s only", q.Family)
		}
	}
	best, _ := lowest(set)
	return keepUpTo(set, best)
}
