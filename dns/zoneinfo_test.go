package dns_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gslbd/dns"
)

func TestZones(t *testing.T) {
	tables, err := dns.Build([]dns.ZoneOptions{
		{Name: "GSLB.test.", File: writeZone(t, "a A 192.0.2.2\na A 192.0.2.2\na A 192.0.2.3\n"), ECS: true},
		{Name: "a.test", File: writeZone(t, "")},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []dns.ZoneInfo{{Name: "gslb.test", Serial: 1, Records: 5, ECS: true}, {Name: "a.test", Serial: 1, Records: 3}}
	got := tables.Zones()
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i, z := range got {
		if z.Name != want[i].Name || z.Serial != want[i].Serial || z.Records != want[i].Records || z.ECS != want[i].ECS {
			t.Errorf("got %+v, want %+v", z, want[i])
		}
	}
}

func TestForgottenSerials(t *testing.T) {
	file := writeZone(t, "")
	head, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	build := func(text string) *dns.Tables {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tables, err := dns.Build([]dns.ZoneOptions{{Name: "other.test", File: writeZone(t, "")}, {Name: "gslb.test", File: file}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tables
	}
	zone := string(head)
	was := build(zone + "a A 192.0.2.2\nb A 192.0.2.3\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n")
	for _, tt := range []struct {
		name, text string
		warns      bool
	}{
		{"the same", zone + "a A 192.0.2.2\nb A 192.0.2.3\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n", false},
		{"other order and comments", zone + "; new\nd 60 MX 0 a.gslb.test.\nb A 192.0.2.3\na 300 A 192.0.2.2\nc 60 NS here\n", false},
		{"an address", zone + "a A 192.0.2.9\nb A 192.0.2.3\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n", true},
		{"two swapped", zone + "a A 192.0.2.3\nb A 192.0.2.2\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n", true},
		{"a TTL", zone + "a 301 A 192.0.2.2\nb A 192.0.2.3\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n", true},
		{"one record less", zone + "b A 192.0.2.3\nc 60 NS here.gslb.test.\nd 60 MX 0 a\n", true},
		{"a new serial", strings.Replace(zone, "hostmaster 1 ", "hostmaster 2 ", 1), false},
	} {
		got := build(tt.text).ForgottenSerials(was)
		want := "zones[1].file: the records of gslb.test have changed and its serial is still 1: "
		if tt.warns != (len(got) > 0) || tt.warns && !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
	if got := was.ForgottenSerials(nil); got != nil {
		t.Errorf("the first configuration: %q", got)
	}
}

// TestIncludeConfined checks that what $INCLUDE names lies in the directory of the zone's file or below, wherever links
// lead.
func TestIncludeConfined(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const head = "$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A 192.0.2.1\n"
	const record = "a A 192.0.2.2\n"
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("secret", record)
	write("zones-of-others/part", record)
	write("zones/part", record)
	write("zones/sub/part", record)
	write("zones/sub/up", "$INCLUDE ../part\n")
	write("zones/sub/out", "$INCLUDE ../../secret\n")
	link("sub/part", "zones/link")
	link(filepath.Join(root, "zones/part"), "zones/absolute")
	link("../secret", "zones/leak")
	link("..", "zones/parent")
	link("zones", "current")
	for _, tt := range []struct {
		dir, include, wrong string // wrong: the place of the error; "": none
	}{
		{"zones", "part", ""},
		{"zones", "sub/part", ""},
		{"zones", "sub/up", ""},
		{"zones", "sub/../part", ""},
		{"zones", "link", ""},
		{"zones", "absolute", ""},
		{"zones", filepath.Join(root, "zones/part"), ""},
		{"zones", filepath.Join(root, "current/part"), ""},
		{"current", "sub/up", ""}, // as a mounted ConfigMap is
		{"zones", "../secret", "zone:5"},
		{"zones", filepath.Join(root, "secret"), "zone:5"},
		{"zones", "leak", "zone:5"},
		{"zones", "parent/secret", "zone:5"},
		{"zones", "../zones-of-others/part", "zone:5"},
		{"zones", "sub/out", "out:1"},
		{"zones", "/dev/zero", "zone:5"},
	} {
		write("zones/zone", head+"$INCLUDE "+tt.include+"\n")
		_, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: filepath.Join(root, tt.dir, "zone")}}, nil)
		switch {
		case tt.wrong == "" && err != nil:
			t.Errorf("%s in %s: %v", tt.include, tt.dir, err)
		case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), "/"+tt.wrong+": cannot read ") ||
			!strings.Contains(err.Error(), "$INCLUDE may not leave the directory of the zone's file, "+filepath.Join(root, "zones"))):
			t.Errorf("%s: error %v, want one at %s", tt.include, err, tt.wrong)
		}
	}
}
