package policy_test

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

func TestConstraints(t *testing.T) {
	tests := []struct {
		name   string
		set    func(*world)
		family state.Family
		want   string // every member that is answered to someone
		reason string
	}{
		{"all may serve", func(*world) {}, state.V4, "a b c", "static"},
		{"outside the pool", func(w *world) { w.of("a").InPool = false }, state.V4, "b c", "static"},
		{"no address of the family", func(w *world) { w.of("a").Addr[state.V6] = netip.Addr{} }, state.V6, "b c", "static"},
		{"a CNAME has both families", func(w *world) {
			for _, m := range w.Members {
				m.Addr, m.CNAME = [2]netip.Addr{}, m.Name+".example."
			}
		}, state.V6, "a b c", "static"},
		{"forced down", func(w *world) { w.of("b").Forced = state.ForcedDown }, state.V4, "a c", "static"},
		{"evacuated", func(w *world) { w.of("b").Forced = state.ForcedEvacuated }, state.V4, "a c", "static"},
		{"forced up", func(w *world) { w.of("b").Forced = state.ForcedUp }, state.V4, "a b c", "static"},
		{"forced down comes never back", func(w *world) {
			w.of("a").Forced, w.of("b").Forced = state.ForcedDown, state.ForcedDown
			w.down("c")
		}, state.V4, "c", "on_all_down"},
		{"weight 0 stands aside", func(w *world) { w.of("a").Weight = 0 }, state.V4, "b c", "static"},
		{"drained stands aside", func(w *world) { w.of("a").Forced = state.ForcedDrain }, state.V4, "b c", "static"},
		{"weight 0 comes back when the rest is down", func(w *world) {
			w.of("a").Weight, w.of("b").Forced = 0, state.ForcedDrain
			w.down("c")
		}, state.V4, "a", "health"},
		{"the drained come back after weight 0", func(w *world) {
			w.of("a").Weight, w.of("b").Forced = 0, state.ForcedDrain
			w.down("a", "c")
		}, state.V4, "b", "health"},
		{"drained and weight 0 is drained", func(w *world) {
			w.of("a").Weight, w.of("a").Forced, w.of("b").Weight = 0, state.ForcedDrain, 0
			w.down("c")
		}, state.V4, "b", "health"},
		{"nothing up: only the rest", func(w *world) {
			w.of("a").Weight, w.of("b").Forced = 0, state.ForcedDrain
			w.down("a", "b", "c")
		}, state.V4, "c", "on_all_down"},
		{"nothing up and no rest: weight 0", func(w *world) {
			w.of("a").Weight, w.of("b").Forced, w.of("c").Forced = 0, state.ForcedDrain, state.ForcedDown
			w.down("a", "b", "c")
		}, state.V4, "a", "on_all_down"},
		{"one left of several", func(w *world) { w.of("a").Weight, w.of("b").Forced = 0, state.ForcedDown }, state.V4, "c", "constraints"},
		{"one in the pool", func(w *world) { w.of("a").InPool, w.of("b").InPool = false, false }, state.V4, "c", "single"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			c := build(t, "health", "static")
			var seen []string
			for i := range uint64(60) {
				got, d, trace := w.decide(c, turn(i), family(tt.family))
				if d.Kind != policy.Answer || d.Reason.String() != tt.reason {
					t.Fatalf("kind %d, reason %s, want %s; %+v", d.Kind, d.Reason, tt.reason, trace)
				}
				if !slices.Contains(seen, got) {
					seen = append(seen, got)
				}
			}
			slices.Sort(seen)
			if got := strings.Join(seen, " "); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestEmptySetIsNoData(t *testing.T) {
	for name, set := range map[string]func(*world){
		"forced down": func(w *world) {
			for _, m := range w.Members {
				m.Forced = state.ForcedDown
			}
		},
		"no address": func(w *world) {
			for _, m := range w.Members {
				m.Addr = [2]netip.Addr{}
			}
		},
		"no members": func(w *world) { w.Members = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("a", "b")
			set(w)
			_, d, trace := w.decide(build(t, "health", "!capacity", "static"))
			want := policy.Decision{Kind: policy.NoData, Reason: policy.ReasonConstraints, TTL: 10, Empty: true}
			if name != "forced down" {
				want.TTL = policy.NoCeiling
			}
			if d != want {
				t.Errorf("got %+v, want %+v", d, want)
			}
			if got := verdicts(trace); got != "health:not consulted capacity:disabled static:not consulted" {
				t.Error(got)
			}
		})
	}
}

// The rules of the loop: who is consulted, what is skipped, when the chain begins again.
func TestLoop(t *testing.T) {
	prefer := func(w *world, names ...string) { // the first highest
		for i, n := range names {
			w.of(n).Preference = 900 - i
		}
	}
	tests := []struct {
		name           string
		chain          []string
		set            func(*world)
		want, verdicts string
		reason         string
	}{
		{
			"stops at a single candidate",
			[]string{"health", "preference", "cost", "static"},
			func(w *world) { prefer(w, "b") },
			"b", "health:kept all preference:decided cost:not consulted static:not consulted", "preference",
		},
		{
			"narrows, then another decides",
			[]string{"preference", "cost", "health", "static"},
			func(w *world) { prefer(w, "b"); w.of("c").Preference = 900; w.at("b").Cost = 3 },
			"c", "preference:narrowed cost:decided health:kept all static:not consulted", "cost",
		},
		{
			"a disabled metric is passed over",
			[]string{"health", "!preference", "cost"},
			func(w *world) { prefer(w, "b"); w.at("c").Cost = -1 },
			"c", "health:kept all preference:disabled cost:decided", "cost",
		},
		{
			"health is consulted for a single candidate",
			[]string{"preference", "cost", "health"},
			func(w *world) { prefer(w, "b", "c"); w.down("b") },
			"c", "preference:decided cost:not consulted health:restarted preference:decided cost:not consulted health:kept all", "preference",
		},
		{
			"health narrows without a restart",
			[]string{"cost", "health", "preference"},
			func(w *world) { w.at("a").Cost = 5; w.down("b") },
			"c", "cost:narrowed health:decided preference:not consulted", "health",
		},
		{
			"a restart that leaves one",
			[]string{"preference", "health", "static"},
			func(w *world) { prefer(w, "a"); w.down("a", "b") },
			"c", "preference:decided health:restarted preference:not consulted health:kept all static:not consulted", "health",
		},
		{
			"a disabled health neither filters nor restarts",
			[]string{"!health", "preference"},
			func(w *world) { prefer(w, "a"); w.down("a", "b") },
			"a", "health:disabled preference:decided", "preference",
		},
		{
			"without health on_all_down never applies",
			[]string{"preference"},
			func(w *world) { prefer(w, "a"); w.down("a", "b", "c"); w.OnAllDown = state.AllDownServFail },
			"a", "preference:decided", "preference",
		},
		{
			"no metric tells them apart",
			[]string{"health", "preference", "rtt"},
			func(*world) {},
			"a", "health:kept all preference:kept all rtt:abstained", "constraints",
		},
		{
			"the last that ordered",
			[]string{"static", "health", "cost"},
			func(*world) {},
			"a", "static:decided health:kept all cost:kept all", "static",
		},
		{
			"an order is kept by what follows",
			[]string{"static=ordered", "preference"},
			func(w *world) { prefer(w, "c"); w.of("b").Preference = 900 },
			"b", "static:kept all preference:narrowed", "preference",
		},
		{
			"a single candidate that is down",
			[]string{"health", "static"},
			func(w *world) { w.of("a").InPool, w.of("b").InPool = false, false; w.down("c") },
			"c", "health:emptied static:not consulted", "on_all_down",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			got, d, trace := w.decide(build(t, tt.chain...))
			if got != tt.want || d.Reason.String() != tt.reason {
				t.Errorf("got %s by %s, want %s by %s", got, d.Reason, tt.want, tt.reason)
			}
			if v := verdicts(trace); v != tt.verdicts {
				t.Errorf("verdicts\n got %s\nwant %s", v, tt.verdicts)
			}
		})
	}
}

// A metric that would reject all is skipped.
func TestEmptied(t *testing.T) {
	w := newWorld("a", "b")
	o := defaults("rtt")
	o.RequireData = true
	got, d, trace := w.decide(buildOptions(t, o, defaults("static")), turn(1))
	if got != "b" || d.Reason.String() != "static" || verdicts(trace) != "rtt:emptied static:decided" {
		t.Errorf("got %s by %s: %s", got, d.Reason, verdicts(trace))
	}
	if got := kept(trace, "rtt"); got != "a(no data) b(no data) | " {
		t.Error(got)
	}
}

func TestOnAllDown(t *testing.T) {
	good := func(w *world) {
		w.of("b").LastGood[state.V4], w.of("c").LastGood[state.V6] = true, true
	}
	v6up := func(w *world) { w.of("c").Up[state.V6] = true }
	tests := []struct {
		name   string
		choice state.OnAllDown
		set    func(*world)
		kind   policy.Kind
		want   string
		trace  string
	}{
		{"all", state.AllDownAll, nil, policy.Answer, "a b c", "all: all members for ipv4, by the chain without health"},
		{"all, the other family is up", state.AllDownAll, v6up, policy.NoData, "", "all: no data, since a member is up for ipv6"},
		{"all, the other family is up but forced down", state.AllDownAll, func(w *world) {
			v6up(w)
			w.of("c").Forced = state.ForcedDown
		}, policy.Answer, "a b", "all: all members for ipv4, by the chain without health"},
		{"all, the other family is up outside the pool", state.AllDownAll, func(w *world) {
			v6up(w)
			w.of("c").InPool = false
		}, policy.Answer, "a b", "all: all members for ipv4, by the chain without health"},
		{"last known good", state.AllDownLastKnownGood, good, policy.Answer, "b", "last-known-good: the members that were last up for ipv4"},
		{"last known good, none", state.AllDownLastKnownGood, nil, policy.Answer, "a b c", "last-known-good: all members for ipv4, by the chain without health"},
		{"backup", state.AllDownBackup, func(w *world) {
			w.LastResort = []netip.Addr{netip.MustParseAddr("2001:db8::99"), netip.MustParseAddr("192.0.2.99")}
		}, policy.LastResort, "", "backup: the addresses of last_resort for ipv4"},
		{"backup of the other family", state.AllDownBackup, func(w *world) {
			w.LastResort = []netip.Addr{netip.MustParseAddr("2001:db8::99")}
		}, policy.NoData, "", "backup: no data, since last_resort has no address of ipv4"},
		{"no data", state.AllDownNoData, good, policy.NoData, "", "nodata: no data for ipv4"},
		{"server failure", state.AllDownServFail, good, policy.ServFail, "", "servfail: server failure for ipv4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			w.down("a", "b", "c")
			w.OnAllDown = tt.choice
			if tt.set != nil {
				tt.set(w)
			}
			c := build(t, "capacity", "health", "static")
			_, d, trace := w.decide(c)
			if d.Kind != tt.kind || !d.AllDown || d.Empty || d.TTL != 10 || d.Reason != policy.ReasonOnAllDown {
				t.Errorf("got %+v", d)
			}
			if trace.OnAllDown != tt.trace {
				t.Errorf("trace %q, want %q", trace.OnAllDown, tt.trace)
			}
			if got := w.always(c); got != tt.want {
				t.Errorf("answers %q, want %q", got, tt.want)
			}
			if len(trace.Steps) != 3 || !strings.Contains(verdicts(trace), "health:emptied") {
				t.Error(verdicts(trace))
			}
		})
	}
	t.Run("a short TTL stays", func(t *testing.T) {
		w := newWorld("a")
		w.down("a")
		w.TTL = 4
		if _, d, _ := w.decide(build(t, "health")); d.TTL != 4 {
			t.Errorf("TTL %d, want 4", d.TTL)
		}
	})
}

func TestAnswers(t *testing.T) {
	tests := []struct {
		name  string
		n     int
		chain []string
		set   func(*world)
		want  string
	}{
		{"one by default", 0, []string{"health"}, nil, "a"},
		{"what the chain would choose next", 3, []string{"health", "preference"}, func(w *world) {
			for i, n := range []string{"c", "a", "d", "b"} {
				w.of(n).Preference = 500 - i
			}
		}, "c a d"},
		{"no more than there are", 9, []string{"health", "static"}, nil, "a b c d"},
		{"never one that is down", 4, []string{"health", "preference"}, func(w *world) { w.down("b", "d") }, "a c"},
		{"never one that is down, health last", 4, []string{"preference", "health"}, func(w *world) {
			w.of("b").Preference = 900
			w.down("b", "d")
		}, "a c"},
		{"all of them when all are down", 4, []string{"health", "static"}, func(w *world) { w.down("a", "b", "c", "d") }, "a b c d"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c", "d")
			w.Service.Answers = tt.n
			if tt.set != nil {
				tt.set(w)
			}
			names, _, trace := w.decide(build(t, tt.chain...))
			if tt.chain[len(tt.chain)-1] == "static" {
				list := strings.Fields(names)
				slices.Sort(list)
				names = strings.Join(list, " ")
			}
			if names != tt.want {
				t.Errorf("got %s, want %s", names, tt.want)
			}
			steps := 0
			for _, s := range trace.Steps {
				if s.Verdict == policy.VerdictRestarted {
					steps -= len(tt.chain)
				}
				steps++
			}
			if steps > len(tt.chain) {
				t.Errorf("the trace tells of more than the first answer: %s", verdicts(trace))
			}
		})
	}
	t.Run("at most ten", func(t *testing.T) {
		w := newWorld(strings.Fields("a b c d e f g h i j k l")...)
		w.Service.Answers = 12
		if _, d, _ := w.decide(build(t, "static")); d.N != policy.MaxAnswers {
			t.Errorf("%d answers", d.N)
		}
	})
}

func TestTraceOfConstraints(t *testing.T) {
	w := newWorld("a", "b", "c", "d", "e")
	w.of("a").InPool, w.of("a").Role = false, state.Backup
	w.of("b").Addr[state.V6] = netip.Addr{}
	w.of("c").Forced, w.of("c").ForcedWhy = state.ForcedDown, "maintenance by kim"
	w.of("d").Weight = 0
	w.of("e").Forced = state.ForcedDrain
	w.down("e")
	_, _, trace := w.decide(build(t, "health"), family(state.V6))
	var got []string
	for _, s := range trace.Constraints {
		got = append(got, s.Metric+": "+s.Verdict+": "+members(s.Kept)+" | "+members(s.Fell)+" "+s.Note)
	}
	want := []string{
		"pool: narrowed: c d e | a(backup, not in the pool) b(no ipv6 address) ",
		"orders: narrowed: d e | c(down: maintenance by kim) ",
		"weight and drain: decided: d(weight 0) | e(drain) nothing better is up",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBuildErrors(t *testing.T) {
	tests := map[string]struct {
		steps []policy.StepOptions
		want  string
	}{
		"empty":   {nil, "the chain is empty"},
		"unknown": {[]policy.StepOptions{{Metric: "heath"}}, `chain[0]: unknown metric "heath"; known are health, capacity, rtt, `},
		"twice":   {[]policy.StepOptions{{Metric: "cost"}, {Metric: "cost", Disabled: true}}, `chain[1]: metric "cost" is listed twice`},
		"two at once": {
			[]policy.StepOptions{{Metric: "static", Method: "random"}, {Metric: "geo"}},
			"chain[0]: static: unknown method \"random\"; known are round-robin, weighted, hash, ordered\nchain[1]: geo: levels is empty",
		},
		"level":      {[]policy.StepOptions{{Metric: "geo", Levels: []string{"city"}}}, `levels: unknown level "city"`},
		"level x2":   {[]policy.StepOptions{{Metric: "geo", Levels: []string{"country", "country"}}}, `levels: "country" is listed twice`},
		"distance":   {[]policy.StepOptions{{Metric: "geo", Levels: []string{"country"}, ToleranceKm: -1}}, "tolerance_km must not be negative"},
		"rtt":        {[]policy.StepOptions{{Metric: "rtt", MaxAge: time.Minute, Tolerance: -1}}, "must not be negative"},
		"rtt age":    {[]policy.StepOptions{{Metric: "rtt"}}, "max_age must be above 0"},
		"half-life":  {[]policy.StepOptions{{Metric: "least-selected"}}, "half_life must be above 0"},
		"connection": {[]policy.StepOptions{{Metric: "connection-load", Limit: -1}}, "must not be negative"},
		"headroom":   {[]policy.StepOptions{{Metric: "headroom", Tolerance: -1}}, "must not be negative"},
		"latency":    {[]policy.StepOptions{{Metric: "probe-latency", Tolerance: -1}}, "must not be negative"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Build("web", tt.steps)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), `policy "web": `) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestChainFacts(t *testing.T) {
	o := defaults("least-selected")
	o.HalfLife = 90 * time.Second
	c := buildOptions(t, defaults("rtt"), o)
	if c.Name() != "test" || !c.UsesRTT() || c.HalfLife() != 90*time.Second {
		t.Errorf("got %s, %v, %s", c.Name(), c.UsesRTT(), c.HalfLife())
	}
	if c = build(t, "!rtt", "!least-selected"); c.UsesRTT() || c.HalfLife() != time.Minute {
		t.Errorf("disabled: got %v, %s", c.UsesRTT(), c.HalfLife())
	}
}

// A chain is shared by all workers, and the rotation's counters move while it reads them.
func TestChainIsShared(t *testing.T) {
	w, c := busy(t, 5), build(t, defaultChain...)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			q := w.query()
			for i := range 500 {
				var d policy.Decision
				q.Turn, q.Trace = uint64(i), nil
				if i%50 == 0 {
					q.Trace = &policy.Trace{}
				}
				c.Decide(q, &d)
				d.Members[0].Selected[state.V4].Add(state.SelectedUnit)
			}
		})
	}
	group.Wait()
	total := int64(0)
	for _, m := range w.Members {
		total += m.Selected[state.V4].Load()
	}
	if total != 2000*state.SelectedUnit {
		t.Errorf("%d selections were counted", total/state.SelectedUnit)
	}
}

// Telemetry and the counters of state rely on these.
func TestReasons(t *testing.T) {
	want := "constraints single on_all_down health capacity rtt geo connection-load preference least-selected static " +
		"headroom active-servers cost probe-latency"
	if got := strings.Join(policy.Reasons(), " "); got != want {
		t.Errorf("got %s", got)
	}
	if len(policy.Reasons()) > state.MaxReasons {
		t.Error("more reasons than state counts")
	}
	if got := policy.Reason(200).String(); got != "reason 200" {
		t.Error(got)
	}
}

// Members and sites beyond those that a ReadyCandidate can name are decided for all the same.
func TestDecideManySitesAndMembers(t *testing.T) {
	const many = 1 << 16
	w := newWorld("a", "b")
	for len(w.snapshot.Sites) < many {
		w.snapshot.Sites = append(w.snapshot.Sites, w.snapshot.Sites[0])
	}
	for i, name := range []string{"a", "b"} { // 1<<16 and the next; cut to 16 bits they would be the first two
		site := *w.at(name)
		info := *site.SiteInfo
		info.Index, site.SiteInfo = many+i, &info
		site.Overloaded = name == "b"
		w.snapshot.Sites = append(w.snapshot.Sites, &site)
		w.of(name).Site = &info
	}
	w.snapshot.Sites[0] = &state.Site{SiteInfo: w.snapshot.Sites[0].SiteInfo, Overloaded: true}
	if got, _, _ := w.decide(build(t, "health", "capacity")); got != "a" {
		t.Errorf("%s is answered", got)
	}

	w = newWorld(slices.Repeat([]string{"a"}, many+1)...)
	for _, m := range w.Members[:many] {
		m.Up = [2]bool{}
	}
	if _, d, _ := w.decide(build(t, "health")); d.Index(0) != many {
		t.Errorf("member %d is answered", d.Index(0))
	}
}
