package dns_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
	"gslbd/state"
)

// signedZone is what the tests of signatures ask for.
const signedZone = `
txt     TXT "one" "two"
*foo    TXT "not a wildcard"
mail    MX 10 Mail.Example.NET.
mx      MX 10 ns1
a.b     TXT "below an empty non-terminal"
*.wild  TXT "made"
alias   CNAME www
far     CNAME www.example.net.
moved   DNAME elsewhere.example.
sec     NS ns.sec
sec     DS 12345 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF
ns.sec  A 192.0.2.70
insec   NS ns.insec
ns.insec A 192.0.2.71
www     TXT "beside a service"
generic TYPE65400 \# 4 01020304
`

// A keyTimes is metadata for a key, each time as the distance from now.
type keyTimes map[string]time.Duration

// makeKey makes a key in dir, with other metadata if times are given, and returns how its files begin.
func makeKey(t testing.TB, dir, algorithm string, role dns.KeyRole, times keyTimes) string {
	t.Helper()
	base, _, err := dns.GenerateKey(dns.KeyOptions{Zone: "gslb.test", Directory: dir, Algorithm: algorithm}, role, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if times != nil {
		setTimes(t, base, times)
	}
	return base
}

// setTimes writes other metadata into a key.
func setTimes(t testing.TB, base string, times keyTimes) {
	t.Helper()
	text, err := os.ReadFile(base + ".private")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "Publish:") && !strings.HasPrefix(line, "Activate:") {
			b.WriteString(line)
		}
	}
	for name, d := range times {
		fmt.Fprintf(&b, "%s: %s\n", name, time.Now().Add(d).UTC().Format("20060102150405"))
	}
	if err := os.WriteFile(base+".private", []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func loadKeys(t testing.TB, dir, algorithm string) *dns.ZoneKeys {
	t.Helper()
	k, err := dns.LoadKeys(dns.KeyOptions{Zone: "gslb.test", Directory: dir, Algorithm: algorithm}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signedWorld serves signedZone and some services, signed by what is in dir.
func signedWorld(t testing.TB, dir, algorithm string, services ...testService) *testWorld {
	t.Helper()
	return newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, signedZone), ECS: true, Keys: loadKeys(t, dir, algorithm)}}, append(signedServices(), services...)...)
}

// signedServices are the services of signedWorld.
func signedServices() []testService {
	two := []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2"}
	return []testService{
		{name: "www.gslb.test", aliases: []string{"web.gslb.test"}, ttl: 30, alpn: []string{"h2"}, members: two},
		{name: "*.cdn.gslb.test", ttl: 20, members: two},
		{name: "cn.gslb.test", ttl: 30, members: []string{"a.Example.net."}},
		{name: "four.gslb.test", ttl: 30, members: []string{"198.51.100.4"}},
		{name: "down.gslb.test", ttl: 300, down: true, onAllDown: state.AllDownNoData, alpn: []string{"h2"}, members: two},
		{name: "all.gslb.test", ttl: 300, down: true, members: two},
		{name: "cndown.gslb.test", ttl: 300, down: true, onAllDown: state.AllDownNoData, members: []string{"a.example.net."}},
	}
}

// secure asks for signatures.
func secure(m *mdns.Msg) { m.SetEdns0(1232, true) }

// apexKeys asks for the keys of the zone.
func apexKeys(t testing.TB, r *dns.Responder) []*mdns.DNSKEY {
	t.Helper()
	reply, _ := ask(t, r, question("gslb.test.", "DNSKEY", secure), false)
	var keys []*mdns.DNSKEY
	for _, rr := range reply.Answer {
		if key, ok := rr.(*mdns.DNSKEY); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// validate fails the test for a set in the answer or authority section without a good signature by one of keys, at the
// time now. Not signed are the NS records of a delegation and the CNAME that follows from a DNAME.
func validate(t testing.TB, reply *mdns.Msg, keys []*mdns.DNSKEY, now time.Time) {
	t.Helper()
	for i, section := range [][]mdns.RR{reply.Answer, reply.Ns} {
		sets, order := map[string][]mdns.RR{}, []string{}
		dname := slices.ContainsFunc(section, func(rr mdns.RR) bool { return rr.Header().Rrtype == mdns.TypeDNAME })
		for _, rr := range section {
			h := rr.Header()
			if h.Rrtype == mdns.TypeRRSIG || h.Rrtype == mdns.TypeNS && i == 1 || h.Rrtype == mdns.TypeCNAME && dname {
				continue
			}
			id := fmt.Sprintf("%s %s", mdns.CanonicalName(h.Name), mdns.Type(h.Rrtype))
			if sets[id] == nil {
				order = append(order, id)
			}
			sets[id] = append(sets[id], rr)
		}
		for _, id := range order {
			good := 0
			for _, rr := range section {
				sig, ok := rr.(*mdns.RRSIG)
				if !ok || fmt.Sprintf("%s %s", mdns.CanonicalName(sig.Hdr.Name), mdns.Type(sig.TypeCovered)) != id {
					continue
				}
				for _, key := range keys {
					if key.KeyTag() != sig.KeyTag {
						continue
					}
					if err := sig.Verify(key, sets[id]); err != nil {
						t.Errorf("%s: %v\n%s", id, err, show(reply))
					}
					good++
				}
				if !sig.ValidityPeriod(now) {
					t.Errorf("%s: not valid at %s: %v", id, now, sig)
				}
				if ttl := sets[id][0].Header().Ttl; sig.Hdr.Ttl != ttl || sig.OrigTtl != ttl {
					t.Errorf("%s: the TTLs are not %d: %v", id, ttl, sig)
				}
			}
			if good == 0 {
				t.Errorf("%s has no signature by a key of the zone:\n%s", id, show(reply))
			}
		}
	}
}

// summary renders a reply without what differs from run to run.
func summary(m *mdns.Msg) string {
	var b strings.Builder
	b.WriteString(mdns.RcodeToString[m.Rcode])
	if m.Authoritative {
		b.WriteString(" aa")
	}
	if m.Truncated {
		b.WriteString(" tc")
	}
	for _, s := range []struct {
		name string
		rrs  []mdns.RR
	}{{"an", m.Answer}, {"ns", m.Ns}, {"ar", m.Extra}} {
		for _, rr := range s.rrs {
			h := rr.Header()
			text := strings.TrimPrefix(rr.String(), h.String())
			switch rr := rr.(type) {
			case *mdns.OPT:
				continue
			case *mdns.RRSIG:
				text = mdns.TypeToString[rr.TypeCovered]
				if int(rr.Labels) != mdns.CountLabel(h.Name) {
					text += fmt.Sprintf(" labels %d", rr.Labels)
				}
			case *mdns.RFC3597:
				text = rr.Rdata
			case *mdns.SOA, *mdns.DNSKEY, *mdns.CDNSKEY, *mdns.CDS:
				text = "…"
			}
			b.WriteString(fmt.Sprintf("; %s %s %d %s %s", s.name, strings.TrimSuffix(h.Name, "gslb.test."), h.Ttl, mdns.Type(h.Rrtype), text))
		}
	}
	return b.String()
}

// TestSignedAnswers looks at every kind of answer: what is in it, that it validates, and that nothing of it is there for
// who does not ask for signatures.
func TestSignedAnswers(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	w := signedWorld(t, dir, "")
	r := w.responder(t, dns.Options{ECS: true})
	now := time.Now()
	r.Refresh(now)
	keys := apexKeys(t, r)
	if len(keys) != 1 {
		t.Fatalf("%d keys", len(keys))
	}
	for _, tt := range []struct{ question, want string }{
		{"@ SOA", `NOERROR aa; an  300 SOA …; an  300 RRSIG SOA`},
		{"@ NS", `NOERROR aa; an  300 NS ns1.gslb.test.; an  300 RRSIG NS`},
		{"@ DNSKEY", `NOERROR aa; an  3600 DNSKEY …; an  3600 RRSIG DNSKEY`},
		{"@ TXT", `NOERROR aa; SOA; ns  60 NSEC \000.gslb.test. NS SOA RRSIG NSEC DNSKEY; ns  60 RRSIG NSEC`},
		{"*foo TXT", `NOERROR aa; an *foo. 300 TXT "not a wildcard"; an *foo. 300 RRSIG TXT`},
		{"mail MX", `NOERROR aa; an mail. 300 MX 10 Mail.Example.NET.; an mail. 300 RRSIG MX`},
		{"mx MX", `NOERROR aa; an mx. 300 MX 10 ns1.gslb.test.; an mx. 300 RRSIG MX`},
		{"generic TYPE65400", `NOERROR aa; an generic. 300 TYPE65400 01020304; an generic. 300 RRSIG `},
		{"b TXT", `NOERROR aa; SOA; ns b. 60 NSEC \000.b.gslb.test. RRSIG NSEC; ns b. 60 RRSIG NSEC`},
		{"a.b A", `NOERROR aa; SOA; ns a.b. 60 NSEC \000.a.b.gslb.test. TXT RRSIG NSEC; ns a.b. 60 RRSIG NSEC`},
		{"x.wild TXT", `NOERROR aa; an x.wild. 300 TXT "made"; an x.wild. 300 RRSIG TXT`},
		{"x.wild A", `NOERROR aa; SOA; ns x.wild. 60 NSEC \000.x.wild.gslb.test. TXT RRSIG NSEC; ns x.wild. 60 RRSIG NSEC`},
		{"*.wild TXT", `NOERROR aa; an *.wild. 300 TXT "made"; an *.wild. 300 RRSIG TXT labels 3`},
		{"y.x.wild TXT", `NOERROR aa; an y.x.wild. 300 TXT "made"; an y.x.wild. 300 RRSIG TXT`},
		{"wild TXT", `NOERROR aa; SOA; ns wild. 60 NSEC \000.wild.gslb.test. RRSIG NSEC; ns wild. 60 RRSIG NSEC`},
		{"alias A", `NOERROR aa; an alias. 300 CNAME www.gslb.test.; an alias. 300 RRSIG CNAME; an www. 30 A 198.51.100.1; an www. 30 RRSIG A`},
		{"far A", `NOERROR aa; an far. 300 CNAME www.example.net.; an far. 300 RRSIG CNAME`},
		{"a.moved A", `NOERROR aa; an moved. 300 DNAME elsewhere.example.; an moved. 300 RRSIG DNAME; an a.moved. 300 CNAME a.elsewhere.example.`},
		{"moved DNAME", `NOERROR aa; an moved. 300 DNAME elsewhere.example.; an moved. 300 RRSIG DNAME`},
		{"moved A", `NOERROR aa; SOA; ns moved. 60 NSEC \000.moved.gslb.test. DNAME RRSIG NSEC; ns moved. 60 RRSIG NSEC`},
		{"x.sec A", `NOERROR; ns sec. 300 NS ns.sec.gslb.test.; ns sec. 300 DS 12345 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF; ns sec. 300 RRSIG DS; ar ns.sec. 300 A 192.0.2.70`},
		{"sec DS", `NOERROR aa; an sec. 300 DS 12345 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF; an sec. 300 RRSIG DS`},
		{"x.insec A", `NOERROR; ns insec. 300 NS ns.insec.gslb.test.; ns insec. 60 NSEC \000.insec.gslb.test. NS RRSIG NSEC; ns insec. 60 RRSIG NSEC; ar ns.insec. 300 A 192.0.2.71`},
		{"insec DS", `NOERROR aa; SOA; ns insec. 60 NSEC \000.insec.gslb.test. NS RRSIG NSEC; ns insec. 60 RRSIG NSEC`},
		{"www A", `NOERROR aa; an www. 30 A 198.51.100.1; an www. 30 RRSIG A`},
		{"WWW AAAA", `NOERROR aa; an WWW. 30 AAAA 2001:db8::1; an WWW. 30 RRSIG AAAA`},
		{"www TXT", `NOERROR aa; an www. 300 TXT "beside a service"; an www. 300 RRSIG TXT`},
		{"www MX", `NOERROR aa; SOA; ns www. 60 NSEC \000.www.gslb.test. A TXT AAAA RRSIG NSEC HTTPS; ns www. 60 RRSIG NSEC`},
		{"www HTTPS", `NOERROR aa; an www. 30 HTTPS 1 . alpn="h2" ipv4hint="198.51.100.1" ipv6hint="2001:db8::1"; an www. 30 RRSIG HTTPS`},
		{"web A", `NOERROR aa; an web. 30 A 198.51.100.1; an web. 30 RRSIG A`},
		{"a.cdn A", `NOERROR aa; an a.cdn. 20 A 198.51.100.1; an a.cdn. 20 RRSIG A`},
		{"a.cdn MX", `NOERROR aa; SOA; ns a.cdn. 60 NSEC \000.a.cdn.gslb.test. A AAAA RRSIG NSEC; ns a.cdn. 60 RRSIG NSEC`},
		{"cn A", `NOERROR aa; an cn. 30 CNAME a.Example.net.; an cn. 30 RRSIG CNAME`},
		{"cn MX", `NOERROR aa; an cn. 30 CNAME a.Example.net.; an cn. 30 RRSIG CNAME`},
		{"four AAAA", `NOERROR aa; SOA; ns four. 60 NSEC \000.four.gslb.test. A RRSIG NSEC; ns four. 60 RRSIG NSEC`},
		{"four A", `NOERROR aa; an four. 30 A 198.51.100.4; an four. 30 RRSIG A`},
		{"down A", `NOERROR aa; SOA10; ns down. 10 NSEC \000.down.gslb.test. AAAA RRSIG NSEC HTTPS; ns down. 10 RRSIG NSEC`},
		{"down AAAA", `NOERROR aa; SOA10; ns down. 10 NSEC \000.down.gslb.test. A RRSIG NSEC HTTPS; ns down. 10 RRSIG NSEC`},
		{"down HTTPS", `NOERROR aa; SOA10; ns down. 10 NSEC \000.down.gslb.test. A AAAA RRSIG NSEC; ns down. 10 RRSIG NSEC`},
		{"down MX", `NOERROR aa; SOA; ns down. 60 NSEC \000.down.gslb.test. A AAAA RRSIG NSEC HTTPS; ns down. 60 RRSIG NSEC`},
		{"all A", `NOERROR aa; an all. 10 A 198.51.100.1; an all. 10 RRSIG A`},
		{"cndown A", `NOERROR aa; SOA10; ns cndown. 10 NSEC \000.cndown.gslb.test. RRSIG NSEC; ns cndown. 10 RRSIG NSEC`},
		{"nx A", `NOERROR aa; SOA; ns nx. 60 NSEC \000.nx.gslb.test. RRSIG NSEC NXNAME; ns nx. 60 RRSIG NSEC`},
		{"a.nx A", `NOERROR aa; SOA; ns a.nx. 60 NSEC \000.a.nx.gslb.test. RRSIG NSEC NXNAME; ns a.nx. 60 RRSIG NSEC`},
		{"www ANY", `NOERROR aa; an www. 3600 HINFO "RFC8482" ""; an www. 3600 RRSIG HINFO`},
		{"www NSEC", `NOERROR aa; an www. 60 NSEC \000.www.gslb.test. A TXT AAAA RRSIG NSEC HTTPS; an www. 60 RRSIG NSEC`},
		{"nx NSEC", `NOERROR aa; an nx. 60 NSEC \000.nx.gslb.test. RRSIG NSEC NXNAME; an nx. 60 RRSIG NSEC`},
		{"alias NSEC", `NOERROR aa; an alias. 60 NSEC \000.alias.gslb.test. CNAME RRSIG NSEC; an alias. 60 RRSIG NSEC`},
		{"www RRSIG", `NOERROR aa; an www. 60 RRSIG NSEC`},
		{"alias RRSIG", `NOERROR aa; an alias. 60 RRSIG NSEC`},
		{"@ CDS", `NOERROR aa; SOA; ns  60 NSEC \000.gslb.test. NS SOA RRSIG NSEC DNSKEY; ns  60 RRSIG NSEC`},
	} {
		name, qtype, _ := strings.Cut(tt.question, " ")
		name = strings.TrimPrefix(name+".gslb.test.", "@.")
		reply, wire := ask(t, r, question(name, qtype, secure), false)
		want := strings.NewReplacer("SOA10", "ns  10 SOA …; ns  10 RRSIG SOA", "; SOA;", "; ns  60 SOA …; ns  60 RRSIG SOA;").Replace(tt.want)
		if got := summary(reply); got != want {
			t.Errorf("%s:\n got %s\nwant %s", tt.question, got, want)
		}
		if qtype != "RRSIG" { // is not signed
			validate(t, reply, keys, now)
		}
		if len(wire) > 1232 || reply.AuthenticatedData {
			t.Errorf("%s: %d octets, ad %v", tt.question, len(wire), reply.AuthenticatedData)
		}
	}
}

// TestSignedWithoutDO checks that who does not ask for signatures gets what an unsigned zone gives, but for the records
// that were asked for by their type.
func TestSignedWithoutDO(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	signed := signedWorld(t, dir, "").responder(t, dns.Options{ECS: true})
	plain := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, signedZone), ECS: true}}, signedServices()...).responder(t, dns.Options{ECS: true})
	for _, name := range []string{"", "txt.", "b.", "x.wild.", "alias.", "a.moved.", "x.sec.", "sec.", "x.insec.", "www.", "a.cdn.", "cn.", "four.", "down.", "nx."} {
		for _, qtype := range []string{"A", "AAAA", "TXT", "NS", "DS", "HTTPS", "ANY", "CDS", "NSEC3"} {
			q := question(name+"gslb.test.", qtype, edns(1232))
			want, _ := ask(t, plain, q, false)
			got, _ := ask(t, signed, q, false)
			if show(got) != show(want) {
				t.Errorf("%s %s:\n%s\nunsigned:\n%s", name, qtype, show(got), show(want))
			}
		}
	}
	for _, tt := range [][2]string{
		{"@ DNSKEY", "NOERROR aa; an  3600 DNSKEY …"},
		{"www NSEC", `NOERROR aa; an www. 60 NSEC \000.www.gslb.test. A TXT AAAA RRSIG NSEC HTTPS`},
		{"www RRSIG", "NOERROR aa; an www. 60 RRSIG NSEC"},
		{"nx A", "NXDOMAIN aa; ns  60 SOA …"},
	} {
		name, qtype, _ := strings.Cut(tt[0], " ")
		reply, _ := ask(t, signed, question(strings.TrimPrefix(name+".gslb.test.", "@."), qtype), false)
		if got := summary(reply); got != tt[1] {
			t.Errorf("%s:\n got %s\nwant %s", tt[0], got, tt[1])
		}
	}
}

// TestCompactAnswers checks the rcode of a name that does not exist: NXDOMAIN only for who says that it may be (RFC 9824
// section 5.1), and the flag in the reply.
func TestCompactAnswers(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	r := signedWorld(t, dir, "").responder(t, dns.Options{})
	co := func(m *mdns.Msg) { m.IsEdns0().SetCo(true) }
	for _, tt := range []struct {
		name  string
		edit  []func(*mdns.Msg)
		rcode int
		co    bool
	}{
		{"nx", []func(*mdns.Msg){secure}, mdns.RcodeSuccess, false},
		{"nx", []func(*mdns.Msg){secure, co}, mdns.RcodeNameError, true},
		{"nx", []func(*mdns.Msg){edns(1232), co}, mdns.RcodeNameError, false}, // without DO it says nothing
		{"txt", []func(*mdns.Msg){secure, co}, mdns.RcodeSuccess, true},
	} {
		reply, _ := ask(t, r, question(tt.name+".gslb.test.", "A", tt.edit...), false)
		if reply.Rcode != tt.rcode || reply.IsEdns0().Co() != tt.co {
			t.Errorf("%+v: rcode %d, co %v", tt, reply.Rcode, reply.IsEdns0().Co())
		}
	}
}

// TestSignedZoneFile checks what the file of a signed zone may say of its keys: nothing of DNSKEY, and what the parent is to
// do (RFC 8078 section 4 is the wish to be unsigned).
func TestSignedZoneFile(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, keyTimes{"Publish": -hour, "Activate": -hour, "SyncPublish": -hour})
	keys := loadKeys(t, dir, "")
	file := writeZone(t, "@ DNSKEY 257 3 13 AAAA\n")
	_, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file, Keys: keys}}, nil)
	if err == nil || !strings.Contains(err.Error(), "gslb.test: a DNSKEY record of a signed zone comes from its keys: remove it") {
		t.Errorf("got %v", err)
	}
	r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "@ CDS 0 0 0 00\n@ CDNSKEY 0 3 0 AA==\n"), Keys: keys}}).responder(t, dns.Options{})
	anchors := apexKeys(t, r)
	for _, tt := range [][2]string{{"CDS", "0 0 0 00"}, {"CDNSKEY", "0 3 0 AA=="}} {
		reply, _ := ask(t, r, question("gslb.test.", tt[0], secure), false)
		validate(t, reply, anchors, time.Now())
		if len(reply.Answer) != 2 || !strings.HasSuffix(reply.Answer[0].String(), "\t"+tt[1]) {
			t.Errorf("%s:\n%s", tt[0], show(reply))
		}
	}
}

// TestSignedParent checks the proof of a zone that has another one below it here, which it has forgotten to delegate: that
// there is a delegation, without a DS. Or all that the other one holds would be bogus.
func TestSignedParent(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	child := writeZone(t, "a TXT \"in the child\"\n")
	r := newWorld(t, []dns.ZoneOptions{
		{Name: "gslb.test", File: writeZone(t, ""), Keys: loadKeys(t, dir, "")}, {Name: "child.gslb.test", File: child},
	}).responder(t, dns.Options{})
	anchors := apexKeys(t, r)
	reply, _ := ask(t, r, question("child.gslb.test.", "DS", secure), false)
	validate(t, reply, anchors, time.Now())
	if got, want := summary(reply), `NOERROR aa; ns  60 SOA …; ns  60 RRSIG SOA; ns child. 60 NSEC \000.child.gslb.test. NS RRSIG NSEC; ns child. 60 RRSIG NSEC`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	reply, _ = ask(t, r, question("a.child.gslb.test.", "TXT", secure), false)
	if len(reply.Answer) != 1 {
		t.Errorf("the child is not unsigned: %s", show(reply))
	}
}
