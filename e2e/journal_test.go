package e2e

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// mountState mounts a small file system in memory as the server's state directory.
func (s *gslbd) mountState(t *testing.T) string {
	t.Helper()
	lab.Need(t, os.Getuid() == 0, "root, to mount a file system")
	dir := filepath.Join(s.dir, "state")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		lab.Need(t, false, "mounting: "+err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}

// fill writes until nothing more fits.
func fill(t *testing.T, dir string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
			return ballast
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// refusesOrders checks that the server goes on answering, with what holds, is ready, and takes no order; that it says why
// in status, to gslbctl and, if it has just started, in its log.
func (s *gslbd) refusesOrders(t *testing.T, answer string, log bool, orders [][]string, says ...string) {
	t.Helper()
	s.wantAnswer(t, 0, www, answer)
	resp, err := http.Get("http://" + s.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %s", resp.Status)
	}
	for _, args := range orders {
		out, code := s.tryCtl(t, args...)
		if code != 1 {
			t.Errorf("%v: exit status %d, want 1", args, code)
		}
		for _, want := range append(says, "orders.db") {
			if !strings.Contains(unwrapped(out), want) {
				t.Errorf("%v: the reason does not say %q:\n%s", args, want, out)
			}
		}
	}
	status := s.ctl(t, "status")
	for _, want := range append(says, "orders.db") {
		if !strings.Contains(unwrapped(status), want) {
			t.Errorf("status does not say %q:\n%s", want, status)
		}
		if log && !strings.Contains(s.log(), want) {
			t.Errorf("the log does not say %q:\n%s", want, s.log())
		}
	}
	s.wantAnswer(t, 0, www, answer)
}

// unwrapped puts what is wrapped at the terminal's width on one line.
func unwrapped(s string) string { return strings.Join(strings.Fields(s), " ") }

// A damaged journal, a full disk and a directory that cannot be written stop neither the start nor the answers; what can be
// read holds, new orders are refused, and what the message says to do helps.
func TestJournalFaults(t *testing.T) {
	t.Parallel()
	const body = seedNetwork + fleetService
	ordinary := [][]string{
		{"force", "down", "--site", "virginia", "--reason", "test"},
		{"evacuate", "--zone", "use1-az1", "--reason", "test", "--force"},
	}
	begin := func(t *testing.T, mount bool) (*gslbd, string) {
		s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
		s.config = filepath.Join(s.dir, "gslbd.yaml")
		s.write(t, body)
		if mount {
			s.mountState(t)
		}
		s.run(t)
		s.ctl(t, "force", "down", "--site", "seoul", "--reason", "power work")
		s.ctl(t, "evacuate", "--zone", "apne2-az1", "--reason", "INC-7", "--force")
		s.wantAnswer(t, 0, www, "2.2.2.2")
		return s, filepath.Join(s.dir, "state", "orders.db")
	}
	damage := func(t *testing.T, path string, f func([]byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, string(f(b)))
	}
	repaired := func(t *testing.T, s *gslbd, path string) {
		t.Helper()
		s.kill()
		if err := os.Rename(path, path+".aside"); err != nil {
			t.Fatal(err)
		}
		s.run(t)
		s.ctl(t, "force", "drain", "--site", "virginia", "--reason", "it takes orders again")
		s.wantAnswer(t, 0, www, "1.1.1.1")
	}
	t.Run("half-written ledger record", func(t *testing.T) {
		s, path := begin(t, false)
		s.kill()
		damage(t, path, func(b []byte) []byte {
			at := bytes.Index(b, []byte(`"removed":["1.1.1.1"]`))
			if at < 0 {
				t.Fatal("no ledger record is in the file")
			}
			clear(b[at : at+60])
			return b
		})
		s.run(t)
		s.refusesOrders(t, "2.2.2.2", true, ordinary, "cannot be read", "Move the file away and restart gslbd", "new orders are refused")
		if out := s.ctl(t, "orders"); !strings.Contains(out, "power work") {
			t.Errorf("the order that could be read is not shown:\n%s", out)
		}
		repaired(t, s, path)
	})
	t.Run("corrupt database", func(t *testing.T) {
		s, path := begin(t, false)
		s.kill()
		damage(t, path, func(b []byte) []byte { return bytes.Repeat([]byte("garbage "), len(b)/8) })
		s.run(t)
		s.refusesOrders(t, "1.1.1.1", true, ordinary, "Move the file away and restart gslbd", "new orders are refused")
		repaired(t, s, path)
	})
	t.Run("read-only state directory", func(t *testing.T) {
		s, path := begin(t, true)
		s.kill()
		remount(t, filepath.Dir(path), syscall.MS_RDONLY)
		s.run(t)
		s.refusesOrders(t, "2.2.2.2", true, ordinary, "read-only file system", "writable by gslbd")
		s.kill()
		remount(t, filepath.Dir(path), 0)
		s.run(t)
		s.ctl(t, "force", "down", "--site", "virginia", "--reason", "it takes orders again")
		s.wantAnswer(t, 0, www, "")
	})
	t.Run("full disk", func(t *testing.T) {
		s, path := begin(t, true)
		ballast := fill(t, filepath.Dir(path))
		order := []string{"force", "down", "--site", "seoul", "--reason", strings.Repeat("until it is full ", 14)}
		given := 1
		for refused := 0; refused < 3; { // bbolt has pages of its own to use up
			if _, code := s.tryCtl(t, order...); code != 0 {
				refused++
			} else if given++; given > 1000 {
				t.Fatal("the disk does not become full")
			}
		}
		s.refusesOrders(t, "2.2.2.2", false, [][]string{order}, "no space left on device", "free space on the disk")
		s.kill()
		s.run(t)
		if n := len(s.orders(t)); n != given {
			t.Errorf("%d orders hold after a restart on the full disk, %d were accepted", n, given)
		}
		s.wantAnswer(t, 0, www, "2.2.2.2")
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		s.kill()
		s.run(t)
		s.ctl(t, "force", "down", "--site", "virginia", "--reason", "it takes orders again")
		s.wantAnswer(t, 0, www, "")
	})
}

// Nothing that orders take away is answered by any rule, and what they take away whole is NODATA, never NXDOMAIN.
func TestNothingLeftByOrders(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{"all", "nodata", "last-known-good", "backup", "servfail"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			service := strings.Replace(fleetService, "ttl: 1\n", "ttl: 30\n    last_resort: [1.1.1.1]\n    on_all_down: "+rule+"\n", 1)
			if rule != "backup" {
				service = strings.Replace(service, "    last_resort: [1.1.1.1]\n", "", 1)
			}
			s := startGSLBD(t, seedNetwork+service)
			s.ctl(t, "force", "down", "--service", "*", "--reason", "everything")
			m := s.ask(t, www)
			if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 || !m.Authoritative || len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || m.Ns[0].Header().Ttl > 10 {
				t.Errorf("forced down whole:\n%v", m)
			}
			if txt := s.ask(t, question{name: www.name, qtype: dns.TypeTXT}); txt.Rcode != dns.RcodeSuccess {
				t.Errorf("TXT:\n%v", txt)
			}
			s.waitLog("service has no candidate", within)
			if out := s.ctl(t, "explain", www.name); !strings.Contains(out, "everything") {
				t.Errorf("explain does not say whose order it is:\n%s", out)
			}
		})
	}
}
