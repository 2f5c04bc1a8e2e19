package sitereport_test

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inNamespace runs a subtest in a network namespace of its own, and so what it starts. It is skipped where there can be
// none; with E2E=require that is a failure.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("namespace", func(t *testing.T) {
		// The thread is never given back: it ends with this goroutine, and the namespace with it.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			if os.Getenv("E2E") == "require" {
				t.Fatalf("E2E=require, but there can be no network namespace: %v", err)
			}
			t.Skipf("SKIP: needs a network namespace: %v", err)
		}
		f(t)
	})
}

// command runs a program to its end.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program(t, name), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// eventually waits until done.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never %s", what)
		}
	}
}
