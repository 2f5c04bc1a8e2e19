package geo

import (
	"encoding/binary"
	"net/netip"
)

// MostAhead is how many addresses an Ahead takes.
const MostAhead = 16

// An Ahead reads what lookups of some addresses will read, soon after, so that it is in the processor's caches then: Begin,
// then Add for each, one right after the other, then Blocks, Descend and Records, and End. A lookup waits for memory at each step; here all
// addresses take a step before any takes the next, and they wait together. It decides nothing.
//
// Hot path: no allocation, no lock. An Ahead belongs to one goroutine.
type Ahead struct {
	db     *DB
	n      int
	all    [MostAhead]walker
	loaded uint64 // so that the compiler keeps the loads; nobody reads it
}

// A walker is an address on its way down a tree.
type walker struct {
	d    *database
	step *step // what the blocks say; nil: there are none, or what they say is known
	at   uint32
	left int    // how many steps it takes at most
	key  uint64 // the bits to come, highest first
}

// Begin is for lookups in db from now on, after an End.
func (a *Ahead) Begin(db *DB) { a.db = db }

// End lets go of the databases, and of what was added.
func (a *Ahead) End() {
	for i := range a.all[:a.n] {
		a.all[i].d, a.all[i].step = nil, nil
	}
	a.db, a.n = nil, 0
}

// Add adds an address. Beyond MostAhead, those that no database would place, and the zero Addr, it does nothing.
func (a *Ahead) Add(addr netip.Addr) {
	if a.n == MostAhead {
		return
	}
	for _, d := range a.db.databases { // the first that knows the family mostly places it
		switch {
		case addr.Is4() && !d.tree.noIPv4:
			b := addr.As4()
			a.all[a.n] = d.begin4(binary.BigEndian.Uint32(b[:]))
		case addr.Is6() && d.tree.ipv6:
			// No network is longer than the first half of an address, but for those that carry an IPv4 address.
			b := addr.As16()
			a.all[a.n] = walker{d: d, left: 64, key: binary.BigEndian.Uint64(b[:8])}
		default:
			continue
		}
		a.n++
		return
	}
}

// begin4 takes an IPv4 address to the second block.
func (d *database) begin4(addr uint32) walker {
	w := walker{d: d, at: d.tree.ipv4, left: 32, key: uint64(addr) << 32}
	if d.tree.blocks == nil {
		return w
	}
	w.left = 32 - blocksDepth
	s := &d.tree.blocks[0][byte(addr>>24)]
	if s.isBlock() {
		s = &d.tree.blocks[*s>>takenBits][byte(addr>>16)]
	}
	w.step = s
	return w
}

// Blocks takes all addresses to the ends of the blocks. It does not depend on what the last of them says, so that a processor need
// not wait for that.
func (a *Ahead) Blocks() {
	for i := range a.all[:a.n] {
		w := &a.all[i]
		if w.step == nil {
			continue
		}
		s := *w.step
		if s.isBlock() {
			s = w.d.tree.blocks[s>>takenBits][byte(w.key>>40)]
		}
		w.at, w.key, w.step = s.pointer(), w.key<<blocksDepth, nil
	}
}

// Descend takes all addresses to the ends of their ways, side by side.
func (a *Ahead) Descend() {
	all := a.all[:a.n]
	for more := true; more; {
		more = false
		for i := range all {
			if w := &all[i]; w.left > 0 && w.at < w.d.tree.count {
				w.at = w.d.tree.child(w.at, w.key>>63)
				w.key <<= 1
				w.left--
				more = true
			}
		}
	}
}

// Records reads the cached records that the addresses have come to.
func (a *Ahead) Records() {
	var records [MostAhead]*cached
	for i := range a.all[:a.n] {
		w := &a.all[i]
		if t := &w.d.tree; w.at > t.count {
			records[i] = w.d.cache[uint64(w.at-t.count-separator)*golden>>w.d.shift].Load()
		}
	}
	for _, c := range records[:a.n] {
		if c != nil {
			a.loaded += uint64(c.offset) + uint64(len(c.location.Country)) + uint64(c.location.x)
		}
	}
}
