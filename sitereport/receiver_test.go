package sitereport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/state"
)

// A sink stands for the Store.
type sink struct {
	mu      sync.Mutex
	reports []*state.Report
	result  state.ReportResult
	err     error
}

func (s *sink) report(r *state.Report) (state.ReportResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return state.ReportResult{}, s.err
	}
	s.reports = append(s.reports, r)
	return s.result, nil
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reports)
}

func newReceiver(s *sink, log *zap.Logger) *Receiver {
	return NewReceiver(ReceiverOptions{
		Report: s.report,
		Log:    log,
		Config: ReceiverConfig{Sites: []ReceiverSite{
			{Name: "seoul", Tokens: []string{"token of seoul"}},
			{Name: "virginia", Tokens: []string{"token of virginia"}},
			{Name: "lab"},
		}},
	})
}

// A request is one report to send to a handler.
type request struct {
	method, path, body string
	from               string
	header             map[string]string
}

func send(h http.Handler, q request) (*httptest.ResponseRecorder, Answer) {
	if q.method == "" {
		q.method = http.MethodPost
	}
	if q.from == "" {
		q.from = "192.0.2.7:4000"
	}
	req := httptest.NewRequest(q.method, q.path, strings.NewReader(q.body))
	req.RemoteAddr = q.from
	req.Host = "127.0.0.1:8054"
	req.Header.Set("Content-Type", "application/json")
	for k, v := range q.header {
		if v == "" {
			req.Header.Del(k)
		} else if k == "Host" {
			req.Host = v
		} else {
			req.Header.Set(k, v)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	var a Answer
	_ = json.Unmarshal(w.Body.Bytes(), &a)
	return w, a
}

func TestReceiverAdmits(t *testing.T) {
	const seoul, lab = "/v1/sites/seoul/report", "/v1/sites/lab/report"
	token := func(s string) map[string]string { return map[string]string{"Authorization": s} }
	for _, c := range []struct {
		name   string
		q      request
		status int
		err    string
	}{
		{"token", request{path: seoul, body: `{"site":"seoul"}`, header: token("Bearer token of seoul")}, 200, ""},
		{"scheme in lower case", request{path: seoul, body: `{"site":"seoul"}`, header: token("bearer  token of seoul")}, 200, ""},
		{"no token", request{path: seoul, body: `{"site":"seoul"}`}, 401, "the token is missing or not that of the site"},
		{"no token from loopback", request{path: seoul, body: `{"site":"seoul"}`, from: "127.0.0.1:5"}, 401, "the token is missing"},
		{"wrong token", request{path: seoul, body: `{"site":"seoul"}`, header: token("Bearer tokem of seoul")}, 401, "the token is missing or not"},
		{"basic", request{path: seoul, body: `{"site":"seoul"}`, header: token("Basic token of seoul")}, 401, "the token is missing"},
		{"empty token", request{path: seoul, body: `{"site":"seoul"}`, header: token("Bearer ")}, 401, "the token is missing"},
		{"token of another site", request{path: seoul, body: `{"site":"seoul"}`, header: token("Bearer token of virginia")}, 403, "the token is that of another site"},
		{"unknown site, known token", request{path: "/v1/sites/seol/report", body: `{}`, header: token("Bearer token of seoul")}, 404, `site: there is no site "seol"`},
		{"unknown site from loopback", request{path: "/v1/sites/seol/report", body: `{}`, from: "[::1]:5"}, 404, `site: there is no site "seol"`},
		{"unknown site from a stranger", request{path: "/v1/sites/seol/report", body: `{}`}, 401, "the token is missing or not that of the site"},
		{"unknown site, unknown token", request{path: "/v1/sites/seol/report", body: `{}`, header: token("Bearer x"), from: "127.0.0.1:5"}, 401, "the token is missing or not"},
		{"loopback", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5"}, 200, ""},
		{"loopback in IPv6", request{path: lab, body: `{"site":"lab"}`, from: "[::ffff:127.0.0.1]:5"}, 200, ""},
		{"no token configured", request{path: lab, body: `{"site":"lab"}`}, 403, "the site has no token, so its reports are accepted from loopback addresses only"},
		{"no token configured, one presented", request{path: lab, body: `{"site":"lab"}`, header: token("Bearer ")}, 403, "the site has no token"},
		{"token of another site at one without", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: token("Bearer token of seoul")}, 403, "the token is that of another site"},
		{"web page", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Origin": "http://evil.example"}}, 403, "the request comes from a web page"},
		{"rebound name", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Host": "evil.example:8054"}}, 403, `Host: "evil.example:8054" does not name this machine`},
		{"localhost", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Host": "localhost:8054"}}, 200, ""},
		{"form", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}}, 415, `send "Content-Type: application/json"`},
		{"no content type", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Content-Type": ""}}, 415, `send "Content-Type: application/json"`},
		{"charset", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Content-Type": "application/json; charset=utf-8"}}, 200, ""},
		{"compressed", request{path: lab, body: `{"site":"lab"}`, from: "127.0.0.1:5", header: map[string]string{"Content-Encoding": "gzip"}}, 415, "send the report without Content-Encoding"},
		{"unreadable", request{path: lab, body: `{"site":"lab","load":{"sessions":-1}}`, from: "127.0.0.1:5"}, 400, "load.sessions: -1 is not between"},
		{"another site's report", request{path: lab, body: `{"site":"seoul"}`, from: "127.0.0.1:5"}, 400, `site: "seoul" is not "lab"`},
		{"too large", request{path: lab, body: `{"site":"lab","x":"` + strings.Repeat("x", MaxReport) + `"}`, from: "127.0.0.1:5"}, 413, "the report has 4194325 bytes"},
		{"method", request{method: "PUT", path: lab}, 405, ""},
		{"path", request{path: "/v1/sites/lab"}, 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := new(sink)
			w, a := send(newReceiver(s, nil).Handler(), c.q)
			if w.Code != c.status || !strings.HasPrefix(a.Error, c.err) || (a.Error == "") != (c.err == "") {
				t.Fatalf("got %d %s, want %d %s", w.Code, w.Body, c.status, c.err)
			}
			if a.Accepted != (c.status == 200) || s.count() != map[bool]int{true: 1}[a.Accepted] {
				t.Errorf("accepted %v, applied %d times", a.Accepted, s.count())
			}
			if c.status == 401 && w.Header().Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
			if strings.Contains(w.Body.String(), "tokem") {
				t.Error("the answer repeats the token")
			}
		})
	}
}

func TestReceiverAnswers(t *testing.T) {
	s := &sink{result: state.ReportResult{
		Probe:    []state.ProbeTarget{{Resolver: netip.MustParseAddr("203.0.113.53"), Methods: []state.RTTMethod{state.RTTICMP}}},
		Warnings: []string{`virtual server "web" matches no member`},
		Services: []state.ServiceState{
			{Name: "www", State: "active", VirtualServers: []string{"web"}},
			{Name: "api", State: "draining", Deadline: 300 * time.Second, VirtualServers: []string{"web", "192.0.2.1:80"}},
			{Name: "old", State: "inactive"},
		},
		Drain:     []string{"web"},
		Restore:   []state.DrainedServers{{VirtualServer: "db", Servers: []string{"d1"}}},
		DeadAfter: time.Minute,
	}}
	r := newReceiver(s, nil)
	post := request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab"}`}
	w, _ := send(r.Handler(), post)
	want := `{"accepted":true,"interval_ms":5000,"probe":[{"resolver":"203.0.113.53"}],` +
		`"services":[{"name":"www","state":"active","virtual_servers":["web"]},` +
		`{"name":"api","state":"draining","deadline_ms":300000,"virtual_servers":["web","192.0.2.1:80"]},{"name":"old","state":"inactive"}],` +
		`"drain":["web"],"restore":[{"virtual_server":"db","servers":["d1"]}],"dead_after_ms":60000,"warnings":["virtual server \"web\" matches no member"]}` + "\n"
	if w.Body.String() != want {
		t.Errorf("got  %swant %s", w.Body, want)
	}

	r.Set(ReceiverConfig{Sites: []ReceiverSite{{Name: "lab"}}, Interval: 2 * time.Second})
	s.result.Probe[0].Methods = []state.RTTMethod{state.RTTICMP, state.RTTDNS}
	post.body = `{"site":"lab","agent":"second"}`
	w, _ = send(r.Handler(), post)
	want = `{"accepted":true,"interval_ms":2000,"probe":[{"resolver":"203.0.113.53","methods":["icmp","dns"]}]`
	if !strings.HasPrefix(w.Body.String(), want) {
		t.Errorf("got %swant %s", w.Body, want)
	}

	s.err = errors.New("the store is closed")
	post.body = `{"site":"lab","agent":"third","sequence":7}`
	w, a := send(r.Handler(), post)
	if w.Code != 503 || a.Error != "the report was not applied: the store is closed" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	s.err = nil
	if w, _ = send(r.Handler(), post); w.Code != 200 {
		t.Errorf("the same report after the failure: %d %s", w.Code, w.Body)
	}
}

// TestReceiverOrder drives one receiver through the life of agents.
func TestReceiverOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(sink)
		h := newReceiver(s, nil).Handler()
		applied := 0
		for i, c := range []struct {
			wait   time.Duration
			fields string
			status int
			err    string
			again  bool // 200, and not applied
		}{
			{0, `"boot_id":"b1","sequence":10`, 200, "", false},
			{0, `"boot_id":"b1","sequence":10`, 200, "", true}, // an identical retry is not limited
			{0, `"boot_id":"b1","sequence":10,"load":{"sessions":1}`, 409, "sequence: 10 was that of another report", false},
			{0, `"boot_id":"b1","sequence":11`, 429, `the last report of agent "default" was 0 ms ago, and the interval is 5s`, false},
			{0, `"agent":"lb2","boot_id":"x","sequence":1`, 200, "", false}, // another agent is
			{999 * time.Millisecond, `"boot_id":"b1","sequence":11`, 429, "the last report", false},
			{time.Millisecond, `"boot_id":"b1","sequence":11`, 200, "", false},
			{time.Second, `"boot_id":"b1","sequence":10`, 409, "sequence: 10 was followed by 11", false},
			{0, `"boot_id":"b1","sequence":20`, 200, "", false}, // gaps are fine
			{time.Second, `"boot_id":"b2","sequence":1`, 200, "", false},
			{time.Second, `"boot_id":"b1","sequence":21`, 409, `boot_id: "b1" was followed by "b2"`, false},
			{0, `"boot_id":"b2","sequence":1`, 200, "", true},
			{0, `"boot_id":"b2","sequence":0`, 409, "sequence: 0 was followed by 1", false},
			{time.Second, `"boot_id":"b2"`, 200, "", false},             // without a sequence it is not checked
			{time.Second, `"sequence":0`, 200, "", false},               // nor without a boot_id, where there was one
			{time.Second, `"boot_id":"b2","sequence":1`, 200, "", true}, // and the two leave what is known alone
			{time.Second, `"boot_id":"b2","sequence":2`, 200, "", false},
			{time.Second, `"agent":"curl"`, 200, "", false},
			{time.Second, `"agent":"curl"`, 200, "", false},
			{time.Second, `"agent":"shell","sequence":5`, 200, "", false},
			{time.Second, `"agent":"shell","sequence":5`, 200, "", true},
			{time.Second, `"agent":"shell","sequence":4`, 409, "sequence: 4 was followed by 5", false},
		} {
			time.Sleep(c.wait)
			w, a := send(h, request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab",` + c.fields + `}`})
			if w.Code != c.status || !strings.HasPrefix(a.Error, c.err) {
				t.Fatalf("%d: %s: got %d %s, want %d %s", i, c.fields, w.Code, w.Body, c.status, c.err)
			}
			if c.status == 200 && !c.again {
				applied++
			}
			if s.count() != applied {
				t.Fatalf("%d: %s: applied %d times, want %d", i, c.fields, s.count(), applied)
			}
			if c.status == 429 && w.Header().Get("Retry-After") != "1" {
				t.Errorf("%d: 429 without Retry-After", i)
			}
		}
	})
}

func TestReceiverRemembersOverReload(t *testing.T) {
	s := new(sink)
	r := newReceiver(s, nil)
	post := request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab","boot_id":"b","sequence":7}`}
	send(r.Handler(), post)
	r.Set(ReceiverConfig{Sites: []ReceiverSite{{Name: "lab", Tokens: []string{"new"}}}})
	if w, _ := send(r.Handler(), post); w.Code != 401 {
		t.Errorf("without the new token: %d", w.Code)
	}
	post.header = map[string]string{"Authorization": "Bearer new"}
	post.body = `{"site":"lab","boot_id":"b","sequence":6}`
	if w, _ := send(r.Handler(), post); w.Code != 409 {
		t.Errorf("an old sequence after a reload: %d", w.Code)
	}
	post.path, post.body = "/v1/sites/seoul/report", `{"site":"seoul"}`
	if w, _ := send(r.Handler(), post); w.Code != 404 {
		t.Errorf("a site that the reload removed: %d", w.Code)
	}
}

func TestReceiverBoundsAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(sink)
		r := newReceiver(s, nil)
		post := func(agent string) (int, string) {
			w, a := send(r.Handler(), request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: fmt.Sprintf(`{"site":"lab","agent":%q}`, agent)})
			return w.Code, a.Error
		}
		for i := range MaxAgents {
			if code, why := post(fmt.Sprint(i)); code != 200 {
				t.Fatalf("agent %d: %d %s", i, code, why)
			}
			time.Sleep(time.Second)
		}
		if code, why := post("one more"); code != 429 || why != "agent: 16 others of the site reported within a minute, which is the most" {
			t.Errorf("one more: %d %s", code, why)
		}
		time.Sleep(agentForget - MaxAgents*time.Second)
		if code, why := post("one more"); code != 200 {
			t.Errorf("one more after the first was silent for a minute: %d %s", code, why)
		}
		if code, _ := post("another"); code != 429 {
			t.Errorf("another: %d", code)
		}
		site := r.config.Load().sites["lab"]
		if len(site.agents) != MaxAgents || site.agents["0"] != nil {
			t.Errorf("%d agents, the first is %v", len(site.agents), site.agents["0"])
		}
		for i := range 100 {
			time.Sleep(time.Second)
			send(r.Handler(), request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: fmt.Sprintf(`{"site":"lab","agent":"1","boot_id":"%d"}`, i)})
		}
		if n := len(site.agents["1"].retired); n != maxRetired {
			t.Errorf("%d retired boots are kept", n)
		}
	})
}

func TestReceiverBoundsReading(t *testing.T) {
	s := new(sink)
	r := newReceiver(s, nil)
	site := r.config.Load().sites["lab"]
	for range maxReading {
		site.reading <- struct{}{}
	}
	if w, a := send(r.Handler(), request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab"}`}); w.Code != 429 {
		t.Errorf("got %d %s", w.Code, a.Error)
	}
	auth := map[string]string{"Authorization": "Bearer token of seoul"}
	if w, a := send(r.Handler(), request{path: "/v1/sites/seoul/report", body: `{"site":"seoul"}`, header: auth}); w.Code != 200 {
		t.Errorf("another site suffers: %d %s", w.Code, a.Error)
	}
}

func TestReceiverLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		r := newReceiver(new(sink), zap.New(core))
		bad := request{path: "/v1/sites/seoul/report", body: `{}`, header: map[string]string{"Authorization": "Bearer secret-guess"}}
		for range 50 {
			send(r.Handler(), bad)
		}
		if n := logs.FilterMessage("report refused").Len(); n != 1 {
			t.Errorf("%d lines for the same reason", n)
		}
		time.Sleep(refusalLogEvery)
		send(r.Handler(), bad)
		got := logs.FilterMessage("report refused").TakeAll()
		if len(got) != 2 || got[1].ContextMap()["unlogged_since"] != int64(49) || got[1].ContextMap()["site"] != "seoul" {
			t.Errorf("%v", got)
		}
		for range 3 {
			send(r.Handler(), request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab","boot_id":"a"}`})
			time.Sleep(5 * time.Second)
		}
		if n := logs.FilterMessage("agent reports").Len(); n != 1 {
			t.Errorf("the first report of an agent is logged %d times", n)
		}
		send(r.Handler(), request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab","boot_id":"b"}`})
		if n := logs.FilterMessage("agent restarted").Len(); n != 1 {
			t.Errorf("a restart is logged %d times", n)
		}
		for _, l := range append(got, logs.All()...) {
			if text := fmt.Sprint(l.Message, l.ContextMap()); strings.Contains(text, "secret-guess") {
				t.Errorf("a token in the log: %s", text)
			}
		}
	})
}

func TestReceiverCounts(t *testing.T) {
	r := newReceiver(new(sink), nil)
	post := request{path: "/v1/sites/lab/report", from: "127.0.0.1:5", body: `{"site":"lab","sequence":1}`}
	send(r.Handler(), post)
	send(r.Handler(), post)
	for _, site := range []string{"x", "y", "z"} {
		send(r.Handler(), request{path: "/v1/sites/" + site + "/report", body: "{}"})
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r)
	if n, err := testutil.GatherAndCount(reg, "gslbd_reports_total"); err != nil || n != 3*int(results)+1 {
		t.Errorf("%d series, %v", n, err)
	}
	r.Set(ReceiverConfig{Sites: []ReceiverSite{{Name: "lab"}}})
	want := `# HELP gslbd_reports_total Reports received, by site and result.
# TYPE gslbd_reports_total counter
gslbd_reports_total{result="accepted",site="lab"} 1
gslbd_reports_total{result="failed",site="lab"} 0
gslbd_reports_total{result="forbidden",site="lab"} 0
gslbd_reports_total{result="outdated",site="lab"} 0
gslbd_reports_total{result="repeated",site="lab"} 1
gslbd_reports_total{result="too_large",site="lab"} 0
gslbd_reports_total{result="too_soon",site="lab"} 0
gslbd_reports_total{result="unauthorized",site=""} 3
gslbd_reports_total{result="unauthorized",site="lab"} 0
gslbd_reports_total{result="unknown_site",site="lab"} 0
gslbd_reports_total{result="unreadable",site="lab"} 0
gslbd_reports_total{result="unsupported",site="lab"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestReceiverServes(t *testing.T) {
	s := new(sink)
	srv := httptest.NewServer(newReceiver(s, nil).Handler())
	defer srv.Close()

	url := srv.URL + "/v1/sites/lab/report"
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"site":"lab","agent":"%d"}`, i)
			for {
				resp, err := http.Post(url, "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode == 429 && bytes.Contains(text, []byte("are being read")) {
					continue // eight agents at once are more than are read at once
				}
				if resp.StatusCode != 200 {
					t.Errorf("agent %d: %s: %s", i, resp.Status, text)
				}
				return
			}
		})
	}
	wg.Wait()
	// Without a length, and over the limit.
	req, _ := http.NewRequestWithContext(t.Context(), "POST", url, io.MultiReader(strings.NewReader(`{"site":"lab","x":"`), strings.NewReader(strings.Repeat("x", MaxReport))))
	req.Header.Set("Content-Type", "application/json")
	req.ContentLength = -1
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("a chunked report over the limit: %s", resp.Status)
	}
	if s.count() != 8 {
		t.Errorf("%d reports applied, want 8", s.count())
	}
}

// What refuses the reports of a site is told for as long as it goes on, and until one is accepted.
func TestReceiverRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReceiver(ReceiverOptions{
			Report: func(*state.Report) (state.ReportResult, error) { return state.ReportResult{}, nil },
			Config: ReceiverConfig{Sites: []ReceiverSite{{Name: "seoul"}, {Name: "virginia"}}, Interval: time.Second},
		})
		post := func(body string) {
			req := httptest.NewRequest("POST", "http://127.0.0.1/v1/sites/seoul/report", strings.NewReader(body))
			req.RemoteAddr = "127.0.0.1:1234"
			req.Header.Set("Content-Type", "application/json")
			r.Handler().ServeHTTP(httptest.NewRecorder(), req)
		}
		begin := time.Now()
		post("{")
		time.Sleep(2 * time.Second)
		post(`{"site": "busan"}`)
		got := r.Refusals()
		if len(got) != 1 || got[0].Site != "seoul" || !strings.Contains(got[0].Why, "busan") || !got[0].Since.Equal(begin) {
			t.Fatalf("got %+v", got)
		}
		time.Sleep(time.Minute)
		if got := r.Refusals(); len(got) != 0 {
			t.Errorf("long after the last: %+v", got)
		}
		post("{")
		time.Sleep(2 * time.Second)
		post(`{"site": "seoul"}`)
		if got := r.Refusals(); len(got) != 0 {
			t.Errorf("after one was accepted: %+v", got)
		}
	})
}
