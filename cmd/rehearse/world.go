// Package rehearse runs a configuration on a clock of its own: the state.Store and the policy.Chain that serve, fed with
// reports of sites that do not exist. `gslbd check` holds the tests of a configuration against it, and `gslbctl simulate`
// lets a scenario pass in it (docs/simulate.md).
//
// It refuses nothing that config accepts. Nothing of it touches the network, the disk or the machine's clock, and chance
// is drawn from a seed: the same input gives the same result.
//
// Concurrency: a World belongs to one goroutine. Failure: only compiling a configuration can fail.
package rehearse

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gslbd/cmd/compile"
	"gslbd/config"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// epoch is when every rehearsal begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Options configure a World.
type Options struct {
	Config *config.Config
	Chains map[string]*policy.Chain // compile.Chains of it; nil: they are compiled
	Geo    *geo.DB                  // nil: no address has a place
	RTTs   int                      // networks that a site may tell a round trip of
	Sites  []SiteState              // of which those that are unknown or absent never report; the others are up
}

// A World is one configuration in which time passes.
type World struct {
	config   *config.Config
	store    *state.Store
	now      time.Time
	sites    []*site
	byName   map[string]*site
	services map[string]service     // by name and alias
	members  map[string]MemberState // those that are not simply as their sites, by service and name
	exists   map[string]bool        // what wildcards above do not cover: those names, and all above them
	query    policy.Query

	loadDelay time.Duration // how old the load is that a report tells, where traffic makes it
}

// SiteState is how a site is.
type SiteState struct {
	Name        string
	State       string  // as in config.SiteState; or absent: it is not there yet
	Share       float64 // of the clients that an evacuation moves; 0: all
	Utilisation float64 // of each threshold, as its reports tell; 0: they do not
	NewSessions float64 // per second, likewise

	Sessions        *uint64 // open, in place of Utilisation; nil: it does not tell
	BitsIn, BitsOut *uint64 // per second, likewise
}

// A service is the place of one in the snapshots, and whether the client subnet counts for it.
type service struct {
	index   int
	usesECS bool
}

// A site is one that reports as it is told to.
type site struct {
	cfg    config.Site
	state  SiteState
	up     []state.VirtualServer // all its virtual servers, with every server up
	down   []state.VirtualServer // likewise, down
	checks []state.CheckResult   // gslbd's own checks of its members, up
	next   time.Time             // of its next report
	rtts   []state.RTTSample     // that it has to tell
	rttsAt time.Time             // when it last told them
	load   *load                 // of the traffic that it is given; nil: as state says
}

// NewWorld returns a World in which every site has just reported, without any load, that it is up.
func NewWorld(o Options) (*World, error) {
	w := &World{config: o.Config, now: epoch, byName: map[string]*site{}, services: map[string]service{}, exists: map[string]bool{}, members: map[string]MemberState{}}
	chains := o.Chains
	if chains == nil {
		var err error
		if chains, err = compile.Chains(o.Config); err != nil {
			return nil, err
		}
	}
	var err error
	if w.store, err = state.New(state.Options{Now: func() time.Time { return w.now }}); err != nil {
		return nil, fmt.Errorf("rehearse: %w", err)
	}
	sc := compile.State(o.Config, chains)
	// What nobody asked for fills a quarter of the table at most, in equal parts for the sites.
	sc.RTT.MaxTargets = max(sc.RTT.MaxTargets, 4*max(len(sc.Sites), 1)*o.RTTs)
	if o.Geo != nil {
		w.store.SetGeo(o.Geo)
	}
	for _, c := range o.Config.Sites {
		s := &site{cfg: c, state: SiteState{Name: c.Name, State: "up"}}
		w.sites = append(w.sites, s)
		w.byName[c.Name] = s
	}
	for i := range o.Config.Services {
		svc := &o.Config.Services[i]
		for _, name := range append([]string{svc.Name}, svc.Aliases...) {
			w.services[name] = service{i, o.Config.ECSOn(svc)}
			for more := true; more; _, name, more = strings.Cut(name, ".") {
				w.exists[name] = true
			}
		}
		for _, m := range svc.Members {
			w.byName[m.Site].cover(svc, &m)
		}
	}
	for _, s := range w.sites {
		for _, vs := range s.up {
			s.down = append(s.down, withServers(vs, state.ServerDown))
		}
	}
	for _, st := range o.Sites {
		if s := w.byName[st.Name]; s != nil && (st.State == "unknown" || st.State == "absent") {
			s.state = st
		}
	}
	w.order()
	w.store.Configure(sc)
	w.report(true)
	return w, nil
}

// order puts the orders in force that the states of sites and members are.
func (w *World) order() { w.store.SetOrders(state.Orders{Force: w.force}) }

// cover lets the site report, and gslbd check, what makes the member up.
func (s *site) cover(svc *config.Service, m *config.Member) {
	servers := make([]state.Server, max(svc.MinHealthy.Count, 1))
	add := func(vs state.VirtualServer) {
		same := func(o state.VirtualServer) bool {
			return o.Name == vs.Name && o.Address == vs.Address && o.Port == vs.Port && o.Protocol == vs.Protocol
		}
		for i := range servers {
			servers[i] = state.Server{Name: fmt.Sprintf("%s%s:%d-%d", vs.Name, vs.Address, vs.Port, i+1), State: state.ServerUp}
		}
		if i := slices.IndexFunc(s.up, same); i >= 0 {
			if len(s.up[i].Servers) < len(servers) {
				s.up[i].Servers = slices.Clone(servers)
			}
			return
		}
		vs.Servers = slices.Clone(servers)
		s.up = append(s.up, vs)
	}
	for _, name := range m.VirtualServers {
		add(state.VirtualServer{Name: name, Port: m.Port, Protocol: m.Protocol})
	}
	for f, addr := range compile.ByFamily(*m) {
		if !addr.IsValid() {
			continue
		}
		if len(m.VirtualServers) == 0 {
			add(state.VirtualServer{Address: addr, Port: m.Port, Protocol: m.Protocol})
		}
		if svc.HealthCheck != nil {
			s.checks = append(s.checks, state.CheckResult{Service: svc.Name, Member: m.Name, Family: state.Family(f), Up: true})
		}
	}
}

// Set lets sites be in other states from now on.
func (w *World) Set(states []SiteState) {
	for _, st := range states {
		if s := w.byName[st.Name]; s != nil { // a scenario may tell of sites that only another configuration has
			s.state = st
			s.next = w.now // what is new is told at once
		}
	}
	w.order()
	w.report(false)
}

// force is what the states of the sites order.
func (w *World) force(service, member, name, _ string) state.Force {
	s := w.byName[name]
	ms, apart := w.members[service+" "+member]
	switch {
	case s.state.State == "absent":
		return state.Force{Forced: state.ForcedDown, Why: "it is not there yet", Since: epoch}
	case s.state.State == "drain":
		return state.Force{Forced: state.ForcedDrain, Why: "as told", Since: epoch}
	case s.state.State == "evacuated" && s.state.Share > 0 && s.state.Share < 1:
		return state.Force{Stages: []state.Stage{{Order: state.HashName("rehearsal"), Share: s.state.Share, Why: "as told"}}}
	case s.state.State == "evacuated":
		return state.Force{Forced: state.ForcedEvacuated, Why: "as told", Since: epoch}
	case apart:
		return ms.force()
	}
	return state.Force{}
}

// report sends the reports that are due, or all.
func (w *World) report(all bool) {
	interval := w.config.Reports.Interval
	for i, s := range w.sites {
		if !all && w.now.Before(s.next) {
			continue
		}
		if s.next = w.now.Add(interval); all { // from then on each in its turn
			s.next = w.now.Add(interval * time.Duration(i+1) / time.Duration(len(w.sites)))
		}
		up := s.state.State != "down" && (s.load == nil || !s.load.broken)
		for _, c := range s.checks {
			if c.Up = up && !w.members[c.Service+" "+c.Member].Down[c.Family]; !c.Up {
				c.Err = "as told"
			}
			w.store.Check(c)
		}
		switch s.state.State {
		case "stale", "dead", "unknown", "absent":
			continue
		}
		r := state.Report{Site: s.cfg.Name, VirtualServers: s.up}
		if !up {
			r.VirtualServers = s.down
		}
		if s.load != nil {
			s.load.report(w.now.Add(-w.loadDelay), interval, &r)
		} else {
			s.tell(&r)
		}
		if len(s.rtts) > 0 && (s.rttsAt.IsZero() || w.now.Sub(s.rttsAt) >= w.config.RTT.Refresh) {
			r.RTTs, s.rttsAt = s.rtts, w.now
		}
		if _, err := w.store.Report(&r); err != nil {
			panic(err) // every site is configured
		}
	}
}

// tell writes the load that the site's state names.
func (s *site) tell(r *state.Report) {
	if s.state.Sessions != nil {
		r.HasSessions, r.Sessions = true, *s.state.Sessions
	}
	if s.state.BitsIn != nil && s.state.BitsOut != nil {
		r.HasBits, r.BitsIn, r.BitsOut = true, *s.state.BitsIn, *s.state.BitsOut
	}
	u := s.state.Utilisation
	if s.state.State == "overloaded" {
		u = max(u, 1)
	}
	if u > 0 {
		// Rounded, but not over the threshold that it is under.
		of := func(limit uint64) uint64 {
			n := uint64(math.Round(u * float64(limit)))
			if u < 1 {
				n = min(n, limit-1)
			}
			return n
		}
		limit := s.cfg.Capacity
		if limit.Sessions > 0 {
			r.HasSessions, r.Sessions = true, of(limit.Sessions)
		}
		if limit.Bandwidth > 0 {
			r.HasBits, r.BitsOut = true, of(limit.Bandwidth)
		}
	}
	if s.state.NewSessions > 0 {
		r.HasNewSessions, r.NewSessions = true, s.state.NewSessions
	}
}

// Advance lets time pass.
func (w *World) Advance(d time.Duration) {
	for end := w.now.Add(d); ; {
		step := min(end.Sub(w.now), time.Second)
		w.now = w.now.Add(step)
		w.report(false)
		w.store.Advance()
		if !w.now.Before(end) {
			return
		}
	}
}

// settled is how long the store may take to publish what it was told.
const settled = 250 * time.Millisecond

// Hold lets the sites be in states for so long that all that follows from them has come about, as the last of it: those
// that are stale and dead reported until they had to stop.
func (w *World) Hold(states []SiteState) {
	shed := false
	for _, st := range states {
		s := w.byName[st.Name]
		shed = shed || s != nil && s.cfg.Capacity.ShedFrom > 0 && (st.Utilisation > 0 || st.State == "overloaded" || st.Sessions != nil || st.BitsIn != nil)
	}
	first := slices.Clone(states)
	for i := range first {
		if s := first[i].State; s == "stale" || s == "dead" {
			first[i].State = "up"
		}
	}
	w.Set(first)
	rounds := 5 // connection-load is the mean of so many reports
	if shed {
		rounds = 51 // of which each moves the share by two points
	}
	w.Advance(time.Duration(rounds) * w.config.Reports.Interval)
	stop := func(word string) {
		for _, st := range states {
			if s := w.byName[st.Name]; s != nil && st.State == word {
				s.next = w.now
				w.report(false) // the last
				s.state.State = word
			}
		}
	}
	stop("dead")
	w.Advance(w.config.Reports.DeadAfter - w.config.Reports.StaleAfter)
	stop("stale")
	w.Advance(w.config.Reports.StaleAfter)
	w.Advance(settled)
}

// SetRTTs lets a site tell round trips, now and whenever they are measured again.
func (w *World) SetRTTs(name string, rtts []state.RTTSample) {
	s := w.byName[name]
	s.rtts, s.rttsAt, s.next = rtts, time.Time{}, w.now
}

// Snapshot returns what is published now.
func (w *World) Snapshot() *state.Snapshot { return w.store.Snapshot() }

// Service returns the service that answers for the name, and whether the client subnet counts for it; nil: none does. A
// wildcard answers for what does not exist right below its parent or deeper (RFC 4592); of what exists it knows the services.
func (w *World) Service(name string) (*state.Service, bool) {
	svc, ok := w.services[name]
	for rest, more := name, true; !ok && more && !w.exists[rest]; {
		if _, rest, more = strings.Cut(rest, "."); w.exists[rest] { // the closest encloser
			svc, ok = w.services["*."+rest]
		}
	}
	if !ok {
		return nil, false
	}
	return w.Snapshot().Services[svc.index], svc.usesECS
}

// Explain decides as for a client of the service that asks for a family, with a trace.
func (w *World) Explain(name string, f state.Family, ldns netip.Addr, ecs netip.Prefix) (policy.Decision, policy.Trace) {
	svc, usesECS := w.Service(name)
	var trace policy.Trace
	w.query.Trace = &trace
	d := w.decide(&w.query, svc, f, &state.Client{LDNS: ldns.Unmap(), ECS: ecs}, usesECS)
	w.query.Trace = nil
	return d, trace
}

// decide decides one query as serving does, and takes its turn.
func (w *World) decide(q *policy.Query, svc *state.Service, f state.Family, c *state.Client, usesECS bool) policy.Decision {
	q.Snapshot, q.Service, q.Family, q.Now = w.Snapshot(), svc, f, w.now
	q.LDNS, q.ECS = c.LDNS, netip.Prefix{}
	if usesECS && c.ECS.Bits() > 0 {
		q.ECS = c.ECS
	}
	var d policy.Decision
	svc.Chain.(*policy.Chain).Serve(q, &d)
	return d
}
