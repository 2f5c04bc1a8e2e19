package dns_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gslbd/dns"
	"gslbd/state"
)

const zoneDir = "../testdata/zones/"

// TestBadZones builds each zone of testdata/zones/bad and looks for the error that its first line announces.
func TestBadZones(t *testing.T) {
	files, err := filepath.Glob(zoneDir + "bad/*.zone")
	if err != nil || len(files) == 0 {
		t.Fatal("no bad zones", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(data), "\n")
			want, ok := strings.CutPrefix(first, "; error: ")
			if !ok {
				t.Fatal("the first line does not announce the error")
			}
			tables, err := dns.Build([]dns.ZoneOptions{{Name: "bad.test", File: file}}, nil)
			if tables != nil || err == nil {
				t.Fatal("accepted")
			}
			if !strings.HasPrefix(err.Error(), "zones[0].file: "+zoneDir+"bad/") {
				t.Errorf("error %q does not begin with the path and the file", err)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not contain %q", err, want)
			}
		})
	}
}

// TestZoneBounds checks what keeps a wrong file from eating the memory or the time.
func TestZoneBounds(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "self.zone")
	if err := os.WriteFile(self, []byte(strings.Repeat("$INCLUDE self.zone\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge.zone")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 64<<20+1); err != nil { // sparse
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe.zone")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		self:                        "too deeply nested $INCLUDE",
		huge:                        "larger than 67108864 octets",
		pipe:                        "not a regular file",
		dir:                         "not a regular file",
		writeZone(t, manyServers()): "octets of name servers are more than a resolver would look at",
	} {
		if _, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", filepath.Base(file), err, want)
		}
	}
}

// manyServers delegates a name to more servers than fit.
func manyServers() string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "big NS %s%d.%s.test.\n", strings.Repeat("y", 40), i, strings.Repeat("z", 40))
	}
	return b.String()
}

// FuzzZone builds whatever text as a zone. Nothing may panic, and what is accepted must answer for its apex.
func FuzzZone(f *testing.F) {
	files, _ := filepath.Glob(zoneDir + "*.zone")
	bad, _ := filepath.Glob(zoneDir + "bad/*.zone")
	for _, file := range append(files, bad...) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	file := filepath.Join(f.TempDir(), "fuzz.zone")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "$INCLUDE") || strings.Contains(text, "$GENERATE") {
			return // the first reads other files, the second takes its time
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tables, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}}, nil)
		if err != nil {
			if tables != nil || !strings.HasPrefix(err.Error(), "zones[0].file: ") {
				t.Fatalf("%v, %v", tables, err)
			}
			return
		}
		store, err := state.New(state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store.Configure(&state.Config{Zones: tables})
		r := (&testWorld{store: store}).responder(t, dns.Options{})
		if m, _ := ask(t, r, question("gslb.test.", "SOA"), true); m.Rcode != 0 || len(m.Answer) != 1 {
			t.Fatalf("no SOA: %v", m)
		}
		ask(t, r, question("gslb.test.", "NS"), false)
		ask(t, r, question("x.gslb.test.", "A"), false)
	})
}

// writeZone writes a zone file with a SOA and NS of its own before text.
func writeZone(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.zone")
	head := "$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A 192.0.2.1\n"
	if err := os.WriteFile(file, []byte(head+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBuildReportsEverything(t *testing.T) {
	file := writeZone(t, "a A 192.0.2.2\na CNAME b\nb TXT \"x\"\nb CNAME c\nwww.other.test. A 192.0.2.3\n")
	_, err := dns.Build([]dns.ZoneOptions{
		{Name: "gslb.test", File: file},
		{Name: "GSLB.test.", File: file},
		{Name: "no..name", File: file},
		{Name: "missing.test", File: "does/not/exist.zone"},
	}, []dns.ServiceOptions{{Name: "app.elsewhere.test"}})
	for _, want := range []string{
		"zones[0].file: " + file + ":6: a.gslb.test has a CNAME record and other data, A at " + file + ":5",
		"zones[0].file: " + file + ":8: b.gslb.test has a CNAME record and other data, TXT",
		"zones[0].file: " + file + ":9: www.other.test lies outside the zone gslb.test",
		"zones[1].name: the zone gslb.test is listed twice",
		"zones[2].name: \"no..name\" is not a domain name",
		"zones[3].file: does/not/exist.zone: cannot read",
		"services[0].name: app.elsewhere.test lies in none of the zones",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

func TestBadServices(t *testing.T) {
	const zone = `
a      A      192.0.2.2
aaaa   AAAA   2001:db8::2
alias  CNAME  a
https  HTTPS  1 . alpn=h2 ipv4hint=192.0.2.1
svcb   SVCB   1 . ipv6hint=2001:db8::1
txt    TXT    "x"
sub    NS     ns.sub
ns.sub A      192.0.2.3
d      DNAME  a
plain  HTTPS  1 . alpn=h2
`
	addr := []dns.MemberOptions{{Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.99")}}}
	cname := []dns.MemberOptions{{CNAME: "target.example.net."}}
	tests := []struct {
		svc  dns.ServiceOptions
		want string
	}{
		{dns.ServiceOptions{Name: "a.gslb.test", Members: addr}, "services[0].name: a.gslb.test has a A record at FILE:6 as well; remove one"},
		{dns.ServiceOptions{Name: "aaaa.gslb.test", Members: addr}, "has a AAAA record at FILE:7"},
		{dns.ServiceOptions{Name: "alias.gslb.test", Members: addr}, "has a CNAME record at FILE:8"},
		{dns.ServiceOptions{Name: "https.gslb.test", Members: addr}, "the HTTPS record of https.gslb.test at FILE:9 has address hints"},
		{dns.ServiceOptions{Name: "svcb.gslb.test", Members: addr}, "the SVCB record of svcb.gslb.test at FILE:10 has address hints"},
		{dns.ServiceOptions{Name: "txt.gslb.test", Members: cname}, "txt.gslb.test is a CNAME by its members and has a TXT record at FILE:11"},
		{dns.ServiceOptions{Name: "gslb.test", Members: cname}, "members with a cname cannot serve the apex"},
		{dns.ServiceOptions{Name: "sub.gslb.test", Members: addr}, "lies at or below the delegation of sub.gslb.test at FILE:12"},
		{dns.ServiceOptions{Name: "x.sub.gslb.test", Members: addr}, "lies at or below the delegation of sub.gslb.test at FILE:12"},
		{dns.ServiceOptions{Name: "x.d.gslb.test", Members: addr}, "lies below the DNAME record of d.gslb.test at FILE:14"},
		{dns.ServiceOptions{Name: "ok.gslb.test", Aliases: []string{"NS1.gslb.test"}, Members: addr}, "services[0].aliases[0]: ns1.gslb.test is a name server at FILE:3"},
		{dns.ServiceOptions{Name: "ok.gslb.test", Aliases: []string{"OK.gslb.test"}, Members: addr}, "services[0].aliases[0]: ok.gslb.test is the name of services[0] already"},
		{dns.ServiceOptions{Name: "plain.gslb.test", Members: addr, ALPN: []string{"h2"}}, "plain.gslb.test has an HTTPS record at FILE:15, and one by services[0].https as well; remove one"},
		{dns.ServiceOptions{Name: "ok.gslb.test", Members: addr, ALPN: []string{""}}, `services[0].https.alpn: "" has not 1 to 255 octets`},
		{dns.ServiceOptions{Name: "ok.gslb.test", Members: cname, ALPN: []string{"h2"}}, "services[0].https.alpn: members with a cname leave the HTTPS record to their targets"},
		{dns.ServiceOptions{Name: "", Members: addr}, `services[0].name: "" is not a domain name`},
		{dns.ServiceOptions{Name: "c.gslb.test", Members: []dns.MemberOptions{{CNAME: "a..b"}}}, `services[0].members[0].cname: "a..b" is not a domain name`},
	}
	file := writeZone(t, zone)
	for _, tt := range tests {
		_, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}}, []dns.ServiceOptions{tt.svc})
		if want := strings.ReplaceAll(tt.want, "FILE", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", tt.svc.Name, err, want)
		}
	}
	if _, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}}, []dns.ServiceOptions{
		{Name: "txt.gslb.test", Members: addr},
		{Name: "gslb.test", Members: addr},
		{Name: "*.w.gslb.test", Members: addr},
		{Name: "c.gslb.test", Members: cname},
	}); err != nil {
		t.Errorf("good services refused: %v", err)
	}
}

func TestWarnings(t *testing.T) {
	file := writeZone(t, `
sub    NS    ns.sub
out    NS    ns.elsewhere.test.
sib    NS    nowhere
two 60 A     192.0.2.2
two 90 A     192.0.2.3
x.out  TXT   "hidden"
sub    TXT   "hidden too"
nods   DS    1 13 2 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
@      DS    1 13 2 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
`)
	tables, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file}, {Name: "child.gslb.test", File: writeZone(t, "")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range tables.Warnings() {
		got = append(got, strings.ReplaceAll(w, file, "FILE"))
	}
	for _, want := range []string{
		"zones[0].file: FILE:6: the name server ns.sub.gslb.test has no address record, so that it cannot be found",
		"zones[0].file: FILE:8: the name server nowhere.gslb.test does not exist in the zone",
		"zones[0].file: FILE:9: the TTLs of two.gslb.test A differ; all are served with the lowest, 60 (RFC 2181 section 5.2)",
		"zones[0].file: FILE:11: x.out.gslb.test lies below the delegation of out.gslb.test, so that its TXT records are never answered",
		"zones[0].file: FILE:12: sub.gslb.test is delegated, so that its TXT records are never answered",
		"zones[0].file: FILE:13: nods.gslb.test has a DS record but is not delegated",
		"zones[0].file: FILE:14: a DS record of gslb.test belongs into its parent zone; resolvers will not ask here",
		"zones[0].file: FILE: child.gslb.test is a zone of its own here, but gslb.test has no NS record that delegates it",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no warning %q in:\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(got) != 8 {
		t.Errorf("%d warnings:\n%s", len(got), strings.Join(got, "\n"))
	}
}

// TestIncludedTTL checks that a $TTL holds to the end of its file, and in the files that this one includes, for records
// that $GENERATE makes as for those that are written.
func TestIncludedTTL(t *testing.T) {
	file := writeZone(t, "$TTL 60\n$INCLUDE own.inc\nplain A 192.0.2.2\n$GENERATE 1-1 made$ A 192.0.2.3\n$INCLUDE none.inc\n")
	for name, text := range map[string]string{
		"own.inc":  "$TTL 90\nown A 192.0.2.4\n$GENERATE 1-1 ownmade$ A 192.0.2.5\n",
		"none.inc": "none A 192.0.2.6\n$GENERATE 1-1 nonemade$ A 192.0.2.7\n",
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := newWorld(t, []dns.ZoneOptions{{Name: "gslb.test", File: file}}).responder(t, dns.Options{})
	for name, ttl := range map[string]uint32{"plain": 60, "made1": 60, "own": 90, "ownmade1": 90, "none": 60, "nonemade1": 60} {
		reply, _ := ask(t, r, question(name+".gslb.test.", "A"), false)
		if len(reply.Answer) != 1 || reply.Answer[0].Header().Ttl != ttl {
			t.Errorf("%s: want the TTL %d:\n%s", name, ttl, show(reply))
		}
	}
}

func TestFind(t *testing.T) {
	file := writeZone(t, "*.st A 192.0.2.9\n")
	addr := []dns.MemberOptions{{Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.99")}}}
	tables, err := dns.Build([]dns.ZoneOptions{{Name: "gslb.test", File: file, ECS: true}, {Name: "in.gslb.test", File: writeZone(t, "")}}, []dns.ServiceOptions{
		{Name: "www.gslb.test", Aliases: []string{"web.gslb.test"}, Members: addr},
		{Name: "*.cdn.gslb.test", Members: addr},
		{Name: "deep.in.gslb.test", Members: addr},
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		index   int
		ecs, ok bool
	}{
		{"www.gslb.test", 0, true, true},
		{"WEB.gslb.test.", 0, true, true},
		{"a.b.cdn.gslb.test", 1, true, true},
		{"*.cdn.gslb.test", 1, true, true},
		{"cdn.gslb.test", 0, true, false},
		{"deep.in.gslb.test", 2, false, true},
		{"x.st.gslb.test", 0, true, false},
		{"www.example.com", 0, false, false},
		{"not..a.name", 0, false, false},
	}
	for _, tt := range tests {
		index, ecs, ok := tables.Find(tt.name)
		if index != tt.index || ecs != tt.ecs || ok != tt.ok {
			t.Errorf("Find(%q) = %d, %v, %v; want %d, %v, %v", tt.name, index, ecs, ok, tt.index, tt.ecs, tt.ok)
		}
	}
}
