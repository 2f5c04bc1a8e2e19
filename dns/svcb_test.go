package dns_test

import (
	"bytes"
	"strings"
	"testing"

	"gslbd/dns"
)

// TestSVCB takes the test vectors of RFC 9460 appendix D: what a zone file says must reach the wire as it is written
// there, with the keys in ascending order.
func TestSVCB(t *testing.T) {
	foo, org := "\x03foo\x07example\x03com\x00", "\x03foo\x07example\x03org\x00"
	for data, want := range map[string]string{
		`0 foo.example.com.`:                           "\x00\x00" + foo,
		`1 .`:                                          "\x00\x01\x00",
		`16 foo.example.com. port=53`:                  "\x00\x10" + foo + "\x00\x03\x00\x02\x00\x35",
		`1 foo.example.com. key667=hello`:              "\x00\x01" + foo + "\x02\x9b\x00\x05hello",
		`1 foo.example.com. key667="hello\210qoo"`:     "\x00\x01" + foo + "\x02\x9b\x00\x09hello\xd2qoo",
		`1 foo.example.com. ipv6hint="2001:db8::53:1"`: "\x00\x01" + foo + "\x00\x06\x00\x10\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x53\x00\x01",
		`16 foo.example.org. alpn=h2,h3-19 mandatory=ipv4hint,alpn ipv4hint=192.0.2.1`: "\x00\x10" + org + "\x00\x00\x00\x04\x00\x01\x00\x04" +
			"\x00\x01\x00\x09\x02h2\x05h3-19" + "\x00\x04\x00\x04\xc0\x00\x02\x01",
		`16 foo.example.org. alpn="f\\\\oo\\,bar,h2"`:   "\x00\x10" + org + "\x00\x01\x00\x0c\x08f\\oo,bar\x02h2",
		`16 foo.example.org. alpn=f\\\092oo\092,bar,h2`: "\x00\x10" + org + "\x00\x01\x00\x0c\x08f\\oo,bar\x02h2",
	} {
		r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, "x SVCB "+data+"\ny HTTPS "+data+"\n")}}).responder(t, dns.Options{})
		for name, qtype := range map[string]string{"x.gslb.test.": "SVCB", "y.gslb.test.": "HTTPS"} {
			wire := exchange(r, pack(t, question(name, qtype)), false)
			if !bytes.HasSuffix(wire, append([]byte{0, byte(len(want))}, want...)) {
				t.Errorf("%s %s:\ngot  %q\nwant %q", qtype, data, wire, want)
			}
		}
	}
	for data, want := range map[string]string{
		`1 . key123=abc key123=def`:            "repeated SVCB keys are not allowed",
		`1 . mandatory`:                        "mandatory lists no key",
		`1 . alpn`:                             "alpn has no value",
		`1 . alpn=""`:                          "alpn has no value",
		`1 . port`:                             `the parameter "port" cannot be read`,
		`1 . ipv4hint`:                         `the parameter "ipv4hint" cannot be read`,
		`1 . ipv6hint`:                         `the parameter "ipv6hint" cannot be read`,
		`1 . alpn=h2 no-default-alpn=abc`:      `the parameter "no-default-alpn=abc" cannot be read`,
		`1 . no-default-alpn`:                  "no-default-alpn needs alpn",
		`1 . mandatory=key123`:                 "mandatory lists key123, which the record has not",
		`1 . mandatory=mandatory`:              "mandatory lists itself",
		`1 . mandatory=key123,key123 key123=a`: "mandatory lists key123 twice",
	} {
		file := writeZone(t, "x HTTPS "+data+"\n")
		_, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}}, nil)
		if err == nil || !strings.Contains(err.Error(), file+":5: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", data, err, want)
		}
	}
}
