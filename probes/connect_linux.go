package probes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// openTCP opens the epoll descriptor that all TCP probes of a family are waited for with.
func openTCP(v6 bool) (*socket, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("probes: epoll: %w", err)
	}
	// So that the runtime waits for it as for a socket.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("probes: epoll: %w", err)
	}
	s := &socket{method: MethodTCP, v6: v6, file: os.NewFile(uintptr(fd), "probes"), events: make([]unix.EpollEvent, 64), ready: make([]int, 0, 64)}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("probes: %w", err)
	}
	return s, nil
}

// connect begins a TCP connection without waiting, and returns its descriptor, for hangUp.
func (s *socket) connect(to netip.AddrPort) (int, error) {
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR
	var target unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port())}
	if s.v6 {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		target = &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	} else {
		target.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, level, option, 1),                                                               // tells ICMP errors from resets
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1),                                           // what is sent again is no measure
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1 /* close at once */}), // leaves nothing behind
	)
	if err == nil {
		err = unix.Connect(fd, target)
		if err == unix.EINPROGRESS || err == unix.ECONNREFUSED { // which comes with the event as well
			err = nil
		}
	}
	if err == nil {
		controlErr := s.conn.Control(func(epoll uintptr) {
			err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)})
		})
		err = errors.Join(err, controlErr)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	s.connections++
	return fd, nil
}

// hangUp ends what connect began.
func (s *socket) hangUp(fd int) {
	unix.Close(fd)
	s.connections--
}

// settled waits until connections are decided, and returns the descriptors of some of them, until the next call. After
// close its error is os.ErrClosed.
func (s *socket) settled() ([]int, error) {
	n := 0
	var err error
	readErr := s.conn.Read(func(epoll uintptr) bool {
		n, err = unix.EpollWait(int(epoll), s.events, 0)
		return n != 0 && err != unix.EINTR
	})
	switch {
	case s.closed.Load():
		return nil, os.ErrClosed
	case readErr != nil:
		return nil, readErr
	case err != nil:
		return nil, os.NewSyscallError("epoll_wait", err)
	}
	s.ready = s.ready[:0]
	for _, e := range s.events[:n] {
		s.ready = append(s.ready, int(e.Fd))
	}
	return s.ready, nil
}

// shake looks what became of a connection, which may have been closed at the other end by now.
func shake(fd int) handshake {
	const synSent, synReceived = 2, 3 // of linux/tcp_states.h
	// An ICMP error is quoted, of which the kernel otherwise makes the same as of a reset, or waits for a second one.
	_, _, _, _, quote := unix.Recvmsg(fd, nil, make([]byte, 128), unix.MSG_ERRQUEUE)
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case quote == nil || err != nil || info.Total_retrans > 0:
		return handshake{decided: true, refused: true}
	case info.State == synSent || info.State == synReceived:
		return handshake{}
	case info.Rtt > 0:
		return handshake{decided: true, rtt: time.Duration(info.Rtt) * time.Microsecond}
	}
	reason, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return handshake{decided: true, refused: err != nil || unix.Errno(reason) != unix.ECONNREFUSED}
}
