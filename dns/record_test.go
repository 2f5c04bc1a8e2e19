package dns_test

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
	"gslbd/state"
)

// Every member that an answer names is marked as handed out for the TTL that the answer has, and no other is.
func TestAnswersAreHandedOut(t *testing.T) {
	zones := []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "go CNAME www\n"), ECS: true}}
	alpn := []string{"h2"}
	two := []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}
	for _, tt := range []struct {
		name, qtype string
		want        string // members and TTLs
		services    []testService
	}{
		{"www", "A", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, members: two}}},
		{"www", "AAAA", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, members: two}}},
		{"go", "A", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, members: two}}},
		{"x.y.cdn", "A", "s0 20", []testService{{name: "*.cdn.gslb.test", ttl: 20, members: two}}},
		{"www", "TXT", "", []testService{{name: "www.gslb.test", ttl: 30, members: two}}},
		{"www", "ANY", "", []testService{{name: "www.gslb.test", ttl: 30, members: two}}},
		{"www", "A", "s0 30, s1 30", []testService{{name: "www.gslb.test", ttl: 30, answers: 2, members: append(slices.Clone(two), "198.51.100.3")}}},
		{"www", "A", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, members: []string{"a.example.net.", "b.example.net."}}}},
		{"www", "CNAME", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, members: []string{"a.example.net.", "b.example.net."}}}},
		{"www", "HTTPS", "s0 30", []testService{{name: "www.gslb.test", ttl: 30, alpn: alpn, members: two}}},
		{"www", "HTTPS", "s0 30, s1 30, s2 30", []testService{{
			name: "www.gslb.test", ttl: 30, alpn: alpn, answers: 2, members: []string{"198.51.100.1", "198.51.100.2,2001:db8::2", "198.51.100.3,2001:db8::3"},
		}}},
		// What on_all_down answers is short.
		{"www", "A", "s0 10", []testService{{name: "www.gslb.test", ttl: 30, down: true, members: two}}},
		{"www", "HTTPS", "s0 10", []testService{{name: "www.gslb.test", ttl: 30, down: true, alpn: alpn, members: two}}},
		{"www", "A", "", []testService{{name: "www.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownNoData, members: two}}},
		{"www", "A", "s1 10", []testService{{
			name: "www.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownBackup, members: two, lastResort: []string{"198.51.100.90", "198.51.100.2", "2001:db8::1"},
		}}},
	} {
		t.Run(tt.name+" "+tt.qtype+" "+tt.want, func(t *testing.T) {
			w := newWorld(t, zones, tt.services...)
			r := w.responder(t, dns.Options{ECS: true})
			now := time.Now().Add(time.Hour) // when nothing that came before is cached any more
			r.Refresh(now)
			ask(t, r, question(tt.name+".gslb.test.", tt.qtype), false)
			var got []string
			for _, m := range w.store.Snapshot().Services[0].Members {
				left := m.HandedOut.Until().Sub(now)
				if left <= 0 {
					continue
				}
				got = append(got, fmt.Sprintf("%s %d", m.Name, int(math.Ceil(left.Seconds()))-1))
			}
			if s := strings.Join(got, ", "); s != tt.want {
				t.Errorf("handed out %q, want %q", s, tt.want)
			}
		})
	}
}

// Clients are remembered as the policy saw them: with the prefix that it looked at, under the service of a wildcard or
// alias, and only where a policy decided.
func TestClientsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serviceWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.store.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		r := w.responder(t, dns.Options{ECS: true})
		subnet := func(prefix string) func(*mdns.Msg) {
			p := netip.MustParsePrefix(prefix)
			e := &mdns.EDNS0_SUBNET{Code: mdns.EDNS0SUBNET, Family: 1, SourceNetmask: uint8(p.Bits()), Address: p.Addr().AsSlice()}
			return edns(1232, e)
		}
		ask(t, r, question("www.gslb.test.", "A"), false)
		ask(t, r, question("web.gslb.test.", "AAAA"), false)
		ask(t, r, question("www.gslb.test.", "A", subnet("203.0.113.0/24")), false)
		ask(t, r, question("www.gslb.test.", "A", subnet("0.0.0.0/0")), false)
		ask(t, r, question("www.gslb.test.", "TXT", subnet("203.0.113.0/24")), false)
		ask(t, r, question("a.b.cdn.gslb.test.", "A"), false)
		ask(t, r, question("www.noecs.test.", "A", subnet("203.0.113.0/24")), false)
		time.Sleep(1100 * time.Millisecond)
		for service, want := range map[string][]string{
			"www.gslb.test":    {"", "", "", "203.0.113.0/24"},
			"*.cdn.gslb.test":  {""},
			"www.noecs.test":   {""},
			"multi.gslb.test":  nil,
			"nodata.gslb.test": nil,
		} {
			var got []string
			for _, c := range w.store.Clients(service) {
				if c.LDNS != remote.Addr() {
					t.Errorf("%s: resolver %s, want %s", service, c.LDNS, remote.Addr())
				}
				s := ""
				if c.ECS.IsValid() {
					s = c.ECS.String()
				}
				got = append(got, s)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: prefixes %q, want %q", service, got, want)
			}
		}
	})
}
