package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// Replies leave from the address that was asked, of either family, where the server listens on every address. dig takes
// no reply from another one.
func TestRepliesLeaveFromTheAskedAddress(t *testing.T) {
	ip, dig := lab.Program(t, "ip"), lab.Program(t, "dig")
	lab.Need(t, os.Geteuid() == 0, "root, for a network namespace")
	ns := fmt.Sprintf("gslbd-e2e-%d", os.Getpid())
	run := func(args ...string) error {
		out, err := exec.Command(ip, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	err := run("netns", "add", ns)
	lab.Need(t, err == nil, fmt.Sprintf("network namespaces (%v)", err))
	t.Cleanup(func() { // after the server has stopped
		if err := run("netns", "delete", ns); err != nil {
			t.Error(err)
		}
	})
	addresses := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8::2", "2001:db8::3"}
	if err := run("-n", ns, "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if err := run("-n", ns, "address", "add", a, "dev", "lo"); err != nil {
			t.Fatal(err)
		}
	}

	dir := t.TempDir()
	config := filepath.Join(dir, "gslbd.yaml")
	write(t, filepath.Join(dir, "gslb.zone"), "$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A 192.0.2.1\nhost A 192.0.2.7\n")
	write(t, config, "dns: {listen: [\":53\"], drain_time: 0s}\nstate: {directory: state}\nzones: [{name: gslb.test, file: gslb.zone}]\n")
	s := start(t, ip, "netns", "exec", ns, filepath.Join(binaries, "gslbd"), "--config", config)
	s.waitLog(`"serving"`, 20*time.Second)
	for _, a := range append(addresses, "127.0.0.1", "127.9.9.9", "::1") {
		from := "192.0.2.3" // another address than what is asked: to that one the kernel would answer from there anyway
		if strings.Contains(a, ":") {
			from = "2001:db8::3"
		}
		for _, transport := range []string{"+notcp", "+tcp"} {
			out, err := exec.Command(ip, "netns", "exec", ns, dig, "@"+a, "-b", from, "host.gslb.test", "A", "+short", "+tries=1", "+time=3", transport).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != "192.0.2.7" {
				t.Errorf("%s %s: %v: %s", a, transport, err, out)
			}
		}
	}
}
