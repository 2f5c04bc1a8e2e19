package dns_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
)

const corpusDir = "../testdata/wire/queries"

var writeCorpus = flag.Bool("write-corpus", false, "write testdata/wire/queries anew")

// corpus is one query of each kind for the world of serviceWorld, by the name of its file.
func corpus(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	add := func(name string, wire []byte) {
		if all[name] != nil {
			t.Fatalf("%s is there twice", name)
		}
		all[name] = wire
	}
	ask := func(name, qname, qtype string, edit ...func(*mdns.Msg)) {
		edit = append(edit, func(m *mdns.Msg) { m.Id = 0x1234 })
		add(name, pack(t, question(qname, qtype, edit...)))
	}
	for _, qtype := range []string{
		"A", "AAAA", "ANY", "AXFR", "CAA", "CNAME", "DNAME", "DNSKEY", "DS", "HINFO", "HTTPS", "IXFR", "MX", "NAPTR", "NS", "NSEC", "OPT", "PTR", "RRSIG",
		"SOA", "SRV", "SVCB", "TKEY", "TLSA", "TSIG", "TXT", "TYPE0", "TYPE128", "TYPE254", "TYPE65280", "TYPE65535",
	} {
		ask("type-"+strings.ToLower(qtype), "www.gslb.test.", qtype)
	}
	for name, qname := range map[string]string{
		"root": ".", "apex": "gslb.test.", "outside": "www.example.com.", "tld": "test.", "missing": "nope.gslb.test.", "wildcard": "a.b.cdn.gslb.test.",
		"asterisk": "*.cdn.gslb.test.", "empty-non-terminal": "cdn.gslb.test.", "cname": "go.gslb.test.", "cname-member": "gocn.gslb.test.",
		"cname-out": "out.gslb.test.", "all-down": "all.gslb.test.", "nodata": "nodata.gslb.test.", "servfail": "servfail.gslb.test.", "alias": "WeB.gSlB.tEsT.",
		"octets": `\000\255\.\\.gslb.test.`, "long": strings.Repeat("a.", 122) + "gslb.test.", "long-label": strings.Repeat("x", 63) + ".gslb.test.",
	} {
		ask("name-"+name, qname, "A")
	}
	for name, option := range map[string]mdns.EDNS0{
		"nsid": raw(3), "ecs-ipv4": raw(8, 0, 1, 24, 0, 203, 0, 113), "ecs-ipv6": raw(8, 0, 2, 48, 0, 0x20, 0x01, 0x0d, 0xb8, 0xaa, 0xaa),
		"ecs-none": raw(8, 0, 0, 0, 0), "ecs-opt-out": raw(8, 0, 1, 0, 0), "ecs-bad-family": raw(8, 0, 3, 8, 0, 1), "ecs-host-bits": raw(8, 0, 1, 20, 0, 203, 0, 113),
		"ecs-scope": raw(8, 0, 1, 24, 24, 203, 0, 113), "ecs-short": raw(8, 0, 1, 24, 0, 203, 0), "ecs-long": raw(8, 0, 1, 24, 0, 203, 0, 113, 0),
		"ecs-empty": raw(8), "cookie": raw(10, 1, 2, 3, 4, 5, 6, 7, 8), "cookie-full": raw(10, bytes.Repeat([]byte{7}, 24)...), "cookie-short": raw(10, 1, 2, 3),
		"keepalive": raw(11), "keepalive-timeout": raw(11, 0, 100), "padding": raw(12, make([]byte, 64)...), "chain": raw(13, 0), "key-tag": raw(14, 1, 2),
		"ede": raw(15, 0, 1), "report": raw(18, 0), "unknown": raw(65001, 1, 2, 3),
	} {
		ask("edns-"+name, "www.gslb.test.", "A", edns(1232, option))
	}
	for _, size := range []uint16{0, 511, 512, 4096, 65535} {
		ask(fmt.Sprintf("edns-size-%d", size), "multi.gslb.test.", "A", edns(size))
	}
	many := make([]mdns.EDNS0, 200)
	for i := range many {
		many[i] = raw(uint16(20000 + i))
	}
	ask("edns-200-options", "www.gslb.test.", "A", edns(1232, many...))
	ask("edns-do", "www.gslb.test.", "A", func(m *mdns.Msg) { m.SetEdns0(1232, true) })
	ask("edns-version-1", "www.gslb.test.", "A", edns(1232), func(m *mdns.Msg) { m.IsEdns0().SetVersion(1) })
	ask("edns-twice", "www.gslb.test.", "A", edns(1232), edns(1232))
	ask("edns-in-answer", "www.gslb.test.", "A", edns(1232), func(m *mdns.Msg) { m.Answer, m.Extra = m.Extra, nil })
	ask("records", "www.gslb.test.", "A", func(m *mdns.Msg) {
		m.Answer = []mdns.RR{newRR("www.gslb.test.", 1, "A", "192.0.2.1")}
		m.Ns = []mdns.RR{newRR("gslb.test.", 1, "NS", "ns.gslb.test.")}
		m.Extra = []mdns.RR{newRR("ns.gslb.test.", 1, "A", "192.0.2.2")}
	})
	for _, class := range []uint16{0, mdns.ClassCHAOS, mdns.ClassHESIOD, mdns.ClassNONE, mdns.ClassANY} {
		ask(fmt.Sprintf("class-%d", class), "version.bind.", "TXT", func(m *mdns.Msg) { m.Question[0].Qclass = class })
	}
	for opcode := 1; opcode < 16; opcode++ {
		ask(fmt.Sprintf("opcode-%d", opcode), "www.gslb.test.", "A", func(m *mdns.Msg) { m.Opcode = opcode })
	}
	ask("response", "www.gslb.test.", "A", func(m *mdns.Msg) { m.Response = true })
	ask("flags", "www.gslb.test.", "A", func(m *mdns.Msg) {
		m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData, m.Authoritative, m.Truncated, m.RecursionAvailable, m.Zero = true, true, true, true, true, true, true
	})

	// What is no query, or none that ends well.
	plain := pack(t, question("www.gslb.test.", "A", func(m *mdns.Msg) { m.Id = 0x1234 }))
	for _, n := range []int{0, 1, 11, 12, 13, len(plain) - 4, len(plain) - 1} {
		add(fmt.Sprintf("cut-%d", n), plain[:n])
	}
	add("trailing", append(bytes.Clone(plain), 0))
	for section, name := range []string{"questions", "answers", "authorities", "additionals"} {
		wire := bytes.Clone(plain)
		wire[5+2*section] = 2
		add("promised-"+name, wire)
	}
	add("no-question", append([]byte{0x12, 0x34}, make([]byte, 10)...))
	pointer := func(b ...byte) []byte {
		return append(append(bytes.Clone(plain[:12]), b...), 0, 1, 0, 1)
	}
	add("pointer-to-itself", pointer(0xc0, 12))
	add("pointer-forward", pointer(0xc0, 40))
	add("pointer-after-label", pointer(1, 'a', 0xc0, 12))
	add("label-type-01", pointer(0x40, 1, 0))
	add("label-type-10", pointer(0x80, 1, 0))
	add("name-too-long", pointer(append(bytes.Repeat([]byte{1, 'a'}, 127), 1, 'a', 0)...))
	opt := func(rdlength uint16, data ...byte) []byte {
		wire := append(bytes.Clone(plain), 0, 0, 41, 4, 208, 0, 0, 0, 0, byte(rdlength>>8), byte(rdlength))
		wire[11] = 1
		return append(wire, data...)
	}
	add("opt-cut", opt(8, 0, 3))
	add("opt-option-cut", opt(4, 0, 3, 0, 9))
	add("opt-code-cut", opt(2, 0, 3))
	return all
}

// TestCorpus keeps the files of testdata/wire/queries, with which fuzzing begins, and other tools may, what they are said
// to be.
func TestCorpus(t *testing.T) {
	want := corpus(t)
	if *writeCorpus {
		if err := os.MkdirAll(corpusDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, wire := range want {
			if err := os.WriteFile(filepath.Join(corpusDir, name+".bin"), wire, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(corpusDir + "/*.bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bin")
		if _, ok := want[name]; !ok {
			t.Errorf("%s is not in the corpus: remove it", file)
		}
	}
	for name, wire := range want {
		got, err := os.ReadFile(filepath.Join(corpusDir, name+".bin"))
		if err != nil || !bytes.Equal(got, wire) {
			t.Errorf("%s is not what it should be (run with -write-corpus, and read the diff): %v", name, err)
		}
	}
}
