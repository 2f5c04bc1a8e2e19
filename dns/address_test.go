package dns_test

import (
	"net/netip"
	"testing"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// TestResolverAddress checks that a resolver is judged by its address alone: one that a dual-stack socket shows as mapped
// into IPv6 is its IPv4 address, and the zone of a link-local address says nothing of where it is.
func TestResolverAddress(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{ECS: true})
	query := pack(t, question("www.gslb.test.", "A"))
	buf := make([]byte, 512)
	for from, want := range map[string]string{
		"203.0.113.9:4242":             "198.51.100.2",
		"[::ffff:203.0.113.9]:4242":    "198.51.100.2",
		"[2001:db8:aaaa::9]:4242":      "198.51.100.2",
		"[2001:db8:aaaa::9%eth0]:4242": "198.51.100.2",
		"198.51.100.7:4242":            "198.51.100.1",
		"[::ffff:198.51.100.7]:4242":   "198.51.100.1",
		"[fe80::1%eth0]:4242":          "198.51.100.1",
	} {
		m := new(mdns.Msg)
		if err := m.Unpack(buf[:r.Respond(query, buf, local, netip.MustParseAddrPort(from), false)]); err != nil {
			t.Fatal(err)
		}
		if len(m.Answer) != 1 || m.Answer[0].(*mdns.A).A.String() != want {
			t.Errorf("%s: %v, want %s", from, m.Answer, want)
		}
	}
}
