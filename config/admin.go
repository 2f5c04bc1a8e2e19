package config

// Admin is the section admin: the interface of gslbctl, probes and telemetry.
type Admin struct {
	// Listen is the address (IP:port). Default 127.0.0.1:8053. Off loopback it needs token_file or tls.client_ca.
	Listen string   `mapstructure:"listen" default:"127.0.0.1:8053" as:"listen"`
	TLS    AdminTLS `mapstructure:"tls"`
	// TokenFile holds the token that callers must present who have no client certificate. Default: none.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// Token is what TokenFile holds.
	Token Secret `mapstructure:"-"`
	// TelemetryPerService says whether the series of each service are exported. Default true.
	TelemetryPerService bool `mapstructure:"telemetry_per_service" default:"true"`
}

// AdminTLS is the section admin.tls: HTTPS in place of HTTP. A reload reads the files again; switching TLS on or off needs
// a restart.
type AdminTLS struct {
	// Certificate is a PEM file of the certificate and its chain. Default: none, plain HTTP.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of the certificate's private key, which only its owner may read.
	Key string `mapstructure:"key" as:"path"`
	// ClientCA is a PEM file of the authorities whose client certificates are taken in place of the token. Default: none.
	ClientCA string `mapstructure:"client_ca" as:"path"`
}
