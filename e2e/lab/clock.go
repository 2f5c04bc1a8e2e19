//go:build linux

package lab

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// RunWithClock starts the server with a wall clock of its own, which the returned function sets so much off the machine's.
// Its monotonic clock stays, as when somebody sets a clock. The server is the real one, built with a time package that
// adds what it finds in a file.
func (g *GSLBD) RunWithClock() (set func(off time.Duration)) {
	g.t.Helper()
	offset := g.File("clock", "\x00\x00\x00\x00\x00\x00\x00\x00")
	program := filepath.Join(g.Dir(), "gslbd-with-clock")
	if out, err := buildWithClock(g.Dir(), program); err != nil {
		g.t.Fatalf("lab: build with another clock: %v\n%s", err, out)
	}
	g.Launch(program, "LAB_CLOCK="+offset)
	g.await()
	return func(off time.Duration) {
		g.t.Helper()
		f, err := os.OpenFile(offset, os.O_WRONLY, 0)
		if err != nil {
			g.t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(off/time.Second))), 0); err != nil {
			g.t.Fatal(err)
		}
	}
}

const readClock = "\tsec, nsec, mono := runtimeNow()\n"

// buildWithClock builds gslbd with a time package whose Now is off by the seconds that a mapped file holds.
func buildWithClock(dir, program string) ([]byte, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	return Patched(dir, program, filepath.Join(folder, "time.go"), "func Now() Time {\n"+readClock, "func Now() Time {\n"+readClock+"\tsec += testClock()\n", `package time

import "syscall"

var testClockMap []byte

func init() {
	name, ok := syscall.Getenv("LAB_CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return
	}
	testClockMap, _ = syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
}

// testClock returns the seconds that the wall clock is off.
func testClock() int64 {
	if len(testClockMap) < 8 {
		return 0
	}
	var v uint64
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(testClockMap[i])
	}
	return int64(v)
}
`)
}
