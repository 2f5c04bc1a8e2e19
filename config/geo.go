package config

import "net/netip"

// Geo is the section geo: where addresses are.
type Geo struct {
	// Databases are MMDB files, MaxMind's or flat records; the first that knows an address counts. Default: none,
	// at most 16.
	Databases []string `mapstructure:"databases" as:"path" size:"16"`
	// Overrides place prefixes before any database; the longest that matches counts. Default: none.
	Overrides []Override `mapstructure:"overrides" size:"100000"`
}

// Override places a prefix: at a site, at a location, or both.
type Override struct {
	// Prefix is required, without host bits, and listed once.
	Prefix netip.Prefix `mapstructure:"prefix" required:"true"`
	// Site is preferred by the clients of Prefix. Default: none.
	Site string `mapstructure:"site" as:"name"`
	// Location replaces the whole of the databases' location.
	Location `mapstructure:",squash"`
}

// Location says where something is. What is not written is unknown.
type Location struct {
	// Continent is AF, AN, AS, EU, NA, OC or SA.
	Continent string `mapstructure:"continent" enum:"AF|AN|AS|EU|NA|OC|SA"`
	// Country is an ISO 3166-1 alpha-2 code in capitals.
	Country string `mapstructure:"country" as:"country"`
	// Subdivision is spelled as the database spells it: an ISO 3166-2 part (CA) or a name (California).
	Subdivision string `mapstructure:"subdivision" as:"shorttext"`
	// Latitude and Longitude are degrees, -90 to 90 and -180 to 180; both or neither are written.
	Latitude  float64 `mapstructure:"latitude" min:"-90" max:"90" unit:"degrees"`
	Longitude float64 `mapstructure:"longitude" min:"-180" max:"180" unit:"degrees"`
	// HasCoordinates says that they were written.
	HasCoordinates bool `mapstructure:"-"`
}

// Empty reports whether nothing is known.
func (l Location) Empty() bool { return l == Location{} }
