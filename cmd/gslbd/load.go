package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"gslbd/config"
	"gslbd/control"
	"gslbd/dns"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/probes"
	"gslbd/sitereport"
	"gslbd/state"
)

// A generation is one configuration, compiled for the rooms that it concerns.
type generation struct {
	config   *config.Config
	warnings []string
	tables   *dns.Tables
	state    *state.Config
	geo      geo.Options
	checks   []probes.Check
	receiver sitereport.ReceiverConfig
	orders   control.Config

	certificate *dns.Certificate // of DNS over TLS; nil: none is configured
	reports     *listenerTLS     // nil: plain HTTP
	admin       *listenerTLS     // nil: plain HTTP
	etcd        *tls.Config      // nil: plain HTTP, or none is configured
}

// load reads and compiles the configuration at path with everything that it names, so that what it returns can be
// applied without failing. It reports all that is wrong. Databases that previous (or nil) has open and that have not
// changed are not read again.
func load(path string, previous *geo.DB) (*generation, *geo.DB, error) {
	c, warnings, err := config.Load(path)
	if err != nil {
		return nil, nil, errors.Join(err, checkFiles(path))
	}
	g := &generation{config: c, warnings: warnings, geo: geoOptions(c), checks: checks(c), receiver: receiverConfig(c), orders: controlConfig(c)}
	var errs []error
	chains, err := buildChains(c)
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	zones, err := withKeys(c, time.Now())
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	tables, err := dns.Build(zones, serviceOptions(c))
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if t := c.DNS.TLS; t.Certificate != "" {
		if g.certificate, err = dns.LoadCertificate(t.Certificate, t.Key); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if g.reports, err = readReportsTLS(c); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if g.admin, err = readAdminTLS(c); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if err := apart(g.reports, g.admin); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if g.etcd, err = etcdTLS(c.State.Etcd); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if err := rateLimit(c).Check(); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	db, err := geo.Open(withPrevious(g.geo, previous))
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	g.tables = tables
	g.warnings = append(g.warnings, tables.Warnings()...)
	if why := certificateProblem(g.reports, time.Now()); why != "" {
		g.warnings = append(g.warnings, "reports.tls.certificate: "+why)
	}
	if why := certificateProblem(g.admin, time.Now()); why != "" {
		g.warnings = append(g.warnings, "admin.tls.certificate: "+why)
	}
	for _, kept := range db.Kept() {
		g.warnings = append(g.warnings, fmt.Sprintf("geo.databases: what was read before stays in force: %v", kept))
	}
	if len(c.Geo.Databases) > 0 && !db.HasCoordinates() {
		for _, s := range c.Services {
			if usesDistance(c.Policy(s.Policy)) {
				g.warnings = append(g.warnings, fmt.Sprintf("geo.databases: none has coordinates, so the level distance of policy %q abstains; use a City database, or remove distance from its levels", s.Policy))
				break
			}
		}
	}
	g.state = stateConfig(c, chains, tables)
	return g, db, nil
}

// checkFiles says what is wrong with the zone files and databases of a configuration that has faults itself, as far as it
// is known which they are, so that the operator need not mend one before hearing of the other.
func checkFiles(path string) error {
	zones, databases := config.Files(path)
	var errs []error
	usable, names := true, map[string]bool{}
	for _, z := range zones {
		_, err := os.Stat(z.File)
		usable = usable && z.Name != "" && !names[z.Name] && err == nil
		names[z.Name] = true
	}
	if usable {
		if _, err := dns.Build(zoneOptions(&config.Config{Zones: zones}), nil); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if _, err := geo.Open(geo.Options{Databases: databases}); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	return errors.Join(errs...)
}

func usesDistance(p *config.Policy) bool {
	for _, s := range p.Steps {
		if s.Metric != "geo" || !s.Enabled {
			continue
		}
		for _, l := range s.Levels {
			if l == "distance" {
				return true
			}
		}
	}
	return false
}

// buildChains compiles every policy, by name.
func buildChains(c *config.Config) (map[string]*policy.Chain, error) {
	chains := make(map[string]*policy.Chain, len(c.Policies))
	var errs []error
	for _, p := range c.Policies {
		steps := make([]policy.StepOptions, len(p.Steps))
		for i, s := range p.Steps {
			steps[i] = policy.StepOptions{
				Metric: s.Metric, Disabled: !s.Enabled, Tolerance: s.Tolerance, ToleranceAbs: s.ToleranceAbs, ToleranceRate: s.ToleranceRate,
				MaxAge: s.MaxAge, RequireData: s.RequireData, Levels: s.Levels, ToleranceKm: s.ToleranceKm, Limit: s.Limit, HalfLife: s.HalfLife,
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

func zoneOptions(c *config.Config) []dns.ZoneOptions {
	zones := make([]dns.ZoneOptions, len(c.Zones))
	for i, z := range c.Zones {
		zones[i] = dns.ZoneOptions{Name: z.Name, File: z.File, ECS: z.ECS && c.DNS.ECS}
	}
	return zones
}

// withKeys are zoneOptions with the keys of the zones that are signed.
func withKeys(c *config.Config, now time.Time) ([]dns.ZoneOptions, error) {
	zones := zoneOptions(c)
	var errs []error
	for i, z := range c.Zones {
		if !z.DNSSEC.Enabled {
			continue
		}
		keys, err := dns.LoadKeys(dns.KeyOptions{Zone: z.Name, Directory: z.DNSSEC.KeyDirectory, Algorithm: z.DNSSEC.Algorithm}, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("zones[%d].dnssec.key_directory: %w", i, err))
			continue
		}
		zones[i].Keys = keys
	}
	return zones, errors.Join(errs...)
}

func cookieOptions(c config.Cookies) dns.CookieOptions {
	o := dns.CookieOptions{Enabled: c.Enabled}
	for _, secret := range c.Secrets {
		o.Secrets = append(o.Secrets, [16]byte([]byte(secret)))
	}
	return o
}

func rateLimit(c *config.Config) dns.RateLimitOptions {
	r := c.DNS.RateLimit
	return dns.RateLimitOptions{ResponsesPerSecond: r.ResponsesPerSecond, Slip: r.Slip, Exempt: r.Exempt, LogOnly: r.LogOnly}
}

func serviceOptions(c *config.Config) []dns.ServiceOptions {
	services := make([]dns.ServiceOptions, len(c.Services))
	for i, s := range c.Services {
		services[i] = dns.ServiceOptions{Name: s.Name, Aliases: s.Aliases, LastResort: s.LastResort, ALPN: s.HTTPS.ALPN, Members: make([]dns.MemberOptions, len(s.Members))}
		for j, m := range s.Members {
			services[i].Members[j] = dns.MemberOptions{Addresses: byFamily(m), CNAME: m.CNAME}
		}
	}
	return services
}

func stateConfig(c *config.Config, chains map[string]*policy.Chain, tables *dns.Tables) *state.Config {
	sc := &state.Config{
		StaleAfter: c.Reports.StaleAfter, DeadAfter: c.Reports.DeadAfter,
		RTT: state.RTTConfig{
			PrefixV4: c.RTT.Prefix.IPv4, PrefixV6: c.RTT.Prefix.IPv6, Refresh: c.RTT.Refresh, SilentFor: c.RTT.SilentFor,
			MaxTargets: c.RTT.MaxTargets, MaxSites: c.RTT.MaxSites, Exempt: c.RTT.Exempt,
		},
		Zones: tables, Sites: make([]state.SiteConfig, 0, len(c.Sites)), Services: make([]state.ServiceConfig, 0, len(c.Services)),
	}
	for _, s := range c.Sites {
		at := location(s.Location)
		if at.Continent == "" {
			at.Continent = geo.ContinentOf(at.Country) // as databases place clients
		}
		sc.Sites = append(sc.Sites, state.SiteConfig{
			Name: s.Name, Zone: s.Zone, Region: s.Region, Location: at, Cost: s.Cost,
			SessionsLimit: s.Capacity.Sessions, BandwidthLimit: s.Capacity.Bandwidth, Resume: s.Capacity.Resume, Hold: s.Capacity.Hold, ShedFrom: s.Capacity.ShedFrom,
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
				Name: m.Name, Site: m.Site, Addresses: byFamily(m), CNAME: m.CNAME, Weight: m.Weight, Preference: m.Preference, Role: roles[m.Role],
				Port: m.Port, Protocol: m.Protocol, VirtualServers: m.VirtualServers,
			})
		}
		sc.Services = append(sc.Services, svc)
	}
	return sc
}

func geoOptions(c *config.Config) geo.Options {
	o := geo.Options{Databases: c.Geo.Databases}
	for _, ov := range c.Geo.Overrides {
		o.Overrides = append(o.Overrides, geo.Override{Prefix: ov.Prefix, Site: ov.Site, Location: location(ov.Location)})
	}
	return o
}

func receiverConfig(c *config.Config) sitereport.ReceiverConfig {
	rc := sitereport.ReceiverConfig{Interval: c.Reports.Interval, Methods: c.RTT.Methods}
	for _, s := range c.Sites {
		rc.Sites = append(rc.Sites, sitereport.ReceiverSite{Name: s.Name, Tokens: plain(s.Tokens)})
	}
	return rc
}

// checks are gslbd's own checks of the members' addresses.
func checks(c *config.Config) []probes.Check {
	var all []probes.Check
	for _, s := range c.Services {
		h := s.HealthCheck
		if h == nil {
			continue
		}
		for _, m := range s.Members {
			for family, addr := range byFamily(m) {
				if !addr.IsValid() {
					continue
				}
				check := probes.Check{
					Key:  checkKey(s.Name, m.Name, state.Family(family)),
					Type: probes.Type(h.Type), Addr: addr, Port: h.PortFor(m.Port), Send: h.Send, Expect: h.Expect, Path: h.Path, Host: h.Host,
					ExpectCodes: h.ExpectCodes, Body: h.Body, Verify: h.Verify, DNSName: h.Name, DNSType: h.Record,
					Interval: h.Interval, Timeout: h.Timeout, Rise: h.Rise, Fall: h.Fall,
				}
				all = append(all, check)
			}
		}
	}
	return all
}

// checkKey names a check after what it checks; none of the names holds a blank.
func checkKey(service, member string, family state.Family) string {
	return service + " " + member + " " + family.String()
}

// checkResult turns a result of the monitor into what the store takes.
func checkResult(r probes.Result) state.CheckResult {
	names := strings.Split(r.Key, " ")
	family := state.V4
	if names[2] == state.V6.String() {
		family = state.V6
	}
	return state.CheckResult{
		Service: names[0], Member: names[1], Family: family,
		Up: r.Up, Err: r.Err, Unrunnable: r.Unrunnable, Unreachable: r.Unreachable, Latency: r.Latency,
	}
}
