package state_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// vs is a virtual server with servers in these states.
func vs(name, address string, port uint16, servers ...state.ServerState) state.VirtualServer {
	v := state.VirtualServer{Name: name, Port: port, Protocol: "tcp"}
	if address != "" {
		v.Address = addr(address)
	}
	for i, st := range servers {
		v.Servers = append(v.Servers, state.Server{Name: name + string(rune('a'+i)), State: st, Reason: "HTTP 503"})
	}
	return v
}

func TestCoverage(t *testing.T) {
	const (
		v4    = "192.0.2.1"
		v6    = "2001:db8::1"
		inner = "10.0.0.1"
	)
	both := [2]netip.Addr{addr(v4), addr(v6)}
	only4 := [2]netip.Addr{addr(v4)}
	tests := []struct {
		name    string
		member  state.MemberConfig
		min     state.Threshold
		report  []state.VirtualServer
		up      [2]bool // with unknown_as: up
		why     string  // of IPv4
		warning string  // a part of one; empty: none
		servers [2]int  // up, counted; -1: no data
	}{
		{"by address", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, up, down)}, [2]bool{true, false}, "report", "", [2]int{1, 2}},
		{"by an address as mapped into IPv6", state.MemberConfig{Addresses: [2]netip.Addr{addr("::ffff:192.0.2.1")}}, state.Threshold{}, []state.VirtualServer{vs("web", "::ffff:192.0.2.1", 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"by address, down", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, down, down)}, [2]bool{}, `virtual server "web": 0 of 2 servers up, 1 needed (HTTP 503)`, "", [2]int{0, 2}},
		{"each family by its own address", state.MemberConfig{Addresses: both}, state.Threshold{}, []state.VirtualServer{vs("four", v4, 443, down), vs("six", v6, 443, up)}, [2]bool{false, true}, `virtual server "four": 0 of 1 servers up, 1 needed (HTTP 503)`, "", [2]int{1, 2}},
		{"one family covered, which the other follows", state.MemberConfig{Addresses: both}, state.Threshold{}, []state.VirtualServer{vs("four", v4, 443, down)}, [2]bool{}, "", "matches it for ipv6", [2]int{0, 1}},
		{"by name behind NAT", state.MemberConfig{Addresses: only4, VirtualServers: []string{"web"}}, state.Threshold{}, []state.VirtualServer{vs("web", inner, 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"names cover the families of their addresses", state.MemberConfig{Addresses: both, VirtualServers: []string{"four", "six"}}, state.Threshold{}, []state.VirtualServer{vs("four", inner, 443, down), vs("six", "fd00::1", 443, up)}, [2]bool{false, true}, "", "", [2]int{1, 2}},
		{"one of them missing", state.MemberConfig{Addresses: both, VirtualServers: []string{"four", "six"}}, state.Threshold{}, []state.VirtualServer{vs("four", inner, 443, down)}, [2]bool{}, "", "matches it for ipv6", [2]int{0, 1}},
		{"the only name covers both, whatever its address behind NAT", state.MemberConfig{Addresses: both, VirtualServers: []string{"web"}}, state.Threshold{}, []state.VirtualServer{vs("web", inner, 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"a name without address covers both", state.MemberConfig{Addresses: both, VirtualServers: []string{"web"}}, state.Threshold{}, []state.VirtualServer{vs("web", "", 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"a name of a family that the member lacks covers it", state.MemberConfig{Addresses: only4, VirtualServers: []string{"web"}}, state.Threshold{}, []state.VirtualServer{vs("web", "fd00::1", 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"a CNAME by name", state.MemberConfig{CNAME: "web.example.net.", VirtualServers: []string{"web"}}, state.Threshold{}, []state.VirtualServer{vs("web", inner, 443, down)}, [2]bool{}, "", "", [2]int{0, 1}},
		{"every matched virtual server counts", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, up), vs("plain", v4, 80, down)}, [2]bool{}, "", "", [2]int{1, 2}},
		{"but for another port", state.MemberConfig{Addresses: only4, Port: 443}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, up), vs("plain", v4, 80, down)}, [2]bool{true, false}, "report", `"plain" matches no member`, [2]int{1, 1}},
		{"or another protocol", state.MemberConfig{Addresses: only4, Protocol: "udp"}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, down)}, [2]bool{true, false}, "never measured (unknown_as)", `"web" matches no member`, [2]int{-1, 0}},
		{"uncovered", state.MemberConfig{Addresses: only4}, state.Threshold{}, nil, [2]bool{true, false}, "never measured (unknown_as)", "no virtual server of the report matches it", [2]int{-1, 0}},
		{"a minimum", state.MemberConfig{Addresses: only4}, state.Threshold{Count: 2}, []state.VirtualServer{vs("web", v4, 443, up, down, down)}, [2]bool{}, `virtual server "web": 1 of 3 servers up, 2 needed (HTTP 503)`, "", [2]int{1, 3}},
		{"a share met", state.MemberConfig{Addresses: only4}, state.Threshold{Share: 0.5}, []state.VirtualServer{vs("web", v4, 443, up, down)}, [2]bool{true, false}, "report", "", [2]int{1, 2}},
		{"a share missed", state.MemberConfig{Addresses: only4}, state.Threshold{Share: 0.5}, []state.VirtualServer{vs("web", v4, 443, up, down, down)}, [2]bool{}, `virtual server "web": 1 of 3 servers up, 50% needed (HTTP 503)`, "", [2]int{1, 3}},
		{"a share of the servers that count", state.MemberConfig{Addresses: only4}, state.Threshold{Share: 0.5}, []state.VirtualServer{vs("web", v4, 443, up, down, maint, drain)}, [2]bool{true, false}, "report", "", [2]int{1, 2}},
		{"maintenance is no failure", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, up, maint, drain)}, [2]bool{true, false}, "report", "", [2]int{1, 1}},
		{"nothing but maintenance", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, maint, drain)}, [2]bool{}, `virtual server "web": maintenance`, "", [2]int{0, 0}},
		{"no servers", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443)}, [2]bool{true, false}, "never measured (unknown_as)", `"web" carries no health`, [2]int{-1, 0}},
		{"only unknown servers", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, dunno, dunno)}, [2]bool{true, false}, "never measured (unknown_as)", `"web" carries no health`, [2]int{-1, 0}},
		{"unknown as if not listed", state.MemberConfig{Addresses: only4}, state.Threshold{Share: 1}, []state.VirtualServer{vs("web", v4, 443, up, dunno)}, [2]bool{true, false}, "report", "", [2]int{1, 1}},
		{"one silent virtual server of two", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{vs("web", v4, 443, down), vs("plain", v4, 80)}, [2]bool{}, "", `"plain" carries no health`, [2]int{0, 1}},
		{"no name in the report", state.MemberConfig{Addresses: only4}, state.Threshold{}, []state.VirtualServer{{Address: addr(v4), Port: 443, Servers: []state.Server{{State: down}}}}, [2]bool{}, "virtual server 192.0.2.1:443: 0 of 1 servers up, 1 needed", "", [2]int{0, 1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.member.Name, test.member.Site = "m", "seoul"
				r := start(t, &state.Config{
					Sites:    []state.SiteConfig{{Name: "seoul"}},
					Services: []state.ServiceConfig{{Name: "www.example.com", UnknownUp: true, MinHealthy: test.min, Members: []state.MemberConfig{test.member}}},
				})
				res := r.report(&state.Report{Site: "seoul", VirtualServers: test.report})
				synctest.Wait()
				r.settle()
				m := r.member("www.example.com", "m")
				if m.Up != test.up {
					t.Errorf("up = %v (%q), want %v", m.Up, m.Why, test.up)
				}
				if test.why != "" && m.Why[state.V4] != test.why {
					t.Errorf("why = %q, want %q", m.Why[state.V4], test.why)
				}
				if all := strings.Join(res.Warnings, "; "); test.warning == "" && all != "" || !strings.Contains(all, test.warning) {
					t.Errorf("warnings = %q, want %q", all, test.warning)
				}
				got := [2]int{m.ServersUp, m.Servers}
				if !m.HasServers {
					got = [2]int{-1, 0}
				}
				if got != test.servers {
					t.Errorf("servers = %v, want %v", got, test.servers)
				}
			})
		})
	}
}

func TestServerInTwoVirtualServersCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		web, plain := vs("web", "1.1.1.1", 443), vs("plain", "1.1.1.1", 80)
		web.Servers = []state.Server{{Name: "a", Address: "10.0.0.1", State: up}, {Name: "b", Address: "10.0.0.2", State: up}, {Name: "c", Address: "10.0.0.3", State: maint}, {Name: "d", Address: "10.0.0.4", State: down}}
		plain.Servers = []state.Server{{Name: "x", Address: "10.0.0.1", State: down}, {Name: "y", Address: "10.0.0.2", State: up}, {Name: "z", Address: "10.0.0.3", State: drain}, {Name: "w", Address: "10.0.0.4", State: up}}
		r.report(&state.Report{Site: "seoul", VirtualServers: []state.VirtualServer{web, plain}})
		r.settle()
		m, st := r.member("www.example.com", "seoul"), r.site("seoul")
		if m.ServersUp != 1 || m.Servers != 3 || st.ServersUp != 1 || !st.HasServers {
			t.Errorf("member %d of %d, site %d; want 1 of 3, 1", m.ServersUp, m.Servers, st.ServersUp)
		}
	})
}

// Every source must say that a member is up, and on_dead rules when the reports have died or no longer list it.
func TestSources(t *testing.T) {
	check := func(up bool) *state.CheckResult {
		return &state.CheckResult{Service: "www.example.com", Member: "seoul", Up: up, Err: "connection refused"}
	}
	cannot := &state.CheckResult{Service: "www.example.com", Member: "seoul", Unrunnable: true, Err: "no CAP_NET_RAW"}
	unlisted := &state.Report{Site: "seoul"}
	mute := &state.Report{Site: "seoul", VirtualServers: []state.VirtualServer{vs("web", "1.1.1.1", 443, dunno)}}
	type step struct {
		report *state.Report
		check  *state.CheckResult
		wait   time.Duration // the other site goes on reporting meanwhile
	}
	tests := []struct {
		name    string
		onDead  state.OnDead
		unknown bool
		check   bool
		steps   []step
		up      bool
		why     string
	}{
		{"nothing known", state.DeadCheck, true, false, nil, true, "never measured (unknown_as)"},
		{"nothing known, unknown_as: down", state.DeadCheck, false, true, nil, false, "never measured (unknown_as)"},
		{"report alone", state.DeadCheck, false, false, []step{{report: says("seoul", up)}}, true, "report"},
		{"check alone", state.DeadCheck, false, true, []step{{check: check(true)}}, true, "check"},
		{"check down", state.DeadCheck, true, true, []step{{check: check(false)}}, false, "check: connection refused"},
		{"both", state.DeadCheck, false, true, []step{{report: says("seoul", up), check: check(true)}}, true, "report and check"},
		{"servers fine, VIP unreachable", state.DeadCheck, true, true, []step{{report: says("seoul", up), check: check(false)}}, false, "check: connection refused"},
		{"VIP answers, servers down", state.DeadCheck, true, true, []step{{report: says("seoul", down), check: check(true)}}, false, `virtual server "web": 0 of 1 servers up, 1 needed`},
		{"a check that is not configured is no source", state.DeadCheck, true, false, []step{{check: check(false)}}, true, "never measured (unknown_as)"},
		{"a check that cannot be run is no source", state.DeadCheck, true, true, []step{{check: cannot}}, true, "never measured (unknown_as); check error: no CAP_NET_RAW"},
		{"nor does it help", state.DeadCheck, false, true, []step{{check: cannot}}, false, "never measured (unknown_as); check error: no CAP_NET_RAW"},
		{"nor beside a report", state.DeadCheck, false, true, []step{{report: says("seoul", up), check: cannot}}, true, "report"},
		{"a check that can no longer be run leaves the last state", state.DeadCheck, true, true, []step{{check: check(false)}, {check: cannot}}, false, "check error: no CAP_NET_RAW"},

		{"stale: health stays", state.DeadCheck, true, false, []step{{report: says("seoul", down), wait: 30 * time.Second}}, false, ""},
		{"stale: up stays", state.DeadCheck, false, false, []step{{report: says("seoul", up), wait: 30 * time.Second}}, true, "report"},
		{"dead without a check: down", state.DeadCheck, true, false, []step{{report: says("seoul", up), wait: 61 * time.Second}}, false, "report dead"},
		{"dead, check decides: up", state.DeadCheck, false, true, []step{{report: says("seoul", down), check: check(true), wait: 61 * time.Second}}, true, "check"},
		{"dead, check decides: down", state.DeadCheck, false, true, []step{{report: says("seoul", up), check: check(false), wait: 61 * time.Second}}, false, "check: connection refused"},
		{"dead, check cannot be run: down", state.DeadCheck, true, true, []step{{report: says("seoul", up), check: cannot, wait: 61 * time.Second}}, false, "report dead"},
		{"dead, keep: up", state.DeadKeep, false, false, []step{{report: says("seoul", up), wait: time.Hour}}, true, "report"},
		{"dead, keep: down", state.DeadKeep, true, false, []step{{report: says("seoul", down), wait: time.Hour}}, false, ""},
		{"dead, keep, check down", state.DeadKeep, true, true, []step{{report: says("seoul", up), check: check(false), wait: 61 * time.Second}}, false, "check: connection refused"},
		{"dead, down although the check succeeds", state.DeadDown, true, true, []step{{report: says("seoul", up), check: check(true), wait: 61 * time.Second}}, false, "report dead"},
		{"dead and back", state.DeadCheck, false, false, []step{{report: says("seoul", up), wait: 61 * time.Second}, {report: says("seoul", up)}}, true, "report"},

		{"no longer listed: down at once", state.DeadCheck, true, false, []step{{report: says("seoul", up)}, {report: unlisted}}, false, "no longer in the report"},
		{"no longer listed, keep", state.DeadKeep, false, false, []step{{report: says("seoul", up)}, {report: unlisted}}, true, "report"},
		{"no longer listed, check", state.DeadCheck, false, true, []step{{report: says("seoul", down), check: check(true)}, {report: unlisted}}, true, "check"},
		{"listed again", state.DeadCheck, false, false, []step{{report: says("seoul", up)}, {report: unlisted}, {report: says("seoul", up)}}, true, "report"},
		{"listed without health: stays", state.DeadCheck, true, false, []step{{report: says("seoul", down)}, {report: mute, wait: 5 * time.Second}, {report: mute}}, false, ""},
		{"listed without health for dead_after", state.DeadCheck, true, false, []step{
			{report: says("seoul", up)},
			{report: mute, wait: 14 * time.Second},
			{report: mute, wait: 14 * time.Second},
			{report: mute, wait: 14 * time.Second},
			{report: mute, wait: 14 * time.Second},
			{report: mute, wait: 14 * time.Second},
			{report: mute},
		}, false, "no health in the report"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, two(func(c *state.Config) {
					c.Services[0].OnDead, c.Services[0].UnknownUp, c.Services[0].HasCheck = test.onDead, test.unknown, test.check
				}))
				for _, step := range test.steps {
					if step.report != nil {
						r.report(step.report)
					}
					if step.check != nil {
						r.s.Check(*step.check)
					}
					for end := time.Now().Add(step.wait); time.Now().Before(end); {
						r.report(says("virginia", up))
						time.Sleep(min(5*time.Second, time.Until(end)))
					}
					r.settle()
				}
				m := r.member("www.example.com", "seoul")
				if m.Up[state.V4] != test.up || test.why != "" && m.Why[state.V4] != test.why {
					t.Errorf("up = %v (%q), want %v (%q)", m.Up[state.V4], m.Why[state.V4], test.up, test.why)
				}
			})
		})
	}
}

func TestCheckOfWhatIsNotConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].HasCheck = true }))
		for _, c := range []state.CheckResult{
			{Service: "no.example.com", Member: "seoul"},
			{Service: "www.example.com", Member: "nobody"},
			{Service: "www.example.com", Member: "seoul", Family: state.V6},
			{Service: "www.example.com", Member: "seoul", Family: 7},
		} {
			r.s.Check(c)
		}
		r.settle()
		r.want(true, "seoul", "virginia")
	})
}

func TestCheckLatencyAndError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.Services[0].HasCheck = true }))
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "seoul", Up: true, Latency: 12 * time.Millisecond})
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "virginia", Unrunnable: true, Err: "no CA"})
		r.settle()
		if m := r.member("www.example.com", "seoul"); !m.HasLatency[state.V4] || m.Latency[state.V4] != 12*time.Millisecond {
			t.Errorf("latency = %v", m.Latency)
		}
		if m := r.member("www.example.com", "virginia"); m.CheckError[state.V4] != "check error: no CA" {
			t.Errorf("check error = %q", m.CheckError)
		}
	})
}

func TestDamping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(says("virginia", up))
		r.report(says("seoul", up))
		r.settle()
		flip := func(n int) {
			for range n {
				st := up
				if r.member("www.example.com", "seoul").Up[state.V4] {
					st = down
				}
				r.report(says("seoul", st))
				r.report(says("virginia", up))
				r.settle()
				time.Sleep(10 * time.Second)
			}
		}
		flip(5)
		if n := r.logged("member damped"); n != 0 {
			t.Fatalf("damped after 5 transitions")
		}
		flip(1) // the sixth, to up
		r.want(false, "seoul")
		if n := r.logged("member damped"); n != 1 {
			t.Errorf("%d log lines \"member damped\", want 1", n)
		}
		if why := r.member("www.example.com", "seoul").Why[state.V4]; !strings.HasPrefix(why, "damped") {
			t.Errorf("why = %q", why)
		}
		// It is let in when nobody else is up, and held down again as soon as somebody is.
		r.report(says("seoul", up))
		r.report(says("virginia", down))
		r.settle()
		r.want(true, "seoul")
		r.want(false, "virginia")
		r.report(says("virginia", up))
		r.settle()
		r.want(false, "seoul")
		// One that orders keep from answering is nobody.
		r.s.SetOrders(state.Orders{Force: func(_, member, _, _ string) state.Force {
			if member == "virginia" {
				return state.Force{Forced: state.ForcedDown, Why: "order"}
			}
			return state.Force{Forced: state.NotForced, Why: ""}
		}})
		r.want(true, "seoul")
		r.s.SetOrders(state.Orders{})
		r.want(false, "seoul")
		for range 60 {
			r.report(says("seoul", up))
			r.report(says("virginia", up))
			time.Sleep(5 * time.Second)
		}
		r.settle()
		r.want(true, "seoul", "virginia")
	})
}

func TestSlowFlappingIsNotDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) { c.DeadAfter = time.Hour }))
		for i := range 20 {
			r.report(says("seoul", []state.ServerState{up, down}[i%2]))
			r.report(says("virginia", up))
			r.settle()
			time.Sleep(2*time.Minute + time.Second)
		}
		if n := r.logged("member damped"); n != 0 {
			t.Errorf("damped at 5 transitions in 10 minutes")
		}
	})
}

func TestLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(says("seoul", up))
		r.report(says("virginia", up))
		r.settle()
		r.report(says("seoul", down))
		r.settle()
		time.Sleep(time.Second)
		r.report(says("virginia", down))
		r.settle()
		r.want(false, "seoul", "virginia")
		if r.member("www.example.com", "seoul").LastGood[state.V4] || !r.member("www.example.com", "virginia").LastGood[state.V4] {
			t.Error("only virginia was up just before the last went down")
		}
	})
}

func TestForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(says("seoul", down))
		r.report(says("virginia", up))
		r.settle()
		r.s.SetOrders(state.Orders{Force: func(service, member, site, zone string) state.Force {
			switch {
			case service == "www.example.com" && member == "seoul" && zone == "z1":
				return state.Force{Forced: state.ForcedUp, Why: "by ann"}
			case site == "virginia":
				return state.Force{Forced: state.ForcedDown, Why: "by bob"}
			}
			return state.Force{Forced: state.NotForced, Why: ""}
		}})
		// Published at once; only "up" overrides the measurement.
		r.want(true, "seoul", "virginia")
		if m := r.member("www.example.com", "virginia"); m.Forced != state.ForcedDown || m.ForcedWhy != "by bob" {
			t.Errorf("forced = %v %q", m.Forced, m.ForcedWhy)
		}
		r.s.SetOrders(state.Orders{})
		r.want(false, "seoul")
		r.want(true, "virginia")
	})
}

func TestAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		from := func(agent string, rep *state.Report) state.ReportResult {
			rep.Agent = agent
			return r.report(rep)
		}
		from("lb1", says("seoul", up))
		if res := from("lb2", says("seoul", down)); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "does not hold") {
			t.Errorf("warnings to the agent that stands by = %q", res.Warnings)
		}
		r.settle()
		r.want(true, "seoul")
		// lb1 falls silent; lb2 goes on and takes over as soon as lb1's report is stale.
		for range 2 {
			time.Sleep(5 * time.Second)
			from("lb2", says("seoul", down))
			r.settle()
			r.want(true, "seoul")
		}
		time.Sleep(5 * time.Second)
		r.settle()
		r.want(false, "seoul")
		if st := r.site("seoul"); st.Agent != "lb2" || st.Freshness != state.Fresh {
			t.Errorf("agent %q, %v", st.Agent, st.Freshness)
		}
		if n := r.logged("agent took over"); n != 1 {
			t.Errorf("%d log lines, want 1", n)
		}
		if n := r.logged("site stale"); n != 0 {
			t.Errorf("the site is said to be stale although an agent took over")
		}
		// lb1 is back, and stands by.
		from("lb1", says("seoul", up))
		from("lb2", says("seoul", down))
		r.settle()
		r.want(false, "seoul")
	})
}

// The SLB of one agent has died and its agent has not: it lists servers as unknown for ever, and the VIPs are elsewhere.
func TestAgentThatCannotReadItsSLB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		as := func(agent string, rep *state.Report) { rep.Agent = agent; r.report(rep) }
		as("lb1", says("seoul", up))
		as("lb2", says("seoul", up))
		for i := range 30 {
			time.Sleep(5 * time.Second)
			as("lb1", says("seoul", dunno))
			as("lb2", says("seoul", up))
			r.settle()
			r.want(true, "seoul")
			if agent := r.site("seoul").Agent; i < 3 && agent != "lb1" || i > 3 && agent != "lb2" {
				t.Fatalf("after %d reports %q holds the site", i+1, agent)
			}
		}
		for range 20 { // nobody can say anything: nobody takes over
			time.Sleep(5 * time.Second)
			as("lb1", says("seoul", dunno))
			as("lb2", says("seoul", dunno))
		}
		r.settle()
		r.want(false, "seoul")
		if n := r.logged("agent took over"); n != 1 {
			t.Errorf("%d takeovers, want 1", n)
		}
	})
}

// What another agent told of is not "no longer listed" by the one that took over: it ages from the last report of the
// agent that told of it.
func TestTakeoverKeepsWhatTheOtherToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		began := time.Now()
		first := says("seoul", up)
		first.Agent = "lb1"
		r.report(first)
		for time.Since(began) < 58*time.Second {
			r.report(says("virginia", up))
			r.report(&state.Report{Site: "seoul", Agent: "lb2"})
			r.settle()
			r.want(true, "seoul")
			time.Sleep(5 * time.Second)
		}
		r.report(&state.Report{Site: "seoul", Agent: "lb2"})
		time.Sleep(5 * time.Second)
		r.settle()
		r.want(false, "seoul")
	})
}

func TestReloadKeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.report(sessions("seoul", 950000))
		r.report(says("virginia", down))
		r.settle()
		id := r.site("virginia").ID
		since := r.member("www.example.com", "virginia").Since[state.V4]
		time.Sleep(time.Second)
		r.s.Configure(two(func(c *state.Config) {
			c.Sites = append([]state.SiteConfig{{Name: "paris"}}, c.Sites...)
			c.Services[0].Members = append([]state.MemberConfig{{Name: "paris", Site: "paris", Addresses: [2]netip.Addr{addr("3.3.3.3")}}}, c.Services[0].Members...)
			c.Services[0].TTL = 60
		}))
		r.want(true, "seoul", "paris")
		r.want(false, "virginia")
		if m := r.member("www.example.com", "virginia"); !m.Since[state.V4].Equal(since) || m.Transitions != 1 {
			t.Errorf("since %v, transitions %d", m.Since[state.V4], m.Transitions)
		}
		if st := r.site("virginia"); st.ID != id || st.Index != 2 || !r.site("seoul").Overloaded {
			t.Errorf("id %d index %d", st.ID, st.Index)
		}
		if snap := r.s.Snapshot(); snap.Epoch != 2 || snap.Services[0].TTL != 60 {
			t.Errorf("epoch %d", snap.Epoch)
		}
		// Whoever is dropped is forgotten; whoever moves to another site is somebody else.
		r.s.Configure(two(func(c *state.Config) { c.Services[0].Members[1].Site = "seoul" }))
		if m := r.member("www.example.com", "virginia"); !m.Up[state.V4] || m.Transitions != 0 {
			t.Errorf("a member that moved: up %v, transitions %d", m.Up[state.V4], m.Transitions)
		}
		r.s.Configure(&state.Config{})
		r.s.Configure(two())
		r.want(true, "seoul", "virginia")
		if st := r.site("seoul"); st.Freshness != state.NeverReported || st.Overloaded {
			t.Errorf("a site that was dropped: %v", st.Freshness)
		}
		if got := r.site("virginia").ID; got != id {
			t.Errorf("id %d after the site came back, want %d", got, id)
		}
	})
}

// A family that nothing tells of follows the one that something tells of: up, down, and dead with its site. As soon as
// something tells of it, it goes by that.
func TestUncoveredFamilyFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(func(c *state.Config) {
			c.Services[0].Members[0].Addresses[state.V6] = addr("2001:db8::1")
			c.Services[0].HasCheck = true
		}))
		want := func(v6 bool, why string) {
			t.Helper()
			r.settle()
			m := r.member("www.example.com", "seoul")
			if m.Up[state.V6] != v6 || !strings.Contains(m.Why[state.V6], why) {
				t.Errorf("ipv6 up = %v (%s), want %v (%s)", m.Up[state.V6], m.Why[state.V6], v6, why)
			}
		}
		report := func(st state.ServerState) {
			r.report(&state.Report{Site: "seoul", VirtualServers: []state.VirtualServer{vs("web", "1.1.1.1", 443, st)}})
			r.report(&state.Report{Site: "virginia", VirtualServers: []state.VirtualServer{vs("web", "2.2.2.2", 443, up)}})
		}
		want(true, "never measured")
		report(up)
		want(true, "as ipv4, since nothing tells of ipv6: report")
		report(down)
		want(false, "as ipv4, since nothing tells of ipv6: virtual server")
		report(up)
		want(true, "as ipv4")
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "seoul", Family: state.V6, Err: "no answer in 2s"})
		want(false, "check: no answer in 2s")
		report(down)
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "seoul", Family: state.V6, Up: true})
		want(true, "check")
	})
}

// That a service has lost its last member is the line that an operator must not miss; it comes once, and its end too.
func TestServiceWithoutMembersIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		say := func(seoul, virginia state.ServerState) {
			r.report(&state.Report{Site: "seoul", VirtualServers: []state.VirtualServer{vs("web", "1.1.1.1", 443, seoul)}})
			r.report(&state.Report{Site: "virginia", VirtualServers: []state.VirtualServer{vs("web", "2.2.2.2", 443, virginia)}})
			r.settle()
			r.settle()
		}
		want := func(lost, back int) {
			t.Helper()
			if a, b := r.logged("service has no member up"), r.logged("service has a member up again"); a != lost || b != back {
				t.Errorf("lost %d times, back %d times; want %d and %d", a, b, lost, back)
			}
		}
		say(up, up)
		say(down, up)
		want(0, 0)
		say(down, down)
		say(down, down)
		want(1, 0)
		say(up, down)
		want(1, 1)
		say(down, down)
		want(2, 1)
	})
}

// A member that moves to another address brings no latency of the old one along.
func TestMovedMemberHasNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checked := func(c *state.Config) { c.Services[0].HasCheck = true }
		r := start(t, two(checked))
		r.s.Check(state.CheckResult{Service: "www.example.com", Member: "seoul", Up: true, Latency: time.Millisecond})
		r.settle()
		if m := r.member("www.example.com", "seoul"); !m.HasLatency[state.V4] {
			t.Fatal("no latency")
		}
		r.s.Configure(two(checked, func(c *state.Config) { c.Services[0].Members[0].Addresses[state.V4] = addr("1.1.1.9") }))
		if m := r.member("www.example.com", "seoul"); m.HasLatency[state.V4] {
			t.Error("the latency of the old address is kept")
		}
	})
}

// A member that names two virtual servers needs both: one that the report stops listing counts as on_dead says, also over
// a restart, while a name that was never listed is only warned of, since it may be a slip of the pen.
func TestNamedVirtualServerNoLongerListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		config := func(names ...string) *state.Config {
			return two(func(c *state.Config) { c.Services[0].Members[0].VirtualServers = names })
		}
		report := func(r *rig, list ...state.VirtualServer) string {
			return strings.Join(r.report(&state.Report{Site: "seoul", VirtualServers: list}).Warnings, "; ")
		}
		want := func(r *rig, isUp bool, why string) {
			t.Helper()
			r.settle()
			if m := r.member("www.example.com", "seoul"); m.Up[state.V4] != isUp || !strings.Contains(m.Why[state.V4], why) {
				t.Errorf("up = %v (%s), want %v (%s)", m.Up[state.V4], m.Why[state.V4], isUp, why)
			}
		}
		web, api := vs("web", "10.0.0.1", 443, up), vs("api", "10.0.0.2", 443, up)
		r := startIn(t, config("web", "api"), dir)
		if w := report(r, web); !strings.Contains(w, `names the virtual server "api", which the report does not list`) {
			t.Errorf("warnings %q do not tell of the name that is not there", w)
		}
		want(r, true, "report")
		report(r, web, api)
		want(r, true, "report")
		report(r, web)
		want(r, false, `virtual server "api" is no longer in the report`)
		r.stop()

		r = startIn(t, config("web", "api"), dir)
		want(r, false, "api")
		report(r, web)
		want(r, false, `virtual server "api" is no longer in the report`)
		report(r, web, api)
		want(r, true, "report")
		report(r, web, vs("api", "10.0.0.2", 443, down))
		want(r, false, "0 of 1 servers up")
		report(r, web)
		want(r, false, "no longer")
		r.s.Configure(config("web"))
		report(r, web)
		want(r, true, "report")
	})
}

// A reload that gives a member another address forgets what the check found at the old one. When it finds the same at the new
// one, that is news.
func TestTheSameCheckAtAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := func(c *state.Config) {
			checked(c)
			c.Services[0].Members[0].VirtualServers = []string{"web"}
		}
		r := start(t, two(config))
		r.report(says("seoul", up))
		r.s.Check(probe("seoul", false, false))
		r.settle()
		r.want(false, "seoul")
		r.s.Configure(two(config, func(c *state.Config) { c.Services[0].Members[0].Addresses[state.V4] = addr("1.1.1.9") }))
		r.want(true, "seoul")
		r.s.Check(probe("seoul", false, false))
		r.settle()
		r.want(false, "seoul")
	})
}

// Why a check cannot be run is shown as it is now.
func TestAnotherCheckError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(checked))
		for _, why := range []string{"no permission", "no authority"} {
			check := probe("seoul", false, false)
			check.Unrunnable, check.Err = true, why
			r.s.Check(check)
			r.settle()
			if got := r.member("www.example.com", "seoul").CheckError[state.V4]; got != "check error: "+why {
				t.Errorf("%q, want %q", got, why)
			}
		}
	})
}
