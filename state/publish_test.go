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

// A publication resolves only what was touched. That must be all that is not as before: a preview of what is ordered
// resolves everything, and says the same.
func TestUntouchedServicesAreAsIfResolved(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			c := large(4, 12)
			for i := range c.Services {
				svc := &c.Services[i]
				svc.OnDead = []state.OnDead{state.DeadCheck, state.DeadKeep, state.DeadDown}[i%3]
				svc.Failback, svc.FailbackDelay = []state.Failback{state.FailbackAuto, state.FailbackDelay, state.FailbackManual}[i/2%3], 30*time.Second
				svc.HasCheck = seed%3 > 0 && i%2 == 0
				if i%4 == 3 {
					svc.Members[0].VirtualServers = []string{svc.Name}
				}
			}
			r := start(t, c)
			var orders state.Orders
			forced := map[string]state.Force{}
			orders.Force = func(service, member, _, _ string) state.Force { return forced[service+member] }
			orders.Latch = func(service string) state.Latch { return state.Latch{ID: forced[service].Why} }
			last := r.s.Snapshot()
			shared := 0
			for step := range 150 {
				service, member := fmt.Sprintf("s%d.example.com", rnd.IntN(12)), fmt.Sprintf("m%d", rnd.IntN(4))
				switch rnd.IntN(12) {
				case 0:
					forced[service+member] = state.Force{Forced: state.Forced(rnd.IntN(5)), Why: fmt.Sprint(rnd.IntN(3))}
				case 1:
					forced[service+member] = state.Force{Stages: []state.Stage{{Order: 1, Share: float64(1+rnd.IntN(3)) / 4}}}
				case 2:
					forced[service] = state.Force{Why: []string{"", "a", "b"}[rnd.IntN(3)]}
				case 3, 4:
					r.s.Check(state.CheckResult{
						Service: service, Member: member, Family: state.Family(rnd.IntN(2)), Up: rnd.IntN(2) == 0,
						Err: []string{"", "refused"}[rnd.IntN(2)], Unreachable: rnd.IntN(2) == 0, Unrunnable: rnd.IntN(8) == 0,
					})
				default:
					rep := reportOf(c, fmt.Sprintf("site%d", rnd.IntN(4)), []state.ServerState{up, up, down, maint, state.ServerUnknown}[rnd.IntN(5)])
					rep.Agent = []string{"", "", "", "b"}[rnd.IntN(4)]
					if rnd.IntN(4) == 0 {
						rep.VirtualServers = rep.VirtualServers[:rnd.IntN(len(rep.VirtualServers)+1)]
					}
					if _, err := r.s.Report(rep); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep([]time.Duration{0, 10 * time.Millisecond, time.Second, time.Second, 4 * time.Second, 16 * time.Second, 61 * time.Second}[rnd.IntN(7)])
				if rnd.IntN(3) > 0 {
					synctest.Wait()
				}
				r.s.SetOrders(orders) // publishes
				now := r.s.Snapshot()
				if d := same(now, r.s.Preview(orders.Force)); d != "" {
					t.Fatalf("seed %d, step %d:\n%s", seed, step, d)
				}
				for i := range now.Services {
					if now.Services[i] == last.Services[i] {
						shared++
					}
				}
				last = now
			}
			if shared < 150*12/4 {
				t.Errorf("seed %d: only %d services were shared between snapshots", seed, shared)
			}
		})
	}
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
