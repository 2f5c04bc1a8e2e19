//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	batch = 32

	// window is how many queries a client has on the way when it asks as fast as it gets answers.
	window = 256

	// lostAfter is how long a client waits for any answer before it takes all that are on the way for lost.
	lostAfter = 200 * time.Millisecond
)

// A load is what one client saw.
type load struct {
	answered, lost, wrong int
	took                  time.Duration
	latencies             []uint32 // microseconds, sorted; of a paced client
}

func (l load) rate() float64 { return float64(l.answered) / l.took.Seconds() }

// percentile returns a latency; share is 0 to 1.
func (l load) percentile(share float64) time.Duration {
	if len(l.latencies) == 0 {
		return 0
	}
	return time.Duration(l.latencies[int(share*float64(len(l.latencies)-1))]) * time.Microsecond
}

type message struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// A client asks one server over UDP in batches. dnsperf sends one query a call, and is itself the limit where a server is
// fast.
type client struct {
	fd       int
	queries  [][]byte
	expected int // rcode; with 0, at least one answer is expected too; below 0, anything
	at       int // in queries
	id       uint16
	onTheWay int
	sentAt   [1 << 16]int64 // by id, nanoseconds after start; 0: not on the way
	start    time.Time

	out, in       [batch]message
	outVec, inVec [batch]unix.Iovec
	outBuf, inBuf [batch][2048]byte
}

func dial(port int, queries [][]byte, expected int) (*client, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(clientAddress).As4()}),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(serverAddress).As4(), Port: port}))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	c := &client{fd: fd, queries: queries, expected: expected, start: time.Now()}
	for i := range batch {
		c.outVec[i].Base, c.inVec[i].Base = &c.outBuf[i][0], &c.inBuf[i][0]
		c.inVec[i].SetLen(len(c.inBuf[i]))
		for m, v := range map[*message]*unix.Iovec{&c.out[i]: &c.outVec[i], &c.in[i]: &c.inVec[i]} {
			m.hdr.Iov = v
			m.hdr.SetIovlen(1)
		}
	}
	return c, nil
}

func (c *client) close() { unix.Close(c.fd) }

// run asks for so long: rate queries a second, or with rate 0 as fast as answers come. Of a paced client's queries, those are
// left out that it was too late for.
func (c *client) run(rate float64, long time.Duration) (load, error) {
	var l load
	clear(c.sentAt[:])
	c.onTheWay = 0
	if rate > 0 {
		l.latencies = make([]uint32, 0, int(rate*long.Seconds())+batch)
	}
	most := max(batch, int(rate/1000)) // queries that a paced client sends at once: those of a millisecond
	begin := time.Now()
	last := begin
	sent := 0 // or left out
	for {
		now := time.Now()
		if l.took = now.Sub(begin); l.took >= long {
			break
		}
		due := window - c.onTheWay
		if rate > 0 {
			due = int(rate*l.took.Seconds()) - sent
			if due > most { // the client was held up: to catch up would ask at full load, not at this rate
				sent += due - most
				due = most
			}
			due = min(due, 1<<15-c.onTheWay)
		}
		n, err := c.send(min(due, batch), now)
		if err != nil {
			return l, err
		}
		sent += n
		got, err := c.receive(&l)
		if err != nil {
			return l, err
		}
		switch {
		case got > 0:
			last = now
		case now.Sub(last) > lostAfter:
			l.lost += c.onTheWay
			c.onTheWay, last = 0, now
			clear(c.sentAt[:])
		case n == 0:
			wait := unix.Timespec{Nsec: 20_000}
			_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, &wait, nil)
		}
	}
	slices.Sort(l.latencies)
	return l, nil
}

// send sends up to n queries and returns how many it sent.
func (c *client) send(n int, now time.Time) (int, error) {
	if n <= 0 {
		return 0, nil
	}
	for i := range n {
		q := c.queries[(c.at+i)%len(c.queries)]
		id := c.id + uint16(i)
		copy(c.outBuf[i][:], q)
		c.outBuf[i][0], c.outBuf[i][1] = byte(id>>8), byte(id)
		c.outVec[i].SetLen(len(q))
	}
	sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.out[0])), uintptr(n), 0, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
		return 0, nil
	default:
		return 0, fmt.Errorf("sendmmsg: %w", errno)
	}
	since := int64(now.Sub(c.start))
	for range int(sent) {
		c.sentAt[c.id] = since
		c.id++
	}
	c.at = (c.at + int(sent)) % len(c.queries)
	c.onTheWay += int(sent)
	return int(sent), nil
}

// receive takes what answers there are.
func (c *client) receive(l *load) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.in[0])), batch, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.ECONNREFUSED:
		return 0, nil
	default:
		return 0, fmt.Errorf("recvmmsg: %w", errno)
	}
	since := int64(time.Since(c.start))
	for i := range int(n) {
		b := &c.inBuf[i]
		id := uint16(b[0])<<8 | uint16(b[1])
		if c.in[i].n < 12 || c.sentAt[id] == 0 {
			continue
		}
		if !right(b[:c.in[i].n], c.expected) {
			l.wrong++
		}
		if cap(l.latencies) > len(l.latencies) {
			l.latencies = append(l.latencies, uint32((since-c.sentAt[id])/1000))
		}
		c.sentAt[id] = 0
		c.onTheWay--
		l.answered++
	}
	return int(n), nil
}

// right reports whether an answer is what is expected: an rcode, and with 0 at least one record; below 0, anything.
func right(answer []byte, expected int) bool {
	return expected < 0 || int(answer[3]&0xf) == expected && (expected != 0 || answer[6]|answer[7] != 0)
}

var (
	completed = regexp.MustCompile(`Queries completed: +(\d+)`)
	lost      = regexp.MustCompile(`Queries lost: +(\d+)`)
	ran       = regexp.MustCompile(`Run time \(s\): +([\d.]+)`)
	rcodes    = regexp.MustCompile(`Response codes: +([A-Z]+) `)
)

// dnsperf asks with dnsperf on the given core.
func dnsperf(core, port int, mode, file string, expected int, long time.Duration) (load, error) {
	cmd := exec.Command("dnsperf",
		"-m", mode, "-B", "-d", file, "-s", serverAddress, "-a", clientAddress, "-p", strconv.Itoa(port), "-T", "1", "-c", "20", "-q", "200",
		"-t", "2", "-l", fmt.Sprint(max(1, int(long.Seconds()+0.5))))
	var out []byte
	err := pinned([]int{core}, func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		return load{}, fmt.Errorf("dnsperf: %w: %s", err, out)
	}
	number := func(r *regexp.Regexp) float64 {
		if m := r.FindSubmatch(out); m != nil {
			v, _ := strconv.ParseFloat(string(m[1]), 64) // the expression matches nothing else
			return v
		}
		return 0
	}
	l := load{answered: int(number(completed)), lost: int(number(lost)), took: time.Duration(number(ran) * float64(time.Second))}
	if m := rcodes.FindSubmatch(out); expected >= 0 && (m == nil || string(m[1]) != map[int]string{0: "NOERROR", 3: "NXDOMAIN"}[expected]) {
		l.wrong = l.answered
	}
	if l.answered == 0 {
		return l, fmt.Errorf("dnsperf got no answer: %s", out)
	}
	return l, nil
}

// sources is how many addresses a client has that opens a connection for each query: each connection's port is taken for a
// minute after its end, or for a second where it may be used again.
const sources = 16

// source returns the client's address of this number.
func source(i int) netip.Addr {
	a := netip.MustParseAddr(clientAddress).As4()
	a[3] += byte(i % sources)
	return netip.AddrFrom4(a)
}

// connect asks over TCP from the present thread, with a connection for each query and some at a time.
func connect(port int, q []byte, expected int, long time.Duration) (load, error) {
	const atATime = 20
	const patience = time.Second
	message := slices.Concat([]byte{byte(len(q) >> 8), byte(len(q))}, q)
	answer := make([]byte, 2048)
	open := make([]unix.PollFd, atATime) // Fd below 0: none
	for i := range open {
		open[i].Fd = -1
	}
	var since [atATime]time.Time
	var l load
	opened := 0
	begin := time.Now()
	for waiting := true; waiting; {
		now := time.Now()
		more := now.Sub(begin) < long
		waiting = more
		for i := range open {
			if open[i].Fd < 0 && more {
				fd, err := connection(source(opened), port)
				if err != nil {
					l.lost++
				}
				open[i], since[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}, now
				opened++
			}
			waiting = waiting || open[i].Fd >= 0
		}
		if _, err := unix.Poll(open, 10); err != nil && err != unix.EINTR {
			return l, fmt.Errorf("poll: %w", err)
		}
		for i := range open {
			fd := int(open[i].Fd)
			switch {
			case fd < 0 || open[i].Revents == 0 && now.Sub(since[i]) < patience:
				continue
			case open[i].Revents == 0:
				l.lost++
			case open[i].Events == unix.POLLOUT:
				if _, err := unix.Write(fd, message); err == nil {
					open[i].Events = unix.POLLIN
					continue
				}
				l.lost++
			default:
				size, err := readMessage(fd, answer)
				switch {
				case err != nil:
					l.lost++
				case !right(answer[2:size], expected):
					l.wrong++
					fallthrough
				default:
					l.answered++
				}
			}
			unix.Close(fd)
			open[i].Fd = -1
		}
	}
	l.took = time.Since(begin)
	return l, nil
}

// connection returns one that is being opened, without waiting for it; -1: it cannot be.
func connection(from netip.Addr, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1), // the port is chosen with the peer known
		unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(serverAddress).As4(), Port: port})
	}
	if err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readMessage reads one message with its length into b, and returns its size.
func readMessage(fd int, b []byte) (size int, err error) {
	for size < 14 || size < 2+int(b[0])<<8+int(b[1]) {
		n, err := unix.Read(fd, b[size:])
		switch {
		case err == unix.EINTR || err == unix.EAGAIN: // the rest of the message is on its way
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		}
		size += max(n, 0)
	}
	return size, nil
}
