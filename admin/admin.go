package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"gslbd/state"
)

// Options configure a Server.
type Options struct {
	// Tokens returns what callers off loopback must present one of, unless they have a certificate. It is asked at each
	// request; none, or nil: there is no token.
	Tokens func() []string
	Log    *zap.Logger

	Version string
	Node    string // which gslbd this is, for people who look at several

	// Snapshot returns what is in force: Store.Snapshot. Nil means that no configuration is in force yet.
	Snapshot func() *state.Snapshot

	// Find returns the service that answers for a name as a client would ask for it, through aliases and wildcards, and
	// whether the name's zone uses ECS.
	Find func(s *state.Snapshot, name string) (service *state.Service, ecs, ok bool)

	// Zones lists the DNS zones in force. Nil: there are none.
	Zones func(s *state.Snapshot) []Zone

	// SignedZones lists the zones that are signed, with their keys. Nil: there are none.
	SignedZones func(s *state.Snapshot) []SignedZone

	// Reload loads the configuration again. With an error the one in force stays.
	Reload func() (warnings []string, err error)

	// Ready says whether gslbd serves, and if not, why.
	Ready func() (ok bool, why string)

	// Control keeps orders. Nil: none are accepted.
	Control Control

	// Preview and Clients are what a forecast is made from: Store.Preview and Store.Clients. They come with Control.
	Preview func(force func(service, member, site, zone string) state.Force) *state.Snapshot
	Clients func(service string) []state.Client

	// Events returns the transitions after one: Store.Events. Changed returns a channel that is closed with the next publication:
	// Store.Changed. Nil: there is no history, and streams look every 15 seconds.
	Events  func(after uint64) []state.Event
	Changed func() <-chan struct{}

	// Loads returns the load of a site in the last hour: Store.Loads. Nil: it is not known.
	Loads func(site *state.Site) []state.LoadPoint

	// Problems returns what other rooms know to be wrong and no snapshot tells of. Nil: nothing.
	Problems func() []Problem

	Collectors []prometheus.Collector // of other rooms
	// Counters are those of the process that this one has taken over from (Server.Counters); nil: they begin at 0.
	Counters []byte

	PerService bool // export the series that are by service
}

const (
	// maxBody is the largest request body, in bytes. An order has less than a thousandth of it.
	maxBody = 64 << 10
	// maxScrapes is how many scrapes are answered at once.
	maxScrapes = 4
)

// A Server is the admin interface.
type Server struct {
	// Fixed at construction.
	opts     Options
	log      *zap.Logger
	started  time.Time
	gatherer prometheus.Gatherer // of telemetry
	metrics  http.Handler

	reloading   sync.Mutex // held while the configuration is loaded
	forecasting sync.Mutex // held while a forecast is made
	strangers   strangers  // who tried to order and may not
	streams     streams
}

// New returns a Server; its Handler is for whoever listens. It fails when two collectors export the same telemetry.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts, log: opts.Log, started: time.Now()}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.opts.Changed == nil {
		s.opts.Changed = func() <-chan struct{} { return nil } // blocks for ever: a stream then looks when it beats
	}
	ended := make(chan struct{})
	s.streams.ended.Store(&ended)
	s.streams.slots = make(chan struct{}, maxStreams)
	registry := prometheus.NewRegistry()
	own := []prometheus.Collector{
		&telemetry{snapshot: opts.Snapshot, control: opts.Control, perService: opts.PerService},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	for _, c := range append(own, opts.Collectors...) {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("admin: telemetry: %w", err)
		}
	}
	var err error
	if s.gatherer, err = goOn(registry, opts.Counters); err != nil {
		s.log.Warn("the counters of telemetry begin at 0", zap.Error(err))
	}
	s.metrics = promhttp.HandlerFor(s.gatherer, promhttp.HandlerOpts{
		ErrorLog:            zap.NewStdLog(s.log),
		ErrorHandling:       promhttp.ContinueOnError, // one broken series must not hide all others
		MaxRequestsInFlight: maxScrapes,
		Timeout:             20 * time.Second,
	})
	return s, nil
}

// endpoints is what /v1/ answers.
const endpoints = `gslbd admin interface

GET  /                                           the dashboard, for browsers
GET  /healthz                                    the process serves
GET  /readyz                                     it answers queries, or why not yet
GET  /metrics                                    telemetry for Prometheus
GET  /v1/status                                  everything, what is wrong first
GET  /v1/overview?find=&limit=                   what is wrong, sites, and some services: what the dashboard shows
GET  /v1/services/NAME                           one service
GET  /v1/services/NAME/decisions                 what some clients that asked it of late would be told now
GET  /v1/sites/NAME                              one site and its members
GET  /v1/loads                                   the load of the sites in the last hour
GET  /v1/rtt                                     round trips to the networks that were measured last
GET  /v1/rtt?resolver=ADDRESS                    round trips to a resolver's network
GET  /v1/explain?name=&type=&client=&ecs=        how a query would be decided
GET  /v1/dnssec                                  the keys of the signed zones, and the DS records for their parents
GET  /v1/events?since=&service=&site=            what happened, or with "Accept: text/event-stream" what happens
POST /v1/reload                                  load the configuration again
GET  /v1/orders                                  the orders in force; one: /v1/orders/ID
POST /v1/orders                                  force members up, to drain or down
DELETE /v1/orders/ID                             end an order
GET  /v1/evacuations                             evacuations, how far they are, and what they took
POST /v1/evacuations                             evacuate a zone; with "dry_run": true, only say what that would do
POST /v1/restorations                            put back what evacuations took
POST /v1/failback                                go back to the primaries of a service of failback: manual
GET  /v1/drains                                  the members that orders keep from clients, and for how long caches name them

What changes something needs "Content-Type: application/json".

gslbctl does the same by command.
`

// Handler returns the HTTP handler.
func (s *Server) Handler() http.Handler {
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	open.HandleFunc("GET /readyz", s.ready)
	open.Handle("GET /metrics", s.metrics)
	dashboard(open)

	guarded := http.NewServeMux()
	guarded.HandleFunc("GET /v1/{$}", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, endpoints) })
	guarded.HandleFunc("GET /v1/status", s.status)
	guarded.HandleFunc("GET /v1/overview", s.overview)
	guarded.HandleFunc("GET /v1/loads", s.pastLoads)
	guarded.HandleFunc("GET /v1/services/{name}", s.service)
	guarded.HandleFunc("GET /v1/services/{name}/decisions", s.decisions)
	guarded.HandleFunc("GET /v1/sites/{name}", s.site)
	guarded.HandleFunc("GET /v1/rtt", s.rtt)
	guarded.HandleFunc("GET /v1/explain", s.explain)
	guarded.HandleFunc("GET /v1/events", s.events)
	guarded.HandleFunc("POST /v1/reload", s.reload)
	guarded.HandleFunc("GET /v1/drains", s.drains)
	guarded.HandleFunc("GET /v1/dnssec", s.dnssec)
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /v1/orders":         s.orders,
		"GET /v1/orders/{id}":    s.order,
		"POST /v1/orders":        s.ordering(s.force),
		"DELETE /v1/orders/{id}": s.ordering(s.clear),
		"GET /v1/evacuations":    s.evacuations,
		"POST /v1/evacuations":   s.evacuate,
		"POST /v1/restorations":  s.ordering(s.restore),
		"POST /v1/failback":      s.ordering(s.failback),
	} {
		if s.opts.Control == nil {
			h = func(w http.ResponseWriter, _ *http.Request) {
				refuse(w, http.StatusServiceUnavailable, "this gslbd keeps no orders")
			}
		}
		guarded.HandleFunc(pattern, h)
	}
	open.Handle("/", s.guard(guarded))

	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		open.ServeHTTP(w, req)
	})
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if ok, why := s.opts.Ready(); !ok {
		plain(w, http.StatusServiceUnavailable, "not ready: "+why+"\n")
		return
	}
	plain(w, http.StatusOK, "ready\n")
}

// A Reloaded is the answer to a reload that was done.
type Reloaded struct {
	Warnings []string `json:"warnings"` // what is in the file but not in force, such as what needs a restart
}

func (s *Server) reload(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var tooLarge *http.MaxBytesError
	var none struct{}
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, "the body is longer than %d bytes; a reload needs none", maxBody)
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, "the body cannot be read: %v", err)
		return
	case len(bytes.TrimSpace(body)) > 0 && json.Unmarshal(body, &none) != nil:
		refuse(w, http.StatusBadRequest, "the body is not a JSON object; a reload needs none")
		return
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	warnings, err := s.opts.Reload()
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, "the configuration in force stays: %v", err)
		return
	}
	answer(w, Reloaded{Warnings: list(warnings)})
}

// An Error is the answer to a request that was refused.
type Error struct {
	Error string `json:"error"` // what is wrong, where, and what to do
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	write(w, status, Error{fmt.Sprintf(format, args...)})
}

func answer(w http.ResponseWriter, v any) { write(w, http.StatusOK, v) }

func write(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		status = http.StatusInternalServerError
		b.Reset()
		fmt.Fprintf(&b, `{"error":%q}`+"\n", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a caller that went away cannot be told
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// list makes JSON have a list where there is nothing.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
