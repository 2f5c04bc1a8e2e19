package control

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script writes a shell script, and returns the command that runs it. It is not executed by itself: as long as a process
// that is forked meanwhile has the file open for writing, that would fail.
func script(t *testing.T, body string, args ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return append([]string{"/bin/sh", path}, args...)
}

func TestProgramRuns(t *testing.T) {
	for _, c := range []struct {
		name, body string
		timeout    time.Duration
		want       string // of the error; "": none
	}{
		{name: "lists", body: `[ "$1 $2" = "fleet list" ] && echo '[{"id":"a","zone":"z1","state":"in","more":1}]'`},
		{name: "nothing there", body: `echo '[]'`},
		{name: "fails", body: `echo "no such" >&2; echo "account" >&2; exit 3`, want: "fleet list: exit status 3: no such account"},
		{name: "long complaint", body: `yes complaint | head -n 10000 >&2; echo end >&2; exit 1`, want: "complaint end"},
		{name: "hangs", body: `echo '[]'; echo slow >&2; sleep 600 & sleep 600`, timeout: 200 * time.Millisecond, want: "took longer than 200ms and was killed: slow"},
		{name: "leaves a child", body: `sleep 600 & echo '[]'`, want: "left a process behind"},
		{name: "endless", body: `yes`, want: "printed more than 1048576 bytes"},
		{name: "silent", body: `exit 0`, want: `what it printed: nothing; it must print a list`},
		{name: "null", body: `echo null`, want: `must print a list`},
		{name: "words", body: `echo sorry`, want: "what it printed: invalid character 's'"},
		{name: "two lists", body: `echo '[][]'`, want: "something follows the list"},
		{name: "no id", body: `echo '[{"zone":"z1","state":"in"}]'`, want: "[0].id is missing"},
		{name: "no state", body: `echo '[{"id":"a","zone":"z1"}]'`, want: "[0].state is missing"},
		{name: "twice", body: `echo '[{"id":"a","zone":"z1","state":"in"},{"id":"a","zone":"z1","state":"in"}]'`, want: `[1].id: "a" stands there twice`},
		{name: "control", body: `echo '[{"id":"a\u001b","zone":"z1","state":"in"}]'`, want: `[0].id holds what cannot be printed: "a\x1b"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := ExecConfig{Command: script(t, c.body, "fleet"), Timeout: c.timeout}
			_, err := x.list(context.Background())
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("error %v, want one with %q", err, c.want)
			case err != nil && len(err.Error()) > 1000:
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestProgramIsMissing(t *testing.T) {
	for _, x := range []ExecConfig{{}, {Command: []string{"/nonexistent/program"}}} {
		if _, err := x.list(context.Background()); err == nil {
			t.Errorf("%v: no error", x.Command)
		}
	}
}

// What the program started goes with it: a script's own children would otherwise go on changing things.
func TestProgramIsKilledWithItsChildren(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	x := ExecConfig{Command: script(t, `sleep 600 & echo $! >"$1"; wait`, pid), Timeout: 300 * time.Millisecond}
	if _, err := x.list(context.Background()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatal(err)
	}
	b, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(n, syscall.SIGKILL)
			t.Fatal("the program's child lives on")
		}
	}
}

func TestProgramGetsResourcesOnItsInput(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	x := ExecConfig{Command: script(t, `{ echo "$2"; cat; } >"$1"`, seen)}
	these := []Listed{{"a b", "z1", "in"}, {"$(b)", "z1", "half"}}
	if err := x.change(context.Background(), verbRemove, these); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	verb, list, _ := strings.Cut(string(b), "\n")
	var got []Listed
	if err := json.Unmarshal([]byte(list), &got); err != nil || verb != verbRemove || len(got) != 2 || got[1] != these[1] {
		t.Errorf("the program got %q (%v)", b, err)
	}
	// One that ends without reading its input has done so wilfully, and its exit status counts.
	x.Command = script(t, `exit 0`)
	big := make([]Listed, 5000)
	for i := range big {
		big[i] = Listed{strings.Repeat("x", 100), "z", "in"}
	}
	if err := x.change(context.Background(), verbAdd, big); err != nil {
		t.Error(err)
	}
}

func FuzzListed(f *testing.F) {
	f.Add([]byte(`[{"id":"a","zone":"z1","state":"in"}]`))
	f.Add([]byte(`[{"id":"a","zone":"z1","state":"removed"},{"id":"b","zone":"z2","state":"in"}]`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, out []byte) {
		all, err := decodeListed(out)
		if err != nil {
			return
		}
		again, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeListed(again)
		if err != nil || len(got) != len(all) {
			t.Fatalf("%q was read, but not again as %q: %v", out, again, err)
		}
		ids := map[string]bool{}
		for i, l := range all {
			if got[i] != l || l.ID == "" || l.Zone == "" || l.State == "" || ids[l.ID] {
				t.Fatalf("%+v out of %q", l, out)
			}
			ids[l.ID] = true
		}
	})
}
