package probes

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Checks go on in the Monitor of the process that takes over: three failures in a row bring one down, wherever they were
// counted, and two successes bring it up. One of another target starts anew.
func TestMonitorResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := map[string]Outcome{"up": up, "failing": up, "down": down, "moved": up}
		run := func(m *Monitor, runs time.Duration) {
			stop := start(t, m)
			time.Sleep(runs*11*time.Second + time.Second)
			synctest.Wait()
			stop()
		}
		states := map[string]string{}
		monitor := func() *Monitor {
			m := NewMonitor(MonitorOptions{
				Do: func(_ context.Context, c Check) Outcome { return outcomes[c.Key] },
				Notify: func(r Result) {
					states[r.Key] += map[bool]string{true: "U", false: "D"}[r.Up]
				},
			})
			var checks []Check
			for key := range outcomes {
				c := testCheck(key)
				c.Interval, c.Timeout = 10*time.Second, time.Second
				checks = append(checks, c)
			}
			m.Set(checks)
			return m
		}
		old := monitor()
		run(old, 0)
		outcomes["failing"] = down
		second := monitor()
		second.Resume(old.Standings())
		if n := second.Pending(); n != 0 {
			t.Errorf("%d are pending", n)
		}
		run(second, 0) // the first failure

		text, err := json.Marshal(second.Standings())
		if err != nil {
			t.Fatal(err)
		}
		var all []Standing
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		outcomes["down"], outcomes["moved"] = up, down
		for i := range all {
			if all[i].Check.Key == "moved" {
				all[i].Check.Port++
			}
		}
		clear(states)
		next := monitor()
		next.Resume(append(all, Standing{Check: testCheck("gone")}))
		run(next, 1) // the second and third, or the first two successes
		if got, want := fmt.Sprint(states), "map[down:DU failing:UD moved:DD up:UU]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
