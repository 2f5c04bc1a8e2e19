package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A new process that does nothing for too long is given up, and so is one that speaks when it should not.
func TestSuccessorThatIsNotHeard(t *testing.T) {
	for _, f := range []struct {
		name, says string
		within     time.Duration
		why        string
	}{
		{"silent", "", prepareTime, "the new process is not prepared within 5m0s"},
		{"half a word", "prep", prepareTime, "the new process is not prepared within 5m0s"},
		{"another word", "serving\n", 0, `says "serving\n" and not that it is prepared`},
		{"prepared", "prepared\n", 0, ""},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				defer theirs.Close()
				n := &successor{conn: ours, words: bufio.NewReader(ours)}
				go func() { _, _ = io.WriteString(theirs, f.says) }()
				begin := time.Now()
				err := n.hear(t.Context(), wordPrepared, prepareTime)
				if f.why == "" && err != nil || f.why != "" && (err == nil || !strings.Contains(err.Error(), f.why)) {
					t.Errorf("error %v, want %q", err, f.why)
				}
				if took := time.Since(begin); took != f.within {
					t.Errorf("it took %s, want %s", took, f.within)
				}
			})
		})
	}
}

// What the new process is told may not be read, and it may not come to serve; to stop gslbd ends all waiting.
func TestSuccessorThatDoesNotServe(t *testing.T) {
	for _, f := range []struct {
		name   string
		reads  bool
		within time.Duration
		why    string
	}{
		{"does not read", false, serveTime, "hears nothing any more"},
		{"does not serve", true, serveTime, "is not serving within 30s"},
		{"stop", true, 3 * time.Second, "gslbd stops"},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				defer theirs.Close()
				n := &successor{conn: ours, words: bufio.NewReader(ours)}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if f.within < serveTime {
					time.AfterFunc(f.within, cancel)
				}
				if f.reads {
					go func() { _, _ = bufio.NewReader(theirs).ReadString('\n') }()
				}
				begin := time.Now()
				if err := n.take(ctx, handover{PID: 1}); err == nil || !strings.Contains(err.Error(), f.why) {
					t.Errorf("error %v, want %q", err, f.why)
				}
				if took := time.Since(begin); took != f.within {
					t.Errorf("it took %s, want %s", took, f.within)
				}
			})
		})
	}
}

// An old process that hangs, or ends, is not waited for without end, and what it says is not taken on trust.
func TestPredecessorThatDoesNotHandOver(t *testing.T) {
	for _, f := range []struct {
		name, says string
		within     time.Duration
		why        string
	}{
		{"hangs", "", releaseTime, "does not hand over: read pipe: i/o timeout"},
		{"ends", "EOF", 0, "does not hand over: EOF"},
		{"babbles", "what?\n", 0, "does not hand over: invalid character"},
		{"hands over", "{\"pid\":7}\n", 0, ""},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				defer theirs.Close()
				go func() {
					if line, err := bufio.NewReader(theirs).ReadString('\n'); err != nil || line != "prepared\n" {
						t.Errorf("it says %q, %v", line, err)
					}
					if f.says == "EOF" {
						theirs.Close()
					}
					_, _ = io.WriteString(theirs, f.says)
				}()
				p := &predecessor{conn: ours, words: bufio.NewReader(ours)}
				begin := time.Now()
				h, err := p.release()
				if f.why == "" && (err != nil || h.PID != 7) || f.why != "" && (err == nil || !strings.Contains(err.Error(), f.why)) {
					t.Errorf("%+v, error %v, want %q", h, err, f.why)
				}
				if took := time.Since(begin); took != f.within {
					t.Errorf("it took %s, want %s", took, f.within)
				}
			})
		})
	}
}

// Descriptors that are no sockets that gslbd can serve on are refused with what they are; the environment tells the programs
// that gslbd runs of none.
func TestWhatIsHandedIsRefused(t *testing.T) {
	if os.Getenv("TEST_HANDED") != "" {
		_, err := takeHanded()
		if v, ok := os.LookupEnv(takeoverVariable); ok {
			t.Errorf("%s=%q", takeoverVariable, v)
		}
		t.Logf("error: %v", err)
		return
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	unix, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	socket, err := unix.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	for _, f := range []struct {
		value string
		files []*os.File
		want  string
	}{
		{"many", []*os.File{theirs}, `TAKEOVER_SOCKETS="many": gslbd sets it itself`},
		{"-1", []*os.File{theirs}, `TAKEOVER_SOCKETS="-1": gslbd sets it itself`},
		{"0", []*os.File{null}, "the connection to the old process"},
		{"1", []*os.File{theirs, null}, "descriptor 4, which was handed to the process, is no bound UDP socket"},
		{"1", []*os.File{theirs, socket}, "descriptor 4, which was handed to the process, is no bound UDP socket"},
		{"0", []*os.File{theirs}, "error: <nil>"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWhatIsHandedIsRefused$", "-test.v")
		cmd.Env = append(os.Environ(), "TEST_HANDED=1", takeoverVariable+"="+f.value)
		cmd.ExtraFiles = f.files
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), f.want) {
			t.Errorf("%s: %v, want %q\n%s", f.value, err, f.want, out)
		}
	}
}
