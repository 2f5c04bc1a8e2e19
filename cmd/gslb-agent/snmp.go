package main

import (
	"fmt"

	"gslbd/config"
	"gslbd/sitereport"
)

// readSNMP adds the readers of devices that speak SNMP.
func (p *parts) readSNMP(c *config.Agent) error {
	for i, s := range c.SNMP {
		r, err := sitereport.NewSNMP(snmpOptions(s))
		if err != nil {
			return fmt.Errorf("snmp[%d]: %w", i, err)
		}
		p.readers = append(p.readers, namedReader{r, "snmp " + s.Address})
		p.virtualServers += len(s.VirtualServers)
	}
	return nil
}

func snmpOptions(s config.SNMP) sitereport.SNMPOptions {
	opts := sitereport.SNMPOptions{
		Address: s.Address, Timeout: s.Timeout, Community: string(s.Community),
		User: s.User, Authentication: s.Authentication, AuthenticationPassword: string(s.AuthenticationPassword),
		Privacy: s.Privacy, PrivacyPassword: string(s.PrivacyPassword),
		Sessions: s.Sessions, NewSessions: s.NewSessions, Connections: s.Connections, OctetsIn: s.OctetsIn, OctetsOut: s.OctetsOut,
	}
	for _, v := range s.VirtualServers {
		out := sitereport.SNMPVirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Sessions: v.Sessions, Names: v.Names}
		for _, c := range v.States {
			out.States = append(out.States, sitereport.SNMPStates(c))
		}
		opts.VirtualServers = append(opts.VirtualServers, out)
	}
	return opts
}
