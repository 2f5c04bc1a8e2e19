package probes

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The methods of a Prober.
const (
	MethodICMP = "icmp" // an ICMP echo
	MethodTCP  = "tcp"  // a connection to port 53, which is reset as soon as it is there
	MethodDNS  = "dns"  // a query for the name servers of the root, to port 53, without recursion
)

// dnsPort is where resolvers are asked.
const dnsPort = 53

const (
	// tick is how often packets are sent while there are any, and burst the time whose packets leave together at most,
	// when this process was not scheduled for as long or longer: a busy machine must not lower the rate much.
	tick  = 5 * time.Millisecond
	burst = 4 * tick

	// gap stands between the packets to one target, so that one burst of loss does not take them all.
	gap = 100 * time.Millisecond

	// maxCount and maxRate bound the packets in flight below what 16 bits of a sequence number tell apart.
	maxCount = 10
	maxRate  = 10_000

	// dnsSockets is the number of UDP sockets a family: each has a port of its own that a forger must guess.
	dnsSockets = 4

	// complaint is how often it is logged at most that packets cannot be sent: a local firewall may forbid some targets
	// and not others.
	complaint = time.Minute

	// clockStep is the difference between what the wall clock and the monotonic clock say of one probe from which on
	// the wall clock is not believed. Slewing (500 ppm) stays below it.
	clockStep = time.Millisecond
)

// An RTT is the outcome of one probe.
type RTT struct {
	Addr   netip.Addr
	RTT    time.Duration // the best of the probe's packets; 0 if Lost
	Lost   bool          // no method had an answer
	Method string        // what was answered, or tried last
	At     time.Time     // when it was decided
}

// ProberOptions configures a Prober.
type ProberOptions struct {
	Methods  []string      // what Queue uses by default, in this order, until one has an answer; default icmp alone
	Count    int           // packets a probe and method, 1 to 10, default 3
	Timeout  time.Duration // after the last packet of a method, up to 5s; default 1s
	Rate     int           // packets a second, 1 to 10,000, default 1,000, evenly spread
	MaxQueue int           // targets queued and in flight; default 20,000

	// Result is told the outcome of every probe. It is called from several goroutines at once, and must not block. It
	// may call Queue. nil: nobody is told.
	Result func(RTT)

	Log *zap.Logger // nil: none
}

// A Prober measures round trips to any number of addresses through one ICMP socket a family and eight UDP sockets; by TCP
// with up to 1,000 connections a family at a time.
//
// The time of receipt is the kernel's, the time of sending the wall clock just before the system call: on loopback the
// result is some 10 to 30 us, and a busy process does not lengthen it. Of a probe's packets the best counts, since
// everything that disturbs a packet makes it later. Where the wall clock was set meanwhile, which shows against the
// monotonic clock, the monotonic time until this process saw the answer is taken instead: up to some milliseconds more.
// Of a TCP connection it is the kernel's own measure, from its SYN to the SYN-ACK. A reset measures the way as well, but
// only by that monotonic time.
//
// An answer counts if it comes from the address that was asked and carries what only the asked could know: a random
// payload of 16 bytes, or a DNS id and port. Later copies of it are ignored. ICMP errors that quote a packet make it
// lost without waiting.
type Prober struct {
	// Fixed.
	methods  []string
	count    int
	timeout  time.Duration
	rate     int
	maxQueue int
	result   func(RTT)
	log      *zap.Logger
	epoch    time.Time // monotonic times count from here
	wake     chan struct{}
	counters counters

	mu         sync.Mutex
	active     map[netip.Addr]*target // queued or in flight
	queue      []*target              // to be begun
	again      []appointment          // the next packet is due, in order of time or nearly
	expire     []appointment          // the method's time is over, in order of time
	flights    map[flightKey]*flight
	random     *rand.ChaCha8
	seq        uint16
	sockets    map[socketKey][]*socket // written by Run before anything else starts
	complained time.Duration           // since epoch: when it was last logged that packets cannot be sent
}

// A target is an address that is being probed. Guarded by the Prober's mu.
type target struct {
	addr    netip.Addr
	methods []string // what is left to try; the first is under way
	stage   int      // counts the methods begun: an appointment of an earlier one is void
	tried   string   // the last method that could be tried
	sent    int      // by the present method
	open    []flightKey
	best    time.Duration // -1: no answer yet
	done    bool
}

// An appointment is when something has to be done about a target.
type appointment struct {
	target *target
	stage  int
	at     time.Duration // since epoch
}

type socketKey struct {
	method string
	v6     bool
}

// A flightKey finds the packet that an answer belongs to.
type flightKey struct {
	socket *socket
	id     int // the echo's sequence number, the query's id, or the connection's descriptor
}

// A flight is a packet that has no answer yet.
type flight struct {
	target *target
	sent   stamp
	cookie cookie
}

// A stamp is one moment on both clocks.
type stamp struct {
	wall int64         // nanoseconds
	mono time.Duration // since the Prober's epoch
}

// NewProber returns a Prober. Values out of range are errors.
func NewProber(opts ProberOptions) (*Prober, error) {
	p := &Prober{
		methods: opts.Methods, count: opts.Count, timeout: opts.Timeout, rate: opts.Rate, maxQueue: opts.MaxQueue,
		result: opts.Result, log: opts.Log,
		epoch: time.Now(),
		wake:  make(chan struct{}, 1),
		counters: newCounters("gslb_agent_probes_total", "Probes of the round trip to resolvers, by method and result.",
			[numResults]string{"answered", "lost", "unrunnable", "dropped"}, MethodICMP, MethodTCP, MethodDNS),
		active:  map[netip.Addr]*target{},
		flights: map[flightKey]*flight{},
		sockets: map[socketKey][]*socket{},
	}
	if len(p.methods) == 0 {
		p.methods = []string{MethodICMP}
	}
	if p.count == 0 {
		p.count = 3
	}
	if p.timeout == 0 {
		p.timeout = time.Second
	}
	if p.rate == 0 {
		p.rate = 1000
	}
	if p.maxQueue == 0 {
		p.maxQueue = 20_000
	}
	if p.result == nil {
		p.result = func(RTT) {}
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	switch {
	case slices.ContainsFunc(p.methods, unknown):
		return nil, fmt.Errorf("probes: methods %q: must be of icmp, tcp and dns", p.methods)
	case p.count < 1 || p.count > maxCount:
		return nil, fmt.Errorf("probes: count %d: must be 1 to %d", p.count, maxCount)
	case p.timeout < 0 || p.timeout > 5*time.Second:
		return nil, fmt.Errorf("probes: timeout %v: must be above 0 and at most 5s", p.timeout)
	case p.rate < 1 || p.rate > maxRate:
		return nil, fmt.Errorf("probes: rate %d: must be 1 to %d packets a second", p.rate, maxRate)
	case p.maxQueue < 1:
		return nil, fmt.Errorf("probes: queue of %d: must hold at least 1", p.maxQueue)
	}
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		return nil, fmt.Errorf("probes: %w", err)
	}
	p.random = rand.NewChaCha8(seed)
	return p, nil
}

func unknown(method string) bool {
	return method != MethodICMP && method != MethodTCP && method != MethodDNS
}

// Queue asks for one probe of addr by the given methods, or by those of the options; the first that has an answer
// counts. Those that it does not know are left out, since who asks may be of a later release, and so are repetitions. An address that is queued or
// in flight already is not queued twice, which is true as well. False means that there will be no Result: the queue is
// full, no method is known, or the address is none of a single host.
func (p *Prober) Queue(addr netip.Addr, methods ...string) bool {
	addr = addr.Unmap()
	broadcast := addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" || broadcast {
		return false
	}
	if len(methods) == 0 {
		methods = p.methods
	}
	var order []string
	for _, m := range methods {
		if !unknown(m) && !slices.Contains(order, m) {
			order = append(order, m)
		}
	}
	if len(order) == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[addr] != nil {
		return true
	}
	if len(p.active) >= p.maxQueue {
		p.counters.add(order[0], dropped)
		return false
	}
	t := &target{addr: addr, methods: order, best: -1}
	p.active[addr] = t
	p.queue = append(p.queue, t)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// Describe implements prometheus.Collector.
func (p *Prober) Describe(ch chan<- *prometheus.Desc) { ch <- p.counters.desc }

// Collect implements prometheus.Collector: gslb_agent_probes_total{method,result}.
func (p *Prober) Collect(ch chan<- prometheus.Metric) { p.counters.collect(ch) }

// Run sends and receives until ctx ends, and then returns nil; what is queued or in flight is forgotten. It is called
// once. When no ICMP socket may be opened it fails with [ErrNotPermitted] and what to permit, unless the methods of the
// options have another beside it. A family that this machine does not have is logged once, and its targets are counted as
// unrunnable and get no Result: that nothing was sent says nothing about them.
func (p *Prober) Run(ctx context.Context) error {
	all, err := p.open()
	defer func() {
		p.mu.Lock()
		for _, t := range p.active {
			p.closeLocked(t)
		}
		p.mu.Unlock()
		for _, s := range all {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range all {
		if s.method == MethodTCP {
			group.Go(func() error { return p.settle(s) })
		} else {
			group.Go(func() error { return p.receive(s) })
		}
	}
	group.Go(func() error {
		p.send(ctx)
		for _, s := range all {
			s.close()
		}
		return nil
	})
	return group.Wait()
}

// open opens all sockets that can be had.
func (p *Prober) open() (all []*socket, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var refusals []error // one a family
	for _, v6 := range []bool{false, true} {
		s, err := openICMP(v6, uint16(p.random.Uint64()))
		if err != nil {
			refusals = append(refusals, err)
		} else {
			p.sockets[socketKey{MethodICMP, v6}] = []*socket{s}
			all = append(all, s)
			p.log.Info("ICMP probes", zap.Bool("ipv6", v6), zap.String("mode", string(s.mode)))
		}
		for range dnsSockets {
			s, err := openDNS(v6)
			if err != nil {
				if v6 {
					break // no IPv6 here, which the ICMP socket has said
				}
				return all, err
			}
			key := socketKey{MethodDNS, v6}
			p.sockets[key] = append(p.sockets[key], s)
			all = append(all, s)
		}
		if s, err = openTCP(v6); err == nil {
			p.sockets[socketKey{MethodTCP, v6}] = []*socket{s}
			all = append(all, s)
		} else if !errors.Is(err, errors.ErrUnsupported) { // of which the ICMP socket has told
			return all, err
		}
	}
	able := func(m string) bool { return len(p.sockets[socketKey{m, false}])+len(p.sockets[socketKey{m, true}]) > 0 }
	if !slices.ContainsFunc(p.methods, able) {
		return all, refusals[0] // the cure is the same for the other
	}
	for _, err := range refusals {
		p.log.Warn("some probes are not possible", zap.Error(err))
	}
	return all, nil
}

// now reads both clocks at once.
func (p *Prober) now() stamp {
	t := time.Now()
	return stamp{wall: t.UnixNano(), mono: t.Sub(p.epoch)}
}

// send sends packets at the configured rate until ctx ends. It sleeps when there is nothing to do.
func (p *Prober) send(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	rate := float64(p.rate)
	tokens, last := 0.0, time.Now()
	for {
		now := time.Now()
		tokens = min(tokens+rate*now.Sub(last).Seconds(), max(1, rate*burst.Seconds()))
		last = now
		sent, idle := p.step(int(tokens))
		tokens -= float64(sent)
		if !idle {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			continue
		}
		ticker.Stop()
		select {
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		ticker.Reset(tick)
		tokens, last = 1, time.Now()
	}
}

// step ends what is over and sends up to limit packets of what is due. It returns how many it sent, and whether there
// is nothing to wait for.
func (p *Prober) step(limit int) (sent int, idle bool) {
	var results []RTT
	p.mu.Lock()
	now := time.Since(p.epoch)
	for len(p.expire) > 0 && p.expire[0].at <= now {
		a := p.expire[0]
		p.expire = p.expire[1:]
		if !a.target.done && a.target.stage == a.stage {
			results = p.endLocked(a.target, results)
		}
	}
	for sent < limit {
		t := p.nextLocked(now)
		if t == nil {
			break
		}
		socket := p.socketLocked(t)
		if socket == nil {
			results = p.skipLocked(t, results)
			continue
		}
		err := p.packetLocked(t, socket)
		sent++
		if err == errNoRoom { // which holds up nobody who is measured otherwise
			p.again = append(p.again, appointment{t, t.stage, now + gap})
			continue
		}
		local := err != nil && !remote(err)
		if local && (p.complained == 0 || now-p.complained >= complaint) {
			p.complained = now
			p.log.Warn("some probes cannot be sent", zap.String("method", socket.method), zap.Stringer("ldns", t.addr), zap.Error(err))
		}
		if err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.ENOMEM {
			// The socket is full: this one and the rest wait.
			p.again = slices.Insert(p.again, 0, appointment{t, t.stage, now})
			break
		}
		if local && t.sent == 0 {
			results = p.skipLocked(t, results)
			continue
		}
		t.tried = socket.method
		t.sent++
		switch {
		case t.sent < p.count:
			p.again = append(p.again, appointment{t, t.stage, now + gap})
		case len(t.open) == 0: // all were refused at once
			results = p.endLocked(t, results)
		default:
			p.expire = append(p.expire, appointment{t, t.stage, now + p.timeout})
		}
	}
	idle = len(p.active) == 0
	if idle {
		// Appointments that are left are void; the memory of a large round is given back.
		p.queue, p.again, p.expire = nil, nil, nil
	}
	p.mu.Unlock()
	for _, r := range results {
		p.result(r)
	}
	return sent, idle
}

// nextLocked returns the target whose packet is next, or nil. Those under way come before new ones.
func (p *Prober) nextLocked(now time.Duration) *target {
	for len(p.again) > 0 && p.again[0].at <= now {
		a := p.again[0]
		p.again[0].target = nil
		p.again = p.again[1:]
		if !a.target.done && a.target.stage == a.stage {
			return a.target
		}
	}
	if len(p.queue) == 0 {
		return nil
	}
	t := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return t
}

// socketLocked returns a socket for the target's present method, or nil when there is none.
func (p *Prober) socketLocked(t *target) *socket {
	sockets := p.sockets[socketKey{t.methods[0], t.addr.Is6()}]
	if len(sockets) == 0 {
		return nil
	}
	return sockets[p.random.Uint64()%uint64(len(sockets))]
}

// packetLocked sends one packet and notes that an answer is awaited.
func (p *Prober) packetLocked(t *target, s *socket) error {
	f := &flight{target: t}
	key := flightKey{socket: s}
	var err error
	switch s.method {
	case MethodICMP:
		p.random.Read(f.cookie[:])
		id := p.freeLocked(s, p.seq)
		p.seq, key.id = id+1, int(id)
		payload := appendEcho(nil, s.v6, s.id, id, f.cookie)
		f.sent = p.now()
		err = s.send(payload, netip.AddrPortFrom(t.addr, 0))
	case MethodDNS:
		id := p.freeLocked(s, uint16(p.random.Uint64()))
		key.id = int(id)
		payload := appendQuery(nil, id)
		f.sent = p.now()
		err = s.send(payload, netip.AddrPortFrom(t.addr, dnsPort))
	default:
		if s.connections >= maxConnections {
			return errNoRoom
		}
		f.sent = p.now()
		key.id, err = s.connect(netip.AddrPortFrom(t.addr, dnsPort))
	}
	if err != nil {
		return err
	}
	p.flights[key] = f
	t.open = append(t.open, key)
	return nil
}

// freeLocked returns the first number from id on that no packet of the socket has.
func (p *Prober) freeLocked(s *socket, id uint16) uint16 {
	for p.flights[flightKey{s, int(id)}] != nil {
		id++
	}
	return id
}

// skipLocked gives up the target's present method, which cannot be tried here.
func (p *Prober) skipLocked(t *target, results []RTT) []RTT {
	p.counters.add(t.methods[0], unrunnable)
	return p.leaveLocked(t, results)
}

// endLocked ends the target's present method: with an answer that settles the probe.
func (p *Prober) endLocked(t *target, results []RTT) []RTT {
	if t.best < 0 {
		p.counters.add(t.methods[0], failed)
		return p.leaveLocked(t, results)
	}
	p.counters.add(t.methods[0], succeeded)
	p.forgetLocked(t)
	return append(results, RTT{Addr: t.addr, RTT: t.best, Method: t.methods[0], At: time.Now()})
}

// leaveLocked goes on to the target's next method. Without one, the target is lost if any could be tried.
func (p *Prober) leaveLocked(t *target, results []RTT) []RTT {
	if len(t.methods) == 1 {
		p.forgetLocked(t)
		if t.tried == "" {
			return results
		}
		return append(results, RTT{Addr: t.addr, Lost: true, Method: t.tried, At: time.Now()})
	}
	p.closeLocked(t)
	t.methods, t.sent, t.best = t.methods[1:], 0, -1
	t.stage++
	p.again = append(p.again, appointment{t, t.stage, time.Since(p.epoch)})
	return results
}

// forgetLocked drops a target.
func (p *Prober) forgetLocked(t *target) {
	p.closeLocked(t)
	t.done = true
	delete(p.active, t.addr)
}

// closeLocked awaits no more answers of the target.
func (p *Prober) closeLocked(t *target) {
	for _, key := range t.open {
		p.landLocked(key)
	}
	t.open = nil
}

// landLocked awaits no more answer to a packet.
func (p *Prober) landLocked(key flightKey) {
	delete(p.flights, key)
	if key.socket.method == MethodTCP {
		key.socket.hangUp(key.id)
	}
}

// settle takes in how connections end until their socket is closed.
func (p *Prober) settle(s *socket) error {
	for {
		ready, err := s.settled()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("probes: %s: %w", s.method, err)
		}
		read := p.now()
		for _, fd := range ready {
			if r, ok := p.connected(flightKey{s, fd}, read); ok {
				p.result(r)
			}
		}
	}
}

// connected takes in that a connection may be decided, which was seen at the given time, and returns the outcome of the
// probe if that is now settled. The descriptor may be of another connection by now.
func (p *Prober) connected(key flightKey, read stamp) (RTT, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[key]
	if f == nil || read.mono < f.sent.mono {
		return RTT{}, false
	}
	h := shake(key.id)
	if !h.decided {
		return RTT{}, false
	}
	if h.rtt == 0 {
		h.rtt = read.mono - f.sent.mono
	}
	return p.answeredLocked(key, f, h.rtt, h.refused)
}

// receive takes in what comes to a socket until it is closed.
func (p *Prober) receive(s *socket) error {
	for {
		d, err := s.receive()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("probes: %s: %w", s.method, err)
		}
		if r, ok := p.answer(s, d, p.now()); ok {
			p.result(r)
		}
	}
}

// answer takes in one datagram, read at the given time, and returns the outcome of the probe if that is now settled.
func (p *Prober) answer(s *socket, d datagram, read stamp) (RTT, bool) {
	key := flightKey{socket: s}
	from, port, refused := d.from.Addr(), uint16(0), false
	var echo echoAnswer
	var id uint16
	var ok bool
	switch {
	case s.method == MethodDNS:
		id, ok = parseReply(d.payload)
		port = dnsPort
	case d.quote:
		echo, ok = parseQuote(d.payload, s.v6, from)
	default:
		echo, ok = parseEchoAnswer(d.payload, s.v6, s.mode == Raw && !s.v6)
		ok = ok && (s.mode != Raw || echo.id == s.id)
	}
	if s.method == MethodICMP {
		id = echo.seq
		if refused = echo.refused; refused {
			from = echo.to
		}
	}
	if !ok {
		return RTT{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key.id = int(id)
	f := p.flights[key]
	switch {
	case f == nil, f.target.addr != from:
		return RTT{}, false
	case s.method == MethodDNS && d.from.Port() != port:
		return RTT{}, false
	case s.method == MethodICMP && echo.hasCookie && echo.cookie != f.cookie:
		return RTT{}, false
	case s.method == MethodICMP && !echo.hasCookie && !refused:
		return RTT{}, false
	}
	return p.answeredLocked(key, f, roundTrip(f.sent, read, d.at), refused)
}

// answeredLocked takes in the answer to a packet, and returns the outcome of the probe if that is now settled. A refused
// one measures nothing.
func (p *Prober) answeredLocked(key flightKey, f *flight, rtt time.Duration, refused bool) (RTT, bool) {
	t := f.target
	p.landLocked(key)
	t.open = slices.DeleteFunc(t.open, func(k flightKey) bool { return k == key })
	if !refused && (t.best < 0 || rtt < t.best) {
		t.best = rtt
	}
	if t.sent < p.count || len(t.open) > 0 {
		return RTT{}, false
	}
	if results := p.endLocked(t, nil); len(results) > 0 {
		return results[0], true
	}
	return RTT{}, false
}

// roundTrip returns the time from sending to the kernel's receipt (wall clock nanoseconds; 0: unknown), or, if the
// wall clock cannot be believed, the monotonic time until the answer was read.
func roundTrip(sent, read stamp, received int64) time.Duration {
	mono := read.mono - sent.mono
	step := time.Duration(read.wall-sent.wall) - mono
	rtt := time.Duration(received - sent.wall)
	if received == 0 || step.Abs() > clockStep || rtt < 0 || rtt > mono+clockStep {
		return mono
	}
	return rtt
}
