package dns

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"github.com/dchest/siphash"
)

// MaxCookieSecrets is how many secrets may be in force: the one that makes cookies, and those of before and after it
// while a fleet rolls over.
const MaxCookieSecrets = 3

const (
	clientCookie = 8                 // octets (RFC 7873 section 4)
	serverCookie = 16                // octets of those that we make (RFC 9018 section 4)
	maxCookie    = clientCookie + 32 // octets of the longest that anybody may make

	cookieVersion = 1 // RFC 9018 section 4.1

	// RFC 9018 section 4.3, in seconds: a cookie counts for so long, may come from a server whose clock is so far ahead,
	// and is renewed when it is older.
	cookieLife  = 3600
	cookieAhead = 300
	cookieRenew = 1800
)

// CookieOptions say whether there are DNS cookies (RFC 7873), and with what secrets.
type CookieOptions struct {
	Enabled bool

	// Secrets: the first makes cookies; the cookies of the others are accepted too. What goes beyond MaxCookieSecrets
	// has no effect. None: one that the server makes up, which no other server knows and no restart survives.
	Secrets [][16]byte
}

// A cookieSecret is a key of SipHash-2-4.
type cookieSecret struct{ k0, k1 uint64 }

// cookieSecrets are those in force, immutable; nil: no cookies.
type cookieSecrets struct {
	n   int
	all [MaxCookieSecrets]cookieSecret
}

// newCookieSecrets prepares what opts ask for, with own in the place of secrets that are not given.
func newCookieSecrets(opts CookieOptions, own [16]byte) *cookieSecrets {
	if !opts.Enabled {
		return nil
	}
	given := opts.Secrets
	if len(given) == 0 {
		given = [][16]byte{own}
	}
	s := &cookieSecrets{}
	for _, secret := range given[:min(len(given), MaxCookieSecrets)] {
		s.all[s.n] = cookieSecret{binary.LittleEndian.Uint64(secret[:8]), binary.LittleEndian.Uint64(secret[8:])}
		s.n++
	}
	return s
}

// equal reports whether both are the same.
func (s *cookieSecrets) equal(o *cookieSecrets) bool {
	if s == nil || o == nil {
		return s == o
	}
	return *s == *o
}

// count returns how many there are; nil has none.
func (s *cookieSecrets) count() int {
	if s == nil {
		return 0
	}
	return s.n
}

// randomSecret makes up a secret.
func randomSecret() (secret [16]byte) {
	_, _ = rand.Read(secret[:]) // it never fails
	return secret
}

// A cookieOption is the first cookie option of a query. What a reply brings is made in its place.
type cookieOption struct {
	present bool
	n       int // octets of data in use
	data    [maxCookie]byte
}

// parse reads the option's data and reports whether it has a length that RFC 7873 section 5.2.2 allows.
func (c *cookieOption) parse(data []byte) bool {
	if n := len(data); n != clientCookie && n < clientCookie+8 || n > maxCookie {
		return false
	}
	c.present, c.n = true, copy(c.data[:], data)
	return true
}

// size returns the octets of the option in a reply.
func (c *cookieOption) size() int { return 4 + clientCookie + serverCookie }

// put writes the option for a reply into b, which answer has made, and returns the octets written.
func (c *cookieOption) put(b []byte) int {
	binary.BigEndian.PutUint16(b, optCookie)
	binary.BigEndian.PutUint16(b[2:], clientCookie+serverCookie)
	return 4 + copy(b[4:], c.data[:clientCookie+serverCookie])
}

// The verdicts on the cookie of a query.
const (
	cookieClient  = iota // it has no server cookie yet
	cookieValid          // its server cookie is one of ours
	cookieInvalid        // it is not: forged, too old, of another address or of another secret
	cookieVerdicts
)

var cookieNames = [cookieVerdicts]string{"client", "valid", "invalid"}

// answer judges the cookie that a query from addr brought, and turns it into the one for the reply: the same if it is
// valid and young, else a new one.
//
// Hot path: one to four SipHash of at most 32 octets, no allocation.
func (c *cookieOption) answer(secrets *cookieSecrets, addr netip.Addr, now uint32) int {
	verdict := cookieClient
	if c.n > clientCookie {
		verdict = cookieInvalid
	}
	if c.n == clientCookie+serverCookie && c.data[clientCookie] == cookieVersion {
		// The times are serial numbers (RFC 1982): 32 bits run over in 2106.
		age := int32(now - binary.BigEndian.Uint32(c.data[clientCookie+4:]))
		if age <= cookieLife && age >= -cookieAhead {
			sent := binary.LittleEndian.Uint64(c.data[clientCookie+8:])
			for i, secret := range secrets.all[:secrets.n] {
				// The reserved octets count as they came (RFC 9018 section 4.2).
				if secret.hash(c, addr) != sent {
					continue
				}
				if i == 0 && age <= cookieRenew {
					return cookieValid
				}
				verdict = cookieValid
				break
			}
		}
	}
	binary.BigEndian.PutUint32(c.data[clientCookie:], cookieVersion<<24)
	binary.BigEndian.PutUint32(c.data[clientCookie+4:], now)
	binary.LittleEndian.PutUint64(c.data[clientCookie+8:], secrets.all[0].hash(c, addr))
	return verdict
}

// hash returns the last 8 octets of a server cookie, the first octet lowest: SipHash-2-4 of client cookie, version,
// reserved octets, time and the client's address (RFC 9018 section 4.4).
func (s cookieSecret) hash(c *cookieOption, addr netip.Addr) uint64 {
	var b [clientCookie + 8 + 16]byte
	n := copy(b[:], c.data[:clientCookie+8])
	if addr.Is4() {
		a := addr.As4()
		n += copy(b[n:], a[:])
	} else {
		a := addr.As16()
		n += copy(b[n:], a[:])
	}
	return siphash.Hash(s.k0, s.k1, b[:n])
}
