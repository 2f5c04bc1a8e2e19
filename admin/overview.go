package admin

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"gslbd/control"
	"gslbd/policy"
	"gslbd/state"
)

const (
	// maxProblems is how many problems an Overview has: the most serious.
	maxProblems = 200
	// defaultServices is how many services an Overview has unless it is asked for fewer or more, up to maxServices.
	defaultServices, maxServices = 50, 500
	// maxRecent is how many recent clients are decided for.
	maxRecent = 12
)

// An Overview is what the dashboard shows of one moment: bounded, however many services there are.
type Overview struct {
	Time          time.Time      `json:"time"`           // on this machine's clock
	Node          string         `json:"node,omitempty"` // which gslbd this is
	Version       string         `json:"version"`
	UptimeSeconds int64          `json:"uptime_seconds"`
	Ready         bool           `json:"ready"`
	NotReadyWhy   string         `json:"not_ready_why,omitempty"`
	ConfigEpoch   uint64         `json:"config_epoch"`
	Publication   uint64         `json:"publication"`
	Blind         bool           `json:"blind"`
	BlindWhy      string         `json:"blind_why,omitempty"`
	KeepsOrders   bool           `json:"keeps_orders"` // this gslbd takes orders
	Counts        map[string]int `json:"counts"`       // of all problems, by severity
	Problems      []Problem      `json:"problems"`     // the most serious, at most 200
	Sites         []SiteOverview `json:"sites"`        // what is wrong first

	ServicesTotal int               `json:"services_total"`
	ServicesFound int               `json:"services_found"` // that match
	Services      []ServiceOverview `json:"services"`       // those that match, what is wrong first, as many as are asked for

	Orders      []control.OrderState      `json:"orders"`
	Evacuations []control.EvacuationState `json:"evacuations"`
}

// A SiteOverview is a site with its place on the map and its condition.
type SiteOverview struct {
	Site
	Latitude  *float64 `json:"latitude,omitempty"` // degrees; absent: not configured
	Longitude *float64 `json:"longitude,omitempty"`

	// Condition is the first of these that holds: evacuated, drained, dead, down, overloaded, stale, degraded, unreported, up.
	Condition string `json:"condition"`
	Severity  string `json:"severity,omitempty"` // of the condition; empty: nothing is wrong
	Members   int    `json:"members"`
	MembersUp int    `json:"members_up"` // with all their families
}

// A ServiceOverview is a service in a line.
type ServiceOverview struct {
	Name      string           `json:"name"`
	Policy    string           `json:"policy"`
	Pool      string           `json:"pool"`
	PoolWhy   string           `json:"pool_why"`
	PoolSince time.Time        `json:"pool_since,omitzero"`
	Held      bool             `json:"held"`
	Severity  string           `json:"severity,omitempty"` // empty: nothing is wrong
	Members   []MemberOverview `json:"members"`
}

// A MemberOverview is a member in a word.
type MemberOverview struct {
	Name   string `json:"name"`
	Site   string `json:"site"`
	InPool bool   `json:"in_pool"`
	Up     bool   `json:"up"` // in all its families
	Forced string `json:"forced,omitempty"`
}

// overview answers GET /v1/overview.
func (s *Server) overview(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	args, err := arguments(req.URL.RawQuery, "find", "limit")
	limit := defaultServices
	if err == nil && args["limit"] != "" {
		if limit, err = strconv.Atoi(args["limit"]); err != nil || limit < 0 || limit > maxServices {
			err = fmt.Errorf("limit: %q is not between 0 and %d", args["limit"], maxServices)
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	st := s.summary(snap, time.Now())
	v := Overview{
		Time: st.Time, Node: s.opts.Node, Version: st.Version, UptimeSeconds: st.UptimeSeconds, Ready: st.Ready, NotReadyWhy: st.NotReadyWhy,
		ConfigEpoch: st.ConfigEpoch, Publication: st.Publication, Blind: st.Blind, BlindWhy: st.BlindWhy, KeepsOrders: s.opts.Control != nil,
		Counts:   map[string]int{Critical: 0, Warning: 0, Notice: 0},
		Problems: st.Problems[:min(len(st.Problems), maxProblems)], Sites: siteOverviews(snap, st.Time),
		ServicesTotal: len(snap.Services), Services: []ServiceOverview{},
		Orders: st.Orders, Evacuations: st.Evacuations,
	}
	worst := map[string]string{} // severity by service
	for _, p := range st.Problems {
		v.Counts[p.Severity]++
		kind, name, _ := strings.Cut(p.Subject, " ")
		if kind == "member" {
			name, _, _ = strings.Cut(name, "/")
		}
		if (kind == "member" || kind == "service") && worst[name] == "" { // the most serious come first
			worst[name] = p.Severity
		}
	}
	for i := range v.Evacuations {
		e := &v.Evacuations[i]
		e.Parts, e.Ledger = list(e.Parts), []control.Taken{} // which may be long, and stands in /v1/evacuations
	}
	find := strings.ToLower(args["find"])
	var found []*state.Service
	for _, svc := range snap.Services {
		if concerns(svc, find) {
			found = append(found, svc)
		}
	}
	v.ServicesFound = len(found)
	slices.SortStableFunc(found, func(a, b *state.Service) int { return rank(worst[a.Name]) - rank(worst[b.Name]) })
	for _, svc := range found[:min(len(found), limit)] {
		v.Services = append(v.Services, newServiceOverview(svc, worst[svc.Name]))
	}
	answer(w, v)
}

// rank orders severities: the most serious first, then notices, then where nothing is wrong.
func rank(severity string) int {
	return max(slices.Index([]string{Critical, Warning, Notice, ""}, severity), 0)
}

// concerns reports whether a name of the service, its policy, or a member or site of it contains text.
func concerns(svc *state.Service, text string) bool {
	has := func(name string) bool { return strings.Contains(strings.ToLower(name), text) }
	return has(svc.Name) || slices.ContainsFunc(svc.Aliases, has) || has(svc.PolicyName) ||
		slices.ContainsFunc(svc.Members, func(m *state.Member) bool { return has(m.Name) || has(m.Site.Name) })
}

func newServiceOverview(svc *state.Service, severity string) ServiceOverview {
	v := ServiceOverview{
		Name: svc.Name, Policy: svc.PolicyName, Pool: svc.Pool.String(), PoolWhy: svc.PoolWhy, PoolSince: svc.PoolSince, Held: svc.Held,
		Severity: severity, Members: make([]MemberOverview, 0, len(svc.Members)),
	}
	for _, m := range svc.Members {
		v.Members = append(v.Members, MemberOverview{Name: m.Name, Site: m.Site.Name, InPool: m.InPool, Up: allUp(m), Forced: m.Forced.String()})
	}
	return v
}

// allUp reports whether the member is up in every family that it has.
func allUp(m *state.Member) bool {
	return (!m.Has(state.V4) || m.Up[state.V4]) && (!m.Has(state.V6) || m.Up[state.V6])
}

// siteOverviews describes the sites, what is wrong first.
func siteOverviews(snap *state.Snapshot, now time.Time) []SiteOverview {
	type tally struct{ members, up, dark, drained, evacuated int }
	tallies := make([]tally, len(snap.Sites))
	for _, svc := range snap.Services {
		for _, m := range svc.Members {
			t := &tallies[m.Site.Index]
			t.members++
			if allUp(m) {
				t.up++
			}
			if !m.AnyUp() {
				t.dark++
			}
			if m.Forced >= state.ForcedDrain {
				t.drained++
			}
			if m.Forced == state.ForcedEvacuated {
				t.evacuated++
			}
		}
	}
	all := make([]SiteOverview, 0, len(snap.Sites))
	for i, site := range snap.Sites {
		t := tallies[i]
		v := SiteOverview{Site: newSite(site, now), Members: t.members, MembersUp: t.up}
		v.Warnings = v.Warnings[:min(len(v.Warnings), maxWarnings)]
		if l := site.Location; l.HasCoordinates {
			v.Latitude, v.Longitude = &l.Latitude, &l.Longitude
		}
		for _, c := range []struct {
			holds               bool
			condition, severity string
		}{
			{t.members > 0 && t.evacuated == t.members, "evacuated", Notice},
			{t.members > 0 && t.drained == t.members, "drained", Notice},
			{site.Freshness == state.Dead, "dead", Critical},
			{t.members > 0 && t.dark == t.members, "down", Warning},
			{site.Overloaded, "overloaded", Warning},
			{site.Freshness == state.Stale, "stale", Warning},
			{t.up < t.members, "degraded", Warning},
			{site.Freshness == state.NeverReported, "unreported", Notice},
			{true, "up", ""},
		} {
			if c.holds {
				v.Condition, v.Severity = c.condition, c.severity
				break
			}
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b SiteOverview) int { return rank(a.Severity) - rank(b.Severity) })
	return all
}

// PastLoads are the loads of the last hour.
type PastLoads struct {
	Time  time.Time  `json:"time"` // on this machine's clock
	Sites []PastLoad `json:"sites"`
}

// A PastLoad is the load of a site in the last hour, the oldest point first.
type PastLoad struct {
	Site   string     `json:"site"`
	Points [][4]int64 `json:"points"` // Unix seconds, open sessions, bits per second, age of the report in ms; below 0: not known
}

// pastLoads answers GET /v1/loads.
func (s *Server) pastLoads(w http.ResponseWriter, _ *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	v := PastLoads{Time: time.Now(), Sites: []PastLoad{}}
	if s.opts.Loads != nil {
		for _, site := range snap.Sites {
			p := PastLoad{Site: site.Name, Points: [][4]int64{}}
			for _, l := range s.opts.Loads(site) {
				p.Points = append(p.Points, [4]int64{l.At.Unix(), l.Sessions, l.Bits, l.Age})
			}
			v.Sites = append(v.Sites, p)
		}
	}
	answer(w, v)
}

// RecentDecisions are decisions for clients that asked a service in the last hour.
type RecentDecisions struct {
	Time      time.Time        `json:"time"` // on this machine's clock
	Service   string           `json:"service"`
	Decisions []RecentDecision `json:"decisions"` // at most 12, of some of the clients
}

// A RecentDecision is what a client that asked would be told now.
type RecentDecision struct {
	LDNS   netip.Addr   `json:"ldns"`
	ECS    netip.Prefix `json:"ecs,omitzero"`
	Type   string       `json:"type"`   // A or AAAA
	Kind   string       `json:"kind"`   // as in an Answer
	Reason string       `json:"reason"` // likewise
	Member string       `json:"member,omitempty"`
}

// decisions answers GET /v1/services/{name}/decisions.
func (s *Server) decisions(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	svc := s.named(w, snap, req.PathValue("name"))
	if svc == nil {
		return
	}
	v := RecentDecisions{Time: time.Now(), Service: svc.Name, Decisions: []RecentDecision{}}
	chain, ok := svc.Chain.(*policy.Chain)
	if !ok || s.opts.Clients == nil {
		answer(w, v)
		return
	}
	family := state.V4
	if !slices.ContainsFunc(svc.Members, func(m *state.Member) bool { return m.Has(state.V4) }) {
		family = state.V6
	}
	clients := s.opts.Clients(svc.Name)
	q := policy.NewQuery(len(svc.Members))
	for i := range min(len(clients), maxRecent) {
		c := clients[i*len(clients)/min(len(clients), maxRecent)]
		q.Snapshot, q.Service, q.Family = snap, svc, family
		q.Now, q.Rand, q.Turn = v.Time, rand.Uint64(), svc.Rotation.Turn[family].Load()
		q.LDNS, q.ECS, q.Scope = c.LDNS, c.ECS, 0
		var d policy.Decision
		chain.Decide(q, &d)
		a := newAnswer(svc, family, &d)
		r := RecentDecision{LDNS: c.LDNS, ECS: c.ECS, Type: map[state.Family]string{state.V4: "A", state.V6: "AAAA"}[family], Kind: a.Kind, Reason: a.Reason}
		if len(a.Records) > 0 {
			r.Member = cmp.Or(a.Records[0].Member, a.Records[0].Data)
		}
		v.Decisions = append(v.Decisions, r)
	}
	answer(w, v)
}
