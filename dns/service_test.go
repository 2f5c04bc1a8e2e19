package dns_test

import (
	"net/netip"
	"testing"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

// serviceZone has static data beside the services of TestServices.
const serviceZone = `
www    TXT   "beside a service"
www    HTTPS 1 . alpn=h2
go     CNAME www
godown CNAME nodata
gofail CNAME servfail
gocn   CNAME cn
target A     192.0.2.77
below.www A  192.0.2.78
@      TXT   "apex"
`

const zoneSOA = "ns gslb.test. 60 IN SOA ns1.gslb.test. hostmaster.gslb.test. 1 7200 900 1209600 60"

// shortSOA is what a negative answer that may soon be wrong carries.
const shortSOA = "ns gslb.test. 10 IN SOA ns1.gslb.test. hostmaster.gslb.test. 1 7200 900 1209600 60"

func serviceWorld(t testing.TB) *testWorld {
	return newWorld(t, []dns.ZoneOptions{
		{Name: "gslb.test", File: writeZone(t, serviceZone), ECS: true},
		{Name: "noecs.test", File: writeZone(t, "")},
	},
		testService{name: "www.gslb.test", aliases: []string{"web.gslb.test"}, ttl: 30, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}},
		testService{name: "*.cdn.gslb.test", ttl: 20, members: []string{"198.51.100.3"}},
		testService{name: "gslb.test", ttl: 30, members: []string{"198.51.100.4"}},
		testService{name: "multi.gslb.test", ttl: 30, answers: 3, members: []string{"198.51.100.5", "198.51.100.6", "198.51.100.7", "198.51.100.8"}},
		testService{name: "cn.gslb.test", ttl: 30, members: []string{"target.gslb.test.", "elsewhere.example.net."}},
		testService{name: "out.gslb.test", ttl: 30, members: []string{"elsewhere.example.net."}},
		testService{name: "all.gslb.test", ttl: 30, down: true, members: []string{"198.51.100.9"}},
		testService{name: "nodata.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownNoData, members: []string{"198.51.100.9"}},
		testService{name: "servfail.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownServFail, members: []string{"198.51.100.9"}},
		testService{name: "backup.gslb.test", ttl: 30, down: true, onAllDown: state.AllDownBackup, members: []string{"198.51.100.9,2001:db8::9"}, lastResort: []string{"198.51.100.90", "198.51.100.91"}},
		testService{name: "www.noecs.test", ttl: 30, members: []string{"198.51.100.1", "198.51.100.2"}},
		testService{name: "turn.gslb.test", ttl: 30, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}, steps: []policy.StepOptions{{Metric: "static", Method: "round-robin"}}},
	)
}

func TestServices(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{ECS: true})
	tests := []struct{ name, qtype, want string }{
		{"www.gslb.test.", "A", "NOERROR aa\nan www.gslb.test. 30 IN A 198.51.100.1"},
		{"wWw.GsLb.TeSt.", "AAAA", "NOERROR aa\nan wWw.GsLb.TeSt. 30 IN AAAA 2001:db8::1"},
		{"web.gslb.test.", "A", "NOERROR aa\nan web.gslb.test. 30 IN A 198.51.100.1"},
		{"www.gslb.test.", "TXT", "NOERROR aa\nan www.gslb.test. 300 IN TXT \"beside a service\""},
		{"www.gslb.test.", "HTTPS", "NOERROR aa\nan www.gslb.test. 300 IN HTTPS 1 . alpn=\"h2\""},
		{"www.gslb.test.", "ANY", "NOERROR aa\nan www.gslb.test. 3600 IN HINFO \"RFC8482\" \"\""},
		{"multi.gslb.test.", "ANY", "NOERROR aa\nan multi.gslb.test. 3600 IN HINFO \"RFC8482\" \"\""},
		{"www.gslb.test.", "MX", lines("NOERROR aa", zoneSOA)},
		{"www.gslb.test.", "CAA", lines("NOERROR aa", zoneSOA)},
		{"multi.gslb.test.", "TYPE65280", lines("NOERROR aa", zoneSOA)},
		{"multi.gslb.test.", "AAAA", lines("NOERROR aa", zoneSOA)},
		{"x.www.gslb.test.", "A", lines("NXDOMAIN aa", zoneSOA)},
		{"below.www.gslb.test.", "A", "NOERROR aa\nan below.www.gslb.test. 300 IN A 192.0.2.78"},
		{"_acme-challenge.www.gslb.test.", "TXT", lines("NXDOMAIN aa", zoneSOA)},
		{"a.B.cdn.gslb.test.", "A", "NOERROR aa\nan a.B.cdn.gslb.test. 20 IN A 198.51.100.3"},
		{"a.cdn.gslb.test.", "TXT", lines("NOERROR aa", zoneSOA)},
		{"cdn.gslb.test.", "A", lines("NOERROR aa", zoneSOA)},
		{"gslb.test.", "A", "NOERROR aa\nan gslb.test. 30 IN A 198.51.100.4"},
		{"gslb.test.", "TXT", "NOERROR aa\nan gslb.test. 300 IN TXT \"apex\""},
		{"multi.gslb.test.", "A", "NOERROR aa\nan multi.gslb.test. 30 IN A 198.51.100.5\nan multi.gslb.test. 30 IN A 198.51.100.6\nan multi.gslb.test. 30 IN A 198.51.100.7"},
		// CNAME records that lead to a service, and members that are CNAME targets.
		{"go.gslb.test.", "A", "NOERROR aa\nan go.gslb.test. 300 IN CNAME www.gslb.test.\nan www.gslb.test. 30 IN A 198.51.100.1"},
		{"cn.gslb.test.", "A", "NOERROR aa\nan cn.gslb.test. 30 IN CNAME target.gslb.test.\nan target.gslb.test. 300 IN A 192.0.2.77"},
		{"cn.gslb.test.", "AAAA", lines("NOERROR aa", "an cn.gslb.test. 30 IN CNAME target.gslb.test.", zoneSOA)},
		{"cn.gslb.test.", "TXT", lines("NOERROR aa", "an cn.gslb.test. 30 IN CNAME target.gslb.test.", zoneSOA)},
		{"cn.gslb.test.", "CNAME", "NOERROR aa\nan cn.gslb.test. 30 IN CNAME target.gslb.test."},
		{"cn.gslb.test.", "ANY", "NOERROR aa\nan cn.gslb.test. 30 IN CNAME target.gslb.test."},
		{"gocn.gslb.test.", "A", "NOERROR aa\nan gocn.gslb.test. 300 IN CNAME cn.gslb.test.\nan cn.gslb.test. 30 IN CNAME target.gslb.test.\nan target.gslb.test. 300 IN A 192.0.2.77"},
		{"out.gslb.test.", "A", "NOERROR aa\nan out.gslb.test. 30 IN CNAME elsewhere.example.net."},
		// Nothing is up.
		{"all.gslb.test.", "A", "NOERROR aa\nan all.gslb.test. 10 IN A 198.51.100.9"},
		{"nodata.gslb.test.", "A", lines("NOERROR aa", shortSOA)},
		{"nodata.gslb.test.", "TXT", lines("NOERROR aa", zoneSOA)},
		{"godown.gslb.test.", "A", lines("NOERROR aa", "an godown.gslb.test. 300 IN CNAME nodata.gslb.test.", shortSOA)},
		{"servfail.gslb.test.", "A", "SERVFAIL"},
		{"gofail.gslb.test.", "A", "SERVFAIL"},
		{"backup.gslb.test.", "A", "NOERROR aa\nan backup.gslb.test. 10 IN A 198.51.100.90\nan backup.gslb.test. 10 IN A 198.51.100.91"},
		{"backup.gslb.test.", "AAAA", lines("NOERROR aa", shortSOA)},
	}
	for _, tt := range tests {
		for _, tcp := range []bool{false, true} {
			reply, _ := ask(t, r, question(tt.name, tt.qtype), tcp)
			if got := show(reply); got != tt.want {
				t.Errorf("%s %s (tcp %v):\n%s\nwant:\n%s", tt.name, tt.qtype, tcp, got, tt.want)
			}
		}
	}
}

// TestAccounting checks what an answer advances.
func TestAccounting(t *testing.T) {
	w := serviceWorld(t)
	r := w.responder(t, dns.Options{ECS: true})
	svc := w.store.Snapshot().ServiceByName("turn.gslb.test")
	var got []string
	for range 4 {
		for _, qtype := range []string{"A", "AAAA"} {
			reply, _ := ask(t, r, question("turn.gslb.test.", qtype), false)
			switch rr := reply.Answer[0].(type) {
			case *mdns.A:
				got = append(got, rr.A.String())
			case *mdns.AAAA:
				got = append(got, rr.AAAA.String())
			}
		}
	}
	for i := 4; i < len(got); i++ {
		if got[i] != got[i-4] {
			t.Errorf("the rotation of each family does not repeat after two: %q", got)
		}
	}
	if got[0] == got[2] || got[1] == got[3] {
		t.Errorf("the rotation of each family does not visit both: %q", got)
	}
	for f := range 2 {
		if n := svc.Rotation.Turn[f].Load(); n != 4 {
			t.Errorf("turn of family %d is %d, want 4", f, n)
		}
		for _, m := range svc.Members {
			if n := m.Selected[f].Load(); n != 2*state.SelectedUnit {
				t.Errorf("selections of %s, family %d: %d, want 2", m.Name, f, n)
			}
		}
	}
	for _, m := range svc.Members {
		if n := svc.Counters.Answers(m.Index); n != 4 {
			t.Errorf("answers of %s: %d, want 4", m.Name, n)
		}
	}
	total := uint64(0)
	for _, n := range svc.Counters.Decisions() {
		total += n
	}
	if total != 8 {
		t.Errorf("%d decisions, want 8", total)
	}
	// An alias shares the counters of its service; the query for a static type counts nothing.
	www := w.store.Snapshot().ServiceByName("www.gslb.test")
	ask(t, r, question("web.gslb.test.", "A"), false)
	ask(t, r, question("www.gslb.test.", "TXT"), false)
	if n := www.Counters.Answers(0); n != 1 {
		t.Errorf("answers of the alias: %d, want 1", n)
	}
}

// TestQueryLog checks what a logged query tells, and that the share is kept.
func TestQueryLog(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	w := serviceWorld(t)
	r := w.responder(t, dns.Options{ECS: true, QueryLog: 1, Log: zap.New(core)})
	ask(t, r, question("WWW.gslb.test.", "A", edns(1232, raw(8, 0, 1, 24, 0, 203, 0, 113))), false)
	exchange(r, make([]byte, 12), true) // no question
	if logs.Len() != 2 {
		t.Fatalf("%d lines", logs.Len())
	}
	got := logs.All()[0].ContextMap()
	for key, want := range map[string]any{
		"name": "www.gslb.test", "type": "A", "ldns": "198.51.100.7", "ecs": "203.0.113.0/24", "member": "s1", "reason": "geo",
		"rcode": "NOERROR", "service": "www.gslb.test", "transport": "udp", "scope": uint8(24), "truncated": false, "local": local.String(),
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if got := logs.All()[1].ContextMap(); got["rcode"] != "FORMERR" || got["name"] != nil || got["transport"] != "tcp" {
		t.Errorf("the query without a question: %v", got)
	}
	logs.TakeAll()
	r = w.responder(t, dns.Options{QueryLog: 0.25, Log: zap.New(core)})
	for range 4000 {
		ask(t, r, question("www.gslb.test.", "A"), false)
	}
	if n := logs.Len(); n < 850 || n > 1150 {
		t.Errorf("%d of 4000 queries logged at a share of 0.25", n)
	}
}

// TestEmptyIsLoggedOnce checks that the loss of all candidates is told when it comes and when it goes.
func TestEmptyIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "")}},
		testService{name: "www.gslb.test", ttl: 30, members: []string{"198.51.100.1"}})
	r := w.responder(t, dns.Options{Log: zap.New(core)})
	force := func(f state.Forced) {
		w.store.SetOrders(state.Orders{Force: func(_, _, _, _ string) state.Force { return state.Force{Forced: f, Why: "test"} }})
		r = w.responder(t, dns.Options{Log: zap.New(core)})
	}
	for _, f := range []state.Forced{state.NotForced, state.ForcedDown, state.NotForced} {
		force(f)
		for range 3 {
			ask(t, r, question("www.gslb.test.", "A"), false)
		}
	}
	var got []string
	for _, e := range logs.All() {
		got = append(got, e.Message)
	}
	if len(got) != 2 || got[0] != "service has no candidate" || got[1] != "service has a candidate again" {
		t.Errorf("log: %q", got)
	}
}

// TestECS covers the matrix of what resolvers send, well formed and not (RFC 7871).
func TestECS(t *testing.T) {
	w := serviceWorld(t)
	r := w.responder(t, dns.Options{ECS: true})
	off := w.responder(t, dns.Options{})
	v4 := func(bits byte, addr ...byte) []byte { return append([]byte{0, 1, bits, 0}, addr...) }
	v6 := func(bits byte, addr ...byte) []byte { return append([]byte{0, 2, bits, 0}, addr...) }
	tests := []struct {
		name, qtype string
		ecs         []byte
		rcode       int
		scope       int // -1: no option in the reply
		answer      string
	}{
		{"www.gslb.test.", "A", v4(24, 203, 0, 113), 0, 24, "198.51.100.2"},
		{"www.gslb.test.", "A", v4(32, 203, 0, 113, 9), 0, 24, "198.51.100.2"},
		{"www.gslb.test.", "AAAA", v6(56, 0x20, 1, 0xd, 0xb8, 0xaa, 0xaa, 0x12), 0, 48, "2001:db8::2"},
		{"go.gslb.test.", "A", v4(24, 203, 0, 113), 0, 24, "198.51.100.2"},
		{"web.gslb.test.", "A", v4(24, 203, 0, 113), 0, 24, "198.51.100.2"},
		// Opted out: the resolver decides.
		{"www.gslb.test.", "A", v4(0), 0, 0, "198.51.100.1"},
		{"www.gslb.test.", "A", v6(0), 0, 0, "198.51.100.1"},
		{"www.gslb.test.", "A", []byte{0, 0, 0, 0}, 0, 0, "198.51.100.1"},
		// What does not depend on the client.
		{"www.gslb.test.", "TXT", v4(24, 203, 0, 113), 0, 0, ""},
		{"nope.gslb.test.", "A", v4(24, 203, 0, 113), 3, 0, ""},
		{"www.gslb.test.", "MX", v4(20, 203, 0, 0x60), 0, 0, ""},
		{"ns1.gslb.test.", "A", v6(49, 0x20, 1, 0xd, 0xb8, 0, 1, 0x80), 0, 0, "192.0.2.1"},
		{"www.elsewhere.test.", "A", v4(24, 203, 0, 113), 5, 0, ""},
		// Off for the zone.
		{"www.noecs.test.", "A", v4(24, 203, 0, 113), 0, -1, "198.51.100.1"},
		// Broken.
		{"www.gslb.test.", "A", v4(24, 203, 0), 1, -1, ""},
		{"www.gslb.test.", "A", v4(24, 203, 0, 113, 0), 1, -1, ""},
		{"www.gslb.test.", "A", v4(23, 203, 0, 113), 1, -1, ""},
		{"www.gslb.test.", "A", v4(33, 203, 0, 113, 1, 0), 1, -1, ""},
		{"www.gslb.test.", "A", []byte{0, 1, 24, 24, 203, 0, 113}, 1, -1, ""},
		{"www.gslb.test.", "A", v6(129, make([]byte, 17)...), 1, -1, ""},
		{"www.gslb.test.", "A", v6(33, 0x20, 1, 0xd, 0xb8, 0x7f), 1, -1, ""},
		{"www.gslb.test.", "A", []byte{0, 3, 24, 0, 1, 2, 3}, 1, -1, ""},
		{"www.gslb.test.", "A", []byte{0, 0, 24, 0, 1, 2, 3}, 1, -1, ""},
		{"www.gslb.test.", "A", []byte{0xff, 0xff, 0, 0}, 1, -1, ""},
		{"www.gslb.test.", "A", nil, 1, -1, ""},
		{"www.gslb.test.", "A", []byte{0, 1, 24}, 1, -1, ""},
	}
	for _, tt := range tests {
		wire := pack(t, question(tt.name, tt.qtype, edns(1232, raw(8, tt.ecs...))))
		for _, tcp := range []bool{false, true} {
			reply := unpackRaw(t, exchange(r, wire, tcp))
			if reply.rcode != tt.rcode || !reply.opt {
				t.Errorf("%s %s %x: rcode %d, OPT %v", tt.name, tt.qtype, tt.ecs, reply.rcode, reply.opt)
			}
			got := reply.options[8]
			if tt.scope < 0 {
				if got != nil {
					t.Errorf("%s %s %x: option %x", tt.name, tt.qtype, tt.ecs, got)
				}
			} else {
				want := append([]byte(nil), tt.ecs...)
				want[3] = byte(tt.scope)
				if string(got) != string(want) {
					t.Errorf("%s %s %x: option %x, want %x", tt.name, tt.qtype, tt.ecs, got, want)
				}
			}
			if tt.answer != "" && reply.last != netip.MustParseAddr(tt.answer) {
				t.Errorf("%s %s %x: answer %s, want %s", tt.name, tt.qtype, tt.ecs, reply.last, tt.answer)
			}
			if reply.rcode == 1 && reply.answers+reply.authority > 0 {
				t.Errorf("%x: records beside FORMERR", tt.ecs)
			}
		}
		if reply := unpackRaw(t, exchange(off, wire, false)); reply.options[8] != nil || reply.rcode == 1 {
			t.Errorf("%s %x with ECS off: rcode %d, option %x", tt.name, tt.ecs, reply.rcode, reply.options[8])
		}
	}
	// Two of them, and none.
	two := pack(t, question("www.gslb.test.", "A", edns(1232, raw(8, v4(24, 203, 0, 113)...), raw(8, v4(24, 198, 51, 100)...))))
	if reply := unpackRaw(t, exchange(r, two, false)); reply.rcode != 1 || reply.options[8] != nil || !reply.opt {
		t.Errorf("two options: %+v", reply)
	}
	if reply := unpackRaw(t, exchange(r, pack(t, question("www.gslb.test.", "A", edns(1232))), false)); len(reply.options) != 0 || !reply.opt {
		t.Errorf("no option: %+v", reply)
	}
}

// TestECSOffEverywhere checks that where no zone looks at client subnets the option is one of those that are unknown,
// whatever its form and wherever the question leads.
func TestECSOffEverywhere(t *testing.T) {
	r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "")}}).responder(t, dns.Options{ECS: true})
	for name, rcode := range map[string]int{"ns1.gslb.test.": 0, "nope.gslb.test.": 3, "www.elsewhere.test.": 5} {
		for _, ecs := range [][]byte{{0, 1, 24, 0, 203, 0, 113}, {0, 1, 24, 0, 203, 0}, nil} {
			reply := unpackRaw(t, exchange(r, pack(t, question(name, "A", edns(1232, raw(8, ecs...)))), false))
			delete(reply.options, mdns.EDNS0EDE)
			if reply.rcode != rcode || !reply.opt || len(reply.options) != 0 {
				t.Errorf("%s %x: rcode %d, OPT %v with options %v", name, ecs, reply.rcode, reply.opt, reply.options)
			}
		}
	}
}

// A rawReply is what the tests of ECS look at, read without miekg/dns, which does not hold to RFC 7871.
type rawReply struct {
	rcode, answers, authority int
	opt                       bool
	options                   map[uint16][]byte
	last                      netip.Addr // of the last A or AAAA record of the answer
}

func unpackRaw(t *testing.T, wire []byte) rawReply {
	t.Helper()
	if len(wire) < 12 {
		t.Fatalf("no reply: %x", wire)
	}
	r := rawReply{rcode: int(wire[3] & 0xf), answers: int(wire[7]), authority: int(wire[9]), options: map[uint16][]byte{}}
	off := 12
	if wire[5] > 0 {
		for wire[off] != 0 {
			off += 1 + int(wire[off])
		}
		off += 5
	}
	for i := range r.answers + r.authority + int(wire[11]) {
		_, next, err := mdns.UnpackDomainName(wire, off)
		if err != nil {
			t.Fatalf("owner: %v", err)
		}
		typ := uint16(wire[next])<<8 | uint16(wire[next+1])
		n := int(wire[next+8])<<8 | int(wire[next+9])
		data := wire[next+10 : next+10+n]
		off = next + 10 + n
		switch typ {
		case mdns.TypeA, mdns.TypeAAAA:
			if i < r.answers {
				r.last, _ = netip.AddrFromSlice(data)
			}
		case mdns.TypeOPT:
			r.opt = true
			for len(data) >= 4 {
				n := int(data[2])<<8 | int(data[3])
				r.options[uint16(data[0])<<8|uint16(data[1])] = data[4 : 4+n]
				data = data[4+n:]
			}
		}
	}
	if off != len(wire) {
		t.Fatalf("%d octets after the reply", len(wire)-off)
	}
	return r
}
