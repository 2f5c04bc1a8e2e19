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
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"gslbd/admin"
	"gslbd/policy"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gslbctl": main})
}

// TestScripts drives the command. Each script has a stub of gslbd at $SERVER, and another at $OTHER for the directory other.
// A stub answers /v1/NAME with the script's file NAME.json, with the status in NAME.code if there is one, and adds what it
// was asked to the file requests. /v1/orders/ID is order. Where there are such files, a request that orders is answered by POST-NAME or DELETE
// instead, a dry run by dry-run, and the n-th GET by NAME-n.
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
			// cmporder compares as cmpenv does, with ids and times replaced by names.
			"cmporder": func(ts *testscript.TestScript, _ bool, args []string) {
				want := os.Expand(ts.ReadFile(args[1]), ts.Getenv)
				if got := anonymous(ts.ReadFile(args[0])); got != want {
					ts.Fatalf("%s and %s differ (-want +got):\n%s", args[0], args[1], cmp.Diff(want, got))
				}
			},
		},
		Setup: func(env *testscript.Env) error {
			server := httptest.NewServer(&stub{dir: env.WorkDir, t: t})
			other := httptest.NewServer(&stub{dir: filepath.Join(env.WorkDir, "other"), t: t})
			gone := httptest.NewServer(http.NotFoundHandler())
			gone.Close()
			mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body) // until then the server does not see that the client has gone
				<-req.Context().Done()
			}))
			env.Defer(mute.Close)
			env.Defer(server.Close)
			env.Defer(other.Close)
			env.Setenv("SERVER", server.URL)
			env.Setenv("OTHER", other.URL)
			env.Setenv("USER", "alice")
			env.Setenv("GONE", gone.URL)
			env.Setenv("MUTE", mute.URL)
			env.Setenv("GSLBCTL_SERVER", server.URL)
			return nil
		},
	})
}

// A stub stands for one gslbd.
type stub struct {
	dir string
	t   *testing.T

	mu   sync.Mutex
	gets map[string]int // guarded by mu
}

func (s *stub) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(req.Body)
	f, err := os.OpenFile(filepath.Join(s.dir, "requests"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %s [%s] [%s] %s\n", req.Method, req.URL, req.Header.Get("Authorization"), req.Header.Get("Content-Type"), body)
	names := []string{path.Base(req.URL.Path)}
	switch {
	case strings.HasPrefix(req.URL.Path, "/v1/orders/") && req.Method == http.MethodGet:
		names = []string{"order"}
	case req.Method == http.MethodDelete:
		names = []string{"DELETE"}
	case req.Method == http.MethodPost && strings.Contains(string(body), `"dry_run":true`):
		names = []string{"dry-run"}
	case req.Method == http.MethodPost:
		names = []string{"POST-" + names[0], names[0]}
	default:
		if s.gets == nil {
			s.gets = map[string]int{}
		}
		s.gets[names[0]]++
		names = []string{fmt.Sprintf("%s-%d", names[0], s.gets[names[0]]), names[0]}
	}
	for _, name := range names {
		answer, err := os.ReadFile(filepath.Join(s.dir, name+".json"))
		if err != nil {
			continue
		}
		code := http.StatusOK
		if text, err := os.ReadFile(filepath.Join(s.dir, name+".code")); err == nil {
			fmt.Sscan(string(text), &code)
		}
		w.WriteHeader(code)
		_, _ = w.Write(answer)
		return
	}
	http.NotFound(w, req)
}

var (
	anyID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	anyTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)
)

// anonymous replaces UUIDs of version 7 by ID1, ID2 and so on, times by TIME.
func anonymous(text string) string {
	seen := map[string]string{}
	text = anyID.ReplaceAllStringFunc(text, func(id string) string {
		if seen[id] == "" {
			seen[id] = fmt.Sprintf("ID%d", len(seen)+1)
		}
		return seen[id]
	})
	return anyTime.ReplaceAllString(text, "TIME")
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

// What thousands of members have in common is told of the first few, and hides nothing else.
func TestManyProblems(t *testing.T) {
	st := admin.Status{Services: []admin.Service{{Name: "www1.gslb.test"}}}
	add := func(severity, subject, format string, args ...any) {
		st.Problems = append(st.Problems, admin.Problem{Severity: severity, Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	add(admin.Critical, "gslbd", "is not ready: no")
	for i := range 5000 {
		add(admin.Warning, fmt.Sprintf("member www%d.gslb.test/seoul", i), "is down: virtual server \"w%d\": 0 of %d servers up", i, i%7)
	}
	add(admin.Warning, "site seoul", "is overloaded: 900000 sessions")
	for i := range 5200 {
		add(admin.Notice, fmt.Sprintf("site s%d", i/26), "virtual server \"w%d\" matches no member", i)
	}
	for i := range 6 {
		add(admin.Notice, fmt.Sprintf("member www%d.gslb.test/busan", i), "is forced down: bob")
	}
	text := showStatus("http://127.0.0.1:8053", st)
	if n := strings.Count(text, "\n"); n > 35 {
		t.Errorf("%d lines:\n%.5000s", n, text)
	}
	for _, want := range []string{
		"  critical  gslbd: is not ready: no\n", "member www4.gslb.test/seoul: is down", "            and 4995 more like these: see --json, or gslbctl status SERVICE\n",
		"  warning   site seoul: is overloaded", "            and 5195 more like these", "member www5.gslb.test/busan: is forced down",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%.5000s", want, text)
		}
	}
}

// Nor do thousands of warnings and refusals hide what was ordered.
func TestManyWarnings(t *testing.T) {
	var p admin.Preview
	var r reply
	for i := range 5000 {
		p.Plan.Warnings = append(p.Plan.Warnings, fmt.Sprintf("warning %d", i))
		p.Plan.Refusals = append(p.Plan.Refusals, fmt.Sprintf("refusal %d", i))
	}
	r.Warnings = p.Plan.Warnings
	for _, text := range []string{showPreview("http://127.0.0.1:8053", p), showReply("http://127.0.0.1:8053", r)} {
		if n := strings.Count(text, "\n"); n > 50 || !strings.Contains(text, "warning 0\n") || !strings.Contains(text, "warning: and 4980 more: see --json\n") {
			t.Errorf("%d lines:\n%.3000s", n, text)
		}
	}
}

// What a server says may have any character, and is neither cut nor able to shift the rows.
func TestTable(t *testing.T) {
	var b strings.Builder
	table(&b, [][]string{{"NAME", "WHY"}, {"a\nb\fc", strings.Repeat("word ", 40) + "end"}, {"", "x\ny"}, {strings.Repeat("n", 150), "beside"}})
	lines := strings.Split(b.String(), "\n")
	if len(lines) < 5 || !strings.HasPrefix(lines[1], "  a b c") || !strings.Contains(b.String(), "end\n") || !strings.Contains(b.String(), " x y\n") {
		t.Errorf("printed:\n%s", b.String())
	}
}

// Without clients a forecast must not read as if nothing changed.
func TestForecastWithoutClients(t *testing.T) {
	f := policy.Forecast{
		Services: []policy.ServiceForecast{{Name: "www.gslb.test", Unknown: "no recent clients are known"}},
		Sites:    []policy.SiteForecast{{Name: "seoul"}, {Name: "virginia"}},
	}
	var b strings.Builder
	writeForecast(&b, &f)
	if text := b.String(); strings.Contains(text, "Nothing changes") || !strings.Contains(text, "no recent clients are known") {
		t.Errorf("printed:\n%s", text)
	}
}
