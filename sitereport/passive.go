package sitereport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"gslbd/state"
)

const (
	// passiveShare: a scan may take this part of a core, that is 10 %; it waits between its datagrams and before the next.
	passiveShare = 10
	// passiveBurst is how much time a scan may be ahead of that. Shorter waits would cost more than they give back.
	passiveBurst = 20 * time.Millisecond
	// In intervals: passiveWindow is how long a network's round trips are collected for one value, passiveLongest how long at
	// most where the connections are too few, passiveAgain how often a value is sent that stays as it is.
	passiveWindow  = 2
	passiveLongest = 10
	passiveAgain   = 8
	// What the latter two are at most, so that the next value comes before gslbd takes the last for too old: max_age is 10m.
	passiveLongestTime = 5 * time.Minute
	passiveAgainTime   = 4 * time.Minute
	// A value that differs from the last by more than a tenth and passiveStep is sent in each of passiveFollow windows:
	// gslbd takes the second lowest of five.
	passiveStep   = time.Millisecond
	passiveFollow = 5
	// maxPassiveMin is the most that MinConnections may be: connections are told apart by a set of 64 bits.
	maxPassiveMin = 32
)

// PassiveOptions configure how an Agent takes round trips from the connections of the SLB's clients (docs/agent.md).
type PassiveOptions struct {
	Interval       time.Duration // least time from the beginning of a scan to that of the next; default 30s
	MinConnections int           // a network's value is of at least so many connections, 1 to 32; default 3
	MaxPrefixes    int           // networks kept, those with the most connections; default 10,000
}

// passive scans this machine's TCP sockets at the SLB's virtual servers, and makes a value of each client network's.
type passive struct {
	// Fixed at construction.
	interval time.Duration
	result   func(prefix netip.Prefix, rtt time.Duration, connections int, at time.Time)
	log      *zap.Logger
	listed   chan struct{} // closed when there are servers

	servers atomic.Pointer[[]VirtualServer]
	warning atomic.Pointer[string] // for the report; nil: none
	once    sync.Once              // closes listed

	// Owned by run.
	networks clientNetworks
	trouble  notice
}

func newPassive(o PassiveOptions, log *zap.Logger, result func(netip.Prefix, time.Duration, int, time.Time)) (*passive, error) {
	if o.Interval <= 0 {
		o.Interval = 30 * time.Second
	}
	if o.MinConnections == 0 {
		o.MinConnections = 3
	}
	if o.MaxPrefixes == 0 {
		o.MaxPrefixes = 10_000
	}
	if o.MinConnections < 1 || o.MinConnections > maxPassiveMin || o.MaxPrefixes < 1 {
		return nil, fmt.Errorf("agent: round trips of clients: at least %d connections of at most %d networks cannot be: 1 to %d, and 1 or more, can",
			o.MinConnections, o.MaxPrefixes, maxPassiveMin)
	}
	return &passive{
		interval: o.Interval, result: result, log: log, listed: make(chan struct{}),
		networks: clientNetworks{interval: o.Interval, least: o.MinConnections, most: o.MaxPrefixes, index: make(map[uint64]int)},
	}, nil
}

// watch takes the virtual servers of a report. The first that are listed let the scans begin.
func (p *passive) watch(servers []VirtualServer) {
	p.servers.Store(&servers)
	p.once.Do(func() { close(p.listed) })
}

// run scans until ctx is done.
func (p *passive) run(ctx context.Context) {
	// What a scan costs is the time of its thread, most of it the kernel's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	select {
	case <-ctx.Done():
		return
	case <-p.listed:
	}
	last := time.Now().Add(-p.interval)
	for {
		started := time.Now()
		pace := pacer{ctx: ctx, used: threadTime, started: started, before: threadTime()}
		err := p.scan(ctx, started.Sub(last), pace.pause)
		if ctx.Err() != nil {
			return
		}
		p.tell(started, err)
		last = started
		if err := sleep(ctx, max(p.interval-time.Since(started), pace.ahead())); err != nil {
			return
		}
	}
}

// tell logs what became of a scan, and keeps it for the report.
func (p *passive) tell(now time.Time, err error) {
	text := ""
	p.warning.Store(nil)
	if err != nil {
		text = err.Error()
		w := printable("round trips of clients: "+text, MaxReason)
		p.warning.Store(&w)
	}
	if was := p.trouble.text; p.trouble.changed(now, text) {
		if err != nil {
			p.log.Warn("round trips of clients are not measured", zap.Error(err))
		} else {
			p.log.Info("round trips of clients are measured again", zap.String("was", was))
		}
	}
}

// scan takes in the connections that the other end acknowledged something on in the time since, and hands on the values
// that are due.
func (p *passive) scan(ctx context.Context, since time.Duration, pause func() error) error {
	p.networks.begin()
	if err := clientSockets(ctx, *p.servers.Load(), pause, func(s diagSocket) {
		if rtt, ok := roundTrip(s, since); ok {
			p.networks.add(s.remote().Addr(), s.cookie(), rtt)
		}
	}); err != nil {
		return err
	}
	now := time.Now()
	p.networks.end(now, func(prefix netip.Prefix, rtt time.Duration, connections int) { p.result(prefix, rtt, connections, now) })
	return nil
}

// CheckPassive returns how many connections of clients there are at the virtual servers of TCP, and of how many of them the
// kernel tells the round trip. It waits between its readings as a scan does.
func CheckPassive(ctx context.Context, servers []VirtualServer) (connections, measured int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pace := pacer{ctx: ctx, used: threadTime, started: time.Now(), before: threadTime()}
	err = clientSockets(ctx, servers, pace.pause, func(s diagSocket) {
		if _, special := state.Special(s.remote().Addr()); special {
			return
		}
		connections++
		if _, ok := roundTrip(s, math.MaxInt64); ok {
			measured++
		}
	})
	return connections, measured, err
}

// clientSockets calls visit with the sockets at the virtual servers of TCP.
func clientSockets(ctx context.Context, servers []VirtualServer, pause func() error, visit func(diagSocket)) error {
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	at := endpointsOf(servers, own)
	if len(at.ports) == 0 {
		return errors.New("no virtual server of TCP has a port: write it into the agent's file")
	}
	return establishedSockets(ctx, diagRequest{ports: at.ports, info: true, pause: pause}, func(s diagSocket) {
		if at.has(s.local()) {
			visit(s)
		}
	})
}

// roundTrip returns the smoothed round trip of a connection, if it was measured within the time since. An idle connection
// only knows of a path that once was.
func roundTrip(s diagSocket, since time.Duration) (time.Duration, bool) {
	info := s.info()
	if len(info) < 72 {
		return 0, false
	}
	acknowledged := time.Duration(binary.NativeEndian.Uint32(info[56:])) * time.Millisecond // tcpi_last_ack_recv
	rtt := time.Duration(binary.NativeEndian.Uint32(info[68:])) * time.Microsecond          // tcpi_rtt
	return rtt, rtt > 0 && acknowledged <= since
}

// endpoints are where clients connect to.
type endpoints struct {
	at       map[netip.AddrPort]struct{}
	anywhere map[uint16]struct{} // by port alone
	ports    []uint16            // of both, each once
}

// endpointsOf returns where the virtual servers of TCP are found on this machine: at their address if it is one of its
// own, else, behind NAT or where the address is not told, at their port.
func endpointsOf(servers []VirtualServer, own map[netip.Addr]bool) endpoints {
	e := endpoints{at: make(map[netip.AddrPort]struct{}), anywhere: make(map[uint16]struct{})}
	for _, v := range servers {
		switch a := v.Address.Unmap(); {
		case v.Port == 0 || v.Protocol == "udp":
			continue
		case own[a] || a.IsLoopback():
			e.at[netip.AddrPortFrom(a, v.Port)] = struct{}{}
		default:
			e.anywhere[v.Port] = struct{}{}
		}
		e.ports = append(e.ports, v.Port)
	}
	slices.Sort(e.ports)
	e.ports = slices.Compact(e.ports)
	return e
}

func (e *endpoints) has(local netip.AddrPort) bool {
	if _, ok := e.at[local]; ok {
		return true
	}
	_, ok := e.anywhere[local.Port()]
	return ok
}

// ownAddresses returns the machine's addresses.
func ownAddresses() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("the addresses of this machine: %w", err)
	}
	own := make(map[netip.Addr]bool, len(addrs))
	for _, n := range addrs {
		if p, ok := n.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(p.IP); ok {
				own[a.Unmap()] = true
			}
		}
	}
	return own, nil
}

// A pacer keeps a scan within its share of a core.
type pacer struct {
	ctx     context.Context
	used    func() time.Duration // processor time so far
	started time.Time
	before  time.Duration // used, then
}

// ahead returns how long the scan has to wait to be within its share.
func (p *pacer) ahead() time.Duration {
	return passiveShare*(p.used()-p.before) - time.Since(p.started)
}

// pause waits if the scan is ahead of its share.
func (p *pacer) pause() error {
	if wait := p.ahead(); wait > passiveBurst {
		return sleep(p.ctx, wait)
	}
	return nil
}

// sleep waits, and returns the context's error if it is done before.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return ctx.Err()
	}
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0 // no Linux is without it
	}
	return time.Duration(t.Nano())
}

// clientNetworks collects round trips by client network, /24 and /56, in bounded memory: about 600 bytes for each of
// most.
type clientNetworks struct {
	// Fixed at construction.
	interval    time.Duration
	least, most int

	index map[uint64]int // in all, by key
	all   []clientNetwork
	uses  []uint32 // scratch of cut
}

// A clientNetwork is what is known of one network.
type clientNetwork struct {
	key   uint64
	since time.Time // when its window began: at the end of the scan that first saw it; zero: not yet
	seen  uint64    // the window's connections: a bit for each, by hash, so at least so many are others
	use   uint32    // connections by scan, of which the older count less
	scan  uint32    // its connections in this scan
	most  uint32    // the most of one scan of the window
	sent  uint32    // the last value in microseconds; 0: none
	left  uint8     // windows in which it is sent whatever it is
	at    time.Time // when it was sent
	rtts  rttHistogram
}

// networkKey returns the network of a client as a number: the first 56 bits of an IPv6 address, or the first 24 of an
// IPv4 one behind the highest bit.
func networkKey(a netip.Addr) uint64 {
	if a.Is4() {
		b := a.As4()
		return 1<<63 | uint64(b[0])<<16 | uint64(b[1])<<8 | uint64(b[2])
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]) >> 8
}

// networkOf is the way back.
func networkOf(key uint64) netip.Prefix {
	if key>>63 == 1 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(key >> 16), byte(key >> 8), byte(key)}), 24)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], key<<8)
	return netip.PrefixFrom(netip.AddrFrom16(b), 56)
}

// begin begins a scan.
func (c *clientNetworks) begin() {
	for i := range c.all {
		n := &c.all[i]
		n.scan, n.use = 0, n.use*3/4
	}
}

// add takes in one connection. Those of special-purpose networks, such as the site's own, tell of no client.
func (c *clientNetworks) add(client netip.Addr, cookie uint64, rtt time.Duration) {
	if _, special := state.Special(client); special {
		return
	}
	key := networkKey(client)
	i, ok := c.index[key]
	if !ok {
		if len(c.all) >= 2*c.most {
			c.cut()
		}
		i = len(c.all)
		c.all = append(c.all, clientNetwork{key: key})
		c.index[key] = i
	}
	n := &c.all[i]
	n.scan++
	n.use++
	n.seen |= 1 << (cookie * 0x9e3779b97f4a7c15 >> 58)
	n.rtts.add(rtt)
}

// cut leaves the most networks that are used the most. Of those at the limit the older fall: they had more time to be
// used again. In a scan of a great many networks which stays is therefore approximate.
func (c *clientNetworks) cut() {
	c.uses = c.uses[:0]
	for i := range c.all {
		c.uses = append(c.uses, c.all[i].use)
	}
	slices.Sort(c.uses)
	limit := c.uses[len(c.uses)-c.most]
	at, _ := slices.BinarySearch(c.uses, limit)
	older := len(c.uses) - at - c.most // how many of those at the limit are too many
	c.keep(func(n *clientNetwork) bool {
		if n.use == limit {
			older--
			return older < 0
		}
		return n.use > limit
	})
}

// keep leaves the networks that wanted is true of.
func (c *clientNetworks) keep(wanted func(*clientNetwork) bool) {
	left := 0
	for i := range c.all {
		if wanted(&c.all[i]) {
			if left != i {
				c.all[left] = c.all[i]
			}
			left++
		}
	}
	c.all = c.all[:left]
	clear(c.index)
	for i := range c.all {
		c.index[c.all[i].key] = i
	}
}

// end ends a scan, and hands on the values that are due.
func (c *clientNetworks) end(now time.Time, value func(prefix netip.Prefix, rtt time.Duration, connections int)) {
	if len(c.all) > c.most {
		c.cut()
	}
	longest, again := min(passiveLongest*c.interval, passiveLongestTime), min(passiveAgain*c.interval, passiveAgainTime)
	c.keep(func(n *clientNetwork) bool {
		if n.since.IsZero() {
			n.since = now
		}
		n.most = max(n.most, n.scan)
		seen := bits.OnesCount64(n.seen)
		switch old := now.Sub(n.since); {
		case seen >= c.least && n.scan > 0 && (n.sent == 0 || old >= passiveWindow*c.interval):
			if rtt := n.rtts.median(); n.due(rtt, now, again) {
				value(networkOf(n.key), rtt, max(seen, int(n.most)))
			}
		case old < longest:
			return true
		case n.seen == 0:
			return false
		}
		n.since, n.seen, n.most, n.rtts = now, 0, 0, rttHistogram{}
		return true
	})
}

// due says whether the value is to be sent now, one that stays as it is after the time again, and notes it then.
func (n *clientNetwork) due(rtt time.Duration, now time.Time, again time.Duration) bool {
	was := time.Duration(n.sent) * time.Microsecond
	if off := (rtt - was).Abs(); off > was/10 && off > passiveStep {
		n.left = passiveFollow
	}
	if n.left == 0 && now.Sub(n.at) < again {
		return false
	}
	n.left -= min(n.left, 1)
	n.sent, n.at = uint32(rtt.Microseconds()), now
	return true
}

// The buckets of an rttHistogram: eight for each doubling, from 128 microseconds to 8 seconds. What is beyond counts in the
// first or last.
const (
	rttLowest  = 7 // 2^7 microseconds
	rttOctaves = 16
	rttSteps   = 3 // bits: eight buckets
)

// An rttHistogram counts round trips by size.
type rttHistogram [rttOctaves << rttSteps]uint16

func (h *rttHistogram) add(rtt time.Duration) {
	us := uint64(min(max(rtt.Microseconds(), 1<<rttLowest), 1<<(rttLowest+rttOctaves)-1))
	octave := bits.Len64(us) - 1
	i := (octave-rttLowest)<<rttSteps + int(us>>(octave-rttSteps))&(1<<rttSteps-1)
	if h[i] < 1<<16-1 {
		h[i]++
	}
}

// median returns the middle of the round trips, which lie evenly within their buckets for all that is known.
func (h *rttHistogram) median() time.Duration {
	total := 0
	for _, n := range h {
		total += int(n)
	}
	below := 0
	for i, n := range h {
		if n > 0 && 2*(below+int(n)) >= total {
			octave := rttLowest + i>>rttSteps
			width := 1 << (octave - rttSteps)
			low := 1<<octave + (i&(1<<rttSteps-1))*width
			within := (float64(total)/2 - float64(below)) / float64(n)
			return time.Duration(float64(low)+within*float64(width)) * time.Microsecond
		}
		below += int(n)
	}
	return 0
}
