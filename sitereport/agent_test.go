package sitereport_test

import (
	"bytes"
	"context"
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

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/probes"
	"gslbd/sitereport"
)

// gslbds stands in for the network: it answers by host, without any.
type gslbds map[string]*gslbd

func (g gslbds) RoundTrip(r *http.Request) (*http.Response, error) { return g[r.URL.Host].roundTrip(r) }

// A gslbd records what it is sent, and answers as its test says.
type gslbd struct {
	answer func(ctx context.Context, n int, r *sitereport.Report) (status int, body string, err error)

	mu      sync.Mutex
	times   []time.Time
	bodies  [][]byte
	reports []*sitereport.Report
}

func (g *gslbd) roundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	rep, err := sitereport.Decode(bytes.NewReader(body), sitereport.MaxReport)
	if err != nil {
		return nil, fmt.Errorf("the receiver would refuse this: %w", err)
	}
	g.mu.Lock()
	n := len(g.reports)
	g.times, g.bodies, g.reports = append(g.times, time.Now()), append(g.bodies, body), append(g.reports, rep)
	g.mu.Unlock()
	status, text, err := http.StatusOK, `{"accepted": true}`, error(nil)
	if g.answer != nil {
		status, text, err = g.answer(r.Context(), n, rep)
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}}, nil
}

// seen returns what came so far.
func (g *gslbd) seen() []*sitereport.Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reports
}

// A readerFunc is a Reader.
type readerFunc func(ctx context.Context) (sitereport.Reading, error)

func (f readerFunc) Read(ctx context.Context) (sitereport.Reading, error) { return f(ctx) }

// run runs an agent in a bubble for a time and returns what it logged.
func run(t *testing.T, net gslbds, opts sitereport.AgentOptions, length time.Duration, with func(*sitereport.Agent)) *observer.ObservedLogs {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	opts.Log, opts.Transport, opts.Site = zap.New(core), net, "seoul"
	if len(opts.Servers) == 0 {
		opts.Servers = []string{"http://a"}
	}
	a, err := sitereport.NewAgent(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	if with != nil {
		with(a)
	}
	time.Sleep(length) // the bubble's time
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	return logs
}

// messages returns the messages logged, in order.
func messages(logs *observer.ObservedLogs) (m []string) {
	for _, e := range logs.All() {
		m = append(m, e.Message)
	}
	return m
}

func sequences(reports []*sitereport.Report) (s []uint64) {
	for _, r := range reports {
		s = append(s, *r.Sequence)
	}
	return s
}

// TestAgentIsNotDelayed has one gslbd which hangs for 33 seconds: the other gets every report in time, and the one that
// hung gets the newest one, not those that it missed.
func TestAgentIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		slow := &gslbd{answer: func(ctx context.Context, n int, r *sitereport.Report) (int, string, error) {
			if time.Since(begin) < 33*time.Second {
				<-ctx.Done()
				return 0, "", ctx.Err()
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		good := &gslbd{}
		logs := run(t, gslbds{"a": slow, "b": good}, sitereport.AgentOptions{Servers: []string{"http://a", "http://b/"}}, time.Minute, nil)

		if n := len(good.seen()); n < 12 || n > 13 {
			t.Errorf("%d reports in a minute of 5s intervals", n)
		}
		for i := 1; i < len(good.times); i++ {
			if gap := good.times[i].Sub(good.times[i-1]); gap != 5*time.Second {
				t.Errorf("report %d came %s after the one before", i, gap)
			}
		}
		reports := slow.seen()
		for i, r := range reports {
			if age := slow.times[i].Sub(good.times[*r.Sequence-1]); age > 10*time.Second {
				t.Errorf("report %d was sent %s after it was made", *r.Sequence, age)
			}
		}
		if a, b := *reports[len(reports)-1].Sequence, *good.seen()[len(good.seen())-1].Sequence; a != b {
			t.Errorf("the last report was %d here and %d there", a, b)
		}
		if d := cmp.Diff([]string{"reports accepted", "no answer from gslbd", "reports accepted"}, messages(logs)); d != "" {
			t.Error(d)
		}
	})
}

// TestAgentRetries loses one answer: the same report comes once more, and then the next.
func TestAgentRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gslbd{answer: func(_ context.Context, n int, _ *sitereport.Report) (int, string, error) {
			if n == 1 || n == 3 || n == 4 {
				return 0, "", errors.New("connection reset by peer")
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		rtt := probes.RTT{Addr: netip.MustParseAddr("192.0.2.53"), RTT: time.Millisecond}
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{}, 19*time.Second, func(a *sitereport.Agent) { rtt.At = time.Now(); a.RTT(rtt) })
		if d := cmp.Diff([]uint64{1, 2, 2, 3, 3, 4}, sequences(g.seen())); d != "" {
			t.Fatal(d)
		}
		if !bytes.Equal(g.bodies[1], g.bodies[2]) || !bytes.Equal(g.bodies[3], g.bodies[4]) {
			t.Error("a report that is sent again is another one")
		}
		if g.reports[0].BootID == "" || g.reports[0].BootID != g.reports[5].BootID {
			t.Error("the boot_id must be one for the whole run")
		}
		if d := cmp.Diff([]string{"reports accepted", "no answer from gslbd", "reports accepted"}, messages(logs)); d != "" {
			t.Error(d)
		}
	})
}

// TestAgentRefused goes on after each kind of refusal, says why once, and says when it is over.
func TestAgentRefused(t *testing.T) {
	tests := []struct {
		name, body string
		status     int
		want       string
	}{
		{"stale sequence", `{"error": "sequence 3 is older than 9"}`, 409, "sequence 3 is older than 9 (does another agent"},
		{"token of another site", `{"accepted": false, "error": "the token is that of another site"}`, 403, "the token is that of another site"},
		{"a proxy", "<html>bad\x00 gateway", 502, "<html>bad  gateway"},
		{"nothing", "", 404, "404 Not Found"},
		{"redirect", "", 302, "302 Found"},
		{"another server", "<html>It works!", 200, "is this reports.listen"},
		{"not accepted", "{}", 200, "200 OK"},
		{"endless", strings.Repeat(" ", 5<<20), 200, "longer than"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gslbd{answer: func(_ context.Context, n int, _ *sitereport.Report) (int, string, error) {
					if n < 5 {
						return tc.status, tc.body, nil
					}
					return http.StatusOK, `{"accepted": true}`, nil
				}}
				logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{}, 29*time.Second, nil)
				if d := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6}, sequences(g.seen())); d != "" {
					t.Fatal(d)
				}
				want := []string{"report refused", "reports accepted"}
				if tc.status == http.StatusConflict {
					want = []string{"report refused", "taking another boot_id", "reports accepted"}
				}
				if d := cmp.Diff(want, messages(logs)); d != "" {
					t.Fatal(d)
				}
				if reason := fmt.Sprint(logs.All()[0].ContextMap()["reason"]); !strings.Contains(reason, tc.want) {
					t.Errorf("reason %q, want %q", reason, tc.want)
				}
			})
		})
	}
}

// TestAgentOutlivesANamesake: another agent of the same name reported for a while, so that gslbd refuses this one as a
// former boot. It must not be locked out for ever: it takes another boot_id.
func TestAgentOutlivesANamesake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first string
		g := &gslbd{answer: func(_ context.Context, n int, r *sitereport.Report) (int, string, error) {
			if n == 0 {
				first = r.BootID
			}
			if n > 0 && r.BootID == first {
				return http.StatusConflict, `{"error": "boot_id: was followed by another"}`, nil
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{}, 29*time.Second, nil)
		if d := cmp.Diff([]string{"reports accepted", "report refused", "taking another boot_id", "reports accepted"}, messages(logs)); d != "" {
			t.Fatal(d)
		}
		boots := map[string]int{}
		for _, r := range g.seen() {
			boots[r.BootID]++
		}
		if len(boots) != 2 || boots[first] != 4 {
			t.Errorf("boot_ids %v, want 4 reports under the first and the rest under one other", boots)
		}
	})
}

// TestAgentTellsOfServers logs each change of a server's state once, with its reason; what a reader cannot say is none.
func TestAgentTellsOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		states := []string{"up", "down", "down", "unknown", "down", "up", "maint"}
		n := 0
		r := readerFunc(func(context.Context) (sitereport.Reading, error) {
			state := states[min(n, len(states)-1)]
			n++
			return sitereport.Reading{VirtualServers: []sitereport.VirtualServer{{
				Name: "web", Servers: []sitereport.Server{{Name: "server1", Address: "10.1.1.10:80", State: state, Reason: "HTTP 503"}},
			}}}, nil
		})
		g := &gslbd{answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{Readers: []sitereport.Reader{r}}, 39*time.Second, nil)
		if d := cmp.Diff([]string{"reports accepted", "server down", "server up", "server maint"}, messages(logs)); d != "" {
			t.Fatal(d)
		}
		if fields := logs.All()[1].ContextMap(); fields["server"] != "server1" || fields["virtual_server"] != "web" || fields["reason"] != "HTTP 503" {
			t.Errorf("fields are %v", fields)
		}
	})
}

// TestAgentInterval obeys the shortest interval that any gslbd orders, within its bounds.
func TestAgentInterval(t *testing.T) {
	tests := []struct {
		a, b int64 // milliseconds; 0: says nothing
		want time.Duration
	}{
		{0, 0, 5 * time.Second},
		{10_000, 0, 10 * time.Second},
		{2000, 10_000, 2 * time.Second},
		{1, 10_000, time.Second},
		{-5, 0, 5 * time.Second},
		{1 << 62, 0, time.Minute},
		{3_600_000, 3_600_000, time.Minute},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprint(tc.a, " ", tc.b), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				says := func(ms int64) *gslbd {
					return &gslbd{answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
						return http.StatusOK, fmt.Sprintf(`{"accepted": true, "interval_ms": %d}`, ms), nil
					}}
				}
				a, b := says(tc.a), says(tc.b)
				run(t, gslbds{"a": a, "b": b}, sitereport.AgentOptions{Servers: []string{"http://a", "http://b"}}, 4*time.Minute, nil)
				for i := 1; i < len(a.times); i++ {
					if gap := a.times[i].Sub(a.times[i-1]); gap != tc.want {
						t.Fatalf("reports %d and %d are %s apart, want %s", i, i+1, gap, tc.want)
					}
				}
				for i := 1; i < len(b.times); i++ { // gslbd refuses those closer than a fifth of its own interval
					if gap := b.times[i].Sub(b.times[i-1]); gap < time.Duration(min(tc.b, 60_000))*time.Millisecond/5 || gap > max(2*tc.want, 5*time.Second) {
						t.Fatalf("reports %d and %d to the other are %s apart", i, i+1, gap)
					}
				}
				if len(a.times) < 4 || len(b.times) < 4 {
					t.Errorf("%d and %d reports", len(a.times), len(b.times))
				}
			})
		})
	}
}

// TestAgentRTTs keeps round trips until each gslbd has them, and gives their age as of when they are sent.
func TestAgentRTTs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(_ context.Context, n int, _ *sitereport.Report) (int, string, error) {
			if n < 4 { // two reports, each twice
				return 0, "", errors.New("connection refused")
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}
		a, b := &gslbd{}, &gslbd{answer: away}
		resolver := netip.MustParseAddr("192.0.2.53")
		run(t, gslbds{"a": a, "b": b}, sitereport.AgentOptions{Servers: []string{"http://a", "http://b"}}, 19*time.Second, func(agent *sitereport.Agent) {
			agent.RTT(probes.RTT{Addr: resolver, RTT: 30400 * time.Microsecond, Method: "icmp", At: time.Now()})
			agent.RTT(probes.RTT{Addr: resolver, Lost: true, At: time.Now()})
		})
		ms := 30.4
		want := []sitereport.RTT{{Resolver: resolver, Millis: &ms, Method: "icmp"}, {Resolver: resolver, Lost: true}}
		for name, g := range map[string]*gslbd{"a": a, "b": b} {
			with := 0
			for i, r := range g.seen() {
				if len(r.RTTs) == 0 {
					continue
				}
				with++
				age := uint64(g.times[i].Sub(g.times[0]).Milliseconds())
				for j, got := range r.RTTs {
					if i%2 == 0 && (got.AgeMS < age || got.AgeMS > age+2000) {
						t.Errorf("%s, report %d: age %d, want about %d", name, i, got.AgeMS, age)
					}
					got.AgeMS = 0
					if d := cmp.Diff(want[j], got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y }), cmp.Comparer(func(x, y netip.Prefix) bool { return x == y })); d != "" {
						t.Error(name, d)
					}
				}
			}
			if expect := map[string]int{"a": 1, "b": 5}[name]; with != expect {
				t.Errorf("%s got the round trips %d times, want %d", name, with, expect)
			}
		}
	})
}

// TestAgentRTTBounds fills the ring while a gslbd is away: the newest are kept, and what was dropped is said.
func TestAgentRTTBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gslbd{answer: func(_ context.Context, n int, _ *sitereport.Report) (int, string, error) {
			if n == 0 {
				return 400, `{"error": "sequence: missing"}`, nil
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		total := 25_000
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{}, 19*time.Second, func(a *sitereport.Agent) {
			time.Sleep(3 * time.Second) // after the first report
			for i := range total {
				a.RTT(probes.RTT{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), RTT: time.Millisecond, At: time.Now()})
			}
		})
		got, last := 0, netip.Addr{}
		for _, r := range g.seen() {
			got += len(r.RTTs)
			if len(r.RTTs) > 0 {
				last = r.RTTs[len(r.RTTs)-1].Resolver
			}
		}
		if want := netip.AddrFrom4([4]byte{10, 0, byte((total - 1) >> 8), byte((total - 1) & 255)}); got != 20_000 || last != want {
			t.Errorf("%d round trips, the last of %s; want 20000 and %s", got, last, want)
		}
		dropped := logs.FilterMessageSnippet("round trips dropped").All()
		if len(dropped) != 1 || dropped[0].ContextMap()["dropped"] != uint64(5000) {
			t.Errorf("%v", dropped)
		}
	})
}

// TestAgentUnreadableRTTs has a gslbd refuse a report as unreadable: its round trips are not sent for ever.
func TestAgentUnreadableRTTs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gslbd{answer: func(_ context.Context, _ int, r *sitereport.Report) (int, string, error) {
			if len(r.RTTs) > 0 {
				return 400, `{"error": "rtts[0].method: \"carrier pigeon\" is not one of icmp, dns, tcp"}`, nil
			}
			return http.StatusOK, `{"accepted": true}`, nil
		}}
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{}, 9*time.Second, func(a *sitereport.Agent) {
			a.RTT(probes.RTT{Addr: netip.MustParseAddr("192.0.2.53"), RTT: 1, At: time.Now()})
		})
		if d := cmp.Diff([]string{"report refused", "reports accepted"}, messages(logs)); d != "" {
			t.Error(d)
		}
	})
}

// TestAgentProbes queues what all gslbd ask for, but no resolver twice within 5 s: the two ask in every answer, and
// one probe serves both. A refresh of 10 s must be kept.
func TestAgentProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := func(context.Context, int, *sitereport.Report) (int, string, error) {
			return http.StatusOK, `{"accepted": true, "probe": [{"resolver": "192.0.2.53", "methods": ["icmp", "dns"]},
				{"resolver": "::ffff:192.0.2.53"}, {"resolver": "224.0.0.1"}, {"resolver": "0.0.0.0"}, {"resolver": "192.0.2.99"}]}`, nil
		}
		begin := time.Now()
		var mu sync.Mutex
		var queued []string
		logs := run(t, gslbds{"a": {answer: asks}, "b": {answer: asks}}, sitereport.AgentOptions{
			Servers: []string{"http://a", "http://b"},
			Probe: func(resolver netip.Addr, methods []string) bool {
				mu.Lock()
				defer mu.Unlock()
				if resolver.String() == "192.0.2.99" {
					return false
				}
				queued = append(queued, fmt.Sprintf("%d %s %v", time.Since(begin)/(10*time.Second), resolver, methods))
				return true
			},
		}, 55*time.Second, nil)
		var want []string
		for i := range 11 { // reports
			want = append(want, fmt.Sprintf("%d 192.0.2.53 [icmp dns]", (i*5+1)/10))
		}
		if d := cmp.Diff(want, queued); d != "" {
			t.Error(d)
		}
		if logs.FilterMessageSnippet("probe queue full").Len() == 0 {
			t.Error("a target that was not taken must be said")
		}
	})
}

// TestAgentReaders has one reader that fails, one that hangs and one that works.
func TestAgentReaders(t *testing.T) {
	number := func(n uint64) *uint64 { return &n }
	works := readerFunc(func(context.Context) (sitereport.Reading, error) {
		return sitereport.Reading{
			Load: sitereport.Load{Sessions: number(400), BitsPerSecIn: number(1000), BitsPerSecOut: number(5000)},
			VirtualServers: []sitereport.VirtualServer{{Name: "web", Sessions: number(400), Servers: []sitereport.Server{
				{Name: "s\x00 1", State: sitereport.StateUp, Reason: "line\nbreak " + strings.Repeat("é", 200)},
			}}},
		}, nil
	})
	calls := 0
	fails := readerFunc(func(context.Context) (sitereport.Reading, error) {
		if calls++; calls == 4 {
			return sitereport.Reading{Load: sitereport.Load{Sessions: number(5)}, VirtualServers: []sitereport.VirtualServer{{Name: "db"}}}, nil
		}
		return sitereport.Reading{VirtualServers: []sitereport.VirtualServer{{Name: "db", Servers: []sitereport.Server{{Name: "d1", State: sitereport.StateUnknown}}}}},
			errors.New("haproxy /run/x: is HAProxy running?")
	})
	hangs := readerFunc(func(ctx context.Context) (sitereport.Reading, error) {
		<-ctx.Done()
		return sitereport.Reading{
			Load: sitereport.Load{Sessions: number(1)}, Warnings: []string{"slow"},
			VirtualServers: []sitereport.VirtualServer{{Name: "mail"}},
		}, nil
	})
	synctest.Test(t, func(t *testing.T) {
		g := &gslbd{}
		logs := run(t, gslbds{"a": g}, sitereport.AgentOptions{Readers: []sitereport.Reader{works, fails, hangs}}, 25*time.Second, nil)
		reports := g.seen()
		if len(reports) < 4 {
			t.Fatalf("%d reports", len(reports))
		}
		for i, r := range reports {
			if i == 3 {
				if r.Load == nil || *r.Load.Sessions != 406 || r.Load.BitsPerSecIn != nil {
					t.Errorf("all three gave sessions, not all gave traffic: %+v", r.Load)
				}
				continue
			}
			if d := cmp.Diff([]string{"reader failed: haproxy /run/x: is HAProxy running?", "slow"}, r.Warnings); d != "" {
				t.Errorf("report %d: warnings %s", i, d)
			}
			if r.Load != nil {
				t.Errorf("report %d has a load, although a reader failed: %+v", i, r.Load)
			}
			if len(r.VirtualServers) != 3 || r.VirtualServers[1].Servers[0].State != sitereport.StateUnknown || r.VirtualServers[0].Servers[0].State != sitereport.StateUp {
				t.Errorf("report %d: %+v", i, r.VirtualServers)
			}
		}
		want := []string{"reader failed", "reader warns", "reports accepted", "reader works again", "reader failed"}
		if d := cmp.Diff(want[:], messages(logs)); d != "" {
			t.Error(d)
		}
	})
	// An interface's counters stand for the whole site, and no reader at all is no load at all.
	synctest.Test(t, func(t *testing.T) {
		whole := readerFunc(func(context.Context) (sitereport.Reading, error) {
			return sitereport.Reading{WholeSite: true, Load: sitereport.Load{BitsPerSecIn: number(7), BitsPerSecOut: number(8)}}, nil
		})
		both, none := &gslbd{}, &gslbd{}
		run(t, gslbds{"a": both}, sitereport.AgentOptions{Readers: []sitereport.Reader{works, whole}}, 3*time.Second, nil)
		run(t, gslbds{"a": none}, sitereport.AgentOptions{}, 3*time.Second, nil)
		want := &sitereport.Load{Sessions: number(400), BitsPerSecIn: number(7), BitsPerSecOut: number(8)}
		if d := cmp.Diff(want, both.seen()[0].Load); d != "" {
			t.Error(d)
		}
		if l := none.seen()[0].Load; l != nil {
			t.Errorf("without a reader there is a load: %+v", l)
		}
	})
}

// presenting is a transport that presents a token.
type presenting string

func (p presenting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(p))
	return http.DefaultTransport.RoundTrip(r)
}

// TestAgentOverHTTP runs an agent against real servers: one is gone, one hangs, one refuses, and one takes it all.
func TestAgentOverHTTP(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-ctx.Done():
		}
	}))
	defer hangs.Close()
	redirected := make(chan struct{}, 1)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case redirected <- struct{}{}:
		default:
		}
	}))
	defer elsewhere.Close()
	refuses := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer refuses.Close()
	got := make(chan *sitereport.Report, 1)
	takes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rep, err := sitereport.Decode(r.Body, sitereport.MaxReport)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/sites/seoul/report" ||
			r.Header.Get("Authorization") != "Bearer s3cret" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		}
		io.WriteString(w, `{"accepted": true, "some_later_field": {}}`)
		select {
		case got <- rep:
		case <-ctx.Done():
		}
	}))
	defer takes.Close()

	a, err := sitereport.NewAgent(sitereport.AgentOptions{
		Site: "seoul", Name: "lb1", Transport: presenting("s3cret"), Interval: 50 * time.Millisecond,
		Servers: []string{gone.URL, hangs.URL, refuses.URL, takes.URL},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	for i := range 5 {
		r := <-got
		if r.Site != "seoul" || r.Agent != "lb1" || *r.Sequence < uint64(i+1) {
			t.Errorf("%+v", r)
		}
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Run does not stop while a gslbd hangs")
	}
	select {
	case <-redirected:
		t.Error("the report followed a redirect, token and all")
	default:
	}
}

func TestNewAgentErrors(t *testing.T) {
	for _, opts := range []sitereport.AgentOptions{
		{Servers: []string{"http://192.0.2.1:8054"}},
		{Site: "seoul"},
		{Site: "seoul", Servers: []string{"192.0.2.1:8054"}},
		{Site: "seoul", Servers: []string{"ftp://192.0.2.1"}},
		{Site: "seoul", Servers: []string{"http://"}},
	} {
		if _, err := sitereport.NewAgent(opts); err == nil {
			t.Errorf("%+v is accepted", opts)
		}
	}
}
