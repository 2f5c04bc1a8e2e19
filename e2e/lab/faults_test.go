//go:build linux

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const faultServices = `services:
  - name: www.gslb.example.com
    policy: nearest
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
      - {name: virginia, site: virginia, addresses: [2.2.2.2]}
`

// reporting waits until both sites report to both gslbd, and clients everywhere are served.
func (w *World) reporting() {
	w.t.Helper()
	for _, s := range []*Site{w.Korea, w.US} {
		Eventually(w.t, 20*time.Second, s.Name+" reports to both", func() bool {
			return strings.Count(s.Agent.Log(), "reports accepted") >= 2
		})
	}
	for region := range w.Clients {
		Eventually(w.t, 20*time.Second, "a client in "+region+" is served", func() bool { return w.Fetch(region) != "" })
	}
}

// ask sends a query from a host and returns the reply.
func ask(h *Host, server string, m *dns.Msg, timeout time.Duration) (*dns.Msg, error) {
	c, err := h.Dial("udp", server, timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	conn := &dns.Conn{Conn: c, UDPSize: 1232}
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	return conn.ReadMsg()
}

func question(name string) *dns.Msg { return new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA) }

func addresses(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	return strings.Join(all, " ")
}

// What happens to a site moves its clients to the other one, and back: its servers fail, it is full, it is cut off from
// everything outside, or its agent dies.
func TestSiteFaults(t *testing.T) {
	t.Parallel()
	Program(t, "dig")
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	both := w.GSLBD[:]
	measured := Measure(t)
	var sessions []net.Conn
	for range Repeats(t) {
		for _, f := range []struct {
			name, log  string // of the fault
			fault      func()
			back, over string // its end
			end        func()
		}{
			{
				"both servers of a site fail their checks", "member down", func() { w.Korea.SetHealthy(false) },
				"they pass again", "member up", func() { w.Korea.SetHealthy(true) },
			},
			{
				"a site reaches its session threshold", "site overloaded", func() {
					for range 100 {
						c, err := w.Clients[Korea].Dial("tcp", w.Korea.VIP+":80", 3*time.Second)
						if err != nil {
							t.Fatal(err)
						}
						sessions = append(sessions, c)
					}
				},
				"its sessions end (`hold: 2s`)", "site eligible again", func() {
					for _, c := range sessions {
						c.Close()
					}
					sessions = nil
				},
			},
			{
				"a site is cut off", "site dead", func() { w.eachOutside(func(h *Host) { w.Set(w.Korea.SLB.Name, h.Name, Link{Cut: true}) }) },
				"its link is back", "site fresh", func() { w.eachOutside(func(h *Host) { w.Set(w.Korea.SLB.Name, h.Name, w.link(Korea, h.Region)) }) },
			},
			{"an agent is killed", "site dead", w.Korea.Agent.Kill, "it is started again", "site fresh", w.Korea.StartAgent},
		} {
			for _, g := range both {
				g.Forget()
				Eventually(t, 20*time.Second, g.Name+" hears of both sites", func() bool { return strings.Count(g.Process.Log(), `"site fresh"`) == 2 })
			}
			Eventually(t, 20*time.Second, "a client in Korea is served there", w.Served(Korea, w.Korea))
			measured.Fault(f.name, f.fault, Logs(f.log, both...), w.Answers(Korea, w.US.VIP, both...), w.Served(Korea, w.US))
			measured.Fault(f.back, f.end, Logs(f.over, both...), w.Answers(Korea, w.Korea.VIP, both...), w.Served(Korea, w.Korea))
		}
	}
}

// eachOutside calls f for every host that a site can only reach over the world's links.
func (w *World) eachOutside(f func(h *Host)) {
	for _, g := range w.GSLBD {
		f(g.Host)
	}
	for _, h := range w.Clients {
		f(h)
	}
	for _, h := range w.Resolvers {
		f(h)
	}
}

// Reports that come late, twice and out of order say nothing that a newer one did not.
func TestReportsOutOfOrder(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	w.Korea.Agent.Kill()
	g := w.GSLBD[0]
	post := func(sequence int, state string) string {
		body := fmt.Sprintf(`{"site": "seoul", "agent": "lb1", "boot_id": "b", "sequence": %d, "virtual_servers": [{"name": "web",
			"address": "1.1.1.1", "port": 80, "protocol": "tcp", "servers": [{"name": "server1", "state": %q}]}]}`, sequence, state)
		out, _ := w.Korea.SLB.Run("curl", "-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json",
			"-H", "Authorization: Bearer token-of-seoul", "-d", body, "http://"+g.Addr+":8054/v1/sites/seoul/report")
		return out
	}
	up := func() string {
		return g.Metric(`gslbd_member_up{family="ipv4",member="seoul",service="www.gslb.example.com"}`)
	}
	for i, step := range []struct {
		sequence    int
		state, code string
		wantUp      string
	}{
		{10, "up", "200", "1"},
		{11, "down", "200", "0"},
		{10, "up", "409", "0"},   // late
		{11, "down", "200", "0"}, // twice
		{12, "up", "200", "1"},
		{11, "down", "409", "1"}, // late, and it would be a fault
	} {
		var code string
		Eventually(t, 10*time.Second, fmt.Sprintf("step %d: the report does not come too early", i), func() bool {
			code = post(step.sequence, step.state)
			return code != "429"
		})
		if code != step.code {
			t.Errorf("step %d: status %s, want %s", i, code, step.code)
		}
		Eventually(t, 3*time.Second, fmt.Sprintf("step %d: member up is %s", i, step.wantUp), func() bool { return up() == step.wantUp })
	}

	// The agent is back, over a link that holds every packet for a second and a half: reports are late, and whole.
	w.Korea.StartAgent()
	w.Reaches(Korea, w.Korea, 20*time.Second)
	w.Set(w.Korea.SLB.Name, g.Name, Link{Delay: 700 * time.Millisecond, Jitter: 100 * time.Millisecond})
	begin := time.Now()
	Eventually(t, 20*time.Second, "ten seconds over the slow link", func() bool {
		if up() == "0" {
			t.Fatalf("the site is down although it reports:\n%s", g.Process.Log())
		}
		return time.Since(begin) > 10*time.Second
	})
}

// A gslbd that dies and comes back under load: whoever asks through a resolver gets an answer.
func TestGSLBDRestartsUnderLoad(t *testing.T) {
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	type result struct {
		asked atomic.Int64
		lost  []string // when
	}
	results := map[string]*result{}
	stop := make(chan struct{})
	var tries atomic.Int32 // of 5 seconds each
	tries.Store(1)
	var kills atomic.Int32
	var asking sync.WaitGroup
	for region, client := range w.Clients {
		r := &result{}
		results[region] = r
		resolver := map[string]string{Korea: "168.126.63.1:53", US: "8.8.8.8:53", HongKong: "11.1.1.1:53"}[region]
		asking.Go(func() {
			tick := time.NewTicker(40 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				r.asked.Add(1)
				answered, began := false, time.Now()
				for try := int32(0); try < tries.Load() && !answered; try++ {
					reply, err := ask(client, resolver, question("www.gslb.example.com"), 5*time.Second)
					answered = err == nil && reply.Rcode == dns.RcodeSuccess && addresses(reply) != ""
				}
				if !answered {
					r.lost = append(r.lost, fmt.Sprintf("at kill %d, asked %v ago", kills.Load(), time.Since(began).Round(time.Millisecond)))
				}
			}
		})
	}
	asked := func() (all int64) {
		for _, r := range results {
			all += r.asked.Load()
		}
		return all
	}
	for i, kill := range [][]*GSLBD{w.GSLBD[:1], w.GSLBD[:1], w.GSLBD[:1], w.GSLBD[1:], w.GSLBD[:], w.GSLBD[:]} {
		// When the other one dies as well, clients ask as stub resolvers do by default: unbound leaves a server alone for a
		// while that did not answer before, and may take longer than one try.
		if i == 3 {
			tries.Store(2)
		}
		for _, g := range kill {
			kills.Add(1)
			g.Process.Kill()
			until := asked() + 50
			Eventually(t, 30*time.Second, "50 queries without it", func() bool { return asked() >= until })
			g.Run()
			Eventually(t, 20*time.Second, "it hears of the sites again", func() bool {
				return strings.Count(g.Process.Log(), `"site fresh"`) >= 2
			})
			// Of a query that meets one gslbd that is dead and then the other, unbound has enough, and tells so for five seconds.
			// So the next one dies when what was under way is answered.
			for region, r := range results {
				since := r.asked.Load()
				Eventually(t, 20*time.Second, "a new query from "+region, func() bool { return r.asked.Load() > since })
			}
		}
	}
	close(stop)
	asking.Wait()
	for region, r := range results {
		t.Logf("%s: %d asked, %d without an answer", region, r.asked.Load(), len(r.lost))
		if len(r.lost) > 0 || r.asked.Load() < 100 {
			t.Errorf("%s: %d of %d queries got no answer: %s", region, len(r.lost), r.asked.Load(), strings.Join(r.lost, "; "))
		}
	}
}

// Both gslbd lose all agents at once: the fault is theirs, so the answers stay.
func TestBlindness(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	w.US.SetHealthy(false)
	w.Reaches(US, w.Korea, 20*time.Second) // a state that must survive, and is not the one at the start
	for _, g := range w.GSLBD {
		for _, s := range []*Site{w.Korea, w.US} {
			w.Set(g.Name, s.SLB.Name, Link{Cut: true})
		}
	}
	for _, g := range w.GSLBD {
		Eventually(t, 20*time.Second, g.Name+" is blind", func() bool { return g.Metric("gslbd_blind") == "1" })
	}
	Eventually(t, 60*time.Second, "the reports are older than twice dead_after", func() bool {
		for region := range w.Clients {
			if page := w.Fetch(region); !strings.HasSuffix(page, " seoul") {
				t.Fatalf("blind, and a client in %s gets %q", region, page)
			}
		}
		age, err := strconv.ParseFloat(w.GSLBD[0].Metric(`gslbd_site_report_age_seconds{site="seoul"}`), 64)
		return err == nil && age > 12
	})
	for _, g := range w.GSLBD {
		for _, s := range []*Site{w.Korea, w.US} {
			w.Set(g.Name, s.SLB.Name, w.link(g.Region, s.SLB.Region))
		}
	}
	for _, g := range w.GSLBD {
		Eventually(t, 20*time.Second, g.Name+" is no longer blind", func() bool { return g.Metric("gslbd_blind") == "0" })
	}
	w.US.SetHealthy(true)
	w.Reaches(US, w.US, 20*time.Second)
}

// A fifth of all packets is lost everywhere: nobody is declared dead, and clients are served.
func TestPacketLoss(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, strings.Replace(faultServices, "ttl: 1", "ttl: 5", 1))
	w.reporting()
	for _, a := range []string{Korea, US, HongKong} {
		for _, b := range []string{Korea, US, HongKong} {
			l := w.link(a, b)
			l.Loss = 0.2
			w.SetOneWay(a, b, l)
		}
	}
	var served, tried atomic.Int64
	var fetching sync.WaitGroup
	begin := time.Now()
	for region, client := range w.Clients {
		fetching.Go(func() {
			for time.Since(begin) < 20*time.Second {
				tried.Add(1)
				for range 2 { // as a browser would
					out, err := client.Run("curl", "-sS", "-m", "15", "-H", "Connection: close", "http://www.example.com/")
					if err == nil && out != "" {
						served.Add(1)
						break
					}
					t.Logf("%s: %v %s", region, err, out)
				}
			}
		})
	}
	fetching.Wait()
	t.Logf("%d of %d fetches went through at 20 %% loss, in at most two tries", served.Load(), tried.Load())
	if served.Load()*10 < tried.Load()*8 {
		t.Errorf("%d of %d fetches went through", served.Load(), tried.Load())
	}
	for _, g := range w.GSLBD {
		if strings.Contains(g.Process.Log(), `"site dead"`) {
			t.Errorf("%s declared a site dead:\n%s", g.Name, g.Process.Log())
		}
	}
}

// A resolver that lies about its clients changes only its own answers, sends nobody probing, and what is malformed is
// refused.
func TestLyingResolver(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, strings.Replace(faultServices, "nearest", "default", 1))
	w.reporting()
	liar := w.Resolvers[US]
	ecs := func(prefix string, bits uint8) *dns.Msg {
		p := netip.MustParsePrefix(prefix)
		m := question("www.gslb.example.com")
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(1232)
		opt.Option = append(opt.Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: bits, Address: p.Addr().AsSlice()})
		m.Extra = append(m.Extra, opt)
		return m
	}
	for _, g := range w.GSLBD {
		server := g.Addr + ":53"
		for range 20 { // often enough to be probed, were it believed
			if reply, err := ask(liar, server, ecs("11.1.1.0/24", 24), 3*time.Second); err != nil || addresses(reply) != "1.1.1.1" {
				t.Fatalf("a client said to be in Hong Kong: %v %v", reply, err)
			}
		}
		if reply, err := ask(liar, server, question("www.gslb.example.com"), 3*time.Second); err != nil || addresses(reply) != "2.2.2.2" {
			t.Errorf("the resolver's own client: %v %v", reply, err)
		}
		for _, private := range []string{"127.0.0.0/8", "10.0.0.0/8", "0.0.0.0/1"} {
			p := netip.MustParsePrefix(private)
			if reply, err := ask(liar, server, ecs(private, uint8(p.Bits())), 3*time.Second); err != nil || addresses(reply) == "" {
				t.Errorf("a client said to be in %s: %v %v", private, reply, err)
			}
		}
		bad := ecs("11.1.1.9/32", 24) // bits beyond the prefix
		if wire, err := bad.Pack(); err == nil {
			// miekg/dns masks the address when it packs; the last octet is put back by hand, with the longer option.
			if reply, err := askRaw(liar, server, lengthenECS(wire)); err != nil || reply.Rcode != dns.RcodeFormatError {
				t.Errorf("a malformed subnet: %v %v", reply, err)
			}
		}
		if out, err := g.Ctl("rtt", "11.1.1.1"); err == nil && measuredBy(out) > 0 {
			t.Errorf("%s had a network probed that only a resolver spoke of:\n%s", g.Name, out)
		}
	}
	if page := w.Fetch(Korea); !strings.HasSuffix(page, " seoul") {
		t.Errorf("a client in Korea gets %q", page)
	}
}

// lengthenECS makes the ECS option, which ends the message, one octet longer than its prefix needs.
func lengthenECS(wire []byte) []byte {
	wire = append(wire, 9)
	n := len(wire)
	// ... OPTION-LENGTH(2) FAMILY(2) SOURCE SCOPE ADDRESS(3) 9, and before it OPTION-CODE(2); RDLENGTH(2) before that.
	wire[n-9]++  // OPTION-LENGTH, low octet
	wire[n-13]++ // RDLENGTH, low octet
	return wire
}

func askRaw(h *Host, server string, wire []byte) (*dns.Msg, error) {
	c, err := h.Dial("udp", server, 3*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := c.Write(wire); err != nil {
		return nil, err
	}
	return (&dns.Conn{Conn: c, UDPSize: 1232}).ReadMsg()
}

// etcd in three regions is torn apart: answers go on, each gslbd takes its own orders, and they agree when it is whole.
func TestEtcdPartition(t *testing.T) {
	t.Parallel()
	w := &World{Network: New(t), bin: bin, Resolvers: map[string]*Host{}, Clients: map[string]*Host{}}
	members := w.startEtcd(t)
	w.build(t, strings.NewReplacer("policy: nearest", "policy: active-standby", "[1.1.1.1]", "[1.1.1.1], preference: 200").Replace(faultServices)+
		`state: {directory: state, etcd: {endpoints: ["http://10.3.0.1:2379", "http://10.3.0.2:2379", "http://10.3.0.3:2379"]}}`+"\n")
	w.reporting()
	answers := func(g *GSLBD, want string) {
		t.Helper()
		Eventually(t, 5*time.Second, g.Name+" answers "+want, func() bool {
			reply, err := ask(w.Resolvers[g.Region], g.Addr+":53", question("www.gslb.example.com"), 2*time.Second)
			return err == nil && addresses(reply) == want
		})
	}
	order := func(g *GSLBD, args ...string) string {
		t.Helper()
		out, err := g.Ctl(args...)
		if err != nil {
			t.Fatalf("%s: gslbctl %v: %v\n%s", g.Name, args, err, out)
		}
		return out
	}
	korea, us := w.GSLBD[0], w.GSLBD[1]
	order(korea, "force", "down", "--site", "seoul", "--reason", "shared")
	answers(us, "2.2.2.2")
	order(us, "clear", "--all", "--reason", "shared")
	answers(korea, "1.1.1.1")

	// The gslbd in Korea loses all of etcd.
	for _, m := range members {
		w.Set(korea.Name, m.Name, Link{Cut: true})
	}
	if out := order(korea, "force", "down", "--site", "seoul", "--reason", "in Korea, alone"); !strings.Contains(out, "on this gslbd only") {
		t.Errorf("the reply does not say that nobody else has the order:\n%s", out)
	}
	answers(korea, "2.2.2.2")
	answers(us, "1.1.1.1")
	// Then the members lose each other: no quorum anywhere.
	for i, m := range members {
		w.Set(m.Name, members[(i+1)%3].Name, Link{Cut: true})
	}
	Eventually(t, 30*time.Second, "the other takes orders for itself only", func() bool {
		out := order(us, "force", "drain", "--site", "virginia", "--reason", "in the United States, alone")
		return strings.Contains(out, "on this gslbd only")
	})
	answers(us, "1.1.1.1")

	for i, m := range members {
		w.Set(korea.Name, m.Name, w.link(korea.Region, m.Region))
		w.Set(m.Name, members[(i+1)%3].Name, w.link(m.Region, members[(i+1)%3].Region))
	}
	Eventually(t, 40*time.Second, "both know the orders of both", func() bool {
		a, _ := korea.Ctl("orders")
		b, _ := us.Ctl("orders")
		return strings.Contains(a, "in the United States, alone") && strings.Contains(b, "in Korea, alone")
	})
	answers(us, "2.2.2.2")
}

// startEtcd starts a member in each region.
func (w *World) startEtcd(t *testing.T) []*Host {
	t.Helper()
	program := Program(t, "etcd")
	w.delays()
	var hosts []*Host
	var cluster []string
	for i, region := range []string{Korea, US, HongKong} {
		addr := fmt.Sprintf("10.3.0.%d", i+1)
		hosts = append(hosts, w.Host("etcd-"+region, region, addr))
		cluster = append(cluster, fmt.Sprintf("%s=http://%s:2380", region, addr))
	}
	for i, h := range hosts {
		addr := fmt.Sprintf("10.3.0.%d", i+1)
		h.Start(program, "--name", h.Region, "--data-dir", h.Dir()+"/data", "--listen-peer-urls", "http://"+addr+":2380",
			"--initial-advertise-peer-urls", "http://"+addr+":2380", "--listen-client-urls", "http://"+addr+":2379",
			"--advertise-client-urls", "http://"+addr+":2379", "--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--heartbeat-interval", "200", "--election-timeout", "2000", "--pre-vote", "--log-level", "error")
	}
	for i, h := range hosts {
		Eventually(t, 30*time.Second, h.Name+" is healthy", func() bool {
			out, err := h.Run("curl", "-sS", "-m", "2", fmt.Sprintf("http://10.3.0.%d:2379/health", i+1))
			return err == nil && strings.Contains(out, `"true"`)
		})
	}
	return hosts
}

// A gslbd whose clock jumps goes on: ages count on the monotonic clock. Orders are by the wall clock, and say so.
func TestClockJump(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, faultServices)
	w.reporting()
	g := w.GSLBD[0]
	g.Process.Kill()
	clock := g.RunWithClock()
	w.reporting()
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour, 0} {
		clock(jump)
		reports := func() float64 {
			n, err := strconv.ParseFloat(g.Metric(`gslbd_reports_total{result="accepted",site="seoul"}`), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := reports()
		Eventually(t, 60*time.Second, "five more reports have come", func() bool {
			if reply, err := ask(w.Resolvers[Korea], g.Addr+":53", question("www.gslb.example.com"), 2*time.Second); err != nil || addresses(reply) != "1.1.1.1" {
				t.Fatalf("after a jump to %v: %v %v", jump, reply, err)
			}
			return reports() >= before+5
		})
		if log := g.Process.Log(); strings.Contains(log, `"site stale"`) || strings.Contains(log, `"site dead"`) || strings.Contains(log, `"blind"`) {
			t.Fatalf("a jump to %v ages reports:\n%s", jump, log)
		}
		out, err := g.Ctl("force", "drain", "--site", "seoul", "--reason", "the clock")
		if jump == 0 && err != nil {
			t.Errorf("an order by the right clock is refused: %v\n%s", err, out)
		}
		if jump != 0 && (err == nil || !strings.Contains(out, "clock")) {
			t.Errorf("an order %v off is not refused for its clock: %v\n%s", jump, err, out)
		}
	}
}
