package policy

import "math"

// keep moves those of set that accept likes to the front, in their order, and returns their number. Those that it does
// not like end up behind them in no particular order; when it likes none, set is as it was.
func keep(set []Candidate, accept func(*Candidate) bool) int {
	n := 0
	for i := range set {
		if accept(&set[i]) {
			if n != i { // mostly all are kept
				set[n], set[i] = set[i], set[n]
			}
			n++
		}
	}
	return n
}

// lowest returns the lowest Value in set and how many candidates have one.
func lowest(set []Candidate) (best float64, known int) {
	best = math.Inf(1)
	for i := range set {
		if !set[i].NoData {
			best = min(best, set[i].Value)
			known++
		}
	}
	return best, known
}

// keepUpTo keeps the candidates whose Value is at most limit, and those without data. A comparing metric calls it with a
// limit that it derives from the best: everyone is compared with the best alone, since "near enough to each other" is
// not transitive.
func keepUpTo(set []Candidate, limit float64) int {
	return keep(set, func(c *Candidate) bool { return c.NoData || c.Value <= limit })
}

// weight returns the member's weight as a divisor. Members of weight 0 are only compared when nothing else is up, and
// then alike.
func weight(c *Candidate) float64 { return float64(max(c.Weight, 1)) }
