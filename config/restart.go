package config

import (
	"fmt"
	"strings"
)

// NeedsRestart names the settings that differ between old, which the running process was started with, and c, and that
// a reload cannot change: each with both values.
func (c *Config) NeedsRestart(old *Config) []string {
	var out []string
	encrypted := map[bool]string{false: "HTTP", true: "HTTPS"}
	for _, s := range []struct {
		key      string
		old, now any
	}{
		{"dns.listen", strings.Join(old.DNS.Listen, ", "), strings.Join(c.DNS.Listen, ", ")},
		{"dns.nsid", old.DNS.NSID, c.DNS.NSID},
		{"dns.version", old.DNS.Version, c.DNS.Version},
		{"dns.max_udp_payload", old.DNS.MaxUDPPayload, c.DNS.MaxUDPPayload},
		{"dns.tcp.idle_timeout", short(old.DNS.TCP.IdleTimeout), short(c.DNS.TCP.IdleTimeout)},
		{"dns.tcp.max_connections", old.DNS.TCP.MaxConnections, c.DNS.TCP.MaxConnections},
		{"dns.tcp.max_connections_per_client", old.DNS.TCP.MaxConnectionsPerClient, c.DNS.TCP.MaxConnectionsPerClient},
		{"dns.tls.listen", strings.Join(old.DNS.TLS.Listen, ", "), strings.Join(c.DNS.TLS.Listen, ", ")},
		{"reports.listen", old.Reports.Listen, c.Reports.Listen},
		{"reports.tls", encrypted[old.Reports.TLS.Certificate != ""], encrypted[c.Reports.TLS.Certificate != ""]},
		{"admin.listen", old.Admin.Listen, c.Admin.Listen},
		{"admin.tls", encrypted[old.Admin.TLS.Certificate != ""], encrypted[c.Admin.TLS.Certificate != ""]},
		{"admin.telemetry_per_service", old.Admin.TelemetryPerService, c.Admin.TelemetryPerService},
		{"state.directory", old.State.Directory, c.State.Directory},
		{"state.etcd.endpoints", strings.Join(old.State.Etcd.Endpoints, ", "), strings.Join(c.State.Etcd.Endpoints, ", ")},
		{"state.etcd.prefix", old.State.Etcd.Prefix, c.State.Etcd.Prefix},
		{"state.etcd.certificate", old.State.Etcd.Certificate, c.State.Etcd.Certificate},
		{"state.etcd.key", old.State.Etcd.Key, c.State.Etcd.Key},
		{"state.etcd.ca", old.State.Etcd.CA, c.State.Etcd.CA},
		{"log.format", old.Log.Format, c.Log.Format},
		{"log.queries", old.Log.Queries, c.Log.Queries},
		{"dnstap.file", old.Dnstap.File, c.Dnstap.File},
		{"dnstap.socket", old.Dnstap.Socket, c.Dnstap.Socket},
		{"dnstap.share", old.Dnstap.Share, c.Dnstap.Share},
	} {
		switch {
		case s.old == s.now:
		case s.now == "": // "nothing needs a restart" would say the opposite
			out = append(out, fmt.Sprintf("%s: %s is in force, its removal needs a restart", s.key, s.old))
		default:
			out = append(out, fmt.Sprintf("%s: %s is in force, %s needs a restart", s.key, shown(s.old), shown(s.now)))
		}
	}
	return out
}

// shown shows a setting that is in force.
func shown(v any) string {
	if v == "" {
		return "nothing"
	}
	return fmt.Sprint(v)
}
