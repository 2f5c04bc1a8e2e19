package rehearse

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gslbd/config"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

const (
	// leadIn is how long traffic flows before a scenario begins, so that it begins from what lasts.
	leadIn = 10 * time.Minute
	// points is how many there are in a series, at most.
	points = 720
)

// A Query is one of a log.
type Query struct {
	Service string // name, as it was asked
	Family  state.Family
	state.Client
}

// A Plan is what Run rehearses.
type Plan struct {
	Before, After       *config.Config // one and the same: only the scenario makes a difference
	GeoBefore, GeoAfter *geo.DB
	Scenario            *config.Scenario

	Queries    []Query    // without traffic: what is asked, evenly over the duration
	Population []Resolver // with traffic: who asks
	Present    *Present   // how the sites of Before are; nil: as the scenario begins

	Seed     uint64
	Progress func(done float64) // called with a share of 1, every few hundredths; nil: nobody wants to know
}

// A Result is what came of a Plan.
type Result struct {
	Queries  int     `json:"queries"`           // that were decided, with traffic those of the resolvers
	Unknown  int     `json:"unknown,omitempty"` // queries that no service answers for
	Lacking  int     `json:"lacking,omitempty"` // queries for a family that their service has no address of
	Duration float64 `json:"duration_seconds"`
	Phases   []Phase `json:"phases"`
	Before   Series  `json:"before"`
	After    Series  `json:"after"`
}

// A Phase is what differs between two events; with traffic there is one, of all resolvers as the scenario ends. Phases in
// which nobody asks are left out.
type Phase struct {
	From     float64         `json:"from_seconds"`
	To       float64         `json:"to_seconds"`
	Forecast policy.Forecast `json:"forecast"`
}

// A Series is what happened to the sites of one side, over time.
type Series struct {
	Seconds []float64    `json:"seconds"` // after the begin
	Sites   []SiteSeries `json:"sites"`
	Failed  float64      `json:"failed"` // share of the new sessions that went to a site that was down, or nowhere; with traffic
}

// A SiteSeries is one site at the times of a Series.
type SiteSeries struct {
	Name        string    `json:"name"`
	Share       []float64 `json:"share"`                 // of the queries since the time before; with traffic, of the new sessions
	Utilisation []float64 `json:"utilisation,omitempty"` // with traffic: as it is, whatever reports tell
	Sessions    []float64 `json:"sessions,omitempty"`    // with traffic: open
	Shed        []float64 `json:"shed"`                  // share of clients that capacity keeps away; 1: overloaded
	Mean        float64   `json:"mean_share,omitempty"`  // with traffic: of all new sessions
	Breaks      int       `json:"breaks"`                // how often its servers failed under the load
	Peak        float64   `json:"peak_utilisation"`

	asked float64 // queries since the last time; with traffic, new sessions since the begin
}

// A side is one of the two.
type side struct {
	world   *World
	traffic *traffic
	series  Series
}

// Run lets a plan come about.
func Run(p Plan) (*Result, error) {
	s := p.Scenario
	measured, err := p.measured()
	if err != nil {
		return nil, err
	}
	start := states(s.Start)
	if p.Present != nil {
		start = merge(p.Present.Sites, start)
	}
	begin := start
	if s.Duration == 0 { // one moment, at which what is ordered at 0s has come about as well
		for _, e := range s.Events {
			begin = merge(begin, states(e.Sites))
		}
	}
	before, err := newSide(p.Before, p.GeoBefore, start, measured, s.RTTs, p.Present)
	if err != nil {
		return nil, err
	}
	after, err := newSide(p.After, p.GeoAfter, begin, measured, s.RTTs, p.Present)
	if err != nil {
		return nil, err
	}
	out := &Result{Duration: s.Duration.Seconds()}
	if p.Progress == nil {
		p.Progress = func(float64) {}
	}
	if s.Traffic != nil {
		p.flow(out, before, after, start)
	} else {
		before.world.Hold(start)
		after.world.Hold(begin)
		p.replay(out, before, after)
	}
	out.Before, out.After = before.series, after.series
	return out, nil
}

// merge returns the states a with those of b in their place.
func merge(a, b []SiteState) []SiteState {
	list := slices.Clone(a)
	for _, s := range b {
		if i := slices.IndexFunc(list, func(o SiteState) bool { return o.Name == s.Name }); i >= 0 {
			list[i] = s
		} else {
			list = append(list, s)
		}
	}
	return list
}

func states(changes []config.SiteChange) []SiteState {
	var list []SiteState
	for _, c := range changes {
		list = append(list, SiteState{Name: c.Name, State: c.State, Share: c.Share, Utilisation: c.Utilisation, NewSessions: c.NewSessions})
	}
	return list
}

func newSide(c *config.Config, db *geo.DB, start []SiteState, networks []netip.Addr, rtts []config.RTTOf, present *Present) (*side, error) {
	w, err := NewWorld(Options{Config: c, Geo: db, RTTs: len(networks), Sites: start})
	if err != nil {
		return nil, err
	}
	if present != nil {
		present.apply(w)
	}
	w.measure(networks, rtts)
	sd := &side{world: w}
	for _, s := range w.sites {
		sd.series.Sites = append(sd.series.Sites, SiteSeries{Name: s.cfg.Name})
	}
	return sd, nil
}

// mostSamples is how many round trips a rehearsal holds, so that clients times sites do not fill the memory.
const mostSamples = 10_000_000

// measured returns an address of each network that a round trip may be known of.
func (p *Plan) measured() ([]netip.Addr, error) {
	if len(p.Scenario.RTTs) == 0 && p.Present == nil {
		return nil, nil
	}
	v4 := max(p.Before.RTT.Prefix.IPv4, p.After.RTT.Prefix.IPv4)
	v6 := max(p.Before.RTT.Prefix.IPv6, p.After.RTT.Prefix.IPv6)
	seen := map[netip.Prefix]bool{}
	var list []netip.Addr
	add := func(a netip.Addr) {
		bits := v6
		if a.Is4() {
			bits = v4
		}
		if network, err := a.Prefix(bits); err == nil && !seen[network] {
			seen[network] = true
			list = append(list, a)
		}
	}
	client := func(c *state.Client) {
		if c.ECS.Bits() > 0 {
			add(c.ECS.Addr())
		}
		add(c.LDNS) // which is looked up where the subnet does not count
	}
	for i := range p.Queries {
		client(&p.Queries[i].Client)
	}
	for i := range p.Population {
		client(&p.Population[i].Client)
	}
	if n := len(list) * max(len(p.Before.Sites), len(p.After.Sites)); n > mostSamples {
		return nil, fmt.Errorf("rehearse: the clients' %d networks and the sites make %d round trips, and %d are the most: give fewer clients", len(list), n, mostSamples)
	}
	return list, nil
}

// measure lets the sites tell the round trips to the addresses.
func (w *World) measure(addresses []netip.Addr, rtts []config.RTTOf) {
	sorted := slices.Clone(rtts)
	slices.SortStableFunc(sorted, func(a, b config.RTTOf) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	for _, s := range w.sites {
		var samples []state.RTTSample
		for _, a := range addresses {
			for _, r := range sorted {
				if r.Site == s.cfg.Name && r.Prefix.Contains(a) {
					samples = append(samples, state.RTTSample{Resolver: a, RTT: r.RTT})
					break
				}
			}
		}
		if len(samples) > 0 {
			w.SetRTTs(s.cfg.Name, append(s.rtts, samples...))
		}
	}
}

// replay decides the queries out of both worlds, evenly over the duration.
func (p *Plan) replay(out *Result, before, after *side) {
	s := p.Scenario
	moment := s.Duration == 0
	c := policy.NewComparison(before.world.Snapshot(), after.world.Snapshot(), true)
	began, next := before.world.now, 0
	phase, from := Phase{}, 0 // the present one, and the first query of it that was decided
	conclude := func(at time.Duration) {
		if phase.To = at.Seconds(); out.Queries > from {
			phase.Forecast = c.Forecast(true)
			out.Phases = append(out.Phases, phase)
		}
		phase, from = Phase{From: at.Seconds()}, out.Queries
		c = policy.NewComparison(before.world.Snapshot(), after.world.Snapshot(), true)
	}
	families := []state.Family{state.V4, state.V6}
	events := slices.Clone(s.Events)
	slices.SortStableFunc(events, func(a, b config.Event) int { return int(a.At - b.At) })
	sample := max(s.Duration/points, time.Second)
	for t := time.Duration(0); ; t += time.Second {
		for i := 0; !moment && len(events) > 0 && events[0].At <= t; i, events = i+1, events[1:] {
			if i == 0 {
				conclude(t)
			}
			after.world.Set(states(events[0].Sites))
		}
		if !moment {
			before.world.Advance(time.Second)
			after.world.Advance(time.Second)
		}
		c.At(before.world.Snapshot(), before.world.now, after.world.Snapshot(), after.world.now)
		if !moment {
			p.Progress(float64(t) / float64(s.Duration))
		}
		end := len(p.Queries)
		if t+time.Second < s.Duration {
			end = int(float64(len(p.Queries)) * float64(t+time.Second) / float64(s.Duration))
		}
		for ; next < end; next++ {
			q := &p.Queries[next]
			was, wasClient := before.of(q.Service, q.Client)
			is, isClient := after.of(q.Service, q.Client)
			if was == nil && is == nil {
				out.Unknown++
				continue
			}
			if !has(was, q.Family) && !has(is, q.Family) {
				out.Lacking++
				continue
			}
			out.Queries++
			wasAt, isAt := c.Decide(was, is, families[q.Family:][:1], &wasClient, &isClient, 1)
			before.count(wasAt)
			after.count(isAt)
			if moment && next&0x3fff == 0 {
				p.Progress(float64(next) / float64(len(p.Queries)))
			}
		}
		if now := before.world.now.Sub(began); moment || t%sample < time.Second || next == len(p.Queries) {
			before.sample(now)
			after.sample(now)
		}
		if t+time.Second >= s.Duration {
			break
		}
	}
	conclude(s.Duration)
}

// of returns the service that answers for a name, nil if none does, and the client without a subnet that does not count.
func (sd *side) of(name string, client state.Client) (*state.Service, state.Client) {
	svc, usesECS := sd.world.Service(name)
	if !usesECS || client.ECS.Bits() <= 0 {
		client.ECS = netip.Prefix{}
	}
	return svc, client
}

// has reports whether the service has an address of the family, in whatever state.
func has(svc *state.Service, f state.Family) bool {
	return svc != nil && (slices.ContainsFunc(svc.Members, func(m *state.Member) bool { return m.Has(f) }) ||
		slices.ContainsFunc(svc.LastResort, func(a netip.Addr) bool { return a.Is4() == (f == state.V4) }))
}

// count counts an answer, of a site or of none (nil).
func (sd *side) count(site *state.SiteInfo) {
	if site != nil {
		sd.series.Sites[site.Index].asked++
	}
}

// sample adds the present moment to the series.
func (sd *side) sample(now time.Duration) {
	sd.series.Seconds = append(sd.series.Seconds, now.Seconds())
	total := 0.0
	for i := range sd.series.Sites {
		total += sd.series.Sites[i].asked
	}
	snap := sd.world.Snapshot()
	for i := range sd.series.Sites {
		out := &sd.series.Sites[i]
		share := 0.0
		if l := sd.world.sites[i].load; l != nil {
			u := l.utilisation(sd.world.sites[i])
			out.Utilisation, out.Sessions = append(out.Utilisation, u), append(out.Sessions, l.sessions)
			out.Breaks = l.breaks
			if arriving := sd.traffic.arriving(); arriving > 0 {
				share = max(l.arriving, 0) / arriving
			}
		} else {
			if total > 0 {
				share = out.asked / total
			}
			out.asked = 0
		}
		shed := snap.Sites[i].Shed
		if snap.Sites[i].Overloaded {
			shed = 1
		}
		out.Share, out.Shed = append(out.Share, share), append(out.Shed, shed)
	}
}

func (t *traffic) arriving() float64 {
	sum := max(t.lost, 0)
	for _, l := range t.loads {
		sum += l.arriving
	}
	return sum
}

// flow lets the resolvers of the population ask when their caches make them, in both worlds.
func (p *Plan) flow(out *Result, before, after *side, start []SiteState) {
	s := p.Scenario
	known := p.Population[:0:0]
	for i := range p.Population {
		r := p.Population[i]
		was, _ := before.of(r.Service, r.Client)
		is, _ := after.of(r.Service, r.Client)
		if was != nil || is != nil {
			known = append(known, r)
		}
	}
	out.Queries, out.Unknown = len(known), len(p.Population)-len(known)
	for i, sd := range []*side{before, after} {
		sd.world.loadDelay = s.Traffic.ReportDelay
		sd.world.Set(start)
		sd.world.Advance(settled)
		sd.traffic = newTraffic(sd.world, *s.Traffic, known, p.Seed)
		for range int(leadIn / time.Second) {
			sd.traffic.second()
		}
		sd.traffic.offered, sd.traffic.failed = 0, 0
		for _, l := range sd.traffic.loads {
			l.breaks = 0
		}
		events := slices.Clone(s.Events)
		slices.SortStableFunc(events, func(a, b config.Event) int { return int(a.At - b.At) })
		sample := max((s.Duration / points).Truncate(time.Second), time.Second)
		for t := time.Duration(0); t <= s.Duration; t += time.Second {
			for ; sd == after && len(events) > 0 && events[0].At <= t; events = events[1:] {
				sd.world.Set(states(events[0].Sites))
			}
			if t%sample == 0 {
				sd.sample(t)
				p.Progress((float64(i) + float64(t)/float64(s.Duration)) / 2)
			}
			sd.traffic.second()
			for k, l := range sd.traffic.loads {
				site := &sd.series.Sites[k]
				site.asked += l.arriving
				site.Peak = max(site.Peak, l.utilisation(sd.world.sites[k]))
			}
		}
		if all := sd.traffic.offered; all > 0 {
			sd.series.Failed = sd.traffic.failed / all
			for k := range sd.series.Sites {
				sd.series.Sites[k].Mean = max(sd.series.Sites[k].asked, 0) / all
			}
		}
	}
	c := policy.NewComparison(before.world.Snapshot(), after.world.Snapshot(), true)
	for i := range known {
		was, wasClient := before.of(known[i].Service, known[i].Client)
		is, isClient := after.of(known[i].Service, known[i].Client)
		some := is
		if some == nil {
			some = was
		}
		c.Decide(was, is, []state.Family{familyOf(some)}, &wasClient, &isClient, known[i].Weight)
	}
	out.Phases = []Phase{{From: s.Duration.Seconds(), To: s.Duration.Seconds(), Forecast: c.Forecast(false)}}
}
