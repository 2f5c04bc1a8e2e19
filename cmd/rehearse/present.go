package rehearse

import (
	"fmt"
	"slices"

	"gslbd/cmd/compile"
	"gslbd/config"
	"gslbd/state"
)

// Present is how the sites and members of a running gslbd are.
type Present struct {
	Sites   []SiteState
	Members []MemberState
	RTTs    map[string][]state.RTTSample // by site
}

// A MemberState is how a member is, beside its site.
type MemberState struct {
	Service, Member string
	Down            [2]bool      // by family, measured; where the member has no address, it does not matter
	Forced          state.Forced // by order
	Moved           []float64    // the shares of clients that staged evacuations move away
}

// apply makes the members and round trips of the World what they are; the sites are the caller's to hold. What it does not
// know it lacks.
func (p *Present) apply(w *World) {
	for _, ms := range p.Members {
		w.members[ms.Service+" "+ms.Member] = ms
		svc, known := w.services[ms.Service]
		if ms.Down == [2]bool{} || !known {
			continue
		}
		for _, m := range w.config.Services[svc.index].Members {
			if m.Name != ms.Member {
				continue
			}
			s := w.byName[m.Site]
			addrs := compile.ByFamily(m)
			for i, vs := range s.up {
				// A virtual server that goes by its name stands for both families.
				down := slices.Contains(m.VirtualServers, vs.Name) && ms.down(&m)
				for f, addr := range addrs {
					down = down || len(m.VirtualServers) == 0 && vs.Name == "" && addr.IsValid() && vs.Address == addr && ms.Down[f]
				}
				if vs.Port == m.Port && vs.Protocol == m.Protocol && down {
					s.up[i] = withServers(vs, state.ServerDown)
				}
			}
		}
	}
	for name, rtts := range p.RTTs {
		if w.byName[name] != nil {
			w.SetRTTs(name, rtts)
		}
	}
	w.order()
}

// down reports whether the member is down in all of its families.
func (ms *MemberState) down(m *config.Member) bool {
	for f, addr := range compile.ByFamily(*m) {
		if (addr.IsValid() || m.CNAME != "") && !ms.Down[f] {
			return false
		}
	}
	return true
}

// withServers returns vs with all its servers in one state.
func withServers(vs state.VirtualServer, st state.ServerState) state.VirtualServer {
	vs.Servers = slices.Clone(vs.Servers)
	for i := range vs.Servers {
		vs.Servers[i].State, vs.Servers[i].Reason = st, "as told"
	}
	return vs
}

// force is what is ordered for the member alone.
func (ms *MemberState) force() state.Force {
	f := state.Force{Forced: ms.Forced, Why: "as it is now", Since: epoch}
	for i, share := range ms.Moved {
		f.Stages = append(f.Stages, state.Stage{Order: state.HashName(fmt.Sprint("present ", i)), Share: share, Why: "as it is now"})
	}
	return f
}
