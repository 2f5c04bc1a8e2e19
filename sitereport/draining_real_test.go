package sitereport_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gslbd/sitereport"
)

// A realGSLBD takes reports over HTTP and answers what its test says.
type realGSLBD struct {
	url string

	mu       sync.Mutex
	answer   string
	deadline time.Time // when set, www leaves web until then, whatever answer is
	last     *sitereport.Report
}

func newRealGSLBD(t *testing.T) *realGSLBD {
	g := &realGSLBD{answer: active}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rep, err := sitereport.Decode(r.Body, sitereport.MaxReport)
		if err != nil {
			t.Error(err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.last = rep
		answer := g.answer
		if !g.deadline.IsZero() {
			answer = fmt.Sprintf(`"services": [{"name": "www", "state": "draining", "deadline_ms": %d, "virtual_servers": ["web"]}, {"name": "api", "state": "active", "virtual_servers": ["api"]}]`,
				max(time.Until(g.deadline).Milliseconds(), 0))
		}
		io.WriteString(w, `{"accepted": true, `+answer+`}`)
	}))
	t.Cleanup(s.Close)
	g.url = s.URL
	return g
}

func (g *realGSLBD) say(answer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer, g.deadline, g.last = answer, time.Time{}, nil
}

func (g *realGSLBD) leave(deadline time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadline, g.last = deadline, nil
}

// echo serves a listener until it is closed: it sends back what it gets.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// A client is an open session through HAProxy.
type client struct{ net.Conn }

func dial(t *testing.T, at netip.AddrPort) client {
	t.Helper()
	c, err := net.Dial("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{c}
}

// lives says whether the session still carries data.
func (c client) lives() bool {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	var b [1]byte
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	_, err := io.ReadFull(c, b[:])
	return err == nil
}

// TestRealHAProxyDraining is a failover and an evacuation at the system's HAProxy, with open connections.
func TestRealHAProxyDraining(t *testing.T) {
	program(t, "haproxy")
	dir := t.TempDir()
	backend := func() net.Listener {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go echo(l)
		return l
	}
	one, two, api := backend(), backend(), backend()
	web, other, nobody := closed(t), closed(t), closed(t)
	admin, operator := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "operator.sock")
	const check = "check inter 100ms fastinter 100ms downinter 100ms fall 2 rise 1"
	startHAProxy(t, fmt.Sprintf(`
global
  stats socket %s level admin
  stats socket %s level operator
defaults
  mode tcp
  timeout connect 1s
  timeout client 60s
  timeout server 60s
frontend fe-web
  bind %s
  default_backend be-web
frontend fe-api
  bind %s
  default_backend be-api
backend be-web
  server s1 %s %s
  server s2 %s
  server s3 %s check disabled
  server s4 %s %s
backend be-api
  server s1 %s
`, admin, operator, web, other, one.Addr(), check, two.Addr(), two.Addr(), nobody, check, api.Addr()))

	reader := func(socket string) *sitereport.HAProxy {
		h, err := sitereport.NewHAProxy(sitereport.HAProxyOptions{
			Socket: socket, Timeout: time.Second,
			VirtualServers: []sitereport.HAProxyVirtualServer{
				{Name: "web", Frontend: "fe-web", Backend: "be-web"},
				{Name: "api", Frontend: "fe-api", Backend: "be-api"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a, b := newRealGSLBD(t), newRealGSLBD(t)
	say := func(answer string) { a.say(answer); b.say(answer) }
	start := func(socket string, draining bool) (stop func()) {
		agent, err := sitereport.NewAgent(sitereport.AgentOptions{
			Site: "seoul", Servers: []string{a.url, b.url}, Interval: 200 * time.Millisecond, Draining: draining,
			Readers: []sitereport.Reader{reader(socket)},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- agent.Run(ctx) }()
		return sync.OnceFunc(func() { cancel(); <-done })
	}
	stop := start(admin, true)
	defer func() { stop() }()
	// until waits for a report that comes after what gslbd were last made to say.
	until := func(what string, ok func(r *sitereport.Report) bool) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(20 * time.Second)
		var last *sitereport.Report
		for {
			a.mu.Lock()
			if a.last != nil {
				last = a.last
			}
			fits := a.last != nil && ok(a.last)
			a.mu.Unlock()
			if fits {
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("never %s: %+v", what, last)
			}
		}
	}
	states := func(r *sitereport.Report) (s string) {
		for _, server := range r.VirtualServers[0].Servers {
			s += server.Name + " " + server.State + " "
		}
		return strings.TrimSpace(s)
	}
	was := func(want string) func(r *sitereport.Report) bool {
		return func(r *sitereport.Report) bool { return states(r) == want }
	}
	leave := func(d time.Duration) { a.leave(time.Now().Add(d)); b.leave(time.Now().Add(d)) }

	const normal = "s1 up s2 up s3 maint s4 down"
	until("as it begins", was(normal))
	var sessions []client
	for range 6 {
		sessions = append(sessions, dial(t, web))
	}
	apiSession := dial(t, other)
	live := func(when string) {
		t.Helper()
		for i, c := range append(sessions, apiSession) {
			if !c.lives() {
				t.Fatalf("%s: session %d has ended", when, i)
			}
		}
	}
	live("at first")

	// Two gslbd disagree: nothing ends.
	a.leave(time.Now().Add(300 * time.Millisecond))
	until("a warning", func(r *sitereport.Report) bool {
		return len(r.Warnings) > 0 && strings.Contains(r.Warnings[0], b.url+" has an active service")
	})
	live("after the disagreement")

	// A failback in the middle: nothing ends.
	say(active)
	until("no warning", func(r *sitereport.Report) bool { return len(r.Warnings) == 0 })
	leave(time.Minute)
	until("draining", was(normal))
	say(active)
	until("back", was(normal))

	// They agree: sessions live until the deadline, and end then; those of another virtual server stay.
	begin := time.Now()
	leave(3 * time.Second)
	until("draining", was(normal))
	live("before the deadline")
	for i, c := range sessions {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Fatalf("session %d did not end: %v", i, err)
		}
	}
	if passed := time.Since(begin); passed < 3*time.Second {
		t.Errorf("the sessions ended after %s", passed)
	}
	if !apiSession.lives() {
		t.Error("the session of another virtual server ended")
	}
	// The servers stay ready and take new sessions, which end with nothing.
	sessions = []client{dial(t, web), dial(t, web), dial(t, web)}
	for range 5 {
		say(inactive)
		until("still ready", was(normal))
	}
	live("after the end")

	// An evacuation drains what is up.
	say(`"drain": ["web"]`)
	until("drained", func(r *sitereport.Report) bool {
		return states(r) == "s1 drain s2 drain s3 maint s4 down" && len(r.Drained) == 1 && fmt.Sprint(r.Drained[0]) == "{web [s1 s2]}"
	})
	live("in drain")
	// The operator puts one into maintenance meanwhile, and another one fails: it still is in drain.
	conn, err := net.Dial("unix", admin)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "set server be-web/s2 state maint\n")
	io.Copy(io.Discard, conn)
	conn.Close()
	address := one.Addr().String()
	one.Close()
	say(`"drain": ["web"]`)
	until("in drain and down", func(r *sitereport.Report) bool {
		s := r.VirtualServers[0].Servers[0]
		return states(r) == "s1 drain s2 maint s3 maint s4 down" && strings.HasPrefix(s.Reason, "in drain, and down: ") && fmt.Sprint(r.Drained[0]) == "{web [s1]}"
	})
	// Draining is switched off in the agent's file meanwhile: the server still is reported in drain, so that nobody takes it for
	// restored, until it is switched on again.
	stop()
	stop = start(admin, false)
	say(`"restore": [{"virtual_server": "web", "servers": ["s1"]}]`)
	until("held back", func(r *sitereport.Report) bool {
		return states(r) == "s1 drain s2 maint s3 maint s4 down" && len(r.Warnings) == 1 && strings.Contains(r.Warnings[0], "draining is off")
	})
	stop()
	stop = start(admin, true)
	say(`"restore": [{"virtual_server": "web", "servers": ["s1", "s2", "s4", "no;such server"]}]`)
	until("restored", func(r *sitereport.Report) bool {
		return states(r) == "s1 down s2 maint s3 maint s4 down" && len(r.Drained) == 0 && len(r.Warnings) == 0
	})
	again, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	go echo(again)
	until("up again", was("s1 up s2 maint s3 maint s4 down"))

	// A socket without level admin.
	stop()
	stop = start(operator, true)
	say(`"drain": ["web"]`)
	until("a warning", func(r *sitereport.Report) bool {
		return len(r.Warnings) == 1 && strings.Contains(r.Warnings[0], "it has level operator: write \"level admin\"") && len(r.Drained) == 0
	})
	if err := reader(operator).EndSessions(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("%v", err)
	}
	if got, err := reader(operator).Drain(t.Context(), "web", []string{"s1"}); err == nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := reader(admin).Ready(t.Context(), "elsewhere", []string{"s1"}); err == nil {
		t.Error("a virtual server that does not exist is no error")
	}
}

// TestRealHAProxyInDrain has servers that are in drain and out of service for another reason too, by a runtime socket on
// IPv6: they still are in drain, and can be set back. A frontend has the name of their backend.
func TestRealHAProxyInDrain(t *testing.T) {
	program(t, "haproxy")
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("SKIP: no IPv6 on the loopback interface: ", err)
	}
	socket := l.Addr().String()
	l.Close()
	at := web.Listener.Addr()
	startHAProxy(t, fmt.Sprintf(`
global
  stats socket ipv6@%s level admin
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
frontend be
  bind %s
  default_backend be
backend be
  server s:1 %s track other/t
  server s2 [2001:db8::1]:80
backend other
  server t %s check inter 100ms
backend leaving
  option httpchk
  http-check disable-on-404
  server s1 %s check inter 100ms
`, socket, closed(t), at, at, at))
	h, err := sitereport.NewHAProxy(sitereport.HAProxyOptions{
		Socket: socket, Timeout: time.Second,
		VirtualServers: []sitereport.HAProxyVirtualServer{
			{Name: "web", Frontend: "be", Backend: "be"}, {Name: "left", Frontend: "be", Backend: "leaving"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string) {
		t.Helper()
		var got string
		for begin := time.Now(); time.Since(begin) < 20*time.Second; {
			r, err := h.Read(t.Context())
			if err != nil {
				got = err.Error()
				continue
			}
			got = ""
			for _, v := range r.VirtualServers {
				for _, s := range v.Servers {
					got += fmt.Sprintf("%s %s (%s), ", s.Name, s.State, s.Reason)
				}
			}
			if got == what {
				return
			}
		}
		t.Fatalf("%q, want %q", got, what)
	}
	command := func(text string) {
		t.Helper()
		conn, err := net.Dial("tcp6", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, text+"\n")
		io.Copy(io.Discard, conn)
	}
	want("s:1 up (), s2 up (no check), s1 drain (NOLB), ")
	if got, err := h.Drain(t.Context(), "web", []string{"s:1", "s2", "s1", "s2 state maint;set server be/s2"}); err != nil || fmt.Sprint(got) != "[s:1 s2]" {
		t.Fatalf("%q, %v", got, err)
	}
	command("set server other/t state maint")
	want("s:1 drain (in drain, and MAINT (via other/t)), s2 drain (), s1 drain (NOLB), ")
	command("set server other/t state ready")
	want("s:1 drain (), s2 drain (), s1 drain (NOLB), ")
	command("set server other/t state maint")
	want("s:1 drain (in drain, and MAINT (via other/t)), s2 drain (), s1 drain (NOLB), ")
	if got, err := h.Ready(t.Context(), "web", []string{"s:1", "s2"}); err != nil || fmt.Sprint(got) != "[s:1 s2]" {
		t.Fatalf("%q, %v", got, err)
	}
	want("s:1 maint (MAINT (via other/t)), s2 up (no check), s1 drain (NOLB), ")
	command("set server other/t state ready")
	want("s:1 up (), s2 up (no check), s1 drain (NOLB), ")
	// One that stands aside by its own word is not set back again and again.
	if got, err := h.Ready(t.Context(), "left", []string{"s1"}); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}
