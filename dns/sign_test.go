package dns_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

// signatureOf asks and returns the first signature of the reply.
func signatureOf(t testing.TB, r *dns.Responder, name, qtype string) *mdns.RRSIG {
	t.Helper()
	reply, _ := ask(t, r, question(name, qtype, secure), false)
	for _, rr := range slices.Concat(reply.Answer, reply.Ns) {
		if sig, ok := rr.(*mdns.RRSIG); ok {
			return sig
		}
	}
	t.Fatalf("no signature:\n%s", show(reply))
	return nil
}

// TestSignatureLife checks when a signature begins and ends, that it is given again meanwhile, and is another in time.
func TestSignatureLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		makeKey(t, dir, "", dns.CSK, nil)
		r := signedWorld(t, dir, "").responder(t, dns.Options{})
		begin := time.Now()
		first := signatureOf(t, r, "txt.gslb.test.", "TXT")
		if got := begin.Sub(time.Unix(int64(first.Inception), 0)); got != time.Hour {
			t.Errorf("it begins %v ago", got)
		}
		if left := time.Unix(int64(first.Expiration), 0).Sub(begin); left > 7*day || left < 6*day+12*hour {
			t.Errorf("it ends in %v", left)
		}
		ends := map[uint32]bool{}
		for i := range 20 {
			ends[signatureOf(t, r, fmt.Sprintf("x%d.wild.gslb.test.", i), "TXT").Expiration] = true
		}
		if len(ends) < 15 {
			t.Errorf("the ends of 20 signatures are %d", len(ends))
		}
		// The same for another case of the name, but not for another TTL or data.
		if other := signatureOf(t, r, "TXT.gslb.test.", "TXT"); other.Signature != first.Signature {
			t.Error("the case of the question makes another signature")
		}
		time.Sleep(4 * day)
		r.Refresh(time.Now())
		if again := signatureOf(t, r, "txt.gslb.test.", "TXT"); again.Signature != first.Signature {
			t.Error("it is another after 4 days")
		}
		time.Sleep(2 * day)
		r.Refresh(time.Now())
		again := signatureOf(t, r, "txt.gslb.test.", "TXT")
		if left := time.Until(time.Unix(int64(again.Expiration), 0)); left < 6*day {
			t.Errorf("after 6 days %v are left", left)
		}
		// A clock that goes back must not give out what begins later.
		r.Refresh(begin.Add(-time.Hour))
		if back := signatureOf(t, r, "txt.gslb.test.", "TXT"); int64(back.Inception) > begin.Add(-time.Hour).Unix() {
			t.Error("it begins in the future")
		}
	})
}

// TestSignatureRenewed checks that what is asked for is renewed in the background, before a query would have to sign it.
func TestSignatureRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		makeKey(t, dir, "", dns.CSK, nil)
		w := signedWorld(t, dir, "")
		r, stop := dns.NewSignedResponder(t, w.store, zap.NewNop())
		defer stop()
		keys := apexKeys(t, r)
		made := map[string]bool{}
		for range 12 * 24 {
			r.Refresh(time.Now())
			reply, _ := ask(t, r, question("www.gslb.test.", "A", secure), false)
			validate(t, reply, keys, time.Now())
			sig := reply.Answer[1].(*mdns.RRSIG)
			made[sig.Signature] = true
			if left := time.Until(time.Unix(int64(sig.Expiration), 0)); left < 2*day {
				t.Fatalf("only %v are left", left)
			}
			time.Sleep(time.Hour)
		}
		if len(made) != 3 { // each serves for two thirds of six and a half days to seven
			t.Errorf("%d signatures in 12 days", len(made))
		}
		if n, _ := dns.SignaturesMade(r); n > 3 { // DNSKEY and A; the rest in the background
			t.Errorf("%d were made for queries", n)
		}
	})
}

// TestSignedFlips asks while members fail and come back, with several answers in turn, and from another server with the
// same keys: every reply validates, and none is signed twice.
func TestSignedFlips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		makeKey(t, dir, "", dns.CSK, nil)
		steps := []policy.StepOptions{{Metric: "health"}, {Metric: "static", Method: "round-robin"}}
		members := []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"}
		flips := testService{name: "flip.gslb.test", ttl: 30, answers: 3, members: members, steps: steps, checked: true}
		worlds := []*testWorld{signedWorld(t, dir, "", flips), signedWorld(t, dir, "", flips)}
		var responders []*dns.Responder
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, len(worlds))
		for _, w := range worlds {
			responders = append(responders, w.responder(t, dns.Options{}))
			go func() { ended <- w.store.Run(ctx) }()
		}
		keys := apexKeys(t, responders[0])
		sets := map[string]bool{}
		for round := range 32 {
			for _, w := range worlds {
				for i := range members {
					w.store.Check(state.CheckResult{Service: "flip.gslb.test", Member: fmt.Sprintf("s%d", i), Up: round&(1<<i) == 0})
				}
			}
			time.Sleep(10 * time.Minute) // longer than flapping members are held down
			for i, r := range responders {
				r.Refresh(time.Now())
				for range 6 {
					reply, _ := ask(t, r, question("flip.gslb.test.", "A", secure), false)
					validate(t, reply, keys, time.Now())
					var set []string
					for _, rr := range reply.Answer {
						if a, ok := rr.(*mdns.A); ok {
							set = append(set, fmt.Sprintf("%s %d", a.A, a.Hdr.Ttl))
						}
					}
					slices.Sort(set)
					if i == 0 {
						sets[strings.Join(set, ",")] = true
					}
				}
			}
		}
		if n, _ := dns.SignaturesMade(responders[0]); len(sets) < 15 || n > uint64(len(sets)+1) { // and the keys
			t.Errorf("%d signatures for %d sets", n, len(sets))
		}
		cancel()
		for range worlds {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSignedTruncation checks that a reply whose signatures do not fit says so, and is whole over TCP.
func TestSignedTruncation(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	var zone strings.Builder
	for i := range 6 {
		fmt.Fprintf(&zone, "large TXT %q\n", strings.Repeat(string(rune('a'+i)), 190))
	}
	for i := range 300 {
		fmt.Fprintf(&zone, "huge TXT %q\n", fmt.Sprintf("%03d%s", i, strings.Repeat("x", 150)))
	}
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, zone.String()), Keys: loadKeys(t, dir, "")}})
	r := w.responder(t, dns.Options{})
	keys := apexKeys(t, r)
	for _, name := range []string{"large.gslb.test.", "huge.gslb.test."} {
		for _, udp := range []uint16{512, 1232} {
			q := question(name, "TXT", func(m *mdns.Msg) { m.SetEdns0(udp, true) })
			reply, wire := ask(t, r, q, false)
			if !reply.Truncated || len(reply.Answer) > 0 || len(wire) > int(udp) {
				t.Errorf("%s in %d octets: %s", name, udp, summary(reply))
			}
			reply, _ = ask(t, r, q, true)
			validate(t, reply, keys, time.Now())
			if reply.Truncated || len(reply.Answer) < 7 {
				t.Errorf("%s over TCP: %d records", name, len(reply.Answer))
			}
		}
	}
}

// TestSigningIsBounded floods a server with names that do not exist, or that a wildcard makes: it signs so many and no
// more, says TC over UDP and nothing over TCP, and goes on answering what it has signed and what exists.
func TestSigningIsBounded(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "ed25519", dns.CSK, nil)
	for _, tt := range []struct{ suffix, qtype string }{{".gslb.test.", "A"}, {".cdn.gslb.test.", "A"}, {".wild.gslb.test.", "AAAA"}} {
		r := signedWorld(t, dir, "ed25519").responder(t, dns.Options{Workers: 1})
		now := time.Now()
		r.Refresh(now)
		keys := apexKeys(t, r)
		flood := func(from, n int) (answered int) {
			for i := range n {
				reply, wire := ask(t, r, question(fmt.Sprintf("n%d%s", from+i, tt.suffix), tt.qtype, secure), false)
				switch {
				case !reply.Truncated:
					answered++
				case len(wire) > 80 || reply.Rcode != mdns.RcodeSuccess || len(reply.Answer)+len(reply.Ns) > 0:
					t.Fatalf("%d octets: %s", len(wire), summary(reply))
				}
			}
			return answered
		}
		if n := flood(0, 3000); n < 900 || n > 1100 {
			t.Errorf("%s: %d of 3,000 at once", tt.suffix, n)
		}
		overTCP := 0 // which has a budget of its own
		for i := range 3000 {
			if wire := exchange(r, pack(t, question(fmt.Sprintf("t%d%s", i, tt.suffix), tt.qtype, secure)), true); len(wire) > 0 {
				overTCP++
			}
		}
		if overTCP < 900 || overTCP > 1100 {
			t.Errorf("%s: %d of 3,000 at once over TCP", tt.suffix, overTCP)
		}
		for _, q := range [][2]string{{"n0" + tt.suffix, tt.qtype}, {"www.gslb.test.", "A"}, {"txt.gslb.test.", "MX"}, {"b.gslb.test.", "TXT"}} {
			reply, _ := ask(t, r, question(q[0], q[1], secure), false)
			if reply.Truncated {
				t.Errorf("%v is not answered", q)
			}
			validate(t, reply, keys, now)
		}
		reply, _ := ask(t, r, question("plain"+tt.suffix, tt.qtype), false)
		if reply.Truncated {
			t.Error("without signatures there is none")
		}
		r.Refresh(now.Add(time.Second))
		if n := flood(5000, 3000); n < 900 || n > 2100 {
			t.Errorf("%s: %d of 3,000 after a second", tt.suffix, n)
		}
	}
}

// TestSignedOnce checks that what the table has room for is signed once.
func TestSignedOnce(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "ed25519", dns.CSK, nil)
	w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "$GENERATE 1-4000 h$ 300 A 192.0.2.1\n"), Keys: loadKeys(t, dir, "ed25519")}})
	r := w.responder(t, dns.Options{})
	for range 2 {
		for i := range 4000 {
			signatureOf(t, r, fmt.Sprintf("h%d.gslb.test.", i+1), "A")
		}
	}
	if made, _ := dns.SignaturesMade(r); made > 4010 { // now and then five share one place of four
		t.Errorf("%d signatures of 4,000 sets", made)
	}
}

// TestFloodKeepsNames checks that names made by a wildcard that are asked for again survive names that are not.
func TestFloodKeepsNames(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "ed25519", dns.CSK, nil)
	r := signedWorld(t, dir, "ed25519").responder(t, dns.Options{})
	now := time.Now()
	for range 2 {
		for i := range 100 {
			signatureOf(t, r, fmt.Sprintf("good%d.wild.gslb.test.", i), "TXT")
		}
	}
	names := 50_000
	if raceEnabled {
		names = 10_000
	}
	for i := range names {
		if i%500 == 0 {
			now = now.Add(time.Second)
			r.Refresh(now)
		}
		exchange(r, pack(t, question(fmt.Sprintf("n%d.gslb.test.", i), "A", secure)), false)
	}
	before, _ := dns.SignaturesMade(r)
	for i := range 100 {
		signatureOf(t, r, fmt.Sprintf("good%d.wild.gslb.test.", i), "TXT")
	}
	if after, _ := dns.SignaturesMade(r); after-before > 20 {
		t.Errorf("%d of 100 were signed again", after-before)
	}
}

// TestSignedAllocations checks that a signature that is there costs no allocation, whatever the answer.
func TestSignedAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	r := signedWorld(t, dir, "").responder(t, dns.Options{ECS: true})
	buf := make([]byte, 65535)
	for _, q := range []string{"www A", "www AAAA", "www HTTPS", "www TXT", "www MX", "alias A", "cn A", "x.cdn A", "nx A", "@ DNSKEY", "x.insec A", "x.sec A", "down A", "moved A", "www ANY", "www NSEC"} {
		name, qtype, _ := strings.Cut(q, " ")
		wire := pack(t, question(strings.TrimPrefix(name+".gslb.test.", "@."), qtype, secure))
		if n := testing.AllocsPerRun(200, func() { r.Respond(wire, buf, local, remote, false) }); n != 0 {
			t.Errorf("%s: %v allocations", q, n)
		}
	}
}

// BenchmarkSigned measures a signed answer that was given before, and what random names do to it: a worker that answers
// 31 of them for each one of it.
func BenchmarkSigned(b *testing.B) {
	dir := b.TempDir()
	makeKey(b, dir, "", dns.CSK, nil)
	w := signedWorld(b, dir, "")
	buf := make([]byte, 65535)
	good := pack(b, question("www.gslb.test.", "A", secure))
	plain := pack(b, question("www.gslb.test.", "A", edns(1232)))
	for _, bb := range []struct {
		name string
		wire []byte
	}{{"unsigned", plain}, {"signed", good}} {
		b.Run(bb.name, func(b *testing.B) {
			r := w.responder(b, dns.Options{})
			b.ReportAllocs()
			for b.Loop() {
				r.Respond(bb.wire, buf, local, remote, false)
			}
		})
	}
	for _, name := range []string{"nx.gslb.test.", "n%06d.gslb.test.", "n%06d.cdn.gslb.test."} {
		b.Run("random "+name, func(b *testing.B) {
			r := w.responder(b, dns.Options{})
			wire := pack(b, question(strings.Replace(name, "%06d", "000000", 1), "A", secure))
			client := netip.MustParseAddrPort("198.51.100.7:4242")
			i := 0
			for b.Loop() {
				if i++; i%32 == 0 {
					r.Refresh(time.Now())
				}
				copy(wire[14:], fmt.Sprintf("%06d", i))
				r.Respond(wire, buf, local, client, false)
			}
			made, limited := dns.SignaturesMade(r)
			b.ReportMetric(float64(made)/float64(b.N), "signed/op")
			b.ReportMetric(float64(limited)/float64(b.N), "limited/op")
		})
	}
}

// BenchmarkSigning measures an answer that has to be signed, by algorithm.
func BenchmarkSigning(b *testing.B) {
	for _, algorithm := range []string{"ecdsap256sha256", "ecdsap384sha384", "ed25519"} {
		b.Run(algorithm, func(b *testing.B) {
			dir := b.TempDir()
			makeKey(b, dir, algorithm, dns.CSK, nil)
			r := signedWorld(b, dir, algorithm).responder(b, dns.Options{})
			wire := pack(b, question("n000000000.gslb.test.", "A", secure))
			buf := make([]byte, 4096)
			now := time.Now()
			for i := 0; b.Loop(); i++ {
				now = now.Add(10 * time.Millisecond)
				r.Refresh(now)
				copy(wire[14:], fmt.Sprintf("%09d", i))
				r.Respond(wire, buf, local, remote, false)
			}
			if _, limited := dns.SignaturesMade(r); limited > 0 {
				b.Errorf("%d were not signed", limited)
			}
		})
	}
}

// TestSignedAmplification holds the worst ratio of a signed reply to its query against what docs/security.md states.
func TestSignedAmplification(t *testing.T) {
	dir := t.TempDir()
	makeKey(t, dir, "", dns.CSK, nil)
	r := signedWorld(t, dir, "").responder(t, dns.Options{ECS: true})
	worst, of := 0.0, ""
	for _, name := range []string{"", "txt.", "mx.", "b.", "a.b.", "x.wild.", "alias.", "far.", "a.moved.", "moved.", "x.sec.", "sec.", "x.insec.", "insec.", "www.", "a.cdn.", "cn.", "four.", "down.", "nx."} {
		for qtype := range mdns.TypeToString {
			q := pack(t, question(name+"gslb.test.", mdns.TypeToString[qtype], func(m *mdns.Msg) { m.SetEdns0(4096, true) }))
			if ratio := float64(len(exchangeUDP(r, q))) / float64(len(q)); ratio > worst {
				worst, of = ratio, name+" "+mdns.TypeToString[qtype]
			}
		}
	}
	t.Logf("x%.1f, %s", worst, of)
	if worst > 11 {
		t.Errorf("%s amplifies by %.1f: more than 11", of, worst)
	}
}
