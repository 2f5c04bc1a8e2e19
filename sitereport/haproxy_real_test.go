package sitereport_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gslbd/sitereport"
)

// program finds a program of the system, or skips the test; with E2E=require its absence is a failure.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	if os.Getenv("E2E") == "require" {
		t.Fatalf("E2E=require, but %s is not installed", name)
	}
	t.Skipf("SKIP: needs %s", name)
	return ""
}

// startHAProxy runs the system's HAProxy until the test ends.
func startHAProxy(t *testing.T, config string) {
	t.Helper()
	haproxy, dir := program(t, "haproxy"), t.TempDir()
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(haproxy, "-db", "-f", file)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		out.Close()
		if t.Failed() {
			b, _ := os.ReadFile(out.Name())
			t.Logf("HAProxy says: %s", b)
		}
	})
}

// TestRealHAProxy reads the system's HAProxy: 500 held connections are 500 sessions, and a server that stops is down.
func TestRealHAProxy(t *testing.T) {
	program(t, "haproxy")
	dir := t.TempDir()
	var servers [2]net.Listener
	for i := range servers {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		servers[i] = l
		go func() {
			var held []net.Conn
			defer func() {
				for _, c := range held {
					c.Close()
				}
			}()
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				held = append(held, c)
			}
		}()
	}
	front := closed(t)
	socket := filepath.Join(dir, "admin.sock")
	startHAProxy(t, fmt.Sprintf(`
global
  stats socket %s level operator
  maxconn 4000
defaults
  mode tcp
  timeout connect 1s
  timeout client 60s
  timeout server 60s
frontend fe
  bind %s
  default_backend be
backend be
  server s1 %s check inter 100ms fastinter 100ms downinter 100ms fall 2 rise 1
  server s2 %s
  server s3 %s check disabled
`, socket, front, servers[0].Addr(), servers[1].Addr(), servers[1].Addr()))
	h := newHAProxy(t, socket)
	until := func(what string, done func(r sitereport.Reading) bool) (r sitereport.Reading) {
		t.Helper()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(10 * time.Second)
		for {
			r, err := h.Read(t.Context())
			if err == nil && done(r) {
				return r
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("never %s: %+v, %v", what, r, err)
			}
		}
	}
	states := func(r sitereport.Reading) (s string) {
		for _, server := range r.VirtualServers[0].Servers {
			s += server.Name + " " + server.State + ", "
		}
		return s
	}
	until("up", func(r sitereport.Reading) bool { return states(r) == "s1 up, s2 up, s3 maint, " })
	for range 500 {
		c, err := net.Dial("tcp4", front.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	r := until("at 500 sessions", func(r sitereport.Reading) bool { return *r.Load.Sessions == 500 })
	if *r.VirtualServers[0].Sessions != 500 || r.Load.NewSessions == nil || r.Load.BitsPerSecIn == nil {
		t.Errorf("%+v", r)
	}
	if s := r.VirtualServers[0].Servers[0]; s.Address != servers[0].Addr().String() {
		t.Errorf("the server's address is %q", s.Address)
	}
	servers[0].Close()
	r = until("down", func(r sitereport.Reading) bool { return states(r) == "s1 down, s2 up, s3 maint, " })
	if reason := r.VirtualServers[0].Servers[0].Reason; reason != "L4CON: Connection refused" {
		t.Errorf("reason %q", reason)
	}
}
