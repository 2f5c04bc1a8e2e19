package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// The service manager is told that the agent runs, and that it lives for as long as it puts reports together.
func TestSupervised(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	socket := filepath.Join(dir, "notify")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	told := func() (all []string) {
		for buf := make([]byte, 1024); ; {
			n, err := unix.Read(fd, buf)
			if err != nil {
				return all
			}
			all = append(all, string(buf[:n]))
		}
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "20000000")
	t.Setenv("WATCHDOG_PID", "")
	os.Unsetenv("WATCHDOG_PID") // and put back by t.Setenv

	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, []byte(`
site: seoul
servers: ["http://127.0.0.1:1"]
haproxy: [{socket: /nonexistent, virtual_servers: [{name: web, frontend: web, backend: web, address: 192.0.2.1, port: 80}]}]
rtt: {enabled: false}
log: {level: error}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := load(file, false)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.supervised(ctx) }()
		synctest.Wait()
		if got := told(); !slices.Equal(got, []string{"READY=1\nSTATUS=site seoul, 1 virtual servers, reports to 1 gslbd"}) {
			t.Errorf("told %q", got)
		}
		time.Sleep(time.Second) // between the signs of life, every 5s
		read := func() { _, _ = p.rounds.Read(ctx) }
		for round, x := range []struct {
			reports bool
			want    []string
		}{
			{true, []string{"WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"}},
			{false, []string{"WATCHDOG=1", "WATCHDOG=1"}}, // within three intervals of 5s
			{false, nil},
			{true, []string{"WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"}},
		} {
			for range 4 {
				if x.reports {
					read()
				}
				time.Sleep(5 * time.Second)
			}
			synctest.Wait()
			if got := told(); !slices.Equal(got, x.want) {
				t.Errorf("round %d: told %q, want %q", round, got, x.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
