package config

import (
	"net/netip"
	"net/url"
	"os"
	"strings"
)

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
	d.tokens(a.TokenFile, "token_file") // only whether it can be used: whoever presents it reads it again
	d.agentTLS(a)

	nothing := true
	for key, entries := range a.reported() {
		section, _, _ := strings.Cut(key, ".")
		nothing = nothing && entries == 0 && !d.failed[key] && !d.failed[section]
	}
	if nothing {
		d.fail("", "there is nothing to report: write virtual_servers, or what is to be read, such as haproxy")
	}
	names, sockets := map[string]string{}, map[string]string{}
	for i, h := range a.HAProxy {
		path := at("haproxy", i)
		d.unique(sockets, h.Socket, path+".socket")
		for j, vs := range h.VirtualServers {
			d.unique(names, vs.Name, at(path+".virtual_servers", j)+".name")
		}
	}
	d.checkHTTPReaders(a, names)
	d.checkExec(a)
	d.kernelReaders(a, names)
	d.snmpReaders(a, names)
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

// reported returns how many entries each list has of what something is reported of.
func (a *Agent) reported() map[string]int {
	return map[string]int{
		"haproxy":                    len(a.HAProxy),
		"nginx":                      len(a.Nginx),
		"nginx_plus":                 len(a.NginxPlus),
		"envoy":                      len(a.Envoy),
		"prometheus":                 len(a.Prometheus),
		"exec":                       len(a.Exec),
		"snmp":                       len(a.SNMP),
		"ipvs.virtual_servers":       len(a.IPVS.VirtualServers),
		"keepalived.virtual_servers": len(a.Keepalived.VirtualServers),
		"virtual_servers":            len(a.VirtualServers),
	}
}

// agentTLS checks what the agent speaks https with, and warns where it does not.
func (d *decoder) agentTLS(a *Agent) {
	t := &a.TLS
	d.certificate(&t.Certificate, &t.Key, "tls", "")
	t.CA = d.resolve(t.CA)
	d.checkFile(t.CA, "tls.ca")
	https := false
	for i, server := range a.Servers {
		https = https || strings.HasPrefix(server, "https:")
		if u, err := url.Parse(server); err == nil && u.Scheme == "http" && a.TokenFile != "" && !localName(u.Hostname()) {
			d.warn(at("servers", i), "%s is sent the token in plain HTTP: whoever is on the path can read it, and report for the site; use https (reports.tls of gslbd)", server)
		}
	}
	for _, f := range []struct{ file, key string }{{t.CA, "tls.ca"}, {t.Certificate, "tls.certificate"}} {
		if f.file != "" && !https && !d.failed["servers"] {
			d.warn(f.key, "has no effect: no entry of servers is https")
		}
	}
}

// localName reports whether host is this machine.
func localName(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback() || host == "localhost"
}
