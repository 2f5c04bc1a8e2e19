package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
	"gslbd/testdata/certs"
)

// The sites of a system whose reports come over TLS: virginia has a token beside its certificate.
var securedNetwork = strings.Replace(seedNetwork, "name: virginia\n", "name: virginia\n    token_file: virginia.token\n", 1) + fleetService + "log: {level: debug}\n"

// renewal is far above how long it takes until what is in a file is in force: two looks and a report.
const renewal = 15 * time.Second

// secured writes the certificates of `make demo-certs` and the token of virginia, and starts a gslbd that takes reports
// over TLS and logs all that it can.
func secured(t *testing.T) *gslbd {
	t.Helper()
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "gslbd.yaml")
	demo := exec.Command("go", "run", "./testdata/certs/demo", "config.example.yaml", s.dir)
	demo.Dir = ".."
	if out, err := demo.CombinedOutput(); err != nil {
		t.Fatalf("demo-certs: %v\n%s", err, out)
	}
	s.put(t, "virginia.token", "token-of-virginia\n")
	s.write(t, securedNetwork)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, "operators.token", "token-of-operators\n")
	s.put(t, "gslbd.yaml", strings.NewReplacer(
		"reports: {", "reports: {tls: {certificate: server.pem, key: server.key, client_ca: sites-ca.pem}, ",
		"admin: {", "admin: {token_file: operators.token, ",
	).Replace(string(text)))
	s.run(t)
	return s
}

// put writes a file beside the configuration.
func (s *gslbd) put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A reporter sends reports over TLS as whoever it is.
type reporter struct {
	certificate *tls.Certificate // nil: none
	token       string           // "": none
}

// certificate reads the certificate of that name beside the configuration.
func (s *gslbd) certificate(t *testing.T, name string) *tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.dir, name+".pem"), filepath.Join(s.dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// send sends a request to the listener of the reports and returns the status and the body.
func (s *gslbd) send(t *testing.T, by reporter, method, path, body string) (int, string) {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(s.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(ca)
	if by.certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return by.certificate, nil }
	}
	req, err := http.NewRequest(method, "https://"+s.reports+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if by.token != "" {
		req.Header.Set("Authorization", "Bearer "+by.token)
	}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// startSecuredAgent starts the agent of seoul, with its certificate and what extra adds to its file, on a server that is up.
func (s *gslbd) startSecuredAgent(t *testing.T) (p *process, file string) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	s.put(t, "agent.yaml", fmt.Sprintf(`site: seoul
agent: lb1
servers: ["https://%s"]
tls: {ca: ca.pem, certificate: site-seoul.pem, key: site-seoul.key}
interval: 1s
rtt: {enabled: false}
virtual_servers:
  - {name: www, address: 1.1.1.1, port: 80, servers: [{name: server1, address: %q}], check: {type: tcp, interval: 200ms, timeout: 100ms, rise: 1, fall: 1}}
log: {level: debug}
`, strings.Replace(s.reports, "127.0.0.1", "localhost", 1), server.Addr()))
	file = filepath.Join(s.dir, "agent.yaml")
	return start(t, filepath.Join(binaries, "gslb-agent"), "--config", file), file
}

// agentCommand runs a command of gslb-agent.
func agentCommand(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "gslb-agent"), args...)
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// upReport is a report of a site whose one server is in a state.
func upReport(site, vip, state string, sequence int) string {
	return fmt.Sprintf(`{"site": %q, "agent": "lb1", "boot_id": "b1", "sequence": %d, "virtual_servers": [{"name": "web", "address": %q, "port": 80,
		"servers": [{"name": "s1", "address": "10.1.1.1:80", "state": %q}]}]}`, site, sequence, vip, state)
}

// noSecrets fails if a log shows a token or a part of a private key that lies beside the configuration.
func (s *gslbd) noSecrets(t *testing.T, tokens []string, logs ...string) {
	t.Helper()
	secrets := tokens
	keys, err := filepath.Glob(filepath.Join(s.dir, "*.key"))
	if err != nil || len(keys) < 4 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	for _, file := range keys {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); len(line) >= 20 {
				secrets = append(secrets, line)
			}
		}
	}
	for _, log := range logs {
		if len(log) == 0 {
			t.Error("a log is empty")
		}
		for _, secret := range secrets {
			if strings.Contains(log, secret) {
				t.Errorf("a log shows %q:\n%s", secret, log)
			}
		}
	}
}

// Sites report over TLS with certificates and tokens; nobody else reports for them, whatever he holds; what proves them is
// changed under way; and no log, at its most talkative, shows a secret.
func TestSecuredReports(t *testing.T) {
	t.Parallel()
	s := secured(t)
	agent, file := s.startSecuredAgent(t)
	agent.waitLog(`"reports accepted"`, 15*time.Second)
	s.wantAnswer(t, within, www, "1.1.1.1")

	seoul, virginia := reporter{certificate: s.certificate(t, "site-seoul")}, reporter{token: "token-of-virginia"}
	theirs, err := certs.Authority("theirs")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := theirs.Client("seoul", "seoul")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/v1/sites/seoul/report"
	down := upReport("seoul", "1.1.1.1", "down", 1)
	for _, c := range []struct {
		name   string
		by     reporter
		method string
		path   string
		body   string
		status int
	}{
		{"nobody", reporter{}, "POST", path, down, 401},
		{"a guessed token", reporter{token: "guessed-token"}, "POST", path, down, 401},
		{"the token of another site", virginia, "POST", path, down, 403},
		{"the certificate of another site", reporter{certificate: s.certificate(t, "site-virginia")}, "POST", path, down, 403},
		{"both of another site", reporter{s.certificate(t, "site-virginia"), "token-of-virginia"}, "POST", path, down, 403},
		{"a certificate of another authority", reporter{certificate: foreign.TLS()}, "POST", path, down, 401},
		{"an operator's certificate", reporter{certificate: s.certificate(t, "operator")}, "POST", path, down, 401},
		{"the server's certificate", reporter{certificate: s.certificate(t, "server")}, "POST", path, down, 401},
		{"another site within its own report", virginia, "POST", "/v1/sites/virginia/report", down, 400},
		{"an order", seoul, "POST", "/v1/orders", `{"action": "down"}`, 404},
		{"an evacuation", seoul, "POST", "/v1/evacuations", `{"zone": "use1-az1"}`, 404},
		{"the status", seoul, "GET", "/v1/status", "", 404},
		{"huge numbers", seoul, "POST", path, `{"site": "seoul", "agent": "x", "load": {"sessions": 18446744073709551615}}`, 400},
		{"numbers that are none", seoul, "POST", path, `{"site": "seoul", "agent": "x", "rtts": [{"resolver": "192.0.2.1", "rtt_ms": 1e999, "age_ms": 0}]}`, 400},
		{"what is no report", seoul, "POST", path, strings.Repeat("[", 100_000), 400},
	} {
		status, answer := s.send(t, c.by, c.method, c.path, c.body)
		if status != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, status, answer, c.status)
		}
		if c.by.token != "" && strings.Contains(answer, c.by.token) {
			t.Errorf("%s: the answer repeats the token", c.name)
		}
	}
	s.wantAnswer(t, 0, www, "1.1.1.1")

	// An old report that is sent again changes nothing, to whoever has overheard it.
	const to = "/v1/sites/virginia/report"
	for sequence, state := range []string{"up", "down"} {
		lab.Eventually(t, within, "the report is accepted", func() bool {
			status, _ := s.send(t, virginia, "POST", to, upReport("virginia", "2.2.2.2", state, sequence+1))
			return status == 200
		})
	}
	if status, answer := s.send(t, virginia, "POST", to, upReport("virginia", "2.2.2.2", "up", 1)); status != 409 {
		t.Errorf("an old report: %d %s", status, answer)
	}
	lab.Eventually(t, within, "virginia is down", func() bool {
		return s.scrape(t, `gslbd_member_up{family="ipv4",member="virginia",service="www.gslb.example.com"}`) == "0"
	})

	// The token of virginia changes, the new one beside the old and then alone.
	s.put(t, "virginia.token", "token-of-virginia\nsecond-token\n")
	lab.Eventually(t, renewal, "the second token is accepted", func() bool {
		status, _ := s.send(t, reporter{token: "second-token"}, "GET", to, "")
		return status == 200
	})
	if status, _ := s.send(t, virginia, "GET", to, ""); status != 200 {
		t.Errorf("the first token beside it: %d", status)
	}
	s.put(t, "virginia.token", "second-token\n")
	lab.Eventually(t, renewal, "the first token is refused", func() bool {
		status, _ := s.send(t, virginia, "GET", to, "")
		return status == 401
	})

	// The authority of the sites changes, and then the certificate of seoul: its agent goes on without a restart.
	another, err := certs.Authority("another")
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := another.Client("seoul", "seoul")
	if err != nil {
		t.Fatal(err)
	}
	if err := another.Write(s.dir, "sites-ca"); err != nil {
		t.Fatal(err)
	}
	agent.waitLog("certificate signed by unknown authority", renewal)
	accepted := strings.Count(agent.log(), `"reports accepted"`)
	if err := renewed.Write(s.dir, "site-seoul"); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, renewal, "the agent reports again", func() bool { return strings.Count(agent.log(), `"reports accepted"`) > accepted })
	if status, _ := s.send(t, seoul, "GET", path, ""); status != 401 {
		t.Errorf("the former certificate: %d", status)
	}

	out, status := agentCommand(t, "check", "--config", file)
	if status != 0 || !strings.Contains(out, "accepts reports of site seoul, every 1s") || !strings.Contains(out, "1 up") || !strings.Contains(out, "client certificate: valid until ") {
		t.Errorf("check: status %d\n%s", status, out)
	}
	dry, status := agentCommand(t, "once", "--dry-run", "--config", file)
	if status != 0 || !strings.Contains(dry, `"agent": "lb1.once"`) || !strings.Contains(dry, `"state": "up"`) {
		t.Errorf("once --dry-run: status %d\n%s", status, dry)
	}
	sent, status := agentCommand(t, "once", "--config", file)
	if status != 0 || !strings.Contains(sent, `"accepted": true`) {
		t.Errorf("once: status %d\n%s", status, sent)
	}
	s.wantAnswer(t, 0, www, "1.1.1.1")

	// An operator's command, with the right token and with that of a site.
	right := s.ctl(t, "force", "down", "--site", "virginia", "--reason", "test", "--token-file", filepath.Join(s.dir, "operators.token"))
	wrong, status := s.tryCtl(t, "clear", "--site", "virginia", "--token-file", filepath.Join(s.dir, "virginia.token"))
	if status == 0 || !strings.Contains(wrong, "the token is missing or wrong") {
		t.Errorf("a site's token is an operator's:\n%s", wrong)
	}
	s.noSecrets(t, []string{"token-of-virginia", "second-token", "guessed-token", "token-of-operators"}, s.log(), agent.log(), out, dry, sent, right, wrong)
}

// The commands in docs/agent.md for trying TLS do what it says, in a namespace whose ports are free.
func TestDocsOverTLS(t *testing.T) {
	t.Parallel()
	lab.Need(t, os.Geteuid() == 0, "root, for a network namespace")
	curl := lab.Program(t, "curl")
	_, text, _ := strings.Cut(readPage(t, "docs/agent.md"), "To try it with the example")
	text, _, _ = strings.Cut(text, "\n### ")
	serve, try, ok := strings.Cut(text, "In another terminal:")
	_, serve, built := strings.Cut(serve, "make build demo-certs\n")
	if !ok || !built {
		t.Fatalf("the section has changed:\n%s", text)
	}
	dir := docsDir(t)
	demoCertificates(t, dir)
	script := "ip link set lo up || exit 1\n" + strings.TrimRight(serve, "\n") + " 2>gslbd.log & gslbd=$!\n" +
		"for i in $(seq 100); do " + curl + " -s --cacert demo-certs/ca.pem https://localhost:8053/readyz | grep -q '^ready' && break; sleep 0.1; done\n" +
		"set -ex\n" + try + "\nkill $gslbd; wait $gslbd\n"
	cmd := exec.Command("unshare", "-n", "bash", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "gslbd.log"))
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	for _, want := range []string{
		`{"accepted":true,"interval_ms":5000`, `the client certificate is that of another site: it is for \"seoul\"`,
		"https://localhost:8054: accepts reports of site seoul, every 5s", "at https://localhost:8053: ready",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lacks %s:\n%s", want, out)
		}
	}
}
