package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// A file that is read in pieces must give what it gives as a whole: the same configuration, faults and warnings, with
// the same lines.
func compareCut(t *testing.T, path string, data []byte) {
	t.Helper()
	environ := []string{"GSLBD_RTT__MAX_SITES=7"}
	whole, want := decodeConfig(path, data, environ, 0)
	for _, least := range []int{1, 8, 400} {
		cut, got := decodeConfig(path, data, environ, least)
		if !reflect.DeepEqual(got.errs, want.errs) {
			t.Errorf("%s, in pieces of %d: faults\n%v\nwant\n%v", path, least, got.errs, want.errs)
		}
		if !reflect.DeepEqual(got.warnings, want.warnings) {
			t.Errorf("%s, in pieces of %d: warnings\n%s\nwant\n%s", path, least, strings.Join(got.warnings, "\n"), strings.Join(want.warnings, "\n"))
		}
		if len(want.errs) == 0 && !reflect.DeepEqual(cut, whole) {
			t.Errorf("%s, in pieces of %d: another configuration\n%+v\nwant\n%+v", path, least, cut, whole)
		}
	}
}

func TestCutIsTheSame(t *testing.T) {
	n := 0
	for _, pattern := range []string{"../testdata/config/good/*.yaml", "../testdata/config/bad/*.yaml", "../config.example.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			compareCut(t, path, data)
			n++
		}
	}
	if n < 50 {
		t.Fatalf("only %d files", n)
	}
}

// Texts in which what begins an entry is none, or hides.
func TestCutHard(t *testing.T) {
	const head = "sites: [{name: a}]\nzones: [{name: example.com, file: /dev/null}]\n"
	entry := func(name string) string {
		return "- name: " + name + ".example.com\n  members: [{name: a, site: a, addresses: [192.0.2.1]}]\n"
	}
	for i, text := range []string{
		"services:\n" + entry("a") + entry("b") + "log: {level: debug}\n",
		"services: # all\n\n# the first\n" + entry("a") + "# the second\n\n" + entry("b") + "  # the end\n",
		"services:\n" + entry("a") + "  health_check:\n    type: http\n    body: |\n      services:\n      - x\n     - y\n" + entry("b"),
		"services:\n" + entry("a") + "  health_check:\n    type: http\n    body: \"\n- name: x\n\"\n" + entry("b"),
		"services:\n" + entry("a") + "  health_check:\n    type: http\n    expect: [\n- 200]\n" + entry("b"),
		"services:\n" + entry("a") + "  health_check:\n    type: tcp\n    port: 80\n    send: first\n     - not an entry\n" + entry("b"),
		"services:\n" + entry("a") + "---\nservices:\n" + entry("b"),
		"services:\n" + entry("a") + "...\n",
		"services:\n" + entry("a") + "services:\n" + entry("b"),
		"services:\n" + entry("a") + " - name: odd\n" + entry("b"),
		"services:\n" + entry("a") + "-\tname: b.example.com\n",
		"services:\n  -\n    name: a.example.com\n    members:\n    - name: a\n      site: a\n      addresses:\n      - 192.0.2.1\n      - 192.0.2.1\n  - \n",
		"services:\n" + entry("a") + strings.Replace(entry("b"), "site: a", "site: c", 1) + entry("a") + "- nam: x\n- [y]\n- z\n",
		"services:\n" + entry("a") + "  aliases: *x\n" + entry("b"),
		"services:\n" + strings.Replace(entry("a"), "[{", "&m [{", 1) + "- name: b.example.com\n  members: *m\n",
		"services: &s\n" + entry("a"),
		"services: !!seq\n" + entry("a"),
		"dns:\n" + entry("a"),
		"servces:\n" + entry("a"),
		"rtt:\n  exempt:\n    - 192.0.2.0/24\n    - 192.0.2.0/24\n    - x\n  methods:\n    - dns\n    - icmp\n",
		"geo:\n  overrides:\n  - {prefix: 192.0.2.0/24, latitude: 1}\n  - {prefix: 192.0.3.0/24, latitude: 0, longitude: 0}\n  - {prefix: 192.0.2.0/24, site: a}\n  - {site: a}\n",
		"services:\n" + entry("a") + "  min_serving: 9\n  on_all_down: all\n  policy: p\n" + entry("b") + "  min_serving: 7\n  policy: p\npolicies:\n- name: p\n  chain:\n  - metric: static\n",
		"services:\r\n" + strings.ReplaceAll(entry("a"), "\n", "\r\n"),
		"services:\n" + entry("a") + "# \u2028- name: b\n" + entry("c") + "  x: 1\n",
		"log:\n  level: \"\nservices:\n" + entry("a") + "\"\n",
		"services:\n# - name: a.example.com\n\n#   members: []\nlog: {level: debug}\n",
		"services:\n# - name: a.example.com\n",
		"dns:\n- %x\n",
		"services:\n" + entry("a") + "services:\n" + entry("b") + "  x: [\n",
		"rtt: {\n  methods:\n  - icmp\n  , refresh: 5m}\n",
		"rtt:\n  exempt: [{\n  methods:\n  - icmp\n  }]\n",
	} {
		compareCut(t, fmt.Sprint("text ", i), []byte(head+text))
		compareCut(t, fmt.Sprint("text ", i, ", last"), []byte(text+head))
	}
}

// What a tag means is said at the head of the file, and what makes it no YAML may stand where it was cut.
func TestCutHeads(t *testing.T) {
	compareCut(t, "two roots", []byte(" - x\nrtt:\n  methods:\n  - icmp\x00\n"))
	compareCut(t, "tags", []byte("%TAG ! tag:yaml.org,2002:\n---\nrtt:\n  max_sites: !int 5\n  methods:\n  - !str icmp\n"))
}

// The faults of a long list keep their lines.
func TestCutLong(t *testing.T) {
	var b strings.Builder
	b.WriteString("sites: [{name: a}]\nzones: [{name: example.com, file: /dev/null}]\nservices:\n")
	for i := range 2000 {
		site := "a"
		if i%500 == 17 {
			site = "b"
		}
		fmt.Fprintf(&b, "  - name: s%d.example.com\n    min_serving: %d\n    members:\n      - {name: m, site: %s, addresses: [192.0.2.1]}\n", i, i%1000/998, site)
		if i%700 == 5 {
			b.WriteString("    wieght: 5\n")
		}
	}
	if b.Len() < 2*leastCut {
		t.Fatal("too short to be cut")
	}
	whole, want := decodeConfig("f", []byte(b.String()), nil, 0)
	cut, got := decodeConfig("f", []byte(b.String()), nil, leastCut)
	if len(want.errs) != 7 || !reflect.DeepEqual(got.errs, want.errs) {
		t.Errorf("faults\n%v\nwant\n%v", got.errs, want.errs)
	}
	if !reflect.DeepEqual(got.warnings, want.warnings) || !reflect.DeepEqual(cut, whole) {
		t.Error("another configuration, or other warnings")
	}
	if len(got.origin) > 200 {
		t.Errorf("%d origins are kept", len(got.origin))
	}
}
