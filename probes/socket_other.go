//go:build !linux

package probes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

const socketFlags = 0

// A socket sends and receives datagrams. Here it is one of UDP, without the kernel's timestamps: what the scheduler takes is
// in the round trips. send may be called while receive waits; close ends both.
type socket struct {
	conn   *net.UDPConn
	method string
	v6     bool
	mode   ICMPMode // unused
	id     uint16   // unused

	connections int // unused

	buf []byte // owned by receive
}

// openICMP says that there is none.
func openICMP(bool, uint16) (*socket, error) {
	return nil, errors.New("probes: round trips by ICMP and TCP are measured on Linux only; by DNS they are measured here too (rtt.methods: [dns])")
}

// openTCP says that there is none, for which openICMP has the words.
func openTCP(bool) (*socket, error) { return nil, errors.ErrUnsupported }

// Nothing below is called, since openTCP gives no socket.

func (s *socket) connect(netip.AddrPort) (int, error) { return -1, errors.ErrUnsupported }
func (s *socket) hangUp(int)                          {}
func (s *socket) settled() ([]int, error)             { return nil, errors.ErrUnsupported }
func shake(int) handshake                             { return handshake{} }

// openDNS opens a UDP socket with a random port.
func openDNS(v6 bool) (*socket, error) {
	network := "udp4"
	if v6 {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, fmt.Errorf("probes: UDP socket: %w", err)
	}
	return &socket{conn: conn, method: MethodDNS, v6: v6, buf: make([]byte, 2048)}, nil
}

func (s *socket) close() { s.conn.Close() }

// send sends one datagram.
func (s *socket) send(payload []byte, to netip.AddrPort) error {
	_, err := s.conn.WriteToUDPAddrPort(payload, to)
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// remote says whether an error tells of the network rather than of this machine.
func remote(err error) bool {
	switch err {
	case syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.EMSGSIZE, syscall.EACCES:
		return true
	}
	return false
}

// receive waits for a datagram. After close its error is os.ErrClosed.
func (s *socket) receive() (datagram, error) {
	n, from, err := s.conn.ReadFromUDPAddrPort(s.buf)
	switch {
	case errors.Is(err, net.ErrClosed):
		return datagram{}, os.ErrClosed
	case err != nil:
		return datagram{}, fmt.Errorf("probes: UDP socket: %w", err)
	}
	return datagram{payload: s.buf[:n], from: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}, nil
}
