//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pinned runs f, and what it starts, on the given cores.
func pinned(cores []int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	for _, c := range cores {
		now.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &now); err != nil {
		return fmt.Errorf("run on cores %v: %w", cores, err)
	}
	return errors.Join(f(), unix.SchedSetaffinity(0, &before))
}

// A process is a server that runs, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer // read after the end, or for an error
	ended  chan struct{}
}

func start(cores []int, path, dir string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := pinned(cores, p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is told by its output
		close(p.ended)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

func (p *process) stop() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// cpu returns the CPU time of all processes of the group, as the scheduler counts it in nanoseconds (/proc/PID/task/*/schedstat),
// with that of threads that have ended: PowerDNS starts one for each TCP connection.
func (p *process) cpu() (time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// PID (NAME) STATE PPID PGRP ...
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 3 || fields[2] != strconv.Itoa(p.cmd.Process.Pid) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			return 0, err
		}
		var ts unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|cpuClockSched), &ts) == nil {
			total += time.Duration(ts.Nano())
		}
	}
	if total == 0 {
		return 0, errors.New("it has ended")
	}
	return total, nil
}

// cpuClockSched makes a clock's id of a process's, as clock_getcpuclockid does.
const cpuClockSched = 2
