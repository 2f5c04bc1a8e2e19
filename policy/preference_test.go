package policy_test

import "testing"

// Preferences 20, 10, 30 in that order: the highest is chosen, however the list is permuted (report B154).
func TestPreferenceNotOrder(t *testing.T) {
	c := build(t, "health", "capacity", "preference", "static")
	for _, order := range [][]string{
		{"x20", "x10", "x30"}, {"x20", "x30", "x10"}, {"x10", "x20", "x30"}, {"x10", "x30", "x20"}, {"x30", "x10", "x20"}, {"x30", "x20", "x10"},
	} {
		w := newWorld(order...)
		w.of("x10").Preference, w.of("x20").Preference, w.of("x30").Preference = 10, 20, 30
		if got := w.always(c); got != "x30" {
			t.Errorf("%v: got %s", order, got)
		}
		_, _, trace := w.decide(c)
		if got := kept(trace, "preference"); got != "x30=30 | x10=10 x20=20" {
			t.Error(got)
		}
	}
}

// Two members of preference 20 and one of 10: answers come from both 20s (report B156).
func TestPreferenceTie(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.of("a").Preference, w.of("b").Preference, w.of("c").Preference = 20, 10, 20
	if got := w.always(build(t, "preference", "static")); got != "a c" {
		t.Errorf("got %s, want a c", got)
	}
	w.of("b").Preference = 0
	w.down("a", "c")
	if got := w.always(build(t, "health", "preference", "static")); got != "b" {
		t.Errorf("got %s, want b, of preference 0", got)
	}
}
