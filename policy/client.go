package policy

import (
	"encoding/binary"
	"net/netip"

	"gslbd/state"
)

// How much of a client's address the hashes use, by family: networks of this size are moved as one. It is no parameter,
// since all servers of a fleet must agree.
const (
	hashBits4 = 24
	hashBits6 = 56
)

// golden is 2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly however many there are.
const golden = 0x9e3779b97f4a7c15

// A client is the network that is decided for.
type client struct {
	known  bool         // worked out for this decision
	ecs    bool         // it is the ECS prefix; otherwise the LDNS
	prefix netip.Prefix // invalid: unknown
}

// client returns the network that q is decided for (docs/policies.md, "rtt" and "geo"): the ECS prefix if it
// is usable, else the LDNS. An ECS prefix out of a special-purpose network says nothing of where the client is, so the
// LDNS stands in for it, unless an override matches the prefix.
//
// Which of the two was taken is a property of the ECS prefix, so this widens the scope by what decided it.
func (q *Query) client() *client {
	c := &q.scratch.client
	if c.known {
		return c
	}
	c.known = true
	if q.hasECS() {
		length, special := state.Special(q.ECS.Addr())
		if special {
			override := q.Snapshot.Geo.LookupOverride(q.ECS.Addr())
			if override.Override {
				length, special = 0, false
			}
			length = max(length, override.Bits)
		}
		q.Widen(length)
		if !special {
			c.ecs, c.prefix = true, q.ECS
			return c
		}
	}
	c.prefix = netip.PrefixFrom(q.LDNS, q.LDNS.BitLen())
	return c
}

// String names the client as traces do.
func (c *client) String() string {
	switch {
	case !c.prefix.IsValid():
		return "unknown client"
	case c.ecs:
		return "ecs " + c.prefix.String()
	}
	return "ldns " + c.prefix.Addr().String()
}

// clientHash returns a hash of the client's network, which does not depend on the question's type, and widens the scope
// by it.
func (q *Query) clientHash() uint64 {
	c := q.client()
	if !c.prefix.IsValid() {
		return 0
	}
	length := hashBits6
	if c.prefix.Addr().Is4() {
		length = hashBits4
	}
	if c.ecs {
		q.Widen(length)
	}
	network, _ := c.prefix.Addr().Prefix(length)
	a := network.Addr().As16()
	return mix(binary.BigEndian.Uint64(a[:8]) ^ mix(binary.BigEndian.Uint64(a[8:])))
}

// What a hash of the client is used for. Each use is independent of the others: the clients that a site sheds are not
// those that the hash method would have sent there.
const (
	saltStatic uint64 = iota + 1
	saltShed
	saltSlowStart
	saltStage
	saltExplore
)

// drawn returns a number in [0, 1) that is fixed for the client's network, what it is drawn for (the hash of a member's
// name or of an order's id) and the use. clientHash is from Query.clientHash.
func drawn(clientHash, what, salt uint64) float64 {
	return fraction(mix(clientHash ^ mix(what+salt*golden)))
}

// fraction maps h to [0, 1).
func fraction(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// mix spreads every bit of x over all bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
