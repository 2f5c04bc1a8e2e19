package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/miekg/dns"

	"gslbd/state"
)

// ZoneOptions describe one zone.
type ZoneOptions struct {
	Name string    // with or without a final dot, in any case
	File string    // in the form of RFC 1035 section 5, with $TTL, $INCLUDE (relative to the file) and $GENERATE
	ECS  bool      // client subnets are looked at and answered (RFC 7871)
	Keys *ZoneKeys // that sign the zone; nil: it is not signed
}

// ServiceOptions describe what the answers for one service need to know beside its policy.
type ServiceOptions struct {
	Name       string   // may begin with "*."
	Aliases    []string // further names with the same answer
	Members    []MemberOptions
	LastResort []netip.Addr
	ALPN       []string // of the HTTPS record (RFC 9460) that is made for the names; none: no record is made
}

// MemberOptions describe one member: its addresses by family, or the name that it is a CNAME for.
type MemberOptions struct {
	Addresses [2]netip.Addr
	CNAME     string
}

// Tables are all zones and the names of all services, ready to be looked up. They are immutable and may be used by any
// number of goroutines. A configuration's Tables are published with its services, see state.Snapshot.
type Tables struct {
	zones    map[string]*zone // by the apex in wire form, lower case
	deepest  int              // labels of the deepest apex
	few      []*zone          // all, the deepest first, if they are so few that to compare is faster than to hash; else nil
	listed   []ZoneInfo       // in the order of the configuration
	ecs      bool             // some zone looks at client subnets; else they are an unknown option
	warnings []string
	keys     []*ZoneKeys // of the signed zones, in the order of the configuration
}

// fewZones is the most that Tables.few has.
const fewZones = 4

// A zone is one zone of the Tables.
type zone struct {
	apex   string // wire form, lower case
	labels int
	ecs    bool
	top    *node
	keys   *ZoneKeys // nil: it is not signed
	names  nameIndex // the empty non-terminals (RFC 4592 section 2.2.2) too

	negative rrset // the SOA with the TTL for negative answers (RFC 2308 section 3)
}

// A node is one name of a zone. One without sets and service is an empty non-terminal.
type node struct {
	name    string // wire form, lower case
	service *service
	ns      *rrset // the delegation, at a cut; nil at the apex
	dname   *rrset
	cname   *rrset
	wild    *node // the child "*"
	star    bool  // it is one
	apex    bool  // it is the apex of another zone here, which this one may have forgotten to delegate
	sets    []rrset
	here    [40]byte // of name, where it has room: on the next cache line
}

// begin sets the name.
func (n *node) begin(name string) {
	if len(name) <= len(n.here) {
		copy(n.here[:], name)
		name = unsafe.String(&n.here[0], len(name))
	}
	n.name, n.star = name, isWildcard(name)
}

// set returns the node's records of a type, or nil.
func (n *node) set(typ uint16) *rrset {
	for i := range n.sets {
		if n.sets[i].typ == typ {
			return &n.sets[i]
		}
	}
	return nil
}

// A service is what the answers for a service need beside the snapshot.
type service struct {
	index int32   // in Snapshot.Services
	has   [2]bool // some member, or the last resort, can answer for the family
	cname bool

	// empty remembers, by family, that there was no candidate at the last query, so that the log tells of the change.
	empty [2]atomic.Bool

	targets []rrset // of CNAME members, by member
	alpn    []byte  // the value of alpn in the HTTPS record; nil: there is none
}

// A placedService lies beside the node of its name, where that is new: queries read both.
type placedService struct {
	node    node
	service service
}

// Build reads the zone files and places the services, which are in the order of state.Config.Services, on their names.
// The error joins all that is wrong, each with its path in the configuration, and for a zone file with file and line.
func Build(zones []ZoneOptions, services []ServiceOptions) (*Tables, error) {
	b := &builder{t: &Tables{zones: map[string]*zone{}}}
	for i, opts := range zones {
		b.addZone(i, opts)
	}
	for _, zb := range b.zones {
		b.linkParent(zb)
	}
	for i, opts := range services {
		b.addService(i, opts)
	}
	if len(b.zones) <= fewZones {
		b.t.few = make([]*zone, 0, fewZones)
		for _, zb := range b.zones {
			b.t.few = append(b.t.few, zb.zone)
		}
		slices.SortFunc(b.t.few, func(x, y *zone) int { return y.labels - x.labels })
	}
	for _, zb := range b.zones {
		b.finish(zb)
		b.t.listed = append(b.t.listed, zb.info())
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	return b.t, nil
}

// Warnings returns what is odd in the zone files but no error, each with its path, file and line.
func (t *Tables) Warnings() []string { return t.warnings }

// Find returns the service that a query for name (in presentation form, in any case) would be answered by, with
// aliases and wildcards resolved, and whether its zone looks at client subnets. It follows no CNAME.
func (t *Tables) Find(name string) (index int, ecs, ok bool) {
	wire, err := packName(name)
	if err != nil {
		return 0, false, false
	}
	nm := newName(wire)
	z := t.zoneOf(nm, nm.labels)
	if z == nil {
		return 0, false, false
	}
	n, _, how := z.walk(nm, false)
	if how != found || n.service == nil {
		return 0, z.ecs, false
	}
	return int(n.service.index), z.ecs, true
}

// newName returns a valid uncompressed wire-form name as a name.
func newName(wire []byte) *name {
	nm := &name{}
	nm.parse(wire, 0)
	return nm
}

// zoneOf returns the deepest zone whose apex is the last labels of nm, of which it has at most most; nil if there is
// none.
func (t *Tables) zoneOf(nm *name, most int) *zone {
	if t.few != nil {
		for _, z := range t.few {
			if z.labels <= most && string(nm.suffix(z.labels)) == z.apex {
				return z
			}
		}
		return nil
	}
	for k := min(most, t.deepest); k >= 0; k-- {
		if z := t.zones[string(nm.suffix(k))]; z != nil {
			return z
		}
	}
	return nil
}

// An outcome is how a walk ended.
type outcome uint8

const (
	found   outcome = iota // at the name itself, or at the wildcard that stands for it
	missing                // there is no such name
	atCut                  // the name lies at or below a delegation
	atDNAME                // the name lies below a DNAME
)

// walk looks nm, which lies in z, up. It returns the node where it ended and the number of that node's labels. A
// question for DS at a delegation is the parent's to answer (RFC 4035 section 3.1.4.1).
//
// Hot path: a lookup for each label below the apex that exists.
func (z *zone) walk(nm *name, ds bool) (*node, int, outcome) {
	n := z.top
	for k := z.labels; ; k++ {
		if k == nm.labels {
			if n.ns != nil && !ds {
				return n, k, atCut
			}
			return n, k, found
		}
		if n.ns != nil {
			return n, k, atCut
		}
		if n.dname != nil {
			return n, k, atDNAME
		}
		h := nm.hash
		if k+1 < nm.labels || nm.zone != z {
			h = z.names.hash(nm.suffix(k + 1))
		}
		next := z.names.find(nm.suffix(k+1), h)
		if next == nil {
			if n.wild != nil {
				return n.wild, k + 1, found
			}
			return nil, k, missing
		}
		n = next
	}
}

// A builder builds Tables.
type builder struct {
	t     *Tables
	zones []*zoneBuilder
	errs  []error
}

// A zoneBuilder is a zone that is being built.
type zoneBuilder struct {
	*zone
	nodes      map[string]*node // by wire form, lower case
	path, file string
	records    map[string]map[uint16][]fileRecord // by owner and type
	order      []string                           // the owners in the order of the file
	servers    map[string]string                  // names of name servers within the zone, and where they are named
}

func (b *builder) fail(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

func (b *builder) warn(zb *zoneBuilder, where, format string, args ...any) {
	b.t.warnings = append(b.t.warnings, zb.path+": "+where+": "+fmt.Sprintf(format, args...))
}

// addZone parses and checks one zone by itself.
func (b *builder) addZone(i int, opts ZoneOptions) {
	wire, err := packName(opts.Name)
	if err != nil {
		b.fail("zones[%d].name: %v", i, err)
		return
	}
	apex := lowerWire(wire)
	if b.t.zones[apex] != nil {
		b.fail("zones[%d].name: the zone %s is listed twice", i, showName(apex))
		return
	}
	z := &zone{apex: apex, labels: countLabels(apex), ecs: opts.ECS, keys: opts.Keys, top: new(node)}
	z.top.begin(apex)
	b.t.zones[apex] = z
	b.t.deepest = max(b.t.deepest, z.labels)
	b.t.ecs = b.t.ecs || opts.ECS
	if opts.Keys != nil {
		b.t.keys = append(b.t.keys, opts.Keys)
	}
	zb := &zoneBuilder{
		zone: z, path: fmt.Sprintf("zones[%d].file", i), file: opts.File, nodes: map[string]*node{apex: z.top},
		records: map[string]map[uint16][]fileRecord{}, servers: map[string]string{},
	}
	b.zones = append(b.zones, zb)

	p := parseZoneFile(opts.File, apex)
	for _, rec := range p.records {
		at := zb.records[rec.owner]
		if at == nil {
			at = map[uint16][]fileRecord{}
			zb.records[rec.owner] = at
			zb.order = append(zb.order, rec.owner)
		}
		at[rec.Header().Rrtype] = append(at[rec.Header().Rrtype], rec)
		zb.node(rec.owner)
		if len(zb.nodes) > maxZoneNames {
			p.fail(rec.where, "more than %d names", maxZoneNames)
			break
		}
		if opts.Keys != nil && rec.Header().Rrtype == dns.TypeDNSKEY {
			p.fail(rec.where, "%s: a DNSKEY record of a signed zone comes from its keys: remove it", showName(rec.owner))
		}
		if ns, ok := rec.RR.(*dns.NS); ok {
			if target := wireOf(ns.Ns); inside(target, apex) {
				zb.servers[target] = rec.where
			}
		}
	}
	if len(p.errs) == 0 { // else what is missing may only be unreadable
		b.checkApex(zb, p)
	}
	for _, owner := range zb.order {
		b.checkOwner(zb, p, owner)
	}
	for _, msg := range p.errs {
		b.fail("%s: %s", zb.path, msg)
	}
}

// wireOf returns a name of a parsed record in wire form, lower case.
func wireOf(name string) string {
	wire, err := packName(name)
	if err != nil {
		return "\x00"
	}
	return lowerWire(wire)
}

// node returns the node of a name in the zone, made with all that lie between it and the apex.
func (zb *zoneBuilder) node(owner string) *node { return zb.nodeIn(owner, nil) }

// nodeIn is node, where a new one has a place already, if it is not nil.
func (zb *zoneBuilder) nodeIn(owner string, n *node) *node {
	if n := zb.nodes[owner]; n != nil {
		return n
	}
	if n == nil {
		n = new(node)
	}
	n.begin(owner)
	zb.nodes[owner] = n
	up := zb.node(parentOf(owner))
	if isWildcard(owner) {
		up.wild = n
	}
	return n
}

// isWildcard reports whether the name's first label is the asterisk alone (RFC 4592 section 2.1.1).
func isWildcard(wire string) bool { return len(wire) > 2 && wire[0] == 1 && wire[1] == '*' }

// checkApex refuses a zone without the records that make it one.
func (b *builder) checkApex(zb *zoneBuilder, p *parsedZone) {
	at := zb.records[zb.apex]
	show := showName(zb.apex)
	if len(at[dns.TypeSOA]) == 0 {
		p.fail(zb.file, "%s has no SOA record", show)
	}
	if len(at[dns.TypeSOA]) > 1 {
		p.fail(at[dns.TypeSOA][1].where, "%s has a second SOA record; the first is at %s", show, at[dns.TypeSOA][0].where)
	}
	if len(at[dns.TypeNS]) == 0 {
		p.fail(zb.file, "%s has no NS record", show)
	}
	if ds := at[dns.TypeDS]; len(ds) > 0 {
		b.warn(zb, ds[0].where, "a DS record of %s belongs into its parent zone; resolvers will not ask here", show)
	}
}

// checkOwner refuses sets that cannot stand together or where they stand.
func (b *builder) checkOwner(zb *zoneBuilder, p *parsedZone, owner string) {
	at, show := zb.records[owner], showName(owner)
	if cnames := at[dns.TypeCNAME]; len(cnames) > 0 {
		if len(cnames) > 1 {
			p.fail(cnames[1].where, "%s has a second CNAME record; the first is at %s", show, cnames[0].where)
		}
		for _, typ := range sortedTypes(at) {
			if typ != dns.TypeCNAME {
				p.fail(cnames[0].where, "%s has a CNAME record and other data, %s at %s (RFC 2181 section 10.1)", show, dns.Type(typ), at[typ][0].where)
			}
		}
	}
	if dnames := at[dns.TypeDNAME]; len(dnames) > 1 {
		p.fail(dnames[1].where, "%s has a second DNAME record; the first is at %s", show, dnames[0].where)
	}
	if isWildcard(owner) {
		for _, typ := range []uint16{dns.TypeNS, dns.TypeDNAME} {
			if recs := at[typ]; len(recs) > 0 {
				p.fail(recs[0].where, "%s: a wildcard cannot own %s records (RFC 4592 section 4)", show, dns.Type(typ))
			}
		}
	}
	for _, typ := range sortedTypes(at) {
		recs := at[typ]
		if lowest, highest := ttlRange(recs); lowest != highest {
			b.warn(zb, recs[0].where, "the TTLs of %s %s differ; all are served with the lowest, %d (RFC 2181 section 5.2)", show, dns.Type(typ), lowest)
		}
	}
	if owner == zb.apex {
		return
	}
	if len(at[dns.TypeDS]) > 0 && len(at[dns.TypeNS]) == 0 {
		b.warn(zb, at[dns.TypeDS][0].where, "%s has a DS record but is not delegated", show)
	}
	first := at[sortedTypes(at)[0]][0]
	for up := parentOf(owner); ; up = parentOf(up) {
		above := zb.records[up]
		if d := above[dns.TypeDNAME]; len(d) > 0 {
			p.fail(first.where, "%s lies below the DNAME record of %s at %s, which redirects it (RFC 6672 section 2.4)", show, showName(up), d[0].where)
			return
		}
		if up == zb.apex {
			break
		}
		if ns := above[dns.TypeNS]; len(ns) > 0 {
			b.checkBelowCut(zb, owner, up)
			return
		}
	}
	if len(at[dns.TypeNS]) > 0 {
		for _, typ := range sortedTypes(at) {
			if typ != dns.TypeNS && typ != dns.TypeDS && !isAddress(typ) {
				b.warn(zb, at[typ][0].where, "%s is delegated, so that its %s records are never answered", show, dns.Type(typ))
			}
		}
	}
}

// checkBelowCut warns of data that a delegation hides.
func (b *builder) checkBelowCut(zb *zoneBuilder, owner, cut string) {
	at := zb.records[owner]
	for _, typ := range sortedTypes(at) {
		if !isAddress(typ) {
			b.warn(zb, at[typ][0].where, "%s lies below the delegation of %s, so that its %s records are never answered", showName(owner), showName(cut), dns.Type(typ))
		}
	}
}

func isAddress(typ uint16) bool { return typ == dns.TypeA || typ == dns.TypeAAAA }

func sortedTypes(at map[uint16][]fileRecord) []uint16 {
	types := make([]uint16, 0, len(at))
	for typ := range at {
		types = append(types, typ)
	}
	slices.Sort(types)
	return types
}

func ttlRange(recs []fileRecord) (lowest, highest uint32) {
	lowest = recs[0].Header().Ttl
	for _, rec := range recs {
		lowest, highest = min(lowest, rec.Header().Ttl), max(highest, rec.Header().Ttl)
	}
	return lowest, highest
}

// linkParent makes the apex of a zone within another one exist there too, so that a question for its DS finds a name.
func (b *builder) linkParent(zb *zoneBuilder) {
	for up := zb.apex; up[0] != 0; {
		up = parentOf(up)
		for _, parent := range b.zones {
			if parent.apex != up {
				continue
			}
			if len(parent.records[zb.apex][dns.TypeNS]) == 0 {
				b.warn(parent, parent.file, "%s is a zone of its own here, but %s has no NS record that delegates it", showName(zb.apex), showName(up))
			}
			parent.node(zb.apex).apex = true
			return
		}
	}
}

// addService places one service on its names.
func (b *builder) addService(i int, opts ServiceOptions) {
	placed := &placedService{service: service{index: int32(i)}}
	svc := &placed.service
	path := fmt.Sprintf("services[%d]", i)
	for j, m := range opts.Members {
		for f := range m.Addresses {
			svc.has[f] = svc.has[f] || m.Addresses[f].IsValid()
		}
		var set rrset
		if m.CNAME != "" {
			svc.cname = true
			wire, err := packName(m.CNAME)
			if err != nil {
				b.fail("%s.members[%d].cname: %v", path, j, err)
				continue
			}
			set = cnameSet(wire)
		}
		svc.targets = append(svc.targets, set)
	}
	if len(opts.ALPN) > 0 {
		var err error
		if svc.alpn, err = packALPN(opts.ALPN); err != nil {
			b.fail("%s.https.alpn: %v", path, err)
		} else if svc.cname {
			b.fail("%s.https.alpn: members with a cname leave the HTTPS record to their targets; remove it", path)
		}
	}
	for _, addr := range opts.LastResort {
		f := state.V4
		if addr.Is6() {
			f = state.V6
		}
		svc.has[f] = true
	}
	b.place(svc, &placed.node, path+".name", opts.Name)
	for j, alias := range opts.Aliases {
		b.place(svc, nil, fmt.Sprintf("%s.aliases[%d]", path, j), alias)
	}
}

// cnameSet returns a CNAME record that leads to a name in wire form. Its TTL is filled in when it is written.
func cnameSet(target []byte) rrset {
	wire := binary.BigEndian.AppendUint16(nil, dns.TypeCNAME)
	wire = binary.BigEndian.AppendUint16(wire, dns.ClassINET)
	wire = binary.BigEndian.AppendUint32(wire, 0)
	wire = binary.BigEndian.AppendUint16(wire, uint16(len(target)))
	return rrset{typ: dns.TypeCNAME, recs: []record{{wire: append(wire, target...)}}, target: target}
}

// place puts a service on one name, whose node has a place already if room is not nil.
func (b *builder) place(svc *service, room *node, path, name string) {
	packed, err := packName(name)
	if err != nil {
		b.fail("%s: %v", path, err)
		return
	}
	wire := lowerWire(packed)
	show := showName(wire)
	zb := b.zoneOf(wire)
	if zb == nil {
		b.fail("%s: %s lies in none of the zones", path, show)
		return
	}
	if svc.cname && wire == zb.apex {
		b.fail("%s: members with a cname cannot serve the apex of the zone %s (RFC 1034 section 3.6.2)", path, show)
		return
	}
	for up := wire; ; up = parentOf(up) {
		above := zb.records[up]
		if ns := above[dns.TypeNS]; len(ns) > 0 && up != zb.apex {
			b.fail("%s: %s lies at or below the delegation of %s at %s", path, show, showName(up), ns[0].where)
			return
		}
		if d := above[dns.TypeDNAME]; len(d) > 0 && up != wire {
			b.fail("%s: %s lies below the DNAME record of %s at %s", path, show, showName(up), d[0].where)
			return
		}
		if up == zb.apex {
			break
		}
	}
	if where, ok := zb.servers[wire]; ok {
		b.fail("%s: %s is a name server at %s; its addresses must be records of the zone file", path, show, where)
		return
	}
	refused := false
	at := zb.records[wire]
	for _, typ := range sortedTypes(at) {
		for _, rec := range at[typ] {
			switch {
			case svc.cname:
				b.fail("%s: %s is a CNAME by its members and has a %s record at %s as well; remove one", path, show, dns.Type(typ), rec.where)
			case isAddress(typ) || typ == dns.TypeCNAME:
				b.fail("%s: %s has a %s record at %s as well; remove one", path, show, dns.Type(typ), rec.where)
			case svc.alpn != nil && typ == dns.TypeHTTPS:
				b.fail("%s: %s has an HTTPS record at %s, and one by services[%d].https as well; remove one", path, show, rec.where, svc.index)
			case hasHints(rec.RR):
				b.fail("%s: the %s record of %s at %s has address hints, which would go around the policy; remove them", path, dns.Type(typ), show, rec.where)
			default:
				continue
			}
			refused = true
			break
		}
	}
	n := zb.nodeIn(wire, room)
	switch {
	case refused:
	case n.service != nil:
		b.fail("%s: %s is the name of services[%d] already", path, show, n.service.index)
	default:
		n.service = svc
	}
}

// hasHints reports whether an HTTPS or SVCB record carries addresses (RFC 9460 section 7.3).
func hasHints(rr dns.RR) bool {
	return slices.ContainsFunc(svcParams(rr), func(v dns.SVCBKeyValue) bool {
		return v.Key() == dns.SVCB_IPV4HINT || v.Key() == dns.SVCB_IPV6HINT
	})
}

// zoneOf returns the deepest zone that a name lies in, or nil.
func (b *builder) zoneOf(wire string) *zoneBuilder {
	var deepest *zoneBuilder
	for _, zb := range b.zones {
		if inside(wire, zb.apex) && (deepest == nil || zb.labels > deepest.labels) {
			deepest = zb
		}
	}
	return deepest
}

// finish packs the records of a zone.
func (b *builder) finish(zb *zoneBuilder) {
	for _, owner := range zb.order {
		n, at := zb.nodes[owner], zb.records[owner]
		for _, typ := range sortedTypes(at) {
			set, err := packSet(at[typ], zb.apex)
			if err != nil {
				b.fail("%s: %s: %s %s: %v", zb.path, at[typ][0].where, showName(owner), dns.Type(typ), err)
				continue
			}
			n.sets = append(n.sets, set)
		}
		n.cname, n.dname = n.set(dns.TypeCNAME), n.set(dns.TypeDNAME)
		if owner != zb.apex {
			n.ns = n.set(dns.TypeNS)
		}
	}
	if soa := zb.records[zb.apex][dns.TypeSOA]; len(soa) > 0 {
		neg := soa[0]
		neg.RR = dns.Copy(neg.RR)
		neg.Header().Ttl = min(neg.Header().Ttl, neg.RR.(*dns.SOA).Minttl, maxTTL)
		zb.negative, _ = packSet([]fileRecord{neg}, zb.apex) // it packs, for it did above
	}
	for _, owner := range zb.order {
		if ns := zb.nodes[owner].set(dns.TypeNS); ns != nil {
			b.addGlue(zb, owner, ns)
		}
	}
	zb.names = newNameIndex(zb.nodes)
}

// packSet packs the records of one type at one name.
func packSet(recs []fileRecord, apex string) (rrset, error) {
	ttl, _ := ttlRange(recs)
	set := rrset{typ: recs[0].Header().Rrtype, ttl: ttl}
	size := 0
	for _, rec := range recs {
		packed, err := packRecord(rec.RR, apex)
		if err != nil {
			return rrset{}, err
		}
		binary.BigEndian.PutUint32(packed.wire[recordTTL:], ttl)
		set.recs = append(set.recs, packed)
		size += 2 + len(packed.wire)
	}
	switch rr := recs[0].RR.(type) {
	case *dns.CNAME:
		wire, err := packName(rr.Target)
		if err != nil {
			return rrset{}, err
		}
		set.target = wire
	case *dns.DNAME:
		wire, err := packName(rr.Target)
		if err != nil {
			return rrset{}, err
		}
		set.target = wire
	}
	if size > maxSet {
		return rrset{}, fmt.Errorf("%d octets fit in no message", size)
	}
	if set.typ == dns.TypeNS && size > maxNSSet {
		return rrset{}, fmt.Errorf("%d octets of name servers are more than a resolver would look at (at most %d)", size, maxNSSet)
	}
	return set, nil
}

// addGlue finds the addresses of the name servers in ns.
func (b *builder) addGlue(zb *zoneBuilder, owner string, ns *rrset) {
	at := 0
	for i, rec := range zb.records[owner][dns.TypeNS] {
		place := at + 2 + recordData
		at += 2 + len(ns.recs[i].wire)
		target := wireOf(rec.RR.(*dns.NS).Ns)
		if !inside(target, zb.apex) {
			continue
		}
		required := inside(target, owner) && owner != zb.apex
		n, addresses := zb.nodes[target], 0
		if n != nil {
			for j := range n.sets {
				if isAddress(n.sets[j].typ) {
					ns.glue = append(ns.glue, glue{at: place, set: &n.sets[j], required: required})
					addresses++
				}
			}
		}
		switch {
		case addresses > 0 || b.zoneOf(target) != zb: // a zone within this one knows its own addresses
		case n != nil && n.cname != nil:
			b.warn(zb, rec.where, "the name server %s is a CNAME (RFC 2181 section 10.3)", showName(target))
		case required || owner == zb.apex:
			b.warn(zb, rec.where, "the name server %s has no address record, so that it cannot be found", showName(target))
		case zb.cutAbove(target) == "":
			b.warn(zb, rec.where, "the name server %s does not exist in the zone", showName(target))
		}
	}
}

// cutAbove returns the delegation that a name of the zone lies at or below, or "".
func (zb *zoneBuilder) cutAbove(wire string) string {
	for ; wire != zb.apex; wire = parentOf(wire) {
		if len(zb.records[wire][dns.TypeNS]) > 0 {
			return wire
		}
	}
	return ""
}
