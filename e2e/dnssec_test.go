package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// dnssecZone is what TestDNSSEC asks for beside services.
const dnssecZone = `$TTL 60
@ SOA ns1 hostmaster 1 7200 900 1209600 60
@ NS ns1
ns1 A 127.0.0.1
alias CNAME www
*.wild TXT "made"
below.ent TXT "below an empty non-terminal"
moved DNAME www
sec NS ns.sec
sec DS 12345 13 2 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF
ns.sec A 192.0.2.70
srv SRV 1 2 3 Target.Example.NET.
naptr NAPTR 100 10 "u" "E2U+sip" "!^.*$!sip:info@Example.com!" Repl.Example.NET.
rp RP Admin.Example.NET. Txt.Example.NET.
svcb SVCB 1 Svc.Example.NET. alpn="h2,h3" port=8443 ipv4hint=192.0.2.1 key65333="x"
*foo A 192.0.2.9
unknown TYPE65280 \# 4 01020304
insec NS ns.insec
ns.insec A 192.0.2.71
`

// dnssecServices are in the zone that is signed.
const dnssecServices = `
sites:
  - {name: seoul, zone: apne2-az1, region: ap-northeast-2, location: {country: KR}}
  - {name: virginia, zone: use1-az1, region: us-east-1, location: {country: US}}
policies: [{name: turns, chain: [{metric: health}, {metric: static, method: round-robin}]}]
zones: [{name: gslb.example.com, file: dnssec.zone, dnssec: {enabled: true, key_directory: keys}}]
services:
  - {name: www.gslb.example.com, policy: turns, ttl: 30, https: {alpn: [h2]}, members: &two [{name: seoul, site: seoul, addresses: [1.1.1.1, "2001:db8::1"]}, {name: virginia, site: virginia, addresses: [2.2.2.2, "2001:db8::2"]}]}
  - {name: "*.cdn.gslb.example.com", policy: turns, members: *two}
  - {name: cn.gslb.example.com, policy: turns, members: [{name: seoul, site: seoul, cname: www.gslb.example.com}]}
  - {name: four.gslb.example.com, policy: turns, members: [{name: seoul, site: seoul, addresses: [1.1.1.1]}]}
`

// A signedServer is a gslbd that signs a zone.
type signedServer struct {
	*gslbd
	keys string // the directory
}

// startSigned starts a server with keys of the roles that are given, as flags of gslbd keygen.
func startSigned(t *testing.T, roles ...string) *signedServer {
	t.Helper()
	s := &signedServer{gslbd: &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}}
	s.config, s.keys = filepath.Join(s.dir, "gslbd.yaml"), filepath.Join(s.dir, "keys")
	if err := os.Mkdir(s.keys, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		s.keygen(t, role, nil)
	}
	write(t, filepath.Join(s.dir, "dnssec.zone"), dnssecZone)
	s.write(t, dnssecServices)
	s.run(t)
	return s
}

// keygen makes a key, and gives it other metadata if times are given: each as the distance from now.
func (s *signedServer) keygen(t *testing.T, role string, times map[string]time.Duration) (private string) {
	t.Helper()
	args := []string{"keygen", "--zone", "gslb.example.com", "--directory", s.keys}
	if role != "" {
		args = append(args, role)
	}
	out, err := exec.Command(filepath.Join(binaries, "gslbd"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("gslbd keygen: %v: %s", err, out)
	}
	private = strings.Split(string(out), "\n")[1]
	if times == nil {
		return private
	}
	text, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "Publish:") && !strings.HasPrefix(line, "Activate:") {
			b.WriteString(line)
		}
	}
	for name, d := range times {
		fmt.Fprintf(&b, "%s: %s\n", name, time.Now().Add(d).UTC().Format("20060102150405"))
	}
	write(t, private, b.String())
	return private
}

// anchors returns the keys with the SEP bit, as their files have them.
func (s *signedServer) anchors(t *testing.T) []*dns.DNSKEY {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.keys, "*.key"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*dns.DNSKEY
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rr, err := dns.NewRR(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if key := rr.(*dns.DNSKEY); key.Flags == 257 {
			all = append(all, key)
		}
	}
	return all
}

// A validator says whether an answer is secure: good if it is, and why it is not.
type validator struct {
	name  string
	check func(name, qtype string) (good bool, why string)
}

// delv returns a validator that trusts one key.
func (s *signedServer) delv(t *testing.T, anchor *dns.DNSKEY) validator {
	t.Helper()
	program := lab.Program(t, "delv")
	host, port, _ := net.SplitHostPort(s.dns)
	file := filepath.Join(t.TempDir(), "anchor.conf")
	write(t, file, fmt.Sprintf("trust-anchors { gslb.example.com. static-key %d %d %d %q; };\n", anchor.Flags, anchor.Protocol, anchor.Algorithm, anchor.PublicKey))
	return validator{fmt.Sprintf("delv with %d", anchor.KeyTag()), func(name, qtype string) (bool, string) {
		out, _ := exec.Command(program, "@"+host, "-p", port, "-a", file, "+root=gslb.example.com", name, qtype).CombinedOutput() // what has no data fails
		return strings.Contains(string(out), "fully validated") && !strings.Contains(string(out), "unsigned"), string(out)
	}}
}

// resolver returns a validator that asks a resolver at an address.
func resolver(name, addr string) validator {
	return validator{name, func(name, qtype string) (bool, string) {
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(name), dns.StringToType[qtype])
		if qtype == "TYPE65280" {
			m.Question[0].Qtype = 65280
		}
		m.SetEdns0(1232, true)
		reply, _, err := (&dns.Client{Timeout: 5 * time.Second}).Exchange(m, addr)
		if err == nil && reply.Truncated {
			reply, _, err = (&dns.Client{Net: "tcp", Timeout: 5 * time.Second}).Exchange(m, addr)
		}
		return err == nil && reply.AuthenticatedData && reply.Rcode != dns.RcodeServerFailure, fmt.Sprint(reply, err)
	}}
}

// unbound starts a resolver that trusts anchor and caches for as long as said.
func (s *signedServer) unbound(t *testing.T, anchor *dns.DNSKEY, cache time.Duration) validator {
	t.Helper()
	program := lab.Program(t, "unbound")
	host, port, _ := net.SplitHostPort(s.dns)
	addr := freeAddr(t)
	rhost, rport, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	file := filepath.Join(dir, "unbound.conf")
	write(t, file, fmt.Sprintf(`server:
  interface: %s
  port: %s
  chroot: ""
  username: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  do-daemonize: no
  do-not-query-localhost: no
  module-config: "validator iterator"
  trust-anchor: "%s"
  trust-anchor-signaling: no
  aggressive-nsec: yes
  use-caps-for-id: yes
  qname-minimisation: yes
  val-log-level: 2
  cache-max-ttl: %d
  cache-max-negative-ttl: %d
stub-zone:
  name: "gslb.example.com"
  stub-addr: %s@%s
`, rhost, rport, dir, strings.ReplaceAll(anchor.String(), "\t", " "), int(cache.Seconds()), int(cache.Seconds()), host, port))
	start(t, program, "-d", "-p", "-c", file)
	v := resolver("unbound", addr)
	lab.Eventually(t, 20*time.Second, "unbound validates", func() bool { good, _ := v.check("gslb.example.com", "SOA"); return good })
	return v
}

// kresd starts Knot Resolver, where it is installed.
func (s *signedServer) kresd(t *testing.T, anchor *dns.DNSKEY) []validator {
	t.Helper()
	program, err := exec.LookPath("kresd")
	if err != nil {
		return nil
	}
	host, port, _ := net.SplitHostPort(s.dns)
	addr := freeAddr(t)
	rhost, rport, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	write(t, file, fmt.Sprintf("net.listen(%q, %s, { kind = 'dns' })\nnet.ipv6 = false\ntrust_anchors.remove('.')\ntrust_anchors.add(%q)\nmodules = { 'policy' }\npolicy.add(policy.suffix(policy.FORWARD('%s@%s'), {todname('gslb.example.com')}))\n",
		rhost, rport, strings.ReplaceAll(anchor.String(), "\t", " "), host, port))
	start(t, program, "-n", "-c", file, dir)
	v := resolver("kresd", addr)
	lab.Eventually(t, 20*time.Second, "kresd validates", func() bool { good, _ := v.check("gslb.example.com", "SOA"); return good })
	return []validator{v}
}

// TestDNSSEC lets validators judge every kind of answer, and answers that change with the members.
func TestDNSSEC(t *testing.T) {
	t.Parallel()
	s := startSigned(t, "")
	anchor := s.anchors(t)[0]
	judges := append([]validator{s.delv(t, anchor), s.unbound(t, anchor, 0)}, s.kresd(t, anchor)...)
	for _, q := range []string{
		"gslb.example.com SOA", "gslb.example.com NS", "gslb.example.com DNSKEY", "gslb.example.com TXT",
		"www.gslb.example.com A", "WwW.gSlB.example.com AAAA", "www.gslb.example.com HTTPS", "www.gslb.example.com MX",
		"alias.gslb.example.com A", "a.cdn.gslb.example.com A", "a.b.cdn.gslb.example.com AAAA", "a.cdn.gslb.example.com TXT",
		"cn.gslb.example.com A", "four.gslb.example.com AAAA", "x.wild.gslb.example.com TXT", "x.wild.gslb.example.com A",
		"ent.gslb.example.com A", "nx.gslb.example.com A", "a.nx.gslb.example.com TXT", "sec.gslb.example.com DS", "insec.gslb.example.com DS",
		"srv.gslb.example.com SRV", "naptr.gslb.example.com NAPTR", "rp.gslb.example.com RP", "svcb.gslb.example.com SVCB", "*foo.gslb.example.com A",
		"unknown.gslb.example.com TYPE65280", "a.moved.gslb.example.com A", "moved.gslb.example.com DNAME", "nx.gslb.example.com NSEC",
	} {
		name, qtype, _ := strings.Cut(q, " ")
		for _, judge := range judges {
			if good, why := judge.check(name, qtype); !good {
				t.Errorf("%s: %s is not secure:\n%s", judge.name, q, why)
			}
		}
	}
	for _, site := range []string{"seoul", "virginia", "*"} {
		s.ctl(t, "force", "down", "--member", "www.gslb.example.com/"+site, "--reason", "a test")
		for range 3 {
			for _, qtype := range []string{"A", "AAAA", "HTTPS", "MX"} {
				for _, judge := range judges[1:] { // delv would take the longest
					if good, why := judge.check("www.gslb.example.com", qtype); !good {
						t.Errorf("%s: %s with %s down is not secure:\n%s", judge.name, qtype, site, why)
					}
				}
			}
		}
		if good, why := judges[0].check("www.gslb.example.com", "A"); !good {
			t.Errorf("%s with %s down: %s", judges[0].name, site, why)
		}
		s.ctl(t, "clear", "--all")
	}

	out := s.ctl(t, "dnssec", "status")
	if want := anchor.ToDS(dns.SHA256); !strings.Contains(out, fmt.Sprintf("gslb.example.com. IN DS %d 13 2 %s", anchor.KeyTag(), strings.ToUpper(want.Digest))) || !strings.Contains(out, "csk") {
		t.Errorf("gslbctl dnssec status:\n%s", out)
	}
}

// TestDNSSECRollover replaces KSK and ZSK by the times in their files, while validators ask without end, and changes the
// directory under the running server.
func TestDNSSECRollover(t *testing.T) {
	t.Parallel()
	s := startSigned(t, "--ksk", "--zsk")
	first := s.anchors(t)[0]
	judge := s.unbound(t, first, time.Second)
	secure := func(judges ...validator) {
		t.Helper()
		for _, judge := range judges {
			for _, q := range []string{"www.gslb.example.com A", "nx.gslb.example.com A", "gslb.example.com DNSKEY"} {
				name, qtype, _ := strings.Cut(q, " ")
				if good, why := judge.check(name, qtype); !good {
					t.Fatalf("%s: %s is not secure:\n%s\n%s", judge.name, q, why, s.ctl(t, "dnssec", "status"))
				}
			}
		}
	}
	secure(judge, s.delv(t, first))

	// What cannot be used is refused, and changes nothing.
	zsk := s.keygen(t, "--zsk", map[string]time.Duration{"Publish": -time.Second, "Activate": 5 * time.Second})
	if err := os.Chmod(zsk, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := s.tryCtl(t, "reload"); code != 1 || !strings.Contains(out, zsk+" can be read or written by others") {
		t.Errorf("exit status %d: %s", code, out)
	}
	secure(judge)
	if err := os.Chmod(zsk, 0o600); err != nil {
		t.Fatal(err)
	}

	// The other keys come into force by their times alone.
	s.keygen(t, "--ksk", map[string]time.Duration{"Publish": -time.Second, "Activate": 3 * time.Second, "SyncPublish": 3 * time.Second})
	s.ctl(t, "reload")
	lab.Eventually(t, 30*time.Second, "all keys are active", func() bool {
		secure(judge)
		out := s.ctl(t, "dnssec", "status")
		return strings.Count(out, " active ") == 4 && strings.Contains(out, " yes ")
	})
	secure(judge, s.delv(t, first))
	for _, anchor := range s.anchors(t) {
		secure(s.delv(t, anchor)) // either DS is good
	}
}
