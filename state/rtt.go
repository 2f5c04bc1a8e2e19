package state

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rttSamples is the number of samples that a site's value is the median of (docs/policies.md).
	rttSamples = 5
	// rttShards is the number of shards of a large table, and rttShardMin the least entries that make one worthwhile.
	rttShards   = 16
	rttShardMin = 1024
	// rttKeep is how long a value is kept at least after its newest sample. Policies may set max_age up to it and
	// beyond; values are dropped after the longer of it and four refreshes.
	rttKeep = time.Hour
)

// An RTTTable holds the round trips from sites to client networks, at most MaxTargets networks. Reading it takes no
// lock; all methods are safe for concurrent use. The zero value is not usable: see NewRTTTable.
type RTTTable struct {
	// Fixed at construction.
	bits4, bits6 int
	max          int
	seed         uint64
	shards       []rttShard
	shardBits    int
	gone         *rttEntry // stands where an entry was deleted

	pruning atomic.Uint32 // the shard that prune takes next

	quota sync.Mutex
	// Guarded by quota: how many rows each site has for networks that never asked here.
	unasked map[uint16]int
}

// A shard is an open-addressing hash table. Slots are written under mu and read without it.
type rttShard struct {
	slots atomic.Pointer[[]atomic.Pointer[rttEntry]]

	mu   sync.Mutex
	live int // entries
	used int // slots that are not empty: entries, and gone ones
}

type rttEntry struct {
	hi, lo uint64 // the network's address; an IPv4 one as mapped into IPv6
	row    atomic.Pointer[RTTRow]

	// Guarded by the shard's mu.
	asked time.Time // when a resolver of the network last asked here
	owner int       // the site that brought it while nobody had asked, or -1
}

// An RTTRow is what is known of one client network. It is immutable.
type RTTRow struct {
	Values []RTTValue

	oldest time.Time // the earliest Newest
}

func newRow(values []RTTValue) *RTTRow {
	r := &RTTRow{Values: values}
	for i := range values {
		if i == 0 || values[i].Newest.Before(r.oldest) {
			r.oldest = values[i].Newest
		}
	}
	return r
}

// An RTTValue is one site's median round trip to a client network.
type RTTValue struct {
	SiteID uint16
	RTT    time.Duration // median of the last (up to) 5 samples
	Newest time.Time     // when the newest of them was measured

	n       uint8              // samples in use
	samples [rttSamples]time32 // oldest first
}

// A time32 is a duration in microseconds: up to 71 minutes.
type time32 uint32

// NewRTTTable returns an empty table. Of c it uses the prefix lengths and MaxTargets.
func NewRTTTable(c RTTConfig) *RTTTable {
	c = c.withDefaults()
	t := &RTTTable{
		bits4: c.PrefixV4, bits6: c.PrefixV6, max: c.MaxTargets,
		seed: rand.Uint64() | 1, gone: new(rttEntry), unasked: map[uint16]int{},
	}
	n := 1
	for n < rttShards && t.max/(2*n) >= rttShardMin {
		n *= 2
		t.shardBits++
	}
	t.shards = make([]rttShard, n)
	for i := range t.shards {
		slots := make([]atomic.Pointer[rttEntry], 16)
		t.shards[i].slots.Store(&slots)
	}
	return t
}

// Bits returns the configured prefix length for the address's family.
func (t *RTTTable) Bits(addr netip.Addr) int {
	if addr.Unmap().Is4() {
		return t.bits4
	}
	return t.bits6
}

// Key returns the client network of addr: cut to the configured prefix length. It is the zero Prefix for the zero Addr.
func (t *RTTTable) Key(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	p, err := addr.Prefix(t.Bits(addr))
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// Row returns what is known of the client network, which must be a Key, or nil. Hot path: no lock, no allocation.
func (t *RTTTable) Row(key netip.Prefix) *RTTRow {
	if !key.IsValid() || key.Bits() != t.Bits(key.Addr()) {
		return nil
	}
	hi, lo := halves(key.Addr())
	h := t.hash(hi, lo)
	slots := *t.shard(h).slots.Load()
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		e := slots[i].Load()
		if e == nil {
			return nil
		}
		if e.hi == hi && e.lo == lo && e != t.gone {
			return e.row.Load()
		}
	}
}

// Len returns the number of client networks in the table.
func (t *RTTTable) Len() int {
	n := 0
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		n += sh.live
		sh.mu.Unlock()
	}
	return n
}

// Add takes in the samples of one site, of resolvers that asked here. Lost ones change nothing. It is for those who
// need a table without a Store; a Store feeds its own.
func (t *RTTTable) Add(siteID uint16, samples []RTTSample, now time.Time) {
	for i := range samples {
		t.add(siteID, &samples[i], now, now, 0)
	}
}

// Of returns the site's value.
func (r *RTTRow) Of(siteID uint16) (RTTValue, bool) {
	if r != nil {
		for i := range r.Values {
			if r.Values[i].SiteID == siteID {
				return r.Values[i], true
			}
		}
	}
	return RTTValue{}, false
}

// halves returns the address as two words.
func halves(addr netip.Addr) (hi, lo uint64) {
	b := addr.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// hash mixes the two words with the table's seed, so that nobody outside can choose networks that collide.
func (t *RTTTable) hash(hi, lo uint64) uint64 { return mix(hi, lo, t.seed) }

func mix(hi, lo, seed uint64) uint64 {
	h, l := bits.Mul64(hi^seed, 0x9e3779b97f4a7c15)
	h, l = bits.Mul64(lo^h^l, seed^0xd1b54a32d192ed03)
	// Of neighbours the low bits are still alike, when the seed has few high ones.
	h, l = bits.Mul64(h^l, 0x9fb21c651e98df25)
	return h ^ l
}

func (t *RTTTable) shard(h uint64) *rttShard {
	return &t.shards[h>>(64-t.shardBits)] // a shift by 64 gives 0
}

// capacity is the most entries of one shard.
func (t *RTTTable) capacity() int { return max(t.max/len(t.shards), 1) }

// add takes in one sample. asked is when a resolver of the network last asked here; with the zero Time the sample makes
// a row only within quota, the number of such rows that one site may have, and never at the expense of another row.
func (t *RTTTable) add(siteID uint16, s *RTTSample, now, asked time.Time, quota int) {
	if s.Lost || s.RTT <= 0 || s.Age < 0 {
		return
	}
	key := t.Key(s.Resolver)
	if !key.IsValid() {
		return
	}
	hi, lo := halves(key.Addr())
	h := t.hash(hi, lo)
	sh := t.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := t.find(sh, h, hi, lo)
	if e == nil {
		owner := -1
		if asked.IsZero() {
			owner = int(siteID)
			if sh.live >= t.capacity() || !t.claim(siteID, quota) {
				return
			}
		} else if sh.live >= t.capacity() {
			t.evict(sh)
		}
		e = &rttEntry{hi: hi, lo: lo, owner: owner, asked: asked}
		t.insert(sh, h, e)
	}
	if !asked.IsZero() {
		t.unclaim(e)
		if asked.After(e.asked) {
			e.asked = asked
		}
	}
	e.row.Store(e.row.Load().with(siteID, s.RTT, now.Add(-s.Age)))
}

// claim takes one of the site's rows for networks that never asked here.
func (t *RTTTable) claim(siteID uint16, quota int) bool {
	t.quota.Lock()
	defer t.quota.Unlock()
	if t.unasked[siteID] >= quota {
		return false
	}
	t.unasked[siteID]++
	return true
}

// unclaim gives e's claim back, if it is one.
func (t *RTTTable) unclaim(e *rttEntry) {
	if e.owner < 0 {
		return
	}
	t.quota.Lock()
	t.unasked[uint16(e.owner)]--
	t.quota.Unlock()
	e.owner = -1
}

// find returns the shard's entry for the network, or nil. The caller holds the shard's mu.
func (t *RTTTable) find(sh *rttShard, h, hi, lo uint64) *rttEntry {
	slots := *sh.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		e := slots[i].Load()
		if e == nil || (e.hi == hi && e.lo == lo && e != t.gone) {
			return e
		}
	}
}

// insert puts a new entry into the shard. The caller holds the shard's mu.
func (t *RTTTable) insert(sh *rttShard, h uint64, e *rttEntry) {
	slots := *sh.slots.Load()
	if (sh.used+1)*4 > len(slots)*3 {
		slots = t.rebuild(sh)
	}
	place(slots, h, e)
	sh.live++
	sh.used++
}

func place(slots []atomic.Pointer[rttEntry], h uint64, e *rttEntry) {
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		if slots[i].Load() == nil {
			slots[i].Store(e)
			return
		}
	}
}

// rebuild gives the shard new slots, without the gone entries and at most half full. Readers of the old ones lose
// nothing but what is added from now on.
func (t *RTTTable) rebuild(sh *rttShard) []atomic.Pointer[rttEntry] {
	old := *sh.slots.Load()
	n := 16
	for n < 2*(sh.live+1) {
		n *= 2
	}
	slots := make([]atomic.Pointer[rttEntry], n)
	for i := range old {
		if e := old[i].Load(); e != nil && e != t.gone {
			place(slots, t.hash(e.hi, e.lo), e)
		}
	}
	sh.used = sh.live
	sh.slots.Store(&slots)
	return slots
}

// evict makes room in a full shard: it deletes the thirty-second part of it, at least one, that nobody asked for, else
// that asked the longest ago. The caller holds the shard's mu.
func (t *RTTTable) evict(sh *rttShard) {
	all := make([]*rttEntry, 0, sh.live)
	slots := *sh.slots.Load()
	for i := range slots {
		if e := slots[i].Load(); e != nil && e != t.gone {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *rttEntry) int { return a.asked.Compare(b.asked) })
	doomed := make(map[*rttEntry]bool)
	for _, e := range all[:max(len(all)/32, 1)] {
		doomed[e] = true
	}
	for i := range slots {
		if e := slots[i].Load(); doomed[e] {
			t.remove(sh, &slots[i], e)
		}
	}
}

func (t *RTTTable) remove(sh *rttShard, slot *atomic.Pointer[rttEntry], e *rttEntry) {
	t.unclaim(e)
	slot.Store(t.gone)
	sh.live--
}

// prune drops values of one shard that are older than keep, and the rows that have none left; the next call takes the next
// shard. All at once would take seconds where there are a million rows, and the queries' time where cores are few.
func (t *RTTTable) prune(now time.Time, keep time.Duration) {
	sh := &t.shards[(t.pruning.Add(1)-1)%uint32(len(t.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slots := *sh.slots.Load()
	for j := range slots {
		e := slots[j].Load()
		if e == nil || e == t.gone {
			continue
		}
		row := e.row.Load()
		if now.Sub(row.oldest) < keep {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(row.Values), func(v RTTValue) bool { return now.Sub(v.Newest) >= keep })
		if len(left) == 0 {
			t.remove(sh, &slots[j], e)
		} else {
			e.row.Store(newRow(left))
		}
	}
}

// adopt copies the entries of another table with the same prefix lengths, as far as they fit.
func (t *RTTTable) adopt(from *RTTTable) {
	from.each(func(e *rttEntry) {
		h := t.hash(e.hi, e.lo)
		sh := t.shard(h)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.live >= t.capacity() {
			return
		}
		n := &rttEntry{hi: e.hi, lo: e.lo, asked: e.asked, owner: e.owner}
		n.row.Store(e.row.Load())
		if n.owner >= 0 {
			t.claim(uint16(n.owner), t.max)
		}
		t.insert(sh, h, n)
	})
}

// each visits all entries, a shard at a time under its lock.
func (t *RTTTable) each(visit func(e *rttEntry)) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		slots := *sh.slots.Load()
		for j := range slots {
			if e := slots[j].Load(); e != nil && e != t.gone {
				visit(e)
			}
		}
		sh.mu.Unlock()
	}
}

// addr returns the address of the entry's network.
func (e *rttEntry) addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], e.hi)
	binary.BigEndian.PutUint64(b[8:], e.lo)
	return netip.AddrFrom16(b).Unmap()
}

// with returns the row with one more sample of the site. r may be nil.
func (r *RTTRow) with(siteID uint16, rtt time.Duration, at time.Time) *RTTRow {
	var values []RTTValue
	i := -1
	if r != nil {
		i = slices.IndexFunc(r.Values, func(v RTTValue) bool { return v.SiteID == siteID })
		values = make([]RTTValue, len(r.Values), len(r.Values)+1)
		copy(values, r.Values)
	}
	if i < 0 {
		i = len(values)
		values = append(values, RTTValue{SiteID: siteID})
	}
	v := &values[i]
	us := time32(min(max(rtt.Microseconds(), 1), 1<<32-1))
	// An agent sends a sample again until each gslbd has acknowledged it; the same one counts once.
	if v.n > 0 && v.samples[v.n-1] == us && at.Sub(v.Newest).Abs() < time.Second {
		return r
	}
	if v.n == rttSamples {
		copy(v.samples[:], v.samples[1:])
		v.n--
	}
	v.samples[v.n] = us
	v.n++
	if at.After(v.Newest) {
		v.Newest = at
	}
	v.RTT = v.median()
	return newRow(values)
}

// median returns the middle of the samples; of an even number, the mean of the two in the middle.
func (v *RTTValue) median() time.Duration {
	s := v.samples
	slices.Sort(s[:v.n])
	lo, hi := s[(v.n-1)/2], s[v.n/2]
	return time.Duration(lo)*time.Microsecond/2 + time.Duration(hi)*time.Microsecond/2
}
