package dns

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gslbd/state"
)

// The bounds of Options.MaxUDPPayload. The upper one is far above what a path without fragments carries.
const (
	maxUDPPayload = 4096

	// maxNSID keeps the reply with NSID and without an answer within 512 octets whatever the question is.
	maxNSID = 128
)

// What the sockets ask the kernel for: to receive, so that a burst survives a moment in which no worker runs; to send,
// since replies to an address of our own link at which nobody is stay in the buffer for the seconds that the kernel looks
// for it, and forged queries from a few of these would fill the usual 208 KiB and stop the worker.
const (
	receiveBuffer = 4 << 20
	sendBuffer    = 4 << 20

	// connectionBuffer is that of a TCP connection in each direction: one message of the largest size.
	connectionBuffer = 64 << 10
)

// Options configure a Server or a Responder. The zero value listens nowhere and serves what Store publishes.
type Options struct {
	Listen        []string // HOST:PORT with a literal address, served over UDP and TCP; an empty host is every address
	NSID          string   // at most 128 octets (RFC 5001); empty: none
	ECS           bool     // client subnets are looked at, in the zones that have it on too (RFC 7871)
	MaxUDPPayload int      // octets, 512 to 4096; 0: 1232
	Cookies       CookieOptions
	RateLimit     RateLimitOptions
	TCP           TCPOptions
	TLS           TLSOptions
	DrainTime     time.Duration // the longest that Run goes on, after its context is done, for what has been received; 0: 5s
	Version       string        // what version.bind answers; empty: it is refused
	QueryLog      float64       // share of the queries that are logged, 0 to 1
	Tap           TapOptions
	Workers       int // UDP sockets and goroutines for each address; 0: GOMAXPROCS
	Store         *state.Store
	Log           *zap.Logger // nil: no log

	// HandedUDP and HandedTCP return the sockets of an address that the process was given when it started, and give them
	// up; none of them: Bind opens the address itself. An address has a worker for each UDP socket that was handed, whatever
	// Workers says: to close one would lose what is queued in it. Nil: no sockets were handed.
	HandedUDP func(netip.AddrPort) []*net.UDPConn
	HandedTCP func(netip.AddrPort) *net.TCPListener

	// CookieSecret makes the cookies where Cookies has no secrets; zero: it is made up. A process that takes over has that
	// of the one before it, whose cookies stay valid.
	CookieSecret [16]byte
}

// TCPOptions bound what clients can take by TCP, with TLS or without.
type TCPOptions struct {
	IdleTimeout             time.Duration // for the next complete query to arrive; 0: 10s
	MaxConnections          int           // 0: 1000
	MaxConnectionsPerClient int           // of one client network, an IPv4 /24 or IPv6 /56; 0: 100
}

// withDefaults fills in what is not set, and refuses what cannot be.
func (o Options) withDefaults() (Options, error) {
	if o.MaxUDPPayload == 0 {
		o.MaxUDPPayload = 1232
	}
	if o.DrainTime == 0 {
		o.DrainTime = 5 * time.Second
	}
	if o.TCP.IdleTimeout == 0 {
		o.TCP.IdleTimeout = 10 * time.Second
	}
	if o.TCP.MaxConnections == 0 {
		o.TCP.MaxConnections = 1000
	}
	if o.TCP.MaxConnectionsPerClient == 0 {
		o.TCP.MaxConnectionsPerClient = 100
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.HandedUDP == nil {
		o.HandedUDP = func(netip.AddrPort) []*net.UDPConn { return nil }
	}
	if o.HandedTCP == nil {
		o.HandedTCP = func(netip.AddrPort) *net.TCPListener { return nil }
	}
	switch {
	case o.MaxUDPPayload < minPayload || o.MaxUDPPayload > maxUDPPayload:
		return o, fmt.Errorf("dns: max_udp_payload: %d is not between %d and %d", o.MaxUDPPayload, minPayload, maxUDPPayload)
	case len(o.NSID) > maxNSID:
		return o, fmt.Errorf("dns: nsid: %d octets are more than %d", len(o.NSID), maxNSID)
	case len(o.Version) > 255:
		return o, fmt.Errorf("dns: version: %d octets are more than 255", len(o.Version))
	case !validShare(o.QueryLog):
		return o, fmt.Errorf("dns: log.queries: %v is not between 0 and 1", o.QueryLog)
	case !validShare(o.Tap.Share):
		return o, fmt.Errorf("dns: dnstap.share: %v is not between 0 and 1", o.Tap.Share)
	case o.TCP.IdleTimeout < 0 || o.TCP.MaxConnections < 0 || o.TCP.MaxConnectionsPerClient < 0 || o.DrainTime < 0:
		return o, errors.New("dns: a limit cannot be negative")
	case len(o.TLS.Listen) > 0 && o.TLS.Certificate == nil:
		return o, errors.New("dns: tls: addresses to listen on need a certificate")
	}
	return o, o.RateLimit.Check()
}

// NewResponder returns a Responder that needs no Server. The caller must Refresh it before the first query.
func NewResponder(opts Options) (*Responder, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	secrets := new(atomic.Pointer[cookieSecrets])
	secrets.Store(newCookieSecrets(opts.Cookies, randomSecret()))
	l := newLimiter(opts.Log)
	return newResponder(opts, secrets, l, newSigner(opts), 0), l.set(opts.RateLimit)
}

func newResponder(opts Options, secrets *atomic.Pointer[cookieSecrets], l *limiter, g *signer, shard int) *Responder {
	return &Responder{
		store:      opts.Store,
		ecs:        opts.ECS,
		maxPayload: opts.MaxUDPPayload,
		nsid:       []byte(opts.NSID),
		version:    []byte(opts.Version),
		keepalive:  uint16(min(opts.TCP.IdleTimeout/keepaliveUnit, math.MaxUint16)),
		secrets:    secrets,
		shard:      shard,
		queryLog:   opts.QueryLog,
		log:        opts.Log,
		count:      &counters{},
		limiter:    l,
		signer:     g,
		rand:       rand.NewPCG(rand.Uint64(), rand.Uint64()),
	}
}

// A Server answers on its sockets: Bind, then Run, each once.
type Server struct {
	opts       Options
	telemetry  *telemetry
	limiter    *limiter
	signer     *signer
	responders []*Responder // fixed by Bind, read by Collect
	ownSecret  [16]byte     // of cookies, where none is given

	secrets atomic.Pointer[cookieSecrets] // in force

	addrs       []netip.AddrPort
	tlsAddrs    []netip.AddrPort
	workers     []*udpWorker
	listeners   []tcpListener
	tcp         *tcpServer
	certificate *certificateKeeper // fixed; nil: TLS is not listened for
	tap         *tap               // fixed; nil: dnstap is off
}

// A tcpListener is a TCP socket that is listened on.
type tcpListener struct {
	*net.TCPListener
	secure bool // its connections speak TLS
}

// New checks the options.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(opts.Listen) == 0 {
		return nil, errors.New("dns: listen: no address is given")
	}
	s := &Server{opts: opts, telemetry: newTelemetry(), ownSecret: opts.CookieSecret, limiter: newLimiter(opts.Log), signer: newSigner(opts)}
	if s.ownSecret == [16]byte{} {
		s.ownSecret = randomSecret()
	}
	s.secrets.Store(newCookieSecrets(opts.Cookies, s.ownSecret))
	if err := s.limiter.set(opts.RateLimit); err != nil {
		return nil, err
	}
	if s.tap, err = newTap(opts.Tap, opts.Log); err != nil {
		return nil, err
	}
	for i := range opts.Workers {
		s.newResponder(i)
	}
	s.tcp = newTCPServer(opts, s.responders)
	if len(opts.TLS.Listen) > 0 {
		s.certificate = &certificateKeeper{log: opts.Log, interval: certificateLook}
		s.certificate.set(opts.TLS.Certificate)
		s.tcp.tls = newTLSConfig(s.certificate)
	}
	return s, nil
}

func (s *Server) newResponder(shard int) *Responder {
	r := newResponder(s.opts, &s.secrets, s.limiter, s.signer, shard)
	r.duration, r.tap = s.telemetry.duration, s.tap
	s.responders = append(s.responders, r)
	return r
}

// SetCookies switches cookies on or off and puts secrets in force, from the next batch of queries on. It may be called at any time.
func (s *Server) SetCookies(opts CookieOptions) {
	secrets := newCookieSecrets(opts, s.ownSecret)
	if old := s.secrets.Swap(secrets); !old.equal(secrets) {
		s.opts.Log.Info("cookie secrets changed", zap.Int("secrets", secrets.count()))
	}
}

// CookieSecret returns what makes the cookies where no secrets are given, for a process that takes over.
func (s *Server) CookieSecret() [16]byte { return s.ownSecret }

// Addrs returns the addresses that are bound, with the port that the kernel chose for port 0.
func (s *Server) Addrs() []netip.AddrPort { return s.addrs }

// TLSAddrs is Addrs for DNS over TLS.
func (s *Server) TLSAddrs() []netip.AddrPort { return s.tlsAddrs }

// Bind opens all sockets, or none. The error names the address and what to do about it.
func (s *Server) Bind() error {
	if err := s.bindAll("listen", s.opts.Listen, s.bindOnce); err != nil {
		return err
	}
	return s.bindAll("tls.listen", s.opts.TLS.Listen, s.bindTLS)
}

// bindAll opens the sockets of one setting, or closes all.
func (s *Server) bindAll(key string, listens []string, once func(netip.AddrPort) error) error {
	for _, listen := range listens {
		addrs, err := parseListen(listen)
		if err == nil {
			for _, addr := range addrs {
				if err = bind(addr, once); errors.Is(err, unix.EAFNOSUPPORT) && len(addrs) > 1 {
					err = nil // an empty host on a machine without IPv6
				}
				if err != nil {
					break
				}
			}
		}
		if err != nil {
			s.close()
			return fmt.Errorf("dns: %s %s: %w", key, listen, err)
		}
	}
	return nil
}

// parseListen returns the addresses that one listen string stands for.
func parseListen(listen string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, errors.New("it is not HOST:PORT")
	}
	if host == "" {
		v4, err := netip.ParseAddrPort("0.0.0.0:" + port)
		if err != nil {
			return nil, fmt.Errorf("%q is not a port", port)
		}
		return []netip.AddrPort{v4, netip.AddrPortFrom(netip.IPv6Unspecified(), v4.Port())}, nil
	}
	addr, err := netip.ParseAddrPort(listen)
	if err != nil {
		return nil, errors.New("the host is not a literal address, or the port no number")
	}
	return []netip.AddrPort{netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}, nil
}

// bind opens the sockets of one address. For port 0 it tries until one port is free for both UDP and TCP.
func bind(addr netip.AddrPort, once func(netip.AddrPort) error) error {
	for try := 0; ; try++ {
		err := once(addr)
		if err == nil || addr.Port() != 0 || try == 20 || !errors.Is(err, unix.EADDRINUSE) {
			return explainBind(err)
		}
	}
}

func (s *Server) bindOnce(addr netip.AddrPort) error {
	conns, addr, err := s.udpSockets(addr)
	if err != nil {
		return err
	}
	ln, err := s.tcpSocket(addr)
	if err != nil {
		closeAll(conns)
		return err
	}
	for i, conn := range conns {
		w, err := newUDPWorker(conn, addr, s.newResponder(i), s.opts.DrainTime)
		if err != nil {
			ln.Close()
			closeAll(conns[i:])
			return err
		}
		s.workers = append(s.workers, w)
	}
	s.listeners = append(s.listeners, tcpListener{TCPListener: ln})
	s.addrs = append(s.addrs, addr)
	return nil
}

// udpSockets returns the UDP sockets of an address, handed or opened, and the address with the port that it has then.
func (s *Server) udpSockets(addr netip.AddrPort) ([]*net.UDPConn, netip.AddrPort, error) {
	network := network("udp", addr)
	if conns := s.opts.HandedUDP(addr); len(conns) > 0 {
		for _, conn := range conns {
			raw, err := conn.SyscallConn()
			if err == nil {
				err = onFD(raw, func(fd int) error { return controlUDP(fd, network == "udp6", addr.Addr().IsUnspecified()) })
			}
			if err != nil {
				closeAll(conns)
				return nil, addr, err
			}
		}
		return conns, addr, nil
	}
	// Only a socket without SO_REUSEPORT finds out that another process, or this one, is there already: with it,
	// the kernel would silently share the queries among the two.
	probe, err := listenUDP(network, addr, false)
	if err != nil {
		return nil, addr, err
	}
	addr = netip.AddrPortFrom(addr.Addr(), probe.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	probe.Close()
	var conns []*net.UDPConn
	for range min(s.opts.Workers, mostSockets) {
		conn, err := listenUDP(network, addr, true)
		if err != nil {
			closeAll(conns)
			return nil, addr, err
		}
		conns = append(conns, conn)
	}
	return conns, addr, nil
}

func closeAll(conns []*net.UDPConn) {
	for _, c := range conns {
		c.Close()
	}
}

// network is what package net calls a protocol over the addresses of addr's family alone.
func network(protocol string, addr netip.AddrPort) string {
	if addr.Addr().Is6() {
		return protocol + "6"
	}
	return protocol + "4"
}

// bindTLS opens the socket of one address for TLS.
func (s *Server) bindTLS(addr netip.AddrPort) error {
	ln, err := s.tcpSocket(addr)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, tcpListener{TCPListener: ln, secure: true})
	s.tlsAddrs = append(s.tlsAddrs, netip.AddrPortFrom(addr.Addr(), ln.Addr().(*net.TCPAddr).AddrPort().Port()))
	return nil
}

// tcpSocket returns the TCP socket to listen on an address, handed or opened.
func (s *Server) tcpSocket(addr netip.AddrPort) (*net.TCPListener, error) {
	if ln := s.opts.HandedTCP(addr); ln != nil {
		raw, err := ln.SyscallConn()
		if err == nil {
			err = controlTCP(raw)
		}
		if err != nil {
			ln.Close()
			return nil, err
		}
		return ln, nil
	}
	return listenTCP(network("tcp", addr), addr)
}

// listenTCP opens one TCP socket to listen on.
func listenTCP(network string, addr netip.AddrPort) (*net.TCPListener, error) {
	// Connections end when they are idle, long before the kernel would probe them, which takes four calls for each to set.
	lc := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error { return controlTCP(c) }}
	lc.SetMultipathTCP(false) // it costs every connection, and no resolver uses it
	ln, err := lc.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// controlTCP sets the options of a TCP socket to listen on.
func controlTCP(c syscall.RawConn) error {
	return onFD(c, func(fd int) error {
		// Connections inherit these. Otherwise the kernel would let the buffers of each grow to megabytes.
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, connectionBuffer), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, connectionBuffer))
	})
}

// explainBind adds what to do about the usual two errors.
func explainBind(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another DNS server or gslbd has it; stop that one or choose another address", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: ports below 1024 need root or CAP_NET_BIND_SERVICE", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface has this address", err)
	}
	return err
}

// close closes what Bind has opened.
func (s *Server) close() {
	for _, w := range s.workers {
		w.conn.Close()
	}
	for _, ln := range s.listeners {
		ln.Close()
	}
	s.workers, s.listeners, s.addrs, s.tlsAddrs = nil, nil, nil, nil
}

// ErrTakenOver is the cause with which Run's context is cancelled when another process reads the same sockets from now on.
var ErrTakenOver = errors.New("the sockets are taken over")

// Sockets returns every socket that Bind has opened, for another process to read them. They stay the Server's.
func (s *Server) Sockets() []syscall.Conn {
	var all []syscall.Conn
	for _, w := range s.workers {
		all = append(all, w.conn)
	}
	for _, ln := range s.listeners {
		all = append(all, ln.TCPListener)
	}
	return all
}

// Run serves until ctx is done, then answers what the sockets still hold, lets TCP connections end, and closes all. With
// ErrTakenOver as the cause it leaves what the sockets hold to the other process, and only answers TCP connections to their
// end. It returns nil, or the error that kept a socket from being read.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	if s.tap != nil { // until all workers have ended
		tapping, end := context.WithCancel(context.WithoutCancel(ctx))
		var tap sync.WaitGroup
		tap.Go(func() { s.tap.run(tapping) })
		defer func() { end(); tap.Wait() }()
	}
	group, ctx := errgroup.WithContext(ctx)
	keepP := len(s.workers)+2 <= runtime.GOMAXPROCS(0) // two are left for the collector and all else
	for _, w := range s.workers {
		group.Go(func() error { return w.run(ctx, keepP) })
	}
	group.Go(func() error {
		s.limiter.watch(ctx)
		return nil
	})
	if s.opts.Store != nil {
		group.Go(func() error {
			s.signer.run(ctx, s.opts.Store)
			return nil
		})
	}
	var accepting, conns sync.WaitGroup
	for _, ln := range s.listeners {
		accepting.Add(1)
		group.Go(func() error {
			defer accepting.Done()
			return s.tcp.accept(ctx, ln, &conns)
		})
	}
	if s.certificate != nil {
		group.Go(func() error { return s.certificate.run(ctx) })
	}
	group.Go(func() error {
		accepting.Wait()
		s.tcp.drain(&conns, errors.Is(context.Cause(ctx), ErrTakenOver))
		return nil
	})
	return group.Wait()
}

// listenUDP opens one UDP socket.
func listenUDP(network string, addr netip.AddrPort, shared bool) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return onFD(c, func(fd int) error {
			if !shared {
				return nil
			}
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return err
			}
			return controlUDP(fd, network == "udp6", addr.Addr().IsUnspecified())
		})
	}}
	conn, err := lc.ListenPacket(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// onFD runs f on the descriptor of c and returns the error of either.
func onFD(c syscall.RawConn, f func(fd int) error) error {
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
