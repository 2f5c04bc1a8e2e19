package dns

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"gslbd/policy"
	"gslbd/state"
)

// An extendedError tells the asker's operator more than the rcode does (RFC 8914). Anybody can read it, so that it names
// nothing of the inside.
type extendedError struct {
	code uint16
	text string
}

// The extended errors. What becomes of members has no code of its own: those of RFC 8914 that sound alike (stale answer,
// no reachable authority) speak of a resolver's cache and of name servers, and monitoring would read them so.
var (
	edeNoMember     = &extendedError{dns.ExtendedErrorCodeOther, "no member of the service can answer"}
	edeAllDown      = &extendedError{dns.ExtendedErrorCodeOther, "all members down, answering all (on_all_down)"}
	edeLastResort   = &extendedError{dns.ExtendedErrorCodeOther, "all members down, answering as last resort (on_all_down)"}
	edeBlind        = &extendedError{dns.ExtendedErrorCodeOther, "no measurements arrive, answering by the last ones"}
	edeNotReady     = &extendedError{dns.ExtendedErrorCodeNotReady, ""}
	edeNoTransfer   = &extendedError{dns.ExtendedErrorCodeProhibited, "no zone transfers"}
	edeNotAuthority = &extendedError{dns.ExtendedErrorCodeNotAuthoritative, ""}
	edeNotSupported = &extendedError{dns.ExtendedErrorCodeNotSupported, ""}
)

// size returns the octets of the option.
func (e *extendedError) size() int { return 6 + len(e.text) }

// put writes the option into b and returns the octets written.
func (e *extendedError) put(b []byte) int {
	binary.BigEndian.PutUint16(b, optEDE)
	binary.BigEndian.PutUint16(b[2:], uint16(2+len(e.text)))
	binary.BigEndian.PutUint16(b[4:], e.code)
	return 6 + copy(b[6:], e.text)
}

// annotate chooses the extended error of an answer that a service's policy gave.
func (r *Responder) annotate(svc *state.Service, d *policy.Decision) {
	switch {
	case d.AllDown && d.Kind == policy.Answer && svc.OnAllDown == state.AllDownAll:
		r.ede = edeAllDown
	case d.AllDown && (d.Kind == policy.Answer || d.Kind == policy.LastResort):
		r.ede = edeLastResort
	case r.snap.Blind && r.ede == nil:
		r.ede = edeBlind
	}
}
