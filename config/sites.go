package config

import "time"

// Site is one entry of sites: a data centre.
type Site struct {
	// Name is what members, overrides, agents and orders call it. Required, unique.
	Name string `mapstructure:"name" required:"true" as:"name"`
	// Zone is the failure domain (availability zone). Default: empty.
	Zone string `mapstructure:"zone" as:"name"`
	// Region groups zones. Default: empty.
	Region   string   `mapstructure:"region" as:"name"`
	Location Location `mapstructure:"location"`
	Capacity Capacity `mapstructure:"capacity"`
	// Cost is what the metric cost compares; the lowest is preferred. 0 to 1000000, default 0.
	Cost int `mapstructure:"cost" default:"0" min:"0" max:"1000000"`
	// TokenFile holds the token that the site's agents must present, unless they have a client certificate of reports.tls;
	// up to two more lines hold tokens that are accepted as well. Default: none; without reports.tls.client_ca, reports are
	// then taken from loopback only.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// Tokens are what TokenFile holds.
	Tokens []Secret `mapstructure:"-"`
}

// Capacity is the section sites[].capacity: from when a site is overloaded. See the metric capacity.
type Capacity struct {
	// Sessions is the threshold of open sessions. At least 1; default off: 0, no threshold.
	Sessions uint64 `mapstructure:"sessions" default:"off" min:"1" off:"true" unit:"sessions"`
	// Bandwidth is the threshold of bits per second, written with bps, kbps, Mbps, Gbps or Tbps (powers of 1000).
	// At least 1bps; default off: 0, no threshold.
	Bandwidth uint64 `mapstructure:"bandwidth" default:"off" min:"1bps" max:"1000000Tbps" as:"bandwidth" off:"true"`
	// Resume is the share of the thresholds below which the site is eligible again. 1% to 100%, default 90%; held as 0.9.
	Resume float64 `mapstructure:"resume" default:"90%" min:"1%" max:"100%" as:"percent"`
	// Hold is how long it must have stayed below. 1s to 1h, default 30s: simulated, a long one swings sites
	// further, whatever the TTL (docs/capacity.md).
	Hold time.Duration `mapstructure:"hold" default:"30s" min:"1s" max:"1h"`
	// ShedFrom is the utilisation from which a growing share of clients skips the site. 1% to 99%; default off: 0.
	ShedFrom float64 `mapstructure:"shed_from" default:"off" min:"1%" max:"99%" as:"percent" off:"true"`
	// CascadeGuard has a site shed by where its new sessions lead as well, before it is there. Default false; it needs
	// shed_from, and reports that tell new sessions.
	CascadeGuard bool `mapstructure:"cascade_guard" default:"false"`
}

// ZoneAlias is one entry of zone_aliases: other accounts' names of a failure domain.
type ZoneAlias struct {
	// ID is what the zone is called in orders and in the ledger. Required, unique.
	ID string `mapstructure:"id" required:"true" as:"name"`
	// Names are what sites and resources may call it too. Required, each listed once in all of zone_aliases.
	Names []string `mapstructure:"names" required:"true" as:"name" size:"100"`
}
