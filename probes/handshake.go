package probes

import (
	"errors"
	"time"
)

// maxConnections bounds the TCP probes in flight, each of which is a descriptor: what 250 silent resolvers a second take.
const maxConnections = 1000

// errNoRoom says that maxConnections are in flight.
var errNoRoom = errors.New("probes: too many TCP probes in flight")

// A handshake is what became of a TCP probe.
type handshake struct {
	decided bool
	refused bool          // nothing that measures the way there: an ICMP error, or a SYN that was sent again
	rtt     time.Duration // the kernel's, of a connection; 0: there is none, as of a reset
}
