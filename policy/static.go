package policy

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// static puts what is left into one order. It rejects nobody: the first of the order is the answer.
type static struct {
	method string
	order  func(*Query, []Candidate)
}

func newStatic(o StepOptions) (Metric, error) {
	m := static{method: o.Method}
	switch o.Method {
	case "round-robin":
		m.order = roundRobin
	case "weighted":
		m.order = weighted
	case "hash":
		m.order = rendezvous
	case "ordered":
		m.order = func(*Query, []Candidate) {} // candidates come in the order of the configuration
	default:
		return nil, fmt.Errorf("unknown method %q; known are round-robin, weighted, hash, ordered", o.Method)
	}
	return m, nil
}

// Keep implements Metric.
func (m static) Keep(q *Query, set []Candidate) int {
	m.order(q, set)
	if q.Trace != nil {
		switch m.method {
		case "round-robin", "weighted":
			q.note("%s, turn %d of %s", m.method, q.Turn, q.Family)
		case "hash":
			q.note("hash of %s", q.client())
		default:
			q.note("as configured")
		}
		if m.method == "weighted" || m.method == "hash" {
			for i := range set {
				q.number(set[i].Member, fmt.Sprintf("weight %d", set[i].Weight), "")
			}
		}
	}
	return len(set)
}

// shiftEvery is after how many rounds round-robin begins a round elsewhere.
const shiftEvery = 8

// roundRobin turns set so that every candidate comes first once in each round of turns. A round begins elsewhere every
// few rounds: turns are shared by all clients of the service, and one group of them that comes at every second turn
// would otherwise only ever see half of an even number of candidates.
func roundRobin(q *Query, set []Candidate) {
	n := uint64(len(set))
	var first uint64
	if q.scratch.answer == 0 {
		shift, _ := bits.Mul64(q.Turn/n/shiftEvery*golden, n)
		first = (q.Turn + shift) % n
	} else {
		// A further answer must not move in step with the first, or some members would only come in pairs.
		first, _ = bits.Mul64(q.spread(), n)
	}
	slices.Reverse(set[:first])
	slices.Reverse(set[first:])
	slices.Reverse(set)
}

// weighted draws one candidate after the other, each with a chance in proportion to its weight among those left. The
// chance comes from the turn and is spread evenly, so that the shares are met closely after few turns.
func weighted(q *Query, set []Candidate) {
	x := fraction(q.spread())
	total := 0.0
	for i := range set {
		total += weight(&set[i])
	}
	for ; len(set) > 1; set = set[1:] {
		point, i := x*total, 0
		for ; i < len(set)-1 && point >= weight(&set[i]); i++ {
			point -= weight(&set[i])
		}
		drawn := set[i]
		copy(set[1:i+1], set[:i])
		set[0] = drawn
		total -= weight(&drawn)
		x = min(point/weight(&drawn), 1) // where the point fell within its share is even as well
	}
}

// spread maps the turn to a number that is evenly spread over all 64 bits, in another way for each answer of a decision.
func (q *Query) spread() uint64 {
	if q.scratch.answer == 0 {
		return q.Turn * golden
	}
	return q.Turn * (mix(uint64(q.scratch.answer)) | 1)
}

// rendezvous orders set by a hash of the client's network and each member's name, weighted. A client keeps its member
// while that one is a candidate, whoever else comes and goes, for both types and at every gslbd.
func rendezvous(q *Query, set []Candidate) {
	client := q.clientHash()
	for i := range set {
		c := &set[i]
		// The member with the least -ln(u)/weight wins in proportion to its weight, for u evenly in (0, 1].
		c.Value = -math.Log(1-drawn(client, c.Hash, saltStatic)) / weight(c)
	}
	slices.SortStableFunc(set, func(a, b Candidate) int { return cmp.Compare(a.Value, b.Value) })
}
