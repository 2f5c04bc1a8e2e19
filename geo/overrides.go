package geo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// overrides finds the longest matching override. Each family is cut into ranges of consecutive addresses with the same
// override (or none), so that one binary search finds both the override and how far its range reaches on either side.
type overrides struct {
	entries     []entry
	ipv4, ipv6  ranges
	coordinates bool // some entry has them
}

// An entry is an override made ready.
type entry struct {
	prefix   netip.Prefix
	site     string
	location *Location // nil: only the site is given
	source   string
}

// none marks a range without an override.
const none = -1

// ranges are sorted and cover the whole of a family without a gap; neighbours always differ. Empty: no override.
type ranges struct {
	first []key   // the first address of each range; first[0] is zero
	entry []int32 // the entry of each range, or none
}

// newOverrides checks the list and builds the table. The error names every override that is wrong.
func newOverrides(list []Override) (overrides, error) {
	var (
		o    overrides
		errs []error
	)
	seen := make(map[netip.Prefix]bool, len(list))
	for _, v := range list {
		e, err := newEntry(v)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case seen[e.prefix]:
			errs = append(errs, fmt.Errorf("geo: override %v: written twice: remove one", e.prefix))
			continue
		}
		seen[e.prefix] = true
		o.entries = append(o.entries, e)
		o.coordinates = o.coordinates || e.location != nil && e.location.HasCoordinates
	}
	if len(errs) > 0 {
		return overrides{}, errors.Join(errs...)
	}
	// IPv4 before IPv6; a prefix before those inside it.
	slices.SortFunc(o.entries, func(a, b entry) int {
		if c := a.prefix.Addr().Compare(b.prefix.Addr()); c != 0 {
			return c
		}
		return a.prefix.Bits() - b.prefix.Bits()
	})
	o.ipv4 = newRanges(o.entries, true)
	o.ipv6 = newRanges(o.entries, false)
	return o, nil
}

func newEntry(v Override) (entry, error) {
	p := v.Prefix
	if !p.IsValid() {
		return entry{}, errors.New("geo: override without a prefix: write one such as 192.0.2.0/24")
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return entry{}, fmt.Errorf("geo: override %v: has host bits: write %v", p, p.Masked())
	}
	e := entry{prefix: p, site: v.Site, source: "override " + p.String()}
	l := v.Location
	switch {
	case l.HasCoordinates && !validCoordinates(l.Latitude, l.Longitude):
		return entry{}, fmt.Errorf("geo: override %v: latitude %v, longitude %v: must be within -90 to 90 and -180 to 180", p, l.Latitude, l.Longitude)
	case l.HasCoordinates || l.Continent != "" || l.Country != "" || l.Subdivision != "":
		e.location = NewLocation(l)
	case e.site == "":
		return entry{}, fmt.Errorf("geo: override %v: gives neither a site nor a location: write one of them or remove it", p)
	}
	return e, nil
}

// validCoordinates refuses what is no number as well: every comparison with it is false.
func validCoordinates(latitude, longitude float64) bool {
	return math.Abs(latitude) <= 90 && math.Abs(longitude) <= 180
}

// newRanges cuts a family into ranges. entries are sorted.
func newRanges(entries []entry, ipv4 bool) ranges {
	var r ranges
	begin := func(at key, entry int32) {
		// What would begin and end at the same address is not there at all.
		if n := len(r.first); n > 0 && r.first[n-1] == at {
			r.entry[n-1] = entry
			return
		}
		r.first = append(r.first, at)
		r.entry = append(r.entry, entry)
	}

	type open struct {
		entry int32
		last  key
	}
	around := []open{{none, key{math.MaxUint64, math.MaxUint64}}} // the entries that hold the address reached, outermost first
	closeBefore := func(at key) {
		for len(around) > 1 && around[len(around)-1].last.less(at) {
			next, _ := around[len(around)-1].last.next()
			around = around[:len(around)-1]
			begin(next, around[len(around)-1].entry)
		}
	}
	begin(key{}, none)
	for i, e := range entries {
		if e.prefix.Addr().Is4() != ipv4 {
			continue
		}
		first := keyOf(e.prefix.Addr())
		closeBefore(first)
		begin(first, int32(i))
		around = append(around, open{int32(i), first.last(e.prefix.Bits())})
	}
	for len(around) > 1 {
		// An entry that reaches to the last address has nothing behind it, and neither have those around it.
		next, ok := around[len(around)-1].last.next()
		if !ok {
			break
		}
		around = around[:len(around)-1]
		begin(next, around[len(around)-1].entry)
	}
	if len(r.first) == 1 && r.entry[0] == none {
		return ranges{}
	}
	return r
}

// lookup is LookupOverride for an address that is valid and not IPv4-mapped.
func (o *overrides) lookup(addr netip.Addr) Result {
	r := &o.ipv6
	if addr.Is4() {
		r = &o.ipv4
	}
	if len(r.first) == 0 {
		return Result{}
	}
	k := keyOf(addr)

	// The last range that begins at or before k.
	low, high := 0, len(r.first)
	for high-low > 1 {
		middle := int(uint(low+high) / 2)
		if k.less(r.first[middle]) {
			high = middle
		} else {
			low = middle
		}
	}

	// The network must be long enough to leave out the nearest address on either side that is in another range.
	var length int
	if low > 0 {
		length = k.common(r.first[low].previous()) + 1
	}
	if low+1 < len(r.first) {
		length = max(length, k.common(r.first[low+1])+1)
	}
	if r.entry[low] == none {
		return Result{Bits: length}
	}
	e := &o.entries[r.entry[low]]
	return Result{Location: e.location, Site: e.site, Override: true, Source: e.source, Bits: length}
}

// A key is an address as a number of 128 bits. An IPv4 address fills the highest 32, so that prefix lengths mean the same
// in both families.
type key struct{ high, low uint64 }

func keyOf(addr netip.Addr) key {
	if addr.Is4() {
		a := addr.As4()
		return key{high: uint64(binary.BigEndian.Uint32(a[:])) << 32}
	}
	a := addr.As16()
	return key{binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])}
}

func (k key) less(o key) bool {
	return k.high < o.high || k.high == o.high && k.low < o.low
}

// common is the length of the longest common prefix.
func (k key) common(o key) int {
	if k.high != o.high {
		return bits.LeadingZeros64(k.high ^ o.high)
	}
	return 64 + bits.LeadingZeros64(k.low^o.low)
}

// last is the last key of the network that begins at k and has the length given.
func (k key) last(length int) key {
	if length <= 64 {
		return key{k.high | math.MaxUint64>>length, math.MaxUint64}
	}
	return key{k.high, k.low | math.MaxUint64>>(length-64)}
}

// next is k + 1; false if there is none.
func (k key) next() (key, bool) {
	low, carry := bits.Add64(k.low, 1, 0)
	high, carry := bits.Add64(k.high, 0, carry)
	return key{high, low}, carry == 0
}

// previous is k - 1; k is not zero.
func (k key) previous() key {
	low, borrow := bits.Sub64(k.low, 1, 0)
	high, _ := bits.Sub64(k.high, 0, borrow)
	return key{high, low}
}
