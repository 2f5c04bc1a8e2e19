package policy

import "fmt"

// nearLowest is how far above the lowest utilisation a site may be when all are overloaded: 10 points.
const nearLowest = 0.1

// capacity keeps the members whose site is not overloaded; if all are, those within 10 points of the lowest utilisation.
// A site without data or thresholds is not overloaded. Of those kept, it takes away the ones whose site sheds this
// client (capacity.shed_from), but never the last: when every site would shed it, one remains.
type capacity struct{}

func newCapacity(StepOptions) (Metric, error) { return capacity{}, nil }

// Keep implements Metric.
func (capacity) Keep(q *Query, set []Candidate) int {
	if q.Snapshot.Calm && q.Trace == nil {
		return len(set)
	}
	data := false
	for i := range set {
		c := &set[i]
		c.Value, c.NoData = c.Site.Utilisation, !c.Site.HasUtilisation
		data = data || !c.NoData || c.Site.Overloaded || c.Site.Shed > 0
	}
	q.numbers(set, func(c *Candidate) string { return percent(c.Value) })
	if !data {
		return Abstain
	}
	if q.Trace != nil {
		for i := range set {
			if c := &set[i]; c.Site.Overloaded {
				q.number(c.Member, utilisation(c), because("overloaded", c.Site.OverloadedWhy))
			}
		}
	}
	n := keep(set, func(c *Candidate) bool { return !c.Site.Overloaded })
	if n > 0 {
		return shed(q, set[:n])
	}
	best, known := lowest(set)
	if known < 2 {
		return len(set)
	}
	if q.Trace != nil {
		q.note("all are overloaded; within 10 points of the lowest, %s", percent(best))
	}
	return keepUpTo(set, best+nearLowest)
}

// shed keeps the candidates whose site does not shed this client. If all do, it keeps the one that comes nearest to keeping it, which
// differs by client: all of these to the site that sheds least would fill that at once, and then the next (docs/capacity.md).
func shed(q *Query, set []Candidate) int {
	if len(set) == 1 {
		return 1
	}
	any := false
	for i := range set {
		any = any || set[i].Site.Shed > 0
	}
	if !any {
		return len(set)
	}
	client := q.clientHash()
	missing := func(c *Candidate) float64 { return c.Site.Shed - drawn(client, c.Hash, saltShed) }
	away := func(c *Candidate) bool { return missing(c) > 0 }
	n := keep(set, func(c *Candidate) bool { return !away(c) })
	q.scratch.apart = q.scratch.apart || n < len(set)
	if n == 0 {
		least := missing(&set[0])
		for i := range set {
			least = min(least, missing(&set[i]))
		}
		n = keep(set, func(c *Candidate) bool { return missing(c) <= least })
	}
	if q.Trace != nil {
		for i := range set {
			c := &set[i]
			switch {
			case c.Site.Shed == 0:
			case away(c):
				q.number(c.Member, utilisation(c), "sheds "+percent(c.Site.Shed)+" of clients, this one too"+heading(c))
			default:
				q.number(c.Member, utilisation(c), "sheds "+percent(c.Site.Shed)+" of clients, not this one"+heading(c))
			}
		}
		q.note("by a hash of %s", q.client())
	}
	return n
}

// utilisation writes a site's utilisation for a trace; empty: unknown.
func utilisation(c *Candidate) string {
	if !c.Site.HasUtilisation {
		return ""
	}
	return percent(c.Site.Utilisation)
}

// heading says where a site's load goes, if that is up; else it is empty.
func heading(c *Candidate) string {
	if !c.Site.HasUtilisation || c.Site.Heading <= c.Site.Utilisation {
		return ""
	}
	return fmt.Sprintf("; its new sessions lead to %.0f %%", 100*c.Site.Heading)
}
