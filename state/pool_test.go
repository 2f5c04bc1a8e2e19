package state_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// The worked example of the failover documentation: primaries ig-a and ig-d, backups ig-b and ig-c, two machines each.
func failover(ratio float64) *state.Config {
	c := &state.Config{Services: []state.ServiceConfig{{Name: "www.example.com", FailoverRatio: ratio, UnknownUp: true}}}
	for i, name := range []string{"ig-a", "ig-b", "ig-c", "ig-d"} {
		c.Sites = append(c.Sites, state.SiteConfig{Name: name})
		m := state.MemberConfig{Name: name, Site: name, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}, Weight: 100}
		if name == "ig-b" || name == "ig-c" {
			m.Role = state.Backup
		}
		c.Services[0].Members = append(c.Services[0].Members, m)
	}
	return c
}

// machines reports all four groups, with the machines named down, in maintenance (with a leading "m:") or drain ("d:").
func (r *rig) machines(not ...string) {
	for i, site := range []string{"ig-a", "ig-b", "ig-c", "ig-d"} {
		v := state.VirtualServer{Name: site, Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		for n := 1; n <= 2; n++ {
			name := fmt.Sprintf("%s%d", strings.TrimPrefix(site, "ig-"), n)
			st := up
			for _, o := range not {
				switch o {
				case name:
					st = down
				case "m:" + name:
					st = maint
				case "d:" + name:
					st = drain
				}
			}
			v.Servers = append(v.Servers, state.Server{Name: "vm-" + name, State: st})
		}
		r.report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{v}})
	}
	r.settle()
}

func (r *rig) inPool() []string {
	var out []string
	for _, m := range r.s.Snapshot().Services[0].Members {
		if m.InPool {
			out = append(out, m.Name)
		}
	}
	return out
}

var (
	primaries = []string{"ig-a", "ig-d"}
	backups   = []string{"ig-b", "ig-c"}
)

// The failover documentation's example, with what status shows after each step.
func TestFailoverSeedStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failover(0.5))
		for _, step := range []struct {
			name    string
			down    []string
			want    []string
			healthy map[string]int // servers up, by group
			why     string
		}{
			{"all healthy", nil, primaries, map[string]int{"ig-a": 2, "ig-b": 2, "ig-c": 2, "ig-d": 2}, "4 of 4 primary servers healthy, ratio 0.5"},
			{"a1 and d1 fail: a2 and d2 are left", []string{"a1", "d1"}, primaries, map[string]int{"ig-a": 1, "ig-d": 1}, "2 of 4 primary servers healthy, ratio 0.5"},
			{"a2 fails: the backups, and d2 is healthy but gets nothing", []string{"a1", "d1", "a2"}, backups, map[string]int{"ig-a": 0, "ig-b": 2, "ig-c": 2, "ig-d": 1}, "1 of 4 primary servers healthy, ratio 0.5"},
			{"a2 recovers: back at exactly the minimum", []string{"a1", "d1"}, primaries, map[string]int{"ig-a": 1, "ig-d": 1}, "2 of 4 primary servers healthy, ratio 0.5"},
			{"a1 recovers: a1, a2 and d2", []string{"d1"}, primaries, map[string]int{"ig-a": 2, "ig-d": 1}, "3 of 4 primary servers healthy, ratio 0.5"},
		} {
			r.machines(step.down...)
			svc := r.s.Snapshot().Services[0]
			if got := r.inPool(); !slices.Equal(got, step.want) {
				t.Errorf("%s: pool %v, want %v", step.name, got, step.want)
			}
			if svc.PoolWhy != step.why {
				t.Errorf("%s: why %q", step.name, svc.PoolWhy)
			}
			primary := 0
			for _, m := range svc.Members {
				if want, ok := step.healthy[m.Name]; ok && (m.ServersUp != want || m.Servers != 2 || m.AnyUp() != (want > 0)) {
					t.Errorf("%s: %s has %d of %d servers up, up %v; want %d of 2", step.name, m.Name, m.ServersUp, m.Servers, m.AnyUp(), want)
				}
				if m.Role == state.Primary {
					primary += m.ServersUp
				}
			}
			if svc.PoolServersUp != primary || svc.PoolServers != 4 {
				t.Errorf("%s: %d of %d primary servers, want %d of 4", step.name, svc.PoolServersUp, svc.PoolServers, primary)
			}
			time.Sleep(time.Second)
		}
		svc := r.s.Snapshot().Services[0]
		if svc.PoolTransitions != 2 || r.logged("pool changed") != 2 || r.logged("failback held") != 0 {
			t.Errorf("%d transitions, %d log lines; want 2", svc.PoolTransitions, r.logged("pool changed"))
		}
	})
}

func TestPoolTable(t *testing.T) {
	tests := []struct {
		name  string
		ratio float64
		down  []string
		want  []string
	}{
		{"ratio 0: one primary is enough", 0, []string{"a1", "a2", "d1"}, primaries},
		{"ratio 0: none left", 0, []string{"a1", "a2", "d1", "d2"}, backups},
		{"ratio 1: one failure fails over", 1, []string{"a1"}, backups},
		{"ratio 1: all healthy", 1, nil, primaries},
		{"ratio 0.1: one of four", 0.1, []string{"a1", "a2", "d1"}, primaries},
		{"nobody is healthy: primaries", 0.5, []string{"a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"}, primaries},
		{"ratio 0.5: exactly half", 0.5, []string{"a1", "a2"}, primaries},
		{"ratio 0.5: one below", 0.5, []string{"a1", "a2", "d1"}, backups},
		{"ratio 0.1: none", 0.1, []string{"a1", "a2", "d1", "d2"}, backups},
		{"ratio 1: maintenance is no failure", 1, []string{"m:a1", "d:d1"}, primaries},
		{"ratio 0: a primary in maintenance is not healthy", 0, []string{"m:a1", "m:a2", "d1", "d2"}, backups},
		{"no backup is healthy: primaries", 0.5, []string{"a1", "a2", "d1", "b1", "b2", "c1", "c2"}, primaries},
		{"one backup is healthy", 0.5, []string{"a1", "a2", "d1", "b1", "b2", "c1"}, backups},
		{"maintenance leaves both sides", 0.5, []string{"a1", "m:a2", "m:d1"}, primaries}, // 1 of 2
		{"drain too", 0.6, []string{"a1", "d:a2"}, primaries},                             // 2 of 3
		{"nothing left counts as 0", 0.1, []string{"m:a1", "m:a2", "d:d1", "d:d2"}, backups},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, failover(test.ratio))
				r.machines(test.down...)
				if got := r.inPool(); !slices.Equal(got, test.want) {
					t.Errorf("pool %v, want %v (%s)", got, test.want, r.s.Snapshot().Services[0].PoolWhy)
				}
			})
		})
	}
}

func TestPoolAndOrders(t *testing.T) {
	tests := []struct {
		name   string
		forced map[string]state.Forced
		down   []string
		ratio  float64
		want   []string
	}{
		{"a primary that is forced down leaves both sides", map[string]state.Forced{"ig-a": state.ForcedDown}, []string{"d1"}, 0.5, primaries},
		{"all primaries forced down", map[string]state.Forced{"ig-a": state.ForcedDown, "ig-d": state.ForcedEvacuated}, nil, 0.5, backups},
		{"drained ones too", map[string]state.Forced{"ig-a": state.ForcedDrain, "ig-d": state.ForcedDrain}, nil, 0, backups},
		{"backups forced down do not take over", map[string]state.Forced{"ig-b": state.ForcedDown, "ig-c": state.ForcedDown}, []string{"a1", "a2", "d1", "d2"}, 0.5, primaries},
		{"an evacuated primary leaves both sides", map[string]state.Forced{"ig-a": state.ForcedEvacuated}, []string{"d1"}, 1, backups},
		{"and if the rest is whole, nothing happens", map[string]state.Forced{"ig-a": state.ForcedEvacuated}, []string{"a1", "a2"}, 1, primaries},
		{"an evacuated backup does not take over", map[string]state.Forced{"ig-b": state.ForcedEvacuated}, []string{"a1", "a2", "d1", "d2", "c1", "c2"}, 0, primaries},
		{"a drained backup neither", map[string]state.Forced{"ig-b": state.ForcedDrain, "ig-c": state.ForcedDown}, []string{"a1", "a2", "d1", "d2"}, 0, primaries},
		{"a backup that is forced up takes over", map[string]state.Forced{"ig-b": state.ForcedUp}, []string{"a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"}, 0, backups},
		{"a primary that is forced up although all of its servers are in maintenance", map[string]state.Forced{"ig-a": state.ForcedUp}, []string{"m:a1", "m:a2", "d1", "d2"}, 0.3, primaries}, // 1 of 3
		{"a primary that is forced up counts all its servers", map[string]state.Forced{"ig-a": state.ForcedUp}, []string{"a1", "a2", "d1", "d2"}, 0.5, primaries},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, failover(test.ratio))
				r.machines(test.down...)
				r.s.SetOrders(state.Orders{Force: func(_, member, _, _ string) state.Force {
					return state.Force{Forced: test.forced[member], Why: "order"}
				}})
				if got := r.inPool(); !slices.Equal(got, test.want) {
					t.Errorf("pool %v, want %v (%s)", got, test.want, r.s.Snapshot().Services[0].PoolWhy)
				}
			})
		})
	}
}

// A member whose data went stale keeps its number of servers, all in the member's own state.
func TestPoolOfStaleData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failover(0.75))
		r.machines("a1", "d1")
		if got := r.inPool(); !slices.Equal(got, backups) {
			t.Fatalf("2 of 4: pool %v", got)
		}
		for range 4 { // ig-a falls silent: its two servers count as up, since it is
			time.Sleep(5 * time.Second)
			for i, site := range []string{"ig-b", "ig-c", "ig-d"} {
				v := vs(site, fmt.Sprintf("192.0.2.%d", i+1), 0, up, []state.ServerState{up, up, down}[i])
				r.report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{v}})
			}
		}
		r.settle()
		if got := r.inPool(); !slices.Equal(got, primaries) {
			t.Errorf("3 of 4: pool %v (%s)", got, r.s.Snapshot().Services[0].PoolWhy)
		}
	})
}

func TestPoolWithoutServerData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := failover(0.5)
		c.Services[0].HasCheck = true
		r := start(t, c)
		for i, name := range primaries {
			r.s.Check(state.CheckResult{Service: "www.example.com", Member: name, Up: i == 0, Err: "HTTP 500"})
		}
		r.settle()
		if got := r.inPool(); !slices.Equal(got, primaries) { // 1 of 2 members
			t.Errorf("pool %v (%s)", got, r.s.Snapshot().Services[0].PoolWhy)
		}
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "ig-a", Err: "HTTP 500"})
		r.settle()
		if got := r.inPool(); !slices.Equal(got, backups) {
			t.Errorf("pool %v (%s)", got, r.s.Snapshot().Services[0].PoolWhy)
		}
	})
}

func TestNoBackupsMeansPrimaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].FailoverRatio = 1 }))
		r.report(says("seoul", down))
		r.report(says("virginia", down))
		r.settle()
		if got := r.inPool(); len(got) != 2 || r.s.Snapshot().Services[0].PoolTransitions != 0 {
			t.Errorf("pool %v", got)
		}
	})
}

// A reload that renames members must not mark them up, nor fail back by that.
func TestRenamedMembersKeepTheirHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := func(name string) *state.Config {
			c := failover(0)
			c.Services[0].HasCheck = true
			for i := range c.Services[0].Members {
				c.Services[0].Members[i].Name += name
			}
			return c
		}
		r := start(t, config(""))
		for _, name := range append(backups, primaries...) {
			r.s.Check(state.CheckResult{Service: "www.example.com", Member: name, Up: name == "ig-b", Err: "HTTP 500"})
		}
		r.settle()
		r.want(false, "ig-a", "ig-c", "ig-d")
		count := r.member("www.example.com", "ig-b").MemberCounts
		for _, name := range []string{"-new", "", "-newer"} {
			r.s.Configure(config(name))
			r.want(false, "ig-a"+name, "ig-c"+name, "ig-d"+name)
			r.want(true, "ig-b"+name)
			if m := r.member("www.example.com", "ig-b"+name); m.Hash != state.HashName("ig-b"+name) || m.MemberCounts != count {
				t.Errorf("%s: of another hash, or counted anew", m.Name)
			}
			if svc := r.service(); svc.Pool != state.Backup || svc.PoolTransitions != 1 {
				t.Errorf("pool %s (%s) after %d changes", svc.Pool, svc.PoolWhy, svc.PoolTransitions)
			}
		}
		// Another address under a new name is another member, and so is a second one at the same site.
		c := config("-newer")
		c.Services[0].Members[0].Name, c.Services[0].Members[0].Addresses[state.V4] = "other", addr("192.0.2.77")
		c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{Name: "twin", Site: "ig-d", Addresses: [2]netip.Addr{addr("192.0.2.78")}, Role: state.Backup})
		r.s.Configure(c)
		r.want(true, "other", "twin")
		r.want(false, "ig-d-newer")
	})
}
