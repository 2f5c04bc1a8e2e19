package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gslbd/dns"
	"gslbd/state"
)

// keygen runs gslbd keygen and returns the lines that it prints.
func keygen(t *testing.T, args ...string) ([]string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(append([]string{"keygen"}, args...))
	cmd.SetOut(&out)
	err := cmd.Execute()
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(out.String()), " ", "_")), err
}

// TestKeygen makes keys, has a configuration load them, and looks at what is told of them.
func TestKeygen(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("gslb.test.zone", "@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300\n@ 3600 IN NS ns1\nns1 3600 IN A 192.0.2.1\n")
	const zone = "zones: [{name: gslb.test, file: gslb.test.zone, dnssec: {enabled: true, key_directory: keys, algorithm: %s}}]\n"
	path := write("gslbd.yaml", fmt.Sprintf(zone, "ecdsap256sha256"))
	keys := filepath.Join(dir, "keys")
	if _, _, err := load(path, nil); err == nil || !strings.Contains(err.Error(), "zones[0].dnssec.key_directory: open "+keys+": no such file or directory") {
		t.Errorf("without a directory: %v", err)
	}
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		role  string
		lines int
	}{{"--ksk", 3}, {"--zsk", 2}} {
		lines, err := keygen(t, "--zone", "GSLB.test.", "--directory", keys, tt.role)
		if err != nil || len(lines) < tt.lines {
			t.Fatalf("%s: %q, %v", tt.role, lines, err)
		}
		for file, mode := range map[string]os.FileMode{lines[0]: 0o644, lines[1]: 0o600} {
			if info, err := os.Stat(file); err != nil || info.Mode() != mode || !strings.HasPrefix(filepath.Base(file), "Kgslb.test.+013+") {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
	}
	g, _, err := load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	zones := signedZones(&state.Snapshot{Zones: g.tables})
	if len(zones) != 1 || len(zones[0].Keys) != 2 {
		t.Fatalf("%+v", zones)
	}
	for _, k := range zones[0].Keys {
		if k.State != "active" || k.Algorithm != "ecdsap256sha256" || (k.Role == "ksk") != strings.HasPrefix(k.DS, fmt.Sprintf("gslb.test. IN DS %d 13 2 ", k.Tag)) || k.Role == string(dns.CSK) {
			t.Errorf("%+v", k)
		}
	}
	write("gslbd.yaml", fmt.Sprintf(zone, "ed25519"))
	if _, _, err := load(path, nil); err == nil || !strings.Contains(err.Error(), ".key has the algorithm ecdsap256sha256, and the zone ed25519") {
		t.Errorf("with keys of another algorithm: %v", err)
	}

	for _, args := range [][]string{{}, {"--zone", "gslb.test"}, {"--zone", "gslb.test", "--directory", keys, "--ksk", "--zsk"}} {
		if _, err := keygen(t, args...); !errors.As(err, new(usageError)) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, err := keygen(t, "--zone", "gslb.test", "--directory", filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("into no directory: %v", err)
	}
	if _, err := keygen(t, "--zone", "gslb.test", "--directory", keys, "--algorithm", "rsasha256"); err == nil || !strings.Contains(err.Error(), "choose one of ecdsap256sha256") {
		t.Errorf("RSA: %v", err)
	}
}
