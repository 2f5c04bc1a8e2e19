// Package certs makes certificates for trying things out and for tests. The keys of its authorities lie beside what they
// sign: use it for nothing that others can reach.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// A Certificate is a certificate with its private key. The zero value signs what then is an authority.
type Certificate struct {
	Leaf *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Authority makes an authority.
func Authority(name string) (Certificate, error) {
	return Certificate{}.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
}

// Sign makes a certificate. Without dates in the template it is valid from an hour ago for a year.
func (c Certificate) Sign(template x509.Certificate) (Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Certificate{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return Certificate{}, err
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	}
	parent, signer := c.Leaf, c.Key
	if parent == nil {
		parent, signer = &template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), signer)
	if err != nil {
		return Certificate{}, fmt.Errorf("certs: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	return Certificate{leaf, key}, err
}

// Client makes the certificate of a client with a common name and DNS names.
func (c Certificate) Client(common string, names ...string) (Certificate, error) {
	return c.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: common}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Pool returns the certificate as the authority that vouches for others.
func (c Certificate) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return pool
}

// TLS returns the certificate as crypto/tls takes it.
func (c Certificate) TLS() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{c.Leaf.Raw}, PrivateKey: c.Key, Leaf: c.Leaf}
}

// Write writes dir/name.pem and dir/name.key, which only the owner may read.
func (c Certificate) Write(dir, name string) error {
	key, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600),
		os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw}), 0o644),
	)
}
