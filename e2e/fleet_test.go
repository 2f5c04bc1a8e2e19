package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// An etcdMember is one member of a real cluster on loopback.
type etcdMember struct {
	*process
	endpoint string
	args     []string
}

// startEtcd starts a cluster and waits until it has a leader.
func startEtcd(t *testing.T, size int) []*etcdMember {
	t.Helper()
	program := lab.Program(t, "etcd")
	dir := t.TempDir()
	peers := make([]string, size)
	members := make([]*etcdMember, size)
	for i := range members {
		peer := "http://" + freeAddr(t)
		members[i] = &etcdMember{endpoint: "http://" + freeAddr(t)}
		name := fmt.Sprintf("m%d", i)
		peers[i] = name + "=" + peer
		members[i].args = []string{
			"--name", name, "--data-dir", filepath.Join(dir, name), "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--listen-client-urls", members[i].endpoint, "--advertise-client-urls", members[i].endpoint, "--initial-cluster-state", "new",
			"--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error", "--unsafe-no-fsync",
		}
	}
	for _, m := range members {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		if help, _ := exec.Command(program, "--help").CombinedOutput(); !strings.Contains(string(help), "unsafe-no-fsync") {
			m.args = deleteArg(m.args, "--unsafe-no-fsync")
		}
		m.process = start(t, program, m.args...)
	}
	for _, m := range members {
		m.waitHealthy(t)
	}
	return members
}

func deleteArg(args []string, arg string) []string {
	var out []string
	for _, a := range args {
		if a != arg {
			out = append(out, a)
		}
	}
	return out
}

func (m *etcdMember) waitHealthy(t *testing.T) {
	t.Helper()
	lab.Eventually(t, 20*time.Second, "etcd is healthy", func() bool {
		out, err := exec.Command("curl", "-sS", "-m", "1", m.endpoint+"/health").CombinedOutput()
		return err == nil && strings.Contains(string(out), `"true"`)
	})
}

// restart starts a member again after it was killed.
func (m *etcdMember) restart(t *testing.T) {
	t.Helper()
	args := append([]string{}, m.args...)
	for i, a := range args {
		if a == "new" {
			args[i] = "existing"
		}
	}
	m.process = start(t, lab.Program(t, "etcd"), args...)
}

func endpoints(members []*etcdMember) []string {
	var all []string
	for _, m := range members {
		all = append(all, m.endpoint)
	}
	return all
}

// kill ends a process at once, as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// orders returns the ids of the orders in force, as the server tells them.
func (s *gslbd) orders(t *testing.T) map[string]string {
	t.Helper()
	var v struct {
		Orders []struct {
			ID     string `json:"id"`
			Shared string `json:"shared"`
		} `json:"orders"`
	}
	out := s.ctl(t, "orders", "--json")
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("orders --json: %v\n%s", err, out)
	}
	all := map[string]string{}
	for _, o := range v.Orders {
		all[o.ID] = o.Shared
	}
	return all
}

const fleetService = `services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1], preference: 200}
      - {name: virginia, site: virginia, addresses: [2.2.2.2]}
`

// An order given to one gslbd of a fleet soon holds at all, whichever member of etcd dies; without etcd each
// takes its own orders, and when etcd is back all agree.
func TestFleetSharesOrders(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, 3)
	a := startGSLBD(t, seedNetwork+fleetService, endpoints(etcd)...)
	b := startGSLBD(t, seedNetwork+fleetService, endpoints(etcd)...)
	for _, s := range []*gslbd{a, b} {
		s.wantAnswer(t, within, www, "1.1.1.1")
	}
	shared := func(s *gslbd, args ...string) {
		t.Helper()
		lab.Eventually(t, 10*time.Second, "the order is shared by etcd", func() bool {
			for _, how := range s.orders(t) {
				if how != "etcd" {
					return false
				}
			}
			return true
		})
	}
	a.ctl(t, "force", "down", "--site", "seoul", "--reason", "power work")
	t.Logf("the order held at the other gslbd after %v", b.wantAnswer(t, within, www, "2.2.2.2"))
	a.wantAnswer(t, 0, www, "2.2.2.2")

	b.ctl(t, "clear", "--all", "--reason", "power work done")
	t.Logf("its end held after %v", a.wantAnswer(t, within, www, "1.1.1.1"))

	etcd[0].kill()
	a.ctl(t, "force", "down", "--site", "seoul", "--reason", "one member of etcd is gone")
	b.wantAnswer(t, 5*time.Second, www, "2.2.2.2")
	a.ctl(t, "clear", "--all", "--reason", "test")
	b.wantAnswer(t, 5*time.Second, www, "1.1.1.1")

	// Another member hangs: no quorum.
	etcd[1].signal(syscall.SIGSTOP)
	out := a.ctl(t, "force", "down", "--site", "seoul", "--reason", "without quorum")
	if !strings.Contains(out, "on this gslbd only") {
		t.Errorf("without quorum the reply does not say that only this gslbd has the order:\n%s", out)
	}
	a.wantAnswer(t, 0, www, "2.2.2.2")
	b.wantAnswer(t, 0, www, "1.1.1.1")
	out = b.ctl(t, "force", "drain", "--site", "virginia", "--reason", "the other side, meanwhile")
	if !strings.Contains(out, "on this gslbd only") {
		t.Errorf("the other's reply does not say so:\n%s", out)
	}
	if out := b.ctl(t, "status"); !strings.Contains(out, "etcd") {
		t.Errorf("status says nothing of etcd:\n%s", out)
	}

	// A restart in the middle keeps what was accepted, and does not wait for etcd.
	a.kill()
	a.run(t)
	a.wantAnswer(t, 0, www, "2.2.2.2")

	etcd[1].signal(syscall.SIGCONT)
	etcd[0].restart(t)
	b.wantAnswer(t, 30*time.Second, www, "2.2.2.2")
	lab.Eventually(t, 30*time.Second, "both know both orders", func() bool { return len(a.orders(t)) == 2 && len(b.orders(t)) == 2 })
	shared(a)
	shared(b)
}

// A gslbd that is new, or has lost its disk, gets the orders from etcd; one that was away gets what was given meanwhile.
func TestFleetNewcomer(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, 1)
	a := startGSLBD(t, seedNetwork+fleetService, endpoints(etcd)...)
	b := startGSLBD(t, seedNetwork+fleetService, endpoints(etcd)...)
	b.kill()
	a.ctl(t, "force", "down", "--site", "seoul", "--reason", "power work")
	b.run(t)
	b.wantAnswer(t, 5*time.Second, www, "2.2.2.2")
	c := startGSLBD(t, seedNetwork+fleetService, endpoints(etcd)...)
	c.wantAnswer(t, 5*time.Second, www, "2.2.2.2")
}

// Several --server without etcd: the same order, under one id, goes to all; one that is away makes the exit status 1.
func TestOrderToAll(t *testing.T) {
	t.Parallel()
	a := startGSLBD(t, seedNetwork+fleetService)
	b := startGSLBD(t, seedNetwork+fleetService)
	a.ctl(t, "force", "down", "--site", "seoul", "--reason", "power work", "--server", "http://"+b.admin)
	for _, s := range []*gslbd{a, b} {
		s.wantAnswer(t, 0, www, "2.2.2.2")
	}
	of := func(s *gslbd) (ids []string) {
		for id := range s.orders(t) {
			ids = append(ids, id)
		}
		return ids
	}
	if x, y := of(a), of(b); len(x) != 1 || len(y) != 1 || x[0] != y[0] {
		t.Errorf("the orders are %v and %v, want one and the same", x, y)
	}
	b.kill()
	out, code := a.tryCtl(t, "clear", "--all", "--reason", "done", "--server", "http://"+b.admin)
	if code != 1 || !strings.Contains(out, b.admin) {
		t.Errorf("with one server away: exit status %d, want 1 and its name\n%s", code, out)
	}
	a.wantAnswer(t, 0, www, "1.1.1.1")
}

// Whatever moment the power fails at, an order that was acknowledged holds after the restart.
func TestOrdersSurviveKill(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+fleetService)
	var acknowledged atomic.Int64
	for i := range 5 {
		var operators sync.WaitGroup
		enough := make(chan struct{})
		until := acknowledged.Load() + int64(1+i)
		for range 3 { // so that others are on their way, however far, when the power fails
			operators.Go(func() {
				for {
					if _, code := s.tryCtl(t, "force", "down", "--site", "seoul", "--reason", "until the power fails"); code != 0 {
						return
					}
					if acknowledged.Add(1) == until {
						close(enough)
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { operators.Wait(); close(ended) }()
		select {
		case <-enough:
		case <-ended:
			t.Fatalf("round %d: orders are refused before the power fails:\n%s", i, s.log())
		}
		s.kill()
		<-ended
		s.run(t)
		if n := len(s.orders(t)); n < int(acknowledged.Load()) {
			t.Fatalf("round %d: %d orders are left of %d that were acknowledged", i, n, acknowledged.Load())
		}
		s.wantAnswer(t, 0, www, "2.2.2.2")
	}
}

// With failback: manual the whole fleet holds the backups once one gslbd has failed over, and goes back by one order to
// any of them.
func TestFleetFailsBackTogether(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, 1)
	const service = `services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    failover: {failback: manual}
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
      - {name: virginia, site: virginia, addresses: [2.2.2.2], role: backup}
`
	var fleet []*gslbd
	var seouls []*seedSite
	for range 2 {
		s := startGSLBD(t, seedNetwork+service, endpoints(etcd)...)
		seoul := &seedSite{site: "seoul", vip: "1.1.1.1", sessions: 10, servers: "up"}
		virginia := &seedSite{site: "virginia", vip: "2.2.2.2", sessions: 10, servers: "up"}
		s.keepReporting(t, "seoul", seoul.body, seoul.answered)
		s.keepReporting(t, "virginia", virginia.body, virginia.answered)
		fleet, seouls = append(fleet, s), append(seouls, seoul)
	}
	all := func(within time.Duration, want string) {
		t.Helper()
		for _, s := range fleet {
			s.wantAnswer(t, within, www, want)
		}
	}
	all(within, "1.1.1.1")

	seouls[0].set(10, "down", "") // only the first hears of it
	all(within+2*time.Second, "2.2.2.2")
	out, code := fleet[1].tryCtl(t, "failback", "www.gslb.example.com", "--reason", "too early", "--server", "http://"+fleet[0].admin)
	if code != 1 || !strings.Contains(out, "do not suffice") {
		t.Errorf("failback while the primaries are down for one: exit status %d\n%s", code, out)
	}
	all(0, "2.2.2.2") // ordered nowhere

	seouls[0].set(10, "up", "")
	lab.Eventually(t, within, "the first holds its backups", func() bool { return strings.Contains(fleet[0].ctl(t, "status"), "held") })
	fleet[0].kill()
	fleet[0].run(t) // the latch is in its journal
	all(within, "2.2.2.2")
	lab.Eventually(t, 10*time.Second, "it holds them still", func() bool {
		return strings.Contains(fleet[0].ctl(t, "explain", "www.gslb.example.com"), "held")
	})
	fleet[1].ctl(t, "failback", "www.gslb.example.com", "--reason", "repaired", "--wait", "--timeout", "20s")
	all(within, "1.1.1.1")
	if n := fleet[1].scrape(t, `gslbd_pool_transitions_total{service="www.gslb.example.com"}`); n != "2" {
		t.Errorf("%s changes of the pool are counted, want 2", n)
	}
}
