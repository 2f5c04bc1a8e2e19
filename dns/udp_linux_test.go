package dns_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gslbd/dns"
)

// The runtime's poller, which costs each datagram, does not watch the UDP sockets. It does the TCP ones.
func TestUDPSocketsAreNotPolled(t *testing.T) {
	s, err := dns.New(dns.Options{Store: conformanceWorld(t).store, Listen: []string{"127.0.0.1:0"}, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	watched := polled(t)
	for i, c := range s.Sockets() {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		var kind int
		if err := raw.Control(func(fd uintptr) {
			err = syscall.Fstat(int(fd), &st)
			kind, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TYPE)
		}); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := kind == syscall.SOCK_STREAM; watched[st.Ino] != want {
			t.Errorf("socket %d, of type %d: it is watched: %t, want %t", i, kind, watched[st.Ino], want)
		}
	}
}

// polled returns the inodes of all files that this process watches by epoll.
func polled(t *testing.T) map[uint64]bool {
	t.Helper()
	all := map[uint64]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err != nil || to != "anon_inode:[eventpoll]" {
			continue
		}
		f, err := os.Open(filepath.Join("/proc/self/fdinfo", fd.Name()))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if _, rest, ok := strings.Cut(lines.Text(), " ino:"); ok {
				var ino uint64
				if _, err := fmt.Sscanf(rest, "%x", &ino); err != nil {
					t.Fatalf("%q: %v", lines.Text(), err)
				}
				all[ino] = true
			}
		}
	}
	return all
}

// Each UDP worker has a thread that runs in short slices, and nobody else has.
func TestUDPThreads(t *testing.T) {
	if attr, err := unix.SchedGetAttr(0, 0); err != nil || attr.Runtime == 0 {
		t.Skipf("this kernel tells of no slices: %v", err)
	}
	short := func() (n int) {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Runtime == 100_000 { // else it has ended
				n++
			}
		}
		return n
	}
	s, err := dns.New(dns.Options{Store: conformanceWorld(t).store, Listen: []string{"127.0.0.1:0", "127.0.0.2:0"}, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for deadline := time.Now().Add(10 * time.Second); short() != 4; {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads run in short slices, want 4", short())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); short() != 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads run in short slices although the workers have ended", short())
		}
	}
}
