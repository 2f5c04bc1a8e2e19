package probes

import (
	"context"
	"strings"

	"github.com/miekg/dns"
)

// checkDNS asks one question over UDP. NOERROR with at least one answer record, or with the answer left out for want
// of space (TC), is success.
func checkDNS(ctx context.Context, c Check) Outcome {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(c.DNSName), dns.StringToType[strings.ToUpper(c.DNSType)])
	query.SetEdns0(1232, false)
	packed, err := query.Pack()
	if err != nil {
		return Outcome{Err: "cannot be run: " + err.Error(), Unrunnable: true}
	}
	conn, err := dial(ctx, "udp", c)
	if err != nil {
		return failure(err, c, false)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(packed); err != nil {
		return failure(err, c, false)
	}
	buf := make([]byte, maxAnswer)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return failure(err, c, false)
		}
		reply := new(dns.Msg)
		if err := reply.Unpack(buf[:n]); err != nil || !answers(query, reply) {
			continue // late, forged or garbled: the right one may still come
		}
		switch {
		case reply.Rcode != dns.RcodeSuccess:
			return Outcome{Err: "DNS " + dns.RcodeToString[reply.Rcode]}
		case len(reply.Answer) == 0 && !reply.Truncated:
			return Outcome{Err: "DNS: no " + strings.ToUpper(c.DNSType) + " record"}
		}
		return Outcome{OK: true}
	}
}

// answers says whether reply is an answer to query: its id, and its question if it repeats one, as a server that
// could not read the query does not.
func answers(query, reply *dns.Msg) bool {
	if reply.Id != query.Id || !reply.Response || reply.Opcode != dns.OpcodeQuery {
		return false
	}
	if len(reply.Question) == 0 {
		return reply.Rcode != dns.RcodeSuccess
	}
	got, want := reply.Question[0], query.Question[0]
	return len(reply.Question) == 1 && strings.EqualFold(got.Name, want.Name) && got.Qtype == want.Qtype && got.Qclass == want.Qclass
}
