package sitereport_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"gslbd/probes"
	"gslbd/sitereport"
)

// A namedReader is a Reader that telemetry tells of.
type namedReader struct {
	readerFunc
	name string
}

func (r namedReader) String() string { return r.name }

// gathered returns the series of an agent, by name and labels.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				v = m.GetCounter().GetValue()
			}
			all[strings.TrimPrefix(f.GetName(), "gslb_agent_")+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return all
}

// One gslbd accepts, one refuses, one does not answer; one of two readers fails for a while; servers are in all states.
func TestAgentTelemetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		haproxy := namedReader{func(context.Context) (sitereport.Reading, error) {
			if broken.Load() {
				return sitereport.Reading{VirtualServers: []sitereport.VirtualServer{{Name: "web", Servers: []sitereport.Server{{Name: "a", State: sitereport.StateUnknown}}}}}, errors.New("gone")
			}
			return sitereport.Reading{VirtualServers: []sitereport.VirtualServer{{Name: "web", Servers: []sitereport.Server{
				{Name: "a", State: sitereport.StateUp},
				{Name: "b", State: sitereport.StateUp},
				{Name: "c", State: sitereport.StateDown},
				{Name: "d", State: sitereport.StateDrain},
				{Name: "e", State: sitereport.StateMaint},
				{Name: "f"},
			}}}}, nil
		}, "haproxy /run/admin.sock"}
		checks := namedReader{func(context.Context) (sitereport.Reading, error) { return sitereport.Reading{}, nil }, "own checks"}
		nameless := readerFunc(func(context.Context) (sitereport.Reading, error) { return sitereport.Reading{}, nil })
		net := gslbds{
			"good": {answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
				return http.StatusOK, `{"accepted": true, "drain": ["web"]}`, nil
			}},
			"strict": {answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
				return http.StatusBadRequest, `{"error": "rtts[0]: no"}`, nil
			}},
			"gone": {answer: func(context.Context, int, *sitereport.Report) (int, string, error) {
				return 0, "", errors.New("connection refused")
			}},
		}
		run(t, net, sitereport.AgentOptions{
			Servers: []string{"http://good", "http://strict", "http://gone"}, Interval: 5 * time.Second,
			Readers: []sitereport.Reader{haproxy, checks, nameless},
		}, 0, func(a *sitereport.Agent) {
			a.RTT(probes.RTT{Addr: netip.MustParseAddr("192.0.2.53"), RTT: time.Millisecond, Method: "icmp", At: time.Now()})
			first := gathered(t, a)
			want := map[string]float64{}
			for _, server := range []string{"good", "strict", "gone"} {
				server = "server=http://" + server
				for _, result := range []string{"accepted", "refused", "unanswered"} {
					want["reports_total{result="+result+","+server+"}"] = 0
				}
				want["report_age_seconds{"+server+"}"], want["rtts_waiting{"+server+"}"], want["rtts_dropped_total{"+server+"}"] = 0, 1, 0
			}
			if diff := cmp.Diff(want, first); diff != "" {
				t.Errorf("before the first report (-want +got):\n%s", diff)
			}
			time.Sleep(9 * time.Second) // the second report was at 7s at the latest
			if s := gathered(t, a); s["reader_up{reader=haproxy /run/admin.sock}"] != 0 || s["servers{state=unknown,virtual_server=web}"] != 1 {
				t.Errorf("while a reader fails: %v", s)
			}
			broken.Store(false)
			time.Sleep(3 * time.Second) // a third
			got := gathered(t, a)
			if age := got["report_age_seconds{server=http://good}"]; age <= 0 || age >= 5 {
				t.Errorf("the age of what was accepted is %v", age)
			}
			delete(got, "report_age_seconds{server=http://good}")
			maps.Copy(want, map[string]float64{
				"reports_total{result=accepted,server=http://good}": 3, "reports_total{result=refused,server=http://strict}": 3,
				"reports_total{result=unanswered,server=http://gone}": 3,
				"report_age_seconds{server=http://strict}":            12, "report_age_seconds{server=http://gone}": 12,
				"rtts_waiting{server=http://good}": 0, "rtts_waiting{server=http://strict}": 0, "rtts_dropped_total{server=http://strict}": 1,
				"reader_up{reader=haproxy /run/admin.sock}": 1, "reader_failures_total{reader=haproxy /run/admin.sock}": 2,
				"reader_up{reader=own checks}": 1, "reader_failures_total{reader=own checks}": 0,
				"servers{state=up,virtual_server=web}": 2, "servers{state=down,virtual_server=web}": 1, "servers{state=drain,virtual_server=web}": 1,
				"servers{state=maint,virtual_server=web}": 1, "servers{state=unknown,virtual_server=web}": 1,
				"held_back{}": 1, // draining is off, and asked for
			})
			delete(want, "report_age_seconds{server=http://good}")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	})
}
