package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"
)

// IPVS says which services of the kernel's load balancer are read.
type IPVS struct {
	// VirtualServers are the services that are read, at most 1000. Default: none.
	VirtualServers []IPVSVirtualServer `mapstructure:"virtual_servers" size:"1000"`
}

// IPVSVirtualServer is one service of IPVS.
type IPVSVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Fwmark is the firewall mark by which the service is found, in place of address and port. Default 0: not by a mark.
	Fwmark uint32 `mapstructure:"fwmark" min:"1" max:"4294967295"`
	// Address is the VIP. Required without fwmark; with it, only reported.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. Required without fwmark; with it, only reported. 1 to 65535.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
}

// Keepalived says which virtual addresses this machine shares with another one by VRRP.
type Keepalived struct {
	// Addresses are the virtual addresses of the VRRP instances, at most 1000. Default: none; all are then this machine's.
	Addresses []netip.Addr `mapstructure:"addresses" size:"1000"`
	// Interface is the network interface that has them on the master. Default: any.
	Interface string `mapstructure:"interface" as:"interface"`
	// PIDFile is where keepalived keeps the number of its process. Default /run/keepalived.pid.
	PIDFile string `mapstructure:"pid_file" as:"path" default:"/run/keepalived.pid"`
	// VirtualServers are those that nothing else reads: up on the master. Default: none.
	VirtualServers []KeepalivedVirtualServer `mapstructure:"virtual_servers" size:"1000"`
}

// KeepalivedVirtualServer is a virtual server whose health is the state of its VRRP instance.
type KeepalivedVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Address is the VIP, one of addresses. Required.
	Address netip.Addr `mapstructure:"address" required:"true"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
}

// Counters says which counters of the packet filter give the site's bandwidth.
type Counters struct {
	// From is whose counters they are: nft (named counters) or iptables (rules with a comment). Required.
	From string `mapstructure:"from" required:"true" enum:"nft|iptables"`
	// Table has the counters: of nft its family and name, of iptables its name. Default "inet gslb", of iptables filter.
	Table string `mapstructure:"table" default:"inet gslb|iptables=filter" as:"shorttext"`
	// In are the counters of traffic from clients: names of nft, comments of iptables. Required, 1 to 1000.
	In []string `mapstructure:"in" required:"true" as:"label" size:"1000"`
	// Out are those of traffic to clients. Required, 1 to 1000.
	Out []string `mapstructure:"out" required:"true" as:"label" size:"1000"`
	// Programs print the rules of iptables, by absolute path, at most 4. Default [/usr/sbin/iptables-save].
	Programs []string `mapstructure:"programs" default:"/usr/sbin/iptables-save" as:"path" size:"4" for:"iptables"`
	// Timeout bounds one reading. 100ms to 30s, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"100ms" max:"30s"`
}

// kernelReaders checks what is read from the kernel. names are those of the virtual servers.
func (d *decoder) kernelReaders(a *Agent, names map[string]string) {
	services := map[string]string{}
	for i, v := range a.IPVS.VirtualServers {
		path := at("ipvs.virtual_servers", i)
		d.unique(names, v.Name, path+".name")
		switch {
		case v.Fwmark > 0:
			d.unique(services, fmt.Sprint("fwmark ", v.Fwmark), path+".fwmark")
		case d.failed[path+".fwmark"]:
		case !v.Address.IsValid() || v.Port == 0:
			for key, missing := range map[string]bool{".address": !v.Address.IsValid(), ".port": v.Port == 0} {
				if missing && !d.failed[path+key] {
					d.fail(path+key, "is missing: a service of IPVS is found by address and port, or by fwmark")
				}
			}
		default:
			d.unique(services, netip.AddrPortFrom(v.Address, v.Port).String()+"/"+v.Protocol, path+".address")
		}
	}
	k := &a.Keepalived
	k.PIDFile = d.resolve(k.PIDFile)
	for i, v := range k.VirtualServers {
		path := at("keepalived.virtual_servers", i)
		d.unique(names, v.Name, path+".name")
		if v.Address.IsValid() && !slices.Contains(k.Addresses, v.Address) && !d.failed["keepalived.addresses"] {
			d.fail(path+".address", "%s is not in keepalived.addresses", v.Address)
		}
	}
	if len(k.Addresses) > 0 {
		d.withoutAddress(a)
	}
	d.counters(a)
}

// counters checks the counters of the packet filter.
func (d *decoder) counters(a *Agent) {
	c := a.Counters
	if c == nil {
		return
	}
	for key, missing := range map[string]bool{"from": c.From == "", "in": len(c.In) == 0, "out": len(c.Out) == 0} {
		if path := "counters." + key; missing && !d.failed[path] { // the environment gave the section alone
			d.fail(path, "is missing")
		}
	}
	for i, name := range c.Out {
		if slices.Contains(c.In, name) {
			d.fail(at("counters.out", i), "%q is in counters.in as well", name)
		}
	}
	for i, program := range c.Programs {
		if !filepath.IsAbs(program) {
			d.fail(at("counters.programs", i), "%s is not an absolute path", quote(program))
		}
	}
	if a.Linux.Interface != "" {
		d.fail("counters", "linux.interface gives the site's bandwidth already: remove one of them")
	}
}

// withoutAddress warns of virtual servers whose VIP is not told, where it decides what is reported.
func (d *decoder) withoutAddress(a *Agent) {
	warn := func(path string, address netip.Addr) {
		if !address.IsValid() {
			d.warn(path, "has no address, so it is reported by the standby of keepalived too: write its VIP")
		}
	}
	for i, h := range a.HAProxy {
		for j, v := range h.VirtualServers {
			warn(at(at("haproxy", i)+".virtual_servers", j), v.Address)
		}
	}
	for i, n := range a.NginxPlus {
		for j, v := range n.VirtualServers {
			warn(at(at("nginx_plus", i)+".virtual_servers", j), v.Address)
		}
	}
	for i, e := range a.Envoy {
		for j, v := range e.VirtualServers {
			warn(at(at("envoy", i)+".virtual_servers", j), v.Address)
		}
	}
	for i, p := range a.Prometheus {
		for j, v := range p.VirtualServers {
			warn(at(at("prometheus", i)+".virtual_servers", j), v.Address)
		}
	}
	for i, s := range a.SNMP {
		for j, v := range s.VirtualServers {
			warn(at(at("snmp", i)+".virtual_servers", j), v.Address)
		}
	}
	for i, v := range a.IPVS.VirtualServers {
		warn(at("ipvs.virtual_servers", i), v.Address)
	}
}
