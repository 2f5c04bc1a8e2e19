package state

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// maxServiceBytes bounds what an agent is told of the services of its site, as JSON: half of what it reads of an answer.
const maxServiceBytes = 2 << 20

// awayFor is how long a restoration waits for an agent that was last heard of with servers in drain. One that is away for longer
// was taken away for good.
const awayFor = 24 * time.Hour

// An agentView is what the agents of a site say together (docs/agent.md). Its slices are replaced,
// never changed. It is guarded by Store.mu.
type agentView struct {
	drained, inDrain []DrainedServers
	listed           []string
	said             []string // their warnings
}

// virtualName names a virtual server to agents: by its name, or by its address and port where it has none.
func virtualName(vs *VirtualServer) string {
	if vs.Name == "" {
		return netip.AddrPortFrom(vs.Address, vs.Port).String()
	}
	return vs.Name
}

// keepDraining takes over what the report says of draining.
func (a *agentReport) keepDraining(r *Report) {
	a.warnings = slices.Clone(r.Warnings)
	for _, d := range r.Drained {
		a.drained = append(a.drained, DrainedServers{d.VirtualServer, slices.Clone(d.Servers)})
	}
	for i := range a.virtual {
		vs := &a.virtual[i]
		var servers []string
		for j := range vs.Servers {
			if sv := &vs.Servers[j]; sv.State == ServerDrain {
				servers = append(servers, serverName(sv))
			}
		}
		if len(servers) > 0 {
			a.inDrain = append(a.inDrain, DrainedServers{virtualName(vs), servers})
		}
	}
}

// serverName names a server to agents.
func serverName(sv *Server) string {
	if sv.Name == "" {
		return sv.Address
	}
	return sv.Name
}

// sameListing reports whether two reports list the same virtual servers, so that they match the same members.
func (a *agentReport) sameListing(b *agentReport) bool {
	return slices.EqualFunc(a.virtual, b.virtual, func(x, y VirtualServer) bool {
		return x.Name == y.Name && x.Address == y.Address && x.Port == y.Port && x.Protocol == y.Protocol
	})
}

// match works out which virtual servers of the report match which members of the site. The caller holds mu.
func (a *agentReport) match(st *site) {
	byName := make(map[string][]*VirtualServer, len(a.virtual))
	byAddr := make(map[netip.Addr][]*VirtualServer, len(a.virtual))
	for i := range a.virtual {
		vs := &a.virtual[i]
		if vs.Name != "" {
			byName[vs.Name] = append(byName[vs.Name], vs)
		}
		if vs.Address.IsValid() {
			byAddr[vs.Address] = append(byAddr[vs.Address], vs)
		}
	}
	a.matched, a.listed = make([][]string, len(st.members)), nil
	// Members that share a VIP share what it matches: there may be thousands of either.
	type vip struct {
		addresses [2]netip.Addr
		port      uint16
		protocol  string
	}
	byVIP := make(map[vip][]string)
	listed := make(map[string]bool, len(a.virtual))
	for i, c := range st.members {
		cfg := &c.m.cfg
		var names []string
		if len(cfg.VirtualServers) > 0 {
			for _, name := range cfg.VirtualServers {
				if len(byName[name]) > 0 && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		} else {
			key := vip{cfg.Addresses, cfg.Port, cfg.Protocol}
			if known, ok := byVIP[key]; ok {
				a.matched[i] = known
				continue
			}
			seen := make(map[string]bool)
			for _, addr := range cfg.Addresses {
				for _, vs := range byAddr[addr] { // an invalid address is none of a virtual server's
					if name := virtualName(vs); c.m.listens(vs) && !seen[name] {
						seen[name] = true
						names = append(names, name)
					}
				}
			}
			byVIP[key] = names
		}
		a.matched[i] = names
		for _, name := range names {
			if !listed[name] {
				listed[name] = true
				a.listed = append(a.listed, name)
			}
		}
	}
}

// applySiteOrders asks what the agents of every site are to do. Draining is the more restrictive and wins, or servers
// would be set back and drained again in turn. The caller holds mu.
func (s *Store) applySiteOrders() {
	for _, st := range s.siteOrder {
		st.orders = SiteOrders{}
		if s.orders.Site == nil {
			continue
		}
		ordered := s.orders.Site(st.cfg.Name, st.cfg.Zone)
		st.orders.Drain = ordered.Drain
		for _, d := range ordered.Restore {
			if !ordered.Drain {
				st.orders.Restore = append(st.orders.Restore, DrainedServers{d.VirtualServer, slices.Clone(d.Servers)})
			}
		}
	}
}

// instruct adds to the answer to a's report what draining asks of its agent. The caller holds mu.
func (s *Store) instruct(res *ReportResult, st *site, a *agentReport, now time.Time) {
	res.DeadAfter = s.cfg.DeadAfter
	res.Restore = st.orders.Restore
	if st.orders.Drain {
		res.Drain = a.listed
	}
	var at [2]int // one more than the index of the service's entry for the role
	size := 0
	for i, c := range st.members {
		if i == 0 || c.svc != st.members[i-1].svc {
			at = [2]int{}
		}
		for _, name := range a.matched[i] {
			size += len(name) + len(`"",`)
		}
		role := c.m.cfg.Role
		if at[role] == 0 {
			size += len(c.svc.cfg.Name) + len(`{"name":"","state":"draining","deadline_ms":300000,"virtual_servers":[]},`)
		}
		if size > maxServiceBytes {
			// An agent that is told of some services only would take a virtual server for left that others still use.
			res.Services = nil
			res.Warnings = append(res.Warnings, fmt.Sprintf("the services of the site match too many virtual servers to be told of (more than %d bytes), "+
				"so no sessions are ended at their deadline: give members virtual_servers or a port", maxServiceBytes))
			return
		}
		if at[role] == 0 {
			entry := s.serviceState(c.svc, role, now)
			entry.VirtualServers = a.matched[i]
			res.Services = append(res.Services, entry)
			at[role] = len(res.Services)
			continue
		}
		entry := &res.Services[at[role]-1]
		entry.VirtualServers = joinNames(entry.VirtualServers, a.matched[i])
	}
}

// serviceState tells of the service's members of one role. It goes by the pool alone, and that of the clients that a staged
// order moves: what operators order for members is no failover.
func (s *Store) serviceState(svc *service, role Role, now time.Time) ServiceState {
	out := ServiceState{Name: svc.cfg.Name, State: "active"}
	if role == svc.pool || role == svc.stagedPool {
		return out
	}
	out.State = "inactive"
	timeout := svc.cfg.DrainTimeout
	if timeout <= 0 {
		timeout = time.Duration(svc.cfg.TTL) * time.Second // clients still hold the old address
	}
	passed := now.Sub(svc.poolMoved) // an age, where no change is known
	// An agent acts only on a change that it saw, and sees one that lasts as long as a report may be late.
	if passed < max(timeout, s.cfg.StaleAfter) {
		out.State, out.Deadline = "draining", max(timeout-passed, 0)
	}
	return out
}

// viewAgents gathers what the agents with fresh reports say. Of one that has fallen silent it keeps which servers that are
// to be restored were not last, or its ledger would be closed while it is away, and nobody set them back when it returns.
// The caller holds mu.
func (s *Store) viewAgents(st *site, now time.Time) {
	agents := slices.SortedFunc(maps.Values(st.agents), func(a, b *agentReport) int { return strings.Compare(a.name, b.name) })
	v := agentView{}
	for _, a := range agents {
		held := a.heldOf(st.orders.Restore)
		if until := a.at.Add(s.cfg.StaleAfter); now.Before(until) {
			s.wakeAt(until)
			v.drained = joinServers(v.drained, a.drained)
			v.inDrain = joinServers(v.inDrain, a.inDrain)
			v.listed = joinNames(v.listed, a.listed)
			for _, w := range a.warnings {
				v.said = append(v.said, fmt.Sprintf("agent %q: %s", a.name, w))
			}
		} else if until := a.at.Add(awayFor); len(held) == 0 || !now.Before(until) || st.succeeded(a) {
			continue
		} else {
			s.wakeAt(until)
			v.said = append(v.said, fmt.Sprintf("agent %q is away, and had servers in drain that are to be restored: waiting for it", a.name))
		}
		v.inDrain = joinServers(v.inDrain, held)
	}
	st.agentView = v
}

// succeeded reports whether all agents that were heard of after a were first heard of after a: then it has another name now, as
// in a container that was started again. Those of a pair report at the same time.
func (st *site) succeeded(a *agentReport) bool {
	later := false
	for _, b := range st.agents {
		if b.at.After(a.at) {
			later = true
			if !b.since.After(a.at) {
				return false
			}
		}
	}
	return later
}

// heldOf returns those of the servers that must not pass for restored: the report has them in drain, or lists the virtual
// server and does not say their state.
func (a *agentReport) heldOf(servers []DrainedServers) (held []DrainedServers) {
	if len(servers) == 0 {
		return nil
	}
	type key struct{ virtual, server string }
	out := make(map[key]bool)
	empty := make(map[string]bool) // virtual servers without servers
	for i := range a.virtual {
		vs := &a.virtual[i]
		name := virtualName(vs)
		empty[name] = len(vs.Servers) == 0
		for j := range vs.Servers {
			sv := &vs.Servers[j]
			if sv.State == ServerUnknown || sv.State == ServerDrain {
				out[key{name, serverName(sv)}] = true
			}
		}
	}
	for _, d := range a.drained {
		for _, name := range d.Servers {
			out[key{d.VirtualServer, name}] = true
		}
	}
	for _, d := range servers {
		var names []string
		for _, name := range d.Servers {
			if empty[d.VirtualServer] || out[key{d.VirtualServer, name}] {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			held = append(held, DrainedServers{d.VirtualServer, names})
		}
	}
	return held
}

// joinServers returns a with what b adds; it changes neither.
func joinServers(a, b []DrainedServers) []DrainedServers {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := slices.Clone(a)
	at := make(map[string]int, len(out))
	for i, d := range out {
		at[d.VirtualServer] = i
	}
	for _, d := range b {
		i, ok := at[d.VirtualServer]
		if !ok {
			at[d.VirtualServer] = len(out)
			out = append(out, d)
			continue
		}
		out[i].Servers = joinNames(out[i].Servers, d.Servers)
	}
	return out
}

// joinNames returns a with what b adds; it changes neither.
func joinNames(a, b []string) []string {
	if len(a) == 0 {
		return b
	}
	known := make(map[string]bool, len(a))
	for _, name := range a {
		known[name] = true
	}
	out := slices.Clip(a)
	for _, name := range b {
		if !known[name] {
			known[name] = true
			out = append(out, name)
		}
	}
	return out
}
