package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// AgentHTTP says how a reader of gslb-agent asks over HTTP. Nothing else than the URL is asked for: no proxy is used, and
// no redirect is followed.
type AgentHTTP struct {
	// URL is what is asked for. http or https, without user and password. Required.
	URL string `mapstructure:"url" required:"true" as:"source"`
	// Timeout bounds one reading. 100ms to 30s, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"100ms" max:"30s"`
	// TLS is what https is spoken with.
	TLS HTTPTLS `mapstructure:"tls"`
	// TokenFile holds the bearer token to present, which only its owner may read. Default: none. It is read again when it
	// changes.
	TokenFile string `mapstructure:"token_file" as:"path"`
	// User is presented with the password of PasswordFile. Default: none.
	User string `mapstructure:"user" as:"label"`
	// PasswordFile holds the password of the user, a word of printable ASCII, which only its owner may read. Default: none. It
	// is read again when it changes.
	PasswordFile string `mapstructure:"password_file" as:"path"`
}

// HTTPTLS says how a reader proves itself to what it reads, and that to it. Its files are read again when they change.
type HTTPTLS struct {
	// CA is a PEM file of the authorities that vouch for what is read. Default: those of the system.
	CA string `mapstructure:"ca" as:"path"`
	// Certificate is a PEM file of a client certificate and its chain. Default: none.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of the certificate's private key, which only its owner may read.
	Key string `mapstructure:"key" as:"path"`
}

// NginxStatus is one nginx whose stub_status is read: the load of virtual servers that others tell of.
type NginxStatus struct {
	AgentHTTP `mapstructure:",squash"`
}

// NginxPlus is one NGINX Plus whose API is read.
type NginxPlus struct {
	AgentHTTP `mapstructure:",squash"`
	// VirtualServers pairs zones with upstreams. Required, 1 to 1000.
	VirtualServers []NginxPlusVirtualServer `mapstructure:"virtual_servers" required:"true" size:"1000"`
}

// NginxPlusVirtualServer pairs the zone that counts a virtual server's traffic with the upstream of its servers.
type NginxPlusVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Kind is http or stream: where nginx has the zone and the upstream. Default http.
	Kind string `mapstructure:"kind" default:"http" enum:"http|stream"`
	// Zone is the status_zone of the server block. Required.
	Zone string `mapstructure:"zone" required:"true" as:"shorttext"`
	// Upstream is the upstream whose servers are read; it needs a zone. Required.
	Upstream string `mapstructure:"upstream" required:"true" as:"shorttext"`
	// Address is the VIP, by which gslbd matches members. Default: none; then members must name the virtual server.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
}

// AgentEnvoy is one Envoy whose admin interface is read.
type AgentEnvoy struct {
	AgentHTTP `mapstructure:",squash"`
	// VirtualServers pairs listeners with clusters. Required, 1 to 1000.
	VirtualServers []EnvoyVirtualServer `mapstructure:"virtual_servers" required:"true" size:"1000"`
}

// EnvoyVirtualServer pairs the listener that takes a virtual server's sessions with the cluster of its servers.
type EnvoyVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Listener is how the listener's statistics are called: 0.0.0.0_443, or its stat_prefix. Required.
	Listener string `mapstructure:"listener" required:"true" as:"shorttext"`
	// Kind is http or tcp: of the filter that counts the traffic. Default http.
	Kind string `mapstructure:"kind" default:"http" enum:"http|tcp"`
	// StatPrefix is how this filter's statistics are called: the stat_prefix of the HTTP connection manager or the TCP proxy.
	// Required.
	StatPrefix string `mapstructure:"stat_prefix" required:"true" as:"shorttext"`
	// Cluster is the cluster whose hosts are read. Required.
	Cluster string `mapstructure:"cluster" required:"true" as:"shorttext"`
	// Address is the VIP, by which gslbd matches members. Default: none; then members must name the virtual server.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
}

// AgentPrometheus is one page of telemetry that is read, of any exporter.
type AgentPrometheus struct {
	AgentHTTP `mapstructure:",squash"`
	// Load says where the figures come from. Without virtual_servers they are those of virtual servers that others tell of.
	Load PrometheusLoad `mapstructure:"load"`
	// VirtualServers are those whose servers are told by series. At most 1000; default: none.
	VirtualServers []PrometheusVirtualServer `mapstructure:"virtual_servers" size:"1000"`
}

// PrometheusLoad says where the figures come from; what is left out is not known.
type PrometheusLoad struct {
	// Sessions are those that are open now.
	Sessions *PrometheusFigure `mapstructure:"sessions"`
	// NewSessions are the new sessions a second.
	NewSessions *PrometheusFigure `mapstructure:"new_sessions_per_second"`
	// BitsIn is the traffic from clients.
	BitsIn *PrometheusFigure `mapstructure:"bits_per_second_in"`
	// BitsOut is the traffic to clients.
	BitsOut *PrometheusFigure `mapstructure:"bits_per_second_out"`
}

// PrometheusFigure is one figure: the sum of the series that match.
type PrometheusFigure struct {
	// Series is name, or name{label="value",...}: all labels that are given must be equal. Required.
	Series string `mapstructure:"series" required:"true" as:"series"`
	// Kind is gauge, whose value counts, or counter, of which what it grew by a second counts. Default gauge.
	Kind string `mapstructure:"kind" default:"gauge" enum:"gauge|counter"`
	// Factor is what the sum is multiplied with, such as 8 for bits of bytes. 0.000001 to 1000000, default 1.
	Factor float64 `mapstructure:"factor" default:"1" min:"0.000001" max:"1000000"`
}

// PrometheusVirtualServer is a virtual server whose servers are told by series.
type PrometheusVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Address is the VIP, by which gslbd matches members. Default: none; then members must name the virtual server.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
	// Sessions are those that are open at this virtual server. Default: not known.
	Sessions *PrometheusFigure `mapstructure:"sessions"`
	// Servers says which series tell of its servers. Required.
	Servers *PrometheusServers `mapstructure:"servers" required:"true"`
}

// PrometheusServers says which series tell of servers.
type PrometheusServers struct {
	// Series chooses those of which each tells whether one server is up. Required.
	Series string `mapstructure:"series" required:"true" as:"series"`
	// Label is the label whose value is the server's name. Required.
	Label string `mapstructure:"label" required:"true" as:"label"`
	// Up is the value of a server that is up; with another one it is down. Default 1.
	Up float64 `mapstructure:"up" default:"1"`
	// Drain chooses series that name, by the same label and a value other than 0, servers in drain. Default: none.
	Drain string `mapstructure:"drain" as:"series"`
	// Maint chooses, likewise, servers in maintenance. Default: none.
	Maint string `mapstructure:"maint" as:"series"`
}

// seriesSyntax is that of a series in Prometheus' text format.
var seriesSyntax = func() *regexp.Regexp {
	const label = `[A-Za-z_][A-Za-z0-9_]* *= *"([^"\\\n]|\\[\\"n])*"`
	return regexp.MustCompile(`^[A-Za-z_:][A-Za-z0-9_:]*(\{ *(` + label + `( *, *` + label + `)*)? *,? *\})?$`)
}()

// seriesForm is what series are chosen by.
func seriesForm(s string) (string, error) {
	if !seriesSyntax.MatchString(s) || len(s) > 1024 {
		return "", fmt.Errorf(`%s is not a series: write name, or name{label="value"}`, quote(s))
	}
	return s, nil
}

// sourceForm is the URL that a reader asks for.
func sourceForm(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err == nil && u.User != nil, err != nil && strings.Contains(s, "@"):
		return "", fmt.Errorf("holds a user or password, which would show up in logs: write user and password_file")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() != "" && !isPort(u.Port()) || u.Fragment != "" || len(s) > 2048:
		shown, _, _ := strings.Cut(s, "?") // the query may hold what others should not see
		return "", fmt.Errorf("%s is not a URL to read: write such as http://127.0.0.1:8080/path", quote(shown))
	}
	return u.String(), nil
}

// checkHTTPReaders holds the readers over HTTP against the rules that concern more than one value. names are the virtual
// servers of the file.
func (d *decoder) checkHTTPReaders(a *Agent, names map[string]string) {
	urls := map[string]string{}
	for i := range a.Nginx {
		path := at("nginx", i)
		d.agentHTTP(&a.Nginx[i].AgentHTTP, path)
		d.uniqueURL(urls, a.Nginx[i].URL, path+".url")
	}
	for i := range a.NginxPlus {
		path := at("nginx_plus", i)
		d.agentHTTP(&a.NginxPlus[i].AgentHTTP, path)
		d.uniqueURL(urls, a.NginxPlus[i].URL, path+".url")
		for j, vs := range a.NginxPlus[i].VirtualServers {
			d.unique(names, vs.Name, at(path+".virtual_servers", j)+".name")
		}
	}
	for i := range a.Envoy {
		path := at("envoy", i)
		d.agentHTTP(&a.Envoy[i].AgentHTTP, path)
		d.uniqueURL(urls, a.Envoy[i].URL, path+".url")
		for j, vs := range a.Envoy[i].VirtualServers {
			d.unique(names, vs.Name, at(path+".virtual_servers", j)+".name")
		}
	}
	for i := range a.Prometheus {
		path, p := at("prometheus", i), &a.Prometheus[i]
		d.agentHTTP(&p.AgentHTTP, path)
		if p.Load == (PrometheusLoad{}) && len(p.VirtualServers) == 0 && !d.failed[path+".virtual_servers"] && !d.failed[path+".load"] {
			d.fail(path, "reads nothing: write load or virtual_servers")
		}
		for j, vs := range p.VirtualServers {
			d.unique(names, vs.Name, at(path+".virtual_servers", j)+".name")
		}
	}
}

// uniqueURL refuses a URL that is listed twice, and does not show it.
func (d *decoder) uniqueURL(seen map[string]string, u, path string) {
	first, twice := seen[u]
	switch {
	case u == "":
	case twice:
		d.fail(path, "is the same as %s: its load would count twice", first)
	default:
		seen[u] = path
	}
}

// agentHTTP checks how one reader asks.
func (d *decoder) agentHTTP(h *AgentHTTP, path string) {
	d.certificate(&h.TLS.Certificate, &h.TLS.Key, path+".tls", "")
	h.TLS.CA = d.resolve(h.TLS.CA)
	d.checkFile(h.TLS.CA, path+".tls.ca")
	h.TokenFile, h.PasswordFile = d.resolve(h.TokenFile), d.resolve(h.PasswordFile)
	d.tokens(h.TokenFile, path+".token_file") // only whether they can be used: who presents them reads them again
	d.tokens(h.PasswordFile, path+".password_file")
	switch {
	case h.TokenFile != "" && h.PasswordFile != "":
		d.fail(path+".token_file", "stands beside password_file: only one of them can be presented")
	case h.User != "" && h.PasswordFile == "" && !d.failed[path+".password_file"]:
		d.fail(path+".password_file", "is missing, and user is of no use without it")
	case h.PasswordFile != "" && h.User == "" && !d.failed[path+".user"]:
		d.fail(path+".user", "is missing, and password_file is of no use without it")
	}
	u, err := url.Parse(h.URL)
	if err != nil || u.Scheme != "http" {
		return
	}
	for _, f := range []struct{ file, key string }{{h.TLS.CA, ".tls.ca"}, {h.TLS.Certificate, ".tls.certificate"}} {
		if f.file != "" {
			d.warn(path+f.key, "has no effect: url is not https")
		}
	}
	if (h.TokenFile != "" || h.PasswordFile != "") && !localName(u.Hostname()) {
		d.warn(path+".url", "%s is sent a secret in plain HTTP: whoever is on the path can read it; use https", u.Host)
	}
}
