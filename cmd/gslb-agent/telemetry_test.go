package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// eventually waits for done.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for limit := time.After(20 * time.Second); !done(); {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatal("never: ", what)
		}
	}
}

// An agent whose telemetry has no port reports all the same and gets the port when it is free, keeps it over a reload, and gives
// it up with a reload; docs/agent.md lists the very series that it serves.
func TestTelemetry(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.2:0") // where no client of another test gets the port
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	reports := make(chan struct{}, 1000)
	gslbd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"accepted": true, "interval_ms": 1000}`)
		reports <- struct{}{}
	}))
	defer gslbd.Close()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	write := func(listen string) {
		t.Helper()
		text := fmt.Sprintf(`
site: seoul
agent: lb1
servers: [%q]
interval: 1s
telemetry: {listen: %q}
virtual_servers:
  - name: www
    address: 127.0.0.1
    port: 80
    servers: [{name: server1, address: %q}]
    check: {type: tcp, interval: 200ms, timeout: 100ms, rise: 1, fall: 1}
log: {level: error}
`, gslbd.URL, listen, taken.Addr())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listen := taken.Addr().String()
	write(listen)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hup, done := make(chan os.Signal), make(chan error, 1)
	go func() { done <- serve(ctx, file, hup) }()
	report := func() {
		t.Helper()
		select {
		case <-reports:
		case err := <-done:
			t.Fatal("serve ended: ", err)
		case <-time.After(20 * time.Second):
			t.Fatal("no report comes")
		}
	}
	report()
	taken.Close()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (string, bool) {
		resp, err := client.Get("http://" + listen + path)
		if err != nil {
			return "", false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err == nil && resp.StatusCode == http.StatusOK
	}
	served := func() bool {
		text, ok := get("/metrics")
		return ok && strings.Contains(text, `gslb_agent_reports_total{result="accepted",server="`+gslbd.URL+`"} `) && strings.Contains(text, `gslb_agent_reader_up{reader="own checks"} 1`)
	}
	eventually(t, "telemetry is served where the address has become free", served)
	if text, ok := get("/healthz"); !ok || text != "ok\n" {
		t.Errorf("/healthz: %q", text)
	}

	page, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(text, pattern string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	text, _ := get("/metrics")
	told, series := names(string(page), "(?m)^\\| `(gslb_agent_[a-z_]+)"), names(text, `(?m)^# TYPE (gslb_agent_[a-z_]+) `)
	if !slices.Equal(told, series) {
		t.Errorf("docs/agent.md tells of %v, and served are %v", told, series)
	}

	hup <- syscall.SIGHUP
	eventually(t, "telemetry is served after a reload", served)
	write("")
	hup <- syscall.SIGHUP
	eventually(t, "nothing is served any more", func() bool {
		conn, err := net.Dial("tcp", listen)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	for len(reports) > 0 {
		<-reports
	}
	report()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// /healthz fails while the agent puts no report together.
func TestHealthz(t *testing.T) {
	p, err := load("../../agent.example.yaml", false)
	if err != nil {
		t.Fatal(err)
	}
	status := func() int {
		w := httptest.NewRecorder()
		p.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code
	}
	if got := status(); got != http.StatusOK {
		t.Errorf("at the start: %d", got)
	}
	long := time.Now().Add(-time.Minute)
	p.rounds.last.Store(&long)
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("after a minute without a report: %d", got)
	}
}
