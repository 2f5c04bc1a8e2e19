package state

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// Networks that lie side by side, as those of a provider do, spread over a table whatever its seed.
func TestMixSpreadsNeighbours(t *testing.T) {
	const networks, slots = 2500, 8192
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		seed := rng.Uint64() | 1
		var taken [slots]uint8
		most := uint8(0)
		for i := range networks {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], 11<<24+uint32(i)<<8)
			hi, lo := halves(netip.AddrFrom4(b))
			at := mix(hi, lo, seed) % slots
			taken[at]++
			most = max(most, taken[at])
		}
		if most > 10 { // of 2500 that fall by chance, 7 in one of the slots are rare
			t.Fatalf("seed %#x: %d networks in one slot", seed, most)
		}
	}
}
