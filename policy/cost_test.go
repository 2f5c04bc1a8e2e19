package policy_test

import "testing"

func TestCost(t *testing.T) {
	compare(t, "cost", []comparison{
		{"the lowest", func(w *world) { w.at("a").Cost = 3; w.at("b").Cost = 1; w.at("c").Cost = 2 }, "b=cost 1 | a=cost 3 c=cost 2", "decided"},
		{"a tie", func(w *world) { w.at("a").Cost = 3 }, "b=cost 0 c=cost 0 | a=cost 3", "narrowed"},
	})
}
