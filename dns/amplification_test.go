package dns_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// TestAmplification asks for every type at every name of two zones, but one made for the purpose, with the largest payload size, and holds the worst
// ratio of reply to query over UDP against what docs/security.md states.
func TestAmplification(t *testing.T) {
	shipped := newWorld(t, []dns.ZoneOptions{{Name: "gslb.example.com", File: zoneDir + "gslb.example.com.zone", ECS: true}},
		testService{name: "www.gslb.example.com", ttl: 30, members: []string{"1.1.1.1", "2.2.2.2"}})
	for _, tt := range []struct {
		zone  string
		world *testWorld
		names []string
		most  float64
	}{
		{"gslb.example.com.", shipped, []string{
			"", "www.", "shop.", "status.", "ns1.", "a.customers.", "lab.", "a.lab.", "nope.",
		}, 4},
		{"gslb.test.", conformanceWorld(t), []string{
			"", "ns1.", "mail.", "www.", "multi.", "alias.", "alias2.", "dangling.", "ext.", "todeleg.", "mid.ent.", "a.wild.", "host.wild.", "sub.",
			"a.sub.", "sec.", "txt.", "_sip._tcp.", "caa.", "unk.", "loop1.", "dn.", "a.dn.", "svc.", "dyn.", "nope.", "big.",
		}, 5},
	} {
		r := tt.world.responder(t, dns.Options{ECS: true})
		worst, of := 0.0, ""
		for _, name := range tt.names {
			for _, qtype := range slices.Sorted(maps.Keys(mdns.TypeToString)) {
				for _, edit := range []func(*mdns.Msg){func(*mdns.Msg) {}, func(m *mdns.Msg) { m.SetEdns0(4096, true) }} {
					q := pack(t, question(name+tt.zone, mdns.TypeToString[qtype], edit))
					n := len(exchangeUDP(r, q))
					if ratio := float64(n) / float64(len(q)); ratio > worst {
						worst, of = ratio, strings.Join([]string{name + tt.zone, mdns.TypeToString[qtype]}, " ")
					}
				}
			}
		}
		t.Logf("%s: x%.1f, %s", tt.zone, worst, of)
		if worst > tt.most {
			t.Errorf("%s amplifies by %.1f: more than %.1f", of, worst, tt.most)
		}
	}
	// The one set of the zone that was made large: no more than fits in a datagram can come.
	r := conformanceWorld(t).responder(t, dns.Options{})
	q := pack(t, question("med.gslb.test.", "TXT", edns(4096)))
	if n := len(exchangeUDP(r, q)); n > 21*len(q) || n > 1232 {
		t.Errorf("med.gslb.test. TXT: %d octets for %d", n, len(q))
	}
}

// exchangeUDP is exchange with the size of buffer that a UDP worker has.
func exchangeUDP(r *dns.Responder, wire []byte) []byte {
	buf := make([]byte, 4096)
	return buf[:r.Respond(wire, buf, local, remote, false)]
}
