package policy

import "gslbd/state"

// slowStartShare is the share of clients that a member is held back from at the moment when it recovers.
const slowStartShare = 0.9

// health keeps the members that are up. A member that has just recovered, in a service with slow_start, is held back
// from a share of the clients that falls from 90 % to nothing, so that cold caches and connection pools warm up.
//
// The chain consults it always, wherever it stands, and begins again without those that it rejects when nothing else is
// left; see Chain.run. on_all_down belongs to it as well; see Chain.Decide.
type health struct{}

func newHealth(StepOptions) (Metric, error) { return health{}, nil }

// Keep implements Metric. What it rejects was decided by mark, with all candidates in view.
func (health) Keep(q *Query, set []Candidate) int {
	if q.Trace != nil {
		for i := range set {
			c := &set[i]
			switch {
			case !c.Up[q.Family]:
				q.number(c.Member, "down", c.Why[q.Family])
			case c.Rejected:
				q.number(c.Member, "up", "slow start: held back from "+percent(heldBack(q, c.Member))+" of clients, this one too")
			default:
				q.number(c.Member, "up", c.Why[q.Family])
			}
		}
	}
	return keep(set, func(c *Candidate) bool { return !c.Rejected })
}

// mark sets Rejected in the candidates that health rejects for this client, and reports whether any is left. Slow start
// only applies while a candidate is up that is not in it.
func mark(q *Query, set []Candidate) bool {
	up, warm := false, false
	for i := range set {
		c := &set[i]
		c.Rejected = !c.Up[q.Family]
		if !c.Rejected {
			up = true
			warm = warm || heldBack(q, c.Member) == 0
		}
	}
	if !warm || q.Service.SlowStart <= 0 {
		return up
	}
	for i := range set {
		c := &set[i]
		if share := heldBack(q, c.Member); !c.Rejected && share > 0 {
			c.Rejected = drawn(q.clientHash(), c.Hash, saltSlowStart) < share
			q.scratch.apart = q.scratch.apart || c.Rejected
		}
	}
	return true
}

// heldBack returns the share of clients that slow start keeps from the member.
func heldBack(q *Query, m *state.Member) float64 {
	all := q.Service.SlowStart
	if all <= 0 {
		return 0
	}
	recovered := m.Recovered[q.Family]
	if recovered.IsZero() {
		return 0
	}
	left := all - max(q.Now.Sub(recovered), 0)
	if left <= 0 {
		return 0
	}
	return slowStartShare * float64(left) / float64(all)
}
