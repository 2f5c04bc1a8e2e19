package probes

import "net/netip"

// A datagram is what receive returns.
type datagram struct {
	payload []byte // valid until the next receive
	from    netip.AddrPort
	at      int64 // when the kernel received it, in wall clock nanoseconds; 0: unknown
	quote   bool  // an ICMP error: payload is our own datagram, as far as it was quoted, and from whom it was for
}
