package state_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// failing is what takes the primaries of failover(0.5) below the ratio.
var failing = []string{"a1", "a2", "d1"}

func failsBack(f state.Failback, delay time.Duration) *state.Config {
	c := failover(0.5)
	c.Services[0].Failback, c.Services[0].FailbackDelay = f, delay
	return c
}

func (r *rig) service() *state.Service { return r.s.Snapshot().Services[0] }

// last reports for so long, every 5 s, that these machines are not up.
func (r *rig) last(d time.Duration, not ...string) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		r.machines(not...)
		time.Sleep(min(5*time.Second, time.Until(end)))
	}
}

func (r *rig) wantPool(what string, want state.Role, held bool) {
	r.t.Helper()
	if svc := r.service(); svc.Pool != want || svc.Held != held {
		r.t.Errorf("%s: pool %s, held %v (%s); want %s, %v", what, svc.Pool, svc.Held, svc.PoolWhy, want, held)
	}
}

// latch orders a latch, and tells of the last order to fail back.
func (r *rig) latch(id, failback string) {
	r.s.SetOrders(latched(id, failback))
}

func latched(id, failback string) state.Orders {
	return state.Orders{Latch: func(string) state.Latch {
		l := state.Latch{ID: id, Failback: failback}
		if id != "" {
			l.Why = "ns2 failed over at 03:00"
		}
		return l
	}}
}

func TestFailbackDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackDelay, time.Minute))
		r.last(5*time.Second, failing...)
		r.wantPool("failover is never delayed", state.Backup, false)

		r.last(50 * time.Second)
		r.wantPool("the primaries suffice", state.Backup, true)
		svc := r.service()
		if left := time.Until(svc.HeldUntil); left < 9*time.Second || left > 11*time.Second {
			t.Errorf("held for %s more", left)
		}
		if svc.PoolWhy != "4 of 4 primary servers healthy, ratio 0.5; held: failback delay: the primaries must suffice for 1m0s" {
			t.Errorf("why %q", svc.PoolWhy)
		}
		r.last(5*time.Second, failing...)
		r.wantPool("the condition breaks", state.Backup, false)
		if why := r.logs.FilterMessage("failback no longer held").All()[0].ContextMap()["why"]; why != "the primaries no longer suffice" {
			t.Errorf("logged %q", why)
		}
		r.last(55 * time.Second)
		r.wantPool("and the time begins again", state.Backup, true)
		time.Sleep(6 * time.Second) // nothing is reported: time alone brings it
		r.wantPool("it has held throughout", state.Primary, false)
		if svc := r.service(); !svc.HeldUntil.IsZero() || svc.HeldWhy != "" || svc.PoolTransitions != 2 {
			t.Errorf("until %s, %q, %d transitions", svc.HeldUntil, svc.HeldWhy, svc.PoolTransitions)
		}
		if b, e := r.logged("failback held"), r.logged("failback no longer held"); b != 2 || e != 2 {
			t.Errorf("%d begins and %d ends logged", b, e)
		}
	})
}

// What holds back the primaries never holds up a service whose backups are gone.
func TestFailbackAtOnceWithoutBackups(t *testing.T) {
	for _, f := range []state.Failback{state.FailbackDelay, state.FailbackManual} {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, failsBack(f, time.Hour))
				r.machines(failing...)
				r.machines()
				r.wantPool("the primaries suffice", state.Backup, true)
				r.machines("b1", "b2", "c1")
				r.wantPool("a backup is left", state.Backup, true)
				r.machines("b1", "b2", "c1", "c2")
				r.wantPool("none is", state.Primary, false)
				r.machines()
				r.wantPool("that was the failback", state.Primary, false)
			})
		})
	}
}

func TestFailbackDelayOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		c := failsBack(state.FailbackDelay, 5*time.Minute)
		r := startIn(t, c, dir)
		r.last(10*time.Second, failing...)
		r.last(2 * time.Minute)
		until := r.service().HeldUntil
		r.stop()
		time.Sleep(10 * time.Second)
		r = startIn(t, c, dir)
		if got := r.service().HeldUntil; !r.service().Held || got.Sub(until).Abs() > time.Millisecond {
			t.Errorf("until %s, before the restart %s", got, until)
		}
		r.last(time.Until(until) - 2*time.Second)
		r.wantPool("not yet", state.Backup, true)
		r.last(3 * time.Second)
		r.wantPool("the time of before the restart counts", state.Primary, false)
		if r.logged("failback held") != 0 {
			t.Error("the hold began before the restart")
		}
	})
}

func TestFailbackDelayStartsAgainAfterBlindness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackDelay, 10*time.Minute))
		r.last(10*time.Second, failing...)
		r.last(5 * time.Minute)
		time.Sleep(20 * time.Minute)
		if !r.s.Snapshot().Blind {
			t.Fatal("not blind")
		}
		r.wantPool("blind", state.Backup, true)
		if svc := r.service(); !svc.HeldUntil.IsZero() || !strings.Contains(svc.HeldWhy, "blindness") {
			t.Errorf("until %s, %q", svc.HeldUntil, svc.HeldWhy)
		}
		r.last(9 * time.Minute)
		r.wantPool("it begins again", state.Backup, true)
		r.last(2 * time.Minute)
		r.wantPool("and ends", state.Primary, false)
	})
}

func TestFailbackManual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackManual, 0))
		r.latch("", "old")
		r.machines()
		r.wantPool("all is well", state.Primary, false)
		r.machines(failing...)
		r.wantPool("failover", state.Backup, false)
		if !r.service().Unlatched {
			t.Error("no latch stands for the failover yet, and nobody is told")
		}
		r.machines()
		r.wantPool("held by itself", state.Backup, true)
		if why := r.service().HeldWhy; why != `failback manual, until "gslbctl failback www.example.com"` {
			t.Errorf("why %q", why)
		}
		r.latch("l1", "old")
		if svc := r.service(); svc.Unlatched || svc.HeldWhy != `failback manual, until "gslbctl failback www.example.com": ns2 failed over at 03:00` || !svc.HeldUntil.IsZero() {
			t.Errorf("unlatched %v, why %q, until %s", svc.Unlatched, svc.HeldWhy, svc.HeldUntil)
		}
		r.last(time.Hour)
		r.wantPool("as long as it takes", state.Backup, true)
		r.latch("", "f1")
		r.wantPool("ordered back, at once", state.Primary, false)
		if r.service().Unlatched {
			t.Error("unlatched although it failed back")
		}
		r.machines(failing...)
		r.machines()
		r.wantPool("the next failover holds again", state.Backup, true)
		if !r.service().Unlatched {
			t.Error("the second failover needs its own latch")
		}
		r.latch("", "f2")
		r.wantPool("an order to fail back ends also what no latch stands for", state.Primary, false)
	})
}

// An order to fail back while the primaries do not suffice yet holds for when they do.
func TestFailbackOrderedTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackManual, 0))
		r.machines(failing...)
		r.latch("l1", "")
		r.latch("", "f1")
		r.wantPool("the primaries do not suffice", state.Backup, false)
		if r.service().Unlatched {
			t.Error("what was ordered back must not be latched again")
		}
		r.machines()
		r.wantPool("now they do", state.Primary, false)
	})
}

// The latch of another gslbd takes this one to its backups as well, although its primaries never failed.
func TestLatchOfTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		c := failsBack(state.FailbackManual, 0)
		r := startIn(t, c, dir)
		r.machines()
		r.latch("l1", "")
		r.wantPool("latched", state.Backup, true)
		if r.service().Unlatched {
			t.Error("the latch stands")
		}
		if why := r.logs.FilterMessage("pool changed").All()[0].ContextMap()["why"]; !strings.HasSuffix(why.(string), ": ns2 failed over at 03:00") {
			t.Errorf("logged %q", why)
		}
		r.machines("b1", "b2", "c1", "c2")
		r.wantPool("no backup is healthy: at once", state.Primary, false)
		r.machines()
		r.wantPool("and that latch no longer holds it", state.Primary, false)
		r.last(15 * time.Second) // until it is kept
		r.stop()
		r = startIn(t, c, dir)
		r.latch("l1", "")
		r.machines()
		r.wantPool("not after a restart either", state.Primary, false)
		r.machines(failing...)
		if !r.service().Unlatched {
			t.Error("it fails over again, and its fleet must know")
		}
		r.latch("l2", "")
		r.machines()
		r.wantPool("another latch does", state.Backup, true)
	})
}

// That a latch was passed is no measurement, and outlives any stop. One that was not passed says nothing of the backups
// that have not been heard of yet.
func TestPassedLatchOutlivesALongStop(t *testing.T) {
	for _, passed := range []bool{true, false} {
		t.Run(fmt.Sprintf("passed=%v", passed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := keptIn(t)
				c := failsBack(state.FailbackManual, 0)
				c.Services[0].UnknownUp = false
				r := startIn(t, c, dir)
				r.machines()
				r.latch("l1", "")
				r.wantPool("latched", state.Backup, true)
				if passed {
					r.machines("b1", "b2", "c1", "c2")
					r.machines()
					r.wantPool("passed", state.Primary, false)
				}
				for range 2 { // the second stop tells that it is written again
					r.stop()
					time.Sleep(time.Hour)
					r = startIn(t, c, dir)
					r.latch("l1", "")
					r.want(false, primaries...) // what was measured is forgotten
				}
				for i, site := range []string{"ig-a", "", "", "ig-d"} { // the primaries report first
					if site != "" {
						r.report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{vs(site, fmt.Sprintf("192.0.2.%d", i), 0, up, up)}})
					}
				}
				r.settle()
				r.machines()
				r.wantPool("started anew", map[bool]state.Role{true: state.Primary, false: state.Backup}[passed], !passed)
				r.latch("l2", "")
				r.wantPool("another latch", state.Backup, true)
			})
		})
	}
}

func TestLatchAndNothingHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackManual, 0))
		r.machines(failing...)
		r.latch("l1", "")
		all := append([]string{"b1", "b2", "c1", "c2"}, failing...)
		r.machines(all...)
		r.wantPool("neither suffices: the primaries that are up", state.Primary, false)
		r.machines()
		r.wantPool("the latch was not passed", state.Backup, true)
	})
}

// Only a service of failback: manual is latched, and only while it is.
func TestLatchOfAnotherFailback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackAuto, 0))
		r.machines()
		r.latch("l1", "")
		r.wantPool("auto", state.Primary, false)
		r.s.Configure(failsBack(state.FailbackManual, 0))
		r.wantPool("manual", state.Backup, true)
		r.s.Configure(failsBack(state.FailbackDelay, time.Minute))
		r.wantPool("delay", state.Backup, true)
		if r.service().Unlatched {
			t.Error("a delay is no latch")
		}
		r.s.Configure(failsBack(state.FailbackAuto, 0))
		r.wantPool("auto again", state.Primary, false)
		if why := r.logs.FilterMessage("failback no longer held").All()[0].ContextMap()["why"]; why != "failback is auto" {
			t.Errorf("logged %q", why)
		}
	})
}

func TestManualHoldOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		c := failsBack(state.FailbackManual, 0)
		r := startIn(t, c, dir)
		r.latch("", "f1")
		r.last(10*time.Second, failing...)
		r.last(10 * time.Second)
		r.stop()
		r = startIn(t, c, dir)
		r.wantPool("restarted", state.Backup, true)
		r.latch("", "f1")
		r.machines()
		r.wantPool("an order of before the hold does not end it", state.Backup, true)
		if !r.service().Unlatched {
			t.Error("still without a latch")
		}
		r.latch("", "f2")
		r.wantPool("a new one does", state.Primary, false)
	})
}

// A gslbd that starts hears of some sites before others; what it does until then is no failover.
func TestStartIsNoFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := failsBack(state.FailbackManual, 0)
		c.Services[0].UnknownUp = false
		dir := keptIn(t)
		r := startIn(t, c, dir)
		r.report(&state.Report{Site: "ig-b", VirtualServers: []state.VirtualServer{vs("ig-b", "192.0.2.1", 0, up)}})
		r.settle()
		r.wantPool("only a backup is known", state.Backup, false)
		if r.service().Unlatched {
			t.Error("it would latch the whole fleet")
		}
		r.stop()
		r = startIn(t, c, dir)
		if r.service().Pool != state.Backup || r.service().Unlatched {
			t.Error("nor does a restart prove anything")
		}
		r.machines()
		r.wantPool("the primaries have reported", state.Primary, false)

		r = start(t, c)
		r.machines(failing...)
		r.settle()
		if !r.service().Unlatched {
			t.Error("the primaries have reported that they do not suffice: that is a failover")
		}
		r = start(t, c)
		for range 12 {
			r.report(&state.Report{Site: "ig-b", VirtualServers: []state.VirtualServer{vs("ig-b", "192.0.2.1", 0, up)}})
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Second) // nothing is reported: time alone brings it
		if !r.service().Unlatched {
			t.Error("nothing told of the primaries within dead_after: that is a failover")
		}
	})
}

// A latch that holds a gslbd from its start on is no reason to publish without pause.
func TestLatchedFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := failsBack(state.FailbackManual, 0)
		c.Services[0].UnknownUp = false
		r := start(t, c)
		r.latch("l1", "")
		for range 13 { // ig-d never tells of itself
			for i, site := range []string{"ig-a", "ig-b"} {
				v := vs(site, fmt.Sprintf("192.0.2.%d", i), 0, up)
				r.report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{v}})
			}
			time.Sleep(5 * time.Second)
		}
		r.wantPool("latched", state.Backup, true)
		before := r.s.Snapshot().Version
		time.Sleep(5 * time.Second)
		if n := r.s.Snapshot().Version - before; n > 1 {
			t.Errorf("%d publications in 5 s in which nothing happened", n)
		}
	})
}

// 50 primary and 50 backup members of 5 servers each: at every ratio that 250 servers can have, exactly that many
// suffice, and one less does not.
func TestRatiosOf250Servers(t *testing.T) {
	for _, members := range []int{50, 20} { // 0.07 of 100 is more than 7 where numbers are rounded
		t.Run(fmt.Sprint(members), func(t *testing.T) { everyRatio(t, members) })
	}
}

func everyRatio(t *testing.T, members int) {
	synctest.Test(t, func(t *testing.T) {
		const each = 5
		c := &state.Config{
			Sites:    []state.SiteConfig{{Name: "primaries"}, {Name: "backups"}},
			Services: []state.ServiceConfig{{Name: "www.example.com"}},
		}
		report := func(site string, healthy int) *state.Report {
			rep := &state.Report{Site: site}
			for i := range members {
				v := state.VirtualServer{Name: fmt.Sprint(i), Address: netip.AddrFrom4([4]byte{10, byte(len(site)), 0, byte(i)})}
				for j := range each {
					st := down
					if i+j*members < healthy {
						st = up
					}
					v.Servers = append(v.Servers, state.Server{Name: fmt.Sprintf("%d-%d", i, j), State: st})
				}
				rep.VirtualServers = append(rep.VirtualServers, v)
			}
			return rep
		}
		for role, site := range []string{"primaries", "backups"} {
			for i, v := range report(site, 0).VirtualServers {
				c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{
					Name: fmt.Sprint(site, i), Site: site, Role: state.Role(role), Addresses: [2]netip.Addr{v.Address}, Weight: 100,
				})
			}
		}
		r := start(t, c)
		for k := 0; k <= members*each; k++ {
			ratio, err := strconv.ParseFloat(fmt.Sprintf("%.3f", float64(k)/float64(members*each)), 64)
			if err != nil {
				t.Fatal(err)
			}
			c.Services[0].FailoverRatio = ratio
			r.s.Configure(c)
			r.report(report("backups", 1))
			for healthy, want := range map[int]state.Role{max(k, 1): state.Primary, max(k, 1) - 1: state.Backup} {
				r.report(report("primaries", healthy))
				r.settle()
				svc := r.service()
				if svc.Pool != want || svc.PoolServersUp != healthy || svc.PoolServers != members*each {
					t.Errorf("ratio %g, %d healthy: %s, by %d of %d", ratio, healthy, svc.Pool, svc.PoolServersUp, svc.PoolServers)
				}
			}
		}
	})
}

func staged(share float64, of ...string) state.Orders {
	stages := []state.Stage{{Order: 7, Share: share, Why: "evacuation"}}
	return state.Orders{Force: func(_, member, _, _ string) state.Force {
		if slices.Contains(of, member) {
			return state.Force{Stages: stages}
		}
		return state.Force{}
	}}
}

func TestStagedPool(t *testing.T) {
	tests := []struct {
		name     string
		failback state.Failback
		down     []string // from the start
		then     []string
		moved    []string
		pool     state.Role
		staged   state.Role
	}{
		{"no staged order", state.FailbackAuto, nil, nil, nil, state.Primary, state.Primary},
		{"the pool is not changed", state.FailbackAuto, nil, nil, primaries, state.Primary, state.Backup},
		{"the other primary suffices", state.FailbackAuto, nil, nil, []string{"ig-a"}, state.Primary, state.Primary},
		{"it does not", state.FailbackAuto, []string{"a1", "d1", "d2"}, []string{"d1", "d2"}, []string{"ig-a"}, state.Primary, state.Backup},
		{"the backups are moved away from as well", state.FailbackAuto, nil, nil, append(backups, primaries...), state.Primary, state.Primary},
		{"the backups answer, and are moved away from", state.FailbackAuto, failing, failing, backups, state.Backup, state.Primary},
		{"what fails is moved away from, so that the rest would suffice", state.FailbackAuto, []string{"a1", "a2", "d1"}, []string{"a1", "a2", "d1"}, []string{"ig-a"}, state.Backup, state.Primary},
		{"but manual would not fail back", state.FailbackManual, []string{"a1", "a2", "d1"}, []string{"a1", "a2", "d1"}, []string{"ig-a"}, state.Backup, state.Backup},
		{"held, and a backup is left", state.FailbackManual, failing, nil, []string{"ig-b", "ig-a"}, state.Backup, state.Backup},
		{"held, and none is", state.FailbackManual, failing, nil, backups, state.Backup, state.Primary},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, failsBack(tt.failback, 0))
				r.machines(tt.down...)
				r.machines(tt.then...)
				r.s.SetOrders(staged(0.5, tt.moved...))
				svc := r.service()
				if svc.Pool != tt.pool || svc.StagedPool != tt.staged {
					t.Errorf("pool %s, staged %s (%s)", svc.Pool, svc.StagedPool, svc.PoolWhy)
				}
				for _, m := range svc.Members {
					if m.InStagedPool != (m.Role == tt.staged) || len(m.Moved) > 0 != slices.Contains(tt.moved, m.Name) {
						t.Errorf("%s: in the staged pool %v, moved %v", m.Name, m.InStagedPool, m.Moved)
					}
				}
			})
		})
	}
}

func TestOrdersArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		since := time.Now().Add(-time.Hour)
		stages := []state.Stage{{Order: 1, Share: 0.25, Why: "by ann"}}
		orders := state.Orders{Force: func(_, _, site, _ string) state.Force {
			if site == "seoul" {
				return state.Force{Stages: stages}
			}
			return state.Force{Forced: state.ForcedDrain, Why: "by bob", Since: since}
		}}
		r.s.SetOrders(orders)
		seoul, virginia := r.member("www.example.com", "seoul"), r.member("www.example.com", "virginia")
		if !slices.Equal(seoul.Moved, stages) || seoul.Forced != state.NotForced {
			t.Errorf("seoul: %v, %v", seoul.Forced, seoul.Moved)
		}
		if virginia.Forced != state.ForcedDrain || virginia.ForcedWhy != "by bob" || !virginia.ForcedSince.Equal(since) || virginia.Moved != nil {
			t.Errorf("virginia: %v %q since %s", virginia.Forced, virginia.ForcedWhy, virginia.ForcedSince)
		}
		stages[0].Share = 0.5
		if seoul.Moved[0].Share != 0.25 {
			t.Error("the Store shares the caller's stages")
		}
		r.s.SetOrders(orders)
		if got := r.member("www.example.com", "seoul").Moved[0].Share; got != 0.5 {
			t.Errorf("the next stage is %v", got)
		}
	})
}

// An order "up" wins over flap damping, blindness and a dead site.
func TestForcedUpWins(t *testing.T) {
	forceUp := state.Orders{Force: func(_, member, _, _ string) state.Force {
		if member == "seoul" {
			return state.Force{Forced: state.ForcedUp}
		}
		return state.Force{}
	}}
	tests := []struct {
		name string
		make func(*rig)
	}{
		{"damping", func(r *rig) {
			for i := range 7 {
				r.report(says("seoul", []state.ServerState{up, down}[i%2]))
				r.report(says("virginia", up))
				r.settle()
			}
			if !strings.HasPrefix(r.member("www.example.com", "seoul").Why[state.V4], "damped") {
				r.t.Error("not damped")
			}
		}},
		{"death", func(r *rig) {
			r.report(says("seoul", up))
			for range 14 {
				r.report(says("virginia", up))
				time.Sleep(5 * time.Second)
			}
		}},
		{"blindness", func(r *rig) {
			r.report(says("seoul", down))
			r.report(says("virginia", up))
			time.Sleep(5 * time.Minute)
			if !r.s.Snapshot().Blind {
				r.t.Error("not blind")
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, two())
				tt.make(r)
				r.want(false, "seoul")
				r.s.SetOrders(forceUp)
				r.want(true, "seoul")
				r.s.SetOrders(state.Orders{})
				r.want(false, "seoul")
			})
		})
	}
}

// While blind the pool stays as it is, unless orders say otherwise: then at once, by what was known before.
func TestOrdersChangeThePoolWhileBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failsBack(state.FailbackManual, 0))
		r.machines("a1", "d1")
		time.Sleep(5 * time.Minute)
		if !r.s.Snapshot().Blind {
			t.Fatal("not blind")
		}
		version := r.s.Snapshot().Version
		for _, step := range []struct {
			orders state.Orders
			want   state.Role
		}{
			{state.Orders{Force: func(_, member, _, _ string) state.Force {
				if slices.Contains(primaries, member) {
					return state.Force{Forced: state.ForcedEvacuated}
				}
				return state.Force{}
			}}, state.Backup},
			{latched("l1", ""), state.Backup},
			{latched("", "f1"), state.Primary},
			{latched("l2", "f1"), state.Backup},
		} {
			r.s.SetOrders(step.orders)
			if version++; r.service().Pool != step.want || r.s.Snapshot().Version != version {
				t.Errorf("version %d: %s (%s), want %s", r.s.Snapshot().Version, r.service().Pool, r.service().PoolWhy, step.want)
			}
		}
	})
}

func TestLastResortIsNoWayAroundOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []netip.Addr{addr("1.1.1.1"), addr("2.2.2.2"), addr("192.0.2.99")}
		r := start(t, two(func(c *state.Config) { c.Services[0].LastResort = all }))
		for _, tt := range []struct {
			name   string
			orders state.Orders
			want   []netip.Addr
		}{
			{"no orders", state.Orders{}, all},
			{"drained", force(state.ForcedDrain, "seoul"), all},
			{"down", force(state.ForcedDown, "seoul"), all[1:]},
			{"evacuated", force(state.ForcedEvacuated, "seoul", "virginia"), all[2:]},
			{"moved away from", staged(0.1, "virginia"), []netip.Addr{all[0], all[2]}},
			{"cleared", state.Orders{}, all},
		} {
			r.s.SetOrders(tt.orders)
			if got := r.service().LastResort; !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
		}
	})
}

func force(f state.Forced, of ...string) state.Orders {
	return state.Orders{Force: func(_, member, _, _ string) state.Force {
		if slices.Contains(of, member) {
			return state.Force{Forced: f}
		}
		return state.Force{}
	}}
}

// A member that must not be answered is no reason to say that the service has one that is up.
func TestServiceServesByWhatMayBeAnswered(t *testing.T) {
	lastGood := func(r *rig, name string) bool { return r.member("www.example.com", name).LastGood[state.V4] }
	t.Run("forced down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, two())
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			r.settle()
			r.s.SetOrders(force(state.ForcedDown, "seoul"))
			if r.logged("service has no member up") != 0 {
				t.Error("virginia is up")
			}
			r.report(says("virginia", down))
			r.settle()
			if r.logged("service has no member up") != 1 || !lastGood(r, "virginia") {
				t.Errorf("%d log lines, virginia last good %v", r.logged("service has no member up"), lastGood(r, "virginia"))
			}
			r.s.SetOrders(state.Orders{})
			if r.logged("service has a member up again") != 1 {
				t.Error("seoul may be answered again, which is not logged")
			}
			r.report(says("virginia", up))
			r.s.SetOrders(force(state.ForcedEvacuated, "seoul", "virginia"))
			if r.logged("service has no member up") != 2 {
				t.Error("an order that takes the last member is not logged")
			}
		})
	})
	t.Run("not in the pool", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, two(func(c *state.Config) {
				s := &c.Services[0]
				s.HasCheck = true
				s.Members[0].Addresses[state.V6], s.Members[1].Role = addr("2001:db8::1"), state.Backup
			}))
			check := func(member string, f state.Family, up bool) {
				r.s.Check(state.CheckResult{Service: "www.example.com", Member: member, Family: f, Up: up, Err: map[bool]string{false: "HTTP 500"}[up]})
			}
			check("seoul", state.V4, true)
			check("seoul", state.V6, true)
			check("virginia", state.V4, true)
			r.settle()
			check("seoul", state.V4, false)
			r.settle()
			if r.service().Pool != state.Primary || r.logged("service has no member up") != 1 || !lastGood(r, "seoul") {
				t.Errorf("pool %s, %d log lines, seoul last good %v", r.service().Pool, r.logged("service has no member up"), lastGood(r, "seoul"))
			}
		})
	})
}

// What is restored is all that was known of the servers, so that the restart itself is neither failover nor failback.
func TestRestartIsNoFailback(t *testing.T) {
	half := []string{"a1", "d1"}
	for _, f := range []state.Failback{state.FailbackAuto, state.FailbackDelay, state.FailbackManual} {
		t.Run(f.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := keptIn(t)
				c := failsBack(f, time.Minute)
				c.Services[0].FailoverRatio = 0.75
				r := startIn(t, c, dir)
				r.last(10*time.Second, half...)
				r.wantPool("2 of 4", state.Backup, false)
				since := r.service().PoolSince
				for range 2 { // the second time nothing has been heard in between
					r.stop()
					time.Sleep(20 * time.Second)
					r = startIn(t, c, dir)
					time.Sleep(20 * time.Second)
					synctest.Wait()
					r.wantPool("restarted", state.Backup, false)
					if svc := r.service(); svc.PoolServersUp != 2 || svc.PoolServers != 4 || !svc.PoolSince.Equal(since) {
						t.Errorf("%d of %d servers, in force since %s; want 2 of 4, since %s", svc.PoolServersUp, svc.PoolServers, svc.PoolSince, since)
					}
				}
				r.report(&state.Report{Site: "ig-a", VirtualServers: []state.VirtualServer{vs("ig-a", "192.0.2.0", 0, up, up)}})
				r.settle()
				r.wantPool("ig-a is whole, ig-d as it was", map[bool]state.Role{true: state.Primary, false: state.Backup}[f == state.FailbackAuto], f != state.FailbackAuto)
				if svc := r.service(); svc.PoolServersUp != 3 {
					t.Errorf("%d servers, want 3", svc.PoolServersUp)
				}
			})
		})
	}
}

// A site that was silent before a restart goes on counting as it did.
func TestRestartWhileStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		c := failover(0.75)
		r := startIn(t, c, dir)
		r.last(5*time.Second, "a1", "d1")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		r.wantPool("silent, and all of them up", state.Primary, false)
		r.stop()
		r = startIn(t, c, dir)
		r.wantPool("restarted", state.Primary, false)
		if n := r.logged("pool changed"); n != 0 {
			t.Errorf("%d changes by the restart", n)
		}
	})
}

// A failback delay that runs out while gslbd does not run ends when the primaries have been heard of, and not by what
// was known of them before.
func TestFailbackDelayThatEndsDuringARestart(t *testing.T) {
	tests := []struct {
		name string
		news func(*rig)
		want state.Role
	}{
		{"they still suffice", func(r *rig) { r.machines() }, state.Primary},
		{"they no longer do", func(r *rig) { r.machines(failing...) }, state.Backup},
		{"one of them has not spoken yet", func(r *rig) {
			r.report(&state.Report{Site: "ig-a", VirtualServers: []state.VirtualServer{vs("ig-a", "192.0.2.0", 0, up, up)}})
			r.settle()
		}, state.Backup},
		{"one of them never does", func(r *rig) {
			for range 13 {
				for i, site := range []string{"ig-a", "ig-b"} {
					r.report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{vs(site, fmt.Sprintf("192.0.2.%d", i), 0, up, up)}})
				}
				time.Sleep(5 * time.Second)
			}
		}, state.Primary},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := keptIn(t)
				c := failsBack(state.FailbackDelay, time.Minute)
				r := startIn(t, c, dir)
				r.last(5*time.Second, failing...)
				r.last(30 * time.Second)
				r.stop()
				time.Sleep(2 * time.Minute)
				r = startIn(t, c, dir)
				r.wantPool("nothing is heard yet", state.Backup, true)
				if svc := r.service(); !svc.HeldUntil.IsZero() || !strings.HasSuffix(svc.HeldWhy, "and must be heard of after the restart") {
					t.Errorf("until %s, %q", svc.HeldUntil, svc.HeldWhy)
				}
				tt.news(r)
				if svc := r.service(); svc.Pool != tt.want {
					t.Errorf("pool %s (%s), want %s", svc.Pool, svc.PoolWhy, tt.want)
				}
			})
		})
	}
	for _, heard := range []bool{true, false} {
		t.Run(fmt.Sprint("own checks, all of which run: ", heard), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := keptIn(t)
				c := failsBack(state.FailbackDelay, time.Minute)
				c.Services[0].HasCheck, c.Services[0].UnknownUp = true, false
				check := func(r *rig, up bool, members ...string) {
					for _, m := range members {
						r.s.Check(state.CheckResult{Service: "www.example.com", Member: m, Up: up, Err: map[bool]string{false: "HTTP 500"}[up]})
					}
					r.settle()
				}
				r := startIn(t, c, dir)
				check(r, true, backups...)
				check(r, false, primaries...)
				r.wantPool("failover", state.Backup, false)
				check(r, true, "ig-a")
				r.wantPool("one of two", state.Backup, true)
				r.stop()
				time.Sleep(2 * time.Minute)
				r = startIn(t, c, dir)
				r.wantPool("nothing is checked yet", state.Backup, true)
				check(r, true, "ig-a")
				r.wantPool("one is", state.Backup, true)
				if heard {
					check(r, false, "ig-d") // as before the restart, which is news all the same
				} else {
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				r.wantPool("both are", state.Primary, false)
			})
		})
	}
}
