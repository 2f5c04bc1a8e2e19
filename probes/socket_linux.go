package probes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of a socket's receive buffer in bytes. With the default of 208 KiB, bursts of replies lost
// one in a hundred.
const receiveBuffer = 4 << 20

// icmpFilter is ICMP_FILTER of linux/icmp.h, which x/sys does not name.
const icmpFilter = 1

const socketFlags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// A socket sends and receives datagrams, and tells when the kernel received them. send may be called while receive
// waits; close ends both.
type socket struct {
	file   *os.File
	conn   syscall.RawConn
	method string // "icmp", "dns" or "tcp"
	v6     bool
	mode   ICMPMode // of an ICMP socket
	id     uint16   // of our echoes; on a datagram socket the kernel puts its own in place of it

	closed   atomic.Bool
	buf, oob []byte // owned by receive

	// Of method tcp, see connect_linux.go.
	events      []unix.EpollEvent // owned by settled
	ready       []int             // likewise: the descriptors that it returns
	connections int               // guarded by the Prober's mu
}

// openICMP opens the one ICMP socket of a family.
func openICMP(v6 bool, id uint16) (*socket, error) {
	fd, mode, err := icmpSocket(v6)
	if err != nil {
		return nil, err
	}
	s := &socket{method: MethodICMP, v6: v6, mode: mode, id: id}
	switch {
	case mode == Unprivileged && v6:
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	case mode == Unprivileged:
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	case v6:
		filter := unix.ICMPv6Filter{} // a set bit blocks its type
		for i := range filter.Data {
			filter.Data[i] = ^uint32(0)
		}
		for _, kind := range []int{unreachable6, exceeded6, echoReply6} {
			filter.Data[kind/32] &^= 1 << (kind % 32)
		}
		err = unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter)
	default:
		pass := uint32(1<<echoReply4 | 1<<unreachable4 | 1<<exceeded4)
		err = unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, int(int32(^pass)))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("probes: ICMP socket: %w", err)
	}
	return s.open(fd)
}

// openDNS opens a UDP socket with a random port.
func openDNS(v6 bool) (*socket, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|socketFlags, 0)
	if err != nil {
		return nil, fmt.Errorf("probes: UDP socket: %w", err)
	}
	s := &socket{method: MethodDNS, v6: v6}
	if v6 {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1), unix.Bind(fd, &unix.SockaddrInet6{}))
	} else {
		err = unix.Bind(fd, &unix.SockaddrInet4{})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("probes: UDP socket: %w", err)
	}
	return s.open(fd)
}

// open sets what all sockets have in common, and owns fd from here on.
func (s *socket) open(fd int) (*socket, error) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		// Without CAP_NET_ADMIN there is as much as net.core.rmem_max allows.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("probes: SO_TIMESTAMPNS: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), "probes")
	conn, err := s.file.SyscallConn()
	if err != nil {
		s.file.Close()
		return nil, fmt.Errorf("probes: %w", err)
	}
	s.conn, s.buf, s.oob = conn, make([]byte, 2048), make([]byte, 256)
	return s, nil
}

func (s *socket) close() {
	s.closed.Store(true)
	s.file.Close()
}

// send sends one datagram without waiting.
func (s *socket) send(payload []byte, to netip.AddrPort) error {
	var target unix.Sockaddr
	if s.v6 {
		target = &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	} else {
		target = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	var err error
	if controlErr := s.conn.Control(func(fd uintptr) {
		err = unix.Sendto(int(fd), payload, unix.MSG_DONTWAIT, target)
		if remote(err) {
			// An ICMP error that an earlier datagram met is reported once, to whoever calls next.
			err = unix.Sendto(int(fd), payload, unix.MSG_DONTWAIT, target)
		}
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// receive waits for a datagram. After close its error is os.ErrClosed.
func (s *socket) receive() (datagram, error) {
	for {
		var n, oobn int
		var from unix.Sockaddr
		var err error
		quote := false
		readErr := s.conn.Read(func(fd uintptr) bool {
			n, oobn, _, from, err = unix.Recvmsg(int(fd), s.buf, s.oob, 0)
			if err == unix.EAGAIN && s.mode == Unprivileged {
				if n, oobn, _, from, err = unix.Recvmsg(int(fd), s.buf, s.oob, unix.MSG_ERRQUEUE); err == nil {
					quote = true
				}
			}
			return err != unix.EAGAIN
		})
		switch {
		case s.closed.Load():
			return datagram{}, os.ErrClosed
		case readErr != nil:
			return datagram{}, readErr
		case err == unix.EINTR || remote(err): // the next call finds its quote
			continue
		case err != nil:
			return datagram{}, os.NewSyscallError("recvmsg", err)
		}
		d := datagram{payload: s.buf[:n], quote: quote, at: timestamp(s.oob[:oobn])}
		switch from := from.(type) {
		case *unix.SockaddrInet4:
			d.from = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
		case *unix.SockaddrInet6:
			d.from = netip.AddrPortFrom(netip.AddrFrom16(from.Addr).Unmap(), uint16(from.Port))
		default:
			continue
		}
		return d, nil
	}
}

// remote says whether an error tells of the network rather than of this machine.
func remote(err error) bool {
	switch err {
	case unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ECONNREFUSED, unix.EHOSTDOWN, unix.ENETDOWN, unix.ENONET, unix.EPROTO,
		unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EMSGSIZE, unix.EACCES:
		return true
	}
	return false
}

// timestamp returns the time of SCM_TIMESTAMPNS in nanoseconds, or 0.
func timestamp(oob []byte) int64 {
	for len(oob) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SO_TIMESTAMPNS {
			switch len(data) {
			case 16:
				return int64(binary.NativeEndian.Uint64(data))*int64(time.Second) + int64(binary.NativeEndian.Uint64(data[8:]))
			case 8: // a 32-bit machine
				return int64(binary.NativeEndian.Uint32(data))*int64(time.Second) + int64(binary.NativeEndian.Uint32(data[4:]))
			}
		}
		oob = rest
	}
	return 0
}
