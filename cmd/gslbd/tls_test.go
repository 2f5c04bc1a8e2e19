package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/config"
)

// An authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	der, key := a.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	return a
}

// make signs a certificate, or has it sign itself while there is no authority yet.
func (a *authority) make(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer); err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// write writes a certificate for name, which serves localhost and is a client as well, and returns its files and itself.
func (a *authority) write(dir, name string, expires time.Time) (certificate, key string, pair tls.Certificate) {
	a.t.Helper()
	der, private := a.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: expires,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	if pair, err = tls.LoadX509KeyPair(certificate, key); err != nil {
		a.t.Fatal(err)
	}
	return certificate, key, pair
}

// writeCA writes the authority's own certificate.
func (a *authority) writeCA(file string) string {
	a.t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// pipes hands out connections in memory, for tests with a clock of their own.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.done); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A client that never begins its handshake is sent away, and not logged where operators look.
func TestHandshakeThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		certificate, key, _ := newAuthority(t, "ours").write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
		c, err := readAdminTLS(&config.Config{Admin: config.Admin{TLS: config.ListenerTLS{Certificate: certificate, Key: key}}})
		if err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.InfoLevel)
		listener := pipes{make(chan net.Conn), make(chan struct{})}
		s := &httpServer{key: "admin.listen", handler: http.NotFoundHandler(), log: zap.New(core), listener: listener}
		s.tls.Store(c)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.run(ctx) }()
		client, server := net.Pipe()
		listener.conns <- server
		began := time.Now()
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		if waited := time.Since(began); waited < time.Second || waited > 10*time.Second {
			t.Errorf("it was sent away after %v", waited)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if logs.Len() > 0 {
			t.Errorf("logged: %v", logs.All())
		}
	})
}

// What cannot be used is said with the setting, the file and what to do, and all at once.
func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t, "ours")
	one, _, _ := a.write(dir, "one", time.Now().Add(time.Hour))
	_, other, _ := a.write(dir, "other", time.Now().Add(time.Hour))
	path := filepath.Join(dir, "gslbd.yaml")
	text := fmt.Sprintf(`
admin: {listen: "127.0.0.1:0", tls: {certificate: %[1]s, key: %[2]s}}
state: {etcd: {endpoints: ["https://127.0.0.1:1"], certificate: %[1]s, key: %[1]s, ca: %[1]s}}
`, one, other)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := load(path, nil)
	for _, want := range []string{
		"admin.tls: certificate " + one + " with key " + other + ": tls: private key does not match public key: give PEM files",
		"state.etcd: certificate " + one + " with key " + one + ": tls: ",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// Connections to etcd take a renewed certificate without a restart.
func TestEtcdTLS(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t, "ours")
	c := config.Etcd{Endpoints: []string{"https://127.0.0.1:1"}, CA: a.writeCA(filepath.Join(dir, "ca.pem"))}
	c.Certificate, c.Key, _ = a.write(dir, "ns1", time.Now().Add(time.Hour))
	config, err := etcdTLS(c)
	if err != nil || !config.RootCAs.Equal(a.pool()) {
		t.Fatalf("authorities %v, %v", config, err)
	}
	_, _, renewed := a.write(dir, "ns1", time.Now().Add(time.Hour))
	if pair, err := config.GetClientCertificate(nil); err != nil || !bytes.Equal(pair.Certificate[0], renewed.Certificate[0]) {
		t.Errorf("not the renewed certificate: %v", err)
	}
	c.Endpoints[0] = "http://127.0.0.1:1"
	if config, err := etcdTLS(c); config != nil || err != nil {
		t.Errorf("without https: %v, %v", config, err)
	}
}

// No file of certificates is read without an end: what is far too long, or a pipe, is refused by name.
func TestCertificateFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t, "sites")
	certificate, key, _ := a.write(dir, "localhost", time.Now().Add(time.Hour))
	long, pipe := filepath.Join(dir, "long.pem"), filepath.Join(dir, "pipe.pem")
	if err := os.WriteFile(long, bytes.Repeat([]byte("x"), config.MostPEM+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, why := range map[string]string{long: "has more than", pipe: "is not a file"} {
		for setting, read := range map[string]func() error{
			"reports.tls.certificate": func() error {
				_, err := readTLS(config.ListenerTLS{Certificate: file, Key: key}, "reports.tls", tls.NoClientCert)
				return err
			},
			"reports.tls.client_ca": func() error {
				_, err := readTLS(config.ListenerTLS{Certificate: certificate, Key: key, ClientCA: file}, "reports.tls", tls.NoClientCert)
				return err
			},
			"state.etcd.ca": func() error {
				_, err := etcdTLS(config.Etcd{Endpoints: []string{"https://etcd"}, CA: file})
				return err
			},
			"state.etcd.certificate": func() error {
				_, err := etcdTLS(config.Etcd{Endpoints: []string{"https://etcd"}, Certificate: file, Key: key})
				return err
			},
			"state.etcd.key": func() error {
				_, err := etcdTLS(config.Etcd{Endpoints: []string{"https://etcd"}, Certificate: certificate, Key: file})
				return err
			},
		} {
			if err := read(); err == nil || !strings.HasPrefix(err.Error(), setting+": "+file+" "+why) {
				t.Errorf("%s: err = %v, want that the file %s", setting, err, why)
			}
		}
	}
}
