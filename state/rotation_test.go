package state_test

import (
	"math"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

func TestSelectionsDecayByHalfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		a, b := r.member("www.example.com", "seoul").Selected, r.member("www.example.com", "virginia").Selected
		for range 1000 {
			a[state.V4].Add(state.SelectedUnit)
			b[state.V4].Add(state.SelectedUnit)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := float64(a[state.V4].Load()) / state.SelectedUnit; math.Abs(got-500) > 1 {
			t.Errorf("after a half-life of 1000 are left %g", got)
		}
		if a[state.V4].Load() != b[state.V4].Load() {
			t.Error("equal counts did not stay equal")
		}
		if n := a[state.V6].Load(); n != 0 {
			t.Errorf("the other family counts %d", n)
		}
	})
}

func TestSelectionsMadeDuringDecayAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].HalfLife = 1e6 * time.Hour }))
		sel := r.member("www.example.com", "seoul").Selected
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 1000 {
					sel[state.V4].Add(state.SelectedUnit)
					if i%100 == 0 {
						time.Sleep(time.Second)
					}
				}
			})
		}
		wg.Wait()
		if got := float64(sel[state.V4].Load()) / state.SelectedUnit; math.Abs(got-4000) > 1 {
			t.Errorf("%g selections, want 4000", got)
		}
	})
}

func TestWhoJoinsStartsAtItsPeersHighestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		third := func(weight int) func(*state.Config) {
			return func(c *state.Config) {
				c.Services[0].HalfLife = 1e6 * time.Hour
				c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{
					Name: "third", Site: "seoul", Addresses: [2]netip.Addr{addr("3.3.3.3")}, Weight: weight,
				})
			}
		}
		spare := func(c *state.Config) { // answered often once, but of the other pool
			c.Services[0].HalfLife = 1e6 * time.Hour
			c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{
				Name: "spare", Site: "seoul", Addresses: [2]netip.Addr{addr("4.4.4.4")}, Weight: 100, Role: state.Backup,
			})
		}
		r := start(t, two(spare))
		r.member("www.example.com", "spare").Selected[state.V4].Add(5000 * state.SelectedUnit)
		r.report(says("virginia", down))
		r.settle()
		r.member("www.example.com", "seoul").Selected[state.V4].Add(900 * state.SelectedUnit)
		r.report(says("virginia", up))
		r.settle()
		count := func(m string) float64 {
			return float64(r.member("www.example.com", m).Selected[state.V4].Load()) / state.SelectedUnit
		}
		if got := count("virginia"); math.Abs(got-900) > 1 {
			t.Errorf("a member that recovers starts at %g, want 900", got)
		}
		r.s.Configure(two(spare, third(50)))
		if got := count("third"); math.Abs(got-450) > 1 {
			t.Errorf("a member of half the weight that joins starts at %g, want 450", got)
		}
		if got := count("seoul"); math.Abs(got-900) > 1 {
			t.Errorf("a reload changed a count to %g", got)
		}
	})
}

func TestCountersSurviveReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		old := r.s.Snapshot().Services[0]
		old.Rotation.Turn[state.V4].Add(7)
		old.Counters.Add(0, 3, 0)
		old.Counters.Add(1, 3, 1)
		old.Counters.Add(5, 4, 1)
		for range 3 {
			r.s.Configure(two(func(c *state.Config) {
				m := c.Services[0].Members
				c.Services[0].Members = []state.MemberConfig{{Name: "new", Site: "seoul", Addresses: [2]netip.Addr{addr("3.3.3.3")}}, m[1], m[0]}
			}))
			old.Counters.Add(0, 3, 0) // by a worker that still holds the old snapshot
		}
		svc := r.s.Snapshot().Services[0]
		if d := svc.Counters.Decisions(); d[3] != 5 || d[4] != 1 {
			t.Errorf("decisions = %v", d)
		}
		for i, want := range []uint64{0, 2, 4} {
			if got := svc.Counters.Answers(i); got != want {
				t.Errorf("answers of %q = %d, want %d", svc.Members[i].Name, got, want)
			}
		}
		if got := svc.Counters.Answers(9) + svc.Counters.Answers(-1); got != 0 {
			t.Errorf("answers of nobody = %d", got)
		}
		svc.Counters.Add(0, 255, -1) // a reason that there is not changes nothing
		if svc.Rotation != old.Rotation || svc.Rotation.Turn[state.V4].Load() != 7 {
			t.Error("the turn did not survive the reload")
		}
	})
}
