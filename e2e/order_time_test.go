package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// get reads a path of the admin interface.
func (s *gslbd) get(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Where an order expires, the answers, the list of orders, status, the list of drains and the telemetry change together.
func TestOrderExpiresEverywhereAtOnce(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+fleetService)
	s.ctl(t, "force", "down", "--site", "seoul", "--reason", "short work", "--expires", "3s")
	var held struct {
		Orders []struct{ Expires time.Time }
	}
	if err := json.Unmarshal([]byte(s.get(t, "/v1/orders")), &held); err != nil || len(held.Orders) != 1 {
		t.Fatalf("%v, %+v", err, held)
	}
	expires := held.Orders[0].Expires
	look := func() map[string]bool { // who still says that it holds
		return map[string]bool{
			"dns":       s.answer(t, www) == "2.2.2.2",
			"orders":    strings.Contains(s.get(t, "/v1/orders"), "short work"),
			"status":    strings.Contains(s.get(t, "/v1/services/www.gslb.example.com"), "short work"),
			"drains":    strings.Contains(s.get(t, "/v1/drains"), "short work"),
			"telemetry": s.scrape(t, `gslbd_orders{action="down"}`) == "1",
			"explain":   strings.Contains(s.get(t, "/v1/explain?name=www.gslb.example.com&type=A&client=203.0.113.9"), "short work"),
		}
	}
	const slack = 100 * time.Millisecond
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for time.Since(expires) < time.Second {
		begin := time.Now()
		got := look()
		for who, holds := range got {
			if time.Now().Before(expires) && !holds {
				t.Errorf("%s has dropped the order %v before it expires", who, time.Until(expires))
			}
			if begin.After(expires.Add(slack)) && holds {
				t.Fatalf("%s still holds the order %v after it expired: %v", who, begin.Sub(expires), got)
			}
		}
		<-tick.C
	}
}

// drain-status says until when the last answer that named the member may be cached, and that this is over when it is.
func TestDrainStatusTellsOfCachedAnswers(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+strings.Replace(fleetService, "ttl: 1\n", "ttl: 4\n", 1))
	begin := time.Now()
	eventually(t, 10*time.Second, "what was answered before the start has expired", func() bool { return time.Since(begin) > 5*time.Second })
	s.wantAnswer(t, 0, www, "1.1.1.1")
	last := time.Now()
	s.ctl(t, "force", "drain", "--member", "www.gslb.example.com/seoul", "--reason", "kernel update")
	s.wantAnswer(t, 0, www, "2.2.2.2")
	drains := func() (left float64) {
		t.Helper()
		var list struct {
			Drains []struct {
				Member      string
				SecondsLeft float64 `json:"seconds_left"`
			}
		}
		out := s.ctl(t, "drain-status", "--json")
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Drains) != 1 || list.Drains[0].Member != "seoul" {
			t.Fatalf("%v\n%s", err, out)
		}
		return list.Drains[0].SecondsLeft
	}
	if left, want := drains(), (4*time.Second - time.Since(last)).Seconds(); left < want-0.2 || left > want+1.2 {
		t.Errorf("%.1f s are left, want %.1f or at most a second more", left, want)
	}
	out := s.ctl(t, "force", "drain", "--member", "www.gslb.example.com/seoul", "--reason", "again", "--wait", "--timeout", "20s")
	if d := time.Since(last); d < 4*time.Second || d > 8*time.Second {
		t.Errorf("--wait returned %v after the last answer, whose TTL was 4 s\n%s", d, out)
	}
	if left := drains(); left != 0 {
		t.Errorf("%.1f s are left after waiting", left)
	}
	t.Log(s.ctl(t, "drain-status"))
}

// The limits of the failover documentation, through real reports: 50 primary and 50 backup members, 250 servers a side.
func TestPoolOfManyServers(t *testing.T) {
	t.Parallel()
	var service strings.Builder
	service.WriteString("services:\n  - name: www.gslb.example.com\n    policy: active-standby\n    ttl: 1\n    failover: {ratio: 0.5}\n    members:\n")
	for i := range 50 {
		fmt.Fprintf(&service, "      - {name: p%d, site: seoul, addresses: [127.1.0.%d], virtual_servers: [p%[1]d]}\n", i, i+1)
		fmt.Fprintf(&service, "      - {name: b%d, site: virginia, addresses: [127.2.0.%d], virtual_servers: [b%[1]d], role: backup}\n", i, i+1)
	}
	s := startGSLBD(t, seedNetwork+service.String())
	report := func(site, prefix string, down int) {
		var list []string
		for i := range 50 {
			var servers []string
			for j := range 5 {
				state := "up"
				if i*5+j < down {
					state = "down"
				}
				servers = append(servers, fmt.Sprintf(`{"name":"s%d","address":"10.0.%d.%d:80","state":%q}`, j, i, j, state))
			}
			list = append(list, fmt.Sprintf(`{"name":"%s%d","address":"10.9.0.%d","port":80,"protocol":"tcp","servers":[%s]}`, prefix, i, i, strings.Join(servers, ",")))
		}
		s.report(t, site, fmt.Sprintf(`{"site":%q,"virtual_servers":[%s]}`, site, strings.Join(list, ",")))
	}
	show := func(pool, why string) {
		t.Helper()
		eventually(t, within, "the pool is "+pool+": "+why, func() bool {
			return strings.Contains(unwrapped(s.ctl(t, "status")), "pool "+pool+" ("+why+") for ")
		})
		out := s.ctl(t, "explain", www.name)
		if !strings.Contains(unwrapped(out), "pool "+pool+" ("+why+") for ") {
			t.Errorf("explain does not say so, and since when:\n%s", out)
		}
		for _, name := range []string{"primary", "backup"} {
			want := map[bool]string{true: "1", false: "0"}[name == pool]
			if got := s.scrape(t, `gslbd_pool_active{pool="`+name+`",service="www.gslb.example.com"}`); got != want {
				t.Errorf("gslbd_pool_active of %s is %s, want %s", name, got, want)
			}
		}
	}
	report("virginia", "b", 0)
	report("seoul", "p", 125)
	show("primary", "125 of 250 primary servers healthy, ratio 0.5")
	if s.answer(t, www) == "" || strings.Contains(s.answer(t, www), "127.2.") {
		t.Errorf("answered %s from the primaries", s.answer(t, www))
	}
	<-time.After(time.Second) // a site reports at most once a fifth of the interval
	report("seoul", "p", 126)
	show("backup", "124 of 250 primary servers healthy, ratio 0.5")
	if !strings.HasPrefix(s.answer(t, www), "127.2.") {
		t.Errorf("answered %s from the backups", s.answer(t, www))
	}
	s.waitLog(`"pool":"backup","why":"124 of 250 primary servers healthy, ratio 0.5"`, 0)
	<-time.After(time.Second)
	report("seoul", "p", 124)
	show("primary", "126 of 250 primary servers healthy, ratio 0.5")
	if n := s.scrape(t, `gslbd_pool_transitions_total{service="www.gslb.example.com"}`); n != "2" || strings.Count(s.log(), `"msg":"pool changed"`) != 2 {
		t.Errorf("%s changes of the pool are counted, and logged:\n%s", n, s.log())
	}
}

// Whichever metric rotates, an order is kept by every answer: one member forced down, another drained, of four.
func TestRotationKeepsOrders(t *testing.T) {
	t.Parallel()
	const body = `
policies:
  - name: weighted
    chain: [{metric: health}, {metric: static, method: weighted}]
  - name: turns
    chain: [{metric: health}, {metric: static, method: round-robin}]
  - name: least
    chain: [{metric: health}, {metric: least-selected}]
services:
`
	var services strings.Builder
	services.WriteString(body)
	for _, policy := range []string{"weighted", "turns", "least"} {
		for _, n := range []int{1, 3} {
			fmt.Fprintf(&services, "  - name: %s%d.gslb.example.com\n    policy: %[1]s\n    ttl: 30\n    answers: %[2]d\n    members:\n", policy, n)
			for i := range 4 {
				fmt.Fprintf(&services, "      - {name: m%d, site: %s, addresses: [192.0.2.%d]}\n", i, []string{"seoul", "virginia"}[i/2], i+1)
			}
		}
	}
	s := startGSLBD(t, seedNetwork+services.String())
	s.ctl(t, "force", "down", "--member", "m0", "--reason", "broken")
	s.ctl(t, "force", "drain", "--member", "m1", "--reason", "kernel update")
	for _, policy := range []string{"weighted", "turns", "least"} {
		for _, n := range []int{1, 3} {
			name := fmt.Sprintf("%s%d.gslb.example.com", policy, n)
			seen := map[string]int{}
			for range 500 {
				m := s.ask(t, question{name: name})
				all := addresses(m)
				for i, a := range all {
					seen[a]++
					if a == "192.0.2.2" && i < len(all)-1 {
						t.Fatalf("%s: the drained member stands before another: %v", name, all)
					}
				}
				for _, rr := range m.Answer {
					if rr.Header().Ttl != 30 {
						t.Fatalf("%s: TTLs differ: %v", name, m.Answer)
					}
				}
			}
			if seen["192.0.2.1"] > 0 || seen["192.0.2.3"] == 0 || seen["192.0.2.4"] == 0 || seen["192.0.2.2"] > 0 {
				t.Errorf("%s: %v, want nothing of .1 (forced down) and .2 (drained)", name, seen)
			}
		}
	}
}

// With ratio 0 orders do not fail a service over as long as one primary is healthy, and the last one does.
func TestRatioZeroWithOrders(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    members:
      - {name: a, site: seoul, addresses: [192.0.2.1]}
      - {name: b, site: seoul, addresses: [192.0.2.2]}
      - {name: c, site: seoul, addresses: [192.0.2.3]}
      - {name: d, site: virginia, addresses: [192.0.2.4], role: backup}
`)
	s.ctl(t, "force", "down", "--member", "a", "--reason", "test")
	s.ctl(t, "force", "drain", "--member", "b", "--reason", "test")
	s.wantAnswer(t, 0, www, "192.0.2.3")
	s.ctl(t, "force", "down", "--member", "c", "--reason", "test")
	s.wantAnswer(t, 0, www, "192.0.2.4")
	s.ctl(t, "force", "down", "--member", "d", "--reason", "test")
	s.wantAnswer(t, 0, www, "192.0.2.2") // drained: only while nothing else is up
	s.ctl(t, "clear", "--all", "--reason", "test")
	s.wantAnswer(t, 0, www, "192.0.2.1")
}
