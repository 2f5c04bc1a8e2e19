// Package compile turns a validated configuration into the options of the rooms, for the commands: gslbd serves by what it
// returns, and gslbctl rehearses by the same.
package compile

import (
	"errors"
	"net/netip"

	"gslbd/config"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// Chains compiles every policy, by name.
func Chains(c *config.Config) (map[string]*policy.Chain, error) {
	chains := make(map[string]*policy.Chain, len(c.Policies))
	var errs []error
	for _, p := range c.Policies {
		steps := make([]policy.StepOptions, len(p.Steps))
		for i, s := range p.Steps {
			steps[i] = policy.StepOptions{
				Metric: s.Metric, Disabled: !s.Enabled, Tolerance: s.Tolerance, ToleranceAbs: s.ToleranceAbs, ToleranceRate: s.ToleranceRate,
				MaxAge: s.MaxAge, RequireData: s.RequireData, Explore: s.Explore, Levels: s.Levels, ToleranceKm: s.ToleranceKm, Limit: s.Limit, HalfLife: s.HalfLife,
				Method: s.Method,
			}
		}
		chain, err := policy.Build(p.Name, steps)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		chains[p.Name] = chain
	}
	return chains, errors.Join(errs...)
}

// State returns what a Store is configured with, but for the zones. chains are those of Chains.
func State(c *config.Config, chains map[string]*policy.Chain) *state.Config {
	sc := &state.Config{
		StaleAfter: c.Reports.StaleAfter, DeadAfter: c.Reports.DeadAfter,
		RTT: state.RTTConfig{
			PrefixV4: c.RTT.Prefix.IPv4, PrefixV6: c.RTT.Prefix.IPv6, Refresh: c.RTT.Refresh, SilentFor: c.RTT.SilentFor,
			MaxTargets: c.RTT.MaxTargets, MaxSites: c.RTT.MaxSites, Exempt: c.RTT.Exempt,
		},
		Sites: make([]state.SiteConfig, 0, len(c.Sites)), Services: make([]state.ServiceConfig, 0, len(c.Services)),
	}
	for _, name := range c.RTT.Methods {
		method, _ := state.ParseRTTMethod(name) // config knows the same
		sc.RTT.Methods = append(sc.RTT.Methods, method)
	}
	for _, s := range c.Sites {
		at := location(s.Location)
		if at.Continent == "" {
			at.Continent = geo.ContinentOf(at.Country) // as databases place clients
		}
		sc.Sites = append(sc.Sites, state.SiteConfig{
			Name: s.Name, Zone: s.Zone, Region: s.Region, Location: at, Cost: s.Cost,
			SessionsLimit: s.Capacity.Sessions, BandwidthLimit: s.Capacity.Bandwidth, Resume: s.Capacity.Resume, Hold: s.Capacity.Hold, ShedFrom: s.Capacity.ShedFrom, CascadeGuard: s.Capacity.CascadeGuard,
		})
	}
	for _, s := range c.Services {
		chain := chains[s.Policy]
		svc := state.ServiceConfig{
			Name: s.Name, Aliases: s.Aliases, TTL: s.TTL, Answers: s.Answers,
			MinHealthy: state.Threshold{Count: s.MinHealthy.Count, Share: s.MinHealthy.Share},
			OnAllDown:  onAllDown[s.OnAllDown], LastResort: s.LastResort, OnDead: onDead[s.OnDead], UnknownUp: s.UnknownAs == "up",
			SlowStart: s.SlowStart, FailoverRatio: s.Failover.Ratio, Failback: failback[s.Failover.Failback], FailbackDelay: s.Failover.FailbackDelay,
			MinServing: s.MinServing, PolicyName: s.Policy, Chain: chain, UsesRTT: chain.UsesRTT(), HalfLife: chain.HalfLife(),
			HasCheck: s.HealthCheck != nil, Members: make([]state.MemberConfig, 0, len(s.Members)),
		}
		if d := s.Failover.ConnectionDraining; d.Enabled {
			svc.DrainTimeout = d.Timeout
		}
		if s.HealthCheck != nil {
			svc.CheckInterval = s.HealthCheck.Interval
		}
		for _, m := range s.Members {
			svc.Members = append(svc.Members, state.MemberConfig{
				Name: m.Name, Site: m.Site, Addresses: ByFamily(m), CNAME: m.CNAME, Weight: m.Weight, Preference: m.Preference, Role: roles[m.Role],
				Port: m.Port, Protocol: m.Protocol, VirtualServers: m.VirtualServers,
			})
		}
		sc.Services = append(sc.Services, svc)
	}
	return sc
}

// Geo returns what the geo database is opened with.
func Geo(c *config.Config) geo.Options {
	o := geo.Options{Databases: c.Geo.Databases}
	for _, ov := range c.Geo.Overrides {
		o.Overrides = append(o.Overrides, geo.Override{Prefix: ov.Prefix, Site: ov.Site, Location: location(ov.Location)})
	}
	return o
}

// The configuration's words, which config has validated, as the rooms spell them.
var (
	onAllDown = map[string]state.OnAllDown{
		"all": state.AllDownAll, "last-known-good": state.AllDownLastKnownGood, "backup": state.AllDownBackup,
		"nodata": state.AllDownNoData, "servfail": state.AllDownServFail,
	}
	onDead   = map[string]state.OnDead{"check": state.DeadCheck, "keep": state.DeadKeep, "down": state.DeadDown}
	failback = map[string]state.Failback{"auto": state.FailbackAuto, "delay": state.FailbackDelay, "manual": state.FailbackManual}
	roles    = map[string]state.Role{"primary": state.Primary, "backup": state.Backup}
)

func location(l config.Location) geo.Location {
	return geo.Location{
		Continent: l.Continent, Country: l.Country, Subdivision: l.Subdivision,
		Latitude: l.Latitude, Longitude: l.Longitude, HasCoordinates: l.HasCoordinates,
	}
}

// ByFamily returns the member's addresses by family; a family that it lacks is the zero Addr.
func ByFamily(m config.Member) (addrs [2]netip.Addr) {
	for _, a := range m.Addresses {
		if a.Is4() {
			addrs[state.V4] = a
		} else {
			addrs[state.V6] = a
		}
	}
	return addrs
}
