//go:build linux

package sitereport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// establishedSockets calls visit with the established TCP sockets of this network namespace that r asks for, those not yet
// accepted included.
//
// A busy SLB has a million sockets, so the answer is read through one buffer and never held as a whole.
func establishedSockets(ctx context.Context, r diagRequest, visit func(diagSocket)) error {
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
		if err := dumpSockets(conn, raw.Read, r.encode(family), buf, r.pause, visit); err != nil {
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

// dumpSockets sends a request and reads the answer.
func dumpSockets(conn *netlink.Conn, read func(func(fd uintptr) bool) error, request, buf []byte, pause func() error, visit func(diagSocket)) error {
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
		if pause != nil {
			if err := pause(); err != nil {
				return err
			}
		}
	}
}

// parseSocketDump reads one datagram of a dump and says whether it was the last.
func parseSocketDump(b []byte, visit func(diagSocket)) (done bool, err error) {
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
			visit(payload)
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
