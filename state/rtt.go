package state

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rttShards is the number of shards of a large table, and rttShardMin the least entries that make one worthwhile.
	rttShards   = 16
	rttShardMin = 1024
	// passiveGap is how long after the newest sample of clients another one begins anew: those before were of clients that
	// have since been sent elsewhere, and of a path that may have changed. An agent repeats what stays sooner: every eight scans, or four minutes.
	passiveGap = 10 * time.Minute
	// rttKeep is how long a value is kept at least after its newest sample. Policies may set max_age up to it and
	// beyond; values are dropped after the longer of it and four refreshes.
	rttKeep = time.Hour
)

// An RTTTable holds the round trips from sites to client networks, at most MaxTargets networks. Reading it takes no
// lock; all methods are safe for concurrent use. The zero value is not usable: see NewRTTTable.
type RTTTable struct {
	// Fixed at construction.
	bits4, bits6 int
	mask4        uint64    // of an IPv4 address's network, in the second of its halves
	mask6        [2]uint64 // of an IPv6 one's
	max          int
	seed         uint64
	epoch        *time.Time // what RTTMoments count from; a table that adopts another's rows shares it
	shards       []rttShard
	shardBits    int
	gone         *RTTRow // stands where a network was deleted

	pruned struct{ shard, slot int } // what prune takes next; owned by who calls it

	quota sync.Mutex
	// Guarded by quota: how many rows each site has for networks that never asked here.
	unasked map[uint16]int
}

// A shard is an open-addressing hash table. Slots are written under mu and read without it.
type rttShard struct {
	slots atomic.Pointer[[]rttSlot]

	mu   sync.Mutex
	live int // networks
	used int // slots that are not empty: networks, and gone ones
}

// A slot holds one network, on half of a cache line. Its address stands beside the row, so that slots of other networks cost
// a reader no line of their own. A slot is used once: the address is written before the first row is, and never again.
type rttSlot struct {
	hi, lo uint64 // the network's address; an IPv4 one as mapped into IPv6
	row    atomic.Pointer[RTTRow]

	// Guarded by the shard's mu.
	asked askedAt
}

// askedAt is when a resolver of a network last asked here, in Unix nanoseconds. While none has, it is far in the past and
// tells the site that brought the network instead.
type askedAt int64

// neverAsked is of a network that the site brought.
func neverAsked(site uint16) askedAt { return math.MinInt64 + askedAt(site) }

// broughtBy returns the site that brought a network that nobody has asked from.
func (a askedAt) broughtBy() (site uint16, never bool) {
	return uint16(a - math.MinInt64), a <= neverAsked(math.MaxUint16)
}

// An RTTMoment is a time as rows have it: nanoseconds on the monotonic clock, after the table's epoch.
type RTTMoment int64

// An RTTRow is what is known of one client network. It is immutable.
type RTTRow struct {
	points  []rttPoint // what queries compare, by method and site
	oldest  RTTMoment  // the earliest newest
	epoch   *time.Time
	history []rttHistory // by point
}

// An RTTMethod is how a round trip was measured. Each method has a bias of its own, so that values of different methods
// are never compared. Where several would do, the first of these is taken; but see docs/policies.md for RTTPassive.
type RTTMethod uint8

const (
	RTTICMP    RTTMethod = iota // ICMP echo to a resolver
	RTTTCP                      // TCP connection to a resolver's port 53
	RTTDNS                      // DNS query to a resolver
	RTTPassive                  // connections of real clients

	RTTMethods // their number
)

var rttMethodNames = [RTTMethods]string{"icmp", "tcp", "dns", "passive"}

// String returns "icmp", "tcp", "dns" or "passive".
func (m RTTMethod) String() string { return rttMethodNames[m] }

// ParseRTTMethod returns the method of a name that String returns. The empty name is icmp's as well.
func ParseRTTMethod(name string) (m RTTMethod, ok bool) {
	i := slices.Index(rttMethodNames[:], cmp.Or(name, "icmp"))
	return RTTMethod(max(i, 0)), i >= 0
}

// An rttPoint is a method (3 bits), a site's id (16 bits), and the site's round trip by that method in
// nanoseconds (45 bits: up to nine hours).
type rttPoint uint64

const rttBits = 45

func makePoint(method RTTMethod, site uint16, rtt time.Duration) rttPoint {
	return rttPoint(method)<<(rttBits+16) | rttPoint(site)<<rttBits | rttPoint(rtt)
}

// series returns what the point is of: its method and site.
func (p rttPoint) series() rttPoint   { return p >> rttBits }
func (p rttPoint) method() RTTMethod  { return RTTMethod(p >> (rttBits + 16)) }
func (p rttPoint) site() uint16       { return uint16(p >> rttBits) }
func (p rttPoint) rtt() time.Duration { return time.Duration(p & (1<<rttBits - 1)) }

// makeRow returns a row with n points that are to be filled in. Up to 16 of them lie in the same memory as the row: a
// query finds eight of them, those of eight sites by one method, on the cache line after it.
func makeRow(n int, epoch *time.Time) *RTTRow {
	var r *RTTRow
	switch {
	case n <= 2:
		m := new(struct {
			RTTRow
			points [2]rttPoint
		})
		r, m.RTTRow.points = &m.RTTRow, m.points[:n]
	case n <= 8:
		m := new(struct {
			RTTRow
			points [8]rttPoint
		})
		r, m.RTTRow.points = &m.RTTRow, m.points[:n]
	case n <= 16:
		m := new(struct {
			RTTRow
			points [16]rttPoint
		})
		r, m.RTTRow.points = &m.RTTRow, m.points[:n]
	default:
		r = &RTTRow{points: make([]rttPoint, n)}
	}
	r.epoch, r.history = epoch, make([]rttHistory, n)
	return r
}

// age works oldest out, once the row is complete.
func (r *RTTRow) age() *RTTRow {
	r.oldest = r.history[0].newest
	for i := range r.history {
		r.oldest = min(r.oldest, r.history[i].newest)
	}
	return r
}

// An RTTValue is one site's round trip to a client network by one method.
type RTTValue struct {
	SiteID uint16
	Method RTTMethod
	RTT    time.Duration // the second lowest of the last 5 samples; of fewer than 3 the lowest
	Newest time.Time     // when the newest of them was measured
	Jitter time.Duration // mean difference between one of them and the next

	// Of the last probes, up to 15, how many no method had an answer to. RTTPassive has no probes.
	Probes, Lost int

	// Of RTTPassive, how many connections the newest sample is of, up to 65,535; 0: not told.
	Connections int

	// What the round trip was on another path, and when the present one was found, with its fourth sample. Before is 0 if
	// the path was never another one.
	Before  time.Duration
	Shifted time.Time
}

// NewRTTTable returns an empty table. Of c it uses the prefix lengths and MaxTargets.
func NewRTTTable(c RTTConfig) *RTTTable {
	c = c.withDefaults()
	epoch := time.Now()
	t := &RTTTable{
		bits4: c.PrefixV4, bits6: c.PrefixV6, max: c.MaxTargets,
		seed: rand.Uint64() | 1, epoch: &epoch, gone: new(RTTRow), unasked: map[uint16]int{},
	}
	t.mask4 = ^uint64(0) << (32 - t.bits4)
	t.mask6[0], t.mask6[1] = ^uint64(0)<<max(64-t.bits6, 0), ^uint64(0)<<min(128-t.bits6, 64)
	n := 1
	for n < rttShards && t.max/(2*n) >= rttShardMin {
		n *= 2
		t.shardBits++
	}
	t.shards = make([]rttShard, n)
	for i := range t.shards {
		slots := make([]rttSlot, 16)
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

// network returns the address of addr's client network as a slot has it.
func (t *RTTTable) network(addr netip.Addr) (hi, lo uint64) {
	hi, lo = halves(addr)
	if hi == 0 && lo>>32 == 0xffff {
		return hi, lo & t.mask4
	}
	return hi & t.mask6[0], lo & t.mask6[1]
}

// Row returns what is known of the client network of addr, or nil. Hot path: no lock, no allocation.
func (t *RTTTable) Row(addr netip.Addr) *RTTRow {
	if !addr.IsValid() {
		return nil
	}
	hi, lo := t.network(addr)
	h := t.hash(hi, lo)
	return t.row(*t.shard(h).slots.Load(), h, hi, lo)
}

// row returns the row of the network among slots, or nil.
func (t *RTTTable) row(slots []rttSlot, h, hi, lo uint64) *RTTRow {
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		row := slots[i].row.Load()
		if row == nil {
			return nil
		}
		if slots[i].hi == hi && slots[i].lo == lo && row != t.gone {
			return row
		}
	}
}

// Moment returns a time as Fresh compares it.
func (t *RTTTable) Moment(at time.Time) RTTMoment { return RTTMoment(at.Sub(*t.epoch)) }

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

// Add takes in the samples of one site, of resolvers that asked here. Lost ones change no value. It is for those who
// need a table without a Store; a Store feeds its own.
func (t *RTTTable) Add(siteID uint16, samples []RTTSample, now time.Time) {
	for i := range samples {
		t.add(siteID, &samples[i], now, now, 0)
	}
}

// Fresh returns the site's round trip by the method if its newest sample was measured after the moment. r may be nil.
//
// Hot path: mostly all of a row is fresh, and then the history is not read.
func (r *RTTRow) Fresh(siteID uint16, method RTTMethod, after RTTMoment) (time.Duration, bool) {
	if r == nil {
		return 0, false
	}
	series := makePoint(method, siteID, 0).series()
	for i, p := range r.points {
		if p.series() == series {
			return p.rtt(), r.oldest > after || r.history[i].newest > after
		}
	}
	return 0, false
}

// FreshBy returns by which methods the site has values whose newest samples were measured after the moment: the bit 1<<m for
// the method m.
func (r *RTTRow) FreshBy(siteID uint16, after RTTMoment) uint8 {
	var methods uint8
	for i, p := range r.points {
		if p.site() == siteID && (r.oldest > after || r.history[i].newest > after) {
			methods |= 1 << p.method()
		}
	}
	return methods
}

// Methods returns the first and the last method that the row has values of. Mostly they are the same. r must not be nil.
func (r *RTTRow) Methods() (first, last RTTMethod) {
	return r.points[0].method(), r.points[len(r.points)-1].method()
}

// All returns the values of all sites and methods, however old, the methods in their order. r may be nil.
func (r *RTTRow) All() []RTTValue {
	all := make([]RTTValue, r.Len())
	for i := range all {
		p, h := r.points[i], &r.history[i]
		all[i] = RTTValue{
			SiteID: p.site(), Method: p.method(), RTT: p.rtt(), Newest: r.epoch.Add(time.Duration(h.newest)), Jitter: h.jitter(),
		}
		if p.method() == RTTPassive {
			all[i].Connections = int(h.lost)
		} else {
			all[i].Probes, all[i].Lost = bits.Len16(h.lost)-1, bits.OnesCount16(h.lost)-1
		}
		if h.before > 0 {
			all[i].Before, all[i].Shifted = h.before.duration(), r.epoch.Add(time.Duration(h.shifted)*time.Second)
		}
	}
	return all
}

// Len returns how many values there are, one for each site and method. r may be nil.
func (r *RTTRow) Len() int {
	if r == nil {
		return 0
	}
	return len(r.points)
}

// halves returns the address as two words.
func halves(addr netip.Addr) (hi, lo uint64) {
	if addr.Is4() {
		b := addr.As4()
		return 0, 0xffff<<32 | uint64(binary.BigEndian.Uint32(b[:]))
	}
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
// a row only within quota, the number of such rows that one site may have, and never at the expense of another row. One
// that was lost makes none.
func (t *RTTTable) add(siteID uint16, s *RTTSample, now, asked time.Time, quota int) {
	if s.Age < 0 || (s.RTT <= 0 && !s.Lost) || (s.Lost && s.Method == RTTPassive) { // what nobody sent is not lost
		return
	}
	at := t.Moment(now.Add(-s.Age))
	if s.Lost {
		t.change(siteID, s.Resolver, asked, quota, func(row *RTTRow) *RTTRow { return row.without(siteID, at) })
		return
	}
	t.change(siteID, s.Resolver, asked, quota, func(row *RTTRow) *RTTRow { return row.with(siteID, s, at, t.epoch) })
}

// change puts another row in the place of the network's present one, or of nil, which it may return then. asked and quota
// are those of add.
func (t *RTTTable) change(siteID uint16, addr netip.Addr, asked time.Time, quota int, to func(*RTTRow) *RTTRow) {
	if !addr.IsValid() {
		return
	}
	hi, lo := t.network(addr)
	h := t.hash(hi, lo)
	sh := t.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sl := t.find(sh, h, hi, lo)
	if sl == nil {
		row := to(nil)
		if row == nil {
			return
		}
		at := askedAt(asked.UnixNano())
		if asked.IsZero() {
			at = neverAsked(siteID)
			if sh.live >= t.capacity() || !t.claim(siteID, quota) {
				return
			}
		} else if sh.live >= t.capacity() {
			t.evict(sh)
		}
		t.insert(sh, h, &rttSlot{hi: hi, lo: lo, asked: at}, row)
		return
	}
	if !asked.IsZero() {
		t.unclaim(sl)
		sl.asked = max(sl.asked, askedAt(asked.UnixNano()))
	}
	sl.row.Store(to(sl.row.Load()))
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

// unclaim gives the slot's claim back, if it is one. The caller sets asked, or takes the network away.
func (t *RTTTable) unclaim(sl *rttSlot) {
	site, never := sl.asked.broughtBy()
	if !never {
		return
	}
	t.quota.Lock()
	t.unasked[site]--
	t.quota.Unlock()
}

// find returns the shard's slot of the network, or nil. The caller holds the shard's mu.
func (t *RTTTable) find(sh *rttShard, h, hi, lo uint64) *rttSlot {
	slots := *sh.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		sl := &slots[i]
		switch row := sl.row.Load(); {
		case row == nil:
			return nil
		case sl.hi == hi && sl.lo == lo && row != t.gone:
			return sl
		}
	}
}

// insert puts a new network into the shard: what new says of it, and its row. The caller holds the shard's mu.
func (t *RTTTable) insert(sh *rttShard, h uint64, new *rttSlot, row *RTTRow) {
	slots := *sh.slots.Load()
	if (sh.used+1)*4 > len(slots)*3 {
		slots = t.rebuild(sh)
	}
	place(slots, h, new, row)
	sh.live++
	sh.used++
}

func place(slots []rttSlot, h uint64, new *rttSlot, row *RTTRow) {
	mask := uint64(len(slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		if sl := &slots[i]; sl.row.Load() == nil {
			sl.hi, sl.lo, sl.asked = new.hi, new.lo, new.asked
			sl.row.Store(row)
			return
		}
	}
}

// rebuild gives the shard new slots, without the gone networks and at most half full. Readers of the old ones lose
// nothing but what is added from now on.
func (t *RTTTable) rebuild(sh *rttShard) []rttSlot {
	old := *sh.slots.Load()
	n := 16
	for n < 2*(sh.live+1) {
		n *= 2
	}
	slots := make([]rttSlot, n)
	for i := range old {
		sl := &old[i]
		if row := sl.row.Load(); row != nil && row != t.gone {
			place(slots, t.hash(sl.hi, sl.lo), sl, row)
		}
	}
	sh.used = sh.live
	sh.slots.Store(&slots)
	return slots
}

// evict makes room in a full shard: it deletes the thirty-second part of it, at least one, that nobody asked for, else
// that asked the longest ago. The caller holds the shard's mu.
func (t *RTTTable) evict(sh *rttShard) {
	all := make([]*rttSlot, 0, sh.live)
	t.visit(sh, func(sl *rttSlot, _ *RTTRow) { all = append(all, sl) })
	slices.SortFunc(all, func(a, b *rttSlot) int { return cmp.Compare(a.asked, b.asked) })
	for _, sl := range all[:max(len(all)/32, 1)] {
		t.remove(sh, sl)
	}
}

func (t *RTTTable) remove(sh *rttShard, sl *rttSlot) {
	t.unclaim(sl)
	sl.row.Store(t.gone)
	sh.live--
}

// prune drops values that are older than keep, and the rows that have none left. It goes through up to most slots of a shard, whose
// writers wait meanwhile, and the next call goes on after them. It returns how many it went through, at least one.
func (t *RTTTable) prune(now time.Time, keep time.Duration, most int) int {
	sh, first := &t.shards[t.pruned.shard], t.pruned.slot
	last := t.Moment(now.Add(-keep)) // what is as old is too old
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slots := *sh.slots.Load()
	first = min(first, len(slots)-1) // they may have become fewer
	end := min(first+most, len(slots))
	for i := first; i < end; i++ {
		sl := &slots[i]
		row := sl.row.Load()
		if row == nil || row == t.gone || row.oldest > last {
			continue
		}
		if left := row.since(last); left != nil {
			sl.row.Store(left)
		} else {
			t.remove(sh, sl)
		}
	}
	if t.pruned.slot = end; end == len(slots) {
		t.pruned.shard, t.pruned.slot = (t.pruned.shard+1)%len(t.shards), 0
	}
	return end - first
}

// slots returns how many slots the shards have.
func (t *RTTTable) slots() (n int) {
	for i := range t.shards {
		n += len(*t.shards[i].slots.Load())
	}
	return n
}

// since returns the row with only those values that are newer than last; nil: there are none.
func (r *RTTRow) since(last RTTMoment) *RTTRow {
	n := 0
	for i := range r.history {
		if r.history[i].newest > last {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	left := makeRow(n, r.epoch)
	n = 0
	for i := range r.history {
		if r.history[i].newest > last {
			left.points[n], left.history[n] = r.points[i], r.history[i]
			n++
		}
	}
	return left.age()
}

// adopt copies the networks of another table with the same prefix lengths, as far as they fit. t is empty.
func (t *RTTTable) adopt(from *RTTTable) {
	t.epoch = from.epoch
	from.each(func(old *rttSlot, row *RTTRow) {
		h := t.hash(old.hi, old.lo)
		sh := t.shard(h)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.live >= t.capacity() {
			return
		}
		if site, never := old.asked.broughtBy(); never {
			t.claim(site, t.max)
		}
		t.insert(sh, h, old, row)
	})
}

// each visits all networks, a shard at a time under its lock.
func (t *RTTTable) each(visit func(*rttSlot, *RTTRow)) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		t.visit(sh, visit)
		sh.mu.Unlock()
	}
}

// visit visits the networks of one shard, whose lock the caller holds.
func (t *RTTTable) visit(sh *rttShard, visit func(*rttSlot, *RTTRow)) {
	slots := *sh.slots.Load()
	for i := range slots {
		if row := slots[i].row.Load(); row != nil && row != t.gone {
			visit(&slots[i], row)
		}
	}
}

// with returns the row with one more sample of the site. r may be nil.
func (r *RTTRow) with(siteID uint16, s *RTTSample, at RTTMoment, epoch *time.Time) *RTTRow {
	us := makeTime32(s.RTT)
	series := makePoint(s.Method, siteID, 0).series()
	var h rttHistory
	if r != nil {
		if i, known := r.search(series); known {
			h = r.history[i]
		}
	}
	if h.repeated(us, at) {
		return r
	}
	passive := s.Method == RTTPassive
	if passive && time.Duration(at-h.newest) > passiveGap {
		h.forget()
	}
	h.add(us, at)
	if passive {
		h.lost = uint16(min(s.Connections, math.MaxUint16))
	}
	return r.put(series, &h, epoch)
}

// without returns the row with one more probe of the site that was lost, by all methods that it had. r may be nil.
func (r *RTTRow) without(siteID uint16, at RTTMoment) *RTTRow {
	next := r
	for i := range r.Len() {
		if p := r.points[i]; p.site() == siteID && p.method() != RTTPassive {
			h := r.history[i]
			if !h.repeated(0, at) {
				h.add(0, at)
				next = next.put(p.series(), &h, r.epoch)
			}
		}
	}
	return next
}

// search returns where the series is, or where it belongs.
func (r *RTTRow) search(series rttPoint) (at int, known bool) {
	return slices.BinarySearchFunc(r.points, series, func(p, series rttPoint) int { return cmp.Compare(p.series(), series) })
}

// put returns the row with the history as that of the series. r may be nil.
func (r *RTTRow) put(series rttPoint, h *rttHistory, epoch *time.Time) *RTTRow {
	if r == nil {
		r = new(RTTRow)
	}
	i, known := r.search(series)
	n := len(r.points)
	if !known {
		n++
	}
	next := makeRow(n, epoch)
	copy(next.points, r.points[:i])
	copy(next.history, r.history[:i])
	copy(next.points[n-len(r.points)+i:], r.points[i:])
	copy(next.history[n-len(r.points)+i:], r.history[i:])
	next.points[i], next.history[i] = series<<rttBits|rttPoint(h.value()), *h
	return next.age()
}
