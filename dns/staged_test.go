package dns_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

// A client that a staged order moves away from a member is not told of that member by any kind of answer, and the scope
// says that other networks are told otherwise.
func TestMovedClients(t *testing.T) {
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, ""), ECS: true}},
		testService{name: "www.gslb.test", ttl: 30, alpn: []string{"h2"}, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "multi.gslb.test", ttl: 30, answers: 10, alpn: []string{"h2"}, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2", "198.51.100.3,2001:db8::3"}},
		testService{name: "cname.gslb.test", ttl: 30, members: []string{"one.example.net.", "two.example.net."}},
		testService{name: "all.gslb.test", ttl: 30, down: true, alpn: []string{"h2"}, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "good.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownLastKnownGood, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "backup.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownBackup, members: []string{"198.51.100.1,2001:db8::1"}, lastResort: []string{"198.51.100.1", "198.51.100.9", "2001:db8::1"}},
	)
	w.store.SetOrders(state.Orders{Force: func(_, _, site, _ string) state.Force {
		if site == "s0" {
			return state.Force{Stages: []state.Stage{{Order: 1, Share: 0.5}}}
		}
		return state.Force{}
	}})
	r := w.responder(t, dns.Options{ECS: true})
	moved := 0
	for i := range byte(64) {
		ecs := edns(1232, raw(8, 0, 1, 24, 0, 20, 1, i))
		reply, _ := ask(t, r, question("www.gslb.test.", "A", ecs), false)
		gone := !strings.Contains(show(reply), "198.51.100.1")
		if gone {
			moved++
		}
		for _, name := range []string{"www.gslb.test.", "multi.gslb.test.", "cname.gslb.test.", "all.gslb.test.", "good.gslb.test."} {
			for _, qtype := range []string{"A", "AAAA", "HTTPS"} {
				reply, wire := ask(t, r, question(name, qtype, ecs), false)
				if len(reply.Answer) == 0 && qtype == "HTTPS" {
					continue // not every service has one
				}
				got := show(reply)
				told := strings.Contains(got, "198.51.100.1") || strings.Contains(got, "2001:db8::1") || strings.Contains(got, "one.example.net.")
				if scope := unpackRaw(t, wire).options[8][3]; told == gone || scope != 24 {
					t.Fatalf("network %d, moved %v, scope %d: %s %s:\n%s", i, gone, scope, name, qtype, got)
				}
			}
		}
		for _, qtype := range []string{"A", "AAAA"} {
			reply, _ := ask(t, r, question("backup.gslb.test.", qtype, ecs), false)
			if got := show(reply); strings.Contains(got, "198.51.100.1") || strings.Contains(got, "2001:db8::1") {
				t.Fatalf("network %d: last_resort leads back:\n%s", i, got)
			}
		}
	}
	if moved < 16 || moved > 48 {
		t.Errorf("%d of 64 networks are moved, at a share of a half", moved)
	}
}

// A stage takes its share of the zone's answers away: the clients that it leaves alone do not make up for those that it
// moves.
func TestStageTakesItsShareAway(t *testing.T) {
	steps := []policy.StepOptions{{Metric: "health"}, {Metric: "capacity"}, {Metric: "least-selected", HalfLife: time.Minute}, {Metric: "static", Method: "round-robin"}}
	all := []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"}
	for _, members := range []int{2, 4} {
		for _, share := range []float64{0, 0.25, 0.5, 1} {
			t.Run(fmt.Sprintf("%d members, %g", members, share), func(t *testing.T) {
				w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, ""), ECS: true}},
					testService{name: "www.gslb.test", ttl: 30, members: all[:members], steps: steps})
				w.store.SetOrders(state.Orders{Force: func(_, _, site, _ string) state.Force {
					switch {
					case site != "s0" || share == 0:
						return state.Force{}
					case share == 1:
						return state.Force{Forced: state.ForcedEvacuated}
					}
					return state.Force{Stages: []state.Stage{{Order: 1, Share: share}}}
				}})
				r := w.responder(t, dns.Options{ECS: true})
				const queries = 8000
				got := 0.
				for i := range queries {
					reply, _ := ask(t, r, question("www.gslb.test.", "A", edns(1232, raw(8, 0, 1, 24, 0, 20, byte(i>>8), byte(i)))), false)
					if strings.Contains(show(reply), all[0]) {
						got += 1. / queries
					}
				}
				if want := (1 - share) / float64(members); math.Abs(got-want) > 0.02 {
					t.Errorf("the zone gets %.3f of the answers, want %.3f", got, want)
				}
			})
		}
	}
}

// A zone that is put back is not flooded: it gets its share again, and not every answer until it has caught up.
func TestRestoredZoneIsNotFlooded(t *testing.T) {
	steps := []policy.StepOptions{{Metric: "health"}, {Metric: "least-selected", HalfLife: time.Minute}, {Metric: "static", Method: "round-robin"}}
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "")}},
		testService{name: "www.gslb.test", ttl: 30, members: []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"}, steps: steps})
	r := w.responder(t, dns.Options{})
	count := func(queries int) int {
		got := 0
		r.Refresh(time.Now())
		for range queries {
			reply, _ := ask(t, r, question("www.gslb.test.", "A"), false)
			if s := show(reply); strings.Contains(s, "198.51.100.1") || strings.Contains(s, "198.51.100.2") {
				got++
			}
		}
		return got
	}
	for _, f := range []state.Forced{state.ForcedEvacuated, state.ForcedDown, state.ForcedDrain} {
		w.store.SetOrders(state.Orders{Force: func(_, _, site, _ string) state.Force {
			if site == "s0" || site == "s1" {
				return state.Force{Forced: f}
			}
			return state.Force{}
		}})
		if got := count(400); got != 0 {
			t.Errorf("%s: %d answers", f, got)
		}
		w.store.SetOrders(state.Orders{})
		if got := count(100); got < 48 || got > 52 {
			t.Errorf("after %s it gets %d of 100 answers, want half", f, got)
		}
	}
}
