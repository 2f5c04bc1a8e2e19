package sitereport_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/sitereport"
)

// device is a load balancer that speaks SNMP: the system's snmpd with a table of the test's.
type device struct {
	t    *testing.T
	addr string
	file string // of the table
}

// startDevice runs snmpd until the test ends, and returns how to end it before.
func startDevice(t *testing.T, d *device) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "table")
	// What snmpd runs for each object (snmpd.conf, pass): -g the object, -n the one after it.
	for name, text := range map[string]string{
		script: `#!/bin/sh
exec awk -v mode="$1" -v oid="$2" '
function compare(a, b,  x, y, n, m, i) {
  n = split(substr(a, 2), x, "."); m = split(substr(b, 2), y, ".")
  for (i = 1; i <= n && i <= m; i++) if (x[i] + 0 != y[i] + 0) return x[i] + 0 < y[i] + 0 ? -1 : 1
  return n - m
}
mode == "-g" && $1 == oid || mode == "-n" && compare($1, oid) > 0 { print $1; print $2; print $3; exit }
' ` + d.file + "\n",
		filepath.Join(dir, "snmpd.conf"): `
rocommunity s3cret-community 127.0.0.1
createUser agent SHA-256 "s3cret-authentication" AES "s3cret-privacy"
rouser agent authpriv
pass .1.3.6.1.4.1.8072.9999.1 ` + script + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "log")
	cmd := exec.Command(program(t, "snmpd"), "-f", "-r", "-Lf", log, "-C", "-c", filepath.Join(dir, "snmpd.conf"), "-p", filepath.Join(dir, "pid"),
		"udp:"+d.addr)
	cmd.Env = append(os.Environ(), "SNMP_PERSISTENT_DIR="+dir, "MIBS=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("snmpd says: %s", b)
		}
	})
	return stop
}

// newDevice starts a device that has the objects of the text: OID below 1.3.6.1.4.1.8072.9999.1, type and value a line,
// sorted by OID.
func newDevice(t *testing.T, text string) (d *device, stop func()) {
	t.Helper()
	l, err := net.ListenPacket("udp4", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254))) // see closed
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	d = &device{t: t, addr: l.LocalAddr().String(), file: filepath.Join(t.TempDir(), "objects")}
	d.set(text)
	return d, startDevice(t, d)
}

// set changes the objects at once.
func (d *device) set(text string) {
	d.t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(".1.3.6.1.4.1.8072.9999.1" + line)
	}
	if err := os.WriteFile(d.file+".new", []byte(b.String()), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(d.file+".new", d.file); err != nil {
		d.t.Fatal(err)
	}
}

// balancer is what the device tells, with the values that change. The pool "web" (3.119.101.98) has three members, "api"
// (3.97.112.105) one.
func balancer(sessions, connections, in, out int, states string) string {
	s := strings.Fields(states)
	return fmt.Sprintf(`.1.1.0 gauge %d
.1.2.0 counter64 %d
.1.3.0 counter %d
.1.4.0 counter64 %d
.1.5.0 gauge 17
.2.1.3.97.112.105.1 integer 1
.2.1.3.119.101.98.1 integer %s
.2.1.3.119.101.98.2 integer %s
.2.1.3.119.101.98.10 integer %s
.2.2.3.97.112.105.1 integer 1
.2.2.3.119.101.98.1 integer %s
.2.2.3.119.101.98.2 integer %s
.2.2.3.119.101.98.10 integer %s
.2.3.3.119.101.98.1 string 10.1.1.10
.2.3.3.119.101.98.2 string 10.1.1.20
.2.3.3.119.101.98.10 string 10.1.1.20
.9.1.0 integer 7
`, sessions, connections, in, out, s[0], s[1], s[2], s[3], s[4], s[5])
}

func oid(below string) string { return ".1.3.6.1.4.1.8072.9999.1" + below }

// snmpOptions read the balancer by version 2c.
func snmpOptions(d *device) sitereport.SNMPOptions {
	return sitereport.SNMPOptions{
		Address: d.addr, Community: "s3cret-community", Timeout: 5 * time.Second,
		Sessions: []string{oid(".1.1.0")}, Connections: []string{oid(".1.2.0")},
		OctetsIn: []string{oid(".1.3.0")}, OctetsOut: []string{oid(".1.4.0")},
		VirtualServers: []sitereport.SNMPVirtualServer{
			{
				Name: "web", Address: netip.MustParseAddr("203.0.113.10"), Port: 443, Protocol: "tcp", Sessions: oid(".1.5.0"), Names: oid(".2.3.3.119.101.98"),
				States: []sitereport.SNMPStates{
					{Column: oid(".2.1.3.119.101.98"), Up: []int64{1}, Drain: []int64{2}, Maint: []int64{3}},
					{Column: oid(".2.2.3.119.101.98"), Up: []int64{1, 4}, Down: []int64{3}},
				},
			},
			{Name: "api", Protocol: "tcp", States: []sitereport.SNMPStates{{Column: oid(".2.1.3.97.112.105"), Up: []int64{1}}}},
		},
	}
}

func newSNMP(t *testing.T, opts sitereport.SNMPOptions) *sitereport.SNMP {
	t.Helper()
	s, err := sitereport.NewSNMP(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRealSNMP reads the system's snmpd, by both versions, while what it tells changes.
func TestRealSNMP(t *testing.T) {
	for _, version := range []string{"2c", "3"} {
		t.Run(version, func(t *testing.T) {
			d, stop := newDevice(t, balancer(500, 1000, 1<<32-1000, 1<<40, "1 1 1 1 1 4"))
			opts := snmpOptions(d)
			if version == "3" {
				opts.Community, opts.User = "", "agent"
				opts.Authentication, opts.AuthenticationPassword = "sha256", "s3cret-authentication"
				opts.Privacy, opts.PrivacyPassword = "aes", "s3cret-privacy"
			}
			s := newSNMP(t, opts)
			var r sitereport.Reading
			var failed error
			read := func() bool {
				r, failed = s.Read(t.Context())
				return failed == nil
			}
			eventually(t, "answers", read)
			states := func() string {
				var b strings.Builder
				for _, v := range r.VirtualServers {
					for _, server := range v.Servers {
						fmt.Fprintf(&b, "%s %s, ", server.Name, server.State)
					}
				}
				return b.String()
			}
			rates := func() (text string) {
				l, word := r.Load, map[bool]string{true: "some", false: "none"}
				if l.NewSessions != nil {
					text = word[*l.NewSessions > 0] + " new"
				}
				if (l.BitsPerSecIn == nil) != (l.BitsPerSecOut == nil) {
					t.Errorf("%+v", l)
				} else if l.BitsPerSecIn != nil {
					text += ", " + word[*l.BitsPerSecIn > 0] + " in, " + word[*l.BitsPerSecOut > 0] + " out"
				}
				return text
			}
			expect := func(when, wantStates, wantRates string) {
				t.Helper()
				if got := states(); got != wantStates {
					t.Errorf("%s: %s", when, got)
				}
				if got := rates(); got != wantRates {
					t.Errorf("%s: %q, want %q", when, got, wantRates)
				}
			}
			const up = "web/10.1.1.10 up, web/10.1.1.20 up, web/10.1.1.20 10 up, api/1 up, "
			expect("at first", up, "")
			if l := r.Load; l.Sessions == nil || *l.Sessions != 500 || *r.VirtualServers[0].Sessions != 17 || r.VirtualServers[1].Sessions != nil || len(r.Warnings) > 0 {
				t.Errorf("%+v", r)
			}
			d.set(balancer(400, 1001, 1000, 1<<40, "1 2 3 3 3 1")) // the counter of 32 bits begins again at 0
			if !read() {
				t.Fatal(failed)
			}
			expect("then", "web/10.1.1.10 down, web/10.1.1.20 drain, web/10.1.1.20 10 maint, api/1 up, ", "some new, some in, none out")
			if reason := r.VirtualServers[0].Servers[0].Reason; reason != oid(".2.2.3.119.101.98.1")+" is 3" {
				t.Errorf("reason %q", reason)
			}
			d.set(balancer(400, 1002, 1000, 5, "1 1 9 1 1 1")) // a counter of 64 bits was cleared; a state that nobody knows
			if !read() {
				t.Fatal(failed)
			}
			expect("after a clear", "web/10.1.1.10 up, web/10.1.1.20 up, web/10.1.1.20 10 unknown, api/1 up, ", "some new")
			if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], ".10 is 9, which the file gives no meaning") {
				t.Errorf("%q", r.Warnings)
			}
			d.set(".9.1.0 integer 7\n") // all that is asked for is gone
			if !read() {
				t.Fatal(failed)
			}
			expect("without objects", "web/10.1.1.10 unknown, web/10.1.1.20 unknown, web/10.1.1.20 10 unknown, api/1 unknown, ", "")
			if r.Load != (sitereport.Load{}) || len(r.Warnings) != 7 || !strings.Contains(strings.Join(r.Warnings, "; "), oid(".1.1.0")+" (sessions) is no number, or the device does not have it") {
				t.Errorf("%+v", r)
			}
			d.set(balancer(500, 1000, 1000, 1000, "1 1 1 1 1 1"))
			for range 2 {
				if !read() {
					t.Fatal(failed)
				}
			}
			expect("back", up, "none new, none in, none out")

			// A restart of the device: its counters are above already.
			stop()
			d.set(balancer(500, 2000, 2000, 2000, "1 1 1 1 1 1"))
			stop = startDevice(t, d)
			eventually(t, "answers again", func() bool { return read() })
			expect("after a restart", up, "")
			stop()

			if read() || !strings.HasPrefix(failed.Error(), "snmp "+d.addr+": ") || r.Load != (sitereport.Load{}) {
				t.Errorf("%+v, %v", r, failed)
			}
			expect("gone", "web/10.1.1.10 unknown, web/10.1.1.20 unknown, web/10.1.1.20 10 unknown, api/1 unknown, ", "")
		})
	}
}

// TestRealSNMPRefused tells what may be wrong, and no secret.
func TestRealSNMPRefused(t *testing.T) {
	d, _ := newDevice(t, balancer(500, 1000, 5, 5, "1 1 1 1 1 1"))
	good := newSNMP(t, snmpOptions(d))
	eventually(t, "answers", func() bool { _, err := good.Read(t.Context()); return err == nil })
	v3 := func(user, authentication, privacy string) func(*sitereport.SNMPOptions) {
		return func(o *sitereport.SNMPOptions) {
			o.Community, o.User = "", user
			o.Authentication, o.AuthenticationPassword = "sha256", authentication
			o.Privacy, o.PrivacyPassword = "aes", privacy
		}
	}
	for name, tc := range map[string]struct {
		change func(*sitereport.SNMPOptions)
		err    string
	}{
		"community":      {func(o *sitereport.SNMPOptions) { o.Community = "s3cret-other" }, "no answer in 1s: is the address right"},
		"user":           {v3("s3cret-nobody", "s3cret-authentication", "s3cret-privacy"), "are user, passwords, authentication and privacy those of the device?"},
		"authentication": {v3("agent", "s3cret-wrong", "s3cret-privacy"), "are user, passwords, authentication and privacy those of the device?"},
		"privacy":        {v3("agent", "s3cret-authentication", "s3cret-wrong"), ""},
		"port":           {func(o *sitereport.SNMPOptions) { o.Address = "127.0.0.1:1" }, "snmp 127.0.0.1:1: connection refused: is the port right"},
		"name":           {func(o *sitereport.SNMPOptions) { o.Address = "nosuchhost.invalid" }, "nosuchhost.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := snmpOptions(d)
			opts.Timeout = time.Second
			tc.change(&opts)
			r, err := newSNMP(t, opts).Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
			if r.Load != (sitereport.Load{}) || len(r.VirtualServers) != 2 {
				t.Errorf("%+v", r)
			}
		})
	}
}
