package state

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// maxEvents and eventsFor bound the history: a night of failures, and no more memory than some megabytes.
	maxEvents = 10_000
	eventsFor = 24 * time.Hour
	// maxEventText is how many bytes of a text an event keeps: what sites say may be long.
	maxEventText = 400
)

// An Event is one transition of the history: the line of the log that told of it (docs/operations.md, "The log").
type Event struct {
	ID      uint64    `json:"id"` // rises, also over restarts
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // info, warn or error
	Message string    `json:"message"`
	Service string    `json:"service,omitempty"`
	Member  string    `json:"member,omitempty"`
	Site    string    `json:"site,omitempty"`
	Family  string    `json:"family,omitempty"`
	Why     string    `json:"why,omitempty"`
	Details string    `json:"details,omitempty"` // what else the line tells: names and values
}

// A history is the last transitions. It has a lock of its own, so that whoever reads it holds up no publication; lock
// order: Store.mu, history.mu.
type history struct {
	mu      sync.Mutex
	events  []Event // guarded by mu; the oldest first, ID rises
	lastID  uint64  // guarded by mu
	unsaved bool    // guarded by mu: it has changed since it was last captured
}

// fileEvents is what is kept of the history.
type fileEvents struct {
	header
	Events []Event `json:"events"`
}

// add appends events that happen now, and drops what is too old or too much.
func (h *history) add(now time.Time, events ...Event) {
	if len(events) == 0 {
		return
	}
	now = now.Round(0)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events[max(0, len(events)-maxEvents):] {
		// By the time, so that an id that was lost in a crash is not given to another event.
		h.lastID = max(h.lastID+1, uint64(max(now.UnixMicro(), 0)))
		e.ID, e.Time = h.lastID, now
		h.events = append(h.events, e)
	}
	h.trim(now)
	h.unsaved = true
}

// trim drops what is too old or too much. The caller holds mu.
func (h *history) trim(now time.Time) {
	drop := max(0, len(h.events)-maxEvents)
	for drop < len(h.events) && now.Sub(h.events[drop].Time) >= eventsFor {
		drop++
	}
	h.events = slices.Delete(h.events, 0, drop)
}

// after returns the events with a greater id than the given one.
func (h *history) after(id uint64, now time.Time) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trim(now.Round(0))
	from, _ := slices.BinarySearchFunc(h.events, id, func(e Event, id uint64) int {
		if e.ID <= id {
			return -1
		}
		return 1
	})
	return slices.Clone(h.events[from:])
}

// capture returns what is to be kept, or nil where the file has it already.
func (h *history) capture(now time.Time) *fileEvents {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.unsaved {
		return nil
	}
	h.unsaved = false
	h.trim(now.Round(0))
	return &fileEvents{header{eventsFormat, fileVersion, now}, slices.Clone(h.events)}
}

// notKept says that what was captured did not reach the disk.
func (h *history) notKept() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unsaved = true
}

// restore puts back what was kept, before anything happens.
func (h *history) restore(f *fileEvents, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range f.Events {
		if e.ID > h.lastID {
			h.lastID = e.ID
			h.events = append(h.events, e)
		}
	}
	h.trim(now.Round(0))
}

// Events returns the transitions of the last 24 hours whose id is greater than after, the oldest first: at most the last
// 10,000. They outlive a restart.
func (s *Store) Events(after uint64) []Event { return s.history.after(after, time.Now()) }

// Changed returns a channel that is closed with the next publication, once the events that belong to it are in the history.
func (s *Store) Changed() <-chan struct{} { return *s.changed.Load() }

// announce wakes those who wait for Changed, if something was published since it last did. The caller holds mu.
func (s *Store) announce() {
	if s.announced == s.version {
		return
	}
	s.announced = s.version
	next := make(chan struct{})
	close(*s.changed.Swap(&next))
}

// historic makes an Event of a line of the log.
func (e *event) historic() Event {
	out := Event{Level: e.level.String(), Message: e.msg}
	var details []string
	for _, f := range e.fields {
		value := fieldText(f)
		switch f.Key {
		case "service":
			out.Service = value
		case "member":
			out.Member = value
		case "site":
			out.Site = value
		case "family":
			out.Family = value
		case "why":
			out.Why = clip(value)
		default:
			details = append(details, f.Key+" "+value)
		}
	}
	out.Details = clip(strings.Join(details, ", "))
	return out
}

func fieldText(f zap.Field) string {
	enc := zapcore.NewMapObjectEncoder()
	f.AddTo(enc)
	switch v := enc.Fields[f.Key].(type) {
	case string:
		return v
	case time.Duration:
		return v.Round(time.Millisecond).String()
	default:
		return fmt.Sprint(v)
	}
}

func clip(text string) string {
	if len(text) <= maxEventText {
		return text
	}
	return strings.ToValidUTF8(text[:maxEventText], "") + "…"
}
