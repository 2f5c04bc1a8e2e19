package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gslbctl": main})
}

// TestScripts drives the command. Each script has a stub of gslbd at $SERVER, which answers /v1/NAME with the script's
// file NAME.json, with the status in NAME.code if there is one, and adds what it was asked to the file requests.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// status2 runs a command that must exit with status 2.
			"status2": func(ts *testscript.TestScript, _ bool, args []string) {
				var exit *exec.ExitError
				if err := ts.Exec(args[0], args[1:]...); !errors.As(err, &exit) || exit.ExitCode() != 2 {
					ts.Fatalf("%v, want exit status 2", err)
				}
			},
		},
		Setup: func(env *testscript.Env) error {
			var mu sync.Mutex
			stub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				name := filepath.Join(env.WorkDir, path.Base(req.URL.Path))
				body, _ := io.ReadAll(req.Body)
				f, err := os.OpenFile(filepath.Join(env.WorkDir, "requests"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				fmt.Fprintf(f, "%s %s [%s] [%s] %s\n", req.Method, req.URL, req.Header.Get("Authorization"), req.Header.Get("Content-Type"), body)
				answer, err := os.ReadFile(name + ".json")
				if err != nil {
					http.NotFound(w, req)
					return
				}
				code := http.StatusOK
				if text, err := os.ReadFile(name + ".code"); err == nil {
					fmt.Sscan(string(text), &code)
				}
				w.WriteHeader(code)
				_, _ = w.Write(answer)
			}))
			gone := httptest.NewServer(http.NotFoundHandler())
			gone.Close()
			mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }))
			env.Defer(mute.Close)
			env.Defer(stub.Close)
			env.Setenv("SERVER", stub.URL)
			env.Setenv("GONE", gone.URL)
			env.Setenv("MUTE", mute.URL)
			env.Setenv("GSLBCTL_SERVER", stub.URL)
			return nil
		},
	})
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                          "0s",
		0:                                     "0s",
		59*time.Second + 700*time.Millisecond: "1m0s",
		61 * time.Second:                      "1m1s",
		3*time.Hour + 59*time.Minute:          "3h59m",
		49 * time.Hour:                        "2d1h",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestScaled(t *testing.T) {
	for v, want := range map[float64]string{0: "0bps", 999: "999bps", 1000: "1kbps", 900e6: "900Mbps", 12.5e9: "12.5Gbps", 5e12: "5Tbps"} {
		if got := scaled(v, "bps"); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	got := wrap("head ", strings.Repeat("word ", 40)+strings.Repeat("x", 120))
	for i, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		if len(line) > width && !strings.Contains(line, "xxx") {
			t.Errorf("line %d has %d columns", i, len(line))
		}
		if i > 0 && !strings.HasPrefix(line, "     ") {
			t.Errorf("line %d is not indented: %q", i, line)
		}
	}
	if got := wrap("head ", ""); got != "head\n" {
		t.Errorf("%q", got)
	}
}
