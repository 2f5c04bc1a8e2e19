package config

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Test is one entry of tests: a question, the states of the sites, and what is to be decided. `gslbd check` runs it; nothing
// of it matters while serving.
type Test struct {
	// Name says what the test is about. Required, unique, at most 128 characters.
	Name string `mapstructure:"name" required:"true" as:"shorttext"`
	// Service is the name of a service. Required; an alias may be written, and the name is held.
	Service string `mapstructure:"service" required:"true" as:"owner"`
	// Type of the question: A or AAAA. Default A.
	Type string `mapstructure:"type" default:"A" enum:"A|AAAA"`
	// Client is the address of the resolver that asks. Required.
	Client netip.Addr `mapstructure:"client" required:"true"`
	// ECS is the client subnet that the resolver passes on. Default: none.
	ECS netip.Prefix `mapstructure:"ecs"`
	// Sites are those that are not simply up and without any load. Default: none.
	Sites  []SiteState `mapstructure:"sites" size:"1000"`
	Expect Expect      `mapstructure:"expect" required:"true"`
}

// SiteState is how a site is in a test.
type SiteState struct {
	// Name of the site. Required.
	Name string `mapstructure:"name" required:"true" as:"name"`
	// State is up, down (every server), overloaded (at its thresholds), stale or dead (its reports stopped so long ago),
	// unknown (it never reported), drain (by order) or evacuated. Default up.
	State string `mapstructure:"state" default:"up" enum:"up|down|overloaded|stale|dead|unknown|drain|evacuated"`
	// Utilisation is the load that the site reports, as a share of each of its thresholds. 0% to 1000%; default off: it
	// tells none, held as 0; of an overloaded site 100%.
	Utilisation float64 `mapstructure:"utilisation" default:"off" min:"0%" max:"1000%" as:"percent" off:"true"`
	// NewSessions per second that the site reports. Above 0 to 1000000000; default off: it tells none, held as 0.
	NewSessions float64 `mapstructure:"new_sessions_per_second" default:"off" min:"0.001" max:"1000000000" off:"true"`
	// RTT is the round trip from the site to the client. 0.01ms to 10s; default off: nobody has measured it, held as 0.
	RTT time.Duration `mapstructure:"rtt" default:"off" min:"0.01ms" max:"10s" off:"true"`
}

// Expect is the section tests[].expect. At least one of its keys is given.
type Expect struct {
	// Member is the name of the member that is answered first.
	Member string `mapstructure:"member" as:"name"`
	// Metric is what settles that: a metric, constraints, single or on_all_down.
	Metric string `mapstructure:"metric" enum:"health|capacity|rtt|geo|connection-load|preference|least-selected|static|headroom|active-servers|cost|probe-latency|constraints|single|on_all_down"`
	// Answer is the kind of it: answer, last-resort, nodata or servfail. Empty: any.
	Answer string `mapstructure:"answer" enum:"answer|last-resort|nodata|servfail"`
}

// ECSOn reports whether the client subnet counts for the service.
func (c *Config) ECSOn(s *Service) bool {
	return c.DNS.ECS && slices.ContainsFunc(c.Zones, func(z Zone) bool { return z.Name == s.Zone && z.ECS })
}

func (k *checker) tests() {
	seen := map[string]string{}
	owners := map[string]*Service{}
	if len(k.c.Tests) > 0 {
		for i := range k.c.Services {
			s := &k.c.Services[i]
			for _, name := range append([]string{s.Name}, s.Aliases...) {
				owners[name] = s
			}
		}
	}
	for i := range k.c.Tests {
		t, path := &k.c.Tests[i], at("tests", i)
		k.unique(seen, t.Name, path+".name")
		k.siteStates(t.Sites, path+".sites")
		if t.Expect == (Expect{}) && !k.brokenBelow(path+".expect") {
			k.fail(path+".expect", "expects nothing: write member, metric or answer")
		}
		svc := owners[t.Service]
		if svc == nil {
			if t.Service != "" && !k.broken("services", "name") {
				k.fail(path+".service", "no service answers for %q%s", t.Service, suggest(t.Service, slices.Sorted(maps.Keys(owners))))
			}
			continue
		}
		t.Service = svc.Name
		k.expectation(t, svc, path+".expect")
	}
}

// expectation refuses what can never come about.
func (k *checker) expectation(t *Test, s *Service, path string) {
	e := t.Expect
	if e.Member != "" {
		var names []string
		for _, m := range s.Members {
			names = append(names, m.Name)
		}
		if !slices.Contains(names, e.Member) && !k.broken("services", "name") {
			k.fail(path+".member", "the service %s has no member %q%s", s.Name, e.Member, suggest(e.Member, names))
		}
		if e.Answer != "" && e.Answer != "answer" {
			k.fail(path+".answer", "%s names no member: remove answer or member", e.Answer)
		}
	}
	if p := k.c.Policy(s.Policy); p != nil && e.Metric != "" && !slices.Contains([]string{"constraints", "single", "on_all_down"}, e.Metric) && !p.enabled(e.Metric) {
		k.fail(path+".metric", "the policy %s of the service %s has no metric %s, or it is off", p.Name, s.Name, e.Metric)
	}
}

// siteStates checks the states of sites at path, each of which stands there once.
func (k *checker) siteStates(states []SiteState, path string) {
	seen := map[string]string{}
	for i, s := range states {
		where := at(path, i)
		k.unique(seen, s.Name, where+".name")
		k.siteExists(s.Name, where+".name")
		if s.Utilisation == 0 && s.State != "overloaded" {
			continue
		}
		if site := k.c.Site(s.Name); site != nil && site.Capacity.Sessions == 0 && site.Capacity.Bandwidth == 0 && !k.broken("sites", "capacity") {
			k.fail(where, "the site %s has no thresholds that it could be measured by: give it capacity.sessions or capacity.bandwidth", s.Name)
		}
	}
}
