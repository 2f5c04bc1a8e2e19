package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gslbd/control"
	"gslbd/policy"
	"gslbd/state"
)

// A Status is everything at one moment. Problems, the most serious first, say what an operator should look at.
type Status struct {
	Time          time.Time `json:"time"` // on this machine's clock; ages are relative to it
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds int64     `json:"uptime_seconds"`
	Ready         bool      `json:"ready"`
	NotReadyWhy   string    `json:"not_ready_why,omitempty"`
	ConfigEpoch   uint64    `json:"config_epoch"` // counts the configurations since the start
	Publication   uint64    `json:"publication"`  // counts the snapshots since the start
	Published     time.Time `json:"published"`    // of the snapshot that this is
	Blind         bool      `json:"blind"`        // all feeds failed at once, so states are frozen
	BlindWhy      string    `json:"blind_why,omitempty"`
	BlindSince    time.Time `json:"blind_since,omitzero"`
	RTTEntries    int       `json:"rtt_entries"` // client networks with round trips
	Problems      []Problem `json:"problems"`
	Services      []Service `json:"services"`
	Sites         []Site    `json:"sites"`
	Zones         []Zone    `json:"zones"`

	Orders      []control.OrderState      `json:"orders"`      // in force, the oldest first
	Evacuations []control.EvacuationState `json:"evacuations"` // likewise, and those of which the ledger has something
}

// The severities of a Problem, the most serious first.
const (
	Critical = "critical" // clients get no good answer, or may soon
	Warning  = "warning"  // something is out of service
	Notice   = "notice"   // an operator's doing, or something to tidy up
)

// maxWarnings is how many warnings of one report stand among the problems, where a wrong report of a site with many
// services would hide the rest.
const maxWarnings = 3

// A Problem is one thing that is not as it should be.
type Problem struct {
	Severity string    `json:"severity"`
	Subject  string    `json:"subject"` // "service NAME", "member SERVICE/MEMBER", "site NAME", "gslbd"
	Text     string    `json:"text"`
	Since    time.Time `json:"since,omitzero"`
}

// A Service is one load-balanced name.
type Service struct {
	Name            string   `json:"name"`
	Aliases         []string `json:"aliases"`
	Policy          string   `json:"policy"`
	TTL             uint32   `json:"ttl"` // seconds
	Answers         int      `json:"answers"`
	OnAllDown       string   `json:"on_all_down"`
	PoolTransitions uint64   `json:"pool_transitions"`

	// Decisions says how many decisions each reason settled since the start, by metric, constraints, single or on_all_down.
	Decisions map[string]uint64 `json:"decisions"`

	MinServing int `json:"min_serving"` // members that are up which an evacuation must leave
	PoolState
	Members []Member `json:"members"`
}

// A PoolState is the pool of a service.
type PoolState struct {
	Pool      string    `json:"pool"` // primary or backup: whose members answer
	PoolWhy   string    `json:"pool_why"`
	PoolSince time.Time `json:"pool_since,omitzero"`
	// The primaries' servers that count in the failover share, and how many of them are healthy.
	PoolServersUp int `json:"pool_servers_up"`
	PoolServers   int `json:"pool_servers"`

	StagedPool string `json:"staged_pool,omitempty"` // that of the clients that staged evacuations move away, where it is another

	Failback  string    `json:"failback"` // auto, delay or manual
	Held      bool      `json:"held"`     // the primaries suffice again, and failback holds the backups in force
	HeldWhy   string    `json:"held_why,omitempty"`
	HeldUntil time.Time `json:"held_until,omitzero"` // of failback: delay; absent: until an operator says so
}

// A Member is one VIP, or CNAME target, of a service.
type Member struct {
	Name        string    `json:"name"`
	Site        string    `json:"site"`
	Role        string    `json:"role"`
	InPool      bool      `json:"in_pool"`
	Weight      int       `json:"weight"`
	Preference  int       `json:"preference"`
	CNAME       string    `json:"cname,omitempty"`
	Forced      string    `json:"forced,omitempty"` // up, drain, down or evacuated
	ForcedWhy   string    `json:"forced_why,omitempty"`
	ForcedSince time.Time `json:"forced_since,omitzero"`
	Moved       []Moved   `json:"moved"`                // what staged evacuations move away
	ServersUp   *int      `json:"servers_up,omitempty"` // absent: no report counts its servers
	Servers     *int      `json:"servers,omitempty"`    // those that count: not in maintenance or drain
	Transitions uint64    `json:"transitions"`
	Answers     uint64    `json:"answers"`   // since the start, in which it was the first
	Addresses   []Address `json:"addresses"` // by family; with CNAME both
}

// Moved is the share of clients that a staged evacuation keeps from a member.
type Moved struct {
	Share float64 `json:"share"` // above 0 and below 1
	Why   string  `json:"why"`
}

// An Address is a member in one family.
type Address struct {
	Family     string     `json:"family"` // ipv4 or ipv6
	Address    netip.Addr `json:"address,omitzero"`
	Up         bool       `json:"up"`
	Why        string     `json:"why"`
	Since      time.Time  `json:"since,omitzero"`
	CheckError string     `json:"check_error,omitempty"` // why gslbd's own check cannot be run; it is then no source
	LatencyMS  *float64   `json:"latency_ms,omitempty"`  // of the last successful check by gslbd
}

// A Site is one data centre.
type Site struct {
	Name   string `json:"name"`
	Zone   string `json:"zone"`
	Region string `json:"region"`

	Report      string    `json:"report"` // fresh, stale, dead, or never reported
	ReportSince time.Time `json:"report_since,omitzero"`
	ReportAge   *float64  `json:"report_age_seconds,omitempty"` // absent: never reported
	Agent       string    `json:"agent,omitempty"`              // that holds the site
	Warnings    []string  `json:"warnings"`                     // of the last report

	Load        *Load    `json:"load,omitempty"`                    // absent: no fresh report has it
	NewSessions *float64 `json:"new_sessions_per_second,omitempty"` // mean of the last reports
	ServersUp   *int     `json:"servers_up,omitempty"`

	SessionsLimit   uint64    `json:"sessions_limit"`        // open sessions; 0: none
	BandwidthLimit  uint64    `json:"bandwidth_limit"`       // bits per second; 0: none
	Utilisation     *float64  `json:"utilisation,omitempty"` // 1 is the threshold
	Heading         *float64  `json:"heading,omitempty"`     // the utilisation that its new sessions lead to; absent: not known, or no capacity.cascade_guard
	Overloaded      bool      `json:"overloaded"`
	OverloadedWhy   string    `json:"overloaded_why,omitempty"`
	OverloadedSince time.Time `json:"overloaded_since,omitzero"`
	Shed            float64   `json:"shed"` // share of clients that skip the site, 0 to 1

	RTTBlind      bool      `json:"rtt_blind"` // it reaches none of the resolvers that others reach
	RTTBlindSince time.Time `json:"rtt_blind_since,omitzero"`
}

// Load is the load of a site's last fresh report. What it did not tell is absent.
type Load struct {
	Sessions         *uint64 `json:"sessions,omitempty"` // open
	BitsPerSecondIn  *uint64 `json:"bits_per_second_in,omitempty"`
	BitsPerSecondOut *uint64 `json:"bits_per_second_out,omitempty"`
}

// A SiteDetail is a Site with the members that stand at it.
type SiteDetail struct {
	Site
	Members []SiteMember `json:"members"`
}

// A SiteMember is a member at a site.
type SiteMember struct {
	Service string `json:"service"`
	Member
}

// A Zone is one DNS zone.
type Zone struct {
	Name    string `json:"name"`
	Serial  uint32 `json:"serial"`
	Records int    `json:"records"` // of the zone file
	ECS     bool   `json:"ecs"`     // client subnets are looked at
}

// present returns the snapshot in force, or answers that there is none.
func (s *Server) present(w http.ResponseWriter) *state.Snapshot {
	snap := s.opts.Snapshot()
	if snap == nil {
		refuse(w, http.StatusServiceUnavailable, "no configuration is in force yet")
	}
	return snap
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	st := s.summary(snap, time.Now())
	st.Services, st.Sites = make([]Service, 0, len(snap.Services)), make([]Site, 0, len(snap.Sites))
	for _, svc := range snap.Services {
		st.Services = append(st.Services, newService(svc))
	}
	for _, site := range snap.Sites {
		st.Sites = append(st.Sites, newSite(site, st.Time))
	}
	answer(w, st)
}

// summary returns the status without services and sites.
func (s *Server) summary(snap *state.Snapshot, now time.Time) *Status {
	st := &Status{
		Time: now, Version: s.opts.Version, Started: s.started, UptimeSeconds: int64(now.Sub(s.started).Seconds()),
		ConfigEpoch: snap.Epoch, Publication: snap.Version, Published: snap.Published,
		Blind: snap.Blind, BlindWhy: snap.BlindWhy, BlindSince: snap.BlindSince,
		RTTEntries: snap.RTT.Len(),
	}
	st.Ready, st.NotReadyWhy = s.opts.Ready()
	if s.opts.Zones != nil {
		st.Zones = s.opts.Zones(snap)
	}
	st.Zones = list(st.Zones)
	if s.opts.Control != nil {
		st.Orders, st.Evacuations = s.opts.Control.Orders(), s.opts.Control.Evacuations()
	}
	st.Orders, st.Evacuations = list(st.Orders), list(st.Evacuations)
	var others []Problem
	if s.opts.Problems != nil {
		others = s.opts.Problems()
	}
	if s.opts.Control != nil {
		for _, text := range s.opts.Control.Problems() {
			others = append(others, Problem{Severity: Critical, Subject: "orders", Text: text})
		}
	}
	st.Problems = problems(st, snap, others)
	return st
}

func (s *Server) service(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	if svc := s.named(w, snap, req.PathValue("name")); svc != nil {
		answer(w, newService(svc))
	}
}

// named returns the service that goes by a name, or answers that there is none.
func (s *Server) named(w http.ResponseWriter, snap *state.Snapshot, name string) *state.Service {
	name = canonical(name)
	svc := snap.ServiceByName(name)
	if svc == nil {
		svc, _, _ = s.opts.Find(snap, name)
	}
	if svc == nil {
		refuse(w, http.StatusNotFound, "%q is not a service; there are %s", name, serviceNames(snap))
	}
	return svc
}

func (s *Server) site(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	name := req.PathValue("name")
	i := slices.IndexFunc(snap.Sites, func(site *state.Site) bool { return site.Name == name })
	if i < 0 {
		refuse(w, http.StatusNotFound, "%q is not a site; there are %s", name, some(snap.Sites, func(site *state.Site) string { return site.Name }))
		return
	}
	d := SiteDetail{Site: newSite(snap.Sites[i], time.Now()), Members: []SiteMember{}}
	for _, svc := range snap.Services {
		for _, m := range svc.Members {
			if m.Site.Index == i {
				d.Members = append(d.Members, SiteMember{Service: svc.Name, Member: newMember(svc, m)})
			}
		}
	}
	answer(w, d)
}

func serviceNames(snap *state.Snapshot) string {
	return some(snap.Services, func(svc *state.Service) string { return svc.Name })
}

// some lists names for whoever gave a wrong one: at most ten.
func some[T any](all []T, name func(T) string) string {
	const most = 10
	var names []string
	for _, v := range all[:min(len(all), most)] {
		names = append(names, name(v))
	}
	text := cmp.Or(strings.Join(names, ", "), "none")
	if n := len(all) - len(names); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// canonical writes a name as the configuration has it.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func newService(svc *state.Service) Service {
	v := Service{
		Name: svc.Name, Aliases: list(svc.Aliases), Policy: svc.PolicyName, TTL: svc.TTL, Answers: svc.Answers,
		OnAllDown: svc.OnAllDown.String(), PoolTransitions: svc.PoolTransitions, MinServing: svc.MinServing,
		PoolState: newPoolState(svc),
		Decisions: map[string]uint64{},
		Members:   make([]Member, 0, len(svc.Members)),
	}
	decisions := svc.Counters.Decisions()
	for i, reason := range policy.Reasons() {
		if decisions[i] > 0 {
			v.Decisions[reason] = decisions[i]
		}
	}
	for _, m := range svc.Members {
		v.Members = append(v.Members, newMember(svc, m))
	}
	return v
}

func newPoolState(svc *state.Service) PoolState {
	v := PoolState{
		Pool: svc.Pool.String(), PoolWhy: svc.PoolWhy, PoolSince: svc.PoolSince,
		PoolServersUp: svc.PoolServersUp, PoolServers: svc.PoolServers,
		Failback: svc.Failback.String(), Held: svc.Held, HeldWhy: svc.HeldWhy, HeldUntil: svc.HeldUntil,
	}
	if svc.StagedPool != svc.Pool && slices.ContainsFunc(svc.Members, func(m *state.Member) bool { return len(m.Moved) > 0 }) {
		v.StagedPool = svc.StagedPool.String()
	}
	return v
}

func newMember(svc *state.Service, m *state.Member) Member {
	v := Member{
		Name: m.Name, Site: m.Site.Name, Role: m.Role.String(), InPool: m.InPool, Weight: m.Weight, Preference: m.Preference,
		CNAME: m.CNAME, Forced: m.Forced.String(), ForcedWhy: m.ForcedWhy, ForcedSince: m.ForcedSince, Moved: []Moved{},
		Transitions: m.Transitions, Answers: svc.Counters.Answers(m.Index), Addresses: []Address{},
	}
	for _, stage := range m.Moved {
		v.Moved = append(v.Moved, Moved{Share: stage.Share, Why: stage.Why})
	}
	if m.HasServers {
		v.ServersUp, v.Servers = &m.ServersUp, &m.Servers
	}
	for _, f := range []state.Family{state.V4, state.V6} {
		if !m.Has(f) {
			continue
		}
		a := Address{Family: f.String(), Address: m.Addr[f], Up: m.Up[f], Why: m.Why[f], Since: m.Since[f], CheckError: m.CheckError[f]}
		if m.HasLatency[f] {
			ms := float64(m.Latency[f]) / float64(time.Millisecond)
			a.LatencyMS = &ms
		}
		v.Addresses = append(v.Addresses, a)
	}
	return v
}

func newSite(s *state.Site, now time.Time) Site {
	v := Site{
		Name: s.Name, Zone: s.Zone, Region: s.Region,
		Report: s.Freshness.String(), ReportSince: s.Since, Agent: s.Agent, Warnings: list(s.Warnings),
		SessionsLimit: s.SessionsLimit, BandwidthLimit: s.BandwidthLimit,
		Overloaded: s.Overloaded, OverloadedWhy: s.OverloadedWhy, OverloadedSince: s.OverloadedSince, Shed: s.Shed,
		RTTBlind: s.RTTBlind, RTTBlindSince: s.RTTBlindSince,
	}
	if !s.ReportAt.IsZero() {
		age := max(0, now.Sub(s.ReportAt).Seconds())
		v.ReportAge = &age
	}
	if s.HasLoad {
		v.Load = new(Load)
		if s.HasSessions {
			v.Load.Sessions = &s.Sessions
		}
		if s.HasBits {
			v.Load.BitsPerSecondIn, v.Load.BitsPerSecondOut = &s.BitsIn, &s.BitsOut
		}
	}
	if s.HasNewSessions {
		v.NewSessions = &s.NewSessions
	}
	if s.HasServers {
		v.ServersUp = &s.ServersUp
	}
	if s.HasUtilisation {
		v.Utilisation = &s.Utilisation
		if s.Heading > 0 {
			v.Heading = &s.Heading
		}
	}
	return v
}

// problems lists what is wrong, the most serious first and otherwise in the order of the configuration.
func problems(st *Status, snap *state.Snapshot, others []Problem) []Problem {
	list := append([]Problem{}, others...)
	add := func(severity, subject string, since time.Time, format string, args ...any) {
		list = append(list, Problem{Severity: severity, Subject: subject, Text: fmt.Sprintf(format, args...), Since: since})
	}
	if !st.Ready {
		add(Critical, "gslbd", time.Time{}, "is not ready: %s", st.NotReadyWhy)
	}
	if snap.Blind {
		add(Critical, "gslbd", snap.BlindSince, "is blind, so all states are frozen: %s", snap.BlindWhy)
	}
	for _, svc := range snap.Services {
		subject := "service " + svc.Name
		for _, f := range []state.Family{state.V4, state.V6} {
			has, up := false, false
			for _, m := range svc.Members {
				has = has || m.Has(f)
				up = up || m.Up[f] && m.InPool
			}
			if has && !up {
				add(Critical, subject, time.Time{}, "no member of the pool is up for %s, so on_all_down (%s) decides", f, svc.OnAllDown)
			}
		}
		if svc.Pool == state.Backup {
			add(Warning, subject, svc.PoolSince, "its backups answer: %s", svc.PoolWhy)
		}
		if svc.Held {
			add(Notice, subject, time.Time{}, "its primaries suffice again, and the backups are held: %s", svc.HeldWhy)
		}
		for _, m := range svc.Members {
			memberProblems(svc, m, add)
		}
	}
	for _, s := range snap.Sites {
		subject := "site " + s.Name
		switch s.Freshness {
		case state.NeverReported:
			add(Notice, subject, s.Since, "has never reported, so only checks by gslbd tell of its members")
		case state.Stale:
			add(Warning, subject, s.Since, "its reports stopped, so its load and round trips are ignored")
		case state.Dead:
			add(Critical, subject, s.Since, "its reports stopped for so long that its members' on_dead decides")
		}
		if s.Overloaded {
			add(Warning, subject, s.OverloadedSince, "is overloaded: %s", s.OverloadedWhy)
		} else if s.Shed > 0 {
			heading := ""
			if s.HasUtilisation && s.Heading > s.Utilisation {
				heading = fmt.Sprintf("; its new sessions lead to %.0f %%", s.Heading*100)
			}
			add(Notice, subject, time.Time{}, "sheds %.0f %% of its clients%s", s.Shed*100, heading)
		}
		if s.RTTBlind {
			add(Warning, subject, s.RTTBlindSince, "reaches none of the resolvers that other sites reach (rtt-blind)")
		}
		for i, w := range s.Warnings {
			if i == maxWarnings && len(s.Warnings) > maxWarnings+1 {
				add(Notice, subject, time.Time{}, "and %d more warnings about its report; the site's own page has all", len(s.Warnings)-i)
				break
			}
			add(Notice, subject, time.Time{}, "%s", w)
		}
	}
	orderProblems(st, add)
	rank := map[string]int{Critical: 0, Warning: 1, Notice: 2}
	slices.SortStableFunc(list, func(a, b Problem) int { return rank[a.Severity] - rank[b.Severity] })
	return list
}

// orderProblems tells of orders that do not do what whoever gave them may think.
func orderProblems(st *Status, add func(severity, subject string, since time.Time, format string, args ...any)) {
	for _, o := range st.Orders {
		subject := "order " + o.ID
		if o.Members == 0 {
			add(Notice, subject, o.Created, "to force %s %s matches no member", targetText(o.Target), o.Action)
		}
		if o.Shared == hereOnly {
			add(Warning, subject, o.Created, "to force %s %s is %s so far", targetText(o.Target), o.Action, hereOnly)
		}
	}
	for _, e := range st.Evacuations {
		subject := "evacuation " + e.ID
		if e.Shared == hereOnly {
			add(Warning, subject, e.Created, "of zone %s is %s so far", e.Zone, hereOnly)
		}
		for _, p := range e.Parts {
			severity, text := Notice, p.State
			if p.State == "failed" {
				severity, text = Warning, "has failed and is tried again"
			}
			if p.Why != "" {
				text += ": " + p.Why
			}
			add(severity, subject, e.Created, "of zone %s, type %s: %s", e.Zone, p.Type, text)
		}
	}
}

func memberProblems(svc *state.Service, m *state.Member, add func(severity, subject string, since time.Time, format string, args ...any)) {
	subject := "member " + svc.Name + "/" + m.Name
	var has, down []state.Family
	for _, f := range []state.Family{state.V4, state.V6} {
		if m.Has(f) {
			has = append(has, f)
			if !m.Up[f] {
				down = append(down, f)
			}
		}
	}
	if len(down) > 0 && len(down) == len(has) && m.Why[down[0]] == m.Why[down[len(down)-1]] {
		add(Warning, subject, m.Since[down[0]], "is down: %s", m.Why[down[0]])
	} else {
		for _, f := range down {
			add(Warning, subject, m.Since[f], "is down for %s: %s", f, m.Why[f])
		}
	}
	for _, f := range []state.Family{state.V4, state.V6} {
		if m.CheckError[f] != "" {
			add(Warning, subject, time.Time{}, "its health check for %s cannot be run, so it is no source: %s", f, m.CheckError[f])
		}
	}
	if m.Forced != state.NotForced {
		add(Notice, subject, m.ForcedSince, "is forced %s: %s", m.Forced, m.ForcedWhy)
	}
	for _, stage := range m.Moved {
		add(Notice, subject, time.Time{}, "%.0f %% of its clients are moved away: %s", stage.Share*100, stage.Why)
	}
}
