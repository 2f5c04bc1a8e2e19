package config

import (
	"net/netip"
	"time"
)

// Service is one entry of services: a load-balanced name.
type Service struct {
	// Name is lower case, without final dot; its first label may be "*". Required, unique among names and aliases,
	// within a configured zone.
	Name string `mapstructure:"name" required:"true" as:"owner"`
	// Zone is the deepest configured zone that Name lies in.
	Zone string `mapstructure:"-"`
	// Aliases give the same answer under their own names, and share the service's counters. Default: none.
	Aliases []string `mapstructure:"aliases" as:"owner" size:"1000"`
	// Policy names the policy that decides. Default "default".
	Policy string `mapstructure:"policy" default:"default" as:"name"`
	// TTL of the answers in seconds, written without unit. 0 to 86400 (a day: longer hands the decision to caches),
	// default 30.
	TTL uint32 `mapstructure:"ttl" default:"30" min:"0" max:"86400" as:"seconds"`
	// Answers is the most addresses in an answer. 1 to 10, default 1.
	Answers int `mapstructure:"answers" default:"1" min:"1" max:"10" unit:"addresses"`
	// MinHealthy is how many servers of each virtual server must be up. At least 1, or 1% to 100%; default 1.
	MinHealthy Threshold `mapstructure:"min_healthy" default:"1"`
	// OnAllDown is what to answer when no candidate is up: all, last-known-good, backup, nodata or servfail.
	// Default all; nodata where failover.drop_when_all_down is true.
	OnAllDown string `mapstructure:"on_all_down" default:"all" enum:"all|last-known-good|backup|nodata|servfail"`
	// LastResort are the addresses of on_all_down: backup. Default: none, at most 16.
	LastResort []netip.Addr `mapstructure:"last_resort" size:"16"`
	// OnDead is what becomes of a member whose site's reports died: check, keep or down. Default check.
	OnDead string `mapstructure:"on_dead" default:"check" enum:"check|keep|down"`
	// UnknownAs is the state of a member that no source ever covered: up or down. Default up.
	UnknownAs string `mapstructure:"unknown_as" default:"up" enum:"up|down"`
	// SlowStart is how long a recovered member's share of clients grows. 0s (off) to 1h, default 0s.
	SlowStart time.Duration `mapstructure:"slow_start" default:"0s" min:"0s" max:"1h"`
	// MinServing is how many members that are up an evacuation must leave, unless forced. 0 to 256, default 1.
	MinServing int      `mapstructure:"min_serving" default:"1" min:"0" max:"256" unit:"members"`
	Failover   Failover `mapstructure:"failover"`
	HTTPS      HTTPS    `mapstructure:"https"`
	// HealthCheck is gslbd's own check of the members' addresses. Default: none (nil).
	HealthCheck *HealthCheck `mapstructure:"health_check"`
	// Members are required, 1 to 256. All have addresses, or all have cname.
	Members []Member `mapstructure:"members" required:"true" size:"256"`
}

// Threshold is a number, or a share when Share is above 0.
type Threshold struct {
	Count int
	Share float64 // 0..1
}

// Member is one entry of services[].members: a VIP, or a CNAME target, at a site.
type Member struct {
	// Name is required and unique within the service; it is the member's identity over reloads.
	Name string `mapstructure:"name" required:"true" as:"name"`
	// Site names the site that serves it. Required.
	Site string `mapstructure:"site" required:"true" as:"name"`
	// Addresses are the VIPs: at most one IPv4 and one IPv6 address, at least one unless cname is given.
	Addresses []netip.Addr `mapstructure:"addresses" size:"2"`
	// CNAME is a target name, lower case and without final dot. Default: none.
	CNAME string `mapstructure:"cname" as:"domain"`
	// Port and Protocol (tcp or udp) narrow which virtual server of the site's report covers the member. Port is also
	// the default port of checks. 1 to 65535; defaults 0 and "": any.
	Port     uint16 `mapstructure:"port" min:"1" max:"65535"`
	Protocol string `mapstructure:"protocol" enum:"tcp|udp"`
	// Weight is the share of least-selected, weighted and connection-load. 0 (only when no other is up) to 10000,
	// default 100.
	Weight int `mapstructure:"weight" default:"100" min:"0" max:"10000"`
	// Preference is what the metric preference compares; the highest is preferred. 0 to 1000, default 100.
	Preference int `mapstructure:"preference" default:"100" min:"0" max:"1000"`
	// Role is primary or backup (see failover). Default primary.
	Role string `mapstructure:"role" default:"primary" enum:"primary|backup"`
	// VirtualServers name what covers the member in the site's report, where addresses differ behind NAT. Default:
	// none; by address.
	VirtualServers []string `mapstructure:"virtual_servers" as:"label" size:"256"`
}

// Failover is the section services[].failover.
type Failover struct {
	// Ratio is the healthy share of primaries below which backups take over. 0 to 1, default 0: when none is healthy.
	Ratio float64 `mapstructure:"ratio" default:"0.0" min:"0" max:"1" unit:"share"`
	// DropWhenAllDown is another spelling of on_all_down: nodata. Default false.
	DropWhenAllDown bool `mapstructure:"drop_when_all_down" default:"false"`
	// Failback says how the service leaves its backups once the ratio is met again: auto (at once), delay (when it was
	// met throughout failback_delay) or manual (when an operator says so). Default auto.
	Failback string `mapstructure:"failback" default:"auto" enum:"auto|delay|manual"`
	// FailbackDelay belongs to failback: delay. 0s to 24h, default 60s.
	FailbackDelay      time.Duration      `mapstructure:"failback_delay" default:"60s" min:"0s" max:"24h"`
	ConnectionDraining ConnectionDraining `mapstructure:"connection_draining"`
}

// ConnectionDraining is the section services[].failover.connection_draining: what becomes of the sessions that are open
// at the members of the pool that was left, where an agent is allowed to end them.
type ConnectionDraining struct {
	// Enabled says whether they may stay for timeout; otherwise they end one TTL after the change. Default true.
	Enabled bool `mapstructure:"enabled" default:"true"`
	// Timeout is how long they may stay. 0s to 1h, default 300s.
	Timeout time.Duration `mapstructure:"timeout" default:"300s" min:"0s" max:"1h"`
}

// HTTPS is the section services[].https: an HTTPS record (RFC 9460) with hints from the same decision.
type HTTPS struct {
	// ALPN are the protocols that every member speaks on port 443 beside http/1.1, by their ALPN identifiers, the
	// preferred first. At most 16; default: none, which makes no record.
	ALPN []string `mapstructure:"alpn" as:"alpn" size:"16"`
}
