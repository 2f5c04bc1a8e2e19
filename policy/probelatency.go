package policy

import (
	"errors"
	"time"

	"gslbd/state"
)

// probeLatency keeps the members that answer gslbd's own health check fastest, within tolerance of the fastest. It is
// optional. It says how far a member is from gslbd, not from the client.
type probeLatency struct{ tolerance float64 }

func newProbeLatency(o StepOptions) (Metric, error) {
	if o.Tolerance < 0 {
		return nil, errors.New("tolerance must not be negative")
	}
	return probeLatency{tolerance: o.Tolerance}, nil
}

// Keep implements Metric. It takes the faster of a member's families, so that A and AAAA get the same verdict.
func (m probeLatency) Keep(q *Query, set []Candidate) int {
	for i := range set {
		c := &set[i]
		c.NoData = true
		for _, f := range [...]state.Family{state.V4, state.V6} {
			if v := float64(c.Latency[f]); c.HasLatency[f] && (c.NoData || v < c.Value) {
				c.Value, c.NoData = v, false
			}
		}
	}
	q.numbers(set, func(c *Candidate) string { return milliseconds(time.Duration(c.Value)) })
	best, known := lowest(set)
	if known < 2 {
		return Abstain
	}
	return keepUpTo(set, best*(1+m.tolerance))
}
