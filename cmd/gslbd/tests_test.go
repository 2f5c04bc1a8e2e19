package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checked runs `gslbd check` and returns what it prints, and its error.
func checked(t *testing.T, path string, flags ...string) (out, said string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := command()
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(append([]string{"check", "--config", path}, flags...))
	err = cmd.Execute()
	return stdout.String(), stderr.String(), err
}

func TestCheckRunsTests(t *testing.T) {
	for path, want := range map[string]string{
		"../../config.example.yaml":        "; 4 tests pass\n",
		"../../testdata/tests/states.yaml": "; 25 tests pass\n",
	} {
		out, said, err := checked(t, path)
		if err != nil || said != "" || !strings.HasSuffix(out, want) {
			t.Errorf("%s: %v\n%s%s", path, err, said, out)
		}
	}
}

// TestCheckFailsTests turns expectations round: each that no longer holds is told with its trace, and the status is 2.
func TestCheckFailsTests(t *testing.T) {
	example, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"testdata/", dir+"/testdata/",
		"expect: {member: seoul, metric: capacity}", "expect: {member: virginia}",
		"expect: {member: virginia, metric: rtt}", "expect: {metric: geo}",
		"expect: {member: seoul, metric: health, answer: answer}", "expect: {answer: nodata}",
	).Replace(string(example))
	path := filepath.Join(t.TempDir(), "gslbd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, said, err := checked(t, path)
	if !errors.As(err, new(usageError)) || err.Error() != path+": 3 of 4 tests fail" {
		t.Errorf("error %v", err)
	}
	if strings.Contains(out, "valid") {
		t.Errorf("it says: %s", out)
	}
	for _, want := range []string{
		path + ": tests[1] (both servers of Virginia are down): seoul by health, expected nodata\n",
		"\n  health            decided        kept seoul up (report); fell virginia down (virtual server",
		path + ": tests[2] (Virginia is overloaded, although it is nearer): seoul by capacity, expected virginia\n",
		"\n  capacity          decided        kept seoul 44 %; fell virginia 100 % (overloaded",
		path + ": tests[3] (the round trip counts before the place): virginia by rtt, expected by geo\n",
		"\n  rtt               decided        kept virginia 30.0 ms; fell seoul 200.0 ms [ecs 11.1.1.0/24",
		"\n  geo               not consulted\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if out, said, err = checked(t, path, "--tests=false"); err != nil || said != "" || !strings.HasSuffix(out, " services\n") {
		t.Errorf("without the tests, as a reload is: %v\n%s%s", err, said, out)
	}
}
