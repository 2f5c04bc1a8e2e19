package state_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

func checked(c *state.Config) { c.Services[0].HasCheck = true }

func probe(member string, ok, unreachable bool) state.CheckResult {
	r := state.CheckResult{Service: "www.example.com", Member: member, Up: ok, Unreachable: unreachable}
	if !ok {
		r.Err = "connection refused"
		if unreachable {
			r.Err = "i/o timeout"
		}
	}
	return r
}

func TestBlindWhenAllReportsDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(says("seoul", up))
		time.Sleep(3 * time.Second)
		r.report(says("virginia", up))
		for range 300 { // at no moment is a member down, also not between the first death and the last
			time.Sleep(time.Second)
			synctest.Wait()
			r.want(true, "seoul", "virginia")
		}
		snap := r.s.Snapshot()
		if !snap.Blind || !strings.Contains(snap.BlindWhy, "all 2 sites") || snap.BlindSince.IsZero() {
			t.Fatalf("blind = %v %q", snap.Blind, snap.BlindWhy)
		}
		if n := r.logged("blind"); n != 1 {
			t.Errorf("%d log lines \"blind\", want 1", n)
		}
		// The first fresh report ends it. The other site has not had the time to report yet.
		r.report(says("seoul", up))
		r.settle()
		if r.s.Snapshot().Blind {
			t.Error("still blind")
		}
		r.want(true, "seoul", "virginia")
		for range 4 {
			time.Sleep(5 * time.Second)
			r.report(says("seoul", up))
		}
		r.settle()
		r.want(true, "seoul")
		r.want(false, "virginia")
		if n := r.logged("blindness over"); n != 1 {
			t.Errorf("%d log lines \"blindness over\", want 1", n)
		}
	})
}

// A report that comes after blindness and says down is believed at once.
func TestAfterBlindnessNewsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		time.Sleep(2 * time.Minute)
		r.report(says("seoul", down))
		r.settle()
		r.want(false, "seoul")
		r.want(true, "virginia")
	})
}

func TestNotBlind(t *testing.T) {
	tests := []struct {
		name   string
		change func(*state.Config)
		play   func(r *rig)
		up     map[string]bool
	}{
		{"one site dies, the other lives", func(*state.Config) {}, func(r *rig) {
			r.report(says("seoul", up))
			for range 20 {
				r.report(says("virginia", up))
				time.Sleep(5 * time.Second)
			}
		}, map[string]bool{"seoul": false, "virginia": true}},
		{"only one site ever reported", func(*state.Config) {}, func(r *rig) {
			r.report(says("seoul", up))
			time.Sleep(2 * time.Minute)
		}, map[string]bool{"seoul": false, "virginia": true}},
		{"they die more than dead_after apart", func(*state.Config) {}, func(r *rig) {
			r.report(says("seoul", up))
			for range 14 {
				r.report(says("virginia", up))
				time.Sleep(5 * time.Second)
			}
			time.Sleep(2 * time.Minute)
		}, map[string]bool{"seoul": false, "virginia": false}},
		{"an own check succeeds", checked, func(r *rig) {
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			for range 20 {
				r.s.Check(probe("seoul", true, false))
				time.Sleep(5 * time.Second)
			}
		}, map[string]bool{"seoul": true, "virginia": false}},
		{"checks are refused", checked, func(r *rig) {
			r.s.Check(probe("seoul", true, false))
			r.s.Check(probe("virginia", true, false))
			time.Sleep(10 * time.Second)
			r.s.Check(probe("seoul", false, true))
			r.s.Check(probe("virginia", false, false))
		}, map[string]bool{"seoul": false, "virginia": false}},
		{"checks time out far apart", checked, func(r *rig) {
			r.s.Check(probe("seoul", true, false))
			r.s.Check(probe("virginia", true, false))
			r.s.Check(probe("seoul", false, true))
			time.Sleep(16 * time.Second)
			r.s.Check(probe("seoul", false, true))
			r.s.Check(probe("virginia", false, true))
		}, map[string]bool{"seoul": false, "virginia": false}},
		{"a report is fresh", checked, func(r *rig) {
			r.s.Check(probe("seoul", true, false))
			r.s.Check(probe("virginia", true, false))
			r.report(says("virginia", up))
			r.s.Check(probe("seoul", false, true))
			r.s.Check(probe("virginia", false, true))
		}, map[string]bool{"seoul": false, "virginia": false}},
		{"checks of one site only", func(c *state.Config) {
			checked(c)
			c.Services[0].Members[1].Site = "seoul"
		}, func(r *rig) {
			for _, ok := range []bool{true, false} {
				r.s.Check(probe("seoul", ok, true))
				r.s.Check(probe("virginia", ok, true))
			}
		}, map[string]bool{"seoul": false, "virginia": false}},
		{"checks that never succeeded", checked, func(r *rig) {
			r.s.Check(probe("seoul", false, true))
			r.s.Check(probe("virginia", false, true))
		}, map[string]bool{"seoul": false, "virginia": false}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, two(test.change))
				test.play(r)
				r.settle()
				if r.s.Snapshot().Blind || r.logged("blind") != 0 {
					t.Errorf("blind: %s", r.s.Snapshot().BlindWhy)
				}
				for name, up := range test.up {
					r.want(up, name)
				}
			})
		})
	}
}

func TestBlindWhenAllChecksTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(checked, func(c *state.Config) {
			c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{Name: "broken", Site: "seoul", Addresses: [2]netip.Addr{addr("1.1.1.2")}})
		}))
		r.s.Check(probe("seoul", true, false))
		r.s.Check(probe("virginia", true, false))
		r.s.Check(probe("broken", false, true)) // for hours; it does not hide that all others fail
		r.settle()
		r.want(false, "broken")
		time.Sleep(time.Hour)
		r.s.Check(probe("seoul", false, true))
		r.settle()
		r.want(false, "seoul") // one alone is a failure like any other
		time.Sleep(5 * time.Second)
		r.s.Check(probe("virginia", false, true))
		r.s.Check(probe("broken", false, true))
		r.settle()
		if snap := r.s.Snapshot(); !snap.Blind || !strings.Contains(snap.BlindWhy, "own checks of all 2 sites") {
			t.Fatalf("blind = %v %q", snap.Blind, snap.BlindWhy)
		}
		r.want(true, "seoul", "virginia") // the first is put back
		r.want(false, "broken")
		time.Sleep(time.Hour)
		r.settle()
		r.want(true, "seoul", "virginia")
		// A success ends it; the others have the time that a check needs to come back.
		r.s.Check(probe("seoul", true, false))
		r.settle()
		if r.s.Snapshot().Blind {
			t.Error("still blind")
		}
		r.want(true, "seoul", "virginia")
		time.Sleep(31 * time.Second)
		r.settle()
		r.want(true, "seoul")
		r.want(false, "virginia")
	})
}

func TestBlindnessFreezesOverloadAndPoolButNotOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].Members[1].Role = state.Backup }))
		r.report(sessions("seoul", 900000))
		r.report(says("virginia", up))
		time.Sleep(10 * time.Minute)
		snap := r.s.Snapshot()
		if !snap.Blind || !r.site("seoul").Overloaded || snap.Services[0].Pool != state.Primary {
			t.Errorf("blind %v, overloaded %v, pool %v", snap.Blind, r.site("seoul").Overloaded, snap.Services[0].Pool)
		}
		r.s.SetOrders(state.Orders{Force: func(_, member, _, _ string) state.Force { return state.Force{Forced: state.ForcedDown, Why: "order"} }})
		if m := r.member("www.example.com", "seoul"); m.Forced != state.ForcedDown {
			t.Errorf("an order while blind: %v", m.Forced)
		}
	})
}

func TestReloadWithoutBackupsWhileBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].Members[1].Role = state.Backup }))
		r.report(says("seoul", down))
		r.report(says("virginia", up))
		time.Sleep(2 * time.Minute)
		if snap := r.s.Snapshot(); !snap.Blind || snap.Services[0].Pool != state.Backup {
			t.Fatalf("blind %v, pool %v", snap.Blind, snap.Services[0].Pool)
		}
		r.s.Configure(two())
		for _, m := range r.s.Snapshot().Services[0].Members {
			if !m.InPool {
				t.Errorf("%s is not in the pool", m.Name)
			}
		}
	})
}

// A check that is rare has not yet failed often enough to be down when the reports die. It does not prove that the
// network works, unless it has succeeded since.
func TestBlindWhileRareChecksFail(t *testing.T) {
	for _, interval := range []time.Duration{30 * time.Second, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, two(func(c *state.Config) {
				rare := c.Services[0]
				rare.Name, rare.HasCheck, rare.CheckInterval = "rare.example.com", true, interval
				c.Services = append(c.Services, rare)
			}))
			check := func(ok, up bool) {
				for _, m := range []string{"seoul", "virginia"} {
					res := state.CheckResult{Service: "rare.example.com", Member: m, Up: up, Latency: time.Millisecond}
					if !ok {
						res.Err, res.Unreachable, res.Latency = "i/o timeout", true, 0
					}
					r.s.Check(res)
				}
			}
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			check(true, true)
			for runs := range 5 { // from here on it is cut off
				time.Sleep(interval)
				check(false, runs < 2)
				r.settle()
				r.want(true, "seoul", "virginia")
			}
			if !r.s.Snapshot().Blind {
				t.Error("not blind")
			}
			check(true, true)
			r.settle()
			if r.s.Snapshot().Blind {
				t.Error("still blind after a success")
			}
		})
	}
}

// The agents of all sites die, and the network works: that shows with the next run of a check, however rare.
func TestRareCheckEndsBlindness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) {
			rare := c.Services[0]
			rare.Name, rare.HasCheck, rare.CheckInterval = "rare.example.com", true, 2*time.Minute
			c.Services = append(c.Services, rare)
		}))
		success := state.CheckResult{Service: "rare.example.com", Member: "seoul", Up: true, Latency: time.Millisecond}
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.s.Check(success)
		time.Sleep(2 * time.Minute)
		r.want(true, "seoul", "virginia")
		r.s.Check(success)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if r.s.Snapshot().Blind {
			t.Error("still blind")
		}
		r.want(false, "seoul", "virginia")
	})
}

// Of checks at different intervals the quick ones are down before the reports are dead; they are put back with the rest.
func TestBlindnessPutsBackWhatQuickChecksTookDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(checked, func(c *state.Config) {
			c.Services[0].Members = append(c.Services[0].Members,
				state.MemberConfig{Name: "refuses", Site: "seoul", Addresses: [2]netip.Addr{addr("1.1.1.2")}},
				state.MemberConfig{Name: "reported", Site: "virginia", Addresses: [2]netip.Addr{addr("3.3.3.3")}})
			rare := c.Services[0]
			rare.Name, rare.CheckInterval = "rare.example.com", time.Minute
			c.Services = append(c.Services, rare)
		}))
		rare := probe("seoul", true, false)
		rare.Service = "rare.example.com"
		r.s.Check(rare)
		for _, m := range []string{"seoul", "virginia", "refuses", "reported"} {
			r.s.Check(probe(m, true, false))
		}
		r.report(says("seoul", up))
		last := says("virginia", up)
		last.VirtualServers = append(last.VirtualServers, vs("other", "3.3.3.3", 443, down))
		r.report(last)
		time.Sleep(30 * time.Second) // cut off; the rare check has not run since
		r.s.Check(probe("seoul", false, true))
		r.s.Check(probe("virginia", false, true))
		r.s.Check(probe("reported", false, true))
		r.s.Check(probe("refuses", false, false))
		r.settle()
		r.want(false, "seoul", "virginia", "refuses", "reported")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if !r.s.Snapshot().Blind {
			t.Error("not blind")
		}
		r.want(true, "seoul", "virginia")
		r.want(false, "refuses", "reported")
	})
}

func TestBlindnessEndsWithTheLastCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(checked))
		for _, ok := range []bool{true, false} {
			r.s.Check(probe("seoul", ok, true))
			r.s.Check(probe("virginia", ok, true))
			r.settle()
		}
		if !r.s.Snapshot().Blind {
			t.Fatal("not blind")
		}
		r.s.Configure(two(checked))
		if !r.s.Snapshot().Blind {
			t.Error("a reload that changes nothing ended it")
		}
		r.s.Configure(two())
		if r.s.Snapshot().Blind {
			t.Error("blind without any source")
		}
		r.want(true, "seoul", "virginia")
	})
}

// A check that failed while sites were dying, before that was blindness, is old by its end. When it finds the same again, that
// is news.
func TestTheSameCheckAgainAfterBlindness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(checked))
		r.report(says("seoul", up))
		time.Sleep(5 * time.Second)
		r.report(says("virginia", up))
		time.Sleep(56 * time.Second) // seoul is dead and virginia not yet
		r.s.Check(probe("seoul", false, false))
		time.Sleep(9 * time.Second)
		if !r.s.Snapshot().Blind {
			t.Fatal("it is not blind")
		}
		r.report(says("virginia", up))
		r.settle()
		r.want(true, "seoul", "virginia")
		r.s.Check(probe("seoul", false, false))
		r.settle()
		r.want(false, "seoul")
	})
}
