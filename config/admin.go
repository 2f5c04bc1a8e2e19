package config

// Admin is the section admin: the interface of gslbctl, probes and telemetry.
type Admin struct {
	// Listen is the address (IP:port). Default 127.0.0.1:8053. Off loopback it needs token_file or tls.client_ca.
	Listen string `mapstructure:"listen" default:"127.0.0.1:8053" as:"listen"`
	// TLS is HTTPS for the interface. A client certificate of its client_ca is as good as the token.
	TLS ListenerTLS `mapstructure:"tls"`
	// TokenFile holds the token that callers must present who have no client certificate; up to two more lines hold tokens that
	// are accepted as well. Default: none.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// Tokens are what TokenFile holds.
	Tokens []Secret `mapstructure:"-"`
	// TelemetryPerService says whether the series of each service are exported. Default true.
	TelemetryPerService bool `mapstructure:"telemetry_per_service" default:"true"`
}
