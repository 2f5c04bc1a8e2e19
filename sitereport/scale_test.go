package sitereport

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"gslbd/state"
)

// BenchmarkReports is what a report costs from its bytes to the answer, where 100,000 services of four members stand at
// 1,000 sites: of a site whose SLB has a virtual server for each of its 400 members, and of one that tells of its load only.
func BenchmarkReports(b *testing.B) {
	const sites, services = 1000, 100_000
	c := &state.Config{}
	rc := ReceiverConfig{Interval: 1} // so that none comes too soon
	for i := range sites {
		name := fmt.Sprintf("site%d", i)
		c.Sites = append(c.Sites, state.SiteConfig{Name: name, SessionsLimit: 900_000})
		rc.Sites = append(rc.Sites, ReceiverSite{Name: name})
	}
	var virtual [2][]string // by state of the first server; of the first site
	for i := range services {
		svc := state.ServiceConfig{Name: fmt.Sprintf("s%d.example.com", i)}
		for j := range 4 {
			n := i*4 + j
			m := state.MemberConfig{
				Name: fmt.Sprintf("m%d", j), Site: fmt.Sprintf("site%d", (i+j)%sites), Weight: 100,
				Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{20, byte(n >> 16), byte(n >> 8), byte(n)})},
			}
			svc.Members = append(svc.Members, m)
			for k, word := range []string{"up", "down"} {
				if m.Site == "site0" {
					virtual[k] = append(virtual[k], fmt.Sprintf(`{"name": "v%d", "address": "%s", "port": 443, "protocol": "tcp", "servers": [`+
						`{"name": "a", "address": "10.0.0.1:443", "state": "%s"}, {"name": "b", "address": "10.0.0.2:443", "state": "up"}]}`, n, m.Addresses[0], word))
				}
			}
		}
		c.Services = append(c.Services, svc)
	}
	store, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	store.Configure(c)
	h := NewReceiver(ReceiverOptions{Report: store.Report, Config: rc}).Handler()
	body := func(sessions int, virtual []string) string {
		return fmt.Sprintf(`{"site": "site0", "load": {"sessions": %d}, "virtual_servers": [%s]}`, sessions, strings.Join(virtual, ", "))
	}
	for _, bm := range []struct {
		name   string
		bodies [2]string
	}{
		{"load", [2]string{body(1, nil), body(2, nil)}},
		{"400 virtual servers", [2]string{body(1, virtual[0]), body(2, virtual[0])}},
		{"400 virtual servers, changing", [2]string{body(1, virtual[0]), body(2, virtual[1])}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req := httptest.NewRequest(http.MethodPost, "/v1/sites/site0/report", strings.NewReader(bm.bodies[i%2]))
				req.RemoteAddr, req.Host = "127.0.0.1:1", "127.0.0.1"
				req.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, req); w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
