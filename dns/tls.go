package dns

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// handshakeTime is how long a TLS handshake may take: a client across the world needs well under one second, and
	// one whose first packets are lost three.
	handshakeTime = 5 * time.Second

	// certificateLook is the time between two looks at the files of the certificate.
	certificateLook = 2 * time.Second

	// maxCertificateFile is far above what a chain or a key takes.
	maxCertificateFile = 1 << 20
)

// TLSOptions are what DNS over TLS needs (RFC 7858). Without Listen there is none.
type TLSOptions struct {
	Listen      []string     // HOST:PORT as in Options.Listen, over TCP only
	Certificate *Certificate // required with Listen
}

// A Certificate is a certificate chain and its private key, as read from two PEM files. It is immutable.
type Certificate struct {
	file, keyFile string
	stamps        [2]fileStamp
	pair          tls.Certificate
}

// LoadCertificate reads the files of a certificate chain and its private key. The key must be readable by its owner
// only. The error names the setting, the file and what to do.
func LoadCertificate(file, keyFile string) (*Certificate, error) {
	c := &Certificate{file: file, keyFile: keyFile}
	chain, chainStamp, err := readFile(file, 0, maxCertificateFile)
	if err != nil {
		return nil, fmt.Errorf("dns.tls.certificate: %w", err)
	}
	key, keyStamp, err := readFile(keyFile, 0o077, maxCertificateFile)
	if err != nil {
		return nil, fmt.Errorf("dns.tls.key: %w", err)
	}
	c.stamps = [2]fileStamp{chainStamp, keyStamp}
	if c.pair, err = tls.X509KeyPair(chain, key); err != nil {
		return nil, fmt.Errorf("dns.tls.certificate: %s with dns.tls.key %s: %w: give PEM files of the certificate with its chain and of the private key that belongs to it", file, keyFile, err)
	}
	return c, nil
}

// readFile reads a file of at most most octets that has none of the permissions in refused, and returns its stamp as well.
func readFile(file string, refused os.FileMode, most int64) ([]byte, fileStamp, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would wait for its writer
	if err != nil {
		return nil, fileStamp{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fileStamp{}, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fileStamp{}, fmt.Errorf("%s is not a file", file)
	case mode.Perm()&refused != 0:
		return nil, fileStamp{}, fmt.Errorf("%s can be read or written by others than its owner (mode %04o): run chmod 600 %s", file, mode.Perm(), file)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d octets, and cannot be meant", file, most)
	}
	return data, stampOf(info), err
}

// problem says why clients that check the certificate will not take it at the time now; "": they may.
func (c *Certificate) problem(now time.Time) string {
	switch leaf := c.pair.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("the certificate in %s expired at %s", c.file, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("the certificate in %s is not valid before %s", c.file, leaf.NotBefore.Format(time.RFC3339))
	}
	return ""
}

// A fileStamp tells one state of a file from another. The zero value is that of a file that is not there.
type fileStamp struct {
	device, inode    uint64
	size             int64
	modified, change syscall.Timespec // the second tells of a mode or owner, too
}

// A certificateKeeper has the certificate in force, and takes up its files when they change.
type certificateKeeper struct {
	log      *zap.Logger
	interval time.Duration

	// Atomic.
	current atomic.Pointer[Certificate]
	failing atomic.Pointer[string] // why the files are not in force as they are, which was logged; nil: they are

	// Guarded by mu.
	mu      sync.Mutex
	pending [2]fileStamp // seen once
}

// set puts c in force.
func (k *certificateKeeper) set(c *Certificate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.use(c)
}

// use puts c in force. mu is held.
func (k *certificateKeeper) use(c *Certificate) {
	k.current.Store(c)
	k.failing.Store(nil)
	k.pending = c.stamps
	if why := c.problem(time.Now()); why != "" {
		k.log.Warn("clients will not accept the TLS certificate", zap.String("why", why))
	}
}

// run looks at the files until ctx is done.
func (k *certificateKeeper) run(ctx context.Context) error {
	ticker := time.NewTicker(k.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			k.look()
		}
	}
}

// look reads the files if they are not what is in force, and two looks in a row found them the same: they are two, and
// are not replaced at the same moment. What cannot be used leaves the one before in force, and is tried again.
func (k *certificateKeeper) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.current.Load()
	var now [2]fileStamp
	for i, file := range []string{old.file, old.keyFile} {
		if info, err := os.Stat(file); err == nil {
			now[i] = stampOf(info)
		}
	}
	settled := now == k.pending
	k.pending = now
	if now == old.stamps || !settled {
		if now == old.stamps {
			k.failing.Store(nil) // they were put back
		}
		return
	}
	c, err := LoadCertificate(old.file, old.keyFile)
	if err != nil {
		text := err.Error()
		if last := k.failing.Swap(&text); last == nil || *last != text {
			k.log.Error("TLS certificate not loaded, keeping the one in force", zap.Error(err))
		}
		return
	}
	k.use(c)
	k.log.Info("TLS certificate loaded", zap.String("file", c.file), zap.Strings("names", c.pair.Leaf.DNSNames), zap.Time("expires", c.pair.Leaf.NotAfter))
}

// SetCertificate puts a certificate in force, for a reload of the configuration. Connections that are open keep theirs.
// Without Options.TLS.Listen, or for nil, it does nothing. It may be called at any time.
func (s *Server) SetCertificate(c *Certificate) {
	if s.certificate != nil && c != nil {
		s.certificate.set(c)
	}
}

// CertificateProblem says what is wrong with the TLS certificate or with what its files have become; "": nothing. It may
// be called at any time.
func (s *Server) CertificateProblem() string {
	if s.certificate == nil {
		return ""
	}
	if why := s.certificate.failing.Load(); why != nil {
		return "the TLS certificate stays in force as it was read before: " + *why
	}
	return s.certificate.current.Load().problem(time.Now())
}

// newTLSConfig returns what all TLS connections share. Clients may resume a session; the keys for that are made, and
// changed every day, by crypto/tls.
func newTLSConfig(k *certificateKeeper) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12, // RFC 8996
		NextProtos:     []string{"dot"},  // a client that names other protocols only does not mean us (RFC 7301 section 3.2)
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &k.current.Load().pair, nil },
	}
}

// A tlsTransport is the TCP connection below TLS.
type tlsTransport struct {
	*net.TCPConn
	computing chan struct{}   // a handshake that computes has put a token in
	ended     <-chan struct{} // closed when the connection has to make room
	until     time.Time       // of the handshake
	shaking   bool            // the handshake is not over
	holding   bool            // a token in computing is ours
}

// Read gives back the token for computing while it waits for the client.
func (t *tlsTransport) Read(b []byte) (int, error) {
	if !t.shaking {
		return t.TCPConn.Read(b)
	}
	t.give()
	n, err := t.TCPConn.Read(b)
	if !t.take() || err == nil && time.Now().After(t.until) {
		err = os.ErrDeadlineExceeded // the others took so long: what is late already shall cost no more
	}
	return n, err
}

// take waits for a token. It reports false, without one, when the connection has to make room: those that no longer count
// must not wait on in any number while a flood of handshakes keeps the processors busy.
func (t *tlsTransport) take() bool {
	select {
	case <-t.ended:
		return false
	default:
	}
	select {
	case t.computing <- struct{}{}:
		t.holding = true
	case <-t.ended:
	}
	return t.holding
}

// give gives a token back that take has got.
func (t *tlsTransport) give() {
	if t.holding {
		<-t.computing
		t.holding = false
	}
}

// SetWriteDeadline does nothing. It is crypto/tls that calls it, when it says goodbye, and would undo what was set.
func (t *tlsTransport) SetWriteDeadline(time.Time) error { return nil }

// handshake lets TLS begin and reports whether it has. Few handshakes compute at a time, so that any number of them
// leaves a processor to the queries; waiting for their clients they hold nothing but their connection.
func (c *tcpConn) handshake() bool {
	t := &tlsTransport{TCPConn: c.TCPConn, computing: c.server.computing, ended: c.ended, until: time.Now().Add(handshakeTime), shaking: true}
	c.secure = tls.Server(t, c.server.tls)
	c.stream = c.secure
	c.expect(handshakeTime)
	err := os.ErrDeadlineExceeded
	if t.take() {
		err = c.secure.Handshake()
		t.give()
	}
	t.shaking = false
	if err == nil {
		c.server.handshakes[handshakeDone].Add(1)
		return true
	}
	c.server.handshakes[handshakeFailed].Add(1)
	var network net.Error
	if !errors.As(err, &network) && !errors.Is(err, io.EOF) {
		c.linger() // it was told why
	}
	return false
}

// goodbye tells a client over TLS that nothing more comes, so that it knows the end from one that an attacker made (RFC
// 8446 section 6.1).
func (c *tcpConn) goodbye() {
	if c.secure == nil {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(lingerTime))
	_ = c.secure.CloseWrite() // the connection ends anyway
}
