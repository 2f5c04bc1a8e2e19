package dns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

// Overload is no failure: a pool is not left because its sites are overloaded, whichever it is and however idle the other
// one. Within it capacity still has its say. What fails over is the share of healthy servers alone.
func TestOverloadIsNoFailover(t *testing.T) {
	const name = "www.gslb.test"
	members := []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"} // two primaries, two backups
	type site struct {
		sessions uint64 // of 1000
		up       int    // of 2 servers
	}
	idle, full, fuller, one, none := site{100, 2}, site{1500, 2}, site{2000, 2}, site{1500, 1}, site{0, 0}
	tests := []struct {
		name  string
		sites []site
		want  string // the last digits of all answers
	}{
		{"all is well", []site{idle, idle, idle, idle}, "1 2"},
		{"a primary is overloaded", []site{idle, full, idle, idle}, "1"},
		{"both are, alike", []site{full, full, idle, idle}, "1 2"},
		{"both are, and one more so", []site{full, fuller, idle, idle}, "1"},
		{"exactly the ratio, and overloaded", []site{one, one, idle, idle}, "1 2"},
		{"one is overloaded, the other down", []site{full, none, idle, idle}, "1"},
		{"below the ratio", []site{one, none, idle, idle}, "3 4"},
		{"the backups are overloaded", []site{one, none, full, full}, "3 4"},
		{"and the primary that is up is idle", []site{{100, 1}, none, full, full}, "3 4"},
		{"one backup is overloaded", []site{one, none, full, idle}, "4"},
	}
	chain := []policy.StepOptions{
		{Metric: "health"},
		{Metric: "capacity"},
		{Metric: "preference"},
		{Metric: "least-selected", HalfLife: time.Minute},
		{Metric: "static", Method: "round-robin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "")}},
				testService{name: name, ttl: 30, members: members, steps: chain, backups: 2, ratio: 0.5})
			for i, s := range tt.sites {
				v := state.VirtualServer{Address: netip.MustParseAddr(members[i])}
				for n := range 2 {
					st := state.ServerDown
					if n < s.up {
						st = state.ServerUp
					}
					v.Servers = append(v.Servers, state.Server{Name: fmt.Sprintf("vm%d", n), State: st})
				}
				if _, err := w.store.Report(&state.Report{
					Site: fmt.Sprintf("s%d", i), HasSessions: true, Sessions: s.sessions, VirtualServers: []state.VirtualServer{v},
				}); err != nil {
					t.Fatal(err)
				}
			}
			w.store.SetOrders(state.Orders{}) // which publishes at once
			r := w.responder(t, dns.Options{})
			var got []string
			for range 40 {
				reply, _ := ask(t, r, question(name+".", "A"), false)
				text := show(reply)
				if last := text[len(text)-1:]; !slices.Contains(got, last) {
					got = append(got, last)
				}
			}
			slices.Sort(got)
			if answers := strings.Join(got, " "); answers != tt.want {
				t.Errorf("answers %s, want %s (%s)", answers, tt.want, w.store.Snapshot().Services[0].PoolWhy)
			}
		})
	}
}
