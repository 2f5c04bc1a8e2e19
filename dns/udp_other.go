//go:build !linux

package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mostSockets is how many UDP sockets share an address: elsewhere than on Linux the kernel does not spread queries over them.
const mostSockets = 1

// maxDatagram is the longest query that is looked at: many times what a resolver sends.
const maxDatagram = 4096

// controlUDP sets the options of a UDP socket. It refuses one with every address, since replies must leave from the one
// that was asked.
func controlUDP(fd int, _, wildcard bool) error {
	if wildcard {
		return errors.New("every address at once is served on Linux only: list the addresses one by one")
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	return nil
}

// A udpWorker answers the queries of one socket, one at a time: the calls that move many are Linux's.
type udpWorker struct {
	conn      *net.UDPConn
	local     netip.AddrPort
	responder *Responder
	drainTime time.Duration
	query     [maxDatagram + 1]byte // one octet more tells what is too long
	reply     [maxUDPPayload]byte
}

func newUDPWorker(conn *net.UDPConn, local netip.AddrPort, r *Responder, drainTime time.Duration) (*udpWorker, error) {
	return &udpWorker{conn: conn, local: local, responder: r, drainTime: drainTime}, nil
}

// run answers until ctx is done, and then what the socket still holds, and closes it.
func (w *udpWorker) run(ctx context.Context, _ bool) error {
	defer w.conn.Close()
	// A deadline in the past wakes the worker that waits for a datagram.
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	draining, until := false, time.Time{}
	for {
		n, remote, err := w.conn.ReadFromUDPAddrPort(w.query[:])
		switch {
		case err == nil:
			w.answer(w.query[:n], remote)
			if draining && !time.Now().Before(until) {
				return nil
			}
		case ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded):
			if draining || errors.Is(context.Cause(ctx), ErrTakenOver) {
				return nil // nothing more is there, or it is another's
			}
			draining, until = true, time.Now().Add(w.drainTime)
			_ = w.conn.SetWriteDeadline(until)
			_ = w.conn.SetReadDeadline(time.Now().Add(min(w.drainTime, stopGrace)))
		default:
			return err
		}
	}
}

func (w *udpWorker) answer(query []byte, remote netip.AddrPort) {
	r := w.responder
	switch {
	case len(query) > maxDatagram:
		r.count.dropped[dropOversize].Add(1)
		return
	case remote.Port() == 0:
		r.count.dropped[dropPort].Add(1)
		return
	}
	r.Refresh(time.Now())
	n := r.Respond(query, w.reply[:], w.local, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), false)
	r.release()
	if n == 0 {
		return
	}
	if _, err := w.conn.WriteToUDPAddrPort(w.reply[:n], remote); err != nil {
		r.count.dropped[dropSend].Add(1)
	}
}
