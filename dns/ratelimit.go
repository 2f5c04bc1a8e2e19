package dns

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// The bounds of RateLimitOptions.
const (
	maxRate = 100_000
	maxSlip = 10
)

// What counts as one client network for rate limiting: what one site of the Internet is usually given.
const (
	limitBits4 = 24
	limitBits6 = 56
)

const (
	// limitTick is the unit in which budgets are kept: fine enough for maxRate, and good for 228 years in 56 bits.
	limitTick = 100 * time.Nanosecond

	// limitSecond is how far ahead of time a budget may be spent: a network that was quiet gets a second's worth of
	// replies at once.
	limitSecond = int64(time.Second / limitTick)

	// limitSets is the number of sets of the table, a power of two: 4 MiB, room for 262,144 networks and classes at a
	// time. An entry is of use for at most a second after its last reply.
	limitSets = 1 << 16
)

// The bounds of the log about rate limiting.
const (
	limitWatched = 64 // networks and classes that are remembered until limiting ends for them
	limitProbes  = 4
	limitQuiet   = 10 * time.Second // without a limited reply: limiting has ended
	limitLines   = 20               // beginnings logged in a minute; each has one end at most
)

// RateLimitOptions bound how fast UDP replies go to one client network (an IPv4 /24 or IPv6 /56), separately for each
// of its classes of replies, so that the server is of no use to those who forge queries from a victim's address. TCP is
// never limited, since its clients have proven their address.
type RateLimitOptions struct {
	ResponsesPerSecond int            // 0 to 100,000; 0: off
	Slip               int            // every Slip-th limited reply is sent truncated; 1: all, 0: none. 0 to 10
	Exempt             []netip.Prefix // client networks that are never limited
	LogOnly            bool           // count and log what would be limited, and send it
}

// Check says what is wrong with the options, or nil.
func (o RateLimitOptions) Check() error {
	switch {
	case o.ResponsesPerSecond < 0 || o.ResponsesPerSecond > maxRate:
		return fmt.Errorf("dns: rate_limit.responses_per_second: %d is not between 0 and %d", o.ResponsesPerSecond, maxRate)
	case o.Slip < 0 || o.Slip > maxSlip:
		return fmt.Errorf("dns: rate_limit.slip: %d is not between 0 and %d", o.Slip, maxSlip)
	}
	for i, p := range o.Exempt {
		if !p.IsValid() {
			return fmt.Errorf("dns: rate_limit.exempt[%d]: it is no prefix", i)
		}
	}
	return nil
}

// A limitClass is what replies are counted together as.
type limitClass uint8

const (
	limitName     limitClass = iota // for a name that exists: its records of any type, or that it has none
	limitWildcard                   // made from a wildcard, or below a DNAME: by that, or random names would have a budget each
	limitMissing                    // NXDOMAIN: by zone
	limitReferral                   // by delegation
	limitOther                      // errors, and what is not about the zones (CHAOS)
)

var limitClasses = [...]string{"name", "wildcard", "nxdomain", "referral", "other"}

// A limitAction is what becomes of one reply.
type limitAction uint8

const (
	limitPass limitAction = iota
	limitDrop
	limitSlip
	limitLog // it would have been dropped or slipped
	limitActions
)

var limitActionNames = [limitActions]string{limitDrop: "drop", limitSlip: "slip", limitLog: "log_only"}

// A limiter holds the budgets of the client networks. All Responders of a server share it, since the kernel spreads the
// flows of one network over their sockets.
//
// Budgets are kept as in a token bucket that holds a second's worth, by one number: the time until which the replies that
// were sent have used the budget up. A time that has passed is a full bucket, so that its entry can be given away without
// loss. The table is fixed and set-associative: a newcomer takes the place of the entry of its set that has used up the
// least. Those at their limit have used up the most, so that a flood from any number of networks displaces its own kind and
// not them; and what is displaced begins anew, so that nobody is ever limited for another's replies. The place within
// the table comes from a hash with a random seed, so that nobody can aim.
//
// Workers race without a lock. What they can lose is the count of single replies.
type limiter struct {
	// Fixed.
	seed  maphash.Seed
	start time.Time // of the ticks
	log   *zap.Logger

	rules atomic.Pointer[limitRules] // nil: off

	watched [limitWatched]watchedNetwork

	mu sync.Mutex // one change of the rules at a time

	// Owned by watch.
	minute time.Time
	lines  int // beginnings logged since then
}

// limitRules are the options in force. They are immutable; the sets are shared with those that follow.
type limitRules struct {
	interval int64 // ticks that one reply costs
	slip     uint64
	logOnly  bool
	exempt   prefixSet
	sets     []limitSet
}

// A limitSet fills one cache line.
type limitSet [4]limitEntry

// A limitEntry is one network and class.
type limitEntry struct {
	key   atomic.Uint64 // the hash of both
	state atomic.Uint64 // when its budget is full again, in ticks, and in the low 8 bits the limited replies since one slipped
}

// A watchedNetwork is a network and class that is being limited.
type watchedNetwork struct {
	key     atomic.Uint64 // 0: free
	ready   atomic.Bool   // network and class are there; they are written by whoever took the place
	network netip.Prefix
	class   limitClass
	last    atomic.Int64 // ticks, of the last limited reply
	count   atomic.Uint64

	logged bool // owned by watch
}

func newLimiter(log *zap.Logger) *limiter {
	return &limiter{seed: maphash.MakeSeed(), start: time.Now(), log: log}
}

// set puts other options in force. Budgets stay as they are used up.
func (l *limiter) set(o RateLimitOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.ResponsesPerSecond == 0 {
		l.rules.Store(nil)
		return nil
	}
	rules := &limitRules{
		interval: limitSecond / int64(o.ResponsesPerSecond), slip: uint64(o.Slip), logOnly: o.LogOnly, exempt: newPrefixSet(o.Exempt),
	}
	if old := l.rules.Load(); old != nil {
		rules.sets = old.sets
	} else {
		rules.sets = make([]limitSet, limitSets)
	}
	l.rules.Store(rules)
	return nil
}

// ticks returns now in ticks.
func (l *limiter) ticks(now time.Time) int64 { return max(0, int64(now.Sub(l.start)/limitTick)) }

// take spends one reply from the budget of key, and says what becomes of the reply.
//
// Hot path: one cache line.
func (r *limitRules) take(key uint64, now int64) limitAction {
	e := r.sets[key%limitSets].find(key, now)
	for {
		old := e.state.Load()
		spent := max(int64(old>>8), now) + r.interval
		if spent-now <= limitSecond {
			if e.state.CompareAndSwap(old, uint64(spent)<<8|old&0xff) {
				return limitPass
			}
			continue
		}
		action, limited := limitDrop, old&0xff+1
		if r.slip > 0 && limited >= r.slip {
			action, limited = limitSlip, 0
		}
		// Without slip nothing is counted: the number would run out of its 8 bits.
		if r.slip == 0 || e.state.CompareAndSwap(old, old&^0xff|limited) {
			return action
		}
	}
}

// find returns the entry of key, after making one if there is none.
func (s *limitSet) find(key uint64, now int64) *limitEntry {
	var least *limitEntry
	spent := uint64(math.MaxUint64)
	for i := range s {
		e := &s[i]
		if e.key.Load() == key {
			return e
		}
		if until := e.state.Load() >> 8; until < spent {
			least, spent = e, until
		}
	}
	if old := least.key.Load(); least.key.CompareAndSwap(old, key) {
		least.state.Store(uint64(now) << 8)
	}
	return least // where another worker was faster, this one reply counts against another budget
}

// A prefixSet is prefixes of which none lies within another, in order.
type prefixSet []netip.Prefix

func newPrefixSet(list []netip.Prefix) prefixSet {
	var set prefixSet
	sorted := make([]netip.Prefix, len(list))
	for i, p := range list {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare) // a network comes before those within it
	for _, p := range sorted {
		if len(set) == 0 || !set[len(set)-1].Contains(p.Addr()) {
			set = append(set, p)
		}
	}
	return set
}

// contains reports whether addr lies in one of the prefixes. Hot path: a binary search.
func (s prefixSet) contains(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(s, addr, func(p netip.Prefix, addr netip.Addr) int { return p.Addr().Compare(addr) })
	return found || i > 0 && s[i-1].Contains(addr)
}

// limitNetwork returns the client network of an address that is unmapped and without zone.
func limitNetwork(addr netip.Addr) netip.Prefix {
	bits := limitBits4
	if addr.Is6() {
		bits = limitBits6
	}
	p, _ := addr.Prefix(bits) // the length is valid
	return p
}

// rateCounts reports whether the reply to the present query counts against its client network's rate. One over TCP does
// not, nor one to a client with a valid cookie: neither's address is forged.
func (r *Responder) rateCounts(tcp bool) bool { return r.limits != nil && !tcp && !r.cookieValid }

// overRate decides what becomes of the reply to the present query, which is of this class; name is what tells it from
// others of the class. It reports whether the reply is done: it is not to be written, or to be written truncated.
//
// Hot path: one hash, one cache line of the table.
func (r *Responder) overRate(class limitClass, name []byte) bool {
	r.limiting = false
	if r.limits.exempt.contains(r.ldns) {
		return false
	}
	network := limitNetwork(r.ldns)
	b := &r.limitKey
	addr := network.Addr().As16()
	b[0] = byte(class)
	n := 1 + copy(b[1:], addr[:])
	n += copy(b[n:], name)
	key := maphash.Bytes(r.limiter.seed, b[:n])
	action := r.limits.take(key, r.tick)
	if action == limitPass {
		return false
	}
	r.limiter.note(key|1, network, class, r.tick)
	if r.limits.logOnly {
		action = limitLog
	}
	r.count.limited[action].Add(1)
	r.limited = action
	return action != limitLog
}

// walkedOverRate is overRate for the name that was asked for, which has led to n. What follows is work, and moves the rotation, the
// counts of selections and what is known of resolvers: nothing that a flood should do.
func (r *Responder) walkedOverRate(z *zone, n *node, labels int, how outcome) bool {
	nm := &r.q.name
	r.aa = how != atCut
	switch {
	case how == missing:
		return r.overRate(limitMissing, nm.suffix(z.labels))
	case how == atCut:
		return r.overRate(limitReferral, nm.suffix(labels))
	case how == atDNAME:
		return r.overRate(limitWildcard, nm.suffix(labels))
	case n.star:
		return r.overRate(limitWildcard, nm.suffix(labels-1))
	}
	return r.overRate(limitName, nm.suffix(labels))
}

// note remembers that a reply was limited, for watch to tell of. When too many networks are limited at a time, it forgets.
func (l *limiter) note(key uint64, network netip.Prefix, class limitClass, now int64) {
	for i := range uint64(limitProbes) {
		w := &l.watched[(key>>1+i)%limitWatched]
		k := w.key.Load()
		if k == 0 && w.key.CompareAndSwap(0, key) {
			w.network, w.class = network, class
			w.last.Store(now)
			w.count.Store(1)
			w.ready.Store(true)
			return
		}
		if k == key {
			if w.last.Load() != now {
				w.last.Store(now)
			}
			w.count.Add(1)
			return
		}
	}
}

// watch logs where limiting begins and ends, until ctx is done.
func (l *limiter) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			l.report(now)
		}
	}
}

// report logs what has changed since it was last called.
func (l *limiter) report(now time.Time) {
	if now.Sub(l.minute) >= time.Minute {
		l.minute, l.lines = now, 0
	}
	for i := range l.watched {
		w := &l.watched[i]
		if !w.ready.Load() {
			continue
		}
		if !w.logged && l.lines < limitLines {
			l.lines++
			w.logged = true
			l.log.Warn("rate limit reached", zap.Stringer("network", w.network), zap.String("class", limitClasses[w.class]))
		}
		if time.Duration(l.ticks(now)-w.last.Load())*limitTick < limitQuiet {
			continue
		}
		if w.logged {
			l.log.Info("rate limit no longer reached", zap.Stringer("network", w.network), zap.String("class", limitClasses[w.class]),
				zap.Uint64("limited", w.count.Load()))
		}
		w.logged = false
		w.ready.Store(false)
		w.key.Store(0)
	}
}

// SetRateLimit puts other options in force while the server runs. It may be called at any time.
func (s *Server) SetRateLimit(o RateLimitOptions) error { return s.limiter.set(o) }
