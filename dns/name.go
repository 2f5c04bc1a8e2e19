package dns

import "encoding/binary"

// The limits of RFC 1035 section 2.3.4.
const (
	maxName   = 255 // octets of a name in wire form, with the root label
	maxLabels = 128 // labels of a name, with the root label
	maxLabel  = 63
)

// A name is a domain name in wire form without compression, in lower case. Its labels are counted without the root.
type name struct {
	wire   [maxName + 1]byte // of which the last is never in use
	n      int               // octets of wire in use
	offs   [maxLabels]uint8  // where each label begins; offs[labels] is the root label's place
	labels int

	// at is where the name stands in the reply. All its labels before those of the zone's apex stand there verbatim.
	at int

	// zone is the zone that the name lies in, and hash what its index makes of the name, where they have been looked up
	// already (Responder.LookAhead).
	zone *zone
	hash uint64
}

// suffix returns the last k labels in wire form; k is at most m.labels.
func (m *name) suffix(k int) []byte { return m.wire[m.offs[m.labels-k]:m.n] }

// parse reads the name of a question at off, where no compression is allowed, and returns the offset after it; -1 if
// it is malformed.
func (m *name) parse(msg []byte, off int) int {
	m.zone = nil
	n, labels := 0, 0
	for {
		if off+n >= len(msg) {
			return -1
		}
		l := int(msg[off+n])
		if l > maxLabel || l > 0 && n+1+l >= maxName {
			return -1
		}
		m.offs[labels&(maxLabels-1)] = uint8(n) // there are no more, since each takes two octets and the root label one
		n += 1 + l
		if l == 0 {
			break
		}
		labels++
	}
	m.n, m.labels = n, labels
	copy(m.wire[:], msg[off:off+n])
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(m.wire[i:], lower8(binary.NativeEndian.Uint64(m.wire[i:])))
	}
	return off + n
}

// lower8 is lower for eight octets at once. The length octets of a name are no letters.
func lower8(w uint64) uint64 {
	const each = 0x0101010101010101
	low := w &^ (each << 7)
	// The highest bit of an octet's sum says that its other bits are at least an A, or beyond a Z.
	upper := (low + each*(0x80-'A')) &^ (low + each*(0x7f-'Z')) &^ w & (each << 7)
	return w | upper>>2
}

// lower folds the case of one octet as RFC 4343 says: of the ASCII letters only.
func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}

// lowerWire returns a wire-form name in lower case. The length octets are below 64, so that they are no letters.
func lowerWire(wire []byte) string {
	b := make([]byte, len(wire))
	for i, c := range wire {
		b[i] = lower(c)
	}
	return string(b)
}

// countLabels counts the labels of a valid wire-form name, without the root.
func countLabels(wire string) int {
	k := 0
	for i := 0; wire[i] != 0; i += 1 + int(wire[i]) {
		k++
	}
	return k
}

// parentOf returns the valid wire-form name without its first label; the root has none and returns itself.
func parentOf(wire string) string {
	if wire[0] == 0 {
		return wire
	}
	return wire[1+int(wire[0]):]
}

// inside reports whether the valid wire-form name lies at or below zone; both are in lower case.
func inside(wire, zone string) bool {
	for len(wire) > len(zone) {
		wire = parentOf(wire)
	}
	return wire == zone
}
