package dns_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/dns"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// secrets are for CookieOptions.
func secrets(t testing.TB, hex ...string) dns.CookieOptions {
	o := dns.CookieOptions{Enabled: true}
	for _, s := range hex {
		o.Secrets = append(o.Secrets, [16]byte(unhex(t, s)))
	}
	return o
}

// ofCookie asks for www.gslb.test with the options, or for a cookie alone, and returns the reply's rcode, its number of
// answers and its cookie.
func ofCookie(t testing.TB, r *dns.Responder, from netip.Addr, alone bool, options ...mdns.EDNS0) (rcode, answers int, cookie []byte) {
	t.Helper()
	wire := pack(t, question("www.gslb.test.", "A", edns(1232, options...)))
	if alone {
		wire = append([]byte(header(0, 0, 0, 0, 1)), wire[12+len(wwwQuestion):]...)
	}
	buf := make([]byte, 512)
	m := new(mdns.Msg)
	if err := m.Unpack(buf[:r.Respond(wire, buf, local, netip.AddrPortFrom(from, 4242), false)]); err != nil {
		t.Fatal(err)
	}
	for _, o := range m.IsEdns0().Option {
		if c, ok := o.(*mdns.EDNS0_COOKIE); ok {
			if cookie != nil {
				t.Errorf("two cookies in the reply to %v", options)
			}
			cookie = unhex(t, c.Cookie)
		}
	}
	return m.Rcode, len(m.Answer), cookie
}

// TestCookieVectors replays the examples of RFC 9018 appendix A. A query for a cookie alone shows whether a cookie is
// still valid; what a question gets does not depend on it.
func TestCookieVectors(t *testing.T) {
	w := serviceWorld(t)
	tests := []struct {
		name    string
		secrets []string
		from    string
		at      int64
		query   string
		rcode   int
		reply   string
	}{
		{
			"A.1, a new cookie",
			[]string{"e5e973e5a6b2a43f48e7dc849e37bfcf"},
			"198.51.100.100", 1559731985, "2464c4abcf10c957", 0, "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
		},
		{
			"A.2, renewed after 40 minutes",
			[]string{"e5e973e5a6b2a43f48e7dc849e37bfcf"},
			"198.51.100.100", 1559734385, "2464c4abcf10c957010000005cf79f111f8130c3eee29480", 0, "2464c4abcf10c957010000005cf7a871d4a564a1442aca77",
		},
		{
			"A.3, reserved octets set, while it is young",
			[]string{"e5e973e5a6b2a43f48e7dc849e37bfcf"},
			"203.0.113.203", 1559727985 + 60, "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5", 0, "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5",
		},
		{
			// Almost two hours old at the time of the example.
			"A.3, reserved octets set",
			[]string{"e5e973e5a6b2a43f48e7dc849e37bfcf"},
			"203.0.113.203", 1559734700, "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5", 23, "fc93fc62807ddb86010000005cf7a9acf73a7810aca2381e",
		},
		{
			"A.4, IPv6, of the secret before",
			[]string{"445536bcd2513298075a5d379663c962", "dd3bdf9344b678b185a6f5cb60fca715"},
			"2001:db8:220:1:59de:d0f4:8769:82b8", 1559741961, "22681ab97d52c298010000005cf7c57926556bd0934c72f8", 0, "22681ab97d52c298010000005cf7c609a6bb79d16625507a",
		},
		{
			"A.4, IPv6, of a secret that is out of use",
			[]string{"445536bcd2513298075a5d379663c962"},
			"2001:db8:220:1:59de:d0f4:8769:82b8", 1559741961, "22681ab97d52c298010000005cf7c57926556bd0934c72f8", 23, "22681ab97d52c298010000005cf7c609a6bb79d16625507a",
		},
		{
			"A.1, from a socket of both families",
			[]string{"e5e973e5a6b2a43f48e7dc849e37bfcf"},
			"::ffff:198.51.100.100", 1559731985, "2464c4abcf10c957", 0, "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
		},
	}
	for _, tt := range tests {
		r := w.responder(t, dns.Options{Cookies: secrets(t, tt.secrets...)})
		r.Refresh(time.Unix(tt.at, 0))
		option, from := raw(10, unhex(t, tt.query)...), netip.MustParseAddr(tt.from)
		if rcode, answers, cookie := ofCookie(t, r, from, true, option); rcode != tt.rcode || answers != 0 || hex.EncodeToString(cookie) != tt.reply {
			t.Errorf("%s, no question: rcode %d, %d answers, cookie %x; want %d, %s", tt.name, rcode, answers, cookie, tt.rcode, tt.reply)
		}
		if rcode, answers, cookie := ofCookie(t, r, from, false, option); rcode != 0 || answers != 1 || hex.EncodeToString(cookie) != tt.reply {
			t.Errorf("%s: rcode %d, %d answers, cookie %x; want %s", tt.name, rcode, answers, cookie, tt.reply)
		}
	}
}

// TestCookieLife checks how long a cookie is valid and when it is renewed, also where 32 bits of time run over.
func TestCookieLife(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{Cookies: dns.CookieOptions{Enabled: true}})
	from := remote.Addr()
	for _, made := range []int64{1559731985, 1<<32 - 1000} {
		r.Refresh(time.Unix(made, 0))
		_, _, cookie := ofCookie(t, r, from, false, raw(10, []byte("a client")...))
		for _, tt := range []struct {
			age     int64
			rcode   int
			renewed bool
		}{
			{0, 0, false},
			{1800, 0, false},
			{1801, 0, true},
			{3600, 0, true},
			{3601, 23, true},
			{1 << 31, 23, true},
			{-300, 0, false},
			{-301, 23, true},
		} {
			r.Refresh(time.Unix(made+tt.age, 0))
			rcode, _, got := ofCookie(t, r, from, true, raw(10, cookie...))
			if rcode != tt.rcode || bytes.Equal(got, cookie) == tt.renewed {
				t.Errorf("made at %d, %d s old: rcode %d, %x for %x", made, tt.age, rcode, got, cookie)
			}
			if at := binary.BigEndian.Uint32(got[12:]); tt.renewed && at != uint32(made+tt.age) {
				t.Errorf("made at %d, %d s old: the new cookie is of %d", made, tt.age, at)
			}
		}
	}
}

// TestCookieForms checks lengths and forgeries.
func TestCookieForms(t *testing.T) {
	w := serviceWorld(t)
	r := w.responder(t, dns.Options{Cookies: dns.CookieOptions{Enabled: true}})
	from := remote.Addr()
	_, _, good := ofCookie(t, r, from, false, raw(10, []byte("a client")...))
	for n := range 45 {
		data := append(bytes.Clone(good), make([]byte, 40)...)[:n]
		want := 0
		switch {
		case n < 8, n > 8 && n < 16, n > 40:
			want = mdns.RcodeFormatError
		case n != 8 && n != 24:
			want = mdns.RcodeBadCookie
		}
		rcode, _, cookie := ofCookie(t, r, from, true, raw(10, data...))
		if rcode != want || (cookie == nil) != (want == mdns.RcodeFormatError) {
			t.Errorf("%d octets: rcode %d, cookie %x; want %d", n, rcode, cookie, want)
		}
		if want == mdns.RcodeBadCookie {
			want = 0
		}
		if rcode, _, _ := ofCookie(t, r, from, false, raw(10, data...)); rcode != want {
			t.Errorf("%d octets and a question: rcode %d; want %d", n, rcode, want)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if rcode, _, cookie := ofCookie(t, r, from, true, raw(10, bad...)); rcode != mdns.RcodeBadCookie || bytes.Equal(cookie, bad) || !bytes.Equal(cookie[:8], bad[:8]) {
			t.Errorf("octet %d changed: rcode %d, cookie %x for %x", i, rcode, cookie, bad)
		}
	}
	if rcode, _, _ := ofCookie(t, r, from.Next(), true, raw(10, good...)); rcode != mdns.RcodeBadCookie {
		t.Errorf("another address: rcode %d", rcode)
	}
	if rcode, _, _ := ofCookie(t, w.responder(t, dns.Options{Cookies: dns.CookieOptions{Enabled: true}}), from, true, raw(10, good...)); rcode != mdns.RcodeBadCookie {
		t.Errorf("a server with another secret of its own: rcode %d", rcode)
	}
	// Of two the first counts, whatever the second is.
	if rcode, _, cookie := ofCookie(t, r, from, false, raw(10, good...), raw(10, 1)); rcode != 0 || !bytes.Equal(cookie, good) {
		t.Errorf("two cookies: rcode %d, cookie %x", rcode, cookie)
	}
	if rcode, _, cookie := ofCookie(t, r, from, false); rcode != 0 || cookie != nil {
		t.Errorf("none: rcode %d, cookie %x", rcode, cookie)
	}
	if rcode, _, cookie := ofCookie(t, r, from, true); rcode != mdns.RcodeFormatError || cookie != nil {
		t.Errorf("no cookie and no question: rcode %d, cookie %x", rcode, cookie)
	}
	off := w.responder(t, dns.Options{})
	if rcode, _, cookie := ofCookie(t, off, from, false, raw(10, good...)); rcode != 0 || cookie != nil {
		t.Errorf("cookies are off: rcode %d, cookie %x", rcode, cookie)
	}
	if rcode, _, cookie := ofCookie(t, off, from, true, raw(10, good...)); rcode != mdns.RcodeFormatError || cookie != nil {
		t.Errorf("cookies are off and there is no question: rcode %d, cookie %x", rcode, cookie)
	}
}

// TestCookieOnEveryReply checks that a cookie comes with every kind of reply, also with one that is cut to fit.
func TestCookieOnEveryReply(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{ECS: true, NSID: strings.Repeat("n", 128), Cookies: dns.CookieOptions{Enabled: true}})
	client := raw(10, []byte("a client")...)
	for _, tt := range []struct {
		name, qtype string
		rcode       int
		tc          bool
		more        []mdns.EDNS0
	}{
		{"www.gslb.test.", "A", 0, false, nil},
		{"nope.gslb.test.", "A", mdns.RcodeNameError, false, nil},
		{"www.gslb.test.", "SRV", 0, false, nil},
		{"www.example.org.", "A", mdns.RcodeRefused, false, nil},
		{"x.sub.gslb.test.", "A", 0, false, nil},
		{"gslb.test.", "AXFR", mdns.RcodeRefused, false, nil},
		{"big.gslb.test.", "TXT", 0, true, nil},
		{"www.gslb.test.", "A", mdns.RcodeFormatError, false, []mdns.EDNS0{raw(8, 0, 1, 33, 0)}},
		{strings.Repeat("a.", 120) + "big.gslb.test.", "A", mdns.RcodeNameError, true, []mdns.EDNS0{raw(3), raw(8, 0, 2, 128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)}},
	} {
		reply, wire := ask(t, r, question(tt.name, tt.qtype, edns(512, append(tt.more, client)...)), false)
		found := false
		for _, o := range reply.IsEdns0().Option {
			c, ok := o.(*mdns.EDNS0_COOKIE)
			found = found || ok && len(c.Cookie) == 48
		}
		if !found || reply.Rcode != tt.rcode || reply.Truncated != tt.tc || len(wire) > 512 {
			t.Errorf("%s %s: %d octets: %v", tt.name, tt.qtype, len(wire), reply)
		}
	}
}

// TestSetCookies rolls a running server over to another secret.
func TestSetCookies(t *testing.T) {
	const a, b = "000102030405060708090a0b0c0d0e0f", "101112131415161718191a1b1c1d1e1f"
	core, logged := observer.New(zap.InfoLevel)
	s := start(t, dns.Options{Cookies: secrets(t, a), Log: zap.New(core)})
	cookie := hex.EncodeToString([]byte("a client"))
	exchange := func(network string) (rcode int, got string) {
		t.Helper()
		m := question("www.gslb.test.", "A", edns(1232, &mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: cookie}))
		m.Question = nil
		client := mdns.Client{Net: network}
		reply, _, err := client.Exchange(m, s.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range reply.IsEdns0().Option {
			if c, ok := o.(*mdns.EDNS0_COOKIE); ok {
				got = c.Cookie
			}
		}
		return reply.Rcode, got
	}
	for _, tt := range []struct {
		what    string
		set     dns.CookieOptions
		rcode   int
		renewed bool
	}{
		{"the first", secrets(t, a), 0, true},
		{"the same", secrets(t, a), 0, false},
		{"a second is accepted", secrets(t, a, b), 0, false},
		{"they change places", secrets(t, b, a), 0, true},
		{"the old one goes", secrets(t, b), 0, false},
		{"one from before comes back", secrets(t, a), mdns.RcodeBadCookie, true},
		{"one of the server's own", dns.CookieOptions{Enabled: true}, mdns.RcodeBadCookie, true},
		{"which stays", dns.CookieOptions{Enabled: true}, 0, false},
		{"more than there may be", secrets(t, a, b, strings.Repeat("aa", 16), strings.Repeat("bb", 16)), mdns.RcodeBadCookie, true},
	} {
		s.SetCookies(tt.set)
		for _, network := range []string{"udp", "tcp"} {
			rcode, got := exchange(network)
			if network == "tcp" && tt.rcode != 0 {
				continue // the first reply has renewed it
			}
			if rcode != tt.rcode || len(got) != 48 || network == "udp" && (got != cookie) != tt.renewed {
				t.Errorf("%s, %s: rcode %d, cookie %s for %s", tt.what, network, rcode, got, cookie)
			}
			cookie = got
		}
	}
	s.SetCookies(dns.CookieOptions{})
	if rcode, got := exchange("udp"); rcode != mdns.RcodeFormatError || got != "" {
		t.Errorf("switched off: rcode %d, cookie %s", rcode, got)
	}
	if n := logged.FilterMessage("cookie secrets changed").Len(); n != 7 {
		t.Errorf("%d changes logged, want 7", n)
	}
	series := telemetry(t, s.Server)
	for _, want := range []string{"gslbd_cookies_total client 1\n", "gslbd_cookies_total invalid 3\n", "gslbd_queries_total BADCOOKIE udp other 3\n"} {
		if !strings.Contains(series, want) {
			t.Errorf("no %q in\n%s", want, series)
		}
	}
}
