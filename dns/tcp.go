package dns

import (
	"container/list"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// flushAt is how many octets of replies are gathered before they are written.
	flushAt = 16 << 10

	// keepBuffer is how large the buffers of a connection may be that waits for a query.
	keepBuffer = 1024

	// firstQueryTime is how long a new connection may take to send its first query, unless the idle timeout is shorter:
	// whoever connects has one to send, and gets its packets through within this even if two in a row are lost.
	firstQueryTime = 5 * time.Second

	// freshShare is one in how many places connections without any query may take from those with: at the default of
	// 1,000, a flood of 1,000 a second leaves each newcomer a quarter of a second to send its query.
	freshShare = 4

	// lingerTime is how long a connection that we end is still read, so that a query on its way meets no reset, which
	// would take replies with it that the client has not read.
	lingerTime = 500 * time.Millisecond

	// stopGrace is how long a connection may be silent before it ends, once the server stops.
	stopGrace = 100 * time.Millisecond

	// takeoverGrace is that where another process has taken over, and nobody waits for the end: the next query of a distant
	// client may be on its way.
	takeoverGrace = time.Second
)

// The results of TLS handshakes.
const (
	handshakeDone = iota
	handshakeFailed
	handshakeResults
)

// A tcpServer serves all TCP connections (RFC 7766), with TLS (RFC 7858) or without.
type tcpServer struct {
	// Fixed.
	idle      time.Duration
	most      int
	perClient int
	drainTime time.Duration
	log       *zap.Logger
	slots     chan tcpSlot  // a connection takes one while it answers
	tls       *tls.Config   // nil: TLS is not listened for
	computing chan struct{} // a TLS handshake puts a token in while it computes

	// Atomic.
	shed       atomic.Uint64
	handshakes [handshakeResults]atomic.Uint64
	stopping   atomic.Bool
	takenOver  atomic.Bool // set before stopping

	// Guarded by mu. All lists are of *tcpConn, the longest without a query first.
	mu      sync.Mutex
	fresh   *list.List                  // those that have not sent a query yet
	known   *list.List                  // those that have
	clients map[netip.Prefix]*list.List // all, by client network
}

// A tcpSlot is a Responder with room for the longest reply.
type tcpSlot struct {
	*Responder
	reply []byte
}

// A tcpConn is one connection. Its buffers belong to its goroutine.
type tcpConn struct {
	*net.TCPConn                // for its deadlines and its end
	stream        io.ReadWriter // what carries the messages: the same, or TLS upon it
	overTLS       bool          // it was accepted where TLS is spoken
	secure        *tls.Conn     // nil: no TLS, or not yet
	ended         chan struct{} // closed when it has to make room; nil without TLS
	server        *tcpServer
	local, remote netip.AddrPort
	client        netip.Prefix

	// Guarded by server.mu.
	place  *list.Element // in fresh or known; nil when it counts no more
	beside *list.Element // in the list of its client network
	asked  bool          // it is in known

	in  []byte // received and not yet answered
	out []byte // answered and not yet written
}

func newTCPServer(opts Options, responders []*Responder) *tcpServer {
	s := &tcpServer{
		idle: opts.TCP.IdleTimeout, most: opts.TCP.MaxConnections, perClient: opts.TCP.MaxConnectionsPerClient,
		drainTime: opts.DrainTime, log: opts.Log, slots: make(chan tcpSlot, len(responders)),
		computing: make(chan struct{}, max(1, opts.Workers/2)),
		fresh:     list.New(), known: list.New(), clients: map[netip.Prefix]*list.List{},
	}
	for _, r := range responders {
		s.slots <- tcpSlot{Responder: r, reply: make([]byte, 65535)}
	}
	return s
}

// open returns the number of connections.
func (s *tcpServer) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh.Len() + s.known.Len()
}

// accept takes connections until ctx is done, and adds their goroutines to running.
func (s *tcpServer) accept(ctx context.Context, ln tcpListener, running *sync.WaitGroup) error {
	defer ln.Close()
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	failing := false
	for {
		nc, err := ln.AcceptTCP()
		switch {
		case err == nil:
			failing = false
			running.Go(s.admit(nc, ln.secure).serve)
			continue
		case ctx.Err() != nil:
			if !errors.Is(context.Cause(ctx), ErrTakenOver) {
				s.acceptQueued(ln, running)
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
		// No descriptor or memory is left, or the peer went away: the listener is sound.
		pause := 50 * time.Millisecond
		if (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && s.makeRoom() {
			pause = time.Millisecond // the limit of the system is below ours, and newcomers would wait unseen
		}
		if !failing {
			failing = true
			s.log.Warn("cannot accept TCP connections", zap.Stringer("listen", ln.Addr()), zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// acceptQueued takes the connections that the kernel has accepted for us already: closing the listener would reset them,
// with the queries in them. How many wait is asked of the kernel, not told by the time: a busy machine may take any time to
// run us. Newcomers do not keep the server from stopping, since it takes no more than there may be.
func (s *tcpServer) acceptQueued(ln tcpListener, running *sync.WaitGroup) {
	_ = ln.SetDeadline(time.Now().Add(s.drainTime))
	for range s.most {
		if !waits(ln) {
			return
		}
		nc, err := ln.AcceptTCP()
		if err != nil {
			return
		}
		running.Go(s.admit(nc, ln.secure).serve)
	}
}

// waits reports whether the kernel has something for us in a socket, whatever its deadline.
func waits(socket syscall.Conn) (waits bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		n, err := 0, error(unix.EINTR)
		for err == unix.EINTR {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		}
		waits = n > 0 && err == nil
	})
	return waits && err == nil
}

// admit counts a connection in. When there are too many, of its client network or of all, the one that has been longest
// without a query makes room: a newcomer with a query has the better claim (RFC 7766 section 6.2.2). Those that have
// never sent one take at most a quarter of the places from those that have, so that a flood of them ends only its own kind.
func (s *tcpServer) admit(nc *net.TCPConn, secure bool) *tcpConn {
	c := &tcpConn{TCPConn: nc, stream: nc, overTLS: secure, server: s}
	c.local = nc.LocalAddr().(*net.TCPAddr).AddrPort()
	c.remote = nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	c.client = clientOf(c.remote.Addr())
	if secure {
		c.ended = make(chan struct{})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.clients[c.client]; own != nil && own.Len() >= s.perClient {
		s.end(own.Front())
	} else if s.fresh.Len()+s.known.Len() >= s.most {
		s.end(s.longest())
	}
	own := s.clients[c.client]
	if own == nil {
		own = list.New()
		s.clients[c.client] = own
	}
	c.place, c.beside = s.fresh.PushBack(c), own.PushBack(c)
	return c
}

// longest returns the connection that is to make room; nil if there is none. s.mu is held.
func (s *tcpServer) longest() *list.Element {
	if s.known.Len() == 0 || s.fresh.Len() > 0 && s.fresh.Len() >= s.most/freshShare {
		return s.fresh.Front()
	}
	return s.known.Front()
}

// end makes a connection end and counts it out. s.mu is held.
func (s *tcpServer) end(e *list.Element) {
	c := e.Value.(*tcpConn)
	s.remove(c)
	s.shed.Add(1)
	_ = c.SetDeadline(time.Unix(1, 0)) // its goroutine wakes and closes it
	if c.ended != nil {
		close(c.ended) // and need not wait for its turn to compute
	}
}

// makeRoom ends one connection, and reports whether there was any.
func (s *tcpServer) makeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.longest()
	if e != nil {
		s.end(e)
	}
	return e != nil
}

// clientOf returns the client network that an address counts for: its /24 or /56, as elsewhere. Whoever has one address
// of these often has the others, and resolvers of one operator share one.
func clientOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := 24
	if addr.Is6() {
		bits = 56
	}
	p, _ := addr.Prefix(bits) // the length is valid
	return p
}

// remove counts a connection out. s.mu is held.
func (s *tcpServer) remove(c *tcpConn) {
	if c.place == nil {
		return
	}
	if c.asked {
		s.known.Remove(c.place)
	} else {
		s.fresh.Remove(c.place)
	}
	c.place = nil
	own := s.clients[c.client]
	if own.Remove(c.beside); own.Len() == 0 {
		delete(s.clients, c.client)
	}
}

// touch records that a connection has sent a query. It reports false if the connection was told to make room.
func (s *tcpServer) touch(c *tcpConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.place == nil {
		return false
	}
	if c.asked {
		s.known.MoveToBack(c.place)
	} else {
		s.fresh.Remove(c.place)
		c.place, c.asked = s.known.PushBack(c), true
	}
	s.clients[c.client].MoveToBack(c.beside)
	return true
}

// counted reports whether the connection has its place still.
func (s *tcpServer) counted(c *tcpConn) bool {
	counted, _ := s.standing(c)
	return counted
}

// standing reports whether the connection has its place still, and whether it has sent a query.
func (s *tcpServer) standing(c *tcpConn) (counted, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.place != nil, c.asked
}

// drain lets the connections end: each may go on while it sends queries, but not be silent, and not beyond the drain
// time. It returns when the last is closed.
func (s *tcpServer) drain(running *sync.WaitGroup, takenOver bool) {
	s.takenOver.Store(takenOver)
	s.stopping.Store(true)
	s.each(func(c *tcpConn) {
		if grace := s.grace(c.asked); grace > 0 {
			_ = c.SetReadDeadline(time.Now().Add(grace))
		}
	})
	late := time.AfterFunc(s.drainTime, func() {
		s.each(func(c *tcpConn) { c.Close() })
	})
	defer late.Stop()
	running.Wait()
}

// grace is how long a connection may be silent, now that the server stops; 0: as long as before. Where another process has taken
// over, one whose first query is still on its way keeps the time for it.
func (s *tcpServer) grace(asked bool) time.Duration {
	switch {
	case !s.takenOver.Load():
		return stopGrace
	case asked:
		return takeoverGrace
	}
	return 0
}

func (s *tcpServer) each(f func(*tcpConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range []*list.List{s.fresh, s.known} {
		for e := l.Front(); e != nil; e = e.Next() {
			f(e.Value.(*tcpConn))
		}
	}
}

// serve answers the connection's queries in their order until it ends, is idle for too long or has to make room.
func (c *tcpConn) serve() {
	defer c.end()
	if c.overTLS && !c.handshake() {
		return
	}
	for wait := min(firstQueryTime, c.server.idle); ; wait = c.server.idle {
		c.tidy()
		// The whole of the next query has to arrive in time: octets alone do not prolong the wait, or a client could
		// hold the connection by sending one now and then.
		c.expect(wait)
		for c.next() == nil {
			if len(c.in) == cap(c.in) {
				in := make([]byte, len(c.in), min(2*cap(c.in), 2+65535))
				copy(in, c.in)
				c.in = in
			}
			n, err := c.stream.Read(c.in[len(c.in):cap(c.in)])
			c.in = c.in[:len(c.in)+n]
			if err != nil && c.next() == nil {
				switch {
				case errors.Is(err, os.ErrDeadlineExceeded) && c.server.stopping.Load() && c.server.counted(c) && waits(c.TCPConn):
					c.expect(wait) // it was not silent: a busy machine has run us too late
					continue
				case errors.Is(err, os.ErrDeadlineExceeded):
					c.linger()
				case errors.Is(err, io.EOF):
					c.goodbye()
				}
				return
			}
		}
		if !c.server.touch(c) || !c.answer() {
			return
		}
	}
}

// tidy lets go of buffers that are larger than most queries and replies need: a connection that waits for the next query
// may wait for long.
func (c *tcpConn) tidy() {
	if len(c.in) == 0 && cap(c.in) != keepBuffer {
		c.in = make([]byte, 0, keepBuffer)
	}
	if cap(c.out) > keepBuffer {
		c.out = nil
	}
}

// expect sets the deadline for what the client is to send next; for writing too, since TLS may have to while it reads.
func (c *tcpConn) expect(wait time.Duration) {
	if !c.server.stopping.Load() {
		_ = c.SetDeadline(time.Now().Add(wait))
	}
	// What was set meanwhile by others must not be undone.
	counted, asked := c.server.standing(c)
	if c.server.stopping.Load() {
		if grace := c.server.grace(asked); grace > 0 {
			wait = min(wait, grace)
		}
		_ = c.SetDeadline(time.Now().Add(wait))
	}
	if !counted {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
}

// next returns the first query that has arrived whole, or nil.
func (c *tcpConn) next() []byte {
	if len(c.in) < 2 {
		return nil
	}
	n := 2 + int(binary.BigEndian.Uint16(c.in))
	if len(c.in) < n {
		return nil
	}
	return c.in[2:n]
}

// answer answers all queries that have arrived whole, and reports whether the connection goes on. Replies are gathered,
// and written while no slot is held, so that a client that does not read holds up nobody.
func (c *tcpConn) answer() bool {
	for done := 0; c.next() != nil; done = 0 {
		slot := <-c.server.slots
		slot.Refresh(time.Now())
		slot.encrypted = c.secure != nil
		broken := false
		in := c.in
		for q := c.next(); q != nil && len(c.out) < flushAt; q = c.next() {
			n := slot.Respond(q, slot.reply, c.local, c.remote, true)
			done += 2 + len(q)
			c.in = c.in[2+len(q):]
			if n == 0 {
				broken = true // what gets no answer is no query: this peer does not speak DNS
				break
			}
			c.out = binary.BigEndian.AppendUint16(c.out, uint16(n))
			c.out = append(c.out, slot.reply[:n]...)
		}
		slot.release()
		c.server.slots <- slot
		c.in = in[:copy(in, in[done:])]
		if !c.flush() {
			return false
		}
		if broken {
			c.linger()
			return false
		}
	}
	return true
}

// flush writes the gathered replies.
func (c *tcpConn) flush() bool {
	if len(c.out) == 0 {
		return true
	}
	_ = c.SetWriteDeadline(time.Now().Add(c.server.idle))
	if !c.server.counted(c) {
		return false
	}
	_, err := c.stream.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		_ = c.SetLinger(0) // what the client has not read within this time shall not stay in the kernel
	}
	return err == nil
}

// linger ends a connection from our side: it says so, at last with a FIN, and reads on for a moment, unless the
// connection has to make room at once.
func (c *tcpConn) linger() {
	if !c.server.counted(c) {
		return
	}
	c.goodbye()
	if c.CloseWrite() != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.TCPConn, 64<<10)
}

// end closes the connection.
func (c *tcpConn) end() {
	c.Close()
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.remove(c)
}
