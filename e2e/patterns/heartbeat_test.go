package patterns

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// A machine is one of a pair that agrees by heartbeat who serves.
type machine struct {
	*lab.Host
	keepalived *lab.Process
	conf       string
}

// newMachine puts the pattern's scripts and configuration on a host.
func newMachine(t *testing.T, h *lab.Host, pattern string, change *strings.Replacer, scripts ...string) *machine {
	t.Helper()
	for _, s := range scripts {
		path := h.File(s, change.Replace(example(t, pattern, s)))
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.ReplaceAll(change.Replace(example(t, pattern, "keepalived.conf")), "/etc/keepalived", h.Dir())
	return &machine{Host: h, conf: h.File("keepalived.conf", text)}
}

// start starts its keepalived.
func (m *machine) start(t *testing.T) {
	m.keepalived = m.Start(lab.Program(t, "keepalived"), "-n", "-l", "-f", m.conf,
		"-p", filepath.Join(m.Dir(), "k.pid"), "-r", filepath.Join(m.Dir(), "vrrp.pid"))
}

// crash ends all that runs on the machine, without a word to the other.
func (m *machine) crash() {
	m.keepalived.Kill()
	_, _ = m.Run("sh", "-c", "cd "+m.Dir()+"; pkill -9 -F vrrp.pid; rm -f vrrp.pid k.pid; [ ! -x close-port ] || ./close-port")
}

// The application answers no health check. Two machines agree by heartbeat, and open a port to say who serves.
func TestHeartbeat(t *testing.T) {
	for _, failback := range []string{"immediate", "manual"} {
		t.Run(failback, func(t *testing.T) {
			t.Parallel()
			w := lab.NewWorld(t, bin, example(t, "heartbeat", "services.yaml"))
			w.Korea.Agent.Kill()
			var pair []*machine
			for i, name := range []string{"a", "b"} {
				h := w.Host(name, lab.Korea, "3.3.3."+string(rune('1'+i)))
				h.Serve(":80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, name+"\n") }))
				var change []string
				if i == 1 {
					change = append(change, "priority 150", "priority 100")
				}
				if failback == "manual" {
					change = append(change, "#nopreempt", "nopreempt")
				}
				pair = append(pair, newMachine(t, h, "heartbeat", strings.NewReplacer(change...), "open-port", "close-port"))
			}
			a, b := pair[0], pair[1]
			w.Wire(a.Host, "hb", "192.168.77.1/24", b.Host, "hb", "192.168.77.2/24")
			a.start(t)
			lab.Eventually(t, 15*time.Second, "machine a serves", func() bool {
				_, err := os.Stat(filepath.Join(a.Dir(), "port.pid"))
				return err == nil
			})
			b.start(t)
			monitor := w.Host("monitor", lab.Korea, "3.3.3.9")
			if err := os.WriteFile(filepath.Join(monitor.Dir(), "token"), []byte("token-of-seoul\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			monitor.Start(filepath.Join(bin, "gslb-agent"), "--config", monitor.File("agent.yaml", example(t, "heartbeat", "agent.yaml")))
			served := func(by string, within time.Duration) time.Duration {
				t.Helper()
				return lab.Eventually(t, within, "a client is served by "+by, func() bool { return w.Fetch(lab.Korea) == by })
			}
			served("a", 30*time.Second)

			both := w.GSLBD[:]
			by := func(m *machine) func() bool { return func() bool { return w.Fetch(lab.Korea) == m.Name } }
			measured := lab.Measure(t)
			dies := func() {
				measured.Fault("heartbeat: the serving machine dies", a.crash, lab.Logs("member down", both...), w.Answers(lab.Korea, "3.3.3.2", both...), by(b))
			}
			if failback == "immediate" {
				for range lab.Repeats(t) {
					for _, g := range both {
						g.Forget()
					}
					served("a", 20*time.Second)
					dies()
					measured.Fault("heartbeat: it is back (preempts)", func() { a.start(t) }, lab.Logs("member up", both...), w.Answers(lab.Korea, "3.3.3.1", both...), by(a))
				}
				return
			}
			dies()
			a.start(t)
			begin := time.Now()
			lab.Eventually(t, 10*time.Second, "b goes on serving", func() bool {
				if page := w.Fetch(lab.Korea); page != "b" {
					t.Fatalf("a client is served by %q although nobody has ordered it", page)
				}
				return time.Since(begin) > 6*time.Second
			})
			measured.Fault("heartbeat: the operator hands over (`nopreempt`)", func() { b.Must("pkill", "-F", filepath.Join(b.Dir(), "k.pid")) },
				lab.Logs("member up", both...), w.Answers(lab.Korea, "3.3.3.1", both...), by(a))
		})
	}
}
