package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/config"
)

// Reports come over TLS by client certificate or token, and what the files hold is taken up without a reload; what
// cannot be used leaves in force what was.
func TestReportsTLS(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	certificate, key, first := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	_, _, seoul := ours.write(dir, "seoul", time.Now().Add(time.Hour))
	_, _, expired := ours.write(dir, "expired", time.Now().Add(-time.Hour))
	_, _, after := theirs.write(dir, "seoul", time.Now().Add(time.Hour))
	ca, token := ours.writeCA(filepath.Join(dir, "ca.pem")), filepath.Join(dir, "token")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token, "old\n")
	text := strings.Replace(served, `reports: {listen: "127.0.0.1:0"}`,
		fmt.Sprintf(`reports: {listen: "127.0.0.1:0", tls: {certificate: %s, key: %s, client_ca: %s}}`, certificate, key, ca), 1)
	text = strings.Replace(text, "{name: busan,", "{name: busan, token_file: "+token+",", 1) + "admin: {listen: \"127.0.0.1:0\", token_file: " + token + "}\n"
	s, _ := startServer(t, dir, text)
	core, logs := observer.New(zap.InfoLevel)
	s.secrets.log = zap.New(core)
	addr := s.http[0].listener.Addr().String()

	call := func(site, bearer string, with *tls.Certificate) (int, string, []byte) {
		t.Helper()
		tc := &tls.Config{RootCAs: ours.pool()}
		if with != nil {
			tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return with, nil }
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: tc, DisableKeepAlives: true}, Timeout: 20 * time.Second}
		req, err := http.NewRequest(http.MethodGet, "https://"+addr+"/v1/sites/"+site+"/report", nil)
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body), resp.TLS.PeerCertificates[0].Raw
	}
	want := func(status int, text, site, bearer string, with *tls.Certificate) {
		t.Helper()
		if got, body, _ := call(site, bearer, with); got != status || !strings.Contains(body, text) {
			t.Errorf("%s %q: %d %s, want %d %s", site, bearer, got, body, status, text)
		}
	}
	want(200, "", "seoul", "", &seoul)
	want(200, "", "busan", "old", nil)
	want(403, "is that of another site", "busan", "", &seoul)
	want(401, "the token is missing", "seoul", "", nil)
	want(401, "certificate has expired", "seoul", "", &expired)
	want(401, "signed by unknown authority", "seoul", "", &after)

	// Neither plain HTTP nor an old TLS is spoken.
	if resp, err := http.Get("http://" + addr + "/v1/sites/busan/report"); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP is %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ours.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}

	operator := func(bearer string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+s.http[1].listener.Addr().String()+"/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	looks := func() { s.secrets.look(); s.secrets.look() }
	// A rollover of the token: both are good, then only the new one.
	write(token, "old\nnew\n")
	s.secrets.look()
	want(401, "", "busan", "new", nil) // it may be half of what is being written
	s.secrets.look()
	want(200, "", "busan", "old", nil)
	want(200, "", "busan", "new", nil)
	if a, b := operator("old"), operator("new"); a != 200 || b != 200 {
		t.Errorf("an operator with the old token %d, with the new one %d", a, b)
	}
	write(token, "new\n")
	looks()
	want(401, "", "busan", "old", nil)
	want(200, "", "busan", "new", nil)
	if a, b := operator("old"), operator("new"); a != 401 || b != 200 {
		t.Errorf("an operator with the old token %d, with the new one %d", a, b)
	}
	// Others can read the new one, or there is none: the old one stays, which is said once and stands in the status.
	logs.TakeAll()
	for range 2 {
		if err := os.Chmod(token, 0o644); err != nil {
			t.Fatal(err)
		}
		looks()
	}
	want(200, "", "busan", "new", nil)
	if all := logs.TakeAll(); len(all) != 2 /* a site and operators share the file */ || !strings.Contains(fmt.Sprint(all[0].ContextMap()["error"]), "chmod 600") {
		t.Errorf("logged %+v", all)
	}
	if p := s.secrets.problems(time.Now()); len(p) != 2 || p[0].setting != "token_file of site busan" || !strings.HasPrefix(p[0].why, "what was read before stays in force: "+token+" can be read or written by others") {
		t.Errorf("problems are %+v", p)
	}
	if err := os.Chmod(token, 0o600); err != nil {
		t.Fatal(err)
	}
	looks()
	if p := s.secrets.problems(time.Now()); len(p) != 0 {
		t.Errorf("problems are %+v", p)
	}

	// Another certificate; between the two files, nothing happens.
	k, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	_, _, second := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	renewed, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	write(key, string(k))
	looks()
	if _, _, cert := call("seoul", "", &seoul); string(cert) != string(first.Leaf.Raw) {
		t.Error("not the certificate from before")
	}
	write(key, string(renewed))
	looks()
	if _, _, cert := call("seoul", "", &seoul); string(cert) != string(second.Leaf.Raw) {
		t.Error("not the renewed certificate")
	}
	// Another authority.
	write(ca, "no certificate")
	looks()
	want(200, "", "seoul", "", &seoul)
	theirs.writeCA(ca)
	looks()
	want(401, "", "seoul", "", &seoul)
	want(200, "", "seoul", "", &after)
	if p := s.secrets.problems(time.Now()); len(p) != 0 {
		t.Errorf("problems are %+v", p)
	}

	expiry := `# HELP gslbd_http_certificate_expiry_timestamp_seconds When the TLS certificate in force expires, by listener.
# TYPE gslbd_http_certificate_expiry_timestamp_seconds gauge
gslbd_http_certificate_expiry_timestamp_seconds{listener="reports"} ` + fmt.Sprint(float64(second.Leaf.NotAfter.Unix())) + "\n"
	if err := testutil.CollectAndCompare(s.secrets, strings.NewReader(expiry)); err != nil {
		t.Error(err)
	}

	// A reload reads them as well. One that would switch TLS off leaves on whom it knows.
	ours.writeCA(ca)
	if warnings, err := s.reload(); err != nil || len(warnings) != 0 {
		t.Errorf("reload: %q, %v", warnings, err)
	}
	want(200, "", "seoul", "", &seoul)
	writeConfig(t, dir, served+"admin: {listen: \"127.0.0.1:0\"}\n")
	warnings, err := s.reload()
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "reports.tls: HTTPS is in force, HTTP needs a restart") {
		t.Errorf("reload: %q, %v", warnings, err)
	}
	want(200, "", "seoul", "", &seoul)
	want(401, "", "busan", "", nil)
}

// A site's certificate could give orders where both interfaces trust one authority.
func TestAuthoritiesAreApart(t *testing.T) {
	dir := t.TempDir()
	ours := newAuthority(t, "ours")
	certificate, key, _ := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	ca := ours.writeCA(filepath.Join(dir, "ca.pem"))
	other := newAuthority(t, "other").writeCA(filepath.Join(dir, "other.pem"))
	for _, tt := range []struct{ reports, admin, want string }{
		{ca, ca, `admin.tls.client_ca: it has the authority "CN=ours" in common with reports.tls.client_ca`},
		{ca, other, ""},
		{ca, `""`, ""},
	} {
		text := fmt.Sprintf("reports: {tls: {certificate: %[1]s, key: %[2]s, client_ca: %[3]s}}\nadmin: {tls: {certificate: %[1]s, key: %[2]s, client_ca: %[4]s}}\n", certificate, key, tt.reports, tt.admin)
		_, _, err := load(writeConfig(t, t.TempDir(), text), nil)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s and %s: %v, want %s", tt.reports, tt.admin, err, tt.want)
		}
	}
}

// Whoever writes his request slowly is sent away, over TLS too.
func TestSlowRequests(t *testing.T) {
	for name, secured := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := pipes{make(chan net.Conn), make(chan struct{})}
				s := &httpServer{key: "reports.listen", handler: http.NotFoundHandler(), log: zap.NewNop(), listener: listener}
				ours := newAuthority(t, "ours")
				if secured {
					dir := t.TempDir()
					certificate, key, _ := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
					l, err := readReportsTLS(&config.Config{Reports: config.Reports{TLS: config.ListenerTLS{Certificate: certificate, Key: key}}})
					if err != nil {
						t.Fatal(err)
					}
					s.tls.Store(l)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- s.run(ctx) }()
				client, server := net.Pipe()
				listener.conns <- server
				conn := net.Conn(client)
				if secured {
					conn = tls.Client(client, &tls.Config{RootCAs: ours.pool(), ServerName: "ns1.gslb.test"})
				}
				began := time.Now()
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					_, _ = io.Copy(io.Discard, conn) // a server that says goodbye does not have to wait for us
				}()
				for _, b := range "POST /v1/sites/seoul/report HTTP/1.1\r\nX: " + strings.Repeat("x", 100) {
					if _, err := conn.Write([]byte{byte(b)}); err != nil {
						break
					}
					time.Sleep(time.Second) // the bubble's time
				}
				if waited := time.Since(began); waited > 15*time.Second {
					t.Errorf("it may write for %v", waited)
				}
				conn.Close()
				<-answered
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
