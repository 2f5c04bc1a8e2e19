package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"gslbd/state"
)

func TestLatchesAndFailbacks(t *testing.T) {
	now := time.Now().UTC()
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	latch := func(id string, s int) Record {
		return Record{Latch: &Latch{ID: id, Created: at(s), Service: "www", Why: "why " + id}}
	}
	failback := func(id string, s int, names ...string) Record {
		return Record{Failback: &Failback{ID: id, Created: at(s), Author: "kim", Service: "www", Latches: names}}
	}
	for _, tt := range []struct {
		name string
		recs []Record
		want state.Latch
	}{
		{"none", nil, state.Latch{}},
		{"one", []Record{latch("a", 0)}, state.Latch{ID: "a", Why: "why a"}},
		{"the newest", []Record{latch("b", 1), latch("a", 0)}, state.Latch{ID: "b", Why: "why b"}},
		{"failed back", []Record{latch("a", 0), latch("b", 1), failback("f", 2)}, state.Latch{Failback: "f"}},
		{"failed over again", []Record{latch("a", 0), failback("f", 2), latch("b", 3)}, state.Latch{ID: "b", Why: "why b", Failback: "f"}},
		{"named although later", []Record{latch("a", 5), failback("f", 2, "a")}, state.Latch{Failback: "f"}},
		{"the last failback", []Record{failback("g", 3), failback("f", 2)}, state.Latch{Failback: "g"}},
		{"another service", []Record{latch("a", 0), {Failback: &Failback{ID: "f", Created: at(1), Service: "api"}}}, state.Latch{ID: "a", Why: "why a"}},
		{"tombstone", []Record{latch("a", 0), {Tombstone: &Tombstone{ID: "a", Created: at(1)}}}, state.Latch{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSet()
			for _, r := range tt.recs {
				s.add(r)
			}
			if got := s.latchesInForce()["www"]; got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNewLatchIsLaterThanTheLastFailback(t *testing.T) {
	now := time.Now().UTC()
	s := newSet()
	s.add(Record{Failback: &Failback{ID: newID(), Created: now.Add(10 * time.Second), Author: "kim", Service: "www"}})
	l := s.newLatch(&state.Service{Name: "www", PoolSince: now, PoolWhy: "1 of 4 primary servers healthy, ratio 0.5"}, "gslb1", now)
	if err := (Record{Latch: &l}).validate(); err != nil {
		t.Fatal(err)
	}
	s.add(Record{Latch: &l})
	if got := s.latchesInForce()["www"]; got.ID != l.ID || !strings.Contains(got.Why, "gslb1 failed over at "+clock(now)+": 1 of 4") {
		t.Errorf("%+v", got)
	}
}

// A gslbd that went back by itself and fails over again says so with a latch that stands, though the one before is of a
// gslbd whose clock is ahead.
func TestNewLatchIsLaterThanTheLast(t *testing.T) {
	now := time.Now().UTC()
	s := newSet()
	s.add(Record{Latch: &Latch{ID: newID(), Created: now.Add(time.Minute), Service: "www", Node: "gslb2", Why: "gslb2 failed over"}})
	l := s.newLatch(&state.Service{Name: "www", PoolSince: now, PoolWhy: "no primary member is healthy"}, "gslb1", now)
	s.add(Record{Latch: &l})
	if got := s.latchesInForce()["www"]; got.ID != l.ID {
		t.Errorf("%+v", got)
	}
}

func TestFailbackIsJudged(t *testing.T) {
	for _, tt := range []struct {
		name    string
		svc     state.Service
		latched bool
		nothing string
		err     string
	}{
		{"held", state.Service{Failback: state.FailbackManual, Pool: state.Backup, Held: true}, true, "", ""},
		{"held, no latch yet", state.Service{Failback: state.FailbackManual, Pool: state.Backup, Held: true}, false, "", ""},
		{"too few", state.Service{Failback: state.FailbackManual, Pool: state.Backup, PoolWhy: "1 of 4 primary servers healthy"}, true, "", "do not suffice: 1 of 4 primary servers healthy"},
		{"held elsewhere", state.Service{Failback: state.FailbackManual, Pool: state.Primary}, true, "", ""},
		{"in the primaries", state.Service{Failback: state.FailbackManual, Pool: state.Primary}, false, "primaries of www are in force", ""},
		{"auto", state.Service{Failback: state.FailbackAuto, Pool: state.Backup}, false, "has failback auto", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.svc.Name = "www"
			nothing, err := judgeFailback(&tt.svc, tt.latched)
			if (nothing == "") != (tt.nothing == "") || !strings.Contains(nothing, tt.nothing) {
				t.Errorf("nothing to do: %q", nothing)
			}
			if tt.err != "" {
				expectError(t, err, ErrRefused, tt.err)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFailbackCalls(t *testing.T) {
	c := openControl(t, t.TempDir())
	f := Failback{ID: newID(), Created: time.Now().UTC(), Author: "kim", Service: "nowhere"}
	_, err := c.Failback(context.Background(), f, Caller{})
	expectError(t, err, ErrNotFound, `no service "nowhere"`, "api.example.com, shop.example.com, www.example.com")
	f.Service = "shop.example.com"
	r, err := c.Failback(context.Background(), f, Caller{})
	if err != nil || !r.Repeated || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "nothing to do") {
		t.Errorf("%+v, %v", r, err)
	}
}

// What holds a service that has not been configured for long is dropped, and not while it may come back.
func TestLatchesOfServicesThatAreGone(t *testing.T) {
	dir := t.TempDir()
	c := openControl(t, dir)
	now := c.now()
	old := now.Add(-100 * 24 * time.Hour).UTC()
	var recs []Record
	for _, service := range []string{"gone.example.com", "www.example.com"} {
		recs = append(recs, Record{Latch: &Latch{ID: newID(), Created: old, Service: service, Node: "gslb2", Why: "failed over"}},
			Record{Failback: &Failback{ID: newID(), Created: old.Add(-time.Hour), Author: "kim", Service: service}})
	}
	c.arrived(recs)
	latched := func() (all []string) {
		for _, l := range c.set.Load().latches {
			all = append(all, l.Service)
		}
		slices.Sort(all)
		return all
	}
	pass := func(d time.Duration) {
		now = now.Add(d)
		c.missing(context.Background(), now)
		c.purge(c.set.Load().purgeable(now, c.gone(now)))
	}
	pass(0)
	pass(29 * 24 * time.Hour)
	_ = c.Close()
	c = openControl(t, dir)
	if got := latched(); len(got) != 2 {
		t.Errorf("latched are %s", got)
	}
	pass(2 * 24 * time.Hour)
	if got := latched(); !slices.Equal(got, []string{"www.example.com"}) || len(c.set.Load().failbacks) != 1 {
		t.Errorf("latched are %s, with %d failbacks", got, len(c.set.Load().failbacks))
	}
	pass(time.Hour)
	if got := c.mark(goneMark + "gone.example.com"); got != "" {
		t.Errorf("it is still marked as gone since %s", got)
	}
	c.arrived(recs) // which another gslbd may still have
	pass(time.Hour)
	if got := latched(); len(got) != 2 {
		t.Errorf("latched are %s", got)
	}
}

// Many latches at once are one write to the disk, and wait for no etcd.
func TestManyLatchesAreOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := state.New(state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := &state.Config{Sites: []state.SiteConfig{{Name: "seoul"}}}
		for i := range 20 {
			svc := state.ServiceConfig{Name: fmt.Sprintf("s%d.example.com", i), Failback: state.FailbackManual, HasCheck: true}
			for j, role := range []state.Role{state.Primary, state.Backup} {
				svc.Members = append(svc.Members, state.MemberConfig{
					Name: role.String(), Site: "seoul", Role: role, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(j), byte(i)})},
				})
			}
			cfg.Services = append(cfg.Services, svc)
		}
		s.Configure(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		check := func(role state.Role, up bool) {
			for _, svc := range cfg.Services {
				s.Check(state.CheckResult{Service: svc.Name, Member: role.String(), Family: state.V4, Up: up, Err: map[bool]string{false: "refused"}[up]})
			}
		}
		check(state.Primary, true)
		check(state.Backup, true)
		time.Sleep(3 * time.Second)
		check(state.Primary, false)
		time.Sleep(3 * time.Second)
		c := New(Options{Directory: t.TempDir(), Node: "gslb1", Store: s, Etcd: &EtcdOptions{}})
		writes := func() (id int) {
			if err := c.journal.db.View(func(tx *bbolt.Tx) error { id = tx.ID(); return nil }); err != nil {
				t.Fatal(err)
			}
			return id
		}
		before := writes()
		c.latch(c.now())
		if n := writes() - before; n != 1 {
			t.Errorf("%d writes", n)
		}
		if n := len(c.set.Load().latches); n != 20 || len(c.etcd.undelivered()) != 20 || c.etcd.failed != nil {
			t.Errorf("%d latches, of which %d wait for etcd (%v)", n, len(c.etcd.undelivered()), c.etcd.failed)
		}
		for _, svc := range s.Snapshot().Services {
			if svc.Unlatched {
				t.Errorf("%s is not latched", svc.Name)
			}
		}
		cancel()
		if err := errors.Join(<-done, c.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestManualFailbackOfAFleet lets one of two gslbd see a failure: both stay in the backups until the failback, which both
// follow.
func TestManualFailbackOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		start := func(name string) *Control {
			s, err := state.New(state.Options{})
			if err != nil {
				t.Fatal(err)
			}
			member := func(name string, role state.Role, last byte) state.MemberConfig {
				return state.MemberConfig{Name: name, Site: "seoul", Role: role, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}}
			}
			s.Configure(&state.Config{
				Sites: []state.SiteConfig{{Name: "seoul"}},
				Services: []state.ServiceConfig{{
					Name: "db.example.com", Failback: state.FailbackManual, HasCheck: true,
					Members: []state.MemberConfig{member("a", state.Primary, 1), member("b", state.Backup, 2)},
				}},
			})
			running.Go(func() { _ = s.Run(ctx) })
			c := New(Options{Directory: t.TempDir(), Node: name, Store: s})
			running.Go(func() { _ = c.Run(ctx) })
			return c
		}
		one, two := start("gslb1"), start("gslb2")
		check := func(c *Control, member string, up bool) {
			why := "refused"
			if up {
				why = ""
			}
			c.opts.Store.Check(state.CheckResult{Service: "db.example.com", Member: member, Family: state.V4, Up: up, Err: why})
		}
		pools := func() string {
			time.Sleep(3 * time.Second)
			for _, c := range []*Control{one, two} { // what etcd does
				for _, to := range []*Control{one, two} {
					to.arrived(slices.Collect(c.set.Load().all()))
				}
			}
			time.Sleep(time.Second)
			return one.opts.Store.Snapshot().Services[0].Pool.String() + " " + two.opts.Store.Snapshot().Services[0].Pool.String()
		}
		ahead := 25 * time.Second // the clock of who gives the first failback
		failback := func(c *Control) (Receipt, error) {
			return c.Failback(ctx, Failback{ID: newID(), Created: time.Now().Add(ahead).UTC(), Author: "kim", Service: "db.example.com"}, Caller{})
		}
		for _, c := range []*Control{one, two} {
			check(c, "a", true)
			check(c, "b", true)
		}
		if got := pools(); got != "primary primary" {
			t.Fatal(got)
		}
		check(one, "a", false)
		if got := pools(); got != "backup backup" {
			t.Errorf("pools after one gslbd saw a failure: %s", got)
		}
		if n := len(two.set.Load().latches); n != 1 {
			t.Errorf("%d latches for one failover", n)
		}
		_, err := failback(one)
		expectError(t, err, ErrRefused, "db.example.com do not suffice", "no primary member is healthy")
		check(one, "a", true)
		if got := pools(); got != "backup backup" {
			t.Errorf("pools after the primary is back: %s", got)
		}
		if r, err := failback(two); err != nil || r.Repeated {
			t.Errorf("failback: %+v, %v", r, err)
		}
		if got := pools(); got != "primary primary" {
			t.Errorf("pools after the failback: %s", got)
		}
		if r, err := failback(one); err != nil || !r.Repeated || len(r.Warnings) != 1 {
			t.Errorf("a failback too many: %+v, %v", r, err)
		}
		check(two, "a", false)
		if got := pools(); got != "backup backup" {
			t.Errorf("pools after another failure: %s", got)
		}
		check(two, "a", true)
		ahead = 0 // so that it is older than the first
		if r, err := failback(one); err != nil || r.Repeated {
			t.Errorf("another failback: %+v, %v", r, err)
		}
		if got := pools(); got != "primary primary" {
			t.Errorf("pools after another failback: %s", got)
		}
		cancel()
		running.Wait()
	})
}
