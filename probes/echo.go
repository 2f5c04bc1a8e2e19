package probes

import (
	"encoding/binary"
	"net/netip"
)

// The message types used here, of RFC 792 and RFC 4443.
const (
	echoReply4, unreachable4, echoRequest4, exceeded4 = 0, 3, 8, 11
	unreachable6, exceeded6, echoRequest6, echoReply6 = 1, 3, 128, 129
)

const (
	protocolICMP4 = 1
	protocolICMP6 = 58
	echoHeader    = 8
)

// A cookie is the payload of an echo. It is random, so that who has not seen the request cannot forge the reply.
type cookie [16]byte

// appendEcho appends an echo request. The checksum is that of ICMP for IPv4; for ICMPv6 the kernel fills it in.
func appendEcho(b []byte, v6 bool, id, seq uint16, c cookie) []byte {
	start := len(b)
	kind := byte(echoRequest4)
	if v6 {
		kind = echoRequest6
	}
	b = append(b, kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, seq)
	b = append(b, c[:]...)
	if !v6 {
		binary.BigEndian.PutUint16(b[start+2:], checksum(b[start:]))
	}
	return b
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// An echoAnswer is what became of an echo request: its reply, or an ICMP error that quotes the request.
type echoAnswer struct {
	id, seq   uint16
	cookie    cookie
	hasCookie bool       // an error need not quote as far as the payload
	refused   bool       // an ICMP error
	to        netip.Addr // of an error: whom the request was for
}

// parseEchoAnswer reads a message as it comes from the socket: with withHeader (raw IPv4 sockets) after an IP header.
// It accepts echo replies, destination unreachable and time exceeded.
func parseEchoAnswer(b []byte, v6, withHeader bool) (echoAnswer, bool) {
	if withHeader {
		protocol, _, payload, ok := parseIPv4(b)
		if !ok || protocol != protocolICMP4 {
			return echoAnswer{}, false
		}
		b = payload
	}
	if len(b) < echoHeader {
		return echoAnswer{}, false
	}
	kind := int(b[0])
	if (v6 && kind == echoReply6) || (!v6 && kind == echoReply4) {
		return parseEcho(b, b[0])
	}
	var quote []byte
	var to netip.Addr
	switch {
	case !v6 && (kind == unreachable4 || kind == exceeded4):
		protocol, destination, payload, ok := parseIPv4(b[echoHeader:])
		if !ok || protocol != protocolICMP4 {
			return echoAnswer{}, false
		}
		quote, to = payload, destination
	case v6 && (kind == unreachable6 || kind == exceeded6):
		header := b[echoHeader:]
		if len(header) < 40 || header[0]>>4 != 6 || header[6] != protocolICMP6 {
			return echoAnswer{}, false
		}
		quote, to = header[40:], netip.AddrFrom16([16]byte(header[24:40]))
	default:
		return echoAnswer{}, false
	}
	return parseQuote(quote, v6, to)
}

// parseQuote reads the beginning of our own echo request out of an ICMP error.
func parseQuote(b []byte, v6 bool, to netip.Addr) (echoAnswer, bool) {
	kind := byte(echoRequest4)
	if v6 {
		kind = echoRequest6
	}
	a, ok := parseEcho(b, kind)
	a.refused, a.to = true, to
	return a, ok
}

// parseEcho reads an echo message of the given type.
func parseEcho(b []byte, kind byte) (echoAnswer, bool) {
	if len(b) < echoHeader || b[0] != kind || b[1] != 0 {
		return echoAnswer{}, false
	}
	a := echoAnswer{id: binary.BigEndian.Uint16(b[4:]), seq: binary.BigEndian.Uint16(b[6:])}
	a.hasCookie = copy(a.cookie[:], b[echoHeader:]) == len(a.cookie)
	return a, true
}

// parseIPv4 splits a packet, which may be cut off after its header.
func parseIPv4(b []byte) (protocol int, destination netip.Addr, payload []byte, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return 0, netip.Addr{}, nil, false
	}
	header := int(b[0]&0x0f) * 4
	if header < 20 || header > len(b) {
		return 0, netip.Addr{}, nil, false
	}
	return int(b[9]), netip.AddrFrom4([4]byte(b[16:20])), b[header:], true
}
