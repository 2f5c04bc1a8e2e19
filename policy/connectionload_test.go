package policy_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"gslbd/policy"
	"gslbd/state"
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
		{
			"by what would come if no clients were held back", func(w *world) {
				w.opening("a", 100)
				w.opening("b", 600)
				w.opening("c", 801)
				w.snapshot.SiteOf(w.of("a")).Shed = 0.75
				w.of("b").Moved = []state.Stage{{Order: 1, Share: 0.25}} // which leaves this client alone
			}, nil,
			"a=400/s b=800/s | c=801/s", "narrowed",
		},
		{
			"nobody, if it were for the shares", func(w *world) {
				w.opening("a", 0)
				w.opening("b", 6)
				w.snapshot.SiteOf(w.of("a")).Shed, w.snapshot.SiteOf(w.of("b")).Shed = 1, 1
			}, nil,
			"a=0/s c(no data) | b=600/s", "narrowed",
		},
		{
			"a limit is one of what comes", func(w *world) {
				w.opening("a", 900)
				w.opening("b", 1001)
				w.snapshot.SiteOf(w.of("a")).Shed = 0.75
			}, func(o *policy.StepOptions) { o.Limit = 1000 },
			"a=900/s c(no data) | b=1001/s", "narrowed",
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

// With reports of the new sessions that the answers bring, 30 s late, a stage still takes its share away.
func TestStagesAreNotMadeUpForByLoad(t *testing.T) {
	const (
		tick    = 5   // seconds between reports
		ttl     = 6   // ticks
		queries = 300 // a tick
		ticks   = 300
		begin   = 100 // what is before that has not settled
	)
	for _, members := range []string{"a b", "a b c d"} {
		for _, share := range []float64{0, 0.25, 0.5, 0.75} {
			t.Run(fmt.Sprintf("%s: %g", members, share), func(t *testing.T) {
				w := newWorld(strings.Fields(members)...)
				w.of("a").Moved = stage(share)
				c, q := build(t, defaultChain...), w.query()
				rnd := rand.New(rand.NewPCG(1, 2))
				given := map[string][]float64{} // answers a tick
				got := 0.
				for i := range ticks {
					now := map[string]float64{}
					for range queries {
						var d policy.Decision
						q.Turn++
						q.LDNS = netip.AddrFrom4([4]byte{20, byte(rnd.IntN(256)), byte(rnd.IntN(256)), 1})
						c.Decide(q, &d)
						d.Members[0].Select(state.V4, d.Apart)
						now[d.Members[0].Name]++
					}
					if i >= begin {
						got += now["a"] / queries / (ticks - begin)
					}
					for _, m := range w.Members {
						all := append(given[m.Name], now[m.Name])
						given[m.Name] = all
						window := all[max(len(all)-ttl-5, 0):] // five reports, each of the clients of one TTL
						sum := 0.
						for _, n := range window {
							sum += n
						}
						w.opening(m.Name, sum/float64(len(window))/tick)
					}
				}
				if want := (1 - share) / float64(len(w.Members)); math.Abs(got-want) > 0.02 {
					t.Errorf("a gets %.3f of the answers, want %.3f", got, want)
				}
			})
		}
	}
}
