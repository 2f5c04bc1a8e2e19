package sitereport_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

// haproxyLoad is the load of the frontend fe by HAProxy's own exporter.
var haproxyLoad = sitereport.PrometheusLoad{
	Sessions:      &sitereport.PrometheusFigure{Series: `haproxy_frontend_current_sessions{proxy="fe"}`, Factor: 1},
	NewSessions:   &sitereport.PrometheusFigure{Series: `haproxy_frontend_sessions_total{proxy="fe"}`, Counter: true, Factor: 1},
	BitsPerSecIn:  &sitereport.PrometheusFigure{Series: `haproxy_frontend_bytes_in_total{proxy="fe"}`, Counter: true, Factor: 8},
	BitsPerSecOut: &sitereport.PrometheusFigure{Series: `haproxy_frontend_bytes_out_total{proxy="fe"}`, Counter: true, Factor: 8},
}

// haproxyServers are the servers of the backend be, likewise.
var haproxyServers = []sitereport.PrometheusVirtualServer{{
	Name: "web", Address: netip.MustParseAddr("192.0.2.10"), Port: 443, Protocol: "tcp", Sessions: haproxyLoad.Sessions,
	Servers: sitereport.PrometheusServers{
		Series: `haproxy_server_status{proxy="be",state="UP"}`, Label: "server", Up: 1,
		Drain: `haproxy_server_status{proxy="be",state="DRAIN"}`, Maint: `haproxy_server_status{proxy="be",state="MAINT"}`,
	},
}}

// TestRealPrometheus reads the exporter of the system's HAProxy.
func TestRealPrometheus(t *testing.T) {
	program(t, "haproxy")
	front, telemetry, server, gone := closed(t), closed(t), closed(t), closed(t)
	startHAProxy(t, fmt.Sprintf(`
defaults
  timeout connect 1s
  timeout client 60s
  timeout server 60s
frontend fe
  mode tcp
  bind %s
  default_backend be
frontend telemetry
  mode http
  bind %s
  http-request use-service prometheus-exporter if { path /metrics }
backend be
  mode tcp
  server s1 %s
  server s2 %s check inter 100ms fall 1
  server s3 %s disabled
`, front, telemetry, server, gone, server))
	p, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
		HTTP: sitereport.HTTPOptions{URL: "http://" + telemetry.String() + "/metrics"}, Load: haproxyLoad, VirtualServers: haproxyServers,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() // the session ends with the client's
				io.Copy(io.Discard, c)
			}()
		}
	}()
	var last sitereport.Reading
	until := func(what string, so func(r sitereport.Reading) bool) {
		t.Helper()
		wait(t, what, func() bool {
			last, err = p.Read(t.Context())
			return err == nil && so(last)
		})
	}
	const want = `web 0
  web/s1  up ""
  web/s2  down "haproxy_server_status is 0"
  web/s3  maint "haproxy_server_status{proxy=\"be\",state=\"MAINT\"}"
`
	until("states", func(r sitereport.Reading) bool { return lines(r) == want && len(r.Warnings) == 0 })
	for range 20 {
		c, err := net.Dial("tcp4", front.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	until("20 sessions", func(r sitereport.Reading) bool {
		return *r.Load.Sessions == 20 && *r.VirtualServers[0].Sessions == 20 && r.Load.NewSessions != nil && *r.Load.NewSessions > 0
	})
	c, err := net.Dial("tcp4", front.String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, strings.Repeat("a", 10_000))
	c.Close()
	until("traffic", func(r sitereport.Reading) bool { return r.Load.BitsPerSecIn != nil && *r.Load.BitsPerSecIn > 0 })
	if last.Yields != 0 || last.Supplies != 0 {
		t.Errorf("%+v", last)
	}
}

// TestPrometheus reads pages with what may be odd about them.
func TestPrometheus(t *testing.T) {
	for name, tc := range map[string]struct {
		page     string
		want     string // sessions of the site, then the servers
		warnings []string
	}{
		"as it should be": {
			"# HELP up \xff\n# TYPE conns histogram\nconns{lb=\"a\", port=\"80\"} 3\n\tconns{port=\"443\",lb=\"a\",}\t4.0 1700000000000  \nconns{lb=\"b\"} 100\nup{host=\"10.0.0.1:80\"} 1\nup{host=\"s2\"} 0\nother line\r\n",
			"7 10.0.0.1:80 up, web/s2 down", nil,
		},
		"the same series twice":    {"conns{lb=\"a\"} 3\nconns{lb=\"a\"} 3\nup{host=\"a\"} 1\nup{host=\"a\"} 1", "3 web/a up", nil},
		"a series that is missing": {"conn{lb=\"a\"} 3\nup{host=\"a\"} 1\n", "unknown web/a up", []string{`load.sessions: there is no series conns{lb="a"}, so the figure is not known`}},
		"another label":            {"conns{lb=\"b\"} 3\nconns 2\nup{host=\"a\"} 1\n", "unknown web/a up", []string{`load.sessions: there is no series conns{lb="a"}; the 2 of that name have other labels, so the figure is not known`}},
		"not a number":             {"conns{lb=\"a\"} NaN\nup{host=\"a\"} 1\n", "unknown web/a up", []string{`load.sessions: conns{lb="a"} is NaN, so the figure is not known`}},
		"infinite":                 {"conns{lb=\"a\"} +Inf\nup{host=\"a\"} 1\n", "unknown web/a up", []string{`load.sessions: conns{lb="a"} is +Inf, so the figure is not known`}},
		"negative":                 {"conns{lb=\"a\"} -1\nup{host=\"a\"} 1\n", "unknown web/a up", []string{"load.sessions: -1 is not between 0 and 1e+12, so the figure is not known"}},
		"too many":                 {"conns{lb=\"a\"} 1e13\nup{host=\"a\"} 1\n", "unknown web/a up", []string{"load.sessions: 1e+13 is not between 0 and 1e+12, so the figure is not known"}},
		"no state": {"conns{lb=\"a\"} 1\nup{host=\"a\"} NaN\nup{host=\"b\"} -Inf\n", "1 web/a unknown, web/b unknown", []string{
			`virtual server "web": server "a": up is NaN, so it is reported as unknown`,
			`virtual server "web": server "b": up is -Inf, so it is reported as unknown`,
		}},
		"half up":                   {"conns{lb=\"a\"} 1\nup{host=\"a\"} 0.5\n", "1 web/a down", nil},
		"contradicting":             {"conns{lb=\"a\"} 1\nup{host=\"a\",x=\"1\"} 1\nup{host=\"a\",x=\"2\"} 0\n", "1 web/a unknown", []string{`virtual server "web": several series of up name the server "a", and differ, so it is reported as unknown: add labels`}},
		"without the server's name": {"conns{lb=\"a\"} 1\nup 1\nup{host=\"\"} 1\nup{host=\"a\"} 1\n", "1 web/a up", []string{`virtual server "web": 2 series of up have no label host, so they name no server`}},
		"none with a name":          {"conns{lb=\"a\"} 1\nup 1\n", "1 ", []string{`virtual server "web": 1 series of up have no label host, so they name no server`}},
		"no servers":                {"conns{lb=\"a\"} 1\n", "1 ", []string{`virtual server "web": there is no series up, so nothing is known of its servers`}},
		"nothing":                   {"", "unknown ", []string{`load.sessions: there is no series conns{lb="a"}, so the figure is not known`, `virtual server "web": there is no series up, so nothing is known of its servers`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrometheus(t, body(tc.page))
			r, err := p.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := figureAndStates(r); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if d := cmp.Diff(tc.warnings, r.Warnings); d != "" {
				t.Error(d)
			}
			if r.Yields != sitereport.AllFigures&^sitereport.FigureSessions {
				t.Errorf("yields %b", r.Yields)
			}
		})
	}
}

// TestPrometheusOutOnPurpose has series that say which servers are in drain or maintenance.
func TestPrometheusOutOnPurpose(t *testing.T) {
	rec := newRecordings(t, "")
	p, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
		HTTP: sitereport.HTTPOptions{URL: rec.url + "/metrics"}, VirtualServers: haproxyServers,
	})
	if err != nil {
		t.Fatal(err)
	}
	status := func(server, state string) (page string) {
		for _, s := range []string{"DOWN", "UP", "MAINT", "DRAIN", "NOLB"} {
			is := 0
			if s == state {
				is = 1
			}
			page += fmt.Sprintf("haproxy_server_status{proxy=\"be\",server=%q,state=%q} %d\n", server, s, is)
		}
		return page
	}
	rec.answer("metrics.json", body(status("s1", "UP")+status("s2", "DOWN")+status("s3", "MAINT")+status("s4", "DRAIN")))
	r, err := p.Read(t.Context())
	if got := figureAndStates(r); err != nil || got != "unknown web/s1 up, web/s2 down, web/s3 maint, web/s4 drain" {
		t.Errorf("%s, %v", got, err)
	}
	rec.answer("metrics.json", body("haproxy_server_status{proxy=\"be\",server=\"s1\",state=\"UP\"} 1\n"))
	r, err = p.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{
		`virtual server "web": there is no series haproxy_server_status{proxy="be",state="DRAIN"}; the 1 of that name have other labels, so no server is known to be in drain`,
		`virtual server "web": there is no series haproxy_server_status{proxy="be",state="MAINT"}; the 1 of that name have other labels, so no server is known to be in maint`,
		`virtual server "web": sessions: there is no series haproxy_frontend_current_sessions{proxy="fe"}, so the figure is not known`,
	}, r.Warnings); d != "" {
		t.Error(d)
	}
}

func figureAndStates(r sitereport.Reading) string {
	sessions := "unknown"
	if r.Load.Sessions != nil {
		sessions = fmt.Sprint(*r.Load.Sessions)
	}
	var states []string
	for _, s := range r.VirtualServers[0].Servers {
		states = append(states, s.Name+" "+s.State)
	}
	return sessions + " " + strings.Join(states, ", ")
}

// newPrometheus returns a reader of sessions and of servers.
func newPrometheus(t *testing.T, answer http.HandlerFunc) *sitereport.Prometheus {
	t.Helper()
	rec := newRecordings(t, "")
	rec.answer("metrics.json", answer)
	p, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
		HTTP:           sitereport.HTTPOptions{URL: rec.url + "/metrics", Timeout: 10 * time.Second},
		Load:           sitereport.PrometheusLoad{Sessions: &sitereport.PrometheusFigure{Series: `conns{lb="a"}`, Factor: 1}},
		VirtualServers: []sitereport.PrometheusVirtualServer{{Name: "web", Servers: sitereport.PrometheusServers{Series: "up", Label: "host", Up: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPrometheusFails keeps the names of the servers, and nothing else, when the page cannot be read.
func TestPrometheusFails(t *testing.T) {
	good := "conns{lb=\"a\"} 3\nup{host=\"s1\"} 1\n"
	for name, tc := range map[string]struct{ page, want string }{
		"a broken series":    {good + "up{host=\"s1} 1\n", "up{host=\"s1} 1 cannot be read as a series"},
		"a long line":        {good + "up{host=\"" + strings.Repeat("s", 1<<16) + "\"} 1\n", "a line of up is longer than 65536 bytes"},
		"too many of a name": {strings.Repeat("up 1\n", 200_001), "more than 200000 series"},
	} {
		t.Run(name, func(t *testing.T) {
			page := good
			p := newPrometheus(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page) })
			if _, err := p.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			page = tc.page
			r, err := p.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
			unknownOnly(t, r)
			if got := figureAndStates(r); got != "unknown web/s1 unknown" {
				t.Error(got)
			}
		})
	}
	for _, series := range []string{"", "a b", "a 5", "a{", `a{b=c}`, "a\nb", `{b="c"}`, "a#", "a{} "} {
		if _, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
			HTTP: sitereport.HTTPOptions{URL: "http://127.0.0.1/"},
			Load: sitereport.PrometheusLoad{Sessions: &sitereport.PrometheusFigure{Series: series, Factor: 1}},
		}); err == nil || !strings.Contains(err.Error(), "load.sessions: ") {
			t.Errorf("%q: %v", series, err)
		}
	}
}

// TestPrometheusCounters has counters that begin again, and series that come and go.
func TestPrometheusCounters(t *testing.T) {
	rec := newRecordings(t, "")
	p, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
		HTTP: sitereport.HTTPOptions{URL: rec.url + "/metrics"},
		Load: sitereport.PrometheusLoad{BitsPerSecOut: &sitereport.PrometheusFigure{Series: "bytes", Counter: true, Factor: 8}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct{ page, want string }{
		{"bytes{a=\"1\"} 10\nbytes{a=\"2\"} 10\n", "none"},
		{"bytes{a=\"1\"} 10\nbytes{a=\"2\"} 10\n", "zero"},
		{"bytes{a=\"2\"} 10\nbytes{a=\"1\"} 1e6\n", "some"},
		{"bytes{a=\"1\"} 2e6\nbytes{a=\"2\"} 9\n", "none"},
		{"bytes{a=\"1\"} 3e6\nbytes{a=\"2\"} 9\n", "some"},
		{"bytes{a=\"1\"} 4e6\nbytes{a=\"3\"} 9\n", "none"},
		{"", "warned"},
		{"bytes{a=\"1\"} 4e6\nbytes{a=\"3\"} 9\n", "none"},
		{"bytes{a=\"1\"} NaN\nbytes{a=\"3\"} 9\n", "warned"},
		{"bytes{a=\"1\"} 4e6\nbytes{a=\"3\"} 9\n", "none"},
		{"bytes{a=\"1\"} 1e300\nbytes{a=\"3\"} 9\n", "warned"},
	} {
		rec.answer("metrics.json", body(step.page))
		r, err := p.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		switch bits := r.Load.BitsPerSecOut; {
		case len(r.Warnings) > 0 && bits == nil:
			got = "warned"
		case bits == nil:
		case *bits == 0:
			got = "zero"
		default:
			got = "some"
		}
		if got != step.want || r.Supplies != sitereport.FigureBitsOut {
			t.Errorf("step %d: %s, want %s: %+v", i, got, step.want, r)
		}
	}
}

// FuzzPrometheus reads any page: it must not crash, and what it reports a receiver takes.
func FuzzPrometheus(f *testing.F) {
	f.Add([]byte("conns{lb=\"a\", port=\"80\"} 3\nconns{lb=\"a\"} 4 1700\nup{host=\"10.0.0.1:80\"} 1\nup{host=\"s2\"} 0\n"))
	f.Add([]byte("up{host=\"\\\"\\n\\\\\"} NaN\nconns{lb=\"a\"} -Inf\nup{host=\"s\",host=\"t\"} 1"))
	f.Fuzz(func(t *testing.T, page []byte) {
		always := roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(page)))}, nil
		})
		p, err := sitereport.NewPrometheus(sitereport.PrometheusOptions{
			HTTP: sitereport.HTTPOptions{URL: "http://a/", Transport: always},
			Load: sitereport.PrometheusLoad{
				Sessions:    &sitereport.PrometheusFigure{Series: `conns{lb="a"}`, Factor: 1},
				NewSessions: &sitereport.PrometheusFigure{Series: `conns`, Factor: 1, Counter: true},
			},
			VirtualServers: []sitereport.PrometheusVirtualServer{{Name: "web", Servers: sitereport.PrometheusServers{Series: "up", Label: "host", Up: 1, Drain: "conns"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r, err := p.Read(t.Context())
			if len(r.VirtualServers) != 1 {
				t.Errorf("%d virtual servers", len(r.VirtualServers))
			}
			if err != nil {
				unknownOnly(t, r)
			}
			if s := r.Load.Sessions; s != nil && *s > sitereport.MaxSessions {
				t.Errorf("%d sessions", *s)
			}
		}
	})
}
