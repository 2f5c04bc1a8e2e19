package policy_test

import (
	"testing"

	"gslbd/policy"
)

// opening gives a site new sessions per second.
func (w *world) opening(name string, rate float64) {
	w.at(name).HasNewSessions, w.at(name).NewSessions = true, rate
}

func TestConnectionLoad(t *testing.T) {
	tests := []struct {
		name    string
		set     func(*world)
		options func(*policy.StepOptions)
		kept    string
		verdict string
	}{
		{
			"within 100 % of the lowest", func(w *world) { w.opening("a", 1200); w.opening("b", 600); w.opening("c", 1201) }, nil,
			"a=1200/s b=600/s | c=1201/s", "narrowed",
		},
		{
			"the absolute tolerance when all is quiet", func(w *world) { w.opening("a", 0); w.opening("b", 5); w.opening("c", 5.5) }, nil,
			"a=0/s b=5/s | c=5.5/s", "narrowed",
		},
		{
			"per weight", func(w *world) {
				w.opening("a", 1200)
				w.opening("b", 500)
				w.opening("c", 500)
				w.of("a").Weight, w.of("c").Weight = 200, 10
			}, nil,
			"a=600/s b=500/s | c=5000/s", "narrowed",
		},
		{
			"no data stays", func(w *world) { w.opening("a", 1200); w.opening("b", 100) }, nil,
			"b=100/s c(no data) | a=1200/s", "narrowed",
		},
		{"one with data is not enough", func(w *world) { w.opening("a", 1200) }, nil, "a=1200/s b(no data) c(no data) | ", "abstained"},
		{
			"a limit, before weighting", func(w *world) {
				w.opening("a", 1000)
				w.opening("b", 1001)
				w.opening("c", 10)
				w.of("a").Weight = 1
			}, func(o *policy.StepOptions) { o.Limit = 1000 },
			"a=1000/s c=10/s | b=1001/s", "narrowed",
		},
		{
			"a limit needs one with data", func(w *world) { w.opening("a", 10) }, func(o *policy.StepOptions) { o.Limit = 1000 },
			"a=10/s b(no data) c(no data) | ", "kept all",
		},
		{
			"all known are above the limit", func(w *world) { w.opening("a", 1001); w.opening("b", 2000) }, func(o *policy.StepOptions) { o.Limit = 1000 },
			"a=1001/s b=2000/s c(no data) | ", "emptied",
		},
		{"a limit without data", func(*world) {}, func(o *policy.StepOptions) { o.Limit = 1000 }, "a(no data) b(no data) c(no data) | ", "abstained"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			o := defaults("connection-load")
			if tt.options != nil {
				tt.options(&o)
			}
			_, _, trace := w.decide(buildOptions(t, o))
			if got := kept(trace, "connection-load"); got != tt.kept || trace.Steps[0].Verdict != tt.verdict {
				t.Errorf("got %s: %s, want %s: %s", trace.Steps[0].Verdict, got, tt.verdict, tt.kept)
			}
		})
	}
}
