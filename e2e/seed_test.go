package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// The network of the seed (policy metrics): Korea with VIP 1.1.1.1, the United States with 2.2.2.2, both with two
// servers and thresholds of 900,000 sessions and 900 Mbps. Resolvers stand on loopback; 127.0.54.1 is placed in Hong
// Kong, as 11.1.1.1 is in the seed.
const seedNetwork = `
geo:
  databases: [testdata/geo/cities.mmdb]
  overrides:
    - {prefix: 127.0.54.1/32, continent: AS, country: HK, latitude: 22.28, longitude: 114.16}
sites:
  - name: seoul
    zone: apne2-az1
    region: ap-northeast-2
    location: {continent: AS, country: KR, latitude: 37.57, longitude: 126.98}
    capacity: {sessions: 900000, bandwidth: 900Mbps, hold: 2s}
  - name: virginia
    zone: use1-az1
    region: us-east-1
    location: {continent: NA, country: US, latitude: 38.95, longitude: -77.45}
    capacity: {sessions: 900000, bandwidth: 900Mbps, hold: 2s}
zones:
  - {name: gslb.example.com, file: testdata/zones/gslb.example.com.zone}
`

func seedService(policy string) string {
	return fmt.Sprintf(`services:
  - name: www.gslb.example.com
    policy: %s
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
      - {name: virginia, site: virginia, addresses: [2.2.2.2]}
`, policy)
}

// A seedSite is one site of the seed's network, whose agent keeps reporting.
type seedSite struct {
	mu       sync.Mutex
	site     string
	vip      string
	sessions int    // guarded by mu
	servers  string // guarded by mu: the state of both servers
	rtts     string // guarded by mu: JSON
	answers  string // guarded by mu: of all reports
}

func (s *seedSite) answered(body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers += body + "\n"
}

// asked reports whether the site has been asked to measure the resolver.
func (s *seedSite) asked(resolver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.answers, fmt.Sprintf("%q", resolver))
}

func (s *seedSite) set(sessions int, servers, rtts string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions, s.servers, s.rtts = sessions, servers, rtts
}

func (s *seedSite) body() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf(`{"site": %q,
		"load": {"sessions": %d, "new_sessions_per_second": 100, "bits_per_second_in": 100000000, "bits_per_second_out": 500000000},
		"virtual_servers": [{"name": "web", "address": %q, "port": 80, "protocol": "tcp",
			"servers": [{"name": "a", "address": "10.1.1.10:80", "state": %q}, {"name": "b", "address": "10.1.1.20:80", "state": %[4]q}]}],
		"rtts": [%s]}`, s.site, s.sessions, s.vip, s.servers, s.rtts)
}

func startSeed(t *testing.T, policies, policy string) (s *gslbd, seoul, virginia *seedSite) {
	t.Helper()
	s = startGSLBD(t, seedNetwork+policies+seedService(policy))
	seoul = &seedSite{site: "seoul", vip: "1.1.1.1", sessions: 400000, servers: "up"}
	virginia = &seedSite{site: "virginia", vip: "2.2.2.2", sessions: 400000, servers: "up"}
	s.keepReporting(t, "seoul", seoul.body, seoul.answered)
	s.keepReporting(t, "virginia", virginia.body, virginia.answered)
	return s, seoul, virginia
}

// within is how long a report may take to change an answer: the report's interval, the publication, and slack.
const within = 4 * time.Second

var www = question{name: "www.gslb.example.com", source: "127.0.0.1"}

// Seed A, metric 1: both servers in the United States are down; the answer is Korea.
func TestSeedServerHealth(t *testing.T) {
	t.Parallel()
	s, _, virginia := startSeed(t, "", "active-standby")
	const up = `gslbd_member_up{family="ipv4",member="virginia",service="www.gslb.example.com"}`
	seen := map[string]bool{}
	lab.Eventually(t, within, "both sites are answered in turn", func() bool { seen[s.answer(t, www)] = true; return len(seen) == 2 })
	virginia.set(0, "down", "")
	lab.Eventually(t, within, "2.2.2.2 is down", func() bool { return s.scrape(t, up) == "0" })
	for range 50 {
		if got := s.answer(t, www); got != "1.1.1.1" {
			t.Fatalf("answered %q while the servers of 2.2.2.2 are down", got)
		}
	}
	reason, text := s.explain(t, "www.gslb.example.com", "--client", "127.0.0.1")
	if reason != "health" || !strings.Contains(text, "virginia") {
		t.Errorf("explain says reason %q:\n%s", reason, text)
	}
	s.waitLog("member down", within)
	virginia.set(0, "up", "")
	lab.Eventually(t, within, "2.2.2.2 is up again", func() bool { return s.scrape(t, up) == "1" })
}

// Seed A, metric 2: the sessions in the United States have come up to the threshold; the answer is Korea.
func TestSeedCapacity(t *testing.T) {
	t.Parallel()
	s, _, virginia := startSeed(t, "", "default")
	virginia.set(900000, "up", "")
	lab.Eventually(t, within, "virginia is overloaded", func() bool { return s.scrape(t, `gslbd_site_overloaded{site="virginia"}`) == "1" })
	for range 50 {
		if got := s.answer(t, www); got != "1.1.1.1" {
			t.Fatalf("answered %q while 2.2.2.2 is overloaded", got)
		}
	}
	if reason, text := s.explain(t, "www.gslb.example.com", "--client", "127.0.0.1"); reason != "capacity" {
		t.Errorf("explain says reason %q:\n%s", reason, text)
	}
	s.waitLog("site overloaded", within)
	// One session below the threshold is not yet below 90 % of it, so the site stays out.
	virginia.set(899999, "up", "")
	lab.Eventually(t, within, "the report below the threshold has arrived", func() bool { return s.scrape(t, `gslbd_site_sessions{site="virginia"}`) == "899999" })
	if got := s.scrape(t, `gslbd_site_overloaded{site="virginia"}`); got != "1" {
		t.Errorf("virginia came back above its resume share")
	}
	virginia.set(100000, "up", "")
	lab.Eventually(t, 2*within, "virginia is eligible again", func() bool { return s.scrape(t, `gslbd_site_overloaded{site="virginia"}`) == "0" })
}

// Seed A, metric 3: 200 ms from Korea and 30 ms from the United States; the answer is 2.2.2.2. With a resolver that is
// silent to ICMP the decision falls to geography, metric 4.
func TestSeedRTT(t *testing.T) {
	t.Parallel()
	s, seoul, virginia := startSeed(t, "", "fastest")
	near := question{name: "www.gslb.example.com", source: "127.0.53.1"}
	silent := question{name: "www.gslb.example.com", source: "127.0.54.1"}
	for range 3 {
		s.answer(t, near)
		s.answer(t, silent)
	}
	// The resolvers that asked are handed to the sites with the answer to a report.
	lab.Eventually(t, 2*within, "both sites are asked to measure both resolvers", func() bool {
		return seoul.asked("127.0.53.1") && seoul.asked("127.0.54.1") && virginia.asked("127.0.53.1") && virginia.asked("127.0.54.1")
	})
	seoul.set(400000, "up", `{"resolver": "127.0.53.1", "rtt_ms": 200, "method": "icmp", "age_ms": 10}, {"resolver": "127.0.54.1", "lost": true, "age_ms": 10}`)
	virginia.set(400000, "up", `{"resolver": "127.0.53.1", "rtt_ms": 30, "method": "icmp", "age_ms": 10}, {"resolver": "127.0.54.1", "lost": true, "age_ms": 10}`)
	var text string
	lab.Eventually(t, 2*within, "the round trip decides", func() (ok bool) {
		var reason string
		reason, text = s.explain(t, "www.gslb.example.com", "--client", "127.0.53.1")
		return reason == "rtt"
	})
	if !strings.Contains(text, "200.0 ms") || !strings.Contains(text, "30.0 ms") {
		t.Errorf("explain does not show both round trips:\n%s", text)
	}
	for range 20 {
		if got := s.answer(t, near); got != "2.2.2.2" {
			t.Fatalf("answered %q, want the near site", got)
		}
	}
	if got := s.answer(t, silent); got != "1.1.1.1" {
		t.Errorf("the silent resolver in Hong Kong got %q, want Korea by geography", got)
	}
	if reason, text := s.explain(t, "www.gslb.example.com", "--client", "127.0.54.1"); reason != "geo" || !strings.Contains(text, "abstained") {
		t.Errorf("explain says reason %q:\n%s", reason, text)
	}
}

// Seed A, metric 4: a client in Hong Kong, 11.1.1.1; the answer is Korea. Here the resolver passes the client on.
func TestSeedGeography(t *testing.T) {
	s, _, _ := startSeed(t, "", "default")
	reply := s.ask(t, question{name: "www.gslb.example.com", ecs: "11.1.1.0/24"})
	if got := addresses(reply); len(got) != 1 || got[0] != "1.1.1.1" {
		t.Errorf("Hong Kong got %v", got)
	}
	if scope := scopeOf(reply); scope != 24 {
		t.Errorf("scope %d, want 24, the network of the database's entry", scope)
	}
	reply = s.ask(t, question{name: "www.gslb.example.com", ecs: "8.8.8.0/24"})
	if got := addresses(reply); len(got) != 1 || got[0] != "2.2.2.2" {
		t.Errorf("California got %v", got)
	}
	if reason, text := s.explain(t, "www.gslb.example.com", "--client", "11.1.1.1"); reason != "geo" || !strings.Contains(text, "km") {
		t.Errorf("explain says reason %q:\n%s", reason, text)
	}
}

// The resolver itself stands at 11.1.1.1, in a network of its own, and sends no ECS.
func TestSeedGeographyOfTheResolver(t *testing.T) {
	lab.Need(t, os.Geteuid() == 0, "root (network namespaces)")
	ip := lab.Program(t, "ip")
	dig := lab.Program(t, "dig")
	ns := fmt.Sprintf("gslbd-e2e-%d", os.Getpid())
	for _, args := range [][]string{
		{"netns", "add", ns},
		{"-n", ns, "link", "set", "lo", "up"},
		{"-n", ns, "address", "add", "11.1.1.1/32", "dev", "lo"},
		{"-n", ns, "address", "add", "192.0.2.53/32", "dev", "lo"},
	} {
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			lab.Need(t, false, fmt.Sprintf("network namespaces (ip %v: %s)", args, out))
		}
	}
	t.Cleanup(func() { _ = exec.Command(ip, "netns", "del", ns).Run() })
	s := &gslbd{dns: "192.0.2.53:5300", reports: "127.0.0.1:8054", admin: "127.0.0.1:8053", dir: t.TempDir()}
	s.config = s.dir + "/gslbd.yaml"
	s.write(t, seedNetwork+seedService("nearest"))
	s.process = start(t, ip, "netns", "exec", ns, binaries+"/gslbd", "--config", s.config)
	var out []byte
	lab.Eventually(t, 20*time.Second, "gslbd answers in its namespace", func() bool {
		out, _ = exec.Command(ip, "netns", "exec", ns, dig, "+short", "+time=1", "+tries=1", "-b", "11.1.1.1", "-p", "5300", "@192.0.2.53", "www.gslb.example.com").CombinedOutput()
		return strings.TrimSpace(string(out)) == "1.1.1.1"
	})
}

// The same network with the chain reordered, and with steps switched off, by a reload that keeps what is measured.
func TestSeedReorderedAndSwitched(t *testing.T) {
	t.Parallel()
	policies := func(chain string) string { return "policies:\n  - {name: own, chain: [" + chain + "]}\n" }
	s, seoul, virginia := startSeed(t, policies("{metric: health}, {metric: rtt}, {metric: geo}"), "own")
	client := question{name: "www.gslb.example.com", source: "127.0.54.1"}
	for range 3 {
		s.answer(t, client)
	}
	lab.Eventually(t, 2*within, "both sites are asked to measure the resolver", func() bool {
		return seoul.asked("127.0.54.1") && virginia.asked("127.0.54.1")
	})
	seoul.set(400000, "up", `{"resolver": "127.0.54.1", "rtt_ms": 200, "method": "icmp"}`)
	virginia.set(400000, "up", `{"resolver": "127.0.54.1", "rtt_ms": 30, "method": "icmp"}`)
	s.wantAnswer(t, 2*within, client, "2.2.2.2")

	reorder := func(chain, want, wantReason string) {
		t.Helper()
		s.reload(t, seedNetwork+policies(chain)+seedService("own"))
		if got := s.answer(t, client); got != want {
			t.Errorf("[%s]: answered %q, want %q", chain, got, want)
		}
		if reason, text := s.explain(t, "www.gslb.example.com", "--client", "127.0.54.1"); reason != wantReason {
			t.Errorf("[%s]: reason %q, want %q:\n%s", chain, reason, wantReason, text)
		}
	}
	reorder("{metric: health}, {metric: geo}, {metric: rtt}", "1.1.1.1", "geo")
	reorder("{metric: health}, {metric: rtt, enabled: false}, {metric: geo}", "1.1.1.1", "geo")
	reorder("{metric: health}, {metric: rtt}, {metric: geo}", "2.2.2.2", "rtt")
	virginia.set(400000, "down", "")
	s.wantAnswer(t, within, client, "1.1.1.1")
	reorder("{metric: health, enabled: false}, {metric: rtt}, {metric: geo}", "2.2.2.2", "rtt")
	reorder("{metric: rtt}, {metric: geo}, {metric: health}", "1.1.1.1", "health")
}

// A real resolver between client and server: the client's network reaches us as ECS, and its answer differs from that
// of another client behind the same resolver.
func TestUnboundPassesTheClientOn(t *testing.T) {
	unbound := lab.Program(t, "unbound")
	s := startGSLBD(t, strings.Replace(seedNetwork, "overrides:", "overrides:\n    - {prefix: 127.0.1.0/24, site: seoul}\n    - {prefix: 127.0.2.0/24, site: virginia}", 1)+seedService("nearest"))
	host, port, _ := net.SplitHostPort(s.dns)
	resolver := freeAddr(t)
	rhost, rport, _ := net.SplitHostPort(resolver)
	conf := fmt.Sprintf(`server:
  interface: %s
  port: %s
  chroot: ""
  username: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  do-daemonize: no
  do-not-query-localhost: no
  access-control: 127.0.0.0/8 allow
  module-config: "subnetcache iterator"
  send-client-subnet: %s
  client-subnet-always-forward: yes
  max-client-subnet-ipv4: 24
stub-zone:
  name: "gslb.example.com"
  stub-addr: %s@%s
`, rhost, rport, s.dir, host, host, port)
	if err := os.WriteFile(s.dir+"/unbound.conf", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, unbound, "-d", "-p", "-c", s.dir+"/unbound.conf")
	ask := func(source string) (string, error) {
		m, err := exchange(resolver, question{name: "www.gslb.example.com", source: source})
		if err != nil {
			return "", err
		}
		return strings.Join(addresses(m), " "), nil
	}
	lab.Eventually(t, 15*time.Second, "unbound answers", func() bool { got, err := ask("127.0.1.9"); return err == nil && got != "" })
	for i := range 20 {
		source, want := "127.0.1.9", "1.1.1.1"
		if i%2 == 1 {
			source, want = "127.0.2.9", "2.2.2.2"
		}
		if got, err := ask(source); err != nil || got != want {
			t.Fatalf("client %s got %q, %v through the resolver, want %s", source, got, err, want)
		}
	}
	// A name that does not exist, and one without data, come through as such.
	if m, err := exchange(resolver, question{name: "nope.gslb.example.com", source: "127.0.1.9"}); err != nil || m.Rcode != dns.RcodeNameError {
		t.Errorf("nope: %v %v", m, err)
	}
	if m, err := exchange(resolver, question{name: "www.gslb.example.com", qtype: dns.TypeAAAA, source: "127.0.1.9"}); err != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
		t.Errorf("AAAA: %v %v", m, err)
	}
}

func scopeOf(m *dns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if ecs, ok := o.(*dns.EDNS0_SUBNET); ok {
				return int(ecs.SourceScope)
			}
		}
	}
	return -1
}

// The server survives a restart: what was measured before it holds after it, with no report in between.
func TestRestartKeepsWhatWasMeasured(t *testing.T) {
	s := startGSLBD(t, seedNetwork+strings.Replace(seedService("active-standby"), "addresses: [2.2.2.2]}", "addresses: [2.2.2.2], preference: 200}", 1))
	s.wantAnswer(t, within, www, "2.2.2.2")
	s.report(t, "seoul", (&seedSite{site: "seoul", vip: "1.1.1.1", servers: "up"}).body())
	s.report(t, "virginia", (&seedSite{site: "virginia", vip: "2.2.2.2", servers: "down"}).body())
	s.wantAnswer(t, within, www, "1.1.1.1")
	s.signal(os.Interrupt)
	<-s.done
	s.run(t)
	for range 20 {
		if got := s.answer(t, www); got != "1.1.1.1" {
			t.Fatalf("after the restart the dead member is answered: %q", got)
		}
	}
}

// Stopping under load answers what has been asked on the connections that are open, ends with status 0 and leaves the
// port free.
func TestStopsCleanly(t *testing.T) {
	s := startGSLBD(t, seedNetwork+seedService("nearest"))
	const clients = 4
	var stopping atomic.Bool
	lost := make(chan error, clients)
	for i := range clients {
		conn, err := dns.Dial("tcp", s.dns)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			for !stopping.Load() {
				conn.SetDeadline(time.Now().Add(5 * time.Second))
				err := conn.WriteMsg(new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA))
				if err == nil {
					_, err = conn.ReadMsg()
				}
				if err != nil {
					lost <- fmt.Errorf("client %d: %w", i, err)
					return
				}
			}
			lost <- nil
		}()
	}
	s.waitQueries(t, 100)
	s.signal(os.Interrupt)
	stopping.Store(true) // the queries that are on their way are asked before the server has stopped
	for range clients {
		if err := <-lost; err != nil {
			t.Errorf("a query got no answer: %v", err)
		}
	}
	select {
	case <-s.done:
	case <-time.After(10 * time.Second):
		t.Fatal("gslbd did not stop")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	l, err := net.Listen("tcp", s.dns)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	l.Close()
}
