package dns

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
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
	conn      *os.File // the socket, which the runtime's poller does not know
	fd        int      // of conn
	local     netip.AddrPort
	wildcard  bool // the socket has every address: replies must leave from the one that was asked
	responder *Responder
	drainTime time.Duration

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
	recvErrno syscall.Errno
	until     time.Time // when replies that cannot be sent are given up, once the worker is to stop; zero: it is not
}

// newUDPWorker takes conn over, which it closes.
func newUDPWorker(conn *net.UDPConn, local netip.AddrPort, r *Responder, drainTime time.Duration) (*udpWorker, error) {
	file, err := detach(conn)
	if err != nil {
		return nil, err
	}
	w := &udpWorker{conn: file, fd: int(file.Fd()), local: local, wildcard: local.Addr().IsUnspecified(), responder: r, drainTime: drainTime}
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

// detach takes the socket out of the runtime's poller. While one watches it, the kernel tells it of every datagram that comes
// or has been sent, which costs 0.1 us each; and a thread that waits by itself is woken sooner. What waits for a query then returns after
// shortWait.
func detach(conn *net.UDPConn) (*os.File, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copied int
	err = onFD(raw, func(fd int) (err error) {
		if err = unix.SetNonblock(fd, false); err != nil { // else os.NewFile would hand it to the poller
			return os.NewSyscallError("fcntl", err)
		}
		wait := unix.NsecToTimeval(int64(shortWait))
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		copied, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("fcntl", err)
	})
	if err != nil {
		return nil, err
	}
	_ = conn.Close() // the copy stays
	return os.NewFile(uintptr(copied), "udp"), nil
}

// run answers until ctx is done, and then what the socket still holds, and closes it. With keepP it
// keeps its P while it waits for the next query of a busy server.
func (w *udpWorker) run(ctx context.Context, keepP bool) error {
	defer w.conn.Close()
	defer ownThread()()
	eventfd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	wake := os.NewFile(uintptr(eventfd), "eventfd")
	defer wake.Close()
	var stopped atomic.Pointer[time.Time]
	thread, ended := unix.Gettid(), make(chan struct{})
	defer close(ended)
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		stopped.Store(&now)
		_, _ = wake.Write([]byte{7: 1}) // any number but 0 wakes the worker
		tick := time.NewTicker(interruptEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // which the runtime takes for its own, and does nothing
			}
		}
	})
	defer stop()
	for full, idle, polls := false, true, false; ; {
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), ErrTakenOver) {
				return nil
			}
			began := time.Now()
			if at := stopped.Load(); at != nil { // the worker may have waited for room to send since
				began = *at
			}
			w.until = began.Add(w.drainTime)
			w.drain()
			return nil
		}
		switch {
		case full: // more is there, mostly
			w.receive()
		case idle || polls:
			_ = unix.SetNonblock(w.fd, false) // a process that was to take over and gave up has left it set, for us too
			if err := w.wait(unix.POLLIN, eventfd, nil); err != nil {
				return err
			}
			w.receive()
		default:
			if w.await(keepP); w.recvErrno == unix.EINVAL { // gVisor does not know MSG_WAITFORONE
				polls = true
				continue
			}
		}
		full, idle = w.received == batch, w.recvErrno == unix.EAGAIN && !full
		switch w.recvErrno {
		case 0:
			w.answer()
		case unix.EAGAIN, unix.EINTR:
		case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EINVAL, unix.ENOSYS:
			return os.NewSyscallError("recvmmsg", w.recvErrno) // it would be the same the next time
		default:
			time.Sleep(time.Millisecond) // the kernel is short of memory, or told of a network error; the socket is sound
		}
	}
}

// shortWait is for how long a worker waits for a query before it polls, which can also be ended by a stop, and lets others have its P: longer
// than a busy server is without a query. The kernel counts in ticks, one or two of 1 to 10 ms.
const shortWait = time.Millisecond

// interruptEvery is how often a worker that is to stop is interrupted: datagrams with wrong checksums begin its wait anew.
const interruptEvery = 10 * time.Millisecond

// shortSlice is the shortest that the kernel takes.
const shortSlice = 100 * time.Microsecond

// ownThread gives the calling goroutine a thread of its own until release, and asks the kernel to let that run in short slices
// (Linux 6.12 and later). Its share of the processor stays the same, but it need not wait until the slice of another thread is over,
// some milliseconds, when a query wakes it. That is best effort.
func ownThread() (release func()) {
	runtime.LockOSThread()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return runtime.UnlockOSThread
	}
	attr.Runtime = uint64(shortSlice)
	if unix.SchedSetAttr(0, attr, 0) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		attr.Runtime = 0 // as usual
		if unix.SchedSetAttr(0, attr, 0) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}
}

// wait waits until the socket is ready for events, the descriptor wake (-1: none) can be read, or the time has passed, if one
// is given; or shorter.
func (w *udpWorker) wait(events int16, wake int, most *unix.Timespec) error {
	fds := [...]unix.PollFd{{Fd: int32(w.fd), Events: events}, {Fd: int32(wake), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds[:], most, nil); err != nil && err != unix.EINTR {
		return os.NewSyscallError("ppoll", err)
	}
	return nil
}

// drain answers what is in the socket's buffer, until the drain time is over.
func (w *udpWorker) drain() {
	for ; time.Now().Before(w.until); w.answer() {
		if w.receive(); w.recvErrno != 0 || w.received == 0 {
			return
		}
	}
}

// await waits for a query, for shortWait, and takes what is there then: one system call, where to poll the socket first would be two, and
// a quarter more of all that a server does that is half busy.
//
// To keep the P it is made raw. Else the runtime, which finds that the worker has not been through its scheduler for 10 ms, takes the P
// of the call whenever it looks, and then looks every 20 us: some 2 % of a core, for which queries wait where there is one. Where the runtime
// wants a thread to pause it sends a signal, which ends the call: it has a timeout, and so is not begun again.
func (w *udpWorker) await(keepP bool) {
	w.empty()
	if keepP {
		w.took(unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.in[0])), batch, unix.MSG_WAITFORONE, 0, 0))
		return
	}
	w.took(unix.Syscall6(unix.SYS_RECVMMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.in[0])), batch, unix.MSG_WAITFORONE, 0, 0))
}

// receive takes what is there, without waiting.
//
// Hot path: one system call a batch, made raw, since it never blocks and so need not tell the scheduler.
func (w *udpWorker) receive() {
	w.empty()
	w.took(unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.in[0])), batch, unix.MSG_DONTWAIT, 0, 0))
}

// empty makes room for a batch.
func (w *udpWorker) empty() {
	for i := range w.in {
		h := &w.in[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(w.names[i]))
		if w.wildcard {
			h.Control = &w.controls[i][0]
			h.SetControllen(controlSize)
		}
	}
}

// took keeps what a call of recvmmsg has returned.
func (w *udpWorker) took(n, _ uintptr, errno syscall.Errno) {
	if w.received, w.recvErrno = int(n), errno; errno != 0 {
		w.received = 0
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
	w.queued = 0
	for k, i := range w.arrived[:n] {
		if k%mostAhead == 0 {
			some := min(k+mostAhead, n)
			r.LookAhead(w.messages[k:some], w.remotes[k:some])
		}
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
	w.send()
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

// send sends the queued replies. A reply that cannot be sent is skipped, never the rest. Where the socket's buffer stays full,
// they are given up after the drain time, or when that of a stop is over.
func (w *udpWorker) send() {
	until := w.until
	for sent := 0; sent < w.queued; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.out[sent])), uintptr(w.queued-sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			sent += int(n)
		case unix.EINTR:
		case unix.EAGAIN:
			if until.IsZero() {
				until = time.Now().Add(w.drainTime)
			}
			left := unix.NsecToTimespec(int64(time.Until(until)))
			if left.Nano() <= 0 || w.wait(unix.POLLOUT, -1, &left) != nil {
				w.responder.count.dropped[dropSend].Add(uint64(w.queued - sent))
				return
			}
		default:
			w.responder.count.dropped[dropSend].Add(1)
			sent++
		}
	}
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
