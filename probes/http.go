package probes

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// newRequest returns the request of an http or https check.
func newRequest(ctx context.Context, c Check) (*http.Request, error) {
	target := netip.AddrPortFrom(c.Addr.WithZone(""), c.Port).String()
	if c.Port == defaultPort(c.Type) {
		target = target[:strings.LastIndexByte(target, ':')]
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(c.Type)+"://"+target+c.Path, nil)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	if c.Host != "" {
		if strings.ContainsAny(c.Host, " /\\@?#\r\n\t") {
			return nil, fmt.Errorf("host: %q is not a host name", c.Host)
		}
		req.Host = c.Host
	}
	req.Header.Set("User-Agent", "gslbd-check")
	req.Close = true
	return req, nil
}

// serverName returns what an https check says in SNI, or "": RFC 6066 section 3 allows no addresses there.
func serverName(c Check) string {
	name := c.SNI
	if name == "" {
		name = c.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return ""
	}
	return name
}

// http runs an http or https check over a connection of its own, with HTTP/1.1, which every server speaks. It does
// without a client or transport: no redirects, no cookies, no proxy of the environment, nothing kept alive.
func (r *checker) http(ctx context.Context, c Check) Outcome {
	req, err := newRequest(ctx, c)
	if err != nil {
		return Outcome{Err: "cannot be run: " + err.Error(), Unrunnable: true}
	}
	var body *regexp.Regexp
	if c.Body != "" {
		if body, err = regexp.Compile(c.Body); err != nil {
			return Outcome{Err: "cannot be run: body: " + err.Error(), Unrunnable: true}
		}
	}
	if c.Type == HTTPS && c.Verify && !hasRoots(r.roots) {
		return failure(x509.SystemRootsError{}, c, false)
	}
	conn, err := dial(ctx, "tcp", c)
	if err != nil {
		return failure(err, c, false)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	stream := conn
	if c.Type == HTTPS {
		config := &tls.Config{ServerName: serverName(c), RootCAs: r.roots, InsecureSkipVerify: !c.Verify}
		if config.ServerName == "" {
			config.ServerName = c.Addr.WithZone("").String() // verified as an address, and not sent
		}
		secured := tls.Client(conn, config)
		if err := secured.Handshake(); err != nil {
			return failure(err, c, true)
		}
		stream = secured
	}
	if err := req.Write(stream); err != nil {
		return failure(err, c, true)
	}
	limited := &io.LimitedReader{R: stream, N: maxAnswer}
	reader := bufio.NewReader(limited)
	resp, err := http.ReadResponse(reader, req)
	for err == nil && resp.StatusCode < 200 { // 103 Early Hints, say
		resp, err = http.ReadResponse(reader, req)
	}
	if err != nil {
		return failure(err, c, true)
	}
	// The body is not closed, which would read it to its end: the connection is.
	if !slices.Contains(c.ExpectCodes, resp.StatusCode) {
		return Outcome{Err: fmt.Sprintf("HTTP %d", resp.StatusCode)}
	}
	if body == nil {
		return Outcome{OK: true}
	}
	limited.N = 2 * maxAnswer // its header is in; chunks have some overhead
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case body.Match(content):
		return Outcome{OK: true}
	case err != nil:
		return failure(err, c, true)
	}
	return Outcome{Err: "body does not match"}
}

// hasRoots says whether any certificate authority is known. Without one, every certificate would look forged.
func hasRoots(pool *x509.CertPool) bool {
	if pool == nil {
		var err error
		if pool, err = x509.SystemCertPool(); err != nil {
			return false
		}
	}
	return !pool.Equal(x509.NewCertPool())
}
