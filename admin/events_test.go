package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/admin"
	"gslbd/control"
	"gslbd/state"
)

// withHistory lets a house tell of its past, and of the orders that o has.
func withHistory(t *testing.T, test func(t *testing.T, h *house, o *orders, srv *admin.Server)) {
	synctest.Test(t, func(t *testing.T) {
		o := new(orders)
		var opts admin.Options
		h := newHouse(t, func(given *admin.Options, _ *state.Config) { given.Control, opts = o, *given })
		opts.Control, opts.Events, opts.Changed = o, h.store.Events, h.store.Changed
		srv, err := admin.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		h.handler = srv.Handler()
		test(t, h, o, srv)
	})
}

func summary(events []admin.Event) []string {
	all := []string{}
	for _, e := range events {
		all = append(all, strings.Join(strings.Fields(fmt.Sprintf("%s %s: %s %s %s %s", e.Severity, e.Message, e.Service, e.Member, e.Site, e.Target)), " "))
	}
	return all
}

func TestEventList(t *testing.T) {
	withHistory(t, func(t *testing.T, h *house, o *orders, _ *admin.Server) {
		h.report(servers("seoul", "1.1.1.1", state.ServerUp))
		o.events = []control.Event{{ID: "order/1", Time: time.Now(), Message: "down ordered", Target: "site virginia", Author: "kim"}}
		time.Sleep(time.Hour)
		h.report(servers("seoul", "1.1.1.1", state.ServerDown))
		const (
			started   = "info gslbd started:"
			fresh     = "info site fresh: seoul"
			ordered   = "info down ordered: site virginia"
			stale     = "warning site stale: seoul"
			dead      = "warning site dead: seoul"
			downDead4 = "warning member down: " + name + " seoul seoul"
		)
		for _, c := range []struct {
			query string
			want  []string
			not   []string
		}{
			{"", []string{started, fresh, ordered, stale, dead, downDead4}, nil},
			{"?since=30m", []string{fresh}, []string{started, ordered, dead}},
			{"?since=" + time.Now().Add(-30*time.Minute).UTC().Format(time.RFC3339), []string{fresh}, []string{dead}},
			{"?site=sE*", nil, []string{fresh}},
			{"?site=se*", []string{fresh, stale, downDead4}, []string{started, ordered}},
			{"?service=" + strings.ToUpper(name) + ".", []string{downDead4}, []string{fresh, ordered}},
			{"?service=plain.gslb.example.com", []string{downDead4}, []string{fresh, ordered}}, // an alias
			{"?service=none", nil, []string{downDead4, fresh}},
		} {
			var l admin.EventList
			h.get("/v1/events"+c.query, &l)
			got := summary(l.Events)
			for _, w := range c.want {
				if !slices.Contains(got, w) {
					t.Errorf("%q: no %q in %q", c.query, w, got)
				}
			}
			for _, n := range c.not {
				if slices.Contains(got, n) {
					t.Errorf("%q: %q in %q", c.query, n, got)
				}
			}
			if !slices.IsSortedFunc(l.Events, func(a, b admin.Event) int { return a.Time.Compare(b.Time) }) || l.Events == nil {
				t.Errorf("%q: not in order: %q", c.query, got)
			}
		}
		for _, query := range []string{"?since=yesterday", "?since=-3h", "?service=[", "?site=[", "?sites=x"} {
			if w := h.do(call{path: "/v1/events" + query}); w.Code != 400 {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
		}
	})
}

// A listener is one caller's end of a stream.
type listener struct {
	*httptest.ResponseRecorder
	mu   sync.Mutex
	text string // guarded by mu
	done chan struct{}
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(b)
	return len(b), nil
}

// take returns what came since it was last asked.
func (l *listener) take() string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	l.text = ""
	return text
}

func (h *house) listen(query string) *listener {
	l := &listener{ResponseRecorder: httptest.NewRecorder(), done: make(chan struct{})}
	req := httptest.NewRequest("GET", "/v1/events"+query, nil).WithContext(h.t.Context())
	req.RemoteAddr, req.Host = "127.0.0.1:4711", "127.0.0.1:8053"
	req.Header.Set("Accept", "text/event-stream")
	go func() {
		defer close(l.done)
		h.handler.ServeHTTP(l, req)
	}()
	synctest.Wait()
	return l
}

func TestEventStream(t *testing.T) {
	withHistory(t, func(t *testing.T, h *house, o *orders, srv *admin.Server) {
		o.events = []control.Event{{ID: "order/old", Time: time.Now().Add(-time.Minute), Message: "drain ordered"}}
		time.Sleep(time.Second)
		l, past := h.listen(""), h.listen("?since=1h")
		if got := l.take(); strings.Contains(got, "event: event") || !strings.Contains(got, "event: publication\ndata: {\"publication\":") {
			t.Errorf("at first: %q", got)
		}
		if got := past.take(); !strings.Contains(got, `"message":"gslbd started"`) || !strings.Contains(got, `"message":"drain ordered"`) {
			t.Errorf("of the past: %q", got)
		}
		if w := l.Header(); w.Get("Content-Type") != "text/event-stream" || w.Get("Cache-Control") != "no-store" {
			t.Errorf("%v", w)
		}
		o.events = append(o.events, control.Event{ID: "order/late", Time: time.Now().Add(-20 * time.Second), Message: "down ordered"})
		h.report(servers("seoul", "1.1.1.1", state.ServerDown))
		got := l.take()
		for _, want := range []string{`"message":"site fresh"`, `"message":"service has no member up"`, `"message":"down ordered"`, "event: publication"} {
			if strings.Count(got, want) != 1 {
				t.Errorf("%d times %s in %q", strings.Count(got, want), want, got)
			}
		}
		if strings.Contains(got, "drain ordered") {
			t.Errorf("the past: %q", got)
		}
		for range 20 { // as many publications a second as there may be
			h.store.Configure(&state.Config{})
			time.Sleep(50 * time.Millisecond)
		}
		if n := strings.Count(l.take(), "event: publication"); n > 3 {
			t.Errorf("%d messages in a second", n)
		}
		time.Sleep(time.Minute)
		if got := l.take(); !strings.Contains(got, ": nothing new") {
			t.Errorf("silence: %q", got)
		}
		srv.EndStreams()
		<-l.done
		<-past.done
		again := h.listen("") // as of a server that goes on after a takeover that failed
		if got := again.take(); !strings.Contains(got, "event: publication") {
			t.Errorf("after all streams were ended: %q", got)
		}
		srv.EndStreams()
		<-again.done
	})
}

func TestStreamWithoutHistory(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		l := h.listen("?since=1h")
		first := l.take()
		h.report(servers("seoul", "1.1.1.1", state.ServerUp))
		time.Sleep(20 * time.Second)
		if rest := l.take(); strings.Count(first, "publication\n") != 1 || !strings.Contains(rest, "publication\n") || strings.Contains(first+rest, "event: event") {
			t.Errorf("%q, then %q", first, rest)
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	withHistory(t, func(t *testing.T, h *house, _ *orders, srv *admin.Server) {
		for range 64 {
			h.listen("")
		}
		l := h.listen("")
		<-l.done
		if l.Code != http.StatusServiceUnavailable || !strings.Contains(l.take(), "64 callers") {
			t.Errorf("%d", l.Code)
		}
		srv.EndStreams()
	})
}
