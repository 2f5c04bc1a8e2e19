package config

import (
	"net/netip"
	"reflect"
	"time"
)

// Scenario is the file of `gslbctl simulate`: what befalls the sites of a configuration, over time.
type Scenario struct {
	// Duration of it. 0s (one moment) to 24h, default 0s.
	Duration time.Duration `mapstructure:"duration" default:"0s" min:"0s" max:"24h"`
	// Start is how sites are as it begins, and before it. Those that are not listed are up and tell no load.
	Start []SiteChange `mapstructure:"start" size:"1000"`
	// Events change sites. Default: none.
	Events []Event `mapstructure:"events" size:"10000"`
	// RTTs are round trips that the sites have measured; of several prefixes that hold a client the longest counts.
	RTTs []RTTOf `mapstructure:"rtts" size:"100000"`
	// Traffic closes the loop: the sites' load comes from the clients that they were given. Default: none (nil).
	Traffic *Traffic `mapstructure:"traffic"`
}

// Event is one entry of events.
type Event struct {
	// At is when, after the begin. 0s to 24h. Required.
	At time.Duration `mapstructure:"at" required:"true" min:"0s" max:"24h"`
	// Sites that are other from then on. Required.
	Sites []SiteChange `mapstructure:"sites" required:"true" size:"1000"`
}

// SiteChange is how a site is from some time on.
type SiteChange struct {
	// Name of the site. Required.
	Name string `mapstructure:"name" required:"true" as:"name"`
	// State is up, down, overloaded, stale or dead (its reports stop; it is stale and then dead as time passes), unknown (it
	// has never reported), drain or evacuated (by order), or absent (not there yet). Default up.
	State string `mapstructure:"state" default:"up" enum:"up|down|overloaded|stale|dead|unknown|drain|evacuated|absent"`
	// Share of the clients that an evacuation moves. 1% to 100%, default 100%.
	Share float64 `mapstructure:"share" default:"100%" min:"1%" max:"100%" as:"percent"`
	// Utilisation and NewSessions are as in SiteState. They are refused where there is traffic.
	Utilisation float64 `mapstructure:"utilisation" default:"off" min:"0%" max:"1000%" as:"percent" off:"true"`
	NewSessions float64 `mapstructure:"new_sessions_per_second" default:"off" min:"0.001" max:"1000000000" off:"true"`
}

// RTTOf is one entry of rtts.
type RTTOf struct {
	// Site that measured it. Required.
	Site string `mapstructure:"site" required:"true" as:"name"`
	// Prefix of the resolvers or clients. Required.
	Prefix netip.Prefix `mapstructure:"prefix" required:"true"`
	// RTT is required. 0.01ms to 10s.
	RTT time.Duration `mapstructure:"rtt" required:"true" min:"0.01ms" max:"10s"`
}

// Traffic is the section traffic.
type Traffic struct {
	// SessionsPerSecond are the new sessions of all clients together. Required, above 0 to 1000000000.
	SessionsPerSecond float64 `mapstructure:"sessions_per_second" required:"true" min:"0.001" max:"1000000000"`
	// SessionLength is the mean. 1s to 24h, default 60s.
	SessionLength time.Duration `mapstructure:"session_length" default:"60s" min:"1s" max:"24h"`
	// BitsPerSession is the bandwidth of an open session. Default off: sites tell sessions only.
	BitsPerSession uint64 `mapstructure:"bits_per_session" default:"off" min:"1bps" max:"1000Gbps" as:"bandwidth" off:"true"`
	// ReportDelay is how old the figures of a report are when it arrives. 0s to 5m, default 0s.
	ReportDelay time.Duration `mapstructure:"report_delay" default:"0s" min:"0s" max:"5m"`
	// Floor is the least time that resolvers with a floor keep an answer. 0s to 1h, default 60s.
	Floor time.Duration `mapstructure:"floor" default:"60s" min:"0s" max:"1h"`
	// FloorShare is the share of the resolvers that have it. 0% to 100%, default 10%.
	FloorShare float64 `mapstructure:"floor_share" default:"10%" min:"0%" max:"100%" as:"percent"`
	// PrefetchShare is the share that ask again at nine tenths of the TTL, before anybody needs it. 0% to 100%, default 20%.
	PrefetchShare float64 `mapstructure:"prefetch_share" default:"20%" min:"0%" max:"100%" as:"percent"`
	// BreaksAt is the utilisation from which a site's servers fail. 100% to 1000%; default off: 0, they bear any load.
	BreaksAt float64 `mapstructure:"breaks_at" default:"off" min:"100%" max:"1000%" as:"percent" off:"true"`
	// BreaksAfter is how long they bear it. 0s to 1h, default 30s.
	BreaksAfter time.Duration `mapstructure:"breaks_after" default:"30s" min:"0s" max:"1h"`
	// Repair is how long they are down then. 1s to 24h, default 120s.
	Repair time.Duration `mapstructure:"repair" default:"120s" min:"1s" max:"24h"`
}

// LoadScenario reads the scenario at path for the configuration c. The environment sets nothing. Its results are like
// those of Load.
func LoadScenario(path string, c *Config) (*Scenario, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return loadScenario(path, data, c)
}

func loadScenario(path string, data []byte, c *Config) (*Scenario, error) {
	var s Scenario
	d := newDecoder(path, reflect.TypeFor[Scenario]())
	if d.decode(data, nil, "", &s) {
		k := &checker{decoder: d, c: c, named: map[string]bool{}}
		for _, site := range c.Sites {
			k.named[site.Name] = true
		}
		k.scenario(&s)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return &s, nil
}

func (k *checker) scenario(s *Scenario) {
	k.changes(s, s.Start, "start")
	for i, e := range s.Events {
		path := at("events", i)
		k.changes(s, e.Sites, path+".sites")
		if e.At > s.Duration {
			k.fail(path+".at", "%s is after the end, duration is %s", short(e.At), short(s.Duration))
		}
	}
	for i, r := range s.RTTs {
		k.siteExists(r.Site, at("rtts", i)+".site")
	}
	if s.Traffic != nil && s.Duration == 0 && !k.failed["duration"] {
		k.fail("duration", "is 0s, and traffic needs time to flow: write how long, such as 30m")
	}
}

func (k *checker) changes(s *Scenario, changes []SiteChange, path string) {
	states := make([]SiteState, len(changes))
	for i, c := range changes {
		where := at(path, i)
		states[i] = SiteState{Name: c.Name, State: c.State, Utilisation: c.Utilisation}
		if c.State != "evacuated" && c.State != "" && k.given(where+".share") {
			k.fail(where+".share", "belongs to the state evacuated, and this is %s", c.State)
		}
		if s.Traffic != nil && (c.Utilisation > 0 || c.NewSessions > 0 || c.State == "overloaded") {
			k.fail(where, "tells a load, which comes from traffic here: remove one of them")
		}
	}
	k.siteStates(states, path)
}
