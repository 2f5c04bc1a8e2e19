package sitereport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMerge adds up readers of different kinds.
func TestMerge(t *testing.T) {
	load := func(sessions, bits int) (l Load) { // -1: not known
		if sessions >= 0 {
			l.Sessions = whole(float64(sessions), MaxSessions)
		}
		if bits >= 0 {
			l.BitsPerSecIn = whole(float64(bits), MaxBits)
		}
		return l
	}
	text := func(n *uint64) string {
		if n == nil {
			return "unknown"
		}
		return fmt.Sprint(*n)
	}
	some := []VirtualServer{{Name: "web"}}
	balancer := Reading{Load: load(10, 100), VirtualServers: some}
	failed := Reading{VirtualServers: some}
	checks := Reading{Load: load(7, -1), VirtualServers: some, Yields: AllFigures} // whose sockets are the connections of a proxy beside it
	proxy := Reading{Load: load(5, -1), Supplies: FigureSessions}
	silent := Reading{Supplies: FigureSessions}
	link := Reading{Load: load(-1, 900), WholeSite: true}
	for name, tc := range map[string]struct {
		readings []Reading
		want     string
	}{
		"a balancer":                              {[]Reading{balancer}, "10 100"},
		"two":                                     {[]Reading{balancer, balancer}, "20 200"},
		"one that cannot be read":                 {[]Reading{balancer, failed}, "unknown unknown"},
		"own checks":                              {[]Reading{checks}, "7 unknown"},
		"a proxy's sessions for own checks":       {[]Reading{proxy, checks}, "5 unknown"},
		"of two proxies":                          {[]Reading{proxy, checks, proxy}, "10 unknown"},
		"of one proxy that cannot be read":        {[]Reading{proxy, checks, silent}, "unknown unknown"},
		"with an interface":                       {[]Reading{checks, proxy, link}, "5 900"},
		"beside a balancer, which never yields":   {[]Reading{balancer, checks, proxy}, "15 unknown"},
		"beside a balancer that cannot be read":   {[]Reading{failed, checks, proxy, link}, "unknown 900"},
		"nothing but a proxy":                     {[]Reading{proxy}, "5 unknown"},
		"an interface, and nobody's sessions":     {[]Reading{link, {}}, "unknown 900"},
		"one that reads virtual servers supplies": {[]Reading{{Load: load(3, 4), VirtualServers: some, Supplies: AllFigures}, checks}, "10 unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := merge(tc.readings)
			if got == nil {
				got = &Load{}
			}
			if s := text(got.Sessions) + " " + text(got.BitsPerSecIn); s != tc.want {
				t.Errorf("%s, want %s", s, tc.want)
			}
		})
	}
}

// TestMergeNames has a server whose name is nothing that can be printed: a receiver would refuse the whole report.
func TestMergeNames(t *testing.T) {
	_, got := merge([]Reading{{VirtualServers: []VirtualServer{{Name: "web", Servers: []Server{{Name: " \x00", State: StateUp}, {Address: "a"}}}}}})
	want := []Server{{Name: "nameless", State: StateUp}, {Address: "a"}}
	if d := cmp.Diff(want, got[0].Servers); d != "" {
		t.Error(d)
	}
}

// TestReaderWarnings keeps what readers say within what a receiver takes.
func TestReaderWarnings(t *testing.T) {
	loud := Reading{}
	for i := range 80 {
		loud.Warnings = append(loud.Warnings, fmt.Sprintf("%d\n%s", i, strings.Repeat("w", 1000)))
	}
	got := readerWarnings([]Reading{{}, loud}, []error{errors.New("gone\x00"), nil})
	if len(got) != 51 || got[0] != "reader failed: gone" || got[50] != "and 31 more; the agent's log and gslb-agent check have all" {
		t.Errorf("%d warnings: %q", len(got), got)
	}
	if len(got[1]) != MaxReason || strings.Contains(got[1], "\n") {
		t.Errorf("%q", got[1])
	}
	if d := cmp.Diff([]string(nil), readerWarnings([]Reading{{}}, []error{nil})); d != "" {
		t.Error(d)
	}
}

// FuzzExec reads whatever a program prints: within the bounds of a report, and with something in it, or not at all.
func FuzzExec(f *testing.F) {
	f.Add([]byte(`{"load": {"sessions": 7, "bits_per_second_in": 1.5}, "warnings": ["w", ""]}`))
	f.Add([]byte(`{"virtual_servers": [{"name": "web", "address": "192.0.2.1", "port": 443, "servers": [{"name": "s1", "state": "up"}]}]}`))
	f.Add([]byte(`{"load": null, "virtual_servers": [{"name": "a"}, null]}`))
	f.Fuzz(func(t *testing.T, output []byte) {
		r, err := parseExec(output)
		if err != nil {
			if len(r.VirtualServers) > 0 || r.Load != (Load{}) {
				t.Errorf("%+v, %v", r, err)
			}
			return
		}
		if len(r.VirtualServers) == 0 && (r.Supplies == 0 || r.Load == (Load{})) {
			t.Errorf("nothing is in it: %+v", r)
		}
		load, servers := merge([]Reading{r})
		b, err := json.Marshal(&Report{Site: "a", Load: load, VirtualServers: servers, Warnings: r.Warnings})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(bytes.NewReader(b), 1<<30); err != nil {
			t.Errorf("a receiver refuses it: %v", err)
		}
	})
}
