package sitereport_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

// startNginx runs the system's nginx until stop is called or the test ends.
func startNginx(t *testing.T, config string) (stop func()) {
	t.Helper()
	nginx, dir := program(t, "nginx"), t.TempDir()
	file := filepath.Join(dir, "nginx.conf")
	config = strings.ReplaceAll(config, "DIR", dir)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nginx, "-p", dir, "-c", file, "-e", "stderr")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running := true
	stop = func() {
		if running {
			running = false
			cmd.Process.Kill()
			cmd.Wait()
			log.Close()
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("nginx says: %s", b)
		}
	})
	return stop
}

// TestRealNginx reads the system's nginx: 40 held connections are 40 sessions, and a nginx that is gone has no load.
func TestRealNginx(t *testing.T) {
	program(t, "nginx")
	front := closed(t)
	stop := startNginx(t, fmt.Sprintf(`
daemon off;
master_process off;
pid DIR/pid;
events { worker_connections 200; }
http {
  access_log off;
  client_body_temp_path DIR/a; proxy_temp_path DIR/b; fastcgi_temp_path DIR/c; uwsgi_temp_path DIR/d; scgi_temp_path DIR/e;
  server {
    listen %s;
    location = /status { stub_status; }
    location / { return 200 "hello"; }
  }
}
`, front))
	n, err := sitereport.NewNginxStatus(sitereport.HTTPOptions{URL: "http://" + front.String() + "/status"})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, done func(r sitereport.Reading) bool) {
		t.Helper()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(10 * time.Second)
		for {
			r, err := n.Read(t.Context())
			if err == nil && done(r) {
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("never %s: %+v, %v", what, r, err)
			}
		}
	}
	until("idle", func(r sitereport.Reading) bool { return *r.Load.Sessions == 0 && r.Load.NewSessions == nil })
	until("without new sessions", func(r sitereport.Reading) bool { return r.Load.NewSessions != nil && *r.Load.NewSessions == 0 })
	for range 40 {
		c, err := net.Dial("tcp4", front.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if a, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || a.StatusCode != 200 {
			t.Fatal(a, err)
		}
	}
	until("at 40 sessions", func(r sitereport.Reading) bool {
		return *r.Load.Sessions == 40 && r.Load.NewSessions != nil && *r.Load.NewSessions > 0 && len(r.VirtualServers) == 0
	})
	stop()
	if r, err := n.Read(t.Context()); err == nil || r.Load != (sitereport.Load{}) || r.Supplies != sitereport.FigureSessions|sitereport.FigureNewSessions {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestNginxCounters has an nginx that is started again, and one of a fork.
func TestNginxCounters(t *testing.T) {
	page := func(accepts int) http.HandlerFunc {
		return body(fmt.Sprintf("Active connections: 4 \nserver accepts handled requests\n %d %d 9 \nReading: 0 Writing: 1 Waiting: 3 \n", accepts, accepts))
	}
	rec := newRecordings(t, "nginx_plus")
	n, err := sitereport.NewNginxStatus(sitereport.HTTPOptions{URL: rec.url + "/status"})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		answer http.HandlerFunc
		rate   string
	}{
		{page(1000), "none"},
		{page(1000), "zero"},
		{page(1500), "some"},
		{page(30), "none"}, // it was started again
		{page(60), "some"},
		{http.NotFound, "failed"},
		{page(90), "none"}, // what happened meanwhile is not known
		{body("Active connections: 4\nserver accepts handled requests request_time\n 95 95 9 1200\nReading: 0 Writing: 1 Waiting: 3\n"), "some"},
		{body("Active connections: 0 \nserver accepts handled requests\n 95 95 9 \nReading: 0 Writing: 0 Waiting: 0 \n"), "zero"},
		{body("Active connections: 99999999999999 \nserver accepts handled requests\n 95 95 9 \nReading: 0 Writing: 0 Waiting: 0 \n"), "zero"},
		{body("Active connections: -1 \nserver accepts handled requests\n 95 95 9 \nReading: 0 Writing: 0 Waiting: 0 \n"), "failed"},
	} {
		rec.answer("status.json", step.answer)
		r, err := n.Read(t.Context())
		got := "none"
		switch {
		case err != nil:
			got = "failed"
			if r.Load != (sitereport.Load{}) {
				t.Errorf("step %d: %+v", i, r.Load)
			}
		case r.Load.NewSessions == nil:
		case *r.Load.NewSessions > 0:
			got = "some"
		default:
			got = "zero"
		}
		if got != step.rate {
			t.Errorf("step %d: %s, want %s (%v)", i, got, step.rate, err)
		}
		if i == 0 && *r.Load.Sessions != 3 || i == 8 && *r.Load.Sessions != 0 || i == 9 && r.Load.Sessions != nil {
			t.Errorf("step %d: %d sessions", i, *r.Load.Sessions)
		}
	}
}

// plusServers are the virtual servers that the recordings of testdata/nginx_plus are read with.
var plusServers = []sitereport.NginxPlusVirtualServer{
	{Name: "www", Kind: "http", Zone: "www", Upstream: "app", Address: netip.MustParseAddr("203.0.113.10"), Port: 443, Protocol: "tcp"},
	{Name: "mail", Kind: "stream", Zone: "mail", Upstream: "mail"},
	{Name: "www2", Kind: "http", Zone: "www", Upstream: "empty"},
}

func newNginxPlus(t *testing.T, rec *recordings, servers []sitereport.NginxPlusVirtualServer) *sitereport.NginxPlus {
	t.Helper()
	n, err := sitereport.NewNginxPlus(sitereport.NginxPlusOptions{HTTP: sitereport.HTTPOptions{URL: rec.url}, VirtualServers: servers})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lines are the servers of a reading, one a line.
func lines(r sitereport.Reading) string {
	var b strings.Builder
	for _, v := range r.VirtualServers {
		fmt.Fprint(&b, v.Name)
		if v.Sessions != nil {
			fmt.Fprint(&b, " ", *v.Sessions)
		}
		b.WriteString("\n")
		for _, s := range v.Servers {
			fmt.Fprintf(&b, "  %s %s %s %q\n", s.Name, s.Address, s.State, s.Reason)
		}
	}
	return b.String()
}

func TestNginxPlus(t *testing.T) {
	rec := newRecordings(t, "nginx_plus")
	n := newNginxPlus(t, rec, plusServers)
	r, err := n.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = `www
  app1.example.com:8080 10.1.1.10:8080 up ""
  10.1.1.20:8080 10.1.1.20:8080 down "unhealthy"
  10.1.1.30:8080 10.1.1.30:8080 down "unavail"
  10.1.1.40:8080 10.1.1.40:8080 down "checking"
  10.1.1.50:8080 10.1.1.50:8080 drain "draining"
  10.1.1.60:8080 10.1.1.60:8080 maint "down"
  10.1.1.70:8080 10.1.1.70:8080 unknown "the state \"resting\" is not known"
mail 12
  10.1.2.10:25 10.1.2.10:25 up ""
www2
`
	if d := cmp.Diff(want, lines(r)); d != "" {
		t.Error(d)
	}
	if v := r.VirtualServers[0]; v.Address != plusServers[0].Address || v.Port != 443 || v.Protocol != "tcp" {
		t.Errorf("%+v", v)
	}
	if r.Load.Sessions == nil || *r.Load.Sessions != 122 || r.Load.NewSessions != nil || r.Load.BitsPerSecIn != nil {
		t.Errorf("%+v", r.Load)
	}
	if d := cmp.Diff([]string{
		`virtual server "www": server "10.1.1.70:8080": the state "resting" is not known, so it is reported as unknown`,
		`virtual server "www2": upstream "empty" has no servers, so nothing is known of its health`,
	}, r.Warnings); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"/connections", "/http/server_zones", "/http/upstreams", "/stream/server_zones", "/stream/upstreams"}, rec.look()); d != "" {
		t.Error(d)
	}

	// Counters: what grew, once for a zone; nothing after a restart that only the connections show.
	rate := func() string {
		t.Helper()
		r, err := n.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if (r.Load.BitsPerSecIn == nil) != (r.Load.NewSessions == nil) {
			t.Errorf("%+v", r.Load)
		}
		switch l := r.Load; {
		case l.BitsPerSecIn == nil:
			return "none"
		case *l.BitsPerSecIn > 0 && *l.BitsPerSecOut > 0 && *l.NewSessions > 0:
			return "some"
		case *l.BitsPerSecIn == 0 && *l.BitsPerSecOut == 0 && *l.NewSessions == 0:
			return "zero"
		}
		return fmt.Sprintf("%+v", r.Load)
	}
	connections := func(accepted int) {
		rec.answer("connections.json", body(fmt.Sprintf(`{"accepted": %d, "dropped": 0, "active": 1, "idle": 1}`, accepted)))
	}
	if got := rate(); got != "zero" {
		t.Error(got)
	}
	connections(4968200)
	rec.answer("http_server_zones.json", body(`{"www": {"processing": 0, "received": 172799999, "sent": 19999999999}}`))
	if got := rate(); got != "some" {
		t.Error(got)
	}
	connections(3)
	if got := rate(); got != "none" {
		t.Error(got)
	}
	connections(4)
	rec.answer("http_server_zones.json", body(`{"www": {"processing": 0, "received": 182799999, "sent": 20000000000}}`))
	if got := rate(); got != "some" {
		t.Error(got)
	}

	// What cannot be read has servers of state unknown, and no load.
	for file, answer := range map[string]string{
		"connections.json":       `{"accepted": 1, "dropped": 0}`,
		"http_upstreams.json":    `{"app": {"peers": [{"state": 7}]}}`,
		"http_server_zones.json": `["/api/9"]`,
		"stream_upstreams.json":  `{"mail": {"peers": [`,
	} {
		rec.answer(file, body(answer))
		r, err := n.Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), ": "+strings.Replace(strings.TrimSuffix(file, ".json"), "_", "/", 1)+": ") {
			t.Errorf("%s: %v", file, err)
		}
		unknownOnly(t, r)
		if len(r.VirtualServers) != 3 || len(r.VirtualServers[0].Servers) != 7 || len(r.VirtualServers[1].Servers) != 1 {
			t.Errorf("%s: %s", file, lines(r))
		}
		rec.answer(file, nil)
	}
}

// TestNginxPlusMissing names what does not exist, and what does.
func TestNginxPlusMissing(t *testing.T) {
	rec := newRecordings(t, "nginx_plus")
	n := newNginxPlus(t, rec, []sitereport.NginxPlusVirtualServer{
		{Name: "a", Kind: "http", Zone: "wwww", Upstream: "app"},
		{Name: "b", Kind: "http", Zone: "shop", Upstream: "apps"},
	})
	for range 2 {
		r, err := n.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{
			`virtual server "a": there is no http zone "wwww" (status_zone); there are shop, www`,
			`virtual server "a": server "10.1.1.70:8080": the state "resting" is not known, so it is reported as unknown`,
			`virtual server "b": there is no http upstream "apps" with a zone; there are app, empty`,
		}, r.Warnings); d != "" {
			t.Error(d)
		}
		if r.Load.BitsPerSecIn != nil || r.Load.BitsPerSecOut != nil {
			t.Errorf("part of the traffic: %+v", r.Load)
		}
		for _, s := range r.VirtualServers[0].Servers {
			if s.State != sitereport.StateUnknown {
				t.Errorf("%+v", s)
			}
		}
	}
}

// FuzzNginx gives both readers any answer: they must not crash, and fail or say what they read.
func FuzzNginx(f *testing.F) {
	f.Add([]byte("Active connections: 4 \nserver accepts handled requests\n 95 95 9 \nReading: 0 Writing: 1 Waiting: 3 \n"))
	for _, name := range []string{"connections", "http_server_zones", "http_upstreams"} {
		b, err := os.ReadFile(filepath.Join("..", "testdata", "nginx_plus", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		always := roundTripper(func(q *http.Request) (*http.Response, error) {
			b := answer
			if strings.HasSuffix(q.URL.Path, "/connections") {
				b = []byte(`{"accepted": 1, "active": 1, "idle": 1}`)
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(b)))}, nil
		})
		o := sitereport.HTTPOptions{URL: "http://a/api/9", Transport: always}
		status, err := sitereport.NewNginxStatus(o)
		if err != nil {
			t.Fatal(err)
		}
		plus, err := sitereport.NewNginxPlus(sitereport.NginxPlusOptions{HTTP: o, VirtualServers: plusServers})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if r, err := status.Read(t.Context()); err != nil && r.Load != (sitereport.Load{}) {
				t.Errorf("%+v, %v", r, err)
			}
			r, err := plus.Read(t.Context())
			if len(r.VirtualServers) != len(plusServers) {
				t.Errorf("%d virtual servers", len(r.VirtualServers))
			}
			if err != nil {
				unknownOnly(t, r)
			}
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }
