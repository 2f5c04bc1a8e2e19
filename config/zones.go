package config

// Zone is one entry of zones: a zone that we are authoritative for.
type Zone struct {
	// Name is the apex, lower case and without final dot. Required, unique.
	Name string `mapstructure:"name" required:"true" as:"domain"`
	// File is a zone file (RFC 1035 section 5). Required.
	File string `mapstructure:"file" required:"true" as:"path"`
	// ECS says whether the client subnet option is honoured here. Default true; without effect where dns.ecs is false.
	ECS    bool   `mapstructure:"ecs" default:"true"`
	DNSSEC DNSSEC `mapstructure:"dnssec"`
}

// DNSSEC is the section zones[].dnssec. This version does not sign: enabled must be false, and the rest is read and has
// no effect.
type DNSSEC struct {
	Enabled      bool   `mapstructure:"enabled" default:"false" later:"true"`
	KeyDirectory string `mapstructure:"key_directory" as:"path"`
	Algorithm    string `mapstructure:"algorithm" default:"ecdsap256sha256" enum:"ecdsap256sha256"`
}
