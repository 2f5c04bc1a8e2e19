package dns

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/state"
)

// ResponderOf returns a Responder that serves snap, for tests of what no Store can be brought to publish in a test.
func ResponderOf(snap *state.Snapshot) *Responder {
	r, err := NewResponder(Options{})
	if err != nil {
		panic(err)
	}
	r.snap = snap
	r.Refresh(time.Now())
	return r
}

// TestPadding checks that what is encrypted is padded to blocks (RFC 8467), if the client pads.
func TestPadding(t *testing.T) {
	r, err := NewResponder(Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Refresh(time.Now())
	r.encrypted = true
	from := netip.MustParseAddrPort("198.51.100.7:4242")
	buf := make([]byte, 65535)
	for i := range buf {
		buf[i] = 0xee // what an earlier reply has left
	}
	padded := &mdns.EDNS0_PADDING{Padding: make([]byte, 3)}
	for labels := 1; labels < 100; labels++ {
		m := new(mdns.Msg)
		m.SetQuestion(strings.Repeat("a.", labels), mdns.TypeA)
		m.SetEdns0(512, true)
		for _, options := range [][]mdns.EDNS0{{padded}, nil} {
			m.IsEdns0().Option = options
			wire, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			for _, room := range []int{65535, 468, 300, 299} {
				n := r.Respond(wire, buf[:room], from, from, true)
				reply := new(mdns.Msg)
				if err := reply.Unpack(buf[:n]); err != nil {
					t.Fatal(err)
				}
				pads := 0
				for _, o := range reply.IsEdns0().Option {
					if p, ok := o.(*mdns.EDNS0_PADDING); ok {
						pads++
						if strings.Trim(string(p.Padding), "\x00") != "" {
							t.Fatalf("%d labels: the padding has data", labels)
						}
					}
				}
				want := 0
				if options != nil {
					want = 1
				}
				if pads != want || want == 1 && n != min(468, room) {
					t.Fatalf("%d labels, room for %d: %d octets, %d paddings", labels, room, n, pads)
				}
			}
		}
	}
	for size := 1; size < 1000; size++ {
		b := make([]byte, 2000)
		if n := putPadding(b, size); n < 4 || n > 4+467 || (size+n)%468 != 0 {
			t.Errorf("%d octets get %d of padding", size, n)
		}
		for room := range 8 {
			if n := putPadding(b[:room], size); n > room || n > 0 && n != 4+int(binary.BigEndian.Uint16(b[2:])) {
				t.Errorf("%d octets get %d of padding where %d fit", size, n, room)
			}
		}
	}
}

// TestCookieValid checks what the rest of the package learns of a query's cookie, one query after the other.
func TestCookieValid(t *testing.T) {
	r, err := NewResponder(Options{Cookies: CookieOptions{Enabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	r.Refresh(time.Now())
	from := netip.MustParseAddrPort("198.51.100.7:4242")
	buf := make([]byte, 512)
	respond := func(cookie string) string {
		m := new(mdns.Msg)
		m.SetQuestion("gslb.test.", mdns.TypeA)
		m.SetEdns0(512, false)
		if cookie != "" {
			m.IsEdns0().Option = []mdns.EDNS0{&mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: cookie}}
		}
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Unpack(buf[:r.Respond(wire, buf, from, from, false)]); err != nil {
			t.Fatal(err)
		}
		for _, o := range m.IsEdns0().Option {
			if c, ok := o.(*mdns.EDNS0_COOKIE); ok {
				return c.Cookie
			}
		}
		return ""
	}
	good := respond("0102030405060708")
	for _, tt := range []struct {
		cookie string
		want   bool
	}{
		{"", false},
		{good, true},
		{"", false},
		{good, true},
		{"0102030405060708", false},
		{good, true},
		{good[:46] + "00", false},
		{good, true},
		{good[:20], false},
	} {
		if respond(tt.cookie); r.cookieValid != tt.want {
			t.Errorf("cookie %q: valid %v", tt.cookie, r.cookieValid)
		}
	}
}
