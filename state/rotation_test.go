package state_test

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// Of many services some decay at a time, and all of them as much.
func TestSelectionsOfManyServicesDecay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := two()
		one := cfg.Services[0]
		for i := range 3000 {
			one.Name = fmt.Sprintf("w%d.example.com", i)
			cfg.Services = append(cfg.Services, one)
		}
		r := start(t, cfg)
		services := r.s.Snapshot().Services
		for _, svc := range services {
			svc.Members[0].Selected[state.V4].Add(1000 * state.SelectedUnit)
		}
		time.Sleep(time.Minute + time.Second) // each within a second
		synctest.Wait()
		for _, svc := range services {
			if got := float64(svc.Members[0].Selected[state.V4].Load()) / state.SelectedUnit; got < 490 || got > 505 {
				t.Fatalf("%s: after a half-life of 1000 are left %g", svc.Name, got)
			}
		}
	})
}

func TestSelectionsDecayByHalfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		a, b := &r.member("www.example.com", "seoul").Selected, &r.member("www.example.com", "virginia").Selected
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
		sel := &r.member("www.example.com", "seoul").Selected
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

// Whatever kept a member from being answered: when it ends, the member starts at its peers' highest count.
func TestWhoMayBeAnsweredAgainStartsAtItsPeersHighestCount(t *testing.T) {
	still := func(c *state.Config) { c.Services[0].HalfLife = 1e6 * time.Hour }
	spare := func(c *state.Config) { // forced down, with a count of its own from better times
		still(c)
		c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{
			Name: "spare", Site: "seoul", Addresses: [2]netip.Addr{addr("4.4.4.4")}, Weight: 100,
		})
	}
	virginia := func(change func(*state.MemberConfig)) *state.Config {
		c := two(spare)
		change(&c.Services[0].Members[1])
		return c
	}
	ordered := func(f state.Forced) state.Orders {
		return state.Orders{Force: func(_, member, _, _ string) state.Force {
			switch member {
			case "spare":
				return state.Force{Forced: state.ForcedDown}
			case "virginia":
				return state.Force{Forced: f}
			}
			return state.Force{}
		}}
	}
	under := func(f, then state.Forced) func(*rig, func()) {
		return func(r *rig, meanwhile func()) {
			r.s.SetOrders(ordered(f))
			meanwhile()
			r.s.SetOrders(ordered(then))
		}
	}
	config := func(change func(*state.MemberConfig)) func(*rig, func()) {
		return func(r *rig, meanwhile func()) {
			r.s.Configure(virginia(change))
			meanwhile()
			r.s.Configure(two(spare))
		}
	}
	for _, tt := range []struct {
		name string
		away func(r *rig, meanwhile func())
	}{
		{"evacuated and restored", under(state.ForcedEvacuated, state.NotForced)},
		{"forced down, then up", under(state.ForcedDown, state.ForcedUp)},
		{"drained", under(state.ForcedDrain, state.NotForced)},
		{"weight 0", config(func(m *state.MemberConfig) { m.Weight = 0 })},
		{"in the other pool", config(func(m *state.MemberConfig) { m.Role = state.Backup })},
		{"overloaded", func(r *rig, meanwhile func()) {
			r.report(sessions("virginia", 950000))
			meanwhile()
			for range 13 {
				r.report(sessions("seoul", 1000))
				r.report(sessions("virginia", 1000))
				time.Sleep(5 * time.Second)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, two(spare))
				r.member("www.example.com", "spare").Selected[state.V4].Add(5000 * state.SelectedUnit)
				r.s.SetOrders(ordered(state.NotForced))
				for _, site := range []string{"seoul", "virginia"} {
					r.report(sessions(site, 1000))
				}
				r.settle()
				tt.away(r, func() {
					m := r.member("www.example.com", "seoul")
					for range 900 {
						m.Select(state.V4, false)
					}
					for range 300 {
						m.Select(state.V4, true)
					}
				})
				m := r.member("www.example.com", "virginia")
				for apart, want := range map[bool]float64{false: 900, true: 300} {
					if got := float64(m.Selections(apart)[state.V4].Load()) / state.SelectedUnit; math.Abs(got-want) > 1 {
						t.Errorf("apart %v: it starts at %g, want %g", apart, got, want)
					}
				}
			})
		})
	}
}

// What a new weight changes is the share from now on, and not what was answered before.
func TestCountsPerWeightSurviveANewWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := func(weight int) *state.Config {
			return two(func(c *state.Config) {
				c.Services[0].HalfLife = 1e6 * time.Hour
				c.Services[0].Members[1].Weight = weight
			})
		}
		r := start(t, config(100))
		for _, name := range []string{"seoul", "virginia"} {
			r.member("www.example.com", name).Selected[state.V4].Add(500 * state.SelectedUnit)
		}
		for weight, want := range map[int]float64{10: 50, 300: 1500, 0: 0, 100: 500} {
			r.s.Configure(config(weight))
			if got := float64(r.member("www.example.com", "virginia").Selected[state.V4].Load()) / state.SelectedUnit; math.Abs(got-want) > 1 {
				t.Errorf("weight %d: counts as %g selections, want %g", weight, got, want)
			}
		}
	})
}
