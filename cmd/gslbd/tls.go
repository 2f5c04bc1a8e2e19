package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"gslbd/config"
)

// adminTLS returns what the admin interface speaks TLS with; nil: it speaks plain HTTP. A client may show a certificate, and
// one that it shows must be of client_ca; what it may do then is the interface's to decide.
func adminTLS(c config.AdminTLS) (*tls.Config, error) {
	if c.Certificate == "" {
		return nil, nil
	}
	pair, err := keyPair(c.Certificate, c.Key, "admin.tls")
	if err != nil {
		return nil, err
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12 /* RFC 8996 */, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair}}
	if c.ClientCA != "" {
		if t.ClientCAs, err = authorities(c.ClientCA, "admin.tls.client_ca"); err != nil {
			return nil, err
		}
		t.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return t, nil
}

// etcdTLS returns what connections to etcd begin with; nil where they are not encrypted. The certificate is read again for
// each of them, so that its renewal needs no restart.
func etcdTLS(c config.Etcd) (*tls.Config, error) {
	if !c.Secure() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		var err error
		if t.RootCAs, err = authorities(c.CA, "state.etcd.ca"); err != nil {
			return nil, err
		}
	}
	if c.Certificate == "" {
		return t, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := keyPair(c.Certificate, c.Key, "state.etcd")
		return &pair, err
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return t, nil
}

// keyPair reads a certificate with its chain and its private key, which section of the configuration names.
func keyPair(certificate, key, section string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return pair, fmt.Errorf("%s: certificate %s with key %s: %w: give PEM files of the certificate with its chain and of the private key that belongs to it", section, certificate, key, err)
	}
	return pair, nil
}

// authorities reads the certificates in file, which setting names.
func authorities(file, setting string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %s holds no certificate: give a PEM file of one or more", setting, file)
	}
	return pool, nil
}

// certificateProblem says why clients will not take the certificate of c at the time now; "": they may.
func certificateProblem(c *tls.Config, now time.Time) string {
	if c == nil {
		return ""
	}
	switch leaf := c.Certificates[0].Leaf; {
	case now.After(leaf.NotAfter):
		return "the certificate expired at " + leaf.NotAfter.Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the certificate is not valid before " + leaf.NotBefore.Format(time.RFC3339)
	}
	return ""
}
