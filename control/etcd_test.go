package control

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/state"
)

// A member is one process of etcd.
type member struct {
	args   []string
	client string // URL
	cmd    *exec.Cmd
}

func (m *member) start(t *testing.T) {
	t.Helper()
	m.cmd = exec.Command("etcd", m.args...)
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *member) kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

func (m *member) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// startEtcd starts a cluster of n members on loopback, the leader first.
func startEtcd(t *testing.T, n int) []*member {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		if os.Getenv("E2E") == "require" {
			t.Fatal("etcd is not installed, and E2E=require")
		}
		t.Skip("SKIPPED: etcd is not installed (Debian: etcd-server)")
	}
	dir := t.TempDir()
	var all []*member
	var peers []string
	for i := range n {
		m := &member{client: "http://" + freePort(t)}
		peer := "http://" + freePort(t)
		name := fmt.Sprint("m", i)
		peers = append(peers, name+"="+peer)
		m.args = []string{
			"--name", name, "--data-dir", filepath.Join(dir, name), "--listen-client-urls", m.client, "--advertise-client-urls", m.client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster-state", "new",
			"--pre-vote=true",        // or a member that comes back would unseat the leader
			"--unsafe-no-fsync=true", // the machine stays up, and its disk may be busy with other tests
			"--logger", "zap", "--log-outputs", filepath.Join(dir, name+".log"),
		}
		all = append(all, m)
	}
	for _, m := range all {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		m.start(t)
	}
	t.Cleanup(func() {
		for _, m := range all {
			m.kill()
		}
	})
	t.Cleanup(func() {
		for i := range n {
			if log, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("m", i, ".log"))); err == nil && t.Failed() {
				t.Logf("the end of the log of m%d:\n%s", i, log[max(0, len(log)-4096):])
			}
		}
	})
	leaderFirst(t, all)
	return all
}

// leaderFirst waits until etcd has a leader, and puts that member first.
func leaderFirst(t *testing.T, all []*member) {
	t.Helper()
	eventually(t, 20*time.Second, "etcd has a leader", func() bool {
		for i, m := range all {
			if m.leads() {
				all[0], all[i] = all[i], all[0]
				return true
			}
		}
		return false
	})
}

// leads reports whether the member leads the cluster.
func (m *member) leads() bool {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop()})
	if err != nil {
		return false
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := client.Status(ctx, m.client)
	return err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId
}

// freePort returns a port on an address of loopback that nobody else uses: on 127.0.0.1 a connection of another test may
// have the port before the program that it is for.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually waits for what other processes do: there is no other clock to wait by.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(within); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// A node is a gslbd of a fleet.
type node struct {
	*Control
	stop func()
	logs *observer.ObservedLogs
}

func startNode(t *testing.T, name, dir string, etcd []*member) *node {
	t.Helper()
	return startNodeOn(t, fleetStore(t), name, dir, etcd)
}

func startNodeOn(t *testing.T, store *state.Store, name, dir string, etcd []*member) *node {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	var urls []string
	for _, m := range etcd {
		urls = append(urls, m.client)
	}
	c := New(Options{
		Directory: dir, Node: name, Store: store, Config: fleetConfig, Log: zap.New(core),
		Etcd: &EtcdOptions{Endpoints: urls, Prefix: "/test"},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	n := &node{Control: c, logs: logs}
	n.stop = func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			done <- nil
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	}
	t.Cleanup(n.stop)
	return n
}

// knows reports whether the order is in force on the node.
func (n *node) knows(id string) bool {
	return slices.ContainsFunc(n.Orders(), func(o OrderState) bool { return o.ID == id })
}

// give gives an order to a node and returns it, after it was in force there and, if shared is "etcd", everywhere.
func give(t *testing.T, to *node, fleet []*node, shared string) Order {
	t.Helper()
	o := orderTo(Drain, Target{Site: "seoul"})
	r := mustForce(t, to.Control, o)
	if r.Shared != shared {
		t.Errorf("shared: %q, want %q; problems: %q", r.Shared, shared, to.Problems())
	}
	if !to.knows(o.ID) {
		t.Error("not in force where it was given")
	}
	if shared == byEtcd {
		for _, n := range fleet {
			eventually(t, 10*time.Second, "the order is in force on "+n.opts.Node, func() bool { return n.knows(o.ID) })
		}
	}
	return o
}

// agree waits until all nodes have exactly the orders of ids in force, etcd has them all, and nothing is wrong.
func agree(t *testing.T, fleet []*node, ids map[string]bool) {
	t.Helper()
	for _, n := range fleet {
		eventually(t, 20*time.Second, "all agree with "+n.opts.Node, func() bool {
			have := map[string]bool{}
			for _, o := range n.Orders() {
				if o.Shared != byEtcd {
					return false
				}
				have[o.ID] = true
			}
			return maps.Equal(have, ids) && len(n.Problems()) == 0
		})
	}
}

func TestFleet(t *testing.T) {
	etcd := startEtcd(t, 3)
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var fleet []*node
	for i, dir := range dirs {
		fleet = append(fleet, startNode(t, fmt.Sprint("gslbd", i), dir, etcd))
	}
	ids := map[string]bool{}
	gave := func(o Order) { ids[o.ID] = true }
	agree(t, fleet, ids)

	for _, n := range fleet {
		gave(give(t, n, fleet, byEtcd))
	}
	agree(t, fleet, ids)

	// One member that is no leader is cut off: nobody waits for it.
	etcd[1].signal(t, syscall.SIGSTOP)
	for _, n := range fleet {
		gave(give(t, n, fleet, byEtcd))
	}
	etcd[1].signal(t, syscall.SIGCONT)
	leaderFirst(t, etcd)
	agree(t, fleet, ids)

	// One is killed.
	etcd[2].kill()
	for _, n := range fleet {
		gave(give(t, n, fleet, byEtcd))
	}
	agree(t, fleet, ids)
	if !etcd[0].leads() {
		t.Fatal("the leader was lost with a member that did not lead")
	}

	// And one more is cut off, so that one alone is left: each gslbd goes on with what it is given.
	etcd[1].signal(t, syscall.SIGSTOP)
	eventually(t, 5*time.Second, "the leader has stepped down", func() bool { return !etcd[0].leads() })
	var alone []Order
	for _, n := range fleet {
		alone = append(alone, give(t, n, fleet, onlyHere))
	}
	for i, n := range fleet {
		gave(alone[i])
		eventually(t, 15*time.Second, "the loss of the quorum is told", func() bool { return strings.Contains(strings.Join(n.Problems(), ""), "etcd") })
		for _, o := range n.Orders() {
			if want := map[bool]string{true: onlyHere, false: byEtcd}[o.ID == alone[i].ID]; o.Shared != want {
				t.Errorf("%s: order is %q, want %q", n.opts.Node, o.Shared, want)
			}
		}
	}
	if fleet[0].knows(alone[1].ID) {
		t.Error("an order came without etcd")
	}
	// Both clear one order meanwhile; and a gslbd restarts without etcd.
	for _, n := range fleet[:2] {
		if _, err := n.Clear(context.Background(), tombstone(firstKey(ids)), Caller{}); err != nil {
			t.Fatal(err)
		}
	}
	delete(ids, firstKey(ids))
	fleet[2].stop()
	fleet[2] = startNode(t, "gslbd2", dirs[2], etcd)
	if !fleet[2].knows(alone[2].ID) {
		t.Error("an order is not in force after a restart without etcd")
	}

	// All are back.
	etcd[1].signal(t, syscall.SIGCONT)
	etcd[2].start(t)
	agree(t, fleet, ids)
	want := forced(fleet[0].opts.Store, "www.example.com")
	for _, n := range fleet[1:] {
		if got := forced(n.opts.Store, "www.example.com"); got != want {
			t.Errorf("%s forces %s, the first %s", n.opts.Node, got, want)
		}
	}

	// A gslbd that lost its disk has all from etcd, and etcd that lost its disk has all from the gslbd.
	agree(t, []*node{startNode(t, "gslbd3", t.TempDir(), etcd)}, ids)
	deleteAll(t, etcd[0])
	gave(give(t, fleet[0], fleet, byEtcd))
	for _, n := range fleet { // what a comparison finds, without waiting a minute for it
		if _, err := n.etcd.compare(context.Background(), n.etcd.endpoints[0]); err != nil {
			t.Fatal(err)
		}
	}
	agree(t, []*node{startNode(t, "gslbd4", t.TempDir(), etcd)}, ids)
}

// An etcd that was begun anew, as one that was restored from a backup, counts its revisions from an earlier one. Orders go on
// reaching everybody, and it gets those that it has lost.
func TestEtcdBegunAnew(t *testing.T) {
	etcd := startEtcd(t, 1)
	one, two := startNode(t, "gslbd1", t.TempDir(), etcd), startNode(t, "gslbd2", t.TempDir(), etcd)
	ids := map[string]bool{}
	for range 20 {
		ids[give(t, one, []*node{one, two}, byEtcd).ID] = true
	}
	etcd[0].kill()
	if err := os.RemoveAll(etcd[0].args[slices.Index(etcd[0].args, "--data-dir")+1]); err != nil {
		t.Fatal(err)
	}
	etcd[0].start(t)
	leaderFirst(t, etcd)
	for range 2 {
		o := orderTo(Drain, Target{Site: "seoul"})
		mustForce(t, one.Control, o)
		ids[o.ID] = true
		eventually(t, 20*time.Second, "the order is in force on gslbd2", func() bool { return two.knows(o.ID) })
	}
	agree(t, []*node{one, two, startNode(t, "gslbd3", t.TempDir(), etcd)}, ids)
}

// An order that is delivered while etcd is compared is not taken for one that etcd lacks: what its answers do not hold may
// have come after them.
func TestOrdersDuringComparisons(t *testing.T) {
	n := startNode(t, "a", t.TempDir(), startEtcd(t, 1))
	agree(t, []*node{n}, map[string]bool{})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := n.etcd.compare(ctx, n.etcd.endpoints[0]); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		give(t, n, nil, byEtcd)
	}
}

// What is to be delivered may be newer than what is in force, for a moment. That etcd has what is in force does not end it.
func TestSeenLeavesWhatIsNewer(t *testing.T) {
	n := startNode(t, "a", t.TempDir(), []*member{{client: "http://127.0.0.1:1"}})
	o := orderTo(Drain, Target{Site: "seoul"})
	mustForce(t, n.Control, o)
	if _, err := n.Clear(t.Context(), tombstone(o.ID), Caller{}); err != nil {
		t.Fatal(err)
	}
	inForce := n.set.Load().ended(o.ID)
	first := *inForce
	first.Created, first.Author = inForce.Created.Add(-time.Second), "park@ops"
	newer := Record{Tombstone: &first}
	n.etcd.offer([]Record{newer})
	n.etcd.seen([]Record{{Tombstone: inForce}})
	if got, pending := n.etcd.awaited(newer); !pending || !same(got, newer) {
		t.Errorf("to be delivered: %v, %s", pending, got.encode())
	}
	n.etcd.seen([]Record{newer})
	if !n.etcd.has(newer) {
		t.Error("what etcd has is to be delivered")
	}
}

func firstKey(m map[string]bool) string { return slices.Min(slices.Collect(maps.Keys(m))) }

func deleteAll(t *testing.T, m *member) {
	t.Helper()
	onEtcd(t, m, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, "/test/", clientv3.WithPrefix())
		return err
	})
}

func onEtcd(t *testing.T, m *member, f func(context.Context, *clientv3.Client) error) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := f(ctx, client); err != nil {
		t.Fatal(err)
	}
}

func TestEtcdComesLate(t *testing.T) {
	etcd := startEtcd(t, 1)
	etcd[0].kill()
	a, b := startNode(t, "a", t.TempDir(), etcd), startNode(t, "b", t.TempDir(), etcd)
	o := give(t, a, nil, onlyHere)
	eventually(t, 10*time.Second, "it is told", func() bool {
		return strings.Contains(strings.Join(a.Problems(), ""), "none of 1 endpoints answers") && strings.Contains(strings.Join(a.Problems(), ""), "1 records are not delivered")
	})
	etcd[0].start(t)
	agree(t, []*node{a, b}, map[string]bool{o.ID: true})
	if n := a.logs.FilterMessage("etcd endpoint away").Len(); n != 1 {
		t.Errorf("%d log lines say that etcd is away", n)
	}
	for _, l := range a.logs.All() {
		if l.LoggerName == "etcd" {
			t.Errorf("the client logs by itself: %s", l.Message)
		}
	}
}

func TestWhatEtcdHolds(t *testing.T) {
	etcd := startEtcd(t, 1)
	good, moved, old := orderTo(Down, Target{Site: "seoul"}), orderTo(Down, Target{Site: "busan"}), orderTo(Down, Target{Site: "virginia"})
	old.Created = time.Now().Add(-90 * 24 * time.Hour)
	gone := tombstone(old.ID)
	gone.Created = old.Created.Add(time.Hour)
	ours := orderTo(Drain, Target{Site: "seoul"})
	mine, theirs := tombstone(ours.ID), tombstone(ours.ID)
	theirs.Created, theirs.Author = mine.Created.Add(-time.Second), "park@ops"
	put := map[string]string{
		"order/" + good.ID:        string(Record{Order: &good}.encode()),
		"order/" + newID():        string(Record{Order: &moved}.encode()),
		"order/" + newID():        `{"order":{"id":`,
		"promise/x":               "\x00\xff",
		"order/" + old.ID:         string(Record{Order: &old}.encode()),
		"tombstone/" + gone.ID:    string(Record{Tombstone: &gone}.encode()),
		"tombstone/" + mine.ID:    string(Record{Tombstone: &theirs}.encode()),
		"later/" + good.ID + "/x": `{"later":{}}`,
	}
	onEtcd(t, etcd[0], func(ctx context.Context, c *clientv3.Client) error {
		for k, v := range put {
			if _, err := c.Put(ctx, "/test/records/"+k, v); err != nil {
				return err
			}
		}
		return nil
	})
	dir := t.TempDir()
	j, _, _ := openJournal(dir)
	if err := j.write([]Record{{Order: &ours}, {Tombstone: &mine}, {Order: &old}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, "a", dir, etcd)
	agree(t, []*node{n}, map[string]bool{good.ID: true})
	if got := n.set.Load().ended(ours.ID).Author; got != "park@ops" {
		t.Errorf("cleared by %s", got)
	}
	for range 3 {
		if _, err := n.etcd.compare(context.Background(), n.etcd.endpoints[0]); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.logs.FilterMessage("record in etcd cannot be read and is left alone").Len(); got != 4 {
		t.Errorf("%d warnings of 4 records that cannot be read", got)
	}
	onEtcd(t, etcd[0], func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Get(ctx, "/test/records/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		left := map[string]string{}
		for _, kv := range resp.Kvs {
			left[strings.TrimPrefix(string(kv.Key), "/test/records/")] = string(kv.Value)
		}
		delete(put, "order/"+old.ID)
		delete(put, "tombstone/"+gone.ID)
		put["order/"+ours.ID] = string(Record{Order: &ours}.encode())
		if !maps.Equal(left, put) {
			t.Errorf("etcd holds %q,\nwant %q", left, put)
		}
		return nil
	})
	if n.set.Load().orders[old.ID] != nil {
		t.Error("what ended long ago is kept here")
	}
}

func TestOrdersWithoutAnyEndpoint(t *testing.T) {
	n := startNode(t, "a", t.TempDir(), []*member{{client: "http://127.0.0.1:1"}})
	for range 3 {
		give(t, n, nil, onlyHere)
	}
}

// largeStore returns a Store of so many services, with a member in each of two zones.
func largeStore(t testing.TB, n int) *state.Store {
	t.Helper()
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	cfg := &state.Config{Sites: []state.SiteConfig{{Name: "seoul", Zone: "z1"}, {Name: "busan", Zone: "z2"}}}
	for i := range n {
		svc := state.ServiceConfig{Name: fmt.Sprintf("s%d.example.com", i), UnknownUp: true}
		for j, site := range []string{"seoul", "busan"} {
			svc.Members = append(svc.Members, state.MemberConfig{
				Name: site, Site: site, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})},
			})
		}
		cfg.Services = append(cfg.Services, svc)
	}
	s.Configure(cfg)
	return s
}

// A ledger of thousands of lines reaches etcd and the others in few transactions, also of several gslbd at once.
func TestLargeLedger(t *testing.T) {
	const services = 5000
	etcd := startEtcd(t, 3)
	var fleet []*node
	for i := range 2 {
		fleet = append(fleet, startNodeOn(t, largeStore(t, services), fmt.Sprint("gslbd", i), t.TempDir(), etcd))
	}
	agree(t, fleet, map[string]bool{})
	mustEvacuate(t, fleet[0].Control, evacuationOf("z1", TypeMember))
	for _, n := range fleet {
		eventually(t, 60*time.Second, "etcd and "+n.opts.Node+" have all", func() bool {
			set := n.set.Load()
			return len(set.evacuations) == 1 && len(set.taken) == services && len(n.etcd.undelivered()) == 0
		})
	}
	onEtcd(t, etcd[0], func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Get(ctx, "/test/records/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if resp.Count != services+1 {
			t.Errorf("etcd holds %d records", resp.Count)
		}
		if resp.Header.Revision > services/10 {
			t.Errorf("it took %d transactions", resp.Header.Revision)
		}
		return nil
	})
}
