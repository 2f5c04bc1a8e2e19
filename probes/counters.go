package probes

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// The results that are counted. What they are called in telemetry, newCounters is told.
const (
	succeeded  = iota // answered as it should
	failed            // did not
	unrunnable        // could not be run or sent here
	dropped           // did not fit into the queue
	numResults
)

// counters counts probes by method and result. It is safe for concurrent use.
type counters struct {
	desc    *prometheus.Desc
	results [numResults]string
	methods []string
	counts  []atomic.Uint64 // by method x numResults + result
}

func newCounters(name, help string, results [numResults]string, methods ...string) counters {
	return counters{
		desc:    prometheus.NewDesc(name, help, []string{"method", "result"}, nil),
		results: results,
		methods: methods,
		counts:  make([]atomic.Uint64, len(methods)*numResults),
	}
}

// add counts one result of a method; an unknown method is not counted.
func (c *counters) add(method string, result int) {
	for i, m := range c.methods {
		if m == method {
			c.counts[i*numResults+result].Add(1)
			return
		}
	}
}

func (c *counters) collect(ch chan<- prometheus.Metric) {
	for i := range c.counts {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.counts[i].Load()),
			c.methods[i/numResults], c.results[i%numResults])
	}
}
