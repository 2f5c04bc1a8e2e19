package patterns

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// A supervisor does what systemd does with a unit of Type=notify, WatchdogSec= and Restart=always.
type supervisor struct {
	conn     *net.UnixConn // the notify socket
	watchdog time.Duration
	restart  time.Duration
	abort    time.Duration
	run      func() *lab.Process

	restarts, aborted atomic.Int64
}

// supervise takes the times from the unit, and starts the program by run, which is given the environment.
func supervise(t *testing.T, unit, socket string, run func(env ...string) *lab.Process) *supervisor {
	t.Helper()
	setting := func(key string) time.Duration {
		found := regexp.MustCompile(`(?m)^` + key + `=(\S+)$`).FindStringSubmatch(unit)
		if found == nil {
			t.Fatalf("the unit has no %s", key)
		}
		d, err := time.ParseDuration(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	s := &supervisor{watchdog: setting("WatchdogSec"), restart: setting("RestartSec"), abort: setting("TimeoutAbortSec")}
	var err error
	if s.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket}); err != nil {
		t.Fatal(err)
	}
	s.run = func() *lab.Process {
		return run("NOTIFY_SOCKET="+socket, "WATCHDOG_USEC="+strconv.FormatInt(s.watchdog.Microseconds(), 10))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for s.once(stop) {
			s.restarts.Add(1)
			select {
			case <-stop:
				return
			case <-time.After(s.restart):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		s.conn.Close()
		<-stopped
	})
	return s
}

// once runs the program until it has ended, by itself or for want of a sign of life. It reports false when the test ends.
func (s *supervisor) once(stop <-chan struct{}) bool {
	p := s.run()
	ready := false
	var last time.Time // sign of life
	buf := make([]byte, 4096)
	for !p.Exited() {
		select {
		case <-stop:
			return false
		default:
		}
		_ = s.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := s.conn.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		for line := range strings.Lines(string(buf[:n])) {
			switch strings.TrimSpace(line) {
			case "READY=1":
				ready, last = true, time.Now()
			case "WATCHDOG=1":
				last = time.Now()
			}
		}
		if ready && time.Since(last) > s.watchdog {
			s.aborted.Add(1)
			p.Signal(syscall.SIGABRT)
			for begin := time.Now(); !p.Exited(); time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > s.abort {
					p.Kill()
				}
			}
		}
	}
	return true
}

// One gslbd, which is restarted when it hangs. What was measured and ordered survives.
func TestAutohealing(t *testing.T) {
	t.Parallel()
	lab.Program(t, "dig")
	services, unit := example(t, "autohealing", "services.yaml"), example(t, "autohealing", "gslbd.service")
	w := lab.NewWorld(t, bin, services)
	// One machine has both addresses of the delegation.
	g := w.GSLBD[0]
	for _, both := range w.GSLBD {
		both.Process.Kill()
	}
	other := w.GSLBD[1].Addr
	g.Must("ip", "address", "add", other+"/32", "dev", "wan")
	w.RouteTo(other, g.Host)
	g.Listen = []string{other}
	g.Configure(services)

	program, hang := lab.WithHang(t, g.Dir()), filepath.Join(g.Dir(), "hang")
	s := supervise(t, unit, filepath.Join(g.Dir(), "notify"), func(env ...string) *lab.Process {
		return g.Launch(program, append(env, "LAB_HANG="+hang)...)
	})
	lab.Eventually(t, 20*time.Second, "a client is served by the preferred site", w.Served(lab.US, w.Korea))

	// The site that is preferred is out, at first since its servers are down, then by order: no answer may ever name it.
	measured := lab.Measure(t)
	restarts := int64(0)
	heals := func(name string, fault func()) {
		t.Helper()
		restarts++
		answered := w.Answers(lab.US, w.US.VIP, g)
		forgot := w.Answers(lab.US, w.Korea.VIP, g)
		measured.Fault(name, fault,
			func() bool { return s.restarts.Load() == restarts },
			func() bool {
				if forgot() {
					t.Errorf("%s: what was known before is forgotten", name)
				}
				return s.restarts.Load() == restarts && answered()
			},
			func() bool { return s.restarts.Load() == restarts && w.Served(lab.US, w.US)() })
	}
	hangs := func() {
		if err := os.WriteFile(hang, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, time.Minute, "it is restarted", func() bool { return s.restarts.Load() == restarts })
		_ = os.Remove(hang)
	}
	w.Korea.SetHealthy(false)
	lab.Eventually(t, 20*time.Second, "the other site serves", w.Served(lab.US, w.US))
	lab.Eventually(t, 20*time.Second, "that is kept", func() bool { // at most 10 s after it changed
		kept, err := os.ReadFile(filepath.Join(g.Dir(), "state", "state.json"))
		return err == nil && strings.Contains(string(kept), "0 of 2 servers up")
	})
	for range lab.Repeats(t) {
		heals("gslbd hangs", hangs)
		heals("gslbd is killed", func() { g.Process.Signal(syscall.SIGKILL) })
	}
	if out, err := g.Ctl("force", "down", "--site", "seoul", "--reason", "before the hang"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.Korea.SetHealthy(true)
	heals("gslbd hangs", hangs)
	if out, _ := g.Ctl("orders"); !strings.Contains(out, "before the hang") {
		t.Errorf("the order is forgotten:\n%s", out)
	}
	if n := s.aborted.Load(); n != int64(lab.Repeats(t))+1 {
		t.Errorf("%d times without a sign of life, %d restarts", n, s.restarts.Load())
	}
}

// The unit is one that systemd takes without a word.
func TestAutohealingUnit(t *testing.T) {
	t.Parallel()
	analyze := lab.Program(t, "systemd-analyze")
	path := filepath.Join(t.TempDir(), "gslbd.service")
	text := strings.ReplaceAll(example(t, "autohealing", "gslbd.service"), "/usr/bin/gslbd", "/bin/true") // it looks whether the program is there
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// A misspelt key is no error for it, only a line.
	if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
