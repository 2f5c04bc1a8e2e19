package dns

import (
	"slices"

	"github.com/miekg/dns"

	"gslbd/state"
)

// deny adds the NSEC record that proves, by compact denial (RFC 9824), what does not exist at r.owner's last labels, which
// stand at place: it speaks of this name alone, so that no resolver can infer anything about another one from it (RFC
// 8198). It reports false if the reply is done.
func (r *Responder) deny(z *zone, place, labels int, ttl uint32, omit uint16) bool {
	start := r.n
	if !r.putDenial(z, place, labels, ttl, omit) {
		return false
	}
	r.ns++
	return r.sign(&r.ns, start, place, labels, nil)
}

// delegationSigner adds the DS records of a delegation, or the proof that it has none.
func (r *Responder) delegationSigner(z *zone, n *node, place, labels int) bool {
	ds, start := n.set(dns.TypeDS), r.n
	if ds == nil {
		return r.deny(z, place, labels, z.negative.ttl, 0)
	}
	if !r.put(place, ds) {
		r.tc = true
		return false
	}
	r.ns += uint16(len(ds.recs))
	return r.sign(&r.ns, start, place, labels, ds)
}

// explicit answers a question for NSEC, or for RRSIG: with the signature of the NSEC record, of all that there could be
// (RFC 8482 section 4.1 has the same for ANY). Both exist at every name.
func (r *Responder) explicit(z *zone, nm *name) {
	start := r.n
	if !r.putDenial(z, nm.at, nm.labels, z.negative.ttl, 0) {
		return
	}
	if r.q.qtype == dns.TypeNSEC {
		r.an++
		r.sign(&r.an, start, nm.at, nm.labels, nil)
		return
	}
	s := r.signature(start, nm.labels, nil)
	if s == nil {
		return
	}
	r.n = start
	if !r.put(nm.at, &s.set) {
		r.tc = true
		return
	}
	r.an += uint16(len(s.set.recs))
}

// putDenial writes the NSEC record of r.owner's last labels, or marks the reply as truncated.
func (r *Responder) putDenial(z *zone, place, labels int, ttl uint32, omit uint16) bool {
	b := appendSuccessor(r.denial[:0], r.owner.suffix(labels), z.labels)
	r.types = r.existing(z, r.types[:0], omit)
	r.denial = appendTypes(b, r.types)
	if !r.putBytes(place, dns.TypeNSEC, dns.ClassINET, ttl, r.denial) {
		r.tc = true
		return false
	}
	return true
}

// existing appends the types that exist at r.node by the configuration, whatever is up now, in order; without omit, which
// is denied now for a short while. A resolver may use the proof for every type that is not listed.
func (r *Responder) existing(z *zone, types []uint16, omit uint16) []uint16 {
	switch n := r.node; {
	case n == nil:
		types = append(types, dns.TypeNXNAME)
	case n.ns != nil || n.apex:
		// All else there is another zone's.
		types = append(types, dns.TypeNS)
		if n.set(dns.TypeDS) != nil {
			types = append(types, dns.TypeDS)
		}
	default:
		for i := range n.sets {
			types = append(types, n.sets[i].typ)
		}
		if s := n.service; s != nil {
			if s.cname {
				types = append(types, dns.TypeCNAME)
			}
			if s.has[state.V4] {
				types = append(types, dns.TypeA)
			}
			if s.has[state.V6] {
				types = append(types, dns.TypeAAAA)
			}
			if s.alpn != nil && (s.has[state.V4] || s.has[state.V6]) {
				types = append(types, dns.TypeHTTPS)
			}
		}
		if n == z.top {
			for i := range r.keys.sets {
				types = append(types, r.keys.sets[i].typ)
			}
		}
	}
	types = append(types, dns.TypeRRSIG, dns.TypeNSEC)
	slices.Sort(types)
	types = slices.Compact(types)
	if i := slices.Index(types, omit); i >= 0 {
		types = slices.Delete(types, i, i+1)
	}
	return types
}

// appendTypes appends the type bit maps of an NSEC record (RFC 4034 section 4.1.2). The types are in order.
func appendTypes(b []byte, types []uint16) []byte {
	for len(types) > 0 {
		window := types[0] >> 8
		b = append(b, byte(window), 0)
		at := len(b)
		for ; len(types) > 0 && types[0]>>8 == window; types = types[1:] {
			low := int(types[0] & 0xff)
			for len(b) <= at+low/8 {
				b = append(b, 0)
			}
			b[at+low/8] |= 0x80 >> (low % 8)
		}
		b[at-1] = byte(len(b) - at)
	}
	return b
}

// appendSuccessor appends the name that follows wire at once in canonical order (RFC 4471 section 3.1.2): no name can
// lie between. wire is in lower case and has at least apex labels; those stay as they are.
func appendSuccessor(b, wire []byte, apex int) []byte {
	if len(wire)+2 <= maxName {
		return append(append(b, 1, 0), wire...)
	}
	labels := countLabels(string(wire))
	for ; labels > apex; labels-- {
		size := int(wire[0])
		label, rest := wire[1:1+size], wire[1+size:]
		if size < maxLabel && len(wire) < maxName {
			b = append(append(b, byte(size+1)), label...)
			return append(append(b, 0), rest...)
		}
		end := size
		for end > 0 && label[end-1] == 0xff {
			end--
		}
		if end > 0 {
			b = append(append(b, byte(end)), label[:end]...)
			if c := &b[len(b)-1]; *c == 'A'-1 {
				*c = 'Z' + 1 // letters count as lower case
			} else {
				*c++
			}
			return append(b, rest...)
		}
		wire = rest
	}
	return append(b, wire...) // the last name of the zone is followed by its apex
}
