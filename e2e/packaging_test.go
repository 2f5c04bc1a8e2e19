package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"gslbd/e2e/lab"
)

// packaged returns a file of the folder packaging.
func packaged(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "packaging"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The units are such that systemd takes them without a word, and leave little to whoever breaks in: exposure 2.0 at most.
func TestUnits(t *testing.T) {
	t.Parallel()
	analyze := lab.Program(t, "systemd-analyze")
	for _, name := range []string{"gslbd", "gslb-agent"} {
		path := filepath.Join(t.TempDir(), name+".service")
		text := strings.ReplaceAll(packaged(t, "systemd", name+".service"), "/usr/bin/"+name, "/bin/true") // it looks whether the program is there
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		// A misspelt key is no error for it, only a line.
		if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
		if out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", "--no-pager", path).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze security: %v\n%s", err, out)
		}
	}
}

// What is installed starts as it is: gslbd serves the example zone, and the agent reports to it.
func TestInstalledConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: dir, config: filepath.Join(dir, "gslbd.yaml")}
	place := strings.NewReplacer("127.0.0.1:5300", s.dns, "127.0.0.1:8054", s.reports, "127.0.0.1:8053", s.admin,
		"/var/lib/gslbd", filepath.Join(dir, "state"), "127.0.0.1:80", freeAddr(t))
	for _, name := range []string{"gslbd.yaml", "gslb.example.com.zone", "agent.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(place.Replace(packaged(t, "etc", name))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(program, file string) {
		out, err := exec.Command(filepath.Join(binaries, program), "check", "--config", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning") {
			t.Errorf("%s check: %v\n%s", program, err, out)
		}
	}
	check("gslbd", filepath.Join("..", "packaging", "etc", "gslbd.yaml"))
	s.run(t)
	check("gslb-agent", filepath.Join(dir, "agent.yaml"))
	if got := s.answer(t, question{name: "www.gslb.example.com"}); got != "192.0.2.80" && got != "198.51.100.80" {
		t.Errorf("answered %q", got)
	}
	m := newServiceManager(t)
	agent := start(t, "env", "NOTIFY_SOCKET="+m.socket, "WATCHDOG_USEC=400000", filepath.Join(binaries, "gslb-agent"), "--config", filepath.Join(dir, "agent.yaml"))
	next := m.wait(t, 0, "READY=1\nSTATUS=site seoul")
	for range 3 {
		next = m.wait(t, next, "WATCHDOG=1")
	}
	agent.waitLog("reports accepted", 20*time.Second)
	s.wantAnswer(t, within, question{name: "www.gslb.example.com"}, "198.51.100.80") // nothing listens where seoul's server would
	agent.signal(os.Interrupt)
	m.wait(t, next, "STOPPING=1")
}

// Where too few files may be open, gslbd says so at the start; where only the soft limit is low, it raises that.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	prlimit := lab.Program(t, "prlimit")
	m := newServiceManager(t)
	for _, x := range []struct{ limit, soft, says string }{
		{"256:256", "256", `the limit of open files is too low.*LimitNOFILE.*"limit":256`},
		{"256:20000", "(19999|20000)", ""},
	} {
		s := m.prepare(t, seedNetwork+fleetService)
		s.process = start(t, prlimit, "--nofile="+x.limit, filepath.Join(binaries, "gslbd"), "--config", s.config)
		s.waitLog(`"msg":"serving"`, 20*time.Second)
		if got := s.log(); regexp.MustCompile("the limit of open files").MatchString(got) != (x.says != "") || !regexp.MustCompile(x.says).MatchString(got) {
			t.Errorf("nofile=%s: log, want %q:\n%s", x.limit, x.says, got)
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.cmd.Process.Pid))
		if err != nil || !regexp.MustCompile(`Max open files +`+x.soft+` `).Match(limits) {
			t.Errorf("nofile=%s: %v\n%s", x.limit, err, limits)
		}
	}
}

// usageOf returns what --help says of a command and of all commands below it.
func usageOf(t *testing.T, program string, command ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(binaries, program), append(command, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v --help: %v\n%s", program, command, err, out)
	}
	text := string(out)
	if _, list, ok := strings.Cut(text, "Available Commands:\n"); ok {
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			text += usageOf(t, program, slices.Concat(command, strings.Fields(line)[:1])...)
		}
	}
	return text
}

// The manual pages have every command and every flag, and say what the exit status means; that of the configuration has
// every section.
func TestManualPages(t *testing.T) {
	t.Parallel()
	for program, file := range map[string]string{"gslbd": "gslbd.8", "gslb-agent": "gslb-agent.8", "gslbctl": "gslbctl.1"} {
		page := packaged(t, "man", file)
		usage := usageOf(t, program)
		words := map[string]bool{".Sh EXIT STATUS": true}
		for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+) `).FindAllStringSubmatch(usage, -1) {
			words["Fl -"+flag[1]] = true
		}
		_, commands, _ := strings.Cut(usage, "Available Commands:\n")
		commands, _, _ = strings.Cut(commands, "\n\n")
		for line := range strings.Lines(commands) {
			if name := strings.Fields(line)[0]; name != "help" {
				words["Cm "+name] = true
			}
		}
		if len(words) < 4 {
			t.Errorf("%s: only %v found in\n%s", program, words, usage)
		}
		for word := range words {
			if !regexp.MustCompile(regexp.QuoteMeta(word) + `\b`).MatchString(page) {
				t.Errorf("%s does not have %q", file, word)
			}
		}
	}
	example, err := os.ReadFile("../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var sections map[string]yaml.Node
	if err := yaml.Unmarshal(example, &sections); err != nil {
		t.Fatal(err)
	}
	page := packaged(t, "man", "gslbd.yaml.5")
	for name := range sections {
		if !strings.Contains(page, "\n.It Va "+name+"\n") {
			t.Errorf("gslbd.yaml.5 does not have the section %s", name)
		}
	}
}

// The SBOM lists every module that is linked into a program, and the standard library.
func TestSBOM(t *testing.T) {
	t.Parallel()
	program := filepath.Join(binaries, "gslbctl")
	out, err := exec.Command("../packaging/sbom", program, "1.2.3+4").Output()
	if err != nil {
		t.Fatal(err)
	}
	type component struct{ Type, Name, Version, PURL string }
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal(out, &bom); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := (component{"application", "gslbd/cmd/gslbctl", "1.2.3+4", "pkg:golang/gslbd/cmd/gslbctl@1.2.3%2B4"}); bom.Metadata.Component != want || bom.BOMFormat != "CycloneDX" {
		t.Errorf("%+v, want %+v", bom, want)
	}
	linked, err := exec.Command("go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, c := range bom.Components {
		names[c.Name] = c.Version
	}
	if names["stdlib"] == "" || len(names) != strings.Count(string(linked), "\tdep\t")+1 {
		t.Errorf("%d components, among them the standard library %q, of:\n%s", len(names), names["stdlib"], linked)
	}
	for _, dep := range regexp.MustCompile(`\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(linked), -1) {
		if names[dep[1]] != dep[2] {
			t.Errorf("%s: version %q, want %q", dep[1], names[dep[1]], dep[2])
		}
	}
}
