package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gslbd/e2e/lab"
)

// The program is run once for a fleet, by the gslbd that was asked first, also when the order is given to all of them and
// etcd brings it as well; and so is the way back. Who waits for the evacuation waits until the program has ended.
func TestFleetRunsTheProgramOnce(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t, 1)
	g, evacuation := newGroup(t, "2")
	program := filepath.Join(g.dir, "asg")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte(strings.Replace(string(text), "case $1 in", "echo $1 >>calls\ncase $1 in", 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	a := startGSLBD(t, seedNetwork+fleetService+evacuation, endpoints(etcd)...)
	b := startGSLBD(t, seedNetwork+fleetService+evacuation, endpoints(etcd)...)
	for _, s := range []*gslbd{a, b} {
		s.wantAnswer(t, within, www, "1.1.1.1")
	}
	// The first that is named runs it; whichever is looked at first, the order is not done before that one says so.
	for i, order := range [][2]*gslbd{{a, b}, {b, a}} {
		first, second := order[0], order[1]
		out := second.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,exec", "--reason", "INC-8", "--server", "http://"+first.admin, "--wait", "--timeout", "60s")
		if !g.has("removed") {
			t.Errorf("--wait returned before the program had ended:\n%s", out)
		}
		for _, s := range order {
			s.wantAnswer(t, 0, www, "2.2.2.2")
			if out := s.ctl(t, "evacuations", "--json"); strings.Count(out, `"resource": "web-asg"`) != 1 {
				t.Errorf("round %d: the ledger of %s:\n%s", i, s.admin, out)
			}
		}
		first.kill() // with the one that ran it away, the other puts back
		second.ctl(t, "restore", "--zone", "apne2-az1", "--wait", "--timeout", "60s")
		first.run(t)
		for _, s := range order {
			s.wantAnswer(t, within, www, "1.1.1.1")
			lab.Eventually(t, within, "the ledger is empty", func() bool { return !strings.Contains(s.ctl(t, "evacuations", "--json"), "INC-8") })
		}
		calls, err := os.ReadFile(filepath.Join(g.dir, "calls"))
		if err != nil || strings.Count(string(calls), "remove\n") != i+1 || strings.Count(string(calls), "add\n") != i+1 || g.has("removed") {
			t.Errorf("round %d: %v; want one remove and one add a round:\n%s", i, err, calls)
		}
	}
}
