package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"gslbd/admin"
	"gslbd/policy"
	"gslbd/state"
)

const name = "www.gslb.example.com"

// A house is a Store with two sites and one service, and an admin server over it.
type house struct {
	t       *testing.T
	store   *state.Store
	handler http.Handler
	ready   string // why not; empty: ready
	reload  error
	reloads int
}

// newHouse must be called inside a synctest bubble, which makes publications and ages exact.
func newHouse(t *testing.T, change func(*admin.Options, *state.Config)) *house {
	t.Helper()
	chain, err := policy.Build("default", []policy.StepOptions{
		{Metric: "health"},
		{Metric: "capacity"},
		{Metric: "rtt", Tolerance: 0.1, ToleranceAbs: 5 * time.Millisecond, MaxAge: 10 * time.Minute},
		{Metric: "preference", Disabled: true},
		{Metric: "static", Method: "round-robin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, store: store}
	opts := admin.Options{
		Tokens:     func() []string { return []string{"the next token", "the token"} },
		Version:    "1.2.3",
		PerService: true,
		Snapshot:   store.Snapshot,
		Preview:    store.Preview,
		Clients:    store.Clients,
		Find: func(s *state.Snapshot, n string) (*state.Service, bool, bool) {
			if n == "anything.cdn.example.com" {
				n = name
			}
			svc := s.ServiceByName(n)
			return svc, n != "plain.gslb.example.com", svc != nil
		},
		Reload: func() ([]string, error) {
			h.reloads++
			return []string{"dns.listen: changed, which needs a restart"}, h.reload
		},
		Ready: func() (bool, string) { return h.ready == "", h.ready },
	}
	cfg := &state.Config{
		Sites: []state.SiteConfig{
			{Name: "seoul", Zone: "apne2-az1", Region: "ap-northeast-2", SessionsLimit: 900_000, BandwidthLimit: 900_000_000},
			{Name: "virginia", Zone: "use1-az1", Region: "us-east-1", SessionsLimit: 900_000, BandwidthLimit: 900_000_000},
		},
		Services: []state.ServiceConfig{{
			Name: name, Aliases: []string{"plain.gslb.example.com"}, TTL: 30, Answers: 1, PolicyName: "default", Chain: chain,
			UsesRTT: true, UnknownUp: true, MinHealthy: state.Threshold{Count: 1},
			Members: []state.MemberConfig{
				{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{addr("1.1.1.1"), addr("2001:db8::1")}, Weight: 100, Preference: 100},
				{Name: "virginia", Site: "virginia", Addresses: [2]netip.Addr{addr("2.2.2.2")}, Weight: 100, Preference: 100},
			},
		}},
	}
	if change != nil {
		change(&opts, cfg)
	}
	store.Configure(cfg)
	srv, err := admin.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	h.handler = srv.Handler()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// in runs a test in a bubble, with a house.
func in(t *testing.T, change func(*admin.Options, *state.Config), test func(t *testing.T, h *house)) {
	synctest.Test(t, func(t *testing.T) { test(t, newHouse(t, change)) })
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// report applies a report and waits until it is published.
func (h *house) report(r *state.Report) {
	h.t.Helper()
	r.Agent = "lb1"
	if _, err := h.store.Report(r); err != nil {
		h.t.Fatal(err)
	}
	time.Sleep(time.Second)
	synctest.Wait()
}

// servers is a report of a site whose VIP has servers in the given states.
func servers(site, vip string, states ...state.ServerState) *state.Report {
	vs := state.VirtualServer{Name: "web", Address: addr(vip)}
	for i, s := range states {
		vs.Servers = append(vs.Servers, state.Server{Name: fmt.Sprint("server", i+1), State: s, Reason: "HTTP 503"})
	}
	return &state.Report{Site: site, VirtualServers: []state.VirtualServer{vs}}
}

// A call is one request; zero fields are those of gslbctl on the same machine.
type call struct {
	method, path, body, from, host string
	header                         map[string]string
}

func (h *house) do(c call) *httptest.ResponseRecorder {
	if c.method == "" {
		c.method = http.MethodGet
	}
	req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	req.RemoteAddr, req.Host = "127.0.0.1:4711", "127.0.0.1:8053"
	if c.from != "" {
		req.RemoteAddr = c.from
	}
	if c.host != "" {
		req.Host = c.host
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, req)
	return w
}

// get decodes a 200 into v, exactly.
func (h *house) get(path string, v any) {
	h.t.Helper()
	w := h.do(call{path: path})
	d := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	d.DisallowUnknownFields()
	if err := d.Decode(v); w.Code != 200 || err != nil {
		h.t.Fatalf("%s: %d, %v: %s", path, w.Code, err, w.Body)
	}
}

func TestGuard(t *testing.T) {
	jsonBody := map[string]string{"Content-Type": "application/json"}
	with := func(more ...string) map[string]string {
		m := map[string]string{"Content-Type": "application/json"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	const remote = "192.0.2.9:4711"
	for _, c := range []struct {
		name   string
		noauth bool // no token is configured
		call   call
		status int
	}{
		{"loopback", false, call{path: "/v1/status"}, 200},
		{"loopback over IPv6", false, call{path: "/v1/status", from: "[::1]:1"}, 200},
		{"root", false, call{path: "/"}, 200},
		{"nothing there", false, call{path: "/v2"}, 404},
		{"remote", false, call{path: "/v1/status", from: remote}, 401},
		{"remote root", false, call{path: "/", from: remote}, 200},
		{"remote list of calls", false, call{path: "/v1/", from: remote}, 401},
		{"remote with token", false, call{path: "/v1/status", from: remote, header: with("Authorization", "Bearer the token")}, 200},
		{"remote with token, by name", false, call{path: "/v1/status", from: remote, host: "gslb1.example.com:8053", header: with("Authorization", "Bearer the token")}, 200},
		{"remote with wrong token", false, call{path: "/v1/status", from: remote, header: with("Authorization", "Bearer the tokem")}, 401},
		{"remote with basic", false, call{path: "/v1/status", from: remote, header: with("Authorization", "Basic the token")}, 401},
		{"loopback with wrong token", false, call{path: "/v1/status", header: with("Authorization", "Bearer x")}, 401},
		{"remote where no token is set", true, call{path: "/v1/status", from: remote}, 403},
		{"remote with empty token where none is set", true, call{path: "/v1/status", from: remote, header: with("Authorization", "Bearer ")}, 403},
		{"loopback where no token is set", true, call{path: "/v1/status"}, 200},
		{"loopback with a needless token", true, call{path: "/v1/status", header: with("Authorization", "Bearer x")}, 200},
		{"rebound name", false, call{path: "/v1/status", host: "evil.example:8053"}, 403},
		{"localhost", false, call{path: "/v1/status", host: "localhost:8053"}, 200},
		{"IPv6 host", false, call{path: "/v1/status", host: "[::1]:8053"}, 200},
		{"remote healthz", false, call{path: "/healthz", from: remote, host: "x"}, 200},
		{"remote readyz", false, call{path: "/readyz", from: remote, host: "x"}, 200},
		{"remote metrics", false, call{path: "/metrics", from: remote, host: "x"}, 200},
		{"reload", false, call{method: "POST", path: "/v1/reload", header: jsonBody}, 200},
		{"reload with a body", false, call{method: "POST", path: "/v1/reload", header: jsonBody, body: " {} "}, 200},
		{"reload with another body", false, call{method: "POST", path: "/v1/reload", header: jsonBody, body: "now"}, 400},
		{"reload with a large body", false, call{method: "POST", path: "/v1/reload", header: jsonBody, body: strings.Repeat(" ", 1<<17)}, 413},
		{"reload from a form", false, call{method: "POST", path: "/v1/reload", header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}}, 415},
		{"reload without a type", false, call{method: "POST", path: "/v1/reload"}, 415},
		{"reload of a foreign page", false, call{method: "POST", path: "/v1/reload", header: with("Origin", "http://evil.example")}, 403},
		{"reload of a foreign page with the token", false, call{method: "POST", path: "/v1/reload", header: with("Origin", "http://evil.example", "Authorization", "Bearer the token")}, 403},
		{"reload across sites", false, call{method: "POST", path: "/v1/reload", header: with("Sec-Fetch-Site", "cross-site")}, 403},
		{"reload of our own page", false, call{method: "POST", path: "/v1/reload", header: with("Origin", "http://127.0.0.1:8053")}, 200},
		{"reload by GET", false, call{path: "/v1/reload"}, 405},
		{"status by POST", false, call{method: "POST", path: "/v1/status", header: jsonBody}, 405},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(o *admin.Options, _ *state.Config) {
				if c.noauth {
					o.Tokens = nil
				}
			}, func(t *testing.T, h *house) {
				w := h.do(c.call)
				if w.Code != c.status {
					t.Errorf("got %d, want %d: %s", w.Code, c.status, w.Body)
				}
				if reloaded := c.status == 200 && c.call.method == "POST"; reloaded != (h.reloads == 1) {
					t.Errorf("%d reloads", h.reloads)
				}
				if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
					t.Errorf("headers: %v", w.Header())
				}
				if strings.Contains(w.Body.String(), "tokem") {
					t.Error("the answer repeats the token")
				}
			})
		})
	}
}

func TestReadyAndReload(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		if w := h.do(call{path: "/readyz"}); w.Code != 200 || w.Body.String() != "ready\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		h.ready = "first checks are not done"
		if w := h.do(call{path: "/readyz"}); w.Code != 503 || w.Body.String() != "not ready: first checks are not done\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := h.do(call{path: "/healthz"}); w.Code != 200 {
			t.Errorf("healthz depends on readiness: %d", w.Code)
		}
		post := call{method: "POST", path: "/v1/reload", header: map[string]string{"Content-Type": "application/json"}}
		if w := h.do(post); w.Code != 200 || w.Body.String() != `{"warnings":["dns.listen: changed, which needs a restart"]}`+"\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		h.reload = errors.New("services[0].ttl: -1 is not between 0 and 86400\nsites[1].name: missing")
		w := h.do(post)
		want := `{"error":"the configuration in force stays: services[0].ttl: -1 is not between 0 and 86400\nsites[1].name: missing"}` + "\n"
		if w.Code != 422 || w.Body.String() != want {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestNoConfigurationYet(t *testing.T) {
	in(t, func(o *admin.Options, _ *state.Config) { o.Snapshot = func() *state.Snapshot { return nil } }, func(t *testing.T, h *house) {
		for _, path := range []string{"/v1/status", "/v1/services/x", "/v1/sites/x", "/v1/rtt?resolver=192.0.2.1", "/v1/explain?name=x"} {
			if w := h.do(call{path: path}); w.Code != 503 {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		if w := h.do(call{path: "/metrics"}); w.Code != 200 || strings.Contains(w.Body.String(), "gslbd_blind") {
			t.Errorf("metrics: %d", w.Code)
		}
	})
}

func TestStatus(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		var st admin.Status
		h.get("/v1/status", &st)
		if len(st.Problems) != 2 || st.Problems[0].Severity != admin.Notice || !st.Ready || st.Version != "1.2.3" || len(st.Sites) != 2 || len(st.Services) != 1 {
			t.Errorf("at the start: %+v", st)
		}
		if s := st.Sites[0]; s.Report != "never reported" || s.ReportAge != nil || s.Load != nil || s.Utilisation != nil {
			t.Errorf("a site that never reported: %+v", s)
		}
		for _, m := range st.Services[0].Members {
			for _, a := range m.Addresses {
				if !a.Up || a.Why == "" {
					t.Errorf("a state without why: %+v", a)
				}
			}
		}

		r := servers("virginia", "2.2.2.2", state.ServerDown, state.ServerDown)
		r.HasSessions, r.Sessions = true, 900_000
		h.report(r)
		h.report(servers("seoul", "1.1.1.1", state.ServerUp, state.ServerUp))
		st = admin.Status{}
		h.get("/v1/status", &st)
		virginia := st.Services[0].Members[1]
		if a := virginia.Addresses[0]; a.Up || a.Why == "" || a.Since.IsZero() || a.Address != addr("2.2.2.2") || a.Family != "ipv4" {
			t.Errorf("virginia: %+v", a)
		}
		if virginia.ServersUp == nil || *virginia.ServersUp != 0 || *virginia.Servers != 2 {
			t.Errorf("virginia's servers: %+v", virginia)
		}
		if virginia.Transitions == 0 {
			t.Error("no transition is counted")
		}
		site := st.Sites[1]
		if site.Report != "fresh" || *site.ReportAge != 2 || site.Agent != "lb1" || *site.Load.Sessions != 900_000 || site.Load.BitsPerSecondIn != nil ||
			!site.Overloaded || site.OverloadedWhy == "" || site.OverloadedSince.IsZero() || *site.Utilisation != 1 {
			t.Errorf("virginia: %+v, %+v", site, site.Load)
		}
		subjects := []string{}
		for _, p := range st.Problems {
			subjects = append(subjects, p.Severity+" "+p.Subject)
		}
		for _, want := range []string{"warning member " + name + "/virginia", "warning site virginia"} {
			if !slices.Contains(subjects, want) {
				t.Errorf("no problem %q in %v", want, subjects)
			}
		}
		for _, p := range st.Problems {
			if p.Subject == "member "+name+"/virginia" && (!strings.HasPrefix(p.Text, "is down: ") || p.Since.IsZero()) {
				t.Errorf("a member that is down in all that it has: %+v", p)
			}
		}

		h.report(servers("seoul", "1.1.1.1", state.ServerDown)) // which tells nothing of its IPv6 address
		h.ready = "shutting down"
		st = admin.Status{}
		h.get("/v1/status", &st)
		if st.Problems[0].Subject != "gslbd" || st.Problems[0].Text != "is not ready: shutting down" {
			t.Errorf("the first problem: %+v", st.Problems[0])
		}
		if p := st.Problems[1]; p.Severity != admin.Critical || p.Subject != "service "+name || p.Text != "no member of the pool is up for ipv4, so on_all_down (all) decides" {
			t.Errorf("the second problem: %+v", p)
		}
		if i := slices.IndexFunc(st.Problems, func(p admin.Problem) bool { return p.Subject == "member "+name+"/seoul" }); i < 0 || !strings.HasPrefix(st.Problems[i].Text, "is down for ipv4: ") {
			t.Errorf("a member that is down in one family of two: %+v", st.Problems)
		}
		if !slices.IsSortedFunc(st.Problems, func(a, b admin.Problem) int {
			order := []string{admin.Critical, admin.Warning, admin.Notice}
			return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
		}) {
			t.Errorf("not the most serious first: %+v", st.Problems)
		}

		time.Sleep(2 * time.Minute)
		synctest.Wait()
		st = admin.Status{}
		h.get("/v1/status", &st)
		if s := st.Sites[0]; s.Report != "dead" || s.ReportSince.IsZero() || *s.ReportAge < 120 {
			t.Errorf("a dead site: %+v", s)
		}
	})
}

func TestServiceAndSite(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		for _, n := range []string{name, "WWW.GSLB.example.com.", "plain.gslb.example.com", "anything.cdn.example.com"} {
			var svc admin.Service
			h.get("/v1/services/"+n, &svc)
			if svc.Name != name || len(svc.Members) != 2 {
				t.Errorf("%s: %+v", n, svc)
			}
		}
		var site admin.SiteDetail
		h.get("/v1/sites/seoul", &site)
		if site.Name != "seoul" || len(site.Members) != 1 || site.Members[0].Service != name || site.Members[0].Name != "seoul" {
			t.Errorf("%+v", site)
		}
		for path, want := range map[string]string{
			"/v1/services/nope": `{"error":"\"nope\" is not a service; there are www.gslb.example.com"}`,
			"/v1/sites/Seoul":   `{"error":"\"Seoul\" is not a site; there are seoul, virginia"}`,
		} {
			if w := h.do(call{path: path}); w.Code != 404 || strings.TrimSpace(w.Body.String()) != want {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	})
}

func TestRTT(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		// Sites measure only resolvers that asked at least twice.
		for range 3 {
			h.store.Asked(addr("203.0.113.53"), h.store.Snapshot().Services[0])
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		for site, rtt := range map[string]time.Duration{"seoul": 200 * time.Millisecond, "virginia": 30 * time.Millisecond} {
			h.report(&state.Report{Site: site, RTTs: []state.RTTSample{{Resolver: addr("203.0.113.53"), RTT: rtt}}})
		}
		var v admin.RTTs
		h.get("/v1/rtt?resolver=203.0.113.53", &v)
		for i := range v.Sites {
			v.Sites[i].Age = 0
		}
		want := admin.RTTs{
			Resolver: addr("203.0.113.53"), Network: netip.MustParsePrefix("203.0.113.0/24"),
			Sites: []admin.SiteRTT{
				{Site: "virginia", Method: "icmp", RTTMS: 30, Probes: 1}, {Site: "seoul", Method: "icmp", RTTMS: 200, Probes: 1},
			},
		}
		if d := cmp.Diff(want, v, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Error(d)
		}
		var e admin.Explanation
		h.get("/v1/explain?name="+name+"&client=203.0.113.53", &e)
		if len(e.Answer.Records) != 1 || e.Answer.Records[0] != (admin.Record{Member: "virginia", Data: "2.2.2.2"}) || e.Answer.Reason != "rtt" {
			t.Errorf("%+v", e.Answer)
		}
		v = admin.RTTs{}
		h.get("/v1/rtt?resolver=::ffff:192.0.2.1", &v)
		if len(v.Sites) != 0 || v.Resolver != addr("192.0.2.1") {
			t.Errorf("an unknown resolver: %+v", v)
		}
		for path, want := range map[string]string{
			"/v1/rtt?resolver=x":           `resolver: \"x\" is not an IP address`,
			"/v1/rtt?resolver=fe80::1%25a": "is not an IP address",
			"/v1/rtt?name=x":               `unknown argument \"name\": there are resolver`,
		} {
			if w := h.do(call{path: path}); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		h.report(servers("virginia", "2.2.2.2", state.ServerDown))
		var e admin.Explanation
		h.get("/v1/explain?name=WWW.gslb.example.com.&client=192.0.2.1", &e)
		if e.Name != name || e.Service != name || e.Policy != "default" || e.Type != "A" {
			t.Errorf("%+v", e)
		}
		want := admin.Answer{Kind: "answer", Reason: "health", Records: []admin.Record{{Member: "seoul", Data: "1.1.1.1"}}, TTL: new(uint32(30))}
		if d := cmp.Diff(want, e.Answer); d != "" {
			t.Error(d)
		}
		verdicts := []string{}
		for _, s := range e.Trace.Steps {
			verdicts = append(verdicts, s.Metric+": "+s.Verdict)
		}
		if d := cmp.Diff([]string{"health: decided", "capacity: not consulted", "rtt: not consulted", "preference: disabled", "static: not consulted"}, verdicts); d != "" {
			t.Error(d)
		}
		if len(e.Trace.Constraints) == 0 {
			t.Error("no constraints")
		}

		e = admin.Explanation{}
		h.get("/v1/explain?name="+name+"&type=aaaa", &e)
		if e.Type != "AAAA" || e.Answer.Records[0].Data != "2001:db8::1" || e.Answer.Reason != "single" || e.Client.LDNS != addr("127.0.0.1") {
			t.Errorf("%+v", e)
		}
	})
}

func TestExplainNeverAdvances(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		svc := h.store.Snapshot().Services[0]
		svc.Rotation.Turn[state.V4].Store(7)
		var first, again admin.Explanation
		h.get("/v1/explain?name="+name, &first)
		h.get("/v1/explain?name="+name, &again)
		if first.Turn != 7 || again.Turn != 7 || first.Answer.Records[0] != again.Answer.Records[0] || svc.Counters.Decisions() != [state.MaxReasons]uint64{} {
			t.Errorf("%+v then %+v", first.Answer, again.Answer)
		}
		svc.Rotation.Turn[state.V4].Add(1)
		h.get("/v1/explain?name="+name, &again)
		if first.Answer.Records[0] == again.Answer.Records[0] {
			t.Error("the turn has no effect")
		}
	})
}

func TestExplainClient(t *testing.T) {
	scope := func(n int) *int { return &n }
	for _, c := range []struct {
		query string
		want  admin.Client
		scope *int
	}{
		{"client=192.0.2.1", admin.Client{LDNS: addr("192.0.2.1"), Used: "ldns"}, nil},
		{"client=::ffff:8.8.8.8", admin.Client{LDNS: addr("8.8.8.8"), Used: "ldns"}, nil},
		{"client=192.0.2.1&ecs=8.8.8.0/24", admin.Client{LDNS: addr("192.0.2.1"), ECS: netip.MustParsePrefix("8.8.8.0/24"), Used: "ecs"}, scope(24)},
		{"client=192.0.2.1&ecs=0.0.0.0/0", admin.Client{LDNS: addr("192.0.2.1"), ECS: netip.MustParsePrefix("0.0.0.0/0"), Used: "ldns", Why: "ECS of length 0 asks not to be told apart"}, scope(0)},
		{"client=192.0.2.1&ecs=10.1.2.0/24", admin.Client{LDNS: addr("192.0.2.1"), ECS: netip.MustParsePrefix("10.1.2.0/24"), Used: "ldns", Why: "the ECS prefix is special-purpose, and no override matches it"}, scope(8)},
	} {
		t.Run(c.query, func(t *testing.T) {
			in(t, nil, func(t *testing.T, h *house) {
				var e admin.Explanation
				h.get("/v1/explain?name="+name+"&"+c.query, &e)
				if e.Client != c.want {
					t.Errorf("got  %+v\nwant %+v", e.Client, c.want)
				}
				if d := cmp.Diff(c.scope, e.Answer.Scope); d != "" {
					t.Error(d)
				}
				e = admin.Explanation{}
				h.get("/v1/explain?name=plain.gslb.example.com&"+c.query, &e)
				if e.Client.Used != "ldns" || e.Answer.Scope != nil {
					t.Errorf("with ECS off for the zone: %+v", e.Client)
				}
			})
		})
	}
}

func TestExplainRefuses(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		for query, want := range map[string]string{
			"":                                    "400 name: missing",
			"name=.":                              "400 name: missing",
			"name=nope.example.com":               `404 no service answers for \"nope.example.com\"`,
			"name=" + name + "&type=MX":           `400 type: \"MX\" is neither A nor AAAA`,
			"name=" + name + "&client=x":          `400 client: \"x\" is not an IP address`,
			"name=" + name + "&client=1.2.3.0/24": "400 client: ",
			"name=" + name + "&ecs=8.8.8.8":       `400 ecs: \"8.8.8.8\" is not a prefix`,
			"name=" + name + "&ecs=8.8.8.8/24":    "400 ecs: 8.8.8.8/24 has bits beyond its length; did you mean 8.8.8.0/24?",
			"name=" + name + "&ecs=8.8.8.0/33":    "400 ecs: ",
			"name=" + name + "&name=b":            "400 name: given twice",
			"name=" + name + "&clint=192.0.2.1":   `400 unknown argument \"clint\": there are name, type, client, ecs`,
			"name=%zz":                            "400 the query string cannot be read",
		} {
			w := h.do(call{path: "/v1/explain?" + query})
			if got := fmt.Sprint(w.Code, " ", strings.TrimPrefix(w.Body.String(), `{"error":"`)); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %s, want %s", query, got, want)
			}
		}
	})
}

func TestExplainOnAllDown(t *testing.T) {
	down := func(h *house) {
		h.report(servers("virginia", "2.2.2.2", state.ServerDown))
		h.report(servers("seoul", "1.1.1.1", state.ServerDown))
	}
	for _, c := range []struct {
		on   state.OnAllDown
		want admin.Answer
	}{
		{state.AllDownBackup, admin.Answer{Kind: "last resort", Records: []admin.Record{{Data: "192.0.2.80"}}}},
		{state.AllDownNoData, admin.Answer{Kind: "nodata", Records: []admin.Record{}}},
		{state.AllDownServFail, admin.Answer{Kind: "servfail", Records: []admin.Record{}}},
	} {
		t.Run(c.on.String(), func(t *testing.T) {
			in(t, func(_ *admin.Options, cfg *state.Config) {
				cfg.Services[0].OnAllDown = c.on
				cfg.Services[0].LastResort = []netip.Addr{addr("192.0.2.80"), addr("2001:db8::80")}
				cfg.Services[0].Members[0].Addresses[state.V6] = netip.Addr{}
			}, func(t *testing.T, h *house) {
				down(h)
				var e admin.Explanation
				h.get("/v1/explain?name="+name, &e)
				c.want.Reason, c.want.TTL, c.want.AllDown = "on_all_down", new(uint32(10)), true
				if d := cmp.Diff(c.want, e.Answer); d != "" {
					t.Error(d)
				}
				if e.Trace.OnAllDown == "" {
					t.Error("the trace does not say what on_all_down did")
				}
			})
		})
	}
}

// series returns the exposed lines that begin with gslbd_, by name and labels.
func (h *house) series() map[string]string {
	h.t.Helper()
	w := h.do(call{path: "/metrics"})
	if w.Code != 200 {
		h.t.Fatalf("metrics: %d %s", w.Code, w.Body)
	}
	m := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if id, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(id, "gslbd_") {
			m[id] = v
		}
	}
	return m
}

func TestTelemetry(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		got := h.series()
		for id := range got {
			if strings.HasPrefix(id, "gslbd_site_report_age") || strings.HasPrefix(id, "gslbd_site_sessions") || strings.HasPrefix(id, "gslbd_site_bits") {
				t.Errorf("%s without any report", id)
			}
		}
		r := servers("virginia", "2.2.2.2", state.ServerDown)
		r.HasSessions, r.Sessions = true, 900_000
		r.HasBits, r.BitsIn, r.BitsOut = true, 1000, 2000
		h.report(r)
		svc := h.store.Snapshot().Services[0]
		svc.Counters.Add(0, uint8(policy.ReasonSingle), 0)
		svc.Counters.Add(0, uint8(policy.ReasonSingle), 0)
		got = h.series()
		for id, want := range map[string]string{
			`gslbd_blind`:       "0",
			`gslbd_rtt_entries`: "0",
			`gslbd_member_up{family="ipv4",member="seoul",service="www.gslb.example.com"}`:     "1",
			`gslbd_member_up{family="ipv6",member="seoul",service="www.gslb.example.com"}`:     "1",
			`gslbd_member_up{family="ipv4",member="virginia",service="www.gslb.example.com"}`:  "0",
			`gslbd_site_report_age_seconds{site="virginia"}`:                                   "1",
			`gslbd_site_sessions{site="virginia"}`:                                             "900000",
			`gslbd_site_bits_per_second{direction="in",site="virginia"}`:                       "1000",
			`gslbd_site_bits_per_second{direction="out",site="virginia"}`:                      "2000",
			`gslbd_site_overloaded{site="virginia"}`:                                           "1",
			`gslbd_site_overloaded{site="seoul"}`:                                              "0",
			`gslbd_site_rtt_blind{site="seoul"}`:                                               "0",
			`gslbd_pool_active{pool="primary",service="www.gslb.example.com"}`:                 "1",
			`gslbd_pool_active{pool="backup",service="www.gslb.example.com"}`:                  "0",
			`gslbd_pool_transitions_total{service="www.gslb.example.com"}`:                     "0",
			`gslbd_decisions_total{metric="single",service="www.gslb.example.com"}`:            "2",
			`gslbd_decisions_total{metric="health",service="www.gslb.example.com"}`:            "0",
			`gslbd_decisions_total{metric="on_all_down",service="www.gslb.example.com"}`:       "0",
			`gslbd_answers_total{member="seoul",service="www.gslb.example.com"}`:               "2",
			`gslbd_answers_total{member="virginia",service="www.gslb.example.com"}`:            "0",
			`gslbd_member_transitions_total{member="virginia",service="www.gslb.example.com"}`: "1",
		} {
			if got[id] != want {
				t.Errorf("%s is %q, want %q", id, got[id], want)
			}
		}
		if _, ok := got[`gslbd_member_up{family="ipv6",member="virginia",service="www.gslb.example.com"}`]; ok {
			t.Error("a series for a family that the member lacks")
		}
	})
}

func TestTelemetryFollowsTheConfiguration(t *testing.T) {
	var cfg *state.Config
	in(t, func(_ *admin.Options, c *state.Config) {
		cfg = c
		second := c.Services[0]
		second.Name, second.Aliases = "api.gslb.example.com", nil
		c.Services = append(c.Services, second)
	}, func(t *testing.T, h *house) {
		h.store.Snapshot().Services[0].Counters.Add(0, uint8(policy.ReasonSingle), 0)
		next := *cfg
		next.Services = next.Services[:1]
		h.store.Configure(&next)
		got := h.series()
		for id := range got {
			if strings.Contains(id, "api.gslb") {
				t.Errorf("%s outlived its service", id)
			}
		}
		if n := got[`gslbd_decisions_total{metric="single",service="www.gslb.example.com"}`]; n != "1" {
			t.Errorf("a reload of another service reset a counter: %s", n)
		}
	})
}

func TestTelemetryWithoutServices(t *testing.T) {
	extra := prometheus.NewCounter(prometheus.CounterOpts{Name: "gslbd_extra_total"})
	in(t, func(o *admin.Options, _ *state.Config) {
		o.PerService = false
		o.Collectors = []prometheus.Collector{extra}
	}, func(t *testing.T, h *house) {
		got := h.series()
		for id := range got {
			if strings.Contains(id, "service=") {
				t.Errorf("%s is by service", id)
			}
		}
		if got["gslbd_extra_total"] != "0" || got[`gslbd_site_overloaded{site="seoul"}`] != "0" {
			t.Errorf("%v", got)
		}
	})
	if _, err := admin.New(admin.Options{Collectors: []prometheus.Collector{extra, extra}}); err == nil {
		t.Error("the same collector twice is accepted")
	}
}

// TestStatusHeading has the new sessions of a site double, whose open ones follow: cascade_guard sheds before they do, and status says
// why.
func TestStatusHeading(t *testing.T) {
	for _, guard := range []bool{true, false} {
		in(t, func(_ *admin.Options, c *state.Config) {
			c.Sites[0].ShedFrom, c.Sites[0].CascadeGuard = 0.8, guard
		}, func(t *testing.T, h *house) {
			for i := range 40 {
				r := servers("seoul", "1.1.1.1", state.ServerUp)
				r.HasSessions, r.Sessions, r.HasNewSessions, r.NewSessions = true, 450_000, true, 7500
				if i >= 30 {
					r.Sessions, r.NewSessions = 600_000, 15_000
				}
				h.report(r)
			}
			var st admin.Status
			h.get("/v1/status", &st)
			site := st.Sites[0]
			if guard != (site.Heading != nil && *site.Heading > 0.8) || st.Sites[1].Heading != nil || guard != (site.Shed > 0) {
				t.Errorf("guard %v: sheds %g, heading for %v", guard, site.Shed, site.Heading)
			}
			said := slices.ContainsFunc(st.Problems, func(p admin.Problem) bool {
				return p.Subject == "site seoul" && strings.HasPrefix(p.Text, "sheds ") && strings.Contains(p.Text, "; its new sessions lead to ")
			})
			if said != guard {
				t.Errorf("guard %v: %+v", guard, st.Problems)
			}
		})
	}
}

func TestStatusZones(t *testing.T) {
	want := []admin.Zone{{Name: "gslb.example.com", Serial: 2026010101, Records: 12, ECS: true}, {Name: "plain.example.com", Serial: 1, Records: 3}}
	in(t, func(o *admin.Options, _ *state.Config) {
		o.Zones = func(*state.Snapshot) []admin.Zone { return want }
	}, func(t *testing.T, h *house) {
		var st admin.Status
		h.get("/v1/status", &st)
		if diff := cmp.Diff(want, st.Zones); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	in(t, nil, func(t *testing.T, h *house) {
		if w := h.do(call{path: "/v1/status"}); !strings.Contains(w.Body.String(), `"zones":[]`) {
			t.Errorf("without zones: %s", w.Body)
		}
	})
}
