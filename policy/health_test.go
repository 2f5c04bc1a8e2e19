package policy_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

// The seed's example: both US servers are down, the answer is Korea.
func TestHealthKeepsThoseUp(t *testing.T) {
	w := newWorld("korea", "us")
	w.down("us")
	w.of("us").Why[state.V4] = "0 of 2 servers up"
	got, d, trace := w.decide(build(t, defaultChain...))
	if got != "korea" || d.Reason.String() != "health" || d.TTL != 30 {
		t.Errorf("got %s by %s, TTL %d", got, d.Reason, d.TTL)
	}
	if got := kept(trace, "health"); got != "korea=up | us=down(0 of 2 servers up)" {
		t.Error(got)
	}
}

func TestHealthIsOfTheFamily(t *testing.T) {
	w := newWorld("a", "b")
	w.of("a").Up[state.V6] = false
	c := build(t, "health")
	if got, _, _ := w.decide(c); got != "a" {
		t.Errorf("A: %s", got)
	}
	if got, _, _ := w.decide(c, family(state.V6)); got != "b" {
		t.Errorf("AAAA: %s", got)
	}
}

// Rotations in turn, three servers, one down: 3,000 queries, no answer contains the down one (report B023).
func TestRotationNeverPicksTheDown(t *testing.T) {
	for _, method := range []string{"static", "static=weighted", "static=hash", "static=ordered", "least-selected"} {
		for _, chain := range [][]string{{"health", method}, {method, "health"}} {
			w := newWorld("a", "b", "c")
			w.Service.Answers = 3
			w.down("b")
			c, q := build(t, chain...), w.query()
			for i := range 3000 {
				q.Turn, q.LDNS = uint64(i), netip.AddrFrom4([4]byte{9, byte(i >> 8), byte(i), 1})
				var d policy.Decision
				c.Decide(q, &d)
				if d.N != 2 || d.Members[0].Name == "b" || d.Members[1].Name == "b" {
					t.Fatalf("%v: query %d: %s", chain, i, answers(&d))
				}
				d.Members[0].Selected[state.V4].Add(state.SelectedUnit)
			}
		}
	}
}

func TestSlowStart(t *testing.T) {
	share := func(w *world, c *policy.Chain) float64 { // of clients that get a, by preference
		n := 0
		q := w.query()
		for i := range 4000 {
			q.LDNS = netip.AddrFrom4([4]byte{30, byte(i >> 8), byte(i), 9})
			var d policy.Decision
			c.Decide(q, &d)
			if d.Members[0].Name == "a" {
				n++
			}
		}
		return float64(n) / 4000
	}
	for _, chain := range [][]string{{"health", "preference"}, {"preference", "health"}} {
		c := build(t, chain...)
		for _, tt := range []struct {
			name string
			set  func(*world)
			want float64
		}{
			{"just recovered", func(w *world) { w.of("a").Recovered[state.V4] = now }, 0.1},
			{"half way", func(w *world) { w.of("a").Recovered[state.V4] = now.Add(-30 * time.Second) }, 0.55},
			{"over", func(w *world) { w.of("a").Recovered[state.V4] = now.Add(-time.Minute) }, 1},
			{"long ago", func(w *world) { w.of("a").Recovered[state.V4] = now.Add(-time.Hour) }, 1},
			{"the clock is behind", func(w *world) { w.of("a").Recovered[state.V4] = now.Add(time.Second) }, 0.1},
			{"never was down", func(*world) {}, 1},
			{"the other family", func(w *world) { w.of("a").Recovered[state.V6] = now }, 1},
			{"off", func(w *world) { w.of("a").Recovered[state.V4], w.SlowStart = now, 0 }, 1},
			{"nobody else is up", func(w *world) { w.of("a").Recovered[state.V4] = now; w.down("b", "c") }, 1},
			{"all the others start slowly too", func(w *world) {
				for _, m := range w.Members {
					m.Recovered[state.V4] = now
				}
			}, 1},
		} {
			t.Run(fmt.Sprint(chain, tt.name), func(t *testing.T) {
				w := newWorld("a", "b", "c")
				w.of("a").Preference, w.SlowStart = 900, time.Minute
				tt.set(w)
				if got := share(w, c); math.Abs(got-tt.want) > 0.03 {
					t.Errorf("a serves %.3f of the clients, want %.2f", got, tt.want)
				}
			})
		}
	}

	t.Run("those who are let in stay in", func(t *testing.T) {
		c := build(t, "health", "preference")
		w := newWorld("a", "b")
		w.of("a").Preference, w.SlowStart = 900, time.Minute
		for i := range 200 {
			in := false
			for age := time.Duration(0); age <= time.Minute; age += time.Second {
				w.of("a").Recovered[state.V4] = now.Add(-age)
				got, _, _ := w.decide(c, from(fmt.Sprintf("30.0.%d.1", i)))
				if in && got != "a" {
					t.Fatalf("client %d was taken away again after %s", i, age)
				}
				in = got == "a"
			}
			if !in {
				t.Fatalf("client %d is held back for ever", i)
			}
		}
	})

	t.Run("trace and scope", func(t *testing.T) {
		w := newWorld("a", "b")
		w.SlowStart = time.Minute
		w.of("a").Recovered[state.V4] = now.Add(-30 * time.Second)
		c := build(t, "health", "preference")
		q := w.query()
		q.ECS, q.Trace = netip.MustParsePrefix("30.0.0.0/20"), &policy.Trace{}
		for i := 0; ; i++ {
			var d policy.Decision
			q.ECS = netip.PrefixFrom(netip.AddrFrom4([4]byte{30, 0, byte(i << 4)}), 20)
			if c.Decide(q, &d); d.Members[0].Name == "b" {
				break
			}
		}
		if q.Scope != 24 {
			t.Errorf("scope %d, want 24", q.Scope)
		}
		want := "b=up | a=up(slow start: held back from 45 % of clients, this one too)"
		if got := kept(q.Trace, "health"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
