package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gslbd/control"
	"gslbd/policy"
	"gslbd/state"
)

// A telemetry exports what a snapshot holds (docs/telemetry.md). A scrape reads one snapshot, so that its series agree
// with each other; what a reload removes is gone with the snapshot that no longer has it.
type telemetry struct {
	snapshot   func() *state.Snapshot
	control    Control // nil: there are no orders
	perService bool
}

// Describe implements prometheus.Collector. It describes nothing, since which series there are depends on the
// configuration in force; the names are all in Collect and are no other collector's.
func (t *telemetry) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (t *telemetry) Collect(ch chan<- prometheus.Metric) {
	e := exporter(ch)
	if t.control != nil {
		e.orders(t.control.Orders(), t.control.Evacuations())
	}
	snap := t.snapshot()
	if snap == nil {
		return
	}
	e.gauge("gslbd_blind", "1 while all feeds have failed at once and states are frozen.", truth(snap.Blind))
	e.gauge("gslbd_rtt_entries", "Client networks with round trips in the table.", float64(snap.RTT.Len()))
	now := time.Now()
	for _, s := range snap.Sites {
		e.site(s, now)
	}
	if t.perService {
		for _, svc := range snap.Services {
			e.service(svc)
		}
	}
}

// An exporter sends samples to a scrape.
type exporter chan<- prometheus.Metric

func (e exporter) orders(orders []control.OrderState, evacuations []control.EvacuationState) {
	byAction := map[string]int{control.Up: 0, control.Drain: 0, control.Down: 0}
	undelivered := 0
	for _, o := range orders {
		byAction[o.Action]++
		if o.Shared == hereOnly {
			undelivered++
		}
	}
	for _, v := range evacuations {
		if v.Shared == hereOnly {
			undelivered++
		}
	}
	for action, n := range byAction {
		e.gauge("gslbd_orders", "Orders in force, by action.", float64(n), label{"action", action})
	}
	e.gauge("gslbd_evacuations", "Evacuations of which something is in force or in the ledger.", float64(len(evacuations)))
	e.gauge("gslbd_orders_undelivered", "Orders and evacuations that only this gslbd has, because etcd cannot be reached.", float64(undelivered))
}

func (e exporter) site(s *state.Site, now time.Time) {
	l := label{"site", s.Name}
	if !s.ReportAt.IsZero() {
		e.gauge("gslbd_site_report_age_seconds", "Age of the site's last report.", max(0, now.Sub(s.ReportAt).Seconds()), l)
	}
	if s.HasLoad && s.HasSessions {
		e.gauge("gslbd_site_sessions", "Open sessions of the site's last fresh report.", float64(s.Sessions), l)
	}
	if s.HasLoad && s.HasBits {
		const bits = "Traffic of the site's last fresh report."
		e.gauge("gslbd_site_bits_per_second", bits, float64(s.BitsIn), l, label{"direction", "in"})
		e.gauge("gslbd_site_bits_per_second", bits, float64(s.BitsOut), l, label{"direction", "out"})
	}
	e.gauge("gslbd_site_overloaded", "1 while the site is over its thresholds.", truth(s.Overloaded), l)
	e.gauge("gslbd_site_rtt_blind", "1 while the site reaches none of the resolvers that others reach.", truth(s.RTTBlind), l)
}

func (e exporter) service(svc *state.Service) {
	l := label{"service", svc.Name}
	decisions := svc.Counters.Decisions()
	for i, reason := range policy.Reasons() {
		e.counter("gslbd_decisions_total", "Decisions, by what settled them.", decisions[i], l, label{"metric", reason})
	}
	for _, pool := range []state.Role{state.Primary, state.Backup} {
		e.gauge("gslbd_pool_active", "1 for the pool whose members answer.", truth(svc.Pool == pool), l, label{"pool", pool.String()})
	}
	e.counter("gslbd_pool_transitions_total", "Failovers and failbacks.", svc.PoolTransitions, l)
	for _, m := range svc.Members {
		lm := label{"member", m.Name}
		e.counter("gslbd_answers_total", "Answers in which the member was the first.", svc.Counters.Answers(m.Index), l, lm)
		e.counter("gslbd_member_transitions_total", "Changes of the member between up and down.", m.Transitions, l, lm)
		for _, f := range []state.Family{state.V4, state.V6} {
			if m.Has(f) {
				e.gauge("gslbd_member_up", "1 while the member is up in the family.", truth(m.Up[f]), l, lm, label{"family", f.String()})
			}
		}
	}
}

type label struct{ name, value string }

func (e exporter) gauge(name, help string, v float64, labels ...label) {
	e.send(prometheus.GaugeValue, name, help, v, labels)
}

func (e exporter) counter(name, help string, v uint64, labels ...label) {
	e.send(prometheus.CounterValue, name, help, float64(v), labels)
}

func (e exporter) send(t prometheus.ValueType, name, help string, v float64, labels []label) {
	names, values := make([]string, len(labels)), make([]string, len(labels))
	for i, l := range labels {
		names[i], values[i] = l.name, l.value
	}
	m, err := prometheus.NewConstMetric(prometheus.NewDesc(name, help, names, nil), t, v, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	e <- m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
