package policy_test

import (
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

const ms = time.Millisecond

func TestRTT(t *testing.T) {
	tests := []struct {
		name    string
		set     func(*world)
		options func(*policy.StepOptions)
		query   func(*policy.Query)
		kept    string
		verdict string
		note    string
	}{
		{
			name: "the seed: 200 ms from Korea, 30 ms from the US",
			set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
			},
			kept: "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "any resolver of the network", set: func(w *world) {
				w.rtt("a", "8.8.8.1", 30400*time.Microsecond, 0)
				w.rtt("b", "8.8.8.254", 80*ms, 0)
			},
			kept: "a=30.4 ms c(no data) | b=80.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "the tolerance is of the best, never of a neighbour", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 100*ms, 0)
				w.rtt("b", "8.8.8.8", 109*ms, 0)
				w.rtt("c", "8.8.8.8", 118*ms, 0)
			},
			kept: "a=100.0 ms b=109.0 ms | c=118.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "the absolute tolerance for near ones", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 2*ms, 0)
				w.rtt("b", "8.8.8.8", 7*ms, 0)
				w.rtt("c", "8.8.8.8", 8*ms, 0)
			},
			kept: "a=2.0 ms b=7.0 ms | c=8.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "a tie within 1 ms (report B143)", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 10*ms, 0)
				w.rtt("b", "8.8.8.8", 10400*time.Microsecond, 0)
				w.rtt("c", "8.8.8.8", 30*ms, 0)
			},
			options: func(o *policy.StepOptions) { o.Tolerance, o.ToleranceAbs = 0, ms },
			kept:    "a=10.0 ms b=10.4 ms | c=30.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "too old", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 10*time.Minute)
				w.rtt("c", "8.8.8.8", 90*ms, 10*time.Minute-time.Second)
			},
			kept: "b(no data) c=90.0 ms | a=200.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "one with data is not enough", set: func(w *world) { w.rtt("a", "8.8.8.8", 30*ms, 0) },
			kept: "a=30.0 ms b(no data) c(no data) | ", verdict: "abstained", note: "ldns 8.8.8.8",
		},
		{
			name: "require_data", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 30*ms, 0)
				w.rtt("b", "8.8.8.8", 31*ms, 0)
			},
			options: func(o *policy.StepOptions) { o.RequireData = true },
			kept:    "a=30.0 ms b=31.0 ms | c(no data)", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "a blind site", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
				w.rtt("c", "8.8.8.8", 20*ms, 0)
				w.at("c").RTTBlind = true
			},
			kept: "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "only values of one method are compared", set: func(w *world) {
				w.rttBy(state.RTTDNS, "a", "8.8.8.8", 20*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
				w.rtt("c", "8.8.8.8", 80*ms, 0)
			},
			kept: "a(20.0 ms by dns only: no data) b=30.0 ms | c=80.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8, by icmp",
		},
		{
			name: "the method that the most have", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 20*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
				w.rttBy(state.RTTDNS, "a", "8.8.8.8", 95*ms, 0)
				w.rttBy(state.RTTDNS, "b", "8.8.8.8", 41*ms, 0)
				w.rttBy(state.RTTDNS, "c", "8.8.8.8", 40*ms, 0)
			},
			kept: "b=41.0 ms c=40.0 ms | a=95.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8, by dns",
		},
		{
			name: "of two that as many have, the first", set: func(w *world) {
				for _, m := range []state.RTTMethod{state.RTTDNS, state.RTTTCP} {
					w.rttBy(m, "a", "8.8.8.8", 10*time.Duration(m)*ms, 0)
					w.rttBy(m, "b", "8.8.8.8", 90*time.Duration(m)*ms, 0)
				}
			},
			kept: "a=10.0 ms c(no data) | b=90.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8, by tcp",
		},
		{
			name: "no two of one method", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 30*ms, 0)
				w.rttBy(state.RTTDNS, "b", "8.8.8.8", 60*ms, 0)
				w.rttBy(state.RTTTCP, "c", "8.8.8.8", 90*ms, 0)
			},
			kept: "a=30.0 ms b(60.0 ms by dns only: no data) c(90.0 ms by tcp only: no data) | ", verdict: "abstained", note: "ldns 8.8.8.8, by icmp",
		},
		{
			name: "too old values of a method do not count for it", set: func(w *world) {
				for _, m := range []string{"a", "b", "c"} {
					w.rtt(m, "8.8.8.8", 10*ms, 11*time.Minute)
				}
				w.rttBy(state.RTTDNS, "a", "8.8.8.8", 95*ms, 0)
				w.rttBy(state.RTTDNS, "b", "8.8.8.8", 41*ms, 0)
			},
			kept: "b=41.0 ms c(no data) | a=95.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8, by dns",
		},
		{
			name: "what the users see comes first", set: func(w *world) {
				w.rtt("a", "20.1.2.3", 10*ms, 0)
				w.rtt("b", "20.1.2.3", 20*ms, 0)
				w.rtt("c", "20.1.2.3", 30*ms, 0)
				w.rttBy(state.RTTPassive, "b", "20.1.2.0", 90*ms, 0)
				w.rttBy(state.RTTPassive, "c", "20.1.2.0", 50*ms, 0)
			},
			query: ecs("20.1.2.0/24"),
			kept:  "a(10.0 ms by icmp only: no data) c=50.0 ms | b=90.0 ms", verdict: "narrowed", note: "ecs 20.1.2.0/24, by passive",
		},
		{
			name: "but not what the users of one site see", set: func(w *world) {
				w.rtt("a", "20.1.2.3", 10*ms, 0)
				w.rtt("b", "20.1.2.3", 20*ms, 0)
				w.rttBy(state.RTTPassive, "c", "20.1.2.0", 50*ms, 0)
			},
			query: ecs("20.1.2.0/24"),
			kept:  "a=10.0 ms c(50.0 ms by passive only: no data) | b=20.0 ms", verdict: "narrowed", note: "ecs 20.1.2.0/24, by icmp",
		},
		{
			name: "a blind site knows its clients", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 10*ms, 0)
				for _, m := range []string{"a", "b"} {
					w.rttBy(state.RTTPassive, m, "8.8.8.0", 50*ms, 0)
				}
				w.rttBy(state.RTTPassive, "c", "8.8.8.0", 90*ms, 0)
				w.at("a").RTTBlind = true
			},
			query: ecs("8.8.8.0/24"),
			kept:  "a=50.0 ms b=50.0 ms | c=90.0 ms", verdict: "narrowed", note: "ecs 8.8.8.0/24, by passive",
		},
		{
			name: "what users beside the resolver see says nothing of its clients", set: func(w *world) {
				for i, m := range []string{"a", "b", "c"} {
					w.rttBy(state.RTTPassive, m, "8.8.8.0", time.Duration(90-i*40)*ms, 0)
				}
			},
			kept: "a(no data) b(no data) c(no data) | ", verdict: "abstained", note: "ldns 8.8.8.8",
		},
		{
			name: "nor does it stand in for a site that does not reach it", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 30*ms, 0)
				w.rtt("b", "8.8.8.8", 60*ms, 0)
				for _, m := range []string{"a", "b", "c"} {
					w.rttBy(state.RTTPassive, m, "8.8.8.0", 10*ms, 0)
				}
			},
			kept: "a=30.0 ms c(no data) | b=60.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8, by icmp",
		},
		{
			name: "a stale and a dead site", set: func(w *world) {
				for _, n := range []string{"a", "b", "c"} {
					w.rtt(n, "8.8.8.8", 30*ms, 0)
				}
				w.at("a").Freshness, w.at("b").Freshness = state.Stale, state.Dead
			},
			kept: "a(no data) b(no data) c=30.0 ms | ", verdict: "abstained", note: "ldns 8.8.8.8",
		},
		{
			name: "kept over a restart", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
				w.at("b").Freshness = state.NeverReported
			},
			kept: "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "with ECS never the LDNS", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
			},
			query: ecs("20.1.2.0/24"),
			kept:  "a(no data) b(no data) c(no data) | ", verdict: "abstained", note: "ecs 20.1.2.0/24",
		},
		{
			name: "ECS is cut to the table's networks", set: func(w *world) {
				w.rtt("a", "20.1.2.9", 200*ms, 0)
				w.rtt("b", "20.1.2.9", 30*ms, 0)
			},
			query: ecs("20.1.2.128/28"),
			kept:  "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ecs 20.1.2.128/28",
		},
		{
			name: "a shorter ECS abstains", set: func(w *world) {
				w.rtt("a", "20.1.0.9", 200*ms, 0)
				w.rtt("b", "20.1.0.9", 30*ms, 0)
			},
			query: ecs("20.1.0.0/23"),
			kept:  "a b c | ", verdict: "abstained", note: "ecs 20.1.0.0/23 is shorter than /24",
		},
		{
			name: "a private ECS falls back to the LDNS", set: func(w *world) {
				w.rtt("a", "8.8.8.8", 200*ms, 0)
				w.rtt("b", "8.8.8.8", 30*ms, 0)
			},
			query: ecs("10.1.2.0/24"),
			kept:  "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ldns 8.8.8.8",
		},
		{
			name: "IPv6", set: func(w *world) {
				w.rtt("a", "2400:1:2:3400::1", 200*ms, 0)
				w.rtt("b", "2400:1:2:34ff::1", 30*ms, 0)
			},
			query: ecs("2400:1:2:3400::/56"),
			kept:  "b=30.0 ms c(no data) | a=200.0 ms", verdict: "narrowed", note: "ecs 2400:1:2:3400::/56",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			o := defaults("rtt")
			if tt.options != nil {
				tt.options(&o)
			}
			query := tt.query
			if query == nil {
				query = from("8.8.8.8")
			}
			_, _, trace := w.decide(buildOptions(t, o), query)
			s := trace.Steps[0]
			if got := kept(trace, "rtt"); got != tt.kept || s.Verdict != tt.verdict || s.Note != tt.note {
				t.Errorf("\n got %s: %s (%s)\nwant %s: %s (%s)", s.Verdict, got, s.Note, tt.verdict, tt.kept, tt.note)
			}
		})
	}
}

func TestRTTScope(t *testing.T) {
	c := build(t, "rtt")
	for prefix, want := range map[string]uint8{
		"20.1.2.0/24":        24,
		"20.1.2.128/28":      24,
		"20.1.0.0/20":        24, // tells the resolver to send more
		"10.1.2.0/24":        8,  // any client of 10.0.0.0/8 is decided by the LDNS
		"192.168.1.0/24":     16,
		"2400:1:2:3400::/56": 56,
		"2400:1:2:3400::/48": 56,
	} {
		w := newWorld("a", "b")
		if got := w.scope(c, prefix); got != want {
			t.Errorf("%s: scope %d, want %d", prefix, got, want)
		}
		w.down("b")
		if got := w.scope(build(t, "health", "rtt"), prefix); got != 0 {
			t.Errorf("%s: scope %d when rtt is not consulted, want 0", prefix, got)
		}
	}
}
