//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scratch is where the tests' files are: a file system of their own in memory, which is gone with them.
const scratch = "/dev/shm"

// Main runs the tests of a package in namespaces for processes and mounts, which end with this process however it ends, and
// all processes and files of the tests with them: also what a program has started and left behind. It ends as well when the
// process LAB_OWNER does, which is make. The tests run by run, which gets a folder with gslbd, gslb-agent and gslbctl. Without
// root there is none, and the tests say that they skip.
func Main(run func(bin string) int) int {
	var err error
	code := 1
	switch os.Getenv("LAB_LEVEL") {
	case "":
		if os.Geteuid() != 0 {
			return run("")
		}
		code, err = again("init", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL})
	case "init":
		code, err = beInit()
	default:
		code, err = runTests(run)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	return code
}

// runTests builds the programs and runs the tests.
func runTests(run func(bin string) int) (int, error) {
	bin, remove, err := Programs()
	if err != nil {
		return 1, err
	}
	defer remove()
	return run(bin), nil
}

// again runs this program once more and returns its exit status.
func again(level string, attr *syscall.SysProcAttr) (int, error) {
	runtime.LockOSThread() // the other dies with the thread that starts it
	defer runtime.UnlockOSThread()
	var args []string
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.testlogfile=") { // only one of us may write it
			args = append(args, a)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "LAB_LEVEL="+level, "TMPDIR="+scratch)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for look := time.Tick(200 * time.Millisecond); ; {
			select {
			case <-done:
				return
			case <-look:
				if owner, err := strconv.Atoi(os.Getenv("LAB_OWNER")); err != nil || syscall.Kill(owner, 0) == nil {
					continue
				}
			case <-interrupted:
			}
			_ = cmd.Process.Kill()
		}
	}()
	err = cmd.Wait()
	close(done)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil // by a signal: -1
	}
	return cmd.ProcessState.ExitCode(), err
}

// beInit is the first process of the namespaces: it has the tests run, and waits for whatever has lost its parent.
func beInit() (int, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("mount: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=1777"); err != nil {
		return 1, fmt.Errorf("mount %s: %w", scratch, err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	tests := exec.Command(self, os.Args[1:]...)
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	tests.Env = append(os.Environ(), "LAB_LEVEL=tests") // the last one counts
	if err := tests.Start(); err != nil {
		return 1, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, err
		case pid == tests.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == tests.Process.Pid:
			return 1, fmt.Errorf("the tests ended by a signal: %v", status.Signal())
		}
	}
}
