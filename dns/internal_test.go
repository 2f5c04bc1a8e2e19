package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestBuffers checks that a UDP socket has the buffers that it asks for, or what the machine allows without privilege.
func TestBuffers(t *testing.T) {
	conn, err := listenUDP("udp4", netip.MustParseAddrPort("127.0.0.1:0"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		option, want int
		limit        string
	}{
		{unix.SO_RCVBUF, receiveBuffer, "/proc/sys/net/core/rmem_max"},
		{unix.SO_SNDBUF, sendBuffer, "/proc/sys/net/core/wmem_max"},
	} {
		text, err := os.ReadFile(tt.limit)
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if err := onFD(raw, func(fd int) (err error) {
			got, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, tt.option)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := 2 * min(tt.want, limit); got < want { // the kernel doubles it, for what it keeps beside the data
			t.Errorf("option %d is %d, want at least %d", tt.option, got, want)
		}
	}
}

// A connection costs no calls that set keepalive.
func TestNoKeepalive(t *testing.T) {
	ln, err := listenTCP("tcp4", netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	raw, err := server.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := -1
	if err := onFD(raw, func(fd int) (err error) {
		on, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		return err
	}); err != nil || on != 0 {
		t.Errorf("SO_KEEPALIVE is %d, %v", on, err)
	}
}

// A name is in lower case after parse, whatever its octets are, and as long as RFC 1035 section 2.3.4 allows.
func TestNameParse(t *testing.T) {
	var m name
	for first := 0; first < 256; first += maxLabel {
		msg := []byte{0xff, byte(min(maxLabel, 256-first))} // it does not begin where a message does
		want := msg[1:2:2]
		for c := first; c < first+int(msg[1]); c++ {
			msg = append(msg, byte(c))
			want = append(want, lower(byte(c)))
		}
		msg, want = append(msg, 0, 'X'), append(want, 0)
		if end := m.parse(msg, 1); end != len(msg)-1 || string(m.wire[:m.n]) != string(want) || m.labels != 1 {
			t.Errorf("%x: %x, %d labels, ends at %d", msg, m.wire[:m.n], m.labels, end)
		}
		for n := 1; n < len(msg)-1; n++ {
			if end := m.parse(msg[:n], 1); end != -1 {
				t.Errorf("%x ends at %d", msg[:n], end)
			}
		}
	}
	for _, tt := range []struct {
		label, times, last int // the name has so many labels of this length, and then one
		valid              bool
	}{
		{63, 3, 61, true}, {63, 3, 62, false}, {63, 3, 63, false}, {63, 4, 0, false}, {1, 127, 0, true}, {1, 126, 2, false}, {1, 126, 1, true}, {1, 127, 1, false}, {1, 200, 0, false},
	} {
		wire := strings.Repeat("\xff"+strings.Repeat("a", tt.label), tt.times)
		wire = strings.ReplaceAll(wire, "\xff", string([]byte{byte(tt.label)}))
		if tt.last > 0 {
			wire += string([]byte{byte(tt.last)}) + strings.Repeat("b", tt.last)
		}
		wire += "\x00"
		want := -1
		if tt.valid {
			want = len(wire)
		}
		if end := m.parse([]byte(wire), 0); end != want || tt.valid && (m.n != len(wire) || string(m.suffix(1)) != wire[m.offs[m.labels-1]:]) {
			t.Errorf("%d labels of %d octets and one of %d: ends at %d, %d octets", tt.times, tt.label, tt.last, end, m.n)
		}
	}
}

// What was read of queries that were looked ahead at keeps no zones from being freed once the next are.
func TestAheadForgets(t *testing.T) {
	var a ahead
	for n := mostAhead; n > 0; n /= 2 {
		a.n = n
		for i := range n {
			a.queries[i].name.zone, a.messages[i] = &zone{}, []byte{0}
		}
		a.forget()
		for i := range a.queries {
			if a.queries[i].name.zone != nil || a.messages[i] != nil {
				t.Fatalf("of %d queries it keeps query %d", n, i)
			}
		}
	}
}

// Where the search for a name begins, another one may stand. What is looked ahead at is the node that the search ends with.
func TestLikelyNode(t *testing.T) {
	nodes := map[string]*node{}
	for i := range 3000 {
		n := new(node)
		n.begin(fmt.Sprintf("\x05w%04d\x04gslb\x04test\x00", i))
		nodes[n.name] = n
	}
	x := newNameIndex(nodes)
	elsewhere := 0
	for name, n := range nodes {
		h := x.hash([]byte(name))
		if got := x.likely(h); got != n || x.find([]byte(name), h) != n {
			t.Fatalf("%q: looked ahead at %p, and the node is %p", name, got, n)
		}
		if x.first(h).node != n {
			elsewhere++
		}
	}
	if elsewhere == 0 {
		t.Error("no name has another where its search begins: this test tests nothing")
	}
	if got := x.likely(x.hash([]byte("\x04none\x00"))); got != nil {
		t.Errorf("looked ahead at %q, and there is no such name", got.name)
	}
}

// A node keeps its own name, short or long, and what queries read of it begins on a cache line.
func TestNodes(t *testing.T) {
	for _, name := range []string{"\x00", "\x01*\x04test\x00", strings.Repeat("\x04abcd", 7) + "\x04xyz\x00", strings.Repeat("\x04abcd", 40) + "\x00"} {
		n := new(node)
		n.begin(name)
		if n.name != name || n.star != isWildcard(name) {
			t.Errorf("%q became %q, a wildcard: %v", name, n.name, n.star)
		}
	}
	for what, size := range map[string]uintptr{"node": unsafe.Sizeof(node{}), "placedService": unsafe.Sizeof(placedService{})} {
		if size%64 != 0 || size > 512 { // from 512 on what is allocated begins behind a header
			t.Errorf("a %s has %d octets, so that not each begins on a cache line", what, size)
		}
	}
}
