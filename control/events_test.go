package control

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
