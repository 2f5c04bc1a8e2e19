package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A checker holds a decoded configuration against the rules that concern more than one value, and resolves what depends
// on others. Values that were faulty are zero, and their consequences are not reported again.
type checker struct {
	*decoder
	c      *Config
	apexes map[string]bool // the names of the zones
	named  map[string]bool // the names of the sites
}

func (k *checker) check() {
	k.listeners()
	k.cookies()
	k.dnsTLS()
	k.reports()
	k.admin()
	k.state()
	k.exec()
	k.dnstap()
	k.sites()
	k.geo()
	k.zoneAliases()
	k.zones()
	k.policies()
	k.services()
	k.tests()
	k.doubts()
}

// at returns the path of an entry of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// broken reports whether an entry of list has a faulty value at key, so that references to it cannot be judged.
func (k *checker) broken(list, key string) bool {
	if k.failed[list] || k.full() {
		return true
	}
	for path := range k.failed {
		if rest, ok := strings.CutPrefix(path, list+"["); ok && (strings.HasSuffix(rest, "."+key) || strings.HasSuffix(rest, "]")) {
			return true
		}
	}
	return false
}

// unique records what path defines, and refuses what was defined before.
func (d *decoder) unique(seen map[string]string, name, path string) {
	if name == "" {
		return
	}
	if first, twice := seen[name]; twice {
		before := d.failed[path]
		d.fail(path, "%q is already %s", name, first)
		d.failed[path] = before // the name is known: references to it can be judged
		return
	}
	seen[name] = path
}

func (k *checker) listeners() {
	var all []listener
	add := func(listen, path string, dual bool) {
		ap, ok := listenAddr(listen)
		if !ok || ap.Port() == 0 { // port 0: the kernel picks a free one
			return
		}
		l := listener{listen, path, ap, ap.Addr().IsUnspecified() && dual}
		for _, o := range all {
			switch {
			case o.addr == ap:
				k.fail(path, "%q is already %s", ap, o.path)
			case o.overlaps(l):
				k.fail(path, "%q overlaps %s, %q: one port of an address can only be listened on once; remove one of them or change its port", listen, o.path, o.listen)
			default:
				continue
			}
			return
		}
		all = append(all, l)
	}
	for i, l := range k.c.DNS.Listen {
		add(l, at("dns.listen", i), strings.HasPrefix(l, ":"))
	}
	for i, l := range k.c.DNS.TLS.Listen {
		add(l, at("dns.tls.listen", i), strings.HasPrefix(l, ":"))
	}
	add(k.c.Reports.Listen, "reports.listen", true) // HTTP takes both families on 0.0.0.0 and [::] as well
	add(k.c.Admin.Listen, "admin.listen", true)
	if tcp := k.c.DNS.TCP; tcp.MaxConnections > 0 && tcp.MaxConnectionsPerClient > tcp.MaxConnections && k.given("dns.tcp.max_connections_per_client") {
		k.fail("dns.tcp.max_connections_per_client", "%d is above dns.tcp.max_connections, %d", tcp.MaxConnectionsPerClient, tcp.MaxConnections)
	}
}

func (k *checker) dnsTLS() {
	t := &k.c.DNS.TLS
	for i, l := range k.c.DNS.Listen {
		if ap, ok := listenAddr(l); ok && ap.Port() == 853 {
			k.fail(at("dns.listen", i), "%q has port 853, which is for DNS over TLS only (RFC 7858 section 3.1): use 53, or move it to dns.tls.listen", l)
		}
	}
	for i, l := range t.Listen {
		if ap, ok := listenAddr(l); ok && ap.Port() == 53 {
			k.fail(at("dns.tls.listen", i), "%q has port 53, which is for DNS without TLS (RFC 7858 section 3.1): use 853", l)
		}
	}
	needs := ""
	if len(t.Listen) > 0 {
		needs = "dns.tls.listen"
	}
	k.certificate(&t.Certificate, &t.Key, "dns.tls", needs)
}

// A listener is one address that is listened on.
type listener struct {
	listen, path string
	addr         netip.AddrPort
	dual         bool // every address of both families; otherwise of that of addr
}

// overlaps reports whether the kernel refuses one of the two.
func (l listener) overlaps(o listener) bool {
	a, b := l.addr.Addr(), o.addr.Addr()
	return l.addr.Port() == o.addr.Port() && (a.IsUnspecified() || b.IsUnspecified()) && (l.dual || o.dual || a.Is4() == b.Is4())
}

// listenAddr parses what listenForm has accepted.
func listenAddr(listen string) (netip.AddrPort, bool) {
	if strings.HasPrefix(listen, ":") {
		listen = "[::]" + listen
	}
	ap, err := netip.ParseAddrPort(listen)
	return ap, err == nil
}

// offLoopback reports whether others than this machine can reach listen.
func offLoopback(listen string) bool {
	ap, ok := listenAddr(listen)
	return ok && !ap.Addr().IsLoopback()
}

func (k *checker) cookies() {
	c := &k.c.DNS.Cookies
	c.SecretFile = k.resolve(c.SecretFile)
	c.Secrets = k.cookieSecrets(c.SecretFile, "dns.cookies.secret_file")
}

func (k *checker) reports() {
	r := &k.c.Reports
	k.listenerTLS(&r.TLS, "reports.tls")
	if r.Interval > 0 && r.StaleAfter > 0 && r.StaleAfter <= r.Interval {
		k.fail("reports.stale_after", "%s is not above reports.interval, %s: every report would be stale", short(r.StaleAfter), short(r.Interval))
	}
	if r.StaleAfter > 0 && r.DeadAfter > 0 && r.DeadAfter <= r.StaleAfter {
		k.fail("reports.dead_after", "%s is not above reports.stale_after, %s", short(r.DeadAfter), short(r.StaleAfter))
	}
}

// short writes a duration as one writes it in the file: 1m0s is 1m.
func short(t time.Duration) string {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func (k *checker) admin() {
	a := &k.c.Admin
	if offLoopback(a.Listen) && a.TokenFile == "" && a.TLS.ClientCA == "" && !k.failed["admin.token_file"] && !k.failed["admin.tls.client_ca"] {
		k.fail("admin.listen", "%s can be reached from other machines, which needs admin.token_file or admin.tls.client_ca: write one of them, or listen on loopback", a.Listen)
	}
	k.listenerTLS(&a.TLS, "admin.tls")
	a.TokenFile = k.resolve(a.TokenFile)
	a.Tokens = k.tokens(a.TokenFile, "admin.token_file")
}

// listenerTLS checks the files of the section at path.
func (k *checker) listenerTLS(t *ListenerTLS, path string) {
	needs := ""
	if t.ClientCA != "" {
		needs = path + ".client_ca"
	}
	k.certificate(&t.Certificate, &t.Key, path, needs)
	t.ClientCA = k.resolve(t.ClientCA)
	k.checkFile(t.ClientCA, path+".client_ca")
}

func (k *checker) state() {
	s := &k.c.State
	s.Directory = k.resolve(s.Directory)
	if info, err := os.Stat(s.Directory); err == nil && !info.IsDir() {
		k.fail("state.directory", "%s is not a directory", s.Directory)
	}
	e := &s.Etcd
	k.certificate(&e.Certificate, &e.Key, "state.etcd", "")
	e.CA = k.resolve(e.CA)
	k.checkFile(e.CA, "state.etcd.ca")
	if len(e.Endpoints) == 0 {
		return
	}
	secure := e.Secure()
	for i, endpoint := range e.Endpoints {
		if strings.HasPrefix(endpoint, "https:") != secure && !k.brokenBelow("state.etcd.endpoints") {
			k.fail(at("state.etcd.endpoints", i), "%q has another scheme than %q: write https for all, or http for all", endpoint, e.Endpoints[0])
			return
		}
	}
	for _, f := range []struct{ file, key string }{{e.Certificate, "state.etcd.certificate"}, {e.CA, "state.etcd.ca"}} {
		if f.file != "" && !secure {
			k.fail(f.key, "is for TLS, and state.etcd.endpoints are http: write https there, or remove it")
		}
	}
}

func (k *checker) dnstap() {
	k.c.Dnstap.File = k.resolve(k.c.Dnstap.File)
	if k.c.Dnstap.File != "" && k.c.Dnstap.Socket != "" {
		k.fail("dnstap", "has both file and socket: remove one")
	}
}

// exec checks the operator's program. Its path is relative to the file, as all paths are, and made absolute: a bare name
// would be looked for in PATH when it is run.
func (k *checker) exec() {
	command := k.c.Evacuation.Exec.Command
	if len(command) == 0 || k.brokenBelow("evacuation.exec.command") {
		return
	}
	path := at("evacuation.exec.command", 0)
	command[0] = filepath.Clean(k.resolve(command[0]))
	switch info, err := os.Stat(command[0]); {
	case err != nil:
		k.fail(path, "%s: write the path of the program, which is not looked for in PATH", err)
	case !info.Mode().IsRegular():
		k.fail(path, "%s is not a file", command[0])
	case info.Mode().Perm()&0o111 == 0:
		k.fail(path, "%s cannot be executed (mode %04o): run chmod +x %s", command[0], info.Mode().Perm(), command[0])
	default:
		if command[0], err = filepath.Abs(command[0]); err != nil {
			k.fail(path, "%s: write an absolute path", err)
		}
	}
}

func (k *checker) location(l *Location, path string) {
	lat, lon := l.Latitude != 0 || k.given(path+".latitude"), l.Longitude != 0 || k.given(path+".longitude")
	if lat != lon {
		k.fail(path, "has only one of latitude and longitude: write both or neither")
	}
	l.HasCoordinates = lat && lon
}

func (k *checker) sites() {
	seen := map[string]string{}
	k.named = make(map[string]bool, len(k.c.Sites))
	for i := range k.c.Sites {
		s, path := &k.c.Sites[i], at("sites", i)
		k.named[s.Name] = true
		k.unique(seen, s.Name, path+".name")
		k.location(&s.Location, path+".location")
		s.TokenFile = k.resolve(s.TokenFile)
		s.Tokens = k.tokens(s.TokenFile, path+".token_file")
	}
}

// siteExists refuses a name that no site has.
func (k *checker) siteExists(name, path string) {
	if name == "" || k.named[name] || k.broken("sites", "name") {
		return
	}
	names := make([]string, len(k.c.Sites))
	for i, s := range k.c.Sites {
		names[i] = s.Name
	}
	k.fail(path, "unknown site %q%s", name, suggest(name, names))
}

func (k *checker) geo() {
	g := &k.c.Geo
	for i := range g.Databases {
		g.Databases[i] = k.resolve(g.Databases[i]) // whoever opens it knows whether it can do without
	}
	seen := map[string]string{}
	for i := range g.Overrides {
		o, path := &g.Overrides[i], at("geo.overrides", i)
		k.location(&o.Location, path)
		if !o.Prefix.IsValid() {
			continue
		}
		k.unique(seen, o.Prefix.String(), path+".prefix")
		k.siteExists(o.Site, path+".site")
		if o.Site == "" && o.Location.Empty() && !k.brokenBelow(path) {
			k.fail(path, "says nothing about %s: name a site or a location", o.Prefix)
		}
	}
}

// brokenBelow reports whether something at path or below is faulty.
func (k *checker) brokenBelow(path string) bool {
	if k.full() {
		return true
	}
	for p := range k.failed {
		if p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[") {
			return true
		}
	}
	return false
}

func (k *checker) zoneAliases() {
	var zones []string
	for _, s := range k.c.Sites {
		zones = append(zones, s.Zone)
	}
	seen := map[string]string{}
	for i, a := range k.c.ZoneAliases {
		path := at("zone_aliases", i)
		k.unique(seen, a.ID, path+".id")
		used := slices.ContainsFunc(zones, func(z string) bool { return z == a.ID || slices.Contains(a.Names, z) })
		if a.ID != "" && !used && !k.broken("sites", "zone") {
			k.warn(path+".id", "no site has the zone %q%s", a.ID, suggest(a.ID, zones))
		}
	}
	for i, a := range k.c.ZoneAliases {
		for j, name := range a.Names {
			k.unique(seen, name, at(at("zone_aliases", i)+".names", j))
		}
	}
}

func (k *checker) zones() {
	seen := map[string]string{}
	k.apexes = make(map[string]bool, len(k.c.Zones))
	for i := range k.c.Zones {
		z, path := &k.c.Zones[i], at("zones", i)
		k.unique(seen, z.Name, path+".name")
		k.apexes[z.Name] = true
		z.File = k.resolve(z.File)
		k.checkFile(z.File, path+".file")
		z.DNSSEC.KeyDirectory = k.resolve(z.DNSSEC.KeyDirectory)
		if z.DNSSEC.Enabled && z.DNSSEC.KeyDirectory == "" {
			k.fail(path+".dnssec.key_directory", "is required where dnssec is enabled: make a key by gslbd keygen and name its directory")
		}
	}
}

func (k *checker) policies() {
	seen := map[string]string{}
	for i, p := range k.c.Policies {
		path := at("policies", i)
		k.unique(seen, p.Name, path+".name")
		metrics := map[string]string{}
		for j, s := range p.Steps {
			step := at(path+".chain", j)
			k.unique(metrics, s.Metric, step+".metric")
			if s.Metric == "headroom" && s.Tolerance >= 1 {
				k.fail(step+".tolerance", "%g%% is not below 100%%: a site may have no fewer free sessions than none", s.Tolerance*100)
			}
		}
	}
	for _, p := range shipped() {
		if k.c.Policy(p.Name) == nil {
			k.c.Policies = append(k.c.Policies, p)
		}
	}
}

func (k *checker) policyExists(name, path string) {
	if name == "" || k.c.Policy(name) != nil || k.broken("policies", "name") {
		return
	}
	var names []string
	for _, p := range k.c.Policies {
		names = append(names, p.Name)
	}
	k.fail(path, "unknown policy %q%s", name, suggest(name, names))
}

// zoneOf returns the deepest configured zone that name lies in, or "".
func (k *checker) zoneOf(name string) string {
	for name != "" && !k.apexes[name] {
		_, name, _ = strings.Cut(name, ".")
	}
	return name
}

func (k *checker) services() {
	seen := map[string]string{}
	for i := range k.c.Services {
		k.service(&k.c.Services[i], at("services", i), seen)
	}
}

func (k *checker) service(s *Service, path string, seen map[string]string) {
	k.owner(s.Name, path+".name", seen)
	s.Zone = k.zoneOf(s.Name)
	for i, a := range s.Aliases {
		k.owner(a, at(path+".aliases", i), seen)
	}
	k.policyExists(s.Policy, path+".policy")

	if s.Failover.DropWhenAllDown {
		switch {
		case !k.given(path + ".on_all_down"):
			s.OnAllDown = "nodata"
		case s.OnAllDown != "nodata" && s.OnAllDown != "":
			k.fail(path+".failover.drop_when_all_down", "true is another spelling of on_all_down: nodata, and contradicts on_all_down: %s: remove one of them", s.OnAllDown)
		}
	}
	if s.OnAllDown == "backup" && len(s.LastResort) == 0 && !k.brokenBelow(path+".last_resort") {
		k.fail(path+".on_all_down", "backup answers the addresses in last_resort, which has none: add some")
	}
	k.members(s, path)
	k.serviceCheck(s, path)
}

// owner checks a name that a service answers for.
func (k *checker) owner(name, path string, seen map[string]string) {
	if name == "" {
		return
	}
	k.unique(seen, name, path)
	if k.zoneOf(name) == "" && !k.broken("zones", "name") {
		k.fail(path, "%q lies in none of the zones%s", name, k.zoneHint())
	}
}

func (k *checker) zoneHint() string {
	switch n := len(k.c.Zones); {
	case n == 0:
		return ": there are none; add one to zones"
	case n > 5:
		return ""
	}
	var names []string
	for _, z := range k.c.Zones {
		names = append(names, z.Name)
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func (k *checker) members(s *Service, path string) {
	names, addresses, targets := map[string]string{}, map[string]string{}, map[string]string{}
	withCNAME, primaries := 0, 0
	for i, m := range s.Members {
		at := at(path+".members", i)
		k.unique(names, m.Name, at+".name")
		k.siteExists(m.Site, at+".site")
		if m.Role == "primary" {
			primaries++
		}
		if m.CNAME != "" {
			withCNAME++
			k.unique(targets, m.CNAME, at+".cname")
			if _, err := netip.ParseAddr(m.CNAME); err == nil {
				k.fail(at+".cname", "%q is an address, and a CNAME needs a name: write it in addresses", m.CNAME)
			}
			if m.CNAME == s.Name || slices.Contains(s.Aliases, m.CNAME) {
				k.fail(at+".cname", "%q is the service itself", m.CNAME)
			}
			if len(m.Addresses) > 0 {
				k.fail(at+".addresses", "stand beside cname: a member has one or the other")
			}
			continue
		}
		k.addresses(m, at, addresses)
	}
	list := path + ".members"
	if len(s.Members) > 0 && primaries == 0 && !k.brokenBelow(list) {
		k.fail(list, "are all backups: at least one must have the role primary")
	}
	if withCNAME == 0 {
		return
	}
	if withCNAME < len(s.Members) && !k.brokenBelow(list) {
		k.fail(list, "mix cname and addresses: all members of a service have cname, or none")
	}
	for i, name := range append([]string{s.Name}, s.Aliases...) {
		where := path + ".name"
		if i > 0 {
			where = at(path+".aliases", i-1)
		}
		if name != "" && k.zoneOf(name) == name {
			k.fail(where, "%q is the apex of a zone, where no CNAME may stand (RFC 1912 section 2.4): give the members addresses", name)
		}
	}
	if s.Answers > 1 {
		k.fail(path+".answers", "%d is too many: members with cname allow one answer (RFC 2181 section 10.1)", s.Answers)
	}
	if len(s.HTTPS.ALPN) > 0 {
		k.fail(path+".https.alpn", "makes an HTTPS record, and members with cname leave that to their targets: remove it")
	}
	if s.HealthCheck != nil {
		k.fail(path+".health_check", "checks addresses, and members with cname have none: remove it")
	}
}

func (k *checker) addresses(m Member, path string, seen map[string]string) {
	if len(m.Addresses) == 0 && !k.brokenBelow(path) {
		k.fail(path, "has no address: write addresses, or cname")
	}
	if len(m.Addresses) == 2 && m.Addresses[0].Is4() == m.Addresses[1].Is4() {
		k.fail(path+".addresses", "has two addresses of one family: at most one IPv4 and one IPv6 address; make another member of the second")
	}
	for i, a := range m.Addresses {
		k.unique(seen, a.String(), at(path+".addresses", i))
	}
}

// timing checks what every check has.
func (d *decoder) timing(h *HealthCheck, path string) {
	if h.Timeout > 0 && h.Interval > 0 && h.Timeout >= h.Interval {
		d.fail(path+".timeout", "%s is not below interval, %s", short(h.Timeout), short(h.Interval))
	}
}

func (k *checker) serviceCheck(s *Service, path string) {
	h := s.HealthCheck
	if h == nil {
		return
	}
	path += ".health_check"
	k.timing(h, path)
	if h.Type != "tcp" && h.Type != "udp" || k.failed[path+".port"] {
		return
	}
	for _, m := range s.Members {
		if h.PortFor(m.Port) == 0 && m.CNAME == "" {
			k.fail(path+".port", "is missing: a %s check needs it, here or in every member (%s has none)", h.Type, m.Name)
			return
		}
	}
}

// doubts warns of what is allowed but hardly meant.
func (k *checker) doubts() {
	if len(k.c.Zones) == 0 {
		k.warn("zones", "there are none: every query will be refused")
	}
	if r := k.c.Reports; offLoopback(r.Listen) {
		tokens := false
		for i, s := range k.c.Sites {
			tokens = tokens || s.TokenFile != ""
			if s.TokenFile == "" && r.TLS.ClientCA == "" {
				k.warn(at("sites", i)+".token_file", "is empty: reports of %s are taken from loopback only, although reports.listen is %s", s.Name, r.Listen)
			}
		}
		if tokens && r.TLS.Certificate == "" {
			k.warn("reports.listen", "%s takes reports of other machines in plain HTTP: whoever is on the path can read the sites' tokens, and report for them; write reports.tls", r.Listen)
		}
	}
	if exec := k.c.Evacuation.Exec; len(exec.Command) == 0 {
		k.noEffect("evacuation.exec.timeout", exec.Timeout != time.Minute, " without evacuation.exec.command")
	}
	if e := k.c.State.Etcd; len(e.Endpoints) == 0 {
		const why = " without state.etcd.endpoints: orders are not shared"
		k.noEffect("state.etcd.prefix", e.Prefix != "/gslbd", why)
		k.noEffect("state.etcd.certificate", e.Certificate != "", why)
		k.noEffect("state.etcd.ca", e.CA != "", why)
	}
	used := map[string]bool{}     // policies
	choosing := map[string]bool{} // those of a service with a choice
	serving := map[string]bool{}  // sites
	for i := range k.c.Services {
		s := &k.c.Services[i]
		used[s.Policy] = true
		choosing[s.Policy] = choosing[s.Policy] || len(s.Members) > 1
		for _, m := range s.Members {
			serving[m.Site] = true
		}
		k.serviceDoubts(s, at("services", i))
	}
	for i, p := range k.c.Policies {
		if used[p.Name] {
			k.policyDoubts(p, at("policies", i))
		}
		if choosing[p.Name] && p.enabled("geo") && len(k.c.Geo.Databases) == 0 && len(k.c.Geo.Overrides) == 0 {
			k.warn("geo", "has neither databases nor overrides: the metric geo of the policy %s never decides", p.Name)
		}
	}
	for i, s := range k.c.Sites {
		path := at("sites", i)
		if !serving[s.Name] && len(k.c.Services) > 0 {
			k.warn(path, "no service has a member at %s", s.Name)
		}
		if s.Capacity.Sessions == 0 && s.Capacity.Bandwidth == 0 {
			for _, key := range []string{"resume", "hold", "shed_from"} {
				if at := path + ".capacity." + key; k.given(at) && (key != "shed_from" || s.Capacity.ShedFrom > 0) {
					k.warn(at, "has no effect without sessions or bandwidth")
				}
			}
		}
		if s.Capacity.ShedFrom == 0 {
			k.noEffect(path+".capacity.cascade_guard", s.Capacity.CascadeGuard, " without shed_from")
		}
	}
}

// noEffect warns of a setting that another one leaves without effect. One that has its default only shows what there is.
func (k *checker) noEffect(path string, set bool, why string) {
	if set && k.given(path) {
		k.warn(path, "has no effect%s", why)
	}
}

// policyDoubts warns of a metric that narrows before health or capacity have spoken, and of an age of round trips that
// does not go with how they are measured.
func (k *checker) policyDoubts(p Policy, path string) {
	if !p.enabled("health") {
		k.warn(path+".chain", "has no metric health, or it is off: members that are down are answered like any other")
	}
	kept := max(time.Hour, 4*k.c.RTT.Refresh) // by state
	for i, s := range p.Steps {
		if s.Enabled && s.Metric == "rtt" {
			switch {
			case s.MaxAge > kept:
				k.warn(at(path+".chain", i)+".max_age", "%s is longer than round trips are kept, %s (an hour, or four times rtt.refresh), and has no effect beyond", short(s.MaxAge), short(kept))
			case s.MaxAge < k.c.RTT.Refresh:
				k.warn("rtt.refresh", "%s is above the max_age of the policy %s, %s: its round trips are too old before the next probe", short(k.c.RTT.Refresh), p.Name, short(s.MaxAge))
			}
		}
		if !s.Enabled || s.Metric == "health" || s.Metric == "capacity" || s.Metric == "static" { // static rejects nobody
			continue
		}
		for _, later := range p.Steps[i+1:] {
			if later.Enabled && (later.Metric == "health" || later.Metric == "capacity") {
				k.warn(at(path+".chain", i), "%s stands before %s, and may leave only members that %s would have rejected", s.Metric, later.Metric, later.Metric)
				break
			}
		}
	}
}

func (k *checker) serviceDoubts(s *Service, path string) {
	p := k.c.Policy(s.Policy)
	if p == nil {
		return
	}
	if s.MinServing > len(s.Members) && k.given(path+".min_serving") {
		k.warn(path+".min_serving", "%d is above the number of members, %d: every evacuation that takes one of them will need to be forced", s.MinServing, len(s.Members))
	}
	k.failoverDoubts(s, path+".failover")
	if s.OnAllDown != "backup" && len(s.LastResort) > 0 {
		k.warn(path+".last_resort", "has no effect without on_all_down: backup")
	}
	if s.OnAllDown == "backup" {
		for _, family := range []struct {
			name string
			is   func(netip.Addr) bool
		}{{"IPv4", netip.Addr.Is4}, {"IPv6", netip.Addr.Is6}} {
			served := slices.ContainsFunc(s.Members, func(m Member) bool { return slices.ContainsFunc(m.Addresses, family.is) })
			switch lasts := slices.ContainsFunc(s.LastResort, family.is); {
			case served && !lasts:
				k.warn(path+".last_resort", "has no %s address, while members have: with all of them down, clients that ask for %s get no data", family.name, family.name)
			case lasts && !served:
				k.warn(path+".last_resort", "has an %s address, while no member has: it is never answered", family.name)
			}
		}
	}
	if !p.enabled("health") {
		healthOnly := func(key string, set bool) {
			if set {
				k.warn(path+key, "has no effect: it belongs to the metric health, which is off in the policy %s", p.Name)
			}
		}
		healthOnly(".on_all_down", k.given(path+".on_all_down"))
		healthOnly(".slow_start", s.SlowStart > 0)
		healthOnly(".failover.drop_when_all_down", s.Failover.DropWhenAllDown)
	}
	k.preferenceDoubts(s, p, path)
}

// failoverDoubts warns of what a service without backups has no use for, and of what another choice leaves unused.
func (k *checker) failoverDoubts(s *Service, path string) {
	f := s.Failover
	delay, timeout := f.FailbackDelay != time.Minute, f.ConnectionDraining.Timeout != 5*time.Minute
	if !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Role == "backup" }) {
		const why = ": no member has the role backup"
		k.noEffect(path+".ratio", f.Ratio > 0, why)
		k.noEffect(path+".failback", f.Failback != "auto", why)
		k.noEffect(path+".failback_delay", delay, why)
		k.noEffect(path+".connection_draining.timeout", timeout, why)
		return
	}
	if f.Failback != "delay" {
		k.noEffect(path+".failback_delay", delay, " without failback: delay")
	}
	if !f.ConnectionDraining.Enabled {
		k.noEffect(path+".connection_draining.timeout", timeout, ": enabled is false")
	}
}

// preferenceDoubts warns of preferences that a policy does not use as one would think.
func (k *checker) preferenceDoubts(s *Service, p *Policy, path string) {
	first := map[string]int{} // a preference by role
	for i, m := range s.Members {
		other, ok := first[m.Role]
		if !ok {
			first[m.Role] = m.Preference
			continue
		}
		if other == m.Preference {
			continue
		}
		where := at(path+".members", i) + ".preference"
		if !k.given(where) {
			where = path + ".members"
		}
		if !p.enabled("preference") {
			k.warn(where, "has no effect: the policy %s has no metric preference; active-standby has", p.Name)
			return
		}
		for _, step := range p.Steps {
			switch {
			case step.Metric == "preference":
				return
			case step.Enabled && (step.Metric == "rtt" || step.Metric == "geo" || step.Metric == "connection-load"):
				k.warn(where, "only breaks ties: in the policy %s, %s decides before preference; for an order of sites use active-standby", p.Name, step.Metric)
				return
			}
		}
	}
}

// enabled reports whether the policy has the metric, switched on.
func (p *Policy) enabled(metric string) bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Metric == metric && s.Enabled })
}
