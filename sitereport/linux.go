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
	attributeHeader  = 4  // struct nlattr
	diagInfo         = 2  // INET_DIAG_INFO: struct tcp_info
	diagByteCode     = 1  // INET_DIAG_REQ_BYTECODE: which sockets to list
	codeJump         = 1  // INET_DIAG_BC_JMP
	codeFrom         = 2  // INET_DIAG_BC_S_GE: the local port is at least
	codeTo           = 3  // INET_DIAG_BC_S_LE: the local port is at most

	// maxFilterPorts is how many ports a request can name: 20 bytes each, in an attribute of at most 64 KiB.
	maxFilterPorts = 3000
)

// A diagRequest says which established TCP sockets the kernel shall list, and how.
type diagRequest struct {
	ports []uint16 // only those at these local ports; none, or more than maxFilterPorts: all
	info  bool     // with the kernel's tcp_info of each
	// pause, if not nil, is called after each datagram: some 100 sockets, by the kernel's choice. Its error ends the listing.
	pause func() error
}

// encode returns the request for one family's sockets (struct inet_diag_req_v2, and attributes).
func (r *diagRequest) encode(family uint8) []byte {
	b := make([]byte, diagRequestSize, diagRequestSize+attributeHeader+20*len(r.ports))
	b[0], b[1] = family, unix.IPPROTO_TCP
	if r.info {
		b[2] = 1 << (diagInfo - 1)
	}
	binary.NativeEndian.PutUint32(b[4:], 1<<tcpEstablished)
	n := len(r.ports)
	if n == 0 || n > maxFilterPorts {
		return b
	}
	// A program for the kernel (struct inet_diag_bc_op: a code, how far to go on if it holds, and if not). To its very end
	// accepts the socket, and four bytes beyond that refuses it.
	op := func(code, yes uint8, no uint16) {
		b = append(b, code, yes)
		b = binary.NativeEndian.AppendUint16(b, no)
	}
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeader+20*n))
	b = binary.NativeEndian.AppendUint16(b, diagByteCode)
	for i, port := range r.ports {
		next := uint16(20)
		if i == n-1 {
			next += 4
		}
		op(codeFrom, 8, next)
		op(0, 0, port) // an operand
		op(codeTo, 8, next-8)
		op(0, 0, port)
		op(codeJump, 4, uint16(20*(n-i)-16))
	}
	return b
}

// A diagSocket is what the kernel says of a socket: a struct inet_diag_msg and its attributes. It is valid while it is
// visited.
type diagSocket []byte

// local returns the socket's own address; of an IPv4 client at a dual-stack socket, the IPv4 one.
func (s diagSocket) local() netip.AddrPort { return s.end(8, 4) }

// remote returns the address of the other end, likewise.
func (s diagSocket) remote() netip.AddrPort { return s.end(24, 6) }

func (s diagSocket) end(addr, port int) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(s[addr : addr+16])).Unmap()
	if s[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(s[addr : addr+4]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(s[port:]))
}

// cookie tells sockets of a machine apart, closed ones too.
func (s diagSocket) cookie() uint64 { return binary.NativeEndian.Uint64(s[44:]) }

// info returns the socket's struct tcp_info, as long as this kernel's is; nil: none came.
func (s diagSocket) info() []byte {
	for b := s[diagMessageSize:]; len(b) >= attributeHeader; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attributeHeader || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:]) == diagInfo {
			return b[attributeHeader:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

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
