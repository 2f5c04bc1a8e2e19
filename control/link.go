package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A link remembers why the last connection to an endpoint of etcd failed. The client only says that time ran out, or that
// there is no connection.
type link struct {
	renewed chan struct{} // capacity 1; never closed: a connection was made

	mu     sync.Mutex
	secure bool
	why    error // nil: it stands, or was not tried, or what the client says is all there is to say
}

// credentials returns what connections of the link begin with; without c they are not encrypted.
func (l *link) credentials(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		return handshakes{insecure.NewCredentials(), l}
	}
	l.secure = true
	return handshakes{credentials.NewTLS(c), l}
}

func (l *link) set(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = why
}

// handshakes are credentials that tell a link how connections begin.
type handshakes struct {
	credentials.TransportCredentials
	link *link
}

func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		h.link.set(err)
		return conn, info, err
	}
	select {
	case h.link.renewed <- struct{}{}:
	default:
	}
	return &firstRead{Conn: conn, link: h.link}, info, nil
}

func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.link}
}

// A firstRead is a connection that tells a link whether anything comes from it: a server refuses a client's certificate
// after the handshake, and one that expects a handshake hangs up where there is none.
type firstRead struct {
	net.Conn
	link *link
	done bool // owned by the one who reads
}

func (c *firstRead) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.done && (n > 0 || err != nil) {
		c.done = true
		if n > 0 {
			err = nil
		}
		c.link.set(err)
	}
	return n, err
}

// explain says what is behind an error of the client, and what to do; nil for nil.
func (l *link) explain(err error) error {
	l.mu.Lock()
	why, secure := l.why, l.secure
	l.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case why == nil && errors.Is(err, context.DeadlineExceeded):
		return errors.New("it does not answer in time")
	case why == nil || strings.Contains(err.Error(), "while dialing"): // there was not even a connection
		return err
	}
	var (
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		host    x509.HostnameError
		plain   tls.RecordHeaderError
		op      *net.OpError
	)
	switch {
	case errors.As(why, &unknown):
		return fmt.Errorf("%w: give the authority of etcd's certificate in state.etcd.ca", why)
	case errors.As(why, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: renew etcd's certificate, or set this machine's clock", why)
	case errors.As(why, &invalid):
		return fmt.Errorf("%w: give etcd a certificate for servers", why)
	case errors.As(why, &host):
		return fmt.Errorf("%w: write the endpoint by a name that its certificate has", why)
	case errors.As(why, &plain):
		return fmt.Errorf("%w: it speaks no TLS there; write http:// in state.etcd.endpoints", why)
	case errors.As(why, &op) && op.Op == "remote error":
		return fmt.Errorf("it refuses us: %w: give a certificate of an authority that etcd trusts in state.etcd.certificate and key", why)
	case !secure && (errors.Is(why, io.EOF) || errors.As(why, &op)):
		return fmt.Errorf("it hangs up at once (%w): if it speaks TLS there, write https:// in state.etcd.endpoints", why)
	}
	return why
}
