package policy_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
				m.MemberCounts, m.SelectedApart = nil, nil
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

// What some clients are kept away from is not made up for with the others: a share of the clients is that share of the
// answers. Nor do those that are kept away pile up on one of the rest.
func TestHeldBackClientsRotateApart(t *testing.T) {
	tests := []struct {
		name    string
		members string
		set     func(*world, float64)
		without []string // those that are held back
	}{
		{"one of two is evacuated in stages", "a b", func(w *world, share float64) { w.of("a").Moved = stage(share) }, []string{"a"}},
		{"one of four", "a b c d", func(w *world, share float64) { w.of("a").Moved = stage(share) }, []string{"a"}},
		{"two of four", "a b c d", func(w *world, share float64) { w.of("a").Moved, w.of("b").Moved = stage(share), stage(share) }, []string{"a", "b"}},
		{"one of two sheds", "a b", func(w *world, share float64) { w.snapshot.SiteOf(w.of("a")).Shed = share }, []string{"a"}},
		{"one of four sheds", "a b c d", func(w *world, share float64) { w.snapshot.SiteOf(w.of("a")).Shed = share }, []string{"a"}},
		{"one of four starts slowly", "a b c d", func(w *world, share float64) {
			w.SlowStart = 90 * time.Second
			w.of("a").Recovered[state.V4] = now.Add(-time.Duration((1 - share/0.9) * float64(w.SlowStart)))
		}, []string{"a"}},
	}
	c := build(t, defaultChain...)
	for _, tt := range tests {
		for _, share := range []float64{0.25, 0.5, 0.75} {
			t.Run(fmt.Sprintf("%s: %g", tt.name, share), func(t *testing.T) {
				w := newWorld(strings.Fields(tt.members)...)
				tt.set(w, share)
				const queries = 20_000
				rnd := rand.New(rand.NewPCG(1, 2))
				got := map[string]float64{}
				q := w.query()
				for i := range queries {
					var d policy.Decision
					q.Turn, q.LDNS = uint64(i), netip.AddrFrom4([4]byte{20, byte(rnd.IntN(256)), byte(rnd.IntN(256)), 1})
					c.Decide(q, &d)
					d.Members[0].Select(state.V4, d.Apart)
					got[d.Members[0].Name] += 1. / queries
				}
				n := float64(len(w.Members))
				rest := n - float64(len(tt.without))
				for _, m := range w.Members {
					want := (1-share)/n + share/rest
					if slices.Contains(tt.without, m.Name) {
						want = (1 - share) / n
					}
					if math.Abs(got[m.Name]-want) > 0.02 {
						t.Errorf("%s gets %.3f of the answers, want %.3f", m.Name, got[m.Name], want)
					}
				}
			})
		}
	}
}

// A single resolver that a staged order moves goes on seeing every other member.
func TestASingleMovedClientSeesTheRest(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.of("a").Moved = stage(0.25)
	w.of("b").Select(state.V4, false) // it is behind, and nobody else asks
	w.of("b").Weight, w.of("c").Weight = 30, 10
	c, q := build(t, defaultChain...), w.query()
	client(true)(q)
	got := map[string]int{}
	for i := range 400 {
		var d policy.Decision
		q.Turn = uint64(i)
		c.Decide(q, &d)
		d.Members[0].Select(state.V4, d.Apart)
		got[d.Members[0].Name]++
	}
	if got["a"] != 0 || got["b"] != 300 || got["c"] != 100 {
		t.Errorf("answers: %v, want b 300 and c 100", got)
	}
}
