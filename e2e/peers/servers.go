//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A server is one of those that are compared.
type server struct {
	name    string
	program string // found in PATH or the usual places; for those that are built here, the path is set
	from    string // what to install
	debian  string // the package that knows the version
	blind   bool   // its answers are no answers
	cannot  map[string]string
	// configure writes what the server reads into dir, and returns its arguments.
	configure func(w *world, dir string, port, threads int) ([]string, error)
}

const noGeo = "it has no decision by client"

var servers = []server{
	{
		name: "echo (limit)", from: "gcc, which builds it", blind: true, configure: func(_ *world, _ string, port, _ int) ([]string, error) {
			return []string{serverAddress, fmt.Sprint(port)}, nil
		},
		cannot: map[string]string{"tcp": "UDP only", "tcp-new": "UDP only", "cores": "one thread"},
	},
	{name: "gslbd", configure: gslbdFiles},
	{name: "gdnsd", program: "gdnsd", from: "Debian package gdnsd", debian: "gdnsd", configure: gdnsdFiles},
	{name: "Knot", program: "knotd", from: "Debian packages knot and knot-module-geoip", debian: "knot", configure: knotFiles},
	{name: "PowerDNS", program: "pdns_server", from: "Debian packages pdns-server and pdns-backend-geoip", debian: "pdns-server", configure: powerFiles},
	{
		name: "CoreDNS", from: "the Go module " + coreDNS, configure: coreFiles,
		cannot: map[string]string{"large": noGeo},
	},
	{
		name: "NSD", program: "nsd", from: "Debian package nsd", debian: "nsd", configure: nsdFiles,
		cannot: map[string]string{"large": noGeo},
	},
}

// locate returns the path of a program, or "".
func locate(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path := filepath.Join(dir, program); program != "" {
			if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
				return path
			}
		}
	}
	return ""
}

// write writes one file below dir, with what the lines say.
func write(dir, name string, lines func(p func(format string, args ...any))) error {
	var b strings.Builder
	lines(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}

// zoneFile writes the zone with what is the same for all; with static, an address for the services too.
func zoneFile(w *world, dir string, static bool) error {
	return write(dir, "zone", func(p func(string, ...any)) {
		p("$TTL %d", ttl)
		p("@ IN SOA ns1.%s. hostmaster.%[1]s. 1 3600 600 86400 60", domain)
		p("@ IN NS ns1.%s.", domain)
		p("ns1 IN A %s", serverAddress)
		for i := 0; static && i < w.services; i++ {
			p("w%d IN A %s", i, address(i, 0))
		}
	})
}

func gslbdFiles(w *world, dir string, port, _ int) ([]string, error) {
	err := write(dir, "gslbd.yaml", func(p func(string, ...any)) {
		p("dns: {listen: [\"%s:%d\"]}", serverAddress, port)
		p("reports: {listen: \"127.0.0.1:%d\", interval: 1s, stale_after: 1h, dead_after: 2h}", reportPort)
		p("admin: {listen: \"127.0.0.1:%d\", telemetry_per_service: false}", adminPort)
		p("state: {directory: state}")
		p("geo: {databases: [%q]}", w.database)
		// A quarter of the table is for networks that have not asked yet, a site's share of that for each.
		p("rtt: {max_targets: %d}", max(5*w.networks, 1000))
		p("log: {level: warn}")
		p("zones: [{name: %s, file: zone}]", domain)
		if w.large() {
			// Round trips stay fresh, and geo compares all that rtt leaves but rejects none: all eight metrics are consulted.
			p("policies: [{name: full, chain: [{metric: health}, {metric: capacity}, {metric: rtt, max_age: 24h}, {metric: geo, tolerance_km: 20000, levels: [override, distance, country]}, " +
				"{metric: connection-load}, {metric: preference}, {metric: least-selected}, {metric: static}]}]")
		}
		p("sites:")
		for i := range w.sites {
			at := w.place(i)
			p("- {name: s%d, zone: z%d, region: r%d, location: {continent: %s, country: %s, latitude: %.2f, longitude: %.2f}, capacity: {sessions: 900000, bandwidth: 900Mbps}}",
				i, i, i%10, at.continent, at.country, at.latitude, at.longitude)
		}
		p("services:")
		for i := range w.services {
			policy := "default"
			if w.large() {
				policy = "full"
			}
			p("- name: %s", serviceName(i))
			p("  policy: %s", policy)
			p("  ttl: %d", ttl)
			p("  members:")
			for j := range w.members {
				p("  - {name: m%d, site: s%d, addresses: [%s]}", j, w.site(i, j), address(i, j))
			}
		}
	})
	if err == nil {
		err = zoneFile(w, dir, false)
	}
	return []string{"--config", filepath.Join(dir, "gslbd.yaml")}, err
}

// gdnsdFiles has a map for each set of sites, since a resource has all data centres of its map.
func gdnsdFiles(w *world, dir string, port, threads int) ([]string, error) {
	sets := min(w.services, manySets)
	err := write(dir, "config", func(p func(string, ...any)) {
		p("options => { listen => [%s:%d], udp_threads => %d, tcp_threads => %d, run_dir => %q, state_dir => %q, zones_default_ttl => %d }", serverAddress, port, threads, threads, dir, dir, ttl)
		p("service_types => { }")
		p("plugins => { geoip => { service_types => up, maps => {")
		for i := range sets {
			p("m%d => { geoip2_db => %q, datacenters => [", i, w.database)
			for j := range w.members {
				p("s%d,", w.site(i, j))
			}
			p("], auto_dc_coords => {")
			for j := range w.members {
				at := w.place(w.site(i, j))
				p("s%d => [%.2f, %.2f],", w.site(i, j), at.latitude, at.longitude)
			}
			p("} },")
		}
		p("}, resources => {")
		for i := range w.services {
			p("r%d => { map => m%d, dcmap => {", i, i%sets)
			for j := range w.members {
				p("s%d => %s,", w.site(i, j), address(i, j))
			}
			p("} },")
		}
		p("} } }")
	})
	if err != nil {
		return nil, err
	}
	err = write(dir, "zones/"+domain, func(p func(string, ...any)) {
		p("@ %d SOA ns1.%s. hostmaster.%[2]s. 1 3600 600 86400 60", ttl, domain)
		p("@ %d NS ns1.%s.", ttl, domain)
		p("ns1 %d A %s", ttl, serverAddress)
		for i := range w.services {
			p("w%d %d DYNA geoip!r%d", i, ttl, i)
		}
	})
	return []string{"-c", dir, "start"}, err
}

func knotFiles(w *world, dir string, port, threads int) ([]string, error) {
	err := write(dir, "knot.conf", func(p func(string, ...any)) {
		p("server:\n  listen: %s@%d\n  rundir: %s\n  udp-workers: %d\n  tcp-workers: %d\n  edns-client-subnet: on", serverAddress, port, dir, threads, max(threads, 1))
		p("log:\n  - target: stderr\n    any: warning")
		p("database:\n  storage: %s", dir)
		p("mod-geoip:\n  - id: g\n    config-file: %s/geo.conf\n    ttl: %d\n    mode: geodb\n    geodb-file: %s\n    geodb-key: country/iso_code", dir, ttl, w.database)
		p("zone:\n  - domain: %s\n    file: %s/zone\n    zonefile-sync: -1\n    module: mod-geoip/g", domain, dir)
	})
	if err == nil {
		err = write(dir, "geo.conf", func(p func(string, ...any)) {
			for i := range w.services {
				p("%s:", serviceName(i))
				for j := range w.members {
					p("  - geo: %q\n    A: %s", w.place(w.site(i, j)).country, address(i, j))
				}
			}
		})
	}
	if err == nil {
		err = zoneFile(w, dir, true)
	}
	return []string{"-c", filepath.Join(dir, "knot.conf")}, err
}

func powerFiles(w *world, dir string, port, threads int) ([]string, error) {
	err := write(dir, "pdns.conf", func(p func(string, ...any)) {
		p("launch=geoip\ngeoip-zones-file=%s/zones.yaml\ngeoip-database-files=mmdb:%s", dir, w.database)
		p("local-address=%s\nlocal-port=%d\nreceiver-threads=%d\ndistributor-threads=1\nreuseport=yes", serverAddress, port, threads)
		p("edns-subnet-processing=yes\nsocket-dir=%s\ndaemon=no\nguardian=no\nloglevel=3\nlog-dns-details=no\nsecurity-poll-suffix=", dir)
	})
	if err == nil {
		err = write(dir, "zones.yaml", func(p func(string, ...any)) {
			p("domains:\n- domain: %s\n  ttl: %d\n  records:\n    %[1]s:", domain, ttl)
			p("      - soa: ns1.%s. hostmaster.%[1]s. 1 3600 600 86400 60\n      - ns: ns1.%[1]s.\n    ns1.%[1]s:\n      - a: %s", domain, serverAddress)
			for i := range w.services {
				for j := range w.members {
					p("    %s.%s:\n      - a: %s", strings.ToLower(w.place(w.site(i, j)).country), serviceName(i), address(i, j))
				}
				p("    other.%s:\n      - a: %s", serviceName(i), address(i, 0))
			}
			p("  services:")
			for i := range w.services {
				p("    %s: ['%%cc.%s', 'other.%s']", serviceName(i), serviceName(i), serviceName(i))
			}
		})
	}
	return []string{"--config-dir=" + dir}, err
}

func coreFiles(w *world, dir string, port, _ int) ([]string, error) {
	err := write(dir, "Corefile", func(p func(string, ...any)) {
		p("%s:%d {\n  bind %s\n  file %s/zone\n}", domain, port, serverAddress, dir)
	})
	if err == nil {
		err = zoneFile(w, dir, true)
	}
	return []string{"-conf", filepath.Join(dir, "Corefile"), "-quiet"}, err
}

func nsdFiles(w *world, dir string, port, threads int) ([]string, error) {
	err := write(dir, "nsd.conf", func(p func(string, ...any)) {
		p("server:\n  ip-address: %s@%d\n  server-count: %d\n  reuseport: yes\n  database: \"\"\n  username: \"\"\n  rrl-ratelimit: 0", serverAddress, port, threads)
		p("  pidfile: \"\"\n  xfrdfile: \"\"\n  zonelistfile: %s/list\n  xfrdir: %s\n  zonesdir: %[1]s\n  verbosity: 0", dir, dir)
		p("remote-control:\n  control-enable: no")
		p("zone:\n  name: %s\n  zonefile: zone", domain)
	})
	if err == nil {
		err = zoneFile(w, dir, true)
	}
	return []string{"-d", "-c", filepath.Join(dir, "nsd.conf")}, err
}
