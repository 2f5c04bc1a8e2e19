package sitereport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// KeepalivedOptions configure a Keepalived reader.
type KeepalivedOptions struct {
	// Addresses are the virtual addresses of the VRRP instances.
	Addresses []netip.Addr

	// Interface is the network interface that has them while this machine is their master; "": any.
	Interface string

	// PIDFile is where keepalived keeps the number of its process.
	PIDFile string

	// VirtualServers are those that no other reader knows: up while this machine is the master of their address.
	VirtualServers []KeepalivedVirtualServer
}

// A KeepalivedVirtualServer is a virtual server whose health is the state of its VRRP instance.
type KeepalivedVirtualServer struct {
	Name     string
	Address  netip.Addr // one of KeepalivedOptions.Addresses
	Port     uint16
	Protocol string
}

// A Keepalived tells whether this machine, one of a pair, is the master of its virtual addresses.
//
// The master is the one that has the address, while keepalived runs: this needs no permission and no word in
// keepalived.conf, and it is what the network goes by. A keepalived that was killed leaves its address behind, so one
// that does not run is master of nothing.
//
// A machine that is not the master knows nothing of a virtual address, neither that it is up nor that it is down, for the
// other one may serve it: Reading.Elsewhere. gslbd then listens to the agent of the other.
type Keepalived struct {
	opts KeepalivedOptions
	proc string // /proc
}

// NewKeepalived returns a reader.
func NewKeepalived(opts KeepalivedOptions) *Keepalived { return &Keepalived{opts: opts, proc: "/proc"} }

// Read looks once.
func (k *Keepalived) Read(context.Context) (Reading, error) {
	r := Reading{Elsewhere: make(map[netip.Addr]string), Yields: AllFigures}
	here, err := k.addresses()
	var stopped string
	if err == nil {
		stopped, err = k.stopped()
	}
	if stopped != "" {
		r.Warnings = append(r.Warnings, stopped)
	}
	for _, a := range k.opts.Addresses {
		switch {
		case err != nil:
			r.Elsewhere[a] = err.Error()
		case stopped != "":
			r.Elsewhere[a] = stopped
		case !here[a]:
			r.Elsewhere[a] = fmt.Sprintf("%s is not on this machine: keepalived is not MASTER here", a)
		}
	}
	for _, v := range k.opts.VirtualServers {
		s := Server{Name: "keepalived", Address: v.Address.String(), State: StateUp}
		if why, elsewhere := r.Elsewhere[v.Address]; elsewhere {
			s.State, s.Reason = StateUnknown, why
		}
		r.VirtualServers = append(r.VirtualServers, VirtualServer{
			Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Servers: []Server{s},
		})
	}
	if err != nil {
		err = fmt.Errorf("keepalived: %w", err)
	}
	return r, err
}

// addresses returns those that this machine has.
func (k *Keepalived) addresses() (map[netip.Addr]bool, error) {
	list := net.InterfaceAddrs
	if k.opts.Interface != "" {
		list = func() ([]net.Addr, error) {
			i, err := net.InterfaceByName(k.opts.Interface)
			if err != nil {
				return nil, fmt.Errorf("network interface %q: %w", k.opts.Interface, err)
			}
			return i.Addrs()
		}
	}
	all, err := list()
	if err != nil {
		return nil, err
	}
	here := make(map[netip.Addr]bool)
	for _, a := range all {
		if p, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(p.IP); ok {
				here[addr.Unmap()] = true
			}
		}
	}
	return here, nil
}

// stopped says that keepalived does not run, or "".
func (k *Keepalived) stopped() (string, error) {
	b, err := os.ReadFile(k.opts.PIDFile)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("keepalived does not run here: there is no %s", k.opts.PIDFile), nil
	}
	if err != nil {
		return "", err
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || pid <= 0 {
		return "", fmt.Errorf("%s holds no number of a process", k.opts.PIDFile)
	}
	// Signal 0 only asks, and "not permitted" is an answer. Its name and state are looked at where they may be seen, because
	// another process may have the number by now, and one that ended may wait for its parent to see it (proc(5)).
	alive := syscall.Kill(int(pid), 0)
	stat, unseen := os.ReadFile(filepath.Join(k.proc, strconv.FormatInt(pid, 10), "stat"))
	_, is, _ := strings.Cut(string(stat), " ")
	if errors.Is(alive, syscall.ESRCH) || unseen == nil && (!strings.HasPrefix(is, "(keepalived) ") || strings.HasPrefix(is, "(keepalived) Z")) {
		return fmt.Sprintf("keepalived does not run here: process %d of %s is not it", pid, k.opts.PIDFile), nil
	}
	return "", nil
}
