package dns

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/zap"
)

const (
	// keyTTL is the TTL in seconds of DNSKEY, CDS and CDNSKEY: what a rollover has to wait for.
	keyTTL = 3600

	// maxKeys is how many keys a zone may have at a time. A rollover of both kinds needs four.
	maxKeys = 16

	// maxKeyFile is far above what a key takes.
	maxKeyFile = 64 << 10

	// keyTime is how the files write a time, in UTC.
	keyTime = "20060102150405"
)

// keyAlgorithms are those that sign, by the name in the configuration. Their keys and signatures are small enough for
// UDP; those of RSA are not.
var keyAlgorithms = map[string]uint8{
	"ecdsap256sha256": dns.ECDSAP256SHA256, "ecdsap384sha384": dns.ECDSAP384SHA384, "ed25519": dns.ED25519,
}

// algorithmName returns the name in the configuration of an algorithm that signs.
func algorithmName(algorithm uint8) string { return strings.ToLower(dns.AlgorithmToString[algorithm]) }

// A KeyRole says what a key signs.
type KeyRole string

// The roles. A key with the SEP bit is a CSK or KSK by whether there is another key to sign the zone's data.
const (
	KSK KeyRole = "ksk" // DNSKEY, CDS and CDNSKEY; the parent has a DS of it
	ZSK KeyRole = "zsk" // everything else
	CSK KeyRole = "csk" // both
)

// A KeyPhase is a phase of a key's life, by the times in its file.
type KeyPhase string

// The phases in their order.
const (
	KeyGenerated KeyPhase = "generated" // not published yet
	KeyPublished KeyPhase = "published" // in the DNSKEY set, signs nothing yet
	KeyActive    KeyPhase = "active"    // signs
	KeyRetired   KeyPhase = "retired"   // signs no more, still in the DNSKEY set for what it has signed
	KeyRemoved   KeyPhase = "removed"
)

// KeyOptions say where the keys of a zone are.
type KeyOptions struct {
	Zone      string
	Directory string // holds K<zone>+<algorithm>+<tag>.key and .private, as BIND writes them
	Algorithm string // ecdsap256sha256, ecdsap384sha384 or ed25519, which all keys must have; empty: the first
}

// A zoneKey is one pair of key files. It is immutable.
type zoneKey struct {
	file   string // of the private half
	key    *dns.DNSKEY
	tag    uint16
	signer crypto.Signer

	// The metadata; zero: none.
	created, publish, activate, inactive, remove, syncPublish, syncDelete time.Time
}

// sep reports whether a DS may name the key.
func (k *zoneKey) sep() bool { return k.key.Flags&dns.SEP != 0 }

// reached reports whether a time of the metadata is there and has come.
func reached(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// phase returns the key's phase. Files without any times are of keys that are always active.
func (k *zoneKey) phase(now time.Time) KeyPhase {
	active := reached(k.activate, now) || k.created.IsZero() && k.publish.IsZero() && k.activate.IsZero()
	switch {
	case reached(k.remove, now):
		return KeyRemoved
	case reached(k.inactive, now):
		return KeyRetired
	case active:
		return KeyActive
	case reached(k.publish, now):
		return KeyPublished
	}
	return KeyGenerated
}

// inSet reports whether the key belongs into the DNSKEY set.
func (k *zoneKey) inSet(now time.Time) bool {
	phase := k.phase(now)
	return phase != KeyGenerated && phase != KeyRemoved
}

// synced reports whether CDS and CDNSKEY ask the parent for a DS of the key.
func (k *zoneKey) synced(now time.Time) bool {
	return k.sep() && k.inSet(now) && reached(k.syncPublish, now) && !reached(k.syncDelete, now)
}

// times returns the metadata.
func (k *zoneKey) times() []time.Time {
	return []time.Time{k.publish, k.activate, k.inactive, k.remove, k.syncPublish, k.syncDelete}
}

// next returns the first of the key's times that is still to come; zero: there is none.
func (k *zoneKey) next(now time.Time) time.Time {
	var first time.Time
	for _, t := range k.times() {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// keyFiles are the keys of a zone as read. They are immutable.
type keyFiles struct {
	keys   []*zoneKey // by tag
	stamps map[string]fileStamp
}

// A keyState is what the keys of a zone do for a while. It is immutable.
type keyState struct {
	id    [16]byte   // tells what signs from what did in another state
	name  string     // of the zone, in presentation form with a final dot, lower case
	top   []*zoneKey // sign DNSKEY, CDS and CDNSKEY
	data  []*zoneKey // sign all else
	sets  []rrset    // DNSKEY, CDS and CDNSKEY
	since time.Time  // when it began; zero: it is the first
	until time.Time  // when another state begins; zero: never
}

// set returns the records that the keys make, or nil.
func (s *keyState) set(typ uint16) *rrset {
	for i := range s.sets {
		if s.sets[i].typ == typ {
			return &s.sets[i]
		}
	}
	return nil
}

// signers returns the keys that sign the records of a type.
func (s *keyState) signers(typ uint16) []*zoneKey {
	switch typ {
	case dns.TypeDNSKEY, dns.TypeCDS, dns.TypeCDNSKEY:
		return s.top
	}
	return s.data
}

// ZoneKeys are the keys of a signed zone. It may be used by any number of goroutines.
type ZoneKeys struct {
	// Fixed.
	opts      KeyOptions
	apex      string // wire form, lower case
	name      string // presentation form with a final dot, lower case
	algorithm uint8

	// Atomic.
	files   atomic.Pointer[keyFiles] // the last that could be used
	state   atomic.Pointer[keyState]
	failing atomic.Pointer[string] // why the directory, as it is, is not in force; nil: it is

	// Owned by refresh.
	pending map[string]fileStamp // seen once
	told    *keyState            // that the log knows; nil: none
	expired bool                 // the log knows that no key is active
}

// LoadKeys reads the keys of a zone. At least one of them must be active at the time now. The error joins all that is
// wrong, each with the file and what to do.
func LoadKeys(opts KeyOptions, now time.Time) (*ZoneKeys, error) {
	wire, err := packName(opts.Zone)
	if err != nil {
		return nil, err
	}
	k := &ZoneKeys{opts: opts, apex: lowerWire(wire), algorithm: keyAlgorithms[cmp.Or(opts.Algorithm, "ecdsap256sha256")]}
	k.name = dns.Fqdn(showName(k.apex))
	if k.algorithm == 0 {
		return nil, fmt.Errorf("%q is no algorithm that signs: choose one of %s", opts.Algorithm, strings.Join(slices.Sorted(maps.Keys(keyAlgorithms)), ", "))
	}
	return k, k.load(now)
}

// load reads the directory and puts what it holds in force, or nothing.
func (k *ZoneKeys) load(now time.Time) error {
	files, err := k.read()
	if err != nil {
		return err
	}
	state, err := k.stateOf(files, now)
	if err != nil {
		return err
	}
	k.files.Store(files)
	k.state.Store(state)
	return nil
}

// at returns the state at the time now. Where the times in the files leave no key that signs, the state before goes on. A
// clock that was ahead leaves nothing behind when it is set back.
//
// Hot path: two comparisons; a new state is made where one begins.
func (k *ZoneKeys) at(now time.Time) *keyState {
	s := k.state.Load()
	if !now.Before(s.since) && (s.until.IsZero() || now.Before(s.until)) {
		return s
	}
	next, err := k.stateOf(k.files.Load(), now)
	if err != nil {
		same := *s
		same.since, same.until = k.span(k.files.Load(), now)
		next = &same
	}
	if k.state.CompareAndSwap(s, next) {
		return next
	}
	return k.state.Load()
}

// problem says what is wrong with the keys at the time now; "": nothing.
func (k *ZoneKeys) problem(now time.Time) string {
	if why := k.failing.Load(); why != nil {
		return "the keys stay in force as they were read before: " + *why
	}
	if _, err := k.stateOf(k.files.Load(), now); err != nil {
		return err.Error() + "; the keys that signed last go on"
	}
	return ""
}

// span returns when the last of the keys' times before now was, and the first after it; zero: there is none.
func (k *ZoneKeys) span(files *keyFiles, now time.Time) (since, until time.Time) {
	for _, key := range files.keys {
		for _, t := range key.times() {
			if !t.After(now) && t.After(since) {
				since = t
			}
		}
		if t := key.next(now); !t.IsZero() && (until.IsZero() || t.Before(until)) {
			until = t
		}
	}
	return since, until
}

// stateOf returns what the keys do at the time now. It fails where no key would sign.
func (k *ZoneKeys) stateOf(files *keyFiles, now time.Time) (*keyState, error) {
	s := &keyState{name: k.name}
	s.since, s.until = k.span(files, now)
	var keys, digests, children []fileRecord
	var why []string
	id := sha256.New()
	for _, key := range files.keys {
		phase := key.phase(now)
		if key.inSet(now) {
			keys = append(keys, fileRecord{RR: dns.Copy(key.key)}) // packing writes into it, and states are made by many
		}
		switch {
		case phase != KeyActive:
			why = append(why, fmt.Sprintf("%s is %s", key.file, phase))
		case key.sep():
			s.top = append(s.top, key)
		default:
			s.data = append(s.data, key)
		}
		if key.synced(now) {
			digests = append(digests, fileRecord{RR: key.key.ToDS(dns.SHA256).ToCDS()})
			children = append(children, fileRecord{RR: key.key.ToCDNSKEY()})
		}
	}
	if len(s.top) == 0 {
		if len(why) == 0 {
			return nil, fmt.Errorf("%s has no key of %s that a DS could name (flags 257): make one by gslbd keygen", k.opts.Directory, k.name)
		}
		return nil, fmt.Errorf("%s has no active key of %s that a DS could name (flags 257): %s", k.opts.Directory, k.name, strings.Join(why, ", "))
	}
	if len(s.data) == 0 {
		s.data = s.top
	}
	for _, recs := range [][]fileRecord{keys, digests, children} {
		if len(recs) == 0 {
			continue
		}
		set, err := packSet(recs, "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.opts.Directory, err)
		}
		s.sets = append(s.sets, set)
	}
	for i, keys := range [][]*zoneKey{s.top, s.data} {
		for _, key := range keys {
			fmt.Fprintf(id, "%d %s %s\n", i, key.key.PublicKey, k.name)
		}
	}
	copy(s.id[:], id.Sum(nil))
	return s, nil
}

// keyFileName is how the files of a key begin.
func keyFileName(zone string, algorithm uint8, tag uint16) string {
	return fmt.Sprintf("K%s+%03d+%05d", strings.ReplaceAll(zone, "/", "%2F"), algorithm, tag)
}

// read reads the key files of the zone that are in the directory.
func (k *ZoneKeys) read() (*keyFiles, error) {
	stamps, err := k.look()
	if err != nil {
		return nil, err
	}
	f := &keyFiles{stamps: stamps}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(stamps)) {
		base, private := strings.CutSuffix(name, ".private")
		if !private {
			base = strings.TrimSuffix(name, ".key")
			if _, ok := stamps[base+".private"]; !ok {
				errs = append(errs, fmt.Errorf("%s has no .private file beside it: bring it back, or remove both", filepath.Join(k.opts.Directory, name)))
			}
			continue
		}
		key, err := k.readKey(filepath.Join(k.opts.Directory, base))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.keys = append(f.keys, key)
	}
	if len(f.keys) > maxKeys {
		errs = append(errs, fmt.Errorf("%s has %d keys of %s, more than %d: remove those that are no longer published", k.opts.Directory, len(f.keys), k.name, maxKeys))
	}
	return f, errors.Join(errs...)
}

// look lists the zone's key files with their stamps, which tell whether they have changed.
func (k *ZoneKeys) look() (map[string]fileStamp, error) {
	entries, err := os.ReadDir(k.opts.Directory)
	if err != nil {
		return nil, err
	}
	stamps := map[string]fileStamp{}
	prefix := "K" + strings.ReplaceAll(k.name, "/", "%2F") + "+"
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(strings.ToLower(name), strings.ToLower(prefix)) || !strings.HasSuffix(name, ".key") && !strings.HasSuffix(name, ".private") {
			continue
		}
		info, err := os.Stat(filepath.Join(k.opts.Directory, name))
		if err != nil {
			return nil, err
		}
		stamps[name] = stampOf(info)
	}
	return stamps, nil
}

// readKey reads the pair of files that begin with base.
func (k *ZoneKeys) readKey(base string) (*zoneKey, error) {
	public, private := base+".key", base+".private"
	text, _, err := readFile(public, 0, maxKeyFile)
	if err != nil {
		return nil, err
	}
	rr, err := dns.NewRR(string(text))
	key, ok := rr.(*dns.DNSKEY)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no DNSKEY record", public)
	}
	key.Hdr.Name, key.Hdr.Ttl = strings.ToLower(key.Hdr.Name), keyTTL
	tag := key.KeyTag()
	switch {
	case key.Hdr.Name != k.name:
		return nil, fmt.Errorf("%s is a key of %s, not of %s", public, key.Hdr.Name, k.name)
	case key.Algorithm != k.algorithm:
		return nil, fmt.Errorf("%s has the algorithm %s, and the zone %s: make a key of that algorithm by gslbd keygen, or change zones[].dnssec.algorithm", public, algorithmName(key.Algorithm), algorithmName(k.algorithm))
	case key.Flags&dns.REVOKE != 0:
		return nil, fmt.Errorf("%s is a revoked key, which is not supported: remove it", public)
	case key.Flags&^dns.SEP != dns.ZONE || key.Protocol != 3:
		return nil, fmt.Errorf("%s has flags %d and protocol %d: a key that signs has flags 256 or 257 and protocol 3", public, key.Flags, key.Protocol)
	case !strings.EqualFold(filepath.Base(base), keyFileName(k.name, k.algorithm, tag)):
		return nil, fmt.Errorf("%s holds the key %s: give the file that name", public, keyFileName(k.name, k.algorithm, tag))
	}
	if text, _, err = readFile(private, 0o077, maxKeyFile); err != nil {
		return nil, err
	}
	secret, err := key.NewPrivateKey(string(text))
	signer, ok := secret.(crypto.Signer)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no private key of %s that can be read", private, algorithmName(k.algorithm))
	}
	z := &zoneKey{file: private, key: key, tag: tag, signer: signer}
	probe := &dns.RRSIG{Algorithm: key.Algorithm, KeyTag: tag, SignerName: k.name}
	if err := probe.Sign(signer, []dns.RR{key}); err != nil || probe.Verify(key, []dns.RR{key}) != nil {
		return nil, fmt.Errorf("%s is not the private half of %s", private, public)
	}
	return z, z.metadata(text)
}

// metadata reads the times in the private file.
func (k *zoneKey) metadata(text []byte) error {
	fields := map[string]*time.Time{
		"created": &k.created, "publish": &k.publish, "activate": &k.activate, "inactive": &k.inactive, "delete": &k.remove,
		"syncpublish": &k.syncPublish, "syncdelete": &k.syncDelete,
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "revoke" {
			return fmt.Errorf("%s has a time for Revoke, which is not supported: remove the line", k.file)
		}
		at := fields[name]
		if at == nil {
			continue
		}
		t, err := time.Parse(keyTime, strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%s: %s is not a time such as %s: %q", k.file, name, keyTime, strings.TrimSpace(value))
		}
		*at = t
	}
	return nil
}

// refresh reads the directory again if its files are not those in force, and two looks in a row found them the same: they are
// pairs, and are not written at the same moment. What cannot be used leaves those in force, and is told once in the log.
func (k *ZoneKeys) refresh(now time.Time, log *zap.Logger) {
	log = log.With(zap.String("zone", showName(k.apex)))
	defer k.tell(now, log)
	stamps, err := k.look()
	settled := maps.Equal(stamps, k.pending)
	k.pending = stamps
	switch {
	case err == nil && maps.Equal(stamps, k.files.Load().stamps):
		k.failing.Store(nil) // they were put back
		return
	case err == nil && !settled:
		return
	case err == nil:
		err = k.load(now)
	}
	if err == nil {
		k.failing.Store(nil)
		log.Info("DNSSEC keys loaded", zap.Int("keys", len(k.files.Load().keys)))
		return
	}
	text := err.Error()
	if last := k.failing.Swap(&text); last == nil || *last != text {
		log.Error("DNSSEC keys not loaded, keeping those in force", zap.Error(err))
	}
}

// tell logs that other keys sign than when it was last called, and that the times leave none.
func (k *ZoneKeys) tell(now time.Time, log *zap.Logger) {
	state := k.at(now)
	if k.told != nil && k.told.id != state.id {
		log.Info("other DNSSEC keys sign", zap.Uint16s("keys", tags(state.top)), zap.Uint16s("data", tags(state.data)))
	}
	k.told = state
	_, err := k.stateOf(k.files.Load(), now)
	if err != nil && !k.expired {
		log.Warn("no DNSSEC key is active, the last go on signing", zap.Error(err))
	}
	k.expired = err != nil
}

// tags returns the tags of keys.
func tags(keys []*zoneKey) (all []uint16) {
	for _, key := range keys {
		all = append(all, key.tag)
	}
	return all
}

// A KeyInfo tells of one key of a zone.
type KeyInfo struct {
	Tag       uint16
	Role      KeyRole
	Algorithm string
	Phase     KeyPhase
	Next      time.Time // when something of it changes; zero: never
	File      string    // of the private half
	DS        string    // in presentation form, SHA-256; empty for a ZSK
	Synced    bool      // CDS and CDNSKEY ask the parent for the DS
}

// A SignedZone tells of the keys of one zone.
type SignedZone struct {
	Name    string // lower case, no final dot
	Keys    []KeyInfo
	Problem string // empty: none
}

// DNSSEC returns what is known of the signed zones at the time now, in the order of the configuration.
func (t *Tables) DNSSEC(now time.Time) []SignedZone {
	var all []SignedZone
	for _, k := range t.keys {
		z := SignedZone{Name: showName(k.apex), Problem: k.problem(now)}
		split := len(k.at(now).data) > 0 && !k.at(now).data[0].sep()
		for _, key := range k.files.Load().keys {
			info := KeyInfo{
				Tag: key.tag, Role: ZSK, Algorithm: algorithmName(key.key.Algorithm), Phase: key.phase(now), Next: key.next(now), File: key.file, Synced: key.synced(now),
			}
			if key.sep() {
				if info.Role = CSK; split {
					info.Role = KSK
				}
				ds := key.key.ToDS(dns.SHA256)
				info.DS = fmt.Sprintf("%s IN DS %d %d %d %s", k.name, ds.KeyTag, ds.Algorithm, ds.DigestType, strings.ToUpper(ds.Digest))
			}
			z.Keys = append(z.Keys, info)
		}
		all = append(all, z)
	}
	return all
}

// GenerateKey makes a key, active from the time now on, and writes its two files into the directory. It returns how their
// names begin, and the DS record of the key (empty for a ZSK).
func GenerateKey(opts KeyOptions, role KeyRole, now time.Time) (base, ds string, err error) {
	wire, err := packName(opts.Zone)
	if err != nil {
		return "", "", err
	}
	name := dns.Fqdn(showName(lowerWire(wire)))
	algorithm := keyAlgorithms[cmp.Or(opts.Algorithm, "ecdsap256sha256")]
	if algorithm == 0 {
		return "", "", fmt.Errorf("%q is no algorithm that signs: choose one of %s", opts.Algorithm, strings.Join(slices.Sorted(maps.Keys(keyAlgorithms)), ", "))
	}
	key := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: name, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: keyTTL},
		Flags: dns.ZONE | dns.SEP, Protocol: 3, Algorithm: algorithm,
	}
	if role == ZSK {
		key.Flags = dns.ZONE
	}
	bits := map[uint8]int{dns.ECDSAP256SHA256: 256, dns.ECDSAP384SHA384: 384, dns.ED25519: 256}[algorithm]
	for range 10 { // a tag that is taken already would only confuse
		private, err := key.Generate(bits)
		if err != nil {
			return "", "", err
		}
		base = filepath.Join(opts.Directory, keyFileName(name, algorithm, key.KeyTag()))
		at := now.UTC().Format(keyTime)
		err = writeNew(base+".private", 0o600, fmt.Sprintf("%sCreated: %s\nPublish: %s\nActivate: %s\n", key.PrivateKeyString(private), at, at, at))
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			comment := fmt.Sprintf("; This is a %s of %s, tag %d, made at %s.\n", strings.ToUpper(string(role)), name, key.KeyTag(), now.UTC().Format(time.RFC3339))
			err = writeNew(base+".key", 0o644, comment+key.String()+"\n")
		}
		if err != nil {
			return "", "", err
		}
		if role != ZSK {
			ds = key.ToDS(dns.SHA256).String()
		}
		return base, ds, nil
	}
	return "", "", fmt.Errorf("%s: the tags of ten keys in a row were taken", opts.Directory)
}

// writeNew writes a file that is not there yet.
func writeNew(file string, mode os.FileMode, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}
