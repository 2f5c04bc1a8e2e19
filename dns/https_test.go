package dns_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

func httpsWorld(t testing.TB) *testWorld {
	turn := []policy.StepOptions{{Metric: "health"}, {Metric: "static", Method: "round-robin"}}
	alpn := []string{"h3", "h2"}
	return newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "go CNAME www\n"), ECS: true}},
		testService{name: "www.gslb.test", aliases: []string{"web.gslb.test"}, ttl: 30, alpn: alpn, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "*.cdn.gslb.test", ttl: 20, alpn: []string{`a,b\c`}, members: []string{"198.51.100.3"}},
		testService{name: "gslb.test", ttl: 30, alpn: alpn, members: []string{"2001:db8::4"}},
		testService{name: "multi.gslb.test", ttl: 30, answers: 2, alpn: alpn, members: []string{"198.51.100.5", "198.51.100.6,2001:db8::6", "198.51.100.7,2001:db8::7"}},
		testService{name: "all.gslb.test", ttl: 30, down: true, alpn: alpn, members: []string{"198.51.100.9"}},
		testService{name: "nodata.gslb.test", ttl: 30, down: true, alpn: alpn, onAllDown: state.AllDownNoData, members: []string{"198.51.100.9,2001:db8::9"}},
		testService{name: "servfail.gslb.test", ttl: 30, down: true, alpn: alpn, onAllDown: state.AllDownServFail, members: []string{"198.51.100.9"}},
		testService{name: "backup.gslb.test", ttl: 30, down: true, alpn: alpn, onAllDown: state.AllDownBackup, members: []string{"198.51.100.9"}, lastResort: []string{"198.51.100.90"}},
		testService{name: "turn.gslb.test", ttl: 30, alpn: alpn, steps: turn, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "least.gslb.test", ttl: 30, alpn: alpn, steps: []policy.StepOptions{{Metric: "least-selected", HalfLife: time.Minute}}, members: []string{"198.51.100.1", "198.51.100.2"}},
		testService{name: "plain.gslb.test", ttl: 30, members: []string{"198.51.100.1"}},
	)
}

func TestHTTPS(t *testing.T) {
	r := httpsWorld(t).responder(t, dns.Options{ECS: true})
	const www = ` 30 IN HTTPS 1 . alpn="h3,h2" ipv4hint="198.51.100.1" ipv6hint="2001:db8::1"`
	tests := []struct{ name, want string }{
		{"www.gslb.test.", "NOERROR aa\nan www.gslb.test." + www},
		{"wEb.gslb.test.", "NOERROR aa\nan wEb.gslb.test." + www},
		{"go.gslb.test.", "NOERROR aa\nan go.gslb.test. 300 IN CNAME www.gslb.test.\nan www.gslb.test." + www},
		{"x.cdn.gslb.test.", `NOERROR aa` + "\n" + `an x.cdn.gslb.test. 20 IN HTTPS 1 . alpn="a\\\044b\\\092c" ipv4hint="198.51.100.3"`},
		{"gslb.test.", "NOERROR aa\n" + `an gslb.test. 30 IN HTTPS 1 . alpn="h3,h2" ipv6hint="2001:db8::4"`},
		{"multi.gslb.test.", "NOERROR aa\n" + `an multi.gslb.test. 30 IN HTTPS 1 . alpn="h3,h2" ipv4hint="198.51.100.5,198.51.100.6" ipv6hint="2001:db8::6,2001:db8::7"`},
		{"all.gslb.test.", "NOERROR aa\n" + `an all.gslb.test. 10 IN HTTPS 1 . alpn="h3,h2" ipv4hint="198.51.100.9"`},
		// Where no member answers, nobody may be asked for these protocols.
		{"nodata.gslb.test.", lines("NOERROR aa", shortSOA)},
		{"backup.gslb.test.", lines("NOERROR aa", shortSOA)},
		{"servfail.gslb.test.", "SERVFAIL"},
		{"plain.gslb.test.", lines("NOERROR aa", zoneSOA)},
		{"x.www.gslb.test.", lines("NXDOMAIN aa", zoneSOA)},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, "HTTPS"), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, got, tt.want)
		}
	}
	if reply, _ := ask(t, r, question("www.gslb.test.", "SVCB"), false); show(reply) != lines("NOERROR aa", zoneSOA) {
		t.Errorf("SVCB is another type than HTTPS:\n%s", show(reply))
	}
}

// TestHTTPSWire compares with what RFC 9460 section 2.2 says octet by octet: keys in ascending order, names of protocols
// after their length, whatever they contain.
func TestHTTPSWire(t *testing.T) {
	r := httpsWorld(t).responder(t, dns.Options{})
	for name, want := range map[string]string{
		"www.gslb.test.": "\x00\x01\x00" + "\x00\x01\x00\x06\x02h3\x02h2" + "\x00\x04\x00\x04\xc6\x33\x64\x01" +
			"\x00\x06\x00\x10\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
		"a.cdn.gslb.test.": "\x00\x01\x00" + "\x00\x01\x00\x06\x05a,b\\c" + "\x00\x04\x00\x04\xc6\x33\x64\x03",
	} {
		wire := exchange(r, pack(t, question(name, "HTTPS")), false)
		if !bytes.HasSuffix(wire, append([]byte{byte(len(want) >> 8), byte(len(want))}, want...)) {
			t.Errorf("%s: %q does not end in %q", name, wire, want)
		}
	}
}

// TestHTTPSFollowsTheDecision checks that the hints are what A and AAAA answer the same client, that the scope is that
// of the decision, and that a question for HTTPS advances nothing.
func TestHTTPSFollowsTheDecision(t *testing.T) {
	w := httpsWorld(t)
	r := w.responder(t, dns.Options{ECS: true})
	hints := func(name string, edit ...func(*mdns.Msg)) (v4, v6 string, scope int) {
		t.Helper()
		reply, wire := ask(t, r, question(name, "HTTPS", edit...), false)
		if len(reply.Answer) != 1 {
			t.Fatalf("no answer:\n%s", show(reply))
		}
		scope = -1
		if len(edit) > 0 {
			scope = int(unpackRaw(t, wire).options[8][3])
		}
		for _, v := range reply.Answer[0].(*mdns.HTTPS).Value {
			switch v := v.(type) {
			case *mdns.SVCBIPv4Hint:
				v4 = v.String()
			case *mdns.SVCBIPv6Hint:
				v6 = v.String()
			}
		}
		return v4, v6, scope
	}
	for _, tt := range []struct {
		ecs    mdns.EDNS0
		v4, v6 string
		scope  int
	}{
		{raw(8, 0, 1, 24, 0, 203, 0, 113), "198.51.100.2", "2001:db8::2", 24},
		{raw(8, 0, 2, 48, 0, 0x20, 0x01, 0x0d, 0xb8, 0xaa, 0xaa), "198.51.100.2", "2001:db8::2", 48},
		{raw(8, 0, 1, 0, 0), "198.51.100.1", "2001:db8::1", 0},
	} {
		if v4, v6, scope := hints("www.gslb.test.", edns(1232, tt.ecs)); v4 != tt.v4 || v6 != tt.v6 || scope != tt.scope {
			t.Errorf("%v: hints %s and %s, scope %d; want %+v", tt.ecs, v4, v6, scope, tt)
		}
	}
	for range 3 {
		for range 3 {
			v4, v6, _ := hints("turn.gslb.test.")
			least, _, _ := hints("least.gslb.test.")
			if v4 == "" || v6 == "" || least == "" {
				t.Fatal("a hint is missing")
			}
		}
		for _, name := range []string{"turn.gslb.test.", "least.gslb.test."} {
			want, _, _ := hints(name)
			reply, _ := ask(t, r, question(name, "A"), false)
			if got := reply.Answer[0].(*mdns.A).A.String(); got != want {
				t.Errorf("%s: A is %s after the hint %s", name, got, want)
			}
		}
		_, want, _ := hints("turn.gslb.test.")
		reply, _ := ask(t, r, question("turn.gslb.test.", "AAAA"), false)
		if got := reply.Answer[0].(*mdns.AAAA).AAAA.String(); got != want {
			t.Errorf("AAAA is %s after the hint %s", got, want)
		}
	}
	svc := w.store.Snapshot().ServiceByName("turn.gslb.test")
	if a, b := svc.Rotation.Turn[0].Load(), svc.Rotation.Turn[1].Load(); a != 3 || b != 3 {
		t.Errorf("turns %d and %d, want 3 and 3", a, b)
	}
	total := uint64(0)
	for _, n := range svc.Counters.Decisions() {
		total += n
	}
	if total != 6 {
		t.Errorf("%d decisions are counted, want the 6 of A and AAAA", total)
	}
}

// TestHTTPSTruncation checks that a record that does not fit is not cut.
func TestHTTPSTruncation(t *testing.T) {
	var alpn []string
	for i := range 16 {
		alpn = append(alpn, fmt.Sprint(i, strings.Repeat("x", 200)))
	}
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "")}},
		testService{name: "www.gslb.test", alpn: alpn, members: []string{"198.51.100.1"}})
	r := w.responder(t, dns.Options{})
	if reply, _ := ask(t, r, question("www.gslb.test.", "HTTPS", edns(4096)), false); !reply.Truncated || len(reply.Answer) != 0 {
		t.Errorf("UDP: %s", show(reply))
	}
	if reply, _ := ask(t, r, question("www.gslb.test.", "HTTPS", edns(4096)), true); reply.Truncated || len(reply.Answer) != 1 {
		t.Errorf("TCP: %s", show(reply))
	}
}

func TestHTTPSAllocs(t *testing.T) {
	r := httpsWorld(t).responder(t, dns.Options{ECS: true})
	buf := make([]byte, 4096)
	for name, wire := range map[string][]byte{
		"HTTPS":          pack(t, question("www.gslb.test.", "HTTPS")),
		"HTTPS with ECS": pack(t, question("go.gslb.test.", "HTTPS", edns(1232, raw(8, 0, 1, 24, 0, 203, 0, 113)))),
		"HTTPS, NODATA":  pack(t, question("nodata.gslb.test.", "HTTPS", edns(1232))),
	} {
		r.Respond(wire, buf, local, remote, false) // the policy's scratch grows once
		if n := testing.AllocsPerRun(200, func() {
			r.Refresh(hotTime)
			if r.Respond(wire, buf, local, remote, false) == 0 {
				t.Fatal("no reply")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
