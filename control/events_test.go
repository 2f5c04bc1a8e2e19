package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := openControl(t, dir)
		ctx := context.Background()
		start := time.Now()
		down := orderTo(Down, Target{Site: "seoul"})
		mustForce(t, c, down)
		time.Sleep(time.Minute)
		drain := orderTo(Drain, Target{Member: "www.example.com/busan"})
		drain.Expires = time.Now().Add(time.Hour)
		mustForce(t, c, drain)
		time.Sleep(time.Minute)
		if _, err := c.Clear(ctx, Tombstone{ID: down.ID, Created: time.Now(), Author: "lee", Reason: "mended"}, Caller{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		evacuation := Evacuation{ID: newID(), Created: time.Now(), Author: "kim", Reason: "fire", Zone: "apne2-az1", Types: []string{TypeMember}}
		if _, err := c.Evacuate(ctx, EvacuationRequest{Evacuation: evacuation}, Caller{}); err != nil {
			t.Fatal(err)
		}
		check := func(c *Control, since time.Time, service, site string, want ...string) {
			t.Helper()
			var got []string
			for _, e := range c.Events(since, service, site) {
				got = append(got, fmt.Sprintf("%s %s: %s: %s %s", e.Time.Sub(start), e.Message, e.Target, e.Author, e.Reason))
			}
			if !slices.Equal(got, want) {
				t.Errorf("service %q, site %q:\ngot  %q\nwant %q", service, site, got, want)
			}
		}
		const (
			ordered = "0s down ordered: site seoul: kim@ops bad disk"
			drained = "1m0s drain ordered: member www.example.com/busan: kim@ops bad disk"
			cleared = "2m0s down order cleared: site seoul: lee mended"
			expired = "1h1m0s drain order expired: member www.example.com/busan:  "
			fled    = "2h2m0s evacuation ordered (member): zone apne2-az1: kim fire"
		)
		check(c, start, "", "", ordered, drained, cleared, expired, fled)
		check(c, start.Add(time.Hour), "", "", expired, fled)
		check(c, start, "api.*", "", ordered, cleared, fled) // busan has no member of it
		check(c, start, "SHOP.example.com.", "busan", drained, expired)
		check(c, start, "", "virginia")
		check(c, start, "[", "")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		check(openControl(t, dir), start, "", "", ordered, drained, cleared, expired, fled)
	})
}

// What expires is logged once, when it does, and stands in the history once; what was cleared or restored before does not expire.
func TestExpiryIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		core, logs := observer.New(zap.InfoLevel)
		open := func() (*Control, func()) {
			c := New(Options{Directory: dir, Node: "gslb1", Store: fleetStore(t), Config: fleetConfig, Log: zap.New(core)})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			return c, func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		start := time.Now()
		within := func(d time.Duration) time.Time { return start.Add(d).UTC().Round(0) }
		c, stop := open()
		drain, cleared, late := orderTo(Drain, Target{Site: "busan"}), orderTo(Down, Target{Site: "busan"}), orderTo(Up, Target{Site: "busan"})
		drain.Expires, cleared.Expires, late.Expires = within(time.Hour), within(time.Hour), within(3*time.Hour)
		mustForce(t, c, drain)
		mustForce(t, c, cleared)
		mustForce(t, c, late)
		short, restored := evacuationOf("apne2-az1"), evacuationOf("use1-az1")
		short.Expires, restored.Expires = within(2*time.Hour), within(2*time.Hour)
		short.Force, restored.Force = true, true
		mustEvacuate(t, c, short)
		mustEvacuate(t, c, restored)
		time.Sleep(30 * time.Minute)
		if _, err := c.Clear(t.Context(), Tombstone{ID: cleared.ID, Created: time.Now(), Author: "lee", Reason: "mended"}, Caller{}); err != nil {
			t.Fatal(err)
		}
		mustRestore(t, c, restorationOf("use1-az1", ""))
		time.Sleep(2 * time.Hour)
		mustForce(t, c, orderTo(Down, Target{Site: "seoul"})) // which is no reason to say it again
		stop()
		time.Sleep(time.Hour)
		c, stop = open() // the third one ended meanwhile
		defer stop()
		time.Sleep(time.Minute)

		var logged []string
		for _, line := range logs.All() {
			if strings.HasSuffix(line.Message, "expired") {
				logged = append(logged, fmt.Sprintf("%s %s: %s", line.Time.Sub(start).Round(time.Second), line.Message, line.ContextMap()["target"]))
				if id := line.ContextMap()["id"]; id != drain.ID && id != short.ID {
					t.Errorf("%s has id %v", line.Message, id)
				}
			}
		}
		if want := []string{"1h0m0s drain order expired: site busan", "2h0m0s evacuation expired: zone apne2-az1"}; !slices.Equal(logged, want) {
			t.Errorf("logged %q, want %q", logged, want)
		}
		var told []string
		for _, e := range c.Events(start, "", "") {
			if strings.HasSuffix(e.Message, "expired") || strings.HasPrefix(e.Message, "evacuation over") {
				told = append(told, fmt.Sprintf("%s %s: %s: %s", e.Time.Sub(start).Round(time.Minute), e.Message, e.Target, e.Reason))
			}
		}
		want := []string{
			"30m0s evacuation over (member): zone use1-az1: power is back", "1h0m0s drain order expired: site busan: ",
			"2h0m0s evacuation expired: zone apne2-az1: ", "2h0m0s evacuation over (member): zone apne2-az1: the evacuation expired",
			"3h0m0s up order expired: site busan: ",
		}
		if !slices.Equal(told, want) {
			t.Errorf("got  %q\nwant %q", told, want)
		}
	})
}
