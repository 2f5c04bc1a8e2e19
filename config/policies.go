package config

import "time"

// Policy is one entry of policies: a named, ordered chain of metrics.
type Policy struct {
	// Name is what services call it. Required, unique. A shipped name (default, active-standby, nearest, fastest, spread) replaces that one.
	Name string `mapstructure:"name" required:"true" as:"name"`
	// Steps are the metrics in their order, each at most once. Required, 1 to 12.
	Steps []Step `mapstructure:"chain" required:"true" size:"12"`
}

// Step is one metric of a chain. Parameters of other metrics are zero. See docs/policies.md for what each does.
type Step struct {
	// Metric is the metric's name. Required.
	Metric string `mapstructure:"metric" required:"true" enum:"health|capacity|rtt|geo|connection-load|preference|least-selected|static|headroom|active-servers|cost|probe-latency"`
	// Enabled false keeps the step in its place without effect. Default true.
	Enabled bool `mapstructure:"enabled" default:"true"`

	// Tolerance is how much worse than the best a candidate may be and still be kept. 0% to 1000%, for
	// headroom below 100%; default 10% for rtt, headroom and probe-latency, 100% for connection-load; held as 0.1.
	Tolerance float64 `mapstructure:"tolerance" default:"10%|connection-load=100%" min:"0%" max:"1000%" as:"percent" for:"rtt|connection-load|headroom|probe-latency"`
	// ToleranceAbs is the same in time; the larger of both counts. 0s to 10s, default 5ms.
	ToleranceAbs time.Duration `mapstructure:"tolerance_abs" default:"5ms" min:"0s" max:"10s" for:"rtt"`
	// ToleranceRate is the same in new sessions per second; the larger of both counts. 0 to 1000000, default 5.
	ToleranceRate float64 `mapstructure:"tolerance_rate" key:"tolerance_abs" default:"5" min:"0" max:"1000000" for:"connection-load" unit:"new sessions a second"`
	// MaxAge is the age from which a round trip no longer counts. 1s to 24h, default 10m.
	MaxAge time.Duration `mapstructure:"max_age" default:"10m" min:"1s" max:"24h" for:"rtt"`
	// RequireData rejects candidates without a fresh round trip in place of keeping them. Default false.
	RequireData bool `mapstructure:"require_data" default:"false" for:"rtt"`
	// Explore is the share of client networks that are sent, for a minute at a time, elsewhere than what the round trips of
	// their own connections say, so that other sites are measured too. 0% to 50%, default 0%; held as 0.05.
	Explore float64 `mapstructure:"explore" default:"0%" min:"0%" max:"50%" as:"percent" for:"rtt"`
	// Levels are the levels of geo in their order. Default [override, distance, subdivision, country, continent].
	Levels []string `mapstructure:"levels" default:"override,distance,subdivision,country,continent" enum:"override|distance|subdivision|country|continent" for:"geo"`
	// ToleranceKm is how much farther than the nearest a site may be, in kilometres. 0 to 20038, default 100.
	ToleranceKm float64 `mapstructure:"tolerance_km" default:"100" min:"0" max:"20038" for:"geo" unit:"km"`
	// Limit, in new sessions per second, keeps all at or below it in place of comparing. Above 0; default off: 0.
	Limit float64 `mapstructure:"limit" default:"off" min:"0.001" max:"1000000000" off:"true" for:"connection-load" unit:"new sessions a second"`
	// HalfLife is the time after which a selection counts half. 1s to 1h, default 60s.
	HalfLife time.Duration `mapstructure:"half_life" default:"60s" min:"1s" max:"1h" for:"least-selected"`
	// Method is round-robin, weighted, hash or ordered. Default round-robin.
	Method string `mapstructure:"method" default:"round-robin" enum:"round-robin|weighted|hash|ordered" for:"static"`
}
