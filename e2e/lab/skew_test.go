//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// previousRelease is the commit of the release before this one.
const previousRelease = "c536269055d56019833455b1f0cc59550186a096"

// previous builds the programs of the previous release, where the sources are a clone that has them.
func previous(t *testing.T) (dir string) {
	t.Helper()
	git := exec.Command("git", "cat-file", "-e", previousRelease+"^{commit}")
	git.Dir = project(t)
	if git.Run() != nil {
		os.Stderr.WriteString("SKIPPED " + t.Name() + ": needs a clone with the commit of the previous release\n")
		t.Skip("no clone with the previous release")
	}
	dir = t.TempDir()
	out, err := exec.Command("sh", "-ec", `cd "$1" && mkdir "$2/source" && git archive "$3" | tar -x -C "$2/source" && cd "$2/source" && go build -trimpath -o "$2/" ./cmd/gslbd ./cmd/gslb-agent`,
		"sh", project(t), dir, previousRelease).CombinedOutput()
	if err != nil {
		t.Fatalf("building the previous release: %v\n%s", err, out)
	}
	return dir
}

// measured returns the age of the sites' newest round trips to a network, in seconds. The previous release names no methods.
func (g *GSLBD) measured(address, method string) map[string]float64 {
	out, _ := g.Host.Run("curl", "-sS", "-m", "2", "http://127.0.0.1:8053/v1/rtt?resolver="+address)
	var v struct {
		Sites []struct {
			Site   string  `json:"site"`
			Method string  `json:"method"`
			Age    float64 `json:"age_seconds"`
		} `json:"sites"`
	}
	_ = json.Unmarshal([]byte(out), &v) // whoever waits looks again
	ages := map[string]float64{}
	for _, s := range v.Sites {
		if s.Method == method || s.Method == "" {
			ages[s.Site] = s.Age
		}
	}
	return ages
}

// serversUp returns how many servers of a site's member are up; -1: it is not known.
func (g *GSLBD) serversUp(site string) int {
	out, _ := g.Host.Run("curl", "-sS", "-m", "2", "http://127.0.0.1:8053/v1/services/www.gslb.example.com")
	var v struct {
		Members []struct {
			Site      string `json:"site"`
			ServersUp *int   `json:"servers_up"`
		} `json:"members"`
	}
	_ = json.Unmarshal([]byte(out), &v)
	for _, m := range v.Members {
		if m.Site == site && m.ServersUp != nil {
			return *m.ServersUp
		}
	}
	return -1
}

// Agents and gslbd of this release and the one before work together: one after the other is upgraded, and put back. After each
// step every gslbd takes every report, hears of servers that fail, and gets new round trips; what was known is kept.
func TestVersionSkew(t *testing.T) {
	t.Parallel()
	was := previous(t)
	w := NewWorld(t, bin, passiveServices)
	w.reporting()
	users, ctx := w.Host("users", HongKong, "12.1.1.10"), t.Context()
	var browsing sync.WaitGroup
	t.Cleanup(browsing.Wait)
	browsing.Go(func() { browse(ctx, users, w.Korea.VIP) })
	releases := map[string]string{"old": was, "new": bin}
	have := map[string]string{"gslbd1": "new", "gslbd2": "new", "seoul": "new", "virginia": "new"}
	plain, err := os.ReadFile(w.Korea.agentConf)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ what, release string }{
		{"seoul", "old"}, {"gslbd1", "old"}, {"virginia", "old"}, {"gslbd2", "old"}, // down: at the end all is of the previous release
		{"gslbd1", "new"}, {"seoul", "new"}, {"virginia", "new"}, {"gslbd2", "new"}, // up
		{"gslbd1", "old"}, {"gslbd1", "new"}, // one gslbd alone, back and forth, with all else ahead of it
	} {
		have[step.what] = step.release
		name := fmt.Sprintf("%s is %s: %v", step.what, step.release, have)
		began := time.Now()
		for _, g := range w.GSLBD {
			if g.Name == step.what {
				g.Process.stop()
				g.Launch(filepath.Join(releases[step.release], "gslbd"))
				g.await()
				if log := g.Process.Log(); strings.Contains(log, ".bad") {
					t.Errorf("%s: the kept state is not read:\n%s", name, log)
				}
			}
		}
		for _, s := range []*Site{w.Korea, w.US} {
			if s.Name == step.what {
				s.Agent.stop()
				if s == w.Korea { // the settings that came with this release have to go before it goes
					text := string(plain)
					if step.release == "new" {
						text += "passive_rtt: {enabled: true, interval: 5s, min_connections: 1}\ntelemetry: {listen: \"127.0.0.1:8055\"}\n"
					}
					s.SLB.File("agent.yaml", text)
				}
				s.Agent = s.SLB.Start(filepath.Join(releases[step.release], "gslb-agent"), "--config", s.agentConf)
			}
		}
		// Hong Kong is sent to the United States by round trips alone.
		Eventually(t, 30*time.Second, name+": the answers", func() bool {
			return w.Answers(Korea, w.Korea.VIP, w.GSLBD[:]...)() && w.Answers(HongKong, w.US.VIP, w.GSLBD[:]...)()
		})
		for _, up := range []int{1, 2} { // and the member stays up: one that goes down with every step is damped
			for _, site := range []*Site{w.Korea, w.US} {
				site.Servers[0].SetHealthy(up == 2)
				for _, g := range w.GSLBD {
					Eventually(t, 30*time.Second, fmt.Sprintf("%s: %s hears that %d servers of %s are up", name, g.Name, up, site.Name), func() bool {
						return g.serversUp(site.Name) == up
					})
				}
			}
		}
		for _, g := range w.GSLBD {
			Eventually(t, 60*time.Second, name+": new round trips at "+g.Name, func() bool {
				_ = w.Answers(HongKong, w.US.VIP, w.GSLBD[:]...)() // it is measured while it asks
				ages := g.measured("11.1.1.1", "icmp")
				for _, s := range []*Site{w.Korea, w.US} {
					if age, ok := ages[s.Name]; !ok || age > time.Since(began).Seconds() {
						return false
					}
				}
				if have["seoul"] == "new" { // a network of clients, and of how many connections: an old gslbd takes the one and ignores the other
					age, ok := g.measured("12.1.1.10", "passive")["seoul"]
					return ok && age < time.Since(began).Seconds()
				}
				return true
			})
			for _, site := range []string{"seoul", "virginia"} {
				for _, refused := range []string{"unreadable", "outdated", "too_soon", "unauthorized", "forbidden", "too_large", "unsupported", "failed"} {
					if n := g.Metric(fmt.Sprintf("gslbd_reports_total{result=%q,site=%q}", refused, site)); n != "0" {
						t.Errorf("%s: %s: %s reports of %s are %s", name, g.Name, n, site, refused)
					}
				}
			}
		}
		for _, s := range []*Site{w.Korea, w.US} {
			if log := s.Agent.Log(); strings.Contains(log, "report refused") || strings.Contains(log, "dropped") || strings.Contains(log, "boot_id") {
				t.Errorf("%s: the agent of %s says\n%s", name, s.Name, log)
			}
		}
	}
}
