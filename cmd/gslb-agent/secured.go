package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"hash"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"gslbd/config"
	"gslbd/sitereport"
)

// A secured is a transport, of the reports or of a reader: it presents the token, or user and password, and the client
// certificate, and knows the authorities of the other side. It looks at their files before each request, so that a renewal
// needs no restart; what cannot be used leaves in force what was read before. Safe for concurrent use.
type secured struct {
	// Fixed at construction.
	tls    config.AgentTLS
	secret secret
	log    *zap.Logger

	mu      sync.Mutex   // guards what follows
	present *credentials // in force
	failing string       // why the files are not, which was logged
}

// A secret is a token, or the password of a user.
type secret struct {
	key  string // of the file that holds it
	file string // "": there is none
	user string // "": it is a token
}

// credentials are what the files held at one time.
type credentials struct {
	sum       [sha256.Size]byte // of the files
	token     string            // or the password; "": none
	client    *x509.Certificate // nil: none
	transport *http.Transport
}

// newSecured reads the files. The error names the setting, the file and what to do.
func newSecured(t config.AgentTLS, secret secret, log *zap.Logger) (*secured, error) {
	s := &secured{tls: t, secret: secret, log: log}
	var err error
	s.present, err = s.read(nil)
	return s, err
}

// read returns what the files hold; old if that is the same.
func (s *secured) read(old *credentials) (*credentials, error) {
	sum := sha256.New()
	c := new(credentials)
	if s.secret.file != "" {
		tokens, err := config.ReadTokens(s.secret.file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.secret.key, err)
		}
		c.token = string(tokens[0])
		add(sum, []byte(c.token))
	}
	var ca, certificate, key []byte
	var err error
	if s.tls.CA != "" {
		if ca, err = config.ReadPEM(s.tls.CA); err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
	}
	if s.tls.Certificate != "" {
		if certificate, err = config.ReadPEM(s.tls.Certificate); err != nil {
			return nil, fmt.Errorf("tls.certificate: %w", err)
		}
		if key, err = config.ReadSecret(s.tls.Key, config.MostPEM); err != nil {
			return nil, fmt.Errorf("tls.key: %w", err)
		}
	}
	add(sum, ca)
	add(sum, certificate)
	add(sum, key)
	if sum.Sum(c.sum[:0]); old != nil && old.sum == c.sum {
		return old, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12} // RFC 8996
	if s.tls.CA != "" {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate: give a PEM file of one or more", s.tls.CA)
		}
	}
	if s.tls.Certificate != "" {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("tls.certificate: %s with tls.key %s: %w: give PEM files of the certificate with its chain and of the private key that belongs to it", s.tls.Certificate, s.tls.Key, err)
		}
		c.client = pair.Leaf
		// Not Certificates: of those one is left out that gslbd says it will not take, and then gslbd cannot say why.
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	c.transport = sitereport.NewTransport(t)
	return c, nil
}

// add adds one file to a sum.
func add(sum hash.Hash, data []byte) {
	part := sha256.Sum256(data)
	sum.Write(part[:])
}

// credentials returns what is in force, after a look at the files.
func (s *secured) credentials() *credentials {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c, err := s.read(s.present); {
	case err != nil:
		if text := err.Error(); text != s.failing {
			s.failing = text
			s.log.Error("certificate, authorities or token not read, keeping those in force", zap.Error(err))
		}
	case c != s.present:
		s.present.transport.CloseIdleConnections() // so that the next reports go over one that begins with the new ones
		s.present, s.failing = c, ""
		s.log.Info("certificate, authorities or token changed")
	default:
		s.failing = ""
	}
	return s.present
}

// RoundTrip implements http.RoundTripper.
func (s *secured) RoundTrip(r *http.Request) (*http.Response, error) {
	c := s.credentials()
	if c.token != "" {
		r = r.Clone(r.Context())
		if s.secret.user != "" {
			r.SetBasicAuth(s.secret.user, c.token)
		} else {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
	}
	return c.transport.RoundTrip(r)
}

// CloseIdleConnections is called by the http.Client of that name.
func (s *secured) CloseIdleConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present.transport.CloseIdleConnections()
}
