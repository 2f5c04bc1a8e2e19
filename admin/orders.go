package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"gslbd/control"
	"gslbd/policy"
	"gslbd/state"
)

// A Control keeps orders: a *control.Control.
type Control interface {
	Problems() []string
	Orders() []control.OrderState
	Evacuations() []control.EvacuationState
	Events(since time.Time, service, site string) []control.Event
	Force(ctx context.Context, o control.Order, by control.Caller) (control.Receipt, error)
	Clear(ctx context.Context, t control.Tombstone, by control.Caller) (control.Receipt, error)
	Failback(ctx context.Context, f control.Failback, by control.Caller) (control.Receipt, error)
	Plan(ctx context.Context, r control.EvacuationRequest) (control.Plan, error)
	Evacuate(ctx context.Context, r control.EvacuationRequest, by control.Caller) (control.Receipt, error)
	Restore(ctx context.Context, r control.RestorationRequest, by control.Caller) (control.Receipt, error)
}

// hereOnly is control's word for an order that etcd does not have yet.
const hereOnly = "on this gslbd only"

// An OrderList is the orders in force, the oldest first.
type OrderList struct {
	Time   time.Time            `json:"time"` // on this machine's clock
	Orders []control.OrderState `json:"orders"`
}

// An EvacuationList is the evacuations of which something is in force or in the ledger, the oldest first.
type EvacuationList struct {
	Time        time.Time                 `json:"time"` // on this machine's clock
	Evacuations []control.EvacuationState `json:"evacuations"`
}

// An EvacuationCall is the body of a POST to /v1/evacuations.
type EvacuationCall struct {
	control.EvacuationRequest
	DryRun bool `json:"dry_run"` // only say what it would do; the answer is a Preview
}

// A Preview is what an evacuation would do, and what would become of the answers and of the sites that are left.
type Preview struct {
	Plan     control.Plan    `json:"plan"`
	Forecast policy.Forecast `json:"forecast"`
}

// A Nothing is the answer to an order that there is nothing to do for, in place of a receipt: it does not stand.
type Nothing struct {
	Nothing string `json:"nothing"` // why
}

// orders answers GET /v1/orders.
func (s *Server) orders(w http.ResponseWriter, _ *http.Request) {
	answer(w, OrderList{Time: time.Now(), Orders: list(s.opts.Control.Orders())})
}

// order answers GET /v1/orders/{id}.
func (s *Server) order(w http.ResponseWriter, req *http.Request) {
	for _, o := range s.opts.Control.Orders() {
		if o.ID == req.PathValue("id") {
			answer(w, o)
			return
		}
	}
	refuse(w, http.StatusNotFound, "no order with the id %q is in force", req.PathValue("id"))
}

// evacuations answers GET /v1/evacuations.
func (s *Server) evacuations(w http.ResponseWriter, _ *http.Request) {
	l := EvacuationList{Time: time.Now(), Evacuations: list(s.opts.Control.Evacuations())}
	for i := range l.Evacuations {
		e := &l.Evacuations[i]
		e.Parts, e.Ledger = list(e.Parts), list(e.Ledger)
	}
	answer(w, l)
}

// ordering makes a handler of what reads and gives one order. Control logs every order that reaches it, given or refused;
// what cannot be read is logged here.
func (s *Server) ordering(give func(req *http.Request, by control.Caller) (control.Receipt, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		by := caller(req)
		receipt, err := give(req, by)
		if errors.Is(err, control.ErrNothing) {
			answer(w, Nothing{saying(err, control.ErrNothing)})
			return
		}
		if err != nil {
			if errors.Is(err, errBody) || errors.Is(err, errTooLarge) {
				s.log.Warn("order refused", zap.String("method", req.Method), zap.String("path", clip(req.URL.Path)),
					zap.String("remote", by.Remote), zap.String("auth", by.Auth), zap.String("error", clip(err.Error())))
			}
			refuseOrder(w, err)
			return
		}
		receipt.Warnings = list(receipt.Warnings)
		answer(w, receipt)
	}
}

// maxLogged is how many bytes of a text that strangers may have sent a line of the log has.
const maxLogged = 256

func clip(text string) string {
	if len(text) > maxLogged {
		return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxLogged], ""), len(text))
	}
	return text
}

// refuseOrder answers with the status that stands for control's error, and with its text.
func refuseOrder(w http.ResponseWriter, err error) {
	status, text := http.StatusInternalServerError, err.Error()
	for _, kind := range []struct {
		err    error
		status int
	}{
		{errTooLarge, http.StatusRequestEntityTooLarge},
		{errBody, http.StatusBadRequest},
		{control.ErrInvalid, http.StatusBadRequest},
		{control.ErrNotFound, http.StatusNotFound},
		{control.ErrRefused, http.StatusConflict},
		{control.ErrUnavailable, http.StatusServiceUnavailable},
	} {
		if errors.Is(err, kind.err) {
			status = kind.status
			text = saying(err, kind.err) // the status tells the kind
			break
		}
	}
	refuse(w, status, "%s", text)
}

// saying returns what control's error says beside its kind.
func saying(err, kind error) string {
	return strings.TrimPrefix(err.Error(), "control: "+kind.Error()+": ")
}

func (s *Server) force(req *http.Request, by control.Caller) (control.Receipt, error) {
	var o control.Order
	if err := body(req, &o); err != nil {
		return control.Receipt{}, err
	}
	return s.opts.Control.Force(req.Context(), o, by)
}

func (s *Server) clear(req *http.Request, by control.Caller) (control.Receipt, error) {
	id := req.PathValue("id")
	var t control.Tombstone
	if err := body(req, &t); err != nil {
		return control.Receipt{}, err
	}
	if t.ID != "" && t.ID != id {
		return control.Receipt{}, fmt.Errorf("%w: it names the order %q, the address %q", errBody, clip(t.ID), clip(id))
	}
	t.ID = id
	if t.Created.IsZero() {
		t.Created = time.Now()
	}
	return s.opts.Control.Clear(req.Context(), t, by)
}

func (s *Server) failback(req *http.Request, by control.Caller) (control.Receipt, error) {
	var f control.Failback
	if err := body(req, &f); err != nil {
		return control.Receipt{}, err
	}
	f.Service = canonical(f.Service)
	return s.opts.Control.Failback(req.Context(), f, by)
}

func (s *Server) restore(req *http.Request, by control.Caller) (control.Receipt, error) {
	var r control.RestorationRequest
	if err := body(req, &r); err != nil {
		return control.Receipt{}, err
	}
	return s.opts.Control.Restore(req.Context(), r, by)
}

// evacuate answers POST /v1/evacuations. A dry run gives no order and is not logged as one.
func (s *Server) evacuate(w http.ResponseWriter, req *http.Request) {
	var c EvacuationCall
	err := body(req, &c)
	if err == nil && c.DryRun {
		s.preview(w, req, c.EvacuationRequest)
		return
	}
	s.ordering(func(req *http.Request, by control.Caller) (control.Receipt, error) {
		if err != nil {
			return control.Receipt{}, err
		}
		return s.opts.Control.Evacuate(req.Context(), c.EvacuationRequest, by)
	})(w, req)
}

// preview says what an evacuation would do.
func (s *Server) preview(w http.ResponseWriter, req *http.Request, r control.EvacuationRequest) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	plan, err := s.opts.Control.Plan(req.Context(), r)
	if err != nil {
		refuseOrder(w, err)
		return
	}
	plan.Resources, plan.Refusals, plan.Warnings = list(plan.Resources), list(plan.Refusals), list(plan.Warnings)
	after := s.opts.Preview(plan.Force)
	if after == nil {
		refuse(w, http.StatusServiceUnavailable, "no configuration is in force yet")
		return
	}
	// A forecast takes a second of a processor in a large configuration, which queries need more.
	s.forecasting.Lock()
	defer s.forecasting.Unlock()
	answer(w, Preview{Plan: plan, Forecast: policy.NewForecast(snap, after, s.opts.Clients)})
}

// Errors of a body that never reaches control.
var (
	errTooLarge = fmt.Errorf("the body is longer than %d bytes", maxBody)
	errBody     = errors.New("the body is not the JSON that is wanted here")
)

// body reads a JSON object, exactly: what an operator misspells must not be taken for something less.
func body(req *http.Request, v any) error {
	d := json.NewDecoder(req.Body)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	var tooLarge *http.MaxBytesError
	if err == nil {
		if _, more := d.Token(); more == nil || !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON object")
			if errors.As(more, &tooLarge) {
				err = more
			}
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, io.EOF):
		err = errors.New("it is empty")
	}
	return fmt.Errorf("%w: %w", errBody, err)
}

// targetText writes a target for people.
func targetText(t control.Target) string {
	var parts []string
	for _, p := range []struct{ kind, name string }{
		{"service", t.Service}, {"member", t.Member}, {"site", t.Site}, {"zone", t.Zone},
	} {
		if p.name != "" {
			parts = append(parts, p.kind+" "+p.name)
		}
	}
	return strings.Join(parts, ", ")
}

// A DrainList is every member that orders keep from clients.
type DrainList struct {
	Time   time.Time `json:"time"` // on this machine's clock
	Drains []Drain   `json:"drains"`
}

// A Drain is one member that orders keep from clients, and what is left of its clients.
type Drain struct {
	Service string    `json:"service"`
	Member  string    `json:"member"`
	Site    string    `json:"site"`
	Zone    string    `json:"zone"`
	Forced  string    `json:"forced"` // drain, down or evacuated
	Why     string    `json:"why"`
	Since   time.Time `json:"since,omitzero"`

	// CachedUntil is when the last answer that named the member runs out in the caches, as far as this gslbd knows.
	CachedUntil time.Time `json:"cached_until,omitzero"`
	SecondsLeft float64   `json:"seconds_left"` // until then; 0: it has

	SiteSessions *uint64 `json:"site_sessions,omitempty"` // open at its site, of all services; absent: no fresh report tells
}

// drains answers GET /v1/drains.
func (s *Server) drains(w http.ResponseWriter, _ *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	l := DrainList{Time: time.Now(), Drains: []Drain{}}
	for _, svc := range snap.Services {
		for _, m := range svc.Members {
			if m.Forced < state.ForcedDrain {
				continue
			}
			d := Drain{
				Service: svc.Name, Member: m.Name, Site: m.Site.Name, Zone: m.Site.Zone,
				Forced: m.Forced.String(), Why: m.ForcedWhy, Since: m.ForcedSince,
				CachedUntil: m.HandedOut.Until(),
			}
			d.SecondsLeft = max(0, d.CachedUntil.Sub(l.Time).Seconds())
			if site := snap.SiteOf(m); site.HasLoad && site.HasSessions {
				d.SiteSessions = &site.Sessions
			}
			l.Drains = append(l.Drains, d)
		}
	}
	answer(w, l)
}
