package state

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"gslbd/geo"
)

// A site that never reports must not let its queue grow with every target that came and went.
func TestQueueForgetsDroppedTargets(t *testing.T) {
	now := time.Now()
	q := new(queue)
	for i := range 3000 {
		*q = append(*q, queued{now.Add(time.Duration(-i) * time.Second), &target{dropped: i%10 != 0}})
	}
	q.compact(3000)
	if q.Len() != 3000 {
		t.Errorf("%d left of a queue that was short enough", q.Len())
	}
	q.compact(1000)
	if q.Len() != 300 {
		t.Fatalf("%d left, want 300", q.Len())
	}
	for _, item := range (*q)[1:] {
		if item.due.Before((*q)[0].due) {
			t.Fatal("the first is not the earliest")
		}
	}
}

// A large table is pruned a part at a time, so that no sweep takes long, and whole in the end.
func TestPruneInParts(t *testing.T) {
	const networks = 4096
	at := time.Unix(1_800_000_000, 0)
	table := NewRTTTable(RTTConfig{MaxTargets: 10 * networks})
	for i := range networks {
		resolver := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1})
		table.Add(1, []RTTSample{{Resolver: resolver, RTT: time.Millisecond}}, at)
		table.Add(2, []RTTSample{{Resolver: resolver, RTT: time.Millisecond}}, at.Add(time.Hour))
	}
	later := at.Add(90 * time.Minute)
	left := func() (values int) {
		table.each(func(_ *rttSlot, row *RTTRow) { values += row.Len() })
		return values
	}
	all := table.slots()
	for looked := table.prune(later, time.Hour, all/16); looked < all; looked += table.prune(later, time.Hour, all/16) {
		if n := left(); n < networks || n == 2*networks || looked < all/8 && n < 2*networks*7/10 {
			t.Errorf("%d of %d values are left after %d of %d slots", n, 2*networks, looked, all)
		}
	}
	if n := left(); n != networks || table.Len() != networks {
		t.Errorf("%d values of %d networks are left, want the younger one of each", n, table.Len())
	}
	for looked := 0; looked < all; {
		looked += table.prune(later.Add(time.Hour), time.Hour, 1000)
	}
	if table.Len() != 0 {
		t.Errorf("%d networks are left of those too old", table.Len())
	}
}

// What is read ahead is written at the same time: the race detector finds a load that is not atomic.
func TestLookAheadWhileWriting(t *testing.T) {
	table := NewRTTTable(RTTConfig{MaxTargets: 1 << 16})
	network := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1}) }
	var written sync.WaitGroup
	written.Go(func() {
		for i := range 4096 {
			table.Add(1, []RTTSample{{Resolver: network(i), RTT: time.Millisecond}}, time.Unix(1_800_000_000, 0))
		}
	})
	var a Ahead
	for i := range 4096 {
		a.Begin(&Snapshot{RTT: table, Geo: &geo.DB{}})
		for k := range mostAhead {
			a.Client(network((i + 251*k) % 4096))
		}
		a.Networks()
		a.Services(nil, 0)
		a.End()
	}
	written.Wait()
}

// An Ahead that waits for its next use keeps nothing from being freed.
func TestAheadLetsGo(t *testing.T) {
	table := NewRTTTable(RTTConfig{})
	addr := netip.MustParseAddr("20.1.2.3")
	table.Add(1, []RTTSample{{Resolver: addr, RTT: time.Millisecond}}, time.Now())
	var a Ahead
	for n := mostAhead; n > 0; n /= 2 {
		a.Begin(&Snapshot{RTT: table, Geo: &geo.DB{}})
		for range n {
			a.Client(addr)
		}
		a.Networks()
		a.Services(nil, 0)
		a.End()
		for i := range a.clients {
			if c := &a.clients[i]; a.snap != nil || c.slots != nil || c.row != nil {
				t.Fatalf("%d clients: it keeps what was read of client %d", n, i)
			}
		}
	}
}
