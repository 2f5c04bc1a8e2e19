package policy

import "fmt"

// cost keeps the members at the sites of the lowest cost. It is optional.
type cost struct{}

func newCost(StepOptions) (Metric, error) { return cost{}, nil }

// Keep implements Metric.
func (cost) Keep(q *Query, set []Candidate) int {
	for i := range set {
		set[i].Value, set[i].NoData = float64(set[i].Site.Cost), false
	}
	q.numbers(set, func(c *Candidate) string { return fmt.Sprintf("cost %d", c.Site.Cost) })
	best, _ := lowest(set)
	return keepUpTo(set, best)
}
