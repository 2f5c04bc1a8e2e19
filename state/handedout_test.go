package state_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// oneService has members a and b of www.example.com, at sites of their names.
func oneService(ttl uint32, members ...string) *state.Config {
	c := &state.Config{
		Sites:    []state.SiteConfig{{Name: "a"}, {Name: "b"}},
		Services: []state.ServiceConfig{{Name: "www.example.com", TTL: ttl, UnknownUp: true}},
	}
	for i, name := range members {
		c.Services[0].Members = append(c.Services[0].Members, state.MemberConfig{
			Name: name, Site: name, Addresses: [2]netip.Addr{network(i)}, Weight: 100,
		})
	}
	return c
}

func TestHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		r := start(t, oneService(30, "a", "b"))
		want := func(member string, least time.Time) {
			t.Helper()
			got := r.member("www.example.com", member).HandedOut.Until()
			if got.Before(least) || got.After(least.Add(time.Second)) {
				t.Errorf("%s until %s, want %s or at most a second later", member, got.Sub(started), least.Sub(started))
			}
		}
		mark := func(member string, ttl uint32) {
			r.member("www.example.com", member).HandedOut.Mark(time.Now(), ttl)
		}
		// Of what a process before this one answered nothing is known.
		want("a", started.Add(30*time.Second))

		time.Sleep(100 * time.Second)
		want("a", started.Add(30*time.Second))
		mark("a", 30)
		want("a", started.Add(130*time.Second))
		want("b", started.Add(30*time.Second))

		// Within a second of it nothing need be stored, and no later answer is forgotten either.
		last := r.member("www.example.com", "a").HandedOut.Until()
		time.Sleep(500 * time.Millisecond)
		mark("a", 30)
		want("a", time.Now().Add(30*time.Second))
		if got := r.member("www.example.com", "a").HandedOut.Until(); !got.Equal(last) {
			t.Errorf("stored again after half a second: %s, was %s", got, last)
		}
		time.Sleep(700 * time.Millisecond)
		mark("a", 30)
		until := time.Now().Add(30 * time.Second)
		want("a", until)

		// A short answer, of on_all_down say, takes nothing back, nor does a reload with a shorter TTL.
		mark("a", 5)
		want("a", until)
		r.s.Configure(oneService(5, "a", "b"))
		mark("a", 5)
		want("a", until)

		// A member that a reload took away and brings back may be in caches from before.
		r.s.Configure(oneService(60, "b"))
		r.s.Configure(oneService(5, "a", "b"))
		want("a", time.Now().Add(60*time.Second))
	})
}

func TestHotPathAllocatesNothing(t *testing.T) {
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Configure(oneService(30, "a", "b"))
	svc := s.Snapshot().Services[0]
	now, i := time.Now(), 0
	ldns, ecs := netip.MustParseAddr("203.0.113.9"), netip.MustParsePrefix("2001:db8::/56")
	if n := testing.AllocsPerRun(1000, func() {
		i++
		s.Served(svc, ldns, ecs, uint64(i)<<32)
		svc.Members[i%2].HandedOut.Mark(now.Add(time.Duration(i)*time.Second), 30)
	}); n != 0 {
		t.Errorf("%v allocations a query", n)
	}
}

func BenchmarkHandedOut(b *testing.B) {
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(oneService(30, "a", "b"))
	h := &s.Snapshot().Services[0].Members[0].HandedOut
	b.RunParallel(func(p *testing.PB) {
		now := time.Now()
		for i := 0; p.Next(); i++ {
			if i%32 == 0 {
				now = time.Now()
			}
			h.Mark(now, 30)
		}
	})
}
