package dns_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// deniable are the types that TestSignedOracle looks for behind the back of a proof.
var deniable = []uint16{
	mdns.TypeA, mdns.TypeAAAA, mdns.TypeNS, mdns.TypeSOA, mdns.TypeCNAME, mdns.TypeDNAME, mdns.TypeTXT, mdns.TypeMX, mdns.TypeDS,
	mdns.TypeHTTPS, mdns.TypePTR, mdns.TypeSRV,
}

// TestSignedOracle signs the random worlds of TestOracle and asks both for the same: the signed replies validate, are the
// unsigned ones but for what signing adds, and their proofs deny nothing that exists.
func TestSignedOracle(t *testing.T) {
	worlds, queries := 60, 100
	if testing.Short() || raceEnabled {
		worlds = 15
	}
	dir := t.TempDir()
	b := &oracleBuilder{t: t, files: []string{filepath.Join(dir, "0.zone"), filepath.Join(dir, "1.zone")}, buf: make([]byte, 65535)}
	now := time.Now()
	keys := map[string]*dns.ZoneKeys{}
	met := map[string]int{}
	for seed := range worlds {
		g := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 2))}
		o := g.world(b.check)
		plain := b.responder(o)
		zones := b.options(o)
		for i, z := range zones {
			if keys[z.Name] == nil {
				opts := dns.KeyOptions{Zone: z.Name, Directory: t.TempDir(), Algorithm: "ed25519"}
				if _, _, err := dns.GenerateKey(opts, dns.CSK, now); err != nil {
					t.Fatal(err)
				}
				k, err := dns.LoadKeys(opts, now)
				if err != nil {
					t.Fatal(err)
				}
				keys[z.Name] = k
			}
			zones[i].Keys = keys[z.Name]
		}
		signed := newWorld(t, zones, o.services...).responder(t, dns.Options{ECS: true})
		var anchors []*mdns.DNSKEY
		for _, z := range zones {
			reply, _ := ask(t, signed, question(mdns.Fqdn(z.Name), "DNSKEY", secure), false)
			for _, rr := range reply.Answer {
				if key, ok := rr.(*mdns.DNSKEY); ok {
					anchors = append(anchors, key)
				}
			}
		}
		exists := func(name string, typ uint16) bool {
			reply, _ := ask(t, plain, &mdns.Msg{MsgHdr: mdns.MsgHdr{Id: 1}, Question: []mdns.Question{{Name: name, Qtype: typ, Qclass: mdns.ClassINET}}}, true)
			return slices.ContainsFunc(slices.Concat(reply.Answer, reply.Ns), func(rr mdns.RR) bool {
				return rr.Header().Rrtype == typ && strings.EqualFold(rr.Header().Name, name) && (typ != mdns.TypeSOA || len(reply.Answer) > 0)
			})
		}
		for range queries {
			name, qtype := g.query()
			if qtype == mdns.TypeANY || qtype == mdns.TypeNSEC || qtype == mdns.TypeRRSIG || qtype == mdns.TypeDNSKEY {
				continue
			}
			signed.Refresh(now)
			now = now.Add(10 * time.Millisecond) // the flood of names that this is has to stay within its bounds
			q := &mdns.Msg{MsgHdr: mdns.MsgHdr{Id: 1}, Question: []mdns.Question{{Name: name, Qtype: qtype, Qclass: mdns.ClassINET}}}
			want, _ := ask(t, plain, q, true)
			q.SetEdns0(4096, true)
			got, _ := ask(t, signed, q, true)
			validate(t, got, anchors, now)

			strip := func(rrs []mdns.RR, referral bool) (left []string) {
				for _, rr := range rrs {
					typ := rr.Header().Rrtype
					if typ == mdns.TypeRRSIG || typ == mdns.TypeNSEC || referral && typ == mdns.TypeDS {
						continue
					}
					left = append(left, rr.String())
				}
				return left
			}
			rcode := want.Rcode
			if rcode == mdns.RcodeNameError {
				rcode = mdns.RcodeSuccess
			}
			if got.Rcode != rcode || fmt.Sprint(strip(got.Answer, false)) != fmt.Sprint(strip(want.Answer, false)) || fmt.Sprint(strip(got.Ns, true)) != fmt.Sprint(strip(want.Ns, true)) {
				t.Errorf("seed %d: %s %s:\n%s\nunsigned:\n%s", seed, name, mdns.Type(qtype), show(got), show(want))
			}
			for _, rr := range slices.Concat(got.Answer, got.Ns) {
				nsec, ok := rr.(*mdns.NSEC)
				if !ok {
					continue
				}
				met["nsec"]++
				has := func(typ uint16) bool { return slices.Contains(nsec.TypeBitMap, typ) }
				cut := has(mdns.TypeNS) && !has(mdns.TypeSOA)
				if has(mdns.TypeNXNAME) {
					met["nxname"]++
					if want.Rcode != mdns.RcodeNameError || len(nsec.TypeBitMap) != 3 {
						t.Errorf("seed %d: %s %s: %v of a name that exists", seed, name, mdns.Type(qtype), nsec)
					}
				}
				if owner := mdns.CanonicalName(nsec.Hdr.Name); wireLength(owner) <= 253 && nsec.NextDomain != `\000.`+owner {
					t.Errorf("seed %d: %s %s: the next name is not next: %v", seed, name, mdns.Type(qtype), nsec)
				}
				for _, typ := range deniable {
					if typ == mdns.TypeDS && has(mdns.TypeSOA) {
						continue // at the apex of a zone it is the parent's (RFC 6840 section 4.4)
					}
					if cut && typ != mdns.TypeNS && typ != mdns.TypeDS {
						if has(typ) {
							t.Errorf("seed %d: %s %s: at a delegation: %v", seed, name, mdns.Type(qtype), nsec)
						}
						continue
					}
					if there := exists(nsec.Hdr.Name, typ); there != has(typ) {
						t.Errorf("seed %d: %s %s: that there is a %s is %v: %v", seed, name, mdns.Type(qtype), mdns.Type(typ), there, nsec)
					}
				}
				if cut {
					met["cut"]++
				}
			}
		}
		if t.Failed() {
			for _, z := range o.zones {
				t.Logf("zone %s", z.apex)
				for _, rr := range z.rrs {
					t.Log(rr)
				}
			}
			t.Fatalf("services %+v", o.services)
		}
	}
	for _, kind := range []string{"nsec", "nxname", "cut"} {
		if met[kind] < worlds/4 {
			t.Errorf("%s was met %d times only", kind, met[kind])
		}
	}
}

// FuzzSigned asks a signed zone for any name and type: whatever comes back unpacks, fits, and validates.
func FuzzSigned(f *testing.F) {
	for _, name := range []string{"www", "\x00", "*", "*.*", "*x", "wild.x", "a.b", "A.cdn", "@", "\xff.\xff", "moved.x", "insec", "sec.x", strings.Repeat("a.", 110), strings.Repeat("a", 63)} {
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeDS, mdns.TypeNSEC, mdns.TypeRRSIG, mdns.TypeANY, mdns.TypeCNAME} {
			f.Add(name, typ)
		}
	}
	dir := f.TempDir()
	makeKey(f, dir, "ed25519", dns.CSK, nil)
	r := signedWorld(f, dir, "ed25519").responder(f, dns.Options{ECS: true})
	now := time.Now()
	r.Refresh(now)
	keys := apexKeys(f, r)
	buf := make([]byte, 65535)
	f.Fuzz(func(t *testing.T, name string, typ uint16) {
		wire := []byte{0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}
		labels := strings.Split(name, ".")
		slices.Reverse(labels) // what is near the apex is first
		size := len("\x04gslb\x04test\x00")
		var prefix []byte
		for _, label := range labels {
			if len(label) > 0 && len(label) <= 63 && size+1+len(label) <= 255 {
				prefix = append(append(prefix, byte(len(label))), label...)
				size += 1 + len(label)
			}
		}
		wire = append(append(wire, prefix...), "\x04gslb\x04test\x00"...)
		wire = append(wire, byte(typ>>8), byte(typ), 0, 1)
		wire = append(wire, 0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0)
		now = now.Add(10 * time.Millisecond)
		r.Refresh(now)
		n := r.Respond(wire, buf, local, remote, false)
		reply := new(mdns.Msg)
		if err := reply.Unpack(buf[:n]); err != nil || n > 1232 {
			t.Fatalf("%x: %d octets: %v", wire, n, err)
		}
		if typ != mdns.TypeRRSIG {
			validate(t, reply, keys, now)
		}
	})
}
