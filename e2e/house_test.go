package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goPackage is what `go list -json` says of a package, as far as it is needed here.
type goPackage struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// TestImports holds the import graph of the house: who of ours imports whom, and which room opens which outside
// library. A new edge is a reviewed diff of imports.golden.
func TestImports(t *testing.T) {
	var lines []string
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			outside := strings.Contains(strings.SplitN(imp, "/", 2)[0], ".")
			if outside || strings.HasPrefix(imp, "gslbd/") {
				lines = append(lines, strings.TrimPrefix(p.ImportPath, "gslbd/")+" -> "+strings.TrimPrefix(imp, "gslbd/"))
			}
		}
	}
	sort.Strings(lines)
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/imports.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the import graph changed (-golden +now); if it is meant, run `make golden`:\n%s", diff)
	}
}

// TestPackageComments fails for a package without a package comment; each of ours explains itself in its doc.go.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		documented := false
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || f.Doc != nil
		}
		if !documented {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if strings.HasPrefix(p.ImportPath, "gslbd/cmd/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(p.Dir, "doc.go")); err != nil {
			t.Errorf("%s has no doc.go", p.ImportPath)
		}
	}
}
