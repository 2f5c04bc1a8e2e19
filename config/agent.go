package config

import (
	"net/netip"
	"time"
)

// Agent is the file of gslb-agent, with all defaults resolved. The environment's prefix is GSLB_AGENT_.
type Agent struct {
	// Site is the name of the site in gslbd's configuration. Required.
	Site string `mapstructure:"site" required:"true" as:"name"`
	// Agent tells several agents of a site apart. Default: the host's name.
	Agent string `mapstructure:"agent" as:"name"`
	// Servers are the URLs (http or https, no path) of every gslbd; each gets every report. Required, 1 to 64.
	Servers []string `mapstructure:"servers" required:"true" as:"url" size:"64"`
	// TLS is what the agent speaks https with.
	TLS AgentTLS `mapstructure:"tls"`
	// TokenFile holds the token of sites[].token_file of gslbd; of several lines, the first counts. Default: none; without a
	// client certificate, gslbd then accepts reports from loopback only. It is read again when it changes.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// Interval is the time between reports until the answer of a gslbd overrides it. 1s to 1m, default 5s.
	Interval time.Duration `mapstructure:"interval" default:"5s" min:"1s" max:"1m"`

	RTT            AgentRTT             `mapstructure:"rtt"`
	PassiveRTT     PassiveRTT           `mapstructure:"passive_rtt"`
	Draining       AgentDraining        `mapstructure:"draining"`
	HAProxy        []HAProxy            `mapstructure:"haproxy" size:"64"`
	Nginx          []NginxStatus        `mapstructure:"nginx" size:"64"`
	NginxPlus      []NginxPlus          `mapstructure:"nginx_plus" size:"64"`
	Envoy          []AgentEnvoy         `mapstructure:"envoy" size:"64"`
	Prometheus     []AgentPrometheus    `mapstructure:"prometheus" size:"64"`
	Exec           []AgentExec          `mapstructure:"exec" size:"64"`
	VirtualServers []AgentVirtualServer `mapstructure:"virtual_servers" size:"1000"`
	IPVS           IPVS                 `mapstructure:"ipvs"`
	Keepalived     Keepalived           `mapstructure:"keepalived"`
	SNMP           []SNMP               `mapstructure:"snmp" size:"64"`
	Counters       *Counters            `mapstructure:"counters"`
	Linux          Linux                `mapstructure:"linux"`
	Telemetry      AgentTelemetry       `mapstructure:"telemetry"`
	Log            AgentLog             `mapstructure:"log"`
}

// AgentTLS says how the agent proves itself to the gslbd that are https, and they to it. Its files are read again when they
// change.
type AgentTLS struct {
	// CA is a PEM file of the authorities that vouch for the gslbd. Default: those of the system.
	CA string `mapstructure:"ca" as:"path"`
	// Certificate is a PEM file of the client certificate, whose name is the site, and its chain. Default: none.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of the certificate's private key, which only its owner may read.
	Key string `mapstructure:"key" as:"path"`
}

// AgentRTT says how the agent measures round trips to the resolvers that gslbd names.
type AgentRTT struct {
	// Enabled says whether the agent probes at all. Default true.
	Enabled bool `mapstructure:"enabled" default:"true"`
	// Rate is the most probes a second, of three packets each. 1 to 3000, default 200: 10,000 resolvers in a minute.
	Rate int `mapstructure:"rate" default:"200" min:"1" max:"3000" unit:"probes a second"`
	// Methods are tried in this order, and the first that answers counts: icmp, tcp, dns. Default [icmp]. Where rtt.methods of
	// gslbd asks for more than icmp, it counts in their place.
	Methods []string `mapstructure:"methods" default:"icmp" enum:"icmp|tcp|dns"`
}

// PassiveRTT says whether and how the agent takes round trips from the connections of the load balancer's own clients.
type PassiveRTT struct {
	// Enabled says whether the agent reads them off the kernel's TCP sockets. Default false.
	Enabled bool `mapstructure:"enabled"`
	// Interval is the least time between two scans; one waits longer where they would take more than 10 % of a core.
	// 5s to 1m, default 30s.
	Interval time.Duration `mapstructure:"interval" default:"30s" min:"5s" max:"1m"`
	// MinConnections is of how many different connections of a network, /24 or /56, at least a value is made. 1 to 32, default 3.
	MinConnections int `mapstructure:"min_connections" default:"3" min:"1" max:"32" unit:"connections"`
	// MaxPrefixes is the most networks kept; those with the most connections are. 1 to 20000, default 10000.
	MaxPrefixes int `mapstructure:"max_prefixes" default:"10000" min:"1" max:"20000" unit:"networks"`
}

// AgentDraining says what the agent may do at the load balancer. All else that it does is reading.
type AgentDraining struct {
	// Enabled lets the agent, as gslbd agree, end the sessions of virtual servers that every service has left, and set
	// servers to drain and back for an evacuation. HAProxy's socket then needs level admin. Default false.
	Enabled bool `mapstructure:"enabled"`
}

// HAProxy is one HAProxy process to read: reader 1.
type HAProxy struct {
	// Socket is the runtime socket: an absolute unix path, or host:port. Required; no socket is listed twice.
	Socket string `mapstructure:"socket" required:"true" as:"socket"`
	// Timeout bounds one reading. 100ms to 30s, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"100ms" max:"30s"`
	// VirtualServers pairs frontends with backends. Required, 1 to 1000.
	VirtualServers []HAProxyVirtualServer `mapstructure:"virtual_servers" required:"true" size:"1000"`
}

// HAProxyVirtualServer pairs the frontend that takes a virtual server's sessions with the backend of its servers.
type HAProxyVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Frontend is the proxy whose sessions, rate and bytes are read. Required.
	Frontend string `mapstructure:"frontend" required:"true" as:"label"`
	// Backend is the proxy whose servers are read. Required.
	Backend string `mapstructure:"backend" required:"true" as:"label"`
	// Address is the VIP, by which gslbd matches members. Default: none; then members must name the virtual server.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
}

// AgentVirtualServer is a virtual server whose servers the agent checks itself: reader 2. Its sessions come from Linux.
type AgentVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Address is the VIP. Required.
	Address netip.Addr `mapstructure:"address" required:"true"`
	// Port of the VIP. Required, 1 to 65535.
	Port uint16 `mapstructure:"port" required:"true" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
	// Servers are the machines behind the VIP. Required, 1 to 1000.
	Servers []AgentServer `mapstructure:"servers" required:"true" size:"1000"`
	// Check is how the agent checks them. Required. Its port, where given, stands in for each server's own.
	Check *HealthCheck `mapstructure:"check" required:"true"`
}

// AgentServer is one machine behind a virtual server.
type AgentServer struct {
	// Name is required and unique within the virtual server.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Address is the server's address and port. Required, unique within the virtual server.
	Address netip.AddrPort `mapstructure:"address" required:"true"`
}

// Linux says what is read from the kernel, for sites whose load balancer is the machine itself.
type Linux struct {
	// Interface is the network interface whose counters give the bandwidth. Default: none; bandwidth then comes from
	// HAProxy or is not reported.
	Interface string `mapstructure:"interface" as:"interface"`
	// Sessions says whether established sockets to the ports of virtual_servers are counted. Default true.
	Sessions bool `mapstructure:"sessions" default:"true"`
}

// AgentTelemetry says where the agent tells Prometheus how it does.
type AgentTelemetry struct {
	// Listen is the address of /metrics and /healthz. Whoever reaches it may read. Default: none; the agent opens no port.
	Listen string `mapstructure:"listen" as:"listen"`
}

// AgentLog says how the agent logs.
type AgentLog struct {
	// Level is the least severe level logged: debug, info, warn or error. Default info.
	Level string `mapstructure:"level" default:"info" enum:"debug|info|warn|error"`
	// Format is json or text. Default json.
	Format string `mapstructure:"format" default:"json" enum:"json|text"`
}
