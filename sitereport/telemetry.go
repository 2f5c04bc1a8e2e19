package sitereport

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What came of a report that was sent.
const (
	reportAccepted   = iota
	reportRefused    // answered otherwise
	reportUnanswered // neither at the first try nor at the second
	numReportResults
)

// A tally is what telemetry tells of one report. It is not changed once it is published.
type tally struct {
	servers  map[string]map[string]int // by virtual server and state
	readers  []readerTally             // those with a name
	heldBack int
}

type readerTally struct {
	name     string
	failing  bool
	failures uint64
}

// tally counts what is in the report. Only Run calls it.
func (a *Agent) tally(r *round) *tally {
	t := &tally{servers: make(map[string]map[string]int, len(r.servers)), heldBack: r.heldBack}
	for _, v := range r.servers {
		states := t.servers[v.Name]
		if states == nil {
			states = map[string]int{StateUp: 0, StateDown: 0, StateDrain: 0, StateMaint: 0, StateUnknown: 0}
			t.servers[v.Name] = states
		}
		for _, s := range v.Servers {
			if _, known := states[s.State]; known {
				states[s.State]++
			} else {
				states[StateUnknown]++
			}
		}
	}
	for i, reader := range a.opts.Readers {
		if named, ok := reader.(fmt.Stringer); ok {
			t.readers = append(t.readers, readerTally{named.String(), r.failing[i], a.readers[i].failures})
		}
	}
	return t
}

// Describe implements prometheus.Collector. It describes nothing: the names are all in Collect.
func (a *Agent) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: what docs/agent.md lists, but for the probes. Which series there are is fixed by
// the configuration.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	send := func(t prometheus.ValueType, v float64, name, help string, labels []string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), t, v, values...)
	}
	gauge := func(v float64, name, help string, labels ...string) {
		send(prometheus.GaugeValue, v, name, help, labels)
	}
	counter := func(v uint64, name, help string, labels ...string) {
		send(prometheus.CounterValue, float64(v), name, help, labels)
	}
	for _, p := range a.peers {
		for result, text := range [numReportResults]string{"accepted", "refused", "unanswered"} {
			counter(p.results[result].Load(), "gslb_agent_reports_total",
				"Reports sent to the gslbd, by what came of them.", "server", p.name, "result", text)
		}
		since := a.started
		if at := p.acceptedAt.Load(); at != nil {
			since = *at
		}
		gauge(time.Since(since).Seconds(), "gslb_agent_report_age_seconds",
			"Time since the gslbd last accepted a report; before the first, since the start.", "server", p.name)
		gauge(float64(a.rtts.waiting(p.cursor.Load())+a.clients.waiting(p.clients.Load())), "gslb_agent_rtts_waiting",
			"Measured round trips that the gslbd has not acknowledged.", "server", p.name)
		counter(p.dropped.Load(), "gslb_agent_rtts_dropped_total",
			"Measured round trips that the gslbd never gets, counted when it answers again.", "server", p.name)
	}
	t := a.last.Load()
	if t == nil {
		return
	}
	for _, r := range t.readers {
		up := 1.0
		if r.failing {
			up = 0
		}
		gauge(up, "gslb_agent_reader_up", "1 while the reader can read what stands at the site.", "reader", r.name)
		counter(r.failures, "gslb_agent_reader_failures_total", "Readings that failed.", "reader", r.name)
	}
	for name, states := range t.servers {
		for state, n := range states {
			gauge(float64(n), "gslb_agent_servers", "Servers of the last report, by state.", "virtual_server", name, "state", state)
		}
	}
	gauge(float64(t.heldBack), "gslb_agent_held_back",
		"What of draining is asked for or left over, and not done: the log and the report say why.")
}
