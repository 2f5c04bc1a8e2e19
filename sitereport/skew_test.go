package sitereport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
	"gslbd/state"
)

func skewed(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../testdata/skew/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestReportsOfOtherReleases: what an agent of the previous release sent, and what one of the next may send, is taken, with all that
// this release knows of.
func TestReportsOfOtherReleases(t *testing.T) {
	for release, warnings := range map[string][]string{
		"previous": {},
		"next":     {`rtts: round trips by method "quic" are left out, since this gslbd does not know it: upgrade gslbd, or take it out of rtt.methods of the agent`},
	} {
		t.Run(release, func(t *testing.T) {
			var got *state.Report
			h := sitereport.NewReceiver(sitereport.ReceiverOptions{
				Report: func(r *state.Report) (state.ReportResult, error) {
					got = r
					return state.ReportResult{}, nil
				},
				Config: sitereport.ReceiverConfig{Sites: []sitereport.ReceiverSite{{Name: "seoul"}}},
			}).Handler()
			req := httptest.NewRequest(http.MethodPost, "/v1/sites/seoul/report", bytes.NewReader(skewed(t, release+".report.json")))
			req.RemoteAddr, req.Host = "127.0.0.1:40000", "127.0.0.1:8054"
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			var answer sitereport.Answer
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
				t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
			}
			if d := cmp.Diff(warnings, answer.Warnings); d != "" {
				t.Error(d)
			}
			want := []state.RTTSample{{Resolver: netip.MustParseAddr("127.0.0.2"), RTT: 30065 * time.Nanosecond, Age: 796 * time.Millisecond, Method: state.RTTICMP}}
			if d := cmp.Diff(want, got.RTTs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
			web := got.VirtualServers[0]
			if len(got.VirtualServers) != 2 || web.Name != "web" || web.Servers[0].State != state.ServerUp || web.Servers[1].State != state.ServerDown {
				t.Errorf("%+v", got.VirtualServers)
			}
		})
	}
}

// TestAnswersOfOtherReleases: an agent does what the answer of a gslbd of the previous release says, and of one of the next as far as it
// knows of it.
func TestAnswersOfOtherReleases(t *testing.T) {
	for release, methods := range map[string]string{"previous": "icmp dns", "next": "quic icmp dns"} { // the prober leaves out what it does not know
		t.Run(release, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := skewed(t, release+".answer.json")
				var queued []string
				agent, err := sitereport.NewAgent(sitereport.AgentOptions{
					Site: "seoul", Servers: []string{"http://192.0.2.1:8054"}, Interval: 5 * time.Second,
					Probe: func(a netip.Addr, methods []string) bool {
						queued = append(queued, a.String()+" "+strings.Join(methods, " "))
						return true
					},
					Transport: replay(func(*http.Request) (*http.Response, error) {
						w := httptest.NewRecorder()
						w.Write(answer)
						return w.Result(), nil
					}),
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				if err := agent.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if agent.Interval() != time.Second {
					t.Errorf("interval %s, and the answer orders 1s", agent.Interval())
				}
				if d := cmp.Diff([]string{"127.0.0.2 " + methods}, queued); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// A replay answers every report alike.
type replay func(*http.Request) (*http.Response, error)

func (f replay) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
