package control

import (
	"context"
	"crypto/tls"
	"errors"
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
type Control struct{}

// New opens the journal and hands the orders in it to the Store.
func New(opts Options) *Control { return nil }

// Run applies what time brings, writes the ledger, runs programs and shares records, until ctx is done.
func (c *Control) Run(ctx context.Context) error { return nil }

// Close closes the journal. Run does it by itself when it ends.
func (c *Control) Close() error { return nil }

// Set applies another configuration.
func (c *Control) Set(cfg Config) {}

// Problems say what is wrong, for status; empty: nothing.
func (c *Control) Problems() []string { return nil }

// Force accepts an order.
func (c *Control) Force(ctx context.Context, o Order, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// Clear ends an order.
func (c *Control) Clear(ctx context.Context, t Tombstone, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// Orders returns the orders in force, the oldest first.
func (c *Control) Orders() []OrderState { return nil }

// An OrderState is an order in force.
type OrderState struct {
	Order
	Shared  string `json:"shared"`  // as in Receipt
	Members int    `json:"members"` // that it matches now
}

// Failback ends the latches of a service.
func (c *Control) Failback(ctx context.Context, f Failback, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// An EvacuationRequest is an Evacuation with what the asking operator wants of it.
type EvacuationRequest struct {
	Evacuation
	Force   bool `json:"force"`   // although a service keeps fewer than min_serving members up
	Execute bool `json:"execute"` // this gslbd runs the program for type exec; a client asks it of one only
}

// A Plan is what an evacuation would do.
type Plan struct {
	Zone      string     `json:"zone"`      // the id
	Resources []Resource `json:"resources"` // that it takes, by type and name
	Refusals  []string   `json:"refusals"`  // services that would keep fewer than min_serving; --force overrides
	Warnings  []string   `json:"warnings"`
	Already   string     `json:"already"` // the id of an evacuation of the zone that already has all of the types; "": none

	// Force is what the members would be forced to, for a forecast.
	Force func(service, member, site, zone string) state.Force `json:"-"`
}

// A Resource is something that an evacuation takes.
type Resource struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Zone    string   `json:"zone"` // as configured or listed
	Removed []string `json:"removed"`
}

// Plan says what an evacuation would do, and changes nothing.
func (c *Control) Plan(ctx context.Context, r EvacuationRequest) (Plan, error) { return Plan{}, nil }

// Evacuate accepts an evacuation.
func (c *Control) Evacuate(ctx context.Context, r EvacuationRequest, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// A RestorationRequest asks for a restoration.
type RestorationRequest struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Zone    string    `json:"zone"` // "": all
	Type    string    `json:"type"` // "": all
}

// Restore accepts a restoration.
func (c *Control) Restore(ctx context.Context, r RestorationRequest, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// Evacuations returns the evacuations of which something is in force or in the ledger, the oldest first.
func (c *Control) Evacuations() []EvacuationState { return nil }

// An EvacuationState is an evacuation and how far it is.
type EvacuationState struct {
	Evacuation
	Shared string      `json:"shared"`
	Share  float64     `json:"share"`         // of clients moved away now
	Next   time.Time   `json:"next,omitzero"` // of the next stage
	Parts  []PartState `json:"parts"`
	Ledger []Taken     `json:"ledger"`
}

// A PartState is how far an evacuation is with one type.
type PartState struct {
	Type  string `json:"type"`
	State string `json:"state"` // waiting, evacuating, evacuated, restoring, failed
	Why   string `json:"why"`
}
