package dns_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
)

// handed returns options of a server that gets the sockets of s, as another process would.
func (r *running) handed(opts dns.Options) dns.Options {
	r.t.Helper()
	udp, tcp := map[netip.AddrPort][]*net.UDPConn{}, map[netip.AddrPort]*net.TCPListener{}
	for _, c := range r.Sockets() {
		var f *os.File
		var err error
		switch c := c.(type) {
		case *os.File: // on Linux
			var pc net.PacketConn
			if pc, err = net.FilePacketConn(c); err == nil {
				udp[r.addr] = append(udp[r.addr], pc.(*net.UDPConn))
			}
		case *net.UDPConn:
			f, err = c.File()
			if err == nil {
				var pc net.PacketConn
				pc, err = net.FilePacketConn(f)
				udp[r.addr] = append(udp[r.addr], pc.(*net.UDPConn))
			}
		case *net.TCPListener:
			f, err = c.File()
			if err == nil {
				var l net.Listener
				l, err = net.FileListener(f)
				tcp[l.Addr().(*net.TCPAddr).AddrPort()] = l.(*net.TCPListener)
			}
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if f != nil {
			f.Close()
		}
	}
	opts.Listen = []string{r.addr.String()}
	opts.HandedUDP = func(a netip.AddrPort) []*net.UDPConn { return udp[a] }
	opts.HandedTCP = func(a netip.AddrPort) *net.TCPListener { return tcp[a] }
	return opts
}

// startTaken is start, and has the server end with ErrTakenOver.
func startTaken(t *testing.T, opts dns.Options) (*running, context.CancelCauseFunc) {
	t.Helper()
	opts.Store, opts.Listen = conformanceWorld(t).store, []string{"127.0.0.1:0"}
	s, err := dns.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	t.Cleanup(func() { cancel(nil) })
	r := &running{Server: s, t: t, addr: s.Addrs()[0], done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	return r, cancel
}

// A server that is taken over leaves what is queued in its sockets, and the connections that nobody has accepted, to the
// other, and answers the connections that it has to their end. Another number of workers loses nothing.
func TestTakeover(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			old, takeOver := startTaken(t, dns.Options{Workers: 2})
			begun := old.dial("tcp")
			query := question("www.gslb.test.", "A")
			if _, err := begun.Write(frame(t, query, query)[:10]); err != nil {
				t.Fatal(err)
			}
			opts := old.handed(dns.Options{Workers: workers})
			opts.Store = conformanceWorld(t).store
			next, err := dns.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := next.Bind(); err != nil {
				t.Fatal(err)
			}
			if got := next.Addrs(); !slices.Equal(got, old.Addrs()) {
				t.Errorf("it listens on %v, and the other on %v", got, old.Addrs())
			}
			known := old.dial("tcp")
			if _, err := known.Write(frame(t, query)); err != nil {
				t.Fatal(err)
			}
			if _, err := readFrame(known); err != nil {
				t.Fatal(err)
			}
			old.waitOpen(2)
			takeOver(dns.ErrTakenOver)
			if m, err := readFrame(known); err != io.EOF { // it was silent for too long; a first query gets longer
				t.Errorf("%v, %v", m, err)
			}
			if _, err := begun.Write(frame(t, query, query)[10:]); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := readFrame(begun); err != nil {
					t.Errorf("a connection under way: %v", err)
				}
			}
			begun.Close()
			if err := <-old.done; err != nil {
				t.Error(err)
			}

			// Nobody reads: each of these clients may have hit another socket.
			var clients []net.Conn
			for range 32 {
				c := old.dial("udp")
				if _, err := c.Write(pack(t, query)); err != nil {
					t.Fatal(err)
				}
				clients = append(clients, c)
			}
			waiting := old.dial("tcp")
			if _, err := waiting.Write(frame(t, query)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- next.Run(ctx) }()
			for i, c := range clients {
				buf := make([]byte, 512)
				n, err := c.Read(buf)
				if err != nil || new(mdns.Msg).Unpack(buf[:n]) != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
			if _, err := readFrame(waiting); err != nil {
				t.Errorf("a connection that waited: %v", err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// waitOpen waits until the server has accepted n connections.
func (r *running) waitOpen(n int) {
	r.t.Helper()
	r.waitFor(fmt.Sprintf("gslbd_tcp_connections %d\n", n))
}

// waitFor waits until the telemetry has the line.
func (r *running) waitFor(line string) {
	r.t.Helper()
	for begin := time.Now(); !strings.Contains(telemetry(r.t, r.Server), line); runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			r.t.Fatalf("there is no %q in\n%s", line, telemetry(r.t, r.Server))
		}
	}
}

// A socket that was handed, from a service manager say, gets the options that one of ours has; an address without one is
// opened.
func TestHandedSocketOptions(t *testing.T) {
	// Not 127.0.0.1: there a connection of another test may have the port for TCP.
	plain, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	addr := plain.LocalAddr().(*net.UDPAddr).AddrPort()
	same, err := plain.File() // to look at the socket, which the server takes over
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	s, err := dns.New(dns.Options{
		Store: conformanceWorld(t).store, Listen: []string{addr.String(), "127.0.0.1:0"},
		HandedUDP: func(a netip.AddrPort) []*net.UDPConn {
			if a == addr {
				return []*net.UDPConn{plain}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	size := func() (n int) {
		raw, err := same.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { n, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF) })
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := size()
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	if after := size(); after <= before {
		t.Errorf("the receive buffer has %d octets, as before", after)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for _, a := range s.Addrs() {
		for _, network := range []string{"udp", "tcp"} {
			c := &mdns.Client{Net: network, Timeout: 10 * time.Second}
			if _, _, err := c.Exchange(question("www.gslb.test.", "A"), a.String()); err != nil {
				t.Errorf("%s %s: %v", network, a, err)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Cookies of the process before are valid after a takeover.
func TestCookieSecretIsHandedOn(t *testing.T) {
	old, err := dns.New(dns.Options{Store: conformanceWorld(t).store, Listen: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	next, err := dns.New(dns.Options{Store: conformanceWorld(t).store, Listen: []string{"127.0.0.1:0"}, CookieSecret: old.CookieSecret()})
	if err != nil {
		t.Fatal(err)
	}
	if old.CookieSecret() == [16]byte{} || next.CookieSecret() != old.CookieSecret() {
		t.Error("the secret is not handed on")
	}
}
