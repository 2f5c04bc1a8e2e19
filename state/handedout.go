package state

import (
	"sync/atomic"
	"time"
)

// HandedOut tells when the last answer that named a member expires from the caches. It is atomic, and counts on the
// monotonic clock. It is kept by service, member and site, so that it survives publications and reloads.
type HandedOut struct {
	since *time.Time   // fixed at construction; one for all
	until atomic.Int64 // nanoseconds after since
}

// handedOutSlack is how much later than the truth Until may be. Without it every answer would be a store to memory that
// all workers read.
const handedOutSlack = time.Second

// start sets what is known of a member that is new here: nothing. The process before this one, or the member under
// another name, may have been in an answer a moment ago.
func (h *HandedOut) start(since *time.Time, now time.Time, ttl uint32) {
	h.since = since
	h.until.Store(int64(now.Sub(*since) + seconds(ttl)))
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// Mark records that an answer of now, which caches keep for ttl seconds, names the member. Hot path: one atomic load, and
// at most about once a second for a member a store.
func (h *HandedOut) Mark(now time.Time, ttl uint32) {
	until := int64(now.Sub(*h.since) + seconds(ttl))
	for {
		known := h.until.Load()
		if until <= known || h.until.CompareAndSwap(known, until+int64(handedOutSlack)) {
			return
		}
	}
}

// Until returns when the last answer that named the member has expired from every cache that keeps to TTLs; never
// earlier than that, and at most a second later. Of what was answered before this process started it knows nothing, so it
// is never earlier than one TTL after that. The zero HandedOut, which no Store made, tells of no answer.
func (h *HandedOut) Until() time.Time {
	if h.since == nil {
		return time.Time{}
	}
	return h.since.Add(time.Duration(h.until.Load()))
}
