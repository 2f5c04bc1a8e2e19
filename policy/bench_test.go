package policy_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"gslbd/geo"
	"gslbd/policy"
)

// cpuTime has a benchmark report the CPU time of the process too: on a machine that has other work it tells more than
// the time that passed. It is for benchmarks on one core.
func cpuTime(b *testing.B) {
	now := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := now()
	b.Cleanup(func() { b.ReportMetric(float64(now()-before)/float64(b.N), "cpu-ns/op") })
}

// level returns n members that no metric tells apart, each of which has data for it: every metric compares all of them.
// With near above 0, rtt keeps so many of them.
func level(t testing.TB, n, near int) *world {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("m%d", i))
	}
	w := newWorld(names...)
	for i, m := range w.Members {
		s := w.snapshot.SiteOf(m)
		s.HasLoad, s.HasUtilisation, s.Utilisation = true, true, 0.5
		s.HasSessions, s.SessionsLimit, s.Sessions = true, 900_000, 400_000
		s.HasNewSessions, s.NewSessions = true, 100
		m.HasServers, m.ServersUp = true, 4
		m.HasLatency, m.Latency = [2]bool{true, true}, [2]time.Duration{ms, ms}
		w.place(m.Name, "AS", "KR", 37, 127)
		roundTrip := 30 * ms
		if near > 0 && i >= near {
			roundTrip = 90 * ms
		}
		w.rtt(m.Name, "20.1.2.3", roundTrip, 0)
	}
	w.overrides(t, geo.Override{Prefix: prefixOf("20.0.0.0/8"), Location: geo.Location{
		Continent: "AS", Country: "KR", Latitude: 37, Longitude: 127, HasCoordinates: true,
	}})
	return w
}

// benchmarkDecide measures whole decisions for a client with ECS.
func benchmarkDecide(b *testing.B, w *world, c *policy.Chain) {
	q := w.query()
	q.LDNS, q.ECS = netip.MustParseAddr("20.1.2.3"), prefixOf("20.1.2.0/24")
	var d policy.Decision
	b.ReportAllocs()
	cpuTime(b)
	for b.Loop() {
		q.Turn++
		c.Decide(q, &d)
	}
}

// counts are of candidates.
var counts = []int{2, 16, 64}

// BenchmarkMetric measures each metric as a chain of its own; "none" is what a chain costs without any.
func BenchmarkMetric(b *testing.B) {
	for _, n := range counts {
		w := level(b, n, 0)
		b.Run(fmt.Sprintf("none/%d", n), func(b *testing.B) { benchmarkDecide(b, w, build(b, "!health")) })
		for _, metric := range policy.Reasons()[3:] {
			b.Run(fmt.Sprintf("%s/%d", metric, n), func(b *testing.B) { benchmarkDecide(b, w, build(b, metric)) })
		}
		for _, method := range []string{"weighted", "hash", "ordered"} {
			b.Run(fmt.Sprintf("static-%s/%d", method, n), func(b *testing.B) { benchmarkDecide(b, w, build(b, "static="+method)) })
		}
	}
}

// BenchmarkChain measures whole chains: the default one where no metric tells the candidates apart, where slow start and
// shedding have the client hashed for each, and where its third metric leaves one; and the shorter shipped ones.
func BenchmarkChain(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprintf("default/%d", n), func(b *testing.B) { benchmarkDecide(b, level(b, n, 0), build(b, defaultChain...)) })
		b.Run(fmt.Sprintf("default-hashed/%d", n), func(b *testing.B) { benchmarkDecide(b, busy(b, n), build(b, defaultChain...)) })
		b.Run(fmt.Sprintf("default-decided/%d", n), func(b *testing.B) { benchmarkDecide(b, level(b, n, 1), build(b, defaultChain...)) })
		for name, chain := range map[string][]string{
			"active-standby": {"health", "capacity", "preference", "static"},
			"nearest":        {"health", "capacity", "geo", "least-selected", "static"},
			"spread":         {"health", "capacity", "static=weighted"},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) { benchmarkDecide(b, level(b, n, 0), build(b, chain...)) })
		}
	}
}
