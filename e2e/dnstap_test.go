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

// What gslbd writes, a tool of others reads.
func TestDnstapIsReadByOthers(t *testing.T) {
	reader := lab.Program(t, "dnstap-read")
	s := startGSLBD(t, "dnstap: {file: queries.fstrm}\n"+dashboardConfig)
	s.ask(t, question{name: "www.gslb.example.com", ecs: "203.0.113.0/24"})
	s.ask(t, question{name: "nothing.gslb.example.com", tcp: true})
	lab.Eventually(t, 10*time.Second, "both are written", func() bool { return s.scrape(t, `gslbd_dnstap_messages_total{result="written"}`) == "2" })
	s.signal(syscall.SIGTERM)
	lab.Eventually(t, 15*time.Second, "gslbd has stopped", s.exited)
	out, err := exec.Command(reader, filepath.Join(s.dir, "queries.fstrm")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], " AR ") || !strings.Contains(lines[0], "UDP") || !strings.HasSuffix(lines[0], "www.gslb.example.com/IN/A") ||
		!strings.Contains(lines[1], "TCP") || !strings.HasSuffix(lines[1], "nothing.gslb.example.com/IN/A") {
		t.Errorf("%s", out)
	}
}
