package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/zap"

	"gslbd/state"
)

// The life of a signature. Expiries are spread, so that what was signed at the same time is not renewed at the same time.
const (
	signatureBackdate = time.Hour // before now, for resolvers whose clock is late
	signatureLife     = 7 * 24 * time.Hour
	signatureSpread   = 12 * time.Hour    // expiries are so much earlier at most
	signatureRenew    = signatureLife / 3 // what is left when one is renewed in the background
	signatureStale    = signatureLife / 6 // what is left when one is given no more: nobody has renewed it
)

// The sizes of the two tables of signatures, in sets of four.
const (
	knownSets  = 1 << 14 // 65,536 signatures of sets at names that exist: some 800 octets each, 52 MB if all are in use
	onlineSets = 1 << 13 // 32,768 of names that a query has made up: some 500 octets each, 16 MB
)

// What may be signed in a second, for each processor, in signatures of ECDSA P-256 or Ed25519 (some 65 µs): the first bounds
// what random names cost, at an eighth of the machine. The second is for what is signed once and then kept. It is reached
// only by a service whose combinations of answers are more than the table holds, and leaves a third. What comes over TCP has
// as much to itself, so that a flood from forged addresses leaves it to those who have proven theirs.
const (
	onlineRate = 2_000
	knownRate  = 10_000

	// signBurst is how many tenths of a second's worth may be signed at once.
	signBurst = 5
)

// costP384 is how many of the signatures that the rates count one of ECDSA P-384 costs.
const costP384 = 10

// signKeySize is what identifies a set in the tables: who signs, owner, type, TTL and data. Longer data is hashed.
const (
	signKeyHead = 16 + maxName + 2 + 4
	signKeyData = 1024
)

// A signature is the RRSIG records of one set of records. It is immutable but for the marks of its use.
type signature struct {
	hash uint64
	key  []byte
	set  rrset // the RRSIG records

	from, renew, stale, expires int64 // unix seconds

	// What it takes to renew it; nil: it is not worth it.
	rrs []dns.RR
	by  *keyState

	used atomic.Bool // since it came, or since all of its place were
}

// valid reports whether the signature may be given out at the time now.
func (s *signature) valid(now int64) bool { return s.from <= now && now < s.stale }

// A signatureSet is where the signatures whose hashes share some bits can be.
type signatureSet [4]atomic.Pointer[signature]

// find returns the signature with this key, or nil. Hot path: at most four pointers are followed.
func (t *signatureSet) find(hash uint64, key []byte) *signature {
	for i := range t {
		if s := t[i].Load(); s != nil && s.hash == hash && bytes.Equal(s.key, key) {
			if !s.used.Load() {
				s.used.Store(true)
			}
			return s
		}
	}
	return nil
}

// put makes room for s: in the place of an older one of the same set, of none, or of one that was not asked for again.
// So a flood of names that are asked for once displaces its own kind.
func (t *signatureSet) put(s *signature) {
	free, idle := -1, -1
	for i := range t {
		switch old := t[i].Load(); {
		case old == nil:
			free = i
		case old.hash == s.hash && bytes.Equal(old.key, s.key):
			t[i].Store(s)
			return
		case !old.used.Load():
			idle = i
		}
	}
	switch {
	case free >= 0:
		t[free].Store(s)
	case idle >= 0:
		t[idle].Store(s)
	default:
		for i := range t {
			if old := t[i].Load(); old != nil {
				old.used.Store(false)
			}
		}
		t[s.hash>>62].Store(s)
	}
}

// A signer holds the signatures that were made. All Responders of a server share it. What the tables hold is immutable
// and swapped in, so that neither finding nor adding takes a lock; two workers may sign the same set at the same time,
// and either signature is good.
type signer struct {
	// Fixed.
	seed, seed2 maphash.Seed
	log         *zap.Logger
	processors  int            // that the rates are for each of
	known       []signatureSet // of names that exist: renewed in the background
	online      []signatureSet // of names that a query has made up: made when asked for

	// Atomic.
	budgets [2]struct{ known, online signBudget } // over UDP, and over TCP
	renewed atomic.Uint64
}

func newSigner(opts Options) *signer {
	return &signer{
		processors: opts.Workers, log: opts.Log,
		seed: maphash.MakeSeed(), seed2: maphash.MakeSeed(), known: make([]signatureSet, knownSets), online: make([]signatureSet, onlineSets),
	}
}

// place returns where a signature can be.
func (g *signer) place(online bool, hash uint64) *signatureSet {
	if online {
		return &g.online[hash%onlineSets]
	}
	return &g.known[hash%knownSets]
}

// A signBudget bounds how many signatures are made in a second, as limitRules does for replies: by the time until which it is
// used up.
type signBudget struct {
	spent atomic.Int64 // unix nanoseconds
}

// take spends n signatures of those that rate allows in a second, and reports whether there were any left.
func (b *signBudget) take(now time.Time, rate, n int) bool {
	for {
		old, at := b.spent.Load(), now.UnixNano()
		spent := old
		switch ahead := time.Duration(old - at); {
		case ahead < 0 || ahead > time.Second: // more than is ever spent: the clock was set back
			spent = at
		case ahead > signBurst*time.Second/10:
			return false
		}
		if b.spent.CompareAndSwap(old, spent+int64(time.Duration(n)*time.Second/time.Duration(rate))) {
			return true
		}
	}
}

// take spends n signatures of the budget that a reply has.
func (g *signer) take(now time.Time, online, tcp bool, n int) bool {
	b := &g.budgets[overUDP]
	if tcp {
		b = &g.budgets[overTCP]
	}
	if online {
		return b.online.take(now, onlineRate*g.processors, n)
	}
	return b.known.take(now, knownRate*g.processors, n)
}

// signRRs signs records that are a set, with every one of keys. The expiry is earlier by what spread says.
func signRRs(rrs []dns.RR, name string, keys []*zoneKey, now time.Time, spread uint64) (*signature, error) {
	from := now.Add(-signatureBackdate)
	expires := now.Add(signatureLife - time.Duration(spread%uint64(signatureSpread/time.Second))*time.Second)
	s := &signature{
		set: rrset{typ: dns.TypeRRSIG}, from: from.Unix(), expires: expires.Unix(), renew: expires.Add(-signatureRenew).Unix(), stale: expires.Add(-signatureStale).Unix(),
	}
	for _, key := range keys {
		sig := &dns.RRSIG{
			Algorithm: key.key.Algorithm, KeyTag: key.tag, SignerName: name, Inception: uint32(s.from), Expiration: uint32(s.expires),
		}
		if err := sig.Sign(key.signer, rrs); err != nil {
			return nil, err
		}
		sig.Hdr.Ttl = rrs[0].Header().Ttl
		rec, err := packRecord(sig, "")
		if err != nil {
			return nil, err
		}
		s.set.recs = append(s.set.recs, rec)
	}
	return s, nil
}

// signCost is what a set of keys costs, in the unit of the rates.
func signCost(keys []*zoneKey) int {
	n := 0
	for _, key := range keys {
		if key.key.Algorithm == dns.ECDSAP384SHA384 {
			n += costP384
		} else {
			n++
		}
	}
	return n
}

// readSet unpacks the records that stand in msg from start on, as a set to be signed: its owner is written in a way that
// the library does not take for a wildcard where it is none.
func readSet(msg []byte, start int) ([]dns.RR, error) {
	var rrs []dns.RR
	for off := start; off < len(msg); {
		rr, next, err := dns.UnpackRR(msg, off)
		if err != nil {
			return nil, err
		}
		h := rr.Header()
		if rest, ok := strings.CutPrefix(h.Name, "*"); ok && !strings.HasPrefix(rest, ".") {
			h.Name = `\042` + rest
		}
		h.Name = dns.CanonicalName(h.Name)
		rrs = append(rrs, rr)
		off = next
	}
	if len(rrs) == 0 {
		return nil, fmt.Errorf("there is nothing to sign")
	}
	return rrs, nil
}

// signKeyOf identifies the set that was written at start, under the last labels of r.owner, in r.signKey: by its data as
// in set, or nil: as it stands in the reply, uncompressed. Addresses are sorted, since their order means nothing.
func (r *Responder) signKeyOf(start, labels int, set *rrset) []byte {
	typ := binary.BigEndian.Uint16(r.buf[start+2:])
	b := append(r.signKey[:0], r.keys.id[:]...)
	b = append(b, r.owner.suffix(labels)...)
	b = append(b, r.buf[start+2:start+4]...)
	b = append(b, r.buf[start+2+recordTTL:start+2+recordTTL+4]...)
	data := len(b)
	if set != nil {
		for i := range set.recs {
			b = r.addSignKey(b, data, set.recs[i].wire[recordData-2:])
		}
		return b
	}
	width := 0
	for at := start + 2; at < r.n; {
		size := int(binary.BigEndian.Uint16(r.buf[at+recordData-2:]))
		rec := r.buf[at+recordData-2 : at+recordData+size]
		b = r.addSignKey(b, data, rec)
		width = len(rec)
		at += recordData + size + 2
	}
	if isAddress(typ) {
		sortFixed(b[data:], width)
	}
	return b
}

// addSignKey adds the data of one record to the key, whose data begins at data. What gets too long is hashed, by 128 bits
// with seeds that nobody knows.
func (r *Responder) addSignKey(b []byte, data int, rec []byte) []byte {
	var sum [16]byte
	if len(b)-data > signKeyData/2 {
		b = append(b[:data], r.signer.digest(sum[:0], b[data:])...)
	}
	if len(rec) > signKeyData/2 {
		rec = r.signer.digest(sum[:0], rec)
	}
	return append(b, rec...)
}

// digest appends the hash of b, which must not share its memory with to.
func (g *signer) digest(to, b []byte) []byte {
	to = binary.BigEndian.AppendUint64(to, maphash.Bytes(g.seed, b))
	return binary.BigEndian.AppendUint64(to, maphash.Bytes(g.seed2, b))
}

// sortFixed sorts the parts of b, all of one width.
func sortFixed(b []byte, width int) {
	var swap [2 + 16]byte
	for i := width; i < len(b); i += width {
		for j := i; j > 0 && bytes.Compare(b[j-width:j], b[j:j+width]) > 0; j -= width {
			copy(swap[:], b[j:j+width])
			copy(b[j:j+width], b[j-width:j])
			copy(b[j-width:j], swap[:width])
		}
	}
}

// signature returns the signatures of the set that was just written at start, under the last labels of r.owner; set is as
// for signKeyOf. Nil means that the reply is done: there may be no further signature now, or none can be made.
//
// Hot path: one hash and at most four comparisons where the set was signed before.
func (r *Responder) signature(start, labels int, set *rrset) *signature {
	key := r.signKeyOf(start, labels, set)
	hash := maphash.Bytes(r.signer.seed, key)
	online := r.made && labels == r.owner.labels
	place := r.signer.place(online, hash)
	if s := place.find(hash, key); s != nil && s.valid(r.now.Unix()) {
		return s
	}
	keys := r.keys.signers(binary.BigEndian.Uint16(r.buf[start+2:]))
	if !r.signer.take(r.now, online, r.stream, signCost(keys)) {
		r.count.signatures[signLimited].Add(1)
		r.starved = true
		return nil
	}
	rrs, err := readSet(r.buf[:r.n], start)
	var s *signature
	if err == nil {
		s, err = signRRs(rrs, r.keys.name, keys, r.now, hash)
	}
	if err != nil {
		r.count.signatures[signFailed].Add(1)
		r.ns, r.ar = 0, 0
		r.fail()
		return nil
	}
	s.hash, s.key = hash, bytes.Clone(key)
	if !online {
		s.rrs, s.by = rrs, r.keys
	}
	place.put(s)
	r.count.signatures[signMade].Add(1)
	return s
}

// sign adds the signatures of the set that was just written at start, if the reply is to have any: the set is owned by the
// last labels of r.owner, which stand at owner, and counted in section. It reports false if the reply is done.
func (r *Responder) sign(section *uint16, start, owner, labels int, set *rrset) bool {
	if !r.secure {
		return true
	}
	s := r.signature(start, labels, set)
	if s == nil {
		return false
	}
	if !r.put(owner, &s.set) {
		r.tc = true
		return false
	}
	*section += uint16(len(s.set.recs))
	return true
}

const (
	// signerLook is the time between two looks at key directories.
	signerLook = time.Minute

	// signerRenew is the time between two looks at what is to be renewed, which has days left then.
	signerRenew = time.Hour
)

// run takes up changed key files and renews signatures, until ctx is done.
func (g *signer) run(ctx context.Context, store *state.Store) {
	look, renew := time.NewTicker(signerLook), time.NewTicker(signerRenew)
	defer look.Stop()
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			for _, k := range signedZones(store) {
				k.refresh(now, g.log)
			}
		case now := <-renew.C:
			current := map[[16]byte]bool{}
			for _, k := range signedZones(store) {
				current[k.at(now).id] = true
			}
			g.renew(now, current)
		}
	}
}

// signedZones returns the keys of the zones in force that are signed.
func signedZones(store *state.Store) []*ZoneKeys {
	if snap := store.Snapshot(); snap != nil {
		if t, ok := snap.Zones.(*Tables); ok {
			return t.keys
		}
	}
	return nil
}

// renew signs anew what was asked for and comes near its expiry, by the states of keys that are current, and forgets what
// has expired.
func (g *signer) renew(now time.Time, current map[[16]byte]bool) {
	for i := range g.known {
		for j := range g.known[i] {
			slot := &g.known[i][j]
			old := slot.Load()
			switch {
			case old == nil || now.Unix() < old.renew:
				continue
			case now.Unix() >= old.expires:
				slot.CompareAndSwap(old, nil)
				continue
			case !old.used.Load() || !current[old.by.id]:
				continue
			}
			s, err := signRRs(old.rrs, old.by.name, old.by.signers(old.rrs[0].Header().Rrtype), now, old.hash^uint64(now.Unix()))
			if err != nil {
				g.log.Error("a signature is not renewed", zap.String("name", old.rrs[0].Header().Name), zap.Error(err))
				continue
			}
			s.hash, s.key, s.rrs, s.by = old.hash, old.key, old.rrs, old.by
			slot.CompareAndSwap(old, s)
			g.renewed.Add(1)
		}
	}
	for i := range g.online {
		for j := range g.online[i] {
			slot := &g.online[i][j]
			if old := slot.Load(); old != nil && now.Unix() >= old.expires {
				slot.CompareAndSwap(old, nil)
			}
		}
	}
}
