package dns_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// wireCorpus returns the queries of testdata/wire/queries and some for names of the conformance zone, in a fixed order.
func wireCorpus(t testing.TB) [][]byte {
	t.Helper()
	files, err := filepath.Glob("../testdata/wire/queries/*.bin")
	if err != nil || len(files) == 0 {
		t.Fatalf("no queries: %v", err)
	}
	var all [][]byte
	for _, file := range files {
		wire, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, wire)
	}
	ecs4, ecs6 := raw(8, 0, 1, 24, 0, 203, 0, 113), raw(8, 0, 2, 48, 0, 0x20, 1, 0xd, 0xb8, 0xaa, 0xaa)
	cookie := raw(10, 1, 2, 3, 4, 5, 6, 7, 8)
	for _, q := range []*mdns.Msg{
		question("dyn.gslb.test.", "A", edns(4096, raw(3), ecs4, cookie, raw(11), raw(12, make([]byte, 64)...))),
		question("dyn.gslb.test.", "AAAA", edns(1232, ecs6)),
		question("a.b.dn.gslb.test.", "A", edns(1232)), question("alias2.gslb.test.", "A"), question("todeleg.gslb.test.", "A", edns(512)),
		question("www.sub.gslb.test.", "A", edns(1232)), question("sec.gslb.test.", "DS"), question("a.b.wild.gslb.test.", "MX", edns(1232)),
		question("med.gslb.test.", "TXT", edns(1232)), question("big.gslb.test.", "TXT", edns(4096)), question("svc.gslb.test.", "HTTPS", edns(1232)),
	} {
		all = append(all, pack(t, q))
	}
	return all
}

// mutate changes wire, which is in buf, in one to four ways, and returns its new length.
func mutate(rng *rand.Rand, buf []byte, n int, others [][]byte) int {
	at := func() int { return rng.IntN(max(n, 1)) }
	for range 1 + rng.IntN(4) {
		switch rng.IntN(10) {
		case 0: // a bit
			buf[at()] ^= 1 << rng.IntN(8)
		case 1: // an octet
			buf[at()] = byte(rng.Uint32())
		case 2: // an octet that means something
			buf[at()] = [...]byte{0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff}[rng.IntN(8)]
		case 3: // cut short
			n = rng.IntN(n + 1)
		case 4: // longer
			for range rng.IntN(64) {
				if n < len(buf) {
					buf[n] = byte(rng.Uint32())
					n++
				}
			}
		case 5: // a count of the header
			if n >= 12 {
				binary.BigEndian.PutUint16(buf[4+2*rng.IntN(4):], uint16(rng.IntN(4)))
			}
		case 6: // a 16-bit field: a length, a type, a payload size
			if n >= 2 {
				binary.BigEndian.PutUint16(buf[rng.IntN(n-1):], [...]uint16{0, 1, 41, 250, 255, 256, 0x7fff, 0xc00c, 0xffff}[rng.IntN(9)])
			}
		case 7: // the end of another query
			o := others[rng.IntN(len(others))]
			n = at()
			n += copy(buf[n:], o[min(n, len(o)):])
		case 8: // a part twice
			if n > 12 {
				from := 12 + rng.IntN(n-12)
				part := buf[from:n]
				n += copy(buf[n:], part)
			}
		case 9: // a part less
			if n > 12 {
				from := 12 + rng.IntN(n-12)
				k := 1 + rng.IntN(n-from)
				copy(buf[from:], buf[from+k:n])
				n -= k
			}
		}
	}
	return n
}

// checkReply checks what must hold of the reply to any bytes.
func checkReply(t *testing.T, query, reply []byte, tcp bool) {
	t.Helper()
	if len(reply) == 0 {
		return
	}
	if len(query) < 12 || query[2]&0x80 != 0 {
		t.Fatalf("a reply to what is no query: %x", query)
	}
	if len(reply) < 12 || reply[2]&0x80 == 0 || reply[0] != query[0] || reply[1] != query[1] || (reply[2]^query[2])&0x78 != 0 || reply[3]&0x80 != 0 {
		t.Fatalf("reply %x to %x: the header", reply, query)
	}
	if !tcp && len(reply) > 1232 {
		t.Fatalf("%d octets in reply to %x", len(reply), query)
	}
}

// TestMillionMutations sends a million packets, mutated by chance from a corpus, to Responders with and without rate
// limiting and cookies: none panics, answers a response, exceeds a size or allocates; and afterwards both answer as before.
func TestMillionMutations(t *testing.T) {
	packets := 1_000_000
	if testing.Short() || raceEnabled {
		packets = 50_000
	}
	const seed = 20261130
	w := conformanceWorld(t)
	opts := dns.Options{ECS: true, NSID: "n1", Version: "v1"}
	limited := opts
	limited.RateLimit = dns.RateLimitOptions{ResponsesPerSecond: 20, Slip: 2}
	cookies := limited
	cookies.Cookies.Enabled = true
	responders := []*dns.Responder{w.responder(t, opts), w.responder(t, limited), w.responder(t, cookies)}

	wires := wireCorpus(t)
	buf, packet := make([]byte, 65535), make([]byte, 4096)
	now := base
	answers := func() (all [][]byte) {
		for _, wire := range wires {
			now = now.Add(10 * time.Second)    // below every rate
			for _, r := range responders[:2] { // cookies change with time
				r.Refresh(now)
				for _, tcp := range []bool{false, true} {
					all = append(all, bytes.Clone(buf[:r.Respond(wire, buf, local, remote, tcp)]))
				}
			}
		}
		return all
	}
	before := answers()

	rng := rand.New(rand.NewPCG(seed, 0))
	// one makes, sends and checks one packet.
	one := func(i int, unpack bool) (replied bool) {
		wire := wires[rng.IntN(len(wires))]
		n := mutate(rng, packet, copy(packet, wire), wires)
		r, tcp := responders[i%3], i%5 == 0
		from := netip.AddrFrom4([4]byte{192, 0, byte(rng.IntN(8)), byte(i)})
		if i%1000 < 3 {
			now = now.Add(50 * time.Millisecond)
			r.Refresh(now)
		}
		size := 4096
		if tcp {
			size = len(buf)
		}
		reply := buf[:r.Respond(packet[:n], buf[:size], local, netip.AddrPortFrom(from, 4242), tcp)]
		checkReply(t, packet[:n], reply, tcp)
		if unpack && len(reply) > 0 {
			m := new(mdns.Msg)
			if err := m.Unpack(reply); err != nil {
				t.Fatalf("reply %x to %x: %v", reply, packet[:n], err)
			}
		}
		return len(reply) > 0
	}
	var first, last runtime.MemStats
	replies := 0
	for i := range packets {
		if i == packets/10 { // scratch has grown, and what is logged once is logged
			runtime.GC()
			runtime.ReadMemStats(&first)
		}
		if one(i, i < packets/10) {
			replies++
		}
	}
	runtime.ReadMemStats(&last)
	// The runtime and what else runs beside may allocate a little.
	if n := last.Mallocs - first.Mallocs; n > uint64(packets/1000) && !raceEnabled {
		t.Errorf("%d allocations for %d packets", n, packets*9/10)
	}
	if replies < packets/3 {
		t.Errorf("only %d of %d packets were answered: the mutations hit nothing but the header", replies, packets)
	}
	for i, after := range answers() {
		if !bytes.Equal(before[i], after) {
			t.Errorf("answer %d was\n%x, is\n%x", i, before[i], after)
		}
	}
}
