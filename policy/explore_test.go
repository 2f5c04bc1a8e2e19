package policy_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

// network is the i-th of a million client networks.
func network(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(i>>16), byte(i >> 8), byte(i), 0}), 24)
}

// passive makes known what the network's connections see.
func (w *world) passive(site string, network netip.Prefix, rtt time.Duration) {
	w.rttBy(state.RTTPassive, site, network.Addr().String(), rtt, 0)
}

// exploring is the chain of a policy that explores, and leaves the rest to the order of the configuration.
func exploring(t testing.TB, share float64, change func(*policy.StepOptions)) *policy.Chain {
	t.Helper()
	o := defaults("rtt")
	o.Explore = share
	if change != nil {
		change(&o)
	}
	return buildOptions(t, defaults("health"), defaults("capacity"), o, policy.StepOptions{Metric: "static", Method: "ordered"})
}

// TestExploreShare: at any time a twentieth of the client networks is sent to another site than the nearest, evenly to all
// of these; each for a minute at a time, and each now and then. A and AAAA agree.
func TestExploreShare(t *testing.T) {
	const networks, minutes = 500, 200
	names := []string{"a", "b", "c", "d"}
	w := newWorld(names...)
	w.snapshot.RTT = state.NewRTTTable(state.RTTConfig{MaxTargets: 2 * networks})
	for i := range networks {
		for j, m := range names {
			w.passive(m, network(i), time.Duration(20+j*50)*ms)
		}
	}
	c, q := exploring(t, 0.05, func(o *policy.StepOptions) { o.MaxAge = 24 * time.Hour }), w.query()
	sent, never, sooner := map[string]int{}, 0, 0
	for i := range networks {
		q.ECS = network(i)
		last, since, elsewhere := "", time.Duration(0), false
		for at := time.Duration(0); at < minutes*time.Minute; at += 20 * time.Second {
			q.Now = now.Add(at)
			var d, aaaa policy.Decision
			q.Family = state.V4
			c.Decide(q, &d)
			q.Family = state.V6
			c.Decide(q, &aaaa)
			name := d.Members[0].Name
			if d.Members[0] != aaaa.Members[0] || q.Scope != 24 {
				t.Fatalf("%s: A %s, AAAA %s, scope %d", q.ECS, name, aaaa.Members[0].Name, q.Scope)
			}
			sent[name]++
			elsewhere = elsewhere || name != "a"
			if name != last {
				if last != "" && since > 0 && at-since < time.Minute {
					sooner++
				}
				last, since = name, at
			}
		}
		if !elsewhere {
			never++
		}
	}
	for name, want := range map[string]float64{"a": 0.95, "b": 0.05 / 3, "c": 0.05 / 3, "d": 0.05 / 3} {
		if got := float64(sent[name]) / (networks * minutes * 3); math.Abs(got-want) > 0.002 {
			t.Errorf("%s gets %.4f of the queries, want %.4f", name, got, want)
		}
	}
	if never > 1 { // of a network the chance is 0.95 to the power of 200: 0.00004
		t.Errorf("%d of %d networks were never explored in %d minutes", never, networks, minutes)
	}
	if sooner > 0 {
		t.Errorf("%d answers changed before a minute was over", sooner)
	}
}

// TestExploreOnly: exploring is only for clients whose own round trips would decide, and only to members that may be chosen.
func TestExploreOnly(t *testing.T) {
	client := network(7)
	all := func(w *world, rtts ...time.Duration) {
		for i, rtt := range rtts {
			w.passive(w.Members[i].Name, client, rtt)
		}
	}
	tests := []struct {
		name  string
		set   func(*world)
		query func(*policy.Query)
		want  string // in order; "b|c" is either
	}{
		{"not the nearest", func(w *world) { all(w, 20*ms, 50*ms, 90*ms) }, nil, "b|c"},
		{"nor one that is down", func(w *world) { all(w, 20*ms, 50*ms, 90*ms); w.down("b") }, nil, "c"},
		{"nor one that is overloaded", func(w *world) {
			all(w, 20*ms, 50*ms, 90*ms)
			w.at("c").Overloaded = true
		}, nil, "b"},
		{"nor one that sheds", func(w *world) {
			all(w, 20*ms, 50*ms, 90*ms)
			w.at("c").Shed = 0.001
		}, nil, "b"},
		{"nor one whose site has fallen silent", func(w *world) {
			all(w, 20*ms, 50*ms, 90*ms)
			w.at("b").Freshness = state.Stale
		}, nil, "c"},
		{"nor to those that have, if all others", func(w *world) {
			all(w, 20*ms, 50*ms, 90*ms)
			w.at("b").Freshness, w.at("c").Freshness = state.Stale, state.Dead
		}, nil, "a"},
		{"one that was never measured", func(w *world) { all(w, 20*ms); w.down("c") }, nil, "b"},
		{"nowhere else to go", func(w *world) { all(w, 20*ms, 50*ms); w.down("b"); w.down("c") }, nil, "a"},
		{"all are down", func(w *world) { all(w, 20*ms, 50*ms); w.down("a"); w.down("b"); w.down("c") }, nil, "a"},
		{"nothing known", func(*world) {}, nil, "a"},
		{"too old", func(w *world) {
			w.rttBy(state.RTTPassive, "b", client.Addr().String(), 20*ms, 11*time.Minute)
		}, nil, "a"},
		{"by ICMP", func(w *world) {
			for i, m := range []string{"a", "b", "c"} {
				w.rtt(m, client.Addr().String(), time.Duration(20+i*20)*ms, 0)
			}
		}, nil, "a"},
		{"ICMP decides", func(w *world) {
			w.rtt("a", client.Addr().String(), 20*ms, 0)
			w.rtt("b", client.Addr().String(), 50*ms, 0)
			w.passive("c", client, 90*ms)
		}, nil, "a"},
		{"neither decides", func(w *world) {
			w.rtt("a", client.Addr().String(), 20*ms, 0)
			w.passive("a", client, 20*ms)
		}, nil, "b|c"},
		{"without ECS", func(w *world) { all(w, 20*ms, 50*ms, 90*ms) }, func(q *policy.Query) {
			q.LDNS, q.ECS = client.Addr(), netip.Prefix{}
		}, "a"},
		{"a prefix too short to be looked up", func(w *world) { all(w, 20*ms, 50*ms, 90*ms) }, func(q *policy.Query) {
			q.ECS, _ = client.Addr().Prefix(20)
		}, "a"},
		{"only the first answer", func(w *world) {
			all(w, 20*ms, 50*ms, 90*ms)
			w.Service.Answers = 3
		}, nil, "b a c|c a b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			q := w.query()
			q.ECS = client
			if tt.query != nil {
				tt.query(q)
			}
			var d policy.Decision
			exploring(t, 1, nil).Decide(q, &d)
			got := ""
			for i, m := range d.Members[:d.N] {
				if i > 0 {
					got += " "
				}
				got += m.Name
			}
			if !slices.Contains(split(tt.want), got) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}

	// Where rtt stands before health and capacity, too.
	w := newWorld("a", "b", "c")
	all(w, 20*ms, 50*ms, 90*ms)
	w.down("b")
	w.at("c").Overloaded = true
	o := defaults("rtt")
	o.Explore = 1
	q := w.query()
	q.ECS = client
	var d policy.Decision
	if buildOptions(t, o, defaults("health"), defaults("capacity")).Decide(q, &d); d.Members[0].Name != "a" {
		t.Errorf("got %s", d.Members[0].Name)
	}
}

func split(s string) (list []string) {
	for start, i := 0, 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '|' {
			list = append(list, s[start:i])
			start = i + 1
		}
	}
	return list
}

func TestExploreTrace(t *testing.T) {
	w := newWorld("a", "b")
	w.passive("a", network(1), 20*ms)
	_, _, trace := w.decide(exploring(t, 0.999999, nil), ecs(network(1).String()))
	s := trace.Steps[2]
	const note = "explored: 100 % of clients are sent elsewhere for a minute, so that other sites are measured; this one too [ecs 20.0.1.0/24, by passive]"
	if got := kept(trace, "rtt"); got != "b(no data) | a=20.0 ms" || s.Verdict != policy.VerdictDecided || s.Note != note {
		t.Errorf("%s: %s (%s)", s.Verdict, got, s.Note)
	}
	for _, share := range []float64{-0.01, 1.01} {
		o := defaults("rtt")
		if o.Explore = share; !fails(o) {
			t.Errorf("a share of %v is accepted", share)
		}
	}
}

func fails(o policy.StepOptions) bool {
	_, err := policy.Build("test", []policy.StepOptions{o})
	return err != nil
}

// An exploration is a simulated day: networks of clients, whose resolvers ask again each half minute; sites that tell
// what they see of the connections that came within the last minute, as agents do; and the real chain.
type exploration struct {
	w        *world
	c        *policy.Chain
	q        *policy.Query
	rng      *rand.Rand
	sites    []string
	true     [][]time.Duration // by network and site
	previous [][]bool          // by network and site: it had clients in the last half minute
	at       time.Duration
}

const simulated = 500 // networks

func newExploration(c *policy.Chain) *exploration {
	e := &exploration{c: c, rng: rand.New(rand.NewPCG(3, 4)), sites: []string{"seoul", "frankfurt", "virginia"}}
	e.w = newWorld(e.sites...)
	e.w.snapshot.RTT = state.NewRTTTable(state.RTTConfig{MaxTargets: 10 * simulated})
	e.q = e.w.query()
	for range simulated {
		rtts := []time.Duration{20 * ms, 90 * ms, 160 * ms}
		e.rng.Shuffle(3, func(i, j int) { rtts[i], rtts[j] = rtts[j], rtts[i] })
		e.true = append(e.true, rtts)
		e.previous = append(e.previous, make([]bool, 3))
	}
	return e
}

// step lets half a minute go by, and returns the share of networks that are answered their nearest site.
func (e *exploration) step() float64 {
	e.at += 30 * time.Second
	e.q.Now = now.Add(e.at)
	right := 0
	for n, rtts := range e.true {
		e.q.ECS = network(n)
		var d policy.Decision
		e.c.Decide(e.q, &d)
		site := slices.Index(e.sites, d.Members[0].Name)
		if rtts[site] == slices.Min(rtts) {
			right++
		}
		// A value a minute of each site that has clients, from 5 % below to 15 % above, one in ten of them twice as long.
		for s := range rtts {
			if now := s == site; now || e.previous[n][s] {
				if int(e.at/(30*time.Second))%2 == n%2 {
					seen := float64(rtts[s]) * (0.95 + 0.2*e.rng.Float64())
					if e.rng.IntN(10) == 0 {
						seen *= 2
					}
					sample := state.RTTSample{Resolver: network(n).Addr(), RTT: time.Duration(seen), Method: state.RTTPassive}
					e.w.snapshot.RTT.Add(e.w.at(e.sites[s]).ID, []state.RTTSample{sample}, e.q.Now)
				}
				e.previous[n][s] = now
			}
		}
	}
	return float64(right) / simulated
}

// follow returns how long it takes until half and nine tenths of the networks that are not being explored are answered
// their nearest site, in the mean of ten minutes.
func (e *exploration) follow(explore float64, most time.Duration) (half, nine time.Duration) {
	half, nine = most, most
	var last []float64
	for start := e.at; e.at-start < most && nine == most; {
		if last = append(last, e.step()/(1-explore)); len(last) > 20 {
			last = last[1:]
		}
		sum := 0.0
		for _, v := range last {
			sum += v
		}
		if len(last) == 20 && sum/20 >= 0.5 {
			half = min(half, e.at-start)
		}
		if len(last) == 20 && sum/20 >= 0.9 {
			nine = e.at - start
		}
	}
	return half, nine
}

// mean is the mean share over a time.
func (e *exploration) mean(length time.Duration) float64 {
	sum, n := 0.0, 0
	for start := e.at; e.at-start < length; n++ {
		sum += e.step()
	}
	return sum / float64(n)
}

// TestExploreSimulated: the choice comes to the nearest of three sites, stays there, and follows changes of the paths.
// Without exploring it does not, and where sites without data are kept, it keeps going to them. docs/policies.md has these
// figures.
func TestExploreSimulated(t *testing.T) {
	tests := []struct {
		explore float64
		maxAge  time.Duration
		require bool
		found   time.Duration // at most, until nine tenths are answered their nearest site; 0: never
		stays   float64       // at least, of all networks
		worse   time.Duration // at most, until they are again, after it became the farthest
		better  time.Duration // likewise, after it became the nearest again
	}{
		{0, 10 * time.Minute, true, 0, 0, 0, 0},
		{0.05, 10 * time.Minute, false, 2 * time.Hour, 0.89, 0, 3 * time.Hour},
		{0.05, 10 * time.Minute, true, 2 * time.Hour, 0.93, 2 * time.Hour, 2 * time.Hour},
		{0.05, time.Hour, true, 2 * time.Hour, 0.93, 2 * time.Hour, 2 * time.Hour},
		{0.10, time.Hour, true, time.Hour, 0.89, time.Hour, time.Hour},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("explore %v, max_age %v, require_data %v", tt.explore, tt.maxAge, tt.require), func(t *testing.T) {
			const most, settled = 3 * time.Hour, 2 * time.Hour
			e := newExploration(exploring(t, tt.explore, func(o *policy.StepOptions) { o.MaxAge, o.RequireData = tt.maxAge, tt.require }))
			check := func(what string, limit time.Duration) {
				half, nine := e.follow(tt.explore, most)
				t.Logf("%s: half after %v, nine tenths after %v", what, half, nine)
				if limit > 0 && nine > limit {
					t.Errorf("%s: takes longer than %v", what, limit)
				}
				if tt.explore == 0 && nine < most {
					t.Errorf("%s: without exploring", what)
				}
			}
			check("at first", tt.found)
			e.mean(settled)
			stays := e.mean(time.Hour)
			t.Logf("then %.1f %% of all", 100*stays)
			if stays < tt.stays {
				t.Errorf("then %.1f %% of all, less than %.0f", 100*stays, 100*tt.stays)
			}
			for _, rtts := range e.true {
				rtts[slices.Index(rtts, 20*ms)] = 200 * ms
			}
			check("it became the farthest", tt.worse)
			e.mean(settled)
			for _, rtts := range e.true {
				rtts[slices.Index(rtts, 200*ms)] = 20 * ms
			}
			check("the nearest again", tt.better)
		})
	}
}

// TestExploreIsSafe: in any world, by any chain, exploring changes the answer to a member that may be chosen and is fine, or
// not at all, and none but the first.
func TestExploreIsSafe(t *testing.T) {
	elsewhere := 0
	for i := range 40_000 {
		rng := rand.New(rand.NewPCG(12, uint64(i)))
		w := randomWorld(rng)
		w.SlowStart = one(rng, 0, time.Minute)
		for _, m := range w.Members {
			w.snapshot.SiteOf(m).Shed = one(rng, 0, 0, 0.5)
			m.Recovered[state.V4] = one(rng, time.Time{}, now.Add(-20*time.Second))
			if rare(rng, 2) {
				w.rttBy(state.RTTPassive, m.Name, "20.1.2.3", one(rng, 20*ms, 40*ms), 0)
			}
		}
		steps := randomChain(rng, "hash", "ordered")
		explored := slices.Clone(steps)
		for i := range explored {
			if explored[i].Metric == "rtt" {
				explored[i].Explore = 1
			}
		}
		q := w.query()
		q.LDNS, q.ECS = netip.MustParseAddr("8.8.8.8"), prefixOf("20.1.2.0/24")
		var plain, got policy.Decision
		buildOptions(t, steps...).Decide(q, &plain)
		buildOptions(t, explored...).Decide(q, &got)
		if got == plain {
			continue
		}
		if got.Kind != plain.Kind || got.N != plain.N || got.TTL != plain.TTL || got.N == 0 {
			t.Fatalf("case %d: %s, without exploring %s", i, spell(&got), spell(&plain))
		}
		m := got.Members[0]
		if m == plain.Members[0] {
			continue // as it happens, but for another reason
		}
		elsewhere++
		s := w.snapshot.SiteOf(m)
		if !m.Up[state.V4] || m.Forced >= state.ForcedDown || !m.InPool && !m.InStagedPool || s.Overloaded || s.Shed > 0 || s.Freshness == state.Stale || s.Freshness == state.Dead {
			t.Fatalf("case %d: explored to %s: %s, without exploring %s", i, m.Name, spell(&got), spell(&plain))
		}
	}
	if elsewhere < 100 {
		t.Errorf("only %d of the cases were explored", elsewhere)
	}
}
