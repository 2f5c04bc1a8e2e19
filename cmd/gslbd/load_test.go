package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A database that is none is named with the file and the way out, once each.
func TestLoadNamesBrokenDatabase(t *testing.T) {
	dir := t.TempDir()
	path, db := filepath.Join(dir, "gslbd.yaml"), filepath.Join(dir, "cities.mmdb")
	for name, content := range map[string]string{path: "geo: {databases: [cities.mmdb]}\n", db: "<html>"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := path + ": geo: " + db + `: is not a MaxMind DB file, or was cut short (it begins with "<html>"): fetch the database again`
	if _, _, err := load(path, nil); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
