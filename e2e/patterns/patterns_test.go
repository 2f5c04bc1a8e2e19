package patterns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

var bin string // where TestMain puts the programs

func TestMain(m *testing.M) {
	dir, remove, err := lab.Programs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = dir
	code := m.Run()
	remove()
	os.Exit(code)
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
	w.US.SetHealthy(false)
	begin := time.Now()
	took := w.Reaches(lab.HongKong, w.Korea, 10*time.Second)
	lab.Eventually(t, 15*time.Second, "nobody is sent to the site that fails", func() bool {
		of = count(12)
		return of["virginia"] == 0 && of[""] == 0
	})
	t.Logf("fault: client served by the other site after %v; nobody sent to the failed one after at most %v", round(took), round(time.Since(begin)))
	w.US.SetHealthy(true)
	t.Logf("back: served by it again after %v", round(w.Reaches(lab.HongKong, w.US, 20*time.Second)))
}

func TestActivePassive(t *testing.T) {
	t.Parallel()
	w := lab.NewWorld(t, bin, example(t, "active-passive", "services.yaml"))
	reporting(t, w)
	w.Reaches(lab.US, w.Korea, 20*time.Second) // the primary, however far
	held, err := w.Clients[lab.US].Dial("tcp", "1.1.1.1:80", 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	w.Korea.SetHealthy(false)
	t.Logf("failover: client served by the backup after %v", round(w.Reaches(lab.US, w.US, 20*time.Second)))
	for _, g := range w.GSLBD {
		if out, _ := g.Ctl("status"); !strings.Contains(out, "pool backup") {
			t.Errorf("%s does not say that its backups answer:\n%s", g.Name, out)
		}
	}
	w.Korea.SetHealthy(true)
	t.Logf("failback: client served by the primary after %v", round(w.Reaches(lab.US, w.Korea, 20*time.Second)))
	_ = held.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := held.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the connection that was open all the time: %v", err)
	}
}
