package dns

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"gslbd/state"
)

const headerSize = 12

// The bits of the header's second and third octets.
const (
	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagCD = 1 << 4

	opcodeMask = 0xf << 11
)

// The EDNS options that are looked at (IANA DNS EDNS0 option codes).
const (
	optNSID      = 3
	optECS       = 8
	optCookie    = 10
	optKeepalive = 11
	optPadding   = 12
	optEDE       = 15
)

// The types of questions that miekg/dns does not name.
const typeNXNAME = 128 // RFC 9824

// drop is what query.parse returns for what must get no answer: a message too short to have an id, and a response,
// since answering responses can start a loop between two servers.
const drop = -1

// A query is one parsed message. It belongs to a Responder, which reuses it.
type query struct {
	id    uint16
	flags uint16

	name          name
	qtype, qclass uint16
	end           int // where the question ends in the message; 0: it could not be read

	edns    bool // there is an OPT record whose fixed part could be read
	version uint8
	do      bool
	co      bool // NXDOMAIN may be said beside a compact denial (RFC 9824 section 5.1)
	size    int  // the requester's payload size
	nsid    bool
	ecs     ecsOption
	cookie  cookieOption

	keepalive bool // the idle timeout of the connection is asked for
	padded    bool
}

// An optionSet says which options of a query are looked at; the others count as unknown.
type optionSet struct {
	ecs, cookies, keepalive bool
}

// parse reads msg and returns the rcode that the message calls for by its form alone (0: it may be answered), or drop.
// Options that are not in use are ignored, like any that is unknown.
//
// Hot path: no allocation, one pass over the message.
func (q *query) parse(msg []byte, use optionSet) int {
	q.end, q.edns, q.version, q.do, q.co, q.size, q.nsid = 0, false, 0, false, false, 0, false
	q.ecs.present, q.cookie.present, q.keepalive, q.padded = false, false, false, false
	q.qtype, q.qclass = 0, 0
	if len(msg) < headerSize {
		return drop
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	if q.flags&flagQR != 0 {
		return drop
	}
	if q.flags&opcodeMask != dns.OpcodeQuery<<11 {
		return dns.RcodeNotImplemented
	}
	off := headerSize
	switch binary.BigEndian.Uint16(msg[4:]) {
	case 0: // allowed only to ask for a cookie
	case 1:
		if off = q.name.parse(msg, headerSize); off < 0 || off+4 > len(msg) {
			return dns.RcodeFormatError
		}
		q.qtype = binary.BigEndian.Uint16(msg[off:])
		q.qclass = binary.BigEndian.Uint16(msg[off+2:])
		off += 4
		q.end = off
	default:
		return dns.RcodeFormatError // RFC 9619
	}

	bad, signed := false, false
	for section := 0; section < 3; section++ {
		for left := binary.BigEndian.Uint16(msg[6+2*section:]); left > 0; left-- {
			fixed := skipName(msg, off)
			if fixed < 0 || fixed+10 > len(msg) {
				return dns.RcodeFormatError
			}
			rtype := binary.BigEndian.Uint16(msg[fixed:])
			data := fixed + 10
			end := data + int(binary.BigEndian.Uint16(msg[fixed+8:]))
			switch rtype {
			case dns.TypeOPT:
				// RFC 6891 section 6.1.1: at most one, in the additional section, owned by the root.
				if section != 2 || q.edns || fixed != off+1 {
					return dns.RcodeFormatError
				}
				q.edns = true
				q.size = int(binary.BigEndian.Uint16(msg[fixed+2:]))
				q.version = msg[fixed+5]
				q.do = msg[fixed+6]&0x80 != 0
				q.co = msg[fixed+6]&0x40 != 0
				if end > len(msg) {
					return dns.RcodeFormatError
				}
				// The options of a version that we do not know may have another form.
				if q.version == 0 && !q.options(msg[data:end], use) {
					bad = true
				}
			case dns.TypeTSIG:
				// RFC 8945 section 5.1: the last record of the message.
				if section != 2 || left != 1 {
					return dns.RcodeFormatError
				}
				signed = true
			}
			if end > len(msg) {
				return dns.RcodeFormatError
			}
			off = end
		}
	}
	switch {
	case bad, off != len(msg):
		return dns.RcodeFormatError
	case q.version > 0:
		return dns.RcodeBadVers
	case signed:
		return dns.RcodeNotAuth // we share no key with anybody
	case q.end == 0 && !q.cookie.present:
		return dns.RcodeFormatError // RFC 9619
	}
	return dns.RcodeSuccess
}

// family returns which addresses a query for addresses asks for.
func (q *query) family() state.Family {
	if q.qtype == dns.TypeAAAA {
		return state.V6
	}
	return state.V4
}

// options reads the options of an OPT record and reports whether they are well formed. Unknown ones are ignored. It reads
// on after one that is not, since the reply to that owes a cookie too.
func (q *query) options(b []byte, use optionSet) bool {
	ok := true
	for len(b) > 0 {
		if len(b) < 4 {
			return false
		}
		code, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < 4+n {
			return false
		}
		switch code {
		case optNSID:
			q.nsid = true
		case optECS:
			if use.ecs && (q.ecs.present || !q.ecs.parse(b[4:4+n])) {
				q.ecs.present, ok = false, false
			}
		case optCookie:
			// Of several the first counts (RFC 7873 section 5.2).
			if use.cookies && !q.cookie.present && !q.cookie.parse(b[4:4+n]) {
				ok = false
			}
		case optKeepalive:
			// A client is to send it empty. A timeout in it means nothing; other lengths are no form of it (RFC 7828
			// section 3.1).
			if use.keepalive {
				q.keepalive = n == 0 || n == 2
				ok = ok && q.keepalive
			}
		case optPadding:
			q.padded = true
		}
		b = b[4+n:]
	}
	return ok
}

// skipName returns the offset after the name at off, which may end in a pointer to what stands before it; -1 if it is
// malformed. The pointer is not followed: nothing depends on the owner of the records of a query.
func skipName(msg []byte, off int) int {
	for n := 0; off < len(msg) && n < maxName; {
		switch l := int(msg[off]); {
		case l == 0:
			return off + 1
		case l >= 0xc0:
			if off+2 > len(msg) || int(binary.BigEndian.Uint16(msg[off:])&0x3fff) >= off {
				return -1
			}
			return off + 2
		case l > maxLabel:
			return -1
		default:
			off += 1 + l
			n += 1 + l
		}
	}
	return -1
}
