// Command generate writes the databases of testdata/geo. Run it from the root of the repository:
//
//	go run ./testdata/geo/generate
//
// The same input gives the same bytes, and a test of package geo compares them with the files.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gslbd/testdata/geo/generate/databases"
)

func main() {
	directory := flag.String("directory", "testdata/geo", "where to write")
	flag.Parse()
	if err := run(*directory); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(directory string) error {
	files, err := databases.Files()
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
		fmt.Println(path, len(content), "bytes")
	}
	return nil
}
