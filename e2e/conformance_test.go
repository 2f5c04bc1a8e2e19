package e2e

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// python is the interpreter that the distribution's own modules belong to; another one in PATH may not have them.
const python = "/usr/bin/python3"

// TestConformance lets conform.py judge the real binary: a black-box harness of over 200 cases, each with the RFC that it
// comes from, that knows nothing of this program. It is not part of the project, so the test is left out quietly where
// neither the environment's CONFORMANCE nor a directory beside the project has it.
//
// No MUST and no POLICY case may fail, and at most two SHOULD; docs/protocol.md explains those that do.
func TestConformance(t *testing.T) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv("CONFORMANCE"), "../../shared/conformance"))
	if err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(filepath.Join(dir, "gslbd.yaml"))
	if err != nil {
		t.Skip("conform.py is not here")
	}
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	lab.Need(t, exec.Command(python, "-c", "import dns, cryptography").Run() == nil, python+" with dnspython and cryptography")

	// The file has a line `dns: {listen: ["127.0.0.1:5300"], ...` and is otherwise ours to keep.
	configure := func(s *gslbd, listen, settings string) {
		t.Helper()
		text := string(template)
		for old, now := range map[string]string{
			`listen: ["127.0.0.1:5300"], rate_limit: {responses_per_second: 0}`: fmt.Sprintf("listen: [%s], %s", listen, settings),
			"127.0.0.1:5301":       s.reports,
			"127.0.0.1:5302":       s.admin,
			"file: gslb.test.zone": "file: " + filepath.Join(dir, "gslb.test.zone"),
		} {
			if !strings.Contains(text, old) {
				t.Fatalf("%s has no %q any more", dir, old)
			}
			text = strings.Replace(text, old, now, 1)
		}
		write(t, s.config, text+"state: {directory: state}\n")
	}
	fresh := func() *gslbd {
		s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
		s.config = filepath.Join(s.dir, "gslbd.yaml")
		return s
	}
	// supported asks the binary whether it takes settings of the section dns.
	supported := func(settings string) bool {
		s := fresh()
		configure(s, strconv.Quote(s.dns), settings)
		out, err := exec.Command(filepath.Join(binaries, "gslbd"), "check", "--config", s.config).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not supported by this version") {
			t.Fatalf("dns: {%s}: %s", settings, out)
		}
		return err == nil
	}

	s := fresh()
	_, port, _ := net.SplitHostPort(s.dns)
	listen, settings := strconv.Quote(s.dns), "rate_limit: {responses_per_second: 0}"
	args := []string{"--fuzz", "5000"}
	if l, err := net.Listen("tcp", "[::1]:"+port); err == nil {
		l.Close()
		listen += ", " + strconv.Quote("[::1]:"+port)
		args = append(args, "--server6", "::1")
	}
	if raceFlags == nil { // the race detector has a growth of its own
		args = append(args, "--pid", "PID")
	}
	if !supported("cookies: {enabled: true}") {
		args = append(args, "--no-cookies")
	}
	dot := freeAddr(t)
	certificate, key := selfSigned(t)
	tls := fmt.Sprintf("tls: {listen: [%q], certificate: %q, key: %q}", dot, certificate, key)
	if supported(tls) {
		settings += ", " + tls
		_, p, _ := net.SplitHostPort(dot)
		args = append(args, "--dot-port", p)
	}
	configure(s, listen, settings)
	keys := filepath.Join(s.dir, "keys")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(binaries, "gslbd"), "keygen", "--zone", "gslb.test", "--directory", keys).CombinedOutput(); err != nil {
		t.Fatalf("gslbd keygen: %v: %s", err, out)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.config, strings.Replace(string(text), "gslb.test.zone", "gslb.test.zone, dnssec: {enabled: true, key_directory: keys}", 1))
	s.run(t)
	judge(t, dir, s, append(args, "--dnssec")...)

	if limited := "rate_limit: {responses_per_second: 100}"; supported(limited) {
		s := fresh()
		configure(s, strconv.Quote(s.dns), limited)
		s.run(t)
		judge(t, dir, s, "--rrl", "--only", "^RRL")
	}
	if resp, err := http.Get("http://" + s.admin + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("after all that: %v, %v", resp, err)
	}
}

// judge runs conform.py against s and fails the test for what the bar does not allow.
func judge(t *testing.T, dir string, s *gslbd, args ...string) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.dns)
	result := filepath.Join(t.TempDir(), "result.json")
	args = append([]string{
		filepath.Join(dir, "conform.py"), "--server", host, "--port", port, "--zone", "gslb.test", "--dynamic-name", "dyn",
		"--seed", "1", "--json", result, "--quiet",
	}, args...)
	for i := range args {
		if args[i] == "PID" {
			args[i] = strconv.Itoa(s.cmd.Process.Pid)
		}
	}
	cmd := exec.Command(python, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	data, readErr := os.ReadFile(result)
	if readErr != nil {
		t.Fatalf("conform.py: %v\n%s", err, out)
	}
	var report struct {
		Results []struct{ Status, ID, Level, Ref, Title, Detail string }
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatalf("conform.py: %v\n%s", err, out)
	}
	passed := 0
	failed := map[string]int{}
	for _, r := range report.Results {
		switch r.Status {
		case "PASS":
			passed++
		case "FAIL":
			failed[r.Level]++
			t.Logf("%s [%s] %s: %s :: %s", r.ID, r.Level, r.Ref, r.Title, r.Detail)
		}
	}
	t.Logf("%d passed of %d; failed: %v", passed, len(report.Results), failed)
	if passed == 0 || failed["MUST"] > 0 || failed["POLICY"] > 0 || failed["SHOULD"] > 2 {
		t.Error("not conforming")
	}
}

// selfSigned makes a certificate for a test and returns the files of it and its key.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ns1.gslb.test"}, DNSNames: []string{"ns1.gslb.test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write(t, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return certificate, key
}
