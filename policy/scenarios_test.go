package policy_test

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

var update = flag.Bool("update", false, "write the golden files anew")

// A scenario is a file in testdata/scenarios: sites as they are now, and what is asked. What is decided, and why, stands
// in the golden file beside it.
type scenario struct {
	About   string
	Service struct {
		TTL        uint32
		Answers    int
		OnAllDown  string        `yaml:"on_all_down"`
		LastResort []netip.Addr  `yaml:"last_resort"`
		SlowStart  time.Duration `yaml:"slow_start"`
		StagedPool string        `yaml:"staged_pool"` // empty: no other than the pool
	}
	Overrides []struct {
		Prefix       netip.Prefix
		Site         string
		placeOnEarth `yaml:",inline"`
	}
	Sites []struct {
		Name             string
		Location         placeOnEarth
		Sessions         *uint64
		SessionsLimit    uint64   `yaml:"sessions_threshold"`
		NewSessions      *float64 `yaml:"new_sessions_per_second"`
		Shed             float64
		Cost             int
		RTTBlind         bool `yaml:"rtt_blind"`
		OverloadedBefore bool `yaml:"overloaded_before"` // the verdict of an earlier report stands
	}
	Members []struct {
		Name, Site, CNAME  string
		Addresses          []netip.Addr
		Weight, Preference *int
		Role               string
		OutOfPool          bool `yaml:"out_of_pool"`
		Forced             string
		ForcedWhy          string `yaml:"forced_why"`
		Moved              []struct {
			Order string
			Share float64
			Why   string
		}
		Down         string         // why it is; empty: up
		LastGood     bool           `yaml:"last_good"`
		RecoveredAgo *time.Duration `yaml:"recovered_ago"`
		Selected     int
	}
	RTTs []struct {
		Site     string
		Resolver netip.Addr
		RTT, Age time.Duration
	} `yaml:"rtts"`
	Chains  map[string][]string // see build
	Queries []struct {
		About, Chain, Type string
		LDNS               netip.Addr
		ECS                netip.Prefix
		Turn               uint64
	}
}

type placeOnEarth struct {
	Continent, Country, Subdivision string
	Latitude, Longitude             *float64
}

func (p placeOnEarth) location() geo.Location {
	l := geo.Location{Continent: p.Continent, Country: p.Country, Subdivision: p.Subdivision}
	if p.Latitude != nil && p.Longitude != nil {
		l.Latitude, l.Longitude, l.HasCoordinates = *p.Latitude, *p.Longitude, true
	}
	return l
}

func (s *scenario) world(t *testing.T) *world {
	w := newWorld()
	w.Service.TTL, w.Service.Answers = s.Service.TTL, s.Service.Answers
	w.LastResort, w.SlowStart = s.Service.LastResort, s.Service.SlowStart
	if s.Service.OnAllDown != "" {
		for w.OnAllDown.String() != s.Service.OnAllDown {
			w.OnAllDown++
		}
	}
	for _, c := range s.Members {
		if c.Role == "backup" && !c.OutOfPool {
			w.Pool = state.Backup
		}
	}
	w.StagedPool = w.Pool
	if s.Service.StagedPool != "" && s.Service.StagedPool != w.Pool.String() {
		w.StagedPool = state.Backup - w.Pool
	}
	var overrides []geo.Override
	for _, o := range s.Overrides {
		overrides = append(overrides, geo.Override{Prefix: o.Prefix, Site: o.Site, Location: o.location()})
	}
	w.overrides(t, overrides...)
	sites := map[string]*state.Site{}
	for i, c := range s.Sites {
		site := &state.Site{
			SiteInfo:  &state.SiteInfo{Name: c.Name, ID: uint16(i), Index: i, Location: geo.NewLocation(c.Location.location()), Cost: c.Cost},
			Freshness: state.Fresh, SessionsLimit: c.SessionsLimit, Shed: c.Shed, RTTBlind: c.RTTBlind, Overloaded: c.OverloadedBefore,
		}
		if c.Sessions != nil {
			site.HasLoad, site.HasSessions, site.Sessions = true, true, *c.Sessions
			if c.SessionsLimit > 0 {
				site.HasUtilisation, site.Utilisation = true, float64(*c.Sessions)/float64(c.SessionsLimit)
				if site.Utilisation >= 1 {
					site.Overloaded, site.OverloadedWhy = true, fmt.Sprintf("%d of %d sessions", *c.Sessions, c.SessionsLimit)
				}
			}
		}
		if c.NewSessions != nil {
			site.HasNewSessions, site.NewSessions = true, *c.NewSessions
		}
		sites[c.Name] = site
		w.snapshot.Sites = append(w.snapshot.Sites, site)
	}
	for i, c := range s.Members {
		m := &state.Member{
			Name: c.Name, Index: i, CNAME: c.CNAME, Weight: 100, Preference: 100, InPool: !c.OutOfPool,
			Hash: state.HashName(c.Name), MemberCounts: &state.MemberCounts{},
		}
		site := sites[c.Site]
		if site == nil {
			t.Fatalf("members[%d]: unknown site %q", i, c.Site)
		}
		m.Site = site.SiteInfo
		if c.Weight != nil {
			m.Weight = *c.Weight
		}
		if c.Preference != nil {
			m.Preference = *c.Preference
		}
		if c.Role == "backup" {
			m.Role = state.Backup
		}
		for m.Forced.String() != c.Forced {
			m.Forced++
		}
		m.ForcedWhy, m.InStagedPool = c.ForcedWhy, m.Role == w.StagedPool
		for _, st := range c.Moved {
			m.Moved = append(m.Moved, state.Stage{Order: state.HashName(st.Order), Share: st.Share, Why: st.Why})
		}
		for _, a := range c.Addresses {
			f := state.V4
			if a.Is6() {
				f = state.V6
			}
			m.Addr[f] = a
		}
		for _, f := range []state.Family{state.V4, state.V6} {
			m.Up[f], m.Why[f], m.LastGood[f] = m.Has(f) && c.Down == "", c.Down, c.LastGood
			if c.RecoveredAgo != nil {
				m.Recovered[f] = now.Add(-*c.RecoveredAgo)
			}
			m.Selected[f].Store(int64(c.Selected) * state.SelectedUnit)
		}
		w.Members = append(w.Members, m)
	}
	for _, r := range s.RTTs {
		w.snapshot.RTT.Add(sites[r.Site].ID, []state.RTTSample{{Resolver: r.Resolver, RTT: r.RTT, Age: r.Age}}, now)
	}
	return w
}

// run decides every query and writes what explain would say.
func (s *scenario) run(t *testing.T) string {
	var out strings.Builder
	for _, asked := range s.Queries {
		w := s.world(t)
		q := w.query()
		q.LDNS, q.ECS, q.Turn, q.Trace = asked.LDNS, asked.ECS, asked.Turn, &policy.Trace{}
		if asked.Type == "AAAA" {
			q.Family = state.V6
		}
		if s.Chains[asked.Chain] == nil {
			t.Fatalf("unknown chain %q", asked.Chain)
		}
		var d policy.Decision
		build(t, s.Chains[asked.Chain]...).Decide(q, &d)

		fmt.Fprintf(&out, "# %s\n", asked.About)
		for _, step := range q.Trace.Constraints {
			fmt.Fprintf(&out, "  (%s) %s", step.Metric, line(step))
		}
		for _, step := range q.Trace.Steps {
			fmt.Fprintf(&out, "  %s %s", step.Metric, line(step))
		}
		if q.Trace.OnAllDown != "" {
			fmt.Fprintf(&out, "  on_all_down %s\n", q.Trace.OnAllDown)
		}
		var addresses []string
		for _, m := range d.Members[:d.N] {
			if m.CNAME != "" {
				addresses = append(addresses, m.CNAME)
			} else {
				addresses = append(addresses, m.Addr[q.Family].String())
			}
		}
		kind := [...]string{"answer", "last resort", "no data", "server failure"}[d.Kind]
		fmt.Fprintf(&out, "=> %s %s by %s, TTL %d, scope %d\n\n", kind, strings.Join(addresses, " "), d.Reason, d.TTL, q.Scope)
	}
	return out.String()
}

func line(s policy.TraceStep) string {
	text := s.Verdict + ": " + members(s.Kept)
	if len(s.Fell) > 0 {
		text += " | fell: " + members(s.Fell)
	}
	if s.Note != "" {
		text += " [" + s.Note + "]"
	}
	return text + "\n"
}

func TestGoldenScenarios(t *testing.T) {
	files, err := filepath.Glob("../testdata/scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s scenario
			d := yaml.NewDecoder(bytes.NewReader(data))
			d.KnownFields(true)
			if err := d.Decode(&s); err != nil {
				t.Fatal(err)
			}
			got := s.run(t)
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
