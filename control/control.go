package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
)

// Options configure a Control.
type Options struct {
	Directory string // of the journal; "": nothing is kept, which only tests want
	Node      string // this gslbd's name in replies, records and logs
	Store     *state.Store
	Config    Config
	Etcd      *EtcdOptions // nil: orders are not shared
	Log       *zap.Logger  // nil: nothing is logged
}

// Config is what a reload may change of a Control.
type Config struct {
	ZoneAliases    []ZoneAlias
	ReportInterval time.Duration // default 5s; see Evacuation
	Exec           ExecConfig
}

// A ZoneAlias gives other names of a zone, which differ between accounts.
type ZoneAlias struct {
	ID    string
	Names []string
}

// ExecConfig is the operator's program for resources of type exec.
type ExecConfig struct {
	Command []string      // the program and its first arguments; empty: there is none
	Timeout time.Duration // of one run; default 60s

	lock *os.File // that a run inherits; nil: none. See Control.alone
}

// EtcdOptions say how orders are shared.
type EtcdOptions struct {
	Endpoints []string
	Prefix    string      // default "/gslbd"
	TLS       *tls.Config // nil: none
}

// Errors that a refused call wraps; the text says what to do.
var (
	ErrInvalid     = errors.New("invalid")     // 400
	ErrNotFound    = errors.New("not found")   // 404
	ErrRefused     = errors.New("refused")     // 409: it would do harm or makes no sense now
	ErrUnavailable = errors.New("unavailable") // 503: the journal takes no records
	ErrNothing     = errors.New("nothing")     // 200: there is nothing to do for it, so that it does not stand
)

// A Receipt says who has what was ordered.
type Receipt struct {
	ID       string   `json:"id"`
	Node     string   `json:"node"`     // the gslbd that answers
	Shared   string   `json:"shared"`   // "etcd", "on this gslbd only" or "not shared" (no etcd is configured)
	Repeated bool     `json:"repeated"` // it was known already
	Warnings []string `json:"warnings"`
}

// A Caller is who gives an order, for the audit log.
type Caller struct {
	Remote string // address
	Auth   string // "loopback", "token" or "certificate NAME"
}

// A Control keeps orders. All methods are safe for concurrent use. Create one with New, which never fails: what is wrong
// with the journal is told by Problems, and orders are refused until it is put right.
type Control struct {
	// Fixed at construction, but for Reopen.
	opts    Options
	log     *zap.Logger
	journal *journal      // nil: nothing is kept
	etcd    *sharer       // nil: orders are not shared
	wake    chan struct{} // capacity 1; never closed

	// Atomic. What they point to does not change any more.
	set atomic.Pointer[set] // stored with writing held
	cfg atomic.Pointer[Config]

	// evacuating is held from when somebody looks at what an evacuation would leave until it is in force: of two at once, each
	// would count on the members that the other takes. Lock order: evacuating, writing.
	evacuating sync.Mutex

	// writing serialises whatever changes the set, from the journal to the Store, so that the Store never gets an older
	// state after a newer one. It is held while the disk is written: nobody who only reads takes it.
	writing   sync.Mutex
	unkept    map[string]Record // in the set, and not in the journal; by key
	failing   string            // why that is so, as logged
	next      time.Time         // when time alone changes what is in force; zero: never
	appliedAt time.Time         // by the wall clock
	epoch     uint64            // of the snapshot whose names were used
	latchedAt map[string]time.Time

	evac progress // of evacuations; see stepOn

	// mu protects what follows. It is held for moments only; lock order: writing, mu.
	mu    sync.Mutex
	marks map[string]string // what only this gslbd is to know, as journaled
}

// applyEvery is how often Run looks for what the measured state and a clock that was set bring; retryEvery, how often it tries again to
// journal what came from elsewhere.
const (
	applyEvery = time.Second
	retryEvery = 10 * time.Second
)

// New opens the journal and hands the orders in it to the Store, which need not be configured yet: so that they hold from
// its first snapshot on. The other names that services go by are taken from that; see Set.
func New(opts Options) *Control {
	c := &Control{
		opts: opts, log: opts.Log, wake: make(chan struct{}, 1),
		unkept: map[string]Record{}, latchedAt: map[string]time.Time{}, marks: map[string]string{},
	}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	cfg := opts.Config
	c.cfg.Store(&cfg)
	first := newSet()
	if opts.Directory != "" {
		var recs []Record
		c.journal, recs, c.marks = openJournal(opts.Directory)
		for _, r := range recs {
			first.add(r)
		}
		if p := c.journal.problem(); p != "" {
			c.log.Error("orders are refused", zap.String("why", p))
		}
	}
	c.set.Store(first)
	if opts.Etcd != nil {
		c.etcd = newSharer(c, *opts.Etcd)
	}
	c.writing.Lock()
	c.apply(c.now())
	c.writing.Unlock()
	return c
}

// Run applies what time brings, writes the ledger, runs programs and shares records, until ctx is done.
func (c *Control) Run(ctx context.Context) error {
	var sharing sync.WaitGroup
	if c.etcd != nil {
		sharing.Go(func() { c.etcd.run(ctx) })
	}
	ticker := time.NewTicker(applyEvery)
	defer ticker.Stop()
	var purged, retried time.Time
	for {
		now := c.now()
		var due <-chan time.Time // so that what expires leaves the answers when it leaves the list of orders
		if next := c.applyDue(now); !next.IsZero() {
			due = time.After(next.Sub(now))
		}
		c.latch(now)
		c.step(ctx, now)
		if now.Sub(retried) >= retryEvery {
			retried = now
			c.keepUnkept()
		}
		if now.Sub(purged) >= purgeEvery {
			purged = now
			c.missing(ctx, now)
			if c.etcd == nil { // else both are purged together
				c.purge(c.set.Load().purgeable(now, c.gone(now)))
			}
		}
		select {
		case <-ctx.Done():
			sharing.Wait()
			c.evac.wg.Wait()
			return c.Close()
		case <-c.wake:
		case <-due:
		case <-ticker.C:
		}
	}
}

// Close closes the journal. Run does it by itself when it ends. It may be called more than once.
func (c *Control) Close() error {
	if c.etcd != nil {
		c.etcd.close()
	}
	if c.journal == nil {
		return nil
	}
	if err := c.journal.close(); err != nil {
		return fmt.Errorf("control: close: %w", err)
	}
	return nil
}

// Reopen opens again what Close has closed, and Run may follow: the process that was to take the orders over did not come
// up. What that one may have journaled is in force here, too. Nothing else may use c meanwhile.
func (c *Control) Reopen() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.journal != nil {
		j, recs, marks := openJournal(c.opts.Directory)
		c.journal = j
		if p := j.problem(); p != "" {
			c.log.Error("orders are refused", zap.String("why", p))
		} else {
			c.mu.Lock()
			c.marks = marks
			c.mu.Unlock()
		}
		c.adopt(recs, nil)
	}
	if c.opts.Etcd != nil {
		c.etcd = newSharer(c, *c.opts.Etcd)
	}
}

// Set applies another configuration. It is called before the Store's Configure, so that orders by zone hold at once, and
// again after it, for what services are named now.
func (c *Control) Set(cfg Config) {
	c.cfg.Store(&cfg)
	c.writing.Lock()
	c.apply(c.now())
	c.writing.Unlock()
	c.kick()
}

// Problems say what is wrong, for status; empty: nothing.
func (c *Control) Problems() []string {
	var all []string
	if c.journal != nil {
		if p := c.journal.problem(); p != "" {
			all = append(all, p)
		}
	}
	if c.etcd != nil {
		if p := c.etcd.problem(); p != "" {
			all = append(all, p)
		}
	}
	return all
}

// now is the wall clock's time: orders expire by it, on all gslbd and over restarts.
func (c *Control) now() time.Time { return time.Now() }

// kick wakes Run.
func (c *Control) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// accept keeps the records, all of them or none, puts them in force and shares them; on a record that is known already
// it does the rest. shared is as in Receipt and tells of the first, which the others follow from; repeated says that all
// of them were known.
func (c *Control) accept(ctx context.Context, recs ...Record) (shared string, repeated bool, err error) {
	return c.acceptMarked(ctx, nil, recs...)
}

// acceptMarked is accept, and sets in the same transaction marks that only this gslbd is to know; an empty value takes a
// mark away.
func (c *Control) acceptMarked(ctx context.Context, marks map[string]string, recs ...Record) (shared string, repeated bool, err error) {
	c.writing.Lock()
	fresh, err := c.news(recs)
	if err == nil {
		err = c.write(fresh, recs, marks)
	}
	if err == nil && (len(fresh) > 0 || len(marks) > 0) {
		if c.etcd != nil { // before it is in force, or a comparison would take it for one that etcd had and has lost
			c.etcd.offer(fresh)
		}
		c.adopt(fresh, marks)
	}
	c.writing.Unlock()
	if err != nil {
		return "", false, err
	}
	if c.etcd == nil {
		return notShared, len(fresh) == 0, nil
	}
	if len(recs) == 0 || c.etcd.share(ctx, recs[0]) {
		return byEtcd, len(fresh) == 0, nil
	}
	return onlyHere, len(fresh) == 0, nil
}

// What Receipt.Shared says.
const (
	byEtcd    = "etcd"
	onlyHere  = "on this gslbd only"
	notShared = "not shared"
)

// write journals fresh, and those of recs that are known and that it has not taken: nobody is told that something is
// accepted that is not on the disk here. The caller holds writing.
func (c *Control) write(fresh, recs []Record, marks map[string]string) error {
	if c.journal == nil {
		return nil
	}
	out := slices.Clone(fresh)
	for _, r := range recs {
		old, ok := c.unkept[r.key()]
		if ok && !slices.ContainsFunc(fresh, func(f Record) bool { return f.key() == r.key() }) {
			out = append(out, old)
		}
	}
	if len(out) == 0 && len(marks) == 0 {
		return nil
	}
	if err := c.journal.write(out, marks); err != nil {
		return err
	}
	for _, r := range out {
		delete(c.unkept, r.key())
	}
	return nil
}

// news returns those of recs that add to the set, as they must be kept. An id that is known with other content is
// refused. The caller holds writing.
func (c *Control) news(recs []Record) ([]Record, error) {
	set := c.set.Load()
	var fresh []Record
	for _, r := range recs {
		if err := r.validate(); err != nil {
			return nil, err
		}
		if err := set.conflict(r); err != nil {
			return nil, err
		}
		if m, added := set.merged(r); added {
			fresh = append(fresh, m)
		}
	}
	return fresh, nil
}

// conflict reports that the record's id is known with another content, where only the client can have done that.
func (s *set) conflict(r Record) error {
	kind, id := r.kind()
	old, ok := s.record(kind, id)
	if !ok || same(old, r) || (kind != "order" && kind != "evacuation" && kind != "restoration") {
		return nil
	}
	// What was merged with it meanwhile does not count. Who gave an evacuation first is all that is left of the others.
	e, is := old.Evacuation, r.Evacuation
	if same(merge(old, r), old) && (e == nil || (e.Created.Equal(is.Created) && e.Author == is.Author && e.Reason == is.Reason)) {
		return nil
	}
	return fmt.Errorf("control: %w: %s %s is known with another content; a new one needs an id of its own", ErrRefused, kind, id)
}

// arrived adds records that came from elsewhere.
func (c *Control) arrived(recs []Record) {
	for _, r := range c.hold(recs) {
		kind, id := r.kind()
		c.log.Info("record arrived by etcd", zap.String("kind", kind), zap.String("id", id))
	}
}

// ours adds records that this gslbd makes by itself, and shares them. It waits for nothing but the disk.
func (c *Control) ours(recs []Record) {
	fresh := c.hold(recs)
	if c.etcd != nil {
		c.etcd.offer(fresh)
	}
}

// hold adds records that no caller waits for, and returns those that are new. What the journal does not take is in force
// all the same, and tried again: what ends must end on a full disk, too.
func (c *Control) hold(recs []Record) (fresh []Record) {
	c.writing.Lock()
	defer c.writing.Unlock()
	set := c.set.Load()
	for _, r := range recs {
		if m, added := set.merged(r); added {
			fresh = append(fresh, m)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	err := c.write(fresh, nil, nil)
	c.kept(err)
	if err != nil {
		for _, r := range fresh {
			c.unkept[r.key()] = r
		}
	}
	c.adopt(fresh, nil)
	return fresh
}

// kept logs when records that are in force cannot be journaled, and when they are. The caller holds writing.
func (c *Control) kept(err error) {
	switch {
	case err != nil && err.Error() != c.failing:
		c.failing = err.Error()
		c.log.Error("records in force are not on the disk", zap.Error(err))
	case err == nil && c.failing != "":
		c.failing = ""
		c.log.Info("records in force are on the disk")
	}
}

// adopt makes a new set with the records, and hands it to the Store. The caller holds writing.
func (c *Control) adopt(fresh []Record, marks map[string]string) {
	next := c.set.Load().clone()
	for _, r := range fresh {
		next.add(r)
	}
	c.set.Store(next)
	c.mu.Lock()
	for k, v := range marks {
		if c.marks[k] = v; v == "" {
			delete(c.marks, k)
		}
	}
	c.mu.Unlock()
	c.apply(c.now())
	c.kick()
}

// mark returns the value of a mark; "": there is none.
func (c *Control) mark(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[key]
}

// keepUnkept tries again to journal what it did not take, and to make a journal that could not be made.
func (c *Control) keepUnkept() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.journal != nil && c.journal.retry(c.found) {
		clear(c.unkept)
		c.kept(nil)
		c.log.Info("orders are accepted again")
	}
	if len(c.unkept) > 0 {
		c.kept(c.write(slices.Collect(maps.Values(c.unkept)), nil, nil))
	}
}

// found puts in force what a journal holds that was read late, and returns all that it is to hold. The caller holds writing.
func (c *Control) found(recs []Record, marks map[string]string) ([]Record, map[string]string) {
	var fresh []Record
	set := c.set.Load()
	for _, r := range recs {
		if m, added := set.merged(r); added {
			fresh = append(fresh, m)
		}
	}
	c.mu.Lock()
	maps.Copy(marks, c.marks)
	known := len(c.marks)
	c.mu.Unlock()
	if len(fresh) > 0 || len(marks) > known {
		c.adopt(fresh, marks)
	}
	if c.etcd != nil {
		c.etcd.offer(fresh)
	}
	return slices.Collect(c.set.Load().all()), marks
}

// missing marks the services that latches and failbacks are of and that are not configured, with the time at which that
// was first seen.
func (c *Control) missing(ctx context.Context, now time.Time) {
	snap := c.opts.Store.Snapshot()
	if snap == nil {
		return
	}
	marks := map[string]string{}
	latched := c.set.Load().latchesInForce()
	for service := range latched {
		if snap.ServiceByName(service) == nil && c.mark(goneMark+service) == "" {
			marks[goneMark+service] = clock(now)
		}
	}
	c.mu.Lock()
	for key := range c.marks {
		service, ok := strings.CutPrefix(key, goneMark)
		if _, known := latched[service]; ok && (!known || snap.ServiceByName(service) != nil) {
			marks[key] = ""
		}
	}
	c.mu.Unlock()
	if len(marks) > 0 {
		_ = c.keep(ctx, marks) // Problems tells, and it is tried again
	}
}

// goneMark begins the mark of a service that is not configured.
const goneMark = "gone/"

// gone returns the services that have not been configured for keepEnded.
func (c *Control) gone(now time.Time) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := map[string]bool{}
	for key, since := range c.marks {
		if service, ok := strings.CutPrefix(key, goneMark); ok {
			at, err := time.Parse(time.RFC3339, since)
			gone[service] = err == nil && now.Sub(at) > keepEnded
		}
	}
	return gone
}

// purge takes records out of the journal and the set.
func (c *Control) purge(recs []Record) {
	if len(recs) == 0 {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.journal != nil && c.journal.remove(recs) != nil {
		return
	}
	next := c.set.Load().clone()
	for _, r := range recs {
		next.remove(r.kind())
		delete(c.unkept, r.key())
	}
	c.set.Store(next)
}

// A view is all that decides what is in force at one moment. It does not change.
type view struct {
	*set
	now   time.Time
	cfg   *Config
	names *names
	snap  *state.Snapshot // nil before the Store was configured

	once sync.Once
	pic  *picture // see picture()
}

// view returns the present view as of now.
func (c *Control) view(now time.Time) *view {
	snap := c.opts.Store.Snapshot()
	cfg := c.cfg.Load()
	return &view{set: c.set.Load(), now: now, cfg: cfg, names: newNames(*cfg, snap), snap: snap}
}

// apply hands what is in force to the Store. The caller holds writing.
func (c *Control) apply(now time.Time) {
	v := c.view(now)
	c.opts.Store.SetOrders(v.orders())
	if !c.appliedAt.IsZero() { // what expired before the start is in the history only
		for _, e := range v.expired() {
			if e.Time.After(c.appliedAt.Round(0)) {
				_, id, _ := strings.Cut(strings.TrimSuffix(e.ID, "/expired"), "/")
				c.log.Info(e.Message, zap.String("id", id), zap.String("target", e.Target), zap.Time("expired", e.Time))
			}
		}
	}
	c.appliedAt = now
	c.next = v.nextChange()
	for _, o := range v.ordersInForce(now) {
		if !o.Expires.IsZero() && (c.next.IsZero() || o.Expires.Before(c.next)) {
			c.next = o.Expires
		}
	}
	if v.snap != nil {
		c.epoch = v.snap.Epoch
	}
}

// applyDue applies what time or a reload has changed. A clock that was set back counts as a change: what had expired
// may be in force again, as it is for a gslbd that starts now. It returns when time alone brings the next change; zero:
// never.
func (c *Control) applyDue(now time.Time) (next time.Time) {
	c.writing.Lock()
	defer c.writing.Unlock()
	snap := c.opts.Store.Snapshot()
	reloaded := snap != nil && snap.Epoch != c.epoch
	due := !c.next.IsZero() && !now.Before(c.next)
	if reloaded || due || now.Round(0).Before(c.appliedAt.Round(0)) {
		c.apply(now)
	}
	return c.next
}

// An OrderState is an order in force.
type OrderState struct {
	Order
	Shared  string `json:"shared"`  // as in Receipt
	Members int    `json:"members"` // that it matches now
}
