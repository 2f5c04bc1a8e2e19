package patterns

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

const service = "192.0.2.53" // the one address of both gslbd

// An edge is a world whose two gslbd stand behind a router and answer on one address.
type edge struct {
	*lab.World
	router *lab.Host
	client *lab.Host
}

func newEdge(t *testing.T, pattern string) *edge {
	t.Helper()
	e := &edge{World: lab.NewWorld(t, bin, example(t, pattern, "services.yaml"))}
	e.router = e.Host("router", lab.Korea, "10.50.0.1")
	e.router.Forward()
	var sources []string
	for i := range 32 {
		sources = append(sources, fmt.Sprintf("20.9.0.%d", i+1))
	}
	e.client = e.Host("many", lab.Korea, sources...)
	e.RouteTo(service, e.router)
	for i, g := range e.GSLBD {
		network := fmt.Sprintf("10.50.%d.", i+1)
		e.Wire(e.router, fmt.Sprintf("to%d", i+1), network+"1/24", g.Host, "edge", network+"2/24")
		g.Must("sh", "-c", "ip address add "+service+"/32 dev lo; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done")
		g.Listen = []string{service, network + "2"}
		g.Configure(example(t, pattern, "services.yaml"))
		g.Restart()
	}
	e.router.Forward() // the new interfaces, too
	reporting(t, e.World)
	return e
}

// ask asks the service address from the i-th source, and returns which gslbd answered and with what.
func (e *edge) ask(i int) (by, answer string) { return e.askWithin(i, time.Second) }

func (e *edge) askWithin(i int, patience time.Duration) (by, answer string) {
	c, err := e.client.DialFrom(fmt.Sprintf("20.9.0.%d", i%32+1), "udp", service+":53", patience)
	if err != nil {
		return "", ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	m := new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
	conn := &dns.Conn{Conn: c, UDPSize: 1232}
	if conn.WriteMsg(m) != nil {
		return "", ""
	}
	reply, err := conn.ReadMsg()
	if err != nil || len(reply.Answer) != 1 {
		return "", ""
	}
	for _, o := range reply.IsEdns0().Option {
		if n, ok := o.(*dns.EDNS0_NSID); ok {
			by = strings.TrimSpace(unhex(n.Nsid))
		}
	}
	return by, reply.Answer[0].(*dns.A).A.String()
}

func unhex(s string) string {
	var b []byte
	for i := 0; i+1 < len(s); i += 2 {
		var c byte
		fmt.Sscanf(s[i:i+2], "%02x", &c)
		b = append(b, c)
	}
	return string(b)
}

// by counts who answers n queries, from all sources in turn.
func (e *edge) by(n int) map[string]int {
	of := map[string]int{}
	for i := range n {
		g, _ := e.ask(i)
		of[g]++
	}
	return of
}

// all reports whether the gslbd answers n queries, from all sources in turn. It stops at the first that it does not.
func (e *edge) all(g string, n int) bool {
	for i := range n {
		if by, _ := e.ask(i); by != g {
			return false
		}
	}
	return true
}

// answers returns a function that reports whether the gslbd answers.
func (e *edge) answers(g string) func() bool {
	return func() bool { by, _ := e.askWithin(0, 200*time.Millisecond); return by == g }
}

// during asks without pause while f runs, and returns how many queries got no answer, of how many, and for how long at
// most there was none.
func (e *edge) during(f func()) (lost, asked int, gap time.Duration) {
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		last := time.Now()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			asked++
			if by, _ := e.ask(i); by == "" {
				lost++
				continue
			}
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
	})
	func() {
		defer asking.Wait() // also when f ends the test, which takes the hosts away
		defer close(stop)
		f()
	}()
	return lost, asked, gap
}

// Two gslbd behind one address, by routes of equal cost that BGP announces while a gslbd is ready.
func TestECMPRoutes(t *testing.T) {
	t.Parallel()
	bird, birdc := lab.Program(t, "bird"), lab.Program(t, "birdc")
	e := newEdge(t, "ecmp-routes")
	ctl := func(h *lab.Host) string { return h.Dir() + "/bird.ctl" }
	e.router.Start(bird, "-f", "-c", e.router.File("bird.conf", example(t, "ecmp-routes", "router.conf")), "-s", ctl(e.router), "-P", e.router.Dir()+"/bird.pid")
	for i, g := range e.GSLBD {
		text := strings.ReplaceAll(example(t, "ecmp-routes", "gslbd.conf"), "10.50.1.", fmt.Sprintf("10.50.%d.", i+1))
		g.Start(bird, "-f", "-c", g.File("bird.conf", text), "-s", ctl(g.Host), "-P", g.Dir()+"/bird.pid")
		lab.Eventually(t, 10*time.Second, "bird answers", func() bool { _, err := g.Host.Run(birdc, "-s", ctl(g.Host), "show", "status"); return err == nil })
		g.Start("sh", g.File("announce-while-ready", example(t, "ecmp-routes", "announce-while-ready")), ctl(g.Host))
	}
	both := func() {
		t.Helper()
		lab.Eventually(t, 30*time.Second, "both gslbd answer", func() bool { of := e.by(64); return of["gslbd1"] > 5 && of["gslbd2"] > 5 && of[""] == 0 })
	}
	both()
	t.Logf("64 queries from 32 addresses are answered by %v", e.by(64))

	measured := lab.Measure(t)
	for range lab.Repeats(t) {
		lost, asked, gap := e.during(func() {
			e.GSLBD[0].Process.Signal(15) // readiness fails first, then after drain_time the sockets close
			lab.Eventually(t, 15*time.Second, "the first has stopped", e.GSLBD[0].Process.Exited)
		})
		t.Logf("stopped in order: %d of %d queries lost, at most %v without an answer", lost, asked, round(gap))
		measured.Gap("equal-cost routes: a gslbd stops in order", gap)
		if lost > 0 {
			t.Errorf("%d of %d queries are lost while a gslbd stops in order", lost, asked)
		}
		e.GSLBD[0].Run()
		both()

		lost, asked, gap = e.during(func() {
			e.GSLBD[0].Process.Kill()
			lab.Eventually(t, 15*time.Second, "only the second answers", func() bool { return e.all("gslbd2", 32) })
		})
		t.Logf("killed: %d of %d queries lost, at most %v without an answer", lost, asked, round(gap))
		measured.Gap("equal-cost routes: a gslbd is killed", gap)
		if gap > 5*time.Second {
			t.Errorf("%v without an answer", gap)
		}
		e.GSLBD[0].Run()
		both()
	}
}

// A primary and a secondary route, and the same by the members' preference.
func TestRoutePriority(t *testing.T) {
	t.Parallel()
	lab.Program(t, "dig")
	e := newEdge(t, "route-priority")
	watch := func() *lab.Process {
		return e.router.Start("sh", e.router.File("watch-route", example(t, "route-priority", "watch-route")))
	}
	watch()
	only := func(g string) time.Duration {
		t.Helper()
		return lab.Eventually(t, 20*time.Second, "only "+g+" answers", func() bool { return e.all(g, 8) })
	}
	only("gslbd1")
	both := e.GSLBD[:]
	measured := lab.Measure(t)
	for range lab.Repeats(t) {
		lost, asked, gap := e.during(func() {
			measured.Fault("routes by priority: the primary gslbd is killed", e.GSLBD[0].Process.Kill, nil, e.answers("gslbd2"), nil)
			only("gslbd2")
		})
		t.Logf("primary killed: %d of %d queries lost, at most %v without an answer", lost, asked, round(gap))
		measured.Gap("routes by priority: the primary gslbd is killed", gap)
		measured.Fault("routes by priority: it is back", e.GSLBD[0].Run, nil, e.answers("gslbd1"), nil)

		forget(t, e.World)
		only("gslbd1")
		e.Reaches(lab.US, e.Korea, 20*time.Second)
		measured.Fault("by `preference`: the preferred site fails", func() { e.Korea.SetHealthy(false) }, lab.Logs("member down", both...),
			e.Answers(lab.US, e.US.VIP, both...), e.Served(lab.US, e.US))
		measured.Fault("by `preference`: it is back", func() { e.Korea.SetHealthy(true) }, lab.Logs("member up", both...),
			e.Answers(lab.US, e.Korea.VIP, both...), e.Served(lab.US, e.Korea))
	}
}

// A heartbeat moves the service address between two gslbd by switching the router's next hop. What they know is their own.
func TestNextHop(t *testing.T) {
	t.Parallel()
	e := newEdge(t, "next-hop")
	e.router.Serve(":9000", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		via, metric := r.URL.Query().Get("via"), r.URL.Query().Get("metric")
		var out string
		var err error
		if r.Method == http.MethodPut {
			out, err = e.router.Run("ip", "route", "replace", service, "via", via, "metric", metric)
		} else if out, err = e.router.Run("ip", "route", "del", service, "metric", metric); strings.Contains(out, "No such process") {
			err = nil // it is not there, which is what was asked for
		}
		if err != nil {
			http.Error(rw, out, http.StatusConflict)
		}
	}))
	e.Wire(e.GSLBD[0].Host, "hb", "192.168.77.1/24", e.GSLBD[1].Host, "hb", "192.168.77.2/24")
	var pair []*machine
	for i, g := range e.GSLBD {
		var change []string
		if i == 1 {
			change = []string{"priority 150", "priority 100", "10.50.1.", "10.50.2."}
		}
		pair = append(pair, newMachine(t, g.Host, "next-hop", strings.NewReplacer(change...), "become-next-hop"))
		pair[i].start(t)
	}
	only := func(g string) time.Duration {
		t.Helper()
		return lab.Eventually(t, 20*time.Second, "only "+g+" answers", func() bool { return e.all(g, 8) })
	}
	only("gslbd1")
	for _, g := range e.GSLBD { // what is ordered survives the move, since each has it
		if out, err := g.Ctl("force", "down", "--site", "seoul", "--reason", "before the move"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	oneRoute := func() {
		t.Helper()
		lab.Eventually(t, 5*time.Second, "one route is left", func() bool {
			out := e.router.Must("ip", "route", "show", service)
			return strings.Count(out, "\n") == 0 && strings.Contains(out, "metric 500")
		})
	}
	same := func() {
		t.Helper()
		if by, answer := e.ask(0); answer != "2.2.2.2" {
			t.Errorf("%s answers %q, want 2.2.2.2 as ordered", by, answer)
		}
	}
	measured := lab.Measure(t)
	for range lab.Repeats(t) {
		lost, asked, gap := e.during(func() {
			measured.Fault("next hop: handover", func() { pair[0].Must("pkill", "-F", pair[0].Dir()+"/k.pid") }, nil, e.answers("gslbd2"), nil)
			only("gslbd2")
			oneRoute()
		})
		t.Logf("handed over: %d of %d queries lost, at most %v without an answer", lost, asked, round(gap))
		measured.Gap("next hop: handover", gap)
		if lost > 0 {
			t.Errorf("%d of %d queries are lost by a move that makes before it breaks", lost, asked)
		}
		same()
		_ = os.Remove(pair[0].Dir() + "/vrrp.pid")
		pair[0].start(t)
		only("gslbd1")
		lost, asked, gap = e.during(func() {
			measured.Fault("next hop: the gslbd that serves is killed", e.GSLBD[0].Process.Kill, nil, e.answers("gslbd2"), nil)
			only("gslbd2")
			oneRoute()
		})
		t.Logf("gslbd killed: %d of %d queries lost, at most %v without an answer", lost, asked, round(gap))
		measured.Gap("next hop: the gslbd that serves is killed", gap)
		same()
		e.GSLBD[0].Run()
		only("gslbd1")
		oneRoute()
	}
}
