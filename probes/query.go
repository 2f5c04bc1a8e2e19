package probes

import "encoding/binary"

const dnsHeader = 12

// rootNS is the question of a DNS probe: the name servers of the root, which every resolver has at hand. RD is clear,
// so that it answers from what it has: what a recursion takes is no distance.
const rootNS = "\x00\x00\x02\x00\x01"

// appendQuery appends the query of a DNS probe (RFC 1035 section 4.1).
func appendQuery(b []byte, id uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	return append(b, rootNS...)
}

// parseReply reads the id of a reply to such a query. Any response code and any records will do: a resolver that
// refuses us is as far away as one that answers.
func parseReply(b []byte) (id uint16, ok bool) {
	const responseAndOpcode = 0xf8
	if len(b) < dnsHeader+len(rootNS) || b[2]&responseAndOpcode != 0x80 || b[4] != 0 || b[5] != 1 ||
		string(b[dnsHeader:dnsHeader+len(rootNS)]) != rootNS {
		return 0, false
	}
	return binary.BigEndian.Uint16(b), true
}
