//go:build linux

package lab

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Repeats is how often a test tries each of its faults: once, or as often as LAB_REPEAT says.
func Repeats(t testing.TB) int {
	t.Helper()
	text := os.Getenv("LAB_REPEAT")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("LAB_REPEAT=%s is no number above 0", text)
	}
	return n
}

// Measured are the times of a test's faults, which it prints at the end as rows of docs/failover-times.md: least, median and
// longest over the repetitions.
type Measured struct {
	t testing.TB

	mu     sync.Mutex
	faults []string                       // guarded by mu
	times  map[string]*[3][]time.Duration // guarded by mu: by fault
}

// Measure returns an empty Measured.
func Measure(t testing.TB) *Measured {
	m := &Measured{t: t, times: map[string]*[3][]time.Duration{}}
	t.Cleanup(m.print)
	return m
}

// Fault causes a fault and waits until it is detected, until the answer of gslbd is the new one, and until a client has
// recovered. Each may be nil, where there is no such moment.
func (m *Measured) Fault(name string, cause func(), detected, answered, recovered func() bool) {
	m.t.Helper()
	begin := time.Now()
	cause()
	var waiting sync.WaitGroup
	for i, happened := range [...]func() bool{detected, answered, recovered} {
		if happened == nil {
			continue
		}
		waiting.Go(func() {
			for tick := time.Tick(20 * time.Millisecond); !happened(); <-tick {
				if time.Since(begin) > time.Minute {
					m.t.Errorf("%s: not within a minute: %s", name, [...]string{"detection", "new answer", "client recovered"}[i])
					return
				}
			}
			m.add(name, i, time.Since(begin))
		})
	}
	waiting.Wait()
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// Gap takes the longest time without an answer as the time after which a client had recovered.
func (m *Measured) Gap(name string, d time.Duration) { m.add(name, 2, d) }

func (m *Measured) add(name string, i int, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	times := m.times[name]
	if times == nil {
		times = new([3][]time.Duration)
		m.times[name] = times
		m.faults = append(m.faults, name)
	}
	times[i] = append(times[i], d)
}

// print logs a row a fault.
func (m *Measured) print() {
	for _, name := range m.faults {
		row := "| " + name
		n := 0
		for _, times := range m.times[name] {
			n = max(n, len(times))
			row += " | " + spread(times)
		}
		m.t.Logf("measured: %s | %d |", row, n)
	}
}

// spread writes the least, the median and the longest time, in seconds.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "-"
	}
	times = slices.Sorted(slices.Values(times))
	text := fmt.Sprintf("%.1f", times[len(times)/2].Seconds())
	if len(times) > 1 {
		text = fmt.Sprintf("%.1f / %s / %.1f", times[0].Seconds(), text, times[len(times)-1].Seconds())
	}
	return text
}

// Forget restarts the server without what it has kept. Members that change often are damped, which no test of a fault wants to
// measure.
func (g *GSLBD) Forget() {
	g.t.Helper()
	g.Process.Kill()
	if err := os.RemoveAll(g.Dir() + "/state"); err != nil {
		g.t.Fatal(err)
	}
	g.Run()
}

// Logs returns a function that reports whether each of the servers has logged the text since.
func Logs(text string, servers ...*GSLBD) func() bool {
	before := map[*GSLBD]int{}
	for _, g := range servers {
		before[g] = strings.Count(g.Process.Log(), text)
	}
	return func() bool {
		for _, g := range servers {
			if strings.Count(g.Process.Log(), text) <= before[g] {
				return false
			}
		}
		return true
	}
}

// Answers returns a function that reports whether each of the servers answers a client of the region with the address.
func (w *World) Answers(region, address string, servers ...*GSLBD) func() bool {
	return func() bool {
		for _, g := range servers {
			out, err := w.Resolvers[region].Run("dig", "+short", "+time=1", "+tries=1", "@"+g.Addr, "www.gslb.example.com", "A")
			if err != nil || out != address {
				return false
			}
		}
		return true
	}
}

// Served returns a function that reports whether a client of the region is served by the site, which it finds by name.
func (w *World) Served(region string, by *Site) func() bool {
	return func() bool { return strings.HasSuffix(w.Fetch(region), " "+by.Name) }
}
