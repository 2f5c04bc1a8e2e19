package dns

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many datagrams one call moves at most.
	batch = 32

	// maxDatagram is the longest query that is looked at: many times what a resolver sends.
	maxDatagram = 4096

	// apart keeps the messages of a batch from beginning at the same place of a page each: the processor's first cache has
	// room for only a few such lines.
	apart = 64

	// controlSize holds one packet info record of either family (CMSG_SPACE of at most 20 octets).
	controlSize = 64
)

// mostSockets is how many UDP sockets share an address at most.
const mostSockets = math.MaxInt

// A message is the kernel's struct mmsghdr.
type message struct {
	hdr unix.Msghdr
	n   uint32 // octets received or sent
}

// A udpWorker answers the queries of one socket. All its memory is handed to the kernel again and again.
type udpWorker struct {
	// Fixed.
	conn      *net.UDPConn
	raw       syscall.RawConn
	local     netip.AddrPort
	wildcard  bool // the socket has every address: replies must leave from the one that was asked
	responder *Responder
	drainTime time.Duration
	recv      func(fd uintptr) bool
	send      func(fd uintptr) bool

	// Owned by run.
	in, out   [batch]message
	inVec     [batch]unix.Iovec
	outVec    [batch]unix.Iovec
	names     [batch]unix.RawSockaddrInet6 // large enough for either family
	controls  [batch][controlSize]byte
	queries   [batch][maxDatagram + apart]byte
	replies   [batch][maxUDPPayload + apart]byte
	received  int
	arrived   [batch]int            // indexes of the messages that are looked at
	messages  [batch][]byte         // those
	remotes   [batch]netip.AddrPort // who sent them
	queued    int
	sent      int
	recvErrno syscall.Errno
}

func newUDPWorker(conn *net.UDPConn, local netip.AddrPort, r *Responder, drainTime time.Duration) (*udpWorker, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &udpWorker{conn: conn, raw: raw, local: local, wildcard: local.Addr().IsUnspecified(), responder: r, drainTime: drainTime}
	w.recv, w.send = w.receiveBatch, w.sendBatch
	for i := range batch {
		w.inVec[i].Base = &w.queries[i][0]
		w.inVec[i].SetLen(maxDatagram)
		w.in[i].hdr.Iov = &w.inVec[i]
		w.in[i].hdr.SetIovlen(1)
		w.in[i].hdr.Name = (*byte)(unsafe.Pointer(&w.names[i]))
		w.outVec[i].Base = &w.replies[i][0]
		w.out[i].hdr.Iov = &w.outVec[i]
		w.out[i].hdr.SetIovlen(1)
	}
	return w, nil
}

// run answers until ctx is done, and then what the socket still holds, and closes it.
func (w *udpWorker) run(ctx context.Context) error {
	defer w.conn.Close()
	// A deadline in the past wakes the worker that waits for a datagram.
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		err := w.raw.Read(w.recv)
		switch {
		case err == nil:
		case ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded):
			if errors.Is(context.Cause(ctx), ErrTakenOver) {
				return nil
			}
			return w.drain()
		default:
			return err
		}
		switch w.recvErrno {
		case 0:
			w.answer()
		case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EINVAL, unix.ENOSYS:
			return os.NewSyscallError("recvmmsg", w.recvErrno) // it would be the same the next time
		default:
			time.Sleep(time.Millisecond) // the kernel is short of memory, or told of a network error; the socket is sound
		}
	}
}

// drain answers what is in the socket's buffer, for at most the drain time.
func (w *udpWorker) drain() error {
	until := time.Now().Add(w.drainTime)
	_ = w.conn.SetWriteDeadline(until)
	for more := true; more && time.Now().Before(until); {
		err := w.raw.Control(func(fd uintptr) { more = w.receiveBatch(fd) && w.recvErrno == 0 && w.received > 0 })
		if err != nil {
			return err
		}
		if more {
			w.answer()
		}
	}
	return nil
}

// receiveBatch takes what is there, without waiting. It reports false if there is nothing.
//
// Hot path: one system call a batch, made raw, since it never blocks and so need not tell the scheduler.
func (w *udpWorker) receiveBatch(fd uintptr) bool {
	for i := range w.in {
		h := &w.in[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(w.names[i]))
		if w.wildcard {
			h.Control = &w.controls[i][0]
			h.SetControllen(controlSize)
		}
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&w.in[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		w.received, w.recvErrno = 0, errno
		switch errno {
		case 0:
			w.received = int(n)
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			return true
		}
	}
}

// answer answers the batch that was received.
func (w *udpWorker) answer() {
	r := w.responder
	r.Refresh(time.Now())
	n := 0
	for i := range w.received {
		if w.in[i].hdr.Flags&unix.MSG_TRUNC != 0 {
			r.count.dropped[dropOversize].Add(1)
			continue
		}
		remote := w.remote(i)
		if remote.Port() == 0 {
			r.count.dropped[dropPort].Add(1)
			continue
		}
		w.arrived[n], w.messages[n], w.remotes[n] = i, w.queries[i][:w.in[i].n], remote
		n++
	}
	r.LookAhead(w.messages[:n], w.remotes[:n])
	w.queued = 0
	for k, i := range w.arrived[:n] {
		in, out := &w.in[i], &w.out[w.queued]
		local := w.local
		out.hdr.Control = nil
		out.hdr.SetControllen(0)
		if w.wildcard {
			if addr, ok := w.asked(i); ok {
				local = netip.AddrPortFrom(addr, local.Port())
				out.hdr.Control, out.hdr.Controllen = in.hdr.Control, in.hdr.Controllen
			}
		}
		size := r.Respond(w.messages[k], w.replies[w.queued][:maxUDPPayload], local, w.remotes[k], false)
		if size == 0 {
			continue
		}
		w.outVec[w.queued].SetLen(size)
		out.hdr.Name, out.hdr.Namelen = in.hdr.Name, in.hdr.Namelen
		w.queued++
	}
	r.release()
	w.sent = 0
	if w.queued == 0 {
		return
	}
	if err := w.raw.Write(w.send); err != nil {
		r.count.dropped[dropSend].Add(uint64(w.queued - w.sent))
	}
}

// remote returns the sender of a received message; port 0 if there is none.
func (w *udpWorker) remote(i int) netip.AddrPort {
	name := &w.names[i]
	switch name.Family {
	case unix.AF_INET:
		name := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(name.Addr), networkOrder(&name.Port))
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), networkOrder(&name.Port))
	}
	return netip.AddrPort{}
}

func networkOrder(port *uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(port))
	return uint16(b[0])<<8 | uint16(b[1])
}

// asked returns the address that a message was sent to, and readies its control record for the reply: the kernel's
// choice of the interface is left open, except where an address means nothing without it.
func (w *udpWorker) asked(i int) (netip.Addr, bool) {
	if w.in[i].hdr.Controllen < unix.SizeofCmsghdr {
		return netip.Addr{}, false
	}
	head := (*unix.Cmsghdr)(unsafe.Pointer(&w.controls[i][0]))
	data := unsafe.Pointer(&w.controls[i][unix.CmsgLen(0)])
	switch {
	case head.Level == unix.IPPROTO_IP && head.Type == unix.IP_PKTINFO:
		info := (*unix.Inet4Pktinfo)(data)
		info.Ifindex = 0
		return netip.AddrFrom4(info.Spec_dst), true
	case head.Level == unix.IPPROTO_IPV6 && head.Type == unix.IPV6_PKTINFO:
		info := (*unix.Inet6Pktinfo)(data)
		addr := netip.AddrFrom16(info.Addr)
		if !addr.IsLinkLocalUnicast() {
			info.Ifindex = 0
		}
		return addr, true
	}
	return netip.Addr{}, false
}

// sendBatch sends the queued replies. It reports false when the socket's buffer is full, to be called again. A reply
// that cannot be sent is skipped, never the rest.
func (w *udpWorker) sendBatch(fd uintptr) bool {
	for w.sent < w.queued {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&w.out[w.sent])), uintptr(w.queued-w.sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			w.sent += int(n)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			w.responder.count.dropped[dropSend].Add(1)
			w.sent++
		}
	}
	return true
}

// controlUDP sets the options of a UDP socket. A wildcard socket must learn which address was asked; the rest is best
// effort.
func controlUDP(fd int, v6, wildcard bool) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	// A forged ICMP "fragmentation needed" must not make us send fragments, in which answers can be forged: the
	// path's MTU is left out of account, and replies are small enough anyway.
	if v6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_OMIT)
	} else {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
	}
	switch {
	case !wildcard:
		return nil
	case v6:
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	default:
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
}
