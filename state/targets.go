package state

import (
	"cmp"
	"container/heap"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gslbd/geo"
)

const (
	// maxProbes is the most targets of one response to a report (docs/agent.md).
	maxProbes = 2000
	// askedSlotCount is how many resolvers may ask within one tick and be noticed; more wait for another tick.
	askedSlotCount = 8192
	// maxSeen bounds each of the two generations of addresses that asked only once.
	maxSeen = 65536
	// A tick prunes the part of the round trips that has them all pruned within pruneTicks, but no fewer than pruneLeast slots,
	// of which pruneSlots cost as much as to take in one who asked.
	pruneTicks = 160
	pruneLeast = 4096
	pruneSlots = 16
	// rttBlindMin is the least number of resolvers that others reach for a site to be called rtt-blind.
	rttBlindMin = 5
	// leadFor is how long at most all sites try first the method that one of them needs. It ends at multiples of it, so that
	// all gslbd, whose agents measure for all of them, go back to the configured order at the same time.
	leadFor = 6 * time.Hour
)

// askedSlots collects who asked for what within one tick, in fixed memory.
type askedSlots struct {
	seed uint64 // fixed at construction; random, so that nobody can choose addresses that share a slot

	// A slot is free, busy, or full: then its state is the hash of who asked for what, with slotFull and perhaps askedTwice in
	// its last bits. Most queries find that they are known already, and read nothing else.
	states [askedSlotCount]atomic.Uint64
	slots  [askedSlotCount]askedSlot
}

// An askedSlot is owned by whoever took its state from free, or from full, to busy. Nobody else reads or writes it.
type askedSlot struct {
	hi, lo  uint64
	service uint32
}

const (
	slotFree = iota
	slotBusy
	slotFull

	askedTwice = 4
	slotBits   = 7 // of a state that are not the hash
)

// Asked records that a resolver asked for the service, so that sites may measure it. A call that finds no room is
// forgotten: whoever matters asks again. Hot path: no lock, no allocation.
func (s *Store) Asked(ldns netip.Addr, service *Service) {
	if !service.usesRTT || service.id == 0 || !ldns.IsValid() {
		return
	}
	s.asked.note(ldns, service.id)
}

func (a *askedSlots) note(addr netip.Addr, service uint32) {
	hi, lo := halves(addr)
	h := mix(hi, lo^uint64(service)<<32, a.seed)
	full := h&^slotBits | slotFull
	for i := range uint64(4) {
		at := (h>>32 + i) % askedSlotCount
		state := &a.states[at]
		switch state.Load() {
		case slotFree:
			if !state.CompareAndSwap(slotFree, slotBusy) {
				continue
			}
			a.slots[at] = askedSlot{hi, lo, service}
			state.Store(full)
			return
		case full:
			state.CompareAndSwap(full, full|askedTwice)
			return
		case full | askedTwice: // it need not be written, and its line stays shared between cores
			return
		}
	}
}

// A targetSite is a site that may probe.
type targetSite struct {
	id       uint16
	location *Location
}

// A target is one client network, and the resolver in it that stands for it.
type target struct {
	addr       netip.Addr
	asked      time.Time
	reached    time.Time // when a site last reached it
	dropped    bool      // no longer a target; queues still hold it
	epoch      uint64    // of candidates
	candidates []uint16  // the sites of the services that were asked for
	sites      []uint16  // those of them that are to probe it
	probes     []probe   // of sites, and of those that once were
	lead       int       // the configured method that the sites try first
	leadUntil  time.Time
}

// A probe is what one site did about a target.
type probe struct {
	site   uint16
	queued bool // it stands in the site's queue
	at     time.Time
	ok     bool      // the result at at
	method RTTMethod // if ok, what was answered; RTTMethods: forgotten
}

// probe returns what the site did, or nil if it was never to probe t.
func (t *target) probe(site uint16) *probe {
	for i := range t.probes {
		if t.probes[i].site == site {
			return &t.probes[i]
		}
	}
	return nil
}

// silent reports whether the site's last result was a loss, and no site has reached t for two refreshes. A site that
// reaches nobody, because its ICMP is blocked, therefore silences a resolver for itself only.
func (t *target) silent(p *probe, now time.Time, refresh time.Duration) bool {
	return !p.at.IsZero() && !p.ok && now.Sub(t.reached) >= 2*refresh
}

// agree has all sites try first what p's site has needed twice running, if it was to try something else before that. Each
// method has its bias, and sites of which one was answered by ping and one by DNS could not be compared. at is the time of
// an answer by the method, the last that p has not taken in.
func (t *target) agree(p *probe, method RTTMethod, at time.Time, methods []RTTMethod) {
	if t.lead == 0 && at.Before(t.leadUntil.Add(time.Minute)) {
		return // measured by the order of before
	}
	// A result that is sent again is the same one.
	twice := p.ok && p.method == method && at.Sub(p.at) >= time.Second
	if i := slices.Index(methods, method); twice && i > t.lead {
		t.lead, t.leadUntil = i, at.Truncate(leadFor).Add(leadFor)
	}
	p.method = method
}

// leadOver goes back to the configured order when it is time to see whether that does again for all sites.
func (t *target) leadOver(now time.Time) {
	if t.lead == 0 || now.Before(t.leadUntil) {
		return
	}
	t.lead = 0
	for i := range t.probes {
		t.probes[i].method = RTTMethods
	}
}

// A queue holds a site's targets by when they are due.
type queue []queued

type queued struct {
	due time.Time
	t   *target
}

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(queued)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = queued{}
	*q = old[:len(old)-1]
	return last
}

// compact forgets dropped targets when the queue is longer than most. A site that does not report never takes them out.
func (q *queue) compact(most int) {
	if len(*q) <= most {
		return
	}
	*q = slices.DeleteFunc(*q, func(i queued) bool { return i.t.dropped })
	heap.Init(q)
}

// targets knows which resolvers the sites shall measure, and feeds the RTT table with what they measured.
type targets struct {
	mu sync.Mutex
	// All guarded by mu.
	cfg      RTTConfig
	epoch    uint64 // counts configurations
	table    *RTTTable
	geo      *geo.DB
	orders   [][]RTTMethod // the configured methods, by which of them leads
	sites    map[uint16]targetSite
	services map[uint32][]uint16
	all      map[netip.Prefix]*target
	queues   map[uint16]*queue

	// The addresses that asked once, in two generations, so that the older can be forgotten whole.
	seen, seenBefore map[netip.Addr]struct{}
	seenAt           time.Time
}

func newTargets() *targets {
	return &targets{
		geo: new(geo.DB), all: map[netip.Prefix]*target{}, queues: map[uint16]*queue{},
		seen: map[netip.Addr]struct{}{}, seenBefore: map[netip.Addr]struct{}{},
	}
}

func (ts *targets) setGeo(db *geo.DB) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.geo = db
	ts.epoch++ // the nearest sites may be others
}

// configure applies another configuration. Targets stay; who probes them is worked out again as they ask.
func (ts *targets) configure(c RTTConfig, table *RTTTable, sites []targetSite, services map[uint32][]uint16) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.table != nil && (ts.cfg.PrefixV4 != c.PrefixV4 || ts.cfg.PrefixV6 != c.PrefixV6) {
		ts.forgetAll()
	}
	if !slices.Equal(ts.cfg.Methods, c.Methods) {
		for _, t := range ts.all {
			t.lead = 0
		}
	}
	ts.cfg, ts.table, ts.services = c, table, services
	ts.epoch++
	ts.orders = nil
	for i, lead := range c.Methods {
		ts.orders = append(ts.orders, slices.Concat([]RTTMethod{lead}, c.Methods[:i], c.Methods[i+1:]))
	}
	ts.sites = make(map[uint16]targetSite, len(sites))
	for _, st := range sites {
		ts.sites[st.id] = st
	}
	for id := range ts.queues {
		if _, ok := ts.sites[id]; !ok {
			delete(ts.queues, id)
		}
	}
	if len(services) == 0 {
		ts.forgetAll()
	}
	for key, t := range ts.all {
		if ts.exempt(t.addr) {
			ts.drop(key, t)
		}
	}
}

func (ts *targets) forgetAll() {
	for key, t := range ts.all {
		ts.drop(key, t)
	}
	ts.queues = map[uint16]*queue{}
}

func (ts *targets) drop(key netip.Prefix, t *target) {
	t.dropped = true
	delete(ts.all, key)
}

func (ts *targets) exempt(addr netip.Addr) bool {
	return slices.ContainsFunc(ts.cfg.Exempt, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// drain takes in who asked since the last tick: up to most of them, those in the slots from at on, which it moves on. It returns
// how many more it could have taken.
func (ts *targets) drain(a *askedSlots, at *int, most int, now time.Time) int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if now.Sub(ts.seenAt) >= ts.cfg.Refresh || len(ts.seen) >= maxSeen {
		ts.seenBefore, ts.seen, ts.seenAt = ts.seen, map[netip.Addr]struct{}{}, now
	}
	for ; *at < len(a.slots) && most > 0; *at++ {
		state := &a.states[*at]
		was := state.Load()
		if was&slotFull == 0 || !state.CompareAndSwap(was, slotBusy) {
			continue
		}
		sl := a.slots[*at]
		state.Store(slotFree)
		ts.ask(join128(sl.hi, sl.lo).Unmap(), sl.service, was&askedTwice != 0, now)
		most--
	}
	return most
}

// ask records that addr asked for the service, more than once or not.
func (ts *targets) ask(addr netip.Addr, service uint32, twice bool, now time.Time) {
	sites := ts.services[service]
	if len(sites) == 0 || !probeable(addr) || ts.exempt(addr) {
		return
	}
	key := ts.table.Key(addr)
	t := ts.all[key]
	if t == nil || t.addr != addr {
		_, before := ts.seenBefore[addr]
		if _, ok := ts.seen[addr]; !ok && !before && !twice {
			ts.seen[addr] = struct{}{}
			return
		}
	}
	switch {
	case t == nil:
		if len(ts.all) >= ts.cfg.MaxTargets {
			ts.makeRoom()
		}
		t = &target{addr: addr}
		ts.all[key] = t
	case t.addr != addr && slices.ContainsFunc(t.probes, func(p probe) bool { return t.silent(&p, now, ts.cfg.Refresh) }):
		// The one that stood for the network is silent; perhaps this one is not.
		t.addr, t.lead = addr, 0
		for i := range t.probes {
			t.probes[i].at, t.probes[i].ok = time.Time{}, false
		}
	}
	t.asked = now
	if t.epoch != ts.epoch {
		t.epoch, t.candidates = ts.epoch, nil
	}
	known := len(t.candidates)
	for _, id := range sites {
		if !slices.Contains(t.candidates, id) {
			t.candidates = append(t.candidates, id)
		}
	}
	if len(t.candidates) > known {
		ts.assign(t, now)
	}
}

// makeRoom drops the target that asked the longest ago among a few that the map happens to give.
func (ts *targets) makeRoom() {
	var oldest *target
	var at netip.Prefix
	n := 0
	for key, t := range ts.all {
		if oldest == nil || t.asked.Before(oldest.asked) {
			oldest, at = t, key
		}
		if n++; n == 8 {
			break
		}
	}
	if oldest != nil {
		ts.drop(at, oldest)
	}
}

// assign chooses the sites that probe t: the nearest of the candidates. Those whose distance is unknown come last, in a
// stable order.
func (ts *targets) assign(t *target, now time.Time) {
	type near struct {
		id       uint16
		distance float64
	}
	sites := make([]near, 0, len(t.candidates))
	where := ts.geo.Lookup(t.addr).Location
	for _, id := range t.candidates {
		n := near{id: id, distance: geo.EarthRadiusKm * 4} // farther than anything on the globe
		if at := ts.sites[id].location; where != nil && at != nil && where.HasCoordinates && at.HasCoordinates {
			n.distance = geo.DistanceKm(where, at)
		}
		sites = append(sites, n)
	}
	slices.SortStableFunc(sites, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.id, b.id))
	})
	t.sites = t.sites[:0]
	for _, n := range sites[:min(len(sites), ts.cfg.MaxSites)] {
		t.sites = append(t.sites, n.id)
		p := t.probe(n.id)
		if p == nil {
			t.probes = append(t.probes, probe{site: n.id})
			p = &t.probes[len(t.probes)-1]
		}
		if !p.queued {
			p.queued = true
			due := now
			if !p.at.IsZero() {
				due = p.at.Add(ts.cfg.Refresh)
			}
			ts.push(n.id, queued{due, t})
		}
	}
}

func (ts *targets) push(site uint16, item queued) {
	q := ts.queues[site]
	if q == nil {
		q = new(queue)
		ts.queues[site] = q
	}
	heap.Push(q, item)
}

// take returns what the site shall measure now. Each target is due again a refresh later, whether or not its result
// comes back; one that this site did not reach, and no other either, silent_for after that.
func (ts *targets) take(site uint16, now time.Time) []ProbeTarget {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	q := ts.queues[site]
	if q == nil {
		return nil
	}
	var out []ProbeTarget
	for len(*q) > 0 && len(out) < maxProbes && !now.Before((*q)[0].due) {
		t := (*q)[0].t
		p := t.probe(site)
		switch {
		case t.dropped || !slices.Contains(t.sites, site):
			heap.Pop(q)
			p.queued = false
		case t.silent(p, now, ts.cfg.Refresh) && now.Before(p.at.Add(ts.cfg.SilentFor)):
			(*q)[0].due = p.at.Add(ts.cfg.SilentFor)
			heap.Fix(q, 0)
		default:
			t.leadOver(now)
			out = append(out, ProbeTarget{t.addr, ts.orders[t.lead]})
			(*q)[0].due = now.Add(ts.cfg.Refresh)
			heap.Fix(q, 0)
		}
	}
	return out
}

// record takes in what a site measured.
func (ts *targets) record(site uint16, samples []RTTSample, now time.Time) {
	if len(samples) == 0 {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.table == nil {
		return
	}
	// A quarter of the table is for networks that never asked here, in equal parts for the sites.
	quota := max(ts.cfg.MaxTargets/4/max(len(ts.sites), 1), 1)
	for i := range samples {
		s := &samples[i]
		var asked time.Time
		switch t := ts.all[ts.table.Key(s.Resolver)]; {
		case t == nil:
		case s.Method == RTTPassive: // of the network's clients: nothing that the site did about the resolver
			asked = t.asked
		default:
			p := t.probe(site)
			if p == nil { // not among the sites that are to probe it: another gslbd asked for this
				continue
			}
			asked = t.asked
			at := now.Add(-s.Age)
			if !at.Before(p.at) {
				if !s.Lost {
					t.agree(p, s.Method, at, ts.cfg.Methods)
				}
				p.at, p.ok = at, !s.Lost
			}
			if !s.Lost && at.After(t.reached) {
				t.reached = at
			}
		}
		ts.table.add(site, s, now, asked, quota)
	}
}

// sweep drops the targets that nobody asks for any more, and returns the sites that are rtt-blind.
func (ts *targets) sweep(now time.Time) map[uint16]bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.survey(now)
}

// prune drops round trips that are too old, in a part of the table, of which at counts the slots that have had their turn in
// this tick. It takes most as drain does, for pruneSlots slots each, and returns as drain does.
func (ts *targets) prune(at *int, most int, now time.Time) int {
	ts.mu.Lock()
	table, keep := ts.table, max(rttKeep, 4*ts.cfg.Refresh)
	ts.mu.Unlock()
	if table == nil {
		return most
	}
	all := table.slots()
	for part := max(all/pruneTicks, min(all, pruneLeast)); *at < part && most > 0; {
		n := table.prune(now, keep, pruneSlots*most)
		*at += n
		most -= (n + pruneSlots - 1) / pruneSlots
	}
	return most
}

// survey drops the targets that nobody asks for any more, and returns the sites that are rtt-blind: those that in the
// last refresh reached none of at least rttBlindMin resolvers that they tried and others reached. The caller holds mu.
func (ts *targets) survey(now time.Time) map[uint16]bool {
	// A result is of the last refresh as long as the next one cannot have come: it is handed out with a report, measured,
	// and comes back with another.
	recent := ts.cfg.Refresh + time.Minute
	missed, reached := map[uint16]int{}, map[uint16]int{}
	rest, looked := resting(), 0
	for key, t := range ts.all {
		if looked++; looked%restAfter == 0 {
			rest()
		}
		if now.Sub(t.asked) >= 2*ts.cfg.Refresh {
			ts.drop(key, t)
			continue
		}
		anyone := false
		for i := range t.probes {
			p := &t.probes[i]
			anyone = anyone || (p.ok && now.Sub(p.at) < recent)
		}
		if !anyone {
			continue
		}
		for i := range t.probes {
			p := &t.probes[i]
			switch {
			case p.at.IsZero() || now.Sub(p.at) >= recent:
			case p.ok:
				reached[p.site]++
			default:
				missed[p.site]++
			}
		}
	}
	for _, q := range ts.queues {
		q.compact(2*len(ts.all) + 1024)
	}
	blind := map[uint16]bool{}
	for site, n := range missed {
		blind[site] = n >= rttBlindMin && reached[site] == 0
	}
	return blind
}
