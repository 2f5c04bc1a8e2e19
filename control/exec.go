package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const (
	maxOutput  = 1 << 20 // bytes that the program may print
	maxStderr  = 512     // bytes of its error output that are shown, the last ones
	maxListed  = 256     // bytes of an id, a zone or a state that it prints
	defaultRun = time.Minute
	// afterKill is how long the program's output is waited for when it has ended, or been killed, and a process that it
	// left behind still holds it.
	afterKill = time.Second
)

// stateRemoved is the one state of a Listed that says that it is out of service.
const stateRemoved = "removed"

// The arguments that the program is run with.
const (
	verbList   = "list"
	verbRemove = "remove"
	verbAdd    = "add"
)

// Listed is one resource as the operator's program lists it, and as it gets it back (docs/orders.md). Any State but
// "removed" says that the resource is in service.
type Listed struct {
	ID    string `json:"id"`
	Zone  string `json:"zone"`
	State string `json:"state"`
}

// in reports whether the resource is in service.
func (l Listed) in() bool { return l.State != stateRemoved }

// list runs the program with the argument list.
func (x ExecConfig) list(ctx context.Context) ([]Listed, error) {
	out, err := x.run(ctx, verbList, nil)
	if err != nil {
		return nil, err
	}
	all, err := decodeListed(out)
	if err != nil {
		return nil, fmt.Errorf("%s: what it printed: %w", x.name(verbList), err)
	}
	return all, nil
}

// change runs the program with the argument remove or add, and the resources as its input.
func (x ExecConfig) change(ctx context.Context, verb string, these []Listed) error {
	in, err := json.Marshal(these)
	if err != nil {
		return err
	}
	_, err = x.run(ctx, verb, append(in, '\n'))
	return err
}

// name is how messages call a run of the program.
func (x ExecConfig) name(verb string) string { return strings.Join(x.Command, " ") + " " + verb }

// timeout is how long a run may take.
func (x ExecConfig) timeout() time.Duration {
	if x.Timeout > 0 {
		return x.Timeout
	}
	return defaultRun
}

// run runs the program without a shell, in a process group of its own, which is killed when it takes too long. An error
// says what the program was, how it ended and what it complained of.
func (x ExecConfig) run(ctx context.Context, verb string, stdin []byte) ([]byte, error) {
	if len(x.Command) == 0 {
		return nil, errors.New("no program is configured (evacuation.exec.command)")
	}
	ctx, cancel := context.WithTimeout(ctx, x.timeout())
	defer cancel()

	args := append(append([]string(nil), x.Command[1:]...), verb)
	cmd := exec.CommandContext(ctx, x.Command[0], args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out := &bounded{full: cancel}
	complaint := new(tail)
	cmd.Stdout, cmd.Stderr = out, complaint
	if x.lock != nil {
		cmd.ExtraFiles = []*os.File{x.lock}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = afterKill

	err := cmd.Run()
	switch {
	case out.over:
		err = fmt.Errorf("it printed more than %d bytes and was killed", maxOutput)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it took longer than %s and was killed", x.timeout())
	case ctx.Err() != nil:
		err = errors.New("it was killed because gslbd stops")
	case errors.Is(err, exec.ErrWaitDelay):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = errors.New("it ended and left a process behind that holds its output, which was killed")
	}
	if err == nil {
		return out.kept, nil
	}
	if s := complaint.String(); s != "" {
		return nil, fmt.Errorf("%s: %w: %s", x.name(verb), err, s)
	}
	return nil, fmt.Errorf("%s: %w", x.name(verb), err)
}

// decodeListed reads what the program prints for list: a JSON array and nothing else.
func decodeListed(out []byte) ([]Listed, error) {
	var all []Listed
	d := json.NewDecoder(bytes.NewReader(out))
	if err := d.Decode(&all); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New(`nothing; it must print a list, "[]" when there is nothing`)
		}
		return nil, err
	}
	if all == nil {
		return nil, errors.New(`null; it must print a list, "[]" when there is nothing`)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the list")
	}
	seen := make(map[string]bool, len(all))
	for i, l := range all {
		for _, f := range []struct{ name, value string }{{"id", l.ID}, {"zone", l.Zone}, {"state", l.State}} {
			switch {
			case f.value == "":
				return nil, fmt.Errorf("[%d].%s is missing", i, f.name)
			case len(f.value) > maxListed:
				return nil, fmt.Errorf("[%d].%s is longer than %d bytes", i, f.name, maxListed)
			case strings.ContainsFunc(f.value, func(r rune) bool { return !unicode.IsPrint(r) }):
				return nil, fmt.Errorf("[%d].%s holds what cannot be printed: %q", i, f.name, f.value)
			}
		}
		if seen[l.ID] {
			return nil, fmt.Errorf("[%d].id: %q stands there twice", i, l.ID)
		}
		seen[l.ID] = true
	}
	return all, nil
}

// bounded keeps what is written to it, and says once when it is too much.
type bounded struct {
	kept []byte
	full func()
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.kept)+len(p) > maxOutput {
		b.over = true
		b.full()
		return 0, errors.New("too much output")
	}
	b.kept = append(b.kept, p...)
	return len(p), nil
}

// tail keeps the last bytes of what is written to it.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if n := len(t.last) - maxStderr; n > 0 {
		t.last = append(t.last[:0], t.last[n:]...)
	}
	return len(p), nil
}

// String returns them on one line, fit to be printed.
func (t *tail) String() string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(string(t.last), "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}
