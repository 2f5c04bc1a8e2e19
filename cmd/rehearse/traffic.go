package rehearse

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"gslbd/config"
	"gslbd/policy"
	"gslbd/state"
)

// A Resolver is one of the population: who asks for a service, and how many of the users stand behind it.
type Resolver struct {
	Service string
	state.Client
	Weight float64 // above 0; of the sum of all
}

// traffic is what the resolvers of a population do to the sites of one World. Users are a fluid: a resolver whose cache
// holds the address of a site sends its share of the new sessions there, until it has asked again.
type traffic struct {
	world *World
	cfg   config.Traffic
	loads []*load   // by site
	due   resolvers // a heap, by when they ask next
	rng   *rand.Rand
	query policy.Query

	offered, failed float64 // sessions, since the count began
	lost            float64 // sessions per second of those that were given no site
}

// A cached resolver is one with an answer in its cache.
type cached struct {
	Resolver
	family   state.Family
	rate     float64 // new sessions per second
	floor    time.Duration
	prefetch bool
	site     int // where its users go; -1: nowhere
	next     time.Time
}

// A load is what the traffic makes of a site.
type load struct {
	arriving float64 // new sessions per second
	sessions float64 // open
	bits     float64 // of a session

	broken   bool
	over     time.Duration // how long it has borne too much
	repaired time.Time
	breaks   int

	history []sample // of the last seconds, the newest last
}

type sample struct {
	at                 time.Time
	arrivals, sessions float64
}

type resolvers []*cached

func (r resolvers) Len() int           { return len(r) }
func (r resolvers) Less(i, j int) bool { return r[i].next.Before(r[j].next) }
func (r resolvers) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *resolvers) Push(x any)        { *r = append(*r, x.(*cached)) }
func (r *resolvers) Pop() any          { panic("nobody leaves") }

// newTraffic lets the population begin: each resolver has just some answer, and asks again at a time of its own.
func newTraffic(w *World, cfg config.Traffic, population []Resolver, seed uint64) *traffic {
	t := &traffic{world: w, cfg: cfg, rng: rand.New(rand.NewPCG(seed, 1))}
	for _, s := range w.sites {
		s.load = &load{bits: float64(cfg.BitsPerSession)}
		t.loads = append(t.loads, s.load)
	}
	total := 0.0
	for _, r := range population {
		total += r.Weight
	}
	for _, r := range population {
		svc, usesECS := w.Service(r.Service)
		// The draws are the same in every World, whatever it knows.
		floor, prefetch, phase := t.rng.Float64() < cfg.FloorShare, t.rng.Float64() < cfg.PrefetchShare, t.rng.Float64()
		if svc == nil { // the other World has it
			t.lost += cfg.SessionsPerSecond * r.Weight / total
			continue
		}
		c := &cached{Resolver: r, rate: cfg.SessionsPerSecond * r.Weight / total, prefetch: prefetch, site: -1, family: familyOf(svc)}
		c.Service = svc.Name
		if floor {
			c.floor = cfg.Floor
		}
		t.lost += c.rate
		t.ask(c, svc, usesECS)
		c.next = w.now.Add(time.Duration(phase * float64(c.next.Sub(w.now))))
		t.due = append(t.due, c)
	}
	heap.Init(&t.due)
	for _, l := range t.loads {
		l.sessions = l.arriving * cfg.SessionLength.Seconds()
	}
	return t
}

// familyOf returns the family that is asked for where nobody says which: IPv4, if the service has it.
func familyOf(svc *state.Service) state.Family {
	for _, m := range svc.Members {
		if m.Has(state.V4) {
			return state.V4
		}
	}
	return state.V6
}

// ask lets a resolver ask now.
func (t *traffic) ask(c *cached, svc *state.Service, usesECS bool) {
	d := t.world.decide(&t.query, svc, c.family, &c.Client, usesECS)
	site := -1
	if d.Kind == policy.Answer {
		site = d.Members[0].Site.Index
	}
	t.move(c, site)
	ttl := max(time.Duration(d.TTL)*time.Second, c.floor, time.Second)
	if d.TTL == policy.NoCeiling {
		ttl = max(10*time.Second, c.floor)
	}
	if c.prefetch {
		ttl = ttl * 9 / 10
	} else {
		// It asks when the next user needs it.
		ttl += time.Duration(min(t.rng.ExpFloat64()/c.rate, 3600) * float64(time.Second))
	}
	c.next = t.world.now.Add(ttl)
}

// move sends the users of a resolver elsewhere.
func (t *traffic) move(c *cached, site int) {
	if c.site < 0 {
		t.lost -= c.rate
	} else {
		t.loads[c.site].arriving -= c.rate
	}
	if c.site = site; site < 0 {
		t.lost += c.rate
	} else {
		t.loads[site].arriving += c.rate
	}
}

// second lets one second pass.
func (t *traffic) second() {
	w := t.world
	for len(t.due) > 0 && !t.due[0].next.After(w.now) {
		c := t.due[0]
		svc, usesECS := w.Service(c.Service)
		t.ask(c, svc, usesECS)
		heap.Fix(&t.due, 0)
	}
	const dt = 1.0
	keep := math.Exp(-dt / t.cfg.SessionLength.Seconds())
	t.offered += t.lost * dt
	t.failed += max(t.lost, 0) * dt
	for i, l := range t.loads {
		s := w.sites[i]
		t.offered += l.arriving * dt
		if s.state.State == "down" || s.state.State == "absent" || l.broken {
			l.sessions, l.over = 0, 0
			t.failed += l.arriving * dt
		} else {
			full := l.arriving * t.cfg.SessionLength.Seconds()
			l.sessions = full + (l.sessions-full)*keep
			t.strain(l, s)
		}
		if l.broken && !w.now.Before(l.repaired) {
			l.broken = false
		}
		l.history = append(l.history, sample{w.now, l.arriving, l.sessions})
		if keep := int((t.cfg.ReportDelay + w.config.Reports.Interval).Seconds()) + 2; len(l.history) > keep {
			l.history = l.history[len(l.history)-keep:]
		}
	}
	w.Advance(time.Second)
}

// strain breaks a site that has borne too much for too long.
func (t *traffic) strain(l *load, s *site) {
	if t.cfg.BreaksAt == 0 || l.utilisation(s) < t.cfg.BreaksAt {
		l.over = 0
		return
	}
	if l.over += time.Second; l.over > t.cfg.BreaksAfter {
		l.broken, l.over, l.repaired = true, 0, t.world.now.Add(t.cfg.Repair)
		l.breaks++
	}
}

// utilisation returns how full the site is now, whatever its reports tell; 0 without thresholds.
func (l *load) utilisation(s *site) float64 {
	u := 0.0
	if limit := s.cfg.Capacity.Sessions; limit > 0 {
		u = l.sessions / float64(limit)
	}
	if limit := s.cfg.Capacity.Bandwidth; limit > 0 {
		u = max(u, l.sessions*l.bits/float64(limit))
	}
	return u
}

// report tells the load, as it was a while ago.
func (l *load) report(asOf time.Time, interval time.Duration, r *state.Report) {
	var arrivals, n float64
	now := sample{sessions: l.sessions, arrivals: l.arriving}
	for i := len(l.history) - 1; i >= 0; i-- {
		h := l.history[i]
		if h.at.After(asOf) {
			continue
		}
		if n == 0 {
			now = h
		}
		if asOf.Sub(h.at) >= interval {
			break
		}
		arrivals += h.arrivals
		n++
	}
	if n > 0 {
		now.arrivals = arrivals / n
	}
	if l.broken { // an SLB without servers has no sessions
		now = sample{}
	}
	whole := func(v float64) uint64 { return uint64(math.Round(min(max(v, 0), 1<<53))) }
	r.HasSessions, r.Sessions = true, whole(now.sessions)
	r.HasNewSessions, r.NewSessions = true, max(now.arrivals, 0)
	if l.bits > 0 {
		r.HasBits, r.BitsOut = true, whole(now.sessions*l.bits)
	}
}
