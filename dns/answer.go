package dns

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"gslbd/policy"
	"gslbd/state"
)

const (
	// maxChain is how many CNAME and DNAME records of a chain one reply follows; a resolver asks on from there.
	maxChain = 16

	// minPayload is what every requester can receive over UDP (RFC 1035 section 4.2.1, RFC 6891 section 6.2.3).
	minPayload = 512

	// anyTTL is the TTL in seconds of the HINFO record that answers ANY (RFC 8482 section 4.2).
	anyTTL = 3600
)

// anyData is the data of that record.
const anyData = "\x07RFC8482\x00"

// A Responder turns queries into replies. It belongs to one goroutine at a time, and owns the scratch that this takes.
type Responder struct {
	// Fixed at construction.
	store      *state.Store // nil: what the tests put into snap
	ecs        bool
	maxPayload int
	nsid       []byte
	version    []byte
	keepalive  uint16 // the idle timeout of TCP connections in units of 100 ms
	secrets    *atomic.Pointer[cookieSecrets]
	shard      int
	queryLog   float64
	tap        *tap // nil: dnstap is off
	log        *zap.Logger
	count      *counters
	duration   prometheus.Histogram // nil: not measured
	limiter    *limiter
	signer     *signer
	ahead      *ahead // nil: it never had to look ahead

	answered uint64 // queries, for the choice of those measured

	// Of the connection, set by who serves it.
	encrypted bool // the batch came over TLS, which hides what replies say; set by whoever has it answered

	// Of the batch, set by Refresh.
	now     time.Time
	snap    *state.Snapshot
	tables  *Tables
	cookies *cookieSecrets // nil: there are no cookies
	limits  *limitRules    // nil: rates are not limited
	tick    int64          // now, for them
	replies tally

	// Of the query.
	q       *query // one of those that were looked ahead at, or own
	own     query
	policy  policy.Query
	decided policy.Decision
	service *state.Service // the last that decided; nil: none did
	target  name           // where the chain has led
	ldns    netip.Addr
	rand    *rand.PCG

	cookieValid bool // the query brought a server cookie of ours: its source address is no forgery
	limiting    bool // the reply is still to be counted against the client network's rate
	limited     limitAction
	limitKey    [1 + 16 + maxName]byte

	keys    *keyState // of the zone; nil: it is not signed
	secure  bool      // the reply is to have signatures
	starved bool      // there may be no further signature now
	stream  bool      // the query came over TCP
	signKey [signKeyHead + 2*signKeyData]byte
	types   []uint16 // of an NSEC record
	denial  []byte   // its data

	// Of the name that is being answered for.
	owner *name
	node  *node // nil: it does not exist
	made  bool  // the name does not stand in the zone: it does not exist, or a wildcard made it

	// Of the reply.
	buf        []byte
	n          int // octets written
	size       int // octets that the reply may take
	limit      int // octets that the records may take, without the OPT record
	apexAt     int // where the zone's apex stands
	an, ns, ar uint16
	rcode      int
	aa, tc     bool
	echoECS    bool
	scope      uint8
	ede        *extendedError // nil: none
	visited    [maxChain]*node
}

// Refresh begins a batch of queries: they are answered as of now, from the snapshot published last.
func (r *Responder) Refresh(now time.Time) {
	r.now = now
	if r.ahead != nil {
		r.ahead.forget() // what is in force may be something else
	}
	r.cookies = r.secrets.Load()
	if r.store != nil {
		r.snap = r.store.Snapshot()
	}
	if r.snap != nil {
		r.tables, _ = r.snap.Zones.(*Tables)
	}
	if r.limits = r.limiter.rules.Load(); r.limits != nil {
		r.tick = r.limiter.ticks(now)
	}
}

// release ends a batch. One that waits for the next must not keep a snapshot from being freed, since the zones and geo
// databases go with it: of many sockets and slots that are seldom used, each could keep those of another reload.
func (r *Responder) release() {
	r.replies.flush()
	if r.ahead != nil {
		r.ahead.forget()
	}
	r.snap, r.tables, r.policy.Snapshot, r.limits, r.keys, r.node = nil, nil, nil, nil, nil, nil
}

// Respond answers query, which came from remote to local, into buf and returns the size of the reply; 0 means that
// there is to be none. buf must hold at least 512 octets over UDP, and should hold 65,535 over TCP.
//
// Hot path: no allocation, lock, clock or log (unless this query is sampled for the log).
func (r *Responder) Respond(query, buf []byte, local, remote netip.AddrPort, tcp bool) int {
	if r.answered++; r.duration == nil || r.answered%durationSample != 0 {
		return r.respond(query, buf, local, remote, tcp)
	}
	start := time.Now()
	n := r.respond(query, buf, local, remote, tcp)
	r.duration.Observe(time.Since(start).Seconds())
	return n
}

func (r *Responder) respond(query, buf []byte, local, remote netip.AddrPort, tcp bool) int {
	verdict := r.read(query, tcp)
	if verdict == drop {
		r.count.dropped[dropMalformed].Add(1)
		return 0
	}
	r.begin(query, buf, tcp)
	r.ldns = remote.Addr().Unmap().WithZone("")
	if r.cookieValid = false; r.q.cookie.present {
		verdict = r.checkCookie(verdict)
	}
	r.limiting, r.limited = r.rateCounts(tcp), limitPass
	switch {
	case verdict != dns.RcodeSuccess:
		r.rcode = verdict
		r.echoECS = false
	case r.q.end > 0:
		r.resolve()
	}
	if r.limiting {
		r.overRate(limitOther, nil)
	}
	if r.starved {
		if tcp {
			return 0 // which ends the connection: it has proven its address, and still asks for too much
		}
		r.rcode, r.ede, r.tc = dns.RcodeSuccess, nil, true
	}
	switch r.limited {
	case limitDrop:
		return 0
	case limitSlip:
		// An error is as short as can be already, and would be the same over TCP.
		r.tc = r.rcode == dns.RcodeSuccess && r.q.end > 0
	}
	n := r.finish()
	r.replies.add(r.count.cell(r.transport(tcp), r.q.qtype, r.rcode))
	if r.tc {
		r.count.truncated.Add(1)
	}
	if r.queryLog > 0 && r.sampled() {
		r.logQuery(local, tcp)
	}
	if r.tap != nil && r.tapSampled() {
		r.tap.note(r, query, buf[:n], local, remote, tcp)
	}
	return n
}

// read parses a query into r.q, if that was not done when it was looked ahead at, and returns the verdict on it.
func (r *Responder) read(msg []byte, tcp bool) (verdict int) {
	if r.ahead != nil && !tcp {
		if r.q, verdict = r.ahead.take(msg); r.q != nil {
			return verdict
		}
	}
	r.q = &r.own
	return r.q.parse(msg, r.options(tcp))
}

// options returns which options of a query are looked at.
func (r *Responder) options(tcp bool) optionSet {
	return optionSet{
		ecs:       r.ecs && r.tables != nil && r.tables.ecs,
		cookies:   r.cookies != nil,
		keepalive: tcp, // RFC 7828 section 3.2.1: over UDP it is ignored
	}
}

// begin sets the reply up: the question, and room for the OPT record.
func (r *Responder) begin(query, buf []byte, tcp bool) {
	r.buf = buf
	size := 65535
	if !tcp {
		size = minPayload
		if r.q.edns {
			size = max(size, min(r.q.size, r.maxPayload))
		}
	}
	r.size = min(size, len(buf))
	r.limit = r.size
	r.an, r.ns, r.ar = 0, 0, 0
	r.rcode, r.aa, r.tc, r.ede = dns.RcodeSuccess, false, false, nil
	r.echoECS, r.scope = r.q.ecs.present, 0
	r.service = nil
	r.keys, r.secure, r.starved, r.stream = nil, false, false, tcp
	r.n = headerSize
	if r.q.end > 0 {
		r.n += copy(buf[headerSize:], query[headerSize:r.q.end])
	}
	if r.q.edns {
		r.limit -= optSize
		if r.q.nsid && len(r.nsid) > 0 {
			r.limit -= 4 + len(r.nsid)
		}
		if r.echoECS {
			r.limit -= r.q.ecs.size()
		}
		if r.q.cookie.present {
			r.limit -= r.q.cookie.size()
		}
		if r.q.keepalive {
			r.limit -= keepaliveSize
		}
	}
}

// checkCookie judges the query's cookie and readies the reply's. It returns the verdict on the query, which a wrong
// server cookie changes only where nothing but a cookie was asked for (RFC 7873 section 5.4). A question is answered as
// if it had none: a second round trip would only delay those who have moved, or ask another server of a fleet.
func (r *Responder) checkCookie(verdict int) int {
	result := r.q.cookie.answer(r.cookies, r.ldns, uint32(r.now.Unix()))
	r.count.cookies[result].Add(1)
	r.cookieValid = result == cookieValid
	if verdict == dns.RcodeSuccess && r.q.end == 0 && result == cookieInvalid {
		return dns.RcodeBadCookie
	}
	return verdict
}

// finish writes the OPT record and the header, and returns the size of the reply.
func (r *Responder) finish() int {
	if r.tc {
		r.n = r.q.end
		r.an, r.ns, r.ar = 0, 0, 0
	}
	if r.q.edns {
		r.putOPT()
	}
	b := r.buf
	flags := uint16(flagQR) | r.q.flags&(opcodeMask|flagRD) | uint16(r.rcode&0xf)
	if r.q.end > 0 {
		flags |= r.q.flags & flagCD // RFC 4035 section 3.1.6
	}
	if r.aa {
		flags |= flagAA
	}
	if r.tc {
		flags |= flagTC
	}
	questions := uint16(0)
	if r.q.end > 0 {
		questions = 1
	}
	binary.BigEndian.PutUint16(b, r.q.id)
	binary.BigEndian.PutUint16(b[2:], flags)
	binary.BigEndian.PutUint16(b[4:], questions)
	binary.BigEndian.PutUint16(b[6:], r.an)
	binary.BigEndian.PutUint16(b[8:], r.ns)
	binary.BigEndian.PutUint16(b[10:], r.ar)
	return r.n
}

// resolve answers a well-formed query.
func (r *Responder) resolve() {
	switch r.q.qclass {
	case dns.ClassINET:
	case dns.ClassCHAOS:
		r.chaos()
		return
	default:
		r.rcode, r.ede = dns.RcodeRefused, edeNotAuthority
		return
	}
	switch r.q.qtype {
	case dns.TypeAXFR, dns.TypeIXFR:
		r.rcode, r.ede = dns.RcodeRefused, edeNoTransfer
		return
	case dns.TypeOPT, dns.TypeTSIG, dns.TypeTKEY, typeNXNAME:
		r.rcode = dns.RcodeFormatError
		return
	case dns.TypeMAILA, dns.TypeMAILB:
		r.rcode, r.ede = dns.RcodeNotImplemented, edeNotSupported
		return
	}
	if r.tables == nil {
		r.rcode, r.ede = dns.RcodeServerFailure, edeNotReady
		return
	}
	nm := &r.q.name
	z := nm.zone
	if z == nil {
		z = r.tables.zoneOf(nm, nm.labels)
	}
	if z == nil {
		r.rcode, r.ede = dns.RcodeRefused, edeNotAuthority
		return
	}
	if r.q.qtype == dns.TypeDS && nm.labels == z.labels && z.labels > 0 {
		// The parent's side of the cut knows of a DS, if we serve it (RFC 4035 section 3.1.4.1).
		if parent := r.tables.zoneOf(nm, z.labels-1); parent != nil {
			z = parent
		}
	}
	if !z.ecs && r.echoECS {
		r.echoECS = false
		r.limit += r.q.ecs.size()
	}
	if z.keys != nil {
		r.keys, r.secure = z.keys.at(r.now), r.q.do
	}
	nm.at = headerSize
	r.apexAt = headerSize + int(nm.offs[nm.labels-z.labels])
	r.chase(z, nm)
}

// chase answers for nm and follows the CNAME and DNAME records that it meets within the zone.
func (r *Responder) chase(z *zone, nm *name) {
	qtype := r.q.qtype
	r.aa = true
	for step := range maxChain {
		n, labels, how := z.walk(nm, qtype == dns.TypeDS)
		if step == 0 && r.limiting && r.walkedOverRate(z, n, labels, how) {
			return
		}
		r.owner, r.node = nm, n
		r.made = how == missing || how == found && n.star && !(labels == nm.labels && nm.wire[0] == 1 && nm.wire[1] == '*')
		if r.keys != nil && how != atCut && how != atDNAME && (qtype == dns.TypeNSEC || qtype == dns.TypeRRSIG) {
			r.explicit(z, nm)
			return
		}
		switch how {
		case atCut:
			// AA speaks of the name that was asked for, which the chain's first record answers.
			r.aa = step > 0
			r.referral(z, n, r.place(z, nm, labels), labels)
			return
		case missing:
			if !r.secure || r.q.co { // else that there is no such name is told by NXNAME (RFC 9824 section 3.1)
				r.rcode = dns.RcodeNameError
			}
			r.negative(z, maxTTL, 0)
			return
		}
		for _, v := range r.visited[:step] {
			// At the owner of a DNAME itself the chain ends: it has no CNAME (RFC 6672 section 2.4).
			if v == n && (how == atDNAME || n.dname == nil) {
				return // a loop: each record is given once
			}
		}
		r.visited[step] = n

		var target []byte
		switch s := n.service; {
		case how == atDNAME:
			if target = r.redirect(z, nm, n.dname, labels); target == nil {
				return
			}
		case s != nil && (s.cname || qtype == dns.TypeA || qtype == dns.TypeAAAA):
			if target = r.decide(z, s, nm); target == nil {
				return
			}
			r.target.parse(target, 0)
		case s != nil && s.alpn != nil && qtype == dns.TypeHTTPS:
			r.https(z, s, nm)
			return
		case n.cname != nil:
			start, at := r.n, r.n+2+recordData
			if !r.put(nm.at, n.cname) {
				r.tc = true
				return
			}
			r.an++
			if !r.sign(&r.an, start, nm.at, nm.labels, n.cname) {
				return
			}
			target = n.cname.target
			r.target.parse(target, 0)
			r.target.at = at
		default:
			r.static(z, n, nm)
			return
		}
		if qtype == dns.TypeCNAME || qtype == dns.TypeANY {
			return
		}
		nm = &r.target
		if r.tables.zoneOf(nm, nm.labels) != z {
			return // a resolver would not believe us about another zone
		}
	}
}

// static answers from the records of the node.
func (r *Responder) static(z *zone, n *node, nm *name) {
	if r.q.qtype == dns.TypeANY && (len(n.sets) > 0 || n.service != nil) {
		start := r.n
		if r.putRecord(nm.at, dns.TypeHINFO, dns.ClassINET, anyTTL, anyData); !r.tc {
			r.sign(&r.an, start, nm.at, nm.labels, nil)
		}
		return
	}
	set := n.set(r.q.qtype)
	if set == nil && r.keys != nil && n == z.top {
		set = r.keys.set(r.q.qtype)
	}
	if set == nil {
		r.negative(z, maxTTL, 0)
		return
	}
	start := r.n
	if !r.put(nm.at, set) {
		r.tc = true
		return
	}
	r.an += uint16(len(set.recs))
	if r.sign(&r.an, start, nm.at, nm.labels, set) && !r.secure { // addresses would need their signatures, and nobody misses them
		r.putGlue(set, start)
	}
}

// referral points to the servers of the delegation n, whose name of some labels stands at owner. To who looks at
// signatures it shows whether the zone there is signed (RFC 4035 section 3.1.4).
func (r *Responder) referral(z *zone, n *node, owner, labels int) {
	start := r.n
	if !r.put(owner, n.ns) {
		r.tc = true
		return
	}
	r.ns += uint16(len(n.ns.recs))
	if r.secure && !r.delegationSigner(z, n, owner, labels) {
		return
	}
	r.putGlue(n.ns, start)
}

// putGlue adds the addresses of the name servers in a set that was written at start. What does not fit is left out;
// the reply is truncated only for what nobody could find without it (RFC 9471).
func (r *Responder) putGlue(ns *rrset, start int) {
	for i := range ns.glue {
		g := &ns.glue[i]
		if r.put(start+g.at, g.set) {
			r.ar += uint16(len(g.set.recs))
		} else if g.required {
			r.tc = true
			return
		}
	}
}

// negative adds the SOA record that NXDOMAIN and NODATA are cached by, with a TTL of at most ttl, and its proof. omit is the
// type that is denied only now and does else exist; 0: none is.
func (r *Responder) negative(z *zone, ttl uint32, omit uint16) {
	start := r.n
	if !r.put(r.apexAt, &z.negative) {
		r.tc = true
		return
	}
	ttl = min(ttl, z.negative.ttl)
	binary.BigEndian.PutUint32(r.buf[start+2+recordTTL:], ttl)
	r.ns++
	if r.secure && r.sign(&r.ns, start, r.apexAt, z.labels, &z.negative) {
		r.deny(z, r.owner.at, r.owner.labels, ttl, omit)
	}
}

// redirect writes the DNAME of the last labels of nm, and the CNAME that follows from it (RFC 6672 section 2.3). It
// returns where that leads, which is also in r.target; nil if the reply is done.
func (r *Responder) redirect(z *zone, nm *name, dname *rrset, labels int) []byte {
	start, at := r.n, r.place(z, nm, labels)
	if !r.put(at, dname) {
		r.tc = true
		return nil
	}
	r.an++
	if !r.sign(&r.an, start, at, labels, dname) {
		return nil
	}
	prefix := int(nm.offs[nm.labels-labels])
	if prefix+len(dname.target) > maxName {
		r.rcode = dns.RcodeYXDomain
		return nil
	}
	var wire [maxName]byte
	n := copy(wire[:], nm.wire[:prefix])
	n += copy(wire[n:], dname.target)
	owner := nm.at
	r.target.at = r.n + 2 + recordData
	if !r.putBytes(owner, dns.TypeCNAME, dns.ClassINET, dname.ttl, wire[:n]) {
		r.tc = true
		return nil
	}
	r.an++
	r.target.parse(wire[:n], 0)
	return dname.target
}

// place returns where the last k labels of nm stand in the reply.
func (r *Responder) place(z *zone, nm *name, k int) int {
	if k <= z.labels {
		return r.apexAt
	}
	return nm.at + int(nm.offs[nm.labels-k])
}

// put writes the records of a set, all owned by the name at owner, or none if they do not fit.
func (r *Responder) put(owner int, set *rrset) bool {
	start := r.n
	for i := range set.recs {
		rec := &set.recs[i]
		if r.n+2+len(rec.wire) > r.limit {
			r.n = start
			return false
		}
		b := r.buf[r.n:]
		binary.BigEndian.PutUint16(b, 0xc000|uint16(owner))
		copy(b[2:], rec.wire)
		for _, p := range rec.ptrs {
			binary.BigEndian.PutUint16(b[2+p:], 0xc000|uint16(r.apexAt))
		}
		r.n += 2 + len(rec.wire)
	}
	return true
}

// putRecord writes the one record of an answer section, or marks the reply as truncated.
func (r *Responder) putRecord(owner int, typ, class uint16, ttl uint32, data string) {
	if !r.putHead(owner, typ, class, ttl, len(data)) {
		r.tc = true
		return
	}
	r.n += copy(r.buf[r.n:], data)
	r.an++
}

// putBytes writes one record and reports whether it fitted.
func (r *Responder) putBytes(owner int, typ, class uint16, ttl uint32, data []byte) bool {
	if !r.putHead(owner, typ, class, ttl, len(data)) {
		return false
	}
	r.n += copy(r.buf[r.n:], data)
	return true
}

// putHead writes a record up to its data of size octets, if all of it fits.
func (r *Responder) putHead(owner int, typ, class uint16, ttl uint32, size int) bool {
	if r.n+2+recordData+size > r.limit {
		return false
	}
	b := r.buf[r.n:]
	binary.BigEndian.PutUint16(b, 0xc000|uint16(owner))
	binary.BigEndian.PutUint16(b[2:], typ)
	binary.BigEndian.PutUint16(b[4:], class)
	binary.BigEndian.PutUint32(b[6:], ttl)
	binary.BigEndian.PutUint16(b[10:], uint16(size))
	r.n += 2 + recordData
	return true
}

// chaos answers the questions by which a server tells about itself (RFC 4892), where that is configured.
func (r *Responder) chaos() {
	r.rcode, r.ede = dns.RcodeRefused, edeNotAuthority
	if r.q.qtype != dns.TypeTXT && r.q.qtype != dns.TypeANY {
		return
	}
	var text []byte
	switch string(r.q.name.wire[:r.q.name.n]) {
	case "\x07version\x04bind\x00", "\x07version\x06server\x00":
		text = r.version
	case "\x02id\x06server\x00", "\x08hostname\x04bind\x00":
		text = r.nsid
	}
	if len(text) == 0 {
		return
	}
	text = text[:min(len(text), 255)]
	r.rcode, r.aa, r.ede = dns.RcodeSuccess, true, nil
	if !r.putHead(headerSize, dns.TypeTXT, dns.ClassCHAOS, 0, 1+len(text)) {
		r.tc = true
		return
	}
	r.buf[r.n] = byte(len(text))
	r.n += 1 + copy(r.buf[r.n+1:], text)
	r.an++
}
