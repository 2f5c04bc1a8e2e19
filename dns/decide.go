package dns

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
	"go.uber.org/zap"

	"gslbd/policy"
	"gslbd/state"
)

// decide answers for a service by its policy, under the name nm. It returns the CNAME target that the chosen member
// has, with r.target.at set to where it stands; nil if the reply is done.
//
// Hot path: one decision of the chain. The counters that it advances are atomic.
func (r *Responder) decide(z *zone, s *service, nm *name) []byte {
	family := r.q.family()
	if !s.cname && !s.has[family] {
		r.negative(z, maxTTL, 0) // no member ever has an address of this family: plain NODATA
		return nil
	}
	if int(s.index) >= len(r.snap.Services) {
		r.fail()
		return nil
	}
	svc := r.snap.Services[s.index]
	chain, ok := svc.Chain.(*policy.Chain)
	if !ok {
		r.fail()
		return nil
	}
	r.consult(svc, chain, family, svc.Rotation.Turn[family].Add(1)-1)
	d := &r.decided
	r.account(s, svc, family)
	r.annotate(svc, d)

	before, start := r.an, r.n
	switch d.Kind {
	case policy.Answer:
		if d.N > 0 && !d.Address(0, family).IsValid() { // it has a CNAME target instead
			return r.putTarget(s, nm)
		}
		for i := range d.N {
			if !r.putAddress(nm.at, d.Address(i, family), d.TTL) {
				return nil
			}
			d.Counts(i).HandedOut.Mark(r.now, d.TTL)
		}
	case policy.LastResort:
		for _, addr := range svc.LastResort {
			if r.q.qtype != addressType(addr) {
				continue
			}
			if !r.putAddress(nm.at, addr, d.TTL) {
				return nil
			}
			for _, m := range svc.Members { // the address may be a member's as well
				if m.Addr[family] == addr {
					m.HandedOut.Mark(r.now, d.TTL)
				}
			}
		}
	case policy.ServFail:
		r.ede = edeNoMember
		r.fail()
		return nil
	}
	if r.an == before {
		r.ede = edeNoMember
		omit := r.q.qtype
		if s.cname {
			omit = dns.TypeCNAME
		}
		r.negative(z, d.TTL, omit)
		return nil
	}
	r.sign(&r.an, start, nm.at, nm.labels, nil)
	return nil
}

// consult has the chain of svc decide for the client and one family into r.decided, in a turn of the rotation, and
// widens the reply's scope by what that depended on.
func (r *Responder) consult(svc *state.Service, chain *policy.Chain, family state.Family, turn uint64) {
	q := &r.policy
	q.Snapshot, q.Service, q.Family, q.Now = r.snap, svc, family, r.now
	q.Rand = r.rand.Uint64()
	q.Turn = turn
	q.LDNS, q.ECS = r.ldns, netip.Prefix{}
	if r.echoECS {
		q.ECS = r.q.ecs.prefix
	}
	chain.Decide(q, &r.decided)
	r.service = svc
	r.scope = max(r.scope, q.Scope)
}

// fail makes the reply SERVFAIL, without the records of the chain that led here.
func (r *Responder) fail() {
	r.rcode, r.aa = dns.RcodeServerFailure, false
	r.n, r.an = r.q.end, 0
}

func addressType(addr netip.Addr) uint16 {
	if addr.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

// putAddress writes one A or AAAA record, or marks the reply as truncated.
func (r *Responder) putAddress(owner int, addr netip.Addr, ttl uint32) bool {
	var ok bool
	if addr.Is4() {
		a := addr.As4()
		ok = r.putBytes(owner, dns.TypeA, dns.ClassINET, ttl, a[:])
	} else {
		a := addr.As16()
		ok = r.putBytes(owner, dns.TypeAAAA, dns.ClassINET, ttl, a[:])
	}
	if !ok {
		r.tc = true
		return false
	}
	r.an++
	return true
}

// putTarget writes the CNAME record of the first member and returns where it leads.
func (r *Responder) putTarget(s *service, nm *name) []byte {
	i := r.decided.Members[0].Index
	if i >= len(s.targets) || s.targets[i].target == nil {
		r.fail()
		return nil
	}
	set, start := &s.targets[i], r.n
	if !r.put(nm.at, set) {
		r.tc = true
		return nil
	}
	binary.BigEndian.PutUint32(r.buf[start+2+recordTTL:], r.decided.TTL)
	r.target.at = start + 2 + recordData
	r.decided.Members[0].HandedOut.Mark(r.now, r.decided.TTL)
	r.an++
	if !r.sign(&r.an, start, nm.at, nm.labels, set) {
		return nil
	}
	return set.target
}

// account advances what an answer advances: the rotation, the counters, and the clients that asked.
func (r *Responder) account(s *service, svc *state.Service, family state.Family) {
	d := &r.decided
	member := -1
	if d.Kind == policy.Answer && d.N > 0 {
		member = d.Index(0)
		d.Select(family)
	}
	svc.Counters.Add(r.shard, uint8(d.Reason), member)
	if r.store != nil {
		r.store.Asked(r.ldns, svc)
		r.store.Served(svc, r.ldns, r.policy.ECS, r.policy.Rand)
	}
	if s.empty[family].Load() != d.Empty && s.empty[family].CompareAndSwap(!d.Empty, d.Empty) {
		r.logEmpty(svc, family, d.Empty)
	}
}

// logEmpty tells that a service has lost its last candidate of a family, or has one again.
func (r *Responder) logEmpty(svc *state.Service, family state.Family, empty bool) {
	if empty {
		r.log.Warn("service has no candidate", zap.String("service", svc.Name), zap.Stringer("family", family))
		return
	}
	r.log.Info("service has a candidate again", zap.String("service", svc.Name), zap.Stringer("family", family))
}
