package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// certify makes a certificate for hosts, of the authority of if that is not nil.
func certify(t *testing.T, of *tls.Certificate, expires time.Time, hosts ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: expires,
		BasicConstraintsValid: true, IsCA: of == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	parent, signer := c, any(key)
	if of != nil {
		parent, signer = of.Leaf, of.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func pool(of *tls.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(of.Leaf)
	return p
}

// serve answers connections, with a handshake where c is not nil, as a server does that is not asked for what it serves.
func serve(t *testing.T, c *tls.Config) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if c != nil {
					if tls.Server(conn, c).Handshake() != nil {
						return
					}
				} else {
					_, _ = io.ReadFull(conn, make([]byte, 5))
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			}()
		}
	}()
	return l.Addr().String()
}

// The operator reads why there is no connection to etcd, and what to do.
func TestEtcdTLSProblems(t *testing.T) {
	later := time.Now().Add(time.Hour)
	ours, theirs := certify(t, nil, later), certify(t, nil, later)
	server := func(c *tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{*c}, NextProtos: []string{"h2"}}
	}
	good := server(certify(t, ours, later, "127.0.0.1"))
	asks := good.Clone()
	asks.ClientAuth, asks.ClientCAs = tls.RequireAndVerifyClientCert, pool(ours)
	client := &tls.Config{RootCAs: pool(ours)}
	stranger := client.Clone()
	stranger.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return certify(t, theirs, later, "gslb1"), nil
	}
	for _, k := range []struct {
		name           string
		server, client *tls.Config
		want           []string
	}{
		{"another authority", server(certify(t, theirs, later, "127.0.0.1")), client, []string{"unknown authority", "state.etcd.ca"}},
		{"expired", server(certify(t, ours, time.Now().Add(-time.Hour), "127.0.0.1")), client, []string{"expired", "renew etcd's certificate"}},
		{"another name", server(certify(t, ours, later, "etcd.example.com")), client, []string{"127.0.0.1", "by a name that its certificate has"}},
		{"no TLS there", nil, client, []string{"first record does not look like a TLS handshake", "write http:// in state.etcd.endpoints"}},
		{"no certificate of ours", asks, client, []string{"it refuses us: remote error: tls: ", "state.etcd.certificate"}},
		{"our certificate is of another authority", asks, stranger, []string{"it refuses us: remote error: tls: ", "state.etcd.certificate"}},
		{"no TLS here", good, nil, []string{"hangs up", "write https:// in state.etcd.endpoints"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			scheme := "http://"
			if k.client != nil {
				scheme = "https://"
			}
			c := New(Options{
				Directory: t.TempDir(), Node: "a", Store: fleetStore(t),
				Etcd: &EtcdOptions{Endpoints: []string{scheme + serve(t, k.server)}, TLS: k.client},
			})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			var problems string
			eventually(t, 30*time.Second, "the cause is told", func() bool {
				problems = strings.Join(c.Problems(), "; ")
				for _, w := range k.want {
					if !strings.Contains(problems, w) {
						return false
					}
				}
				return true
			})
			if strings.Contains(problems, "deadline") {
				t.Error(problems)
			}
			if r := mustForce(t, c, orderTo(Down, Target{Site: "seoul"})); r.Shared != onlyHere {
				t.Errorf("%+v", r)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
