package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		target   Target
		www, api string // seoul busan virginia; seoul virginia
	}{
		{Target{Service: "www.example.com"}, "down down down", "- -"},
		{Target{Service: "WWW.Example.com."}, "down down down", "- -"},
		{Target{Service: "shop.example.com"}, "down down down", "- -"},
		{Target{Service: "*.example.com"}, "down down down", "down down"},
		{Target{Service: "sh?p.*"}, "down down down", "- -"},
		{Target{Member: "seoul"}, "down - -", "down -"},
		{Target{Member: "www.example.com/seoul"}, "down - -", "- -"},
		{Target{Member: "shop.example.com/*u*"}, "down down -", "- -"},
		{Target{Member: "*/virginia"}, "- - down", "- down"},
		{Target{Site: "busan"}, "- down -", "- -"},
		{Target{Site: "[sb]*"}, "down down -", "down -"},
		{Target{Zone: "apne2-az1"}, "down - -", "down -"},
		{Target{Zone: "ap-northeast-2a"}, "down - -", "down -"},
		{Target{Zone: "ap-northeast-2?"}, "down - -", "down -"},
		{Target{Zone: "apne2-*"}, "down down -", "down -"},
	} {
		t.Run(tt.target.String(), func(t *testing.T) {
			c := openControl(t, "")
			mustForce(t, c, orderTo(Down, tt.target))
			if got := forced(c.opts.Store, "www.example.com"); got != tt.www {
				t.Errorf("www: %s, want %s", got, tt.www)
			}
			if got := forced(c.opts.Store, "api.example.com"); got != tt.api {
				t.Errorf("api: %s, want %s", got, tt.api)
			}
			want := strings.Count(tt.www+tt.api, "down")
			if all := c.Orders(); len(all) != 1 || all[0].Members != want || all[0].Shared != "not shared" {
				t.Errorf("orders: %+v, want %d members", all, want)
			}
		})
	}
}

func TestRefusedOrders(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Order)
		kind   error
		says   []string
	}{
		{"no id", func(o *Order) { o.ID = "" }, ErrInvalid, []string{"id", "version 7"}},
		{"random uuid", func(o *Order) { o.ID = "2f9a8a5c-3f0e-4e0c-9d3a-0d5b0f3f8a11" }, ErrInvalid, []string{"version 7"}},
		{"upper case id", func(o *Order) { o.ID = strings.ToUpper("0198f5a0-aaaa-7bbb-8ccc-ddddeeeeffff") }, ErrInvalid, []string{"lower case"}},
		{"braces", func(o *Order) { o.ID = "{" + o.ID + "}" }, ErrInvalid, []string{"version 7"}},
		{"no author", func(o *Order) { o.Author = "" }, ErrInvalid, []string{"author is missing"}},
		{"long reason", func(o *Order) { o.Reason = strings.Repeat("x", 257) }, ErrInvalid, []string{"257 bytes, of at most 256"}},
		{"escape in reason", func(o *Order) { o.Reason = "a\x1b[2Jb" }, ErrInvalid, []string{"printable"}},
		{"broken text", func(o *Order) { o.Author = "a\xff" }, ErrInvalid, []string{"printable"}},
		{"no target", func(o *Order) { o.Target = Target{} }, ErrInvalid, []string{"exactly one of service, member, site and zone"}},
		{"two targets", func(o *Order) { o.Target.Zone = "z" }, ErrInvalid, []string{"exactly one"}},
		{"bad glob", func(o *Order) { o.Target.Site = "seoul[" }, ErrInvalid, []string{"pattern"}},
		{"action", func(o *Order) { o.Action = "off" }, ErrInvalid, []string{`"off" is not one of up, drain, down`}},
		{"expires first", func(o *Order) { o.Expires = o.Created.Add(-time.Second) }, ErrInvalid, []string{"not after created"}},
		{"expired", func(o *Order) { o.Created, o.Expires = o.Created.Add(-20*time.Second), o.Created.Add(-10*time.Second) }, ErrRefused, []string{"past"}},
		{"year", func(o *Order) { o.Expires = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) }, ErrInvalid, []string{"12000"}},
		{"old", func(o *Order) { o.Created = o.Created.Add(-5 * time.Minute) }, ErrRefused, []string{"5m0s behind the clock of gslb1", "30s"}},
		{"future", func(o *Order) { o.Created = o.Created.Add(time.Hour) }, ErrRefused, []string{"ahead of"}},
		{"unknown site", func(o *Order) { o.Target.Site = "tokyo" }, ErrNotFound, []string{`no site "tokyo"`, "busan, seoul, virginia"}},
		{"unknown zone", func(o *Order) { o.Target = Target{Zone: "x"} }, ErrNotFound, []string{"apne2-az1, apne2-az2, use1-az1"}},
		{"unknown member", func(o *Order) { o.Target = Target{Member: "x"} }, ErrNotFound, []string{"api.example.com/seoul"}},
		{"unknown service", func(o *Order) { o.Target = Target{Service: "x"} }, ErrNotFound, []string{"shop.example.com, www.example.com"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := openControl(t, t.TempDir())
				o := orderTo(Down, Target{Site: "seoul"})
				tt.change(&o)
				_, err := c.Force(context.Background(), o, Caller{})
				expectError(t, err, tt.kind, tt.says...)
				if len(c.Orders()) != 0 || forced(c.opts.Store, "www.example.com") != "- - -" {
					t.Error("a refused order is in force")
				}
			})
		})
	}
}

func TestManyNamesAreCut(t *testing.T) {
	var all []string
	for i := range 13 {
		all = append(all, fmt.Sprint("n", i))
	}
	if got := listed(all); !strings.HasSuffix(got, "n9 and 3 more") {
		t.Error(got)
	}
}

func TestSameOrderTwice(t *testing.T) {
	c := openControl(t, t.TempDir())
	o := orderTo(Drain, Target{Site: "seoul"})
	if r := mustForce(t, c, o); r.Repeated || r.Node != "gslb1" || r.ID != o.ID {
		t.Errorf("receipt %+v", r)
	}
	if r := mustForce(t, c, o); !r.Repeated {
		t.Error("the second time is not said to be one")
	}
	other := o
	other.Action = Down
	_, err := c.Force(context.Background(), other, Caller{})
	expectError(t, err, ErrRefused, "another content")
	if got := forced(c.opts.Store, "www.example.com"); got != "drain - -" {
		t.Error(got)
	}
}

func TestMostRestrictiveWinsAndTellsOfTheOthers(t *testing.T) {
	c := openControl(t, t.TempDir())
	up, down, drain := orderTo(Up, Target{Service: "www.*"}), orderTo(Down, Target{Site: "seoul"}), orderTo(Drain, Target{Zone: "apne2-az1"})
	down.Expires = down.Created.Add(time.Hour)
	for _, o := range []Order{down, drain, up} {
		mustForce(t, c, o)
	}
	if got := forced(c.opts.Store, "www.example.com"); got != "down up up" {
		t.Error(got)
	}
	why := c.opts.Store.Snapshot().ServiceByName("www.example.com").Members[0].ForcedWhy
	for _, w := range []string{"bad disk, by kim@ops (order " + short(down.ID) + ", until ", "drain " + short(drain.ID), "up " + short(up.ID)} {
		if !strings.Contains(why, w) {
			t.Errorf("why does not say %q: %s", w, why)
		}
	}
	if _, err := c.Clear(context.Background(), tombstone(down.ID), Caller{}); err != nil {
		t.Fatal(err)
	}
	if got := forced(c.opts.Store, "www.example.com"); got != "drain up up" {
		t.Error(got)
	}
}

func tombstone(id string) Tombstone {
	return Tombstone{ID: id, Created: time.Now().UTC(), Author: "lee@ops"}
}

func TestClear(t *testing.T) {
	c := openControl(t, t.TempDir())
	o := orderTo(Down, Target{Site: "seoul"})
	mustForce(t, c, o)
	_, err := c.Clear(context.Background(), tombstone(newID()), Caller{})
	expectError(t, err, ErrNotFound, o.ID, "down site seoul")
	for i := range 2 {
		r, err := c.Clear(context.Background(), tombstone(o.ID), Caller{})
		if err != nil || r.Repeated != (i == 1) {
			t.Errorf("%d: %+v, %v", i, r, err)
		}
	}
	if len(c.Orders()) != 0 || forced(c.opts.Store, "www.example.com") != "- - -" {
		t.Error("still in force")
	}
	// A tombstone that came first keeps the order from ever being in force, whoever sends it.
	late := orderTo(Down, Target{Site: "busan"})
	ts := tombstone(late.ID)
	c.arrived([]Record{{Tombstone: &ts}})
	c.arrived([]Record{{Order: &late}})
	if forced(c.opts.Store, "www.example.com") != "- - -" {
		t.Error("in force although cleared")
	}
}

func TestWarnsOfEmptiedServices(t *testing.T) {
	c := openControl(t, t.TempDir())
	if r := mustForce(t, c, orderTo(Drain, Target{Site: "seoul"})); len(r.Warnings) != 0 {
		t.Errorf("warned of nothing: %q", r.Warnings)
	}
	r := mustForce(t, c, orderTo(Down, Target{Site: "virginia"}))
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "api.example.com") || strings.Contains(r.Warnings[0], "www") {
		t.Errorf("warnings: %q", r.Warnings)
	}
}

func TestExpiryAndReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openControl(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		o := orderTo(Down, Target{Site: "seoul"})
		o.Expires = o.Created.Add(time.Minute + 300*time.Millisecond)
		mustForce(t, c, o)
		mustForce(t, c, orderTo(Drain, Target{Service: "www.*"}))
		time.Sleep(time.Until(o.Expires) - time.Millisecond)
		synctest.Wait()
		if got := forced(c.opts.Store, "www.example.com"); got != "down drain drain" {
			t.Error(got)
		}
		time.Sleep(time.Millisecond) // the answers lose it when the list of orders does
		synctest.Wait()
		if got := forced(c.opts.Store, "www.example.com"); got != "drain drain drain" || len(c.Orders()) != 1 {
			t.Error(got, c.Orders())
		}
		// An order for a name that a reload brings holds within a second, also without Set.
		late := orderTo(Down, Target{Service: "new.example.com"})
		c.arrived([]Record{{Order: &late}})
		configureFleet(c.opts.Store, "new.example.com")
		time.Sleep(time.Second)
		synctest.Wait() // for what happens at that very moment
		if got := forced(c.opts.Store, "www.example.com"); got != "down down down" {
			t.Error(got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := c.Force(context.Background(), orderTo(Up, Target{Site: "seoul"}), Caller{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestZonesFollowSet(t *testing.T) {
	c := openControl(t, "")
	o := orderTo(Down, Target{Zone: "east"})
	c.arrived([]Record{{Order: &o}})
	if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
		t.Error(got)
	}
	c.Set(Config{ZoneAliases: []ZoneAlias{{ID: "use1-az1", Names: []string{"east"}}}})
	if got := forced(c.opts.Store, "www.example.com"); got != "- - down" {
		t.Error(got)
	}
}

// What a refused order says may be as long as a request; its line in the log is not. An accepted one stands whole.
func TestRefusedOrdersInTheLog(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	c := New(Options{Directory: t.TempDir(), Node: "gslb1", Store: fleetStore(t), Config: fleetConfig, Log: zap.New(core)})
	defer c.Close()
	long := strings.Repeat("한", 20_000)
	o := orderTo(Down, Target{Site: long})
	o.ID, o.Author, o.Reason, o.Action = long, long, long, long
	_, refused := c.Force(t.Context(), o, Caller{Remote: "192.0.2.7:4711"})
	expectError(t, refused, ErrInvalid, "")
	_, refused = c.Evacuate(t.Context(), evacuationOf("z1", strings.Split(strings.Repeat("x ", 10_000), " ")...), Caller{})
	expectError(t, refused, ErrInvalid, "")
	lines := logged.TakeAll()
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		for key, value := range line.ContextMap() {
			if text := fmt.Sprint(value); len(text) > 3*maxRefused+40 {
				t.Errorf("%s: %s has %d bytes: %.300s", line.Message, key, len(text), text)
			}
		}
	}
	if got, want := lines[0].ContextMap()["reason"], strings.Repeat("한", maxRefused)+"… (20000 characters)"; got != want {
		t.Errorf("the reason is %v, want %v", got, want)
	}
	if got := lines[0].ContextMap()["remote"]; got != "192.0.2.7:4711" {
		t.Errorf("remote is %v", got)
	}
	o = orderTo(Down, Target{Site: "seoul"})
	o.Reason = strings.Repeat("r", 250)
	if _, err := c.Force(t.Context(), o, Caller{}); err != nil {
		t.Fatal(err)
	}
	if lines := logged.TakeAll(); len(lines) != 1 || lines[0].ContextMap()["reason"] != o.Reason {
		t.Errorf("an accepted order is logged as %+v", lines)
	}
}
