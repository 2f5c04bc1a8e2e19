package control

import (
	"context"
	"testing"
	"time"
)

// A Control whose successor did not come up takes orders again, keeps its own, and has those that the other took.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	c := openControl(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	run := func() { ended <- c.Run(ctx) }
	go run()
	mustForce(t, c, orderTo("down", Target{Site: "seoul"}))
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := c.Force(t.Context(), orderTo("down", Target{Site: "busan"}), Caller{}); err == nil {
		t.Error("an order is taken while the journal is another's")
	}
	other := openControl(t, dir)
	mustForce(t, other, orderTo("drain", Target{Site: "virginia"}))
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}

	c.Reopen()
	ctx, cancel = context.WithCancel(t.Context())
	go run()
	if p := c.Problems(); len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
	mustForce(t, c, orderTo("down", Target{Site: "busan"}))
	const all = "down down drain"
	if got := forced(c.opts.Store, "www.example.com"); got != all {
		t.Errorf("forced: %s, want %s", got, all)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := forced(openControl(t, dir).opts.Store, "www.example.com"); got != all {
		t.Errorf("after a restart forced: %s, want %s", got, all)
	}
}

// Orders are shared again after a takeover that failed.
func TestReopenWithEtcd(t *testing.T) {
	etcd := startEtcd(t, 1)
	c := New(Options{Directory: t.TempDir(), Node: "gslb1", Store: fleetStore(t), Config: fleetConfig, Etcd: &EtcdOptions{Endpoints: []string{etcd[0].client}}})
	t.Cleanup(func() { _ = c.Close() })
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		eventually(t, 20*time.Second, "etcd is reached", func() bool { return len(c.Problems()) == 0 })
		if r := mustForce(t, c, orderTo("down", Target{Site: "seoul"})); r.Shared != byEtcd {
			t.Errorf("the order is shared: %s", r.Shared)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		c.Reopen()
	}
}
