package geo_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"gslbd/geo"
)

// An Ahead takes any addresses, allocates nothing, and leaves what Lookup finds as it is.
func TestAhead(t *testing.T) {
	db, err := geo.Open(geo.Options{Databases: []string{"../testdata/geo/cities.mmdb"}})
	if err != nil {
		t.Fatal(err)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		addrs := make([]netip.Addr, chance.IntN(40))
		for i := range addrs {
			var a [16]byte
			for j := range a {
				a[j] = byte(chance.Uint32())
			}
			switch chance.IntN(4) {
			case 0:
				addrs[i] = netip.AddrFrom16(a)
			case 1:
				addrs[i] = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, a[4], a[5]})
			case 2:
				addrs[i] = netip.AddrFrom4([4]byte(a[:4]))
			}
		}
		var want []geo.Result
		for _, a := range addrs {
			want = append(want, db.Lookup(a))
		}
		var ahead geo.Ahead
		if n := testing.AllocsPerRun(1, func() {
			ahead.Begin(db)
			for _, a := range addrs {
				ahead.Add(a)
			}
			ahead.Blocks()
			ahead.Descend()
			ahead.Records()
			ahead.End()
		}); n != 0 {
			t.Fatalf("%v allocations", n)
		}
		for i, a := range addrs {
			if got := db.Lookup(a); got != want[i] {
				t.Fatalf("%v: %+v, before %+v", a, got, want[i])
			}
		}
	}
}
