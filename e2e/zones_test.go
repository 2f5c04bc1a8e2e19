package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// Zone files come with a reload all or not at all, status shows their serials, and one that changed under its old serial
// is warned of.
func TestZonesReload(t *testing.T) {
	const config = `
sites: [{name: a}]
zones: [{name: gslb.test, file: gslb.zone}, {name: other.test, file: other.zone, ecs: false}]
services:
  - name: www.gslb.test
    https: {alpn: [h3, h2]}
    members: [{name: a, site: a, addresses: [192.0.2.10, "2001:db8::10"]}]
`
	zone := func(serial, address string) string {
		return "$TTL 300\n@ SOA ns1 hostmaster " + serial + " 7200 900 1209600 60\n@ NS ns1\nns1 A 192.0.2.1\nhost A " + address + "\n"
	}
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "gslbd.yaml")
	gslb, other := filepath.Join(s.dir, "gslb.zone"), filepath.Join(s.dir, "other.zone")
	write(t, gslb, zone("2026010101", "192.0.2.2"))
	write(t, other, zone("7", "192.0.2.3"))
	s.write(t, config)
	s.run(t)

	want := func(host, address string) {
		t.Helper()
		m, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion(host, dns.TypeA), s.dns)
		if err != nil || len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != address {
			t.Errorf("%s: %v, %v; want %s", host, m, err, address)
		}
	}
	status := func(lines ...string) {
		t.Helper()
		words := strings.Join(strings.Fields(s.ctl(t, "status")), " ")
		for _, line := range lines {
			if !strings.Contains(words, line) {
				t.Errorf("no %q in status:\n%s", line, words)
			}
		}
	}
	status("gslb.test 2026010101 4 on", "other.test 7 4 off")
	https, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("www.gslb.test.", dns.TypeHTTPS), s.dns)
	if err != nil || len(https.Answer) != 1 || !strings.HasSuffix(https.Answer[0].String(), `1 . alpn="h3,h2" ipv4hint="192.0.2.10" ipv6hint="2001:db8::10"`) {
		t.Errorf("HTTPS: %v, %v", https, err)
	}

	// One wrong file keeps the other out too.
	write(t, gslb, zone("2026010102", "192.0.2.22"))
	write(t, other, zone("8", "192.0.2.333"))
	if out, code := s.tryCtl(t, "reload"); code != 1 || !strings.Contains(out, "other.zone:5") {
		t.Errorf("exit status %d, without the line of the error:\n%s", code, out)
	}
	want("host.gslb.test.", "192.0.2.2")
	want("host.other.test.", "192.0.2.3")
	status("gslb.test 2026010101 4 on", "other.test 7 4 off")

	// With both right, both apply; the serial that stood still is warned of.
	write(t, other, zone("7", "192.0.2.33"))
	if out := s.ctl(t, "reload"); !strings.Contains(out, "zones[1].file: the records of other.test have changed and its serial is still 7") || strings.Contains(out, "zones[0]") {
		t.Errorf("the warning is missing, or one too many:\n%s", out)
	}
	want("host.gslb.test.", "192.0.2.22")
	want("host.other.test.", "192.0.2.33")
	status("gslb.test 2026010102 4 on", "other.test 7 4 off")
	if out := s.ctl(t, "reload"); strings.Contains(out, "serial") {
		t.Errorf("nothing changed, and yet:\n%s", out)
	}
}
