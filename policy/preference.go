package policy

import "strconv"

// preference keeps the members with the highest preference.
type preference struct{}

func newPreference(StepOptions) (Metric, error) { return preference{}, nil }

// Keep implements Metric.
func (preference) Keep(q *Query, set []Candidate) int {
	for i := range set {
		set[i].Value, set[i].NoData = -float64(set[i].Preference), false
	}
	q.numbers(set, func(c *Candidate) string { return strconv.Itoa(int(c.Preference)) })
	best, _ := lowest(set)
	return keepUpTo(set, best)
}
