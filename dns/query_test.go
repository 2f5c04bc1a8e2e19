package dns_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
	"gslbd/policy"
	"gslbd/state"
)

// A plain query for www.gslb.test A, in parts.
var (
	wwwName     = "\x03www\x04gslb\x04test\x00"
	wwwQuestion = wwwName + "\x00\x01\x00\x01"
	plainOPT    = "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
)

// header returns a header with an id of 0x1234.
func header(flags uint16, counts ...uint16) string {
	b := binary.BigEndian.AppendUint16([]byte{0x12, 0x34}, flags)
	for _, n := range counts {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return string(b)
}

// opt returns an OPT record with this version, flags and data.
func opt(version byte, flags uint16, data string) string {
	b := append([]byte("\x00\x00\x29\x04\xd0\x00"), version)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return string(b) + data
}

// TestMalformed sends what is no query, or not quite one.
func TestMalformed(t *testing.T) {
	r := serviceWorld(t).responder(t, dns.Options{ECS: true, NSID: "n1"})
	record := wwwName + "\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x01\x02\x03\x04"
	tsig := "\x05nokey\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x10" + strings.Repeat("x", 16)
	label := strings.Repeat("\x3f"+strings.Repeat("a", 63), 3)
	const none = -1
	tests := []struct {
		name  string
		wire  string
		rcode int // none: no reply
		opt   bool
		qd    bool // the question is echoed
	}{
		{"empty", "", none, false, false},
		{"short", header(0, 1, 0, 0, 0)[:11], none, false, false},
		{"response", header(0x8000, 1, 0, 0, 0) + wwwQuestion, none, false, false},
		{"response, broken", header(0x8180, 1, 9, 9, 9), none, false, false},
		{"NOTIFY", header(4<<11, 1, 0, 0, 0) + wwwQuestion, 4, false, false},
		{"UPDATE", header(5<<11, 1, 0, 1, 0) + wwwQuestion + record, 4, false, false},
		{"STATUS, header only", header(2<<11, 0, 0, 0, 0), 4, false, false},
		{"IQUERY", header(1<<11, 0, 1, 0, 0) + record, 4, false, false},
		{"opcode 15", header(15<<11, 0, 0, 0, 0), 4, false, false},
		{"no question", header(0, 0, 0, 0, 0), 1, false, false},
		{"two questions", header(0, 2, 0, 0, 0) + wwwQuestion + wwwQuestion, 1, false, false},
		{"missing question", header(0, 1, 0, 0, 0), 1, false, false},
		{"question cut in the name", header(0, 1, 0, 0, 0) + wwwName[:5], 1, false, false},
		{"question cut in the class", header(0, 1, 0, 0, 0) + wwwQuestion[:len(wwwQuestion)-1], 1, false, false},
		{"compressed question", header(0, 1, 0, 0, 0) + "\x03www\xc0\x0c\x00\x01\x00\x01", 1, false, false},
		{"label type 0x40", header(0, 1, 0, 0, 0) + "\x41\x01" + wwwQuestion, 1, false, false},
		{"label type 0x80", header(0, 1, 0, 0, 0) + "\x81a" + wwwQuestion, 1, false, false},
		{"name of 255 octets", header(0, 1, 0, 0, 0) + label + "\x3d" + strings.Repeat("b", 61) + "\x00\x00\x01\x00\x01", 5, false, true},
		{"name of 256 octets", header(0, 1, 0, 0, 0) + label + "\x3e" + strings.Repeat("b", 62) + "\x00\x00\x01\x00\x01", 1, false, false},
		{"missing answer", header(0, 1, 1, 0, 0) + wwwQuestion, 1, false, true},
		{"missing authority", header(0, 1, 0, 1, 0) + wwwQuestion, 1, false, true},
		{"missing additional", header(0, 1, 0, 0, 1) + wwwQuestion, 1, false, true},
		{"many missing", header(0, 1, 65535, 65535, 65535) + wwwQuestion, 1, false, true},
		{"second OPT missing", header(0, 1, 0, 0, 2) + wwwQuestion + plainOPT, 1, true, true},
		{"octets after the message", header(0, 1, 0, 0, 0) + wwwQuestion + "x", 1, false, true},
		{"octets after OPT", header(0, 1, 0, 0, 1) + wwwQuestion + plainOPT + "x", 1, true, true},
		{"two OPT", header(0, 1, 0, 0, 2) + wwwQuestion + plainOPT + plainOPT, 1, true, true},
		{"OPT in the answer", header(0, 1, 1, 0, 0) + wwwQuestion + plainOPT, 1, false, true},
		{"OPT in the authority", header(0, 1, 0, 1, 0) + wwwQuestion + plainOPT, 1, false, true},
		{"OPT with an owner", header(0, 1, 0, 0, 1) + wwwQuestion + "\x01a" + plainOPT, 1, false, true},
		{"OPT longer than the message", header(0, 1, 0, 0, 1) + wwwQuestion + plainOPT[:9] + "\x00\x09", 1, true, true},
		{"option longer than OPT", header(0, 1, 0, 0, 1) + wwwQuestion + opt(0, 0, "\x00\x64\x00\x32ab"), 1, true, true},
		{"option without length", header(0, 1, 0, 0, 1) + wwwQuestion + opt(0, 0, "\x00\x64\x00"), 1, true, true},
		{"record with a forward pointer", header(0, 1, 0, 0, 1) + wwwQuestion + "\xc0\xff" + record[len(wwwName):], 1, false, true},
		{"record with a pointer cut", header(0, 1, 0, 0, 1) + wwwQuestion + "\xc0", 1, false, true},
		{"record with a bad label", header(0, 1, 0, 0, 1) + wwwQuestion + "\x80" + record, 1, false, true},
		{"TSIG not last", header(0, 1, 0, 0, 2) + wwwQuestion + tsig + plainOPT, 1, false, true},
		{"TSIG in the answer", header(0, 1, 1, 0, 0) + wwwQuestion + tsig, 1, false, true},
		{"TSIG of a stranger", header(0, 1, 0, 0, 1) + wwwQuestion + tsig, 9, false, true},
		// These are sound.
		{"record in the answer", header(0, 1, 1, 0, 0) + wwwQuestion + record, 0, false, true},
		{"record before OPT", header(0, 1, 0, 0, 2) + wwwQuestion + record + plainOPT, 0, true, true},
		{"record after OPT", header(0, 1, 0, 0, 2) + wwwQuestion + plainOPT + "\xc0\x0c" + record[len(wwwName):], 0, true, true},
		{"flags that only responses use", header(0x07cf, 1, 0, 0, 0) + wwwQuestion, 0, false, true},
	}
	for _, tt := range tests {
		for _, tcp := range []bool{false, true} {
			reply := exchange(r, []byte(tt.wire), tcp)
			if tt.rcode == none {
				if len(reply) > 0 {
					t.Errorf("%s: got a reply %x", tt.name, reply)
				}
				continue
			}
			if len(reply) < 12 {
				t.Errorf("%s: no reply", tt.name)
				continue
			}
			got := unpackRaw(t, reply)
			flags, sent := binary.BigEndian.Uint16(reply[2:]), binary.BigEndian.Uint16([]byte(tt.wire[2:]))
			if got.rcode != tt.rcode || got.opt != tt.opt || (reply[5] == 1) != tt.qd {
				t.Errorf("%s: rcode %d, OPT %v, %d questions; want %d, %v, %v", tt.name, got.rcode, got.opt, reply[5], tt.rcode, tt.opt, tt.qd)
			}
			if string(reply[:2]) != tt.wire[:2] || flags&0x8000 == 0 || (flags^sent)&0x7900 != 0 || flags&0x02e0 != 0 {
				t.Errorf("%s: header %x for %x", tt.name, reply[:12], tt.wire[:12])
			}
			if reply[5] == 1 && !strings.Contains(string(reply[12:]), tt.wire[12:12+len(wwwName)]) && strings.HasPrefix(tt.wire[12:], wwwName) {
				t.Errorf("%s: the question is not echoed: %x", tt.name, reply)
			}
			if tt.rcode != 0 && (flags&0x0400 != 0 || got.answers+got.authority > 0) {
				t.Errorf("%s: AA or records with rcode %d", tt.name, tt.rcode)
			}
		}
	}
}

// TestEDNS checks what RFC 6891 asks of a responder.
func TestEDNS(t *testing.T) {
	w := serviceWorld(t)
	r := w.responder(t, dns.Options{ECS: true, NSID: "node-1"})
	many := ""
	for i := range 200 {
		many += string([]byte{0x14, byte(i), 0, 0})
	}
	tests := []struct {
		name    string
		opt     string
		rcode   int
		do      bool
		options string
	}{
		{"plain", opt(0, 0, ""), 0, false, ""},
		{"DO", opt(0, 0x8000, ""), 0, true, ""},
		{"Z", opt(0, 0xffff, ""), 0, true, ""},
		{"extended rcode set", "\x00\x00\x29\x04\xd0\xff\x00\x00\x00\x00\x00", 0, false, ""},
		{"version 1", opt(1, 0, ""), 16, false, ""},
		{"version 100, DO, unknown option", opt(100, 0x8000, "\x00\x64\x00\x02xx"), 16, true, ""},
		{"version 255, what would be a broken option in 0", opt(255, 0, "\x00"), 16, false, ""},
		{"NSID", opt(0, 0, "\x00\x03\x00\x00"), 0, false, "\x00\x03\x00\x06node-1"},
		{"unknown options", opt(0, 0, "\x00\x64\x00\x00\xfd\xe9\x00\x03abc\xff\xff\x00\x00"), 0, false, ""},
		{"500 octets", opt(0, 0, "\x00\x64\x01\xf4"+strings.Repeat("p", 500)), 0, false, ""},
		{"padding in the clear, cookies of any length where there are none", opt(0, 0, "\x00\x0c\x00\x02\x00\x00\x00\x0a\x00\x07cookie!"), 0, false, ""},
		{"200 options", opt(0, 0, many), 0, false, ""},
	}
	for _, tt := range tests {
		for _, tcp := range []bool{false, true} {
			reply := exchange(r, []byte(header(0x0110, 1, 0, 0, 1)+wwwQuestion+tt.opt), tcp)
			i := bytes.Index(reply, []byte("\x00\x00\x29\x04\xd0")) // the OPT record with our payload size
			if i < 0 || i+11 > len(reply) {
				t.Errorf("%s: no OPT in %x", tt.name, reply)
				continue
			}
			o := reply[i:]
			if rcode := int(o[5])<<4 | int(reply[3]&0xf); rcode != tt.rcode {
				t.Errorf("%s: rcode %d, want %d", tt.name, rcode, tt.rcode)
			}
			want := uint16(0)
			if tt.do {
				want = 0x8000
			}
			if flags := binary.BigEndian.Uint16(o[7:]); o[6] != 0 || flags != want {
				t.Errorf("%s: version %d, flags %x", tt.name, o[6], flags)
			}
			if string(o[11:]) != tt.options {
				t.Errorf("%s: options %x, want %x", tt.name, o[11:], tt.options)
			}
			if answers := int(reply[7]); (answers == 1) != (tt.rcode == 0) {
				t.Errorf("%s: %d answers", tt.name, answers)
			}
			if reply[3]&0x10 == 0 || reply[2]&1 == 0 {
				t.Errorf("%s: RD or CD not copied: %x", tt.name, reply[:4])
			}
		}
	}
	if reply := exchange(r, []byte(header(0, 1, 0, 0, 0)+wwwQuestion), false); reply[11] != 0 {
		t.Errorf("OPT in the reply to a query without: %x", reply)
	}
	small := exchange(r, []byte(header(0, 1, 0, 0, 1)+wwwQuestion+"\x00\x00\x29\x00\x00\x00\x00\x00\x00\x00\x00"), false)
	if small[7] != 1 || small[2]&2 != 0 {
		t.Errorf("a payload size of 0 counts as 512: %x", small)
	}
}

// hotQueries are the queries whose answers must cost no allocation.
func hotQueries(t testing.TB) map[string][]byte {
	ecs := raw(8, 0, 1, 24, 0, 203, 0, 113)
	client := []byte("\x01\x02\x03\x04\x05\x06\x07\x08")
	// As old as the time that it is asked at, and of none of the secrets: all are tried.
	forged := binary.BigEndian.AppendUint32(append(client[:8:8], 1, 0, 0, 0), uint32(hotTime.Unix()))
	forged = append(forged, "hashhash"...)
	return map[string][]byte{
		"service A":          pack(t, question("www.gslb.test.", "A")),
		"service A with ECS": pack(t, question("wWw.gslb.test.", "A", edns(1232, ecs))),
		"service AAAA":       pack(t, question("www.gslb.test.", "AAAA", edns(1232))),
		"wildcard service":   pack(t, question("a.b.cdn.gslb.test.", "A")),
		"CNAME member":       pack(t, question("gocn.gslb.test.", "A", edns(1232, ecs))),
		"all down":           pack(t, question("all.gslb.test.", "A", edns(1232))),
		"NODATA, all down":   pack(t, question("nodata.gslb.test.", "A", edns(1232, ecs))),
		"static":             pack(t, question("www.gslb.test.", "TXT")),
		"apex NS":            pack(t, question("gslb.test.", "NS", edns(1232))),
		"NXDOMAIN":           pack(t, question("nope.gslb.test.", "A", edns(1232, ecs))),
		"long NXDOMAIN":      pack(t, question(strings.Repeat("a.", 120)+"gslb.test.", "A")),
		"REFUSED":            pack(t, question("www.example.com.", "A")),
		"FORMERR":            []byte(header(0, 2, 0, 0, 0) + wwwQuestion),
		"ANY":                pack(t, question("www.gslb.test.", "ANY")),
		"cookie":             pack(t, question("www.gslb.test.", "A", edns(1232, raw(10, client...)))),
		"forged cookie":      pack(t, question("www.gslb.test.", "A", edns(1232, ecs, raw(10, forged...), raw(3)))),
		"only a cookie":      []byte(header(0, 0, 0, 0, 1) + opt(0, 0, "\x00\x0a\x00\x08"+string(client))),
		"padding, keepalive": pack(t, question("www.gslb.test.", "A", edns(1232, raw(11), raw(12, make([]byte, 64)...)))),
	}
}

// hotTime is when hotQueries are asked.
var hotTime = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// TestAllocs asserts that nothing between the bytes of a query and those of its reply allocates.
func TestAllocs(t *testing.T) {
	w := serviceWorld(t)
	opts := dns.Options{ECS: true, NSID: "n1", Cookies: dns.CookieOptions{Enabled: true, Secrets: make([][16]byte, dns.MaxCookieSecrets)}}
	buf := make([]byte, 4096)
	for mode, limit := range map[string]dns.RateLimitOptions{
		"unlimited":      {},
		"below the rate": {ResponsesPerSecond: 100_000},
		"above it":       {ResponsesPerSecond: 1, Exempt: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		"slipping":       {ResponsesPerSecond: 1, Slip: 1},
	} {
		opts.RateLimit = limit
		r := w.responder(t, opts)
		for name, wire := range hotQueries(t) {
			for _, tcp := range []bool{false, true} {
				r.Respond(wire, buf, local, remote, tcp) // the policy's scratch grows once; the empty set is logged once
				if n := testing.AllocsPerRun(200, func() {
					r.Refresh(hotTime)
					if r.Respond(wire, buf, local, remote, tcp) == 0 && mode != "above it" {
						t.Fatal("no reply")
					}
				}); n != 0 {
					t.Errorf("%s (tcp %v), %s: %v allocations", name, tcp, mode, n)
				}
			}
		}
	}
}

// FuzzAnswer throws bytes at a Responder. Whatever they are, it must not panic; and a reply must be well formed, within
// its size, and belong to the query.
func FuzzAnswer(f *testing.F) {
	w := serviceWorld(f)
	for _, wire := range hotQueries(f) {
		f.Add(wire, false)
		f.Add(wire, true)
	}
	for _, name := range []string{"x.dn.gslb.test.", "sub.gslb.test.", "version.bind."} {
		f.Add(pack(f, question(name, "TXT", edns(512, raw(3)))), false)
	}
	for _, wire := range wireCorpus(f) {
		f.Add(wire, false)
	}
	for _, options := range []string{
		"\x00\x0a\x00\x07cookie!",
		"\x00\x0a\x00\x28" + strings.Repeat("c", 40) + "\x00\x0a\x00\x00",
		"\x00\x0b\x00\x02\x00\x64\x00\x0c\x00\x01\x00",
	} {
		f.Add([]byte(header(0, 0, 0, 0, 1)+opt(0, 0, options)), true)
		f.Add([]byte(header(0, 1, 0, 0, 1)+wwwQuestion+opt(0, 0x8000, options)), true)
	}
	files, _ := filepath.Glob("../testdata/wire/*/*.bin")
	for _, file := range files {
		wire, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire, false)
		f.Add(wire, true)
	}
	r := w.responder(f, dns.Options{ECS: true, NSID: "n1", Version: "fuzz", Cookies: dns.CookieOptions{Enabled: true}})
	r.Refresh(hotTime)
	buf := make([]byte, 65535)
	f.Fuzz(func(t *testing.T, wire []byte, tcp bool) {
		reply := buf[:r.Respond(wire, buf, local, remote, tcp)]
		query := new(mdns.Msg)
		queryErr := query.Unpack(wire)
		if len(reply) == 0 {
			if len(wire) >= 12 && wire[2]&0x80 == 0 {
				t.Fatalf("no reply to %x", wire)
			}
			return
		}
		if len(wire) < 12 || wire[2]&0x80 != 0 {
			t.Fatalf("a reply to %x", wire)
		}
		limit := 65535
		if !tcp {
			limit = 1232
			if queryErr == nil {
				limit = 512
				if o := query.IsEdns0(); o != nil {
					limit = min(max(512, int(o.UDPSize())), 1232)
				}
			}
		}
		if len(reply) > limit {
			t.Fatalf("%d octets in reply to %x, at most %d", len(reply), wire, limit)
		}
		m := new(mdns.Msg)
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("reply %x to %x: %v", reply, wire, err)
		}
		if !m.Response || m.Id != binary.BigEndian.Uint16(wire) || m.Opcode != int(wire[2]>>3&0xf) || m.RecursionAvailable || m.Zero || m.AuthenticatedData {
			t.Fatalf("header %v in reply to %x", m.MsgHdr, wire)
		}
		if queryErr == nil && len(query.Question) == 1 && len(m.Question) == 1 && m.Question[0] != query.Question[0] {
			t.Fatalf("question %v in reply to %x", m.Question[0], wire)
		}
		opts := 0
		for _, rr := range m.Extra {
			if rr.Header().Rrtype == mdns.TypeOPT {
				opts++
				asked := map[uint16]bool{mdns.EDNS0EDE: true}
				if o := query.IsEdns0(); o != nil {
					for _, o := range o.Option {
						asked[o.Option()] = true
					}
				}
				for _, o := range rr.(*mdns.OPT).Option {
					if queryErr == nil && !asked[o.Option()] || o.Option() == mdns.EDNS0PADDING || o.Option() == mdns.EDNS0TCPKEEPALIVE && !tcp {
						t.Fatalf("option %v in reply to %x", o, wire)
					}
				}
			}
		}
		if opts > 1 || opts == 1 && queryErr == nil && query.IsEdns0() == nil {
			t.Fatalf("%d OPT records in reply to %x", opts, wire)
		}
		if m.Truncated && tcp {
			t.Fatalf("truncated over TCP: %x", wire)
		}
	})
}

// BenchmarkRespond measures the path from bytes to bytes.
func BenchmarkRespond(b *testing.B) {
	w := serviceWorld(b)
	for _, name := range []string{"service A", "service A with ECS", "static", "NXDOMAIN", "cookie"} {
		b.Run(strings.ReplaceAll(name, " ", "_"), func(b *testing.B) {
			benchmarkRespond(b, w.responder(b, dns.Options{ECS: true, Cookies: dns.CookieOptions{Enabled: true}}), hotQueries(b)[name], 1)
		})
	}
	eight := newWorld(b, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(b, serviceZone), ECS: true}}, testService{
		name: "eight.gslb.test", ttl: 30, members: []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"}, steps: eightMetrics,
	})
	for name, query := range map[string]*mdns.Msg{
		"eight_metrics":          question("eight.gslb.test.", "A"),
		"eight_metrics_with_ECS": question("eight.gslb.test.", "A", edns(1232, raw(8, 0, 1, 24, 0, 20, 0, 113))),
	} {
		b.Run(name, func(b *testing.B) { benchmarkRespond(b, eight.responder(b, dns.Options{ECS: true}), pack(b, query), 1) })
	}
}

var eightMetrics = []policy.StepOptions{
	{Metric: "health"},
	{Metric: "capacity"},
	{Metric: "rtt", Tolerance: 0.1, ToleranceAbs: 5 * time.Millisecond, MaxAge: time.Hour},
	{Metric: "geo", Levels: []string{"override", "distance", "subdivision", "country", "continent"}, ToleranceKm: 100},
	{Metric: "connection-load", Tolerance: 1},
	{Metric: "preference"},
	{Metric: "least-selected", HalfLife: time.Minute},
	{Metric: "static", Method: "round-robin"},
}

// BenchmarkRespondMany measures eight metrics where what a query needs is in no cache: it is for one of many services, from
// one of many networks. Queries come in batches, as a worker has them.
func BenchmarkRespondMany(b *testing.B) {
	const services, networks, batch = 10_000, 80_000, 16 // one is looked ahead at at a time
	many := make([]testService, services)
	for i := range many {
		many[i] = testService{name: fmt.Sprintf("w%d.gslb.test", i), ttl: 30, steps: eightMetrics}
		for j := range 8 {
			many[i].members = append(many[i].members, fmt.Sprintf("10.%d.%d.%d", i>>8, i&0xff, j+1))
		}
	}
	w := newWorld(b, []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(b, serviceZone), ECS: true}}, many...)
	snap, now := w.store.Snapshot(), time.Now()
	network := func(i int) [4]byte { return [4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)} }
	for i := range networks {
		a := network(i)
		for j, site := range snap.Sites { // three are near
			rtt := 30 + j + j/3*50
			snap.RTT.Add(site.ID, []state.RTTSample{{Resolver: netip.AddrFrom4([4]byte{a[1] + 20, a[2], a[3], 1}), RTT: time.Duration(rtt) * time.Millisecond}}, now)
		}
	}
	chance := rand.New(rand.NewPCG(1, 2))
	queries := make([][]byte, networks)
	for i := range queries {
		a := network(chance.IntN(networks))
		queries[i] = pack(b, question(many[chance.IntN(services)].name+".", "A", edns(1232, raw(8, 0, 1, 24, 0, a[1]+20, a[2], a[3]))))
	}
	remotes := slices.Repeat([]netip.AddrPort{remote}, batch)
	r := w.responder(b, dns.Options{ECS: true})
	buf := make([]byte, 4096)
	b.ReportAllocs()
	dns.CPUTime(b)
	i := 0
	for b.Loop() {
		if i%batch == 0 {
			r.Refresh(time.Now())
			r.LookAhead(queries[i%networks:][:batch], remotes)
		}
		r.Respond(queries[i%networks], buf, local, remote, false)
		i++
	}
}

// Looking ahead changes no reply, whatever the queries are and whichever of them are answered, and allocates nothing.
func TestLookAhead(t *testing.T) {
	many := make([]testService, 600)
	for i := range many {
		many[i] = testService{name: fmt.Sprintf("w%d.gslb.test", i), ttl: 30, members: []string{"198.51.100.1,2001:db8::1", "198.51.100.2"}, steps: eightMetrics}
	}
	many[7] = testService{name: "w7.gslb.test", ttl: 30, members: []string{"cdn.example."}, steps: eightMetrics}
	many[8].down = true
	many = append(many, testService{name: "*.wild.gslb.test", ttl: 30, members: []string{"198.51.100.1"}, steps: eightMetrics})
	zones := []dns.ZoneOptions{{Name: "gslb.test", File: writeZone(t, serviceZone), ECS: true}}
	chance := rand.New(rand.NewPCG(1, 2))
	var queries [][]byte
	var remotes []netip.AddrPort
	for i := range 2000 {
		name := fmt.Sprintf("w%d.gslb.test.", chance.IntN(650)) // some do not exist
		switch chance.IntN(8) {
		case 0:
			name = "x.wild.gslb.test."
		case 1:
			name = "elsewhere.test."
		}
		option := raw(8, 0, 1, 24, 0, 20, byte(i), byte(i>>3))
		switch chance.IntN(4) {
		case 0:
			option = raw(8, 0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, byte(i), 0)
		case 1:
			option = raw(8, 0, 1, 0, 0) // opts out
		}
		wire := pack(t, question(name, []string{"A", "AAAA", "TXT", "HTTPS"}[chance.IntN(4)], edns(1232, option)))
		switch chance.IntN(6) {
		case 0:
			wire = wire[:chance.IntN(len(wire))]
		case 1:
			wire[chance.IntN(len(wire))] ^= byte(1 + chance.IntN(255))
		}
		queries = append(queries, wire)
		remotes = append(remotes, netip.AddrPortFrom([]netip.Addr{remote.Addr(), netip.MustParseAddr("::ffff:20.1.2.3"), netip.MustParseAddr("2001:db8::7")}[i%3], 4242))
	}
	plain := newWorld(t, zones, many...).responder(t, dns.Options{ECS: true})
	ahead := newWorld(t, zones, many...).responder(t, dns.Options{ECS: true})
	now := time.Now()
	var want, got [1232]byte
	for first := 0; first < len(queries); {
		n := min(chance.IntN(33), len(queries)-first)
		plain.Refresh(now)
		ahead.Refresh(now)
		if allocated := testing.AllocsPerRun(1, func() { ahead.LookAhead(queries[first:first+n], remotes[first:first+n]) }); allocated != 0 {
			t.Fatalf("%v allocations", allocated)
		}
		for i := first; i < first+n; i++ {
			switch chance.IntN(64) {
			case 0:
				continue // as if it had no sender
			case 1: // not as it was
				queries[i] = slices.Clone(queries[chance.IntN(len(queries))])
			}
			a := plain.Respond(queries[i], want[:], local, remotes[i], false)
			b := ahead.Respond(queries[i], got[:], local, remotes[i], false)
			if !bytes.Equal(want[:a], got[:b]) {
				t.Fatalf("query %x: %x, and looked ahead %x", queries[i], want[:a], got[:b])
			}
		}
		first += n
	}
	ahead.LookAhead(queries, remotes) // more than a batch
}

// BenchmarkRateLimit measures what it costs to count replies against rates: below the rate and above it, with queries from
// few client networks and from so many that each finds its entry of the table in no cache.
func BenchmarkRateLimit(b *testing.B) {
	w := serviceWorld(b)
	for name, rate := range map[string]int{"off": 0, "below": 100_000, "above": 1} {
		for _, networks := range []uint32{64, 65536} {
			b.Run(fmt.Sprintf("%s/%d", name, networks), func(b *testing.B) {
				r := w.responder(b, dns.Options{RateLimit: dns.RateLimitOptions{ResponsesPerSecond: rate}})
				benchmarkRespond(b, r, hotQueries(b)["service A"], networks)
			})
		}
	}
}

// benchmarkRespond asks from so many networks in turn, a power of two.
func benchmarkRespond(b *testing.B, r *dns.Responder, wire []byte, networks uint32) {
	buf := make([]byte, 4096)
	b.ReportAllocs()
	dns.CPUTime(b)
	i := uint32(0)
	for b.Loop() {
		i += 40503 // odd: all are visited, in no order that caches like
		if i%32 == 0 {
			r.Refresh(time.Now())
		}
		n := i % networks
		r.Respond(wire, buf, local, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(n >> 8), byte(n), 7}), 4242), false)
	}
}
