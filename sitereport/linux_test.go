//go:build linux

package sitereport

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// netlinkMessage makes one message as the kernel sends it.
func netlinkMessage(kind uint16, payload []byte) []byte {
	b := make([]byte, netlinkHeader, netlinkHeader+len(payload)+3)
	binary.NativeEndian.PutUint32(b, uint32(netlinkHeader+len(payload)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	b = append(b, payload...)
	return b[:(len(b)+3)&^3]
}

// socketAt makes the description of a socket.
func socketAt(family byte, local netip.AddrPort) []byte {
	b := make([]byte, diagMessageSize)
	b[0], b[1] = family, tcpEstablished
	binary.BigEndian.PutUint16(b[4:], local.Port())
	copy(b[8:24], local.Addr().AsSlice())
	return b
}

func TestParseSocketDump(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("[2001:db8::1]:80")
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:192.0.2.7"), 8443)
	minus := func(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	tests := []struct {
		name string
		b    []byte
		want []string
		done bool
		err  string
	}{
		{"sockets, more to come", join(netlinkMessage(20, socketAt(unix.AF_INET, v4)), netlinkMessage(20, append(socketAt(unix.AF_INET6, v6), 1, 2, 3))), []string{"192.0.2.1:443", "[2001:db8::1]:80"}, false, ""},
		{"a dual-stack socket", netlinkMessage(20, socketAt(unix.AF_INET6, mapped)), []string{"192.0.2.7:8443"}, false, ""},
		{"the end", join(netlinkMessage(20, socketAt(unix.AF_INET, v4)), netlinkMessage(unix.NLMSG_DONE, minus(0))), []string{"192.0.2.1:443"}, true, ""},
		{"the end without a word", netlinkMessage(unix.NLMSG_DONE, nil), nil, true, ""},
		{"an error", netlinkMessage(unix.NLMSG_ERROR, minus(unix.ENOENT)), nil, true, "no such file"},
		{"a failed end", netlinkMessage(unix.NLMSG_DONE, minus(unix.ENOMEM)), nil, true, "cannot allocate"},
		{"another kind", join(netlinkMessage(unix.NLMSG_NOOP, nil), netlinkMessage(99, make([]byte, 5)), netlinkMessage(unix.NLMSG_DONE, nil)), nil, true, ""},
		{"short", netlinkMessage(20, make([]byte, 8)), nil, false, "fewer than"},
		{"longer than it is", netlinkMessage(20, socketAt(unix.AF_INET, v4))[:60], nil, false, "does not fit"},
		{"of no length", make([]byte, 16), nil, false, "does not fit"},
		{"empty", nil, nil, false, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			done, err := parseSocketDump(tc.b, func(s diagSocket) { got = append(got, s.local().String()) })
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if done != tc.done || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%t, %v", done, err)
			}
		})
	}
}

func FuzzParseSocketDump(f *testing.F) {
	f.Add(netlinkMessage(20, socketAt(unix.AF_INET, netip.MustParseAddrPort("192.0.2.1:443"))))
	f.Add(netlinkMessage(unix.NLMSG_ERROR, []byte{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		parseSocketDump(b, func(s diagSocket) {
			if n++; !s.local().IsValid() || !s.remote().IsValid() {
				t.Fatal("a socket without an address")
			}
			s.cookie()
			roundTrip(s, time.Hour)
		})
		if n > len(b)/(netlinkHeader+diagMessageSize) {
			t.Fatalf("%d sockets in %d bytes", n, len(b))
		}
	})
}

// TestInterfaceTraffic reads an interface that counts, is made anew, and vanishes.
func TestInterfaceTraffic(t *testing.T) {
	dir := t.TempDir()
	write := func(index, rx, tx string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "eth0", "statistics"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"ifindex": index, "statistics/rx_bytes": rx, "statistics/tx_bytes": tx} {
			if err := os.WriteFile(filepath.Join(dir, "eth0", file), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("2", "1000", "2000")
	c := &Checked{opts: CheckedOptions{Interface: "eth0"}, first: make(chan struct{}), sysfs: dir}
	close(c.first)
	rate := func() (bool, []string) {
		t.Helper()
		r, err := c.Read(t.Context())
		if err != nil || !r.WholeSite || (r.Load.BitsPerSecIn == nil) != (r.Load.BitsPerSecOut == nil) {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Load.BitsPerSecIn != nil, r.Warnings
	}
	steps := []struct {
		index, rx, tx string
		want          bool
		warning       string
	}{
		{"2", "1000", "2000", false, ""},
		{"2", "1000", "3000", true, ""},
		{"3", "900000", "900000", false, ""}, // deleted and made anew
		{"3", "900001", "900000", true, ""},
		{"3", "5", "900000", false, ""}, // a counter of 32 bits wrapped
		{"3", "6", "900000", true, ""},
		{"3", "six", "900000", false, `the counters of network interface "eth0"`},
		{"3", "7", "900000", false, ""},
		{"3", "8", "900000", true, ""},
	}
	for i, s := range steps {
		write(s.index, s.rx, s.tx)
		got, warnings := rate()
		if got != s.want || strings.Contains(strings.Join(warnings, " "), s.warning) != true || (s.warning == "") != (len(warnings) == 0) {
			t.Errorf("step %d: rate %t, warnings %q", i, got, warnings)
		}
	}
	os.RemoveAll(filepath.Join(dir, "eth0"))
	if got, warnings := rate(); got || len(warnings) != 1 || !strings.Contains(warnings[0], `there is no network interface "eth0"`) {
		t.Errorf("without the interface: rate %t, warnings %q", got, warnings)
	}
}
