package sitereport

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gslbd/testdata/certs"
)

// made is a certificate that a test needs.
func made(t *testing.T) func(certs.Certificate, error) certs.Certificate {
	return func(c certs.Certificate, err error) certs.Certificate {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// A client certificate admits reports of the site that it names, and of no other.
func TestReceiverAdmitsCertificates(t *testing.T) {
	made := made(t)
	ours, theirs := made(certs.Authority("ours")), made(certs.Authority("theirs"))
	intermediate := made(ours.Sign(x509.Certificate{Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true}))
	expired := made(ours.Sign(x509.Certificate{DNSNames: []string{"seoul"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))
	server := made(ours.Sign(x509.Certificate{DNSNames: []string{"seoul"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	deep := made(intermediate.Client("", "seoul"))
	const noProof = noToken + ", or present a client certificate"
	const notAccepted = "the client certificate is not accepted: x509: "
	for _, c := range []struct {
		name   string
		with   []certs.Certificate
		site   string
		token  string
		status int
		err    string
	}{
		{"DNS name", []certs.Certificate{made(ours.Client("", "seoul"))}, "seoul", "", 200, ""},
		{"one of several DNS names", []certs.Certificate{made(ours.Client("", "lb1.example.net", "seoul"))}, "seoul", "", 200, ""},
		{"of two sites", []certs.Certificate{made(ours.Client("", "virginia", "seoul"))}, "seoul", "", 200, ""},
		{"common name", []certs.Certificate{made(ours.Client("seoul"))}, "seoul", "", 200, ""},
		{"common name beside DNS names", []certs.Certificate{made(ours.Client("seoul", "lb1.example.net"))}, "seoul", "", 403, `the client certificate is for "lb1.example.net", which is not the site`},
		{"other case", []certs.Certificate{made(ours.Client("", "Seoul"))}, "seoul", "", 403, `the client certificate is for "Seoul", which is not the site`},
		{"wildcard", []certs.Certificate{made(ours.Client("", "*"))}, "seoul", "", 403, `the client certificate is for "*", which is not`},
		{"no name", []certs.Certificate{made(ours.Client(""))}, "seoul", "", 401, "the client certificate is not accepted: it has neither a DNS name nor a common name"},
		{"of another site", []certs.Certificate{made(ours.Client("", "virginia"))}, "seoul", "", 403, `the client certificate is that of another site: it is for "virginia"`},
		{"of another site, with the token", []certs.Certificate{made(ours.Client("", "virginia"))}, "seoul", "token of seoul", 403, "the client certificate is that of another site"},
		{"with the token of another site", []certs.Certificate{made(ours.Client("", "seoul"))}, "seoul", "token of virginia", 403, "the token is that of another site"},
		{"with a wrong token", []certs.Certificate{made(ours.Client("", "seoul"))}, "seoul", "tokem", 200, ""},
		{"of a machine, with the token", []certs.Certificate{made(ours.Client("", "lb1.example.net"))}, "seoul", "token of seoul", 200, ""},
		{"of another authority", []certs.Certificate{made(theirs.Client("", "seoul"))}, "seoul", "", 401, notAccepted + "certificate signed by unknown authority"},
		{"of another authority, with the token", []certs.Certificate{made(theirs.Client("", "seoul"))}, "seoul", "token of seoul", 200, ""},
		{"signed by itself", []certs.Certificate{made(certs.Certificate{}.Sign(x509.Certificate{DNSNames: []string{"seoul"}}))}, "seoul", "", 401, notAccepted + "certificate signed by unknown authority"},
		{"expired", []certs.Certificate{expired}, "seoul", "", 401, notAccepted + "certificate has expired or is not yet valid"},
		{"of a server", []certs.Certificate{server}, "seoul", "", 401, notAccepted + "certificate specifies an incompatible key usage"},
		{"with its chain", []certs.Certificate{deep, intermediate}, "seoul", "", 200, ""},
		{"without its chain", []certs.Certificate{deep}, "seoul", "", 401, notAccepted + "certificate signed by unknown authority"},
		{"token alone", nil, "seoul", "token of seoul", 200, ""},
		{"nothing", nil, "seoul", "", 401, noProof},
		{"nothing, where there is no token either", nil, "lab", "", 401, noProof},
		{"certificate where there is no token", []certs.Certificate{made(ours.Client("", "lab"))}, "lab", "", 200, ""},
		{"unknown site, known certificate", []certs.Certificate{made(ours.Client("", "seoul"))}, "seol", "", 404, `site: there is no site "seol"`},
		{"unknown site, unknown certificate", []certs.Certificate{made(theirs.Client("", "seoul"))}, "seol", "", 401, notAccepted + "certificate signed by unknown authority"},
		{"unknown site, nothing", nil, "seol", "", 401, noProof},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := new(sink)
			r := newReceiver(s, nil)
			config := ReceiverConfig{ClientCAs: ours.Pool()}
			for _, name := range []string{"seoul", "virginia"} {
				config.Sites = append(config.Sites, ReceiverSite{Name: name, Tokens: []string{"token of " + name}})
			}
			config.Sites = append(config.Sites, ReceiverSite{Name: "lab"})
			r.Set(config)
			status := func(method string) (int, string) {
				req := httptest.NewRequest(method, "/v1/sites/"+c.site+"/report", strings.NewReader(`{"site": "`+c.site+`"}`))
				req.TLS = new(tls.ConnectionState)
				for _, a := range c.with {
					req.TLS.PeerCertificates = append(req.TLS.PeerCertificates, a.Leaf)
				}
				if c.token != "" {
					req.Header.Set("Authorization", "Bearer "+c.token)
				}
				req.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				r.Handler().ServeHTTP(w, req)
				return w.Code, w.Body.String()
			}
			// GET answers the same, and applies nothing.
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				code, body := status(method)
				plain := strings.ReplaceAll(body, `\"`, `"`)
				if code != c.status || !strings.Contains(plain, `"error":"`+c.err) && c.err != "" {
					t.Errorf("%s got %d %s, want %d %s", method, code, body, c.status, c.err)
				}
				want := 0
				if method == http.MethodPost && c.status == 200 {
					want = 1
				}
				if s.count() != want {
					t.Errorf("%s applied %d reports", method, s.count())
				}
			}
		})
	}
}

// An authority that a reload removes has no say any more, on connections that are open either; and the tokens of a
// rollover are accepted while they are in force.
func TestReceiverChangesWhomItKnows(t *testing.T) {
	made := made(t)
	ours, theirs := made(certs.Authority("ours")), made(certs.Authority("theirs"))
	r := newReceiver(new(sink), nil)
	cert := made(ours.Client("", "seoul")).Leaf
	ask := func(with *x509.Certificate, token string) int {
		req := httptest.NewRequest(http.MethodGet, "/v1/sites/seoul/report", nil)
		req.TLS = &tls.ConnectionState{}
		if with != nil {
			req.TLS.PeerCertificates = []*x509.Certificate{with}
		}
		req.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, req)
		return w.Code
	}
	site := func(tokens ...string) []ReceiverSite { return []ReceiverSite{{Name: "seoul", Tokens: tokens}} }
	for i, c := range []struct {
		config     ReceiverConfig
		cert       int
		old, after int
	}{
		{ReceiverConfig{ClientCAs: ours.Pool(), Sites: site("old")}, 200, 200, 401},
		{ReceiverConfig{ClientCAs: theirs.Pool(), Sites: site("old", "new")}, 401, 200, 200},
		{ReceiverConfig{Sites: site("new", "old")}, 401, 200, 200},
		{ReceiverConfig{Sites: site("new")}, 401, 401, 200},
	} {
		r.Set(c.config)
		if a, b, d := ask(cert, ""), ask(nil, "old"), ask(nil, "new"); a != c.cert || b != c.old || d != c.after {
			t.Errorf("step %d: certificate %d, old token %d, new token %d", i, a, b, d)
		}
	}
}
