package sitereport

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"gslbd/probes"
	"gslbd/state"
)

const (
	minInterval = time.Second // bounds of what an answer may order
	maxInterval = time.Minute

	maxAnswer      = 4 << 20         // bytes read of an answer: 2,000 probe targets are 200 KB
	maxKeptRTTs    = 20_000          // round trips kept until every gslbd has them; the oldest fall out
	maxSentRTTs    = 10_000          // round trips in one report: about 1 MB of the 4 that a receiver reads
	probeAgain     = 5 * time.Second // several gslbd name the same resolver at about the same time; below every refresh
	maxRecent      = 100_000         // resolvers remembered for probeAgain
	maxReaderWarns = 50              // of the readers in one report, which may have 100; the rest is draining's
	maxLogged      = 20              // warnings in one log line, and servers told of at once
	maxConflicts   = 3               // reports refused as those of a former boot, before the agent takes another boot_id
	repeatLogEvery = time.Minute     // a text that is another one each time is logged at most this often
)

// AgentOptions configure an Agent.
type AgentOptions struct {
	Site     string        // required
	Name     string        // tells several agents of a site apart; "": gslbd calls it "default"
	Servers  []string      // base URL of every gslbd, http or https; required
	Interval time.Duration // between reports, until an answer says otherwise; default 5s
	Readers  []Reader      // read in parallel for every report; telemetry tells of those that are a fmt.Stringer
	Draining bool          // Readers that are Actors may end sessions and set servers to drain and back, as gslbd agree

	// Probe queues a resolver for a measurement of its round trip, by the methods in that order (none: icmp), and says
	// whether it was taken. The result comes back by Agent.RTT. nil: nothing is probed.
	Probe func(resolver netip.Addr, methods []string) bool

	// Passive, if not nil, has the Agent take round trips from the connections of the SLB's clients, too.
	Passive *PassiveOptions

	// Transport sends the reports, and presents what proves the site; default: NewTransport(nil), which presents nothing.
	Transport http.RoundTripper
	Log       *zap.Logger // default: none
}

// An Agent reads what stands at a site and reports it to every gslbd.
//
// Each gslbd is served by a goroutine of its own, which holds at most one report: a newer one takes the place of one
// that still waits, so that a gslbd that is slow or gone neither delays the others nor gets old news when it is back.
// A report without an answer is sent once more as it is; then the next one follows. All methods are safe for concurrent
// use.
type Agent struct {
	// Fixed at construction.
	opts     AgentOptions
	log      *zap.Logger
	client   *http.Client
	peers    []*peer
	draining *drainer
	started  time.Time
	interval chan struct{} // holds a token when an answer changed the interval; never closed

	rtts    rttRing[probes.RTT]
	clients rttRing[clientRTT]
	passive *passive               // nil: off
	boot    atomic.Pointer[string] // boot_id
	last    atomic.Pointer[tally]  // of the last report; nil: there was none

	mu     sync.Mutex
	recent map[netip.Addr]time.Time // guarded by mu: when a resolver was last queued
	full   bool                     // guarded by mu: the last target was not taken

	// Owned by Run.
	sequence uint64
	readers  []readerLog
	states   map[string]string // of the servers, as last reported
}

// A peer is one gslbd.
type peer struct {
	index    int
	name     string // as servers in the file has it
	url      string
	log      *zap.Logger
	slot     chan *round  // holds the report to send next; never closed
	interval atomic.Int64 // what its last answer ordered, in nanoseconds; 0: nothing yet

	// What telemetry tells, written by the peer's goroutine.
	cursor     atomic.Uint64 // of the results of probes it has acknowledged
	clients    atomic.Uint64 // of the round trips of clients, likewise
	dropped    atomic.Uint64 // round trips that it will never get
	results    [numReportResults]atomic.Uint64
	acceptedAt atomic.Pointer[time.Time] // nil: never

	// Owned by the peer's goroutine.
	conflicts int // reports in a row that it refused because of boot_id or sequence
	trouble   notice
	warnings  notice
}

// readerLog is what was logged and counted of a reader.
type readerLog struct {
	trouble, warnings notice
	failures          uint64
}

// A round is one report, before the round trips, which differ by peer.
type round struct {
	sequence uint64
	load     *Load
	servers  []VirtualServer
	failing  []bool // by reader
	drained  []state.DrainedServers
	warnings []string
	heldBack int // of draining
}

// NewAgent returns an Agent. It fails when the site or the servers cannot be.
func NewAgent(opts AgentOptions) (*Agent, error) {
	if opts.Site == "" {
		return nil, errors.New("agent: the site has no name")
	}
	if len(opts.Servers) == 0 {
		return nil, errors.New("agent: there is no gslbd to report to")
	}
	if opts.Interval <= 0 {
		opts.Interval = 5 * time.Second
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Transport == nil {
		opts.Transport = NewTransport(nil)
	}
	a := &Agent{
		opts: opts,
		log:  opts.Log,
		client: &http.Client{
			Transport: opts.Transport,
			// A redirect would carry the token to wherever it leads.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		started:  time.Now(),
		interval: make(chan struct{}, 1),
		rtts:     rttRing[probes.RTT]{size: maxKeptRTTs},
		clients:  rttRing[clientRTT]{size: maxKeptRTTs},
		recent:   make(map[netip.Addr]time.Time),
		readers:  make([]readerLog, len(opts.Readers)),
	}
	a.newBoot()
	var names []string
	for _, server := range opts.Servers {
		base, err := url.Parse(server)
		if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
			return nil, fmt.Errorf("agent: %q is not the URL of a gslbd, such as http://192.0.2.1:8054", server)
		}
		names = append(names, base.Redacted())
		a.peers = append(a.peers, &peer{
			index: len(a.peers),
			name:  base.Redacted(),
			url:   base.JoinPath("v1/sites", url.PathEscape(opts.Site), "report").String(),
			log:   opts.Log.With(zap.String("server", base.Redacted())),
			slot:  make(chan *round, 1),
			// So that the first acceptance is logged, too.
			trouble: notice{text: "not yet answered"},
		})
	}
	a.draining = newDrainer(&a.opts, names)
	if opts.Passive != nil {
		var err error
		if a.passive, err = newPassive(*opts.Passive, opts.Log, func(prefix netip.Prefix, rtt time.Duration, connections int, at time.Time) {
			a.clients.add(clientRTT{prefix, rtt, connections, at})
		}); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// NewTransport returns a transport for reports, which uses no proxy and speaks https as c says; nil: as is usual.
func NewTransport(c *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		TLSClientConfig:        c,
		TLSHandshakeTimeout:    5 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        2 * maxInterval,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// newBoot takes another boot_id.
func (a *Agent) newBoot() {
	var id [16]byte
	rand.Read(id[:])
	text := hex.EncodeToString(id[:])
	a.boot.Store(&text)
}

// Run reports until ctx is done, and returns nil then. It must be called once.
func (a *Agent) Run(ctx context.Context) error {
	var peers sync.WaitGroup
	defer a.client.CloseIdleConnections()
	defer peers.Wait()
	for _, p := range a.peers {
		peers.Go(func() { a.serve(ctx, p) })
	}
	if a.passive != nil {
		peers.Go(func() { a.passive.run(ctx) })
	}
	// Agents that were started together should not report together for ever. And gslbd refuses a report that comes less
	// than a fifth of the interval after that of the agent which this one replaces.
	next := time.Now().Add(a.Interval()/5 + mathrand.N(a.Interval()/5+1))
	for a.wait(ctx, next) {
		started := time.Now()
		a.act(ctx)
		r := a.read(ctx)
		a.plan(ctx, r)
		if a.passive != nil {
			a.passive.watch(r.servers)
			if w := a.passive.warning.Load(); w != nil && len(r.warnings) < MaxWarnings {
				r.warnings = append(r.warnings, *w)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		a.last.Store(a.tally(r))
		for _, p := range a.peers {
			select { // Run is the only one that fills the slot
			case <-p.slot:
			default:
			}
			p.slot <- r
		}
		// An interval that an answer changes meanwhile counts from here.
		for {
			interval := a.Interval()
			if !a.waitUnlessChanged(ctx, started.Add(interval)) {
				break
			}
		}
		next = time.Now()
	}
	return nil
}

// wait waits until at; it returns false when ctx is done.
func (a *Agent) wait(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}

// waitUnlessChanged waits until at; it returns true when the interval changed before that.
func (a *Agent) waitUnlessChanged(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-a.interval:
		return true
	case <-t.C:
		return false
	}
}

// Interval returns the time between reports: the shortest that any gslbd ordered, from 1s to 1m, or that of the options
// before any answered.
func (a *Agent) Interval() time.Duration {
	shortest := time.Duration(0)
	for _, p := range a.peers {
		if i := time.Duration(p.interval.Load()); i > 0 && (shortest == 0 || i < shortest) {
			shortest = i
		}
	}
	if shortest == 0 {
		return a.opts.Interval
	}
	return shortest
}

// RTT takes a result of a probe. Results are kept until every gslbd has acknowledged them, at most 20,000; beyond that
// the oldest are dropped.
func (a *Agent) RTT(r probes.RTT) { a.rtts.add(r) }

// act does what gslbd agree on, and does not keep the report back for long.
func (a *Agent) act(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, a.Interval()*2/5)
	defer cancel()
	a.draining.act(ctx)
}

// plan adds to the report what it tells of draining, and does not keep it back for long either.
func (a *Agent) plan(ctx context.Context, r *round) {
	ctx, cancel := context.WithTimeout(ctx, a.Interval()/5)
	defer cancel()
	a.draining.plan(ctx, r)
}

// read reads all readers in parallel.
func (a *Agent) read(ctx context.Context) *round {
	// A reader that hangs must not make the site silent: the others are reported in time.
	ctx, cancel := context.WithTimeout(ctx, a.Interval()*4/5)
	defer cancel()
	readings, failures := make([]Reading, len(a.opts.Readers)), make([]error, len(a.opts.Readers))
	var wg sync.WaitGroup
	for i, r := range a.opts.Readers {
		wg.Go(func() { readings[i], failures[i] = r.Read(ctx) })
	}
	wg.Wait()
	now := time.Now()
	for i := range readings {
		l := &a.readers[i]
		if err := failures[i]; err != nil {
			l.failures++
			if l.trouble.changed(now, err.Error()) {
				a.log.Warn("reader failed", zap.Error(err))
			}
		} else if was := l.trouble.text; l.trouble.changed(now, "") {
			a.log.Info("reader works again", zap.String("was", was))
		}
		if text := strings.Join(readings[i].Warnings, "; "); l.warnings.changed(now, text) && text != "" {
			a.log.Warn("reader warns", zap.Strings("warnings", readings[i].Warnings[:min(len(readings[i].Warnings), maxLogged)]))
		}
	}
	a.sequence++
	r := &round{sequence: a.sequence, warnings: readerWarnings(readings, failures)}
	r.load, r.servers = merge(readings)
	for _, err := range failures {
		r.failing = append(r.failing, err != nil)
	}
	a.logServers(r.servers)
	return r
}

// readerWarnings returns what the readers could not do, for the report.
func readerWarnings(readings []Reading, failures []error) []string {
	var all []string
	for i, r := range readings {
		if failures[i] != nil {
			all = append(all, "reader failed: "+failures[i].Error())
		}
		all = append(all, r.Warnings...)
	}
	for i, w := range all {
		all[i] = printable(w, MaxReason)
	}
	if len(all) > maxReaderWarns {
		all = append(all[:maxReaderWarns], fmt.Sprintf("and %d more; the agent's log and gslb-agent check have all", len(all)-maxReaderWarns))
	}
	return all
}

// logServers tells of the servers whose state is another one than in the last report, or that are not up in the first.
func (a *Agent) logServers(all []VirtualServer) {
	before, told := a.states, 0
	a.states = make(map[string]string, len(before))
	for _, vs := range all {
		for _, s := range vs.Servers {
			key := vs.Name + "\x00" + s.Name + "\x00" + s.Address
			was, known := before[key]
			if s.State == StateUnknown || s.State == "" { // the reader that cannot say has told why
				if known {
					a.states[key] = was
				}
				continue
			}
			a.states[key] = s.State
			if was == s.State || !known && s.State == StateUp {
				continue
			}
			if told++; told > maxLogged {
				continue
			}
			fields := []zap.Field{
				zap.String("virtual_server", vs.Name), zap.String("server", s.Name), zap.String("address", s.Address),
				zap.String("from", was), zap.String("reason", s.Reason),
			}
			if s.State == StateUp {
				a.log.Info("server up", fields...)
			} else {
				a.log.Warn("server "+s.State, fields...)
			}
		}
	}
	if told > maxLogged {
		a.log.Warn("more servers changed", zap.Int("servers", told-maxLogged))
	}
}

// serve sends reports to one gslbd.
func (a *Agent) serve(ctx context.Context, p *peer) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-p.slot:
			a.deliver(ctx, p, r)
		}
		// A report that waited behind a slow one may come right after it, and gslbd refuses those closer than a fifth of
		// its interval, which may be a longer one than that of the others.
		if !a.wait(ctx, time.Now().Add(max(a.Interval(), time.Duration(p.interval.Load()))/4)) {
			return
		}
	}
}

// deliver sends one report, a second time if it is not answered.
func (a *Agent) deliver(ctx context.Context, p *peer, r *round) {
	rtts, dropped, upTo := a.rtts.since(p.cursor.Load(), maxSentRTTs)
	rep := Report{
		Site: a.opts.Site, Agent: a.opts.Name, BootID: *a.boot.Load(), Sequence: &r.sequence,
		Load: r.load, VirtualServers: r.servers, Drained: r.drained, Warnings: r.warnings,
	}
	now := time.Now()
	for _, t := range rtts {
		rep.RTTs = append(rep.RTTs, rttOf(t, now))
	}
	clients, lost, clientsUpTo := a.clients.since(p.clients.Load(), maxSentRTTs-len(rtts))
	for _, t := range clients {
		rep.RTTs = append(rep.RTTs, t.report(now))
	}
	body, err := json.Marshal(&rep)
	if err != nil {
		p.log.Error("report cannot be written", zap.Error(err))
		return
	}

	status, answer, err := a.exchange(ctx, http.MethodPost, p, body)
	if err != nil && ctx.Err() == nil {
		status, answer, err = a.exchange(ctx, http.MethodPost, p, body)
	}
	now = time.Now()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		p.results[reportUnanswered].Add(1)
		if p.trouble.changed(now, "no answer: "+err.Error()) {
			p.log.Warn("no answer from gslbd", zap.Error(err))
		}
		return
	case status != http.StatusOK || !answer.Accepted:
		p.results[reportRefused].Add(1)
		if status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge {
			// If it is the round trips that it cannot read, sending them again would never end.
			p.dropped.Add(dropped + lost + uint64(len(rtts)+len(clients)))
			p.cursor.Store(upTo)
			p.clients.Store(clientsUpTo)
		}
		if p.conflicts++; status != http.StatusConflict {
			p.conflicts = 0
		}
		if p.conflicts == maxConflicts {
			// Another agent of this name reported meanwhile, started by hand perhaps, or on a copy of this machine. It may
			// be gone; if not, both go on like this, and the log of each says so.
			p.conflicts = 0
			a.newBoot()
			p.log.Warn("taking another boot_id", zap.String("agent", a.opts.Name),
				zap.String("why", "gslbd follows another agent of this name; give each agent of a site its own"))
		}
		reason := whyRefused(status, answer)
		if p.trouble.changed(now, "refused: "+reason) {
			p.log.Warn("report refused", zap.Int("status", status), zap.String("reason", reason))
		}
		return
	}
	p.results[reportAccepted].Add(1)
	p.acceptedAt.Store(&now)
	p.conflicts = 0
	if p.trouble.changed(now, "") {
		p.log.Info("reports accepted", zap.Uint64("sequence", r.sequence))
	}
	if dropped += lost; dropped > 0 {
		p.dropped.Add(dropped)
		p.log.Warn("round trips dropped, because too many waited for this gslbd", zap.Uint64("dropped", dropped))
	}
	p.cursor.Store(upTo)
	p.clients.Store(clientsUpTo)
	if text := strings.Join(answer.Warnings, "; "); p.warnings.changed(now, text) && text != "" {
		p.log.Warn("gslbd warns", zap.Strings("warnings", answer.Warnings[:min(len(answer.Warnings), maxLogged)]))
	}
	if answer.IntervalMS > 0 {
		before := a.Interval()
		ordered := min(answer.IntervalMS, maxInterval.Milliseconds()) // before it could overflow
		p.interval.Store(int64(max(time.Duration(ordered)*time.Millisecond, minInterval)))
		if after := a.Interval(); after != before {
			p.log.Info("report interval changed", zap.Duration("from", before), zap.Duration("to", after))
			select {
			case a.interval <- struct{}{}:
			default: // one is enough
			}
		}
	}
	a.draining.observe(p.index, now, r.sequence, answer)
	a.probe(now, answer.Probe)
}

// An Outcome is what came of asking one gslbd.
type Outcome struct {
	Server string  // its URL
	Answer *Answer // nil: there was none, or it refused
	Err    error   // why
}

// Once reads all readers and returns the report, without round trips. It carries neither boot_id nor sequence, so that it
// outdates no other report of an agent of this name. It must not be called beside Run.
func (a *Agent) Once(ctx context.Context) *Report {
	r := a.read(ctx)
	return &Report{Site: a.opts.Site, Agent: a.opts.Name, Load: r.load, VirtualServers: r.servers, Warnings: r.warnings}
}

// Send sends a report to every gslbd, once, and returns what came of it, in the order of the servers.
func (a *Agent) Send(ctx context.Context, r *Report) ([]Outcome, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return a.askAll(ctx, http.MethodPost, body), nil
}

// Permitted asks every gslbd whether it would accept reports, and sends none.
func (a *Agent) Permitted(ctx context.Context) []Outcome { return a.askAll(ctx, http.MethodGet, nil) }

func (a *Agent) askAll(ctx context.Context, method string, body []byte) []Outcome {
	defer a.client.CloseIdleConnections()
	all := make([]Outcome, len(a.peers))
	var asked sync.WaitGroup
	for i, p := range a.peers {
		asked.Go(func() {
			status, answer, err := a.exchange(ctx, method, p, body)
			switch {
			case err != nil:
				err = fmt.Errorf("no answer: %w", err)
			case status != http.StatusOK || !answer.Accepted:
				err = fmt.Errorf("refused (status %d): %s", status, whyRefused(status, answer))
			}
			if all[i] = (Outcome{p.name, answer, err}); err != nil {
				all[i].Answer = nil
			}
		})
	}
	asked.Wait()
	return all
}

// exchange sends a report, or with GET asks whether one may be sent, and reads the answer. An error means that there was
// none.
func (a *Agent) exchange(ctx context.Context, method string, p *peer, body []byte) (int, *Answer, error) {
	// Two tries of at most an interval each keep a gslbd that answers again from calling the site stale.
	timeout := min(max(a.Interval(), 2*time.Second), 10*time.Second)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "gslb-agent")
	resp, err := a.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil, fmt.Errorf("nothing came back in %s", timeout)
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which the log line has anyway
		}
		return 0, nil, explained(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return 0, nil, fmt.Errorf("the answer breaks off: %w", err)
	}
	answer := new(Answer)
	if len(text) > maxAnswer {
		return resp.StatusCode, &Answer{Error: fmt.Sprintf("the answer is longer than %d bytes", maxAnswer)}, nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		if resp.StatusCode == http.StatusOK {
			return resp.StatusCode, &Answer{Error: "the answer is not that of a gslbd: is this reports.listen?"}, nil
		}
		answer = &Answer{Error: string(text)}
	}
	return resp.StatusCode, answer, nil
}

// explained says what an operator can do about an error of a connection.
func explained(err error) error {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("the certificate of the gslbd is not for the name in servers: %w: write a name that it has, or give the gslbd another certificate", name)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of the gslbd is of an authority that is not known here: %w: write the authority's certificate into tls.ca", unknown)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of the gslbd is not valid now: %w: renew it there, or set this machine's clock", invalid)
	case errors.As(err, &invalid):
		return fmt.Errorf("the certificate of the gslbd cannot be used: %w: give the gslbd another one", invalid)
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the gslbd speaks no TLS there: write http:// in servers, or set reports.tls of the gslbd")
	}
	return err
}

// whyRefused says why a report was refused and, where that is known, what to do.
func whyRefused(status int, answer *Answer) string {
	reason := printable(answer.Error, 300)
	if reason == "" {
		reason = fmt.Sprintf("%d %s", status, http.StatusText(status))
	}
	if strings.Contains(reason, "HTTP request to an HTTPS server") { // the words of net/http
		reason = "the gslbd speaks TLS there: write https:// in servers"
	}
	if status == http.StatusConflict {
		reason += " (does another agent report for this site by the same name?)"
	}
	return reason
}

// probe queues the resolvers that a gslbd asks for.
func (a *Agent) probe(now time.Time, targets []ProbeTarget) {
	if a.opts.Probe == nil || len(targets) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, at := range a.recent {
		if now.Sub(at) >= probeAgain {
			delete(a.recent, addr)
		}
	}
	for _, t := range targets {
		addr := t.Resolver.Unmap()
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
			continue
		}
		if _, queued := a.recent[addr]; queued {
			continue
		}
		taken := len(a.recent) < maxRecent && a.opts.Probe(addr, t.Methods)
		if taken {
			a.recent[addr] = now
		}
		if taken == a.full {
			a.full = !taken
			if a.full {
				a.log.Warn("probe queue full, resolvers are skipped until it drains", zap.Stringer("ldns", addr))
			} else {
				a.log.Info("probe queue has room again")
			}
		}
	}
}

// rttOf writes a result as a report has it.
func rttOf(r probes.RTT, now time.Time) RTT {
	age := max(now.Sub(r.At), 0)
	out := RTT{Resolver: r.Addr, Lost: r.Lost, Method: r.Method, AgeMS: uint64(age.Milliseconds())}
	if !r.Lost {
		ms := float64(r.RTT) / float64(time.Millisecond)
		out.Millis = &ms
	}
	return out
}

// A clientRTT is the round trip to the SLB's clients in a network.
type clientRTT struct {
	prefix      netip.Prefix
	rtt         time.Duration
	connections int
	at          time.Time
}

// report writes it as a report has it.
func (c clientRTT) report(now time.Time) RTT {
	ms, connections := float64(c.rtt)/float64(time.Millisecond), uint64(c.connections)
	return RTT{
		Prefix: c.prefix, Millis: &ms, Method: "tcp", AgeMS: uint64(max(now.Sub(c.at), 0).Milliseconds()), Connections: &connections,
	}
}

// An rttRing keeps the newest round trips, numbered from 0.
type rttRing[T any] struct {
	size int

	mu   sync.Mutex
	kept []T    // guarded by mu; number i is at i modulo size
	next uint64 // guarded by mu: the number of the next one
}

func (r *rttRing[T]) add(t T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < r.size {
		r.kept = append(r.kept, t)
	} else {
		r.kept[r.next%uint64(r.size)] = t
	}
	r.next++
}

// since returns at most most round trips from number cursor on, how many from there on were dropped, and the number that
// follows those returned.
func (r *rttRing[T]) since(cursor uint64, most int) (rtts []T, dropped, upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := max(cursor, r.next-uint64(len(r.kept)))
	upTo = min(r.next, first+uint64(most))
	for i := first; i < upTo; i++ {
		rtts = append(rtts, r.kept[i%uint64(r.size)])
	}
	return rtts, first - cursor, upTo
}

// waiting returns how many are kept from number cursor on.
func (r *rttRing[T]) waiting(cursor uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(r.next-cursor, uint64(len(r.kept)))
}

// A notice remembers a text that was logged, so that only changes are. The empty text is the good state.
type notice struct {
	text string
	at   time.Time
}

// changed says whether text is news: the trouble began, ended, or is another one than at least a minute ago.
func (n *notice) changed(now time.Time, text string) bool {
	if text == n.text || text != "" && n.text != "" && now.Sub(n.at) < repeatLogEvery {
		return false
	}
	n.text, n.at = text, now
	return true
}
