package dns

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

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
