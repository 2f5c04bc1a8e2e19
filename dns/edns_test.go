package dns_test

import (
	"fmt"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// TestKeepalive checks edns-tcp-keepalive (RFC 7828): over TCP only, only when it is asked for, with the idle timeout.
func TestKeepalive(t *testing.T) {
	w := conformanceWorld(t)
	for _, tt := range []struct {
		idle  time.Duration
		sent  []byte
		tcp   bool
		rcode int
		want  string
	}{
		{0, nil, true, 0, "0064"},
		{250 * time.Millisecond, nil, true, 0, "0002"},
		{10 * time.Minute, nil, true, 0, "1770"},
		{24 * time.Hour, nil, true, 0, "ffff"},
		{0, []byte{0xff, 0xff}, true, 0, "0064"}, // a client sends none, and what it sends means nothing
		{0, []byte{1}, true, mdns.RcodeFormatError, ""},
		{0, []byte{1, 2, 3}, true, mdns.RcodeFormatError, ""},
		{0, nil, false, 0, ""},
		{0, []byte{1}, false, 0, ""},
	} {
		r := w.responder(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: tt.idle}})
		reply := unpackRaw(t, exchange(r, pack(t, question("www.gslb.test.", "A", edns(1232, raw(11, tt.sent...)))), tt.tcp))
		if got := fmt.Sprintf("%x", reply.options[11]); reply.rcode != tt.rcode || got != tt.want {
			t.Errorf("idle %v, sent %x, tcp %v: rcode %d, timeout %q; want %d, %q", tt.idle, tt.sent, tt.tcp, reply.rcode, got, tt.rcode, tt.want)
		}
		if reply := unpackRaw(t, exchange(r, pack(t, question("www.gslb.test.", "A", edns(1232))), tt.tcp)); len(reply.options) != 0 {
			t.Errorf("options %v that nobody asked for", reply.options)
		}
	}
}

// TestPaddingInTheClear checks that nothing is padded that anybody can read (RFC 7830 section 6).
func TestPaddingInTheClear(t *testing.T) {
	r := conformanceWorld(t).responder(t, dns.Options{})
	for _, tcp := range []bool{false, true} {
		reply := unpackRaw(t, exchange(r, pack(t, question("www.gslb.test.", "A", edns(1232, raw(12, make([]byte, 64)...)))), tcp))
		if reply.rcode != 0 || len(reply.options) != 0 {
			t.Errorf("tcp %v: rcode %d, options %v", tcp, reply.rcode, reply.options)
		}
	}
}

// TestExtendedErrors checks which replies explain themselves, to those that speak EDNS only.
func TestExtendedErrors(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{NSID: "n1"})
	empty, err := dns.NewResponder(dns.Options{})
	if err != nil {
		t.Fatal(err)
	}
	chaos := func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }
	for _, tt := range []struct {
		r           *dns.Responder
		name, qtype string
		edit        func(*mdns.Msg)
		want        string
	}{
		{r, "www.gslb.test.", "A", nil, "NOERROR"},
		{r, "www.gslb.test.", "MX", nil, "NOERROR"},
		{r, "nope.gslb.test.", "A", nil, "NXDOMAIN"},
		{r, "all.gslb.test.", "A", nil, "NOERROR 0 all members down, answering all (on_all_down)"},
		{r, "backup.gslb.test.", "A", nil, "NOERROR 0 all members down, answering as last resort (on_all_down)"},
		{r, "backup.gslb.test.", "AAAA", nil, "NOERROR 0 no member of the service can answer"},
		{r, "nodata.gslb.test.", "A", nil, "NOERROR 0 no member of the service can answer"},
		{r, "godown.gslb.test.", "A", nil, "NOERROR 0 no member of the service can answer"},
		{r, "servfail.gslb.test.", "A", nil, "SERVFAIL 0 no member of the service can answer"},
		{r, "www.example.com.", "A", nil, "REFUSED 20 "},
		{r, "www.gslb.test.", "A", func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassHESIOD }, "REFUSED 20 "},
		{r, "version.bind.", "TXT", chaos, "REFUSED 20 "},
		{r, "id.server.", "TXT", chaos, "NOERROR"},
		{r, "gslb.test.", "AXFR", nil, "REFUSED 18 no zone transfers"},
		{r, "gslb.test.", "IXFR", nil, "REFUSED 18 no zone transfers"},
		{r, "gslb.test.", "MAILB", nil, "NOTIMP 21 "},
		{empty, "gslb.test.", "A", nil, "SERVFAIL 14 "},
	} {
		edits := []func(*mdns.Msg){edns(1232)}
		if tt.edit != nil {
			edits = append(edits, tt.edit)
		}
		reply, wire := ask(t, tt.r, question(tt.name, tt.qtype, edits...), false)
		got := mdns.RcodeToString[reply.Rcode]
		for _, o := range reply.IsEdns0().Option {
			ede, ok := o.(*mdns.EDNS0_EDE)
			if !ok {
				t.Errorf("%s %s: option %v", tt.name, tt.qtype, o)
				continue
			}
			got += fmt.Sprintf(" %d %s", ede.InfoCode, ede.ExtraText)
		}
		if got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.name, tt.qtype, got, tt.want)
		}
		// It is left out where it does not fit, and cuts nothing else.
		buf := make([]byte, len(wire)-1)
		short := new(mdns.Msg)
		if err := short.Unpack(buf[:tt.r.Respond(pack(t, question(tt.name, tt.qtype, edits...)), buf, local, remote, false)]); err != nil {
			t.Fatal(err)
		}
		if got != mdns.RcodeToString[reply.Rcode] && (short.Truncated || len(short.IsEdns0().Option) != 0 || len(short.Answer) != len(reply.Answer)) {
			t.Errorf("%s %s in one octet less: %v", tt.name, tt.qtype, short)
		}
		if plain, _ := ask(t, tt.r, question(tt.name, tt.qtype, edits[1:]...), false); plain.IsEdns0() != nil {
			t.Errorf("%s %s: EDNS to one that does not speak it", tt.name, tt.qtype)
		}
	}
}

// TestExtendedErrorBlind checks that answers tell when they rest on measurements of before.
func TestExtendedErrorBlind(t *testing.T) {
	w := serviceWorld(t)
	snap := *w.store.Snapshot()
	snap.Blind = true
	r := dns.ResponderOf(&snap)
	for name, want := range map[string]string{
		"www.gslb.test.":  "no measurements arrive, answering by the last ones",
		"all.gslb.test.":  "all members down, answering all (on_all_down)",
		"nope.gslb.test.": "",
	} {
		reply, _ := ask(t, r, question(name, "A", edns(1232)), false)
		got := ""
		for _, o := range reply.IsEdns0().Option {
			if ede, ok := o.(*mdns.EDNS0_EDE); ok && ede.InfoCode == mdns.ExtendedErrorCodeOther {
				got += ede.ExtraText
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
