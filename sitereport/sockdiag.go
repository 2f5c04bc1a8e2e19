package sitereport

import (
	"encoding/binary"
	"net/netip"

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
