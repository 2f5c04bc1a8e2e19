package sitereport_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

// newExec returns a reader of a shell script, which finds its directory in $1.
func newExec(t *testing.T, timeout time.Duration, script string) (x *sitereport.Exec, dir string) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "program")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := sitereport.NewExec(sitereport.ExecOptions{Command: []string{"/bin/sh", file, dir, "a b"}, Site: "seoul", Agent: "lb1", Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return x, dir
}

const execAnswer = `{"load": {"sessions": 7, "bits_per_second_in": 1000.4},
 "virtual_servers": [{"name": "web", "address": "192.0.2.1", "port": 443, "sessions": 7, "servers": [
   {"name": "s1", "address": "10.0.0.1:80", "state": "up"}, {"name": "s2", "state": "drain", "reason": "by hand"}]}],
 "warnings": ["the pump is loud"], "site": "of no interest"}
`

func TestExec(t *testing.T) {
	x, dir := newExec(t, 10*time.Second, "cat $1/answer\n[ ! -e $1/fail ]\n")
	answer := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	answer("{}")
	r, err := x.Read(t.Context())
	if err == nil || r.Load != (sitereport.Load{}) || r.Supplies != sitereport.AllFigures {
		t.Errorf("nothing is known of it yet, so that the site's load is not either: %+v, %v", r, err)
	}

	answer(execAnswer)
	if r, err = x.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	const want = `web 7
  s1 10.0.0.1:80 up ""
  s2  drain "by hand"
`
	if d := cmp.Diff(want, lines(r)); d != "" {
		t.Error(d)
	}
	if *r.Load.Sessions != 7 || *r.Load.BitsPerSecIn != 1000 || r.Load.NewSessions != nil {
		t.Errorf("%+v", r.Load)
	}
	if r.Yields != sitereport.FigureNewSessions|sitereport.FigureBitsOut || r.Supplies != 0 || len(r.Warnings) != 1 {
		t.Errorf("%+v", r)
	}

	// What fails keeps the names, and nothing else.
	for _, bad := range []string{"", "{", `{"load": {"sessions": -1}}`, execAnswer + "{}", `{"virtual_servers": [{}]}`, "null"} {
		answer(bad)
		r, err := x.Read(t.Context())
		if err == nil {
			t.Fatalf("%q is read as %+v", bad, r)
		}
		unknownOnly(t, r)
		if len(r.VirtualServers) != 1 || len(r.VirtualServers[0].Servers) != 2 || r.VirtualServers[0].Address.String() != "192.0.2.1" {
			t.Errorf("%s", lines(r))
		}
	}
	answer(execAnswer)
	if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err = x.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), "it ended with exit status 1") {
		t.Error(err)
	}
	unknownOnly(t, r)
	if err := os.Remove(filepath.Join(dir, "fail")); err != nil {
		t.Fatal(err)
	}

	// Load alone is for the virtual servers of others, also when it then fails.
	answer(`{"load": {"sessions": 5}}`)
	for _, good := range []bool{true, false} {
		if r, err = x.Read(t.Context()); (err == nil) != good || r.Supplies != sitereport.FigureSessions || (r.Load.Sessions == nil) == good {
			t.Errorf("%+v, %v", r, err)
		}
		answer(`{"load": {"sessions": "5"}}`)
	}
}

// TestExecEnvironment is what a program finds.
func TestExecEnvironment(t *testing.T) {
	t.Setenv("GSLB_AGENT_TOKEN", "not for others")
	x, dir := newExec(t, 10*time.Second, `
env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort | tr '\n' ' ' >$1/env
echo "$2 in $(pwd), $(cat)" >>$1/env
echo '{"load": {"sessions": 1}}'
`)
	if _, err := x.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "GSLB_AGENT=lb1 GSLB_SITE=seoul LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin a b in /, \n"
	if d := cmp.Diff(want, string(b)); d != "" {
		t.Error(d)
	}
}

// TestExecFailures has programs that go wrong: an error that says how, with the first line of what they complained of.
func TestExecFailures(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"complains":          {"echo first >&2; echo second >&2; exit 3", "it ended with exit status 3: first"},
		"complains in vain":  {"printf 'a\\tb\\n' >&2; echo '{\"load\": 1}'", "what it printed: load: a number where an object belongs: a b"},
		"complains a lot":    {"while :; do echo complaint; done | head -c 1000000 >&2; exit 1", "exit status 1: complaint"},
		"killed":             {"kill -9 $$", "it ended with signal: killed"},
		"prints nothing":     {"", "there is no report: the body is empty"},
		"prints a page":      {"echo '<html>'", "not JSON"},
		"prints without end": {"yes", "it printed more than 4194304 bytes and was killed"},
		"is late":            {"echo '{\"load\": {}}'; sleep 60", "it was killed because it was not done within 300ms, or four fifths of the time between reports"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := 30 * time.Second
			if name == "is late" {
				timeout = 300 * time.Millisecond
			}
			x, _ := newExec(t, timeout, tc.script)
			r, err := x.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "exec /bin/sh: ") {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if r.Load != (sitereport.Load{}) {
				t.Errorf("%+v", r.Load)
			}
		})
	}
	x, err := sitereport.NewExec(sitereport.ExecOptions{Command: []string{"/no/such/program"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	for _, command := range [][]string{nil, {""}, {"sh"}, {"./sh"}} {
		if _, err := sitereport.NewExec(sitereport.ExecOptions{Command: command}); err == nil {
			t.Errorf("%q is taken", command)
		}
	}
}

// TestExecKillsChildren leaves no process behind: neither of a program that is late, nor of one that ended and left one
// that holds its output, nor when the agent stops.
func TestExecKillsChildren(t *testing.T) {
	for name, script := range map[string]string{
		"late":     "sleep 300 & echo $! >$1/child; wait",
		"left":     "sleep 300 & echo $! >$1/child; echo '{\"load\": {}}'",
		"stopping": "sleep 300 & echo $! >$1/child; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Second
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "stopping" {
				timeout = time.Minute
			}
			x, dir := newExec(t, timeout, script)
			done := make(chan error, 1)
			go func() {
				_, err := x.Read(ctx)
				done <- err
			}()
			child := 0
			wait(t, "a child", func() bool {
				b, _ := os.ReadFile(filepath.Join(dir, "child"))
				child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
				return child > 0
			})
			if name == "stopping" {
				cancel()
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), "killed") {
				t.Error(err)
			}
			wait(t, "end of the child", func() bool {
				b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(child), "stat"))
				_, after, _ := strings.Cut(string(b), ") ")
				return err != nil || strings.HasPrefix(after, "Z") || syscall.Kill(child, 0) != nil
			})
		})
	}
}

// wait waits until something is so.
func wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no %s", what)
		}
	}
}
