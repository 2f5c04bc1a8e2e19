package sitereport_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

// A fixedReader always reads the same.
type fixedReader sitereport.Reading

func (f fixedReader) Read(context.Context) (sitereport.Reading, error) {
	return sitereport.Reading(f), nil
}

// reported returns what an agent of these readers reports, as JSON on one line.
func reported(t *testing.T, readers ...sitereport.Reader) string {
	t.Helper()
	a, err := sitereport.NewAgent(sitereport.AgentOptions{Site: "seoul", Servers: []string{"http://127.0.0.1:1"}, Readers: readers})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(a.Once(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// standIn starts a process that is called keepalived, and returns it and the file with its number.
func standIn(t *testing.T) (*os.Process, string) {
	t.Helper()
	dir := t.TempDir()
	program, err := os.ReadFile(program(t, "sleep"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "keepalived"), program, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "keepalived"), "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	file := filepath.Join(dir, "pid")
	if err := os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return cmd.Process, file
}

// TestKeepalivedEnded has a keepalived that ended, and whose parent has not looked yet: a container may never look.
func TestKeepalivedEnded(t *testing.T) {
	process, file := standIn(t)
	here := netip.MustParseAddr("127.0.0.1")
	k := sitereport.NewKeepalived(sitereport.KeepalivedOptions{Addresses: []netip.Addr{here}, PIDFile: file})
	if r, err := k.Read(t.Context()); err != nil || len(r.Elsewhere) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "taken for ended", func() bool {
		r, err := k.Read(t.Context())
		return err == nil && strings.Contains(r.Elsewhere[here], "keepalived does not run here")
	})
}

// TestKeepalivedStandby reports nothing of what the other machine of a pair serves, whoever reads it here, and no load.
func TestKeepalivedStandby(t *testing.T) {
	sessions, bits := uint64(3), uint64(1000)
	elsewhere, here := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("127.0.0.1")
	balancer := fixedReader{
		Load: sitereport.Load{Sessions: &sessions, BitsPerSecIn: &bits, BitsPerSecOut: &bits},
		VirtualServers: []sitereport.VirtualServer{
			{Name: "web", Address: elsewhere, Sessions: &sessions, Servers: []sitereport.Server{{Name: "s1", State: "up"}}},
			{Name: "local", Address: here, Sessions: &sessions, Servers: []sitereport.Server{{Name: "s2", State: "up"}}},
		},
	}
	link := fixedReader{Load: sitereport.Load{BitsPerSecIn: &bits, BitsPerSecOut: &bits}, WholeSite: true}
	_, file := standIn(t)
	pair := sitereport.NewKeepalived(sitereport.KeepalivedOptions{Addresses: []netip.Addr{elsewhere, here}, PIDFile: file})
	want := `{"site":"seoul","virtual_servers":[` +
		`{"name":"web","address":"192.0.2.10","servers":[{"name":"s1","state":"unknown","reason":"192.0.2.10 is not on this machine: keepalived is not MASTER here"}]},` +
		`{"name":"local","address":"127.0.0.1","sessions":3,"servers":[{"name":"s2","state":"up"}]}]}`
	if d := cmp.Diff(want, reported(t, balancer, link, pair)); d != "" {
		t.Error(d)
	}
	// The master of all is reported as ever.
	master := sitereport.NewKeepalived(sitereport.KeepalivedOptions{Addresses: []netip.Addr{here}, PIDFile: file})
	if got, want := reported(t, balancer, link, master), reported(t, balancer, link); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestKeepalivedUnreadable takes a machine of which nothing is known for master of nothing.
func TestKeepalivedUnreadable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keepalived.pid")
	here := netip.MustParseAddr("127.0.0.1")
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, pid, on, reason string
		fails                 bool
	}{
		{"no such interface", "1", "nosuch0", `keepalived: network interface "nosuch0"`, true},
		{"a directory", "dir", "", "is a directory", true},
		{"no number", "keepalived", "", "keepalived.pid holds no number of a process", true},
		{"all processes", "-1", "", "holds no number", true},
		{"no file", "", "", "keepalived does not run here: there is no " + file, false},
		{"a process that ended", strconv.Itoa(gone.Process.Pid), "", "keepalived does not run here: process", false},
		{"another process", strconv.Itoa(os.Getpid()) + "\n", "", "is not it", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			var err error
			switch tc.pid {
			case "":
			case "dir":
				err = os.Mkdir(file, 0o700)
			default:
				err = os.WriteFile(file, []byte(tc.pid), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := sitereport.NewKeepalived(sitereport.KeepalivedOptions{
				Addresses: []netip.Addr{here}, Interface: tc.on, PIDFile: file,
				VirtualServers: []sitereport.KeepalivedVirtualServer{{Name: "web", Address: here}},
			}).Read(t.Context())
			if (err != nil) != tc.fails || err != nil && !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("error %v", err)
			}
			if !tc.fails && (len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], tc.reason)) {
				t.Errorf("warnings %q", r.Warnings)
			}
			s := r.VirtualServers[0].Servers[0]
			if s.State != "unknown" || !strings.Contains("keepalived: "+s.Reason, tc.reason) || r.Elsewhere[here] != s.Reason {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestRealKeepalived follows the system's keepalived as its instance is MASTER, in FAULT, MASTER again, killed and stopped.
func TestRealKeepalived(t *testing.T) {
	keepalived := program(t, "keepalived")
	inNamespace(t, func(t *testing.T) {
		dir := t.TempDir()
		conf, pid, vrrp := filepath.Join(dir, "k.conf"), filepath.Join(dir, "k.pid"), filepath.Join(dir, "v.pid")
		command(t, "ip", "link", "add", "hb", "type", "veth", "peer", "name", "peer")
		command(t, "ip", "address", "add", "192.168.77.1/24", "dev", "hb")
		for _, link := range []string{"lo", "hb", "peer"} {
			command(t, "ip", "link", "set", link, "up")
		}
		if err := os.WriteFile(conf, []byte(`
vrrp_instance service {
  interface hb
  virtual_router_id 51
  version 3
  state BACKUP
  priority 150
  advert_int 0.1
  virtual_ipaddress {
    192.168.77.100/32 dev hb
  }
  virtual_ipaddress_excluded {
    2001:db8::100/128 dev hb
  }
}
`), 0o600); err != nil {
			t.Fatal(err)
		}
		start := func() *exec.Cmd {
			t.Helper()
			log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			cmd := exec.Command(keepalived, "-n", "-l", "-f", conf, "-p", pid, "-r", vrrp)
			cmd.Stdout, cmd.Stderr = log, log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		cmd := start()
		kill := func() {
			for _, file := range []string{vrrp, pid} {
				if b, err := os.ReadFile(file); err == nil {
					if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 0 {
						syscall.Kill(n, syscall.SIGKILL)
					}
				}
			}
			cmd.Process.Kill()
			cmd.Wait()
		}
		t.Cleanup(func() {
			kill()
			if t.Failed() {
				b, _ := os.ReadFile(filepath.Join(dir, "log"))
				t.Logf("keepalived says: %s", b)
			}
		})

		v4, v6 := netip.MustParseAddr("192.168.77.100"), netip.MustParseAddr("2001:db8::100")
		k := sitereport.NewKeepalived(sitereport.KeepalivedOptions{
			Addresses: []netip.Addr{v4, v6}, Interface: "hb", PIDFile: pid,
			VirtualServers: []sitereport.KeepalivedVirtualServer{
				{Name: "web", Address: v4, Port: 443, Protocol: "tcp"}, {Name: "web6", Address: v6, Port: 443, Protocol: "tcp"},
			},
		})
		is := func(state, reason string) func() bool {
			return func() bool {
				r, err := k.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range r.VirtualServers {
					if s := v.Servers[0]; s.State != state || !strings.Contains(s.Reason, reason) {
						return false
					}
				}
				return r.Load == sitereport.Load{}
			}
		}
		const standby, dead = "keepalived is not MASTER here", "keepalived does not run here"
		eventually(t, "MASTER", is("up", ""))
		if info, err := os.Stat(pid); err != nil || info.Mode().Perm()&0o004 == 0 {
			t.Errorf("an agent of another user cannot read the file: %v, %v", info.Mode(), err)
		}
		command(t, "ip", "link", "set", "peer", "down")
		eventually(t, "in FAULT", is("unknown", standby))
		command(t, "ip", "link", "set", "peer", "up")
		eventually(t, "MASTER again", is("up", ""))
		kill()
		if !is("unknown", dead)() {
			t.Error("a keepalived that was killed is master, since its address stays")
		}
		if err := os.Remove(pid); err != nil {
			t.Fatal(err)
		}
		os.Remove(vrrp)
		cmd = start()
		eventually(t, "MASTER after a crash", is("up", ""))
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "stopped", is("unknown", dead))
		cmd.Wait()
	})
}
