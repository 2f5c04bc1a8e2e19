package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gslbd/config"
	"gslbd/dns"
	"gslbd/state"
)

const (
	readyEvery  = 50 * time.Millisecond // how often the start looks whether the server is ready
	statusEvery = 10 * time.Second      // how often the status line is looked at, where there is no watchdog

	// askAgain is how long a question to ourselves waits before it is sent again. A server that is overloaded drops many
	// queries and is not hung, so there are many tries.
	askAgain = 100 * time.Millisecond

	// asksPerWorker is how many questions are asked for each worker of an address. The kernel spreads them by chance; one
	// hung worker of many is missed by one ping in 3,000, one of two by one in 65,000.
	asksPerWorker = 8

	// maxAsks bounds how many questions are under way, since each holds a socket.
	maxAsks = 512

	// storedSocket is the name of each of our sockets in the service manager's store.
	storedSocket = "FDNAME=socket"
	// forgetSockets empties it of them.
	forgetSockets = "FDSTOREREMOVE=1\n" + storedSocket

	// publisherLate is when the state's publisher counts as hung. It goes round every second.
	publisherLate = 10 * time.Second
)

// A manager is the service manager that started gslbd, as far as it wants to be told (sd_notify(3)). All methods are safe
// for concurrent use.
type manager struct {
	// Fixed at construction.
	socket   string        // empty: nobody wants to be told
	watchdog time.Duration // a sign of life is wanted at least so often; 0: none is
	log      *zap.Logger

	failing atomic.Bool
}

// newManager takes what the service manager left in the environment out of it, so that no program that gslbd runs speaks
// in its name.
func newManager(log *zap.Logger) (*manager, error) {
	m := &manager{socket: os.Getenv("NOTIFY_SOCKET"), log: log}
	watchdog, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		return nil, fmt.Errorf("gslbd: the watchdog of the environment: %w", err)
	}
	if m.socket != "" {
		m.watchdog = watchdog
	}
	return m, os.Unsetenv("NOTIFY_SOCKET")
}

// environment is what a process must find in its environment to speak to the service manager in our place.
func (m *manager) environment() []string {
	if m.socket == "" {
		return nil
	}
	env := []string{"NOTIFY_SOCKET=" + m.socket}
	if m.watchdog > 0 {
		env = append(env, "WATCHDOG_USEC="+strconv.FormatInt(m.watchdog.Microseconds(), 10))
	}
	return env
}

// keep has the service manager keep a copy of each socket, in place of those that it has of ours, where it has room for them
// (FileDescriptorStoreMax). The next process gets them, with what is queued in them, however this one ends.
func (m *manager) keep(sockets []syscall.Conn) {
	m.tell(forgetSockets)
	for _, s := range sockets {
		m.pass("FDSTORE=1\nFDPOLL=0\n"+storedSocket, s) // an error that the socket is told of must not end the keeping
	}
}

// tell sends assignments, separated by newlines. That it cannot is logged once.
func (m *manager) tell(text string) { m.pass(text, nil) }

// pass is tell with a socket, unless that is nil.
func (m *manager) pass(text string, socket syscall.Conn) {
	if m.socket == "" {
		return
	}
	err := m.send(text, socket)
	if failed := err != nil; m.failing.Swap(failed) != failed && failed {
		m.log.Warn("the service manager cannot be told how gslbd does", zap.Error(err))
	}
}

// send opens the socket anew each time, since the service manager may have been started anew.
func (m *manager) send(text string, socket syscall.Conn) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: m.socket})
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // its queue may be full
	if socket == nil {
		_, err = c.Write([]byte(text))
		return err
	}
	f, err := copySocket(socket)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := c.SyscallConn() // package net sends no rights on a connected socket
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), []byte(text), unix.UnixRights(int(f.Fd())), nil, 0)
		return sent != unix.EAGAIN
	})
	return errors.Join(err, sent)
}

// supervised tells the service manager that the server is ready once it is, and from then on that it lives, for as long as
// it answers, until ctx is done.
func (s *server) supervised(ctx context.Context) error {
	if s.from != nil {
		s.from.left() // it has told the service manager of this process
	}
	if s.manager.socket == "" {
		return nil
	}
	s.manager.keep(s.sockets)
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for ready := false; !ready; ready, _ = s.ready() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	status := s.statusLine()
	s.manager.tell(daemon.SdNotifyReady + "\n" + status)
	every := statusEvery
	if s.manager.watchdog > 0 {
		every = s.manager.watchdog / 2
	}
	tick.Reset(every)
	for hung := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if now := s.statusLine(); now != status && !s.stopping.Load() {
			status = now
			s.manager.tell(status)
		}
		if s.manager.watchdog == 0 {
			continue
		}
		err := s.alive(ctx, every)
		switch {
		case ctx.Err() != nil:
			return nil // its sockets are closed
		case err == nil:
			s.manager.tell(daemon.SdNotifyWatchdog)
			if hung {
				s.log.Info("gslbd answers itself again")
			}
		case !hung:
			s.log.Error("gslbd hangs: the service manager gets no sign of life any more and restarts it after WatchdogSec", zap.Error(err))
		}
		hung = err != nil
	}
}

// reloading tells the service manager that a reload begins, and by the function that it returns that it has ended.
func (s *server) reloading() (ended func()) {
	if ready, _ := s.ready(); !ready {
		return func() {} // a reload makes nothing ready, and stops no stop
	}
	s.manager.tell(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	return func() { s.manager.tell(daemon.SdNotifyReady + "\n" + s.statusLine()) }
}

// statusLine says in a line how the server does.
func (s *server) statusLine() string {
	snap := s.store.Snapshot()
	fresh := 0
	for _, site := range snap.Sites {
		if site.Freshness == state.Fresh {
			fresh++
		}
	}
	text := fmt.Sprintf("STATUS=answers for %d zones with %d services; %d of %d sites report", len(zones(snap)), len(snap.Services), fresh, len(snap.Sites))
	if snap.Blind {
		text += "; blind"
	}
	if s.refused.Load() {
		text += "; the last reload was refused"
	}
	return text
}

// alive returns nil if each address answers DNS over UDP and the state's publisher runs. It takes at most within.
func (s *server) alive(ctx context.Context, within time.Duration) error {
	if silent := time.Since(s.store.Beat()); silent > publisherLate && !s.pausing.Load() {
		return fmt.Errorf("the state was last published, or found unchanged, %s ago", silent.Round(time.Second))
	}
	question, err := s.ownQuestion()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(maxAsks)
	for _, addr := range s.dns.Addrs() {
		for range asksPerWorker * s.workers {
			group.Go(func() error { return ask(ctx, ownAddress(addr), question) })
		}
	}
	return group.Wait()
}

// ownQuestion is what the server asks itself: the SOA of a zone. Without a zone it is refused, which is an answer too.
func (s *server) ownQuestion() ([]byte, error) {
	name := "."
	if all := zones(s.store.Snapshot()); len(all) > 0 {
		name = strings.TrimSuffix(all[0].Name, ".") + "."
	}
	zone, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(rand.Uint32())},
		Questions: []dnsmessage.Question{{Name: zone, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}},
	}
	return m.Pack()
}

// ownAddress is where the server reaches what it listens on.
func ownAddress(listen netip.AddrPort) netip.AddrPort {
	switch listen.Addr() {
	case netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), listen.Port())
	case netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), listen.Port())
	}
	return listen
}

// ask sends the question from the server's own address until it is answered, or ctx is done. Every try is from the same port,
// and so goes to the same worker. An address that has left the machine, as a floating one does, is no hang.
func ask(ctx context.Context, server netip.AddrPort, question []byte) error {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.Addr(), 0)), net.UDPAddrFromAddrPort(server))
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	begin := time.Now()
	reply := make([]byte, 512)
	for {
		again := time.After(askAgain)
		_ = c.SetDeadline(time.Now().Add(askAgain))
		if _, err = c.Write(question); err == nil {
			var n int
			if n, err = c.Read(reply); err == nil && n >= 2 && [2]byte(reply) == [2]byte(question) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s within %s: %w", server, time.Since(begin).Round(time.Millisecond), err)
		case <-again:
		}
	}
}

// rateLimit is that of the configuration; what the server asks itself is exempt.
func (s *server) rateLimit(c *config.Config) dns.RateLimitOptions {
	o := rateLimit(c)
	if s.manager.watchdog == 0 {
		return o
	}
	for _, addr := range s.dns.Addrs() {
		own := ownAddress(addr).Addr()
		o.Exempt = append(o.Exempt[:len(o.Exempt):len(o.Exempt)], netip.PrefixFrom(own, own.BitLen()))
	}
	return o
}
