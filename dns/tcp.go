package dns

import (
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// flushAt is how many octets of replies are gathered before they are written.
	flushAt = 16 << 10

	// lingerTime is how long a connection that we end is still read, so that a query on its way meets no reset, which
	// would take replies with it that the client has not read.
	lingerTime = 500 * time.Millisecond

	// stopGrace is how long a connection may be silent before it ends, once the server stops.
	stopGrace = 100 * time.Millisecond

	// acceptGrace is how long a stopping server waits for one more connection of those that are queued.
	acceptGrace = 5 * time.Millisecond
)

// A tcpServer serves all TCP connections (RFC 7766).
type tcpServer struct {
	// Fixed.
	idle      time.Duration
	most      int
	perClient int
	drainTime time.Duration
	log       *zap.Logger
	slots     chan tcpSlot // a connection takes one while it answers

	// Atomic.
	shed     atomic.Uint64
	stopping atomic.Bool

	// Guarded by mu.
	mu      sync.Mutex
	conns   *list.List // of *tcpConn, the longest without a query first
	clients map[netip.Prefix]int
}

// A tcpSlot is a Responder with room for the longest reply.
type tcpSlot struct {
	*Responder
	reply []byte
}

// A tcpConn is one connection. Its buffers belong to its goroutine.
type tcpConn struct {
	*net.TCPConn
	server        *tcpServer
	local, remote netip.AddrPort
	client        netip.Prefix
	place         *list.Element // guarded by server.mu; nil when it counts no more

	in  []byte // received and not yet answered
	out []byte // answered and not yet written
}

func newTCPServer(opts Options, responders []*Responder) *tcpServer {
	s := &tcpServer{
		idle: opts.TCP.IdleTimeout, most: opts.TCP.MaxConnections, perClient: opts.TCP.MaxConnectionsPerClient,
		drainTime: opts.DrainTime, log: opts.Log, slots: make(chan tcpSlot, len(responders)),
		conns: list.New(), clients: map[netip.Prefix]int{},
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
	return s.conns.Len()
}

// accept takes connections until ctx is done, and adds their goroutines to running.
func (s *tcpServer) accept(ctx context.Context, ln *net.TCPListener, running *sync.WaitGroup) error {
	defer ln.Close()
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	failing := false
	for {
		nc, err := ln.AcceptTCP()
		switch {
		case err == nil:
			failing = false
			running.Go(s.admit(nc).serve)
			continue
		case ctx.Err() != nil:
			s.acceptQueued(ln, running)
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
		// No descriptor or memory is left, or the peer went away: the listener is sound.
		if !failing {
			failing = true
			s.log.Warn("cannot accept TCP connections", zap.Stringer("listen", ln.Addr()), zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// acceptQueued takes the connections that the kernel has accepted for us already: closing the listener would reset them,
// with the queries in them.
func (s *tcpServer) acceptQueued(ln *net.TCPListener, running *sync.WaitGroup) {
	until := time.Now().Add(stopGrace) // newcomers must not keep the server from stopping
	for time.Now().Before(until) {
		_ = ln.SetDeadline(time.Now().Add(acceptGrace))
		nc, err := ln.AcceptTCP()
		if err != nil {
			return
		}
		running.Go(s.admit(nc).serve)
	}
}

// admit counts a connection in. When there are too many, of this client or of all, the one that has been longest
// without a query makes room: a newcomer with a query has the better claim (RFC 7766 section 6.2.2).
func (s *tcpServer) admit(nc *net.TCPConn) *tcpConn {
	c := &tcpConn{TCPConn: nc, server: s}
	c.local = nc.LocalAddr().(*net.TCPAddr).AddrPort()
	c.remote = nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	c.client = clientOf(c.remote.Addr())
	s.mu.Lock()
	defer s.mu.Unlock()
	var victim *list.Element
	switch {
	case s.clients[c.client] >= s.perClient:
		victim = s.conns.Front()
		for victim.Value.(*tcpConn).client != c.client {
			victim = victim.Next()
		}
	case s.conns.Len() >= s.most:
		victim = s.conns.Front()
	}
	if victim != nil {
		old := victim.Value.(*tcpConn)
		s.remove(old)
		s.shed.Add(1)
		_ = old.SetDeadline(time.Unix(1, 0)) // its goroutine wakes and closes it
	}
	c.place = s.conns.PushBack(c)
	s.clients[c.client]++
	return c
}

// clientOf returns what counts as one client: an IPv4 address, or an IPv6 /64, which is one customer's to use.
func clientOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the length is valid
	return p
}

// remove counts a connection out. s.mu is held.
func (s *tcpServer) remove(c *tcpConn) {
	if c.place == nil {
		return
	}
	s.conns.Remove(c.place)
	c.place = nil
	if s.clients[c.client]--; s.clients[c.client] == 0 {
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
	s.conns.MoveToBack(c.place)
	return true
}

// counted reports whether the connection has its place still.
func (s *tcpServer) counted(c *tcpConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.place != nil
}

// drain lets the connections end: each may go on while it sends queries, but not be silent, and not beyond the drain
// time. It returns when the last is closed.
func (s *tcpServer) drain(running *sync.WaitGroup) {
	s.stopping.Store(true)
	s.each(func(c *tcpConn) { _ = c.SetReadDeadline(time.Now().Add(stopGrace)) })
	late := time.AfterFunc(s.drainTime, func() {
		s.each(func(c *tcpConn) { c.Close() })
	})
	defer late.Stop()
	running.Wait()
}

func (s *tcpServer) each(f func(*tcpConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.conns.Front(); e != nil; e = e.Next() {
		f(e.Value.(*tcpConn))
	}
}

// serve answers the connection's queries in their order until it ends, is idle for too long or has to make room.
func (c *tcpConn) serve() {
	defer c.end()
	c.in = make([]byte, 0, 1024)
	for {
		// The whole of the next query has to arrive in time: octets alone do not prolong the wait, or a client could
		// hold the connection by sending one now and then.
		c.await()
		for c.next() == nil {
			if len(c.in) == cap(c.in) {
				in := make([]byte, len(c.in), min(2*cap(c.in), 2+65535))
				copy(in, c.in)
				c.in = in
			}
			n, err := c.Read(c.in[len(c.in):cap(c.in)])
			c.in = c.in[:len(c.in)+n]
			if err != nil && c.next() == nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.linger()
				}
				return
			}
		}
		if !c.server.touch(c) || !c.answer() {
			return
		}
	}
}

// await sets the deadline for the next query.
func (c *tcpConn) await() {
	if !c.server.stopping.Load() {
		_ = c.SetReadDeadline(time.Now().Add(c.server.idle))
	}
	// What was set meanwhile by others must not be undone.
	if c.server.stopping.Load() {
		_ = c.SetReadDeadline(time.Now().Add(stopGrace))
	}
	if !c.server.counted(c) {
		_ = c.SetReadDeadline(time.Unix(1, 0))
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
	_, err := c.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > 2*flushAt {
		c.out = nil
	}
	return err == nil
}

// linger ends a connection from our side: it says so with a FIN and reads on for a moment, unless the connection has to
// make room at once.
func (c *tcpConn) linger() {
	if !c.server.counted(c) || c.CloseWrite() != nil {
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
