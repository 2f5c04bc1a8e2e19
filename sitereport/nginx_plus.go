package sitereport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// NginxPlusOptions configure a NginxPlus reader.
type NginxPlusOptions struct {
	HTTP           HTTPOptions // the URL is that of the API with its version, such as http://127.0.0.1:8080/api/9
	VirtualServers []NginxPlusVirtualServer
}

// A NginxPlusVirtualServer pairs the zone that counts a virtual server's traffic with the upstream of its servers.
type NginxPlusVirtualServer struct {
	Name     string
	Kind     string // "http" or "stream": where the zone and the upstream are
	Zone     string // gives traffic, and with stream sessions
	Upstream string // gives the servers

	// Address, Port and Protocol are reported as they are; a member of gslbd is found by them or by Name.
	Address  netip.Addr
	Port     uint16
	Protocol string
}

// A NginxPlus reads the API of NGINX Plus (ngx_http_api_module).
//
// Sessions are the connections of the whole process, active and idle, new sessions what those accepted grew by, and
// traffic what the zones received and sent. A zone counts once, also when several virtual servers have it. A zone of kind
// http counts requests and not connections, so only virtual servers of kind stream have sessions of their own. The servers
// are the peers of the upstreams:
//
//	up                              up
//	unavail, unhealthy, checking    down; checking does not get sessions before its first check passed
//	draining                        drain
//	down                            maint: only an operator sets it
//	anything else                   unknown, with a warning
//
// It is for one reader at a time.
type NginxPlus struct {
	source *source
	opts   NginxPlusOptions

	// Owned by Read.
	known    map[string][]Server // the servers last seen, by virtual server
	accepted growth
	meter    meter
}

// The objects of the API, as far as they are read. What is absent is nil.
type (
	nginxPlusConnections struct{ Accepted, Active, Idle *uint64 }
	nginxPlusZone        struct{ Processing, Received, Sent *uint64 }
	nginxPlusUpstream    struct{ Peers []nginxPlusPeer }
	nginxPlusPeer        struct{ Server, Name, State string }
)

// nginxPlusAnswers are what one reading asked for, by kind and name.
type nginxPlusAnswers struct {
	connections nginxPlusConnections
	zones       map[string]map[string]nginxPlusZone
	upstreams   map[string]map[string]nginxPlusUpstream
}

// NewNginxPlus returns a reader. It fails when the URL is none.
func NewNginxPlus(o NginxPlusOptions) (*NginxPlus, error) {
	s, err := newSource("nginx_plus", o.HTTP)
	if err != nil {
		return nil, err
	}
	return &NginxPlus{source: s, opts: o, known: make(map[string][]Server)}, nil
}

// Read reads the API once.
func (n *NginxPlus) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, n.source.timeout)
	defer cancel()
	a, err := n.ask(ctx)
	if err == nil {
		return n.interpret(time.Now(), a), nil
	}
	n.accepted.reset()
	n.meter.reset()
	err = n.source.failed(err)
	var r Reading
	for _, v := range n.opts.VirtualServers {
		r.VirtualServers = append(r.VirtualServers, v.with(unknownServers(n.known[v.Name], err.Error())))
	}
	return r, err
}

// ask asks for the connections, and for the zones and upstreams of the kinds that there are virtual servers of: the API
// knows no paths of stream where nginx has none.
func (n *NginxPlus) ask(ctx context.Context) (a nginxPlusAnswers, err error) {
	a.zones, a.upstreams = make(map[string]map[string]nginxPlusZone), make(map[string]map[string]nginxPlusUpstream)
	if err := n.source.getJSON(ctx, "connections", "", &a.connections); err != nil {
		return a, err
	}
	if c := a.connections; c.Accepted == nil || c.Active == nil || c.Idle == nil {
		return a, errors.New("connections: accepted, active or idle is missing: is the URL that of the API with its version, such as /api/9?")
	}
	for _, v := range n.opts.VirtualServers {
		if _, asked := a.zones[v.Kind]; asked {
			continue
		}
		zones, upstreams := make(map[string]nginxPlusZone), make(map[string]nginxPlusUpstream)
		if err := n.source.getJSON(ctx, v.Kind+"/server_zones", "", &zones); err != nil {
			return a, err
		}
		if err := n.source.getJSON(ctx, v.Kind+"/upstreams", "", &upstreams); err != nil {
			return a, err
		}
		a.zones[v.Kind], a.upstreams[v.Kind] = zones, upstreams
	}
	return a, nil
}

// interpret makes a reading of the answers.
func (n *NginxPlus) interpret(now time.Time, a nginxPlusAnswers) (r Reading) {
	c := a.connections
	r.Load.Sessions = whole(float64(*c.Active)+float64(*c.Idle), MaxSessions)
	rates := n.accepted.rates(now, map[string]float64{"accepted": float64(*c.Accepted)})
	if r.Load.NewSessions = perSecond(rates); rates == nil {
		n.meter.reset() // nginx was started again, and its other counters may be above what they were
	}

	counters, counted := make(map[string]traffic), true
	for _, v := range n.opts.VirtualServers {
		zone, hasZone := a.zones[v.Kind][v.Zone]
		upstream, hasUpstream := a.upstreams[v.Kind][v.Upstream]
		var bad []string
		if !hasZone {
			bad = append(bad, fmt.Sprintf("there is no %s zone %q (status_zone); there are %s", v.Kind, v.Zone, list(slices.Collect(maps.Keys(a.zones[v.Kind])))))
		}
		if !hasUpstream {
			bad = append(bad, fmt.Sprintf("there is no %s upstream %q with a zone; there are %s", v.Kind, v.Upstream, list(slices.Collect(maps.Keys(a.upstreams[v.Kind])))))
		}
		for _, b := range bad {
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s", v.Name, b))
		}
		if hasUpstream {
			servers := make([]Server, 0, len(upstream.Peers))
			for _, p := range upstream.Peers {
				s := p.server()
				if s.State == StateUnknown {
					r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: server %q: %s, so it is reported as unknown", v.Name, s.Name, s.Reason))
				}
				servers = append(servers, s)
			}
			if len(servers) == 0 {
				r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: upstream %q has no servers, so nothing is known of its health", v.Name, v.Upstream))
			}
			n.known[v.Name] = servers
		}
		servers := n.known[v.Name]
		if len(bad) > 0 {
			servers = unknownServers(servers, bad[0])
		}
		out := v.with(servers)
		if p := zone.Processing; p != nil && v.Kind == "stream" {
			out.Sessions = whole(float64(*p), MaxSessions)
		}
		r.VirtualServers = append(r.VirtualServers, out)
		if zone.Received == nil || zone.Sent == nil {
			counted = false
			continue
		}
		counters[v.Kind+" "+v.Zone] = traffic{in: *zone.Received, out: *zone.Sent}
	}
	if !counted {
		counters = nil
	}
	r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = n.meter.rate(now, counters)
	return r
}

// with returns the virtual server with the servers.
func (v NginxPlusVirtualServer) with(servers []Server) VirtualServer {
	return VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol, Servers: servers}
}

// server returns what the API says of a peer: Server is its address, and Name what the configuration calls it.
func (p *nginxPlusPeer) server() Server {
	s := Server{Name: p.Name, Address: p.Server, Reason: p.State}
	switch p.State {
	case "up":
		s.State, s.Reason = StateUp, ""
	case "unavail", "unhealthy", "checking":
		s.State = StateDown
	case "draining":
		s.State = StateDrain
	case "down":
		s.State = StateMaint
	default:
		s.State, s.Reason = StateUnknown, fmt.Sprintf("the state %q is not known", printable(p.State, 40))
	}
	return s
}
