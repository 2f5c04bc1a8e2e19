package state_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// takeOver ends r, and starts another in its place that takes its state over.
func (r *rig) takeOver(c *state.Config, dir string) *rig {
	r.t.Helper()
	r.stop()
	return startWith(r.t, c, state.Options{Directory: dir, Takeover: true})
}

// A process that takes over goes on as the one before it would have: with what the sites last reported, fresh as long as that
// counts, with round trips, and with the rotation where it stood.
func TestTakeover(t *testing.T) {
	config := func(c *state.Config) { c.Services[0].HalfLife = time.Minute }
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(config), dir)
		for range 3 {
			rep := sessions("seoul", 450000)
			rep.HasNewSessions, rep.NewSessions = true, 120
			rep.RTTs = []state.RTTSample{{Resolver: netip.MustParseAddr("203.0.113.53"), RTT: 30 * time.Millisecond}}
			r.report(rep)
			time.Sleep(5 * time.Second)
		}
		r.report(says("virginia", down, down))
		r.settle()
		snap := r.s.Snapshot()
		svc := snap.ServiceByName("www.example.com")
		svc.Rotation.Turn[state.V4].Add(7)
		svc.Members[0].Select(state.V4, false)
		svc.Members[0].Select(state.V6, true)
		before := *r.site("seoul")

		for range 3 { // and again
			r = r.takeOver(two(config), dir)
			after := *r.site("seoul")
			if after.Freshness != state.Fresh || !after.Since.Equal(before.Since) || !after.ReportAt.Equal(before.ReportAt) {
				t.Errorf("seoul is %v since %v by a report of %v; it was %v since %v, %v", after.Freshness, after.Since, after.ReportAt, before.Freshness, before.Since, before.ReportAt)
			}
			if after.Sessions != 450000 || after.Utilisation != before.Utilisation || after.NewSessions != 120 || after.ServersUp != before.ServersUp || !after.HasServers {
				t.Errorf("seoul has %+v, had %+v", after, before)
			}
			r.want(true, "seoul")
			r.want(false, "virginia")
			svc = r.s.Snapshot().ServiceByName("www.example.com")
			if turn := svc.Rotation.Turn[state.V4].Load(); turn != 7 {
				t.Errorf("turn %d", turn)
			}
			for _, apart := range []bool{false, true} {
				f := state.V4
				if apart {
					f = state.V6
				}
				if n := svc.Members[0].Selections(apart)[f].Load(); n < state.SelectedUnit*9/10 || n > state.SelectedUnit {
					t.Errorf("apart %v: seoul was selected %d/65536 times", apart, n)
				}
			}
			for _, line := range []string{"site stale", "site fresh", "site dead", "member up", "member down"} {
				if n := r.logged(line); n != 0 {
					t.Errorf("%q is logged %d times", line, n)
				}
			}
		}

		// What time brings is not put off.
		time.Sleep(time.Until(before.ReportAt.Add(15*time.Second + 200*time.Millisecond)))
		synctest.Wait()
		if st := r.site("seoul").Freshness; st != state.Stale {
			t.Errorf("15 s after its last report seoul is %v", st)
		}
		r = r.takeOver(two(config), dir)
		if st := r.site("seoul").Freshness; st != state.Stale {
			t.Errorf("seoul, which was stale, is %v", st)
		}
		time.Sleep(time.Until(before.ReportAt.Add(50 * time.Second)))
		r.report(says("virginia", up)) // or this gslbd would be blind
		time.Sleep(time.Until(before.ReportAt.Add(time.Minute + 200*time.Millisecond)))
		synctest.Wait()
		if st := r.site("seoul").Freshness; st != state.Dead {
			t.Errorf("a minute after its last report seoul is %v", st)
		}
		r.want(false, "seoul")
	})
}

// What a restart gives a site to report again, a takeover does not cut short.
func TestTakeoverSoonAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		r.settle()
		r.stop()
		time.Sleep(40 * time.Second)
		r = startIn(t, two(), dir)
		time.Sleep(10 * time.Second)
		r = r.takeOver(two(), dir)
		time.Sleep(45 * time.Second)
		synctest.Wait()
		r.want(true, "seoul")
		if st := r.site("seoul").Freshness; st != state.Stale {
			t.Errorf("55 s after the restart seoul is %v", st)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if st := r.site("seoul").Freshness; st != state.Dead {
			t.Errorf("61 s after the restart seoul is %v", st)
		}
	})
}

// A Store whose successor did not come up runs again, with the lock.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		r.settle()
		r.stop()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.s.Run(ctx) }()
		time.Sleep(1200 * time.Millisecond) // it is tried each second
		synctest.Wait()
		if _, err := state.New(state.Options{Directory: dir}); err == nil {
			t.Error("the directory is not locked")
		}
		r.report(says("seoul", down))
		r.settle()
		r.want(false, "seoul")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r = startIn(t, two(), dir)
		r.want(false, "seoul")
	})
}
