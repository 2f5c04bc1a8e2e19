package state

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gslbd/geo"
)

const (
	// publishEvery is the least time between two publications that reports or time cause.
	publishEvery = 200 * time.Millisecond
	// tickEvery is how often those that asked are collected, and the Selections of a service decay, if that is little work.
	// More is done in pieces, of pieceMost clients or services every pieceEvery, with rests between: queries wait where there is
	// one core, and all at once took 10 ms with 10,000 services. With more than 25,600 clients and services a pass takes longer
	// than tickEvery. What decays less often decays as much more, which changes nothing between the members of a service.
	tickEvery  = time.Second
	pieceEvery = tickEvery / 100
	pieceMost  = 256
	// sweepEvery is how often targets that stopped asking are dropped and rtt-blind sites are looked for.
	sweepEvery = 10 * time.Second
)

// ErrUnknownSite is returned by Report for a site that the configuration does not name.
var ErrUnknownSite = errors.New("unknown site")

// Options configure a Store.
type Options struct {
	Directory string // where the measured state is kept over a restart; locked; empty: nothing is kept
	Takeover  bool   // what is kept there was written a moment ago, by a process that hands over to this one: nothing was missed since
	Log       *zap.Logger
	Shards    int // workers that count; default 1

	// Now tells the time of a Store that Advance drives; default time.Now. It must not go back.
	Now func() time.Time
}

// A Store holds what is measured and publishes it as Snapshots. Create one with New. All methods are safe for
// concurrent use.
type Store struct {
	// Fixed at construction.
	log      *zap.Logger
	dir      string
	takeover bool
	shards   int
	now      func() time.Time
	began    *time.Time    // when it was made
	wake     chan struct{} // capacity 1; never closed
	asked    *askedSlots
	targets  *targets // has its own lock
	clients  *clients // likewise

	clientSlots *clientSlots

	// Atomic.
	snapshot atomic.Pointer[Snapshot]
	unkept   atomic.Pointer[string] // why the last save failed; nil: it did not
	beat     atomic.Pointer[time.Time]
	changed  atomic.Pointer[chan struct{}] // closed, after another took its place, by announce

	history history // has its own lock
	loads   loads   // likewise

	// Owned by Run, or by whoever calls Advance.
	nextTick, nextDecay, nextSweep time.Time
	collected                      collection

	lock atomic.Pointer[os.File] // of the directory; nil: it could not be taken, or was given up

	// mu protects everything below.
	mu          sync.Mutex
	cfg         Config // with defaults; its Sites and Services are not used after Configure
	configured  bool
	version     uint64
	announced   uint64 // the version that announce told of
	epoch       uint64
	sites       map[string]*site
	siteOrder   []*site
	services    map[string]*service
	svcOrder    []*service
	siteIDs     map[string]uint16     // of every site that this process has known
	serviceIDs  map[string]uint32     // likewise; from 1
	published   []*Service            // of the last snapshot, which shares it; nil where there is none yet
	touched     []*service            // those to be resolved again at the next publication
	timed       map[*service]struct{} // those with due set
	decayNext   int                   // the first service to decay with the next tick
	rtt         *RTTTable
	geo         *geo.DB
	zones       any // of the configuration
	orders      Orders
	dirty       bool
	due         time.Time // the next change that time alone brings; zero: none
	publishedAt time.Time
	blind       blindness
	events      []event // to be logged once mu is free
	restored    *fileState
	unsaved     bool // something that is kept over a restart has changed
}

// An event is a log line that waits until the mutex is free.
type event struct {
	level   zapcore.Level
	msg     string
	fields  []zap.Field
	logOnly bool // it is no part of the history
}

// New opens and locks the state directory, creating it if need be, and reads what was kept there. It fails if that is no
// directory, or if another gslbd holds it. One that cannot be written is no failure: an error is logged, and Unkept tells
// of it until it is mended. Nor is a state file that cannot be read: it is renamed to end in .bad, with a warning.
func New(opts Options) (*Store, error) {
	s := &Store{
		log:        opts.Log,
		dir:        opts.Directory,
		takeover:   opts.Takeover,
		shards:     max(opts.Shards, 1),
		now:        opts.Now,
		wake:       make(chan struct{}, 1),
		asked:      &askedSlots{seed: rand.Uint64() | 1},
		sites:      map[string]*site{},
		services:   map[string]*service{},
		siteIDs:    map[string]uint16{},
		serviceIDs: map[string]uint32{},
		geo:        new(geo.DB),
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.rtt = NewRTTTable(RTTConfig{})
	s.targets = newTargets()
	now := s.now()
	s.beat.Store(&now)
	s.began = &now
	first := make(chan struct{})
	s.changed.Store(&first)
	s.nextTick, s.nextDecay, s.nextSweep = now.Add(tickEvery), now.Add(tickEvery), now.Add(sweepEvery)
	s.clients, s.clientSlots = &clients{since: now, adapted: now}, new(clientSlots)
	if s.dir == "" {
		return s, nil
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return s, nil
}

// Close gives up the lock on the state directory. Run does it by itself when it ends; only a Store that never ran needs
// Close. It may be called more than once.
func (s *Store) Close() error {
	if lock := s.lock.Swap(nil); lock != nil {
		return lock.Close()
	}
	return nil
}

// Snapshot returns the present snapshot; nil before the first Configure. Hot path: one atomic load.
func (s *Store) Snapshot() *Snapshot { return s.snapshot.Load() }

// Beat returns when Run last had published all that was due, which it sees to every second or so; before its first time,
// when New was called. One that is old tells of a Run that hangs. The time is good for time.Since only.
func (s *Store) Beat() time.Time { return *s.beat.Load() }

// Configure applies a configuration and publishes at once. It keeps the state of the sites, services and members that c
// still names, and forgets the others. A member is the same when its service, its name and its site are, or, under
// another name, its service, its site and its addresses. Zero durations and limits mean the defaults.
func (s *Store) Configure(c *Config) {
	now := s.now()
	s.mu.Lock()
	began := Event{Level: zapcore.InfoLevel.String(), Message: "gslbd started"}
	if s.configured {
		began.Message = "configuration loaded"
	}
	s.history.add(now, began)
	s.configure(c, now)
	s.publish(now)
	s.unlock()
	s.kick()
}

// SetGeo publishes another geo database at once; nil stands for one that knows no address.
func (s *Store) SetGeo(db *geo.DB) {
	if db == nil {
		db = new(geo.DB)
	}
	now := s.now()
	s.mu.Lock()
	s.geo = db
	s.targets.setGeo(db)
	if s.configured {
		s.publish(now)
	}
	s.unlock()
	s.kick()
}

// SetOrders sets what operators have ordered, and publishes at once. The Store calls the functions for every member, service
// and site now and at every Configure, never while serving; whoever makes them calls SetOrders again when what they return
// changes.
func (s *Store) SetOrders(o Orders) {
	now := s.now()
	s.mu.Lock()
	s.orders = o
	s.applyOrders()
	s.applySiteOrders()
	if s.configured {
		s.publish(now)
	}
	s.unlock()
	s.kick()
}

// Report applies a site's report, whose age counts from now, and says what the sender should know and measure. It
// returns ErrUnknownSite for a site that is not configured. The change is published by Run. The Store keeps no
// reference to the slices of r.
func (s *Store) Report(r *Report) (ReportResult, error) {
	now := s.now()
	a := newAgentReport(r, now)

	s.mu.Lock()
	st := s.sites[r.Site]
	if st == nil {
		s.mu.Unlock()
		return ReportResult{}, fmt.Errorf("state: report: %w: %q", ErrUnknownSite, r.Site)
	}
	s.receive(st, a)
	holds := st.holder == a.name
	res := ReportResult{Warnings: slices.Clone(st.warnings)}
	if !holds {
		res.Warnings = []string{fmt.Sprintf("agent %q does not hold the site: agent %q does, as long as it reports", a.name, st.holder)}
	}
	s.instruct(&res, st, a, now)
	id := st.id
	s.dirty = true
	s.unlock()
	s.kick()

	s.targets.record(id, r.RTTs, now)
	if holds {
		res.Probe = s.targets.take(id, now)
	}
	return res, nil
}

// Check applies the result of an own check. A result for what is not configured, or not checked, changes nothing. The
// change is published by Run.
func (s *Store) Check(r CheckResult) {
	now := s.now()
	s.mu.Lock()
	svc := s.services[r.Service]
	if svc == nil || !svc.cfg.HasCheck || r.Family > V6 {
		s.mu.Unlock()
		return
	}
	m := svc.member(r.Member)
	if m == nil || !m.has(r.Family) {
		s.mu.Unlock()
		return
	}
	c := &m.health[r.Family].check
	before := *c
	changed := c.apply(r, now)
	news := changed || now.Before(s.blind.thawUntil) // it may end what blindness left, also if it is like the last
	if news {
		s.touch(svc)
	}
	s.dirty = s.dirty || news || s.blind.frozen // a success may end that, likewise
	before.at, before.latency = c.at, c.latency // which are not kept
	s.unsaved = s.unsaved || before != *c
	s.unlock()
	s.kick()
}

// Run publishes what changes until ctx is done, and keeps the state directory up to date. At the end it saves the state
// and gives up the directory's lock. It returns nil, or why the last save failed. It may be called again after it has
// returned, and then takes the lock again and goes on.
func (s *Store) Run(ctx context.Context) error {
	defer s.Close()
	start := s.now()
	s.nextTick, s.nextDecay, s.nextSweep = start.Add(tickEvery), start.Add(tickEvery), start.Add(sweepEvery)
	keep := &keeper{s: s}
	var keeping sync.WaitGroup
	keeping.Go(func() { keep.run(ctx) }) // a slow disk must not hold up publications
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			keeping.Wait()
			return keep.save(time.Now(), true, true, func() error { return nil })
		case <-s.wake:
		case <-timer.C:
		}
		timer.Reset(time.Until(s.Advance()))
	}
}

// Advance does what is due at this moment and returns when something may be due next. Run calls it; only whoever drives a
// Store by a clock of their own (Options.Now) calls it instead of Run, and never from two goroutines at a time.
func (s *Store) Advance() time.Time {
	now := s.now()
	if !now.Before(s.nextTick) {
		s.nextTick = s.tick(now)
	}
	if !now.Before(s.nextDecay) {
		s.nextDecay = now.Add(s.decay(now))
	}
	if !now.Before(s.nextSweep) {
		s.sweep(now)
		s.nextSweep = now.Add(sweepEvery)
	}
	next := s.publishDue(now)
	s.beat.Store(&now)
	for _, at := range []time.Time{s.nextTick, s.nextDecay} {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// publishDue publishes if there is something new and the last publication is long enough ago. It returns when to
// publish next; zero: nothing is due.
func (s *Store) publishDue(now time.Time) time.Time {
	s.mu.Lock()
	defer s.unlock()
	if !s.configured {
		return time.Time{}
	}
	earliest := s.publishedAt.Add(publishEvery)
	wanted := func() bool { return s.dirty || (!s.due.IsZero() && !now.Before(s.due)) }
	if wanted() && !now.Before(earliest) {
		s.publish(now)
		earliest = now.Add(publishEvery)
	}
	switch {
	case wanted():
		return earliest
	case !s.due.IsZero() && s.due.Before(earliest):
		return earliest
	}
	return s.due
}

// A collection is how far a tick has come.
type collection struct {
	began time.Time

	// The slots of those that asked, of their clients, the reservoirs, and the slots of round trips that have had their turn.
	asked, served, adapted, pruned int
}

// tick collects who asked and drops old round trips, or does a piece of that, and returns when to go on.
func (s *Store) tick(now time.Time) time.Time {
	c := &s.collected
	if c.began.IsZero() {
		c.began = now
	}
	rest := resting()
	for done := 0; ; done += restAfter {
		if done == pieceMost {
			return now.Add(pieceEvery)
		}
		left := s.targets.drain(s.asked, &c.asked, restAfter, now)
		left = s.clients.drain(s.clientSlots, &c.served, left, now)
		left = s.clients.adapt(s.clientSlots, &c.adapted, left, now)
		if left = s.targets.prune(&c.pruned, left, now); left > 0 {
			break
		}
		rest()
	}
	s.loads.sample(s.Snapshot(), now)
	next := c.began.Add(tickEvery)
	*c = collection{}
	if soon := now.Add(pieceEvery); next.Before(soon) {
		return soon
	}
	return next
}

// decay decays the Selections of the services whose turn it is, and returns when to do so again.
func (s *Store) decay(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.unlock()
	n := len(s.svcOrder)
	rest := resting()
	for done := range min(n, pieceMost) {
		s.decayNext = (s.decayNext + 1) % n
		if svc := s.svcOrder[s.decayNext]; now.Sub(svc.decayedAt) >= tickEvery {
			svc.decay(now)
		}
		if done%restAfter == restAfter-1 {
			rest()
		}
	}
	if n <= pieceMost {
		return tickEvery
	}
	return pieceEvery
}

// sweep forgets what is too old among the targets, and finds rtt-blind sites.
func (s *Store) sweep(now time.Time) {
	blind := s.targets.sweep(now)
	s.mu.Lock()
	defer s.unlock()
	for _, st := range s.siteOrder {
		if b := blind[st.id]; b != st.rttBlind {
			st.rttBlind, st.rttBlindSince = b, now
			s.dirty = true
			if b {
				s.warn("site rtt-blind", zap.String("site", st.cfg.Name))
			} else {
				s.info("site no longer rtt-blind", zap.String("site", st.cfg.Name))
			}
		}
	}
}

// kick wakes Run.
func (s *Store) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// unlock frees mu and logs what happened under it.
func (s *Store) unlock() {
	events := s.events
	s.events = nil
	if len(events) > 0 {
		past := make([]Event, 0, min(len(events), maxEvents))
		for _, e := range events[max(0, len(events)-maxEvents):] {
			if !e.logOnly {
				past = append(past, e.historic())
			}
		}
		s.history.add(time.Now(), past...)
	}
	s.announce()
	s.mu.Unlock()
	for _, e := range events {
		s.log.Log(e.level, e.msg, e.fields...)
	}
}

func (s *Store) info(msg string, fields ...zap.Field) {
	s.events = append(s.events, event{level: zapcore.InfoLevel, msg: msg, fields: fields})
}

func (s *Store) error(msg string, fields ...zap.Field) {
	s.events = append(s.events, event{level: zapcore.ErrorLevel, msg: msg, fields: fields})
}

func (s *Store) warn(msg string, fields ...zap.Field) {
	s.events = append(s.events, event{level: zapcore.WarnLevel, msg: msg, fields: fields})
}

// logOnly has a line logged that is no part of the history: a site could send it with each report, and so push out what
// happened to others.
func (s *Store) logOnly(level zapcore.Level, msg string, fields ...zap.Field) {
	s.events = append(s.events, event{level, msg, fields, true})
}

// wakeAt asks for a publication at t. The caller holds mu.
func (s *Store) wakeAt(t time.Time) {
	if s.due.IsZero() || t.Before(s.due) {
		s.due = t
	}
}
