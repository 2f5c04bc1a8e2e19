package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"gslbd/control"
	"gslbd/state"
)

// huge writes the largest configuration: 100,000 services of four members at 1,000 sites, and what head says.
func huge(b *testing.B, head string) (path string) {
	dir := b.TempDir()
	var text strings.Builder
	text.WriteString(head)
	text.WriteString("sites:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  - {name: site%d, zone: z%d, location: {continent: AS, country: KR}, capacity: {sessions: 900000, bandwidth: 900Mbps}}\n", i, i%100)
	}
	text.WriteString("zones:\n  - {name: example.com, file: example.com.zone}\nservices:\n")
	for i := range 100_000 {
		fmt.Fprintf(&text, "  - name: s%d.example.com\n    members:\n", i)
		for j := range 4 {
			fmt.Fprintf(&text, "      - {name: m%d, site: site%d, addresses: [20.%d.%d.%d]}\n", j, (i+j)%1000, i>>14, i>>6&255, i<<2&255+j)
		}
	}
	path = filepath.Join(dir, "gslbd.yaml")
	zone := "$TTL 300\n@ SOA ns1 hostmaster 1 3600 600 86400 60\n@ NS ns1\nns1 A 192.0.2.53\n"
	for name, content := range map[string]string{path: text.String(), filepath.Join(dir, "example.com.zone"): zone} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return path
}

// BenchmarkLoad100k is what a start and a reload do with the largest configuration: "load" before anything of it is in
// force, and may fail; "configure" puts it in force.
func BenchmarkLoad100k(b *testing.B) {
	path := huge(b, "")
	b.Run("load", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := load(path, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("configure", func(b *testing.B) {
		g, _, err := load(path, nil)
		if err != nil {
			b.Fatal(err)
		}
		store, err := state.New(state.Options{Shards: 2})
		if err != nil {
			b.Fatal(err)
		}
		s := &server{store: store, control: control.New(controlOptions(g, store, zap.NewNop()))}
		b.ReportAllocs()
		for b.Loop() {
			s.configure(g)
		}
	})
}
