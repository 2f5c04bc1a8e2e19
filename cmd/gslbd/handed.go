package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"gslbd/probes"
)

// takeoverVariable of the environment tells a process that it is to take over, and how many sockets it was given for it: the
// connection to the process before it is descriptor 3, and the sockets follow.
const takeoverVariable = "TAKEOVER_SOCKETS"

// What the two processes say to each other, a line each. First the new one says that it is prepared: it has read its
// configuration. Then the old one gives up what only one can have, the state directory and the journal, with a handover in
// JSON. At last the new one says that it serves, and the old one ends.
const (
	wordPrepared = "prepared"
	wordServing  = "serving"
)

// releaseTime is how long the new process waits for the old one to give up the state: several times what requests that are
// being answered get.
const releaseTime = 30 * time.Second

// A handover is what the old process tells the new one.
type handover struct {
	PID          int               `json:"pid"`
	CookieSecret [16]byte          `json:"cookie_secret"`
	Checks       []probes.Standing `json:"checks"`
	Counters     []byte            `json:"counters,omitempty"` // of telemetry
}

// handed is what the process was given when it started, by the one before it or by a service manager.
type handed struct {
	udp  map[netip.AddrPort][]*net.UDPConn // by the address that they are bound to
	tcp  map[netip.AddrPort]*net.TCPListener
	from *predecessor // nil: it is no takeover
}

// takeHanded takes what the environment tells of, and what tells of it out of the environment.
func takeHanded() (*handed, error) {
	h := &handed{udp: map[netip.AddrPort][]*net.UDPConn{}, tcp: map[netip.AddrPort]*net.TCPListener{}}
	files := activation.Files(true)
	if len(files) > 0 {
		// Where this process cannot start, no copy shall stay open: resolvers are to see at once that nobody is there. The
		// manager of the server tells it where it cannot be told.
		m := manager{socket: os.Getenv("NOTIFY_SOCKET")}
		_ = m.send(forgetSockets, nil)
	}
	if text, ok := os.LookupEnv(takeoverVariable); ok {
		if err := os.Unsetenv(takeoverVariable); err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || len(files) > 0 {
			return nil, fmt.Errorf("gslbd: %s=%q: gslbd sets it itself, for the process that takes over", takeoverVariable, text)
		}
		for fd := 3; fd <= 3+n; fd++ {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "descriptor "+strconv.Itoa(fd)))
		}
		conn, err := net.FileConn(files[0])
		files[0].Close()
		if err != nil {
			return nil, fmt.Errorf("gslbd: takeover: the connection to the old process: %w", err)
		}
		h.from, files = &predecessor{conn: conn, words: bufio.NewReader(conn)}, files[1:]
	}
	taken := map[uint64]bool{}
	for _, f := range files {
		var st unix.Stat_t
		err := unix.Fstat(int(f.Fd()), &st)
		if err == nil && !taken[st.Ino] { // that of a socket unit is in the service manager's store as well
			taken[st.Ino] = true
			err = h.take(f)
		}
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("gslbd: %s, which was handed to the process, is no bound UDP socket and no TCP socket that listens: %w", f.Name(), err)
		}
	}
	return h, nil
}

// take takes a copy of the socket f.
func (h *handed) take(f *os.File) error {
	if l, err := net.FileListener(f); err == nil {
		if l, ok := l.(*net.TCPListener); ok {
			h.tcp[l.Addr().(*net.TCPAddr).AddrPort()] = l
			return nil
		}
		l.Close()
		return errors.ErrUnsupported
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return err
	}
	if c, ok := c.(*net.UDPConn); ok {
		addr := c.LocalAddr().(*net.UDPAddr).AddrPort()
		h.udp[addr] = append(h.udp[addr], c)
		return nil
	}
	c.Close()
	return errors.ErrUnsupported
}

// takeUDP returns the UDP sockets of an address, and gives them up.
func (h *handed) takeUDP(addr netip.AddrPort) []*net.UDPConn {
	conns := h.udp[addr]
	delete(h.udp, addr)
	return conns
}

// takeTCP returns the TCP socket that listens on an address, and gives it up; nil: there is none.
func (h *handed) takeTCP(addr netip.AddrPort) *net.TCPListener {
	l := h.tcp[addr]
	delete(h.tcp, addr)
	return l
}

// closeRest closes what nobody has taken, since the configuration listens on other addresses.
func (h *handed) closeRest(log *zap.Logger) {
	for addr, conns := range h.udp {
		log.Warn("socket closed: nothing in the configuration listens there", zap.Stringer("udp", addr))
		for _, c := range conns {
			c.Close()
		}
	}
	for addr, l := range h.tcp {
		log.Warn("socket closed: nothing in the configuration listens there", zap.Stringer("tcp", addr))
		l.Close()
	}
	clear(h.udp)
	clear(h.tcp)
}

// A predecessor is the process that this one takes over from.
type predecessor struct {
	conn  net.Conn
	words *bufio.Reader
}

// release says that this process is prepared, and waits until the old one has given up the state.
func (p *predecessor) release() (handover, error) {
	var h handover
	_ = p.conn.SetDeadline(time.Now().Add(releaseTime))
	_, err := fmt.Fprintln(p.conn, wordPrepared)
	var line []byte
	if err == nil {
		line, err = p.words.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err != nil {
		return h, fmt.Errorf("takeover: the old process does not hand over: %w", err)
	}
	return h, nil
}

// serving says that this process answers queries. The old one ends, and orders may be taken.
func (p *predecessor) serving() error {
	_ = p.conn.SetDeadline(time.Now().Add(releaseTime))
	if _, err := fmt.Fprintln(p.conn, wordServing); err != nil {
		return fmt.Errorf("takeover: the old process cannot be told that it may end: %w", err)
	}
	return nil
}

// left waits until the old process has told the service manager who is the main process now, or has ended.
func (p *predecessor) left() {
	_, _ = p.words.ReadByte() // it says nothing more
	p.conn.Close()
}
