package control

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gslbd/state"
)

// randomRecords returns records of all kinds around now, among them orders and evacuations that expire, tombstones of what
// is and is not there, failbacks that name latches, restorations, and ids used twice with different content.
func randomRecords(rnd *rand.Rand, now time.Time) []Record {
	at := func() time.Time { return now.Add(time.Duration(rnd.IntN(7200)-3600) * time.Second).UTC() }
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	var recs []Record
	var ids, latches, evacuations []string
	some := func(all ...string) []string {
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all[:1+rnd.IntN(len(all))]
	}
	// again is an id of the same kind that was used before, or a new one.
	again := func(of []string) string {
		if len(of) > 0 && rnd.IntN(3) == 0 {
			return pick(of...)
		}
		u := uuid.Must(uuid.NewV7FromReader(randomBytes{rnd})).String()
		ids = append(ids, u)
		return u
	}
	var orders, restorations []string
	id := func() string {
		if len(ids) > 0 && rnd.IntN(10) == 0 {
			return pick(ids...)
		}
		u := uuid.Must(uuid.NewV7FromReader(randomBytes{rnd})).String()
		ids = append(ids, u)
		return u
	}
	for range 60 {
		switch rnd.IntN(10) {
		case 0, 1, 2:
			one := id()
			if rnd.IntN(3) == 0 {
				one = again(orders)
			}
			orders = append(orders, one)
			o := &Order{ID: one, Created: at(), Author: pick("kim", "lee"), Reason: pick("a", "b"), Action: pick(Up, Drain, Down)}
			o.Target = []Target{
				{Service: pick("*", "www.example.com", "shop.*", "api.example.com")},
				{Member: pick("seoul", "*/busan", "www.example.com/v*")},
				{Site: pick("seoul", "[bv]*")},
				{Zone: pick("ap-northeast-2a", "apne2-*", "use1-az1")},
			}[rnd.IntN(4)]
			if rnd.IntN(3) == 0 {
				o.Expires = o.Created.Add(time.Duration(1+rnd.IntN(5000)) * time.Second)
			}
			recs = append(recs, Record{Order: o})
		case 3:
			target := id()
			if len(ids) > 1 {
				target = pick(ids...)
			}
			recs = append(recs, Record{Tombstone: &Tombstone{ID: target, Created: at(), Author: pick("kim", "lee")}})
		case 4:
			l := &Latch{ID: id(), Created: at(), Service: pick("www.example.com", "api.example.com"), Node: pick("gslb1", "gslb2"), Why: "failed over"}
			latches = append(latches, l.ID)
			recs = append(recs, Record{Latch: l})
		case 5:
			f := &Failback{ID: id(), Created: at(), Author: "kim", Service: pick("www.example.com", "api.example.com")}
			for range rnd.IntN(3) {
				if len(latches) > 0 {
					f.Latches = append(f.Latches, pick(latches...))
				}
			}
			recs = append(recs, Record{Failback: f})
		case 6, 7:
			e := &Evacuation{
				ID: again(evacuations), Created: at(), Author: pick("kim", "lee"), Reason: pick("a", "b"),
				Zone: pick("ap-northeast-2a", "apne2-az1", "apne2-az2", "use1-az1"), Types: some(types[:]...),
			}
			if rnd.IntN(2) == 0 {
				e.Expires = e.Created.Add(time.Duration(1+rnd.IntN(5000)) * time.Second)
			}
			if rnd.IntN(2) == 0 && slices.Contains(e.Types, TypeMember) {
				e.Stages, e.PauseMS = []float64{.25, 1}, 60_000*int64(1+rnd.IntN(2))
			}
			evacuations = append(evacuations, e.ID)
			recs = append(recs, Record{Evacuation: e})
		case 8:
			if len(evacuations) > 0 {
				r := &Restoration{ID: again(restorations), Created: at(), Author: pick("kim", "lee"), Types: some(types[:]...), Evacuations: some(slices.Clone(evacuations)...)}
				restorations = append(restorations, r.ID)
				recs = append(recs, Record{Restoration: r})
			}
		case 9:
			if len(evacuations) == 0 {
				continue
			}
			e, typ := pick(evacuations...), pick(types[:]...)
			line := &Taken{Evacuation: e, Type: typ, Zone: pick("apne2-az1", "use1-az1"), Resource: pick("seoul/web", "www.example.com/seoul"), Removed: []string{pick("s1", "s2")}, Created: at(), Author: "kim"}
			line.ID = e + "/" + typ + "/" + line.Resource
			recs = append(recs, Record{Taken: line})
			if rnd.IntN(2) == 0 {
				recs = append(recs, Record{Tombstone: &Tombstone{ID: pick(line.ID, e+"/"+typ), Created: at(), Author: pick("kim", "lee")}})
			}
		}
	}
	return recs
}

type randomBytes struct{ *rand.Rand }

func (r randomBytes) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return len(b), nil
}

// outcome writes what the set orders for every member and service at now.
func outcome(s *set, snap *state.Snapshot, now time.Time) string {
	v := &view{set: s, now: now, cfg: &fleetConfig, names: newNames(fleetConfig, snap), snap: snap}
	orders := v.orders()
	var b strings.Builder
	for _, svc := range snap.Services {
		fmt.Fprintf(&b, "%s %+v\n", svc.Name, orders.Latch(svc.Name))
		for _, m := range svc.Members {
			f := orders.Force(svc.Name, m.Name, m.Site.Name, m.Site.Zone)
			fmt.Fprintf(&b, "%s/%s %s %s %s %v\n", svc.Name, m.Name, f.Forced, f.Why, f.Since.UTC(), f.Stages)
		}
	}
	for _, site := range snap.Sites {
		fmt.Fprintf(&b, "%s %+v\n", site.Name, orders.Site(site.Name, site.Zone))
	}
	for _, e := range v.picture().all {
		for _, p := range e.parts {
			if p.open() {
				fmt.Fprintf(&b, "%s %s %s: %t %t %d lines by %d\n", e.ID, e.Zone, p.typ, p.stays(), p.free, len(p.lines), len(p.by))
			}
		}
	}
	return b.String()
}

// TestOrderOfArrivalDoesNotMatter delivers the same records to several sets: in any order, several times, and in
// two halves that exchange all they know afterwards.
func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	snap := fleetStore(t).Snapshot()
	for round := range 60 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		now := time.Now()
		recs := randomRecords(rnd, now)
		var sets []*set
		for range 3 {
			s := newSet()
			all := slices.Concat(recs, recs[:rnd.IntN(len(recs))])
			rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for _, r := range all {
				s.add(r)
			}
			sets = append(sets, s)
		}
		a, b := newSet(), newSet()
		for _, r := range recs {
			switch rnd.IntN(3) {
			case 0:
				a.add(r)
			case 1:
				b.add(r)
			default:
				a.add(r)
				b.add(r)
			}
		}
		for r := range a.clone().all() {
			b.add(r)
		}
		for r := range b.all() {
			a.add(r)
		}
		sets = append(sets, a, b)
		for r := range a.all() {
			if again, err := decodeRecord(r.encode()); err != nil || !same(again, r) {
				t.Fatalf("round %d, seed %d: it cannot be read again: %v\n%s", round, seed, err, r.encode())
			}
			if other, ok := b.record(r.kind()); !ok || !same(other, r) {
				t.Fatalf("round %d, seed %d: the sets differ:\n%s\nand\n%s", round, seed, r.encode(), other.encode())
			}
		}
		for range 6 {
			at := now.Add(time.Duration(rnd.IntN(9000)-4000) * time.Second)
			want := outcome(sets[0], snap, at)
			for i, s := range sets[1:] {
				if got := outcome(s, snap, at); got != want {
					t.Fatalf("round %d, seed %d: set %d differs at %s:\n%s\nand\n%s", round, seed, i+1, at, want, got)
				}
			}
		}
	}
}

// TestPurge drops, again and again, what ended long ago: never anything that would change the outcome, also where the
// purged set hears of what it dropped in any part again.
func TestPurge(t *testing.T) {
	snap := fleetStore(t).Snapshot()
	dropped := 0
	for range 40 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 2))
		now := time.Now()
		full := newSet()
		for _, r := range randomRecords(rnd, now) {
			full.add(r)
		}
		purged := full.clone()
		for at := now; at.Before(now.Add(40 * 24 * time.Hour)); at = at.Add(24 * time.Hour) {
			old := purged.purgeable(at, nil)
			if at.Before(now.Add(28*24*time.Hour)) && len(old) > 0 {
				t.Fatalf("seed %d: %s is dropped after %s", seed, old[0].key(), at.Sub(now))
			}
			for _, r := range old {
				purged.remove(r.kind())
				dropped++
			}
			if a, b := outcome(full, snap, at), outcome(purged, snap, at); a != b {
				t.Fatalf("seed %d: the outcome changed:\n%s\nand\n%s", seed, a, b)
			}
		}
		for r := range purged.all() {
			if _, id := r.kind(); full.latches[id] != nil || full.failbacks[id] != nil || full.evacuations[id] != nil || full.restorations[id] != nil { // an id that was used twice
				continue
			}
			switch end := now.Add(32 * 24 * time.Hour); {
			case r.Tombstone != nil && full.orders[r.Tombstone.ID] != nil:
				t.Fatalf("seed %d: %s is kept for ever", seed, r.key())
			case r.Order != nil && !slices.ContainsFunc(r.Order.contents(), func(o *Order) bool { return full.inForce(o, end) }):
				t.Fatalf("seed %d: %s is kept for ever", seed, r.key())
			}
		}
	}
	if dropped == 0 {
		t.Error("nothing was ever dropped")
	}
}

func TestPurgeKeepsWhatIsOneTogether(t *testing.T) {
	now := time.Now()
	old, lately := now.Add(-31*24*time.Hour), now.Add(-29*24*time.Hour)
	e := newID()
	restoration := newID()
	base := []Record{
		{Evacuation: &Evacuation{ID: e, Created: old, Author: "kim", Reason: "x", Zone: "z", Types: []string{TypeMember, TypeAgent}}},
		{Taken: &Taken{ID: e + "/member/www/seoul", Evacuation: e, Type: TypeMember, Created: old}},
		{Tombstone: &Tombstone{ID: e + "/member/www/seoul", Created: old, Author: "kim"}},
		{Tombstone: &Tombstone{ID: e + "/member", Created: old, Author: "kim"}},
		{Restoration: &Restoration{ID: restoration, Created: old, Author: "kim", Types: []string{TypeMember}, Evacuations: []string{e}}},
	}
	for _, tt := range []struct {
		name string
		more []Record
		want int
	}{
		{"a part is not restored", nil, 0},
		{"a part was restored lately", []Record{{Tombstone: &Tombstone{ID: e + "/agent", Created: lately, Author: "kim"}}}, 0},
		{"all was restored long ago", []Record{{Tombstone: &Tombstone{ID: e + "/agent", Created: old, Author: "kim"}}}, 5},
		{"a server is in the ledger", []Record{
			{Tombstone: &Tombstone{ID: e + "/agent", Created: old, Author: "kim"}},
			{Taken: &Taken{ID: e + "/agent/seoul/web/s1", Evacuation: e, Type: TypeAgent, Created: old}},
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSet()
			for _, r := range slices.Concat(base, tt.more) {
				s.add(r)
			}
			got := s.purgeable(now, nil)
			if len(got) != tt.want {
				t.Fatalf("%d records are dropped, want %d", len(got), tt.want)
			}
			for _, r := range got {
				s.remove(r.kind())
			}
			if tt.want > 0 {
				if got = s.purgeable(now, nil); len(got) != 1 || got[0].Restoration == nil {
					t.Errorf("the restoration is kept: %v", got)
				}
			}
		})
	}
}
