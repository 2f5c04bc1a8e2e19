package policy_test

import (
	"encoding/csv"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

// A probe is a line of a series of testdata/rtt.
type probe struct {
	at   time.Duration // since midnight
	path time.Duration // the round trip of an empty path
	rtt  time.Duration // the best of the packets; 0: all were lost
}

func series(t *testing.T, name string) []probe {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "testdata", "rtt", name+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(s string) float64 {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var all []probe
	for _, l := range lines[1:] {
		p := probe{at: time.Duration(number(l[0])) * time.Second, path: time.Duration(number(l[1]) * float64(ms))}
		for _, packet := range l[2:] {
			if packet == "" {
				continue
			}
			if rtt := time.Duration(number(packet) * float64(ms)); p.rtt == 0 || rtt < p.rtt {
				p.rtt = rtt
			}
		}
		all = append(all, p)
	}
	return all
}

// A day of probes of a site a on such a path, beside a site b whose path takes 40 ms all day long. What disturbs packets and
// single probes moves no decision, another path does with its fourth probe if it is longer and with its second if it is
// shorter, and what is told of the path is true.
func TestRTTSeries(t *testing.T) {
	tests := []struct {
		series  string
		changes []string // the decision, from when on
		jumps   int      // at least so often it would change if the last probe alone counted
		shifts  []string // what is told of the path, from when on
		lost    int      // of the last 15 probes at most
	}{
		{series: "calm", changes: []string{"00:00 a"}},
		// Of which 5 % last for a whole probe, and three follow each other once. The median of five moves.
		{series: "spikes", changes: []string{"00:00 a"}, jumps: 30},
		{series: "step", changes: []string{"00:00 a", "12:15 b"}, shifts: []string{"12:15 30 ms before"}},
		// The longer way for 40 minutes and 30, but also for a probe and for two.
		{
			series: "flap", changes: []string{"00:00 a", "06:15 b", "06:45 a", "14:15 b", "14:35 a"}, jumps: 9,
			shifts: []string{"06:15 30 ms before", "06:55 75 ms before", "14:15 30 ms before", "14:45 75 ms before"},
		},
		{series: "diurnal", changes: []string{"00:00 a", "18:45 a b", "22:35 a"}, jumps: 5},
		// Between two paths. The median of five moves here, too.
		{series: "balanced", changes: []string{"00:00 a"}, jumps: 70},
		// After two lost probes in a row nothing is fresh (max_age), and the metric abstains.
		{series: "bursts", changes: []string{"00:00 a", "03:05 a b", "03:10 a", "12:05 a b", "12:20 a", "16:05 a b", "16:10 a"}, jumps: 9, lost: 4},
	}
	chain := build(t, "rtt")
	for _, tt := range tests {
		t.Run(tt.series, func(t *testing.T) {
			w := newWorld("a", "b")
			decide := func(at time.Duration) string {
				var names []string
				_, _, trace := w.decide(chain, from("8.8.8.8"), func(q *policy.Query) { q.Now = now.Add(at) })
				for _, m := range trace.Steps[0].Kept {
					names = append(names, m.Member)
				}
				slices.Sort(names)
				return strings.Join(names, " ")
			}
			add := func(site string, rtt, at time.Duration) {
				s := state.RTTSample{Resolver: netip.MustParseAddr("8.8.8.8"), RTT: rtt, Lost: rtt == 0}
				w.snapshot.RTT.Add(w.at(site).ID, []state.RTTSample{s}, now.Add(at))
			}
			note := func(list []string, at time.Duration, what string) []string {
				if len(list) > 0 && list[len(list)-1][6:] == what {
					return list
				}
				return append(list, fmt.Sprintf("%02d:%02d %s", at/time.Hour, at%time.Hour/time.Minute, what))
			}
			table := w.snapshot.RTT
			var changes, jumps, shifts []string
			lost := 0
			for _, p := range series(t, tt.series) {
				w.snapshot.RTT = state.NewRTTTable(state.RTTConfig{})
				add("a", p.rtt, p.at)
				add("b", 40*ms, p.at)
				jumps = note(jumps, p.at, decide(p.at))
				w.snapshot.RTT = table
				add("a", p.rtt, p.at)
				add("b", 40*ms, p.at)
				changes = note(changes, p.at, decide(p.at))
				for _, v := range table.Row(netip.MustParseAddr("8.8.8.8")).All() {
					if v.SiteID != w.at("a").ID {
						continue
					}
					lost = max(lost, v.Lost)
					if v.Before > 0 {
						shifts = note(shifts, v.Shifted.Sub(now), fmt.Sprintf("%.0f ms before", float64(v.Before)/float64(ms)))
					}
				}
			}
			if !slices.Equal(changes, tt.changes) {
				t.Errorf("decisions: %q, want %q", changes, tt.changes)
			}
			if len(jumps) < tt.jumps {
				t.Errorf("%d decisions by the last probe alone: the series proves nothing", len(jumps))
			}
			if !slices.Equal(shifts, tt.shifts) {
				t.Errorf("paths: %q, want %q", shifts, tt.shifts)
			}
			if lost != tt.lost {
				t.Errorf("%d lost of 15, want %d", lost, tt.lost)
			}
		})
	}
}
