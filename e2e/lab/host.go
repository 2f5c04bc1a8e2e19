//go:build linux

package lab

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Host is a network namespace with a mount namespace, in which programs run. Its addresses are reached from every
// other host of the Network.
type Host struct {
	Name   string
	Region string // what links are between

	net   *Network
	t     testing.TB
	tun   *os.File
	calls chan func() // run on the host's own thread; closed at the end
	tid   int         // of that thread
	dir   string      // for the files of its programs
}

// newHost makes the namespaces and the interface that leads to the router.
func newHost(n *Network, name, region string, addrs []netip.Addr) (*Host, error) {
	h := &Host{Name: name, Region: region, net: n, t: n.t, calls: make(chan func())}
	h.dir = filepath.Join(n.dir, name)
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		return nil, err
	}
	ready := make(chan error)
	go func() {
		// The thread is never given back: it ends with this goroutine, and the namespaces with it. Programs are told to die
		// when the thread that started them does.
		runtime.LockOSThread()
		ready <- h.enter(addrs)
		for f := range h.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(h.calls)
		return nil, fmt.Errorf("lab: host %s: %w", name, err)
	}
	return h, nil
}

// enter makes the calling thread live in new namespaces.
func (h *Host) enter(addrs []netip.Addr) error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	h.tid = unix.Gettid()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifreq, err := unix.NewIfreq("wan")
	if err != nil {
		return err
	}
	ifreq.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifreq); err != nil {
		unix.Close(fd)
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	h.tun = os.NewFile(uintptr(fd), "tun of "+h.Name)
	commands := []string{"ip link set lo up", "ip link set wan mtu 1400 txqueuelen 10000 up"}
	for _, a := range addrs {
		commands = append(commands, fmt.Sprintf("ip address add %s dev wan nodad", netip.PrefixFrom(a, a.BitLen())))
		if a.Is6() {
			commands = append(commands, "ip -6 route replace default dev wan src "+a.String())
		}
	}
	for _, a := range addrs {
		if a.Is4() {
			commands = append(commands, "ip route replace default dev wan src "+a.String())
			break
		}
	}
	for _, c := range commands {
		if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
}

// do runs f on the host's thread.
func (h *Host) do(f func()) {
	done := make(chan struct{})
	h.calls <- func() { defer close(done); f() }
	<-done
}

// File writes a file for the host's programs and returns its path.
func (h *Host) File(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// Dir returns a directory for the host's programs.
func (h *Host) Dir() string { return h.dir }

// ResolveBy has the host's programs ask the resolver.
func (h *Host) ResolveBy(resolver netip.Addr) {
	h.t.Helper()
	conf := h.File("resolv.conf", "nameserver "+resolver.String()+"\noptions timeout:2 attempts:3\n")
	var err error
	h.do(func() { err = unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, "") })
	if err != nil {
		h.t.Fatalf("lab: host %s: mount resolv.conf: %v", h.Name, err)
	}
}

// Listen opens a listener of this process on the host.
func (h *Host) Listen(network, address string) net.Listener {
	h.t.Helper()
	var l net.Listener
	var err error
	h.do(func() { l, err = net.Listen(network, address) })
	if err != nil {
		h.t.Fatalf("lab: host %s: %v", h.Name, err)
	}
	h.t.Cleanup(func() { l.Close() })
	return l
}

// ListenPacket is Listen for datagrams.
func (h *Host) ListenPacket(network, address string) net.PacketConn {
	h.t.Helper()
	var c net.PacketConn
	var err error
	h.do(func() { c, err = net.ListenPacket(network, address) })
	if err != nil {
		h.t.Fatalf("lab: host %s: %v", h.Name, err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// Dial connects from the host, as net.DialTimeout does.
func (h *Host) Dial(network, address string, timeout time.Duration) (c net.Conn, err error) {
	return h.DialFrom("", network, address, timeout)
}

// DialFrom is Dial from one of the host's addresses; "": whichever fits.
func (h *Host) DialFrom(local, network, address string, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: timeout}
	switch ip := net.ParseIP(local); {
	case local == "":
	case network == "udp":
		d.LocalAddr = &net.UDPAddr{IP: ip}
	default:
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	// The thread is the host's for as long as this takes, which is why many connections are opened one after the other.
	h.do(func() { c, err = d.Dial(network, address) })
	return c, err
}

// Serve has an HTTP server of this process answer on the host.
func (h *Host) Serve(address string, handler http.Handler) {
	h.t.Helper()
	s := &http.Server{Handler: handler}
	l := h.Listen("tcp", address)
	go s.Serve(l)
	h.t.Cleanup(func() { s.Close() })
}

// Run runs a program to its end and returns what it printed.
func (h *Host) Run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	var err error
	h.do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	return strings.TrimSpace(out.String()), err
}

// Must is Run for what has to succeed.
func (h *Host) Must(name string, args ...string) string {
	h.t.Helper()
	out, err := h.Run(name, args...)
	if err != nil {
		h.t.Fatalf("lab: host %s: %s %s: %v\n%s", h.Name, name, strings.Join(args, " "), err, out)
	}
	return out
}

// A Process is a program that runs on a host until it is stopped, or the test ends.
type Process struct {
	host *Host
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// Start starts a program. What it prints is shown when the test fails.
func (h *Host) Start(name string, args ...string) *Process {
	h.t.Helper()
	p := &Process{host: h, name: filepath.Base(name), cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Dir = h.dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var err error
	h.do(func() { err = p.cmd.Start() })
	if err != nil {
		h.t.Fatalf("lab: host %s: %s: %v", h.Name, name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is read from the process's state
		close(p.done)
	}()
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.net.processes = append(h.net.processes, p)
	return p
}

// Write implements io.Writer for the program's output.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Log returns what the program has printed so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// Signal sends a signal to the program and what it has started.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// Kill ends the program at once, as a power cut would.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Exited reports whether the program has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// CPU returns the CPU time that the program's process has used, to the nanosecond.
func (p *Process) CPU() time.Duration {
	p.host.t.Helper()
	const sched = 2 // with the process's number it is the id of its clock, as clock_getcpuclockid makes it
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|sched), &ts); err != nil {
		p.host.t.Fatalf("lab: CPU time of %s on %s: %v", p.name, p.host.Name, err)
	}
	return time.Duration(ts.Nano())
}

// Memory returns how many bytes of the program are in memory now, and were at most.
func (p *Process) Memory() (now, most int64) {
	p.host.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.host.t.Fatalf("lab: memory of %s on %s: %v", p.name, p.host.Name, err)
	}
	for line := range strings.Lines(string(text)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kB); n == 1 {
			now = kB << 10
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kB); n == 1 {
			most = kB << 10
		}
	}
	return now, most
}

// Traffic returns how many bytes the host has received and sent over the router, with the headers of IP.
func (h *Host) Traffic() (received, sent int64) {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", h.tid))
	if err != nil {
		h.t.Fatalf("lab: host %s: %v", h.Name, err)
	}
	for line := range strings.Lines(string(text)) {
		// NAME: bytes packets errs drop fifo frame compressed multicast bytes ...
		if f := strings.Fields(line); len(f) > 9 && f[0] == "wan:" {
			received, _ = strconv.ParseInt(f[1], 10, 64)
			sent, _ = strconv.ParseInt(f[9], 10, 64)
		}
	}
	return received, sent
}

// stop ends the program in order, or by force after some seconds.
func (p *Process) stop() {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(8 * time.Second):
		p.Kill()
	}
}

// Wire joins two hosts by a cable of their own, beside the router: a veth pair with an address in CIDR form at each end.
func (n *Network) Wire(a *Host, nameA, addrA string, b *Host, nameB, addrB string) {
	n.t.Helper()
	a.Must("ip", "link", "add", nameA, "type", "veth", "peer", "name", nameB, "netns", fmt.Sprint(b.tid))
	for _, end := range []struct {
		h          *Host
		name, addr string
	}{{a, nameA, addrA}, {b, nameB, addrB}} {
		end.h.Must("ip", "address", "add", end.addr, "dev", end.name)
		end.h.Must("ip", "link", "set", end.name, "up")
	}
}

// Forward lets the host route packets between its interfaces.
func (h *Host) Forward() {
	h.t.Helper()
	h.Must("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done")
}
