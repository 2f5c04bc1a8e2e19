package policy_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

// naive decides as docs/policies.md says, in the plainest way: lists that are copied, one function a metric that
// returns who is kept (nil: it abstains; empty: nobody), and no thought of cost. It knows static's method "ordered" only.
type naive struct {
	w      *world
	f      state.Family
	client netip.Addr // an address of the ECS prefix, or the LDNS
	ecs    bool
	place  struct {
		site string
		at   *state.Location
	}
	steps []policy.StepOptions
}

type group = []*state.Member

func where(list group, is func(*state.Member) bool) group {
	kept := group{}
	for _, m := range list {
		if is(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

func (n *naive) up(m *state.Member) bool { return m.Up[n.f] }

func (n *naive) has(m *state.Member) bool { return m.Addr[n.f].IsValid() }

func ordered(m *state.Member) bool {
	return m.Forced == state.ForcedDown || m.Forced == state.ForcedEvacuated
}

// moved reports whether a staged order moves the client away from m.
func (n *naive) moved(m *state.Member) bool {
	return slices.ContainsFunc(m.Moved, func(st state.Stage) bool { return moves(st.Order, st.Share, n.client) })
}

// may reports whether some rule may answer m to the client.
func (n *naive) may(m *state.Member) bool { return !ordered(m) && !n.moved(m) }

// pool returns the members of the pool that the client is answered out of.
func (n *naive) pool() group {
	pool := where(n.w.Members, func(m *state.Member) bool { return m.InPool })
	candidates := where(where(pool, n.has), n.may)
	moved := where(pool, func(m *state.Member) bool { return !ordered(m) && n.moved(m) })
	if n.w.StagedPool != n.w.Pool && len(moved) > 0 && len(where(candidates, n.up)) == 0 {
		return where(n.w.Members, func(m *state.Member) bool { return m.InStagedPool })
	}
	return pool
}

// apart reports whether the client rotates apart, since it is moved away from a candidate.
func (n *naive) apart() bool {
	pool := append(where(n.w.Members, func(m *state.Member) bool { return m.InPool }), n.pool()...)
	return len(where(where(pool, n.has), func(m *state.Member) bool { return !ordered(m) && n.moved(m) })) > 0
}

// candidates applies the constraints.
func (n *naive) candidates() (all group, reason string) {
	all = where(n.pool(), n.has)
	reason = "constraints"
	if len(all) == 1 {
		reason = "single"
	}
	all = where(all, n.may)
	if len(all) == 0 {
		return nil, "constraints"
	}
	drained := func(m *state.Member) bool { return m.Forced == state.ForcedDrain }
	zero := func(m *state.Member) bool { return m.Weight == 0 && !drained(m) }
	rest := func(m *state.Member) bool { return !drained(m) && !zero(m) }
	notDrained := func(m *state.Member) bool { return !drained(m) }
	switch {
	case len(where(where(all, rest), n.up)) > 0:
		return where(all, rest), reason
	case len(where(where(all, zero), n.up)) > 0:
		return where(all, notDrained), reason
	case len(where(where(all, drained), n.up)) > 0:
		return all, reason
	case len(where(all, rest)) > 0:
		return where(all, rest), reason
	case len(where(all, zero)) > 0:
		return where(all, zero), reason
	}
	return all, reason
}

func (n *naive) decide() string {
	all, reason := n.candidates()
	if len(all) == 0 {
		for _, m := range n.w.Members {
			if m.Has(n.f) {
				return "nodata 10 constraints empty"
			}
		}
		for _, a := range n.w.LastResort {
			if a.Is4() == (n.f == state.V4) {
				return "nodata 10 constraints empty"
			}
		}
		return fmt.Sprintf("nodata %d constraints empty", uint32(policy.NoCeiling))
	}
	health := slices.ContainsFunc(n.steps, func(o policy.StepOptions) bool { return o.Metric == "health" && !o.Disabled })
	ttl, skipHealth := 30, false
	if health && len(where(all, n.up)) == 0 {
		ttl, skipHealth, reason = 10, true, "on_all_down"
		choice := n.w.OnAllDown
		if choice == state.AllDownLastKnownGood {
			if good := where(all, func(m *state.Member) bool { return m.LastGood[n.f] }); len(good) > 0 {
				all = good
			} else {
				choice = state.AllDownAll
			}
		}
		switch choice {
		case state.AllDownServFail:
			return "servfail 10 on_all_down"
		case state.AllDownNoData:
			return "nodata 10 on_all_down"
		case state.AllDownBackup:
			for _, a := range n.w.LastResort {
				if a.Is4() == (n.f == state.V4) {
					return "lastresort 10 on_all_down"
				}
			}
			return "nodata 10 on_all_down"
		case state.AllDownAll:
			o := *n
			o.f = n.f.Other()
			others, _ := o.candidates()
			if len(where(others, o.up)) > 0 {
				return "nodata 10 on_all_down"
			}
		}
	}
	var names []string
	for len(names) < n.w.Service.Answers && len(all) > 0 {
		if health && !skipHealth && len(where(all, n.up)) == 0 {
			break
		}
		left, by := n.run(all, skipHealth)
		if len(names) == 0 && by != "" && !skipHealth {
			reason = by
		}
		names = append(names, left[0].Name)
		all = where(all, func(m *state.Member) bool { return m != left[0] })
	}
	return fmt.Sprintf("answer %d %s %s", ttl, reason, strings.Join(names, " "))
}

// run applies the steps to set, and returns those left and the metric that settled it.
func (n *naive) run(set group, skipHealth bool) (group, string) {
	by := ""
	left := set
	for _, o := range n.steps {
		if o.Disabled || (o.Metric == "health" && skipHealth) || (o.Metric != "health" && len(left) == 1) {
			continue
		}
		kept := n.metric(o, left)
		switch {
		case kept == nil:
		case len(kept) == 0 && o.Metric == "health":
			up := where(set, n.up)
			left, by = n.run(up, skipHealth)
			if len(up) == 1 {
				by = "health"
			}
			return left, by
		case len(kept) == 0:
		case len(kept) < len(left) || o.Metric == "static":
			left, by = kept, o.Metric
		}
	}
	return left, by
}

// best returns those whose value is good, given the lowest value, and those that have none; nil with fewer than two.
func best(set group, value func(*state.Member) (float64, bool), good func(v, lowest float64) bool) group {
	var values []float64
	for _, m := range set {
		if v, ok := value(m); ok {
			values = append(values, v)
		}
	}
	if len(values) < 2 {
		return nil
	}
	sort.Float64s(values)
	return where(set, func(m *state.Member) bool {
		v, ok := value(m)
		return !ok || good(v, values[0])
	})
}

func (n *naive) metric(o policy.StepOptions, set group) group {
	weight := func(m *state.Member) float64 { return max(float64(m.Weight), 1) }
	equal := func(v, lowest float64) bool { return v == lowest }
	switch o.Metric {
	case "health":
		return where(set, n.up)
	case "capacity":
		if fine := where(set, func(m *state.Member) bool { return !n.w.snapshot.SiteOf(m).Overloaded }); len(fine) > 0 {
			return fine
		}
		return best(set, func(m *state.Member) (float64, bool) {
			return n.w.snapshot.SiteOf(m).Utilisation, n.w.snapshot.SiteOf(m).HasUtilisation
		},
			func(v, lowest float64) bool { return v <= lowest+0.1 })
	case "rtt":
		t := n.w.snapshot.RTT
		by := func(m *state.Member, method state.RTTMethod) (float64, bool) {
			s := n.w.snapshot.SiteOf(m)
			usable := s.Freshness == state.Fresh || s.Freshness == state.NeverReported
			for _, v := range t.Row(n.client).All() {
				if v.SiteID == m.Site.ID && v.Method == method && (method != state.RTTPassive || n.ecs) {
					return float64(v.RTT), usable && (!s.RTTBlind || method == state.RTTPassive) && now.Sub(v.Newest) < o.MaxAge
				}
			}
			return 0, false
		}
		having := func(method state.RTTMethod) int {
			return len(where(set, func(m *state.Member) bool { _, ok := by(m, method); return ok }))
		}
		// The first of those that the most have; but passive, if two have it.
		methods := []state.RTTMethod{state.RTTICMP, state.RTTTCP, state.RTTDNS, state.RTTPassive}
		sort.SliceStable(methods, func(i, j int) bool { return having(methods[i]) > having(methods[j]) })
		if having(state.RTTPassive) >= 2 {
			methods[0] = state.RTTPassive
		}
		value := func(m *state.Member) (float64, bool) { return by(m, methods[0]) }
		good := func(v, lowest float64) bool {
			return v <= lowest*(1+o.Tolerance) || v <= lowest+float64(o.ToleranceAbs)
		}
		if o.RequireData {
			known := where(set, func(m *state.Member) bool { _, ok := value(m); return ok })
			if len(known) < 2 {
				return known
			}
			return best(known, value, good)
		}
		return best(set, value, good)
	case "geo":
		return n.geo(o, set)
	case "connection-load":
		value := func(m *state.Member) (float64, bool) {
			return n.w.snapshot.SiteOf(m).NewSessions, n.w.snapshot.SiteOf(m).HasNewSessions
		}
		if o.Limit > 0 {
			known := where(set, func(m *state.Member) bool { return n.w.snapshot.SiteOf(m).HasNewSessions })
			if len(known) == 0 {
				return nil
			}
			if len(where(known, func(m *state.Member) bool { return n.w.snapshot.SiteOf(m).NewSessions <= o.Limit })) == 0 {
				return group{}
			}
			return where(set, func(m *state.Member) bool { v, ok := value(m); return !ok || v <= o.Limit })
		}
		open := func(m *state.Member) float64 {
			share := 1.
			for _, st := range m.Moved {
				share *= 1 - st.Share
			}
			return max(share, 0.01)
		}
		return best(set, func(m *state.Member) (float64, bool) { v, ok := value(m); return v * (100 / weight(m) / open(m)), ok },
			func(v, lowest float64) bool { return v <= lowest*(1+o.Tolerance) || v <= lowest+o.ToleranceRate })
	case "preference":
		return best(set, func(m *state.Member) (float64, bool) { return -float64(m.Preference), true }, equal)
	case "least-selected":
		return best(set, func(m *state.Member) (float64, bool) {
			return float64(m.Selections(n.apart())[n.f].Load()) / state.SelectedUnit / weight(m), true
		}, equal)
	case "static":
		return set
	case "headroom":
		return best(set, func(m *state.Member) (float64, bool) {
			free := float64(n.w.snapshot.SiteOf(m).SessionsLimit) - float64(n.w.snapshot.SiteOf(m).Sessions)
			return -max(free, 0), n.w.snapshot.SiteOf(m).HasSessions && n.w.snapshot.SiteOf(m).SessionsLimit > 0
		}, func(v, lowest float64) bool { return v <= lowest*(1-o.Tolerance) })
	case "active-servers":
		return best(set, func(m *state.Member) (float64, bool) { return -float64(m.ServersUp), m.HasServers }, equal)
	case "cost":
		return best(set, func(m *state.Member) (float64, bool) { return float64(m.Site.Cost), true }, equal)
	case "probe-latency":
		return best(set, func(m *state.Member) (float64, bool) {
			v := math.Inf(1)
			for f, has := range m.HasLatency {
				if has {
					v = min(v, float64(m.Latency[f]))
				}
			}
			return v, m.HasLatency[0] || m.HasLatency[1]
		}, func(v, lowest float64) bool { return v <= lowest*(1+o.Tolerance) })
	}
	panic(o.Metric)
}

func (n *naive) geo(o policy.StepOptions, set group) group {
	client := n.place.at
	level := func(name string, set group) group {
		same := func(of func(*state.Location) string, also func(*state.Location) bool) group {
			if client == nil || of(client) == "" {
				return nil
			}
			match := func(m *state.Member) bool { return of(m.Site.Location) == of(client) && also(m.Site.Location) }
			known := where(set, func(m *state.Member) bool { return of(m.Site.Location) != "" })
			if len(known) < 2 {
				return nil
			}
			if len(where(known, match)) == 0 {
				return set
			}
			return where(set, func(m *state.Member) bool { return of(m.Site.Location) == "" || match(m) })
		}
		yes := func(*state.Location) bool { return true }
		switch name {
		case "override":
			if n.place.site == "" {
				return nil
			}
			return where(set, func(m *state.Member) bool { return m.Site.Name == n.place.site })
		case "distance":
			if client == nil || !client.HasCoordinates {
				return nil
			}
			return best(set, func(m *state.Member) (float64, bool) {
				if !m.Site.Location.HasCoordinates {
					return 0, false
				}
				return state.DistanceKm(client, m.Site.Location), true
			}, func(v, lowest float64) bool { return v <= lowest+o.ToleranceKm })
		case "subdivision":
			return same(func(l *state.Location) string { return l.Subdivision },
				func(l *state.Location) bool { return l.Country == client.Country })
		case "country":
			return same(func(l *state.Location) string { return l.Country }, yes)
		}
		return same(func(l *state.Location) string { return l.Continent }, yes)
	}
	compared := false
	for _, name := range o.Levels {
		kept := level(name, set)
		compared = compared || kept != nil
		if len(kept) == 0 || len(kept) == len(set) {
			continue
		}
		if slices.Contains(o.Levels, "distance") {
			if near := level("distance", kept); len(near) > 0 {
				return near
			}
		}
		return kept
	}
	if !compared {
		return nil
	}
	return set
}

// spell writes a decision as naive does.
func spell(d *policy.Decision) string {
	s := fmt.Sprintf("%s %d %s", [...]string{"answer", "lastresort", "nodata", "servfail"}[d.Kind], d.TTL, d.Reason)
	if d.Empty {
		s += " empty"
	}
	if d.N > 0 {
		s += " " + answers(d)
	}
	return s
}

// checkAgainstNaive decides a random case both ways, with and without a trace, and checks what must hold of any decision.
func checkAgainstNaive(t *testing.T, d dice) {
	t.Helper()
	w := randomWorld(d)
	steps := randomChain(d, "ordered")
	w.overrides(t, wherever(d))
	c := buildOptions(t, steps...)
	q := w.query()
	q.LDNS, q.Family = netip.MustParseAddr("20.1.2.9"), one(d, state.V4, state.V6)
	n := &naive{w: w, f: q.Family, client: q.LDNS, steps: steps}
	if rare(d, 2) {
		q.LDNS, q.ECS = netip.MustParseAddr("8.8.8.8"), prefixOf("20.1.2.0/24")
		n.client, n.ecs = q.ECS.Addr(), true
	}
	place := w.snapshot.Geo.Lookup(n.client)
	n.place.site, n.place.at = place.Site, place.Location

	var got, traced policy.Decision
	c.Decide(q, &got)
	scope := q.Scope
	q.Trace = &policy.Trace{}
	c.Decide(q, &traced)
	if got != traced || scope != q.Scope {
		t.Fatalf("a trace changes the decision: %s, scope %d; traced %s, scope %d", spell(&got), scope, spell(&traced), q.Scope)
	}
	if ready, scope := w.prepared(c, q); !same(&ready, &got, q.Family) || scope != q.Scope {
		t.Fatalf("what is prepared changes the decision: %s, scope %d; prepared %s, scope %d", spell(&got), q.Scope, spell(&ready), scope)
	}
	if want := n.decide(); spell(&got) != want {
		t.Fatalf("\n got %s\nwant %s\nchain %+v\ntrace %+v", spell(&got), want, steps, q.Trace)
	}

	health, serving := false, false
	for _, o := range steps {
		health = health || o.Metric == "health" && !o.Disabled
	}
	for _, m := range w.Members {
		serving = serving || m.InPool && m.Has(q.Family) && n.may(m) && m.Up[q.Family]
	}
	if serving && (got.Kind != policy.Answer || got.N == 0) {
		t.Fatalf("empty while a member may serve: %s", spell(&got))
	}
	seen := map[*state.Member]bool{}
	for _, m := range got.Members[:got.N] {
		pooled := m.InPool || m.InStagedPool && !serving && w.StagedPool != w.Pool
		if seen[m] || !pooled || !m.Has(q.Family) || !n.may(m) || health && !got.AllDown && !m.Up[q.Family] {
			t.Fatalf("%s must not be answered: %s", m.Name, spell(&got))
		}
		seen[m] = true
	}
	decided := 0
	for _, s := range q.Trace.Steps {
		if s.Verdict == policy.VerdictDecided {
			decided++
		}
		if s.Kept == nil || s.Fell == nil {
			t.Fatal("a step without its lists")
		}
	}
	if decided > 2 { // once before a restart, once after
		t.Fatalf("%d metrics decided: %s", decided, verdicts(q.Trace))
	}
}

func TestAgainstNaive(t *testing.T) {
	n := 20_000
	if testing.Short() {
		n = 4000
	}
	for i := range n {
		checkAgainstNaive(t, rand.New(rand.NewPCG(7, uint64(i))))
		if t.Failed() {
			t.Fatalf("case %d", i)
		}
	}
}

func FuzzDecide(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkAgainstNaive(t, &bytesDice{data}) })
}

// The order in which members are listed does not matter: hash orders by name.
func TestInputOrderDoesNotMatter(t *testing.T) {
	for i := range 5000 {
		rng := rand.New(rand.NewPCG(8, uint64(i)))
		w := randomWorld(rng)
		w.overrides(t, wherever(rng))
		for _, m := range w.Members {
			w.snapshot.SiteOf(m).Shed = one(rng, 0, 0, 0.5)
		}
		steps := slices.DeleteFunc(randomChain(rng, "hash"), func(o policy.StepOptions) bool { return o.Metric == "static" })
		static := defaults("static")
		static.Method = "hash"
		c := buildOptions(t, append(steps, static)...)
		q := w.query()
		q.LDNS = netip.MustParseAddr("20.1.2.9")
		var want, got policy.Decision
		c.Decide(q, &want)
		rng.Shuffle(len(w.Members), func(i, j int) { w.Members[i], w.Members[j] = w.Members[j], w.Members[i] })
		if c.Decide(q, &got); got != want {
			t.Fatalf("case %d: %s, and shuffled %s", i, spell(&want), spell(&got))
		}
	}
}

// A value that is missing everywhere acts like the metric disabled.
func TestMissingEverywhereIsDisabled(t *testing.T) {
	wipe := map[string]func(*world, *state.Member){
		"capacity": func(w *world, m *state.Member) {
			w.snapshot.SiteOf(m).HasUtilisation, w.snapshot.SiteOf(m).Overloaded = false, false
		},
		"rtt": func(w *world, _ *state.Member) {
			w.snapshot.RTT = state.NewRTTTable(state.RTTConfig{MaxTargets: 1000})
		},
		"geo":             func(_ *world, m *state.Member) { m.Site.Location = &state.Location{} },
		"connection-load": func(w *world, m *state.Member) { w.snapshot.SiteOf(m).HasNewSessions = false },
		"least-selected":  func(_ *world, m *state.Member) { m.MemberCounts, m.SelectedApart = nil, nil },
		"headroom":        func(w *world, m *state.Member) { w.snapshot.SiteOf(m).HasSessions = false },
		"active-servers":  func(_ *world, m *state.Member) { m.HasServers = false },
		"probe-latency":   func(_ *world, m *state.Member) { m.HasLatency = [2]bool{} },
		"preference":      func(_ *world, m *state.Member) { m.Preference = 100 },
		"cost":            func(_ *world, m *state.Member) { m.Site.Cost = 0 },
	}
	for metric, clear := range wipe {
		for i := range 600 {
			rng := rand.New(rand.NewPCG(9, uint64(i)))
			w := randomWorld(rng)
			o := wherever(rng)
			if metric == "geo" {
				o.Site = "elsewhere"
			}
			w.overrides(t, o)
			for _, m := range w.Members {
				clear(w, m)
			}
			steps := randomChain(rng, "round-robin", "weighted", "hash", "ordered")
			if !slices.ContainsFunc(steps, func(o policy.StepOptions) bool { return o.Metric == metric }) {
				continue
			}
			decide := func(disabled bool) string {
				for i := range steps {
					if steps[i].Metric == metric {
						steps[i].Disabled = disabled
					}
				}
				q := w.query()
				q.LDNS, q.Turn = netip.MustParseAddr("20.1.2.9"), uint64(i)
				var d policy.Decision
				buildOptions(t, steps...).Decide(q, &d)
				return spell(&d)
			}
			if on, off := decide(false), decide(true); on != off {
				t.Fatalf("%s, case %d: %s, disabled %s", metric, i, on, off)
			}
		}
	}
}

// Comparing metrics give A and AAAA the same verdict, given the same client and members that have both families up.
func TestFamiliesAgree(t *testing.T) {
	for i := range 5000 {
		rng := rand.New(rand.NewPCG(10, uint64(i)))
		w := randomWorld(rng)
		w.overrides(t, wherever(rng))
		full := newWorld(memberNames...)
		for _, m := range w.Members {
			m.Addr, m.Up = full.of(m.Name).Addr, [2]bool{true, true}
			w.snapshot.SiteOf(m).Shed = one(rng, 0, 0, 0.5)
		}
		steps := slices.DeleteFunc(randomChain(rng, "hash", "ordered"), func(o policy.StepOptions) bool { return o.Metric == "least-selected" })
		if len(steps) == 0 {
			continue
		}
		c := buildOptions(t, steps...)
		q := w.query()
		q.LDNS = netip.MustParseAddr("20.1.2.9")
		var a, aaaa policy.Decision
		c.Decide(q, &a)
		q.Family = state.V6
		c.Decide(q, &aaaa)
		if a != aaaa {
			t.Fatalf("case %d: A %s, AAAA %s", i, spell(&a), spell(&aaaa))
		}
	}
}

// The scope never covers a network that would be decided differently: whoever asks from within it, with a prefix at
// least as long, gets the same decision.
func TestScopeIsTrue(t *testing.T) {
	bases := []string{
		"20.1.2.0", "20.1.3.0", "20.129.0.0", "10.1.2.0", "10.200.0.0", "100.64.1.0", "100.63.255.0", "192.168.1.0", "203.0.113.0", "203.0.112.0",
		"128.0.0.0", "223.255.255.0", "2001:db8::", "2001:db7::", "2400:1::", "fd00::", "fc00:0:0:100::",
	}
	narrower := 0
	for i := range 4000 {
		rng := rand.New(rand.NewPCG(11, uint64(i)))
		w := randomWorld(rng)
		w.SlowStart = one(rng, 0, 0, time.Minute)
		for _, m := range w.Members {
			w.snapshot.SiteOf(m).Shed = one(rng, 0, 0, 0, 0.5)
			m.Recovered[state.V4] = one(rng, time.Time{}, now.Add(-20*time.Second))
			for _, b := range bases[:1+rng.IntN(len(bases))] {
				if rare(rng, 3) {
					w.rttBy(one(rng, state.RTTICMP, state.RTTPassive), m.Name, b, one(rng, 20*ms, 100*ms), 0)
				}
			}
		}
		w.overrides(t, randomOverrides(rng, bases)...)
		steps := randomChain(rng, "hash", "ordered", "round-robin")
		for i := range steps {
			if steps[i].Metric == "rtt" {
				steps[i].Explore = one(rng, 0, 0.5)
			}
		}
		c := buildOptions(t, steps...)

		q := w.query()
		q.LDNS, q.Turn = netip.MustParseAddr(one(rng, "20.1.2.9", "8.8.8.8")), uint64(rng.IntN(9))
		base := near(rng, netip.MustParseAddr(one(rng, bases...)), rng.IntN(129))
		q.ECS, _ = base.Prefix(min(base.BitLen(), one(rng, 1, 8, 16, 20, 24, 24, 24, 28, 32, 48, 56, 64)))
		var want, got policy.Decision
		c.Decide(q, &want)
		scope, asked := int(q.Scope), q.ECS
		if scope > base.BitLen() {
			t.Fatalf("case %d: scope %d of %s", i, scope, asked)
		}
		if scope >= asked.Bits() {
			continue // kept for the prefix that asked alone
		}
		narrower++
		for range 60 {
			other := near(rng, asked.Addr(), scope)
			if rare(rng, 2) { // one of the interesting places, if it lies within
				if b := netip.MustParseAddr(one(rng, bases...)); netip.PrefixFrom(asked.Addr(), scope).Masked().Contains(b) {
					other = b
				}
			}
			q.ECS, _ = other.Prefix(max(scope, 1) + rng.IntN(other.BitLen()-max(scope, 1)+1))
			if c.Decide(q, &got); got != want {
				t.Fatalf("case %d: %s gets %s with scope %d, but %s gets %s", i, asked, spell(&want), scope, q.ECS, spell(&got))
			}
		}
	}
	if narrower < 500 {
		t.Errorf("only %d of the cases had a scope shorter than what was asked", narrower)
	}
}
