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

// DNSSEC is the section zones[].dnssec: how the zone is signed (docs/dnssec.md). A reload changes all of it.
type DNSSEC struct {
	// Enabled says whether the zone is signed. Default false.
	Enabled bool `mapstructure:"enabled" default:"false"`
	// KeyDirectory holds the keys, as gslbd keygen or BIND's dnssec-keygen write them. Default: none; enabled needs one.
	KeyDirectory string `mapstructure:"key_directory" as:"path"`
	// Algorithm is that of all keys. Default ecdsap256sha256.
	Algorithm string `mapstructure:"algorithm" default:"ecdsap256sha256" enum:"ecdsap256sha256|ecdsap384sha384|ed25519"`
}
