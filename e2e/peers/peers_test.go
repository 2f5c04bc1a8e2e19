//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestPeers runs the command with few and short rounds: gslbd is measured in each workload, those that are not there are
// named, and no file is left.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 || runtime.NumCPU() < 2 {
		if os.Getenv("E2E") == "require" {
			t.Fatal("E2E=require, and this is not root, or there is one core only")
		}
		t.Skip("needs root and two cores")
	}
	dir := t.TempDir()
	command, temp, page := filepath.Join(dir, "peers"), filepath.Join(dir, "tmp"), filepath.Join(dir, "page.md")
	if out, err := exec.Command("go", "build", "-o", command, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.Mkdir(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("before\n"+beginMark+"\nold\n"+endMark+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command, "-rounds", "1", "-time", "50ms", "-servers", "gslbd", "-workloads", "one,large,nxdomain,tcp-new,cores",
		"-services", "25", "-networks", "100", "-geodb", "", "-write", page)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.HasPrefix(text, "before\n") || !strings.HasSuffix(text, "\nafter\n") || strings.Contains(text, "old") {
		t.Errorf("what stands around the table is not as it was:\n%s", text)
	}
	if n := strings.Count(text, "\n| gslbd | "); n != 5 || strings.Contains(text, "| gslbd | not measured") {
		t.Errorf("gslbd was not measured in each of 5 workloads:\n%s", text)
	}
	if !strings.Contains(text, "| gdnsd | not measured: not asked for |") {
		t.Errorf("gdnsd is not named:\n%s", text)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTable checks medians, and that ratios are taken round by round.
func TestTable(t *testing.T) {
	rounds := func(cpu ...float64) (all []sample) {
		for _, c := range cpu {
			all = append(all, sample{Rate: 1e9 / c, CPU: c, Allocs: -1})
		}
		return all
	}
	text := table(&plan{}, "head", []result{{Workload: "one", Samples: map[string][]sample{
		"gslbd": rounds(4000, 8000, 4400), "gdnsd": rounds(4000, 4000, 4000),
	}, Why: map[string]string{"NSD": "not\ninstalled"}}})
	for _, want := range []string{
		"| gslbd | 227 (125–250) | 4400 (4000–8000) | 1.10 (1.00–2.00) |  |  |",
		"| NSD | not measured: not installed |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

// TestQueries checks that the queries of the large workload ask for services whose sites have measured the client.
func TestQueries(t *testing.T) {
	p := &plan{Services: 100, Networks: 1000}
	w := p.world(true)
	sites := map[int]bool{}
	for i := range w.services {
		for j := range w.members {
			sites[w.site(i, j)] = true
		}
	}
	if len(sites) != w.sites {
		t.Errorf("%d sites have members, of %d", len(sites), w.sites)
	}
	seen := map[string]bool{}
	for i := range manyNetworks {
		if p := network(i); seen[string(p.Addr().AsSlice())] || p.Masked() != p || p.Addr().IsPrivate() || p.Addr().IsLoopback() || p.Addr().IsMulticast() {
			t.Fatalf("network %d is %s", i, p)
		}
		seen[string(network(i).Addr().AsSlice())] = true
	}
	for _, q := range queries(w, "") {
		if !bytes.Contains(q, []byte("\x05peers\x04test\x00\x00\x01\x00\x01\x00\x00\x29")) {
			t.Fatalf("query %x", q)
		}
	}
}
