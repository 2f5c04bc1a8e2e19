package dns

import (
	"encoding/binary"
	"net/netip"
)

// The address families of the option (IANA address family numbers).
const (
	ecsNone = 0 // with length 0: what some privacy proxies send
	ecsIPv4 = 1
	ecsIPv6 = 2
)

// An ecsOption is the client subnet of a query (RFC 7871 section 6), as it was sent.
type ecsOption struct {
	present bool
	family  uint16
	source  uint8
	octets  uint8 // of addr in use: as many as source needs
	addr    [16]byte

	// prefix is the client's network; the zero Prefix for length 0, which asks us not to look at the client.
	prefix netip.Prefix
}

// parse reads the option's data and reports whether it is well formed. RFC 7871 section 6 demands exactly as many
// octets of address as the prefix needs, no bit set beyond the prefix, and a scope of 0 in a query. What does not keep
// to that comes from a broken sender whose cache could not be trusted with the answer.
func (e *ecsOption) parse(data []byte) bool {
	*e = ecsOption{}
	if len(data) < 4 {
		return false
	}
	family, source, scope := binary.BigEndian.Uint16(data), data[2], data[3]
	addr := data[4:]
	if scope != 0 || len(addr) != (int(source)+7)/8 {
		return false
	}
	var ip netip.Addr
	switch family {
	case ecsNone:
		if source != 0 {
			return false
		}
	case ecsIPv4:
		if source > 32 {
			return false
		}
		copy(e.addr[:], addr)
		ip = netip.AddrFrom4([4]byte(e.addr[:4]))
	case ecsIPv6:
		if source > 128 {
			return false
		}
		copy(e.addr[:], addr)
		ip = netip.AddrFrom16(e.addr)
	default:
		return false
	}
	if rest := source % 8; rest != 0 && addr[len(addr)-1]<<rest != 0 {
		return false
	}
	e.present, e.family, e.source, e.octets = true, family, source, uint8(len(addr))
	if source > 0 {
		e.prefix = netip.PrefixFrom(ip, int(source))
	}
	return true
}

// size returns the octets of the option in a reply.
func (e *ecsOption) size() int { return 8 + int(e.octets) }

// put writes the option for a reply into b: family, source and address exactly as sent, and the scope, which is at
// most the length of an address of the family. It returns the octets written.
func (e *ecsOption) put(b []byte, scope uint8) int {
	switch {
	case e.source == 0:
		scope = 0
	case e.family == ecsIPv4:
		scope = min(scope, 32)
	default:
		scope = min(scope, 128)
	}
	binary.BigEndian.PutUint16(b, optECS)
	binary.BigEndian.PutUint16(b[2:], 4+uint16(e.octets))
	binary.BigEndian.PutUint16(b[4:], e.family)
	b[6], b[7] = e.source, scope
	copy(b[8:], e.addr[:e.octets])
	return e.size()
}
