package patterns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

var bin string // where TestMain puts the programs

func TestMain(m *testing.M) {
	os.Exit(lab.Main(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// example returns a file of a pattern.
func example(t *testing.T, pattern, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pattern, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// reporting waits until both sites report to both gslbd.
func reporting(t *testing.T, w *lab.World) {
	t.Helper()
	for _, s := range []*lab.Site{w.Korea, w.US} {
		lab.Eventually(t, 20*time.Second, s.Name+" reports to both", func() bool {
			return strings.Count(s.Agent.Log(), "reports accepted") >= 2
		})
	}
}

// forget starts both gslbd anew, without what they have kept, and waits until they hear of both sites.
func forget(t *testing.T, w *lab.World) {
	t.Helper()
	for _, g := range w.GSLBD {
		g.Forget()
		lab.Eventually(t, 20*time.Second, g.Name+" hears of both sites", func() bool { return strings.Count(g.Process.Log(), `"site fresh"`) == 2 })
	}
}

func TestActiveActive(t *testing.T) {
	t.Parallel()
	w := lab.NewWorld(t, bin, example(t, "active-active", "services.yaml"))
	reporting(t, w)
	tick := time.NewTicker(300 * time.Millisecond) // three fetches to a TTL of the resolver
	defer tick.Stop()
	count := func(n int) map[string]int {
		of := map[string]int{}
		for range n {
			<-tick.C
			page := w.Fetch(lab.HongKong)
			_, site, _ := strings.Cut(page, " ")
			of[site]++
		}
		return of
	}
	lab.Eventually(t, 20*time.Second, "a client is served", func() bool { return w.Fetch(lab.HongKong) != "" })
	of := count(50)
	t.Logf("served by %v", of)
	if of["seoul"] < 10 || of["virginia"] < 10 || of[""] > 0 {
		t.Errorf("clients are not spread over both sites: %v", of)
	}
	// every reports whether several answers or pages in a row are as they should be: one alone may be chance.
	every := func(n int, ok func() bool) func() bool {
		return func() bool {
			for range n {
				if !ok() {
					return false
				}
			}
			return true
		}
	}
	both := w.GSLBD[:]
	measured := lab.Measure(t)
	for range lab.Repeats(t) {
		forget(t, w)
		measured.Fault("active-active: a site fails", func() { w.US.SetHealthy(false) }, lab.Logs("member down", both...),
			every(4, w.Answers(lab.HongKong, w.Korea.VIP, both...)), every(4, w.Served(lab.HongKong, w.Korea)))
		lab.Eventually(t, 30*time.Second, "nobody is sent to the site that fails", func() bool {
			of := count(12)
			return of["virginia"] == 0 && of[""] == 0
		})
		measured.Fault("active-active: it is back", func() { w.US.SetHealthy(true) }, lab.Logs("member up", both...), nil, w.Served(lab.HongKong, w.US))
	}
}

func TestActivePassive(t *testing.T) {
	t.Parallel()
	w := lab.NewWorld(t, bin, example(t, "active-passive", "services.yaml"))
	reporting(t, w)
	w.Reaches(lab.US, w.Korea, 20*time.Second) // the primary, however far
	both := w.GSLBD[:]
	measured := lab.Measure(t)
	for range lab.Repeats(t) {
		forget(t, w)
		held, err := w.Clients[lab.US].Dial("tcp", "1.1.1.1:80", 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		measured.Fault("active-passive: the primary fails", func() { w.Korea.SetHealthy(false) }, lab.Logs("pool changed", both...),
			w.Answers(lab.US, w.US.VIP, both...), w.Served(lab.US, w.US))
		for _, g := range w.GSLBD {
			if out, _ := g.Ctl("status"); !strings.Contains(out, "pool backup") {
				t.Errorf("%s does not say that its backups answer:\n%s", g.Name, out)
			}
		}
		measured.Fault("active-passive: it is back (`failback: auto`)", func() { w.Korea.SetHealthy(true) }, lab.Logs("pool changed", both...),
			w.Answers(lab.US, w.Korea.VIP, both...), w.Served(lab.US, w.Korea))
		_ = held.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := held.Read(make([]byte, 1)); !os.IsTimeout(err) {
			t.Errorf("the connection that was open all the time: %v", err)
		}
		held.Close()
	}
}
