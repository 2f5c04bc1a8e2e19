package policy

// A Chain is a compiled policy.
type Chain struct{}

// Decide decides q into d.
func (c *Chain) Decide(q *Query, d *Decision) {}

type scratch struct{}

// A Trace records how a decision came about.
type Trace struct{}
