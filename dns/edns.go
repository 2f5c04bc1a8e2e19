package dns

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"
)

// optSize is what an OPT record takes without options.
const optSize = 11

// paddingBlock is what the size of a padded reply is a multiple of (RFC 8467 section 4.1).
const paddingBlock = 468

const (
	// keepaliveUnit is what an idle timeout is told in (RFC 7828 section 3.1).
	keepaliveUnit = 100 * time.Millisecond

	// keepaliveSize is what the option takes in a reply.
	keepaliveSize = 6
)

// putOPT writes the OPT record, for which begin kept room. An extended error and padding only take what is left.
func (r *Responder) putOPT() {
	b := r.buf[r.n:r.size]
	b[0] = 0
	binary.BigEndian.PutUint16(b[1:], dns.TypeOPT)
	binary.BigEndian.PutUint16(b[3:], uint16(r.maxPayload))
	b[5], b[6], b[7], b[8] = byte(r.rcode>>4), 0, 0, 0
	if r.q.do {
		b[7] = 0x80 // RFC 3225 section 3
	}
	if r.secure && r.q.co {
		b[7] |= 0x40 // RFC 9824 section 5.1
	}
	n := optSize
	if r.q.nsid && len(r.nsid) > 0 {
		binary.BigEndian.PutUint16(b[n:], optNSID)
		binary.BigEndian.PutUint16(b[n+2:], uint16(len(r.nsid)))
		n += 4 + copy(b[n+4:], r.nsid)
	}
	if r.echoECS {
		n += r.q.ecs.put(b[n:], r.scope)
	}
	if r.q.cookie.present {
		n += r.q.cookie.put(b[n:])
	}
	if r.q.keepalive {
		binary.BigEndian.PutUint16(b[n:], optKeepalive)
		binary.BigEndian.PutUint16(b[n+2:], 2)
		binary.BigEndian.PutUint16(b[n+4:], r.keepalive)
		n += keepaliveSize
	}
	if r.ede != nil && n+r.ede.size() <= len(b) {
		n += r.ede.put(b[n:])
	}
	if r.q.padded && r.encrypted {
		n += putPadding(b[n:], r.n+n)
	}
	binary.BigEndian.PutUint16(b[9:], uint16(n-optSize))
	r.n += n
	r.ar++
}

// putPadding fills a reply of size octets up to the next block, or to the end of b where that comes first, and returns
// the octets written. RFC 7830 section 6 forbids it where the transport is not encrypted: it would hide nothing, and
// make replies larger.
func putPadding(b []byte, size int) int {
	if len(b) < 4 {
		return 0
	}
	rest := (paddingBlock - (size+4)%paddingBlock) % paddingBlock
	n := 4 + min(rest, len(b)-4)
	clear(b[:n])
	binary.BigEndian.PutUint16(b, optPadding)
	binary.BigEndian.PutUint16(b[2:], uint16(n-4))
	return n
}
