package config

// Admin is the section admin: the interface of gslbctl, probes and telemetry.
type Admin struct {
	// Listen is the address (IP:port). Default 127.0.0.1:8053. Off loopback it needs token_file.
	Listen string `mapstructure:"listen" default:"127.0.0.1:8053" as:"listen"`
	TLS    TLS    `mapstructure:"tls"`
	// TokenFile holds the token that callers must present. Default: none, loopback only.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// Token is what TokenFile holds.
	Token Secret `mapstructure:"-"`
	// TelemetryPerService says whether the series of each service are exported. Default true.
	TelemetryPerService bool `mapstructure:"telemetry_per_service" default:"true"`
}
