package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gslbd/e2e/lab"
)

// A serviceManager takes what a program tells systemd, on a real notify socket, and keeps the sockets that it passes.
type serviceManager struct {
	socket string

	mu    sync.Mutex
	told  []string   // guarded by mu
	store []*os.File // guarded by mu
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{socket: filepath.Join(t.TempDir(), "notify")}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
		for {
			n, r, _, _, err := c.ReadMsgUnix(buf, rights)
			if err != nil {
				return
			}
			m.hear(string(buf[:n]), rights[:r])
		}
	}()
	t.Cleanup(func() { m.hear("FDSTOREREMOVE=1\n", nil) })
	return m
}

func (m *serviceManager) hear(text string, rights []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, text)
	switch {
	case strings.HasPrefix(text, "FDSTOREREMOVE=1\n"):
		for _, f := range m.store {
			f.Close()
		}
		m.store = nil
	case len(rights) > 0:
		messages, err := unix.ParseSocketControlMessage(rights)
		if err != nil {
			return
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return
		}
		unix.CloseOnExec(fds[0])
		m.store = append(m.store, os.NewFile(uintptr(fds[0]), "socket"))
	}
}

// stored waits until the manager keeps n sockets, and returns copies of them.
func (m *serviceManager) stored(t *testing.T, n int) (all []*os.File) {
	t.Helper()
	lab.Eventually(t, 15*time.Second, fmt.Sprintf("%d sockets are kept", n), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.store) != n {
			return false
		}
		for _, f := range m.store {
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, os.NewFile(uintptr(fd), f.Name()))
		}
		return true
	})
	return all
}

// from returns the messages from the i-th on.
func (m *serviceManager) from(i int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[min(i, len(m.told)):]
}

// wait waits until a message from the i-th on begins so, and returns the index after it.
func (m *serviceManager) wait(t *testing.T, i int, begins string) (next int) {
	t.Helper()
	lab.Eventually(t, 15*time.Second, "the service manager is told "+begins, func() bool {
		for k, text := range m.from(i) {
			if strings.HasPrefix(text, begins) {
				next = i + k + 1
				return true
			}
		}
		return false
	})
	return next
}

// prepare writes a configuration without starting a server, whose binary is run under the manager by start.
func (m *serviceManager) prepare(t *testing.T, body string) *gslbd {
	t.Helper()
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "gslbd.yaml")
	s.write(t, body)
	return s
}

func (m *serviceManager) start(t *testing.T, s *gslbd, program string, watchdog time.Duration, env ...string) {
	t.Helper()
	args := append(env, "NOTIFY_SOCKET="+m.socket, "WATCHDOG_USEC="+strconv.FormatInt(watchdog.Microseconds(), 10), program, "--config", s.config)
	s.process = start(t, "env", args...)
}

// systemd is told when the server is ready, reloads and stops, and how it does; and the program that an evacuation runs does
// not get the means to speak in its name. A rate limit does not stop the server from asking itself.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	m := newServiceManager(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nenv >"+dir+"/env\necho '[]'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	body := seedNetwork + fleetService + "evacuation: {exec: {command: [" + program + "]}}\n"
	s := m.prepare(t, body)
	m.start(t, s, filepath.Join(binaries, "gslbd"), 400*time.Millisecond, "GSLBD_DNS__RATE_LIMIT__RESPONSES_PER_SECOND=1", "GSLBD_DNS__RATE_LIMIT__SLIP=0")
	next := m.wait(t, 0, "READY=1\nSTATUS=answers for 1 zones with 1 services; 0 of 2 sites report")
	for range 5 {
		next = m.wait(t, next, "WATCHDOG=1")
	}
	s.report(t, "seoul", `{"site": "seoul"}`)
	next = m.wait(t, next, "STATUS=answers for 1 zones with 1 services; 1 of 2 sites report")

	s.reload(t, body)
	next = m.wait(t, next, "RELOADING=1\nMONOTONIC_USEC=")
	next = m.wait(t, next, "READY=1\nSTATUS=answers")
	s.write(t, "no: configuration\n")
	s.signal(syscall.SIGHUP)
	next = m.wait(t, next, "RELOADING=1\n")
	next = m.wait(t, next, "READY=1\n")
	if last := m.from(next - 1)[0]; !strings.Contains(last, "the last reload was refused") {
		t.Errorf("a refused reload: %q", last)
	}

	s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "exec", "--reason", "INC-9", "--dry-run")
	env, err := os.ReadFile(dir + "/env")
	if err != nil || strings.Contains(string(env), "NOTIFY_SOCKET") || strings.Contains(string(env), "WATCHDOG") {
		t.Errorf("the program's environment: %v\n%s", err, env)
	}

	s.signal(syscall.SIGTERM)
	next = m.wait(t, next, "STOPPING=1\n")
	<-s.done
	for _, text := range m.from(next) {
		if strings.HasPrefix(text, "READY") {
			t.Errorf("told %q after the stop", text)
		}
	}
	if log := s.log(); strings.Contains(log, "hangs") {
		t.Errorf("a server that answers is said to hang:\n%s", log)
	}
}

// A server that no longer answers gives no sign of life, says so, and gives them again when it does: also when only one of
// its workers hangs.
func TestHangStopsSignsOfLife(t *testing.T) {
	t.Parallel()
	program := lab.WithHang(t, t.TempDir())
	m := newServiceManager(t)
	s := m.prepare(t, seedNetwork+fleetService)
	hang := filepath.Join(s.dir, "hang")
	const watchdog = 2 * time.Second
	m.start(t, s, program, watchdog, "LAB_HANG="+hang, "GOMAXPROCS=2")
	next := m.wait(t, 0, "READY=1\n")
	m.wait(t, next, "WATCHDOG=1")
	for round, worker := range []string{"", "1"} {
		if err := os.WriteFile(hang, []byte(worker), 0o600); err != nil {
			t.Fatal(err)
		}
		// From the line on there is none, however often it asks itself.
		lab.Eventually(t, 15*time.Second, "it says that it hangs", func() bool { return strings.Count(s.log(), "gslbd hangs") == round+1 })
		next = len(m.from(0))
		begin := time.Now()
		lab.Eventually(t, 15*time.Second, "a watchdog's time goes by", func() bool { return time.Since(begin) > 2*watchdog })
		for _, text := range m.from(next) {
			if strings.HasPrefix(text, "WATCHDOG") {
				t.Errorf("round %d: a sign of life of a server that hangs", round)
			}
		}
		if log := s.log(); !strings.Contains(log, "no answer from "+s.dns) {
			t.Errorf("the log does not say where there is no answer:\n%s", log)
		}
		if err := os.Remove(hang); err != nil {
			t.Fatal(err)
		}
		m.wait(t, next, "WATCHDOG=1")
		s.waitLog("answers itself again", 5*time.Second)
	}
	if n := strings.Count(s.log(), "gslbd hangs"); n != 2 {
		t.Errorf("%d lines about two hangs:\n%s", n, s.log())
	}
}

// Without a service manager nothing is different, and a watchdog that is set for another process is none of ours.
func TestNoServiceManager(t *testing.T) {
	t.Parallel()
	m := newServiceManager(t)
	s := m.prepare(t, seedNetwork+fleetService)
	m.start(t, s, filepath.Join(binaries, "gslbd"), 100*time.Millisecond, "WATCHDOG_PID=1")
	next := m.wait(t, 0, "READY=1\n")
	begin := time.Now()
	lab.Eventually(t, 5*time.Second, "ten watchdog's times go by", func() bool { return time.Since(begin) > time.Second })
	if told := m.from(next); len(told) > 0 {
		t.Errorf("told %q", told)
	}
	without := startGSLBD(t, seedNetwork+fleetService)
	without.signal(syscall.SIGTERM)
	<-without.done
	if log := without.log(); strings.Contains(log, "service manager") {
		t.Errorf("without a service manager:\n%s", log)
	}
}
