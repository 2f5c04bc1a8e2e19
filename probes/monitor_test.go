package probes

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

var up, down = Outcome{OK: true, Latency: time.Millisecond}, Outcome{Err: "HTTP 503"}

// testCheck is a check that is never really run.
func testCheck(key string) Check {
	return Check{Key: key, Type: TCP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}
}

// start runs a Monitor until the test's bubble ends.
func start(t *testing.T, m *Monitor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// One bad run changes nothing and neither does one good one; each success resets the count of failures.
func TestMonitorRiseFall(t *testing.T) {
	for _, tt := range []struct{ name, runs, states string }{ // u: a success; d: a failure; U, D: the state; ! a change
		{"first success decides", "u", "U!"},
		{"first failure decides", "d", "D!"},
		{"fall", "uduuddud" + "ddd", "U! U U U U U U U U D! D"},
		{"rise", "ddudduu" + "u", "D! D D D D D U! U"},
		{"one good after down", "udddud", "U! U U D! D D"},
		{"cannot be run", "uxddxd", "U! U U U U D!"},
		{"cannot be run at first", "xxd", "D D D!"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := tt.runs
				var got []string
				done := make(chan bool)
				m := NewMonitor(MonitorOptions{
					Do: func(context.Context, Check) Outcome {
						if runs == "" {
							return up
						}
						kind := runs[0]
						runs = runs[1:]
						return map[byte]Outcome{'u': up, 'd': down, 'x': {Err: "cannot be run: no CA", Unrunnable: true}}[kind]
					},
					Notify: func(r Result) {
						state := "D"
						if r.Up {
							state = "U"
						}
						if r.Changed {
							state += "!"
						}
						if got = append(got, state); len(got) == len(tt.runs) {
							close(done)
						}
					},
				})
				m.Set([]Check{testCheck("a")})
				stop := start(t, m)
				<-done
				stop()
				if got := strings.Join(got[:len(tt.runs)], " "); got != tt.states {
					t.Errorf("states %s, want %s", got, tt.states)
				}
			})
		})
	}
}

func TestMonitorResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := []Outcome{down, up, {Err: "no answer in 2s", Unreachable: true}, up, up, {Err: "no answer in 2s", Unreachable: true}}
		want := []Result{
			{Key: "a", Err: "HTTP 503", Changed: true},
			{Key: "a", Err: "success 1 of 2 after: HTTP 503", Latency: time.Millisecond},
			{Key: "a", Err: "no answer in 2s", Unreachable: true},
			{Key: "a", Err: "success 1 of 2 after: no answer in 2s", Latency: time.Millisecond},
			{Key: "a", Up: true, Changed: true, Latency: time.Millisecond},
			{Key: "a", Up: true, Err: "no answer in 2s", Unreachable: true},
		}
		results := make(chan Result)
		run := 0
		m := NewMonitor(MonitorOptions{
			Do:     func(context.Context, Check) Outcome { run++; return outcomes[(run-1)%len(outcomes)] },
			Notify: func(r Result) { results <- r },
		})
		m.Set([]Check{testCheck("a")})
		if m.Pending() != 1 {
			t.Error("nothing pending before the first run")
		}
		stop := start(t, m)
		for i, want := range want {
			got := <-results
			if !got.At.Equal(time.Now()) {
				t.Errorf("run %d ended at %v, now %v", i, got.At, time.Now())
			}
			got.At = time.Time{}
			if got != want {
				t.Errorf("run %d:\ngot  %+v\nwant %+v", i, got, want)
			}
		}
		if m.Pending() != 0 {
			t.Error("still pending after the first run")
		}
		stop()
		if ok, bad := counted(t, m, "tcp", "success"), counted(t, m, "tcp", "failure"); ok != 3 || bad != 3 {
			t.Errorf("counted %v successes and %v failures", ok, bad)
		}
	})
}

// Checks start within one timeout, not together; then each run starts one interval after the one before or up to 10 %
// later, whatever the run took.
func TestMonitorSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		starts := map[string][]time.Time{}
		type run struct {
			key string
			at  time.Time
		}
		runs := make(chan run, 10*n)
		m := NewMonitor(MonitorOptions{Do: func(ctx context.Context, c Check) Outcome {
			runs <- run{c.Key, time.Now()}
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) != 2*time.Second {
				t.Errorf("the deadline is %v, %v", deadline, ok)
			}
			<-ctx.Done() // every run takes its whole timeout
			return failure(ctx.Err(), c, false)
		}})
		var checks []Check
		for i := range n {
			checks = append(checks, testCheck(fmt.Sprint(i)))
		}
		m.Set(checks)
		time.Sleep(time.Hour) // the time before Run does not count
		begin := time.Now()
		stop := start(t, m)
		time.Sleep(65 * time.Second)
		stop()
		close(runs)
		for r := range runs {
			starts[r.key] = append(starts[r.key], r.at)
		}
		early, slow := 0, 0
		for key, at := range starts {
			if first := at[0].Sub(begin); first > 2*time.Second {
				t.Errorf("%s starts after %v", key, first)
			} else if first < time.Second {
				early++
			}
			for i := 1; i < len(at); i++ {
				gap := at[i].Sub(at[i-1])
				if gap < 10*time.Second || gap > 11*time.Second {
					t.Errorf("%s: %v between runs", key, gap)
				}
				if gap > 10500*time.Millisecond {
					slow++
				}
			}
		}
		if len(starts) != n || early < n/4 || early > n*3/4 || slow < n || slow > 5*n {
			t.Errorf("%d checks, %d in the first half of the stagger, %d later than 5 %%", len(starts), early, slow)
		}
	})
}

// An outage shorter than what fall needs never trips, at whatever phase; a longer one always does.
func TestMonitorOutagePhases(t *testing.T) {
	for _, tt := range []struct {
		outage time.Duration
		trips  int
	}{{1900 * time.Millisecond, 0}, {6100 * time.Millisecond, 50}} {
		t.Run(tt.outage.String(), func(t *testing.T) {
			trips := 0
			for phase := range 50 {
				synctest.Test(t, func(t *testing.T) {
					begin := time.Now()
					from := 20*time.Second + time.Duration(phase)*40*time.Millisecond
					tripped := false
					m := NewMonitor(MonitorOptions{
						Do: func(context.Context, Check) Outcome {
							if now := time.Since(begin); now >= from && now < from+tt.outage {
								return down
							}
							return up
						},
						Notify: func(r Result) { tripped = tripped || !r.Up },
					})
					c := testCheck("a")
					c.Interval, c.Timeout, c.Fall = 2*time.Second, time.Second, 2
					m.Set([]Check{c})
					stop := start(t, m)
					time.Sleep(40 * time.Second)
					stop()
					if tripped {
						trips++
					}
				})
			}
			if trips != tt.trips {
				t.Errorf("%d of 50 outages tripped, want %d", trips, tt.trips)
			}
		})
	}
}

// settle lets a time pass, and all that is due at its end.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestMonitorSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := up
		var got []Result
		var at []time.Duration
		begin := time.Now()
		m := NewMonitor(MonitorOptions{
			Do: func(context.Context, Check) Outcome { return state },
			Notify: func(r Result) {
				got, at = append(got, r), append(at, time.Since(begin))
			},
		})
		c := testCheck("a")
		c.ExpectCodes = []int{200}
		m.Set([]Check{c})
		stop := start(t, m)
		defer stop()
		settle(5 * time.Second)
		first := at[0]
		// Unchanged, in another slice: the schedule goes on, and the state.
		for range 4 {
			settle(time.Second)
			same := testCheck("a")
			same.ExpectCodes = []int{200}
			same.Interval, same.Rise = DefaultInterval, DefaultRise // the defaults written out are no change
			m.Set([]Check{same})
		}
		settle(5 * time.Second)
		if len(at) != 2 || at[1]-first < 10*time.Second || got[1].Changed {
			t.Fatalf("unchanged: runs at %v, %+v", at, got)
		}
		// Another interval: it is run soon, and one failure does not change the state.
		state = down
		c.Interval = 20 * time.Second
		m.Set([]Check{c})
		settle(3 * time.Second)
		if len(got) != 3 || !got[2].Up || got[2].Changed {
			t.Fatalf("other interval: %+v", got)
		}
		// Another port: the next result decides.
		c.Port = 81
		m.Set([]Check{c})
		if m.Pending() != 1 {
			t.Errorf("%d pending, want 1", m.Pending())
		}
		settle(3 * time.Second)
		if len(got) != 4 || got[3].Up || !got[3].Changed {
			t.Fatalf("other port: %+v", got)
		}
		// Invalid: it is shown as such, and told again at the default interval.
		c.Port = 0
		m.Set([]Check{c})
		settle(15 * time.Second)
		if len(got) != 6 || !got[5].Unrunnable || got[5].Changed || got[5].Err != "cannot be run: port: a tcp check needs one" {
			t.Fatalf("invalid: %+v", got)
		}
		// Removed: nothing more is heard.
		m.Set(nil)
		settle(time.Minute)
		if len(got) != 6 || m.Pending() != 0 {
			t.Errorf("removed: %+v", got)
		}
	})
}

// A check that is removed, or a Monitor that is stopped, during a run is told nothing of it, and the run is cut short.
func TestMonitorCutShort(t *testing.T) {
	for _, how := range []string{"removed", "stopped", "replaced"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				running := make(chan bool)
				var cut int
				var got []Result
				m := NewMonitor(MonitorOptions{
					Do: func(ctx context.Context, c Check) Outcome {
						if c.Port == 81 {
							return up
						}
						running <- true
						<-ctx.Done()
						if ctx.Err() == context.Canceled {
							cut++
						}
						return failure(ctx.Err(), c, false)
					},
					Notify: func(r Result) { got = append(got, r) },
				})
				c := testCheck("a")
				m.Set([]Check{c})
				stop := start(t, m)
				<-running
				switch how {
				case "removed":
					m.Set(nil)
				case "replaced":
					c.Port = 81
					m.Set([]Check{c})
				case "stopped":
					stop()
				}
				settle(5 * time.Second)
				var want []bool
				if how == "replaced" {
					want = []bool{true}
				}
				var ups []bool
				for _, r := range got {
					ups = append(ups, r.Up)
				}
				if cut != 1 || !reflect.DeepEqual(ups, want) {
					t.Errorf("%d cut short, results %+v", cut, got)
				}
				if how != "stopped" {
					stop()
				}
			})
		})
	}
}

// What ends because the Monitor stops is no result, even if Run sees it before it sees the stop.
func TestMonitorStopIsNoFailure(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var started atomic.Bool
			m := NewMonitor(MonitorOptions{
				Do: func(ctx context.Context, c Check) Outcome {
					if c.Key == "quick" {
						return up
					}
					started.Store(true)
					<-ctx.Done()
					return failure(ctx.Err(), c, false)
				},
				Notify: func(r Result) {
					if r.Key != "quick" {
						t.Errorf("told %+v", r)
					}
					if started.Load() {
						cancel()
						time.Sleep(time.Second) // Run finds both when this returns
					}
				},
			})
			slow := testCheck("slow")
			slow.Interval, slow.Timeout = time.Hour, time.Hour
			m.Set([]Check{slow, testCheck("quick")})
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// More checks than may run at once are run late, never all at once, and that is said once.
func TestMonitorConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		var running, most, runs atomic.Int32
		var fast atomic.Bool
		m := NewMonitor(MonitorOptions{
			Concurrency: 3,
			Log:         zap.New(core),
			Do: func(ctx context.Context, c Check) Outcome {
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				defer running.Add(-1)
				if fast.Load() {
					return up
				}
				<-ctx.Done()
				return failure(ctx.Err(), c, false)
			},
			Notify: func(Result) { runs.Add(1) },
		})
		var checks []Check
		for i := range 60 { // 60 x 2 s / 3 at once: 40 s for what is due every 10 s
			checks = append(checks, testCheck(fmt.Sprint(i)))
		}
		m.Set(checks)
		stop := start(t, m)
		time.Sleep(2 * time.Minute)
		fast.Store(true)
		if most.Load() != 3 || runs.Load() < 150 || runs.Load() > 183 {
			t.Errorf("%d at once, %d runs in 2 minutes", most.Load(), runs.Load())
		}
		time.Sleep(time.Minute)
		stop()
		var said []string
		for _, entry := range logs.All() {
			said = append(said, entry.Message)
		}
		if want := []string{"checks run late: more are due than may run at once", "checks run in time again"}; !reflect.DeepEqual(said, want) {
			t.Errorf("said %q", said)
		}
	})
}

// A real Monitor with real checks.
func TestMonitorReal(t *testing.T) {
	addr := stubTCP(t, mute)
	results := make(chan Result, 10)
	m := NewMonitor(MonitorOptions{Notify: func(r Result) { results <- r }})
	alive, dead := at(TCP, addr, Check{Key: "alive"}), at(TCP, refusedAddr(t), Check{Key: "dead"})
	for _, c := range []*Check{&alive, &dead} {
		c.Interval, c.Timeout = 50*time.Millisecond, 50*time.Millisecond
	}
	m.Set([]Check{alive, dead})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	seen := map[string]Result{}
	go func() {
		defer cancel()
		for len(seen) < 2 {
			select {
			case r := <-results:
				if _, ok := seen[r.Key]; !ok {
					seen[r.Key] = r
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if r := seen["alive"]; !r.Up || !r.Changed || r.Latency <= 0 || r.Err != "" {
		t.Errorf("alive: %+v", r)
	}
	if r := seen["dead"]; r.Up || !r.Changed || r.Err != "connection refused" || r.Unreachable {
		t.Errorf("dead: %+v", r)
	}
}
