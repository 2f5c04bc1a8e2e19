package dns_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

const (
	soa    = "ns gslb.test. 300 IN SOA ns1.gslb.test. hostmaster.gslb.test. 2026112901 7200 900 1209600 300"
	oddSOA = `ns gslb.test. 5 IN SOA ns1.gslb.test. host\.master.gslb.test. 2026010101 28800 7200 604800 5`
)

func conformanceWorld(t testing.TB) *testWorld {
	return newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: zoneDir + "gslb.test.zone", ECS: true}},
		testService{name: "dyn.gslb.test", ttl: 30, members: []string{"198.51.100.1,2001:db8:1::1", "198.51.100.11,2001:db8:1::11"}})
}

// TestStaticAnswers asks for what stands in the zone file.
func TestStaticAnswers(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{ECS: true})
	tests := []struct{ name, qtype, want string }{
		{"www.gslb.test.", "A", "NOERROR aa\nan www.gslb.test. 300 IN A 192.0.2.10"},
		{"WwW.gSLb.tEst.", "AAAA", "NOERROR aa\nan WwW.gSLb.tEst. 300 IN AAAA 2001:db8::10"},
		{"www.gslb.test.", "TXT", lines("NOERROR aa", soa)},
		{"www.gslb.test.", "TYPE65280", lines("NOERROR aa", soa)},
		{"x.www.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
		{"nope.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
		{"www.example.com.gslb.test.", "A", lines("NXDOMAIN aa", soa)}, // a search list's garbage
		{"www.example.com.", "A", "REFUSED"},
		{"xgslb.test.", "A", "REFUSED"},
		{"test.", "SOA", "REFUSED"},
		{".", "NS", "REFUSED"},
		{"gslb.test.", "SOA", "NOERROR aa\nan gslb.test. 3600 IN SOA ns1.gslb.test. hostmaster.gslb.test. 2026112901 7200 900 1209600 300"},
		{"gslb.test.", "NS", lines("NOERROR aa", "an gslb.test. 3600 IN NS ns1.gslb.test.", "an gslb.test. 3600 IN NS ns2.gslb.test.",
			"ar ns1.gslb.test. 3600 IN A 127.0.61.1", "ar ns2.gslb.test. 3600 IN A 127.0.61.2")},
		{"gslb.test.", "DS", lines("NOERROR aa", soa)},
		{"gslb.test.", "ANY", `NOERROR aa` + "\n" + `an gslb.test. 3600 IN HINFO "RFC8482" ""`},
		{"www.gslb.test.", "ANY", `NOERROR aa` + "\n" + `an www.gslb.test. 3600 IN HINFO "RFC8482" ""`},
		{"alias.gslb.test.", "ANY", "NOERROR aa\nan alias.gslb.test. 300 IN CNAME www.gslb.test."},
		{"gslb.test.", "AXFR", "REFUSED"},
		{"gslb.test.", "IXFR", "REFUSED"},
		{"gslb.test.", "MAILB", "NOTIMP"},
		{"gslb.test.", "OPT", "FORMERR"},
		{"gslb.test.", "RRSIG", lines("NOERROR aa", soa)},
		// Empty non-terminals (RFC 8020).
		{"ent.gslb.test.", "A", lines("NOERROR aa", soa)},
		{"mid.ent.gslb.test.", "ANY", lines("NOERROR aa", soa)},
		{"x.mid.ent.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
		// Wildcards (RFC 4592).
		{"Foo.Bar.wild.gslb.test.", "A", "NOERROR aa\nan Foo.Bar.wild.gslb.test. 300 IN A 192.0.2.40"},
		{"foo.wild.gslb.test.", "MX", lines("NOERROR aa", soa)},
		{"*.wild.gslb.test.", "A", "NOERROR aa\nan *.wild.gslb.test. 300 IN A 192.0.2.40"},
		{"wild.gslb.test.", "A", lines("NOERROR aa", soa)},
		{"host.wild.gslb.test.", "TXT", lines("NOERROR aa", soa)},
		{"x.host.wild.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
		{"ent.wild.gslb.test.", "A", lines("NOERROR aa", soa)},
		{"x.ent.wild.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
		// CNAME chains.
		{"alias2.gslb.test.", "A", lines("NOERROR aa", "an alias2.gslb.test. 300 IN CNAME alias.gslb.test.",
			"an alias.gslb.test. 300 IN CNAME www.gslb.test.", "an www.gslb.test. 300 IN A 192.0.2.10")},
		{"alias2.gslb.test.", "CNAME", "NOERROR aa\nan alias2.gslb.test. 300 IN CNAME alias.gslb.test."},
		{"alias.gslb.test.", "MX", lines("NOERROR aa", "an alias.gslb.test. 300 IN CNAME www.gslb.test.", soa)},
		{"dangling.gslb.test.", "A", lines("NXDOMAIN aa", "an dangling.gslb.test. 300 IN CNAME nxhost.gslb.test.", soa)},
		{"ext.gslb.test.", "A", "NOERROR aa\nan ext.gslb.test. 300 IN CNAME www.example.org."},
		{"todeleg.gslb.test.", "A", lines("NOERROR aa", "an todeleg.gslb.test. 300 IN CNAME host.sub.gslb.test.",
			"ns sub.gslb.test. 3600 IN NS ns1.sub.gslb.test.", "ns sub.gslb.test. 3600 IN NS ns2.sub.gslb.test.",
			"ar ns1.sub.gslb.test. 3600 IN A 192.0.2.51", "ar ns2.sub.gslb.test. 3600 IN A 192.0.2.52")},
		{"loop1.gslb.test.", "A", lines("NOERROR aa", "an loop1.gslb.test. 300 IN CNAME loop2.gslb.test.", "an loop2.gslb.test. 300 IN CNAME loop1.gslb.test.")},
		// DNAME (RFC 6672).
		{"X.dn.gslb.test.", "A", lines("NOERROR aa", "an dn.gslb.test. 300 IN DNAME target.gslb.test.",
			"an X.dn.gslb.test. 300 IN CNAME x.target.gslb.test.", "an x.target.gslb.test. 300 IN A 192.0.2.70")},
		{"y.dn.gslb.test.", "A", lines("NXDOMAIN aa", "an dn.gslb.test. 300 IN DNAME target.gslb.test.",
			"an y.dn.gslb.test. 300 IN CNAME y.target.gslb.test.", soa)},
		{"x.dn.gslb.test.", "CNAME", lines("NOERROR aa", "an dn.gslb.test. 300 IN DNAME target.gslb.test.",
			"an x.dn.gslb.test. 300 IN CNAME x.target.gslb.test.")},
		{"dn.gslb.test.", "A", lines("NOERROR aa", soa)},
		{"dn.gslb.test.", "DNAME", "NOERROR aa\nan dn.gslb.test. 300 IN DNAME target.gslb.test."},
		{strings.Repeat("yyyyyyyyy.", 23) + "yyyyyyyy.dn.gslb.test.", "A", "YXDOMAIN aa\nan dn.gslb.test. 300 IN DNAME target.gslb.test."},
		// Delegations.
		{"a.b.Sub.gslb.test.", "TXT", lines("NOERROR", "ns Sub.gslb.test. 3600 IN NS ns1.sub.gslb.test.", "ns Sub.gslb.test. 3600 IN NS ns2.sub.gslb.test.",
			"ar ns1.sub.gslb.test. 3600 IN A 192.0.2.51", "ar ns2.sub.gslb.test. 3600 IN A 192.0.2.52")},
		{"ns1.sub.gslb.test.", "A", lines("NOERROR", "ns sub.gslb.test. 3600 IN NS ns1.sub.gslb.test.", "ns sub.gslb.test. 3600 IN NS ns2.sub.gslb.test.",
			"ar ns1.sub.gslb.test. 3600 IN A 192.0.2.51", "ar ns2.sub.gslb.test. 3600 IN A 192.0.2.52")},
		{"sec.gslb.test.", "DS", lines("NOERROR aa", "an sec.gslb.test. 3600 IN DS 12345 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF")},
		{"sub.gslb.test.", "DS", lines("NOERROR aa", soa)},
		{"x.sec.gslb.test.", "DS", lines("NOERROR", "ns sec.gslb.test. 3600 IN NS ns1.sec.gslb.test.", "ar ns1.sec.gslb.test. 3600 IN A 192.0.2.53")},
		{`esc\.dot.gslb.test.`, "A", "NOERROR aa\n" + `an esc\.dot.gslb.test. 300 IN A 192.0.2.60`},
		{"esc.dot.gslb.test.", "A", lines("NXDOMAIN aa", soa)},
	}
	for _, tt := range tests {
		q := question(tt.name, tt.qtype)
		for _, tcp := range []bool{false, true} {
			reply, _ := ask(t, r, q, tcp)
			if got := show(reply); got != tt.want {
				t.Errorf("%s %s (tcp %v):\n%s\nwant:\n%s", tt.name, tt.qtype, tcp, got, tt.want)
			}
			if len(reply.Question) != 1 || reply.Question[0] != q.Question[0] {
				t.Errorf("%s %s: question %v", tt.name, tt.qtype, reply.Question)
			}
		}
	}
}

// TestOddZone serves a zone file of legal oddities.
func TestOddZone(t *testing.T) {
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: zoneDir + "odd.gslb.test.zone"}},
		testService{name: "app.gslb.test", ttl: 30, members: []string{"198.51.100.1"}})
	r := w.responder(t, dns.Options{})
	tests := []struct{ name, qtype, want string }{
		{"gslb.test.", "MX", "NOERROR aa\nan gslb.test. 5400 IN MX 0 ."},
		{"gslb.test.", "TXT", "NOERROR aa\nan gslb.test. 0 IN TXT \"zero ttl\""},
		{"gslb.test.", "CAA", "NOERROR aa\nan gslb.test. 5400 IN CAA 0 issue \"ca.invalid; validationmethods=dns-01\"\nan gslb.test. 5400 IN CAA 128 tbs \"unknown critical tag\""},
		{"nope.gslb.test.", "A", lines("NXDOMAIN aa", oddSOA)},
		{"z.wild.gslb.test.", "A", "NOERROR aa\nan z.wild.gslb.test. 300 IN A 192.0.2.80"},
		{"z.y.wild.gslb.test.", "A", lines("NXDOMAIN aa", oddSOA)},
		{"b.e.gslb.test.", "A", lines("NOERROR aa", oddSOA)},
		{"t.e.gslb.test.", "A", "NOERROR aa\nan t.e.gslb.test. 5400 IN A 192.0.2.83"},
		{"foo.cn.gslb.test.", "A", "NOERROR aa\nan foo.cn.gslb.test. 5400 IN CNAME p.cn.gslb.test.\nan p.cn.gslb.test. 5400 IN A 192.0.2.84"},
		{"alias.gslb.test.", "A", "NOERROR aa\nan alias.gslb.test. 5400 IN CNAME app.gslb.test.\nan app.gslb.test. 30 IN A 198.51.100.1"},
		{"alias.gslb.test.", "AAAA", lines("NOERROR aa", "an alias.gslb.test. 5400 IN CNAME app.gslb.test.", oddSOA)},
		{"toroot.gslb.test.", "A", "NOERROR aa\nan toroot.gslb.test. 5400 IN CNAME ."},
		{"self.gslb.test.", "A", "NOERROR aa\nan self.gslb.test. 5400 IN CNAME self.gslb.test."},
		{"x.d.gslb.test.", "A", "NOERROR aa\nan d.gslb.test. 5400 IN DNAME d2.other.invalid.\nan x.d.gslb.test. 5400 IN CNAME x.d2.other.invalid."},
		{`has\.dot.gslb.test.`, "A", "NOERROR aa\n" + `an has\.dot.gslb.test. 5400 IN A 192.0.2.86`},
		{`\000nul.gslb.test.`, "A", "NOERROR aa\n" + `an \000nul.gslb.test. 5400 IN A 192.0.2.89`},
		{`\255high.gslb.test.`, "A", "NOERROR aa\n" + `an \255high.gslb.test. 5400 IN A 192.0.2.90`},
		{"emptytxt.gslb.test.", "TXT", "NOERROR aa\nan emptytxt.gslb.test. 5400 IN TXT \"\""},
		{"_sip._tcp.gslb.test.", "SRV", "NOERROR aa\nan _sip._tcp.gslb.test. 5400 IN SRV 0 100 5060 app.GSLB.Test.\nan _sip._tcp.gslb.test. 5400 IN SRV 0 0 0 ."},
		{"naptr.gslb.test.", "NAPTR", "NOERROR aa\n" + `an naptr.gslb.test. 5400 IN NAPTR 100 10 "" "" "/urn:cid:.+@([^\\.]+\\.)(.*)$/\\2/i" .`},
		{"svcmix.gslb.test.", "SVCB", "NOERROR aa\n" + `an svcmix.gslb.test. 5400 IN SVCB 1 app.GSLB.Test. alpn="dot" port="53"`},
		{"unka.gslb.test.", "A", "NOERROR aa\nan unka.gslb.test. 5400 IN A 192.0.2.99"},
		{"unk.gslb.test.", "TYPE65226", "NOERROR aa\n" + `an unk.gslb.test. 5400 CLASS1 TYPE65226 \# 3 414243`},
		{"cls.gslb.test.", "A", "NOERROR aa\nan cls.gslb.test. 5400 IN A 192.0.2.99"},
		{"split.gslb.test.", "A", "NOERROR aa\nan split.gslb.test. 60 IN A 192.0.2.100\nan split.gslb.test. 60 IN A 192.0.2.101\nan split.gslb.test. 60 IN A 192.0.2.102\nan split.gslb.test. 60 IN A 192.0.2.103"},
		{"gen-007.gslb.test.", "A", "NOERROR aa\nan gen-007.gslb.test. 5400 IN A 192.0.2.107"},
		{"gen-008.gslb.test.", "A", lines("NXDOMAIN aa", oddSOA)},
		{"inc.gslb.test.", "A", "NOERROR aa\nan inc.gslb.test. 120 IN A 192.0.2.120"},
		{"host.inc.gslb.test.", "A", "NOERROR aa\nan host.inc.gslb.test. 5400 IN A 192.0.2.121"},
		{"h2.deeper.inc.gslb.test.", "A", "NOERROR aa\nan h2.deeper.inc.gslb.test. 5400 IN A 192.0.2.122"},
		{"afterinclude.gslb.test.", "A", "NOERROR aa\nan afterinclude.gslb.test. 5400 IN A 192.0.2.110"},
		{"x.sub.gslb.test.", "A", "NOERROR\nns sub.gslb.test. 5400 IN NS ns.sub.gslb.test.\nar ns.sub.gslb.test. 5400 IN A 192.0.2.111"},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, tt.qtype), true)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s:\n%s\nwant:\n%s", tt.name, tt.qtype, got, tt.want)
		}
	}
}

// TestNestedZones serves a zone within a zone, and a zone without services.
func TestNestedZones(t *testing.T) {
	parent := writeZone(t, "in NS ns.in\nns.in A 192.0.2.5\nin DS 1 13 2 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nto CNAME www.in\n")
	w := newWorld(t, []dns.ZoneOptions{
		{Name: "gslb.test", File: parent},
		{Name: "in.gslb.test", File: writeZone(t, "www A 192.0.2.7\n")},
		{Name: "bare.gslb.test", File: writeZone(t, "")},
	})
	r := w.responder(t, dns.Options{})
	childSOA := "ns in.gslb.test. 60 IN SOA ns1.in.gslb.test. hostmaster.in.gslb.test. 1 7200 900 1209600 60"
	parentSOA := "ns gslb.test. 60 IN SOA ns1.gslb.test. hostmaster.gslb.test. 1 7200 900 1209600 60"
	tests := []struct{ name, qtype, want string }{
		{"www.in.gslb.test.", "A", "NOERROR aa\nan www.in.gslb.test. 300 IN A 192.0.2.7"},
		{"nope.in.gslb.test.", "A", lines("NXDOMAIN aa", childSOA)},
		{"in.gslb.test.", "NS", "NOERROR aa\nan in.gslb.test. 300 IN NS ns1.in.gslb.test.\nar ns1.in.gslb.test. 300 IN A 192.0.2.1"},
		{"in.gslb.test.", "DS", "NOERROR aa\nan in.gslb.test. 300 IN DS 1 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF"},
		{"bare.gslb.test.", "DS", lines("NOERROR aa", parentSOA)},
		{"to.gslb.test.", "A", "NOERROR aa\nan to.gslb.test. 300 IN CNAME www.in.gslb.test."},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, tt.qtype), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s:\n%s\nwant:\n%s", tt.name, tt.qtype, got, tt.want)
		}
	}
}

// TestShippedZone builds the zone of the shipped example beside its service.
func TestShippedZone(t *testing.T) {
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.example.com", File: zoneDir + "gslb.example.com.zone", ECS: true}},
		testService{name: "www.gslb.example.com", ttl: 30, members: []string{"1.1.1.1", "2.2.2.2"}})
	if warnings := w.tables.Warnings(); len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	r := w.responder(t, dns.Options{})
	tests := []struct{ name, qtype, want string }{
		{"shop.gslb.example.com.", "A", "NOERROR aa\nan shop.gslb.example.com. 300 IN CNAME www.gslb.example.com.\nan www.gslb.example.com. 30 IN A 1.1.1.1"},
		{"www.gslb.example.com.", "CAA", "NOERROR aa\nan www.gslb.example.com. 3600 IN CAA 0 issue \"ca.example.net\""},
		{"any.customers.gslb.example.com.", "A", "NOERROR aa\nan any.customers.gslb.example.com. 300 IN A 192.0.2.20"},
		{"gslb.example.com.", "NS", lines("NOERROR aa", "an gslb.example.com. 3600 IN NS ns1.gslb.example.com.", "an gslb.example.com. 3600 IN NS ns2.gslb.example.com.",
			"ar ns1.gslb.example.com. 3600 IN A 127.0.0.1", "ar ns1.gslb.example.com. 3600 IN AAAA ::1", "ar ns2.gslb.example.com. 3600 IN A 127.0.0.2")},
		{"pc.lab.gslb.example.com.", "A", "NOERROR\nns lab.gslb.example.com. 3600 IN NS ns.lab.gslb.example.com.\nar ns.lab.gslb.example.com. 3600 IN A 192.0.2.53"},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, tt.qtype), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s:\n%s\nwant:\n%s", tt.name, tt.qtype, got, tt.want)
		}
	}
}

// TestCompression checks that every owner is a pointer, and that names within the zone end in one where RFC 3597 allows
// it and are whole where it does not.
func TestCompression(t *testing.T) {
	var zone strings.Builder
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60)
	for i := range 40 {
		zone.WriteString(long + " A 192.0.2." + string(rune('0'+i/10)) + string(rune('0'+i%10)) + "\n")
	}
	zone.WriteString("mx MX 10 host.mail\nsrv SRV 1 1 1 host.mail\n")
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, strings.ReplaceAll(zone.String(), "192.0.2.0", "192.0.2."))}})
	r := w.responder(t, dns.Options{})
	_, wire := ask(t, r, question(long+".gslb.test.", "A"), true)
	if want := 12 + 122 + 11 + 4 + 40*16; len(wire) != want {
		t.Errorf("40 addresses take %d octets, want %d", len(wire), want)
	}
	_, wire = ask(t, r, question("mx.gslb.test.", "MX"), false)
	if want := 12 + 14 + 4 + 12 + 2 + 10 + 2; len(wire) != want {
		t.Errorf("MX takes %d octets, want %d", len(wire), want)
	}
	_, wire = ask(t, r, question("srv.gslb.test.", "SRV"), false)
	if want := 12 + 15 + 4 + 12 + 6 + 10 + 11; len(wire) != want {
		t.Errorf("SRV takes %d octets, want %d", len(wire), want)
	}
}

// TestTruncation checks that no reply over UDP is longer than the requester and the server allow, that it is marked
// whenever something is missing and only then, and that TCP has the whole.
func TestTruncation(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{ECS: true, NSID: "ns-1"})
	ecs := raw(8, 0, 1, 24, 0, 203, 0, 113)
	tests := []struct {
		name  string
		rrs   int
		sizes []uint16 // 0: no EDNS
	}{
		{"med.gslb.test.", 5, []uint16{0, 1, 512, 800, 1232, 4096, 65535}},
		{"big.gslb.test.", 14, []uint16{0, 512, 1232, 4096, 65535}},
	}
	for _, tt := range tests {
		whole, wire := ask(t, r, question(tt.name, "TXT", edns(512, ecs, raw(3))), true)
		if whole.Truncated || len(whole.Answer) != tt.rrs {
			t.Fatalf("%s by TCP: %d records, TC %v", tt.name, len(whole.Answer), whole.Truncated)
		}
		needs := len(wire)
		sizes := append(tt.sizes, uint16(needs), uint16(needs-1))
		for _, size := range sizes {
			q, limit, need := question(tt.name, "TXT"), 512, needs-11-11-8
			if size > 0 {
				q, limit, need = question(tt.name, "TXT", edns(size, ecs, raw(3))), min(max(512, int(size)), 1232), needs
			}
			reply, wire := ask(t, r, q, false)
			fits := need <= limit
			if len(wire) > limit || reply.Truncated == fits || (len(reply.Answer) == tt.rrs) != fits {
				t.Errorf("%s with size %d: %d octets, TC %v, %d records", tt.name, size, len(wire), reply.Truncated, len(reply.Answer))
			}
			if !reply.Authoritative || reply.Rcode != 0 || len(reply.Question) != 1 {
				t.Errorf("%s with size %d: header %v", tt.name, size, reply.MsgHdr)
			}
			opt := reply.IsEdns0()
			if (opt != nil) != (size > 0) || opt != nil && (len(opt.Option) != 2 || opt.UDPSize() != 1232) {
				t.Errorf("%s with size %d: OPT %v", tt.name, size, opt)
			}
		}
	}
}

// TestGlueTruncation checks that a referral without the addresses that one cannot do without is marked (RFC 9471), and
// that other additional records are left out in silence.
func TestGlueTruncation(t *testing.T) {
	var zone strings.Builder
	for _, c := range "abcdefghijkl" {
		host := strings.Repeat(string(c), 20)
		zone.WriteString("sub NS " + host + ".sub\n" + host + ".sub A 192.0.2.9\n" + host + ".sub AAAA 2001:db8::9\n")
		zone.WriteString("@ NS " + host + "\n" + host + " A 192.0.2.9\n" + host + " AAAA 2001:db8::9\n")
	}
	r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, zone.String())}}).responder(t, dns.Options{})
	reply, wire := ask(t, r, question("x.sub.gslb.test.", "A"), false)
	if !reply.Truncated || len(wire) > 512 {
		t.Errorf("referral: TC %v, %d octets", reply.Truncated, len(wire))
	}
	reply, _ = ask(t, r, question("x.sub.gslb.test.", "A", edns(1232)), false)
	if reply.Truncated || len(reply.Ns) != 12 || len(reply.Extra) != 25 {
		t.Errorf("referral with EDNS: TC %v, %d NS, %d additional", reply.Truncated, len(reply.Ns), len(reply.Extra))
	}
	reply, wire = ask(t, r, question("gslb.test.", "NS"), false)
	if reply.Truncated || len(reply.Answer) != 13 || len(wire) > 512 {
		t.Errorf("apex: TC %v, %d NS, %d octets", reply.Truncated, len(reply.Answer), len(wire))
	}
}

// TestApexDNAME redirects all of a zone but its apex.
func TestApexDNAME(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zone")
	if err := os.WriteFile(file, []byte("$TTL 60\n@ SOA ns.other.test. h 1 2 3 4 5\n@ NS ns.other.test.\n@ DNAME new.test.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newWorld(t, []dns.ZoneOptions{{Name: "old.test", File: file}}).responder(t, dns.Options{})
	reply, _ := ask(t, r, question("a.b.old.test.", "A"), false)
	if got := show(reply); got != "NOERROR aa\nan old.test. 60 IN DNAME new.test.\nan a.b.old.test. 60 IN CNAME a.b.new.test." {
		t.Error(got)
	}
	reply, _ = ask(t, r, question("old.test.", "DNAME"), false)
	if got := show(reply); got != "NOERROR aa\nan old.test. 60 IN DNAME new.test." {
		t.Error(got)
	}
}

// TestDNAMEToItsOwner follows a DNAME to the name that owns it, which is no loop: the name has data of its own. A DNAME
// that leads below itself again is given once.
func TestDNAMEToItsOwner(t *testing.T) {
	zone := dns.ZoneOptions{Name: "gslb.test", File: writeZone(t, "d DNAME gslb.test.\nd A 192.0.2.9\ne DNAME f\nf DNAME e\n")}
	r := newWorld(t, []dns.ZoneOptions{zone}).responder(t, dns.Options{})
	redirected := "an d.gslb.test. 300 IN DNAME gslb.test.\nan d.d.gslb.test. 300 IN CNAME d.gslb.test."
	tests := []struct{ name, qtype, want string }{
		{"d.d.gslb.test.", "A", lines("NOERROR aa", redirected, "an d.gslb.test. 300 IN A 192.0.2.9")},
		{"d.d.gslb.test.", "TXT", lines("NOERROR aa", redirected, "ns gslb.test. 60 IN SOA ns1.gslb.test. hostmaster.gslb.test. 1 7200 900 1209600 60")},
		{"x.e.gslb.test.", "A", lines("NOERROR aa",
			"an e.gslb.test. 300 IN DNAME f.gslb.test.", "an x.e.gslb.test. 300 IN CNAME x.f.gslb.test.",
			"an f.gslb.test. 300 IN DNAME e.gslb.test.", "an x.f.gslb.test. 300 IN CNAME x.e.gslb.test.")},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, tt.qtype), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s:\n%s\nwant:\n%s", tt.name, tt.qtype, got, tt.want)
		}
	}
}

// TestRootZone serves the zone whose apex has no label.
func TestRootZone(t *testing.T) {
	r := newWorld(t, []dns.ZoneOptions{{Name: ".", File: writeZone(t, "www.test A 192.0.2.9\ncom NS ns.com\nns.com A 192.0.2.8\n")}}).responder(t, dns.Options{})
	tests := []struct{ name, qtype, want string }{
		{".", "NS", "NOERROR aa\nan . 300 IN NS ns1.\nar ns1. 300 IN A 192.0.2.1"},
		{"www.test.", "A", "NOERROR aa\nan www.test. 300 IN A 192.0.2.9"},
		{"nope.", "A", "NXDOMAIN aa\nns . 60 IN SOA ns1. hostmaster. 1 7200 900 1209600 60"},
		{"x.com.", "A", "NOERROR\nns com. 300 IN NS ns.com.\nar ns.com. 300 IN A 192.0.2.8"},
	}
	for _, tt := range tests {
		reply, _ := ask(t, r, question(tt.name, tt.qtype), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s:\n%s\nwant:\n%s", tt.name, tt.qtype, got, tt.want)
		}
	}
}

// TestDuplicates checks that a record that is written twice is served once, whatever the case of the names in it, and
// that data that only looks alike is kept.
func TestDuplicates(t *testing.T) {
	r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, `
@   NS  NS1
a   A   192.0.2.2
A   A   192.0.2.2
mx  MX  65 host
mx  MX  97 host
mx  MX  97 HOST.gslb.test.
txt TXT "A"
txt TXT "a"
`)}}).responder(t, dns.Options{})
	for _, tt := range []struct {
		name, qtype string
		want        int
	}{{"gslb.test.", "NS", 1}, {"a.gslb.test.", "A", 1}, {"mx.gslb.test.", "MX", 2}, {"txt.gslb.test.", "TXT", 2}} {
		if reply, _ := ask(t, r, question(tt.name, tt.qtype), false); len(reply.Answer) != tt.want {
			t.Errorf("%s %s: %d records, want %d", tt.name, tt.qtype, len(reply.Answer), tt.want)
		}
	}
}

// TestEverySize answers each query into every size of buffer: the reply keeps within it, says so when it is cut, and is
// the whole where that fits.
func TestEverySize(t *testing.T) {
	opts := dns.Options{ECS: true, NSID: "n1", Cookies: dns.CookieOptions{Enabled: true}}
	static := conformanceWorld(t).responder(t, opts)
	services := serviceWorld(t).responder(t, opts)
	ecs := edns(65535, raw(8, 0, 1, 24, 0, 203, 0, 113), raw(3), raw(10, []byte("a cookie")...), raw(11))
	tests := []struct {
		r           *dns.Responder
		name, qtype string
	}{
		{static, "www.gslb.test.", "A"},
		{static, "nope.gslb.test.", "A"},
		{static, "alias2.gslb.test.", "A"},
		{static, "alias2.gslb.test.", "MX"},
		{static, "dangling.gslb.test.", "A"},
		{static, "x.dn.gslb.test.", "A"},
		{static, "y.dn.gslb.test.", "A"},
		{static, "x.sub.gslb.test.", "A"},
		{static, "todeleg.gslb.test.", "A"},
		{static, "multi.gslb.test.", "A"},
		{static, "www.gslb.test.", "ANY"},
		{static, "med.gslb.test.", "TXT"},
		{services, "multi.gslb.test.", "A"},
		{services, "www.gslb.test.", "AAAA"},
		{services, "gocn.gslb.test.", "A"},
		{services, "backup.gslb.test.", "A"},
		{services, "nodata.gslb.test.", "A"},
		{services, "servfail.gslb.test.", "A"},
	}
	for _, tt := range tests {
		for _, q := range []*mdns.Msg{question(tt.name, tt.qtype), question(tt.name, tt.qtype, ecs)} {
			whole, wire := ask(t, tt.r, q, true)
			least := 12 + len(tt.name) + 1 + 4
			if q.IsEdns0() != nil {
				least += 11 + 11 + 6 + 28 + 6
			}
			query := pack(t, q)
			for size := least; size <= len(wire); size++ {
				buf := make([]byte, size)
				m := new(mdns.Msg)
				if err := m.Unpack(buf[:tt.r.Respond(query, buf, local, remote, true)]); err != nil {
					t.Fatalf("%s %s in %d octets: %v", tt.name, tt.qtype, size, err)
				}
				if m.Truncated && len(m.Answer)+len(m.Ns) > 0 || !m.Truncated && (len(m.Answer) != len(whole.Answer) || len(m.Ns) != len(whole.Ns)) {
					t.Fatalf("%s %s in %d octets: %v", tt.name, tt.qtype, size, m)
				}
				if (m.IsEdns0() != nil) != (q.IsEdns0() != nil) || !m.Truncated && m.Rcode != whole.Rcode || m.Authoritative != whole.Authoritative && !strings.HasPrefix(tt.name, "x.sub") {
					t.Fatalf("%s %s in %d octets: %v", tt.name, tt.qtype, size, m)
				}
				if size == len(wire) && m.Truncated {
					t.Fatalf("%s %s fits in %d octets and is truncated", tt.name, tt.qtype, size)
				}
			}
		}
	}
}

// TestChaos asks the server about itself.
func TestChaos(t *testing.T) {
	w := conformanceWorld(t)
	chaos := func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }
	tests := []struct{ name, qtype, nsid, version, want string }{
		{"version.bind.", "TXT", "n1", "", "REFUSED"},
		{"Version.Bind.", "TXT", "", "dev", "NOERROR aa\nan Version.Bind. 0 CH TXT \"dev\""},
		{"version.server.", "TXT", "", "dev", "NOERROR aa\nan version.server. 0 CH TXT \"dev\""},
		{"id.server.", "TXT", "n1", "", "NOERROR aa\nan id.server. 0 CH TXT \"n1\""},
		{"hostname.bind.", "TXT", "n1", "", "NOERROR aa\nan hostname.bind. 0 CH TXT \"n1\""},
		{"id.server.", "TXT", "", "dev", "REFUSED"},
		{"id.server.", "A", "n1", "dev", "REFUSED"},
		{"www.gslb.test.", "A", "n1", "dev", "REFUSED"},
	}
	for _, tt := range tests {
		r := w.responder(t, dns.Options{NSID: tt.nsid, Version: tt.version})
		reply, _ := ask(t, r, question(tt.name, tt.qtype, chaos), false)
		if got := show(reply); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.name, tt.qtype, got, tt.want)
		}
	}
	for _, class := range []uint16{0, mdns.ClassHESIOD, mdns.ClassNONE, mdns.ClassANY, 65280} {
		reply, _ := ask(t, w.responder(t, dns.Options{}), question("www.gslb.test.", "A", func(m *mdns.Msg) { m.Question[0].Qclass = class }), false)
		if got := show(reply); got != "REFUSED" {
			t.Errorf("class %d: %s", class, got)
		}
	}
}

// TestNotConfigured checks that a Responder without tables says so.
func TestNotConfigured(t *testing.T) {
	r, err := dns.NewResponder(dns.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if reply, _ := ask(t, r, question("www.gslb.test.", "A"), false); show(reply) != "SERVFAIL" {
		t.Error(show(reply))
	}
}
