package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
