package dns

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// pemPair returns a certificate for name and its key.
func pemPair(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// TestCertificateChanges replaces the files of a certificate, as a tool that renews it would, and badly.
func TestCertificateChanges(t *testing.T) {
	dir := t.TempDir()
	file, keyFile := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	replace := func(path string, data []byte) { // by renaming, so that there are two states and nothing in between
		t.Helper()
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	one, oneKey := pemPair(t, "one.test")
	two, twoKey := pemPair(t, "two.test")
	replace(file, one)
	replace(keyFile, oneKey)
	c, err := LoadCertificate(file, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	k := &certificateKeeper{log: zap.New(core)}
	k.set(c)
	check := func(name string, failing bool, lines int) {
		t.Helper()
		if got := k.current.Load().pair.Leaf.DNSNames[0]; got != name {
			t.Errorf("%s is in force, want %s", got, name)
		}
		if got := k.failing.Load() != nil; got != failing {
			t.Errorf("failing is %v", got)
		}
		if got := logs.Len(); got != lines {
			t.Errorf("%d lines of log, want %d: %v", got, lines, logs.All())
		}
	}
	look := func(times int) {
		for range times {
			k.look()
		}
	}
	look(3)
	check("one.test", false, 0)

	replace(file, two)
	look(1)
	check("one.test", false, 0) // not yet the same twice
	replace(keyFile, twoKey)
	look(1)
	check("one.test", false, 0)
	look(3)
	check("two.test", false, 1)

	replace(file, one) // and the key stays
	look(5)
	check("two.test", true, 2)
	replace(keyFile, []byte("none"))
	look(5)
	check("two.test", true, 3)
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	look(5)
	check("two.test", true, 4)
	replace(keyFile, oneKey)
	look(5)
	check("one.test", false, 5)

	if err := os.Chmod(keyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	look(5)
	check("one.test", true, 6)
	if err := os.Chmod(keyFile, 0o600); err != nil {
		t.Fatal(err)
	}
	look(5)
	check("one.test", false, 7)
}

func TestClientOf(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.77":          "192.0.2.0/24",
		"::ffff:192.0.2.77":   "192.0.2.0/24",
		"2001:db8:1:2ff::9":   "2001:db8:1:200::/56",
		"fe80::1:2:3:4%eth0":  "fe80::/56",
		"255.255.255.255":     "255.255.255.0/24",
		"2001:db8:1:2:3::1:1": "2001:db8:1::/56",
	} {
		if got := clientOf(netip.MustParseAddr(addr)); got != netip.MustParsePrefix(want) {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// TestHandshakesMakeRoom holds back all computing, as a flood of handshakes does: the connections that had to make room
// must end all the same, or those that wait would have no bound.
func TestHandshakesMakeRoom(t *testing.T) {
	const most, more = 4, 12
	opts, err := Options{Workers: 1, TCP: TCPOptions{MaxConnections: most}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := newTCPServer(opts, nil)
	s.tls = newTLSConfig(&certificateKeeper{})
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s.computing <- struct{}{}
	var running sync.WaitGroup
	ends := make(chan struct{}, most+more)
	clients := make([]net.Conn, most+more)
	for i := range clients {
		if clients[i], err = net.Dial("tcp4", ln.Addr().String()); err != nil {
			t.Fatal(err)
		}
		nc, err := ln.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		c := s.admit(nc, true)
		running.Go(func() {
			c.serve()
			ends <- struct{}{}
		})
	}
	late := time.After(10 * time.Second)
	for i := range more {
		select {
		case <-ends:
		case <-late:
			t.Fatalf("%d connections of %d that had to make room ended", i, more)
		}
	}
	if got := s.open(); got != most {
		t.Errorf("%d connections are open, want %d", got, most)
	}
	for _, c := range clients {
		c.Close()
	}
	<-s.computing
	running.Wait()
	if len(s.computing) != 0 || s.open() != 0 {
		t.Errorf("%d tokens are taken and %d connections open at the end", len(s.computing), s.open())
	}
}

// TestAcceptQueuedOnABusyMachine holds up a stopping server for longer than connections may be silent: those that the
// kernel has accepted are taken all the same.
func TestAcceptQueuedOnABusyMachine(t *testing.T) {
	opts, err := Options{Workers: 1}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := newTCPServer(opts, nil)
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	clients := make([]net.Conn, 8)
	for i := range clients {
		if clients[i], err = net.Dial("tcp4", ln.Addr().String()); err != nil {
			t.Fatal(err)
		}
	}
	var running sync.WaitGroup
	s.mu.Lock()
	time.AfterFunc(2*stopGrace, s.mu.Unlock)
	s.acceptQueued(tcpListener{TCPListener: ln}, &running)
	if got := s.open(); got != len(clients) {
		t.Errorf("%d connections are taken, %d were queued", got, len(clients))
	}
	for _, c := range clients {
		c.Close()
	}
	running.Wait()
}

// A lateStream tells its reader that the time is over although the client's query has come, as a busy machine does that
// runs the reader too late.
type lateStream struct {
	*net.TCPConn
	t    *testing.T
	told bool
}

func (s *lateStream) Read(b []byte) (int, error) {
	if s.told {
		return s.TCPConn.Read(b)
	}
	for end := time.Now().Add(10 * time.Second); !waits(s.TCPConn); runtime.Gosched() {
		if time.Now().After(end) {
			s.t.Error("the query does not come")
			break
		}
	}
	s.told = true
	return 0, os.ErrDeadlineExceeded
}

// TestStopAnswersWhatHasArrived has the time of a connection run out on a busy machine that stops, with a query in the kernel:
// it is answered.
func TestStopAnswersWhatHasArrived(t *testing.T) {
	opts, err := Options{Workers: 1}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewResponder(opts)
	if err != nil {
		t.Fatal(err)
	}
	s := newTCPServer(opts, []*Responder{r})
	s.stopping.Store(true)
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	c := s.admit(nc, false)
	c.stream = &lateStream{TCPConn: nc, t: t}
	var running sync.WaitGroup
	running.Go(c.serve)
	if _, err := client.Write([]byte("\x00\x11\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01")); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	reply := make([]byte, 5)
	if _, err := io.ReadFull(client, reply); err != nil || string(reply[2:4]) != "\x12\x34" || reply[4]&0x80 == 0 {
		t.Errorf("the reply begins with %x: %v", reply, err)
	}
	running.Wait()
}
