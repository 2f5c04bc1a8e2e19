package state

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"gslbd/geo"
)

// DistanceKm is geo.DistanceKm, for packages that may not import geo.
func DistanceKm(a, b *Location) float64 { return geo.DistanceKm(a, b) }

// Special is geo.Special, for packages that may not import geo, and says more: when addr lies in no special-purpose
// network, length is that of the largest network around it in which none lies. So it always says how much of the
// address the result depends on (RFC 7871, section 7.2.1).
//
// Hot path: a few comparisons for each special-purpose network.
func Special(addr netip.Addr) (length int, ok bool) {
	if length, ok = geo.Special(addr); ok {
		return length, true
	}
	// A network that addr is not in begins to differ from addr at some bit; one that is cut after this bit is clear of it.
	switch {
	case addr.Is4():
		a := addr.As4()
		for _, first := range [...]uint32{
			0, 0x0a000000, 0x64400000, 0x7f000000, 0xa9fe0000, 0xac100000, 0xc0000000, 0xc0000200, 0xc0586300, 0xc0a80000,
			0xc6120000, 0xc6336400, 0xcb007100, 0xe0000000,
		} {
			length = max(length, bits.LeadingZeros32(first^binary.BigEndian.Uint32(a[:]))+1)
		}
	case addr.Is6():
		a := addr.As16()
		high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
		for _, first := range [...]uint64{
			0x0064_ff9b_0001 << 16, 0x0100 << 48, 0x2001_0002 << 32, 0x2001_0010 << 32, 0x2001_0020 << 32, 0x2001_0030 << 32,
			0x2001_0db8 << 32, 0x3fff << 48, 0x5f00 << 48, 0xfc00 << 48, 0xfe80 << 48, 0xfec0 << 48, 0xff00 << 48,
		} {
			length = max(length, bits.LeadingZeros64(first^high)+1)
		}
		if high != 0 {
			return max(length, bits.LeadingZeros64(high)+1), false
		}
		for _, first := range [...]uint64{0, 0xffff << 32} { // unspecified and loopback, IPv4-mapped
			length = max(length, 64+bits.LeadingZeros64(first^low)+1)
		}
	}
	return length, false
}
