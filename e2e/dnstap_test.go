package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// What gslbd writes, tools of others read, by the commands that docs/operations.md has.
func TestDnstapIsReadByOthers(t *testing.T) {
	for _, name := range []string{"dnstap-read", "text2pcap", "tshark"} {
		lab.Program(t, name)
	}
	s := startGSLBD(t, "dnstap: {file: queries.fstrm}\n"+dashboardConfig)
	s.ask(t, question{name: "www.gslb.example.com", ecs: "203.0.113.0/24"})
	s.ask(t, question{name: "nothing.gslb.example.com", tcp: true})
	lab.Eventually(t, 10*time.Second, "both are written", func() bool { return s.scrape(t, `gslbd_dnstap_messages_total{result="written"}`) == "2" })
	s.signal(syscall.SIGTERM)
	lab.Eventually(t, 15*time.Second, "gslbd has stopped", s.exited)

	block := blocksTested(t, "docs/operations.md", dnstap)[0].text
	cmd := exec.Command("/bin/sh", "-ec", strings.ReplaceAll(block, "/var/log/gslbd/queries.fstrm", filepath.Join(s.dir, "queries.fstrm")))
	cmd.Dir = t.TempDir()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, complaints.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 4 {
		t.Fatalf("%s", out)
	}
	if !strings.Contains(lines[0], " AR ") || !strings.Contains(lines[0], "UDP") || !strings.HasSuffix(lines[0], "www.gslb.example.com/IN/A") ||
		!strings.Contains(lines[1], "TCP") || !strings.HasSuffix(lines[1], "nothing.gslb.example.com/IN/A") {
		t.Errorf("dnstap-read: %s", out)
	}
	served, denied := strings.Split(lines[2], "\t"), strings.Split(lines[3], "\t")
	if len(served) != 5 || served[1] != "www.gslb.example.com" || !strings.HasPrefix(served[2], "192.0.2.") || served[3] != "203.0.113.0" || served[4] != "0" ||
		len(denied) != 5 || denied[1] != "nothing.gslb.example.com" || denied[4] != "3" {
		t.Errorf("tshark: %q, %q", served, denied)
	}
}

// What gslbd wrote, gslbctl simulate replays: the same queries of the same clients.
func TestDnstapIsReplayed(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, "dnstap: {file: queries.fstrm}\n"+dashboardConfig)
	for _, q := range []question{
		{name: "www.gslb.example.com", ecs: "8.8.8.0/24"}, // Virginia is near
		{name: "wWw.gSlb.example.com", ecs: "8.8.9.0/24"},
		{name: "www.gslb.example.com", ecs: "168.126.63.0/24", tcp: true}, // Seoul is
		{name: "www.gslb.example.com", ecs: "168.126.64.0/24"},
		{name: "www.gslb.example.com", qtype: dns.TypeAAAA},
		{name: "www.gslb.example.com", qtype: dns.TypeTXT},
		{name: "nothing.gslb.example.com"},
	} {
		s.ask(t, q)
	}
	lab.Eventually(t, 10*time.Second, "all are written", func() bool { return s.scrape(t, `gslbd_dnstap_messages_total{result="written"}`) == "7" })
	// It is read while gslbd is writing.
	nearest := strings.Replace(dashboardConfig, "www.gslb.example.com\n", "www.gslb.example.com\n    policy: nearest\n", 1)
	s.write(t, nearest+"geo: {databases: [testdata/geo/cities.mmdb]}\n")
	out := s.ctl(t, "simulate", "--config", s.config, "--queries", filepath.Join(s.dir, "queries.fstrm"), "--json")
	var r struct {
		Queries, Unknown, Lacking, Skipped, Unreadable int
		Phases                                         []struct {
			Forecast struct {
				Sites []struct {
					Name    string
					Clients struct{ After float64 }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if r.Queries != 4 || r.Unknown != 1 || r.Lacking != 1 || r.Skipped != 1 || r.Unreadable != 0 {
		t.Errorf("%d queries, %d unknown, %d lacking, %d skipped, %d unreadable", r.Queries, r.Unknown, r.Lacking, r.Skipped, r.Unreadable)
	}
	for _, site := range r.Phases[0].Forecast.Sites {
		if site.Clients.After != 0.5 {
			t.Errorf("%s has %g of the clients", site.Name, site.Clients.After)
		}
	}
}
