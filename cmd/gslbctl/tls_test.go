package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTLS asks a server that wants a client certificate.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certificate, key := selfSigned(t, dir, "alice")
	clients := x509.NewCertPool()
	pemBytes, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	clients.AppendCertsFromPEM(pemBytes)
	var seen string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen = ""
		if len(req.TLS.VerifiedChains) > 0 {
			seen = req.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		_, _ = io.WriteString(w, `{"orders":[]}`)
	}))
	srv.TLS = &tls.Config{ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven}
	srv.Config.ErrorLog = nil
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()

	for _, c := range []struct {
		name  string
		args  []string
		env   map[string]string
		fails string // what it says; "": nothing fails
		seen  string
	}{
		{"with a certificate", []string{"--server", srv.URL, "--ca", ca, "--certificate", certificate, "--key", key}, nil, "", "alice"},
		{
			"by the environment",
			[]string{"--server", srv.URL},
			map[string]string{"GSLBCTL_CA": ca, "GSLBCTL_CERTIFICATE": certificate, "GSLBCTL_KEY": key},
			"", "alice",
		},
		{"without a certificate", []string{"--server", srv.URL, "--ca", ca}, map[string]string{"GSLBCTL_CA": "nowhere"}, "", ""},
		{"of an unknown authority", []string{"--server", srv.URL}, nil, "its certificate is not of an authority that is known here: give the authority's certificate with --ca", ""},
		{"plain to TLS", []string{"--server", strings.Replace(srv.URL, "https:", "http:", 1)}, nil, "it speaks TLS: give its address as https://", ""},
		{"TLS to plain", []string{"--server", strings.Replace(plain.URL, "http:", "https:", 1)}, nil, "it does not speak TLS: give its address as http://", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen = ""
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			var out, errs strings.Builder
			cmd := command()
			cmd.SetArgs(append([]string{"orders"}, c.args...))
			cmd.SetOut(&out)
			cmd.SetErr(&errs)
			err := cmd.Execute()
			if (err != nil) != (c.fails != "") || !strings.Contains(errs.String(), c.fails) {
				t.Errorf("%v: %s, want %q", err, errs.String(), c.fails)
			}
			if seen != c.seen {
				t.Errorf("the server saw the certificate of %q, want %q", seen, c.seen)
			}
		})
	}
}

// selfSigned writes a certificate and its key.
func selfSigned(t *testing.T, dir, name string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for path, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}
