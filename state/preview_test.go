package state_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gslbd/state"
)

// same compares what two snapshots say, but for their numbers.
func same(a, b *state.Snapshot) string {
	return cmp.Diff(a, b,
		cmpopts.IgnoreFields(state.Snapshot{}, "RTT", "Geo", "Version", "Published"), cmpopts.IgnoreFields(state.Service{}, "Rotation", "Counters"),
		cmpopts.IgnoreFields(state.Member{}, "Selected", "SelectedApart", "HandedOut"), cmpopts.IgnoreFields(state.SiteInfo{}, "Location"),
		cmpopts.IgnoreUnexported(state.Service{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

// A preview is what is published once the same is ordered, and until then nothing of it is to be seen.
func TestPreviewIsWhatWouldBePublished(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := large(5, 8)
			r := start(t, c)
			for i := range 5 {
				if rnd.IntN(4) > 0 {
					r.report(reportOf(c, fmt.Sprintf("site%d", i), []state.ServerState{up, down, maint}[rnd.IntN(3)]))
				}
			}
			for range 20 {
				r.s.Check(state.CheckResult{
					Service: fmt.Sprintf("s%d.example.com", rnd.IntN(8)), Member: fmt.Sprintf("m%d", rnd.IntN(4)),
					Family: state.Family(rnd.IntN(2)), Up: rnd.IntN(2) == 0, Err: "refused",
				})
			}
			r.settle()
			random := func() func(service, member, site, zone string) state.Force {
				forced := map[string]state.Force{}
				return func(service, member, site, zone string) state.Force {
					key := service + "/" + member
					if _, ok := forced[key]; !ok {
						forced[key] = state.Force{Forced: []state.Forced{
							state.NotForced, state.NotForced, state.ForcedUp, state.ForcedDrain, state.ForcedDown, state.ForcedEvacuated,
						}[rnd.IntN(6)], Why: "a test"}
					}
					return forced[key]
				}
			}
			r.s.SetOrders(state.Orders{Force: random()})
			time.Sleep(10 * time.Millisecond)
			for _, svc := range r.s.Snapshot().Services {
				for _, m := range svc.Members {
					m.Selected[state.V4].Store(int64(rnd.IntN(1000)) * state.SelectedUnit)
				}
			}

			before, logged := r.s.Snapshot(), r.logs.Len()
			selected := func() (list []int64) {
				for _, svc := range r.s.Snapshot().Services {
					for _, m := range svc.Members {
						list = append(list, m.Selected[state.V4].Load(), m.Selected[state.V6].Load())
					}
				}
				return list
			}
			counts := selected()
			force := random()
			preview := r.s.Preview(force)
			if r.s.Snapshot() != before || r.logs.Len() != logged || !cmp.Equal(selected(), counts) {
				t.Fatalf("a preview was published, logged or counted: %v", r.logs.All()[logged:])
			}
			if d := same(before, r.s.Preview(r.forcedNow())); d != "" {
				t.Errorf("a preview of what is ordered already differs:\n%s", d)
			}
			var first []int64
			for _, svc := range preview.Services {
				for _, m := range svc.Members {
					first = append(first, m.Selected[state.V4].Load(), m.Selected[state.V6].Load())
				}
				svc.Rotation.Turn[state.V4].Add(1)
				svc.Members[0].Selected[state.V4].Add(state.SelectedUnit)
			}
			if !cmp.Equal(selected(), counts) || before.Services[0].Rotation.Turn[state.V4].Load() != 0 {
				t.Error("what is counted in a preview is counted in what is in force")
			}

			r.s.SetOrders(state.Orders{Force: force})
			if d := same(r.s.Snapshot(), preview); d != "" {
				t.Errorf("seed %d:\n%s", seed, d)
			}
			if got := selected(); !cmp.Equal(got, first) {
				t.Errorf("counts that members join with: %v, in the preview %v", got, first)
			}
		})
	}
}

// forcedNow returns what is ordered by the snapshot.
func (r *rig) forcedNow() func(service, member, site, zone string) state.Force {
	return func(service, member, _, _ string) state.Force {
		m := r.member(service, member)
		return state.Force{Forced: m.Forced, Why: m.ForcedWhy, Since: m.ForcedSince, Stages: m.Moved}
	}
}

func TestPreviewOfNothing(t *testing.T) {
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Preview(nil) != nil {
		t.Error("there is a preview before there is a configuration")
	}
	s.Configure(oneService(30, "a"))
	if p := s.Preview(nil); p == nil || p.Services[0].Members[0].Forced != state.NotForced {
		t.Errorf("without a function nothing is ordered: %+v", p)
	}
}

// Evacuating the primaries moves a preview to the backups, and the pool in force stays.
func TestPreviewJudgesPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, failover(0.5))
		r.machines()
		out := func(_, member, _, _ string) state.Force {
			if member == "ig-a" || member == "ig-d" {
				return state.Force{Forced: state.ForcedEvacuated}
			}
			return state.Force{}
		}
		if p := r.s.Preview(out).Services[0]; p.Pool != state.Backup || p.Members[0].InPool || !p.Members[1].InPool {
			t.Errorf("without primaries the preview's pool is %s", p.Pool)
		}
		r.machines()
		if p := r.s.Snapshot().Services[0]; p.Pool != state.Primary || p.PoolTransitions != 0 {
			t.Errorf("the pool in force is %s after %d transitions", p.Pool, p.PoolTransitions)
		}
	})
}

func BenchmarkPreview(b *testing.B) {
	s, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Configure(large(200, 5000))
	for b.Loop() {
		s.Preview(nil)
	}
}
