package config

import (
	"net/netip"
	"time"
)

// DNS is the section dns: how the server speaks DNS.
type DNS struct {
	// Listen are the addresses (IP:port; ":53" is every address) served, UDP and TCP on each. Default
	// [127.0.0.1:5300], at most 64.
	Listen []string `mapstructure:"listen" default:"127.0.0.1:5300" as:"listen" size:"64"`
	// NSID is returned to those who ask for it (RFC 5001). At most 128 bytes; default: empty, no NSID.
	NSID string `mapstructure:"nsid" as:"shorttext"`
	// ECS says whether the client subnet option (RFC 7871) is honoured; zones[].ecs may switch it off for a zone.
	// Default true.
	ECS bool `mapstructure:"ecs" default:"true"`
	// MaxUDPPayload is the largest UDP response in bytes. 512 (RFC 1035) to 4096, default 1232, which fits every path
	// without fragments.
	MaxUDPPayload int `mapstructure:"max_udp_payload" default:"1232" min:"512" max:"4096" unit:"bytes"`
	// DrainTime is how long sockets stay open after readiness has failed at shutdown. 0s to 5m, default 5s.
	DrainTime time.Duration `mapstructure:"drain_time" default:"5s" min:"0s" max:"5m"`
	// Version is the answer to version.bind (CH TXT). At most 128 bytes; default: empty, which refuses the question.
	Version string `mapstructure:"version" as:"shorttext"`

	Cookies   Cookies   `mapstructure:"cookies"`
	RateLimit RateLimit `mapstructure:"rate_limit"`
	TCP       TCP       `mapstructure:"tcp"`
	TLS       DNSTLS    `mapstructure:"tls"`
}

// TCP is the section dns.tcp.
type TCP struct {
	// IdleTimeout closes a connection without a query (RFC 7766 section 6.2.3). 100ms to 10m, default 10s.
	IdleTimeout time.Duration `mapstructure:"idle_timeout" default:"10s" min:"100ms" max:"10m"`
	// MaxConnections is the most connections at a time; one more sheds the one that is idle longest. 1 to 100000,
	// default 1000.
	MaxConnections int `mapstructure:"max_connections" default:"1000" min:"1" max:"100000" unit:"connections"`
	// MaxConnectionsPerClient is the most of them from one client network (IPv4 /24, IPv6 /56). 1 to 100000, default
	// 100.
	MaxConnectionsPerClient int `mapstructure:"max_connections_per_client" default:"100" min:"1" max:"100000" unit:"connections"`
}

// Cookies is the section dns.cookies (RFC 7873, RFC 9018).
type Cookies struct {
	// Enabled says whether a client's cookie is answered. Default true.
	Enabled bool `mapstructure:"enabled" default:"true"`
	// SecretFile holds the secrets, 32 hexadecimal digits a line: the first makes cookies, up to two more are accepted.
	// Default: none, a secret is made up at the start, which other servers of a fleet cannot share.
	SecretFile string `mapstructure:"secret_file" as:"path"`
	// Secrets are what SecretFile holds, 16 bytes each.
	Secrets []Secret `mapstructure:"-"`
}

// RateLimit is the section dns.rate_limit: how fast UDP responses go to one client network (IPv4 /24, IPv6 /56),
// separately for each name, and for all that does not exist in a zone. A reload changes all of it.
type RateLimit struct {
	// ResponsesPerSecond is the rate, and how many a network that was quiet gets at once. 0 to 100000, default 0: off.
	ResponsesPerSecond int `mapstructure:"responses_per_second" default:"0" min:"0" max:"100000" unit:"responses a second"`
	// Slip sends every so manieth limited response truncated, so that a real client asks again over TCP; 0 sends none,
	// 1 all. 0 to 10, default 2.
	Slip int `mapstructure:"slip" default:"2" min:"0" max:"10"`
	// Exempt are client networks that are never limited. Default: none, at most 10000.
	Exempt []netip.Prefix `mapstructure:"exempt" size:"10000"`
	// LogOnly counts and logs in place of limiting. Default false.
	LogOnly bool `mapstructure:"log_only" default:"false"`
}

// DNSTLS is the section dns.tls: DNS over TLS (RFC 7858). The limits of dns.tcp are for both together.
type DNSTLS struct {
	// Listen are the addresses (IP:port; ":853" is every address) served. Default: none, at most 64. Not port 53.
	Listen []string `mapstructure:"listen" as:"listen" size:"64"`
	// Certificate is a PEM file of the certificate and its chain. Default: none; listen needs one.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of the certificate's private key, which only its owner may read. Default: none; listen needs one.
	Key string `mapstructure:"key" as:"path"`
}
