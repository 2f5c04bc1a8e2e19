package sitereport_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/probes"
	"gslbd/sitereport"
	"gslbd/state"
)

// A wire carries reports to a receiver, and loses answers as its test says.
type wire struct {
	handler http.Handler
	lose    func(n int) bool          // the receiver has the report, the agent gets no answer
	stall   func(n int) time.Duration // before the report arrives

	mu       sync.Mutex
	sent     int
	statuses []int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	n := w.sent
	w.sent++
	w.mu.Unlock()
	if w.stall != nil {
		select {
		case <-time.After(w.stall(n)):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	r = r.Clone(r.Context())
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "127.0.0.1:8054"
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	w.mu.Lock()
	w.statuses = append(w.statuses, rec.Code)
	w.mu.Unlock()
	if w.lose != nil && w.lose(n) {
		return nil, errors.New("connection reset by peer")
	}
	return rec.Result(), nil
}

// TestAgentAndReceiver runs the real agent against the real receiver: whatever happens to answers, every report is
// applied at most once, none is refused, and round trips arrive.
func TestAgentAndReceiver(t *testing.T) {
	tests := []struct {
		name    string
		lose    func(n int) bool
		stall   func(n int) time.Duration
		applied int
	}{
		{"undisturbed", nil, nil, 12},
		{"every third answer lost", func(n int) bool { return n%3 == 1 }, nil, 12},
		{"one report stalls for 4.9 s", nil, func(n int) time.Duration {
			if n == 3 {
				return 4900 * time.Millisecond
			}
			return 0
		}, 12},
		{"one report stalls until it is given up, twice", nil, func(n int) time.Duration {
			if n == 3 || n == 4 {
				return time.Hour
			}
			return 0
		}, 11},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				resolver := netip.MustParseAddr("192.0.2.53")
				var applied []*state.Report
				receiver := sitereport.NewReceiver(sitereport.ReceiverOptions{
					Config: sitereport.ReceiverConfig{
						Sites: []sitereport.ReceiverSite{{Name: "seoul"}}, Interval: 5 * time.Second,
					},
					Report: func(r *state.Report) (state.ReportResult, error) {
						applied = append(applied, r)
						return state.ReportResult{Probe: []state.ProbeTarget{{Resolver: resolver, Methods: []state.RTTMethod{state.RTTICMP, state.RTTDNS}}}}, nil
					},
				})
				w := &wire{handler: receiver.Handler(), lose: tc.lose, stall: tc.stall}
				var agent *sitereport.Agent
				agent, err := sitereport.NewAgent(sitereport.AgentOptions{
					Site: "seoul", Name: "lb1", Servers: []string{"http://gslbd"}, Interval: 5 * time.Second, Transport: w,
					Readers: []sitereport.Reader{readerFunc(func(context.Context) (sitereport.Reading, error) {
						sessions := uint64(400_000)
						return sitereport.Reading{Load: sitereport.Load{Sessions: &sessions}, VirtualServers: []sitereport.VirtualServer{{
							Name: "web", Address: netip.MustParseAddr("1.1.1.1"), Port: 443, Protocol: "tcp", Sessions: &sessions,
							Servers: []sitereport.Server{{Name: "s1", Address: "10.1.1.10:443", State: sitereport.StateDown, Reason: "L7STS 503"}},
						}}}, nil
					})},
					Probe: func(a netip.Addr, methods []string) bool {
						if d := cmp.Diff([]string{"icmp", "dns"}, methods); d != "" {
							t.Error(d)
						}
						agent.RTT(probes.RTT{Addr: a, RTT: 30 * time.Millisecond, Method: "icmp", At: time.Now()})
						return true
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
				defer cancel()
				if err := agent.Run(ctx); err != nil {
					t.Fatal(err)
				}
				for i, status := range w.statuses {
					if status != http.StatusOK {
						t.Errorf("request %d got status %d", i, status)
					}
				}
				if len(applied) < tc.applied-1 || len(applied) > tc.applied {
					t.Errorf("%d reports were applied, want about %d", len(applied), tc.applied)
				}
				rtts := 0
				for _, r := range applied {
					rtts += len(r.RTTs)
					v := r.VirtualServers[0]
					if r.Sessions != 400_000 || !r.HasSessions || r.HasBits || r.HasNewSessions || v.Servers[0].State != state.ServerDown ||
						v.Servers[0].Reason != "L7STS 503" || v.Address != netip.MustParseAddr("1.1.1.1") {
						t.Errorf("%+v", r)
					}
				}
				if rtts < 2 {
					t.Errorf("%d round trips arrived", rtts)
				}
			})
		})
	}
}
