package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// A group is a resource that only the operator's program can move: a file says that it is out of service. Taking it out
// and putting it back take their time.
type group struct{ dir string }

// newGroup writes the program. While it removes, the file removing is there; twice
// says that two runs removed at once.
func newGroup(t *testing.T, takes string) (g group, evacuation string) {
	t.Helper()
	g.dir = t.TempDir()
	program := filepath.Join(g.dir, "asg")
	script := `#!/bin/sh
cd "` + g.dir + `"
case $1 in
list) s=in; [ -e removed ] && s=removed; echo '[{"id":"web-asg","zone":"apne2-az1","state":"'$s'"}]' ;;
remove) [ -e removing ] && : >twice; : >removing; sleep ` + takes + `; cat >removed; rm removing ;;
add) sleep ` + takes + `; rm -f removed ;;
esac
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return g, fmt.Sprintf("evacuation: {exec: {command: [%q], timeout: 10s}}\n", program)
}

func (g group) has(file string) bool {
	_, err := os.Stat(filepath.Join(g.dir, file))
	return err == nil
}

// crash kills the server after a random while, and starts it again.
func (s *gslbd) crash(t *testing.T, within time.Duration) {
	t.Helper()
	after := time.Duration(rand.Int64N(int64(within)))
	<-time.After(after)
	s.kill()
	s.run(t)
	if out := s.ctl(t, "status"); strings.Contains(out, "orders.db") {
		t.Fatalf("killed after %v, the journal is damaged:\n%s", after, out)
	}
}

// Wherever an evacuation and its restoration are cut off by a power failure, again and again, they go on by themselves, and
// in the end the answers, the program and the ledger agree.
func TestKilledDuringEvacuation(t *testing.T) {
	t.Parallel()
	g, evacuation := newGroup(t, "0.3")
	s := startGSLBD(t, seedNetwork+fleetService+evacuation)
	s.wantAnswer(t, within, www, "1.1.1.1")
	for round := range 3 {
		s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,exec", "--reason", "INC-5")
		for range 3 {
			s.crash(t, 2*time.Second)
			s.wantAnswer(t, 0, www, "2.2.2.2")
		}
		s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,exec", "--reason", "INC-5", "--wait", "--timeout", "30s") // and by giving it again
		out := s.ctl(t, "evacuations")
		if !g.has("removed") || !strings.Contains(out, "web-asg") || !strings.Contains(out, "www.gslb.example.com/seoul") {
			t.Errorf("round %d: removed %v, and the ledger is\n%s", round, g.has("removed"), out)
		}

		s.ctl(t, "restore", "--zone", "apne2-az1")
		for range 3 {
			s.crash(t, time.Second)
		}
		lab.Eventually(t, 20*time.Second, "the ledger is empty", func() bool { return !strings.Contains(s.ctl(t, "evacuations", "--json"), "INC-5") })
		s.wantAnswer(t, 0, www, "1.1.1.1")
		if g.has("removed") || g.has("twice") {
			t.Errorf("round %d: two ran at once, or the ledger is empty, and the program still says removed", round)
		}
	}
}

// A run of the program that outlives its gslbd is waited for: no second one runs beside it, and what it takes out is put
// back by the restoration.
func TestProgramOutlivesGSLBD(t *testing.T) {
	t.Parallel()
	g, evacuation := newGroup(t, "3")
	s := startGSLBD(t, seedNetwork+fleetService+evacuation)
	s.wantAnswer(t, within, www, "1.1.1.1")
	s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,exec", "--reason", "INC-6")
	lab.Eventually(t, 15*time.Second, "the program removes", func() bool { return g.has("removing") })
	s.kill()
	s.run(t)
	s.ctl(t, "restore", "--zone", "apne2-az1")
	s.waitLog("evacuation program waits", 3*time.Second)
	lab.Eventually(t, 3*time.Second, "the ledger says what is waited for", func() bool {
		return strings.Contains(s.ctl(t, "evacuations", "--json"), "a run from before gslbd was restarted still goes on")
	})
	s.ctl(t, "restore", "--zone", "apne2-az1", "--wait", "--timeout", "30s")
	if g.has("removed") || g.has("twice") {
		t.Errorf("removed %v, run twice at once %v\n%s", g.has("removed"), g.has("twice"), s.log())
	}
	if n := strings.Count(s.log(), "evacuation program waits"); n > 2 { // once to remove, once to add
		t.Errorf("the log says %d times that it waits", n)
	}
}
