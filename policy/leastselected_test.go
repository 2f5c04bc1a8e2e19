package policy_test

import (
	"testing"

	"gslbd/policy"
	"gslbd/state"
)

func TestLeastSelected(t *testing.T) {
	count := func(w *world, name string, n float64) {
		w.of(name).Selected[state.V4].Store(int64(n * state.SelectedUnit))
	}
	tests := []struct {
		name    string
		set     func(*world)
		kept    string
		verdict string
	}{
		{"nobody was", func(*world) {}, "a=0 selections b=0 selections c=0 selections | ", "kept all"},
		{"nobody is counted", func(w *world) {
			for _, m := range w.Members {
				m.Selected = nil
			}
		}, "a=0 selections b=0 selections c=0 selections | ", "kept all"},
		{"the fewest", func(w *world) { count(w, "a", 3); count(w, "b", 2.5); count(w, "c", 4) }, "b=2.5 selections | a=3 selections c=4 selections", "decided"},
		{"a tie", func(w *world) { count(w, "a", 3); count(w, "b", 2.5); count(w, "c", 2.5) }, "b=2.5 selections c=2.5 selections | a=3 selections", "narrowed"},
		{"per weight", func(w *world) {
			count(w, "a", 6)
			count(w, "b", 4)
			count(w, "c", 4)
			w.of("a").Weight = 200
		}, "a=6 selections | b=4 selections c=4 selections", "decided"},
		{"the other family's do not count", func(w *world) {
			w.of("a").Selected[state.V6].Store(9 * state.SelectedUnit)
		}, "a=0 selections b=0 selections c=0 selections | ", "kept all"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			_, _, trace := w.decide(build(t, "least-selected"))
			if got := kept(trace, "least-selected"); got != tt.kept || trace.Steps[0].Verdict != tt.verdict {
				t.Errorf("got %s: %s, want %s: %s", trace.Steps[0].Verdict, got, tt.verdict, tt.kept)
			}
		})
	}
	t.Run("a client that always asks in pairs sees every member", func(t *testing.T) {
		w := newWorld("a", "b")
		c, q := build(t, "least-selected", "static"), w.query()
		seen := map[string]int{}
		for range 100 {
			for _, f := range []state.Family{state.V4, state.V6} {
				var d policy.Decision
				q.Family = f
				c.Decide(q, &d)
				d.Members[0].Selected[f].Add(state.SelectedUnit)
				seen[f.String()+d.Members[0].Name]++
			}
		}
		for _, k := range []string{"ipv4a", "ipv4b", "ipv6a", "ipv6b"} {
			if seen[k] != 50 {
				t.Errorf("%s was answered %d times of 100", k, seen[k])
			}
		}
	})
	t.Run("shares follow the weights", func(t *testing.T) {
		w := newWorld("a", "b")
		w.of("a").Weight, w.of("b").Weight = 30, 10
		c, q := build(t, "least-selected", "static"), w.query()
		for i := range 4000 {
			var d policy.Decision
			q.Turn = uint64(i)
			c.Decide(q, &d)
			d.Members[0].Selected[state.V4].Add(state.SelectedUnit)
		}
		if got := w.of("a").Selected[state.V4].Load() / state.SelectedUnit; got != 3000 {
			t.Errorf("a was selected %d times, want 3000", got)
		}
	})
}
