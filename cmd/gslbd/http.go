package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/netutil"
)

const (
	// maxConnections bounds the memory that the clients of one listener take. Two hundred sites with a pair of agents each
	// need 400.
	maxConnections = 1000
	// maxFromOne is how many of them one address may have, so that nobody keeps all others away. Many agents may share
	// an address behind NAT.
	maxFromOne = 250
	// httpStopTime is what requests that are being answered get when the server stops.
	httpStopTime = 5 * time.Second
)

// An httpServer serves one room's handler on one address, within bounds.
type httpServer struct {
	// Fixed at construction.
	key     string // of the configuration that names the address
	listen  string
	handler http.Handler
	stopped func() // called when it stops, before what is being answered is waited for; may be nil
	log     *zap.Logger

	listener net.Listener     // fixed by bind and reopen
	socket   *net.TCPListener // the same

	tls atomic.Pointer[listenerTLS] // of the next connections; nil, from the start on: they are not encrypted
}

// setTLS has the next connections begin with l, for a reload. Whether they are encrypted at all cannot change.
func (s *httpServer) setTLS(l *listenerTLS) {
	if l != nil && s.tls.Load() != nil {
		s.tls.Store(l)
	}
}

// bind takes the listener that was handed to the process, or opens it, so that an address that cannot be had is known before
// anything is served.
func (s *httpServer) bind(handed func(netip.AddrPort) *net.TCPListener) error {
	if s.socket = s.handed(handed); s.socket == nil {
		l, err := net.Listen("tcp", s.listen)
		if err != nil {
			return fmt.Errorf("%s: %w", s.key, err)
		}
		s.socket = l.(*net.TCPListener)
	}
	s.listener = s.socket
	return nil
}

// handed returns the listener of the server's address that was handed to the process; nil: there is none.
func (s *httpServer) handed(take func(netip.AddrPort) *net.TCPListener) *net.TCPListener {
	addr, err := net.ResolveTCPAddr("tcp", s.listen)
	switch {
	case err != nil:
		return nil // to listen there will say why
	case addr.IP != nil:
		at := addr.AddrPort()
		return take(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	}
	for _, every := range []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()} { // the latter where there is no IPv6
		if l := take(netip.AddrPortFrom(every, uint16(addr.Port))); l != nil {
			return l
		}
	}
	return nil
}

// reopen takes the socket f, which was handed on, back after run has ended.
func (s *httpServer) reopen(f *os.File) error {
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("%s: %w", s.key, err)
	}
	s.socket = l.(*net.TCPListener)
	s.listener = s.socket
	return nil
}

// run serves until ctx is done, then lets what is being answered finish for at most five seconds. bind comes first.
func (s *httpServer) run(ctx context.Context) error {
	listener := netutil.LimitListener(s.listener, maxConnections)
	if s.tls.Load() != nil {
		listener = tls.NewListener(listener, &tls.Config{
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.tls.Load().config, nil },
		})
	}
	from := connections{open: map[netip.Addr]int{}}
	srv := &http.Server{
		Handler:           s.handler,
		ConnState:         from.changed,
		ReadHeaderTimeout: 5 * time.Second, // also of a TLS handshake
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(errorLog{s.log}, "", 0),
	}
	if s.stopped != nil {
		srv.RegisterOnShutdown(s.stopped)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("%s: %w", s.key, err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTime)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		srv.Close() // whoever is still reading or writing is cut off, which is what the time limit is for
	}
	<-served
	return nil
}

// An errorLog takes the lines that the HTTP server writes.
type errorLog struct{ log *zap.Logger }

// Write logs a line. Anybody who can connect can make handshakes fail, and is told why himself.
func (e errorLog) Write(line []byte) (int, error) {
	level := zap.WarnLevel
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		level = zap.DebugLevel
	}
	e.log.Log(level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// connections counts the open ones by address, or by /64 for IPv6, of which a host has as many as it likes.
type connections struct {
	mu   sync.Mutex
	open map[netip.Addr]int // guarded by mu
}

// changed is told by the HTTP server of every connection, and closes those that are too many.
func (c *connections) changed(conn net.Conn, st http.ConnState) {
	if st != http.StateNew && st != http.StateClosed && st != http.StateHijacked {
		return
	}
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return // not a TCP connection
	}
	addr := remote.Addr().Unmap()
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if st == http.StateNew {
		if c.open[addr]++; c.open[addr] > maxFromOne {
			conn.Close()
		}
	} else if c.open[addr]--; c.open[addr] == 0 {
		delete(c.open, addr)
	}
}
