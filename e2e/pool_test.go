package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// dig asks the server for a name's addresses as an operator does, and returns them sorted.
func (s *gslbd) dig(t *testing.T, name string) string {
	t.Helper()
	host, port, _ := strings.Cut(s.dns, ":")
	out, err := exec.Command(lab.Program(t, "dig"), "+short", "@"+host, "-p", port, name, "A").CombinedOutput()
	if err != nil {
		t.Fatalf("dig: %v\n%s", err, out)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// A farm is a site whose agent keeps reporting a virtual server for each of its instance groups.
type farm struct {
	site   string
	groups []instances

	mu       sync.Mutex
	down     []string // guarded by mu: machines
	sessions int      // guarded by mu
}

// instances are the machines behind one VIP.
type instances struct {
	name, vip string
	machines  []string
}

// startFarm has a site report to the server until the test ends.
func startFarm(t *testing.T, s *gslbd, site string, groups ...instances) *farm {
	t.Helper()
	f := &farm{site: site, groups: groups}
	s.keepReporting(t, site, f.body, func(string) {})
	return f
}

// fail has these machines down, and no others.
func (f *farm) fail(machines ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = machines
}

// load sets the open sessions.
func (f *farm) load(sessions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions = sessions
}

func (f *farm) body() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var virtual []string
	for _, g := range f.groups {
		var servers []string
		for _, m := range g.machines {
			state := "up"
			if slices.Contains(f.down, m) {
				state = "down"
			}
			servers = append(servers, fmt.Sprintf(`{"name": %q, "state": %q}`, m, state))
		}
		virtual = append(virtual, fmt.Sprintf(`{"name": %q, "address": %q, "port": 80, "protocol": "tcp", "servers": [%s]}`, g.name, g.vip, strings.Join(servers, ", ")))
	}
	return fmt.Sprintf(`{"site": %q, "load": {"sessions": %d}, "virtual_servers": [%s]}`, f.site, f.sessions, strings.Join(virtual, ", "))
}

// wantPool waits until status names the pool and the share of healthy primaries, and checks that explain and the
// telemetry say the same.
func (s *gslbd) wantPool(t *testing.T, pool, share string) {
	t.Helper()
	says := func(out string) bool {
		return strings.Contains(out, "pool "+pool+" ") && strings.Contains(out, share+" primary servers healthy")
	}
	lab.Eventually(t, 20*time.Second, "status says pool "+pool+", "+share, func() bool { return says(unwrapped(s.ctl(t, "status"))) })
	if out := unwrapped(s.ctl(t, "explain", www.name)); !says(out) {
		t.Errorf("explain does not say pool %s, %s:\n%s", pool, share, out)
	}
	for _, name := range []string{"primary", "backup"} {
		want := map[bool]string{true: "1", false: "0"}[name == pool]
		if got := s.scrape(t, `gslbd_pool_active{pool="`+name+`",service="www.gslb.example.com"}`); got != want {
			t.Errorf("gslbd_pool_active of %s is %s, want %s", name, got, want)
		}
	}
}

// wantChanges checks how often the pool has changed, as it is counted and logged.
func (s *gslbd) wantChanges(t *testing.T, n int) {
	t.Helper()
	counted, logged := s.scrape(t, `gslbd_pool_transitions_total{service="www.gslb.example.com"}`), strings.Count(s.log(), `"msg":"pool changed"`)
	if counted != fmt.Sprint(n) || logged != n {
		t.Errorf("%s changes of the pool are counted and %d logged, want %d", counted, logged, n)
	}
}

// Seed B's example: primaries ig-a and ig-d, backups ig-b and ig-c, two machines each, ratio 0.5. What clients get and
// what an operator reads, step by step.
func TestSeedFailover(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    answers: 4
    failover: {ratio: 0.5}
    members:
      - {name: ig-a, site: seoul, addresses: [192.0.2.1]}
      - {name: ig-b, site: seoul, addresses: [192.0.2.2], role: backup}
      - {name: ig-c, site: virginia, addresses: [192.0.2.3], role: backup}
      - {name: ig-d, site: virginia, addresses: [192.0.2.4]}
`)
	seoul := startFarm(t, s, "seoul", instances{"ig-a", "192.0.2.1", []string{"vm-a1", "vm-a2"}}, instances{"ig-b", "192.0.2.2", []string{"vm-b1", "vm-b2"}})
	virginia := startFarm(t, s, "virginia", instances{"ig-c", "192.0.2.3", []string{"vm-c1", "vm-c2"}}, instances{"ig-d", "192.0.2.4", []string{"vm-d1", "vm-d2"}})
	const primaries, backups = "192.0.2.1 192.0.2.4", "192.0.2.2 192.0.2.3"
	for _, step := range []struct {
		what                    string
		seoulDown, virginiaDown []string
		pool, share, answer     string
		changes                 int
		status, explain         []string // what each says beside the pool
	}{
		{
			"all are healthy", nil, nil, "primary", "4 of 4", primaries, 0,
			[]string{"Nothing is wrong.", "ig-a seoul 192.0.2.1 up", "ig-b seoul 192.0.2.2 up, backup waits", "ig-c virginia 192.0.2.3 up, backup waits", "ig-d virginia 192.0.2.4 up"},
			[]string{"kept ig-a, ig-d; fell ig-b (backup, not in the pool), ig-c (backup, not in the pool)"},
		},
		{
			"a1 and d1 fail",
			[]string{"vm-a1"},
			[]string{"vm-d1"},
			"primary", "2 of 4", primaries, 0,
			[]string{"1/2"},
			[]string{"kept ig-a, ig-d;"},
		},
		{
			"a2 fails, too: d2 is healthy and gets nothing",
			[]string{"vm-a1", "vm-a2"},
			[]string{"vm-d1"},
			"backup", "1 of 4", backups, 1,
			[]string{"its backups answer: 1 of 4 primary servers healthy, ratio 0.5", "ig-a: is down", "0/2", "ig-d virginia 192.0.2.4 up, primary waits"},
			[]string{"kept ig-b, ig-c; fell ig-a (primary, not in the pool), ig-d (primary, not in the pool)"},
		},
		{
			"a2 recovers",
			[]string{"vm-a1"},
			[]string{"vm-d1"},
			"primary", "2 of 4", primaries, 2,
			[]string{"Nothing is wrong.", "ig-b seoul 192.0.2.2 up, backup waits"},
			[]string{"kept ig-a, ig-d;"},
		},
		{
			"a1 recovers", nil,
			[]string{"vm-d1"},
			"primary", "3 of 4", primaries, 2,
			[]string{"Nothing is wrong.", "2/2", "1/2"},
			[]string{"kept ig-a, ig-d;"},
		},
		{
			"all primaries fail",
			[]string{"vm-a1", "vm-a2"},
			[]string{"vm-d1", "vm-d2"},
			"backup", "0 of 4", backups, 3,
			[]string{"its backups answer: 0 of 4 primary servers healthy", "ig-a: is down", "ig-d: is down"},
			[]string{"kept ig-b, ig-c;"},
		},
		{
			"everything fails: all primaries as a last resort, never the backups",
			[]string{"vm-a1", "vm-a2", "vm-b1", "vm-b2"},
			[]string{"vm-c1", "vm-c2", "vm-d1", "vm-d2"},
			"primary", "0 of 4", primaries, 4,
			[]string{"critical", "no member of the pool is up"},
			[]string{"fell ig-b (backup, not in the pool), ig-c (backup, not in the pool)", "on_all_down"},
		},
	} {
		seoul.fail(step.seoulDown...)
		virginia.fail(step.virginiaDown...)
		s.wantPool(t, step.pool, step.share)
		if got := s.dig(t, www.name); got != step.answer {
			t.Errorf("%s: dig shows %s, want %s", step.what, got, step.answer)
		}
		s.wantChanges(t, step.changes)
		for command, words := range map[string][]string{"status": step.status, "explain": step.explain} {
			args := []string{command}
			if command == "explain" {
				args = append(args, www.name)
			}
			out := s.ctl(t, args...)
			for _, want := range words {
				if !strings.Contains(unwrapped(out), want) {
					t.Errorf("%s: %s does not say %q:\n%s", step.what, command, want, out)
				}
			}
		}
	}
}

// The limits of the failover documentation, through real reports: 50 primary and 50 backup members, 250 servers a side.
// The pool changes at exactly the edge, and back at exactly the minimum.
func TestPoolOfManyServers(t *testing.T) {
	t.Parallel()
	var service strings.Builder
	service.WriteString("services:\n  - name: www.gslb.example.com\n    policy: active-standby\n    ttl: 1\n    failover: {ratio: 0.5}\n    members:\n")
	var primaries, backups []instances
	var machines []string
	for i := range 50 {
		p := instances{name: fmt.Sprintf("p%d", i), vip: fmt.Sprintf("198.51.100.%d", i+1)}
		b := instances{name: fmt.Sprintf("b%d", i), vip: fmt.Sprintf("203.0.113.%d", i+1)}
		for j := range 5 {
			p.machines = append(p.machines, fmt.Sprintf("p%d-%d", i, j))
			b.machines = append(b.machines, fmt.Sprintf("b%d-%d", i, j))
		}
		fmt.Fprintf(&service, "      - {name: %s, site: seoul, addresses: [%s]}\n      - {name: %s, site: virginia, addresses: [%s], role: backup}\n", p.name, p.vip, b.name, b.vip)
		primaries, backups, machines = append(primaries, p), append(backups, b), append(machines, p.machines...)
	}
	s := startGSLBD(t, seedNetwork+service.String())
	seoul := startFarm(t, s, "seoul", primaries...)
	startFarm(t, s, "virginia", backups...)
	for _, step := range []struct {
		healthy int
		pool    string
		answers string // from
		changes int
	}{
		{250, "primary", "198.51.100.", 0},
		{125, "primary", "198.51.100.", 0},
		{124, "backup", "203.0.113.", 1},
		{0, "backup", "203.0.113.", 1},
		{124, "backup", "203.0.113.", 1},
		{125, "primary", "198.51.100.", 2},
	} {
		seoul.fail(machines[:250-step.healthy]...)
		s.wantPool(t, step.pool, fmt.Sprintf("%d of 250", step.healthy))
		for range 20 {
			if got := s.answer(t, www); !strings.HasPrefix(got, step.answers) {
				t.Errorf("%d healthy: answered %s, want one of %s", step.healthy, got, step.answers)
			}
		}
		s.wantChanges(t, step.changes)
	}
}

// A pool is not left because its sites are overloaded: overload is for the chain, health for the pool.
func TestPoolStaysUnderOverload(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    failover: {ratio: 0.5}
    members:
      - {name: primary, site: seoul, addresses: [1.1.1.1]}
      - {name: backup, site: virginia, addresses: [2.2.2.2], role: backup}
`)
	seoul := startFarm(t, s, "seoul", instances{"web", "1.1.1.1", []string{"a", "b"}})
	startFarm(t, s, "virginia", instances{"web", "2.2.2.2", []string{"c", "d"}})
	s.wantPool(t, "primary", "2 of 2")
	seoul.load(900000)
	lab.Eventually(t, 20*time.Second, "seoul is overloaded", func() bool { return s.scrape(t, `gslbd_site_overloaded{site="seoul"}`) == "1" })
	for range 10 {
		if got := s.dig(t, www.name); got != "1.1.1.1" {
			t.Fatalf("dig shows %s while only the site is overloaded", got)
		}
	}
	s.wantPool(t, "primary", "2 of 2")
	s.wantChanges(t, 0)
	if out := s.ctl(t, "explain", www.name); !strings.Contains(unwrapped(out), "fell backup (backup, not in the pool)") {
		t.Errorf("explain:\n%s", out)
	}
	if out := s.ctl(t, "status"); !strings.Contains(out, "overloaded") {
		t.Errorf("status does not say that the site is overloaded:\n%s", out)
	}
	// Health does leave it, and an overloaded primary is what the service goes back to.
	seoul.fail("a", "b")
	s.wantPool(t, "backup", "0 of 2")
	if got := s.dig(t, www.name); got != "2.2.2.2" {
		t.Errorf("dig shows %s while the primary is down", got)
	}
	seoul.fail()
	s.wantPool(t, "primary", "2 of 2")
	if got := s.dig(t, www.name); got != "1.1.1.1" {
		t.Errorf("dig shows %s after the failback", got)
	}
}

// An order with an expiry ends by itself, and not before: dig and gslbctl show it.
func TestOrderExpires(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+fleetService)
	if got := s.dig(t, www.name); got != "1.1.1.1" {
		t.Fatalf("dig shows %s", got)
	}
	s.ctl(t, "force", "down", "--site", "seoul", "--reason", "short work", "--expires", "10s")
	var held struct {
		Orders []struct{ Expires time.Time }
	}
	if err := json.Unmarshal([]byte(s.ctl(t, "orders", "--json")), &held); err != nil || len(held.Orders) != 1 {
		t.Fatalf("%v, %+v", err, held)
	}
	expires := held.Orders[0].Expires
	shows := map[string]func() bool{
		"dig":     func() bool { return s.dig(t, www.name) == "2.2.2.2" },
		"orders":  func() bool { return strings.Contains(s.ctl(t, "orders"), "short work") },
		"status":  func() bool { return strings.Contains(s.ctl(t, "status"), "short work") },
		"explain": func() bool { return strings.Contains(unwrapped(s.ctl(t, "explain", www.name)), "short work") },
	}
	for who, holds := range shows {
		if !holds() && time.Now().Before(expires) {
			t.Errorf("%s does not show the order %v before it expires", who, time.Until(expires))
		}
	}
	for who, holds := range shows {
		lab.Eventually(t, 40*time.Second, who+" shows the order's end", func() bool { return !holds() })
		if time.Now().Before(expires) {
			t.Errorf("%s shows no order %v before it expires", who, time.Until(expires))
		}
	}
	if got := s.dig(t, www.name); got != "1.1.1.1" {
		t.Errorf("after the order dig shows %s", got)
	}
	if out := s.ctl(t, "orders"); !strings.Contains(out, "no order is in force") {
		t.Errorf("orders:\n%s", out)
	}
}

// drain-status says how long a resolver may still name a drained member, from the last answer that did; force --wait
// returns when that is over.
func TestDrainedMembersRunOut(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	s := startGSLBD(t, seedNetwork+strings.Replace(fleetService, "ttl: 1\n", "ttl: 5\n", 1))
	left := func(member string) (seconds float64, until time.Time) {
		t.Helper()
		var list struct {
			Drains []struct {
				Member      string
				SecondsLeft float64   `json:"seconds_left"`
				CachedUntil time.Time `json:"cached_until"`
			}
		}
		out := s.ctl(t, "drain-status", "--json")
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, d := range list.Drains {
			if d.Member == member {
				return d.SecondsLeft, d.CachedUntil
			}
		}
		t.Fatalf("%s is not listed:\n%s", member, out)
		return 0, time.Time{}
	}
	clear := func() { s.ctl(t, "clear", "--all", "--reason", "test") }

	// One that was never answered holds for what may have been answered before the start, and no longer.
	s.ctl(t, "force", "drain", "--member", "virginia", "--reason", "never answered")
	lab.Eventually(t, 60*time.Second, "no cached answer names virginia", func() bool { seconds, _ := left("virginia"); return seconds == 0 })
	clear()

	for range 2 {
		if got := s.dig(t, www.name); got != "1.1.1.1" {
			t.Fatalf("dig shows %s", got)
		}
		asked := time.Now() // after this
		s.answer(t, www)
		answered := time.Now()
		s.ctl(t, "force", "drain", "--member", "seoul", "--reason", "kernel update")
		_, until := left("seoul")
		if until.Before(asked.Add(ttl)) || until.After(answered.Add(ttl+2*time.Second)) {
			t.Errorf("answered between %v and %v with a TTL of %v, cached until %v", asked, answered, ttl, until)
		}
		// Answers that name the other one do not prolong it.
		for range 20 {
			if got := s.answer(t, www); got != "2.2.2.2" {
				t.Fatalf("answered %s while it is drained", got)
			}
		}
		if _, again := left("seoul"); !again.Equal(until) {
			t.Errorf("cached until %v, and until %v after answers without it", until, again)
		}
		s.ctl(t, "force", "drain", "--member", "seoul", "--reason", "and wait", "--wait", "--timeout", "60s")
		if d := time.Since(asked); d < ttl {
			t.Errorf("--wait returned %v after the last answer, whose TTL was %v", d, ttl)
		}
		if out := s.ctl(t, "drain-status"); !strings.Contains(out, "have run out") {
			t.Errorf("after --wait, drain-status:\n%s", out)
		}
		clear()
	}
}
