package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"gslbd/config"
)

// A listenerTLS is what an HTTP listener speaks TLS with, as its files were read. It is immutable.
type listenerTLS struct {
	sum     [sha256.Size]byte // of the files
	config  *tls.Config
	clients []*x509.Certificate // client_ca
}

// readTLS reads the files that section of the configuration names; nil: it speaks plain HTTP. auth is what the listener
// does about client certificates where there is a client_ca.
func readTLS(c config.ListenerTLS, section string, auth tls.ClientAuthType) (*listenerTLS, error) {
	if c.Certificate == "" {
		return nil, nil
	}
	certificate, err := config.ReadPEM(c.Certificate)
	if err != nil {
		return nil, fmt.Errorf("%s.certificate: %w", section, err)
	}
	key, err := config.ReadSecret(c.Key, config.MostPEM)
	if err != nil {
		return nil, fmt.Errorf("%s.key: %w", section, err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, wrongPair(section, c.Certificate, c.Key, err)
	}
	l := &listenerTLS{config: &tls.Config{MinVersion: tls.VersionTLS12 /* RFC 8996 */, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair}}}
	var ca []byte
	if c.ClientCA != "" {
		if ca, err = config.ReadPEM(c.ClientCA); err != nil {
			return nil, fmt.Errorf("%s.client_ca: %w", section, err)
		}
		if l.clients, err = parseAuthorities(ca, c.ClientCA, section+".client_ca"); err != nil {
			return nil, err
		}
		l.config.ClientAuth = auth
		if auth == tls.VerifyClientCertIfGiven { // otherwise a client would keep back what we want to say is wrong
			l.config.ClientCAs = poolOf(l.clients)
		}
	}
	l.sum = sumOf(certificate, key, ca)
	return l, nil
}

// poolOf returns authorities as crypto/x509 takes them; nil for none.
func poolOf(all []*x509.Certificate) *x509.CertPool {
	if len(all) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	for _, c := range all {
		pool.AddCert(c)
	}
	return pool
}

// apart returns an error where reports and admin trust an authority in common: a certificate that it gives to a site could
// then give orders.
func apart(reports, admin *listenerTLS) error {
	if reports == nil || admin == nil {
		return nil
	}
	for _, a := range reports.clients {
		for _, b := range admin.clients {
			if bytes.Equal(a.RawSubjectPublicKeyInfo, b.RawSubjectPublicKeyInfo) {
				return fmt.Errorf("admin.tls.client_ca: it has the authority %q in common with reports.tls.client_ca, so that a site's certificate could give orders: use one authority for the sites and another for operators", a.Subject)
			}
		}
	}
	return nil
}

// sumOf tells one state of files from another.
func sumOf(files ...[]byte) (sum [sha256.Size]byte) {
	all := sha256.New()
	for _, f := range files {
		part := sha256.Sum256(f)
		all.Write(part[:])
	}
	all.Sum(sum[:0])
	return sum
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
	chain, err := config.ReadPEM(certificate)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s.certificate: %w", section, err)
	}
	private, err := config.ReadSecret(key, config.MostPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s.key: %w", section, err)
	}
	pair, err := tls.X509KeyPair(chain, private)
	if err != nil {
		return pair, wrongPair(section, certificate, key, err)
	}
	return pair, nil
}

func wrongPair(section, certificate, key string, err error) error {
	return fmt.Errorf("%s: certificate %s with key %s: %w: give PEM files of the certificate with its chain and of the private key that belongs to it", section, certificate, key, err)
}

// authorities reads the certificates in file, which setting names.
func authorities(file, setting string) (*x509.CertPool, error) {
	data, err := config.ReadPEM(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	all, err := parseAuthorities(data, file, setting)
	return poolOf(all), err
}

// parseAuthorities returns the certificates of a PEM file.
func parseAuthorities(data []byte, file, setting string) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", setting, file, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: %s holds no certificate: give a PEM file of one or more", setting, file)
	}
	return all, nil
}

// certificateProblem says why clients will not take the certificate of l at the time now; "": they may.
func certificateProblem(l *listenerTLS, now time.Time) string {
	if l == nil {
		return ""
	}
	switch leaf := l.config.Certificates[0].Leaf; {
	case now.After(leaf.NotAfter):
		return "the certificate expired at " + leaf.NotAfter.Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the certificate is not valid before " + leaf.NotBefore.Format(time.RFC3339)
	}
	return ""
}
