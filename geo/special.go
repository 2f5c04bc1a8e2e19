package geo

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Special reports whether addr lies in a special-purpose network: such an address is private, local, for documentation
// or the like, so that no database can place it. It returns the length of that network, in addr's family; when addr lies
// in none, the length of the largest network around it in which none lies. So the length always says how much of the
// address the result depends on (RFC 7871, section 7.2.1). It is 0 for the zero Addr.
//
// The networks are those of the IANA special-purpose address registries (RFC 6890) that are not globally reachable,
// multicast (RFC 5771, RFC 4291), and site-local addresses (RFC 3879). Those in which a host of the public internet can
// be are not special: 64:ff9b::/96 (RFC 6052), Teredo's 2001::/32 and 6to4's 2002::/16 carry an IPv4 address that
// databases know. The two anycast addresses inside 192.0.0.0/24 are no clients, so the whole of it is special.
// An IPv4-mapped address is special as such (length 96): whoever has one should look at the IPv4 address in it.
//
// Hot path: one load of memory for IPv4, for most addresses; else one comparison for each special-purpose network of the
// family.
func Special(addr netip.Addr) (length int, ok bool) {
	switch {
	case addr.Is4():
		a := addr.As4()
		return special4(binary.BigEndian.Uint32(a[:]))
	case addr.Is6():
		a := addr.As16()
		return special6(binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]))
	}
	return 0, false
}

// clear4 has, by the first octet of an IPv4 address, the length that Special returns where nothing that begins with this
// octet is special; 0: something is.
const clear4 = "" +
	"0877666677086666" + // 0
	"4444444444444444" + // 16
	"3333333333333333" + // 32
	"3333333333333333" + // 48
	"3333333333333333" + // 64
	"3333333333333333" + // 80
	"6666087755555555" + // 96
	"5555555566667780" + // 112
	"3333333333333333" + // 128
	"3333333333333333" + // 144
	"5555555580770877" + // 160
	"4444444444444444" + // 176
	"0877770877806666" + // 192
	"4444444444444444" + // 208
	"0000000000000000" + // 224
	"0000000000000000" // 240

// special4 is Special for an IPv4 address.
func special4(a uint32) (length int, ok bool) {
	if length := clear4[a>>24] - '0'; length > 0 {
		return int(length), false
	}
	return compare4(a)
}

// compare4 compares an IPv4 address with each network. One that the address is not in differs from it first at some bit;
// a network that is cut after this bit is clear of it.
func compare4(a uint32) (length int, ok bool) {
	for _, n := range [...]struct {
		first uint32
		bits  int
	}{
		{0, 8},                          // RFC 791: this network
		{10 << 24, 8},                   // RFC 1918: private use
		{100<<24 | 64<<16, 10},          // RFC 6598: shared by carriers
		{127 << 24, 8},                  // RFC 1122: loopback
		{169<<24 | 254<<16, 16},         // RFC 3927: link local
		{172<<24 | 16<<16, 12},          // RFC 1918: private use
		{192 << 24, 24},                 // RFC 6890: IETF protocol assignments
		{192<<24 | 2<<8, 24},            // RFC 5737: documentation
		{192<<24 | 88<<16 | 99<<8, 24},  // RFC 7526: 6to4 relays, deprecated
		{192<<24 | 168<<16, 16},         // RFC 1918: private use
		{198<<24 | 18<<16, 15},          // RFC 2544: benchmarking
		{198<<24 | 51<<16 | 100<<8, 24}, // RFC 5737: documentation
		{203<<24 | 113<<8, 24},          // RFC 5737: documentation
		{224 << 24, 4},                  // RFC 5771: multicast
		{240 << 24, 4},                  // RFC 1112: reserved, and the broadcast address
	} {
		same := bits.LeadingZeros32(n.first ^ a)
		if same >= n.bits {
			return n.bits, true
		}
		length = max(length, same+1)
	}
	return length, false
}

// special6 is Special for the IPv6 address of these halves.
func special6(high, low uint64) (length int, ok bool) {
	for _, n := range [...]struct {
		high, low uint64
		bits      int
	}{
		{0, 0, 128},                     // RFC 4291: unspecified
		{0, 1, 128},                     // RFC 4291: loopback
		{0, 0xffff << 32, 96},           // RFC 4291: IPv4-mapped
		{0x0064_ff9b_0001 << 16, 0, 48}, // RFC 8215: local-use translation
		{0x0100 << 48, 0, 64},           // RFC 6666: discard only
		{0x0100<<48 | 1, 0, 64},         // RFC 9780: dummy
		{0x2001_0002 << 32, 0, 48},      // RFC 5180: benchmarking
		{0x2001_0010 << 32, 0, 28},      // RFC 4843: ORCHID, deprecated
		{0x2001_0020 << 32, 0, 28},      // RFC 7343: ORCHIDv2, identifiers and not locators
		{0x2001_0030 << 32, 0, 28},      // RFC 9374: drone remote identification, likewise
		{0x2001_0db8 << 32, 0, 32},      // RFC 3849: documentation
		{0x3fff << 48, 0, 20},           // RFC 9637: documentation
		{0x5f00 << 48, 0, 16},           // RFC 9602: segment routing
		{0xfc00 << 48, 0, 7},            // RFC 4193: unique local
		{0xfe80 << 48, 0, 10},           // RFC 4291: link local
		{0xfec0 << 48, 0, 10},           // RFC 3879: site local, deprecated
		{0xff00 << 48, 0, 8},            // RFC 4291: multicast
	} {
		same := bits.LeadingZeros64(n.high ^ high)
		if same == 64 {
			same += bits.LeadingZeros64(n.low ^ low)
		}
		if same >= n.bits {
			return n.bits, true
		}
		length = max(length, same+1)
	}
	return length, false
}
