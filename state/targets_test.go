package state_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/geo"
	"gslbd/state"
)

func usesRTT(c *state.Config) { c.Services[0].UsesRTT = true }

// ask makes the resolvers ask n times each, and lets the Store notice.
func (r *rig) ask(n int, resolvers ...string) {
	for _, a := range resolvers {
		for range n {
			r.s.Asked(addr(a), r.s.Snapshot().Services[0])
		}
	}
	time.Sleep(1100 * time.Millisecond)
	synctest.Wait()
}

// probes reports for the site, with these round trips, and returns what it is asked to measure.
func (r *rig) probes(site string, rtts ...state.RTTSample) []string {
	rep := says(site, up)
	rep.RTTs = rtts
	out := []string{}
	for _, p := range r.report(rep).Probe {
		out = append(out, p.Resolver.String())
	}
	slices.Sort(out)
	return out
}

func (r *rig) wantProbes(site string, want ...string) {
	r.t.Helper()
	if got := r.probes(site); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		r.t.Errorf("at %s: %s shall probe %v, want %v", time.Now().Format("15:04:05"), site, got, want)
	}
}

func lost(resolver string) state.RTTSample {
	return state.RTTSample{Resolver: addr(resolver), Lost: true}
}

func TestTargetsAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		r.ask(1, "203.0.113.1")
		r.ask(2, "203.0.114.1", "2001:db8::1", "127.0.0.1", "::1")
		r.wantProbes("seoul", "127.0.0.1", "2001:db8::1", "203.0.114.1", "::1")
		r.wantProbes("seoul") // each at most once a refresh
		r.ask(1, "203.0.113.1")
		r.wantProbes("seoul", "203.0.113.1")
		time.Sleep(299 * time.Second)
		r.wantProbes("seoul", "127.0.0.1", "2001:db8::1", "203.0.114.1", "::1")
		time.Sleep(10 * time.Second)
		r.wantProbes("seoul", "203.0.113.1")
		r.wantProbes("virginia", "127.0.0.1", "2001:db8::1", "203.0.113.1", "203.0.114.1", "::1")
	})
}

func TestWhoIsNeverATarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT, func(c *state.Config) { c.RTT.Exempt = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }))
		r.ask(5, "198.51.100.53", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "169.254.1.1", "fe80::1%lo")
		r.s.Asked(netip.Addr{}, r.s.Snapshot().Services[0])
		r.s.Asked(addr("203.0.113.1"), new(state.Service))
		r.ask(0)
		r.wantProbes("seoul")
		// A target that a reload exempts is one no more.
		r.ask(2, "203.0.113.1", "203.0.114.1")
		r.s.Configure(two(usesRTT, func(c *state.Config) { c.RTT.Exempt = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }))
		r.wantProbes("seoul", "203.0.114.1")
	})
}

func TestNoProbesWhereNoPolicyUsesRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.ask(5, "203.0.113.1")
		r.wantProbes("seoul")
		r.s.Configure(two(usesRTT))
		r.ask(5, "203.0.113.1")
		r.s.Configure(two())
		r.wantProbes("seoul")
	})
}

func TestTargetsThatStopAskingAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		r.ask(2, "203.0.113.1")
		r.wantProbes("seoul", "203.0.113.1")
		time.Sleep(301 * time.Second)
		r.wantProbes("seoul", "203.0.113.1")
		time.Sleep(315 * time.Second)
		r.wantProbes("seoul")
		r.ask(2, "203.0.113.1")
		r.wantProbes("seoul", "203.0.113.1")
	})
}

func TestSilentResolversAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		all := []string{"203.0.113.1", "203.0.114.1"}
		r.ask(2, all...)
		r.wantProbes("seoul", all...)
		r.wantProbes("virginia", all...)
		// Nobody reaches the first; virginia reaches the second.
		r.probes("seoul", lost("203.0.113.1"), lost("203.0.114.1"))
		r.probes("virginia", lost("203.0.113.1"), sample("203.0.114.1", 30, 0))
		for range 2 {
			time.Sleep(150 * time.Second)
			r.ask(2, all...)
		}
		r.wantProbes("seoul", "203.0.114.1")
		r.wantProbes("virginia", "203.0.114.1")
		for range 2 {
			time.Sleep(150 * time.Second)
			r.ask(2, all...)
		}
		r.wantProbes("seoul", all...)
		r.wantProbes("virginia", all...)
	})
}

// A silent resolver does not stand for its network for ever.
func TestAnotherResolverOfTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		r.ask(2, "203.0.113.1")
		r.ask(2, "203.0.113.2")
		r.wantProbes("seoul", "203.0.113.1") // one of a network
		r.probes("seoul", lost("203.0.113.1"))
		r.ask(2, "203.0.113.2")
		time.Sleep(300 * time.Second)
		r.wantProbes("seoul", "203.0.113.2")
	})
}

func TestNearestSitesProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &state.Config{
			RTT:      state.RTTConfig{MaxSites: 2},
			Services: []state.ServiceConfig{{Name: "www.example.com", UsesRTT: true}, {Name: "far.example.com", UsesRTT: true}, {Name: "off.example.com"}},
		}
		for i, lon := range []float64{120, -10, 10, 179, -179} {
			name := fmt.Sprintf("s%d", i)
			c.Sites = append(c.Sites, state.SiteConfig{Name: name, Location: geo.Location{Longitude: lon, HasCoordinates: true}})
			svc := &c.Services[i/3] // the first three of www, the last two of far
			svc.Members = append(svc.Members, state.MemberConfig{Name: name, Site: name, Addresses: [2]netip.Addr{network(i)}})
		}
		r := start(t, c)
		db, err := geo.Open(geo.Options{Overrides: []geo.Override{{
			Prefix: netip.MustParsePrefix("203.0.113.0/24"), Location: geo.Location{Longitude: 1, HasCoordinates: true},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		r.s.SetGeo(db)
		r.ask(2, "203.0.113.1", "198.51.100.1")
		report := func(site string) int { return len(r.report(&state.Report{Site: site}).Probe) }
		// 203.0.113.1 goes to s1 and s2; 198.51.100.1, of whom nothing is known, to the first two.
		for site, want := range map[string]int{"s0": 1, "s1": 2, "s2": 1, "s3": 0, "s4": 0} {
			if got := report(site); got != want {
				t.Errorf("%s shall probe %d, want %d", site, got, want)
			}
		}
	})
}

func TestAtMost2000ProbesAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		for i := range 2500 {
			for range 2 {
				r.s.Asked(network(1<<17+i), r.s.Snapshot().Services[0])
			}
		}
		r.ask(0)
		first, second := len(r.probes("seoul")), len(r.probes("seoul"))
		// Some resolvers find their slots taken; they ask again in life.
		if first != 2000 || second < 400 {
			t.Errorf("%d and %d probes", first, second)
		}
	})
}

func TestTargetsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT, func(c *state.Config) { c.RTT.MaxTargets = 100 }))
		for i := range 1000 {
			for range 2 {
				r.s.Asked(network(1<<17+i), r.s.Snapshot().Services[0])
			}
		}
		r.ask(0)
		if n := len(r.probes("seoul")); n != 100 {
			t.Errorf("%d targets, want 100", n)
		}
	})
}

func TestRTTOfResolversThatNeverAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT, func(c *state.Config) { c.RTT.MaxTargets = 80 }))
		r.ask(2, "203.0.113.1")
		r.probes("virginia", sample("203.0.113.1", 30, 0))
		// seoul floods: it gets its part of a quarter of the table, and evicts nobody.
		var flood []state.RTTSample
		for i := range 1000 {
			flood = append(flood, state.RTTSample{Resolver: network(1<<17 + i), RTT: time.Millisecond})
		}
		r.probes("seoul", flood...)
		table := r.s.Snapshot().RTT
		if n := table.Len(); n != 1+10 {
			t.Errorf("%d networks, want 11", n)
		}
		if _, ok := value(table.Row(addr("203.0.113.1")), r.site("virginia").ID); !ok {
			t.Error("virginia's value is gone")
		}
		// Its neighbour has a part of its own.
		r.probes("virginia", flood[500:]...)
		if n := table.Len(); n != 1+20 {
			t.Errorf("%d networks, want 21", n)
		}
		// A network that asks is in the quota no more.
		a := network(1 << 17)
		r.ask(2, a.String())
		r.probes("seoul", state.RTTSample{Resolver: a, RTT: time.Millisecond, Age: 0}, state.RTTSample{Resolver: network(7), RTT: time.Millisecond})
		if n := table.Len(); n != 1+21 {
			t.Errorf("%d networks, want 22", n)
		}
	})
}

// What the clients of a site see has no more room than its probes of resolvers that never asked: a part for each site, and no
// other's place. Networks that several sites see cost only the first of them.
func TestPassiveQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT, func(c *state.Config) { c.RTT.MaxTargets = 80 }))
		r.ask(2, "203.0.113.1")
		r.probes("virginia", sample("203.0.113.1", 30, 0))
		passive := func(first, n int) (all []state.RTTSample) {
			for i := range n {
				all = append(all, state.RTTSample{Resolver: network(first + i), RTT: time.Millisecond, Method: state.RTTPassive})
			}
			return all
		}
		r.probes("seoul", passive(0, 1000)...)
		table := r.s.Snapshot().RTT
		if n := table.Len(); n != 1+10 {
			t.Errorf("%d networks, want 11", n)
		}
		r.probes("virginia", passive(0, 10)...)
		r.probes("virginia", passive(5000, 1000)...)
		if n := table.Len(); n != 1+20 {
			t.Errorf("%d networks, want 21", n)
		}
		for i := range 10 {
			if row := table.Row(network(i)); row.Len() != 2 {
				t.Errorf("%d values of a network that both sites see", row.Len())
			}
		}
		if _, ok := value(table.Row(addr("203.0.113.1")), r.site("virginia").ID); !ok {
			t.Error("a probe's value is gone")
		}
	})
}

// How many connections a value is of is shown, and outlives a restart; a round trip of clients is no probe, and none of
// theirs is lost.
func TestPassiveConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(usesRTT), dir)
		want := map[string]int{"203.0.113.1": 12, "203.0.114.1": 65_535, "203.0.115.1": 0}
		for a, n := range map[string]int{"203.0.113.1": 12, "203.0.114.1": 70_000, "203.0.115.1": 0} {
			passive, none := sample(a, 30, 0), lost(a)
			passive.Method, passive.Connections, none.Method = state.RTTPassive, n, state.RTTPassive
			r.probes("seoul", sample(a, 20, 0), passive, none)
		}
		check := func(when string) {
			t.Helper()
			table := r.s.Snapshot().RTT
			for a, n := range want {
				got := table.Row(addr(a)).All()
				if len(got) != 2 || got[1].Method != state.RTTPassive || got[1].Connections != n || got[1].Probes != 0 || got[0].Probes != 1 || got[0].Lost != 0 {
					t.Errorf("%s, %s: %+v", when, a, got)
				}
			}
		}
		check("at first")
		r.stop()
		r = startIn(t, two(usesRTT), dir)
		check("after a restart")
	})
}

func TestRTTBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		var all []string
		for i := range 6 {
			all = append(all, fmt.Sprintf("203.0.%d.1", 100+i))
		}
		r.ask(2, all...)
		r.probes("seoul")
		r.probes("virginia")
		var misses, hits []state.RTTSample
		for _, a := range all {
			misses, hits = append(misses, lost(a)), append(hits, sample(a, 30, 0))
		}
		r.probes("virginia", misses...)
		time.Sleep(11 * time.Second)
		if r.site("virginia").RTTBlind {
			t.Error("rtt-blind although nobody reaches them")
		}
		r.probes("seoul", hits[:4]...)
		time.Sleep(11 * time.Second)
		if r.site("virginia").RTTBlind {
			t.Error("rtt-blind by four resolvers")
		}
		r.probes("seoul", hits...)
		time.Sleep(11 * time.Second)
		if st := r.site("virginia"); !st.RTTBlind || st.RTTBlindSince.IsZero() || r.site("seoul").RTTBlind || r.logged("site rtt-blind") != 1 {
			t.Errorf("virginia %v, seoul %v", st.RTTBlind, r.site("seoul").RTTBlind)
		}
		r.probes("virginia", hits[0])
		time.Sleep(11 * time.Second)
		if r.site("virginia").RTTBlind {
			t.Error("still rtt-blind")
		}
		if r.logged("site no longer rtt-blind") != 1 {
			t.Error("the end is not logged")
		}
	})
}

func TestValuesAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		r.ask(2, "203.0.113.1")
		r.probes("seoul", sample("203.0.113.1", 30, 0))
		table := r.s.Snapshot().RTT
		time.Sleep(59 * time.Minute)
		if table.Len() != 1 {
			t.Error("dropped too early")
		}
		time.Sleep(4 * time.Minute) // a sweep takes one of 16 shards
		if table.Len() != 0 {
			t.Error("not dropped")
		}
	})
}

func TestReloadKeepsRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT))
		r.ask(2, "203.0.113.1")
		r.probes("seoul", sample("203.0.113.1", 30, 0))
		r.s.Configure(two(usesRTT, func(c *state.Config) { c.RTT.MaxTargets = 5000 }))
		table := r.s.Snapshot().RTT
		if _, ok := value(table.Row(addr("203.0.113.1")), r.site("seoul").ID); !ok {
			t.Error("lost by another max_targets")
		}
		r.s.Configure(two(usesRTT, func(c *state.Config) { c.RTT.PrefixV4 = 20 }))
		if r.s.Snapshot().RTT.Len() != 0 {
			t.Error("kept under another prefix length")
		}
	})
}

func TestAskedAllocatesNothing(t *testing.T) {
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Configure(two(usesRTT))
	svc := s.Snapshot().Services[0]
	i := 0
	if n := testing.AllocsPerRun(1000, func() { i++; s.Asked(network(i), svc) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// Round trips of clients are no results of probes: they neither stop nor ask for one, and count from any site.
func TestPassiveIsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two(usesRTT, func(c *state.Config) { c.RTT.MaxSites = 1 }))
		r.ask(2, "203.0.113.1")
		r.probes("seoul", lost("203.0.113.1"))
		passive := sample("203.0.113.0", 30, 0)
		passive.Method = state.RTTPassive
		r.probes("seoul", passive)
		r.probes("virginia", passive)
		table := r.s.Snapshot().RTT
		for _, site := range []string{"seoul", "virginia"} {
			if v, ok := value(table.Row(addr("203.0.113.1")), r.site(site).ID); !ok || v.Method != state.RTTPassive {
				t.Errorf("%s: %v %v", site, v.Method, ok)
			}
		}
		time.Sleep(6 * time.Minute)
		r.ask(2, "203.0.113.1")
		if got := r.probes("seoul"); len(got) != 0 {
			t.Errorf("a silent resolver is probed again at once: %v", got)
		}
	})
}

// What one site needs twice running is what all sites try first, so that they can be compared; until the hour at which all
// gslbd try the configured order again.
func TestSitesAgreeOnAMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := two(usesRTT, func(c *state.Config) {
			c.RTT.Methods = []state.RTTMethod{state.RTTICMP, state.RTTTCP, state.RTTDNS}
		})
		r := start(t, conf)
		by := func(method state.RTTMethod) state.RTTSample {
			s := sample("203.0.113.1", 30, 0)
			s.Method = method
			return s
		}
		// round lets a refresh pass, and returns what a site is asked, after it has told what it measured in the last.
		round := func(site string, said ...state.RTTSample) string {
			rep := says(site, up)
			rep.RTTs = said
			probe := r.report(rep).Probe
			if len(probe) != 1 {
				t.Fatalf("at %s: %s is asked %v", time.Now().Format("15:04:05"), site, probe)
			}
			return fmt.Sprint(probe[0].Methods)
		}
		next := func() { time.Sleep(5 * time.Minute); r.ask(2, "203.0.113.1") }
		want := func(what, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("at %s: %s: %s, want %s", time.Now().Format("15:04:05"), what, got, want)
			}
		}
		r.ask(2, "203.0.113.1")
		want("at first", round("seoul"), "[icmp tcp dns]")
		want("at first", round("virginia"), "[icmp tcp dns]")
		next()
		want("one needs dns once", round("seoul", by(state.RTTDNS)), "[icmp tcp dns]")
		want("the other", round("virginia", by(state.RTTICMP)), "[icmp tcp dns]")
		next()
		want("twice", round("seoul", by(state.RTTDNS), by(state.RTTDNS)), "[dns icmp tcp]")
		want("the other", round("virginia", by(state.RTTICMP)), "[dns icmp tcp]")
		next()
		want("one that cannot", round("virginia", by(state.RTTICMP)), "[dns icmp tcp]")
		want("the other", round("seoul", by(state.RTTDNS)), "[dns icmp tcp]")
		next()
		for until := time.Now().Truncate(6 * time.Hour).Add(6 * time.Hour); time.Now().Before(until); next() {
			round("seoul", by(state.RTTDNS))
			round("virginia", by(state.RTTDNS))
		}
		want("after hours", round("virginia", by(state.RTTDNS)), "[icmp tcp dns]")
		want("the other", round("seoul", by(state.RTTDNS)), "[icmp tcp dns]")
		next()
		want("what was measured before does not count", round("virginia", by(state.RTTDNS)), "[icmp tcp dns]")
		next()
		round("virginia", by(state.RTTTCP))
		next()
		want("another one", round("virginia", by(state.RTTTCP)), "[tcp icmp dns]")
		r.s.Configure(two(usesRTT))
		next()
		want("another configuration", round("virginia", by(state.RTTTCP)), "[icmp]")
		next()
		want("of which that is none", round("virginia", by(state.RTTTCP)), "[icmp]")
	})
}

func TestKeptRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		r := startIn(t, two(usesRTT), dir)
		r.ask(2, "203.0.113.1")
		for i, ms := range []float64{10, 11, 60, 61, 62, 63} {
			r.probes("virginia", sample("203.0.113.1", ms, 0))
			if i == 2 {
				r.probes("virginia", lost("203.0.113.1"))
			}
			time.Sleep(2 * time.Second)
		}
		time.Sleep(time.Second)
		before, _ := value(r.s.Snapshot().RTT.Row(addr("203.0.113.1")), r.site("virginia").ID)
		passive := sample("203.0.113.0", 44, 0)
		passive.Method = state.RTTPassive
		r.probes("virginia", passive)
		r.stop()
		time.Sleep(time.Minute)
		r = startIn(t, two(usesRTT), dir)
		table := r.s.Snapshot().RTT
		v, ok := value(table.Row(addr("203.0.113.1")), r.site("virginia").ID)
		age := time.Since(v.Newest).Round(time.Second)
		if !ok || v.RTT != 60*time.Millisecond || age != 63*time.Second {
			t.Errorf("%v %v, age %v; want 60ms, 1m3s", ok, v.RTT, age)
		}
		if before.Before == 0 || before.Lost != 1 || v.Shifted.Sub(before.Shifted).Abs() > 2*time.Second {
			t.Errorf("shifted %v, then %v", before, v)
		}
		v.Newest, v.Shifted = before.Newest, before.Shifted
		if v != before {
			t.Errorf("%+v, want what it was: %+v", v, before)
		}
		rtt, ok := table.Row(addr("203.0.113.1")).Fresh(r.site("virginia").ID, state.RTTPassive, table.Moment(time.Now().Add(-time.Hour)))
		if !ok || rtt != 44*time.Millisecond {
			t.Errorf("passive: %v %v, want 44ms", ok, rtt)
		}
	})
}
