package state_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
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
				Addresses: [2]netip.Addr{network(1<<16 + i*4 + j), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x:%x:%x", i>>16, i&0xffff, j+1))},
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
			cmpopts.IgnoreFields(state.Member{}, "Selected", "SelectedApart", "HandedOut"), cmpopts.IgnoreFields(state.SiteInfo{}, "Location"),
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
						if snap.SiteOf(m).SiteInfo != m.Site {
							t.Error("a member of another moment")
							return
						}
						m.Selected[state.V4].Add(state.SelectedUnit)
						svc.Counters.Add(w, 1, m.Index)
						snap.RTT.Row(network(i%300)).Fresh(m.Site.ID, state.RTTICMP, 0)
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

// A publication resolves only what was touched. That must be all that is not as before: a preview of what is ordered
// resolves everything, and says the same. The world has all that health and pools depend on.
func TestUntouchedServicesAreAsIfResolved(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			last, shared, blind := w.r.s.Snapshot(), 0, 0
			for step := range 200 {
				what := w.happen()
				if w.rnd.IntN(3) > 0 {
					synctest.Wait()
				}
				w.r.s.SetOrders(w.orders) // publishes
				now := w.r.s.Snapshot()
				if resolved := w.r.s.Preview(w.orders.Force); !reflect.DeepEqual(said(now), said(resolved)) {
					t.Fatalf("seed %d, step %d, after %s:\n%s", seed, step, what, same(now, resolved))
				}
				for i := range min(len(now.Services), len(last.Services)) {
					if now.Services[i] == last.Services[i] {
						shared++
					}
				}
				if now.Blind {
					blind++
				}
				last = now
			}
			if shared < 200*12/8 {
				t.Errorf("seed %d: only %d services were shared between snapshots", seed, shared)
			}
			if blind == 0 {
				t.Errorf("seed %d: it was never blind", seed)
			}
		})
	}
}

// said returns what a snapshot says of the services. Comparing that is a hundred times as fast as same.
func said(s *state.Snapshot) (all []state.Service) {
	for _, svc := range s.Services {
		out := *svc
		out.Rotation, out.Counters, out.Members = nil, nil, nil
		for _, m := range svc.Members {
			n := *m
			n.MemberCounts, n.SelectedApart = nil, nil
			out.Members = append(out.Members, &n)
		}
		all = append(all, out)
	}
	return all
}

// A report costs what its site's members cost: the services of other sites are the same in the next snapshot, and so are
// all of them when it says nothing new of the servers.
func TestReportTouchesItsServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := large(40, 40)
		r := start(t, c)
		for i := range 40 {
			r.report(reportOf(c, fmt.Sprintf("site%d", i), up))
		}
		r.settle()
		anew := func(rep *state.Report) (names []string) {
			t.Helper()
			time.Sleep(time.Second)
			before := r.s.Snapshot()
			r.report(rep)
			r.settle()
			after := r.s.Snapshot()
			if before.Version == after.Version || after.Sites[7].ReportAt.Equal(before.Sites[7].ReportAt) {
				t.Fatal("the report was not published")
			}
			for i := range after.Services {
				if after.Services[i] != before.Services[i] {
					names = append(names, after.Services[i].Name)
				}
			}
			return names
		}
		same := reportOf(c, "site7", up)
		same.Sessions++
		if got := anew(same); got != nil {
			t.Errorf("services made anew, although nothing is new of any server: %v", got)
		}
		want := []string{"s4.example.com", "s5.example.com", "s6.example.com", "s7.example.com"}
		if got := anew(reportOf(c, "site7", down)); !cmp.Equal(got, want) {
			t.Errorf("services made anew: %v, want %v", got, want)
		}
	})
}

// The largest configuration: 100,000 services of four members at 1,000 sites.
func huge(b *testing.B) (*state.Store, *state.Config) {
	c := large(1000, 100_000)
	s, err := state.New(state.Options{Shards: 2})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(c)
	return s, c
}

// BenchmarkConfigure100k is a reload of the largest configuration, as far as the state is concerned.
func BenchmarkConfigure100k(b *testing.B) {
	s, c := huge(b)
	b.ReportAllocs()
	for b.Loop() {
		s.Configure(c)
	}
}

// BenchmarkPublish100k is a publication of the largest configuration after one site's report, of 400 members.
func BenchmarkPublish100k(b *testing.B) {
	s, c := huge(b)
	for _, name := range []string{"same health", "other health"} {
		b.Run(name, func(b *testing.B) {
			reports := [2]*state.Report{reportOf(c, "site7", up), reportOf(c, "site7", up)}
			if name == "other health" {
				reports[1] = reportOf(c, "site7", down)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := s.Report(reports[i%2]); err != nil {
					b.Fatal(err)
				}
				s.SetGeo(nil) // publishes
			}
		})
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
		if table.Row(keys[i&(1<<16-1)]) == nil {
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
