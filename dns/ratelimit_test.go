package dns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/dns"
)

// base is when the tests of rates begin: after anything that a Responder remembers of its making.
var base = time.Now().Add(time.Hour)

// A flood counts what becomes of many queries.
type flood struct{ full, slipped, dropped int }

// fate asks once and says what became of it.
func (f *flood) fate(r *dns.Responder, wire []byte, from netip.Addr) {
	var buf [4096]byte
	n := r.Respond(wire, buf[:], local, netip.AddrPortFrom(from, 4242), false)
	switch {
	case n == 0:
		f.dropped++
	case buf[2]&2 != 0:
		f.slipped++
	default:
		f.full++
	}
}

// send sends n queries at one moment.
func send(t testing.TB, r *dns.Responder, from string, n int, query func(i int) *mdns.Msg) flood {
	t.Helper()
	var f flood
	for i := range n {
		f.fate(r, pack(t, query(i)), netip.MustParseAddr(from))
	}
	return f
}

func always(name, qtype string) func(int) *mdns.Msg {
	return func(int) *mdns.Msg { return question(name, qtype) }
}

// TestRateLimitClasses floods a server with queries whose replies are to be counted together.
func TestRateLimitClasses(t *testing.T) {
	w := conformanceWorld(t)
	types := []string{"A", "AAAA", "TXT", "HTTPS"}
	numbered := func(format, qtype string) func(int) *mdns.Msg {
		return func(i int) *mdns.Msg { return question(fmt.Sprintf(format, i), qtype) }
	}
	tests := []struct {
		name  string
		query func(i int) *mdns.Msg
		error bool // a limited reply is sent as it is, not truncated
	}{
		{"one name", always("www.gslb.test.", "A"), false},
		{"any case and type", func(i int) *mdns.Msg {
			return question([]string{"www.gslb.test.", "wWw.GSLB.test."}[i/4%2], types[i%4])
		}, false},
		{"a service", func(i int) *mdns.Msg { return question("dyn.gslb.test.", types[i%4]) }, false},
		{"names that do not exist", numbered("x%d.gslb.test.", "A"), false},
		{"deep names that do not exist", func(i int) *mdns.Msg {
			return question(strings.Repeat("x.", 1+i%50)+"www.gslb.test.", types[i%4])
		}, false},
		{"wildcard", numbered("x%d.wild.gslb.test.", "A"), false},
		{"wildcard without data", numbered("x%d.y.wild.gslb.test.", "MX"), false},
		{"wildcard and its own name", func(i int) *mdns.Msg {
			return question([]string{"*.wild.gslb.test.", "a.b.wild.gslb.test."}[i%2], "A")
		}, false},
		{"below a DNAME", numbered("x%d.dn.gslb.test.", "A"), false},
		{"delegation", numbered("x%d.sub.gslb.test.", "A"), false},
		{"outside our zones", numbered("x%d.example.org.", "A"), true},
		{"opcodes", func(i int) *mdns.Msg {
			return question("www.gslb.test.", "A", func(m *mdns.Msg) { m.Opcode = mdns.OpcodeStatus + i%2*2 })
		}, true},
		{"transfers and other errors", func(i int) *mdns.Msg {
			return question(fmt.Sprintf("x%d.gslb.test.", i), []string{"AXFR", "MAILB", "TKEY"}[i%3])
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := w.responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 10, Slip: 2}})
			want := func(full, limited int) flood {
				f := flood{full: full, slipped: limited / 2, dropped: limited / 2}
				if tt.error {
					f.full, f.slipped = f.full+f.slipped, 0
				}
				return f
			}
			r.Refresh(base)
			if got := send(t, r, "192.0.2.1", 110, tt.query); got != want(10, 100) {
				t.Errorf("a burst: %+v", got)
			}
			r.Refresh(base.Add(300 * time.Millisecond))
			if got := send(t, r, "192.0.2.77", 43, tt.query); got != want(3, 40) {
				t.Errorf("300 ms later, from the same network: %+v", got)
			}
			for _, other := range []string{"192.0.3.1", "2001:db8::1", "2001:db8:0:100::1"} {
				if got := send(t, r, other, 10, tt.query); got != want(10, 0) {
					t.Errorf("%s: %+v", other, got)
				}
			}
			if got := send(t, r, "2001:db8:0:1ff::9", 20, tt.query); got != want(0, 20) {
				t.Errorf("from the same /56: %+v", got)
			}
			r.Refresh(base.Add(5 * time.Second))
			if got := send(t, r, "192.0.2.1", 12, tt.query); got != want(10, 2) {
				t.Errorf("after a pause: %+v", got)
			}
		})
	}
}

// TestRateLimitApart checks that a flood of one class leaves the others alone.
func TestRateLimitApart(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 5}})
	r.Refresh(base)
	for _, name := range []string{
		"www.gslb.test.", "multi.gslb.test.", "gslb.test.", "nope.gslb.test.", "x.wild.gslb.test.", "host.wild.gslb.test.",
		"wild.gslb.test.", "sub.gslb.test.", "sec.gslb.test.", "x.dn.gslb.test.", "dn.gslb.test.", "example.org.",
	} {
		if got := send(t, r, "192.0.2.1", 50, always(name, "A")); got != (flood{full: 5, dropped: 45}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestRateLimitSlip checks the share of limited replies that are sent truncated, and their form.
func TestRateLimitSlip(t *testing.T) {
	w := conformanceWorld(t)
	for slip, want := range map[int]flood{
		0: {full: 20, dropped: 300}, 1: {full: 20, slipped: 300}, 2: {full: 20, slipped: 150, dropped: 150},
		3: {full: 20, slipped: 100, dropped: 200}, 10: {full: 20, slipped: 30, dropped: 270},
	} {
		r := w.responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 20, Slip: slip}})
		r.Refresh(base)
		if got := send(t, r, "192.0.2.1", 320, always("www.gslb.test.", "A")); got != want {
			t.Errorf("slip %d: %+v", slip, got)
		}
	}
	r := w.responder(t, dns.Options{ECS: true, NSID: "n1", RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 1, Slip: 1}})
	r.Refresh(base)
	for _, name := range []string{"wWw.gslb.test.", "nope.gslb.test.", "sub.gslb.test.", "dyn.gslb.test."} {
		q := question(name, "A", edns(1232, raw(3), raw(8, 0, 1, 24, 0, 203, 0, 113)))
		ask(t, r, q, false)
		reply, wire := ask(t, r, q, false)
		if reply.Rcode != 0 || !reply.Truncated || len(reply.Answer)+len(reply.Ns) > 0 || len(reply.Extra) != 1 || reply.Question[0] != q.Question[0] {
			t.Errorf("%s: %v", name, reply)
		}
		if len(wire) > len(pack(t, q))+2 { // the NSID
			t.Errorf("%s: %d octets for %d", name, len(wire), len(pack(t, q)))
		}
		if over, _ := ask(t, r, q, true); over.Truncated || len(over.Answer)+len(over.Ns) == 0 {
			t.Errorf("%s over TCP: %v", name, over)
		}
	}
}

// TestRateLimitExempt checks who is not limited.
func TestRateLimitExempt(t *testing.T) {
	w := conformanceWorld(t)
	r := w.responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 1, Exempt: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.64/26"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("198.51.100.7/32"),
	}}})
	r.Refresh(base)
	for from, exempt := range map[string]bool{
		"192.0.2.64": true, "192.0.2.127": true, "::ffff:192.0.2.100": true, "192.0.2.128": false, "2001:db8:ffff::1": true,
		"2001:db9::1": false, "198.51.100.7": true, "198.51.100.8": false,
	} {
		if got := send(t, r, from, 30, always("www.gslb.test.", "A")); exempt && got.full != 30 || !exempt && got != (flood{full: 1, dropped: 29}) {
			t.Errorf("%s: %+v", from, got)
		}
	}
	r = w.responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 1}})
	r.Refresh(base)
	for range 30 {
		if m, _ := ask(t, r, question("www.gslb.test.", "A"), true); m.Truncated {
			t.Fatal("limited over TCP")
		}
	}
	if got := send(t, r, remote.Addr().String(), 1, always("www.gslb.test.", "A")); got.full != 1 {
		t.Error("queries over TCP use up the budget of UDP")
	}
	r = w.responder(t, dns.Options{})
	r.Refresh(base)
	if got := send(t, r, "192.0.2.1", 5000, always("www.gslb.test.", "A")); got.full != 5000 {
		t.Errorf("off: %+v", got)
	}
}

// TestRateLimitCookie checks that a client with a cookie of ours is left alone, wherever the flood from its network comes
// from, and that a limited client without one gets it with the truncated reply.
func TestRateLimitCookie(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{
		Cookies: dns.CookieOptions{Enabled: true}, RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 1, Slip: 1},
	})
	r.Refresh(base)
	with := func(cookie string) *mdns.Msg {
		return question("www.gslb.test.", "A", edns(1232, &mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: cookie}))
	}
	const client = "0102030405060708"
	var reply *mdns.Msg
	for range 10 {
		reply, _ = ask(t, r, with(client), false)
	}
	o := reply.IsEdns0()
	if !reply.Truncated || o == nil || len(o.Option) != 1 {
		t.Fatalf("limited, with a client cookie: %v", reply)
	}
	cookie := o.Option[0].(*mdns.EDNS0_COOKIE).Cookie
	if got := send(t, r, remote.Addr().String(), 100, func(int) *mdns.Msg { return with(cookie) }); got != (flood{full: 100}) {
		t.Errorf("with a valid cookie: %+v", got)
	}
	forged := cookie[:len(cookie)-1] + "0"
	if forged == cookie {
		forged = cookie[:len(cookie)-1] + "1"
	}
	for _, c := range []string{forged, client} {
		if got := send(t, r, remote.Addr().String(), 100, func(int) *mdns.Msg { return with(c) }); got != (flood{slipped: 100}) {
			t.Errorf("with %s: %+v", c, got)
		}
	}
	if got := send(t, r, "198.51.100.8", 100, func(int) *mdns.Msg { return with(cookie) }); got != (flood{slipped: 100}) {
		t.Errorf("with the cookie of another address: %+v", got)
	}
	// A query for nothing but a cookie has no question that could be asked again over TCP.
	only := []byte(header(0, 0, 0, 0, 1) + opt(0, 0, "\x00\x0a\x00\x0812345678"))
	for range 10 {
		m := new(mdns.Msg)
		if err := m.Unpack(exchange(r, only, false)); err != nil || m.Truncated || m.Rcode != 0 || m.IsEdns0() == nil {
			t.Fatalf("%v, %v", m, err)
		}
	}
}

// TestRateLimitRates holds what passes in some seconds against several rates.
func TestRateLimitRates(t *testing.T) {
	w := conformanceWorld(t)
	wire := pack(t, question("www.gslb.test.", "A"))
	from := netip.MustParseAddr("192.0.2.1")
	for _, rate := range []int{1, 7, 20, 333, 3000, 100_000} {
		r := w.responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: rate}})
		seconds := 10
		if rate > 1000 {
			seconds = 1
		}
		var f flood
		for ms := range seconds * 1000 {
			r.Refresh(base.Add(time.Duration(ms) * time.Millisecond))
			for range max(1, rate/500) {
				f.fate(r, wire, from)
			}
		}
		want := min((seconds+1)*rate, seconds*1000*max(1, rate/500)) // a second's worth at once, then what was refilled
		if f.full < want*99/100-1 || f.full > want*101/100+1 {
			t.Errorf("%d a second: %d replies in %d s, want about %d", rate, f.full, seconds, want)
		}
	}
}

// TestRateLimitFlood sends queries from far more networks than the table holds: those are no reason to limit anybody
// else, and no way out for one who is limited.
func TestRateLimitFlood(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 20, Slip: 2}})
	www := pack(t, question("www.gslb.test.", "A"))
	normal, victim := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::53")
	var ofNormal, ofVictim, ofSpoofed flood
	const seconds = 3
	spoofed := 0
	for ms := range seconds * 1000 {
		r.Refresh(base.Add(time.Duration(ms) * time.Millisecond))
		for range 200 { // 200,000 a second
			spoofed++
			ofSpoofed.fate(r, www, netip.AddrFrom4([4]byte{11 + byte(spoofed>>16), byte(spoofed >> 8), byte(spoofed), 1}))
		}
		if ms%100 == 0 {
			ofNormal.fate(r, www, normal)
		}
		ofVictim.fate(r, www, victim)
	}
	if ofNormal != (flood{full: 10 * seconds}) {
		t.Errorf("a normal client: %+v", ofNormal)
	}
	if ofVictim.full > 20*(seconds+1) {
		t.Errorf("a client above its rate: %+v", ofVictim)
	}
	if ofSpoofed.full != spoofed {
		t.Errorf("clients that asked once: %+v", ofSpoofed)
	}
}

// TestRateLimitAccounting checks that what is limited moves no rotation.
func TestRateLimitAccounting(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 3, Slip: 1}})
	r.Refresh(base)
	for range 3 {
		ask(t, r, question("turn.gslb.test.", "A"), false)
	}
	for range 1000 {
		if m, _ := ask(t, r, question("turn.gslb.test.", "A"), false); !m.Truncated {
			t.Fatal("not limited")
		}
	}
	m, _ := ask(t, r, question("turn.gslb.test.", "A"), true)
	if want := "NOERROR aa\nan turn.gslb.test. 30 IN A 198.51.100.2"; show(m) != want {
		t.Errorf("the fourth answer is %s, want %s", show(m), want)
	}
}

// TestRateLimitServer limits a flood over sockets, tells of it, and changes the options while it runs.
func TestRateLimitServer(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	logged := make(chan struct{}, 100)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == "rate limit reached" {
			logged <- struct{}{}
		}
		return nil
	}))
	s := start(t, dns.Options{Workers: 2, Log: log, RateLimit: dns.RateLimitOptions{ResponsesPerSecond: 10, Slip: 2}})
	www := pack(t, question("www.gslb.test.", "A"))
	// burst sends n queries from one address, each from a port of its own, so that they reach every worker, and counts the replies.
	burst := func(n int) (f flood) {
		for range n {
			c := s.dial("udp")
			if _, err := c.Write(www); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			var buf [512]byte
			switch k, err := c.Read(buf[:]); {
			case err != nil:
				f.dropped++
			case k > 2 && buf[2]&2 != 0:
				f.slipped++
			default:
				f.full++
			}
			c.Close()
		}
		return f
	}
	began := time.Now()
	f := burst(100)
	most := 10 * (2 + int(time.Since(began)/time.Second))
	if f.full < 10 || f.full > most || f.slipped < 30 || f.dropped < 30 {
		t.Errorf("%+v, want at most %d full", f, most)
	}
	c := s.dial("tcp")
	if _, err := c.Write(frame(t, question("www.gslb.test.", "A"))); err != nil {
		t.Fatal(err)
	}
	m, err := readFrame(c)
	wantWWW(t, m, err)

	if err := s.SetRateLimit(dns.RateLimitOptions{ResponsesPerSecond: 1, LogOnly: true}); err != nil {
		t.Fatal(err)
	}
	if f := burst(30); f.full != 30 {
		t.Errorf("log_only: %+v", f)
	}
	if err := s.SetRateLimit(dns.RateLimitOptions{ResponsesPerSecond: -1}); err == nil {
		t.Error("a negative rate is accepted")
	}
	if err := s.SetRateLimit(dns.RateLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	before := telemetry(t, s.Server)
	if f := burst(30); f.full != 30 {
		t.Errorf("off: %+v", f)
	}
	for _, action := range []string{"drop", "slip", "log_only"} {
		line := "gslbd_rate_limited_total " + action + " "
		if !strings.Contains(before, line) || strings.Contains(before, line+"0\n") {
			t.Errorf("no %s in\n%s", action, before)
		}
	}
	select {
	case <-logged: // within a second
	case <-time.After(5 * time.Second):
		t.Fatal("nothing in the log")
	}
	fields := logs.FilterMessage("rate limit reached").All()[0].ContextMap()
	if fields["network"] != "127.0.0.0/24" || fields["class"] != "name" {
		t.Errorf("logged %v", fields)
	}
}

// TestRateLimitOptions checks the bounds.
func TestRateLimitOptions(t *testing.T) {
	for want, o := range map[string]dns.RateLimitOptions{
		"dns: rate_limit.responses_per_second: -1 is not between 0 and 100000":     {ResponsesPerSecond: -1},
		"dns: rate_limit.responses_per_second: 100001 is not between 0 and 100000": {ResponsesPerSecond: 100_001},
		"dns: rate_limit.slip: 11 is not between 0 and 10":                         {Slip: 11},
		"dns: rate_limit.exempt[0]: it is no prefix":                               {Exempt: make([]netip.Prefix, 1)},
	} {
		if _, err := dns.New(dns.Options{Listen: []string{"127.0.0.1:0"}, RateLimit: o}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := dns.NewResponder(dns.Options{RateLimit: o}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
