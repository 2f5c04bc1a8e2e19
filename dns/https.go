package dns

import (
	"encoding/binary"
	"fmt"

	"github.com/miekg/dns"

	"gslbd/policy"
	"gslbd/state"
)

// The keys of the parameters of an HTTPS record (RFC 9460 section 14.3.2), in the order in which they must stand.
const (
	svcALPN     = 1
	svcIPv4Hint = 4
	svcIPv6Hint = 6
)

// packALPN returns the value of alpn: each identifier after its length (RFC 9460 section 7.1.1).
func packALPN(ids []string) ([]byte, error) {
	var b []byte
	for _, id := range ids {
		if len(id) == 0 || len(id) > 255 {
			return nil, fmt.Errorf("%q has not 1 to 255 octets", id)
		}
		b = append(append(b, byte(len(id))), id...)
	}
	return b, nil
}

// https answers with the HTTPS record of a service, `1 . alpn=... ipv4hint=... ipv6hint=...`. The hints are the
// addresses that questions for A and AAAA by this client would get now; a family that the policy has no member for gets
// no hint. Where neither has one there is no record: it would promise protocols of which nobody could be asked.
//
// The decisions are only looked at: a client asks for the addresses as well, and that answer is what advances the
// rotation and the counters. So the hints are those of the turn that comes next.
//
// Hot path: two decisions of the chain at most.
func (r *Responder) https(z *zone, s *service, nm *name) {
	if int(s.index) >= len(r.snap.Services) {
		r.fail()
		return
	}
	svc := r.snap.Services[s.index]
	chain, ok := svc.Chain.(*policy.Chain)
	if !ok {
		r.fail()
		return
	}
	if r.store != nil {
		r.store.Asked(r.ldns, svc)
	}
	var hints [2][policy.MaxAnswers]*state.Member
	var count [2]int
	ttl, failing := uint32(maxTTL), true
	for f := range count {
		if !s.has[f] {
			continue
		}
		family := state.Family(f)
		r.consult(svc, chain, family, svc.Rotation.Turn[f].Load())
		d := &r.decided
		ttl, failing = min(ttl, d.TTL), failing && d.Kind == policy.ServFail
		if d.Kind != policy.Answer {
			continue
		}
		r.annotate(svc, d)
		for _, m := range d.Members[:d.N] {
			hints[f][count[f]] = m
			count[f]++
		}
	}
	if count == [2]int{} {
		r.ede = edeNoMember
		if failing {
			r.fail()
		} else {
			r.negative(z, ttl, dns.TypeHTTPS)
		}
		return
	}

	const head = 2 + 1 // priority and target
	size := head + 4 + len(s.alpn)
	for f, width := range [2]int{4, 16} {
		if count[f] > 0 {
			size += 4 + width*count[f]
		}
	}
	start := r.n
	if !r.putHead(nm.at, dns.TypeHTTPS, dns.ClassINET, ttl, size) {
		r.tc = true
		return
	}
	b := r.buf[r.n : r.n : r.n+size]
	b = append(b, 0, 1, 0)
	b = binary.BigEndian.AppendUint16(b, svcALPN)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.alpn)))
	b = append(b, s.alpn...)
	if count[state.V4] > 0 {
		b = binary.BigEndian.AppendUint16(b, svcIPv4Hint)
		b = binary.BigEndian.AppendUint16(b, uint16(4*count[state.V4]))
		for _, m := range hints[state.V4][:count[state.V4]] {
			a := m.Addr[state.V4].As4()
			b = append(b, a[:]...)
			m.HandedOut.Mark(r.now, ttl)
		}
	}
	if count[state.V6] > 0 {
		b = binary.BigEndian.AppendUint16(b, svcIPv6Hint)
		b = binary.BigEndian.AppendUint16(b, uint16(16*count[state.V6]))
		for _, m := range hints[state.V6][:count[state.V6]] {
			a := m.Addr[state.V6].As16()
			b = append(b, a[:]...)
			m.HandedOut.Mark(r.now, ttl)
		}
	}
	r.n += len(b)
	r.an++
	r.sign(&r.an, start, nm.at, nm.labels, nil)
}
