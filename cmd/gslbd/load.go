package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"gslbd/cmd/compile"
	"gslbd/config"
	"gslbd/control"
	"gslbd/dns"
	"gslbd/geo"
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
	g := &generation{config: c, warnings: warnings, geo: compile.Geo(c), checks: checks(c), receiver: receiverConfig(c), orders: controlConfig(c)}
	var errs []error
	chains, err := compile.Chains(c)
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
	g.state = compile.State(c, chains)
	g.state.Zones = tables
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
			services[i].Members[j] = dns.MemberOptions{Addresses: compile.ByFamily(m), CNAME: m.CNAME}
		}
	}
	return services
}

func receiverConfig(c *config.Config) sitereport.ReceiverConfig {
	rc := sitereport.ReceiverConfig{Interval: c.Reports.Interval}
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
			for family, addr := range compile.ByFamily(m) {
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
