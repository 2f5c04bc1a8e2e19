package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

const (
	shareFor     = 500 * time.Millisecond // how long an order waits for etcd
	callFor      = 3 * time.Second        // how long anything else does
	compareEvery = time.Minute
	// redeliverEvery is how often records that etcd lacks are tried again while an endpoint seems well.
	redeliverEvery = 2 * time.Second
	backoffMin     = 200 * time.Millisecond
	backoffMax     = 3 * time.Second
	// A transaction of etcd takes 128 operations and 1.5 MB.
	batchRecords = 100
	batchBytes   = maxRecord
)

// A sharer shares records through etcd. Each endpoint has a client, a watch and comparisons of its own, and a record
// goes to all of them at once: records are never altered, so that doing it several times does no harm, and an endpoint
// that hangs holds nobody up.
type sharer struct {
	// Fixed at construction.
	c         *Control
	prefix    string // ends in "/"
	endpoints []*endpoint

	// mu protects what follows.
	mu      sync.Mutex
	pending map[string]Record // that etcd is not known to have, by key
	failed  error             // why the last order could not be delivered at once; nil: it was
	warned  map[string]int64  // keys of etcd that cannot be read, at which revision that was logged
	closed  bool
	flying  sync.WaitGroup // deliveries under way; only added to while not closed
}

// An endpoint is one member of etcd.
type endpoint struct {
	name   string
	client *clientv3.Client // nil: it could not be made
	wake   chan struct{}    // capacity 1; never closed: something is to be delivered
	link   link

	// Guarded by sharer.mu.
	well bool
	err  error // why not; nil: it was not tried yet
}

func newSharer(c *Control, o EtcdOptions) *sharer {
	s := &sharer{c: c, prefix: strings.TrimSuffix(o.Prefix, "/"), pending: map[string]Record{}, warned: map[string]int64{}}
	if s.prefix == "" {
		s.prefix = "/gslbd"
	}
	s.prefix += "/records/"
	for r := range c.set.Load().all() {
		s.pending[r.key()] = r
	}
	// The client's own messages are for whoever debugs it.
	quiet := c.log.Named("etcd").WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return demoted{core} }))
	for _, name := range o.Endpoints {
		ep := &endpoint{name: name, wake: make(chan struct{}, 1), link: link{renewed: make(chan struct{}, 1)}}
		ep.client, ep.err = clientv3.New(clientv3.Config{
			Endpoints: []string{name}, Logger: quiet, MaxUnaryRetries: 1,
			DialOptions: []grpc.DialOption{
				grpc.WithTransportCredentials(ep.link.credentials(o.TLS)),
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: backoffMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoffMax},
					MinConnectTimeout: callFor,
				}),
				grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: callFor}),
			},
		})
		s.endpoints = append(s.endpoints, ep)
	}
	return s
}

// demoted writes everything at debug.
type demoted struct{ zapcore.Core }

func (d demoted) Enabled(zapcore.Level) bool          { return d.Core.Enabled(zapcore.DebugLevel) }
func (d demoted) With(f []zapcore.Field) zapcore.Core { return demoted{d.Core.With(f)} }
func (d demoted) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	e.Level = zapcore.DebugLevel
	return d.Core.Check(e, ce)
}

// run keeps every endpoint compared and watched until ctx is done.
func (s *sharer) run(ctx context.Context) {
	var all sync.WaitGroup
	for _, ep := range s.endpoints {
		if ep.client == nil {
			s.c.log.Error("etcd endpoint cannot be used", zap.String("endpoint", ep.name), zap.Error(ep.err))
			continue
		}
		all.Go(func() { s.follow(ctx, ep) })
	}
	all.Wait()
}

// follow compares and watches one endpoint, again after each error.
func (s *sharer) follow(ctx context.Context, ep *endpoint) {
	wait := backoffMin
	for {
		compared, err := s.watch(ctx, ep)
		if ctx.Err() != nil {
			return
		}
		s.note(ep, ep.link.explain(err))
		if compared {
			wait = backoffMin
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, backoffMax)
	}
}

// note keeps how an endpoint is, and logs when that changes.
func (s *sharer) note(ep *endpoint, err error) {
	s.mu.Lock()
	changed := ep.well != (err == nil) || (err != nil && ep.err == nil)
	ep.well, ep.err = err == nil, err
	s.mu.Unlock()
	switch {
	case !changed:
	case err == nil:
		s.c.log.Info("etcd endpoint answers", zap.String("endpoint", ep.name))
	default:
		s.c.log.Warn("etcd endpoint away", zap.String("endpoint", ep.name), zap.Error(err))
	}
}

// watch compares, and takes what arrives from then on, until something fails. compared says that the first comparison
// went well.
func (s *sharer) watch(ctx context.Context, ep *endpoint) (compared bool, err error) {
	select { // a connection that was made before this comparison needs no other
	case <-ep.link.renewed:
	default:
	}
	rev, err := s.compare(ctx, ep)
	if err != nil {
		return false, err
	}
	s.note(ep, nil)
	// Without a leader nothing would arrive, and nothing would say so.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := ep.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(rev+1))
	last := time.Now()
	ticker := time.NewTicker(redeliverEvery)
	defer ticker.Stop()
	again := func() error {
		last = time.Now()
		now, err := s.compare(ctx, ep)
		if err == nil && now < rev { // the watch would wait until it has come so far again
			err = fmt.Errorf("it went back from revision %d to %d", rev, now)
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-ep.link.renewed: // it may have been begun anew, or restored from a backup
			if err := again(); err != nil {
				return true, err
			}
		case <-ep.wake:
			if err := s.deliver(ctx, ep, s.undelivered()); err != nil {
				return true, err
			}
		case <-ticker.C:
			if time.Since(last) < compareEvery {
				err = s.deliver(ctx, ep, s.undelivered())
			} else {
				err = again()
			}
			if err != nil {
				return true, err
			}
		case w, ok := <-events:
			recs, upTo, err := s.take(events, w, ok)
			rev = max(rev, upTo)
			s.seen(recs)
			if err != nil {
				return true, err
			}
		}
	}
}

// take returns the records of w and of all that has arrived behind it, to be dealt with as one, and up to which revision of
// etcd they are.
func (s *sharer) take(events clientv3.WatchChan, w clientv3.WatchResponse, ok bool) (recs []Record, rev int64, err error) {
	for {
		if !ok {
			return recs, rev, errors.New("the watch ended")
		}
		if err := w.Err(); err != nil {
			return recs, rev, err
		}
		rev = max(rev, w.Header.Revision)
		for _, ev := range w.Events {
			if ev.Type != clientv3.EventTypePut { // what is deleted has ended long ago, or comes back at the next comparison
				continue
			}
			if r, ok := s.decode(string(ev.Kv.Key), ev.Kv.Value, ev.Kv.ModRevision); ok {
				recs = append(recs, r)
			}
		}
		select {
		case w, ok = <-events:
		default:
			return recs, rev, nil
		}
	}
}

// decode reads a record of etcd. One that cannot be read is left alone, and logged once.
func (s *sharer) decode(key string, value []byte, rev int64) (Record, bool) {
	r, err := decodeRecord(value)
	if err == nil && s.prefix+r.key() != key {
		err = fmt.Errorf("it belongs to %s", r.key())
	}
	if err == nil {
		return r, true
	}
	s.mu.Lock()
	old, known := s.warned[key]
	s.warned[key] = rev
	s.mu.Unlock()
	if !known || old != rev {
		s.c.log.Warn("record in etcd cannot be read and is left alone", zap.String("key", quote(key)), zap.Error(err))
	}
	return Record{}, false
}

// seen takes records that etcd has.
func (s *sharer) seen(recs []Record) {
	s.c.arrived(recs)
	set := s.c.set.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range recs {
		ours, ok := set.record(r.kind())
		switch {
		case ok && same(ours, r):
			if p, pending := s.pending[r.key()]; pending && same(merge(p, r), r) { // else it is newer than the set
				delete(s.pending, r.key())
			}
		case ok:
			if p, pending := s.pending[r.key()]; pending {
				ours = merge(ours, p)
			}
			s.pending[r.key()] = ours
		}
	}
}

// compare delivers both ways what either side lacks, and purges both. It returns the revision of etcd that it saw.
func (s *sharer) compare(ctx context.Context, ep *endpoint) (rev int64, err error) {
	s.mu.Lock()
	before, undelivered := s.c.set.Load(), maps.Clone(s.pending)
	s.mu.Unlock()
	get, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	resp, err := ep.client.Get(get, s.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	var theirs []Record
	there := map[string]bool{}
	all := s.c.set.Load().clone()
	for _, kv := range resp.Kvs {
		if r, ok := s.decode(string(kv.Key), kv.Value, kv.ModRevision); ok {
			theirs = append(theirs, r)
			there[r.key()] = true
			all.add(r)
		}
	}
	old := all.purgeable(s.c.now(), s.c.gone(s.c.now()))
	purged := map[string]bool{}
	for _, r := range old {
		purged[r.key()] = true
	}
	live := theirs[:0]
	for _, r := range theirs {
		if !purged[r.key()] {
			live = append(live, r)
		}
	}
	s.seen(live)
	var lack []Record
	s.mu.Lock()
	for r := range s.c.set.Load().all() {
		key := r.key()
		if purged[key] {
			delete(s.pending, key)
			continue
		}
		_, pending := s.pending[key]
		if !pending && !there[key] { // what was delivered since etcd was asked is not among its answers, and there
			_, was := undelivered[key]
			_, known := before.record(r.kind())
			if pending = known && !was; pending {
				s.pending[key] = r
			}
		}
		if pending { // what is pending may be newer than the set
			lack = append(lack, r)
		}
	}
	s.mu.Unlock()
	if err := s.deliver(ctx, ep, lack); err != nil {
		return 0, err
	}
	for len(old) > 0 {
		n := min(len(old), batchRecords)
		var ops []clientv3.Op
		for _, r := range old[:n] {
			ops = append(ops, clientv3.OpDelete(s.prefix+r.key()))
		}
		if err := s.commit(ctx, ep, nil, ops, nil, nil); err != nil {
			return 0, err
		}
		s.c.purge(old[:n])
		old = old[n:]
	}
	return resp.Header.Revision, nil
}

// commit runs one transaction. ok, if not nil, is set to whether its conditions held.
func (s *sharer) commit(ctx context.Context, ep *endpoint, conditions []clientv3.Cmp, then, otherwise []clientv3.Op, out **clientv3.TxnResponse) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	resp, err := ep.client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	if err == nil && out != nil {
		*out = resp
	}
	return err
}

// deliver puts those of the records that are pending into etcd where it lacks them, many in one transaction.
func (s *sharer) deliver(ctx context.Context, ep *endpoint, recs []Record) error {
	for len(recs) > 0 {
		var batch []Record
		var ops []clientv3.Op
		size := 0
		for len(recs) > 0 && len(batch) < batchRecords {
			r, pending := s.awaited(recs[0])
			if !pending {
				recs = recs[1:]
				continue
			}
			b := string(r.encode())
			if size += len(b); len(batch) > 0 && size > batchBytes {
				break
			}
			key := s.prefix + r.key()
			absent := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}
			ops = append(ops, clientv3.OpTxn(absent, []clientv3.Op{clientv3.OpPut(key, b)}, []clientv3.Op{clientv3.OpGet(key)}))
			batch, recs = append(batch, r), recs[1:]
		}
		if len(batch) == 0 {
			return nil
		}
		var resp *clientv3.TxnResponse
		if err := s.commit(ctx, ep, nil, ops, nil, &resp); err != nil {
			return err
		}
		var put, there []Record
		for i, r := range batch {
			one := resp.Responses[i].GetResponseTxn()
			if one.Succeeded {
				put = append(put, r)
				continue
			}
			for _, kv := range one.Responses[0].GetResponseRange().Kvs {
				if r, ok := s.decode(string(kv.Key), kv.Value, kv.ModRevision); ok {
					there = append(there, r)
				}
			}
		}
		s.delivered(put)
		s.seen(there)
		for _, r := range there {
			if r, pending := s.awaited(r); pending { // etcd has another content
				if err := s.deliverOne(ctx, ep, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// awaited returns what etcd is to have under the record's key; pending is false if it is known to have it.
func (s *sharer) awaited(r Record) (out Record, pending bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, pending = s.pending[r.key()]
	return out, pending
}

// deliverOne puts a record into etcd, or merges it with the one that is there.
func (s *sharer) deliverOne(ctx context.Context, ep *endpoint, r Record) error {
	key := s.prefix + r.key()
	var rev int64 // of what is there; 0: nothing
	for range 5 { // whoever is in our way does the same
		var resp *clientv3.TxnResponse
		put, get := clientv3.OpPut(key, string(r.encode())), clientv3.OpGet(key)
		if err := s.commit(ctx, ep, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", rev)}, []clientv3.Op{put}, []clientv3.Op{get}, &resp); err != nil {
			return err
		}
		if resp.Succeeded {
			s.delivered([]Record{r})
			return nil
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if rev = 0; len(kvs) == 0 {
			continue
		}
		there, ok := s.decode(key, kvs[0].Value, kvs[0].ModRevision)
		if !ok { // it stays pending, and the log tells
			return nil
		}
		rev = kvs[0].ModRevision
		s.seen([]Record{there})
		if r = merge(r, there); same(r, there) {
			return nil
		}
	}
	return nil
}

// delivered notes that etcd has the records.
func (s *sharer) delivered(recs []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range recs {
		if p, ok := s.pending[r.key()]; ok && same(p, r) {
			delete(s.pending, r.key())
		}
	}
}

// offer has records delivered that are new here. It waits for nothing.
func (s *sharer) offer(recs []Record) {
	if len(recs) == 0 {
		return
	}
	s.mu.Lock()
	for _, r := range recs {
		s.pending[r.key()] = r
	}
	s.mu.Unlock()
	for _, ep := range s.endpoints {
		select {
		case ep.wake <- struct{}{}:
		default:
		}
	}
}

// share delivers a record, and reports whether etcd has it within shareFor. If not, it is delivered later, though whoever
// gave it may have left.
func (s *sharer) share(ctx context.Context, r Record) bool {
	s.mu.Lock()
	_, pending := s.pending[r.key()]
	if !pending || s.closed {
		s.mu.Unlock()
		return !pending
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shareFor)
	answers := make(chan error, len(s.endpoints))
	n := 0
	for _, ep := range s.endpoints {
		if ep.client != nil {
			n++
			s.flying.Go(func() { answers <- ep.link.explain(s.deliver(ctx, ep, []Record{r})) })
		}
	}
	s.mu.Unlock()
	defer cancel()
	why := errors.New("no endpoint can be used")
	for ; n > 0; n-- {
		if why = <-answers; why == nil {
			if s.has(r) {
				break
			}
			// Another endpoint may still merge it with what is there.
			why = errors.New("it holds under the same id what cannot be read here")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, pending = s.pending[r.key()]; !pending {
		why = nil
	}
	s.failed = why
	return why == nil
}

// has reports whether etcd is known to have the record.
func (s *sharer) has(r Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, pending := s.pending[r.key()]
	return !pending
}

// undelivered returns the records that etcd is not known to have.
func (s *sharer) undelivered() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.pending))
}

// problem says what is wrong; "": nothing.
func (s *sharer) problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var why error
	for _, ep := range s.endpoints {
		if ep.well {
			if s.failed != nil && len(s.pending) > 0 {
				return fmt.Sprintf("etcd takes no records (%v): %d of them are on this gslbd only, and are delivered when it does", s.failed, len(s.pending))
			}
			return ""
		}
		if ep.err != nil && why == nil {
			why = fmt.Errorf("%s: %w", ep.name, ep.err)
		}
	}
	if why == nil { // none was tried yet
		return ""
	}
	return fmt.Sprintf("etcd: none of %d endpoints answers (%v): orders hold on the gslbd that is given them only, %d records are not delivered, and are when it answers",
		len(s.endpoints), why, len(s.pending))
}

// close ends the clients. It may be called more than once.
func (s *sharer) close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	s.flying.Wait()
	for _, ep := range s.endpoints {
		if ep.client != nil {
			_ = ep.client.Close() // the connection's end; nothing is lost by it
		}
	}
}
