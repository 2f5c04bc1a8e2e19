package state_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/state"
)

// pair is a service with a primary at seoul and a backup at virginia.
func pair(change ...func(*state.ServiceConfig)) *state.Config {
	return two(func(c *state.Config) {
		svc := &c.Services[0]
		svc.Members[1].Role = state.Backup
		svc.DrainTimeout = 300 * time.Second
		for _, f := range change {
			f(svc)
		}
	})
}

// told is how an agent of the site would be told of the services, by a report with these servers.
func (r *rig) told(site string, servers ...state.ServerState) string {
	r.t.Helper()
	var all []string
	for _, s := range r.report(says(site, servers...)).Services {
		text := fmt.Sprintf("%s %s %v", strings.TrimSuffix(s.Name, ".example.com"), s.State, s.VirtualServers)
		if s.Deadline != 0 {
			text += " in " + s.Deadline.Round(time.Second).String()
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (r *rig) wantTold(site, want string, servers ...state.ServerState) {
	r.t.Helper()
	if got := r.told(site, servers...); got != want {
		r.t.Errorf("at %s: %s is told %q, want %q", time.Now().Format("15:04:05"), site, got, want)
	}
}

// An incident: the primary fails, its sessions may stay for five minutes, and in the middle of the next failover it is
// back.
func TestServicesOfAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pair())
		keep := func(d time.Duration, server state.ServerState) {
			for range int(d / (5 * time.Second)) {
				time.Sleep(5 * time.Second)
				r.report(says("seoul", server))
				r.report(says("virginia", up))
			}
			r.settle()
		}
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.settle()
		r.wantTold("seoul", "www active [web]", up)
		// It is not known that the service ever was at its backups.
		r.wantTold("virginia", "www inactive [web]", up)
		keep(5*time.Second, down)
		r.wantTold("seoul", "www draining [web] in 5m0s", down)
		r.wantTold("virginia", "www active [web]", up)
		keep(100*time.Second, down)
		r.wantTold("seoul", "www draining [web] in 3m20s", down)
		keep(200*time.Second, down)
		r.wantTold("seoul", "www inactive [web]", down)

		keep(5*time.Second, up)
		r.wantTold("seoul", "www active [web]", up)
		r.wantTold("virginia", "www draining [web] in 5m0s", up)
		keep(60*time.Second, up)
		keep(5*time.Second, down)
		r.wantTold("seoul", "www draining [web] in 5m0s", down)
		r.wantTold("virginia", "www active [web]", up)
	})
}

func TestServicesAreTold(t *testing.T) {
	tests := []struct {
		name            string
		config          *state.Config
		after           time.Duration // the failover
		seoul, virginia string
	}{
		{
			"switched off: one TTL", pair(func(s *state.ServiceConfig) { s.DrainTimeout = 0 }), 10 * time.Second,
			"www draining [web] in 20s", "www active [web]",
		},
		{
			"a deadline that is shorter than a report may be late is told for as long", pair(func(s *state.ServiceConfig) { s.DrainTimeout = 0; s.TTL = 2 }), 10 * time.Second,
			"www draining [web]", "www active [web]",
		},
		{
			"and not for ever", pair(func(s *state.ServiceConfig) { s.DrainTimeout = 0; s.TTL = 2 }), 16 * time.Second,
			"www inactive [web]", "www active [web]",
		},
		{
			"a service without backups is always active", pair(func(s *state.ServiceConfig) { s.Members[1].Role = state.Primary }), 10 * time.Second,
			"www active [web]", "www active [web]",
		},
		{
			"both roles at one site, each told once", pair(func(s *state.ServiceConfig) {
				more := s.Members[0]
				more.Name, more.Role = "second", state.Backup
				third := s.Members[0]
				third.Name, third.Addresses[0] = "third", addr("9.9.9.9")
				s.Members = append(s.Members, more, third)
			}), 10 * time.Second,
			"www draining [web] in 4m50s, www active [web]", "www active [web]",
		},
		{
			"a member that no virtual server matches", pair(func(s *state.ServiceConfig) { s.Members[1].Port = 80 }), 10 * time.Second,
			"www draining [web] in 4m50s", "www active []",
		},
		{
			"by name", pair(func(s *state.ServiceConfig) {
				s.Members[0].VirtualServers = []string{"web", "not there"}
				s.Members[1].VirtualServers = []string{"elsewhere"}
			}), 10 * time.Second,
			"www draining [web] in 4m50s", "www active []",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := tc.config
				c.Services[0].HasCheck = true // which decides where no report matches
				r := start(t, c)
				check := func(member string, up bool) {
					r.s.Check(state.CheckResult{Service: "www.example.com", Member: member, Up: up, Err: map[bool]string{false: "HTTP 500"}[up]})
				}
				for _, m := range c.Services[0].Members {
					check(m.Name, m.Name != "third")
				}
				r.report(says("seoul", up))
				r.report(says("virginia", up))
				r.settle()
				check("seoul", false)
				r.settle()
				time.Sleep(tc.after - 200*time.Millisecond)
				r.wantTold("seoul", tc.seoul, up)
				r.wantTold("virginia", tc.virginia, up)
			})
		})
	}
}

// A restart of gslbd in the middle neither forgets that the primaries are being left nor gives them more time.
func TestServicesAfterRestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := startIn(t, pair(), dir)
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.settle()
		r.report(says("seoul", down))
		r.settle()
		r.stop()
		time.Sleep(40 * time.Second)
		r = startIn(t, pair(), dir)
		r.wantTold("seoul", "www draining [web] in 4m20s", down)
		r.wantTold("virginia", "www active [web]", up)
	})
}

// What operators order for a member is no failover by itself.
func TestServicesGoByThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pair(func(s *state.ServiceConfig) {
			other := s.Members[1]
			other.Name, other.Role = "other", state.Primary
			s.Members = append(s.Members, other)
		}))
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.settle()
		r.s.SetOrders(state.Orders{Force: func(_, member, _, _ string) state.Force {
			return state.Force{Forced: map[string]state.Forced{"seoul": state.ForcedEvacuated}[member]}
		}})
		r.wantTold("seoul", "www active [web]", up)
		r.wantTold("virginia", "www inactive [web], www active [web]", up)
	})
}

// A staged order moves clients to the backups before the pool changes: their sessions must not be ended.
func TestBackupsOfStagedOrdersAreActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pair())
		r.wantTold("seoul", "www active [web]", up)
		r.wantTold("virginia", "www inactive [web]", up)
		r.s.SetOrders(state.Orders{Force: func(_, member, _, _ string) (f state.Force) {
			if member == "seoul" {
				f.Stages = []state.Stage{{Order: 1, Share: 0.25}}
			}
			return f
		}})
		time.Sleep(5 * time.Second)
		r.wantTold("seoul", "www active [web]", up)
		r.wantTold("virginia", "www active [web]", up)
		r.s.SetOrders(state.Orders{}) // nobody is moved to the backups any more, and their sessions have their time
		r.wantTold("seoul", "www active [web]", up)
		r.wantTold("virginia", "www draining [web] in 5m0s", up)
		time.Sleep(5 * time.Minute)
		r.wantTold("virginia", "www inactive [web]", up)
	})
}

// Every agent of a site is told of the virtual servers that it reports itself, whether it holds the site or not.
func TestEveryAgentIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pair())
		r.s.SetOrders(state.Orders{Site: func(site, zone string) state.SiteOrders {
			return state.SiteOrders{Drain: site == "seoul" && zone == "z1"}
		}})
		first, second := says("seoul", up), says("seoul", up)
		first.Agent, second.Agent = "lb1", "lb2"
		second.VirtualServers[0].Name = "" // named by its address
		second.VirtualServers = append(second.VirtualServers, vs("other", "1.1.1.2", 443, up))
		a, b, other := r.report(first), r.report(second), r.report(says("virginia", up))
		want := []state.ServiceState{{Name: "www.example.com", State: "active", VirtualServers: []string{"web"}}}
		if d := cmp.Diff(want, a.Services); d != "" {
			t.Error(d)
		}
		want[0].VirtualServers = []string{"1.1.1.1:443"}
		if d := cmp.Diff(want, b.Services); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([][]string{{"web"}, {"1.1.1.1:443"}, nil}, [][]string{a.Drain, b.Drain, other.Drain}); d != "" {
			t.Error(d) // only what matches a member
		}
		if a.DeadAfter != time.Minute {
			t.Errorf("dead after %s", a.DeadAfter)
		}
		r.settle()
		if d := cmp.Diff([]string{"web", "1.1.1.1:443"}, r.site("seoul").Listed); d != "" {
			t.Error(d)
		}

		// A reload that takes the member away ends it.
		c := pair(func(s *state.ServiceConfig) { s.Members = s.Members[1:] })
		r.s.Configure(c)
		if got := r.site("seoul").Listed; len(got) > 0 {
			t.Errorf("listed %v", got)
		}
		time.Sleep(5 * time.Second)
		if res := r.report(first); len(res.Services) > 0 || len(res.Drain) > 0 {
			t.Errorf("%+v", res)
		}
	})
}

// What agents say of draining is published while their reports are fresh.
func TestAgentsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		first, second := says("seoul", drain, up, drain), says("seoul", dunno, down)
		first.Agent, second.Agent = "lb1", "lb2"
		first.Drained = []state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0"}}}
		second.Drained = []state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0", "server9"}}, {VirtualServer: "db", Servers: []string{"d1"}}}
		second.Warnings = []string{"draining is off in the agent's file"}
		r.report(first)
		r.report(second)
		r.settle()
		at := r.site("seoul")
		if d := cmp.Diff([]state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0", "server9"}}, {VirtualServer: "db", Servers: []string{"d1"}}}, at.Drained); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0", "server2"}}}, at.InDrain); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{`agent "lb2": draining is off in the agent's file`}, at.Warnings); d != "" {
			t.Error(d)
		}
		if len(first.Drained[0].Servers) != 1 {
			t.Error("the caller's slices were written to")
		}

		// One agent falls silent, then the other.
		time.Sleep(10 * time.Second)
		r.report(first)
		time.Sleep(6 * time.Second)
		if at = r.site("seoul"); len(at.Drained) != 1 || len(at.Warnings) > 0 {
			t.Errorf("%v, %v", at.Drained, at.Warnings)
		}
		time.Sleep(10 * time.Second)
		if at = r.site("seoul"); at.Freshness != state.Stale || at.Drained != nil || at.InDrain != nil || at.Listed != nil {
			t.Errorf("%+v", at)
		}
	})
}

// A server that is to be restored passes for restored only when its agent says so: neither one that is unknown, as all
// are when the agent cannot read its SLB, nor one of a virtual server whose servers are not known at all.
func TestUnknownIsNotRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		ordered := []state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0", "server1"}}, {VirtualServer: "gone", Servers: []string{"x"}}}
		r.s.SetOrders(state.Orders{Site: func(site, _ string) state.SiteOrders { return state.SiteOrders{Restore: ordered} }})
		for _, tc := range []struct {
			servers []state.ServerState
			want    []string
		}{
			{[]state.ServerState{drain, drain}, []string{"server0", "server1"}},
			{[]state.ServerState{dunno, dunno, dunno}, []string{"server0", "server1"}},
			{nil, []string{"server0", "server1"}},
			{[]state.ServerState{up, dunno}, []string{"server1"}},
			{[]state.ServerState{up, maint}, nil},
			{[]state.ServerState{up}, nil},
		} {
			res := r.report(says("seoul", tc.servers...))
			if d := cmp.Diff(ordered, res.Restore); d != "" {
				t.Error(d)
			}
			r.settle()
			var got []string
			for _, d := range r.site("seoul").InDrain {
				got = append(got, d.Servers...)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("servers %v: in drain %v, want %v", tc.servers, got, tc.want)
			}
			time.Sleep(5 * time.Second)
		}
		// An evacuation of another zone name that is still in force wins.
		r.s.SetOrders(state.Orders{Site: func(site, _ string) state.SiteOrders {
			return state.SiteOrders{Drain: true, Restore: ordered}
		}})
		if res := r.report(says("seoul", up)); len(res.Drain) != 1 || res.Restore != nil {
			t.Errorf("%+v", res)
		}
	})
}

// A server that is to be restored is not, while the agent that set it to drain is away: neither the word of the other agent of
// a pair counts for it, nor a site without any. One that is away for a day counts no more.
func TestAwayIsNotRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		ordered := []state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0", "server1"}}}
		r.s.SetOrders(state.Orders{Site: func(site, _ string) state.SiteOrders { return state.SiteOrders{Restore: ordered} }})
		report := func(agent string, drained bool, servers ...state.ServerState) state.ReportResult {
			t.Helper()
			rep := says("seoul", servers...)
			rep.Agent = agent
			if drained {
				rep.Drained = []state.DrainedServers{{VirtualServer: "web", Servers: []string{"server0"}}}
			}
			res := r.report(rep)
			r.settle()
			return res
		}
		want := func(when, servers string, away int) {
			t.Helper()
			at := r.site("seoul")
			var got []string
			for _, d := range at.InDrain {
				got = append(got, d.Servers...)
			}
			if strings.Join(got, " ") != servers {
				t.Errorf("%s: in drain %v, want %s", when, got, servers)
			}
			if n := strings.Count(strings.Join(at.Warnings, "\n"), `is away, and had servers in drain that are to be restored`); n != away {
				t.Errorf("%s: %q", when, at.Warnings)
			}
		}
		report("lb1", false, up, up)
		report("lb2", true, down, drain, drain) // server0 was last told of before it was set to drain
		for range 12 {
			time.Sleep(5 * time.Second)
			report("lb1", false, up, up)
		}
		want("lb2 is away", "server0 server1", 1)
		if res := report("lb2", true, drain, drain); len(res.Restore) != 1 {
			t.Errorf("lb2 is told to restore %v", res.Restore)
		}
		want("lb2 is back", "server0 server1", 0)
		time.Sleep(5 * time.Second)
		report("lb2", false, up, drain)
		want("lb2 restored one", "server1", 0)
		time.Sleep(24*time.Hour - time.Second)
		report("lb1", false, up, up)
		want("almost a day later", "server1", 1)
		time.Sleep(time.Second)
		want("a day later", "", 0)

		// An agent that has another name after a restart is not waited for.
		report("lb2", true, drain, drain)
		time.Sleep(20 * time.Second)
		report("lb2-again", false, drain, up)
		want("under another name", "server0", 0)
		time.Sleep(5 * time.Second)
		report("lb2-again", false, up, up)
		want("restored under another name", "", 0)
	})
}

// A gslbd that is cut off tells nobody that a service moved.
func TestServicesWhileBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pair())
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		time.Sleep(10 * time.Minute)
		if !r.s.Snapshot().Blind {
			t.Fatal("not blind")
		}
		r.wantTold("seoul", "www active [web]", up)
		r.settle()
		r.wantTold("virginia", "www inactive [web]", up)
	})
}

// TestManyServicesAtManyVirtualServers has 200 services at one VIP with as many virtual servers as a report may list:
// nobody waits for the report, and the agent, who cannot be told of all of it, is told of none.
func TestManyServicesAtManyVirtualServers(t *testing.T) {
	many := func(c *state.Config) {
		one := c.Services[0]
		c.Services = nil
		for i := range 200 {
			one.Name = fmt.Sprintf("s%d.example.com", i)
			c.Services = append(c.Services, one)
		}
	}
	st, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st.Configure(two(many))
	report := func(virtual int) state.ReportResult {
		r := says("seoul", up)
		vs := r.VirtualServers[0]
		r.VirtualServers = nil
		for i := range virtual {
			vs.Name, vs.Port = fmt.Sprintf("vs%d", i), uint16(i+1)
			r.VirtualServers = append(r.VirtualServers, vs)
		}
		res, err := st.Report(r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := report(10_000)
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100 { // a sign of the work: 12, and 300 if each service had its own list
		t.Errorf("the report took %d MiB", took)
	}
	if len(res.Services) > 0 || !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "too many virtual servers to be told of") }) {
		t.Errorf("%d services, %q", len(res.Services), res.Warnings)
	}
	if res = report(100); len(res.Services) != 200 || len(res.Services[199].VirtualServers) != 100 {
		t.Errorf("%d services", len(res.Services))
	}
}
