package state_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/state"
)

// A rig is a running Store in a synctest bubble, with what the incidents of this package's tests need.
type rig struct {
	t     *testing.T
	s     *state.Store
	logs  *observer.ObservedLogs
	stop  func()
	ended chan error
}

func start(t *testing.T, c *state.Config) *rig { return startIn(t, c, "") }

func startIn(t *testing.T, c *state.Config, dir string) *rig {
	t.Helper()
	return startWith(t, c, state.Options{Directory: dir})
}

func startWith(t *testing.T, c *state.Config, opts state.Options) *rig {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	opts.Log, opts.Shards = zap.New(core), 2
	s, err := state.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Configure(c)
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{t: t, s: s, logs: logs, ended: make(chan error, 1)}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	go func() { r.ended <- s.Run(ctx) }()
	t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

// settle lets the publication that is due happen.
func (r *rig) settle() {
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
}

func (r *rig) member(service, member string) *state.Member {
	r.t.Helper()
	svc := r.s.Snapshot().ServiceByName(service)
	if svc == nil {
		r.t.Fatalf("no service %q", service)
	}
	for _, m := range svc.Members {
		if m.Name == member {
			return m
		}
	}
	r.t.Fatalf("no member %q", member)
	return nil
}

func (r *rig) site(name string) *state.Site {
	r.t.Helper()
	var found *state.Site
	snap, calm := r.s.Snapshot(), true
	for _, st := range snap.Sites {
		calm = calm && !st.Overloaded && st.Shed == 0
		if st.Name == name {
			found = st
		}
	}
	if snap.Calm != calm {
		r.t.Errorf("the snapshot is calm: %t, want %t", snap.Calm, calm)
	}
	if found != nil {
		return found
	}
	r.t.Fatalf("no site %q", name)
	return nil
}

func (r *rig) report(rep *state.Report) state.ReportResult {
	r.t.Helper()
	res, err := r.s.Report(rep)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) logged(msg string) int { return r.logs.FilterMessage(msg).Len() }

func (r *rig) want(up bool, members ...string) {
	r.t.Helper()
	for _, name := range members {
		if m := r.member("www.example.com", name); m.Up[state.V4] != up {
			r.t.Errorf("at %s: member %q up = %v (%s), want %v", time.Now().Format("15:04:05"), name, m.Up[state.V4], m.Why[state.V4], up)
		}
	}
}

// two is a configuration of two sites and one service with a member at each.
func two(change ...func(*state.Config)) *state.Config {
	c := &state.Config{
		Sites: []state.SiteConfig{
			{Name: "seoul", Zone: "z1", SessionsLimit: 900000, BandwidthLimit: 900e6, Hold: time.Minute},
			{Name: "virginia", Zone: "z2", SessionsLimit: 900000, BandwidthLimit: 900e6, Hold: time.Minute},
		},
		Services: []state.ServiceConfig{{
			Name: "www.example.com", TTL: 30, UnknownUp: true,
			Members: []state.MemberConfig{
				{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{addr("1.1.1.1")}, Weight: 100},
				{Name: "virginia", Site: "virginia", Addresses: [2]netip.Addr{addr("2.2.2.2")}, Weight: 100},
			},
		}},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var vips = map[string]string{"seoul": "1.1.1.1", "virginia": "2.2.2.2", "atlantis": "3.3.3.3"}

// says is a report of a site whose only virtual server has these servers.
func says(site string, servers ...state.ServerState) *state.Report {
	vs := state.VirtualServer{Name: "web", Address: addr(vips[site]), Port: 443, Protocol: "tcp"}
	for i, st := range servers {
		vs.Servers = append(vs.Servers, state.Server{Name: fmt.Sprintf("server%d", i), Address: fmt.Sprintf("10.0.0.%d:443", i), State: st})
	}
	return &state.Report{Site: site, VirtualServers: []state.VirtualServer{vs}}
}

func sessions(site string, n uint64) *state.Report {
	r := says(site, state.ServerUp)
	r.HasSessions, r.Sessions = true, n
	return r
}

const (
	up    = state.ServerUp
	down  = state.ServerDown
	maint = state.ServerMaint
	drain = state.ServerDrain
	dunno = state.ServerUnknown
)

func TestNoSnapshotBeforeConfigure(t *testing.T) {
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Snapshot() != nil {
		t.Error("a snapshot before Configure")
	}
	s.Configure(&state.Config{})
	snap := s.Snapshot()
	if snap == nil || snap.RTT == nil || snap.Geo == nil || snap.Epoch != 1 {
		t.Errorf("snapshot = %+v", snap)
	}
}

func TestReportOfUnknownSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		version := r.s.Snapshot().Version
		if _, err := r.s.Report(says("atlantis", up)); err == nil {
			t.Error("no error")
		}
		r.settle()
		if v := r.s.Snapshot().Version; v != version {
			t.Errorf("published for an unknown site")
		}
	})
}

func TestServersDownTakeTheMemberDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		r.want(true, "seoul", "virginia")
		r.report(says("seoul", up, up))
		r.report(says("virginia", down, down))
		synctest.Wait()
		r.settle()
		r.want(true, "seoul")
		r.want(false, "virginia")
		if n := r.logged("member down"); n != 1 {
			t.Errorf("%d log lines \"member down\", want 1", n)
		}
		if m := r.member("www.example.com", "virginia"); m.Transitions != 1 || !m.HasServers || m.ServersUp != 0 || m.Servers != 2 {
			t.Errorf("member = %+v", m)
		}
		r.report(says("virginia", down, up))
		r.settle()
		r.want(true, "virginia")
		if m := r.member("www.example.com", "virginia"); m.Transitions != 2 || m.Recovered[state.V4].IsZero() {
			t.Errorf("after recovery: transitions %d, recovered %v", m.Transitions, m.Recovered[state.V4])
		}
	})
}

func TestPublicationRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		time.Sleep(time.Second)
		before := r.s.Snapshot().Version
		r.report(says("seoul", up))
		synctest.Wait()
		if v := r.s.Snapshot().Version; v != before+1 {
			t.Errorf("a first change after quiet: version %d, want %d at once", v, before+1)
		}
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			r.report(says("seoul", up))
		}
		synctest.Wait()
		if n := r.s.Snapshot().Version - before - 1; n > 5 {
			t.Errorf("%d publications in a second, want at most 5", n)
		}
		r.settle()
		quiet := r.s.Snapshot().Version
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if v := r.s.Snapshot().Version; v != quiet {
			t.Errorf("published %d times while nothing changed", v-quiet)
		}
	})
}

func TestSilentSiteDecays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		began := time.Now()
		r.report(sessions("seoul", 10))
		r.report(says("virginia", up))
		r.settle()
		steps := []struct {
			at        time.Duration
			freshness state.Freshness
			load, up  bool
		}{
			{time.Second, state.Fresh, true, true},
			{14900 * time.Millisecond, state.Fresh, true, true},
			{15100 * time.Millisecond, state.Stale, false, true},
			{59900 * time.Millisecond, state.Stale, false, true},
			{60300 * time.Millisecond, state.Dead, false, false},
		}
		for _, step := range steps {
			for time.Since(began) < step.at { // virginia goes on reporting
				time.Sleep(min(step.at-time.Since(began), 5*time.Second))
				r.report(says("virginia", up))
			}
			synctest.Wait()
			st := r.site("seoul")
			if st.Freshness != step.freshness || st.HasLoad != step.load || st.HasUtilisation != step.load {
				t.Errorf("after %s: %v, load %v", step.at, st.Freshness, st.HasLoad)
			}
			r.want(step.up, "seoul")
		}
		for _, msg := range []string{"site fresh", "site stale", "site dead"} {
			if n := r.logs.FilterMessage(msg).FilterField(zap.String("site", "seoul")).Len(); n != 1 {
				t.Errorf("%d log lines %q, want 1", n, msg)
			}
		}
		r.report(says("seoul", up))
		r.settle()
		r.want(true, "seoul")
	})
}

func TestWarningsAreBoundedAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		rep := says("seoul", up)
		for i := range 500 {
			rep.VirtualServers = append(rep.VirtualServers, state.VirtualServer{Name: fmt.Sprint(i), Servers: []state.Server{{State: up}}})
		}
		for range 3 {
			if res := r.report(rep); len(res.Warnings) != 101 || res.Warnings[100] != "and 400 more" {
				t.Errorf("%d warnings, the last %q", len(res.Warnings), res.Warnings[len(res.Warnings)-1])
			}
		}
		r.settle()
		if n := len(r.site("seoul").Warnings); n != 101 {
			t.Errorf("%d warnings published", n)
		}
		r.report(says("seoul", up))
		r.settle()
		if n := r.logged("report has warnings"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		if n := r.logged("report has no more warnings"); n != 1 {
			t.Errorf("their end logged %d times, want once", n)
		}
	})
}
