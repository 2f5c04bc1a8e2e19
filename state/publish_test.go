package state_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gslbd/state"
)

// large is a configuration of many sites and services of four members each.
func large(sites, services int) *state.Config {
	c := &state.Config{}
	for i := range sites {
		c.Sites = append(c.Sites, state.SiteConfig{Name: fmt.Sprintf("site%d", i), SessionsLimit: 1000})
	}
	for i := range services {
		svc := state.ServiceConfig{Name: fmt.Sprintf("s%d.example.com", i), UsesRTT: true, FailoverRatio: 0.5, HasCheck: true}
		for j := range 4 {
			m := state.MemberConfig{
				Name: fmt.Sprintf("m%d", j), Site: fmt.Sprintf("site%d", (i+j)%sites), Weight: 100,
				Addresses: [2]netip.Addr{network(1<<16 + i*4 + j), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x:%x", i, j+1))},
			}
			if j > 1 {
				m.Role = state.Backup
			}
			svc.Members = append(svc.Members, m)
		}
		c.Services = append(c.Services, svc)
	}
	return c
}

// reportOf lists every member of the site.
func reportOf(c *state.Config, site string, st state.ServerState) *state.Report {
	r := &state.Report{Site: site, HasSessions: true, Sessions: 100}
	for _, svc := range c.Services {
		for _, m := range svc.Members {
			if m.Site != site {
				continue
			}
			for _, a := range m.Addresses {
				r.VirtualServers = append(r.VirtualServers, state.VirtualServer{
					Name: svc.Name, Address: a, Port: 443,
					Servers: []state.Server{{Name: "a", State: st}, {Name: "b", State: state.ServerUp}},
				})
			}
		}
	}
	return r
}

// Property: in which order the reports of different sites arrive within one publication does not matter.
func TestOrderOfSitesDoesNotMatter(t *testing.T) {
	c := large(6, 20)
	run := func(order []int) (snap *state.Snapshot) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, c)
			time.Sleep(time.Second)
			for round := range 4 {
				r.s.SetOrders(state.Orders{}) // publishes, so that nothing more is published before all have reported
				for _, i := range order {
					rep := reportOf(c, fmt.Sprintf("site%d", i), []state.ServerState{up, down, maint}[(i+round)%3])
					rep.Sessions = uint64(400 * ((i + round) % 4))
					if (i+round)%5 != 0 {
						r.report(rep)
					}
				}
				time.Sleep(5 * time.Second)
			}
			r.settle()
			snap = r.s.Snapshot()
		})
		return snap
	}
	want := run([]int{0, 1, 2, 3, 4, 5})
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		order := rnd.Perm(6)
		got := run(order)
		if d := cmp.Diff(want, got,
			cmpopts.IgnoreFields(state.Snapshot{}, "RTT", "Geo", "Version"), cmpopts.IgnoreFields(state.Service{}, "Rotation", "Counters"),
			cmpopts.IgnoreFields(state.Member{}, "Selected", "SelectedApart", "HandedOut"), cmpopts.IgnoreFields(state.Site{}, "Location"),
			cmpopts.IgnoreUnexported(state.Service{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Fatalf("order %v:\n%s", order, d)
		}
	}
}

// Readers see whole snapshots while everything changes at once. This is a test for the race detector.
func TestReadersWhilePublishing(t *testing.T) {
	c := large(4, 10)
	s, err := state.New(state.Options{Shards: 2, Directory: keptIn(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.Configure(c)
	ctx, cancel := context.WithCancel(t.Context())
	var all, writers sync.WaitGroup
	all.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for w := range 2 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				snap := s.Snapshot()
				for _, svc := range snap.Services {
					s.Asked(network(i%300), svc)
					svc.Rotation.Turn[state.V4].Add(1)
					for _, m := range svc.Members {
						if snap.Sites[m.Site.Index] != m.Site {
							t.Error("a member of another moment")
							return
						}
						m.Selected[state.V4].Add(state.SelectedUnit)
						svc.Counters.Add(w, 1, m.Index)
						snap.RTT.Row(snap.RTT.Key(network(i % 300))).Of(m.Site.ID)
					}
				}
				runtime.Gosched()
			}
		})
	}
	for i := range 4 {
		writers.Go(func() {
			for n := range 30 {
				r := reportOf(c, fmt.Sprintf("site%d", i), []state.ServerState{up, down}[n%2])
				for k := range 20 {
					r.RTTs = append(r.RTTs, state.RTTSample{Resolver: network(k * 7), RTT: time.Millisecond, Lost: k == n})
				}
				if _, err := s.Report(r); err != nil {
					t.Error(err)
				}
				s.Check(state.CheckResult{Service: "s1.example.com", Member: "m1", Up: n%2 == 0})
				if n%10 == 0 {
					s.Configure(c)
					s.SetOrders(state.Orders{Force: func(string, string, string, string) state.Force { return state.Force{Forced: state.ForcedUp, Why: ""} }})
				}
			}
		})
	}
	writers.Wait()
	cancel()
	all.Wait()
}

func BenchmarkPublish(b *testing.B) {
	c := large(200, 5000)
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(c)
	for i := range 200 {
		if _, err := s.Report(reportOf(c, fmt.Sprintf("site%d", i), up)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.SetOrders(state.Orders{}) // publishes, after visiting every member
	}
}

func BenchmarkReport(b *testing.B) {
	c := large(200, 5000)
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(c)
	for _, name := range []string{"same health", "other health"} {
		b.Run(name, func(b *testing.B) {
			reports := [2]*state.Report{reportOf(c, "site7", up), reportOf(c, "site7", up)}
			if name == "other health" {
				reports[1] = reportOf(c, "site7", down)
			}
			for k := range 2000 {
				s := state.RTTSample{Resolver: network(k), RTT: time.Millisecond}
				reports[0].RTTs, reports[1].RTTs = append(reports[0].RTTs, s), append(reports[1].RTTs, s)
			}
			for i := 0; b.Loop(); i++ {
				if _, err := s.Report(reports[i%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRTTRow(b *testing.B) {
	const n = 1_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := state.NewRTTTable(state.RTTConfig{MaxTargets: 2 * n})
	now := time.Now()
	for i := range n {
		table.Add(uint16(i%4), []state.RTTSample{{Resolver: network(i), RTT: time.Millisecond}}, now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	rnd := rand.New(rand.NewPCG(1, 1))
	keys := make([]netip.Addr, 1<<16)
	for i := range keys {
		keys[i] = network(rnd.IntN(n))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if table.Row(table.Key(keys[i&(1<<16-1)])) == nil {
			b.Fatal("no row")
		}
		i++
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "bytes/prefix")
}

func BenchmarkAsked(b *testing.B) {
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(large(4, 10))
	svc := s.Snapshot().Services[0]
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for i := 0; p.Next(); i++ {
			s.Asked(network(i&1023), svc)
		}
	})
}
