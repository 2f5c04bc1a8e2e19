package sitereport_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/sitereport"
)

// An slb stands for a load balancer of two virtual servers, web and api, with servers s1 and s2 each.
type slb struct {
	shared bool // both have one backend
	may    error
	fails  error
	partly bool // it fails after what it was asked for was done

	mu     sync.Mutex
	begin  time.Time
	states map[string]string // by virtual server and server
	done   []string          // what was done, with the second
	aside  map[string]bool   // servers that say themselves that they are in drain, which nobody else can end
	broken bool              // it cannot be read
}

func newSLB() *slb {
	return &slb{begin: time.Now(), states: map[string]string{"web/s1": "up", "web/s2": "up", "api/s1": "up", "api/s2": "up"}}
}

func (b *slb) Read(context.Context) (sitereport.Reading, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var r sitereport.Reading
	for _, name := range []string{"web", "api"} {
		v := sitereport.VirtualServer{Name: name}
		for _, s := range []string{"s1", "s2"} {
			state := b.states[name+"/"+s]
			if b.broken {
				state = "unknown"
			}
			v.Servers = append(v.Servers, sitereport.Server{Name: s, State: state})
		}
		r.VirtualServers = append(r.VirtualServers, v)
	}
	return r, nil
}

func (b *slb) Shares(name string) []string {
	switch {
	case name != "web" && name != "api":
		return nil
	case b.shared:
		return []string{"web", "api"}
	}
	return []string{name}
}

func (b *slb) May(context.Context) error { return b.may }

func (b *slb) did(format string, args ...any) {
	b.done = append(b.done, fmt.Sprintf("%d ", int(time.Since(b.begin).Seconds()))+fmt.Sprintf(format, args...))
}

func (b *slb) EndSessions(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails != nil {
		return b.fails
	}
	b.did("end %s", name)
	return nil
}

func (b *slb) Drain(_ context.Context, name string, servers []string) ([]string, error) {
	return b.change(name, servers, "up", "drain")
}

func (b *slb) Ready(_ context.Context, name string, servers []string) ([]string, error) {
	return b.change(name, servers, "drain", "up")
}

func (b *slb) change(name string, servers []string, from, to string) (changed []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fails := b.fails
	if fails != nil && !b.partly {
		return nil, fails
	}
	for _, s := range servers {
		if b.states[name+"/"+s] == from && !b.aside[name+"/"+s] {
			b.states[name+"/"+s] = to
			changed = append(changed, s)
		}
	}
	b.did("%s %s %v", to, name, changed)
	return changed, fails
}

func (b *slb) set(server, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.states[server] = state
}

// A said is what a gslbd says from a second on. The empty text is no answer.
type said struct {
	from int
	text string
}

const (
	active   = `"services": [{"name": "www", "state": "active", "virtual_servers": ["web"]}, {"name": "api", "state": "active", "virtual_servers": ["api"]}]`
	inactive = `"services": [{"name": "www", "state": "inactive", "virtual_servers": ["web"]}, {"name": "api", "state": "active", "virtual_servers": ["api"]}]`
)

// draining says that www leaves web, until the second by.
func draining(by int) string {
	return fmt.Sprintf(`"services": [{"name": "www", "state": "draining", "deadline_ms": BY%d, "virtual_servers": ["web"]}, {"name": "api", "state": "active", "virtual_servers": ["api"]}]`, by)
}

// speaks is a gslbd that says one after the other.
func speaks(all ...said) *gslbd {
	begin := time.Now()
	return &gslbd{answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
		now := time.Since(begin)
		text := ""
		for _, s := range all {
			if now >= time.Duration(s.from)*time.Second {
				text = s.text
			}
		}
		if text == "" {
			return 0, "", errors.New("connection refused")
		}
		if before, after, ok := strings.Cut(text, "BY"); ok {
			digits, rest, _ := strings.Cut(after, ",")
			var by int
			fmt.Sscan(digits, &by)
			left := max(time.Duration(by)*time.Second-now, 0)
			if left == 0 {
				before = strings.Replace(before, "draining", "inactive", 1)
			}
			text = fmt.Sprintf("%s%d,%s", before, left.Milliseconds(), rest)
		}
		return http.StatusOK, `{"accepted": true, ` + text + `}`, nil
	}}
}

// warned returns the distinct warnings that a gslbd got, in order.
func (g *gslbd) warned() (all []string) {
	for _, r := range g.seen() {
		for _, w := range r.Warnings {
			if !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

// runDraining runs an agent that may act between the gslbd a, b and c.
func runDraining(t *testing.T, b *slb, length time.Duration, with func(), servers ...*gslbd) *observer.ObservedLogs {
	t.Helper()
	net := gslbds{}
	opts := sitereport.AgentOptions{Draining: true, Readers: []sitereport.Reader{b}}
	for i, g := range servers {
		name := string(rune('a' + i))
		net[name] = g
		opts.Servers = append(opts.Servers, "http://"+name)
	}
	return run(t, net, opts, length, func(*sitereport.Agent) {
		if with != nil {
			go with()
		}
	})
}

// TestSessionsEnd is what happens to the sessions of web when www leaves it: between the deadline and the second report
// after it they are ended, once, or they stay and the report says why.
func TestSessionsEnd(t *testing.T) {
	const gone = ""
	tests := []struct {
		name   string
		shared bool
		says   [][]said
		ended  []string // the first and last second in which it may be, and what
		warned string
	}{
		{"one gslbd", false, [][]said{{{0, active}, {20, draining(60)}}}, []string{"60 72 end web"}, ""},
		{"two agree, with different deadlines", false, [][]said{{{0, active}, {20, draining(60)}}, {{0, active}, {24, draining(90)}}}, []string{"90 102 end web"}, ""},
		{"two agree, one a whole deadline later", false, [][]said{{{0, active}, {20, draining(30)}}, {{0, active}, {60, draining(70)}}}, []string{"70 82 end web"}, "gslbd http://b has an active service"},
		{"two disagree", false, [][]said{{{0, active}, {20, draining(60)}}, {{0, active}}}, nil, "gslbd http://b has an active service at virtual server \"web\""},
		{"one is older and says nothing of services", false, [][]said{{{0, active}, {20, draining(60)}}, {{0, `"drain": []`}}}, nil, "gslbd http://b knows of no service that left virtual server \"web\""},
		{"failback in the middle", false, [][]said{{{0, active}, {20, draining(60)}, {40, active}}, {{0, active}, {20, draining(60)}, {40, active}}}, nil, ""},
		{"failback at one of them only", false, [][]said{{{0, active}, {20, draining(60)}, {40, active}}, {{0, active}, {20, draining(60)}}}, nil, "gslbd http://a has an active service"},
		{"failback just before the deadline", false, [][]said{{{0, active}, {20, draining(60)}, {59, active}}}, nil, ""},
		{
			"failback and failover again", false,
			[][]said{{{0, active}, {20, draining(60)}, {40, active}, {50, draining(150)}}},
			[]string{"150 162 end web"},
			"",
		},
		{"twice", false, [][]said{{{0, active}, {20, draining(60)}, {100, active}, {120, draining(160)}}}, []string{"60 72 end web", "160 172 end web"}, ""},
		{
			"of three one is unreachable for longer than dead_after", false,
			[][]said{{{0, active}, {100, draining(150)}}, {{0, active}, {100, draining(150)}}, {{0, active}, {50, gone}}},
			[]string{"150 162 end web"},
			"",
		},
		{
			"of three one falls silent before the deadline: it is waited for", false,
			[][]said{{{0, active}, {20, draining(60)}}, {{0, active}, {20, draining(60)}}, {{0, active}, {40, gone}}},
			[]string{"95 112 end web"},
			"",
		},
		{
			"of three one falls silent, and comes back with another word", false,
			[][]said{{{0, active}, {20, draining(60)}}, {{0, active}, {20, draining(60)}}, {{0, active}, {40, gone}, {70, active}}},
			nil, "gslbd http://c has an active service",
		},
		{
			"all are unreachable for longer than dead_after, before the deadline", false,
			[][]said{{{0, active}, {20, draining(180)}, {40, gone}, {130, draining(180)}}, {{0, active}, {20, draining(180)}, {40, gone}, {130, draining(180)}}},
			[]string{"180 192 end web"},
			"",
		},
		{
			"all are unreachable when the deadline passes", false,
			[][]said{{{0, active}, {20, draining(60)}, {40, gone}, {130, draining(60)}}, {{0, active}, {20, draining(60)}, {40, gone}, {150, draining(60)}}},
			[]string{"150 162 end web"},
			"1 of 2 gslbd answered lately",
		},
		{
			"of two one is unreachable when the deadline passes, and comes back with another word", false,
			[][]said{{{0, active}, {20, draining(60)}}, {{0, active}, {20, draining(60)}, {40, gone}, {150, active}}},
			nil, "gslbd http://b has an active service",
		},
		{
			"of two one is unreachable: one is not more than half", false,
			[][]said{{{0, active}, {100, draining(150)}}, {{0, active}, {20, gone}}},
			nil, "1 of 2 gslbd answered lately",
		},
		{
			"dead_after is what gslbd says", false,
			[][]said{{{0, active}, {50, draining(80)}}, {{0, active}, {50, draining(80)}}, {{0, `"dead_after_ms": 20000, ` + active}, {40, gone}}},
			[]string{"80 92 end web"},
			"",
		},
		{"it was draining when the agent started", false, [][]said{{{0, draining(60)}}}, nil, ""},
		{"a gslbd that started again never saw it active", false, [][]said{{{0, active}, {20, inactive}}}, nil, ""},
		{
			"one of the two restarted in the middle", false,
			[][]said{{{0, active}, {20, draining(60)}}, {{0, active}, {20, draining(60)}, {40, inactive}}},
			[]string{"60 72 end web"},
			"",
		},
		{
			"another service stays", false, [][]said{{
				{0, active},
				{20, `"services": [{"name": "a", "state": "draining", "deadline_ms": 9000, "virtual_servers": ["web"]}, {"name": "b", "state": "active", "virtual_servers": ["web"]}]`},
			}}, nil, "",
		},
		{
			"another service leaves later", false, [][]said{{
				{0, active},
				{20, `"services": [{"name": "a", "state": "inactive", "virtual_servers": ["web"]}, {"name": "b", "state": "active", "virtual_servers": ["web"]}]`},
				{40, `"services": [{"name": "a", "state": "inactive", "virtual_servers": ["web"]}, {"name": "b", "state": "draining", "deadline_ms": BY70, "virtual_servers": ["web"]}]`},
			}}, []string{"70 82 end web"}, "",
		},
		{
			"the last that was active is no longer configured", false, [][]said{{
				{0, `"services": [{"name": "a", "state": "active", "virtual_servers": ["web"]}, {"name": "b", "state": "active", "virtual_servers": ["web"]}]`},
				{20, `"services": [{"name": "a", "state": "draining", "deadline_ms": BY80, "virtual_servers": ["web"]}, {"name": "b", "state": "active", "virtual_servers": ["web"]}]`},
				{40, `"services": [{"name": "a", "state": "draining", "deadline_ms": BY80, "virtual_servers": ["web"]}]`},
			}}, nil, "",
		},
		{
			"the one that left is no longer configured", false,
			[][]said{{{0, active}, {20, draining(60)}, {40, `"services": [{"name": "api", "state": "active", "virtual_servers": ["api"]}]`}}},
			nil, "knows of no service that left virtual server \"web\"",
		},
		{
			"no deadline is left", false, [][]said{{
				{0, active},
				{20, `"services": [{"name": "www", "state": "draining", "virtual_servers": ["web"]}]`},
			}}, []string{"20 32 end web"}, "",
		},
		{
			"a word that is not known has not left", false, [][]said{{
				{0, active},
				{20, `"services": [{"name": "a", "state": "dozing", "virtual_servers": ["web"]}, {"name": "b", "state": "draining", "virtual_servers": ["web"]}]`},
			}}, nil, "",
		},
		{
			"another virtual server has the same backend", true,
			[][]said{{{0, active}, {20, draining(60)}}},
			nil,
			"gslbd http://a has an active service at virtual server \"api\"",
		},
		{
			"all virtual servers of the backend are left", true, [][]said{{
				{0, active},
				{20, draining(60)},
				{80, `"services": [{"name": "www", "state": "inactive", "virtual_servers": ["web"]}, {"name": "api", "state": "draining", "deadline_ms": BY120, "virtual_servers": ["api"]}]`},
			}}, []string{"120 132 end api"}, "active service",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSLB()
				b.shared = tc.shared
				var all []*gslbd
				for _, s := range tc.says {
					all = append(all, speaks(s...))
				}
				logs := runDraining(t, b, 4*time.Minute, nil, all...)
				ok := len(b.done) == len(tc.ended)
				for i := range min(len(b.done), len(tc.ended)) {
					var at, first, last int
					var got, want string
					fmt.Sscanf(strings.Replace(b.done[i], "end ", "end-", 1), "%d %s", &at, &got)
					fmt.Sscanf(strings.Replace(tc.ended[i], "end ", "end-", 1), "%d %d %s", &first, &last, &want)
					ok = ok && got == want && at >= first && at <= last
				}
				if !ok {
					t.Errorf("done %q, want %q\n%v", b.done, tc.ended, logs.All())
				}
				warned := strings.Join(all[0].warned(), "\n")
				if tc.warned == "" && warned != "" || !strings.Contains(warned, tc.warned) {
					t.Errorf("warned %q, want %q", warned, tc.warned)
				}
				if n := logs.FilterMessage("held back").Len(); n != len(all[0].warned()) {
					t.Errorf("%d log lines of what was held back", n)
				}
				for server, state := range b.states {
					if state != "up" {
						t.Errorf("%s is %s: connection draining must not touch servers", server, state)
					}
				}
			})
		})
	}
}

// TestSessionsEndAgainAfterFailure tries again when the load balancer could not be asked, and says so meanwhile.
func TestSessionsEndAgainAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		b.fails = errors.New("haproxy /run/x: connection refused")
		g := speaks(said{0, active}, said{20, draining(40)})
		runDraining(t, b, 2*time.Minute, func() {
			time.Sleep(60 * time.Second)
			b.mu.Lock()
			b.fails = nil
			b.mu.Unlock()
		}, g)
		if len(b.done) != 1 || !strings.HasSuffix(b.done[0], "end web") {
			t.Errorf("%q", b.done)
		}
		if w := g.warned(); len(w) != 1 || !strings.Contains(w[0], "connection refused") {
			t.Errorf("%q", w)
		}
		if last := g.seen()[len(g.seen())-1]; len(last.Warnings) > 0 {
			t.Errorf("still warned: %q", last.Warnings)
		}
	})
}

// drainedOf writes what reports say of draining, each state once.
func drainedOf(g *gslbd) (all []string) {
	for _, r := range g.seen() {
		text := ""
		for _, d := range r.Drained {
			text += fmt.Sprintf("%s %v ", d.VirtualServer, d.Servers)
		}
		if text = strings.TrimSpace(text); len(all) == 0 && text != "" || len(all) > 0 && all[len(all)-1] != text {
			all = append(all, text)
		}
	}
	return all
}

// TestEvacuation drains the servers that are up, says so before, drains one that comes up later, and sets back what the
// ledger has and is in drain still.
func TestEvacuation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		b.states["web/s2"], b.states["api/s1"] = "down", "maint"
		wants := []said{
			{0, active},
			{20, `"drain": ["web", "api", "elsewhere"]`},
			{100, `"restore": [{"virtual_server": "web", "servers": ["s1", "s2"]}, {"virtual_server": "api", "servers": ["s2"]}, {"virtual_server": "elsewhere", "servers": ["x"]}]`},
		}
		g, other := speaks(wants...), speaks(wants...)
		runDraining(t, b, 2*time.Minute, func() {
			time.Sleep(50 * time.Second)
			b.set("web/s2", "up")
			time.Sleep(30 * time.Second)
			b.set("api/s2", "maint") // by the operator, who drains another one
			b.set("api/s1", "drain")
		}, g, other)
		for i, want := range []string{"drain api [s2]", "drain web [s1]", "drain web [s2]", "up web [s1 s2]"} {
			if i >= len(b.done) || !strings.HasSuffix(b.done[i], want) {
				t.Fatalf("%q, want %q at %d", b.done, want, i)
			}
		}
		if len(b.done) != 4 {
			t.Errorf("%q", b.done)
		}
		if d := cmp.Diff([]string{"api [s2] web [s1]", "api [s2] web [s1 s2]", "web [s1 s2]", ""}, drainedOf(g)); d != "" {
			t.Error(d)
		}
		// Every server was told of before it was set to drain.
		for _, server := range []string{"s1", "s2"} {
			for _, r := range g.seen() {
				if len(r.Drained) == 0 || !slices.Contains(r.Drained[len(r.Drained)-1].Servers, server) {
					continue
				}
				if at := slices.IndexFunc(r.VirtualServers[0].Servers, func(s sitereport.Server) bool { return s.Name == server }); r.VirtualServers[0].Servers[at].State != "up" {
					t.Errorf("the first report that tells of %s has it %s already", server, r.VirtualServers[0].Servers[at].State)
				}
				break
			}
		}
		want := map[string]string{"web/s1": "up", "web/s2": "up", "api/s1": "drain", "api/s2": "maint"}
		if d := cmp.Diff(want, b.states); d != "" {
			t.Error(d)
		}
		if w := g.warned(); len(w) > 0 {
			t.Errorf("%q", w)
		}
	})
}

// TestDrainedByHand has gslbd restore servers by a ledger that does not say which agent of the site drained them: one that
// was in drain here before the evacuation stays, and does not keep the restoration from ending.
func TestDrainedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		b.states["web/s1"] = "drain"
		wants := []said{
			{0, active},
			{90, `"drain": ["web"]`},
			{120, `"restore": [{"virtual_server": "web", "servers": ["s1", "s2"]}]`},
			{140, active},
			{160, `"drain": ["web"]`},
			{190, `"restore": [{"virtual_server": "web", "servers": ["s1", "s2"]}]`},
		}
		g, other := speaks(wants...), speaks(wants...)
		first := func() (s sitereport.Server) { return g.seen()[len(g.seen())-1].VirtualServers[0].Servers[0] }
		runDraining(t, b, 220*time.Second, func() {
			time.Sleep(100 * time.Second)
			b.mu.Lock()
			b.broken = true // which is no reason to forget it
			b.mu.Unlock()
			time.Sleep(10 * time.Second)
			b.mu.Lock()
			b.broken = false
			b.mu.Unlock()
			time.Sleep(8 * time.Second)
			if s := first(); s.State != "drain" {
				t.Errorf("before the restoration it is reported as %+v", s)
			}
			time.Sleep(20 * time.Second)
			if s := first(); s.State != "maint" || s.Reason == "" {
				t.Errorf("in the restoration it is reported as %+v", s)
			}
			b.set("web/s1", "up") // by hand again: the next evacuation takes it
		}, g, other)
		for i, want := range []string{"drain web [s2]", "up web [s2]", "drain web [s1 s2]", "up web [s1 s2]"} {
			if i >= len(b.done) || !strings.HasSuffix(b.done[i], want) {
				t.Fatalf("%q, want %q at %d", b.done, want, i)
			}
		}
		if w := g.warned(); len(w) > 0 {
			t.Errorf("%q", w)
		}
	})
}

// TestDrainedByItself has a server say itself in an evacuation that it wants no sessions: that nobody can set it back does not
// keep the restoration from ending.
func TestDrainedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		g := speaks(said{0, active}, said{20, `"drain": ["web"]`}, said{60, `"restore": [{"virtual_server": "web", "servers": ["s1", "s2"]}]`})
		runDraining(t, b, 80*time.Second, func() {
			time.Sleep(50 * time.Second)
			b.mu.Lock()
			b.aside = map[string]bool{"web/s1": true}
			b.mu.Unlock()
		}, g)
		last := g.seen()[len(g.seen())-1]
		if s := last.VirtualServers[0].Servers; s[0].State != "maint" || s[0].Reason == "" || s[1].State != "up" || len(last.Drained) > 0 {
			t.Errorf("%+v, drained %v", s, last.Drained)
		}
		if n := len(b.done); n != 2 {
			t.Errorf("%q", b.done)
		}
		if w := g.warned(); len(w) > 0 {
			t.Errorf("%q", w)
		}
	})
}

// TestDrainedAndAskedForLate restarts agent and gslbd in an evacuation, after which gslbd take a moment to find what they ask
// for: the servers in drain do not pass for drained by hand.
func TestDrainedAndAskedForLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		b.states["web/s1"] = "drain"
		g := speaks(said{0, active}, said{30, `"drain": ["web"]`}, said{120, `"restore": [{"virtual_server": "web", "servers": ["s1"]}]`})
		runDraining(t, b, 150*time.Second, nil, g)
		if len(b.done) != 2 || !strings.HasSuffix(b.done[1], "up web [s1]") {
			t.Errorf("%q", b.done)
		}
	})
}

// TestDrainedInSpiteOfFailure has the load balancer fail after it did what it was asked for: the servers are in drain, so
// the reports go on to say that the agent did it.
func TestDrainedInSpiteOfFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		b.fails, b.partly = errors.New("no whole answer in 2s"), true
		g := speaks(said{0, active}, said{20, `"drain": ["web"]`})
		runDraining(t, b, time.Minute, nil, g)
		if d := cmp.Diff([]string{"web [s1 s2]"}, drainedOf(g)); d != "" {
			t.Error(d)
		}
	})
}

// TestDrainedIsToldBefore has two of three gslbd fall silent before they are told of the servers that are to be drained:
// nothing is drained before they are, since one alone may be lost with the agent.
func TestDrainedIsToldBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		const drain = `"drain": ["web"]`
		silent := []said{{0, active}, {20, drain}, {24, ""}, {70, drain}}
		g := speaks(said{0, active}, said{20, drain})
		runDraining(t, b, 100*time.Second, nil, g, speaks(silent...), speaks(silent...))
		var at int
		if len(b.done) == 1 {
			fmt.Sscan(b.done[0], &at)
		}
		if at < 70 || at > 82 {
			t.Errorf("%q", b.done)
		}
		if d := cmp.Diff([]string{"web [s1 s2]"}, drainedOf(g)); d != "" {
			t.Error(d)
		}
	})
}

// TestEvacuationHeldBack lists why nothing is done.
func TestEvacuationHeldBack(t *testing.T) {
	const drainWeb, restoreWeb = `"drain": ["web"]`, `"restore": [{"virtual_server": "web", "servers": ["s1"]}]`
	tests := []struct {
		name   string
		slb    func(b *slb)
		says   []string // by gslbd, from the start; the empty text is no answer
		warned string
	}{
		{"only one asks", nil, []string{drainWeb, active}, `servers of virtual server "web" are not set to drain: no agreement, gslbd http://b does not ask to drain virtual server "web"`},
		{"not more than half answer", nil, []string{drainWeb, ""}, "1 of 2 gslbd answered lately"},
		{"one drains, the other restores", nil, []string{drainWeb, restoreWeb}, `gslbd http://b asks to restore virtual server "web"`},
		{
			"one drains, the other restores what is in drain", func(b *slb) { b.states["web/s1"] = "drain"; b.states["web/s2"] = "down" },
			[]string{drainWeb, restoreWeb},
			`servers of virtual server "web" are not set back to ready: no agreement, gslbd http://a asks to drain virtual server "web"`,
		},
		{"only one restores", func(b *slb) { b.states["web/s1"] = "drain" }, []string{restoreWeb, active}, "not set back to ready: no agreement, gslbd http://b does not ask for it"},
		{"they restore different servers", func(b *slb) { b.states["web/s1"], b.states["web/s2"] = "drain", "drain" }, []string{restoreWeb, strings.Replace(restoreWeb, "s1", "s2", 1)}, "gslbd name different servers"},
		{"a shared backend", func(b *slb) { b.shared = true }, []string{drainWeb}, `does not ask to drain virtual server "api"`},
		{"not permitted", func(b *slb) { b.may = errors.New("permission denied, it has level operator") }, []string{drainWeb}, "permission denied, it has level operator"},
		{"it fails", func(b *slb) { b.fails = errors.New("connection refused") }, []string{drainWeb}, "connection refused"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSLB()
				if tc.slb != nil {
					tc.slb(b)
				}
				var all []*gslbd
				for _, text := range tc.says {
					all = append(all, speaks(said{0, text}))
				}
				logs := runDraining(t, b, 50*time.Second, nil, all...)
				if len(b.done) > 0 {
					t.Errorf("done: %q", b.done)
				}
				if warned := strings.Join(all[0].warned(), "\n"); !strings.Contains(warned, tc.warned) {
					t.Errorf("warned %q, want %q", warned, tc.warned)
				}
				if n := logs.FilterMessage("held back").Len(); n < 1 || n > 2 {
					t.Errorf("%d log lines of it", n)
				}
				if last := all[0].seen()[len(all[0].seen())-1]; len(last.Drained) > 0 {
					t.Errorf("told as drained: %v", last.Drained)
				}
			})
		})
	}
}

// TestDrainedAndForgotten: an agent whose load balancer cannot be read goes on telling of what it drained, and gslbd that
// lost their orders do not make it put servers of the zone back.
func TestDrainedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		g := speaks(said{0, `"drain": ["web"]`}, said{40, active})
		runDraining(t, b, 80*time.Second, func() {
			time.Sleep(20 * time.Second)
			b.mu.Lock()
			b.broken = true
			b.mu.Unlock()
			time.Sleep(10 * time.Second)
			b.mu.Lock()
			b.broken = false
			b.mu.Unlock()
		}, g)
		if d := cmp.Diff([]string{"web [s1 s2]"}, drainedOf(g)); d != "" {
			t.Error(d)
		}
		if w := g.warned(); len(w) != 1 || !strings.Contains(w[0], "in drain that no gslbd asks for any more; set them to ready by hand: s1, s2") {
			t.Errorf("%q", w)
		}
		if len(b.done) != 1 {
			t.Errorf("%q", b.done)
		}
	})
}

// TestRestartInEvacuation restarts the agent in the middle: it knows nothing, drains what comes up, and restores what the
// ledger has.
func TestRestartInEvacuation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSLB()
		runDraining(t, b, 20*time.Second, nil, speaks(said{0, `"drain": ["web"]`}))
		g := speaks(said{0, `"drain": ["web"]`}, said{20, `"restore": [{"virtual_server": "web", "servers": ["s1", "s2"]}]`})
		runDraining(t, b, 40*time.Second, nil, g)
		if len(b.done) != 2 || !strings.HasSuffix(b.done[0], "drain web [s1 s2]") || !strings.HasSuffix(b.done[1], "up web [s1 s2]") {
			t.Errorf("%q", b.done)
		}
		if got := drainedOf(g); len(got) > 0 {
			t.Errorf("%q", got) // whether it or the operator drained them it cannot know
		}
	})
}

// TestDrainingOff asks an agent whose file does not allow it, and one that has nothing to act on.
func TestDrainingOff(t *testing.T) {
	reader := func(b *slb) sitereport.Reader { return readerFunc(b.Read) }
	for _, tc := range []struct {
		name    string
		enabled bool
		reader  func(b *slb) sitereport.Reader
		want    string
	}{
		{"off", false, func(b *slb) sitereport.Reader { return b }, "draining is off in the agent's file"},
		{"nothing to act on", true, reader, "the agent only checks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSLB()
				b.states["web/s1"] = "drain" // by an agent before
				g := speaks(
					said{0, active},
					said{20, `"drain": ["web"], ` + draining(40)},
					said{70, `"restore": [{"virtual_server": "web", "servers": ["s1"]}], ` + active},
				)
				run(t, gslbds{"a": g}, sitereport.AgentOptions{Draining: tc.enabled, Readers: []sitereport.Reader{tc.reader(b)}}, 100*time.Second, nil)
				if len(b.done) > 0 {
					t.Errorf("done: %q", b.done)
				}
				w := g.warned()
				if len(w) != 3 {
					t.Fatalf("warned %q", w)
				}
				for _, text := range w {
					if !strings.Contains(text, tc.want) {
						t.Errorf("%q lacks %q", text, tc.want)
					}
				}
			})
		})
	}
}

// A slowSLB needs almost half of the time between two reports to set the servers of one virtual server to drain.
type slowSLB struct {
	names   []string
	drained map[string]bool
}

func (b *slowSLB) Read(context.Context) (r sitereport.Reading, _ error) {
	for _, name := range b.names {
		s := sitereport.Server{Name: "s", State: "up"}
		if b.drained[name] {
			s.State = "drain"
		}
		r.VirtualServers = append(r.VirtualServers, sitereport.VirtualServer{Name: name, Servers: []sitereport.Server{s}})
	}
	return r, nil
}

func (b *slowSLB) Shares(name string) []string                               { return []string{name} }
func (b *slowSLB) May(context.Context) error                                 { return nil }
func (b *slowSLB) EndSessions(context.Context, string) error                 { return nil }
func (b *slowSLB) Ready(context.Context, string, []string) ([]string, error) { return nil, nil }
func (b *slowSLB) Drain(ctx context.Context, name string, servers []string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	time.Sleep(2100 * time.Millisecond)
	b.drained[name] = true
	return servers, nil
}

// TestSlowEvacuation drains more virtual servers than there is time for between two reports: the rest follow with the next
// ones, and are no failure.
func TestSlowEvacuation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowSLB{names: []string{"v1", "v2", "v3", "v4", "v5"}, drained: make(map[string]bool)}
		g := speaks(said{0, `"drain": ["v1", "v2", "v3", "v4", "v5"]`})
		run(t, gslbds{"a": g}, sitereport.AgentOptions{Draining: true, Readers: []sitereport.Reader{b}}, 50*time.Second, nil)
		if len(b.drained) != len(b.names) {
			t.Errorf("drained in 50 s: %v", b.drained)
		}
		if w := g.warned(); len(w) > 0 {
			t.Errorf("%q", w)
		}
	})
}

// A muteSLB does not say whether something may be done.
type muteSLB struct{ *slb }

func (b muteSLB) May(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("no whole answer")
}

// TestReportsGoOnWithoutAnswer has a load balancer that can be read and says nothing else: the reports come in time.
func TestReportsGoOnWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := speaks(said{0, `"drain": ["web", "api"]`})
		run(t, gslbds{"a": g}, sitereport.AgentOptions{Draining: true, Readers: []sitereport.Reader{muteSLB{newSLB()}}}, time.Minute, nil)
		if n := len(g.seen()); n < 10 {
			t.Errorf("%d reports in a minute", n)
		}
		if w := g.warned(); len(w) != 2 || !strings.Contains(w[0], "no whole answer") {
			t.Errorf("%q", w)
		}
	})
}

// TestAgentBoundsWarnings has more to warn of than a report may tell.
func TestAgentBoundsWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := readerFunc(func(context.Context) (sitereport.Reading, error) {
			var reading sitereport.Reading
			for i := range 200 {
				reading.VirtualServers = append(reading.VirtualServers, sitereport.VirtualServer{
					Name: fmt.Sprintf("vs%d-%s", i, strings.Repeat("x", 240)), Servers: []sitereport.Server{{Name: "s", State: "up"}},
				})
			}
			return reading, nil
		})
		g := &gslbd{}
		g.answer = func(_ context.Context, _ int, rep *sitereport.Report) (int, string, error) {
			var names []string
			for _, v := range rep.VirtualServers {
				names = append(names, fmt.Sprintf("%q", v.Name))
			}
			return http.StatusOK, `{"accepted": true, "drain": [` + strings.Join(names, ",") + `]}`, nil
		}
		run(t, gslbds{"a": g}, sitereport.AgentOptions{Readers: []sitereport.Reader{r}}, 20*time.Second, nil)
		last := g.seen()[len(g.seen())-1]
		if n := len(last.Warnings); n != 21 || last.Warnings[20] != "and 180 more" {
			t.Errorf("%d warnings, the last is %q", n, last.Warnings[n-1])
		}
	})
}

// TestHostileGSLBD has one gslbd of three order all that it can think of: nothing is done, and the reports to the others
// do not wait.
func TestHostileGSLBD(t *testing.T) {
	b := newSLB()
	b.states["web/s2"], b.states["api/s2"] = "drain", "drain"
	names := `"x"` + strings.Repeat(`,"x"`, 20_000)
	hostile := &gslbd{answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
		return http.StatusOK, `{"accepted": true, "interval_ms": 1000, "dead_after_ms": 9223372036854775807,
			"services": [{"name": "www", "state": "draining", "deadline_ms": -9223372036854775808, "virtual_servers": ["web", "", "be;shutdown"]}, {}],
			"drain": ["", "web", "api", "api; set server be/s1 state maint"],
			"restore": [{}, {"virtual_server": "web", "servers": [` + names + `]}, {"virtual_server": "web", "servers": ["s1"]}]}`, nil
	}}
	synctest.Test(t, func(t *testing.T) {
		a, c := speaks(said{0, active}), speaks(said{0, active})
		b.begin = time.Now()
		runDraining(t, b, 30*time.Second, nil, a, hostile, c)
		if len(b.done) > 0 {
			t.Errorf("%q", b.done)
		}
		if n := len(a.seen()); n < 20 {
			t.Errorf("%d reports in 30 s", n)
		}
	})
}
