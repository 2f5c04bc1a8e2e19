package patterns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// Two machines share a VIP by VRRP, and an agent runs beside each. The VIP moves between them without ever being down for
// gslbd, which goes on to listen to the agent of the master.
func TestPair(t *testing.T) {
	t.Parallel()
	w := lab.NewWorld(t, bin, example(t, "pair", "services.yaml"))
	w.Korea.Agent.Kill()
	var pair []*machine
	for i, name := range []string{"a", "b"} {
		h := w.Host(name, lab.Korea, "3.3.3."+string(rune('1'+i)))
		var change []string
		if i == 1 {
			change = append(change, "priority 150", "priority 100")
		}
		pair = append(pair, newMachine(t, h, "pair", strings.NewReplacer(change...)))
		if err := os.WriteFile(filepath.Join(h.Dir(), "token"), []byte("token-of-seoul\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := pair[0], pair[1]
	w.Wire(a.Host, "hb", "192.168.77.1/24", b.Host, "hb", "192.168.77.2/24")
	has := func(m *machine) func() bool {
		return func() bool {
			return strings.Contains(m.Must("ip", "-4", "address", "show", "dev", "hb"), "3.3.3.100/32")
		}
	}
	report := func(m *machine) *lab.Process {
		text := strings.Replace(example(t, "pair", "agent.yaml"), "agent: a", "agent: "+m.Name, 1)
		return m.Start(filepath.Join(bin, "gslb-agent"), "--config", m.File("agent.yaml", text))
	}
	a.start(t)
	lab.Eventually(t, 15*time.Second, "machine a is master", has(a))
	b.start(t)
	both := w.GSLBD[:]
	for _, g := range both { // the world's own agent may have been heard
		g.Forget()
	}
	heard := lab.Logs(`"agent reports","site":"seoul","agent":"a"`, both...)
	report(a)
	lab.Eventually(t, 20*time.Second, "machine a's agent is heard", heard)
	standby := report(b)
	lab.Eventually(t, 20*time.Second, "machine b's agent is heard, too", func() bool { return strings.Count(standby.Log(), "reports accepted") == 2 })
	answered := w.Answers(lab.Korea, "3.3.3.100", both...)
	lab.Eventually(t, 20*time.Second, "the VIP is answered", answered)

	down := lab.Logs("member down", both[0])
	moves := func(to, from *machine, move func()) {
		t.Helper()
		heard := lab.Logs(`"agent":"`+to.Name+`","from":"`+from.Name+`"`, both...)
		move()
		lab.Eventually(t, 15*time.Second, "machine "+to.Name+" is master", has(to))
		lab.Eventually(t, 20*time.Second, "gslbd listens to "+to.Name, func() bool {
			if !answered() {
				t.Fatal("the VIP is not answered, although one of the machines serves it")
			}
			return heard()
		})
	}
	moves(b, a, func() { a.Must("pkill", "-F", filepath.Join(a.Dir(), "k.pid")) })
	moves(a, b, func() { a.start(t) })
	if down() {
		t.Error("the member was down")
	}
}
