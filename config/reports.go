package config

import "time"

// Reports is the section reports: where sites report, and how long a report counts.
type Reports struct {
	// Listen is the address (IP:port) of the receiver. Default 127.0.0.1:8054.
	Listen string `mapstructure:"listen" default:"127.0.0.1:8054" as:"listen"`
	// TLS is HTTPS for reports. A client certificate of its client_ca stands for the site that it names.
	TLS ListenerTLS `mapstructure:"tls"`
	// Interval is the time between reports that agents are told to keep. 1s to 1m, default 5s.
	Interval time.Duration `mapstructure:"interval" default:"5s" min:"1s" max:"1m"`
	// StaleAfter is the age from which a report's load and round trips are ignored. Above interval, at most 1h,
	// default 15s: two lost reports are forgiven.
	StaleAfter time.Duration `mapstructure:"stale_after" default:"15s" min:"1s" max:"1h"`
	// DeadAfter is the age from which services[].on_dead decides. Above stale_after, at most 24h, default 60s.
	DeadAfter time.Duration `mapstructure:"dead_after" default:"60s" min:"1s" max:"24h"`
}

// ListenerTLS is the section tls of an HTTP listener: HTTPS in place of HTTP. The files are read again when they change, and
// at a reload; switching TLS on or off needs a restart.
type ListenerTLS struct {
	// Certificate is a PEM file of the certificate and its chain. Default: none, plain HTTP.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of the certificate's private key, which only its owner may read.
	Key string `mapstructure:"key" as:"path"`
	// ClientCA is a PEM file of the authorities whose client certificates are taken in place of a token. Default: none.
	ClientCA string `mapstructure:"client_ca" as:"path"`
}
