package config

import "os"

// checkAgent holds the agent's file against the rules that concern more than one value.
func (d *decoder) checkAgent(a *Agent) {
	if a.Agent == "" && !d.failed["agent"] {
		host, err := os.Hostname()
		if err == nil {
			a.Agent, err = nameForm(host)
		}
		if err != nil {
			d.fail("agent", "is missing, and the host's name cannot stand in: %s", err)
		}
	}
	a.TokenFile = d.resolve(a.TokenFile)
	a.Token = d.secret(a.TokenFile, "token_file")

	if len(a.HAProxy) == 0 && len(a.VirtualServers) == 0 && !d.failed["haproxy"] && !d.failed["virtual_servers"] {
		d.fail("", "there is nothing to report: write haproxy or virtual_servers")
	}
	names, sockets := map[string]string{}, map[string]string{}
	for i, h := range a.HAProxy {
		path := at("haproxy", i)
		d.unique(sockets, h.Socket, path+".socket")
		for j, vs := range h.VirtualServers {
			d.unique(names, vs.Name, at(path+".virtual_servers", j)+".name")
		}
	}
	for i, vs := range a.VirtualServers {
		path := at("virtual_servers", i)
		d.unique(names, vs.Name, path+".name")
		servers, addresses := map[string]string{}, map[string]string{}
		for j, s := range vs.Servers {
			at := at(path+".servers", j)
			d.unique(servers, s.Name, at+".name")
			if s.Address.IsValid() {
				d.unique(addresses, s.Address.String(), at+".address")
			}
		}
		if vs.Check != nil {
			d.timing(vs.Check, path+".check")
		}
	}
}
