package geo

import (
	"encoding/binary"
	"net/netip"
)

// MostAhead is how many addresses LookAhead looks at.
const MostAhead = 16

// LookAhead reads what a Lookup of each of the addresses, up to MostAhead of them, will read, so that it is in the
// processor's caches then. A lookup waits for memory at each step; here all addresses take a step before any takes the next,
// and they wait together. It decides nothing: the number that it returns only makes the compiler keep the loads.
//
// Hot path: no allocation, no lock.
func (db *DB) LookAhead(addrs []netip.Addr) uint64 {
	addrs = addrs[:min(len(addrs), MostAhead)]
	var v4, v6 bool
	for i := range addrs {
		v4 = v4 || addrs[i].Is4()
		v6 = v6 || addrs[i].Is6()
	}
	var sum uint64
	for _, d := range db.databases {
		if v4 && !d.tree.noIPv4 {
			v4 = false // the first that knows the family mostly places them all
			sum += d.lookAhead4(addrs)
		}
		if v6 && d.tree.ipv6 {
			v6 = false
			sum += d.lookAhead6(addrs)
		}
	}
	return sum
}

// A walker is an address on its way down a tree.
type walker struct {
	at  uint32
	key uint64 // the bits to come, highest first
}

func (d *database) lookAhead4(addrs []netip.Addr) uint64 {
	var all [MostAhead]walker
	n := 0
	for i := range addrs {
		if addrs[i].Is4() {
			a := addrs[i].As4()
			all[n] = walker{d.tree.ipv4, uint64(binary.BigEndian.Uint32(a[:])) << 32}
			n++
		}
	}
	d.tree.descendAll4(all[:n])
	return d.lookAheadRecords(all[:n])
}

// lookAhead6 goes by the first half of an address: no network is longer than that, but for those that carry an IPv4 address.
func (d *database) lookAhead6(addrs []netip.Addr) uint64 {
	var all [MostAhead]walker
	n := 0
	for i := range addrs {
		if addrs[i].Is6() {
			a := addrs[i].As16()
			all[n] = walker{0, binary.BigEndian.Uint64(a[:8])}
			n++
		}
	}
	d.tree.descendAll(all[:n], 64)
	return d.lookAheadRecords(all[:n])
}

// descendAll takes all walkers down, at most limit steps each, side by side.
func (t *tree) descendAll(all []walker, limit int) {
	for range limit {
		more := false
		for i := range all {
			if w := &all[i]; w.at < t.count {
				w.at = t.child(w.at, w.key>>63)
				w.key <<= 1
				more = true
			}
		}
		if !more {
			return
		}
	}
}

// descendAll4 takes all walkers from where IPv4 begins to where lookup4 ends, side by side.
func (t *tree) descendAll4(all []walker) {
	if t.blocks == nil {
		t.descendAll(all, 32)
		return
	}
	var steps [MostAhead]step // all at the first block
	for range blocksDepth / 8 {
		for i := range all {
			if s := steps[i]; s.isBlock() {
				steps[i] = t.blocks[s>>takenBits][byte(all[i].key>>56)]
				all[i].key <<= 8
			}
		}
	}
	for i := range all {
		all[i].at = steps[i].pointer()
	}
	t.descendAll(all, 32-blocksDepth)
}

// lookAheadRecords reads the cached records that the walkers have come to.
func (d *database) lookAheadRecords(all []walker) (sum uint64) {
	var records [MostAhead]*cached
	for i := range all {
		if at := all[i].at; at > d.tree.count {
			records[i] = d.cache[uint64(at-d.tree.count-separator)*golden>>d.shift].Load()
		}
	}
	for _, c := range records[:len(all)] {
		if c != nil {
			sum += uint64(c.offset) + uint64(len(c.location.Country)) + uint64(c.location.x)
		}
	}
	return sum
}
