package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"

	"gslbd/e2e/lab"
	"gslbd/testdata/certs"
)

// A block is a piece of a page that stands apart: fenced, or indented by four blanks.
type block struct {
	page string
	line int
	lang string
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// first returns the first line.
func (b block) first() string {
	line, _, _ := strings.Cut(b.text, "\n")
	return line
}

// How a block is tested. Whatever is none of these is the reason why it is not.
const (
	configured  = "TestDocsConfigurations: gslbd accepts it"
	records     = "TestDocsZones: records that can be read"
	readme      = "TestReadme runs it"
	operations  = "TestDocsOperations runs it"
	delegated   = "TestDocsDelegation runs it"
	protocol    = "TestDocsProtocol runs it"
	overTLS     = "TestDocsOverTLS runs it"
	dnstap      = "TestDnstapIsReadByOthers runs it"
	agentFile   = "TestDocs of cmd/gslb-agent reads it"
	explanation = "TestDocsExplain prints it"
	output      = "output, as an example"
	simulated   = "TestDocsSimulate runs it"
	signed      = "TestDocsDNSSEC runs it"
	inDebian    = "make test-packages does so in a Debian that is really booted"
	developers  = "for developers, and takes minutes"
)

// treated has all blocks of the documentation: how each begins, and how it is tested. TestDocsBlocks fails for one that is
// not here.
var treated = map[string][][2]string{
	"README.md": {
		{"make run ", "every walk starts what make run starts; make test is this"},
		{"# A client in Hong Kong", readme},
		{"cat > data/virginia.json", readme},
		{"bin/gslbctl explain", readme},
		{"sed -i.bak", readme},
		{"policies:", configured},
		{"bin/gslbd check", readme},
		{"bin/gslbctl evacuate", readme},
		{"gslb.example.com.  ", records},
		{"bin/gslb-agent check", readme},
	},
	"docs/agent.md": {
		{"gslb-agent check --config agent.yaml", operations},
		{"make build demo-certs", overTLS},
		{"# Seoul may report for itself", overTLS},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"#!/bin/sh", "TestDocs of cmd/gslb-agent runs it"},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"table inet gslb", "TestDocsCounters of sitereport reads them from the system's nft"},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"site: seoul", agentFile},
		{"curl -sS http://127.0.0.1:8054", operations},
	},
	"docs/architecture.md": {{"   clients", output}},
	"docs/capacity.md":     {{"cd testdata/capacity", "TestCapacityPage of cmd/gslbctl rehearses these files"}},
	"docs/delegation.md": {
		{"gslb.example.com.  ", delegated},
		{"$ORIGIN gslb.example.com.", delegated},
		{"dns:", configured},
		{"# 1. Each gslbd answers", delegated},
	},
	"docs/dnssec.md": {
		{"mkdir -m 700", signed},
		{"zones:", configured},
		{"gslbd check", signed},
		{"gslbd keygen", signed},
		{"gslbctl dnssec status", signed},
	},
	"docs/install.md": {
		{"make deb", inDebian},
		{"apt install bind9-dnsutils", inDebian},
		{"$ORIGIN", records},
		{"dns:", configured},
		{"cd /etc/gslbd", inDebian},
		{"apt install", inDebian},
		{"site: seoul", agentFile},
		{"install -m 600", inDebian},
		{"gslb.example.com. ", records},
		{"dig @PARENT", inDebian},
		{"apt install", inDebian},
	},
	"docs/migration.md": {
		{"sites:", configured},
		{"services:", configured},
		{"services:", configured},
		{"policies:", configured},
	},
	"docs/operations.md": {
		{"gslbctl status ", operations},
		{"gslbctl status ", operations},
		{"gslbctl force down", operations},
		{"gslbctl events", operations},
		{"dnstap:", "TestDnstap has such a file, and dnstap-read reads it"},
		{"dnstap-read", dnstap},
		{"install -m 755 gslbd.new", inDebian},
	},
	"docs/performance.md": {
		{"79 %", output},
		{"go test ./dns", developers},
		{"go test ./cmd/gslbd", developers},
	},
	"docs/simulate.md": {
		{"tests:", configured},
		{"gslbd.yaml: tests[2]", output},
		{"gslbctl simulate --config new.yaml", simulated},
		{"duration: 30m", simulated},
		{"duration: 30m", simulated},
	},
	"docs/policies.md": {
		{"policies:", configured},
		{"www.gslb.example.com A, policy default", explanation},
	},
	"docs/protocol.md": {
		{"https:", configured},
		{"dig @SERVER +header-only", protocol},
		{"(umask 077; openssl", protocol},
		{"kdig @SERVER +tls", protocol},
	},
}

// pages returns the documentation's files, as they are called in the project.
func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../docs/*.md")
	if err != nil || len(all) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], "../")
	}
	return append(all, "README.md")
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", page))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// blocks returns those of a page.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	lines := strings.Split(readPage(t, page), "\n")
	for i := 0; i < len(lines); i++ {
		b := block{page: page, line: i + 1}
		lang, fenced := strings.CutPrefix(lines[i], "```")
		var text []string
		switch {
		case fenced:
			for i++; i < len(lines) && lines[i] != "```"; i++ {
				text = append(text, lines[i])
			}
			b.lang = lang
		case strings.HasPrefix(lines[i], "    ") && i > 0 && lines[i-1] == "":
			for ; i < len(lines) && (lines[i] == "" || strings.HasPrefix(lines[i], "    ")); i++ {
				text = append(text, strings.TrimPrefix(lines[i], "    "))
			}
			i--
		default:
			continue
		}
		b.text = strings.TrimRight(strings.Join(text, "\n"), "\n") + "\n"
		all = append(all, b)
	}
	return all
}

// blocksTested returns the blocks of a page that are tested in this way.
func blocksTested(t *testing.T, page, how string) (all []block) {
	t.Helper()
	for i, b := range blocks(t, page) {
		if i < len(treated[page]) && treated[page][i][1] == how {
			all = append(all, b)
		}
	}
	return all
}

// TestDocsBlocks holds every block of the documentation against the list of those that are treated.
func TestDocsBlocks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for _, page := range all {
		list, found := treated[page], blocks(t, page)
		for i, b := range found {
			if i >= len(list) || !strings.HasPrefix(b.first(), list[i][0]) {
				t.Errorf("%s: the block %q is not at its place in the list treated: say there which test runs it, or why none does", b, b.first())
				break
			}
			if b.lang == "yaml" && list[i][1] != configured && list[i][1] != agentFile {
				t.Errorf("%s: a configuration that no test reads", b)
			}
		}
		if len(found) < len(list) {
			t.Errorf("%s has %d blocks, and the list treated has %d", page, len(found), len(list))
		}
	}
	for page := range treated {
		if !slices.Contains(all, page) {
			t.Errorf("%s is in the list treated, and is not there", page)
		}
	}
}

// base is what a configuration in the documentation leaves out.
const base = `
geo: {databases: [testdata/geo/cities.mmdb]}
zones: [{name: gslb.example.com, file: gslb.example.com.zone}]
sites:
  - {name: seoul, zone: apne2-az1, location: {continent: AS, country: KR}, capacity: {sessions: 900000}}
  - {name: virginia, zone: use1-az1, location: {continent: NA, country: US}, capacity: {sessions: 900000}}
services:
  - name: www.gslb.example.com
    members: [{name: seoul, site: seoul, addresses: [192.0.2.1]}, {name: virginia, site: virginia, addresses: [192.0.2.2]}]
`

// TestDocsConfigurations has the real gslbd check every configuration in the documentation: a whole one, some sections, or
// some keys of a service. What a piece leaves out is in base.
func TestDocsConfigurations(t *testing.T) {
	t.Parallel()
	var example map[string]any
	if err := yaml.Unmarshal([]byte(readPage(t, "config.example.yaml")), &example); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages(t) {
		for _, b := range blocksTested(t, page, configured) {
			var whole, piece map[string]any
			if err := yaml.Unmarshal([]byte(base), &whole); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(b.text), &piece); err != nil {
				t.Errorf("%s: %v", b, err)
				continue
			}
			into := whole
			if _, section := example[slices.Collect(maps.Keys(piece))[0]]; !section {
				into = whole["services"].([]any)[0].(map[string]any)
			} else if piece["sites"] != nil && piece["services"] == nil {
				delete(whole, "services")
			}
			maps.Copy(into, piece)
			dir := docsDir(t)
			text, err := yaml.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			for _, site := range []string{"seoul", "virginia"} {
				writeFile(t, filepath.Join(dir, site+".token"), "token-of-"+site)
			}
			if strings.Contains(b.text, "reports.pem") {
				self, err := certs.Authority("gslbd")
				if err == nil {
					err = self.Write(dir, "reports")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(b.text, "key_directory: /etc/gslbd/keys") {
				keys := &signedServer{keys: filepath.Join(dir, "keys")}
				if err := os.Mkdir(keys.keys, 0o700); err != nil {
					t.Fatal(err)
				}
				keys.keygen(t, "", nil)
			}
			there := strings.NewReplacer("/var/lib/gslbd/cities.mmdb", "testdata/geo/cities.mmdb", "/etc/gslbd/keys", "keys")
			writeFile(t, filepath.Join(dir, "gslbd.yaml"), there.Replace(string(text)))
			cmd := exec.Command(filepath.Join(binaries, "gslbd"), "check", "--config", "gslbd.yaml")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(string(out), "warning") {
				t.Errorf("%s: %v\n%s", b, err, out)
			}
		}
	}
}

// TestDocsZones reads the records in the documentation.
func TestDocsZones(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, b := range blocksTested(t, page, records) {
			parser, n := dns.NewZoneParser(strings.NewReader("$TTL 3600\n"+b.text), "example.com.", page), 0
			for _, ok := parser.Next(); ok; _, ok = parser.Next() {
				n++
			}
			if err := parser.Err(); err != nil || n == 0 {
				t.Errorf("%s: %d records, %v", b, n, err)
			}
		}
	}
}

// docsDir returns a folder that has what the commands of the documentation find in the project's: programs, examples,
// zones and databases.
func docsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	project, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"bin": binaries, "testdata": filepath.Join(project, "testdata")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"config.example.yaml", "agent.example.yaml"} {
		writeFile(t, filepath.Join(dir, name), readPage(t, name))
	}
	writeFile(t, filepath.Join(dir, "gslb.example.com.zone"), readPage(t, "testdata/zones/gslb.example.com.zone"))
	return dir
}

// demoCertificates does in dir what make demo-certs does in the project.
func demoCertificates(t *testing.T, dir string) {
	t.Helper()
	demo := exec.Command("go", "run", "./testdata/certs/demo", "config.example.yaml", filepath.Join(dir, "demo-certs"))
	demo.Dir = ".."
	if out, err := demo.CombinedOutput(); err != nil {
		t.Fatalf("demo-certs: %v\n%s", err, out)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// promise is a command with what it is to print, behind it as a comment: an address, or what settles an answer.
var promise = regexp.MustCompile(`(?m)^(.*[^ ]) +# (\d+\.\d+\.\d+\.\d+|settled by [a-z-]+).*$`)

// walk runs what the documentation says as a shell script in dir, in a network of its own, in which gslbd runs with its
// example configuration, as after make run. What a comment promises of a command has to be in its output. It returns what
// the script printed.
func walk(t *testing.T, dir, script string) string {
	t.Helper()
	lab.Need(t, os.Geteuid() == 0, "root, for a network namespace")
	for _, program := range []string{"curl", "dig"} {
		lab.Program(t, program)
	}
	script = promise.ReplaceAllString(script, "{ $1\n} | tee /dev/stderr | grep -F '$2' >/dev/null || { echo 'does not print $2'; exit 1; }")
	script = `ip link set lo up
export PATH=$PWD/bin:$PATH GSLBD_DNS__DRAIN_TIME=0s
ready() { for i in $(seq 100); do curl -s http://$1/readyz | grep -q '^ready' && return; sleep 0.1; done; cat *.log; exit 1; }
bin/gslbd --config config.example.yaml 2>gslbd.log & ready 127.0.0.1:8053
set -ex -o pipefail
` + script
	cmd := exec.Command("unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestReadme does what the README says, from the first question to the end of the walk.
func TestReadme(t *testing.T) {
	t.Parallel()
	dir := docsDir(t)
	example := readPage(t, "config.example.yaml")
	before, rest, ok := strings.Cut(example, "\npolicies:\n")
	_, after, ok2 := strings.Cut(rest, "\n# The names to balance.")
	policies := blocksTested(t, "README.md", configured)[0].text
	reordered := strings.Replace(before+"\n"+policies+"\n# The names to balance."+after, "addresses: [2.2.2.2]}", "addresses: [2.2.2.2], preference: 200}", 1)
	reordered, _, ok3 := strings.Cut(reordered, "\ntests:\n")
	if !ok || !ok2 || !ok3 || !strings.Contains(reordered, "preference: 200") {
		t.Fatal("config.example.yaml has changed")
	}
	writeFile(t, filepath.Join(dir, "reordered.yaml"), reordered)
	var script strings.Builder
	for _, b := range blocksTested(t, "README.md", readme) {
		text := b.text
		if strings.HasPrefix(text, "bin/gslbd check") {
			text = "cp reordered.yaml config.example.yaml\n" + text
		}
		script.WriteString(strings.Replace(text, "\nbin/gslb-agent --config agent.example.yaml", `
bin/gslb-agent --config agent.example.yaml >agent.log 2>&1 & agent=$!
for i in $(seq 200); do grep -q "reports accepted" agent.log && break; sleep 0.1; done
kill $agent; wait $agent || true; cat agent.log`, 1))
	}
	out := walk(t, dir, script.String())
	for _, want := range []string{
		"CLIENT-SUBNET: 11.1.1.0/24/24", "status: NXDOMAIN", "www.gslb.example.com A, policy default", "config.example.yaml is valid",
		"evacuated", `"state": "down"`, "reports accepted",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %s:\n%s", want, out)
		}
	}
}

// TestDocsOperations runs the commands of docs/operations.md, and those for agents.
func TestDocsOperations(t *testing.T) {
	t.Parallel()
	dir := docsDir(t)
	// With a short TTL, so that cached answers run out soon.
	writeFile(t, filepath.Join(dir, "config.example.yaml"), strings.Replace(readPage(t, "config.example.yaml"), "ttl: 30", "ttl: 1", 1))
	writeFile(t, filepath.Join(dir, "agent.yaml"), readPage(t, "agent.example.yaml"))
	writeFile(t, filepath.Join(dir, "token"), "secret\n")
	var script strings.Builder
	for _, page := range []string{"docs/operations.md", "docs/agent.md"} {
		for _, b := range blocksTested(t, page, operations) {
			text := strings.Replace(b.text, "clear 01981f6e-…", `clear $(gslbctl orders --json | sed -n 's/.*"id": "\(.*\)".*/\1/p' | head -n 1)`, 1)
			text = strings.Replace(text, "\ngslb-agent --config agent.yaml", "\ntimeout 2 gslb-agent --config agent.yaml || [ $? = 124 ]", 1)
			text = strings.Replace(text, "since=1h'", "since=1h' || [ $? = 124 ]", 1)
			script.WriteString(strings.Replace(text, "curl -N", "timeout 2 curl -N", 1))
		}
	}
	out := walk(t, dir, script.String())
	for _, want := range []string{"No site has measured 203.0.113.53", "to undo: gslbctl restore --zone apne2-az1", "is not forced down by it any more", `"accepted":true`} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %s:\n%s", want, out)
		}
	}
}

// TestDocsProtocol runs the commands of docs/protocol.md against a server with cookies and TLS on the usual ports.
func TestDocsProtocol(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"kdig", "openssl"} {
		lab.Program(t, program)
	}
	dir := docsDir(t)
	demoCertificates(t, dir)
	blocks := blocksTested(t, "docs/protocol.md", protocol)
	cookies, secret, tls := blocks[0].text, blocks[1].text, blocks[2].text
	here := strings.NewReplacer("SERVER", "127.0.0.1", "/etc/gslbd/", "", "-alpn dot", "-alpn dot </dev/null")
	usual := readPage(t, "config.example.yaml")
	for _, change := range [][2]string{
		{"127.0.0.1:5300\"]", "127.0.0.1:53\"]"},
		{"listen: []", "listen: [\"127.0.0.1:853\"]"},
		{`secret_file: ""`, "secret_file: cookie-secret"},
		{`certificate: ""`, "certificate: demo-certs/server.pem"},
		{`key: ""`, "key: demo-certs/server.key"},
	} {
		usual = strings.Replace(usual, change[0], change[1], 1) // the first is in the section dns
	}
	writeFile(t, filepath.Join(dir, "usual.yaml"), usual)
	out := walk(t, dir, here.Replace(secret)+"kill $!; wait $!\nbin/gslbd --config usual.yaml 2>usual.log & ready 127.0.0.1:8053\n"+here.Replace(cookies+tls))
	for _, want := range []string{"(good)", "status: BADCOOKIE", "TLS session", "ALPN protocol: dot"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %s:\n%s", want, out)
		}
	}
}

// TestDocsSimulate runs the simulations of docs/simulate.md, with its scenarios, on the example's configuration.
func TestDocsSimulate(t *testing.T) {
	t.Parallel()
	dir := docsDir(t)
	example := readPage(t, "config.example.yaml")
	blocks := blocksTested(t, "docs/simulate.md", simulated)
	for name, text := range map[string]string{
		"gslbd.yaml":   strings.Replace(example, "\nsites:\n", "\nsites:\n  - {name: busan, zone: apne2-az2}\n", 1),
		"new.yaml":     strings.Replace(example, "tolerance: 10%", "tolerance: 20%", 1),
		"clients.csv":  "203.0.113.53,10\n8.8.8.8,5,198.51.100.0/24\n",
		"log.txt":      "www.gslb.example.com A 203.0.113.53 198.51.100.0/24\nwww.gslb.example.com A 8.8.8.8\n",
		"failure.yaml": blocks[1].text,
		"drain.yaml":   blocks[2].text,
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	out := walk(t, dir, blocks[0].text+"grep '</svg>' failure.svg\n")
	if n := strings.Count(out, "www.gslb.example.com"); n < 3 {
		t.Errorf("three simulations tell %d times of the service:\n%s", n, out)
	}
}

// TestDocsDNSSEC signs the zone of the example as docs/dnssec.md says, and looks at it so.
func TestDocsDNSSEC(t *testing.T) {
	t.Parallel()
	lab.Program(t, "delv")
	dir := docsDir(t)
	steps := blocksTested(t, "docs/dnssec.md", signed)
	keygen, reload, zsk, look := steps[0].text, steps[1].text, steps[2].text, steps[3].text
	here := strings.NewReplacer("/etc/gslbd/keys", "keys", "…", "config.example.yaml", "SERVER", "127.0.0.1 -p 5300")
	const enable = "sed -i 's/dnssec: {enabled: false, key_directory: \"\"/dnssec: {enabled: true, key_directory: keys/' config.example.yaml\n"
	out := walk(t, dir, here.Replace(keygen+enable+reload+zsk+"gslbctl reload\n"+look))
	for _, want := range []string{"; fully validated", "RRSIG\tA 13 ", "DNSKEY 13 3 "} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

// TestDocsDelegation builds what docs/delegation.md describes: two gslbd, a parent zone at NSD, a resolver, and runs its
// checks.
func TestDocsDelegation(t *testing.T) {
	t.Parallel()
	nsd, unbound := lab.Program(t, "nsd"), lab.Program(t, "unbound")
	dir := docsDir(t)
	steps := blocksTested(t, "docs/delegation.md", delegated)
	parent, zone, check := steps[0].text, steps[1].text, steps[2].text
	config := strings.ReplaceAll(blocksTested(t, "docs/delegation.md", configured)[0].text, "/var/lib/gslbd/cities.mmdb", "testdata/geo/cities.mmdb")
	const admin = "\nadmin: {listen: %q}\nreports: {listen: %q}\nstate: {directory: %q}\n"
	for name, text := range map[string]string{
		"gslb.example.com.zone": zone,
		"ns1.yaml":              config + fmt.Sprintf(admin, "127.0.0.1:9053", "127.0.0.1:9054", "ns1"),
		"ns2.yaml": strings.NewReplacer("192.0.2.1:53", "198.51.100.1:53", "nsid: ns1", "nsid: ns2").Replace(config) +
			fmt.Sprintf(admin, "127.0.0.1:9153", "127.0.0.1:9154", "ns2"),
		"example.com.zone": "$ORIGIN example.com.\n$TTL 3600\n@ SOA ns hostmaster 1 7200 900 1209600 60\n@ NS ns\nns A 203.0.113.53\n" + parent,
		"nsd.conf": fmt.Sprintf("server:\n  ip-address: 203.0.113.53\n  username: \"\"\n  zonesdir: %q\n  database: \"\"\n  pidfile: \"\"\n  zonelistfile: %q\n  xfrdfile: \"\"\n"+
			"remote-control:\n  control-enable: no\nzone:\n  name: example.com\n  zonefile: example.com.zone\n", dir, filepath.Join(dir, "zone.list")),
		"unbound.conf": "server:\n  interface: 203.0.113.99\n  access-control: 0.0.0.0/0 allow\n  username: \"\"\n  chroot: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  module-config: iterator\n" +
			"  do-ip6: no\nstub-zone:\n  name: example.com\n  stub-addr: 203.0.113.53\n",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	out := walk(t, dir, "kill $!; wait $!\nfor a in 192.0.2.1 198.51.100.1 203.0.113.53 203.0.113.99; do ip addr add $a/32 dev lo; done\n"+
		"bin/gslbd --config ns1.yaml 2>ns1.log & ready 127.0.0.1:9053\nbin/gslbd --config ns2.yaml 2>ns2.log & second=$!; ready 127.0.0.1:9153\n"+
		nsd+" -d -c nsd.conf 2>nsd.log & \n"+unbound+" -d -c unbound.conf 2>unbound.log &\n"+
		"for a in 203.0.113.53 203.0.113.99; do for i in $(seq 100); do dig @$a example.com SOA +tries=1 +timeout=1 | grep -q NOERROR && break; sleep 0.1; done; done\n"+
		check+"\nkill $second; wait $second\n# With one of them gone, for what is not in the resolver's cache.\n"+
		"dig @203.0.113.99 gslb.example.com SOA | grep 'status: NOERROR'\n")
	for want, n := range map[string]int{
		";; flags: qr aa;": 4, // step 1, of both over UDP and TCP; all other answers have more in this line, or less
		"ns2.gslb.example.com.\t3600\tIN\tA\t198.51.100.1": 1, "gslb.example.com.\t3600\tIN\tNS\tns2.gslb.example.com.": 3,
		"www.example.com.\t": 1, "NSID: 6e 73 32": 1,
	} {
		if got := strings.Count(out, want); got < n {
			t.Errorf("has %d times %q, want %d:\n%s", got, want, n, out)
		}
	}
}

// TestDocsExplain gets the explanation in docs/policies.md, to the letter but for how long the pool has served.
func TestDocsExplain(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, `
geo: {databases: [testdata/geo/cities.mmdb], overrides: [{prefix: 11.1.1.0/24, continent: AS, country: HK}]}
sites:
  - {name: korea, location: {continent: AS, country: KR, latitude: 37.57, longitude: 126.98}, capacity: {sessions: 900000}}
  - {name: us, location: {continent: NA, country: US, latitude: 38.95, longitude: -77.45}, capacity: {sessions: 900000}}
zones: [{name: gslb.example.com, file: testdata/zones/gslb.example.com.zone}]
services:
  - name: www.gslb.example.com
    members: [{name: korea, site: korea, addresses: [1.1.1.1]}, {name: us, site: us, addresses: [2.2.2.2]}]
`)
	for site, sessions := range map[string]int{"korea": 400000, "us": 300000} {
		vip := map[string]string{"korea": "1.1.1.1", "us": "2.2.2.2"}[site]
		body := fmt.Sprintf(`{"site": %q, "load": {"sessions": %d}, "virtual_servers": [{"name": "web", "address": %q, "servers": [{"name": "server1", "state": "up"}]}]}`, site, sessions, vip)
		s.keepReporting(t, site, func() string { return body }, func(string) {})
	}
	want := blocksTested(t, "docs/policies.md", explanation)[0].text
	var got string
	lab.Eventually(t, within, "both reports count", func() bool {
		got = s.ctl(t, "explain", "www.gslb.example.com", "--client", "11.1.1.1")
		return strings.Contains(got, "korea 44.44 %, us 33.33 %")
	})
	if diff := cmp.Diff(want, regexp.MustCompile(`for \d+s,`).ReplaceAllString(got, "for 12s,")); diff != "" {
		t.Errorf("docs/policies.md (-page +now):\n%s", diff)
	}
}

// command is the beginning of one of our commands.
var command = regexp.MustCompile(`^(?:bin/)?(gslbd|gslbctl|gslb-agent)$`)

// TestDocsCommands has our programs say of every command in the documentation and the example files, in blocks and in
// sentences, that they know it and its flags.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	makefile := readPage(t, "Makefile")
	fence := regexp.MustCompile("(?s)\n```.*?\n```\n")
	inline := regexp.MustCompile("`([^`]+)`")
	tried := map[string]bool{}
	try := func(where, line string) {
		line, _, _ = strings.Cut(line, " #")
		line = strings.NewReplacer(`"`, " ", "'", " ").Replace(line)
		for _, part := range regexp.MustCompile(`;|\|+|&+|\$\(|\)`).Split(line, -1) {
			words := strings.Fields(part)
			for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) < 2 || tried[strings.Join(words, " ")] {
				continue
			}
			tried[strings.Join(words, " ")] = true
			if words[0] == "make" {
				for _, target := range words[1:] {
					if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).MatchString(makefile) {
						t.Errorf("%s: make has no target %s", where, target)
					}
				}
			}
			m := command.FindStringSubmatch(words[0])
			if m == nil || part == "gslbd hangs" { // a message of the log
				continue
			}
			args := append(slices.Clone(words[1:]), "--help")
			out, err := exec.Command(filepath.Join(binaries, m[1]), args...).CombinedOutput()
			sub := m[1]
			if !strings.HasPrefix(words[1], "-") {
				sub += " " + words[1]
			}
			if err != nil || !strings.Contains(string(out), "Usage:\n  "+sub) {
				t.Errorf("%s: %s: %v\n%s", where, part, err, out)
			}
		}
	}
	for _, page := range append(pages(t), "config.example.yaml", "agent.example.yaml") {
		for _, m := range inline.FindAllStringSubmatch(strings.ReplaceAll(fence.ReplaceAllString(readPage(t, page), ""), "\n", " "), -1) {
			try(page, m[1])
		}
		if strings.HasSuffix(page, ".yaml") {
			continue
		}
		for i, b := range blocks(t, page) {
			if i < len(treated[page]) && treated[page][i][1] == output {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
				try(b.String(), strings.TrimSpace(line))
			}
		}
	}
	if len(tried) < 50 {
		t.Errorf("only %d commands were found", len(tried))
	}
}

// TestDocsLinks follows every link of the documentation to another page or place.
func TestDocsLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)]+)\)`)
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(readPage(t, page), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			target := page
			if to != "" {
				target = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s: the link to %s: %v", page, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(readPage(t, target)), anchor) {
				t.Errorf("%s: %s has no heading for #%s", page, target, anchor)
			}
		}
	}
}

// anchors returns the names by which a page's headings are reached.
func anchors(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// TestDocsNames finds tests, telemetry and keys that the documentation names and that are not there.
func TestDocsNames(t *testing.T) {
	t.Parallel()
	var source, tests strings.Builder
	err := filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.HasSuffix(path, "_test.go") {
			tests.Write(b)
		} else {
			source.Write(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	reference := readPage(t, "docs/reference.md")
	test := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)")
	series := regexp.MustCompile(`\bgslbd_[a-z_]+`)
	key := regexp.MustCompile("`((?:dns|reports|admin|state|geo|rtt|zones\\[\\]|sites\\[\\]|policies\\[\\]|evacuation|log|failover|capacity)(?:\\.[a-z0-9_]+(?:\\[\\])?)+)(?:: [^`]*)?`")
	for _, page := range pages(t) {
		text := readPage(t, page)
		for _, m := range test.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests.String(), "func "+m[1]) {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for _, name := range series.FindAllString(text, -1) {
			if !strings.Contains(source.String(), `"`+name) {
				t.Errorf("%s: there is no telemetry %s", page, name)
			}
		}
		for _, m := range key.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile("`(?:[a-z_.\\[\\]]+\\.)?" + regexp.QuoteMeta(m[1]) + "[.\\[`]").MatchString(reference) {
				t.Errorf("%s: there is no key %s", page, m[1])
			}
		}
	}
}
