package dns_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// This file holds a second, slow implementation of what an authoritative server answers, written from the RFCs on the
// types of miekg/dns and with linear searches, and compares the Responder with it on random zones and queries.

// An oracle is one world: zones, with the services as records.
type oracle struct {
	zones    []oracleZone
	services []testService // one member each, so that the decision is known

	all map[*oracleZone][]mdns.RR // what records gave
}

type oracleZone struct {
	apex string
	rrs  []mdns.RR // as in the file; the SOA is the first
}

// An expectation is what a reply must hold. Each section is a set.
type expectation struct {
	rcode            int
	aa               bool
	answer, ns, glue []string
}

// answer is the algorithm of RFC 1034 section 4.3.2 with RFC 4592 (wildcards), RFC 6672 (DNAME), RFC 2308 (negative
// answers), RFC 4035 section 3.1.4.1 (DS) and RFC 8482 (ANY).
func (o *oracle) answer(qname string, qtype uint16) (e expectation) {
	qname = strings.ToLower(qname)
	z := o.zoneOf(qname)
	if z == nil {
		e.rcode = mdns.RcodeRefused
		return e
	}
	if qtype == mdns.TypeDS && qname == z.apex {
		// The parent's side of a cut knows of DS.
		if _, rest, ok := strings.Cut(qname, "."); ok && rest != "" {
			if parent := o.zoneOf(rest); parent != nil {
				z = parent
			}
		}
	}
	e.aa = true
	name := qname
	followed := map[string]bool{} // the owners of the CNAME and DNAME records of the chain
	for step := range 16 {
		cut, dname := o.interrupted(z, name, qtype)
		if cut != "" {
			e.aa = step > 0
			set := o.set(z, cut, mdns.TypeNS)
			e.ns = append(e.ns, show1(cut, set)...)
			e.glue = append(e.glue, o.glue(z, set)...)
			return e
		}
		if dname != "" {
			if followed[dname] {
				return e
			}
			followed[dname] = true
			set := o.set(z, dname, mdns.TypeDNAME)
			target := set[0].(*mdns.DNAME).Target
			e.answer = append(e.answer, show1(dname, set)...)
			next := strings.TrimSuffix(name, dname) + target
			if wireLength(next) > 255 {
				e.rcode = mdns.RcodeYXDomain
				return e
			}
			e.answer = append(e.answer, fmt.Sprintf("%s %d CNAME %s", name, set[0].Header().Ttl, next))
			if qtype == mdns.TypeCNAME || qtype == mdns.TypeANY {
				return e
			}
			name = strings.ToLower(next)
			if o.zoneOf(name) != z {
				return e
			}
			continue
		}
		source := o.source(z, name)
		if source == "" {
			e.rcode = mdns.RcodeNameError
			e.ns = append(e.ns, negativeOf(z))
			return e
		}
		if followed[source] && len(o.set(z, source, mdns.TypeDNAME)) == 0 {
			return e
		}
		if cname := o.set(z, source, mdns.TypeCNAME); len(cname) > 0 {
			followed[source] = true
			e.answer = append(e.answer, show1(name, cname)...)
			if qtype == mdns.TypeCNAME || qtype == mdns.TypeANY {
				return e
			}
			name = strings.ToLower(cname[0].(*mdns.CNAME).Target)
			if o.zoneOf(name) != z {
				return e
			}
			continue
		}
		set := o.set(z, source, qtype)
		switch {
		case qtype == mdns.TypeANY && o.owns(z, source):
			e.answer = append(e.answer, name+` 3600 HINFO "rfc8482" ""`)
		case len(set) > 0:
			e.answer = append(e.answer, show1(name, set)...)
			if qtype == mdns.TypeNS {
				e.glue = append(e.glue, o.glue(z, set)...)
			}
		default:
			e.ns = append(e.ns, negativeOf(z))
		}
		return e
	}
	return e
}

// zoneOf returns the deepest zone that name lies in.
func (o *oracle) zoneOf(name string) (deepest *oracleZone) {
	for i := range o.zones {
		z := &o.zones[i]
		if mdns.IsSubDomain(z.apex, name) && (deepest == nil || len(z.apex) > len(deepest.apex)) {
			deepest = z
		}
	}
	return deepest
}

// records returns all records of a zone, with those that its services stand for.
func (o *oracle) records(z *oracleZone) []mdns.RR {
	if all, ok := o.all[z]; ok {
		return all
	}
	all := slices.Clone(z.rrs)
	for _, s := range o.services {
		for _, owner := range append([]string{s.name}, s.aliases...) {
			owner = mdns.Fqdn(owner)
			if o.zoneOf(owner) != z {
				continue
			}
			hints := ""
			for _, m := range strings.Split(s.members[0], ",") {
				typ, hint := "A", " ipv4hint="
				switch {
				case strings.HasSuffix(m, "."):
					typ = "CNAME"
				case strings.Contains(m, ":"):
					typ, hint = "AAAA", " ipv6hint="
				}
				all = append(all, newRR(owner, s.ttl, typ, m))
				hints += hint + m
			}
			if len(s.alpn) > 0 {
				all = append(all, newRR(owner, s.ttl, "HTTPS", "1 . alpn="+strings.Join(s.alpn, ",")+hints))
			}
		}
	}
	if o.all == nil {
		o.all = map[*oracleZone][]mdns.RR{}
	}
	o.all[z] = all
	return all
}

// set returns the records of a type at a name, each once and with the lowest TTL (RFC 2181 section 5).
func (o *oracle) set(z *oracleZone, owner string, typ uint16) (set []mdns.RR) {
	lowest := uint32(1<<31 - 1)
	for _, rr := range o.records(z) {
		if rr.Header().Name == owner && rr.Header().Rrtype == typ {
			lowest = min(lowest, rr.Header().Ttl)
			if !slices.ContainsFunc(set, func(other mdns.RR) bool { return mdns.IsDuplicate(rr, other) }) {
				set = append(set, mdns.Copy(rr))
			}
		}
	}
	for _, rr := range set {
		rr.Header().Ttl = lowest
	}
	return set
}

// owns reports whether a name has records.
func (o *oracle) owns(z *oracleZone, name string) bool {
	return slices.ContainsFunc(o.records(z), func(rr mdns.RR) bool { return rr.Header().Name == name })
}

// exists reports whether there is a name in the zone: it has records, or a name below it has (RFC 8020). The apex of the
// next zone within this one is one of its names.
func (o *oracle) exists(z *oracleZone, name string) bool {
	for i := range o.zones {
		child := &o.zones[i]
		if child != z && mdns.IsSubDomain(name, child.apex) && o.zoneOf(child.apex[strings.Index(child.apex, ".")+1:]) == z {
			return true
		}
	}
	return slices.ContainsFunc(o.records(z), func(rr mdns.RR) bool { return mdns.IsSubDomain(name, rr.Header().Name) })
}

// interrupted walks from the apex down to name and returns the first delegation at or above it, or the first DNAME above
// it.
func (o *oracle) interrupted(z *oracleZone, name string, qtype uint16) (cut, dname string) {
	labels := mdns.SplitDomainName(name)
	for k := mdns.CountLabel(z.apex); k <= len(labels); k++ {
		at := strings.Join(labels[len(labels)-k:], ".") + "."
		if at != z.apex && len(o.set(z, at, mdns.TypeNS)) > 0 && (at != name || qtype != mdns.TypeDS) {
			return at, ""
		}
		if at != name && len(o.set(z, at, mdns.TypeDNAME)) > 0 {
			return "", at
		}
	}
	return "", ""
}

// source returns the name whose records answer for name: itself, or the wildcard at its closest encloser (RFC 4592
// section 3.3.1); "" if there is none.
func (o *oracle) source(z *oracleZone, name string) string {
	if o.exists(z, name) {
		return name
	}
	encloser := name
	for !o.exists(z, encloser) {
		encloser = encloser[strings.Index(encloser, ".")+1:]
	}
	if wildcard := "*." + encloser; o.exists(z, wildcard) {
		return wildcard
	}
	return ""
}

// glue returns what the zone knows of the addresses of name servers.
func (o *oracle) glue(z *oracleZone, servers []mdns.RR) (glue []string) {
	for _, ns := range servers {
		target := strings.ToLower(ns.(*mdns.NS).Ns)
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
			glue = append(glue, show1(target, o.set(z, target, typ))...)
		}
	}
	return glue
}

func negativeOf(z *oracleZone) string {
	soa := mdns.Copy(z.rrs[0]).(*mdns.SOA)
	soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl)
	return show1(z.apex, []mdns.RR{soa})[0]
}

// show1 renders records under an owner in lower case, for comparison.
func show1(owner string, set []mdns.RR) (lines []string) {
	for _, rr := range set {
		rr = mdns.Copy(rr)
		rr.Header().Name = owner
		data := strings.TrimPrefix(rr.String(), rr.Header().String())
		lines = append(lines, strings.ToLower(fmt.Sprintf("%s %d ", owner, rr.Header().Ttl))+mdns.Type(rr.Header().Rrtype).String()+" "+strings.ToLower(data))
	}
	return lines
}

func wireLength(name string) int {
	buf := make([]byte, 1024)
	n, err := mdns.PackDomainName(name, buf, 0, nil, false)
	if err != nil {
		return 256 // miekg/dns refuses what is longer
	}
	return n
}

func newRR(owner string, ttl uint32, typ, data string) mdns.RR {
	rr, err := mdns.NewRR(fmt.Sprintf("%s %d IN %s %s", owner, ttl, typ, data))
	if err != nil {
		panic(err)
	}
	return rr
}

// A generator makes worlds and queries in which names meet: they are of few labels.
type generator struct {
	*rand.Rand
	o *oracle
}

func (g *generator) label() string { return []string{"a", "b", "c", "d", "*"}[g.IntN(5)] }

func (g *generator) below(apex string, deepest int) string {
	name := apex
	for range 1 + g.IntN(deepest) {
		name = g.label() + "." + name
	}
	return name
}

// somewhere returns a name to point at: mostly in some zone.
func (g *generator) somewhere() string {
	switch g.IntN(10) {
	case 0:
		return "www.elsewhere.test."
	case 1:
		return g.o.zones[g.IntN(len(g.o.zones))].apex
	}
	return g.below(g.o.zones[g.IntN(len(g.o.zones))].apex, 3)
}

// world makes zones and services that keep to the rules of zone files.
func (g *generator) world(build func(*oracle) error) *oracle {
	g.o = &oracle{zones: []oracleZone{{apex: "gslb.test."}}}
	if g.IntN(2) == 0 {
		g.o.zones = append(g.o.zones, oracleZone{apex: g.below("gslb.test.", 2)})
		if strings.Contains(g.o.zones[1].apex, "*") {
			g.o.zones[1].apex = "b.gslb.test."
		}
	}
	for i := range g.o.zones {
		g.fill(&g.o.zones[i])
	}
	for n := range g.IntN(5) {
		s := testService{name: strings.TrimSuffix(g.somewhere(), "."), ttl: uint32(g.IntN(60)), members: []string{fmt.Sprintf("198.51.100.%d", n)}}
		switch g.IntN(4) {
		case 0:
			s.members[0] += fmt.Sprintf(",2001:db8::%d", n+1)
		case 1:
			s.members[0] = g.somewhere()
		}
		if !strings.HasSuffix(s.members[0], ".") && g.IntN(2) == 0 {
			s.alpn = []string{"h3", "h2"}
		}
		if g.IntN(3) == 0 {
			s.aliases = []string{strings.TrimSuffix(g.somewhere(), ".")}
		}
		before := g.o.services
		g.o.services = append(before[:len(before):len(before)], s)
		if build(g.o) != nil { // that name is taken
			g.o.services = before
		}
	}
	return g.o
}

// fill puts records into a zone.
func (g *generator) fill(z *oracleZone) {
	add := func(owner, typ, format string, args ...any) {
		z.rrs = append(z.rrs, newRR(owner, []uint32{0, 60, 300, 86400}[g.IntN(4)], typ, fmt.Sprintf(format, args...)))
	}
	add(z.apex, "SOA", "ns.%s hostmaster.%s %d 7200 900 1209600 %d", z.apex, z.apex, g.IntN(1000), g.IntN(400))
	add(z.apex, "NS", "%s", g.somewhere())
	if g.IntN(2) == 0 {
		add(z.apex, "NS", "%s", g.somewhere())
	}
	taken := map[string]bool{z.apex: true}
	for n := range 3 + g.IntN(12) {
		owner := g.below(z.apex, 4)
		if taken[owner] {
			continue
		}
		taken[owner] = true
		wild := strings.HasPrefix(owner, "*.")
		switch kind := g.IntN(10); {
		case kind < 2:
			add(owner, "CNAME", "%s", g.somewhere())
		case kind == 2 && !wild:
			target := g.somewhere()
			if g.IntN(4) == 0 {
				target = strings.Repeat(strings.Repeat("x", 60)+".", 3) + "test."
			}
			add(owner, "DNAME", "%s", target)
			if g.IntN(2) == 0 {
				add(owner, "TXT", "%q", "at a DNAME")
			}
		case kind == 3 && !wild:
			add(owner, "NS", "ns.%s", owner)
			add(owner, "NS", "%s", g.somewhere())
			add("ns."+owner, "A", "192.0.2.%d", n)
			if g.IntN(2) == 0 {
				add(owner, "DS", "12345 13 2 %064x", n)
			}
		default:
			for range 1 + g.IntN(3) {
				switch g.IntN(6) {
				case 0, 1:
					add(owner, "A", "192.0.2.%d", g.IntN(4))
				case 2:
					add(owner, "AAAA", "2001:db8::%d", g.IntN(4))
				case 3:
					add(owner, "TXT", "%q", fmt.Sprint("text ", n))
				case 4:
					add(owner, "MX", "%d %s", n, g.somewhere())
				case 5:
					add(owner, "SRV", "0 0 %d %s", n, g.somewhere())
				}
			}
		}
	}
	// Nothing may lie below a DNAME.
	z.rrs = slices.DeleteFunc(z.rrs, func(rr mdns.RR) bool {
		return slices.ContainsFunc(z.rrs, func(d mdns.RR) bool {
			return d.Header().Rrtype == mdns.TypeDNAME && d.Header().Name != rr.Header().Name && mdns.IsSubDomain(d.Header().Name, rr.Header().Name)
		})
	})
}

// query makes a question that has a chance to meet something.
func (g *generator) query() (string, uint16) {
	types := []uint16{
		mdns.TypeA, mdns.TypeA, mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT, mdns.TypeMX, mdns.TypeNS, mdns.TypeSOA, mdns.TypeCNAME, mdns.TypeDNAME,
		mdns.TypeDS, mdns.TypeSRV, mdns.TypeHTTPS, mdns.TypeCAA, mdns.TypeANY, 65280,
	}
	name := g.somewhere()
	z := &g.o.zones[g.IntN(len(g.o.zones))]
	if g.IntN(2) == 0 {
		name = z.rrs[g.IntN(len(z.rrs))].Header().Name
		switch g.IntN(4) {
		case 0:
			name = g.label() + "." + name
		case 1:
			name = g.label() + ".x." + name
		case 2:
			if long := strings.Repeat(strings.Repeat("y", 50)+".", 2) + name; g.IntN(2) == 0 && wireLength(long) <= 255 {
				name = long
			}
		}
	}
	// The case of the letters says nothing.
	b := []byte(name)
	for i := range b {
		if g.IntN(4) == 0 {
			b[i] = strings.ToUpper(string(b[i]))[0]
		}
	}
	return string(b), types[g.IntN(len(types))]
}

// An oracleBuilder builds worlds of oracles, each in the same files.
type oracleBuilder struct {
	t     *testing.T
	files []string
	buf   []byte
}

func (b *oracleBuilder) options(o *oracle) (zones []dns.ZoneOptions) {
	for i, z := range o.zones {
		var text strings.Builder
		for _, rr := range z.rrs {
			text.WriteString(rr.String() + "\n")
		}
		if err := os.WriteFile(b.files[i], []byte(text.String()), 0o600); err != nil {
			b.t.Fatal(err)
		}
		zones = append(zones, dns.ZoneOptions{Name: z.apex, File: b.files[i]})
	}
	return zones
}

// check builds the services' names alone, which is enough to know whether they may stand there.
func (b *oracleBuilder) check(o *oracle) error {
	var services []dns.ServiceOptions
	for _, s := range o.services {
		m := dns.MemberOptions{}
		if strings.HasSuffix(s.members[0], ".") {
			m.CNAME = s.members[0]
		}
		services = append(services, dns.ServiceOptions{Name: s.name, Aliases: s.aliases, ALPN: s.alpn, Members: []dns.MemberOptions{m}})
	}
	_, err := dns.Build(b.options(o), services)
	return err
}

func (b *oracleBuilder) responder(o *oracle) *dns.Responder {
	return newWorld(b.t, b.options(o), o.services...).responder(b.t, dns.Options{ECS: true})
}

// compare asks r, which serves o, and returns how the reply differs from what is expected, or "".
func (b *oracleBuilder) compare(o *oracle, r *dns.Responder, name string, qtype uint16) string {
	m := &mdns.Msg{MsgHdr: mdns.MsgHdr{Id: 4711}, Question: []mdns.Question{{Name: name, Qtype: qtype, Qclass: mdns.ClassINET}}}
	query, err := m.Pack()
	if err != nil {
		return err.Error()
	}
	want := o.answer(name, qtype)
	tcp, udp := new(mdns.Msg), new(mdns.Msg)
	if err := tcp.Unpack(b.buf[:r.Respond(query, b.buf, local, remote, true)]); err != nil {
		return "the reply does not unpack: " + err.Error()
	}
	wire := b.buf[:r.Respond(query, b.buf, local, remote, false)]
	if err := udp.Unpack(wire); err != nil {
		return "the reply does not unpack: " + err.Error()
	}
	got := expectation{rcode: tcp.Rcode, aa: tcp.Authoritative}
	for _, s := range []struct {
		in  []mdns.RR
		out *[]string
	}{{tcp.Answer, &got.answer}, {tcp.Ns, &got.ns}, {tcp.Extra, &got.glue}} {
		for _, rr := range s.in {
			*s.out = append(*s.out, show1(strings.ToLower(rr.Header().Name), []mdns.RR{rr})...)
		}
	}
	for _, e := range []*expectation{&got, &want} {
		for _, s := range []*[]string{&e.answer, &e.ns, &e.glue} {
			slices.Sort(*s)
		}
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		return "got  " + g + "\nwant " + w
	}
	switch {
	case tcp.Id != 4711 || !tcp.Response || tcp.Truncated || tcp.RecursionAvailable || len(tcp.Question) != 1 || tcp.Question[0] != m.Question[0]:
		return fmt.Sprintf("the header or question is wrong: %+v", tcp)
	case len(wire) > 512:
		return fmt.Sprintf("%d octets over UDP without EDNS", len(wire))
	case udp.Rcode != tcp.Rcode && !udp.Truncated:
		return "over UDP the rcode is another"
	case !udp.Truncated && (fmt.Sprint(udp.Answer) != fmt.Sprint(tcp.Answer) || fmt.Sprint(udp.Ns) != fmt.Sprint(tcp.Ns)):
		return "over UDP the sections are others, without TC"
	}
	return ""
}

// shrink drops records and services as long as the reply to the question is still not what is expected.
func (b *oracleBuilder) shrink(o *oracle, name string, qtype uint16) *oracle {
	wrong := func(o *oracle) bool { return b.check(o) == nil && b.compare(o, b.responder(o), name, qtype) != "" }
	for again := true; again; {
		again = false
		for i := range o.services {
			try := &oracle{zones: o.zones, services: slices.Delete(slices.Clone(o.services), i, i+1)}
			if wrong(try) {
				o, again = try, true
				break
			}
		}
		for zi := range o.zones {
			for i := 1; i < len(o.zones[zi].rrs); i++ {
				try := &oracle{zones: slices.Clone(o.zones), services: o.services}
				try.zones[zi].rrs = slices.Delete(slices.Clone(o.zones[zi].rrs), i, i+1)
				if wrong(try) {
					o, again = try, true
					i--
				}
			}
		}
	}
	return o
}

// TestOracle compares on random worlds. The seed is fixed; a reproduction that is as small as can be is printed.
func TestOracle(t *testing.T) {
	worlds, queries := 250, 200
	if testing.Short() || raceEnabled {
		worlds = 60
	}
	dir := t.TempDir()
	b := &oracleBuilder{t: t, files: []string{filepath.Join(dir, "0.zone"), filepath.Join(dir, "1.zone")}, buf: make([]byte, 65535)}
	met := map[string]int{}
	for seed := range worlds {
		g := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 1))}
		o := g.world(b.check)
		if err := b.check(o); err != nil {
			t.Fatalf("seed %d: a world by the rules is refused: %v", seed, err)
		}
		r := b.responder(o)
		for range queries {
			name, qtype := g.query()
			want := o.answer(name, qtype)
			met[fmt.Sprint(mdns.RcodeToString[want.rcode], " aa ", want.aa)]++
			if len(want.answer) > 1 {
				met["chain"]++
			}
			if len(want.glue) > 0 {
				met["glue"]++
			}
			if b.compare(o, r, name, qtype) == "" {
				continue
			}
			o = b.shrink(o, name, qtype)
			for _, z := range o.zones {
				t.Logf("zone %s", z.apex)
				for _, rr := range z.rrs {
					t.Log(rr)
				}
			}
			t.Fatalf("seed %d, services %+v\n%s %s\n%s", seed, o.services, name, mdns.Type(qtype), b.compare(o, b.responder(o), name, qtype))
		}
	}
	// A generator that no longer meets something tests nothing.
	for _, kind := range []string{"NOERROR aa true", "NOERROR aa false", "NXDOMAIN aa true", "YXDOMAIN aa true", "REFUSED aa false", "chain", "glue"} {
		if met[kind] < worlds/16 {
			t.Errorf("%s was met %d times only: %v", kind, met[kind], met)
		}
	}
}
