package config

import "time"

// Reports is the section reports: where sites report, and how long a report counts.
type Reports struct {
	// Listen is the address (IP:port) of the receiver. Default 127.0.0.1:8054.
	Listen string     `mapstructure:"listen" default:"127.0.0.1:8054" as:"listen"`
	TLS    ReportsTLS `mapstructure:"tls"`
	// Interval is the time between reports that agents are told to keep. 1s to 1m, default 5s.
	Interval time.Duration `mapstructure:"interval" default:"5s" min:"1s" max:"1m"`
	// StaleAfter is the age from which a report's load and round trips are ignored. Above interval, at most 1h,
	// default 15s: two lost reports are forgiven.
	StaleAfter time.Duration `mapstructure:"stale_after" default:"15s" min:"1s" max:"1h"`
	// DeadAfter is the age from which services[].on_dead decides. Above stale_after, at most 24h, default 60s.
	DeadAfter time.Duration `mapstructure:"dead_after" default:"60s" min:"1s" max:"24h"`
}

// ReportsTLS is the section reports.tls. This version takes reports by plain HTTP only.
type ReportsTLS struct {
	Certificate string `mapstructure:"certificate" later:"true"`
	Key         string `mapstructure:"key" later:"true"`
	ClientCA    string `mapstructure:"client_ca" later:"true"`
}
