package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"gslbd/policy"
	"gslbd/state"
)

// moves reports whether an order that stands at share moves the client, as seen from outside: by what such a client is
// answered of two members, of which the order has the first.
func moves(order uint64, share float64, client netip.Addr) bool {
	w := newWorld("left", "stays")
	w.of("left").Moved = []state.Stage{{Order: order, Share: share}}
	q := w.query()
	q.LDNS = client
	c, err := policy.Build("test", []policy.StepOptions{{Metric: "static", Method: "ordered"}})
	if err != nil {
		panic(err)
	}
	var d policy.Decision
	c.Decide(q, &d)
	return d.Members[0].Name == "stays"
}

const quarter = 77 // an order

func stage(share float64) []state.Stage {
	return []state.Stage{{Order: quarter, Share: share, Why: "evacuation of z1 by ann"}}
}

// client returns a client that the order moves, or does not, at a quarter.
func client(moved bool) func(*policy.Query) {
	for i := range 256 {
		if a := netip.AddrFrom4([4]byte{20, 7, byte(i), 9}); moves(quarter, 0.25, a) == moved {
			return func(q *policy.Query) { q.LDNS = a }
		}
	}
	panic("no such client")
}

func TestStagesMoveMoreAndMore(t *testing.T) {
	const networks = 20_000
	shares := []float64{0.1, 0.25, 0.5, 0.9}
	count := make([]int, len(shares))
	both := 0
	for i := range networks {
		a := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1})
		before := false
		for j, share := range shares {
			now := moves(quarter, share, a)
			if before && !now {
				t.Fatalf("%s is moved at a smaller share than %v, and back at that", a, share)
			}
			if before = now; now {
				count[j]++
			}
		}
		if neighbour := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 200}); moves(quarter, 0.5, a) != moves(quarter, 0.5, neighbour) {
			t.Fatalf("%s is moved, its neighbour is not", a)
		}
		if moves(quarter, 0.5, a) && moves(quarter+1, 0.5, a) {
			both++
		}
	}
	for j, share := range shares {
		if got := float64(count[j]) / networks; got < share-0.02 || got > share+0.02 {
			t.Errorf("a stage of %v moves %v", share, got)
		}
	}
	if both < networks/5 || both > networks*3/10 {
		t.Errorf("two orders move %d of %d together: they are not independent", both, networks)
	}
}

func TestMembersOfOneOrderLoseTheSameClients(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.of("a").Moved, w.of("b").Moved = stage(0.5), stage(0.5)
	c := build(t, defaultChain...)
	moved := 0
	for i := range 500 {
		for _, f := range []state.Family{state.V4, state.V6} {
			_, d, trace := w.decide(c, family(f), from(netip.AddrFrom4([4]byte{20, byte(i), 0, 1}).String()))
			switch fell := len(trace.Constraints[1].Fell); {
			case fell == 1:
				t.Fatal("a client is moved away from one member of the order and not from the other")
			case fell == 2 && d.Members[0].Name != "c":
				t.Fatalf("a moved client gets %s", d.Members[0].Name)
			case fell == 2:
				moved++
			}
		}
	}
	if moved%2 != 0 || moved < 400 || moved > 600 {
		t.Errorf("%d of 1000 moved; A and AAAA of a client must agree", moved)
	}
}

// Those that are moved are spread over the rest as all clients are, even if an order's number is a member's hash.
func TestMovedClientsAreSpread(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.of("c").Moved = []state.Stage{{Order: w.of("a").Hash, Share: 0.5}}
	c := build(t, "static=hash")
	moved, a := 0, 0
	for i := range 4000 {
		client := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1})
		if !moves(w.of("a").Hash, 0.5, client) {
			continue
		}
		moved++
		if got, _, _ := w.decide(c, from(client.String())); got == "a" {
			a++
		}
	}
	if share := float64(a) / float64(moved); share < 0.45 || share > 0.55 {
		t.Errorf("%d of %d moved clients get a", a, moved)
	}
}

func TestScopeOfStages(t *testing.T) {
	c := build(t, "health", "static=ordered")
	tests := []struct {
		name   string
		set    func(*world)
		ecs    string
		within uint8
	}{
		{"no staged order", func(*world) {}, "20.1.0.0/16", 0},
		{"one that was asked, whether or not it moves the client", func(w *world) { w.of("b").Moved = stage(0.001) }, "20.1.2.0/26", 24},
		{"IPv6", func(w *world) { w.of("b").Moved = stage(0.001) }, "2400:1:2::/64", 56},
		{"of a member that is not in the pool", func(w *world) { w.of("b").Moved, w.of("b").InPool = stage(0.5), false }, "20.1.2.0/26", 0},
		{"of a member that is evacuated anyway", func(w *world) { w.of("b").Moved, w.of("b").Forced = stage(0.5), state.ForcedEvacuated }, "20.1.2.0/26", 0},
		{"that only the choice of the pool asks", func(w *world) {
			w.StagedPool = state.Backup
			w.of("b").Moved, w.of("b").Addr[state.V4] = stage(0.5), netip.Addr{}
			w.down("a")
		}, "20.1.2.0/26", 24},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b")
			tt.set(w)
			if got := w.scope(c, tt.ecs); got != tt.within {
				t.Errorf("scope %d, want %d", got, tt.within)
			}
		})
	}
}

// What a moved client is answered, and what one is that the order leaves alone.
func TestMovedClients(t *testing.T) {
	last := func(w *world, names ...string) {
		w.OnAllDown = state.AllDownLastKnownGood
		for _, n := range names {
			w.of(n).LastGood = [2]bool{true, true}
		}
	}
	// Two primaries, and two backups that take over once the order is done.
	failover := func(w *world) {
		w.StagedPool = state.Backup
		for _, n := range []string{"c", "d"} {
			m := w.of(n)
			m.Role, m.InPool, m.InStagedPool = state.Backup, false, true
		}
	}
	tests := []struct {
		name          string
		answers       int
		set           func(*world)
		moved, others string
	}{
		{"away from the member", 1, func(*world) {}, "answer 30 constraints b", "answer 30 constraints a"},
		{"from every answer", 10, func(*world) {}, "answer 30 constraints b c d", "answer 30 constraints a b c d"},
		{"also when the others are down", 1, func(w *world) { w.down("b", "c", "d") }, "answer 10 on_all_down b", "answer 30 health a"},
		{"and all are", 10, func(w *world) { w.down("a", "b", "c", "d") }, "answer 10 on_all_down b c d", "answer 10 on_all_down a b c d"},
		{"last known good is another", 10, func(w *world) { w.down("a", "b", "c", "d"); last(w, "a", "c") }, "answer 10 on_all_down c", "answer 10 on_all_down a c"},
		{"last known good is what it was moved from", 10, func(w *world) { w.down("a", "b", "c", "d"); last(w, "a") }, "answer 10 on_all_down b c d", "answer 10 on_all_down a"},
		{"the other family of what it was moved from is no way out", 1, func(w *world) {
			w.down("b", "c", "d")
			w.of("a").Up = [2]bool{false, true}
		}, "answer 10 on_all_down b", "nodata 10 on_all_down"},
		{"weight 0 serves it", 1, func(w *world) { w.of("b").Weight = 0; w.down("c", "d") }, "answer 30 health b", "answer 30 health a"},
		{"and the drained", 1, func(w *world) { w.of("b").Forced = state.ForcedDrain; w.down("c", "d") }, "answer 30 health b", "answer 30 health a"},
		{"from the only member", 1, func(w *world) { w.Members = w.Members[:1] }, "nodata 10 constraints empty", "answer 30 single a"},
		{"from all but one", 1, func(w *world) { w.Members = w.Members[:2] }, "answer 30 constraints b", "answer 30 constraints a"},
		{"to a CNAME", 1, func(w *world) {
			for _, m := range w.Members {
				m.CNAME, m.Addr = m.Name+".example.net.", [2]netip.Addr{}
			}
		}, "answer 30 constraints b", "answer 30 constraints a"},

		{"a primary is left", 1, failover, "answer 30 constraints b", "answer 30 constraints a"},
		{"no primary is left: the backups, as after the last stage", 10, func(w *world) { failover(w); w.down("b") }, "answer 30 constraints c d", "answer 30 health a"},
		{"a primary is drained, and up", 10, func(w *world) { failover(w); w.of("b").Forced = state.ForcedDrain }, "answer 30 constraints b", "answer 30 constraints a"},
		{"the backups have their own constraints", 10, func(w *world) {
			failover(w)
			w.down("b")
			w.of("c").Forced = state.ForcedDown
		}, "answer 30 constraints d", "answer 30 health a"},
		{"a single backup", 10, func(w *world) {
			failover(w)
			w.Members = w.Members[:3]
			w.down("b")
		}, "answer 30 single c", "answer 30 health a"},
		{"no backup is up either", 10, func(w *world) { failover(w); w.down("b", "c", "d") }, "answer 10 on_all_down c d", "answer 30 health a"},
		{"nobody was moved, so nothing but the pool counts", 10, func(w *world) {
			failover(w)
			w.down("a", "b")
			w.of("a").Moved = nil
		}, "answer 10 on_all_down a b", "answer 10 on_all_down a b"},
		{"the member that it was moved from lacks the family", 10, func(w *world) {
			failover(w)
			w.of("a").Addr[state.V4], w.of("a").Up[state.V4] = netip.Addr{}, false
			w.down("b")
		}, "answer 30 constraints c d", "nodata 10 on_all_down"},
		{"the other family is answered out of the backups", 10, func(w *world) {
			failover(w)
			w.down("b")
			for _, n := range []string{"c", "d"} {
				w.of(n).Up[state.V4] = false
			}
		}, "nodata 10 on_all_down", "answer 30 health a"},
	}
	c := build(t, "health", "static=ordered")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for moved, want := range map[bool]string{true: tt.moved, false: tt.others} {
				w := newWorld("a", "b", "c", "d")
				w.Service.Answers = tt.answers
				w.of("a").Moved = stage(0.25)
				tt.set(w)
				_, d, _ := w.decide(c, client(moved))
				if got := strings.ReplaceAll(spell(&d), "static", "constraints"); got != want {
					t.Errorf("moved %v: %s, want %s", moved, got, want)
				}
			}
		})
	}
}

func TestTraceOfStages(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.of("a").Moved = stage(0.25)
	c := build(t, "health", "static=ordered")
	orders := func(moved bool) string {
		_, _, trace := w.decide(c, client(moved))
		return line(trace.Constraints[1])
	}
	for moved, want := range map[bool]string{
		true:  "narrowed: b c | fell: a(moved away: 25 % of clients, this one too: evacuation of z1 by ann)\n",
		false: "kept all: a(moved away: 25 % of clients, not this one: evacuation of z1 by ann) b c\n",
	} {
		if got := orders(moved); got != want {
			t.Errorf("moved %v: %s", moved, got)
		}
	}
	w.of("a").Forced, w.of("a").ForcedWhy = state.ForcedDown, "by bob"
	if got := orders(true); got != "narrowed: b c | fell: a(down: by bob)\n" {
		t.Errorf("forced down as well: %s", got)
	}
}
