package main

import (
	"gslbd/config"
	"gslbd/sitereport"
)

// readKernel adds the readers of what Linux balances and counts.
func (p *parts) readKernel(c *config.Agent) error {
	if servers := c.IPVS.VirtualServers; len(servers) > 0 {
		var opts sitereport.IPVSOptions
		for _, v := range servers {
			opts.VirtualServers = append(opts.VirtualServers, sitereport.IPVSVirtualServer{
				Name: v.Name, Mark: v.Fwmark, Address: v.Address, Port: v.Port, Protocol: v.Protocol,
			})
		}
		p.readers = append(p.readers, namedReader{sitereport.NewIPVS(opts), "ipvs"})
		p.virtualServers += len(servers)
	}
	if k := c.Keepalived; len(k.Addresses) > 0 {
		opts := sitereport.KeepalivedOptions{Addresses: k.Addresses, Interface: k.Interface, PIDFile: k.PIDFile}
		for _, v := range k.VirtualServers {
			opts.VirtualServers = append(opts.VirtualServers, sitereport.KeepalivedVirtualServer(v))
		}
		p.readers = append(p.readers, namedReader{sitereport.NewKeepalived(opts), "keepalived"})
		p.virtualServers += len(k.VirtualServers)
	}
	if n := c.Counters; n != nil {
		r, err := sitereport.NewCounters(sitereport.CountersOptions{Table: n.Table, Programs: n.Programs, In: n.In, Out: n.Out, Timeout: n.Timeout})
		if err != nil {
			return err
		}
		p.readers = append(p.readers, namedReader{r, "counters of table " + n.Table})
	}
	return nil
}
