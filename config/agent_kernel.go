package config

import (
	"fmt"
	"net/netip"
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
}
