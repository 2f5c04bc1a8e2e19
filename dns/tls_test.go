package dns_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// writeCertificate writes a certificate for name and its key into dir and returns their paths.
func writeCertificate(t *testing.T, dir, name string, expires time.Time) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: expires,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func loadCertificate(t *testing.T, name string) *dns.Certificate {
	t.Helper()
	c, err := dns.LoadCertificate(writeCertificate(t, t.TempDir(), name, time.Now().Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startTLS runs a server that speaks TLS beside the rest.
func startTLS(t *testing.T, opts dns.Options) *running {
	t.Helper()
	opts.TLS = dns.TLSOptions{Listen: []string{"127.0.0.1:0"}, Certificate: loadCertificate(t, "ns1.gslb.test")}
	return start(t, opts)
}

// dialRaw connects to where TLS is spoken.
func (r *running) dialRaw() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.TLSAddrs()[0].String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

func (r *running) dialTLS(config *tls.Config) (*tls.Conn, error) {
	r.t.Helper()
	config.InsecureSkipVerify = true
	c := tls.Client(r.dialRaw(), config)
	return c, c.Handshake()
}

func TestTLS(t *testing.T) {
	s := startTLS(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: 500 * time.Millisecond}})
	query := frame(t, question("www.gslb.test.", "A"))
	sessions := tls.NewLRUClientSessionCache(4)
	for _, tt := range []struct {
		name         string
		config       *tls.Config
		alpn         string
		version      uint16
		resumed, bad bool
	}{
		{name: "dot", config: &tls.Config{NextProtos: []string{"dot"}, ServerName: "ns1.gslb.test", ClientSessionCache: sessions}, alpn: "dot", version: tls.VersionTLS13},
		{name: "again", config: &tls.Config{NextProtos: []string{"dot"}, ServerName: "ns1.gslb.test", ClientSessionCache: sessions}, alpn: "dot", version: tls.VersionTLS13, resumed: true},
		{name: "among others", config: &tls.Config{NextProtos: []string{"h2", "dot"}}, alpn: "dot", version: tls.VersionTLS13},
		{name: "no ALPN", config: &tls.Config{}, version: tls.VersionTLS13},
		{name: "TLS 1.2", config: &tls.Config{MaxVersion: tls.VersionTLS12}, version: tls.VersionTLS12},
		{name: "TLS 1.1", config: &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, bad: true},
		{name: "other ALPN", config: &tls.Config{NextProtos: []string{"h2"}}, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := s.dialTLS(tt.config)
			if (err != nil) != tt.bad {
				t.Fatalf("handshake: %v", err)
			}
			if tt.bad {
				if errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "tls: ") {
					t.Errorf("the client was not told why: %v", err)
				}
				return
			}
			if st := c.ConnectionState(); st.NegotiatedProtocol != tt.alpn || st.Version != tt.version || st.DidResume != tt.resumed {
				t.Errorf("ALPN %q, version %x, resumed %v", st.NegotiatedProtocol, st.Version, st.DidResume)
			}
			// Pipelined in one record, then one split over many.
			var three []byte
			for range 3 {
				three = append(three, query...)
			}
			if _, err := c.Write(three); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				m, err := readFrame(c)
				wantWWW(t, m, err)
			}
			for _, b := range query {
				if _, err := c.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
			}
			m, err := readFrame(c)
			wantWWW(t, m, err)
			if tt.name == "no ALPN" { // idle: the end is told within TLS
				if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("at the end: %d octets, %v", n, err)
				}
			} else if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			} else if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after the client's end: %d octets, %v", n, err)
			}
		})
	}
	// A client that speaks no TLS gets no answer, but an alert and the end.
	plain := s.dialRaw()
	if _, err := plain.Write(query); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(plain); err != nil || len(got) > 12 {
		t.Errorf("without TLS: %x, %v", got, err)
	}
	s.wait()
	got := telemetry(t, s.Server)
	for _, want := range []string{
		"gslbd_queries_total NOERROR tls A 20\n", "gslbd_tls_handshakes_total success 5\n", "gslbd_tls_handshakes_total failure 3\n",
		"gslbd_tls_certificate_expiry_timestamp_seconds ", "gslbd_tcp_connections 0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, " tcp ") {
		t.Errorf("queries over TLS count as TCP:\n%s", got)
	}
}

// A recorder keeps what is read from a connection.
type recorder struct {
	net.Conn
	read []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.read = append(r.read, b[:n]...)
	return n, err
}

// TestTLSGoodbye checks that a connection ends with close_notify, whoever ends it. TLS 1.2 shows what a record is.
func TestTLSGoodbye(t *testing.T) {
	s := startTLS(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: 300 * time.Millisecond}})
	for _, ends := range []string{"client", "server"} {
		r := &recorder{Conn: s.dialRaw()}
		c := tls.Client(r, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		if _, err := c.Write(frame(t, question("www.gslb.test.", "A"))); err != nil {
			t.Fatal(err)
		}
		m, err := readFrame(c)
		wantWWW(t, m, err)
		if ends == "client" {
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%s ends: %d octets, %v", ends, n, err)
		}
		last := byte(0)
		for b := r.read; len(b) > 5; b = b[min(len(b), 5+int(binary.BigEndian.Uint16(b[3:]))):] {
			last = b[0]
		}
		if last != 21 {
			t.Errorf("%s ends: the last record is of type %d, want an alert", ends, last)
		}
	}
}

// TestTLSPads checks that replies over TLS are padded for those who pad, and by TCP from the same worker are not.
func TestTLSPads(t *testing.T) {
	s := startTLS(t, dns.Options{Workers: 1})
	over, err := s.dialTLS(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	plain := s.dial("tcp")
	query := frame(t, question("www.gslb.test.", "A", edns(1232, raw(12, 0, 0, 0))))
	for range 2 {
		for _, c := range []net.Conn{over, plain} {
			if _, err := c.Write(query); err != nil {
				t.Fatal(err)
			}
			m, err := readFrame(c)
			wantWWW(t, m, err)
			padded := slices.ContainsFunc(m.IsEdns0().Option, func(o mdns.EDNS0) bool { return o.Option() == mdns.EDNS0PADDING })
			if padded != (c == net.Conn(over)) {
				t.Errorf("%T: padded is %v", c, padded)
			}
		}
	}
}

// TestHandshakesHoldNothing opens handshakes that do not end, in several stages: neither a proper client over TLS nor one
// over TCP waits for them, or it would wait for 60 times the seconds that each may take.
func TestHandshakesHoldNothing(t *testing.T) {
	s := startTLS(t, dns.Options{Workers: 1})
	hello := make(chan []byte, 1)
	client, server := net.Pipe()
	go func() {
		b := make([]byte, 4096)
		n, _ := server.Read(b)
		hello <- b[:n]
		server.Close()
	}()
	_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() // its first flight is all that is wanted
	first := <-hello
	for i := range 60 {
		c := s.dialRaw()
		for _, part := range [][]byte{nil, first[:1], first[:len(first)-1], first}[i%4:][:1] {
			if _, err := c.Write(part); err != nil {
				t.Fatal(err)
			}
		}
	}
	query := frame(t, question("www.gslb.test.", "A"))
	over, err := s.dialTLS(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{over, s.dial("tcp")} {
		if _, err := c.Write(query); err != nil {
			t.Fatal(err)
		}
		m, err := readFrame(c)
		wantWWW(t, m, err)
	}
}

// TestFirstQuery checks that whoever connects has to come to its first query, or through the handshake, much sooner than
// the idle timeout, also when it sends an octet now and then.
func TestFirstQuery(t *testing.T) {
	s := startTLS(t, dns.Options{TCP: dns.TCPOptions{IdleTimeout: time.Minute}})
	began := time.Now()
	known := s.dial("tcp")
	query := frame(t, question("www.gslb.test.", "A"))
	if _, err := known.Write(query); err != nil {
		t.Fatal(err)
	}
	m, err := readFrame(known)
	wantWWW(t, m, err)
	over, err := s.dialTLS(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dripping := s.dialRaw()
	stop := make(chan struct{})
	dripped := make(chan struct{})
	go func() {
		defer close(dripped)
		head := []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3} // the beginning of a ClientHello
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				_, _ = dripping.Write(head[:1])
				head = append(head[1:], 0)
			}
		}
	}()
	for name, c := range map[string]net.Conn{"tcp": s.dial("tcp"), "no handshake": s.dialRaw(), "dripping handshake": dripping, "tls": over} {
		_ = c.SetDeadline(began.Add(40 * time.Second)) // before the idle timeout
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(began); d < 4*time.Second {
			t.Errorf("%s: closed after %v", name, d)
		}
	}
	close(stop)
	<-dripped
	if _, err := known.Write(query); err != nil {
		t.Fatal(err)
	}
	m, err = readFrame(known)
	wantWWW(t, m, err)
}

// TestFloodOfSilent checks that connections without any query, with TLS or without, end each other and not those that
// have asked.
func TestFloodOfSilent(t *testing.T) {
	s := startTLS(t, dns.Options{TCP: dns.TCPOptions{MaxConnections: 8, MaxConnectionsPerClient: 1000}})
	query := frame(t, question("www.gslb.test.", "A"))
	var known []net.Conn
	for i := range 4 {
		c := s.dial("tcp")
		if i%2 == 1 {
			over, err := s.dialTLS(&tls.Config{})
			if err != nil {
				t.Fatal(err)
			}
			c = over
		}
		known = append(known, c)
	}
	talk := func() {
		t.Helper()
		for _, c := range known {
			if _, err := c.Write(query); err != nil {
				t.Fatal(err)
			}
			m, err := readFrame(c)
			wantWWW(t, m, err)
		}
	}
	talk()
	for i := range 100 {
		if c := s.dial("tcp"); i%2 == 1 {
			_, _ = c.Write([]byte{0})
		}
		s.dialRaw()
	}
	s.waitFor("gslbd_tcp_connections_shed_total 198\n") // the two listeners accept apart: one may be behind
	talk()
	// Of those that have asked, one makes room for a newcomer when there are too many of both.
	over, err := s.dialTLS(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	known = append(known, over)
	talk()
	if got := telemetry(t, s.Server); !strings.Contains(got, "gslbd_tcp_connections 8\n") {
		t.Error(got)
	}
}

func TestSetCertificate(t *testing.T) {
	s := startTLS(t, dns.Options{})
	name := func() string {
		t.Helper()
		c, err := s.dialTLS(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	before := name()
	s.SetCertificate(loadCertificate(t, "ns2.gslb.test"))
	if after := name(); before != "ns1.gslb.test" || after != "ns2.gslb.test" {
		t.Errorf("%s before, %s after", before, after)
	}
	if why := s.CertificateProblem(); why != "" {
		t.Error(why)
	}
	expired, err := dns.LoadCertificate(writeCertificate(t, t.TempDir(), "ns3.gslb.test", time.Now().Add(-time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	s.SetCertificate(expired)
	if why := s.CertificateProblem(); !strings.Contains(why, "expired at") {
		t.Error(why)
	}
	plain := start(t, dns.Options{})
	plain.SetCertificate(expired) // nothing to do
	if why := plain.CertificateProblem(); why != "" {
		t.Error(why)
	}
}

func TestLoadCertificateErrors(t *testing.T) {
	dir := t.TempDir()
	certificate, key := writeCertificate(t, dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	_, other := writeCertificate(t, t.TempDir(), "ns1.gslb.test", time.Now().Add(time.Hour))
	large, open := filepath.Join(dir, "large"), filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(large, make([]byte, 1<<20+1), 0o600), os.WriteFile(open, nil, 0o640), os.Chmod(open, 0o640)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ certificate, key, want string }{
		{filepath.Join(dir, "none"), key, "dns.tls.certificate: open " + dir + "/none: no such file"},
		{certificate, dir, "dns.tls.key: " + dir + " is not a file"},
		{certificate, open, "dns.tls.key: " + open + " can be read or written by others than its owner (mode 0640): run chmod 600 " + open},
		{large, key, "dns.tls.certificate: " + large + " has more than 1048576 octets"},
		{certificate, other, "dns.tls.certificate: " + certificate + " with dns.tls.key " + other + ": tls: private key does not match"},
		{key, key, "give PEM files of the certificate"},
	} {
		if _, err := dns.LoadCertificate(tt.certificate, tt.key); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	if _, err := dns.New(dns.Options{Listen: []string{"127.0.0.1:0"}, TLS: dns.TLSOptions{Listen: []string{"127.0.0.1:0"}}}); err == nil {
		t.Error("TLS without a certificate is accepted")
	}
}
