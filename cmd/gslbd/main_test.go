package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A service manager may ask for a reload while the server still reads its configuration and databases.
func TestHangupDuringStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gslbd.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("SKIPPED: no named pipe: %v", err)
	}
	served := make(chan error)
	go func() { served <- serve(path) }()
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // waits until serve reads
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil { // ends this process where nobody takes it
		t.Fatal(err)
	}
	if _, err := f.WriteString("no: configuration\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := <-served; err == nil {
		t.Error("a wrong configuration was served")
	}
}
