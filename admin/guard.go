package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"gslbd/control"
)

// callerKey is the key of the control.Caller in a request's context.
type callerKey struct{}

// caller returns who sent a request that guard let through.
func caller(req *http.Request) control.Caller {
	by, _ := req.Context().Value(callerKey{}).(control.Caller)
	return by
}

// guard lets through who may use the interface (docs/operations.md).
func (s *Server) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		change := req.Method != http.MethodGet && req.Method != http.MethodHead
		deny := func(status int, format string, args ...any) {
			if change {
				s.strangers.log(s.log, req, fmt.Sprintf(format, args...))
			}
			refuse(w, status, format, args...)
		}
		scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
		var tokens []string
		if s.opts.Tokens != nil {
			tokens = s.opts.Tokens()
		}
		known := strings.EqualFold(scheme, "Bearer") && oneOf(tokens, strings.TrimSpace(token))
		certificate := certified(req)
		by := control.Caller{Remote: req.RemoteAddr}
		switch {
		case known:
			by.Auth = "token"
		case token != "" && len(tokens) > 0, !loopback(req.RemoteAddr) && certificate == nil && len(tokens) > 0:
			w.Header().Set("WWW-Authenticate", `Bearer realm="gslbd admin"`)
			w.Header().Set("Connection", "close") // strangers do not keep connections
			deny(http.StatusUnauthorized, `the token is missing or wrong: send "Authorization: Bearer TOKEN" with the token of admin.token_file`)
			return
		case certificate != nil:
			by.Auth = "certificate " + certificateName(certificate)
		case !loopback(req.RemoteAddr):
			w.Header().Set("Connection", "close")
			deny(http.StatusForbidden, "only callers on a loopback address, or with a client certificate of admin.tls.client_ca, are answered, because admin.token_file is not set")
			return
		case !localHost(req.Host):
			// A web page whose own name was pointed at a loopback address sends that name.
			deny(http.StatusForbidden, "Host: %q does not name this machine: use its address or localhost, or send the token", req.Host)
			return
		default:
			by.Auth = "loopback"
		}
		if change {
			if err := origin.Check(req); err != nil {
				deny(http.StatusForbidden, "the request comes from a web page of another origin")
				return
			}
			if media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || media != "application/json" {
				deny(http.StatusUnsupportedMediaType, `send "Content-Type: application/json"`)
				return
			}
			req.Body = http.MaxBytesReader(w, req.Body, maxBody)
		}
		next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), callerKey{}, by)))
	})
}

// oneOf reports whether token is one of tokens. It compares sums, and all of them, so that the time says nothing about any.
func oneOf(tokens []string, token string) bool {
	sum, found := sha256.Sum256([]byte(token)), 0
	for _, t := range tokens {
		own := sha256.Sum256([]byte(t))
		found |= subtle.ConstantTimeCompare(sum[:], own[:])
	}
	return found == 1
}

// certified returns the client certificate that the listener has verified against admin.tls.client_ca, or nil. A browser
// sends its certificate by itself, so that it excuses from none of the checks of Origin and content; a page under
// another name cannot reach a TLS listener, whose certificate does not have that name.
func certified(req *http.Request) *x509.Certificate {
	if req.TLS == nil || len(req.TLS.VerifiedChains) == 0 || len(req.TLS.VerifiedChains[0]) == 0 {
		return nil
	}
	return req.TLS.VerifiedChains[0][0]
}

// certificateName is how the audit log calls a certificate.
func certificateName(c *x509.Certificate) string {
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	}
	return "without a name, serial number " + c.SerialNumber.String()
}

// strangers tells of callers that were turned away before their request was read: at most one line a second, since
// anybody who reaches the listener can cause them.
type strangers struct {
	mu     sync.Mutex
	next   time.Time // guarded by mu: when a line may be written again
	missed int       // guarded by mu: since the last line
}

func (s *strangers) log(log *zap.Logger, req *http.Request, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.next) {
		s.missed++
		return
	}
	log.Warn("request refused", zap.String("method", req.Method), zap.String("path", clip(req.URL.Path)), zap.String("remote", req.RemoteAddr),
		zap.String("error", clip(why)), zap.Int("unlogged", s.missed))
	s.next, s.missed = now.Add(time.Second), 0
}

func loopback(remote string) bool {
	a, err := netip.ParseAddrPort(remote)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}
