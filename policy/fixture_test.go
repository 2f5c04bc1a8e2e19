package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// now is when every test happens.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// defaults are the parameters of docs/policies.md.
func defaults(metric string) policy.StepOptions {
	o := policy.StepOptions{Metric: metric}
	switch metric {
	case "rtt":
		o.Tolerance, o.ToleranceAbs, o.MaxAge = 0.1, 5*time.Millisecond, 10*time.Minute
	case "geo":
		o.Levels, o.ToleranceKm = []string{"override", "distance", "subdivision", "country", "continent"}, 100
	case "connection-load":
		o.Tolerance, o.ToleranceRate = 1, 5
	case "least-selected":
		o.HalfLife = time.Minute
	case "static":
		o.Method = "round-robin"
	case "headroom", "probe-latency":
		o.Tolerance = 0.1
	}
	return o
}

// defaultChain is the shipped policy of this name.
var defaultChain = []string{"health", "capacity", "rtt", "geo", "connection-load", "preference", "least-selected", "static"}

// build builds a chain. A step is a metric's name, "!name" for a disabled one, or "static=hash" for a method.
func build(t testing.TB, steps ...string) *policy.Chain {
	t.Helper()
	var options []policy.StepOptions
	for _, s := range steps {
		name, method, _ := strings.Cut(strings.TrimPrefix(s, "!"), "=")
		o := defaults(name)
		if method != "" {
			o.Method = method
		}
		o.Disabled = strings.HasPrefix(s, "!")
		options = append(options, o)
	}
	return buildOptions(t, options...)
}

func buildOptions(t testing.TB, options ...policy.StepOptions) *policy.Chain {
	t.Helper()
	c, err := policy.Build("test", options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A world is a service with its members, each at a site of its own name.
type world struct {
	*state.Service
	snapshot *state.Snapshot
}

// newWorld returns members that are up, with addresses of both families, and that nothing tells apart.
func newWorld(names ...string) *world {
	w := &world{
		Service:  &state.Service{Name: "www.gslb.test", TTL: 30, Answers: 1},
		snapshot: &state.Snapshot{Published: now, RTT: state.NewRTTTable(state.RTTConfig{MaxTargets: 1000}), Geo: &geo.DB{}},
	}
	w.snapshot.Services = []*state.Service{w.Service}
	for i, name := range names {
		site := &state.Site{
			SiteInfo:  &state.SiteInfo{Name: name, ID: uint16(i), Index: i, Location: &state.Location{}},
			Freshness: state.Fresh,
		}
		w.snapshot.Sites = append(w.snapshot.Sites, site)
		w.Members = append(w.Members, &state.Member{
			Name: name, Index: i, Site: site.SiteInfo, Weight: 100, Preference: 100, InPool: true, Hash: state.HashName(name),
			Addr: [2]netip.Addr{
				netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
				netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0xd, 3: 0xb8, 15: byte(i + 1)}),
			},
			Up: [2]bool{true, true}, MemberCounts: &state.MemberCounts{}, SelectedApart: &state.Selections{},
		})
	}
	return w
}

// of returns a member by name.
func (w *world) of(name string) *state.Member {
	for _, m := range w.Members {
		if m.Name == name {
			return m
		}
	}
	panic("no member " + name)
}

// at returns the site of a member by its name.
func (w *world) at(name string) *state.Site { return w.snapshot.SiteOf(w.of(name)) }

// down takes members down in both families.
func (w *world) down(names ...string) {
	for _, n := range names {
		w.of(n).Up = [2]bool{}
	}
}

// query returns a query of an ordinary client for A.
func (w *world) query() *policy.Query {
	q := policy.NewQuery(len(w.Members))
	q.Snapshot, q.Service, q.Now, q.LDNS = w.snapshot, w.Service, now, netip.MustParseAddr("8.8.8.8")
	return q
}

// decide decides one query and returns the names of the answers as "a b", the decision and the trace.
func (w *world) decide(c *policy.Chain, set ...func(*policy.Query)) (string, policy.Decision, *policy.Trace) {
	q := w.query()
	q.Trace = &policy.Trace{}
	for _, f := range set {
		f(q)
	}
	var d policy.Decision
	c.Decide(q, &d)
	if ready, scope := w.prepared(c, q); !same(&ready, &d, q.Family) || scope != q.Scope {
		panic(fmt.Sprintf("decided %s, scope %d; with what was prepared %s, scope %d", answers(&d), q.Scope, answers(&ready), scope))
	}
	return answers(&d), d, q.Trace
}

// same reports whether two decisions are the same, and say the same of their members.
func same(a, b *policy.Decision, f state.Family) bool {
	if a.Kind != b.Kind || a.N != b.N || a.Reason != b.Reason || a.TTL != b.TTL || a.AllDown != b.AllDown || a.Empty != b.Empty || a.Apart != b.Apart {
		return false
	}
	for i := range a.N {
		if a.Members[i] != b.Members[i] || a.Address(i, f) != b.Address(i, f) || a.Index(i) != b.Index(i) || a.Counts(i) != b.Counts(i) {
			return false
		}
	}
	return true
}

// prepared decides q as serving does, with what the chain prepares of the service, and returns the decision and its scope.
func (w *world) prepared(c *policy.Chain, q *policy.Query) (d policy.Decision, scope uint8) {
	serving := policy.NewQuery(0)
	published := *q.Snapshot
	published.Calm = !slices.ContainsFunc(published.Sites, func(s *state.Site) bool { return s.Overloaded || s.Shed > 0 })
	serving.Snapshot, serving.Service, serving.Family, serving.Now = &published, q.Service, q.Family, q.Now
	serving.Rand, serving.Turn, serving.LDNS, serving.ECS = q.Rand, q.Turn, q.LDNS, q.ECS
	c.Prepare(w.Service)
	c.Decide(serving, &d)
	w.Service.Ready = [2]state.Ready{} // the next test may change the members
	return d, serving.Scope
}

func answers(d *policy.Decision) string {
	var names []string
	for _, m := range d.Members[:d.N] {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

// always asks from many clients and turns, and returns the sorted names of all that were answered first.
func (w *world) always(c *policy.Chain) string {
	var names []string
	for i := range 200 {
		got, _, _ := w.decide(c, func(q *policy.Query) {
			q.Turn = uint64(i)
			q.LDNS = netip.AddrFrom4([4]byte{20, byte(i), 0, 1})
		})
		if first, _, _ := strings.Cut(got, " "); !slices.Contains(names, first) {
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// verdicts writes a trace as "health:kept all rtt:decided".
func verdicts(t *policy.Trace) string {
	var list []string
	for _, s := range t.Steps {
		list = append(list, s.Metric+":"+s.Verdict)
	}
	return strings.Join(list, " ")
}

// kept writes the members that a metric kept as "a=30.0 ms b(no data) | c=90.0 ms", those that fell behind the bar. They
// are sorted by name, except those that static has put in order.
func kept(t *policy.Trace, metric string) string {
	byName := func(a, b policy.TraceMember) int { return strings.Compare(a.Member, b.Member) }
	for _, s := range t.Steps {
		if s.Metric == metric {
			if metric != "static" {
				slices.SortFunc(s.Kept, byName)
			}
			slices.SortFunc(s.Fell, byName)
			return members(s.Kept) + " | " + members(s.Fell)
		}
	}
	return "no such step"
}

func members(list []policy.TraceMember) string {
	var names []string
	for _, m := range list {
		s := m.Member
		if m.Number != "" {
			s += "=" + m.Number
		}
		if m.Note != "" {
			s += fmt.Sprintf("(%s)", m.Note)
		}
		names = append(names, s)
	}
	return strings.Join(names, " ")
}

// rtt makes known a round trip from a site to a resolver, measured so long ago.
func (w *world) rtt(site, resolver string, rtt, age time.Duration) {
	w.rttBy(state.RTTICMP, site, resolver, rtt, age)
}

func (w *world) rttBy(method state.RTTMethod, site, resolver string, rtt, age time.Duration) {
	sample := state.RTTSample{Resolver: netip.MustParseAddr(resolver), RTT: rtt, Age: age, Method: method}
	w.snapshot.RTT.Add(w.at(site).ID, []state.RTTSample{sample}, now)
}

// place gives a site coordinates and a country.
func (w *world) place(site, continent, country string, latitude, longitude float64) {
	w.at(site).Location = geo.NewLocation(geo.Location{
		Continent: continent, Country: country, Latitude: latitude, Longitude: longitude, HasCoordinates: true,
	})
}

// overrides makes the geo database know these places.
func (w *world) overrides(t testing.TB, list ...geo.Override) {
	t.Helper()
	db, err := geo.Open(geo.Options{Overrides: list})
	if err != nil {
		t.Fatal(err)
	}
	w.snapshot.Geo = db
}

func from(ldns string) func(*policy.Query) {
	return func(q *policy.Query) { q.LDNS = netip.MustParseAddr(ldns) }
}

func ecs(prefix string) func(*policy.Query) {
	return func(q *policy.Query) { q.ECS = netip.MustParsePrefix(prefix) }
}

func turn(n uint64) func(*policy.Query) { return func(q *policy.Query) { q.Turn = n } }

func family(f state.Family) func(*policy.Query) { return func(q *policy.Query) { q.Family = f } }

// scope decides for a client's prefix and returns the scope.
func (w *world) scope(c *policy.Chain, prefix string) uint8 {
	q := w.query()
	q.ECS = netip.MustParsePrefix(prefix)
	var d policy.Decision
	c.Decide(q, &d)
	return q.Scope
}

func prefixOf(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// A comparison is a case of a metric that compares three members a, b and c.
type comparison struct {
	name    string
	set     func(*world)
	kept    string // see kept
	verdict string
}

func compare(t *testing.T, metric string, cases []comparison) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			for _, f := range []state.Family{state.V4, state.V6} {
				_, _, trace := w.decide(build(t, metric), family(f))
				if got := kept(trace, metric); got != tt.kept || trace.Steps[0].Verdict != tt.verdict {
					t.Errorf("%s: got %s: %s, want %s: %s", f, trace.Steps[0].Verdict, got, tt.verdict, tt.kept)
				}
			}
		})
	}
}
