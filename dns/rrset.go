package dns

import (
	"encoding/binary"
	"fmt"

	"github.com/miekg/dns"
)

// maxSet is the size of the largest RRset that a reply over TCP can hold beside a question and an OPT record.
const maxSet = 65535 - headerSize - maxName - 4 - 512

// maxNSSet keeps the names of a set of name servers within the 16,384 octets that a compression pointer reaches, even
// after the longest chain of CNAME and DNAME records, so that their glue may point at them.
const maxNSSet = 4096

// The places within a packed record.
const (
	recordTTL  = 4  // after type and class
	recordData = 10 // after type, class, TTL and length
)

// A record is one packed record without its owner: type, class, TTL, length and data. Names within the data that may
// be compressed (RFC 3597 section 4 names the types) end in a pointer to the zone's apex, which every reply holds in
// its question; the pointers' places are listed and filled in when the record is written.
type record struct {
	wire []byte
	ptrs []uint16
}

// An rrset is all records of one type at one name.
type rrset struct {
	typ    uint16
	ttl    uint32 // seconds
	recs   []record
	target []byte // of a CNAME or DNAME: where it leads, in wire form
	glue   []glue // of NS: the addresses within the zone of the name servers
}

// A glue is the addresses of one name server of an NS set.
type glue struct {
	at       int    // where the name server's name begins, counted from where the set was written
	set      *rrset // its A or AAAA records
	required bool   // the name server lies at or below the cut, so that it is unreachable without (RFC 9471)
}

// packRecord packs rr for the zone with this apex (wire form, lower case).
func packRecord(rr dns.RR, apex string) (record, error) {
	buf := make([]byte, dns.Len(rr)+maxName)
	n, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return record{}, err
	}
	owner := 0
	for buf[owner] != 0 {
		owner += 1 + int(buf[owner])
	}
	in := buf[owner+1 : n]
	rec := record{wire: append([]byte(nil), in[:recordData]...)}
	in = in[recordData:]
	verbatim, names := 0, 0
	switch rr.Header().Rrtype {
	case dns.TypeNS, dns.TypeCNAME, dns.TypePTR:
		names = 1
	case dns.TypeMX:
		verbatim, names = 2, 1
	case dns.TypeSOA:
		names = 2
	}
	if len(in) < verbatim {
		names = 0 // no data at all, as in an RFC 3597 record of length 0
	}
	rec.wire = append(rec.wire, in[:verbatim]...)
	in = in[verbatim:]
	for ; names > 0 && len(in) > 0; names-- {
		end := 0
		for in[end] != 0 {
			end += 1 + int(in[end])
		}
		end++
		own := end
		if wire := lowerWire(in[:end]); len(apex) > 2 && inside(wire, apex) {
			own = end - len(apex)
		}
		rec.wire = append(rec.wire, in[:own]...)
		if own < end {
			rec.ptrs = append(rec.ptrs, uint16(len(rec.wire)))
			rec.wire = append(rec.wire, 0, 0)
		}
		in = in[end:]
	}
	rec.wire = append(rec.wire, in...)
	binary.BigEndian.PutUint16(rec.wire[recordData-2:], uint16(len(rec.wire)-recordData))
	return rec, nil
}

// packName returns the wire form of a name in presentation form, which need not end in a dot.
func packName(s string) ([]byte, error) {
	if _, ok := dns.IsDomainName(s); !ok || s == "" {
		return nil, fmt.Errorf("%q is not a domain name", s)
	}
	var buf [maxName + 1]byte
	n, err := dns.PackDomainName(dns.Fqdn(s), buf[:], 0, nil, false)
	if err != nil || n > maxName {
		return nil, fmt.Errorf("%q is not a domain name", s)
	}
	return append([]byte(nil), buf[:n]...), nil
}

// showName returns the presentation form of a valid wire-form name, without the final dot (but "." for the root).
func showName(wire string) string {
	s, _, err := dns.UnpackDomainName([]byte(wire), 0)
	if err != nil {
		return fmt.Sprintf("%q", wire)
	}
	if s != "." {
		s = s[:len(s)-1]
	}
	return s
}
