package policy_test

import (
	"math"
	"net/netip"
	"testing"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// firsts counts who is answered first over n turns, of which only every step-th is this client's.
func firsts(w *world, c *policy.Chain, n, step int) map[string]int {
	q, count := w.query(), map[string]int{}
	for i := range n {
		var d policy.Decision
		q.Turn = uint64(i * step)
		c.Decide(q, &d)
		count[d.Members[0].Name]++
	}
	return count
}

// Twelve equal members, 24,000 queries: each is first as often as the others (report B150). A member that comes first
// in each round of turns is the plainest rotation.
func TestRoundRobinIsEven(t *testing.T) {
	w := newWorld("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
	for name, n := range firsts(w, build(t, "static"), 24000, 1) {
		if n != 2000 {
			t.Errorf("%s was first %d times, want 2000", name, n)
		}
	}
	w = newWorld("a", "b", "c")
	c := build(t, "static")
	for i, want := range []string{"a", "b", "c", "a", "b", "c"} {
		if got, _, _ := w.decide(c, turn(uint64(i))); got != want {
			t.Errorf("turn %d: %s, want %s", i, got, want)
		}
	}
}

// Turns are shared: a group of clients that comes at every second or fourth turn still sees all members alike, and so
// does each of two groups that see different members.
func TestRoundRobinIsEvenForPartOfTheTurns(t *testing.T) {
	for _, step := range []int{2, 3, 4, 6, 8, 12, 16, 64} {
		for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}, {"a", "b", "c", "d"}, {"a", "b", "c", "d", "e", "f"}} {
			w := newWorld(names...)
			want := 12000 / len(names)
			count := firsts(w, build(t, "static"), 12000, step)
			for _, m := range w.Members {
				if n := count[m.Name]; math.Abs(float64(n-want)) > 0.03*float64(want) {
					t.Errorf("every %dth turn of %d members: %s was first %d times, want %d", step, len(names), m.Name, n, want)
				}
			}
		}
	}
}

// Each answer of several is even as well, and all pairs occur.
func TestRotationOfFurtherAnswersIsEven(t *testing.T) {
	for _, method := range []string{"static", "static=weighted"} {
		w := newWorld("a", "b", "c", "d")
		w.Service.Answers = 3
		c, q := build(t, method), w.query()
		const n = 24000
		place, pairs := map[string]int{}, map[string]int{}
		for i := range n {
			var d policy.Decision
			q.Turn = uint64(i)
			c.Decide(q, &d)
			for k, m := range d.Members[:d.N] {
				place[m.Name+string(rune('1'+k))]++
			}
			pairs[d.Members[0].Name+d.Members[1].Name]++
		}
		for k, got := range place {
			if math.Abs(float64(got)-n/4) > 0.02*n/4 {
				t.Errorf("%s: %s %d times, want %d", method, k, got, n/4)
			}
		}
		if len(place) != 12 || len(pairs) != 12 {
			t.Errorf("%s: %d places and %d pairs, want 12 and 12", method, len(place), len(pairs))
		}
		for k, got := range pairs {
			if math.Abs(float64(got)-n/12) > 0.05*n/12 {
				t.Errorf("%s: %s %d times, want %d", method, k, got, n/12)
			}
		}
	}
}

// Weights 1:99 give 1 % +-0.3 in 20,000 queries (report B153), and are smooth: the canary comes about every hundredth.
func TestWeightedCanary(t *testing.T) {
	w := newWorld("canary", "rest")
	w.of("canary").Weight, w.of("rest").Weight = 1, 99
	c := build(t, "static=weighted")
	if n := firsts(w, c, 20000, 1)["canary"]; n < 195 || n > 205 {
		t.Errorf("the canary was answered %d times of 20,000, want 200", n)
	}
	last, widest := 0, 0
	q := w.query()
	for i := range 20000 {
		var d policy.Decision
		q.Turn = uint64(i)
		if c.Decide(q, &d); d.Members[0].Name == "canary" {
			widest, last = max(widest, i-last), i
		}
	}
	if widest > 250 {
		t.Errorf("%d queries without the canary", widest)
	}
}

// A pool of 90:10 that geo chose keeps its shares (report B148).
func TestWeightsHoldBehindGeo(t *testing.T) {
	w := newWorld("far", "near90", "near10")
	w.of("near90").Weight, w.of("near10").Weight = 90, 10
	w.place("far", "NA", "US", 38.95, -77.45)
	w.place("near90", "AS", "KR", 37.57, 126.98)
	w.place("near10", "AS", "KR", 37.5, 127)
	w.overrides(t, geo.Override{Prefix: prefixOf("20.0.0.0/8"), Location: geo.Location{
		Continent: "AS", Country: "KR", Latitude: 37, Longitude: 127, HasCoordinates: true,
	}})
	c, q, count := build(t, "health", "geo", "static=weighted"), w.query(), map[string]int{}
	q.ECS = prefixOf("20.1.2.0/24")
	for i := range 10000 {
		var d policy.Decision
		q.Turn = uint64(i)
		c.Decide(q, &d)
		count[d.Members[0].Name]++
	}
	if count["far"] != 0 || count["near10"] < 980 || count["near10"] > 1020 {
		t.Errorf("got %v, want 9000 and 1000", count)
	}
}

func TestWeightedOrder(t *testing.T) {
	// What follows the first is drawn by weight as well, so that a later metric that takes the first away leaves shares
	// as they should be.
	w := newWorld("a", "b", "c")
	w.of("a").Weight, w.of("b").Weight, w.of("c").Weight = 70, 20, 10
	w.of("a").Preference = 1
	n := firsts(w, build(t, "static=weighted", "preference"), 30000, 1)
	if n["a"] != 0 || math.Abs(float64(n["b"])-20000) > 400 {
		t.Errorf("got %v, want two thirds for b", n)
	}
	// All of weight 0: alike.
	for _, m := range w.Members {
		m.Weight = 0
	}
	for name, n := range firsts(w, build(t, "static=weighted"), 30000, 1) {
		if math.Abs(float64(n)-10000) > 100 {
			t.Errorf("%s has %d of 30,000", name, n)
		}
	}
}

func TestHash(t *testing.T) {
	c := build(t, "health", "static=hash")
	w := newWorld("a", "b", "c", "d")
	w.of("d").Weight = 300
	choice, count := map[netip.Addr]string{}, map[string]float64{}
	q := w.query()
	var d policy.Decision
	for i := range 12000 {
		q.LDNS = netip.AddrFrom4([4]byte{50, byte(i >> 8), byte(i), 77})
		q.Turn++
		c.Decide(q, &d)
		choice[q.LDNS] = d.Members[0].Name
		count[d.Members[0].Name]++
	}
	for _, m := range w.Members {
		if want := 12000 * float64(m.Weight) / 600; math.Abs(count[m.Name]-want) > 0.06*want {
			t.Errorf("%s has %.0f clients, want %.0f", m.Name, count[m.Name], want)
		}
	}
	t.Run("the same network, the other type, any order of members: the same", func(t *testing.T) {
		o := newWorld("d", "c", "b", "a")
		o.of("d").Weight = 300
		q := o.query()
		q.Family = state.V6
		for addr, want := range choice {
			q.LDNS = netip.AddrFrom4([4]byte{50, addr.As4()[1], addr.As4()[2], 200})
			if c.Decide(q, &d); d.Members[0].Name != want {
				t.Fatalf("%s: %s, want %s", addr, d.Members[0].Name, want)
			}
		}
	})
	t.Run("only the clients of a member that goes are moved", func(t *testing.T) {
		w.down("b")
		for addr, was := range choice {
			q.LDNS = addr
			if c.Decide(q, &d); was != "b" && d.Members[0].Name != was {
				t.Fatalf("%s was moved from %s to %s", addr, was, d.Members[0].Name)
			}
		}
	})
	t.Run("scope", func(t *testing.T) {
		if got := w.scope(c, "20.0.0.0/20"); got != 24 {
			t.Errorf("scope %d, want 24", got)
		}
		if got := w.scope(c, "2400::/64"); got != 56 {
			t.Errorf("scope %d, want 56", got)
		}
		if got := w.scope(c, "10.0.0.0/24"); got != 8 {
			t.Errorf("scope %d of a private prefix, decided by the LDNS; want 8", got)
		}
		if got := w.scope(build(t, "static=weighted"), "20.0.0.0/20"); got != 0 {
			t.Errorf("scope %d of a rotation, want 0", got)
		}
	})
}

func TestOrdered(t *testing.T) {
	w := newWorld("c", "a", "b")
	w.Service.Answers = 3
	w.of("b").Weight = 900
	got, d, trace := w.decide(build(t, "static=ordered"), turn(7))
	if got != "c a b" || d.Reason.String() != "static" || trace.Steps[0].Note != "as configured" {
		t.Errorf("got %s by %s (%s)", got, d.Reason, trace.Steps[0].Note)
	}
}

func TestStaticTrace(t *testing.T) {
	w := newWorld("a", "b")
	for method, want := range map[string]string{
		"static":          "round-robin, turn 3 of ipv4: b a | ",
		"static=weighted": "weighted, turn 3 of ipv4: b=weight 100 a=weight 100 | ",
		"static=hash":     "hash of ldns 8.8.8.8: b=weight 100 a=weight 100 | ",
	} {
		_, _, trace := w.decide(build(t, method), turn(3))
		if got := trace.Steps[0].Note + ": " + kept(trace, "static"); got != want || trace.Steps[0].Verdict != policy.VerdictDecided {
			t.Errorf("got %s: %s, want %s", trace.Steps[0].Verdict, got, want)
		}
	}
}
