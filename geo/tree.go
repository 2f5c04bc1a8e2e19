package geo

import (
	"encoding/binary"
	"net/netip"
)

const (
	// blocksDepth is how many bits of an IPv4 address the blocks answer. Few networks are longer.
	blocksDepth = 24

	// maxBlocks is how many blocks there can be: the first, one for each first octet, and one for each two.
	maxBlocks = 1 + 1<<8 + 1<<16

	// takenBits is how many bits of a step tell how many bits of the octet were taken.
	takenBits = 3

	// mappedDepth is where IPv4 begins in a tree of IPv6.
	mappedDepth = 96

	// separator is what lies between the tree and the data, and is left out of offsets.
	separator = 16
)

// A tree is the search tree of a verified file (MaxMind DB format 2.0, "Binary Search Tree Section"): nodes of two
// pointers. A pointer below count names a node; count itself, nothing; above it, a record.
//
// A walk down it loads memory at each bit. So what the first three octets of an IPv4 address lead to is laid out in
// blocks of 1 KiB: the first is for the first octet, and where that leads to networks of more bits, there is one for the
// second, and so on. A database of cities has 39,000, a small one a few, and no file makes more than maxBlocks, 68 MB.
type tree struct {
	nodes []byte
	size  uint // octets of a node: 6, 7 or 8
	count uint32
	ipv6  bool

	noIPv4 bool    // it ends before IPv4 begins
	ipv4   uint32  // the pointer at which IPv4 begins
	blocks []block // empty: walk
}

// A block says where the next octet of an IPv4 address leads. Where that is not the end, it is another block, or a node
// at blocksDepth.
type block [256]step

// A step is a number, and in its lowest bits how many bits of the octet led there, less one. The number is that of a
// block, or from maxBlocks on, a pointer of the tree.
type step uint32

func (s step) isBlock() bool { return s>>takenBits < maxBlocks }

func (s step) pointer() uint32 { return uint32(s>>takenBits) - maxBlocks }

func (s step) taken() int { return int(s&(1<<takenBits-1)) + 1 }

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
	// No pointer is above what the nodes and the bytes of the file add up to. There are no blocks where one might not fit
	// into a step, in a file of some 500 MB, and where all of IPv4 is one network.
	if t.ipv4 < t.count && uint64(nodes)+uint64(len(buffer))+maxBlocks < 1<<(32-takenBits) {
		t.blocks = make([]block, 0, 1+t.nodesAt(t.ipv4, 8)+t.nodesAt(t.ipv4, 16))
		t.addBlock(t.ipv4, 0)
	}
	return t
}

// nodesAt returns how many nodes there are so many bits below a pointer.
func (t *tree) nodesAt(at uint32, depth int) int {
	switch {
	case at >= t.count:
		return 0
	case depth == 0:
		return 1
	}
	return t.nodesAt(t.child(at, 0), depth-1) + t.nodesAt(t.child(at, 1), depth-1)
}

// addBlock adds the block of a node, at a depth of whole octets, and those below it. It returns its number.
func (t *tree) addBlock(node uint32, depth int) uint32 {
	n := len(t.blocks)
	t.blocks = t.blocks[:n+1]
	t.fill(t.blocks[n][:], node, depth)
	return uint32(n)
}

// fill writes the steps of the octets that lead to a pointer, which is at that depth.
func (t *tree) fill(steps []step, at uint32, depth int) {
	if half := len(steps) / 2; half > 0 && at < t.count {
		t.fill(steps[:half], t.child(at, 0), depth+1)
		t.fill(steps[half:], t.child(at, 1), depth+1)
		return
	}
	number := at + maxBlocks
	if at < t.count && depth < blocksDepth {
		number = t.addBlock(at, depth)
	}
	s := step(number<<takenBits | uint32(depth-1)%8)
	for i := range steps {
		steps[i] = s
	}
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

// lookup4 returns the pointer that an IPv4 address leads to, which names no node, and how many bits of it lead there.
//
// Hot path: a load of memory an octet, of which the first is in the processor's caches, and one a bit after blocksDepth.
func (t *tree) lookup4(a uint32) (at uint32, length int) {
	if t.blocks == nil {
		return t.descend(t.ipv4, uint64(a)<<32, 32)
	}
	var s step // the first block
	for ; s.isBlock(); length += 8 {
		s = t.blocks[s>>takenBits][byte(a>>(24-length))]
	}
	length += s.taken() - 8
	at, below := t.descend(s.pointer(), uint64(a)<<(32+blocksDepth), 32-blocksDepth)
	return at, length + below
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
		at, length = t.lookup4(binary.BigEndian.Uint32(a[:]))
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
