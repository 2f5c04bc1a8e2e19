package config

import (
	"net/netip"
	"time"
)

// RTT is the section rtt: measuring round trips from the sites to the resolvers that ask.
type RTT struct {
	// Methods are tried in this order, and the first that answers counts: icmp, tcp, dns. Default [icmp].
	Methods []string `mapstructure:"methods" default:"icmp" enum:"icmp|tcp|dns"`
	// Prefix says how wide a network shares its round trips.
	Prefix RTTPrefix `mapstructure:"prefix"`
	// Refresh is the least time between two probes of a site to a resolver. 10s to 24h, default 5m.
	Refresh time.Duration `mapstructure:"refresh" default:"5m" min:"10s" max:"24h"`
	// SilentFor is how long a resolver that does not answer is left alone. 10s to 24h, default 10m.
	SilentFor time.Duration `mapstructure:"silent_for" default:"10m" min:"10s" max:"24h"`
	// MaxTargets is the most networks kept. 1 to 10000000, default 100000.
	MaxTargets int `mapstructure:"max_targets" default:"100000" min:"1" max:"10000000" unit:"networks"`
	// MaxSites is the most sites that probe a network, the nearest first. 1 to 64, default 8.
	MaxSites int `mapstructure:"max_sites" default:"8" min:"1" max:"64" unit:"sites"`
	// Exempt are prefixes that are never probed. Default: none.
	Exempt []netip.Prefix `mapstructure:"exempt" size:"10000"`
}

// RTTPrefix is the section rtt.prefix, in bits.
type RTTPrefix struct {
	// IPv4 is the length for IPv4. 8 to 32, default 24.
	IPv4 int `mapstructure:"ipv4" default:"24" min:"8" max:"32" unit:"bits"`
	// IPv6 is the length for IPv6. 16 to 64 (what is beyond identifies hosts), default 56.
	IPv6 int `mapstructure:"ipv6" default:"56" min:"16" max:"64" unit:"bits"`
}
