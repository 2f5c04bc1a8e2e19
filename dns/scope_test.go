package dns_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"gslbd/dns"
	"gslbd/geo"
)

// TestScopesDoNotOverlap asks as random clients, in random order, of one Responder. A cache gives an answer to every
// client within the scope that came with it; so no two answers that differ may have scopes that overlap, also for clients
// whom no entry matches, and HTTPS must keep to what A keeps to.
func TestScopesDoNotOverlap(t *testing.T) {
	type answer struct {
		scope netip.Prefix
		data  string
	}
	distinct := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 2))
		// Clients and entries share few networks, so that entries lie within one another.
		client := func(v6 bool, bits int) netip.Prefix {
			if v6 {
				a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
				binary.BigEndian.PutUint32(a[4:], random.Uint32()&0x0303_8003)
				return netip.PrefixFrom(netip.AddrFrom16(a), 32+bits).Masked()
			}
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(random.IntN(4)), byte(random.IntN(4) << 6), byte(random.IntN(256))}), bits).Masked()
		}
		var overrides []geo.Override
		seen := map[netip.Prefix]bool{}
		for range 1 + random.IntN(12) {
			p := client(random.IntN(2) == 0, 8+random.IntN(24))
			if !seen[p] {
				seen[p] = true
				overrides = append(overrides, geo.Override{Prefix: p, Site: []string{"s1", "s2", "s3"}[random.IntN(3)]})
			}
		}
		db, err := geo.Open(geo.Options{Overrides: overrides})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, ""), ECS: true}}, testService{
			name: "www.gslb.test", ttl: 30, alpn: []string{"h2"},
			members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2,2001:db8::2", "198.51.100.3", "198.51.100.4,2001:db8::4"},
		})
		w.store.SetGeo(db)
		r := w.responder(t, dns.Options{ECS: true})
		r.Refresh(time.Now())
		answers := map[string][]answer{}
		for range 150 {
			v6 := random.IntN(2) == 0
			bits := 32
			if v6 {
				bits = 128 - 32
			}
			c := client(v6, bits)
			qtype := []string{"A", "AAAA", "HTTPS"}[random.IntN(3)]
			family, addr := byte(1), c.Addr().AsSlice()
			if v6 {
				family = 2
			}
			option := append([]byte{0, family, byte(c.Bits()), 0}, addr...)
			m, wire := ask(t, r, question("www.gslb.test.", qtype, edns(1232, raw(8, option...))), false)
			echo := unpackRaw(t, wire).options[8]
			if len(echo) != len(option) || string(echo[4:]) != string(addr) || len(m.Answer) != 1 {
				t.Fatalf("seed %d: %x in reply to %x:\n%s", seed, echo, option, show(m))
			}
			m.Answer[0].Header().Ttl = 0
			got := answer{netip.PrefixFrom(c.Addr(), int(echo[3])).Masked(), m.Answer[0].String()}
			for _, other := range answers[qtype] {
				if other.scope.Addr().Is4() == got.scope.Addr().Is4() && other.scope.Overlaps(got.scope) && other.data != got.data {
					t.Fatalf("seed %d: overrides %v\n%v\n%v", seed, overrides, got, other)
				}
				if other.data != got.data {
					distinct++
				}
			}
			answers[qtype] = append(answers[qtype], got)
		}
	}
	if distinct < 1000 {
		t.Errorf("only %d pairs of answers differ", distinct)
	}
}
