package dns

import (
	"math"
	"net/netip"

	"github.com/miekg/dns"
	"go.uber.org/zap"

	"gslbd/policy"
)

// sampled decides by chance whether the present query is logged.
func (r *Responder) sampled() bool {
	return float64(r.rand.Uint64()>>11) < r.queryLog*(1<<53)
}

// logQuery writes the query that was just answered to the log. It allocates; it runs only for sampled queries.
func (r *Responder) logQuery(local netip.AddrPort, tcp bool) {
	rcode := rcodeName(rcodes - 1)
	if r.rcode < len(rcodeIndexes) {
		rcode = rcodeName(int(rcodeIndexes[r.rcode]))
	}
	fields := []zap.Field{
		zap.String("transport", transportNames[r.transport(tcp)]),
		zap.Stringer("local", local),
		zap.Stringer("ldns", r.ldns),
		zap.String("rcode", rcode),
		zap.Bool("truncated", r.tc),
	}
	if r.q.end > 0 {
		fields = append(fields,
			zap.String("name", showName(string(r.q.name.wire[:r.q.name.n]))),
			zap.String("type", dns.Type(r.q.qtype).String()))
	}
	if r.q.ecs.present && r.q.ecs.prefix.IsValid() {
		fields = append(fields, zap.Stringer("ecs", r.q.ecs.prefix), zap.Uint8("scope", r.scope))
	}
	if svc := r.service; svc != nil {
		fields = append(fields, zap.String("service", svc.Name), zap.Stringer("reason", r.decided.Reason))
		if r.decided.Kind == policy.Answer && r.decided.N > 0 {
			fields = append(fields, zap.String("member", r.decided.Members[0].Name))
		}
	}
	r.log.Info("query", fields...)
}

// validShare reports whether a share of queries can be sampled.
func validShare(share float64) bool { return !math.IsNaN(share) && share >= 0 && share <= 1 }
