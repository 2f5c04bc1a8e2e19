package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gslbd/control"
	"gslbd/state"
)

const (
	// maxStreams is how many callers are sent events at once.
	maxStreams = 64
	// streamPace is the least time between two messages of a stream, and streamBeat the most.
	streamPace = 500 * time.Millisecond
	streamBeat = 15 * time.Second
	// streamPatience is how long a message may take: who does not read is cut off.
	streamPatience = 10 * time.Second
	// late is how long before a stream an order may have been given that arrives in it.
	late = 10 * time.Minute
)

// An EventList is what happened, the oldest first.
type EventList struct {
	Time   time.Time `json:"time"` // on this machine's clock
	Events []Event   `json:"events"`
}

// The kinds of an Event.
const (
	Transition  = "transition" // of what is measured, or of gslbd itself
	OrderGiven  = "order"      // given, or ended, by an operator or by its time
	Information = "info"       // a severity beside Critical and Warning: nothing is wrong by it
)

// An Event is one transition or order.
type Event struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"` // critical, warning or info
	Message  string    `json:"message"`  // of a transition: as in the log
	Service  string    `json:"service,omitempty"`
	Member   string    `json:"member,omitempty"`
	Site     string    `json:"site,omitempty"`
	Family   string    `json:"family,omitempty"`
	Target   string    `json:"target,omitempty"` // of an order
	Author   string    `json:"author,omitempty"` // likewise
	Why      string    `json:"why,omitempty"`
	Details  string    `json:"details,omitempty"`
}

// A filter says which events are wanted.
type filter struct {
	since         time.Time
	service, site string // patterns; "": any
}

// newFilter reads the arguments of GET /v1/events. Without since it is zero.
func newFilter(args map[string]string, now time.Time) (f filter, err error) {
	f.service, f.site = canonical(args["service"]), args["site"]
	for name, pattern := range map[string]string{"service": f.service, "site": f.site} {
		if _, err := path.Match(pattern, ""); err != nil {
			return f, fmt.Errorf("%s: %q is not a name or a pattern such as *.example.com", name, args[name])
		}
	}
	since := args["since"]
	if since == "" {
		return f, nil
	}
	if ago, err := time.ParseDuration(since); err == nil && ago >= 0 {
		f.since = now.Add(-ago)
		return f, nil
	}
	if f.since, err = time.Parse(time.RFC3339, since); err != nil {
		return f, fmt.Errorf("since: %q is neither how long ago, such as 8h, nor a time such as 2006-01-02T15:04:05Z", since)
	}
	return f, nil
}

// wants reports whether a transition passes. What is about a whole site passes for each service, and about a whole
// service for each site, where only the other is asked for.
func (f filter) wants(e *state.Event) bool {
	is := func(pattern, name string) bool {
		ok, _ := path.Match(pattern, name) // newFilter has seen to the pattern
		return pattern == "" || ok
	}
	return !e.Time.Before(f.since) && is(f.service, e.Service) && is(f.site, e.Site)
}

// transitions returns the transitions with an id above after, and the last id.
func (s *Server) transitions(f filter, after uint64) (events []Event, last uint64) {
	last = after
	if s.opts.Events == nil {
		return nil, last
	}
	for _, e := range s.opts.Events(after) {
		last = e.ID
		if f.wants(&e) {
			events = append(events, newTransition(&e))
		}
	}
	return events, last
}

// orderEvents returns what was ordered since, and what ended.
func (s *Server) orderEvents(f filter, since time.Time) (events []Event) {
	if s.opts.Control == nil {
		return nil
	}
	for _, e := range s.opts.Control.Events(since, f.service, f.site) {
		events = append(events, newOrderEvent(&e))
	}
	return events
}

func byTime(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Kind, b.Kind)) })
}

func newTransition(e *state.Event) Event {
	severity := map[string]string{"error": Critical, "warn": Warning}[e.Level]
	return Event{
		ID: fmt.Sprint("transition/", e.ID), Time: e.Time, Kind: Transition, Severity: cmp.Or(severity, Information), Message: e.Message,
		Service: e.Service, Member: e.Member, Site: e.Site, Family: e.Family, Why: e.Why, Details: e.Details,
	}
}

func newOrderEvent(e *control.Event) Event {
	return Event{
		ID: e.ID, Time: e.Time, Kind: OrderGiven, Severity: Information, Message: e.Message,
		Service: e.Service, Target: e.Target, Author: e.Author, Why: e.Reason,
	}
}

// eventsKept is how far back the list goes.
const eventsKept = 24 * time.Hour

// events answers GET /v1/events: a list, or with "Accept: text/event-stream" what happens from now on, after what
// happened since the time that is asked for.
func (s *Server) events(w http.ResponseWriter, req *http.Request) {
	args, err := arguments(req.URL.RawQuery, "since", "service", "site")
	now := time.Now()
	var f filter
	if err == nil {
		f, err = newFilter(args, now)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	if snap := s.opts.Snapshot(); snap != nil {
		if svc := snap.ServiceByName(f.service); svc != nil {
			f.service = svc.Name // which may be asked for by an alias
		}
	}
	live := strings.HasPrefix(req.Header.Get("Accept"), "text/event-stream")
	if f.since.IsZero() {
		f.since = now
		if !live {
			f.since = now.Add(-eventsKept)
		}
	}
	if oldest := now.Add(-eventsKept); f.since.Before(oldest) {
		f.since = oldest // orders are known for longer, but not what they led to
	}
	if live {
		s.streams.serve(s, w, req, f)
		return
	}
	events, _ := s.transitions(f, 0)
	events = append(events, s.orderEvents(f, f.since)...)
	byTime(events)
	answer(w, EventList{Time: now, Events: list(events)})
}

// streams are the callers that are being sent events.
type streams struct {
	ended atomic.Pointer[chan struct{}] // closed and replaced by EndStreams
	slots chan struct{}                 // holds one for each
}

// EndStreams ends all streams of events, so that a server which stops does not wait for them. One that goes on after all may
// be asked for new ones.
func (s *Server) EndStreams() {
	next := make(chan struct{})
	close(*s.streams.ended.Swap(&next))
}

// serve sends server-sent events until the caller or the server goes away: "event" for each event, "publication" when
// something has changed. There is no queue for a caller: one that reads slowly is sent what there is when it has read,
// and is cut off when it does not read.
func (st *streams) serve(s *Server, w http.ResponseWriter, req *http.Request, f filter) {
	select {
	case st.slots <- struct{}{}:
		defer func() { <-st.slots }()
	default:
		refuse(w, http.StatusServiceUnavailable, "%d callers are sent events already; close a dashboard, or ask without \"Accept: text/event-stream\"", maxStreams)
		return
	}
	ended := *st.ended.Load()
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Time{}) // nothing more is read; a connection without deadlines needs none
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of a proxy in between
	seen := map[string]bool{}                 // orders that were sent, which have no id that rises
	var after, publication uint64
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select {
		case <-pace.C:
		case <-req.Context().Done():
			return
		case <-ended:
			return
		}
		changed := s.opts.Changed()
		var b bytes.Buffer
		snap := s.opts.Snapshot()
		events, last := s.transitions(f, after)
		after = last
		// The clock of who gives an order may be behind, and the order may arrive late.
		for _, e := range s.orderEvents(f, f.since.Add(-late)) {
			if !seen[e.ID] && (publication > 0 || !e.Time.Before(f.since)) {
				events = append(events, e)
			}
			seen[e.ID] = true
		}
		byTime(events)
		for _, e := range events {
			message(&b, "event", e)
		}
		if snap != nil && snap.Version != publication {
			publication = snap.Version
			message(&b, "publication", map[string]uint64{"publication": publication})
		}
		if b.Len() == 0 {
			b.WriteString(": nothing new\n\n")
		}
		_ = conn.SetWriteDeadline(time.Now().Add(streamPatience))
		if _, err := w.Write(b.Bytes()); err != nil {
			return
		}
		if err := conn.Flush(); err != nil {
			return
		}
		beat := time.NewTimer(streamBeat)
		select {
		case <-changed:
		case <-beat.C:
		case <-req.Context().Done():
		case <-ended:
		}
		beat.Stop()
		pace.Reset(streamPace)
	}
}

// message writes one server-sent event. JSON has no line breaks of its own.
func message(w io.Writer, name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		data = []byte("null")
	}
	fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data)
}
