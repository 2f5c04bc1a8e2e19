package sitereport

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	maxComplaint = 4 << 10 // bytes of a program's error output that are kept, of which the first line is shown

	// afterKill is how long a program's output is waited for when it has ended, or been killed, and a process that it left
	// behind still holds it.
	afterKill = 200 * time.Millisecond
)

// A program is one that a reader runs. It has no input, the directory / and no environment but PATH and what is given, and is
// the leader of a process group of its own, which is killed when it takes too long or prints too much.
type program struct {
	command     []string // an absolute path and arguments
	environment []string
	most        int           // bytes that it may print
	timeout     time.Duration // of the contexts that it is run with, for the error
}

// run runs the program until it ends or ctx is done, and returns what it printed, and the first line of what it complained of.
func (p *program) run(ctx context.Context) (_ []byte, complaint string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdout, stderr := &limited{most: p.most, full: cancel}, &limited{most: maxComplaint}
	cmd := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, p.environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = afterKill

	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil || cmd.Process == nil:
	case stdout.over:
		_ = kill()
		err = fmt.Errorf("it printed more than %d bytes and was killed", p.most)
	case ctx.Err() != nil:
		_ = kill() // when it ended by itself, Cancel was not called, and a process that it left behind may live
		err = late("it was killed because it was not done", p.timeout)
	case errors.Is(err, exec.ErrWaitDelay):
		_ = kill()
		err = errors.New("it ended and left a process behind that holds its output, which was killed")
	case errors.As(err, &ended):
		err = fmt.Errorf("it ended with %w", err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(stderr.kept)), "\n")
	return stdout.kept, printable(line, MaxReason), err
}

// limited keeps the first bytes of what is written to it. With full, which it then calls, more is an error; without, the
// rest is dropped.
type limited struct {
	most int
	full func()

	kept []byte
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	room := l.most - len(l.kept)
	if len(p) <= room {
		l.kept = append(l.kept, p...)
		return len(p), nil
	}
	l.kept = append(l.kept, p[:room]...)
	l.over = true
	if l.full != nil {
		l.full()
		return room, errors.New("too much output")
	}
	return len(p), nil
}
