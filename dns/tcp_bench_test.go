//go:build linux

package dns_test

import (
	"context"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"gslbd/dns"
)

// BenchmarkTCPConnections measures connections of one query each, both ends of them.
func BenchmarkTCPConnections(b *testing.B) {
	const atATime = 20
	s, err := dns.New(dns.Options{Listen: []string{"127.0.0.1:0"}, Workers: 1, Store: conformanceWorld(b).store})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	wire := pack(b, question("www.gslb.test.", "A"))
	message := append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
	server := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(s.Addrs()[0].Port())}
	answer := make([]byte, 1024)
	check := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	var open []int
	finish := func() {
		n, err := unix.Read(open[0], answer)
		for err == unix.EINTR {
			n, err = unix.Read(open[0], answer)
		}
		if check(err); n < 14 {
			b.Fatalf("%d octets", n)
		}
		check(unix.Close(open[0]))
		open = open[1:]
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		check(err)
		check(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
		check(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)) // ports are plenty then
		check(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 1, byte(i%200 + 1)}}))
		check(unix.Connect(fd, server))
		_, err = unix.Write(fd, message)
		check(err)
		if open = append(open, fd); len(open) == atATime {
			finish()
		}
	}
	for len(open) > 0 {
		finish()
	}
}
