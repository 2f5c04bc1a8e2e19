package probes

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// An echo and its quotes are read back as they were written, in both families.
func TestEchoRoundTrip(t *testing.T) {
	c := cookie{1, 2, 3, 15: 9}
	for _, v6 := range []bool{false, true} {
		request := appendEcho(nil, v6, 7, 65535, c)
		if !v6 && checksum(request) != 0 {
			t.Error("the checksum of a message with its checksum is not 0")
		}
		if _, ok := parseEchoAnswer(request, v6, false); ok {
			t.Error("our own request is taken for an answer, as on loopback it would be")
		}
		reply := bytes.Clone(request)
		reply[0] = echoReply4
		if v6 {
			reply[0] = echoReply6
		}
		if got, ok := parseEchoAnswer(reply, v6, false); !ok || got.id != 7 || got.seq != 65535 || got.cookie != c || got.refused {
			t.Errorf("v6 %v: reply %+v, %v", v6, got, ok)
		}
		to := netip.MustParseAddr("192.0.2.9")
		header := make([]byte, 20)
		header[0], header[9] = 0x45, protocolICMP4
		kinds := []byte{unreachable4, exceeded4}
		if v6 {
			to, header, kinds = netip.MustParseAddr("2001:db8::9"), make([]byte, 40), []byte{unreachable6, exceeded6}
			header[0], header[6] = 0x60, protocolICMP6
		}
		copy(header[len(header)-len(to.AsSlice()):], to.AsSlice())
		for _, kind := range kinds {
			message := append(append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, header...), request...)
			if got, ok := parseEchoAnswer(message, v6, false); !ok || !got.refused || got.to != to || got.seq != 65535 || got.cookie != c {
				t.Errorf("v6 %v: error %d: %+v, %v", v6, kind, got, ok)
			}
		}
	}
}

// Whatever comes, the parser does not crash; what it accepts as a reply is one that a cookie can vouch for.
func FuzzEchoAnswer(f *testing.F) {
	echo := appendEcho(nil, false, 7, 9, cookie{1})
	f.Add(echo, false, false)
	f.Add(append(make([]byte, 20), echo...), false, true)
	f.Add(appendEcho(nil, true, 7, 9, cookie{1}), true, false)
	f.Add([]byte{0x4f, 0, 0, 0, 0, 0, 0, 0, 0, 1}, false, true)
	f.Fuzz(func(t *testing.T, b []byte, v6, withHeader bool) {
		a, ok := parseEchoAnswer(b, v6, withHeader)
		if ok && (a.refused != a.to.IsValid()) {
			t.Errorf("refused %v, but for %v", a.refused, a.to)
		}
		if ok && a.hasCookie && !bytes.Contains(b, a.cookie[:]) {
			t.Error("the cookie is not in the message")
		}
		parseQuote(b, v6, netip.Addr{})
	})
}

// What parseReply accepts, miekg/dns reads as a response with our question, where it can read it at all.
func FuzzReply(f *testing.F) {
	query := appendQuery(nil, 4711)
	var m dns.Msg
	if err := m.Unpack(query); err != nil || len(m.Question) != 1 || m.Question[0] != (dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}) || m.RecursionDesired {
		f.Fatalf("the query is %v, %v", m, err)
	}
	f.Add(query)
	reply, err := new(dns.Msg).SetRcode(&m, dns.RcodeRefused).Pack()
	if err != nil {
		f.Fatal(err)
	}
	if id, ok := parseReply(reply); !ok || id != 4711 {
		f.Fatal("a refusal is no reply")
	}
	if _, ok := parseReply(query); ok {
		f.Fatal("a query is a reply")
	}
	f.Add(reply)
	f.Add(reply[:16])
	f.Fuzz(func(t *testing.T, b []byte) {
		id, ok := parseReply(b)
		if !ok {
			return
		}
		var m dns.Msg
		if m.Unpack(b) != nil {
			return
		}
		if m.Id != id || !m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 || m.Question[0].Name != "." {
			t.Errorf("accepted %v", m)
		}
	})
}
