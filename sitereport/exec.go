package sitereport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	maxExecOutput = MaxReport // bytes that a program may print: no more fits into a report
	maxExecError  = 4 << 10   // bytes of its error output that are kept, of which the first line is shown

	// afterExec is how long a program's output is waited for when it has ended, or been killed, and a process that it left
	// behind still holds it.
	afterExec = 200 * time.Millisecond
)

// ExecOptions configure an Exec reader.
type ExecOptions struct {
	// Command is the program's absolute path and its arguments. No shell reads it, and PATH is not searched.
	Command []string

	Site, Agent string        // of the report; the program finds them in GSLB_SITE and GSLB_AGENT
	Timeout     time.Duration // for one run; default 2s
}

// An Exec runs a program for every reading. What it prints is JSON: load, virtual_servers and warnings as in a report
// (docs/agent.md), with the same bounds.
//
// The program has no input, the directory / and an environment of PATH, LANG, GSLB_SITE and GSLB_AGENT, and is the leader
// of a process group of its own, which is killed when it takes too long or prints too much. Whatever is not a whole
// answer and exit status 0 is a failed reading.
//
// One that prints no virtual servers supplies the load that it prints for those of others. It is for one reader at a time.
type Exec struct {
	opts ExecOptions // fixed at construction

	// Owned by Read: what the last good reading was of.
	known    []VirtualServer // with servers of any state
	supplies Figures
}

// NewExec returns a reader. It fails when the command is not an absolute path.
func NewExec(o ExecOptions) (*Exec, error) {
	if len(o.Command) == 0 || !strings.HasPrefix(o.Command[0], "/") {
		return nil, errors.New("exec: the command does not begin with the absolute path of a program")
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	return &Exec{opts: o, supplies: AllFigures}, nil
}

// Read runs the program once.
func (x *Exec) Read(ctx context.Context) (Reading, error) {
	output, complaint, err := x.run(ctx)
	if err == nil {
		var r Reading
		if r, err = parseExec(output); err == nil {
			x.known, x.supplies = r.VirtualServers, r.Supplies
			return r, nil
		}
		err = fmt.Errorf("what it printed: %w", err)
	}
	if complaint != "" {
		err = fmt.Errorf("%w: %s", err, complaint)
	}
	err = fmt.Errorf("exec %s: %w", x.opts.Command[0], err)
	r := Reading{Supplies: x.supplies}
	for _, v := range x.known {
		v.Sessions, v.Servers = nil, unknownServers(v.Servers, err.Error())
		r.VirtualServers = append(r.VirtualServers, v)
	}
	return r, err
}

// parseExec reads what a program printed.
func parseExec(output []byte) (r Reading, err error) {
	d := decoder{json: json.NewDecoder(bytes.NewReader(output))}
	d.json.UseNumber()
	if err = d.reading(&r); err == nil {
		err = d.end()
	}
	known := r.Load.figures()
	switch {
	case err != nil:
		return Reading{}, err
	case len(r.VirtualServers) > 0:
		r.Yields = AllFigures &^ known
	case known == 0:
		return Reading{}, errors.New("neither load nor virtual_servers are in it")
	default:
		r.Supplies = known
	}
	return r, nil
}

// run runs the program and returns what it printed, and the first line of what it complained of.
func (x *Exec) run(ctx context.Context) (_ []byte, complaint string, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.opts.Timeout)
	defer cancel()
	stdout, stderr := &limited{most: maxExecOutput, full: cancel}, &limited{most: maxExecError}
	cmd := exec.CommandContext(ctx, x.opts.Command[0], x.opts.Command[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "GSLB_SITE=" + x.opts.Site, "GSLB_AGENT=" + x.opts.Agent}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = afterExec

	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil || cmd.Process == nil:
	case stdout.over:
		_ = kill()
		err = fmt.Errorf("it printed more than %d bytes and was killed", maxExecOutput)
	case ctx.Err() != nil:
		_ = kill() // when it ended by itself, Cancel was not called, and a process that it left behind may live
		err = late("it was killed because it was not done", x.opts.Timeout)
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
