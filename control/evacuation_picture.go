package control

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gslbd/state"
)

// types are the types of resources, in the order in which they are taken. They are put back in the reverse order.
var types = [...]string{TypeMember, TypeAgent, TypeExec}

// execPatience is how many report intervals the program of type exec waits for agents that have been told to drain: one
// that does not do it must not hold up the rest.
const execPatience = 3

// A picture is what evacuations come to at one moment. It depends on nothing but the records, the configuration, the
// snapshot and the time, so that every gslbd that knows the same does the same. It does not change.
type picture struct {
	*view
	all    []*evacuation // the oldest first, also those that are over
	inZone map[string][]*evacuation
	zones  map[string]*zone         // those of evacuations, by id
	held   map[string][]*evacuation // by SERVICE/MEMBER: those that have it in the ledger, wherever its site stands now
	drain  map[string]bool          // zones whose agents are to drain, by id
	back   map[string][]state.DrainedServers
}

// A zone is what stands in one.
type zone struct {
	id      string
	members []zoneMember
	sites   []*state.Site
	ttl     time.Duration // the largest of the members' services
	cached  time.Time     // when the last answer that named one of the members leaves the caches
}

type zoneMember struct {
	service *state.Service
	*state.Member
}

// resource is the member's name in the ledger.
func (m zoneMember) resource() string { return m.service.Name + "/" + m.Name }

// addresses are what an evacuation takes of the member.
func (m zoneMember) addresses() []string {
	if m.CNAME != "" {
		return []string{m.CNAME}
	}
	all := []string{}
	for _, a := range m.Addr {
		if a.IsValid() {
			all = append(all, a.String())
		}
	}
	return all
}

// An evacuation is an Evacuation of one zone at one moment. One that was given for several has one for each: see merge.
type evacuation struct {
	*Evacuation
	zone  *zone
	parts []*part // in the order of types
}

// A part is what an evacuation does to one type.
type part struct {
	of        *evacuation
	typ       string
	ended     bool
	lines     []*Taken       // of the ledger, live ones, in no order
	elsewhere bool           // there are also lines of another zone of the evacuation
	by        []*Restoration // that end it
	expired   bool           // as if there were one for all types
	begun     bool           // for agent: the agents are told; for exec: the program may run
	at        time.Time      // when it begins
	free      bool           // it is being restored, and nothing must be restored before it
	behind    *part          // what must be, unless free
	heir      *part          // of a later evacuation, which keeps what this one took
}

// open reports whether anything of the part is in force or in the ledger.
func (p *part) open() bool { return !p.ended || len(p.lines) > 0 }

// restoring reports whether the part is to end. What turns up in the ledger after it ended is put back too.
func (p *part) restoring() bool { return p.ended || p.expired || len(p.by) > 0 }

// stays reports whether the part is in force and nobody has asked to end it.
func (p *part) stays() bool { return !p.restoring() }

// part returns the part of a type, or nil.
func (e *evacuation) part(typ string) *part {
	for _, p := range e.parts {
		if p.typ == typ {
			return p
		}
	}
	return nil
}

// takenID is the id of a line of the ledger.
func (e *Evacuation) takenID(typ, resource string) string { return e.ID + "/" + typ + "/" + resource }

// partID is the id of the tombstone that ends a part.
func (e *Evacuation) partID(typ string) string { return e.ID + "/" + typ }

// pause is the time between two stages.
func (e *Evacuation) pause() time.Duration { return time.Duration(e.PauseMS) * time.Millisecond }

// fullAt is when all clients are moved away.
func (e *Evacuation) fullAt() time.Time {
	if len(e.Stages) < 2 {
		return e.Created
	}
	return e.Created.Add(time.Duration(len(e.Stages)-1) * e.pause())
}

// share returns the share of the clients that is moved away at now, and when the next stage begins; zero: there is none.
func (e *Evacuation) share(now time.Time) (share float64, next time.Time) {
	if len(e.Stages) == 0 {
		return 1, time.Time{}
	}
	i := 0
	if p := e.pause(); p > 0 {
		i = int(min(max(now.Sub(e.Created)/p, 0), time.Duration(len(e.Stages)-1)))
	}
	if i+1 < len(e.Stages) {
		next = e.Created.Add(time.Duration(i+1) * e.pause())
	}
	return e.Stages[i], next
}

// newPicture works out what the evacuations of the view come to.
func newPicture(v *view) *picture {
	pic := &picture{
		view: v, inZone: map[string][]*evacuation{}, zones: map[string]*zone{}, held: map[string][]*evacuation{}, drain: map[string]bool{},
		back: map[string][]state.DrainedServers{},
	}
	if len(v.evacuations) == 0 {
		return pic
	}
	byPart := map[string][]*Taken{}
	for id, t := range v.taken {
		if v.ended(id) == nil {
			key := t.Evacuation + "/" + t.Type
			byPart[key] = append(byPart[key], t)
		}
	}
	by := map[string][]*Restoration{}
	for _, all := range v.restorations {
		for _, r := range all.contents() {
			for _, id := range r.Evacuations {
				for _, typ := range r.Types {
					by[id+"/"+typ] = append(by[id+"/"+typ], r)
				}
			}
		}
	}
	for _, e := range v.evacuations {
		ids := v.zoneIDs(e)
		for i, id := range ids {
			if pic.zones[id] == nil {
				pic.zones[id] = &zone{id: id}
			}
			one := *e
			one.Zone, one.Zones = id, nil
			evac := &evacuation{Evacuation: &one, zone: pic.zones[id]}
			for _, typ := range types {
				if !slices.Contains(e.Types, typ) {
					continue
				}
				key := e.partID(typ)
				p := &part{
					of: evac, typ: typ, ended: v.ended(key) != nil, by: by[key],
					expired: !e.Expires.IsZero() && !v.now.Before(e.Expires),
				}
				for _, t := range byPart[key] {
					if at := slices.Index(ids, v.names.zoneID(t.Zone)); at == i || (at < 0 && i == 0) {
						p.lines = append(p.lines, t)
					} else {
						p.elsewhere = true
					}
				}
				evac.parts = append(evac.parts, p)
			}
			pic.all = append(pic.all, evac)
		}
	}
	slices.SortFunc(pic.all, func(a, b *evacuation) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID), strings.Compare(a.Zone, b.Zone))
	})
	for _, e := range pic.all {
		pic.inZone[e.zone.id] = append(pic.inZone[e.zone.id], e)
		if p := e.part(TypeMember); p != nil {
			for _, t := range p.lines {
				pic.held[t.Resource] = append(pic.held[t.Resource], e)
			}
		}
	}
	pic.survey()
	for _, e := range pic.all {
		for _, p := range e.parts {
			pic.judge(p)
		}
	}
	pic.agents()
	return pic
}

// zoneIDs returns the ids of the zones that are evacuated.
func (v *view) zoneIDs(e *Evacuation) []string {
	var ids []string
	for _, name := range e.zones() {
		ids = append(ids, v.names.zoneID(name))
	}
	return union(ids, nil)
}

// survey finds what stands in the zones.
func (pic *picture) survey() {
	if pic.snap == nil {
		return
	}
	for _, s := range pic.snap.Sites {
		if z := pic.zones[pic.names.zoneID(s.Zone)]; z != nil {
			z.sites = append(z.sites, s)
		}
	}
	for _, svc := range pic.snap.Services {
		for _, m := range svc.Members {
			at := pic.zones[pic.names.zoneID(m.Site.Zone)]
			if at != nil {
				at.add(svc, m)
			}
			seen := []*zone{at}
			for _, e := range pic.holding(svc.Name, m.Name) {
				if !slices.Contains(seen, e.zone) {
					seen = append(seen, e.zone)
					e.zone.add(svc, m)
				}
			}
		}
	}
}

// holding returns the evacuations that have the member in the ledger.
func (pic *picture) holding(service, member string) []*evacuation {
	if len(pic.held) == 0 {
		return nil
	}
	return pic.held[service+"/"+member]
}

func (z *zone) add(svc *state.Service, m *state.Member) {
	z.members = append(z.members, zoneMember{svc, m})
	z.ttl = max(z.ttl, time.Duration(svc.TTL)*time.Second)
	if m.MemberCounts != nil {
		z.cached = later(z.cached, m.HandedOut.Until())
	}
}

// judge works out what is to become of the part.
func (pic *picture) judge(p *part) {
	for _, e := range pic.inZone[p.of.zone.id] {
		if q := e.part(p.typ); q != nil && q != p && q.stays() && p.restoring() {
			p.heir = q
			break
		}
	}
	switch p.typ {
	case TypeAgent:
		p.at = pic.agentsAt(p.of)
		p.begun = len(p.lines) > 0 || !pic.now.Before(p.at)
	case TypeExec:
		p.at = pic.execAt(p.of)
		p.begun = len(p.lines) > 0 || !pic.now.Before(p.at)
	default:
		p.at, p.begun = p.of.Created, true
	}
	if p.restoring() {
		p.behind = pic.before(p)
		p.free = p.behind == nil
	}
}

// before returns what must be restored before the part may be: of the restoration that asks the least, the type that
// traffic reaches last. Restorations of the type alone wait for nothing.
func (pic *picture) before(p *part) *part {
	if p.ended {
		return nil
	}
	var first *part
	if p.expired {
		if first = latest(p, types[:], []*evacuation{p.of}); first == nil {
			return nil
		}
	}
	for _, r := range p.by {
		var named []*evacuation
		for _, e := range pic.inZone[p.of.zone.id] {
			if slices.Contains(r.Evacuations, e.ID) {
				named = append(named, e)
			}
		}
		q := latest(p, r.Types, named)
		if q == nil {
			return nil
		}
		first = q
	}
	return first
}

// latest returns an open part of the last of the given types that is taken after p's, or nil.
func latest(p *part, of []string, among []*evacuation) *part {
	for i := len(types) - 1; i >= 0 && types[i] != p.typ; i-- {
		if !slices.Contains(of, types[i]) {
			continue
		}
		for _, e := range among {
			if q := e.part(types[i]); q != nil && q.open() {
				return q
			}
		}
	}
	return nil
}

// emptyAt returns when nobody holds an answer any more that names a member of the zone. ok is false if no evacuation
// takes the members away: then there is nothing to wait for.
func (pic *picture) emptyAt(z *zone) (at time.Time, ok bool) {
	for _, e := range pic.inZone[z.id] {
		if p := e.part(TypeMember); p == nil || p.ended {
			continue
		}
		if t := e.fullAt(); !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if !ok || len(z.members) == 0 {
		return time.Time{}, false
	}
	at = at.Add(z.ttl)
	if z.cached.After(at) {
		at = z.cached
	}
	return at, true
}

// agentsAt returns when agents are told to drain: traffic goes first, and then what is cached.
func (pic *picture) agentsAt(e *evacuation) time.Time {
	at := e.Created
	if empty, ok := pic.emptyAt(e.zone); ok {
		if t := empty.Add(pic.interval()); t.After(at) {
			at = t
		}
	}
	return at
}

// execAt returns when the program may run: once the agents have drained what they drain, or have had time for it.
func (pic *picture) execAt(e *evacuation) time.Time {
	at := pic.agentsAt(e)
	if len(e.zone.sites) == 0 {
		return at
	}
	for _, other := range pic.inZone[e.zone.id] {
		p := other.part(TypeAgent)
		if p == nil || p.ended {
			continue
		}
		begin := pic.agentsAt(other)
		if pic.now.Before(begin) || pic.serving(e.zone) > 0 {
			at = later(at, begin.Add(execPatience*pic.interval()))
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// interval is that between two reports.
func (pic *picture) interval() time.Duration {
	if d := pic.cfg.ReportInterval; d > 0 {
		return d
	}
	return 5 * time.Second
}

// serving returns how many servers are up behind members of the zone, as the sites say. A site whose members share an
// address shares its servers too.
func (pic *picture) serving(z *zone) int {
	n := 0
	for _, s := range z.sites {
		n += z.servingAt(s)
	}
	return n
}

func (z *zone) servingAt(s *state.Site) int {
	n := 0
	seen := map[string]bool{}
	for _, m := range z.members {
		if m.Site != s.SiteInfo || !m.HasServers {
			continue
		}
		if key := fmt.Sprint(m.Addr, m.CNAME); !seen[key] {
			seen[key] = true
			n += m.ServersUp
		}
	}
	return n
}

// agents works out what the agents are told.
func (pic *picture) agents() {
	for id, in := range pic.inZone {
		for _, e := range in {
			if p := e.part(TypeAgent); p != nil && !p.ended && p.begun && !p.free {
				pic.drain[id] = true
			}
		}
	}
	back := map[string]map[string][]string{}
	for _, e := range pic.all {
		p := e.part(TypeAgent)
		if p == nil || !p.free || p.heir != nil {
			continue
		}
		for _, t := range p.lines {
			site, vs := t.server()
			if back[site] == nil {
				back[site] = map[string][]string{}
			}
			back[site][vs] = append(back[site][vs], t.Removed...)
		}
	}
	for site, servers := range back {
		var all []state.DrainedServers
		for vs, names := range servers {
			slices.Sort(names)
			all = append(all, state.DrainedServers{VirtualServer: vs, Servers: slices.Compact(names)})
		}
		slices.SortFunc(all, func(a, b state.DrainedServers) int { return strings.Compare(a.VirtualServer, b.VirtualServer) })
		pic.back[site] = all
	}
}

// server returns where the server of a line of type agent stands.
func (t *Taken) server() (site, virtualServer string) {
	site, virtualServer, _ = strings.Cut(t.Resource, "/")
	return site, virtualServer
}

// evacuationForce returns what evacuations order for a member.
func (v *view) evacuationForce(service, member, site, zone string) state.Force {
	pic := v.picture()
	var f state.Force
	in := pic.inZone[v.names.zoneID(zone)]
	for _, e := range pic.holding(service, member) {
		if !slices.Contains(in, e) {
			in = append(slices.Clip(in), e)
		}
	}
	for _, e := range in {
		p := e.part(TypeMember)
		if p == nil || p.ended || p.free || v.ended(e.takenID(TypeMember, service+"/"+member)) != nil {
			continue
		}
		share, _ := e.share(v.now)
		switch {
		case share < 1:
			f.Stages = append(f.Stages, state.Stage{Order: state.HashName(e.ID), Share: share, Why: e.why()})
		case f.Forced != state.ForcedEvacuated:
			f.Forced, f.Why, f.Since = state.ForcedEvacuated, e.why(), e.Created
		}
	}
	if f.Forced == state.ForcedEvacuated {
		f.Stages = nil
	}
	return f
}

// siteOrders returns what evacuations want of the agents of a site.
func (v *view) siteOrders(site, zone string) state.SiteOrders {
	pic := v.picture()
	if pic.drain[v.names.zoneID(zone)] {
		return state.SiteOrders{Drain: true}
	}
	return state.SiteOrders{Restore: pic.back[site]}
}

// why tells people who ordered it and for what reason.
func (e *Evacuation) why() string {
	until := ""
	if !e.Expires.IsZero() {
		until = ", until " + clock(e.Expires)
	}
	return fmt.Sprintf("zone %s evacuated: %s, by %s (evacuation %s%s)", e.Zone, e.Reason, e.Author, short(e.ID), until)
}

// nextChange returns when time alone changes what evacuations order; zero: never.
func (v *view) nextChange() time.Time {
	var next time.Time
	consider := func(t time.Time) {
		if t.After(v.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, e := range v.picture().all {
		open := false
		for _, p := range e.parts {
			if !p.open() {
				continue
			}
			open = true
			if !p.begun {
				consider(p.at)
			}
		}
		if open {
			_, stage := e.share(v.now)
			consider(stage)
			consider(e.Expires)
		}
	}
	return next
}

// percent writes a share for people.
func percent(share float64) string { return fmt.Sprintf("%g %%", math.Round(share*1000)/10) }
