package state_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"gslbd/state"
)

// TestAdvance drives a Store by a clock of its own, without Run and in no time: a report ages as it does while serving.
func TestAdvance(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := began
	s, err := state.New(state.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Configure(&state.Config{
		Sites: []state.SiteConfig{{Name: "seoul"}, {Name: "virginia"}},
		Services: []state.ServiceConfig{{Name: "www.example.com", TTL: 30, UnknownUp: true, Members: []state.MemberConfig{
			{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}, Weight: 100},
		}}},
	})
	report := func(site string) {
		if _, err := s.Report(&state.Report{Site: site, VirtualServers: []state.VirtualServer{
			{Address: netip.MustParseAddr("192.0.2.1"), Servers: []state.Server{{Name: "s", State: state.ServerUp}}},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	report("seoul")
	for end := began.Add(time.Hour); now.Before(end); {
		next := s.Advance()
		if !next.After(now) {
			t.Fatalf("at %s the next is at %s", now, next)
		}
		want := state.Fresh
		switch age := now.Sub(began); {
		case age < 200*time.Millisecond: // the publication is due only then
			want = state.NeverReported
		case age >= time.Minute:
			want = state.Dead
		case age >= 15*time.Second:
			want = state.Stale
		}
		snap := s.Snapshot()
		if got := snap.Sites[0].Freshness; got != want {
			t.Fatalf("after %s: %s, want %s", now.Sub(began), got, want)
		}
		if up := snap.Services[0].Members[0].Up[state.V4]; up != (want != state.Dead) {
			t.Fatalf("after %s: up = %v while %s", now.Sub(began), up, want)
		}
		if !s.Beat().Equal(now) {
			t.Fatalf("the beat is of %s, now is %s", s.Beat(), now)
		}
		now = next
		report("virginia") // so that the fault is not ours
	}
}

// Who asked is collected in pieces, so that queries do not wait long for it, and all of them within a second or so.
func TestCollectsInPieces(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := state.New(state.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := &state.Config{Sites: []state.SiteConfig{{Name: "seoul"}}}
	const services, clients = 400, 4
	for i := range services {
		c.Services = append(c.Services, state.ServiceConfig{Name: fmt.Sprintf("w%d.example.com", i), TTL: 30, UnknownUp: true, UsesRTT: true, Members: []state.MemberConfig{
			{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}, Weight: 100},
		}})
	}
	s.Configure(c)
	known := func() (n int) {
		for _, svc := range c.Services {
			n += len(s.Clients(svc.Name))
		}
		return n
	}
	for range 3 { // three times, as a tick that was not done would be done with the next
		before := known()
		for i := range clients {
			for j, svc := range s.Snapshot().Services {
				s.Asked(network(i*services+j), svc)
				s.Served(svc, network(i*services+j), netip.Prefix{}, uint64(i*services+j)<<32)
			}
		}
		most := 0
		for end := now.Add(time.Second + 200*time.Millisecond); now.Before(end); now = s.Advance() {
			was := known()
			s.Advance()
			most = max(most, known()-was)
		}
		if got := known() - before; got < services || most > 400 {
			t.Errorf("%d clients are known, %d of them at once", got, most)
		}
	}
}
