package probes

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// needs skips a test loudly when this machine lacks what it needs, or fails it where nothing may be skipped.
func needs(t testing.TB, have bool, what string) {
	t.Helper()
	switch {
	case have:
	case os.Getenv("E2E") == "require":
		t.Fatalf("needs %s, and E2E=require forbids to skip", what)
	default:
		t.Skipf("SKIP: needs %s", what)
	}
}

// inNamespace moves the test, with what it starts from its own goroutine, into a network namespace of its own, in
// which nothing exists but loopback. pingGroup is its net.ipv4.ping_group_range.
func inNamespace(t testing.TB, pingGroup string) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	needs(t, unix.Unshare(unix.CLONE_NEWNET) == nil, "root, to make a network namespace")
	command(t, "ip", "link", "set", "lo", "up")
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte(pingGroup), 0o644); err != nil {
		t.Fatal(err)
	}
}

// command runs a program of the system in the namespace of the test.
func command(t testing.TB, name string, args ...string) {
	t.Helper()
	_, err := exec.LookPath(name)
	needs(t, err == nil, "the program "+name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// withoutNetRaw takes CAP_NET_RAW from the thread of the test, which must be locked.
func withoutNetRaw(t testing.TB) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_RAW
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
