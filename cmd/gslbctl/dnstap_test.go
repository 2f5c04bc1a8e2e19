package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"
)

// A tapped is a message of dnstap.
type tapped struct {
	kind         dnstap.Message_Type
	from         string // "": the log does not tell
	query, reply []byte
}

// wire packs a question, with a client subnet if that is not empty.
func wire(t *testing.T, name string, kind uint16, subnet string) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	if subnet != "" {
		m.SetEdns0(1232, true)
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})
		addr, bits, _ := strings.Cut(subnet, "/")
		ecs := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, Address: net.ParseIP(addr)}
		if strings.Contains(addr, ":") {
			ecs.Family = 2
		}
		if _, err := fmt.Sscan(bits, &ecs.SourceNetmask); err != nil {
			t.Fatal(err)
		}
		m.IsEdns0().Option = append(m.IsEdns0().Option, ecs)
	}
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// fstrm writes messages as a file of dnstap.
func fstrm(t *testing.T, messages ...tapped) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := dnstap.NewWriter(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := dnstap.Dnstap_MESSAGE
	for _, m := range messages {
		msg := &dnstap.Message{Type: &m.kind, QueryMessage: m.query, ResponseMessage: m.reply}
		if m.from != "" {
			msg.QueryAddress = netip.MustParseAddr(m.from).AsSlice()
		}
		frame, err := proto.Marshal(&dnstap.Dnstap{Type: &whole, Message: msg})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteFrame(frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.(interface{ Close() error }).Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// readLog reads a file as --queries does, and writes what it asks.
func readLog(t *testing.T, data []byte, clients string) (*asking, []string, error) {
	t.Helper()
	sim := simulation{queries: filepath.Join(t.TempDir(), "log"), clients: clients}
	if err := os.WriteFile(sim.queries, data, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := sim.read()
	if err != nil {
		return nil, nil, err
	}
	var list []string
	for _, q := range a.log {
		list = append(list, fmt.Sprint(q.Service, " ", q.Family, " ", q.LDNS, " ", q.ECS))
	}
	return a, list, nil
}

func TestDnstapQueries(t *testing.T) {
	www := wire(t, "wWw.gslb.test.", dns.TypeA, "")
	six := wire(t, "www.gslb.test.", dns.TypeAAAA, "2001:db8::/40")
	subnet := wire(t, "www.gslb.test.", dns.TypeA, "203.0.112.0/20")
	optOut := wire(t, "www.gslb.test.", dns.TypeA, "0.0.0.0/0")
	cut := bytes.Clone(subnet)
	cut[len(cut)-6] = 33 // the length of an IPv4 prefix
	beyond := bytes.Clone(subnet)
	beyond[len(beyond)-1] |= 1 // a bit beyond the prefix
	const nobody = "invalid Prefix"

	const authQuery, clientQuery = dnstap.Message_AUTH_QUERY, dnstap.Message_CLIENT_QUERY
	const authResponse, clientResponse = dnstap.Message_AUTH_RESPONSE, dnstap.Message_CLIENT_RESPONSE
	tests := []struct {
		name                string
		messages            []tapped
		want                []string
		skipped, unreadable int
	}{
		{
			"as gslbd writes it: the query with the reply",
			[]tapped{{authResponse, "192.0.2.53", www, subnet}, {authResponse, "::ffff:192.0.2.53", six, nil}},
			[]string{"www.gslb.test ipv4 192.0.2.53 " + nobody, "www.gslb.test ipv6 192.0.2.53 2001:db8::/40"},
			0, 0,
		},
		{
			"as dnsdist and unbound write it: each query twice",
			[]tapped{
				{clientResponse, "192.0.2.1", www, www},
				{clientQuery, "192.0.2.53", subnet, nil},
				{clientResponse, "192.0.2.53", nil, subnet},
				{dnstap.Message_RESOLVER_QUERY, "192.0.2.53", www, nil},
				{clientQuery, "2001:db8::53", optOut, nil},
			},
			[]string{"www.gslb.test ipv4 192.0.2.53 203.0.112.0/20", "www.gslb.test ipv4 2001:db8::53 " + nobody},
			0, 0,
		},
		{"as knot writes it", []tapped{{authQuery, "192.0.2.53", www, nil}, {authResponse, "192.0.2.53", nil, www}}, []string{"www.gslb.test ipv4 192.0.2.53 " + nobody}, 0, 0},
		{"only replies, without the queries", []tapped{{authResponse, "192.0.2.53", nil, subnet}}, []string{"www.gslb.test ipv4 192.0.2.53 203.0.112.0/20"}, 0, 0},
		{
			"what is no query for an address",
			[]tapped{
				{authQuery, "192.0.2.53", wire(t, "www.gslb.test.", dns.TypeHTTPS, ""), nil},
				{authQuery, "192.0.2.53", www, nil},
				{authQuery, "192.0.2.53", www[:11], nil},
				{authQuery, "192.0.2.53", nil, nil},
				{authQuery, "192.0.2.53", cut, nil},
				{authQuery, "192.0.2.53", beyond, nil},
				{authQuery, "192.0.2.53", append([]byte{0, 1, 5 << 3}, www[3:]...), nil},
			},
			[]string{"www.gslb.test ipv4 192.0.2.53 " + nobody},
			1, 5,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, got, err := readLog(t, fstrm(t, tt.messages...), "")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) || a.skipped != tt.skipped || a.unreadable != tt.unreadable {
				t.Errorf("got %q, %d skipped, %d unreadable; want %q, %d, %d", got, a.skipped, a.unreadable, tt.want, tt.skipped, tt.unreadable)
			}
		})
	}
}

// TestDnstapCutOff reads a file that is still being written, and refuses one that is none.
func TestDnstapCutOff(t *testing.T) {
	www := wire(t, "www.gslb.test.", dns.TypeA, "203.0.113.0/24")
	one := tapped{dnstap.Message_AUTH_QUERY, "192.0.2.53", www, nil}
	three := fstrm(t, one, one, one)
	const stop = 12
	single := (len(three) - len(fstrm(t, one))) / 2
	for cut := range len(three) {
		_, got, err := readLog(t, three[:cut], "")
		want := max((cut-(len(three)-stop-3*single))/single, 0)
		if len(got) != min(want, 3) || (err == nil) != (want > 0) {
			t.Fatalf("of %d octets: %d queries, want %d; %v", cut, len(got), want, err)
		}
	}
	if _, _, err := readLog(t, append(bytes.Clone(three[:20]), "garbage of another kind"...), ""); err == nil || !strings.Contains(err.Error(), "is none") {
		t.Errorf("no dnstap: %v", err)
	}
	one.from = ""
	if _, _, err := readLog(t, fstrm(t, one), ""); err == nil || !strings.Contains(err.Error(), "does not tell who asks") {
		t.Errorf("without addresses: %v", err)
	}
	if _, got, err := readLog(t, fstrm(t, one), "../../testdata/capacity/even.csv"); err != nil || len(got) != 1 {
		t.Errorf("without addresses, but with --clients: %q, %v", got, err)
	}
}

// FuzzDnstapQuestion holds the reader of questions against miekg/dns: what it makes of a message, that makes of it too.
func FuzzDnstapQuestion(f *testing.F) {
	m := new(dns.Msg)
	m.SetQuestion("www.gslb.test.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(203, 0, 113, 0)})
	packed, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Fuzz(func(t *testing.T, data []byte) {
		q, subnet, err := question(data)
		if err != nil {
			return
		}
		if subnet.IsValid() && (subnet.Bits() == 0 || subnet != subnet.Masked()) {
			t.Errorf("client subnet %s", subnet)
		}
		var m dns.Msg
		if m.Unpack(data) == nil && len(m.Question) > 0 && (m.Question[0].Qtype != uint16(q.Type) || m.Question[0].Qclass != uint16(q.Class)) {
			t.Errorf("%v, and miekg/dns: %v", q, m.Question[0])
		}
	})
}

// TestDnstapOfUnbound reads what another server wrote: each query, and each response.
func TestDnstapOfUnbound(t *testing.T) {
	data, err := os.ReadFile("../../testdata/dnstap/unbound.fstrm")
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := readLog(t, data, "")
	want := []string{"www.gslb.test ipv4 127.0.0.1 198.51.100.0/24", "www.gslb.test ipv6 127.0.0.1 invalid Prefix"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q; %v", got, want, err)
	}
}
