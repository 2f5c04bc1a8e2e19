package sitereport

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"gslbd/state"
)

// ReceiverOptions configure a Receiver.
type ReceiverOptions struct {
	// Report applies an accepted report: Store.Report. It may be called for several sites at once, but for one site
	// only one after the other.
	Report func(*state.Report) (state.ReportResult, error)

	Config ReceiverConfig
	Log    *zap.Logger // nil: nothing is logged
}

// ReceiverConfig is what a reload may change of a Receiver.
type ReceiverConfig struct {
	Sites    []ReceiverSite
	Interval time.Duration // between an agent's reports; default 5s. Reports less than a fifth of it apart are refused

	// ClientCAs are the authorities of client certificates that stand for the sites they name; nil: there are none. A site
	// without a token then needs one, from loopback addresses too. The listener has to ask for client certificates, and may
	// leave it to the Receiver to verify them, which it does with each report.
	ClientCAs *x509.CertPool
}

// A ReceiverSite is a site that may report.
type ReceiverSite struct {
	Name string
	// Tokens are what its agents may present. None: without ReceiverConfig.ClientCAs, reports are accepted from loopback
	// addresses only.
	Tokens []string
}

const (
	defaultInterval = 5 * time.Second

	// maxReading is how many reports of one site are read at once, so that one site cannot take all the memory.
	maxReading = 4
	// maxRetired is how many former boots of an agent are remembered and refused.
	maxRetired = 8
	// agentForget is how long an agent must have been silent before another may take its place among MaxAgents.
	agentForget = time.Minute
	// refusalLogEvery is the least time between two log lines for the same reason and site.
	refusalLogEvery = time.Minute
)

// A Receiver takes the sites' reports over HTTP (docs/agent.md) and hands them to the Store.
type Receiver struct {
	// Fixed at construction.
	report func(*state.Report) (state.ReportResult, error)
	log    *zap.Logger
	seed   maphash.Seed // of agentState.sum

	nobody *siteState // counts and logs what belongs to no site that we know

	// Atomic, replaced whole by Set.
	config atomic.Pointer[receiverConfig]

	setting sync.Mutex // orders calls of Set
}

// A receiverConfig is a ReceiverConfig in the form that serving needs. It is immutable.
type receiverConfig struct {
	interval time.Duration
	clients  *x509.CertPool
	sites    map[string]*siteEntry
}

// A siteEntry is how a site is configured.
type siteEntry struct {
	*siteState
	secured bool                // by tokens or client certificates
	tokens  [][sha256.Size]byte // the sums of the tokens
}

// A siteState is what the receiver remembers of one site over its reports.
type siteState struct {
	// Fixed at construction.
	name    string
	reading chan struct{} // a slot for each report that is being read

	counts [results]atomic.Uint64

	mu       sync.Mutex // guards what follows; held while a report is applied, which makes reports of a site take turns
	agents   map[string]*agentState
	loggedAt [results]time.Time
	unlogged [results]int
	refusing Refusal // the last refusal since a report was accepted
}

// A Refusal tells that the reports of a site are being refused.
type Refusal struct {
	Site  string
	Why   string
	Since time.Time // of the first since a report was accepted
	last  time.Time
}

// An agentState is what the receiver remembers of one agent.
type agentState struct {
	boot    string
	retired []string // former boots, oldest first
	hasSeq  bool
	seq     uint64
	sum     uint64    // of the body of the report that had seq
	at      time.Time // arrival of the last accepted report
	answer  *Answer   // to that report, for when it comes again
}

// A result is the outcome of one report. The words are the values of the label of gslbd_reports_total.
type result int

const (
	accepted result = iota
	repeated
	unreadable
	unauthorized
	forbidden
	unknownSite
	outdated
	tooLarge
	unsupported
	tooSoon
	failed
	results
)

func (r result) String() string {
	return [...]string{
		"accepted", "repeated", "unreadable", "unauthorized", "forbidden", "unknown_site", "outdated", "too_large",
		"unsupported", "too_soon", "failed",
	}[r]
}

func (r result) status() int {
	return [...]int{200, 200, 400, 401, 403, 404, 409, 413, 415, 429, 503}[r]
}

// A refusal is why a report was not accepted.
type refusal struct {
	result result
	why    string
}

func refuse(r result, format string, args ...any) *refusal {
	return &refusal{r, fmt.Sprintf(format, args...)}
}

// NewReceiver returns a Receiver; its Handler is for whoever listens.
func NewReceiver(opts ReceiverOptions) *Receiver {
	r := &Receiver{report: opts.Report, log: opts.Log, seed: maphash.MakeSeed(), nobody: newSiteState("")}
	if r.log == nil {
		r.log = zap.NewNop()
	}
	r.Set(opts.Config)
	return r
}

func newSiteState(name string) *siteState {
	return &siteState{name: name, reading: make(chan struct{}, maxReading), agents: map[string]*agentState{}}
}

// Set applies another configuration. What is remembered of the agents of sites that stay is kept.
func (r *Receiver) Set(c ReceiverConfig) {
	r.setting.Lock()
	defer r.setting.Unlock()
	next := &receiverConfig{
		interval: c.Interval,
		clients:  c.ClientCAs,
		sites:    make(map[string]*siteEntry, len(c.Sites)),
	}
	if next.interval <= 0 {
		next.interval = defaultInterval
	}
	old := r.config.Load()
	for _, cs := range c.Sites {
		e := &siteEntry{secured: len(cs.Tokens) > 0 || c.ClientCAs != nil}
		for _, token := range cs.Tokens {
			e.tokens = append(e.tokens, sha256.Sum256([]byte(token)))
		}
		if old != nil && old.sites[cs.Name] != nil {
			e.siteState = old.sites[cs.Name].siteState
		} else {
			e.siteState = newSiteState(cs.Name)
		}
		next.sites[cs.Name] = e
	}
	r.config.Store(next)
}

// Handler returns the receiver's HTTP handler.
func (r *Receiver) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sites/{site}/report", r.receive)
	mux.HandleFunc("GET /v1/sites/{site}/report", r.permit)
	return mux
}

// receive answers one report.
func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) {
	site, no := r.admit(req)
	if no == nil {
		no = content(req)
	}
	var answer *Answer
	res := accepted
	if no == nil {
		answer, res, no = r.read(site, req)
	}
	if no != nil {
		r.refuse(w, req, site, no)
		return
	}
	site.counts[res].Add(1)
	write(w, res, answer)
}

// permit answers whether the caller may report for the site, and changes nothing.
func (r *Receiver) permit(w http.ResponseWriter, req *http.Request) {
	site, no := r.admit(req)
	if no != nil {
		r.refuse(w, req, site, no)
		return
	}
	answer := newAnswer()
	answer.Accepted = true
	answer.IntervalMS = r.config.Load().interval.Milliseconds()
	write(w, accepted, answer)
}

// refuse answers why not.
func (r *Receiver) refuse(w http.ResponseWriter, req *http.Request, site *siteState, no *refusal) {
	r.refused(site, no, req.RemoteAddr)
	site.counts[no.result].Add(1)
	switch no.result {
	case unauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="gslbd reports"`)
		w.Header().Set("Connection", "close") // strangers do not keep connections, and another certificate needs another one
	case forbidden, unknownSite, tooLarge:
		w.Header().Set("Connection", "close")
	case tooSoon, failed:
		w.Header().Set("Retry-After", "1")
	}
	answer := newAnswer()
	answer.Error = no.why
	write(w, no.result, answer)
}

// write writes an answer.
func write(w http.ResponseWriter, res result, answer *Answer) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(res.status())
	// An agent that went away cannot be told anything; it sends the report again.
	_ = json.NewEncoder(w).Encode(answer)
}

func newAnswer() *Answer {
	return &Answer{Probe: []ProbeTarget{}, Services: []ServiceState{}, Drain: []string{}, Warnings: []string{}}
}

// admit decides from the connection and the request's header alone who is asking. It always returns a siteState to count at.
func (r *Receiver) admit(req *http.Request) (*siteState, *refusal) {
	name := req.PathValue("site")
	token, presented := bearer(req)
	sum := sha256.Sum256([]byte(token))

	// All tokens are compared, whatever matches, so that the time says nothing about them. Two sites may share a token.
	config := r.config.Load()
	sites := config.sites
	entry := sites[name]
	matches, others := false, false
	for _, e := range sites {
		for i := range e.tokens {
			if subtle.ConstantTimeCompare(sum[:], e.tokens[i][:]) == 1 {
				matches = matches || e == entry
				others = others || e != entry
			}
		}
	}
	names, unverified := config.certified(req)
	named := slices.Contains(names, name)
	otherNamed := slices.ContainsFunc(names, func(n string) bool { return n != name && sites[n] != nil })

	local := loopback(req.RemoteAddr)
	if entry == nil {
		if !others && len(names) == 0 && (presented || unverified != nil || !local) {
			return r.nobody, config.unproven(unverified) // strangers do not learn which sites there are
		}
		return r.nobody, refuse(unknownSite, "site: there is no site %q in the configuration", shorten(name))
	}
	site := entry.siteState
	switch {
	// A token or certificate that is of another site does not make up for the other: somebody has mixed up two sites.
	case others && !matches:
		return site, refuse(forbidden, "the token is that of another site")
	case otherNamed && !named:
		return site, refuse(forbidden, "the client certificate is that of another site: it is for %s", list(shortened(names)))
	case matches, named:
	case len(names) > 0:
		return site, refuse(forbidden, "the client certificate is for %s, which is not the site", list(shortened(names)))
	case entry.secured:
		return site, config.unproven(unverified)
	case !local:
		return site, refuse(forbidden, "the site has no token, so its reports are accepted from loopback addresses only: set sites[].token_file")
	case req.Header.Get("Origin") != "":
		return site, refuse(forbidden, "the request comes from a web page")
	case !localHost(req.Host):
		return site, refuse(forbidden, "Host: %q does not name this machine: use its address or localhost, or give the site a token", shorten(req.Host))
	}
	return site, nil
}

// certified returns the names of the client certificate of a request: the DNS names, or where there are none the common
// name (as operators make them by hand; RFC 6125 section 6.4.4 has the same order). The error says why one that was
// presented is not accepted.
//
// It is verified with each report and not once at the handshake, so that it also expires on connections that are kept, and
// the authority that was removed loses its say on them, or when a session is resumed.
func (c *receiverConfig) certified(req *http.Request) ([]string, error) {
	if c.clients == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	leaf := req.TLS.PeerCertificates[0]
	opts := x509.VerifyOptions{
		Roots: c.clients, Intermediates: x509.NewCertPool(), CurrentTime: time.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, intermediate := range req.TLS.PeerCertificates[1:] {
		opts.Intermediates.AddCert(intermediate)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return nil, err
	}
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames, nil
	case leaf.Subject.CommonName != "":
		return []string{leaf.Subject.CommonName}, nil
	}
	return nil, errors.New("it has neither a DNS name nor a common name, which is to be the site's")
}

// unproven refuses whoever has not proven to be of a site, in the same words whether there is such a site or not.
// unverified says why the client certificate that was presented is not accepted.
func (c *receiverConfig) unproven(unverified error) *refusal {
	switch {
	case unverified != nil:
		return refuse(unauthorized, "the client certificate is not accepted: %v: it has to be one of reports.tls.client_ca", unverified)
	case c.clients != nil:
		return refuse(unauthorized, "%s, or present a client certificate of reports.tls.client_ca that names the site", noToken)
	}
	return refuse(unauthorized, noToken)
}

const noToken = `the token is missing or not that of the site: send "Authorization: Bearer TOKEN" with the token of sites[].token_file`

// content refuses from the header alone a body that is no report.
func content(req *http.Request) *refusal {
	if media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return refuse(unsupported, `send "Content-Type: application/json"`)
	}
	if e := req.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return refuse(unsupported, "send the report without Content-Encoding")
	}
	if req.ContentLength > MaxReport {
		return refuse(tooLarge, "the report has %d bytes, more than %d", req.ContentLength, int64(MaxReport))
	}
	return nil
}

// shortened returns names in the form for a message.
func shortened(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strconv.Quote(shorten(n))
	}
	return out
}

// bearer returns the bearer token of the request (RFC 6750 section 2.1).
func bearer(req *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	token = strings.TrimSpace(token)
	return token, token != ""
}

func loopback(remote string) bool {
	a, err := netip.ParseAddrPort(remote)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// localHost reports whether host is one that a program on this machine uses. A web page whose own name was pointed at a
// loopback address sends that name.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// read reads the report and applies it.
func (r *Receiver) read(site *siteState, req *http.Request) (*Answer, result, *refusal) {
	select {
	case site.reading <- struct{}{}:
		defer func() { <-site.reading }()
	default:
		return nil, 0, refuse(tooSoon, "%d reports of the site are being read already", maxReading)
	}
	var sum maphash.Hash
	sum.SetSeed(r.seed)
	rep, err := Decode(io.TeeReader(req.Body, &sum), MaxReport)
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, 0, refuse(tooLarge, "%v", err)
	case err != nil:
		return nil, 0, refuse(unreadable, "%v", err)
	case rep.Site != site.name:
		return nil, 0, refuse(unreadable, "site: %q is not %q, which the path names", rep.Site, site.name)
	}
	return r.apply(site, rep, sum.Sum64())
}

// apply hands the report to the Store, unless it is late, early or known. sum is of its body.
func (r *Receiver) apply(site *siteState, rep *Report, sum uint64) (*Answer, result, *refusal) {
	config := r.config.Load()
	site.mu.Lock()
	defer site.mu.Unlock()
	now := time.Now()
	name := rep.AgentName()
	a := site.agents[name]
	if a != nil {
		switch {
		case slices.Contains(a.retired, rep.BootID):
			return nil, 0, refuse(outdated, "boot_id: %q was followed by %q", rep.BootID, a.boot)
		case rep.BootID != a.boot || rep.Sequence == nil || !a.hasSeq:
		case *rep.Sequence < a.seq:
			return nil, 0, refuse(outdated, "sequence: %d was followed by %d (after a restart, send another boot_id)", *rep.Sequence, a.seq)
		case *rep.Sequence == a.seq && sum != a.sum:
			return nil, 0, refuse(outdated, "sequence: %d was that of another report: it grows by one with each", a.seq)
		case *rep.Sequence == a.seq:
			return a.answer, repeated, nil
		}
		if since := now.Sub(a.at); since < config.interval/5 {
			return nil, 0, refuse(tooSoon, "the last report of agent %q was %d ms ago, and the interval is %s", name, since.Milliseconds(), config.interval)
		}
	} else if !site.makeRoom(now) {
		return nil, 0, refuse(tooSoon, "agent: %d others of the site reported within a minute, which is the most", MaxAgents)
	}
	done, err := r.report(rep.Measured())
	if err != nil {
		return nil, 0, refuse(failed, "the report was not applied: %v", err)
	}

	log := r.log.With(zap.String("site", site.name), zap.String("agent", name))
	if a == nil {
		a = new(agentState)
		site.agents[name] = a
		log.Info("agent reports")
	}
	site.refusing = Refusal{}
	a.at = now
	if rep.BootID != "" && rep.BootID != a.boot {
		if a.boot != "" {
			log.Info("agent restarted")
			a.retired = append(a.retired, a.boot)
			a.retired = a.retired[max(0, len(a.retired)-maxRetired):]
		}
		a.boot, a.hasSeq = rep.BootID, false
	}
	if rep.BootID == a.boot && rep.Sequence != nil {
		a.hasSeq, a.seq, a.sum = true, *rep.Sequence, sum
	}
	a.answer = newAnswer()
	a.answer.Accepted = true
	a.answer.IntervalMS = config.interval.Milliseconds()
	for _, t := range done.Probe {
		a.answer.Probe = append(a.answer.Probe, probeTarget(t))
	}
	for _, s := range done.Services {
		a.answer.Services = append(a.answer.Services, ServiceState{s.Name, s.State, s.Deadline.Milliseconds(), s.VirtualServers})
	}
	a.answer.Drain = append(a.answer.Drain, done.Drain...)
	a.answer.Restore = done.Restore
	a.answer.DeadAfterMS = done.DeadAfter.Milliseconds()
	a.answer.Warnings = append(a.answer.Warnings, done.Warnings...)
	if rep.UnknownMethod != "" {
		a.answer.Warnings = append(a.answer.Warnings, fmt.Sprintf("rtts: round trips by method %q are left out, since this gslbd does not know it: upgrade gslbd, "+
			"or take it out of rtt.methods of the agent", shorten(rep.UnknownMethod)))
	}
	return a.answer, accepted, nil
}

// makeRoom reports whether there is room for one more agent, after forgetting the one that was silent for longest where
// that is needed and long enough. s.mu must be held.
func (s *siteState) makeRoom(now time.Time) bool {
	if len(s.agents) < MaxAgents {
		return true
	}
	oldest := ""
	for name, a := range s.agents {
		if oldest == "" || a.at.Before(s.agents[oldest].at) {
			oldest = name
		}
	}
	if now.Sub(s.agents[oldest].at) < agentForget {
		return false
	}
	delete(s.agents, oldest)
	return true
}

// refused logs a refusal, at most once a minute for each site and reason.
func (r *Receiver) refused(s *siteState, no *refusal, remote string) {
	now := time.Now()
	s.mu.Lock()
	if s.refusing.Since.IsZero() {
		s.refusing.Since = now
	}
	s.refusing.Why, s.refusing.last = no.why, now
	if at := s.loggedAt[no.result]; !at.IsZero() && now.Sub(at) < refusalLogEvery {
		s.unlogged[no.result]++
		s.mu.Unlock()
		return
	}
	s.loggedAt[no.result] = now
	more := s.unlogged[no.result]
	s.unlogged[no.result] = 0
	s.mu.Unlock()
	r.log.Warn("report refused",
		zap.String("site", s.name), zap.Stringer("result", no.result), zap.String("why", no.why),
		zap.String("from", remote), zap.Int("unlogged_since", more))
}

// Refusals returns the configured sites, by name, whose reports were refused within the last two intervals or minute with
// none accepted since.
func (r *Receiver) Refusals() []Refusal {
	var all []Refusal
	config := r.config.Load()
	for _, e := range config.sites {
		e.mu.Lock()
		if f := e.refusing; !f.Since.IsZero() && time.Since(f.last) < max(2*config.interval, time.Minute) {
			f.Site = e.name
			all = append(all, f)
		}
		e.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Refusal) int { return strings.Compare(a.Site, b.Site) })
	return all
}

// Describe implements prometheus.Collector.
func (r *Receiver) Describe(ch chan<- *prometheus.Desc) { ch <- reportsDesc() }

// Collect implements prometheus.Collector: gslbd_reports_total by site and result. Reports for no known site are
// counted under the empty site.
func (r *Receiver) Collect(ch chan<- prometheus.Metric) {
	sites := []*siteState{r.nobody}
	for _, e := range r.config.Load().sites {
		sites = append(sites, e.siteState)
	}
	desc := reportsDesc()
	for _, s := range sites {
		for res := range results {
			if n := s.counts[res].Load(); n > 0 || s != r.nobody {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), s.name, res.String())
			}
		}
	}
}

func reportsDesc() *prometheus.Desc {
	return prometheus.NewDesc("gslbd_reports_total", "Reports received, by site and result.", []string{"site", "result"}, nil)
}
