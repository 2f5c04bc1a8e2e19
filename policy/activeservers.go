package policy

import "fmt"

// activeServers keeps the members with the most servers up behind their virtual servers. It is optional.
type activeServers struct{}

func newActiveServers(StepOptions) (Metric, error) { return activeServers{}, nil }

// Keep implements Metric. A member whose virtual servers no report lists has no data.
func (activeServers) Keep(q *Query, set []Candidate) int {
	for i := range set {
		set[i].Value, set[i].NoData = -float64(set[i].ServersUp), !set[i].HasServers
	}
	q.numbers(set, func(c *Candidate) string { return fmt.Sprintf("%d servers up", c.ServersUp) })
	best, known := lowest(set)
	if known < 2 {
		return Abstain
	}
	return keepUpTo(set, best)
}
