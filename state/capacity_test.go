package state_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// loads posts one report of seoul for each utilisation, 5 seconds apart, and returns what was published after each.
func (r *rig) loads(us ...float64) []bool {
	var out []bool
	for _, u := range us {
		time.Sleep(4800 * time.Millisecond)
		r.report(says("virginia", up))
		r.report(sessions("seoul", uint64(math.Round(u*900000))))
		r.settle()
		out = append(out, r.site("seoul").Overloaded)
	}
	return out
}

func repeat(u float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = u
	}
	return out
}

func TestOverloadResumesAfterHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		if got := r.loads(0.5, 0.99, 1); got[0] || got[1] || !got[2] {
			t.Fatalf("overloaded = %v, want only at 1", got)
		}
		if st := r.site("seoul"); st.OverloadedWhy != "900000 sessions of 900000" || st.Utilisation != 1 || !st.HasUtilisation {
			t.Errorf("site = %+v", st)
		}
		// Between resume and 1 the hold never begins.
		if got := r.loads(repeat(0.95, 30)...); !got[29] {
			t.Error("eligible although never under resume")
		}
		if why := r.site("seoul").OverloadedWhy; why != "now at 95% of the thresholds, eligible again after 1m0s under 90%" {
			t.Errorf("back under the threshold, why = %q", why)
		}
		got := r.loads(repeat(0.8, 12)...)
		for i, over := range got {
			if want := i < 11; over != want { // the twelfth comes 60 s after the last at or above resume
				t.Errorf("report %d under resume: overloaded %v, want %v", i+1, over, want)
			}
		}
		if n := r.logged("site overloaded"); n != 1 {
			t.Errorf("%d log lines \"site overloaded\"", n)
		}
		if n := r.logged("site eligible again"); n != 1 {
			t.Errorf("%d log lines \"site eligible again\"", n)
		}
	})
}

func TestBandwidthOverloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		rep := sessions("seoul", 10)
		rep.HasBits, rep.BitsIn, rep.BitsOut = true, 100e6, 900e6
		r.report(rep)
		r.settle()
		if st := r.site("seoul"); !st.Overloaded || st.OverloadedWhy != "900000000 bits per second of 900000000" || st.Utilisation != 1 {
			t.Errorf("site = %+v", st)
		}
	})
}

func TestSilenceDoesNotRelieve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.loads(1.1)
		quiet := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				r.report(says("virginia", up))
				time.Sleep(min(5*time.Second, time.Until(end)))
			}
			r.settle()
		}
		quiet(40 * time.Second)
		if st := r.site("seoul"); !st.Overloaded || st.HasUtilisation || st.Freshness != state.Stale {
			t.Errorf("stale: overloaded %v, utilisation %v", st.Overloaded, st.HasUtilisation)
		}
		// One calm report after a silence proves nothing about the silence.
		quiet(10 * time.Second)
		if got := r.loads(repeat(0.1, 12)...); !got[0] || !got[11] {
			t.Errorf("relieved early: %v", got)
		}
		if got := r.loads(0.1); got[0] {
			t.Error("not relieved after hold")
		}
		r.loads(1.1)
		quiet(61 * time.Second)
		if st := r.site("seoul"); st.Overloaded || st.Freshness != state.Dead {
			t.Errorf("dead: overloaded %v", st.Overloaded)
		}
	})
}

// A report without load leaves the verdict, until the load is as old as a dead report.
func TestReportWithoutLoadLeavesTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.loads(1.1)
		for i := range 20 {
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			r.settle()
			age := time.Duration(i) * 5 * time.Second
			if st := r.site("seoul"); st.HasLoad || st.Overloaded != (age < 60*time.Second) {
				t.Errorf("%s without load: overloaded %v", age, st.Overloaded)
			}
			time.Sleep(4800 * time.Millisecond)
		}
	})
}

func TestSiteWithoutThresholdsIsNeverOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Sites[0].SessionsLimit, c.Sites[0].BandwidthLimit = 0, 0 }))
		if got := r.loads(50); got[0] {
			t.Error("overloaded")
		}
		if st := r.site("seoul"); st.HasUtilisation || !st.HasLoad || st.Sessions != 45e6 {
			t.Errorf("site = %+v", st)
		}
	})
}

func TestThresholdTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.loads(1.1)
		r.s.Configure(two(func(c *state.Config) { c.Sites[0].SessionsLimit, c.Sites[0].BandwidthLimit = 0, 0 }))
		if r.site("seoul").Overloaded {
			t.Error("overloaded without a threshold")
		}
	})
}

func TestShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Sites[0].ShedFrom = 0.9 }))
		near := func(want float64) {
			t.Helper()
			if got := r.site("seoul").Shed; math.Abs(got-want) > 1e-9 {
				t.Errorf("shed = %g, want %g", got, want)
			}
		}
		r.loads(0.9)
		near(0)
		r.loads(0.95)
		near(0.02)
		r.loads(repeat(0.95, 40)...)
		near(0.5)
		r.loads(1.2)
		near(0.52)
		r.loads(0.91)
		near(0.5)
		r.loads(repeat(0.1, 40)...)
		near(0)
	})
}

// A site that sheds leaves and comes back as gradually as it sheds: it is overloaded once it has shed everybody.
func TestShedThenOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Sites[0].ShedFrom = 0.9 }))
		for i, over := range r.loads(repeat(1.2, 52)...) {
			if over != (i >= 49) {
				t.Errorf("report %d of 120 %%: overloaded %v", i+1, over)
			}
		}
		r.loads(repeat(0.1, 11)...)
		if st := r.site("seoul"); !st.Overloaded {
			t.Error("relieved before hold has passed")
		}
		r.loads(repeat(0.1, 2)...)
		if st := r.site("seoul"); st.Overloaded || math.Abs(st.Shed-0.74) > 1e-9 {
			t.Errorf("after hold: overloaded %v, sheds %g, want 0.74", st.Overloaded, st.Shed)
		}
	})
}

// TestCascadeGuard lets a neighbour fail: the new sessions of a site double, and its open ones follow. With cascade_guard it
// sheds before they are there.
func TestCascadeGuard(t *testing.T) {
	for _, guard := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, two(func(c *state.Config) { c.Sites[0].ShedFrom, c.Sites[0].CascadeGuard = 0.8, guard }))
			load := func(agent string, u, newSessions float64) *state.Site {
				rep := sessions("seoul", uint64(u*900000))
				rep.Agent, rep.HasNewSessions, rep.NewSessions = agent, true, newSessions
				r.report(rep)
				r.report(says("virginia", up))
				r.settle()
				time.Sleep(4800 * time.Millisecond)
				return r.site("seoul")
			}
			for range 60 {
				if st := load("lb1", 0.5, 7500); st.Shed != 0 || guard != (st.Heading != 0) || guard && math.Abs(st.Heading-0.5) > 0.01 {
					t.Fatalf("guard %v: sheds %g at half, heading for %g", guard, st.Shed, st.Heading)
				}
			}
			var st *state.Site
			for range 5 {
				st = load("lb1", 0.55, 15000)
			}
			if guard && (st.Heading < 0.85 || st.Heading > 1.05 || st.Shed < 0.02) {
				t.Errorf("the new sessions have doubled: sheds %g, heading for %g", st.Shed, st.Heading)
			}
			if !guard && (st.Shed != 0 || st.Heading != 0) {
				t.Errorf("without the guard: sheds %g, heading for %g", st.Shed, st.Heading)
			}
			// Another agent's SLB has a relation of its own.
			time.Sleep(20 * time.Second)
			if st = load("lb2", 0.2, 30000); st.Heading > 0.21 {
				t.Errorf("guard %v: after a takeover heading for %g", guard, st.Heading)
			}
			// Taken back, nothing of it is left.
			r.s.Configure(two(func(c *state.Config) { c.Sites[0].ShedFrom = 0.8 }))
			if st = r.site("seoul"); st.Heading != 0 {
				t.Errorf("without the guard: heading for %g", st.Heading)
			}
		})
	}
}

func TestNewSessionsAreTheMeanOfFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		for i, want := range []float64{100, 150, 200, 250, 300, 400} {
			rep := says("seoul", up)
			rep.HasNewSessions, rep.NewSessions = true, float64(100*(i+1))
			r.report(rep)
			r.settle()
			if st := r.site("seoul"); !st.HasNewSessions || st.NewSessions != want {
				t.Errorf("after %d reports: %v %g, want %g", i+1, st.HasNewSessions, st.NewSessions, want)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		r.settle()
		if r.site("seoul").HasNewSessions {
			t.Error("new sessions of a stale report")
		}
		// Another agent's SLB has its own figures.
		rep := says("seoul", up)
		rep.Agent, rep.HasNewSessions, rep.NewSessions = "lb2", true, 7
		r.report(rep)
		r.settle()
		if got := r.site("seoul").NewSessions; got != 7 {
			t.Errorf("after a takeover: %g, want 7", got)
		}
	})
}

// Property: noise around the threshold makes at most one return for each hold.
func TestNoiseAtTheThreshold(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			r := start(t, two())
			var returns int
			was := false
			const reports = 360 // half an hour
			for range reports {
				over := r.loads(0.7 + 0.32*rnd.Float64())[0]
				if was && !over {
					returns++
				}
				was = over
			}
			if most := reports * 5 / 60; returns > most {
				t.Errorf("seed %d: %d returns in half an hour of holds of 60 s, want at most %d", seed, returns, most)
			}
		})
	}
}
