package geo

import (
	"encoding/binary"
	"net/netip"
)

// Special reports whether addr lies in a special-purpose network, and the length of that network, in addr's family.
// Such an address is private, local, for documentation or the like, so that no database can place it.
//
// The networks are those of the IANA special-purpose address registries (RFC 6890) that are not globally reachable,
// multicast (RFC 5771, RFC 4291), and site-local addresses (RFC 3879). Those in which a host of the public internet can
// be are not special: 64:ff9b::/96 (RFC 6052), Teredo's 2001::/32 and 6to4's 2002::/16 carry an IPv4 address that
// databases know. The two anycast addresses inside 192.0.0.0/24 are no clients, so the whole of it is special.
// An IPv4-mapped address is special as such (length 96): whoever has one should look at the IPv4 address in it.
//
// Hot path: a few comparisons.
func Special(addr netip.Addr) (bits int, ok bool) {
	switch {
	case addr.Is4():
		a := addr.As4()
		bits = special4(binary.BigEndian.Uint32(a[:]))
	case addr.Is6():
		a := addr.As16()
		bits = special6(binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]))
	}
	return bits, bits > 0
}

// special4 returns the length of the special-purpose network that holds a; 0: none.
func special4(a uint32) int {
	switch a >> 24 {
	case 0, // RFC 791: this network
		10,  // RFC 1918: private use
		127: // RFC 1122: loopback
		return 8
	}
	switch a >> 16 {
	case 169<<8 | 254, // RFC 3927: link local
		192<<8 | 168: // RFC 1918: private use
		return 16
	}
	switch a >> 8 {
	case 192 << 16, // RFC 6890: IETF protocol assignments
		192<<16 | 2,           // RFC 5737: documentation
		192<<16 | 88<<8 | 99,  // RFC 7526: 6to4 relays, deprecated
		198<<16 | 51<<8 | 100, // RFC 5737: documentation
		203<<16 | 0<<8 | 113:  // RFC 5737: documentation
		return 24
	}
	switch {
	case a>>22 == 100<<2|1: // RFC 6598: 100.64.0.0/10, shared by carriers
		return 10
	case a>>20 == 172<<4|1: // RFC 1918: 172.16.0.0/12, private use
		return 12
	case a>>17 == 198<<7|9: // RFC 2544: 198.18.0.0/15, benchmarking
		return 15
	case a>>28 == 14, // RFC 5771: 224.0.0.0/4, multicast
		a>>28 == 15: // RFC 1112: 240.0.0.0/4, reserved, and the broadcast address
		return 4
	}
	return 0
}

// special6 returns the length of the special-purpose network that holds the address of these halves; 0: none.
func special6(high, low uint64) int {
	switch {
	case high == 0 && low <= 1: // RFC 4291: unspecified, loopback
		return 128
	case high == 0 && low>>32 == 0xffff: // RFC 4291: IPv4-mapped
		return 96
	case high == 0x0100<<48, // RFC 6666: 100::/64, discard only
		high == 0x0100<<48|1: // RFC 9780: 100:0:0:1::/64, dummy
		return 64
	case high>>16 == 0x0064_ff9b_0001, // RFC 8215: local-use translation
		high>>16 == 0x2001_0002_0000: // RFC 5180: benchmarking
		return 48
	case high>>32 == 0x2001_0db8: // RFC 3849: documentation
		return 32
	case high>>36 == 0x2001_001, // RFC 4843: ORCHID, deprecated
		high>>36 == 0x2001_002, // RFC 7343: ORCHIDv2, identifiers and not locators
		high>>36 == 0x2001_003: // RFC 9374: drone remote identification, likewise
		return 28
	case high>>44 == 0x3fff_0: // RFC 9637: documentation
		return 20
	case high>>48 == 0x5f00: // RFC 9602: segment routing
		return 16
	case high>>54 == 0xfe80>>6, // RFC 4291: link local
		high>>54 == 0xfec0>>6: // RFC 3879: site local, deprecated
		return 10
	case high>>56 == 0xff: // RFC 4291: multicast
		return 8
	case high>>57 == 0xfc>>1: // RFC 4193: unique local
		return 7
	}
	return 0
}
