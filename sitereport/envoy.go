package sitereport

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EnvoyOptions configure an Envoy reader.
type EnvoyOptions struct {
	HTTP           HTTPOptions // the URL is that of the admin interface
	VirtualServers []EnvoyVirtualServer
}

// An EnvoyVirtualServer pairs the listener that clients connect to with the cluster that holds the servers.
type EnvoyVirtualServer struct {
	Name       string
	Listener   string // as in the names of its statistics: 0.0.0.0_443, or its stat_prefix; gives sessions
	Kind       string // "http" or "tcp": of the filter that counts the bytes
	StatPrefix string // of that filter; gives traffic
	Cluster    string // gives the servers

	// Address, Port and Protocol are reported as they are; a member of gslbd is found by them or by Name.
	Address  netip.Addr
	Port     uint16
	Protocol string
}

// An Envoy reads the admin interface of Envoy: /stats and /clusters.
//
// Sessions are downstream_cx_active of the listeners, new sessions what their downstream_cx_total grew by, and traffic
// what downstream_cx_rx_bytes_total and tx_bytes_total of the filters did. A listener and a filter count once, also when
// several virtual servers have them. The servers are the hosts of the clusters:
//
//	eds_health_status DRAINING                         drain
//	excluded_via_immediate_hc_fail                     drain: the server itself asked to be left out
//	failed_active_health_check, failed_outlier_check   down
//	eds_health_status UNHEALTHY, TIMEOUT               down
//	eds_health_status HEALTHY, UNKNOWN, DEGRADED       up
//	another eds_health_status                          unknown, with a warning
//
// It is for one reader at a time.
type Envoy struct {
	source *source
	opts   EnvoyOptions

	// Owned by Read.
	known    map[string][]Server // the servers last seen, by virtual server
	accepted growth
	meter    meter
}

// The objects of the admin interface (envoy.admin.v3.Clusters, and the JSON of /stats), as far as they are read.
type (
	envoyStats struct {
		Stats []struct {
			Name  string
			Value json.RawMessage // a number, where one is read
		}
	}
	envoyClusters struct {
		ClusterStatuses []struct {
			Name         string
			HostStatuses []envoyHost `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	envoyHost struct {
		Address struct {
			SocketAddress struct {
				Address   string
				PortValue uint16 `json:"port_value"`
			} `json:"socket_address"`
			Pipe struct{ Path string }
		}
		Hostname     string
		HealthStatus struct {
			FailedActiveHealthCheck    bool   `json:"failed_active_health_check"`
			FailedOutlierCheck         bool   `json:"failed_outlier_check"`
			FailedActiveDegradedCheck  bool   `json:"failed_active_degraded_check"`
			PendingActiveHC            bool   `json:"pending_active_hc"`
			ExcludedViaImmediateHCFail bool   `json:"excluded_via_immediate_hc_fail"`
			ActiveHCTimeout            bool   `json:"active_hc_timeout"`
			EDSHealthStatus            string `json:"eds_health_status"`
		} `json:"health_status"`
	}
)

// NewEnvoy returns a reader. It fails when the URL is none.
func NewEnvoy(o EnvoyOptions) (*Envoy, error) {
	s, err := newSource("envoy", o.HTTP)
	if err != nil {
		return nil, err
	}
	return &Envoy{source: s, opts: o, known: make(map[string][]Server)}, nil
}

// Read reads the interface once.
func (e *Envoy) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, e.source.timeout)
	defer cancel()
	var stats envoyStats
	var clusters envoyClusters
	// The filter is a regular expression, which every version understands as this text.
	err := e.source.getJSON(ctx, "stats", "format=json&filter=downstream_cx_", &stats)
	if err == nil {
		err = e.source.getJSON(ctx, "clusters", "format=json", &clusters)
	}
	if err == nil {
		return e.interpret(time.Now(), &stats, &clusters), nil
	}
	e.accepted.reset()
	e.meter.reset()
	err = e.source.failed(err)
	var r Reading
	for _, v := range e.opts.VirtualServers {
		r.VirtualServers = append(r.VirtualServers, v.with(unknownServers(e.known[v.Name], err.Error())))
	}
	return r, err
}

// interpret makes a reading of the answers.
func (e *Envoy) interpret(now time.Time, stats *envoyStats, clusters *envoyClusters) (r Reading) {
	values, listeners := make(map[string]uint64), make(map[string]bool)
	for _, s := range stats.Stats {
		if n, err := strconv.ParseUint(string(s.Value), 10, 64); err == nil {
			values[s.Name] = n
			if name, ok := strings.CutPrefix(s.Name, "listener."); ok {
				if name, ok = strings.CutSuffix(name, ".downstream_cx_active"); ok && !strings.Contains(name, ".worker_") {
					listeners[name] = true
				}
			}
		}
	}
	hosts := make(map[string][]envoyHost, len(clusters.ClusterStatuses))
	for _, c := range clusters.ClusterStatuses {
		hosts[c.Name] = c.HostStatuses
	}

	accepted, counters := make(map[string]float64), make(map[string]traffic)
	var sessions float64
	complete, counted := true, true
	seen := make(map[string]bool) // listeners already counted
	for _, v := range e.opts.VirtualServers {
		listener, filter := "listener."+v.Listener+".downstream_cx_", v.Kind+"."+v.StatPrefix+".downstream_cx_"
		active, hasActive := values[listener+"active"]
		total, hasTotal := values[listener+"total"]
		in, hasIn := values[filter+"rx_bytes_total"]
		out, hasOut := values[filter+"tx_bytes_total"]
		members, hasCluster := hosts[v.Cluster]
		warn := func(format string, args ...any) string {
			text := fmt.Sprintf(format, args...)
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s", v.Name, text))
			return text
		}

		bad := ""
		if !hasActive || !hasTotal {
			bad = warn("Envoy has no listener %q in its statistics; there are %s", v.Listener, list(slices.Collect(maps.Keys(listeners))))
			complete = false
		} else if !seen[v.Listener] {
			seen[v.Listener] = true
			sessions += float64(active)
			accepted[v.Listener] = float64(total)
		}
		if !hasIn || !hasOut {
			warn("Envoy has no statistics %srx_bytes_total and tx_bytes_total, so no traffic is reported", filter)
			counted = false
		}
		counters[filter] = traffic{in: in, out: out}

		if hasCluster {
			servers := make([]Server, 0, len(members))
			for i := range members {
				s := members[i].server()
				if s.State == StateUnknown {
					warn("server %q: %s, so it is reported as unknown", s.Name, s.Reason)
				}
				servers = append(servers, s)
			}
			if len(servers) == 0 {
				warn("cluster %q has no hosts, so nothing is known of its health", v.Cluster)
			}
			e.known[v.Name] = servers
		} else {
			bad = warn("Envoy has no cluster %q; it has %s", v.Cluster, list(slices.Collect(maps.Keys(hosts))))
		}
		servers := e.known[v.Name]
		if bad != "" {
			servers = unknownServers(servers, bad)
		}
		vs := v.with(servers)
		if hasActive {
			vs.Sessions = whole(float64(active), MaxSessions)
		}
		r.VirtualServers = append(r.VirtualServers, vs)
	}

	if !complete {
		accepted = nil
	}
	if !counted {
		counters = nil
	}
	rates := e.accepted.rates(now, accepted)
	if rates == nil {
		e.meter.reset() // Envoy may have been started again, and its other counters may be above what they were
	}
	r.Load.NewSessions = perSecond(rates)
	r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = e.meter.rate(now, counters)
	if complete {
		r.Load.Sessions = whole(sessions, MaxSessions)
	}
	return r
}

// with returns the virtual server with the servers.
func (v EnvoyVirtualServer) with(servers []Server) VirtualServer {
	return VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Servers: servers}
}

// server returns what Envoy says of a host.
func (h *envoyHost) server() Server {
	s := Server{Address: h.Address.Pipe.Path, State: StateUp}
	if a := h.Address.SocketAddress; a.Address != "" {
		s.Address = net.JoinHostPort(a.Address, strconv.Itoa(int(a.PortValue)))
	}
	if s.Name = h.Hostname; s.Name == "" {
		s.Name = s.Address
	}
	is := h.HealthStatus
	var down []string
	for _, f := range []struct {
		is   bool
		text string
	}{
		{is.FailedActiveHealthCheck && is.PendingActiveHC, "awaits its first health check"},
		{is.FailedActiveHealthCheck && !is.PendingActiveHC && is.ActiveHCTimeout, "health check timed out"},
		{is.FailedActiveHealthCheck && !is.PendingActiveHC && !is.ActiveHCTimeout, "health check failed"},
		{is.FailedOutlierCheck, "ejected as an outlier"},
		{is.EDSHealthStatus == "UNHEALTHY" || is.EDSHealthStatus == "TIMEOUT", "EDS says " + is.EDSHealthStatus},
	} {
		if f.is {
			down = append(down, f.text)
		}
	}
	switch {
	case is.EDSHealthStatus == "DRAINING":
		s.State, s.Reason = StateDrain, "EDS says DRAINING"
	case is.ExcludedViaImmediateHCFail:
		s.State, s.Reason = StateDrain, "the server asked to be left out"
	case len(down) > 0:
		s.State, s.Reason = StateDown, strings.Join(down, ", ")
	case !slices.Contains([]string{"", "UNKNOWN", "HEALTHY", "DEGRADED"}, is.EDSHealthStatus):
		s.State, s.Reason = StateUnknown, fmt.Sprintf("the eds_health_status %q is not known", printable(is.EDSHealthStatus, 40))
	case is.FailedActiveDegradedCheck || is.EDSHealthStatus == "DEGRADED":
		s.Reason = "degraded"
	}
	return s
}
