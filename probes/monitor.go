package probes

import (
	"container/heap"
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// A Result is the state of a check after a run.
type Result struct {
	Key         string
	Up          bool          // after rise and fall
	Err         string        // why the last run failed, or why a check that now succeeds is not up yet; else ""
	Unrunnable  bool          // the last run was not possible here; Up is as before and should not be relied on
	Unreachable bool          // the last run failed by timeout or for want of a route only
	Latency     time.Duration // of the last run, if it succeeded; 0: unknown
	Changed     bool          // Up has changed, or this is the first that decides it
	At          time.Time     // when the run ended
}

// MonitorOptions configures a Monitor.
type MonitorOptions struct {
	// Notify is told the result of every run, so that the latency stays current. It is called from one goroutine, and
	// holds up all checks while it runs. nil: nobody is told.
	Notify func(Result)

	Log *zap.Logger // nil: none

	// Concurrency bounds the checks in flight, each of which holds one descriptor; default 1024. When more are due,
	// they run late.
	Concurrency int

	Roots *x509.CertPool // the authorities for https checks that verify; nil: the system's

	// Do runs a check in place of the real one, in tests. ctx has the check's timeout, and the check its defaults.
	Do func(ctx context.Context, c Check) Outcome
}

// A Monitor runs checks on their schedules and resolves rise and fall (docs/operations.md): the first result decides at
// once; after that it takes Rise consecutive successes or Fall consecutive failures to change, and either resets the
// count of the other. Checks start spread over one timeout, so that a restart is no burst; each later run starts at
// least one interval after the start of the one before, and up to 10 % later, so that checks which fell into step do
// not stay there. A check never overlaps itself.
//
// One heap holds all checks by their due time, and only a check in flight has a goroutine: 50,000 goroutines which
// mostly sleep would cost 400 MB once each has grown its stack for a TLS handshake.
type Monitor struct {
	// Fixed.
	notify      func(Result)
	log         *zap.Logger
	do          func(context.Context, Check) Outcome
	concurrency int
	wake        chan struct{} // Set has changed the heap
	finished    chan finish   // holds as many as may be in flight: who sends never waits
	counters    counters

	mu      sync.Mutex
	entries map[string]*entry
	due     schedule // those of entries that are not in flight

	// Owned by Run.
	inFlight int
	late     bool // the last check that started was late by more than its interval
}

// An entry is one check and its state, guarded by the Monitor's mu. The check itself is fixed while in flight.
type entry struct {
	check   Check
	invalid error // why the check cannot be run
	health  health
	decided bool // has had a result, be it that it cannot be run

	at     time.Time // when the next run is due
	index  int       // in the schedule; -1: in flight
	cancel context.CancelFunc
	gone   bool // removed or replaced while in flight: its result is of no interest
}

type finish struct {
	entry   *entry
	outcome Outcome
	started time.Time
}

// NewMonitor returns a Monitor without checks.
func NewMonitor(opts MonitorOptions) *Monitor {
	m := &Monitor{
		notify:      opts.Notify,
		log:         opts.Log,
		do:          opts.Do,
		concurrency: opts.Concurrency,
		wake:        make(chan struct{}, 1),
		counters: newCounters("gslbd_probes_total", "Health checks, by method and result.", [numResults]string{"success", "failure", "unrunnable", "dropped"},
			string(ICMP), string(TCP), string(UDP), string(HTTP), string(HTTPS), string(DNS)),
		entries: map[string]*entry{},
	}
	if m.notify == nil {
		m.notify = func(Result) {}
	}
	if m.log == nil {
		m.log = zap.NewNop()
	}
	if m.do == nil {
		m.do = (&checker{roots: opts.Roots}).run
	}
	if m.concurrency <= 0 {
		m.concurrency = 1024
	}
	m.finished = make(chan finish, m.concurrency)
	return m
}

// Set replaces the checks, before or while the Monitor runs. An unchanged check keeps its state and its schedule; one
// of which only interval, timeout, rise or fall changed keeps its state; any other starts anew, and its next result
// decides at once. Of checks with the same key the last counts. Those that are missing stop, and nothing more is said
// of them, unless Notify is running.
func (m *Monitor) Set(checks []Check) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	wanted := make(map[string]bool, len(checks))
	for _, c := range checks {
		wanted[c.Key] = true
		c.ExpectCodes = append([]int(nil), c.ExpectCodes...)
		c, err := c.resolved()
		old := m.entries[c.Key]
		if old != nil && sameTarget(old.check, c) && sameSchedule(old.check, c) {
			continue
		}
		e := &entry{check: c, invalid: err}
		if err != nil {
			// Whatever is wrong with it, it is shown at a sane pace.
			e.check.Interval, e.check.Timeout = DefaultInterval, DefaultTimeout
		}
		if old != nil {
			m.removeLocked(old)
			if sameTarget(old.check, c) {
				e.health, e.decided = old.health, old.decided
			}
		}
		m.entries[c.Key] = e
		e.at = stagger(now, e.check)
		heap.Push(&m.due, e)
	}
	for key, e := range m.entries {
		if !wanted[key] {
			m.removeLocked(e)
		}
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// removeLocked takes an entry out. The caller holds mu.
func (m *Monitor) removeLocked(e *entry) {
	delete(m.entries, e.check.Key)
	e.gone = true
	if e.index >= 0 {
		heap.Remove(&m.due, e.index)
	} else {
		e.cancel()
	}
}

// Pending returns the number of checks that have had no result yet.
func (m *Monitor) Pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, e := range m.entries {
		if !e.decided {
			n++
		}
	}
	return n
}

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(ch chan<- *prometheus.Desc) { ch <- m.counters.desc }

// Collect implements prometheus.Collector: gslbd_probes_total{method,result}, where the method is the type of check.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) { m.counters.collect(ch) }

// Run runs the checks until ctx ends, and then returns nil when the last one in flight has stopped. It is called once.
func (m *Monitor) Run(ctx context.Context) error {
	m.mu.Lock()
	now := time.Now()
	for _, e := range m.due {
		e.at = stagger(now, e.check) // Set may have been long ago
	}
	heap.Init(&m.due)
	m.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(m.startDue(ctx))
		select {
		case f := <-m.finished:
			if ctx.Err() != nil {
				m.inFlight-- // it may have failed only because we stop
				continue
			}
			m.finish(f)
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
			for ; m.inFlight > 0; m.inFlight-- {
				<-m.finished
			}
			return nil
		}
	}
}

// startDue starts what is due and returns how long to wait for the next.
func (m *Monitor) startDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.due) > 0 && m.inFlight < m.concurrency {
		now := time.Now()
		e := m.due[0]
		if wait := e.at.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&m.due)
		m.inFlight++
		if late := now.Sub(e.at) > e.check.Interval; late != m.late {
			m.late = late
			if late {
				m.log.Warn("checks run late: more are due than may run at once", zap.Int("concurrency", m.concurrency))
			} else {
				m.log.Info("checks run in time again")
			}
		}
		if e.invalid != nil {
			e.cancel = func() {}
			m.finished <- finish{e, Outcome{Err: "cannot be run: " + e.invalid.Error(), Unrunnable: true}, now}
			continue
		}
		runCtx, cancel := context.WithTimeout(ctx, e.check.Timeout)
		e.cancel = cancel
		go func() {
			defer cancel()
			m.finished <- finish{e, m.do(runCtx, e.check), now}
		}()
	}
	return time.Hour // a result or Set comes before
}

// finish takes in the outcome of a run and tells it.
func (m *Monitor) finish(f finish) {
	m.inFlight--
	m.mu.Lock()
	e, out := f.entry, f.outcome
	if e.gone {
		m.mu.Unlock()
		return
	}
	e.decided = true
	now := time.Now()
	result := Result{Key: e.check.Key, At: now, Err: out.Err, Unrunnable: out.Unrunnable, Unreachable: out.Unreachable, Latency: out.Latency}
	count := succeeded
	switch {
	case out.Unrunnable:
		count = unrunnable
	case out.OK:
		result.Changed = e.health.success(e.check.Rise)
		if !e.health.up {
			result.Err = fmt.Sprintf("success %d of %d after: %s", e.health.successes, e.check.Rise, e.health.reason)
		}
	default:
		count = failed
		result.Changed = e.health.failure(e.check.Fall, out.Err)
	}
	result.Up = e.health.up
	e.at = f.started.Add(e.check.Interval + time.Duration(rand.Float64()*0.1*float64(e.check.Interval)))
	heap.Push(&m.due, e)
	m.mu.Unlock()
	m.counters.add(string(e.check.Type), count)
	m.notify(result)
}

// stagger returns when a new check runs first.
func stagger(now time.Time, c Check) time.Time {
	return now.Add(time.Duration(rand.Float64() * float64(c.Timeout)))
}

// health resolves rise and fall.
type health struct {
	known, up           bool
	successes, failures int    // consecutive; one of them is 0
	reason              string // of the last failure
}

// success takes in a success and says whether it changed the state.
func (h *health) success(rise int) bool {
	h.successes, h.failures = h.successes+1, 0
	if h.known && (h.up || h.successes < rise) {
		return false
	}
	h.known, h.up = true, true
	return true
}

// failure takes in a failure and says whether it changed the state.
func (h *health) failure(fall int, reason string) bool {
	h.successes, h.failures, h.reason = 0, h.failures+1, reason
	if h.known && (!h.up || h.failures < fall) {
		return false
	}
	h.known, h.up = true, false
	return true
}

// schedule is a heap of entries by their due time.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	e := x.(*entry)
	e.index = len(*s)
	*s = append(*s, e)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	e.index = -1
	return e
}
