package geo

import (
	"encoding/binary"
	"net/netip"
)

const (
	// jump is how many bits of an IPv4 address a table answers at once, in 256 KiB. Most networks are longer: a lookup then
	// has eight steps or so left of 24, and of these few find their node in the processor's caches.
	jump = 16

	// mappedDepth is where IPv4 begins in a tree of IPv6.
	mappedDepth = 96

	// separator is what lies between the tree and the data, and is left out of offsets.
	separator = 16
)

// A tree is the search tree of a verified file (MaxMind DB format 2.0, "Binary Search Tree Section"): nodes of two
// pointers. A pointer below count names a node; count itself, nothing; above it, a record.
type tree struct {
	nodes []byte
	size  uint // octets of a node: 6, 7 or 8
	count uint32
	ipv6  bool

	noIPv4 bool     // it ends before IPv4 begins
	ipv4   uint32   // the pointer at which IPv4 begins
	jumps  []uint32 // by the first bits of an IPv4 address, the pointer that they lead to, unless a shorter network ends there
}

// newTree returns the tree of a file that Verify has found sound.
func newTree(buffer []byte, nodes, recordSize uint, ipv6 bool) tree {
	t := tree{nodes: buffer, size: recordSize / 4, count: uint32(nodes), ipv6: ipv6}
	if ipv6 {
		depth := 0
		for ; depth < mappedDepth && t.ipv4 < t.count; depth++ {
			t.ipv4 = t.child(t.ipv4, 0)
		}
		t.noIPv4 = depth < mappedDepth
	}
	if !t.noIPv4 {
		t.jumps = make([]uint32, 1<<jump)
		for first := range t.jumps {
			t.jumps[first], _ = t.descend(t.ipv4, uint64(first)<<(64-jump), jump)
		}
	}
	return t
}

// child returns the left (0) or right (1) pointer of a node.
func (t *tree) child(node uint32, side uint64) uint32 {
	b := t.nodes[uint(node)*t.size:]
	switch t.size {
	case 6:
		_ = b[5]
		if side == 0 {
			return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
		}
		return uint32(b[3])<<16 | uint32(b[4])<<8 | uint32(b[5])
	case 7:
		// The fourth octet holds the highest four bits of either.
		v := uint64(binary.BigEndian.Uint32(b))<<24 | uint64(binary.BigEndian.Uint32(b[3:]))&0xffffff
		if side == 0 {
			return uint32(v>>32) | uint32(v>>4)&0xf000000
		}
		return uint32(v) & 0xfffffff
	}
	return binary.BigEndian.Uint32(b[4*side:])
}

// descend follows the highest bits of key down from a pointer, at most limit of them, to a pointer that names no node. It
// returns that, and how many bits it took.
//
// Hot path: one load of memory a bit.
func (t *tree) descend(at uint32, key uint64, limit int) (uint32, int) {
	depth := 0
	for ; depth < limit && at < t.count; depth++ {
		at = t.child(at, key>>63)
		key <<= 1
	}
	return at, depth
}

// lookup returns the offset of the address's record, and the length of the network of which that is true. addr is valid
// and not IPv4-mapped.
func (t *tree) lookup(addr netip.Addr) (offset uintptr, length int, found bool) {
	var at uint32
	switch {
	case addr.Is4():
		if t.noIPv4 {
			return 0, 0, false
		}
		a := addr.As4()
		key := uint64(binary.BigEndian.Uint32(a[:])) << 32
		if at = t.jumps[key>>(64-jump)]; at < t.count {
			at, length = t.descend(at, key<<jump, 32-jump)
			length += jump
		} else {
			at, length = t.descend(t.ipv4, key, jump) // a network of at most jump bits
		}
	case !t.ipv6:
		return 0, 0, false
	default:
		a := addr.As16()
		if at, length = t.descend(0, binary.BigEndian.Uint64(a[:8]), 64); at < t.count {
			at, length = t.descend(at, binary.BigEndian.Uint64(a[8:]), 64)
			length += 64
		}
	}
	if at <= t.count {
		return 0, length, false
	}
	return uintptr(at - t.count - separator), length, true
}
