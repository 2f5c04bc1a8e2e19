package policy_test

import (
	"testing"
	"time"

	"gslbd/state"
)

func TestProbeLatency(t *testing.T) {
	took := func(w *world, name string, f state.Family, d time.Duration) {
		w.of(name).HasLatency[f], w.of(name).Latency[f] = true, d
	}
	compare(t, "probe-latency", []comparison{
		{"within 10 % of the fastest", func(w *world) {
			took(w, "a", state.V4, 10*ms)
			took(w, "b", state.V4, 11*ms)
			took(w, "c", state.V4, 12*ms)
		}, "a=10.0 ms b=11.0 ms | c=12.0 ms", "narrowed"},
		{"the faster family, for both types", func(w *world) {
			took(w, "a", state.V4, 90*ms)
			took(w, "a", state.V6, 10*ms)
			took(w, "b", state.V4, 20*ms)
		}, "a=10.0 ms c(no data) | b=20.0 ms", "narrowed"},
		{"one with data is not enough", func(w *world) { took(w, "a", state.V4, 90*ms) }, "a=90.0 ms b(no data) c(no data) | ", "abstained"},
	})
}
