package probes

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
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
	_, err := exec.LookPath("ip")
	needs(t, err == nil, "the program ip")
	needs(t, unix.Unshare(unix.CLONE_NEWNET) == nil, "root, to make a network namespace")
	command(t, "ip", "link", "set", "lo", "up")
	setSysctl(t, "net/ipv4/ping_group_range", pingGroup)
}

// setSysctl sets what belongs to the namespace of the calling goroutine.
func setSysctl(t testing.TB, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
		t.Error(err)
	}
}

// withRouter connects the namespace of the test, which becomes 10.9.0.1 and fd00:9::1, with another one that is its
// default router, 10.9.0.2 and fd00:9::2, and runs setup there, in another goroutine.
func withRouter(t testing.TB, setup func()) {
	t.Helper()
	thread, linked, done, over := make(chan int), make(chan bool), make(chan bool), make(chan bool)
	t.Cleanup(func() { close(over) })
	go func() {
		setUp := sync.OnceFunc(func() { close(done) })
		defer setUp()
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		thread <- unix.Gettid()
		if !<-linked {
			return
		}
		setSysctl(t, "net/ipv4/ip_forward", "1")
		setSysctl(t, "net/ipv6/conf/all/forwarding", "1")
		setSysctl(t, "net/ipv4/icmp_ratelimit", "0")
		setSysctl(t, "net/ipv6/icmp/ratelimit", "0")
		command(t, "ip", "link", "set", "lo", "up")
		command(t, "ip", "address", "add", "10.9.0.2/24", "dev", "inner")
		command(t, "ip", "address", "add", "fd00:9::2/64", "dev", "inner", "nodad")
		command(t, "ip", "link", "set", "inner", "up")
		setup()
		setUp()
		<-over // the namespace ends with this thread
	}()
	command(t, "ip", "link", "add", "outer", "type", "veth", "peer", "name", "inner", "netns", strconv.Itoa(<-thread))
	command(t, "ip", "address", "add", "10.9.0.1/24", "dev", "outer")
	command(t, "ip", "address", "add", "fd00:9::1/64", "dev", "outer", "nodad")
	command(t, "ip", "link", "set", "outer", "up")
	command(t, "ip", "route", "add", "default", "via", "10.9.0.2")
	command(t, "ip", "route", "add", "default", "via", "fd00:9::2")
	linked <- true
	<-done
}

// command runs a program of the system in the namespace of the test.
func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
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

// listenAgain shrinks the backlog of a listener to one connection.
func listenAgain(fd int) error { return unix.Listen(fd, 0) }
