package dns

import "hash/maphash"

// A nameIndex finds the nodes of a zone by their names. It is a hash table with open addressing: a lookup reads one slot
// and the node, where a map of Go reads two more cache lines. The zero value has no names.
type nameIndex struct {
	seed  maphash.Seed
	slots []nameSlot // a power of two, at most half of them in use
}

type nameSlot struct {
	hash uint64
	node *node // nil: free
}

func newNameIndex(nodes map[string]*node) nameIndex {
	size := 2
	for size < 2*len(nodes) {
		size *= 2
	}
	x := nameIndex{seed: maphash.MakeSeed(), slots: make([]nameSlot, size)}
	for name, n := range nodes {
		h := maphash.String(x.seed, name)
		at := x.place(h)
		for x.slots[at].node != nil {
			at = (at + 1) % uint64(size)
		}
		x.slots[at] = nameSlot{h, n}
	}
	return x
}

// place returns the slot where the search for a hash begins.
func (x *nameIndex) place(h uint64) uint64 { return h & uint64(len(x.slots)-1) }

// first returns the slot where the search for a hash begins.
func (x *nameIndex) first(h uint64) *nameSlot { return &x.slots[x.place(h)] }

// likely returns the node that find does for a name with this hash, unless another name has the same. It reads no node.
func (x *nameIndex) likely(h uint64) *node {
	for at := x.place(h); ; at = x.place(at + 1) {
		if s := &x.slots[at]; s.node == nil || s.hash == h {
			return s.node
		}
	}
}

// hash returns what the search for a name in wire form and lower case begins with.
func (x *nameIndex) hash(name []byte) uint64 { return maphash.Bytes(x.seed, name) }

// find returns the node of a name with its hash, or nil. Hot path: no allocation.
func (x *nameIndex) find(name []byte, h uint64) *node {
	for at := x.place(h); ; at = x.place(at + 1) {
		s := &x.slots[at]
		if s.node == nil || s.hash == h && s.node.name == string(name) {
			return s.node
		}
	}
}
