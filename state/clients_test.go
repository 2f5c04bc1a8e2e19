package state_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// served has the resolvers with these numbers ask for the service, in a random order with chance from rnd.
func (r *rig) served(rnd *rand.Rand, service string, ldns ...int) {
	svc := r.s.Snapshot().ServiceByName(service)
	for _, i := range ldns {
		r.s.Served(svc, network(i), netip.Prefix{}, rnd.Uint64())
	}
}

// counts says how often each resolver is among the clients.
func counts(list []state.Client) map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, c := range list {
		n[c.LDNS]++
	}
	return n
}

func TestClientsAsTheyAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, oneService(30, "a"))
		want := map[state.Client]bool{}
		for i, c := range []state.Client{
			{LDNS: netip.MustParseAddr("203.0.113.9")},
			{LDNS: netip.MustParseAddr("2001:db8::1")},
			{LDNS: netip.MustParseAddr("203.0.113.9"), ECS: netip.MustParsePrefix("198.51.100.0/24")},
			{LDNS: netip.MustParseAddr("203.0.113.9"), ECS: netip.MustParsePrefix("198.0.0.0/7")},
			{LDNS: netip.MustParseAddr("2001:db8::1"), ECS: netip.MustParsePrefix("2001:db8:1:2::/56")},
			{LDNS: netip.MustParseAddr("203.0.113.9"), ECS: netip.MustParsePrefix("2001:db8::1/128")},
			{LDNS: netip.MustParseAddr("203.0.113.9"), ECS: netip.PrefixFrom(netip.MustParseAddr("::ffff:192.0.2.0"), 120)},
		} {
			r.s.Served(r.s.Snapshot().Services[0], c.LDNS, c.ECS, uint64(i)<<40)
			want[c] = true
		}
		r.s.Served(r.s.Snapshot().Services[0], netip.Addr{}, netip.Prefix{}, 1<<50) // no client
		if got := r.s.Clients("www.example.com"); len(got) != 0 {
			t.Errorf("%v before the tick", got)
		}
		time.Sleep(1100 * time.Millisecond)
		for _, c := range r.s.Clients("www.example.com") {
			if c.Weight <= 0 {
				t.Errorf("%v has no weight", c)
			}
			c.Weight = 0
			if !want[c] {
				t.Errorf("got %v, who did not ask", c)
			}
			delete(want, c)
		}
		for c := range want {
			t.Errorf("%v is missing", c)
		}
		if got := r.s.Clients("www.example.org"); got != nil {
			t.Errorf("a service that is not configured has %v", got)
		}
	})
}

// A resolver that asks a hundred times as often as another is there a hundred times as often, however many ask.
func TestClientsByVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := oneService(30, "a")
		c.Services = append(c.Services, c.Services[0])
		c.Services[1].Name = "quiet.example.com"
		r := start(t, c)
		rnd := rand.New(rand.NewPCG(1, 2))
		var round []int
		for i := range 400 {
			switch {
			case i%20 == 0:
				round = append(round, 1) // 5 %
			default:
				round = append(round, 2+i%2)
			}
		}
		began := time.Now()
		for range 600 {
			r.served(rnd, "www.example.com", round...) // 400 a second
			r.served(rnd, "quiet.example.com", 4)      // one
			time.Sleep(time.Second)
		}
		got := r.s.Clients("www.example.com")
		if len(got) != 4096 {
			t.Fatalf("%d clients after %s, want 4096", len(got), time.Since(began))
		}
		if share := float64(counts(got)[network(1)]) / float64(len(got)); share < 0.03 || share > 0.07 {
			t.Errorf("share of a resolver that asks 5 %% of the queries: %.1f %%", share*100)
		}
		quiet := r.s.Clients("quiet.example.com")
		if len(quiet) < 590 || len(quiet) > 600 {
			t.Errorf("%d clients after 600 queries of a service that none need be left out of", len(quiet))
		}
		busy := got[0].Weight * float64(len(got))
		if ratio := busy / (quiet[0].Weight * float64(len(quiet))); ratio < 300 || ratio > 500 {
			t.Errorf("the busy service weighs %.0f times the quiet one, want 400", ratio)
		}

		// What a busy service is asked later takes the place of what it was asked before.
		for range 600 {
			r.served(rnd, "www.example.com", make([]int, 400)...)
			time.Sleep(time.Second)
		}
		if share := float64(counts(r.s.Clients("www.example.com"))[network(0)]) / 4096; share < 0.5 || share > 0.95 {
			t.Errorf("after ten minutes of others these are %.0f %%", share*100)
		}
	})
}

func TestClientsAgeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, oneService(30, "a"))
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range 20 {
			r.served(rnd, "www.example.com", i)
		}
		time.Sleep(30 * time.Minute)
		r.served(rnd, "www.example.com", 100)
		time.Sleep(29 * time.Minute)
		if got := len(r.s.Clients("www.example.com")); got != 21 {
			t.Errorf("%d clients within the hour, want 21", got)
		}
		time.Sleep(2 * time.Minute)
		if got := counts(r.s.Clients("www.example.com")); len(got) != 1 || got[network(100)] != 1 {
			t.Errorf("after an hour: %v, want the last only", got)
		}
	})
}

func TestClientsOverReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := oneService(30, "a")
		r := start(t, c)
		rnd := rand.New(rand.NewPCG(1, 2))
		r.served(rnd, "www.example.com", 1, 2, 3)
		old := r.s.Snapshot().Services[0] // of a query that is still being answered
		r.s.Configure(oneService(5, "a", "b"))
		r.s.Served(old, network(4), netip.Prefix{}, rnd.Uint64())
		time.Sleep(1100 * time.Millisecond)
		if got := len(r.s.Clients("www.example.com")); got != 4 {
			t.Errorf("%d clients after a reload, want 4", got)
		}
		other := oneService(30, "a")
		other.Services[0].Name = "other.example.com"
		r.s.Configure(other)
		r.s.Served(old, network(4), netip.Prefix{}, rnd.Uint64())
		time.Sleep(1100 * time.Millisecond)
		r.s.Configure(c)
		if got := r.s.Clients("www.example.com"); len(got) != 0 {
			t.Errorf("%d clients of a service that came back", len(got))
		}
	})
}

// With many services each has fewer clients, at once when a reload brings them.
func TestClientsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few, many := large(4, 3), large(4, 5000)
		r := start(t, few)
		rnd := rand.New(rand.NewPCG(1, 2))
		all := make([]int, 4000)
		for i := range all {
			all[i] = i
		}
		for i := range 120 {
			r.served(rnd, "s0.example.com", all[:4000/(1+20*min(i, 1))]...) // first many, then some
			time.Sleep(time.Second)
		}
		if got := len(r.s.Clients("s0.example.com")); got != 4096 {
			t.Fatalf("%d clients, want 4096", got)
		}
		r.s.Configure(many)
		if got := len(r.s.Clients("s0.example.com")); got != 335 {
			t.Errorf("%d clients of one of 5,000 services, want 335", got)
		}
		for i := range 5000 {
			r.served(rnd, fmt.Sprintf("s%d.example.com", i), i)
		}
		time.Sleep(2 * time.Second) // so many are collected in pieces
		found := 0
		for i := range 5000 {
			found += len(r.s.Clients(fmt.Sprintf("s%d.example.com", i)))
		}
		if found < 335+4500 {
			t.Errorf("%d clients after each of 5,000 services was asked once, want most of 5,335", found)
		}
	})
}

// So many services are asked so often that the room for samples is full before the tick, and that a tick takes seconds. How often
// they are asked is worked out all the same, for those whose turn comes first in a tick as for those whose comes last.
func TestClientsOfMoreQueriesThanRoom(t *testing.T) {
	for _, tt := range []struct {
		services, perSecond, seconds int
		off                          float64 // how far the rate may be off: of many services few samples come in
	}{{5000, 50_000, 12, 0.15}, {40_000, 20_000, 60, 0.4}} {
		t.Run(strconv.Itoa(tt.services), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, large(4, tt.services))
				rnd := rand.New(rand.NewPCG(1, 2))
				snap := r.s.Snapshot()
				const step = 5 * time.Millisecond
				owed := 0.0
				for range tt.seconds * int(time.Second/step) {
					for owed += float64(tt.perSecond) * step.Seconds(); owed >= 1; owed-- {
						r.s.Served(snap.Services[rnd.IntN(tt.services)], network(rnd.IntN(1000)), netip.Prefix{}, rnd.Uint64())
					}
					time.Sleep(step)
				}
				var sums [4]float64 // of a quarter of the services each, in the order of their turns
				for i, svc := range snap.Services {
					for _, c := range r.s.Clients(svc.Name) {
						sums[i*len(sums)/tt.services] += c.Weight
					}
				}
				// A mean over ten minutes, of which so many seconds have passed.
				want := float64(tt.perSecond) / float64(len(sums)) * -math.Expm1(-float64(tt.seconds)/600)
				for i, sum := range sums {
					if math.Abs(sum/want-1) > tt.off {
						t.Errorf("the services of the %d. quarter are asked %.0f times a second, want about %.0f", i+1, sum, want)
					}
				}
			})
		})
	}
}

// This is a test for the race detector. What collides may be forgotten, but no slot is lost.
func TestClientsWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, oneService(30, "a"))
		for range 20 {
			var all sync.WaitGroup
			for w := range 4 {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(1, uint64(w)))
					for i := range 1500 {
						r.served(rnd, "www.example.com", i)
						if i%500 == 0 {
							time.Sleep(time.Second)
							r.s.Clients("www.example.com")
						}
					}
				})
			}
			all.Wait()
		}
		time.Sleep(time.Minute) // every query is sampled again
		r.served(rand.New(rand.NewPCG(1, 9)), "www.example.com", 9001, 9002, 9003, 9004)
		time.Sleep(1100 * time.Millisecond)
		got, found := counts(r.s.Clients("www.example.com")), 0
		for i := range 4 {
			found += got[network(9001+i)]
		}
		if found < 3 { // one may have taken another's place
			t.Errorf("%d of 4 clients", found)
		}
	})
}

// BenchmarkServed measures what it costs a query that the client is remembered: of a service that is asked so often that
// few are sampled, and at the beginning, when all are.
func BenchmarkServed(b *testing.B) {
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(large(4, 10))
	svc := s.Snapshot().Services[0]
	ecs := netip.MustParsePrefix("198.51.100.0/24")
	run := func(name string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				rnd := rand.NewPCG(rand.Uint64(), 1)
				for i := 0; p.Next(); i++ {
					s.Served(svc, network(i&1023), ecs, rnd.Uint64())
				}
			})
		})
	}
	run("full")
	for range 3 {
		stop := make(chan struct{})
		var busy sync.WaitGroup
		busy.Go(func() {
			rnd := rand.NewPCG(1, 1)
			for {
				select {
				case <-stop:
					return
				default:
					s.Served(svc, network(1), ecs, rnd.Uint64())
				}
			}
		})
		ctx, cancel := context.WithTimeout(b.Context(), 1200*time.Millisecond)
		_ = s.Run(ctx)
		cancel()
		close(stop)
		busy.Wait()
	}
	run("sampled")
}
