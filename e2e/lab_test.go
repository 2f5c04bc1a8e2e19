package e2e

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// marked returns the processes whose environment has the assignment, by their name, and the namespaces that they are in.
func marked(assignment string) (names []string, namespaces map[string]string) {
	namespaces = map[string]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		env, err := os.ReadFile(p + "/environ")
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(e []byte) bool { return string(e) == assignment }) {
			continue
		}
		name, _ := os.ReadFile(p + "/comm")
		names = append(names, strings.TrimSpace(string(name)))
		maps.Copy(namespaces, namespacesOf(p))
	}
	return names, namespaces
}

// namespacesOf returns those of all threads of a process, by name, with a path that leads to each.
func namespacesOf(process string) map[string]string {
	of := map[string]string{}
	links, _ := filepath.Glob(process + "/task/*/ns/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			of[to] = l
		}
	}
	return of
}

// hold keeps the namespaces until the test has ended, though not what runs in them: the system would give their names to the
// next ones at once, such as those of another test. It returns those that are still there.
func hold(t *testing.T, namespaces map[string]string) map[string]bool {
	held := map[string]bool{}
	for name, path := range namespaces {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		t.Cleanup(func() { f.Close() })
		if now, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err == nil && now == name {
			held[name] = true
		}
	}
	return held
}

// leftovers lists what the lab could leave on the machine, whose folder for temporary files is tmp.
func leftovers(tmp string) (all []string) {
	for _, pattern := range []string{tmp + "/*", "/dev/shm/*", "/run/netns/*", "/run/keepalived*", "/run/bird*", "/sys/class/net/*"} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	return all
}

// Whoever interrupts the lab in the middle, or kills it, or kills the make that it belongs to, leaves no process, no namespace
// and no file behind, not even what the programs in it have started and left.
func TestLabLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	lab.Need(t, os.Geteuid() == 0, "root")
	for _, program := range []string{"nsd", "unbound", "keepalived", "haproxy", "ip", "perl", "setsid"} {
		lab.Program(t, program)
	}
	tests := filepath.Join(t.TempDir(), "patterns.test")
	if out, err := exec.Command("go", "test", "-c", "-o", tests, "./patterns").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	machine := namespacesOf("/proc/self")
	for name, end := range map[string]func(run, owner *exec.Cmd){
		"interrupted":    func(run, _ *exec.Cmd) { _ = syscall.Kill(-run.Process.Pid, syscall.SIGINT) },
		"killed":         func(run, _ *exec.Cmd) { _ = run.Process.Kill() },
		"without a make": func(_, owner *exec.Cmd) { _ = owner.Process.Kill(); _ = owner.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			before := leftovers(tmp)
			owner := exec.Command("sleep", "600")
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			defer owner.Process.Kill()
			mark := "LAB_OWNER=" + strconv.Itoa(owner.Process.Pid)
			run := exec.Command(tests, "-test.run", "^TestHeartbeat$/^immediate$")
			run.Dir = "patterns"
			run.Env = append(os.Environ(), mark, "TMPDIR="+tmp)
			run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
			var out bytes.Buffer
			run.Stdout, run.Stderr = &out, &out
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = run.Wait(); close(ended) }()

			var namespaces map[string]string
			lab.Eventually(t, 90*time.Second, "the lab runs", func() bool {
				select {
				case <-ended:
					t.Fatalf("the lab ended:\n%s", out.String())
				default:
				}
				var names []string
				names, namespaces = marked(mark)
				return slices.Contains(names, "perl") && slices.Contains(names, "unbound") // one that its parent left, and one of ours
			})
			maps.DeleteFunc(namespaces, func(name, _ string) bool { return machine[name] != "" })
			during := hold(t, namespaces)
			if len(during) < 10 {
				t.Errorf("the lab has %d namespaces", len(during))
			}
			end(run, owner)
			lab.Eventually(t, 20*time.Second, "the lab has ended", func() bool {
				select {
				case <-ended:
					return true
				default:
					return false
				}
			})
			lab.Eventually(t, 10*time.Second, "its processes and namespaces have ended", func() bool {
				left, _ := marked(mark)
				processes, _ := filepath.Glob("/proc/[0-9]*")
				for _, p := range processes {
					for ns := range namespacesOf(p) {
						if during[ns] {
							left = append(left, p+" in "+ns)
						}
					}
				}
				return len(left) == 0
			})
			for _, now := range leftovers(tmp) {
				if !slices.Contains(before, now) {
					t.Errorf("left behind: %s", now)
				}
			}
		})
	}
}
