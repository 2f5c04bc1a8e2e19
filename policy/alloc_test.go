package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// busy returns n members that every metric has data of, and a client that all of them know.
func busy(t testing.TB, n int) *world {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("m%d", i))
	}
	w := newWorld(names...)
	w.SlowStart = time.Minute
	for i, m := range w.Members {
		s := w.snapshot.SiteOf(m)
		s.HasLoad, s.HasUtilisation, s.Utilisation, s.Shed = true, true, 0.5, 0.01
		s.HasSessions, s.SessionsLimit, s.Sessions = true, 900_000, 400_000
		s.HasNewSessions, s.NewSessions = true, 100
		m.HasServers, m.ServersUp = true, 4
		m.HasLatency, m.Latency = [2]bool{true, true}, [2]time.Duration{ms, ms}
		if i == 0 {
			m.Recovered[state.V4] = now.Add(-50 * time.Second)
		}
		w.place(m.Name, "AS", "KR", 37+float64(i)/1000, 127)
		w.rtt(m.Name, "20.1.2.3", 30*ms, 0)
		w.rttBy(state.RTTPassive, m.Name, "20.1.2.0", 30*ms, 0)
	}
	w.overrides(t, geo.Override{Prefix: prefixOf("20.0.0.0/8"), Location: geo.Location{
		Continent: "AS", Country: "KR", Latitude: 37, Longitude: 127, HasCoordinates: true,
	}})
	return w
}

// Nothing is allocated between a query and its decision: by no metric, no rule of on_all_down, no number of answers, and
// neither with nor without a client's prefix.
func TestDecideAllocatesNothing(t *testing.T) {
	check := func(name string, w *world, c *policy.Chain) {
		t.Helper()
		for _, prefix := range []netip.Prefix{{}, prefixOf("20.1.2.0/24"), prefixOf("10.1.2.0/24")} {
			q := w.query()
			q.LDNS, q.ECS = netip.MustParseAddr("20.1.2.3"), prefix
			var d policy.Decision
			if n := testing.AllocsPerRun(100, func() { q.Turn++; c.Decide(q, &d) }); n != 0 {
				t.Errorf("%s, ecs %v: %v allocations", name, prefix, n)
			}
		}
	}
	for _, reason := range policy.Reasons()[3:] {
		check(reason, busy(t, 5), build(t, reason))
	}
	for _, method := range []string{"static=weighted", "static=hash", "static=ordered"} {
		check(method, busy(t, 40), build(t, method))
	}
	check("exploring", busy(t, 5), exploring(t, 1, nil))
	w := busy(t, 5)
	w.Service.Answers = 5
	check("the default chain", w, build(t, defaultChain...))
	for _, m := range w.Members {
		m.Moved = []state.Stage{{Order: 1, Share: 0.5}, {Order: 2, Share: 0.5}}
		m.InStagedPool = true
	}
	w.StagedPool = state.Backup
	check("staged orders", w, build(t, defaultChain...))
	w.of("m3").Preference = 900
	w.down("m3")
	check("a restart", w, build(t, "preference", "health", "static"))
	for _, m := range w.Members {
		m.Up = [2]bool{}
	}
	for choice := state.AllDownAll; choice <= state.AllDownServFail; choice++ {
		w.OnAllDown = choice
		check("on_all_down "+choice.String(), w, build(t, defaultChain...))
	}
}

// A Query that was made for fewer members grows once, and is then good for the larger service.
func TestQueryGrows(t *testing.T) {
	c, q := build(t, "health", "static"), &policy.Query{}
	for _, n := range []int{3, 300, 3} {
		w := busy(t, n)
		q.Snapshot, q.Service, q.Now, q.LDNS = w.snapshot, w.Service, now, netip.MustParseAddr("20.1.2.3")
		var d policy.Decision
		c.Decide(q, &d)
		if d.N != 1 {
			t.Errorf("%d members: %d answers", n, d.N)
		}
		if a := testing.AllocsPerRun(10, func() { c.Decide(q, &d) }); a != 0 {
			t.Errorf("%d members: %v allocations", n, a)
		}
	}
}
