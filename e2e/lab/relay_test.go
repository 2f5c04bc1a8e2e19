//go:build linux

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A relay stands between an agent and a gslbd. It does to reports what networks and proxies do to them: it passes them on
// late, or twice, or keeps one until newer ones are through.
type relay struct {
	to     string // URL
	client *http.Client

	mu      sync.Mutex // one report at a time
	passed  int
	keep    bool
	kept    *report
	results []string // what became of each report that was sent again or late
}

type report struct {
	header   http.Header
	path     string
	body     []byte
	sequence int
	up       int // servers that it calls up
}

// newRelay starts a relay on the host for the server.
func newRelay(h *Host, address string, g *GSLBD) *relay {
	r := &relay{to: "http://" + g.Addr + ":8054", client: &http.Client{
		Transport: &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return h.Dial(network, address, 3*time.Second)
		}},
		Timeout: 5 * time.Second,
	}}
	h.Serve(address, r)
	return r
}

// ServeHTTP passes reports on by turns: as they are, twice, and late.
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	rep := &report{header: req.Header.Clone(), path: req.URL.Path}
	rep.body, _ = io.ReadAll(req.Body)
	var of struct {
		Sequence       int `json:"sequence"`
		VirtualServers []struct {
			Servers []struct {
				State string `json:"state"`
			} `json:"servers"`
		} `json:"virtual_servers"`
	}
	_ = json.Unmarshal(rep.body, &of)
	rep.sequence = of.Sequence
	for _, vs := range of.VirtualServers {
		for _, s := range vs.Servers {
			if s.State == "up" {
				rep.up++
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keep && (r.kept == nil || r.kept.sequence == rep.sequence) { // also when the agent tries again
		r.kept = rep
		panic(http.ErrAbortHandler)
	}
	r.passed++
	if r.passed%3 == 2 {
		time.Sleep(500 * time.Millisecond)
	}
	status, answer := r.pass(rep)
	if r.passed%3 == 0 {
		time.Sleep(300 * time.Millisecond) // a fifth of the interval, below which reports are refused, and more
		again, _ := r.pass(rep)
		r.results = append(r.results, fmt.Sprintf("twice %d %d", status, again))
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

func (r *relay) pass(rep *report) (status int, answer []byte) {
	req, err := http.NewRequest(http.MethodPost, r.to+rep.path, bytes.NewReader(rep.body))
	if err != nil {
		return http.StatusBadGateway, nil
	}
	req.Header = rep.header
	resp, err := r.client.Do(req)
	if err != nil {
		return http.StatusBadGateway, nil
	}
	defer resp.Body.Close()
	answer, _ = io.ReadAll(resp.Body)
	return resp.StatusCode, answer
}

// keepOne keeps the next report and returns when it has it, and how many servers it calls up.
func (r *relay) keepOne(t *testing.T) (up int) {
	t.Helper()
	r.mu.Lock()
	r.keep, r.kept = true, nil
	r.mu.Unlock()
	Eventually(t, 10*time.Second, "the relay keeps a report", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kept != nil {
			up = r.kept.up
		}
		return r.kept != nil
	})
	return up
}

// release passes on what was kept.
func (r *relay) release() (status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	time.Sleep(300 * time.Millisecond)
	status, _ = r.pass(r.kept)
	time.Sleep(300 * time.Millisecond)
	r.keep = false
	return status
}

// What an agent really sends comes late, twice and out of order: each state of the site counts once, and an old report never
// changes an answer.
func TestReportsThroughRelay(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	g := w.GSLBD[0]
	w.Korea.Agent.Kill()
	r := newRelay(w.Host("relay", Korea, "10.1.0.99"), "10.1.0.99:8054", g)
	text, err := os.ReadFile(w.Korea.agentConf)
	if err != nil {
		t.Fatal(err)
	}
	w.Korea.SLB.File("agent.yaml", strings.ReplaceAll(string(text), g.Addr, "10.1.0.99"))
	w.Korea.StartAgent()
	Eventually(t, 20*time.Second, "the agent reports through the relay", func() bool { return strings.Count(w.Korea.Agent.Log(), "reports accepted") == 2 })
	w.Reaches(Korea, w.Korea, 20*time.Second)

	logged := func() [2]int {
		log := g.Process.Log()
		count := func(message string) int { return strings.Count(log, `"msg":"`+message+`"`) }
		return [2]int{count("member down"), count("member up")}
	}
	stays := func(address string, during func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { defer close(done); during() }()
		for begin := time.Now(); ; {
			reply, err := ask(w.Resolvers[Korea], g.Addr+":53", question("www.gslb.example.com"), 2*time.Second)
			if err != nil || addresses(reply) != address {
				t.Errorf("%v after an old report the answer is %v, want %s: %v", time.Since(begin), reply, address, err)
			}
			select {
			case <-done:
				if time.Since(begin) > 4*time.Second { // newer reports have come, each way
					return
				}
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	before := logged()
	for _, step := range []struct {
		healthy bool
		answer  string
		keptUp  int // servers, by the report that is kept
	}{{false, "2.2.2.2", 2}, {true, "1.1.1.1", 0}, {false, "2.2.2.2", 2}, {true, "1.1.1.1", 0}} {
		if up := r.keepOne(t); up != step.keptUp {
			t.Errorf("the report that is kept calls %d servers up, want %d", up, step.keptUp)
		}
		w.Korea.SetHealthy(step.healthy)
		Eventually(t, 20*time.Second, "the answer is "+step.answer, w.Answers(Korea, step.answer, g))
		stays(step.answer, func() {
			if status := r.release(); status != http.StatusConflict {
				t.Errorf("an old report: status %d, want 409", status)
			}
		})
	}
	after := logged()
	if down, up := after[0]-before[0], after[1]-before[1]; down != 2 || up != 2 {
		t.Errorf("logged: %d times down, %d times up; want 2 and 2", down, up)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.results) < 3 || slices.ContainsFunc(r.results, func(s string) bool { return s != "twice 200 200" }) {
		t.Errorf("reports that came twice: %v", r.results)
	}
}
