package probes

import (
	"context"
	"errors"
	"fmt"
	"net"

	probing "github.com/prometheus-community/pro-bing"
	"golang.org/x/sys/unix"
)

// ErrNotPermitted is wrapped by the errors that say that this process may not send ICMP echoes.
var ErrNotPermitted = errors.New("ICMP is not permitted")

// An ICMPMode is a way in which the kernel lets a process ping.
type ICMPMode string

// The ways to ping, in the order in which they are tried.
const (
	Unprivileged ICMPMode = "unprivileged" // a datagram socket, by net.ipv4.ping_group_range
	Raw          ICMPMode = "raw"          // a raw socket, by CAP_NET_RAW
)

// CanICMP says how this process may ping addresses of the family, or an error that says what is missing. It is for
// the start of a program: what the kernel permits may change later.
func CanICMP(ipv6 bool) (ICMPMode, error) {
	fd, mode, err := icmpSocket(ipv6)
	if err != nil {
		return "", err
	}
	return mode, unix.Close(fd)
}

// icmpSocket opens an ICMP socket, non-blocking on Linux, in the first mode that is permitted.
func icmpSocket(ipv6 bool) (fd int, mode ICMPMode, err error) {
	family, protocol, name := unix.AF_INET, unix.IPPROTO_ICMP, "IPv4"
	if ipv6 {
		family, protocol, name = unix.AF_INET6, unix.IPPROTO_ICMPV6, "IPv6"
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|socketFlags, protocol); err == nil {
		return fd, Unprivileged, nil
	}
	if fd, err = unix.Socket(family, unix.SOCK_RAW|socketFlags, protocol); err == nil {
		return fd, Raw, nil
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return -1, "", fmt.Errorf("probes: %w for %s: let the group of this process ping (sysctl net.ipv4.ping_group_range, "+
			"which is for IPv6 too) or give the process CAP_NET_RAW (systemd: AmbientCapabilities=CAP_NET_RAW)", ErrNotPermitted, name)
	}
	return -1, "", fmt.Errorf("probes: ICMP socket for %s: %w", name, err)
}

// icmp sends one echo. A lost one is what fall is for.
func (r *checker) icmp(ctx context.Context, c Check) Outcome {
	mode, err := CanICMP(c.Addr.Is6())
	if err != nil {
		return Outcome{Err: "cannot be run: " + err.Error(), Unrunnable: true}
	}
	p := probing.New("")
	p.SetIPAddr(&net.IPAddr{IP: c.Addr.AsSlice(), Zone: c.Addr.Zone()})
	p.SetPrivileged(mode == Raw)
	p.SetID(int(r.echoIDs.Add(1) & 0xffff))
	p.SetLogger(probing.NoopLogger{})
	p.Count, p.Timeout, p.RecordRtts, p.RecordTTLs = 1, c.Timeout, false, false
	err = p.RunWithContext(ctx)
	stats := p.Statistics()
	switch {
	case stats.PacketsRecv > 0:
		return Outcome{OK: true, Latency: stats.MinRtt}
	case err == nil, errors.Is(err, context.DeadlineExceeded):
		return Outcome{Err: fmt.Sprintf("no answer in %v", c.Timeout), Unreachable: true}
	}
	return failure(err, c, false)
}
