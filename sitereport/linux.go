//go:build linux

package sitereport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Figures of the kernel's sock_diag interface (linux/sock_diag.h, linux/inet_diag.h), which x/sys has no names for.
const (
	sockDiagByFamily = 20
	tcpEstablished   = 1
	diagRequestSize  = 56 // struct inet_diag_req_v2
	diagMessageSize  = 72 // struct inet_diag_msg
	netlinkHeader    = 16 // struct nlmsghdr
)

// establishedSockets calls visit with the local address of every established TCP socket of this network namespace,
// those not yet accepted included. Addresses of IPv4 clients at a dual-stack socket are given as IPv4.
//
// A busy SLB has a million sockets, so the answer is read through one buffer and never held as a whole.
func establishedSockets(ctx context.Context, visit func(local netip.AddrPort)) error {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	buf := make([]byte, 64<<10)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := dumpSockets(conn, raw.Read, family, buf, visit); err != nil {
			if ctx.Err() != nil {
				err = errors.New("the kernel did not list all sockets in time")
			} else if errors.Is(err, unix.ENOENT) {
				err = fmt.Errorf("%w: the kernel cannot list sockets (modprobe tcp_diag)", err)
			}
			return fmt.Errorf("sock_diag: %w", err)
		}
	}
	return nil
}

// dumpSockets asks for one family's sockets and reads the answer.
func dumpSockets(conn *netlink.Conn, read func(func(fd uintptr) bool) error, family uint8, buf []byte, visit func(netip.AddrPort)) error {
	request := make([]byte, diagRequestSize)
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], 1<<tcpEstablished)
	if _, err := conn.Send(netlink.Message{
		Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	}); err != nil {
		return err
	}
	for {
		var n int
		var failed error
		if err := read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, 0)
			return failed != unix.EAGAIN && failed != unix.EINTR
		}); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
		done, err := parseSocketDump(buf[:n], visit)
		if err != nil || done {
			return err
		}
	}
}

// parseSocketDump reads one datagram of a dump and says whether it was the last.
func parseSocketDump(b []byte, visit func(local netip.AddrPort)) (done bool, err error) {
	for len(b) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < netlinkHeader || size > len(b) {
			return false, fmt.Errorf("a message of %d bytes does not fit into the %d that came", size, len(b))
		}
		payload := b[netlinkHeader:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(payload) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(payload)); code < 0 {
					return true, unix.Errno(-code)
				}
			}
			return true, nil
		case sockDiagByFamily:
			if len(payload) < diagMessageSize {
				return false, fmt.Errorf("a socket of %d bytes, fewer than %d", len(payload), diagMessageSize)
			}
			addr := netip.AddrFrom16([16]byte(payload[8:24])).Unmap()
			if payload[0] == unix.AF_INET {
				addr = netip.AddrFrom4([4]byte(payload[8:12]))
			}
			visit(netip.AddrPortFrom(addr, binary.BigEndian.Uint16(payload[4:])))
		}
		b = b[min((size+3)&^3, len(b)):] // messages begin at multiples of four
	}
	return false, nil
}

// interfaceTraffic reads the counters of a network interface below root, which is /sys/class/net. The name that it
// returns is another one when the interface was made anew, because its counters then start from 0.
func interfaceTraffic(root, name string) (id string, t traffic, err error) {
	read := func(file string) string {
		if err != nil {
			return ""
		}
		var b []byte
		b, err = os.ReadFile(filepath.Join(root, name, file))
		return strings.TrimSpace(string(b))
	}
	index, in, out := read("ifindex"), read("statistics/rx_bytes"), read("statistics/tx_bytes")
	if errors.Is(err, fs.ErrNotExist) {
		return "", traffic{}, fmt.Errorf("there is no network interface %q", name)
	}
	if err == nil {
		t.in, err = strconv.ParseUint(in, 10, 64)
	}
	if err == nil {
		t.out, err = strconv.ParseUint(out, 10, 64)
	}
	if err != nil {
		return "", traffic{}, fmt.Errorf("the counters of network interface %q: %w", name, err)
	}
	return name + "#" + index, t, nil
}
