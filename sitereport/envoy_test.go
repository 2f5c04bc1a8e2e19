package sitereport_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

// envoyServers are the virtual servers that the recordings of testdata/envoy are read with.
var envoyServers = []sitereport.EnvoyVirtualServer{
	{Name: "www", Listener: "0.0.0.0_443", Kind: "http", StatPrefix: "ingress_https", Cluster: "app", Address: netip.MustParseAddr("203.0.113.10"), Port: 443, Protocol: "tcp"},
	{Name: "mail", Listener: "[__]_25", Kind: "tcp", StatPrefix: "mail", Cluster: "mail"},
	{Name: "www2", Listener: "0.0.0.0_443", Kind: "http", StatPrefix: "ingress_https", Cluster: "empty"},
}

func newEnvoy(t *testing.T, rec *recordings, servers []sitereport.EnvoyVirtualServer) *sitereport.Envoy {
	t.Helper()
	e, err := sitereport.NewEnvoy(sitereport.EnvoyOptions{HTTP: sitereport.HTTPOptions{URL: rec.url}, VirtualServers: servers})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEnvoy(t *testing.T) {
	rec := newRecordings(t, "envoy")
	e := newEnvoy(t, rec, envoyServers)
	r, err := e.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = `www 42
  app1.example.com 10.1.1.10:8080 up ""
  10.1.1.20:8080 10.1.1.20:8080 down "health check failed"
  10.1.1.30:8080 10.1.1.30:8080 down "health check timed out, ejected as an outlier"
  10.1.1.40:8080 10.1.1.40:8080 down "ejected as an outlier"
  10.1.1.50:8080 10.1.1.50:8080 down "awaits its first health check"
  10.1.1.60:8080 10.1.1.60:8080 down "EDS says UNHEALTHY"
  10.1.1.61:8080 10.1.1.61:8080 down "EDS says TIMEOUT"
  10.1.1.70:8080 10.1.1.70:8080 drain "EDS says DRAINING"
  10.1.1.71:8080 10.1.1.71:8080 drain "the server asked to be left out"
  10.1.1.80:8080 10.1.1.80:8080 up "degraded"
  10.1.1.81:8080 10.1.1.81:8080 up "degraded"
  [2001:db8::90]:8080 [2001:db8::90]:8080 up ""
  /run/app.sock /run/app.sock unknown "the eds_health_status \"RESTING\" is not known"
mail 8
  10.1.2.10:25 10.1.2.10:25 up ""
www2 42
`
	if d := cmp.Diff(want, lines(r)); d != "" {
		t.Error(d)
	}
	if v := r.VirtualServers[0]; v.Address != envoyServers[0].Address || v.Port != 443 || v.Protocol != "tcp" {
		t.Errorf("%+v", v)
	}
	if r.Load.Sessions == nil || *r.Load.Sessions != 50 || r.Load.NewSessions != nil || r.Load.BitsPerSecIn != nil {
		t.Errorf("a listener counts once: %+v", r.Load)
	}
	if d := cmp.Diff([]string{
		`virtual server "www": server "/run/app.sock": the eds_health_status "RESTING" is not known, so it is reported as unknown`,
		`virtual server "www2": cluster "empty" has no hosts, so nothing is known of its health`,
	}, r.Warnings); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"/stats?format=json&filter=downstream_cx_", "/clusters?format=json"}, rec.look()); d != "" {
		t.Error(d)
	}

	// Counters: what grew; nothing after a restart that only the listener's shows.
	stats := func(total, rx, tx int) {
		var b strings.Builder
		b.WriteString(`{"stats":[`)
		for name, v := range map[string]int{
			"listener.0.0.0.0_443.downstream_cx_active": 1, "listener.0.0.0.0_443.downstream_cx_total": total,
			"listener.[__]_25.downstream_cx_active": 1, "listener.[__]_25.downstream_cx_total": 77,
			"http.ingress_https.downstream_cx_rx_bytes_total": rx, "http.ingress_https.downstream_cx_tx_bytes_total": tx,
			"tcp.mail.downstream_cx_rx_bytes_total": 1000, "tcp.mail.downstream_cx_tx_bytes_total": 2000,
		} {
			fmt.Fprintf(&b, `{"name":%q,"value":%d},`, name, v)
		}
		b.WriteString(`{"histograms":{}}]}`)
		rec.answer("stats.json", body(b.String()))
	}
	for i, step := range []struct {
		total, rx, tx int
		want          string
	}{
		{90211, 1048576, 104857600, "zero"},
		{90300, 2048576, 204857600, "some"},
		{3, 2048577, 204857601, "none"},
		{4, 2048578, 204857602, "some"},
		{5, 1, 204857603, "no traffic"},
	} {
		stats(step.total, step.rx, step.tx)
		r, err := e.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%+v", r.Load)
		switch l := r.Load; {
		case l.NewSessions == nil && l.BitsPerSecIn == nil && l.BitsPerSecOut == nil:
			got = "none"
		case l.NewSessions != nil && l.BitsPerSecIn == nil && l.BitsPerSecOut == nil:
			got = "no traffic"
		case *l.NewSessions > 0 && *l.BitsPerSecIn > 0 && *l.BitsPerSecOut > 0:
			got = "some"
		case *l.NewSessions == 0 && *l.BitsPerSecIn == 0 && *l.BitsPerSecOut == 0:
			got = "zero"
		}
		if got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}

	// What cannot be read has servers of state unknown, and no load.
	for file, answer := range map[string]http.HandlerFunc{
		"stats.json":    body(`{"stats": 7}`),
		"clusters.json": body("app::observability_name::app\n"), // a version that knows no format
	} {
		rec.answer(file, answer)
		r, err := e.Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), ": "+strings.TrimSuffix(file, ".json")+": not the JSON") {
			t.Errorf("%s: %v", file, err)
		}
		unknownOnly(t, r)
		if len(r.VirtualServers) != 3 || len(r.VirtualServers[0].Servers) != 13 {
			t.Errorf("%s: %s", file, lines(r))
		}
		rec.answer(file, nil)
	}
}

// TestEnvoyMissing names what does not exist, and what does.
func TestEnvoyMissing(t *testing.T) {
	rec := newRecordings(t, "envoy")
	e := newEnvoy(t, rec, []sitereport.EnvoyVirtualServer{
		{Name: "a", Listener: "0.0.0.0_80", Kind: "http", StatPrefix: "ingress_https", Cluster: "mail"},
		{Name: "b", Listener: "0.0.0.0_443", Kind: "tcp", StatPrefix: "ingress_https", Cluster: "apps"},
	})
	for range 2 {
		r, err := e.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{
			`virtual server "a": Envoy has no listener "0.0.0.0_80" in its statistics; there are 0.0.0.0_443, [__]_25, admin`,
			`virtual server "b": Envoy has no statistics tcp.ingress_https.downstream_cx_rx_bytes_total and tx_bytes_total, so no traffic is reported`,
			`virtual server "b": Envoy has no cluster "apps"; it has app, empty, mail`,
		}, r.Warnings); d != "" {
			t.Error(d)
		}
		if r.Load != (sitereport.Load{}) {
			t.Errorf("part of the load: %+v", r.Load)
		}
		if s := r.VirtualServers[0].Servers; len(s) != 1 || s[0].State != sitereport.StateUnknown {
			t.Errorf("%+v", s)
		}
	}
}

// FuzzEnvoy gives any two answers: it must not crash, and list its virtual servers.
func FuzzEnvoy(f *testing.F) {
	var seeds [2][]byte
	for i, name := range []string{"stats", "clusters"} {
		b, err := os.ReadFile(filepath.Join("..", "testdata", "envoy", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		seeds[i] = b
	}
	f.Add(seeds[0], seeds[1])
	f.Add([]byte(`{"stats": [{"name": "listener.0.0.0.0_443.downstream_cx_active", "value": 1e9}]}`), []byte(`{"cluster_statuses": [{"name": "app", "host_statuses": [{}, null]}]}`))
	f.Fuzz(func(t *testing.T, stats, clusters []byte) {
		always := roundTripper(func(q *http.Request) (*http.Response, error) {
			b := stats
			if q.URL.Path == "/clusters" {
				b = clusters
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(b)))}, nil
		})
		e, err := sitereport.NewEnvoy(sitereport.EnvoyOptions{HTTP: sitereport.HTTPOptions{URL: "http://a", Transport: always}, VirtualServers: envoyServers})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r, err := e.Read(t.Context())
			if len(r.VirtualServers) != len(envoyServers) {
				t.Errorf("%d virtual servers", len(r.VirtualServers))
			}
			if err != nil {
				unknownOnly(t, r)
			}
			for _, v := range r.VirtualServers {
				for _, s := range v.Servers {
					if s.State == "" {
						t.Errorf("%+v", s)
					}
				}
			}
		}
	})
}
