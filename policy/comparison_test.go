package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"gslbd/policy"
	"gslbd/state"
)

// compared lets 100 clients, of networks of their own, ask for A before and after, and writes who moved.
func compared(t *testing.T, before, after *world, chainBefore, chainAfter []string) (policy.Forecast, []string) {
	t.Helper()
	c := policy.NewComparison(before.snapshot, after.snapshot, true)
	for _, w := range []struct {
		*world
		chain []string
	}{{before, chainBefore}, {after, chainAfter}} {
		w.Chain, w.Rotation = build(t, w.chain...), new(state.Rotation)
	}
	for i := range 100 {
		client := &state.Client{LDNS: netip.AddrFrom4([4]byte{20, byte(i), 0, 1})}
		c.Decide(before.Service, after.Service, []state.Family{state.V4}, client, client, 2)
	}
	f := c.Forecast(true)
	var moves []string
	for _, m := range f.Services[0].Shares.Moves {
		moves = append(moves, fmt.Sprintf("%s to %s by %s %.0f", m.From, m.To, m.Metric, 100*m.Share))
	}
	return f, moves
}

func TestComparison(t *testing.T) {
	full := func(w *world, site string) {
		s := w.at(site)
		s.HasLoad, s.HasSessions, s.Sessions, s.SessionsLimit = true, true, 1000, 1000
		s.HasUtilisation, s.Utilisation, s.Overloaded = true, 1, true
	}
	tests := []struct {
		name          string
		before, after func() *world
		chains        [2][]string
		want          []string
	}{
		{
			"nothing changes, although the turns of the two differ",
			func() *world { return newWorld("a", "b") },
			func() *world { w := newWorld("a", "b"); w.Service.Name = "www.gslb.test"; return w },
			[2][]string{{"health", "static"}, {"health", "static"}},
			nil,
		},
		{
			"a site is down",
			func() *world { return newWorld("a", "b") },
			func() *world { w := newWorld("a", "b"); w.down("a"); return w },
			[2][]string{{"health", "static"}, {"health", "static"}},
			[]string{"a to b by health 50"},
		},
		{
			"a site is overloaded",
			func() *world { return newWorld("a", "b", "c") },
			func() *world { w := newWorld("a", "b", "c"); full(w, "a"); w.at("b").HasUtilisation = true; return w },
			[2][]string{{"health", "capacity", "static=ordered"}, {"health", "capacity", "static=ordered"}},
			[]string{"a to b by static 100"},
		},
		{
			"a site is added, and the order of the members is another",
			func() *world { return newWorld("a", "b") },
			func() *world { return newWorld("c", "b", "a") },
			[2][]string{{"health", "static"}, {"health", "static"}},
			[]string{"b to c by static 16", "a to c by static 17"},
		},
		{
			"a site is removed",
			func() *world { return newWorld("a", "b") },
			func() *world { return newWorld("b") },
			[2][]string{{"health", "static=ordered"}, {"health", "static=ordered"}},
			[]string{"a to b by single 100"},
		},
		{
			"nobody is left",
			func() *world { return newWorld("a") },
			func() *world { w := newWorld("a"); w.of("a").Forced = state.ForcedEvacuated; return w },
			[2][]string{{"health"}, {"health"}},
			[]string{"a to no answer by constraints 100"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, moves := compared(t, tt.before(), tt.after(), tt.chains[0], tt.chains[1])
			slices.Sort(moves)
			slices.Sort(tt.want)
			if !slices.Equal(moves, tt.want) {
				t.Errorf("moves %q, want %q", moves, tt.want)
			}
			sum, changed := policy.Change{}, 0.0
			for _, s := range f.Services[0].Shares.Sites {
				sum.Before += s.Before
				sum.After += s.After
			}
			for _, m := range f.Services[0].Shares.Moves {
				changed += m.Share
			}
			none := f.Services[0].Shares.NoAnswer
			if max(sum.Before+none.Before, sum.After+none.After) > 1.0001 || min(sum.Before+none.Before, sum.After+none.After) < 0.9999 {
				t.Errorf("shares %+v and %+v of no answer are not all", sum, none)
			}
			if d := changed - f.Services[0].Shares.Changed; d > 1e-6 || d < -1e-6 {
				t.Errorf("moves sum to %g, changed is %g", changed, f.Services[0].Shares.Changed)
			}
		})
	}
}

// TestComparisonLoad checks that the load goes where the clients go, also to a site that only the later side has.
func TestComparisonLoad(t *testing.T) {
	before, after := newWorld("a", "b"), newWorld("a", "b", "c")
	for _, name := range []string{"a", "b"} {
		s := before.at(name)
		s.HasLoad, s.HasSessions, s.Sessions = true, true, 600
	}
	for _, name := range []string{"a", "b", "c"} {
		after.at(name).SessionsLimit = 500
	}
	after.down("a")
	f, _ := compared(t, before, after, []string{"health", "static"}, []string{"health", "static"})
	var got []string
	for _, s := range f.Sites {
		got = append(got, fmt.Sprintf("%s %d to %d, over %v", s.Name, *s.Before.Sessions, *s.After.Sessions, s.Over))
	}
	want := []string{"a 600 to 0, over false", "b 600 to 600, over true", "c 0 to 600, over true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
