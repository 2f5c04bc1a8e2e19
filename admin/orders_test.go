package admin_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/admin"
	"gslbd/control"
	"gslbd/state"
)

// orders is a control that remembers what it was told, and answers what it is told to.
type orders struct {
	got     []any
	by      []control.Caller
	receipt control.Receipt
	err     error
	plan    control.Plan
	planErr error

	orders      []control.OrderState
	evacuations []control.EvacuationState
	problems    []string
	events      []control.Event
}

func (o *orders) give(v any, by control.Caller) (control.Receipt, error) {
	o.got, o.by = append(o.got, v), append(o.by, by)
	return o.receipt, o.err
}

func (o *orders) Problems() []string                     { return o.problems }
func (o *orders) Orders() []control.OrderState           { return o.orders }
func (o *orders) Evacuations() []control.EvacuationState { return o.evacuations }

func (o *orders) Events(since time.Time, service, site string) []control.Event {
	return slices.DeleteFunc(slices.Clone(o.events), func(e control.Event) bool {
		return e.Time.Before(since) || (service != "" && service != e.Service) || site != ""
	})
}

func (o *orders) Force(_ context.Context, v control.Order, by control.Caller) (control.Receipt, error) {
	return o.give(v, by)
}

func (o *orders) Clear(_ context.Context, v control.Tombstone, by control.Caller) (control.Receipt, error) {
	return o.give(v, by)
}

func (o *orders) Failback(_ context.Context, v control.Failback, by control.Caller) (control.Receipt, error) {
	return o.give(v, by)
}

func (o *orders) Evacuate(_ context.Context, v control.EvacuationRequest, by control.Caller) (control.Receipt, error) {
	return o.give(v, by)
}

func (o *orders) Restore(_ context.Context, v control.RestorationRequest, by control.Caller) (control.Receipt, error) {
	return o.give(v, by)
}

func (o *orders) Plan(_ context.Context, v control.EvacuationRequest) (control.Plan, error) {
	o.got = append(o.got, v)
	return o.plan, o.planErr
}

// ordering runs a test in a bubble, with a house whose orders are kept by a stub and whose log is seen.
func ordering(t *testing.T, test func(t *testing.T, h *house, o *orders, log *observer.ObservedLogs)) {
	o := &orders{receipt: control.Receipt{ID: "the id", Node: "gslb1", Shared: "etcd"}}
	core, log := observer.New(zapcore.InfoLevel)
	in(t, func(opts *admin.Options, _ *state.Config) {
		opts.Control, opts.Log = o, zap.New(core)
	}, func(t *testing.T, h *house) { test(t, h, o, log) })
}

// post is a call that gives an order.
func post(path, body string) call {
	return call{method: http.MethodPost, path: path, body: body, header: map[string]string{"Content-Type": "application/json"}}
}

func TestOrdersReachControl(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const when = `"created":"2026-03-01T12:00:00Z"`
	for _, c := range []struct {
		name string
		call call
		want any
	}{
		{
			"force", post("/v1/orders", `{"id":"1",`+when+`,"author":"a","reason":"r","expires":"2026-03-01T12:00:00Z","target":{"site":"seoul"},"action":"down"}`),
			control.Order{ID: "1", Created: at, Author: "a", Reason: "r", Expires: at, Target: control.Target{Site: "seoul"}, Action: "down"},
		},
		{
			"clear",
			call{method: http.MethodDelete, path: "/v1/orders/1", body: `{` + when + `,"author":"a"}`, header: map[string]string{"Content-Type": "application/json"}},
			control.Tombstone{ID: "1", Created: at, Author: "a"},
		},
		{
			"evacuate", post("/v1/evacuations", `{"id":"2",`+when+`,"author":"a","reason":"r","zone":"z","types":["member","exec"],"stages":[0.25,1],"pause_ms":1000,"force":true,"execute":true}`),
			control.EvacuationRequest{
				Evacuation: control.Evacuation{ID: "2", Created: at, Author: "a", Reason: "r", Zone: "z", Types: []string{"member", "exec"}, Stages: []float64{0.25, 1}, PauseMS: 1000},
				Force:      true, Execute: true,
			},
		},
		{
			"restore", post("/v1/restorations", `{"id":"3",`+when+`,"author":"a","zone":"z","type":"agent"}`),
			control.RestorationRequest{ID: "3", Created: at, Author: "a", Zone: "z", Type: "agent"},
		},
		{
			"failback", post("/v1/failback", `{"id":"4",`+when+`,"author":"a","service":"WWW.gslb.example.com."}`),
			control.Failback{ID: "4", Created: at, Author: "a", Service: "www.gslb.example.com"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ordering(t, func(t *testing.T, h *house, o *orders, log *observer.ObservedLogs) {
				w := h.do(c.call)
				if want := `{"id":"the id","node":"gslb1","shared":"etcd","repeated":false,"warnings":[]}` + "\n"; w.Code != 200 || w.Body.String() != want {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if d := cmp.Diff([]any{c.want}, o.got); d != "" {
					t.Error(d)
				}
				if want := (control.Caller{Remote: "127.0.0.1:4711", Auth: "loopback"}); len(o.by) != 1 || o.by[0] != want {
					t.Errorf("by %+v, want %+v", o.by, want)
				}
				// The same order refused, for every reason that there is.
				for err, status := range map[error]int{
					control.ErrInvalid: 400, control.ErrNotFound: 404, control.ErrRefused: 409, control.ErrUnavailable: 503, errors.New("a bug"): 500,
				} {
					o.err = fmt.Errorf("try another: %w", err)
					o.planErr = o.err // of a zone that is not there
					if w := h.do(c.call); w.Code != status || w.Body.String() != fmt.Sprintf(`{"error":"try another: %v"}`+"\n", err) {
						t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, status)
					}
				}
				o.err = fmt.Errorf("control: %w: no site; there are seoul", control.ErrInvalid)
				o.planErr = o.err
				if w := h.do(c.call); w.Body.String() != `{"error":"no site; there are seoul"}`+"\n" {
					t.Errorf("an operator reads %s", w.Body)
				}
				if lines := log.TakeAll(); len(lines) != 0 {
					t.Errorf("logged here what control logs: %+v", lines)
				}

				// A body that is not quite right reaches nobody.
				o.got = nil
				for body, want := range map[string]string{
					`{"reasn":"x"}`: `400 the body is not the JSON that is wanted here: json: unknown field \"reasn\"`,
					`{} {}`:         `400 the body is not the JSON that is wanted here: something follows the JSON object`,
					`{}x`:           `400 the body is not the JSON that is wanted here: something follows the JSON object`,
					``:              `400 the body is not the JSON that is wanted here: it is empty`,
					`{"author":1}`:  `400 the body is not the JSON that is wanted here: json: cannot unmarshal number`,
					`{"` + strings.Repeat("x", 60_000) + `":1}`: `400 the body is not the JSON that is wanted here: json: unknown field`,
					`[]`: `400 the body is not the JSON that is wanted here: json: cannot unmarshal array`,
					`{"author":"` + strings.Repeat("x", 1<<17) + `"}`: `413 the body is longer than 65536 bytes`,
					`{}` + strings.Repeat(" ", 1<<17):                 `413 the body is longer than 65536 bytes`,
				} {
					bad := c.call
					bad.body = body
					w := h.do(bad)
					if got := fmt.Sprint(w.Code, " ", strings.TrimPrefix(w.Body.String(), `{"error":"`)); !strings.HasPrefix(got, want) {
						t.Errorf("%.40s: got %s, want %s", body, got, want)
					}
					lines := log.TakeAll()
					if len(lines) != 1 || lines[0].Message != "order refused" || lines[0].ContextMap()["auth"] != "loopback" || len(fmt.Sprint(lines[0].ContextMap())) > 600 {
						t.Errorf("%.40s: the log has %+v", body, lines)
					}
				}
				if o.got != nil {
					t.Errorf("control was told %v", o.got)
				}
			})
		})
	}
}

func TestRefusedInTheLog(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, _ *orders, log *observer.ObservedLogs) {
		h.do(post("/v1/orders", `{"`+strings.Repeat("한", 10_000)+`":1}`))
		lines := log.TakeAll()
		if len(lines) != 1 {
			t.Fatalf("the log has %+v", lines)
		}
		text := fmt.Sprint(lines[0].ContextMap()["error"])
		if !utf8.ValidString(text) || !strings.Contains(text, "한… (30") || len(text) > 300 {
			t.Errorf("the error is logged as %q", text)
		}
	})
}

func TestClearNamesOneOrder(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, o *orders, _ *observer.ObservedLogs) {
		header := map[string]string{"Content-Type": "application/json"}
		w := h.do(call{method: http.MethodDelete, path: "/v1/orders/1", body: `{"id":"2"}`, header: header})
		if w.Code != 400 || !strings.Contains(w.Body.String(), `it names the order \"2\", the address \"1\"`) || o.got != nil {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := h.do(call{method: http.MethodDelete, path: "/v1/orders/1", body: `{"id":"1"}`, header: header}); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if got, want := o.got, []any{control.Tombstone{ID: "1", Created: time.Now()}}; !cmp.Equal(got, want) {
			t.Error(cmp.Diff(want, got))
		}
	})
}

func TestOrderLists(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, o *orders, _ *observer.ObservedLogs) {
		for path, want := range map[string]string{"/v1/orders": `"orders":[]}`, "/v1/evacuations": `"evacuations":[]}`, "/v1/drains": `"drains":[]}`} {
			if w := h.do(call{path: path}); w.Code != 200 || !strings.HasSuffix(strings.TrimSpace(w.Body.String()), want) {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		o.orders = []control.OrderState{{Order: control.Order{ID: "1", Action: "down", Target: control.Target{Zone: "z"}}, Shared: "etcd", Members: 2}}
		o.evacuations = []control.EvacuationState{{Evacuation: control.Evacuation{ID: "2", Zone: "z"}, Share: 0.5}}
		var orders admin.OrderList
		h.get("/v1/orders", &orders)
		if !cmp.Equal(orders.Orders, o.orders) || !orders.Time.Equal(time.Now()) {
			t.Errorf("%+v", orders)
		}
		var one control.OrderState
		h.get("/v1/orders/1", &one)
		if !cmp.Equal(one, o.orders[0]) {
			t.Errorf("%+v", one)
		}
		if w := h.do(call{path: "/v1/orders/2"}); w.Code != 404 || !strings.Contains(w.Body.String(), `no order with the id \"2\" is in force`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		var evacuations admin.EvacuationList
		h.get("/v1/evacuations", &evacuations)
		if len(evacuations.Evacuations) != 1 || evacuations.Evacuations[0].Share != 0.5 || evacuations.Evacuations[0].Ledger == nil {
			t.Errorf("%+v", evacuations)
		}
	})
}

func TestWithoutControl(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		for _, c := range []call{{path: "/v1/orders"}, {path: "/v1/evacuations"}, post("/v1/orders", "{}"), post("/v1/failback", "{}")} {
			if w := h.do(c); w.Code != 503 || !strings.Contains(w.Body.String(), "keeps no orders") {
				t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
			}
		}
	})
}

// forcing sets what is ordered for the member at virginia.
func (h *house) forcing(f state.Force) {
	h.store.SetOrders(state.Orders{Force: func(_, member, _, _ string) state.Force {
		if member == "virginia" {
			return f
		}
		return state.Force{}
	}})
	synctest.Wait()
}

func TestDrains(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, _ *orders, _ *observer.ObservedLogs) {
		start := time.Now()
		time.Sleep(10 * time.Second)
		r := servers("virginia", "2.2.2.2", state.ServerUp)
		r.HasSessions, r.Sessions = true, 42
		h.report(r)
		since := time.Now()
		h.forcing(state.Force{Forced: state.ForcedDrain, Why: "alice: patches", Since: since})
		var l admin.DrainList
		h.get("/v1/drains", &l)
		for i := range l.Drains {
			l.Drains[i].Since = time.Time{} // see TestSnapshotOfOrders
		}
		want := admin.Drain{
			Service: name, Member: "virginia", Site: "virginia", Zone: "use1-az1", Forced: "drain", Why: "alice: patches",
			CachedUntil: start.Add(30 * time.Second).UTC(), SecondsLeft: time.Until(start.Add(30 * time.Second)).Seconds(), SiteSessions: new(uint64(42)),
		}
		if d := cmp.Diff([]admin.Drain{want}, l.Drains, cmp.Transformer("utc", func(t time.Time) time.Time { return t.UTC() })); d != "" {
			t.Error(d)
		}
		time.Sleep(time.Minute)
		l = admin.DrainList{}
		h.get("/v1/drains", &l)
		if len(l.Drains) != 1 || l.Drains[0].SecondsLeft != 0 || l.Drains[0].SiteSessions != nil {
			t.Errorf("a minute later: %+v", l.Drains)
		}

		h.forcing(state.Force{Forced: state.ForcedUp, Since: since})
		l = admin.DrainList{}
		if h.get("/v1/drains", &l); len(l.Drains) != 0 {
			t.Errorf("forced up: %+v", l.Drains)
		}
	})
}

func TestPreview(t *testing.T) {
	o := &orders{}
	in(t, func(opts *admin.Options, _ *state.Config) {
		opts.Control = o
		opts.Clients = func(string) []state.Client {
			return []state.Client{{LDNS: addr("192.0.2.1")}, {LDNS: addr("192.0.2.2")}}
		}
	}, func(t *testing.T, h *house) {
		o.plan = control.Plan{Zone: "use1-az1", Refusals: []string{"too few"}, Force: func(_, member, _, _ string) state.Force {
			if member == "virginia" {
				return state.Force{Forced: state.ForcedEvacuated}
			}
			return state.Force{}
		}}
		var p admin.Preview
		w := h.do(post("/v1/evacuations", `{"zone":"use1-az1","dry_run":true}`))
		if err := json.Unmarshal(w.Body.Bytes(), &p); w.Code != 200 || err != nil {
			t.Fatalf("%d %v %s", w.Code, err, w.Body)
		}
		if p.Plan.Zone != "use1-az1" || p.Plan.Resources == nil || len(p.Plan.Refusals) != 1 {
			t.Errorf("plan %+v", p.Plan)
		}
		if len(p.Forecast.Services) != 1 || p.Forecast.Services[0].Clients != 2 {
			t.Fatalf("forecast %+v", p.Forecast)
		}
		for _, site := range p.Forecast.Services[0].Shares.Sites {
			if want := map[string]float64{"seoul": 1, "virginia": 0}[site.Site]; site.After != want {
				t.Errorf("%s gets %v, want %v", site.Site, site.After, want)
			}
		}
		if want := []any{control.EvacuationRequest{Evacuation: control.Evacuation{Zone: "use1-az1"}}}; !cmp.Equal(o.got, want) {
			t.Error(cmp.Diff(want, o.got))
		}
		if h.store.Snapshot().Services[0].Members[1].Forced != state.NotForced {
			t.Error("a dry run forces members")
		}
		o.planErr = fmt.Errorf("%w: there are use1-az1", control.ErrNotFound)
		if w := h.do(post("/v1/evacuations", `{"zone":"x","dry_run":true}`)); w.Code != 404 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A restoration may be given twice: where nothing is evacuated any more, there is nothing to do. An unknown zone is an error.
func TestNothingToRestore(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, o *orders, _ *observer.ObservedLogs) {
		o.err = fmt.Errorf("control: %w: nothing of type agent is evacuated in zone use1-az1; evacuated are none", control.ErrNothing)
		for _, body := range []string{`{"id":"3"}`, `{"id":"3","zone":"use1-az1"}`} {
			w := h.do(post("/v1/restorations", body))
			if want := `{"nothing":"nothing of type agent is evacuated in zone use1-az1; evacuated are none"}` + "\n"; w.Code != 200 || w.Body.String() != want {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
		o.err = fmt.Errorf("control: %w: no zone; there are use1-az1", control.ErrNotFound)
		if w := h.do(post("/v1/restorations", `{"id":"3","zone":"mars"}`)); w.Code != 404 {
			t.Errorf("unknown zone: %d %s", w.Code, w.Body)
		}
	})
}

// certificate is what a listener has verified of a client.
func certificate(c x509.Certificate) *tls.ConnectionState {
	c.SerialNumber = big.NewInt(7)
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{&c}}}
}

func TestWhoMayOrder(t *testing.T) {
	const remote = "192.0.2.9:4711"
	alice := certificate(x509.Certificate{Subject: pkix.Name{CommonName: "alice"}})
	for _, c := range []struct {
		name    string
		noToken bool
		tls     *tls.ConnectionState
		call    call
		status  int
		auth    string
	}{
		{name: "loopback", status: 200, auth: "loopback"},
		{name: "remote", call: call{from: remote}, status: 401},
		{name: "token", call: call{from: remote, header: map[string]string{"Authorization": "Bearer the token"}}, status: 200, auth: "token"},
		{name: "other token of a rollover", call: call{from: remote, header: map[string]string{"Authorization": "Bearer the next token"}}, status: 200, auth: "token"},
		{name: "wrong token", call: call{from: remote, header: map[string]string{"Authorization": "Bearer the"}}, status: 401},
		{name: "empty token", call: call{from: remote, header: map[string]string{"Authorization": "Bearer "}}, status: 401},
		{name: "certificate", tls: alice, call: call{from: remote, host: "gslb1.example.com"}, status: 200, auth: "certificate alice"},
		{name: "certificate without a token set", noToken: true, tls: alice, call: call{from: remote}, status: 200, auth: "certificate alice"},
		{name: "certificate on loopback", tls: alice, status: 200, auth: "certificate alice"},
		{name: "certificate and token", tls: alice, call: call{from: remote, header: map[string]string{"Authorization": "Bearer the token"}}, status: 200, auth: "token"},
		{name: "certificate and a wrong token", tls: alice, call: call{from: remote, header: map[string]string{"Authorization": "Bearer x"}}, status: 401},
		{name: "certificate by DNS name", tls: certificate(x509.Certificate{DNSNames: []string{"ops1.example.com"}}), call: call{from: remote}, status: 200, auth: "certificate ops1.example.com"},
		{name: "certificate by mail", tls: certificate(x509.Certificate{EmailAddresses: []string{"a@example.com"}}), call: call{from: remote}, status: 200, auth: "certificate a@example.com"},
		{name: "certificate without a name", tls: certificate(x509.Certificate{}), call: call{from: remote}, status: 200, auth: "certificate without a name, serial number 7"},
		{name: "certificate that nobody verified", tls: &tls.ConnectionState{PeerCertificates: alice.VerifiedChains[0]}, call: call{from: remote}, status: 401},
		{name: "certificate that nobody verified, without a token set", noToken: true, tls: &tls.ConnectionState{PeerCertificates: alice.VerifiedChains[0]}, call: call{from: remote}, status: 403},
		{name: "certificate in a browser on a foreign page", tls: alice, call: call{from: remote, header: map[string]string{"Origin": "https://evil.example"}}, status: 403},
		{name: "certificate in a browser across sites", tls: alice, call: call{from: remote, header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, status: 403},
		{name: "certificate in a form", tls: alice, call: call{from: remote, header: map[string]string{"Content-Type": "text/plain"}}, status: 415},
		{name: "TLS without a certificate", tls: &tls.ConnectionState{}, call: call{from: remote}, status: 401},
		{name: "rebound name", call: call{host: "evil.example"}, status: 403},
		{name: "foreign page on loopback", call: call{header: map[string]string{"Origin": "http://evil.example"}}, status: 403},
		{name: "no JSON", call: call{header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}}, status: 415},
	} {
		for _, method := range []string{http.MethodPost, http.MethodDelete} {
			t.Run(c.name+" "+method, func(t *testing.T) {
				o := &orders{}
				core, log := observer.New(zapcore.InfoLevel)
				in(t, func(opts *admin.Options, _ *state.Config) {
					opts.Control, opts.Log = o, zap.New(core)
					if c.noToken {
						opts.Tokens = nil
					}
				}, func(t *testing.T, h *house) {
					path := "/v1/orders"
					if method == http.MethodDelete {
						path += "/1"
					}
					req := httptest.NewRequest(method, path, strings.NewReader("{}"))
					req.RemoteAddr, req.Host, req.TLS = "127.0.0.1:4711", "127.0.0.1:8053", c.tls
					if c.call.from != "" {
						req.RemoteAddr = c.call.from
					}
					if c.call.host != "" {
						req.Host = c.call.host
					}
					req.Header.Set("Content-Type", "application/json")
					for k, v := range c.call.header {
						req.Header.Set(k, v)
					}
					w := httptest.NewRecorder()
					h.handler.ServeHTTP(w, req)
					if w.Code != c.status {
						t.Fatalf("%d %s, want %d", w.Code, w.Body, c.status)
					}
					entries := log.TakeAll()
					if c.status != 200 {
						if len(o.got) != 0 || len(entries) != 1 || entries[0].Message != "request refused" || entries[0].ContextMap()["remote"] != req.RemoteAddr {
							t.Errorf("control was told %v; the log has %+v", o.got, entries)
						}
						return
					}
					if len(o.by) != 1 || o.by[0] != (control.Caller{Remote: req.RemoteAddr, Auth: c.auth}) {
						t.Errorf("by %+v", o.by)
					}
				})
			})
		}
	}
}

func TestStrangersDoNotFillTheLog(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, _ *orders, log *observer.ObservedLogs) {
		stranger := post("/v1/orders", "{}")
		stranger.from = "192.0.2.9:4711"
		for range 100 {
			h.do(stranger)
		}
		h.do(call{path: "/v1/status", from: stranger.from}) // changes nothing
		time.Sleep(time.Second)
		h.do(stranger)
		entries := log.TakeAll()
		if len(entries) != 2 || entries[1].ContextMap()["unlogged"] != int64(99) {
			t.Errorf("%d lines: %+v", len(entries), entries)
		}
	})
}

func TestStatusTellsOfOrders(t *testing.T) {
	ordering(t, func(t *testing.T, h *house, o *orders, _ *observer.ObservedLogs) {
		var st admin.Status
		h.get("/v1/status", &st)
		if st.Orders == nil || st.Evacuations == nil || st.Services[0].Failback != "auto" || st.Services[0].Members[1].Moved == nil {
			t.Errorf("without orders: %+v", st)
		}
		since := time.Now().UTC()
		h.forcing(state.Force{Forced: state.ForcedDown, Why: "alice: fibre cut", Since: since})
		o.problems = []string{"orders.db cannot be written: move it away"}
		o.orders = []control.OrderState{
			{Order: control.Order{ID: "1", Action: "down", Target: control.Target{Zone: "use1-az1"}, Created: since}, Shared: "on this gslbd only", Members: 1},
			{Order: control.Order{ID: "2", Action: "drain", Target: control.Target{Site: "osaka"}, Created: since}, Shared: "etcd"},
		}
		o.evacuations = []control.EvacuationState{{
			Evacuation: control.Evacuation{ID: "3", Zone: "use1-az1", Created: since}, Shared: "on this gslbd only", Share: 1,
			Parts: []control.PartState{{Type: "member", State: "evacuated"}, {Type: "exec", State: "failed", Why: "exit status 3"}},
		}}
		st = admin.Status{}
		h.get("/v1/status", &st)
		m := st.Services[0].Members[1]
		if m.Forced != "down" || m.ForcedWhy != "alice: fibre cut" || !m.Addresses[0].Up {
			t.Errorf("the order does not stand apart from what is measured: %+v", m)
		}
		if !cmp.Equal(st.Orders, o.orders) || len(st.Evacuations) != 1 {
			t.Errorf("orders %+v, evacuations %+v", st.Orders, st.Evacuations)
		}
		problems := map[string]bool{}
		for _, p := range st.Problems {
			problems[p.Severity+" "+p.Subject+" "+p.Text] = true
		}
		for _, want := range []string{
			"critical orders orders.db cannot be written: move it away",
			"warning order 1 to force zone use1-az1 down is on this gslbd only so far",
			"notice order 2 to force site osaka drain matches no member",
			"warning evacuation 3 of zone use1-az1 is on this gslbd only so far",
			"notice evacuation 3 of zone use1-az1, type member: evacuated",
			"warning evacuation 3 of zone use1-az1, type exec: has failed and is tried again: exit status 3",
			"notice member " + name + "/virginia is forced down: alice: fibre cut",
		} {
			if !problems[want] {
				t.Errorf("no problem %q in %v", want, problems)
			}
		}
		series := h.series()
		for id, want := range map[string]string{
			`gslbd_orders{action="up"}`: "0", `gslbd_orders{action="drain"}`: "1", `gslbd_orders{action="down"}`: "1",
			`gslbd_evacuations`: "1", `gslbd_orders_undelivered`: "2",
		} {
			if series[id] != want {
				t.Errorf("%s is %q, want %q", id, series[id], want)
			}
		}
	})
}

// TestSnapshotOfOrders reads a snapshot as state publishes one in a failover and an evacuation.
func TestSnapshotOfOrders(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	site := &state.Site{SiteInfo: &state.SiteInfo{Name: "seoul"}}
	svc := &state.Service{
		Name: name, Pool: state.Backup, PoolWhy: "1 of 4 servers", PoolSince: at, PoolServersUp: 1, PoolServers: 4, Failback: state.FailbackDelay,
		Held: true, HeldWhy: "until the primaries were well for 60 s", HeldUntil: at.Add(time.Minute), StagedPool: state.Primary, MinServing: 2, Counters: new(state.Counters),
		Members: []*state.Member{{
			Name: "seoul", Site: site.SiteInfo, Addr: [2]netip.Addr{addr("1.1.1.1")}, Up: [2]bool{true}, InPool: true,
			Forced: state.ForcedDrain, ForcedWhy: "alice: patches", ForcedSince: at,
			Moved: []state.Stage{{Share: 0.5, Why: "half"}}, MemberCounts: new(state.MemberCounts),
		}},
	}
	snap := &state.Snapshot{Services: []*state.Service{svc}, Sites: []*state.Site{site}, RTT: new(state.RTTTable)}
	srv, err := admin.New(admin.Options{
		Snapshot: func() *state.Snapshot { return snap },
		Find:     func(*state.Snapshot, string) (*state.Service, bool, bool) { return svc, false, true },
		Ready:    func() (bool, string) { return true, "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, handler: srv.Handler()}
	var got admin.Service
	h.get("/v1/services/"+name, &got)
	want := admin.PoolState{
		Pool: "backup", PoolWhy: "1 of 4 servers", PoolSince: at, PoolServersUp: 1, PoolServers: 4, StagedPool: "primary",
		Failback: "delay", Held: true, HeldWhy: "until the primaries were well for 60 s", HeldUntil: at.Add(time.Minute),
	}
	if d := cmp.Diff(want, got.PoolState); d != "" || got.MinServing != 2 {
		t.Error(d, got.MinServing)
	}
	m := got.Members[0]
	if m.Forced != "drain" || m.ForcedWhy != "alice: patches" || m.ForcedSince != at || !m.Addresses[0].Up || !cmp.Equal(m.Moved, []admin.Moved{{Share: 0.5, Why: "half"}}) {
		t.Errorf("%+v", m)
	}
	var l admin.DrainList
	if h.get("/v1/drains", &l); len(l.Drains) != 1 || l.Drains[0].Since != at || l.Drains[0].Why != "alice: patches" {
		t.Errorf("%+v", l.Drains)
	}
	var st admin.Status
	h.get("/v1/status", &st)
	for _, want := range []string{"its primaries suffice again, and the backups are held: " + svc.HeldWhy, "is forced drain: alice: patches", "50 % of its clients are moved away: half"} {
		if !slices.ContainsFunc(st.Problems, func(p admin.Problem) bool { return p.Severity == admin.Notice && p.Text == want }) {
			t.Errorf("no problem %q in %+v", want, st.Problems)
		}
	}
	svc.StagedPool = state.Backup
	got = admin.Service{}
	if h.get("/v1/services/"+name, &got); got.StagedPool != "" {
		t.Errorf("staged pool %q where it is the pool in force", got.StagedPool)
	}
}
