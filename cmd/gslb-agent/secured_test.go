package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/config"
	"gslbd/testdata/certs"
)

// must returns a function that takes what has to be there.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// serverCertificate is that of a gslbd on this machine.
func serverCertificate(t *testing.T, ca certs.Certificate, expires time.Time, names ...string) certs.Certificate {
	t.Helper()
	return must[certs.Certificate](t)(ca.Sign(x509.Certificate{
		DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: expires.Add(-24 * time.Hour), NotAfter: expires,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}))
}

// The token, the client certificate and the authorities are taken up when their files change, and what cannot be used
// leaves in force what was read before.
func TestSecuredFilesChange(t *testing.T) {
	dir := t.TempDir()
	made := must[certs.Certificate](t)
	first, second := made(certs.Authority("first")), made(certs.Authority("second"))
	var server atomic.Pointer[tls.Certificate]
	server.Store(serverCertificate(t, first, time.Now().Add(time.Hour)).TLS())
	var connections atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.TLS.PeerCertificates[0].Subject.CommonName, r.Header.Get("Authorization"))
	}))
	srv.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		connections.Add(1)
		return &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{*server.Load()}}, nil
	}}
	srv.StartTLS()
	defer srv.Close()

	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	save := func(name string, c certs.Certificate) {
		t.Helper()
		if err := c.Write(dir, name); err != nil {
			t.Fatal(err)
		}
	}
	save("ca", first)
	save("site", made(first.Client("seoul")))
	c := &config.Agent{TokenFile: write("token", "one\n"), TLS: config.AgentTLS{
		CA: filepath.Join(dir, "ca.pem"), Certificate: filepath.Join(dir, "site.pem"), Key: filepath.Join(dir, "site.key"),
	}}
	core, logs := observer.New(zap.DebugLevel)
	s := must[*secured](t)(newSecured(c.TLS, secret{key: "token_file", file: c.TokenFile}, zap.New(core)))
	get := func() string {
		t.Helper()
		resp, err := (&http.Client{Transport: s, Timeout: 10 * time.Second}).Get(srv.URL)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		return string(must[[]byte](t)(io.ReadAll(resp.Body)))
	}
	want := func(text string, logged ...string) {
		t.Helper()
		if got := get(); !strings.Contains(got, text) {
			t.Errorf("got %q, want %q", got, text)
		}
		var all []string
		for _, e := range logs.TakeAll() {
			all = append(all, fmt.Sprint(e.Message, " ", e.ContextMap()["error"]))
		}
		if len(all) != len(logged) {
			t.Errorf("logged %q, want %q", all, logged)
			return
		}
		for i := range all {
			if !strings.Contains(all[i], logged[i]) {
				t.Errorf("logged %q, want %q", all[i], logged[i])
			}
		}
	}
	const changed = "certificate, authorities or token changed"
	want("seoul Bearer one")
	want("seoul Bearer one")
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for what did not change", n)
	}
	write("token", "two\none\n")
	want("seoul Bearer two", changed)
	write("token", "")
	want("seoul Bearer two", "token_file: "+c.TokenFile+" is empty")
	want("seoul Bearer two") // said once
	write("token", "three\n")
	want("seoul Bearer three", changed)
	if err := os.Chmod(c.TLS.Key, 0o640); err != nil {
		t.Fatal(err)
	}
	want("seoul Bearer three", "tls.key: "+c.TLS.Key+" can be read or written by others than its owner (mode 0640)")
	if err := os.Chmod(c.TLS.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	want("seoul Bearer three")
	write("site.pem", "nothing")
	want("seoul Bearer three", "tls.certificate: "+c.TLS.Certificate+" with tls.key")
	save("site", made(first.Client("renewed")))
	want("renewed Bearer three", changed)
	server.Store(serverCertificate(t, second, time.Now().Add(time.Hour)).TLS())
	write("ca.pem", "nothing")
	want("renewed Bearer three", "tls.ca: "+c.TLS.CA+" holds no certificate")
	save("ca", second)
	want("renewed Bearer three", changed)
	if strings.Contains(fmt.Sprint(logs.All()), "Bearer") {
		t.Error("a token was logged")
	}
}

// check says what is wrong with a connection and what to do.
func TestCheckOverTLS(t *testing.T) {
	made := must[certs.Certificate](t)
	ours, theirs := made(certs.Authority("ours")), made(certs.Authority("theirs"))
	hour := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name   string
		server certs.Certificate
		host   string // in place of 127.0.0.1
		plain  string // the scheme in servers, where it is not the server's
		want   string
	}{
		{"good", serverCertificate(t, ours, hour), "", "", "accepts reports of site seoul, every 5s"},
		{"another name", serverCertificate(t, ours, hour, "ns1.example.net"), "localhost", "", "the certificate of the gslbd is not for the name in servers: x509: certificate is valid for ns1.example.net, not localhost: write a name that it has"},
		{"unknown authority", serverCertificate(t, theirs, hour), "", "", "the certificate of the gslbd is of an authority that is not known here: x509: certificate signed by unknown authority: write the authority's certificate into tls.ca"},
		{"expired", serverCertificate(t, ours, time.Now().Add(-time.Hour)), "", "", "the certificate of the gslbd is not valid now: x509: certificate has expired or is not yet valid"},
		{"of a client", made(ours.Client("", "localhost")), "localhost", "", "the certificate of the gslbd cannot be used: x509: certificate specifies an incompatible key usage"},
		{"plain to TLS", serverCertificate(t, ours, hour), "", "http", "the gslbd speaks TLS there: write https:// in servers"},
		{"TLS to plain", certs.Certificate{}, "", "https", "the gslbd speaks no TLS there: write http:// in servers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Errorf("%s changes something", r.Method)
				}
				io.WriteString(w, `{"accepted": true, "interval_ms": 5000}`)
			}))
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			scheme := "http"
			if tt.server.Leaf != nil {
				scheme = "https"
				srv.TLS = &tls.Config{Certificates: []tls.Certificate{*tt.server.TLS()}}
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			if tt.plain != "" {
				scheme = tt.plain
			}
			addr := srv.Listener.Addr().String()
			if tt.host != "" {
				addr = strings.Replace(addr, "127.0.0.1", tt.host, 1)
			}
			if err := ours.Write(dir, "ca"); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "agent.yaml")
			text := fmt.Sprintf("site: seoul\nservers: [%q]\ntls: {ca: ca.pem}\nrtt: {enabled: false}\nvirtual_servers: [{name: w, address: 127.0.0.1, port: 1, servers: [{name: s, address: %q}], check: {type: tcp}}]\n",
				scheme+"://"+addr, srv.Listener.Addr())
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			p := must[*parts](t)(load(file, true))
			var out strings.Builder
			err := p.check(t.Context(), &out)
			if !strings.Contains(out.String(), scheme+"://"+addr+": ") || !strings.Contains(out.String(), tt.want) || (err == nil) != (tt.name == "good") {
				t.Errorf("%v: %s\nwant %s", err, &out, tt.want)
			}
			if !strings.Contains(out.String(), "own checks: 1 virtual servers, 1 servers: 1 up\n") {
				t.Errorf("the server's state is missing: %s", &out)
			}
		})
	}
}

// check tells of a client certificate that gslbd will not take.
func TestCheckExpiredClientCertificate(t *testing.T) {
	dir := t.TempDir()
	ours := must[certs.Certificate](t)(certs.Authority("ours"))
	expires := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	site := must[certs.Certificate](t)(ours.Sign(x509.Certificate{DNSNames: []string{"seoul"}, NotBefore: expires.AddDate(-1, 0, 0), NotAfter: expires}))
	if err := site.Write(dir, "site"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agent.yaml")
	const text = "site: seoul\nservers: [\"https://127.0.0.1:1\"]\ntls: {certificate: site.pem, key: site.key}\nrtt: {enabled: false}\nhaproxy: [{socket: /nowhere, virtual_servers: [{name: w, frontend: f, backend: b}]}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := must[*parts](t)(load(file, true))
	var out strings.Builder
	const want = "client certificate: FAILED: it is valid from 2025-01-02T03:04:05Z to 2026-01-02T03:04:05Z, and now is "
	if err := p.check(t.Context(), &out); err == nil || !strings.Contains(out.String(), want) {
		t.Errorf("%v: %s", err, &out)
	}
}
