//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Patched builds gslbd from its sources but for one file, in which was is replaced by is, and one more file beside that. The
// sources stay as they are. It returns what the build printed.
func Patched(dir, program, file, was, is, more string) ([]byte, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(source), was); n != 1 {
		return nil, fmt.Errorf("what is to be patched stands %d times in %s:\n%s", n, file, was)
	}
	replace := map[string]string{}
	for at, text := range map[string]string{file: strings.Replace(string(source), was, is, 1), filepath.Join(filepath.Dir(file), "patched.go"): more} {
		replace[at] = filepath.Join(dir, filepath.Base(at)+".overlay")
		if err := os.WriteFile(replace[at], []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return nil, err
	}
	return exec.Command("go", "build", "-overlay", list, "-o", program, "gslbd/cmd/gslbd").CombinedOutput()
}

// WithHang builds a gslbd that hangs in its UDP workers, once it gets a query there, while the file that LAB_HANG names
// is there: all of them, or the one whose number the file holds. It returns the program, which is in dir.
func WithHang(t testing.TB, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "gslbd-with-hang")
	const work = "\t\tcase 0:\n\t\t\tw.answer()\n"
	out, err := Patched(dir, program, filepath.Join(project(t), "dns", "udp_linux.go"), work, strings.Replace(work, "\t\t\tw", "\t\t\thang(w.responder.shard)\n\t\t\tw", 1), `package dns

import (
	"os"
	"strconv"
	"time"
)

func hang(worker int) {
	for {
		text, err := os.ReadFile(os.Getenv("LAB_HANG"))
		if err != nil || len(text) > 0 && string(text) != strconv.Itoa(worker) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
`)
	if err != nil {
		t.Fatalf("lab: build a gslbd that hangs: %v\n%s", err, out)
	}
	return program
}
