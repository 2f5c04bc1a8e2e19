package probes

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// runOnce runs a check as a Monitor does.
func runOnce(t testing.TB, r *checker, c Check) Outcome {
	t.Helper()
	c.Key = "test"
	c, err := c.resolved()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	return r.run(ctx, c)
}

// at returns a check of a stub's address.
func at(kind Type, addr net.Addr, c Check) Check {
	target := netip.MustParseAddrPort(addr.String())
	c.Type, c.Addr, c.Port = kind, target.Addr(), target.Port()
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	return c
}

// stubTCP serves each connection with handle.
func stubTCP(t testing.TB, handle func(net.Conn)) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return l.Addr()
}

// refusedAddr is one at which nothing listens.
func refusedAddr(t testing.TB) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr()
}

// mute reads until the peer is gone.
func mute(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// blackholeTCP is a listener whose backlog is full, so that the kernel drops every further SYN.
func blackholeTCP(t testing.TB) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = listenAgain(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	for range 16 {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), 50*time.Millisecond)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	t.Cleanup(func() {
		for _, conn := range held {
			conn.Close()
		}
		l.Close()
	})
	return l.Addr()
}

func TestCheckTCP(t *testing.T) {
	greeting := stubTCP(t, func(conn net.Conn) { _, _ = io.WriteString(conn, "220 ready\r\n"); mute(conn) })
	echo := stubTCP(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	slowly := stubTCP(t, func(conn net.Conn) {
		for _, b := range []byte("+PONG") {
			_, _ = conn.Write([]byte{b})
		}
		mute(conn)
	})
	closing := stubTCP(t, func(net.Conn) {})
	silent := stubTCP(t, mute)
	short := 200 * time.Millisecond
	for _, tt := range []struct {
		name  string
		check Check
		want  Outcome
	}{
		{"connect", at(TCP, silent, Check{}), Outcome{OK: true}},
		{"accept, then close", at(TCP, closing, Check{}), Outcome{OK: true}},
		{"greeting", at(TCP, greeting, Check{Expect: "220 "}), Outcome{OK: true}},
		{"exchange", at(TCP, echo, Check{Send: "PING", Expect: "PING"}), Outcome{OK: true}},
		{"in pieces", at(TCP, slowly, Check{Send: "PING", Expect: "+PONG"}), Outcome{OK: true}},
		{"other greeting, then mute", at(TCP, greeting, Check{Expect: "SSH-", Timeout: short}), Outcome{Err: "answer does not match"}},
		{"closed without an answer", at(TCP, closing, Check{Expect: "220 "}), Outcome{Err: "connection closed without an answer"}},
		{"connected and mute", at(TCP, silent, Check{Expect: "220 ", Timeout: short}), Outcome{Err: "no answer in 200ms"}},
		{"refused", at(TCP, refusedAddr(t), Check{}), Outcome{Err: "connection refused"}},
		{"SYN dropped", at(TCP, blackholeTCP(t), Check{Timeout: short}), Outcome{Err: "no answer in 200ms", Unreachable: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expectOutcome(t, runOnce(t, &checker{}, tt.check), tt.want)
		})
	}
}

// expectOutcome compares all but the latency, which must be there for a success only.
func expectOutcome(t *testing.T, got, want Outcome) {
	t.Helper()
	if (got.Latency > 0) != got.OK {
		t.Errorf("latency %v of %+v", got.Latency, got)
	}
	got.Latency = 0
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCheckUDP(t *testing.T) {
	stub := func(answer func([]byte) []byte) net.Addr {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 512)
			for {
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				if out := answer(buf[:n]); out != nil {
					_, _ = conn.WriteTo(out, from)
				}
			}
		}()
		return conn.LocalAddr()
	}
	echo := stub(func(b []byte) []byte { return append([]byte("you said "), b...) })
	sink := stub(func([]byte) []byte { return nil })
	gone, err := net.ListenPacket("udp", "127.0.0.2:0") // where no client of another test gets the port
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	short := 200 * time.Millisecond
	for _, tt := range []struct {
		name  string
		check Check
		want  Outcome
	}{
		{"expected answer", at(UDP, echo, Check{Send: "ping", Expect: "said ping"}), Outcome{OK: true}},
		{"any answer", at(UDP, echo, Check{Send: "ping"}), Outcome{OK: true}},
		{"other answer", at(UDP, echo, Check{Send: "ping", Expect: "pong"}), Outcome{Err: "answer does not match"}},
		{"silent", at(UDP, sink, Check{Send: "ping", Expect: "pong", Timeout: short}), Outcome{Err: "no answer in 200ms", Unreachable: true}},
		{"port unreachable", at(UDP, gone.LocalAddr(), Check{Send: "ping", Expect: "pong"}), Outcome{Err: "port unreachable"}},
		{"port unreachable, nothing expected", at(UDP, gone.LocalAddr(), Check{Send: "ping"}), Outcome{Err: "port unreachable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expectOutcome(t, runOnce(t, &checker{}, tt.check), tt.want)
		})
	}
	t.Run("silent, nothing expected", func(t *testing.T) {
		if got := runOnce(t, &checker{}, at(UDP, sink, Check{Send: "ping", Timeout: short})); got != (Outcome{OK: true}) {
			t.Errorf("%+v, want a success of unknown latency", got)
		}
	})
}

func TestCheckHTTP(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // must not matter
	var target atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			_, _ = io.WriteString(w, "status: ok\n")
		case "/host":
			_, _ = io.WriteString(w, r.Host)
		case "/query":
			_, _ = io.WriteString(w, r.URL.RawQuery)
		case "/302":
			http.Redirect(w, r, "/followed", http.StatusFound)
		case "/followed":
			target.Add(1)
		case "/404":
			http.NotFound(w, r)
		case "/500":
			http.Error(w, "status: ok", http.StatusInternalServerError)
		case "/503":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/early":
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "later")
		case "/large":
			_, _ = io.WriteString(w, strings.Repeat("x", maxAnswer)+"beyond")
		case "/endless":
			_, _ = io.WriteString(w, "status: ok")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	addr := server.Listener.Addr()
	raw := func(answer string) net.Addr {
		return stubTCP(t, func(conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, answer)
		})
	}
	reset := stubTCP(t, func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) })
	short := 200 * time.Millisecond
	for _, tt := range []struct {
		name  string
		check Check
		want  Outcome
	}{
		{"200", at(HTTP, addr, Check{Path: "/ok"}), Outcome{OK: true}},
		{"body", at(HTTP, addr, Check{Path: "/ok", Body: `(?m)^status: ok$`}), Outcome{OK: true}},
		{"wrong body", at(HTTP, addr, Check{Path: "/ok", Body: "green"}), Outcome{Err: "body does not match"}},
		{"404", at(HTTP, addr, Check{Path: "/404"}), Outcome{Err: "HTTP 404"}},
		{"404 allowed", at(HTTP, addr, Check{Path: "/404", ExpectCodes: []int{200, 404}}), Outcome{OK: true}},
		{"500 with the right body", at(HTTP, addr, Check{Path: "/500", Body: "ok"}), Outcome{Err: "HTTP 500"}},
		{"503", at(HTTP, addr, Check{Path: "/503"}), Outcome{Err: "HTTP 503"}},
		{"204", at(HTTP, addr, Check{Path: "/204"}), Outcome{Err: "HTTP 204"}},
		{"302", at(HTTP, addr, Check{Path: "/302"}), Outcome{Err: "HTTP 302"}},
		{"302 allowed", at(HTTP, addr, Check{Path: "/302", ExpectCodes: []int{302}}), Outcome{OK: true}},
		{"host", at(HTTP, addr, Check{Path: "/host", Host: "app.test", Body: "^app.test$"}), Outcome{OK: true}},
		{"no host", at(HTTP, addr, Check{Path: "/host", Body: "^" + addr.String() + "$"}), Outcome{OK: true}},
		{"query", at(HTTP, addr, Check{Path: "/query?full=1", Body: "^full=1$"}), Outcome{OK: true}},
		{"early hints", at(HTTP, addr, Check{Path: "/early", Body: "later"}), Outcome{OK: true}},
		{"match beyond the bound", at(HTTP, addr, Check{Path: "/large", Body: "beyond"}), Outcome{Err: "body does not match"}},
		{"endless, not read", at(HTTP, addr, Check{Path: "/endless"}), Outcome{OK: true}},
		{"accept, then close", at(HTTP, raw(""), Check{}), Outcome{Err: "connection closed without an answer"}},
		{"cut off in the header", at(HTTP, raw("HTTP/1.1 200 OK\r\nContent-Le"), Check{}), Outcome{Err: `malformed MIME header: missing colon: "Content-Le"`}},
		{"cut off in the body", at(HTTP, raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok"), Check{Body: "green"}), Outcome{Err: "connection closed without an answer"}},
		{"endless header", at(HTTP, raw("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2*maxAnswer)), Check{}), Outcome{Err: "connection closed without an answer"}},
		{"not HTTP", at(HTTP, raw("SSH-2.0-OpenSSH\r\n"), Check{}), Outcome{Err: `malformed HTTP response "SSH-2.0-OpenSSH"`}},
		{"reset", at(HTTP, reset, Check{}), Outcome{Err: "connection reset"}},
		{"refused", at(HTTP, refusedAddr(t), Check{}), Outcome{Err: "connection refused"}},
		{"accepts and is mute", at(HTTP, stubTCP(t, mute), Check{Timeout: short}), Outcome{Err: "no answer in 200ms"}},
		{"SYN dropped", at(HTTP, blackholeTCP(t), Check{Timeout: short}), Outcome{Err: "no answer in 200ms", Unreachable: true}},
		{"TLS to a plain server", at(HTTPS, addr, Check{}), Outcome{Err: "TLS: the server does not speak it on this port"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expectOutcome(t, runOnce(t, &checker{}, tt.check), tt.want)
		})
	}
	if target.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// stubTLS serves TLS with a certificate for app.test and 127.0.0.1, valid until the given time, and refuses any client
// that does not name app.test in SNI when strict.
func stubTLS(t *testing.T, until time.Time, strict bool) (net.Addr, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
		DNSNames: []string{"app.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	certificate := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	server := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strict && r.Host != "app.test" {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
		}),
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if strict && hello.ServerName != "app.test" {
			return nil, errors.New("unknown name")
		}
		return certificate, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr(), roots
}

func TestCheckHTTPS(t *testing.T) {
	strict, roots := stubTLS(t, time.Now().Add(time.Hour), true)
	lax, laxRoots := stubTLS(t, time.Now().Add(time.Hour), false)
	expired, expiredRoots := stubTLS(t, time.Now().Add(-time.Hour), false)
	closing := stubTCP(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 4096)) })
	for _, tt := range []struct {
		name  string
		roots *x509.CertPool
		check Check
		want  string // of Err; ... at its end: a prefix
	}{
		{"SNI from host", roots, at(HTTPS, strict, Check{Host: "app.test", Verify: true}), ""},
		{"SNI apart from host", roots, at(HTTPS, strict, Check{Host: "app.test", SNI: "app.test"}), ""},
		{"host not for this server", roots, at(HTTPS, strict, Check{Host: "other.test", SNI: "app.test"}), "HTTP 421"},
		{"no SNI", roots, at(HTTPS, strict, Check{Verify: true}), "TLS: the server says: internal error (no server name was sent: set host or sni)"},
		{"wrong SNI", roots, at(HTTPS, strict, Check{Host: "other.test"}), "TLS: the server says: internal error"},
		{"verified by address", laxRoots, at(HTTPS, lax, Check{Verify: true}), ""},
		{"host with a port", laxRoots, at(HTTPS, lax, Check{Host: "app.test:8443", Verify: true}), ""},
		{"certificate of another name", laxRoots, at(HTTPS, lax, Check{Host: "other.test", Verify: true}), "certificate: certificate is valid for app.test, not other.test"},
		{"certificate of an unknown authority", roots, at(HTTPS, lax, Check{Host: "app.test", Verify: true}), "certificate: certificate signed by unknown authority..."},
		{"expired", expiredRoots, at(HTTPS, expired, Check{Host: "app.test", Verify: true}), "certificate: certificate has expired or is not yet valid..."},
		{"expired, not verified", expiredRoots, at(HTTPS, expired, Check{Host: "app.test"}), ""},
		{"closed in the handshake", nil, at(HTTPS, closing, Check{}), "connection closed without an answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := runOnce(t, &checker{roots: tt.roots}, tt.check)
			prefix, open := strings.CutSuffix(tt.want, "...")
			if got.OK != (tt.want == "") || got.Unrunnable || got.Unreachable || !strings.HasPrefix(got.Err, prefix) || (!open && got.Err != tt.want) {
				t.Errorf("%+v, want %q", got, tt.want)
			}
		})
	}
	// Without any authority every certificate would look forged: that is this machine's fault, not the server's.
	got := runOnce(t, &checker{roots: x509.NewCertPool()}, at(HTTPS, lax, Check{Host: "app.test", Verify: true}))
	if !got.Unrunnable || !strings.Contains(got.Err, "no CA certificates") {
		t.Errorf("without authorities: %+v", got)
	}
}

func TestCheckDNS(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		record, err := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.1")
		if err != nil {
			t.Error(err)
		}
		switch q.Question[0].Name {
		case "app.test.":
			stale := m.Copy()
			stale.Id++
			stale.Rcode = dns.RcodeServerFailure
			_ = w.WriteMsg(stale) // a late answer to another query must not count
			m.Answer = []dns.RR{record}
		case "nodata.test.":
		case "large.test.":
			m.Truncated = true
		case "nxdomain.test.":
			m.Rcode = dns.RcodeNameError
		case "formerr.test.":
			m.Question, m.Rcode = nil, dns.RcodeFormatError
		case "other.test.":
			m.Question[0].Name = "app.test."
			m.Answer = []dns.RR{record}
		case "mute.test.":
			return
		}
		_ = w.WriteMsg(m)
	})}
	go server.ActivateAndServe()
	defer conn.Close()
	gone := refusedAddr(t)
	short := 200 * time.Millisecond
	for _, tt := range []struct {
		name string
		addr net.Addr
		want Outcome
	}{
		{"app.test", conn.LocalAddr(), Outcome{OK: true}},
		{"nodata.test", conn.LocalAddr(), Outcome{Err: "DNS: no A record"}},
		{"large.test", conn.LocalAddr(), Outcome{OK: true}},
		{"nxdomain.test", conn.LocalAddr(), Outcome{Err: "DNS NXDOMAIN"}},
		{"formerr.test", conn.LocalAddr(), Outcome{Err: "DNS FORMERR"}},
		{"other.test", conn.LocalAddr(), Outcome{Err: "no answer in 200ms", Unreachable: true}},
		{"mute.test", conn.LocalAddr(), Outcome{Err: "no answer in 200ms", Unreachable: true}},
		{"app.test", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: gone.(*net.TCPAddr).Port}, Outcome{Err: "port unreachable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := 5 * time.Second
			if tt.want.Unreachable {
				timeout = short
			}
			expectOutcome(t, runOnce(t, &checker{}, at(DNS, tt.addr, Check{DNSName: tt.name, DNSType: "a", Timeout: timeout})), tt.want)
		})
	}
}

func TestCheckICMP(t *testing.T) {
	for _, group := range []string{"0 0", "1 0"} {
		t.Run(group, func(t *testing.T) {
			inNamespace(t, group)
			for addr, want := range map[string]Outcome{
				"127.0.0.1": {OK: true},
				"::1":       {OK: true},
				"192.0.2.1": {Err: "network unreachable", Unreachable: true},
			} {
				expectOutcome(t, runOnce(t, &checker{}, Check{Type: ICMP, Addr: netip.MustParseAddr(addr)}), want)
			}
			setSysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
			expectOutcome(t, runOnce(t, &checker{}, Check{Type: ICMP, Addr: netip.MustParseAddr("127.0.0.1"), Timeout: 200 * time.Millisecond}),
				Outcome{Err: "no answer in 200ms", Unreachable: true})
			// No route is not our failure to run the check, for any type.
			expectOutcome(t, runOnce(t, &checker{}, Check{Type: TCP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}),
				Outcome{Err: "network unreachable", Unreachable: true})
		})
	}
}

// No way in which a check may end leaves a descriptor behind.
func TestCheckDescriptors(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what was forgotten
	secured, _ := stubTLS(t, time.Now().Add(time.Hour), false)
	silent, closing := stubTCP(t, mute), stubTCP(t, func(net.Conn) {})
	checks := []Check{
		at(TCP, silent, Check{}),
		at(TCP, silent, Check{Expect: "x", Timeout: 20 * time.Millisecond}),
		at(HTTP, closing, Check{}),
		at(HTTP, silent, Check{Timeout: 20 * time.Millisecond}),
		at(HTTPS, secured, Check{}),
		at(HTTPS, silent, Check{Timeout: 20 * time.Millisecond}),
		at(HTTP, refusedAddr(t), Check{}),
		at(UDP, closing, Check{Send: "x"}),
		at(DNS, closing, Check{Timeout: 20 * time.Millisecond}),
		{Type: ICMP, Addr: netip.MustParseAddr("127.0.0.1"), Timeout: time.Second},
	}
	r := &checker{}
	runOnce(t, r, checks[0])
	before := descriptors(t)
	for range 20 {
		for _, c := range checks {
			runOnce(t, r, c)
		}
	}
	// The stubs close their ends when they see ours closed, which takes a moment.
	after := descriptors(t)
	for deadline := time.Now().Add(5 * time.Second); after > before && time.Now().Before(deadline); after = descriptors(t) {
		runtime.Gosched()
	}
	if after > before {
		t.Errorf("%d descriptors after 20 rounds, %d before", after, before)
	}
}

// The Host header and the path are what a browser would send.
func TestNewRequest(t *testing.T) {
	for _, tt := range []struct {
		check Check
		want  string
	}{
		{Check{Type: HTTP, Addr: netip.MustParseAddr("192.0.2.1")}, "192.0.2.1 /"},
		{Check{Type: HTTP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 8080, Path: "/a?b=c"}, "192.0.2.1:8080 /a?b=c"},
		{Check{Type: HTTPS, Addr: netip.MustParseAddr("2001:db8::1")}, "[2001:db8::1] /"},
		{Check{Type: HTTPS, Addr: netip.MustParseAddr("fe80::1%eth0"), Port: 80}, "[fe80::1]:80 /"},
		{Check{Type: HTTP, Addr: netip.MustParseAddr("::ffff:192.0.2.1"), Host: "app.test:81"}, "app.test:81 /"},
	} {
		tt.check.Key = "k"
		c, err := tt.check.resolved()
		if err != nil {
			t.Error(err)
			continue
		}
		req, err := newRequest(t.Context(), c)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := req.Host + " " + req.URL.RequestURI(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.check, got, tt.want)
		}
	}
}

func TestCheckValidate(t *testing.T) {
	good := Check{Key: "k", Type: HTTP, Addr: netip.MustParseAddr("127.0.0.1")}
	for _, tt := range []struct {
		name string
		edit func(*Check)
		want string // "" : valid
	}{
		{"defaults", func(*Check) {}, ""},
		{"short interval", func(c *Check) { c.Interval = time.Second }, ""},
		{"no key", func(c *Check) { c.Key = "" }, "key: must not be empty"},
		{"no address", func(c *Check) { c.Addr = netip.Addr{} }, "address: invalid IP cannot be checked"},
		{"any address", func(c *Check) { c.Addr = netip.IPv4Unspecified() }, "address: 0.0.0.0 cannot be checked"},
		{"no type", func(c *Check) { c.Type = "" }, `type: "" is none of icmp, tcp, udp, http, https, dns`},
		{"tcp without port", func(c *Check) { c.Type = TCP }, "port: a tcp check needs one"},
		{"udp without port", func(c *Check) { c.Type = UDP }, "port: a udp check needs one"},
		{"timeout above interval", func(c *Check) { c.Interval, c.Timeout = time.Second, 2*time.Second }, "timeout: 2s must be above 0 and at most the interval, 1s"},
		{"negative rise", func(c *Check) { c.Rise = -1 }, "rise -1, fall 3: must be at least 1"},
		{"relative path", func(c *Check) { c.Path = "healthz" }, `path: "healthz" must begin with /`},
		{"bad path", func(c *Check) { c.Path = "/%zz" }, `path: parse "http://127.0.0.1/%zz": invalid URL escape "%zz"`},
		{"bad host", func(c *Check) { c.Host = "a b" }, `host: "a b" is not a host name`},
		{"bad code", func(c *Check) { c.ExpectCodes = []int{20} }, "expect: 20 is not a status code between 200 and 599"},
		{"bad body", func(c *Check) { c.Body = "(" }, "body: error parsing regexp: missing closing ): `(`"},
		{"bad record type", func(c *Check) { c.Type, c.DNSType = DNS, "AAAAA" }, `type: "AAAAA" is not a record type`},
		{"bad name", func(c *Check) { c.Type, c.DNSName = DNS, "a..b" }, `name: "a..b" is not a domain name`},
	} {
		c := good
		tt.edit(&c)
		got := ""
		if err := c.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
