package state

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
)

// maxWarnings bounds the warnings about one report.
const maxWarnings = 100

// A serverCount counts the servers behind a member or a site. A server in maintenance or drain does not count.
type serverCount struct {
	known    bool // some report told of servers
	fresh    bool // the last report did
	up, size int
}

// Threshold.met reports whether up of the count servers that count are enough. A share asks for at least one server.
func (t Threshold) met(up, count int) bool {
	if t.Share > 0 {
		return up > 0 && float64(up) >= t.Share*float64(count)-1e-9
	}
	return up >= max(t.Count, 1)
}

func (t Threshold) String() string {
	if t.Share > 0 {
		return fmt.Sprintf("%g%%", 100*t.Share)
	}
	return fmt.Sprint(max(t.Count, 1))
}

// A virtualHealth is what a report says of one virtual server.
type virtualHealth struct {
	vs       *VirtualServer
	speaks   bool // it carries health
	up, size int  // servers up, and servers that count
	reason   string
	used     bool // it matches a member
}

func newVirtualHealth(vs *VirtualServer) virtualHealth {
	h := virtualHealth{vs: vs}
	for i := range vs.Servers {
		switch sv := &vs.Servers[i]; sv.State {
		case ServerUp:
			h.speaks = true
			h.up++
			h.size++
		case ServerDown:
			h.speaks = true
			h.size++
			if h.reason == "" {
				h.reason = sv.Reason
			}
		case ServerDrain, ServerMaint:
			h.speaks = true
		}
	}
	return h
}

// label names the virtual server for people.
func label(vs *VirtualServer) string {
	if vs.Name == "" && vs.Address.IsValid() {
		return fmt.Sprintf("virtual server %s", netip.AddrPortFrom(vs.Address, vs.Port))
	}
	return fmt.Sprintf("virtual server %q", vs.Name)
}

// judge says whether the virtual server has the servers that t asks for.
func (h *virtualHealth) judge(t Threshold) (up bool, why string) {
	switch {
	case h.size == 0:
		return false, label(h.vs) + ": maintenance"
	case t.met(h.up, h.size):
		return true, ""
	case h.reason != "":
		return false, fmt.Sprintf("%s: %d of %d servers up, %s needed (%s)", label(h.vs), h.up, h.size, t, h.reason)
	}
	return false, fmt.Sprintf("%s: %d of %d servers up, %s needed", label(h.vs), h.up, h.size, t)
}

// identity tells servers apart across virtual servers.
func identity(sv *Server) string {
	if sv.Address != "" {
		return sv.Address
	}
	return sv.Name
}

// A tally counts each server once, however many virtual servers list it: it counts unless it is everywhere in
// maintenance, drain or unknown, and it is up unless some virtual server has it down.
type tally map[string]ServerState

func (t tally) add(vs *VirtualServer) {
	for i := range vs.Servers {
		sv := &vs.Servers[i]
		id := identity(sv)
		switch was := t[id]; {
		case was == ServerDown:
		case sv.State == ServerDown, was == ServerUnknown:
			t[id] = sv.State
		case sv.State == ServerUp:
			t[id] = ServerUp
		}
	}
}

func (t tally) count() serverCount {
	c := serverCount{known: true, fresh: true}
	for _, st := range t {
		switch st {
		case ServerUp:
			c.up++
			c.size++
		case ServerDown:
			c.size++
		}
	}
	return c
}

// warnings collects what is odd about a report, at most maxWarnings of them.
type warnings struct {
	list []string
	more int
}

func (w *warnings) add(format string, args ...any) {
	if len(w.list) >= maxWarnings {
		w.more++
		return
	}
	w.list = append(w.list, fmt.Sprintf(format, args...))
}

// cover works out what the holder's report says of every member of the site. It tells of warnings that are new. The
// caller holds mu.
func (s *Store) cover(st *site, a *agentReport) {
	all := make([]virtualHealth, len(a.virtual))
	byName := make(map[string][]*virtualHealth, len(all))
	byAddr := make(map[netip.Addr][]*virtualHealth, len(all))
	whole := tally{}
	speaks := false
	for i := range all {
		all[i] = newVirtualHealth(&a.virtual[i])
		h := &all[i]
		if h.vs.Name != "" {
			byName[h.vs.Name] = append(byName[h.vs.Name], h)
		}
		if h.vs.Address.IsValid() {
			byAddr[h.vs.Address] = append(byAddr[h.vs.Address], h)
		}
		if h.speaks {
			speaks = true
			whole.add(h.vs)
		}
	}
	st.servers = serverCount{}
	if speaks {
		st.servers = whole.count()
	}

	var about warnings
	var matched [2][]*virtualHealth
	for _, c := range st.members {
		matched[V4], matched[V6] = matched[V4][:0], matched[V6][:0]
		var gone string // a virtual server that the member names and the same agent no longer lists
		if names := c.m.cfg.VirtualServers; len(names) > 0 {
			listed := true
			for _, name := range names {
				switch {
				case len(byName[name]) > 0:
					c.m.list(name, a.name)
				case c.m.listed[name] == a.name:
					gone = name
					listed = false
				default:
					listed = false
					if len(a.virtual) > 0 {
						about.add("member %q of service %q names the virtual server %q, which the report does not list", c.m.cfg.Name, c.svc.cfg.Name, name)
					}
				}
				for _, h := range byName[name] {
					for f := range matched {
						if c.m.named(h.vs, Family(f)) {
							matched[f] = append(matched[f], h)
						}
					}
				}
			}
			// Behind NAT the address of the only one may be of either family.
			for f := range matched {
				if listed && len(matched[f]) == 0 {
					matched[f] = append(matched[f], matched[Family(f).Other()]...)
				}
			}
		} else {
			for f, addr := range c.m.cfg.Addresses {
				if !addr.IsValid() {
					continue
				}
				for _, h := range byAddr[addr] {
					if c.m.listens(h.vs) {
						matched[f] = append(matched[f], h)
					}
				}
			}
		}
		if c.m.cover(matched, gone, c.svc.cfg.MinHealthy, a, st.agents) {
			s.touch(c.svc)
		}
		var lacking []Family
		families := 0
		for f := range matched {
			if c.m.has(Family(f)) {
				families++
				if len(matched[f]) == 0 {
					lacking = append(lacking, Family(f))
				}
			}
		}
		switch len(lacking) {
		case 0:
		case families:
			about.add("member %q of service %q is at this site, and no virtual server of the report matches it", c.m.cfg.Name, c.svc.cfg.Name)
		default:
			about.add("member %q of service %q is at this site, and no virtual server of the report matches it for %s", c.m.cfg.Name, c.svc.cfg.Name, lacking[0])
		}
	}
	for i := range all {
		h := &all[i]
		if !h.used {
			about.add("%s matches no member", label(h.vs))
		}
		if !h.speaks {
			about.add("%s carries no health: it has no servers, or only unknown ones", label(h.vs))
		}
	}
	if about.more > 0 {
		about.list = append(about.list, fmt.Sprintf("and %d more", about.more))
	}
	if !slices.Equal(st.warnings, about.list) {
		st.warnings = about.list
		if len(st.warnings) > 0 {
			s.logOnly(zap.WarnLevel, "report has warnings", zap.String("site", st.cfg.Name), zap.String("agent", a.name), zap.Strings("warnings", st.warnings))
		} else {
			s.logOnly(zap.InfoLevel, "report has no more warnings", zap.String("site", st.cfg.Name), zap.String("agent", a.name))
		}
	}
}

// named reports whether a virtual server that the member names tells of its family f: one with an address of the
// member's other family does not, as long as the member names others that do. One whose family the member lacks altogether, or that has no address, tells of all.
func (m *member) named(vs *VirtualServer, f Family) bool {
	if !m.has(f) {
		return false
	}
	if m.cfg.CNAME != "" || !vs.Address.IsValid() {
		return true
	}
	of := V6
	if vs.Address.Is4() {
		of = V4
	}
	return of == f || !m.has(of)
}

// listens reports whether the virtual server, whose address is the member's, has the member's port and protocol. What
// either side leaves open agrees with everything.
func (m *member) listens(vs *VirtualServer) bool {
	return (m.cfg.Port == 0 || vs.Port == 0 || m.cfg.Port == vs.Port) &&
		(m.cfg.Protocol == "" || vs.Protocol == "" || m.cfg.Protocol == vs.Protocol)
}

// list remembers which agent last listed a virtual server that the member names.
func (m *member) list(name, agent string) {
	if m.listed == nil {
		m.listed = make(map[string]string, len(m.cfg.VirtualServers))
	}
	m.listed[name] = agent
}

// cover takes in what the report says of the member: of each family, the virtual servers that match. gone is one that
// the member names and that the report no longer lists; "": none. It reports whether that is anything new.
func (m *member) cover(matched [2][]*virtualHealth, gone string, t Threshold, a *agentReport, agents map[string]*agentReport) bool {
	reports, counted := [2]reportSource{m.health[V4].report, m.health[V6].report}, m.servers
	servers := tally{}
	speaks := false
	for f, list := range matched {
		r := &m.health[f].report
		if !m.has(Family(f)) {
			continue
		}
		up, why, spoke := true, "", false
		for _, h := range list {
			h.used = true
			if !h.speaks {
				continue
			}
			spoke = true
			servers.add(h.vs)
			if ok, reason := h.judge(t); !ok && up {
				up, why = false, reason
			}
		}
		switch {
		case spoke && up && gone != "":
			// What is still listed is up; but the service needs the other one as well.
			*r = reportSource{ever: true, agent: a.name, state: coverageUnlisted, up: true, why: fmt.Sprintf("virtual server %q is no longer in the report", gone)}
			speaks = true
		case spoke:
			*r = reportSource{ever: true, agent: a.name, state: coverageSpeaks, up: up, why: why}
			speaks = true
		case !r.ever:
		case len(list) > 0:
			r.fallSilent(a.at)
		case r.agent == a.name:
			r.state = coverageUnlisted
		default:
			// The agent that told of the member no longer holds the site; its word ages from its last report.
			at := a.at
			if last := agents[r.agent]; last != nil {
				at = last.at
			}
			r.fallSilent(at)
		}
	}
	if speaks {
		m.servers = servers.count()
	} else {
		m.servers.fresh = false
	}
	return counted != m.servers || reports != [2]reportSource{m.health[V4].report, m.health[V6].report}
}

func (r *reportSource) fallSilent(at time.Time) {
	if r.state != coverageSilent {
		r.state, r.silentSince = coverageSilent, at
	}
}
