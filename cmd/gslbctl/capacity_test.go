package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/geo"
	"gslbd/state"
)

var update = flag.Bool("update", false, "write the tables and plots of docs/capacity.md anew (make capacity)")

const (
	capacityFiles = "../../testdata/capacity/"
	capacityPage  = "../../docs/capacity.md"
)

// A rehearsal is one run that docs/capacity.md tells of.
type rehearsal struct {
	config, scenario, clients string // files in testdata/capacity
	change                    func(*config.Config, *config.Scenario)
	sites                     []float64 // in place of the sites and clients of the files: so many, of such sizes, each with clients of its own
}

// plan reads the files and changes them.
func (r rehearsal) plan(t *testing.T) rehearse.Plan {
	t.Helper()
	sim := simulation{clients: capacityFiles + r.clients}
	c, db, err := sim.load(capacityFiles + r.config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.LoadScenario(capacityFiles+r.scenario, c)
	if err != nil {
		t.Fatal(err)
	}
	asking, err := sim.read()
	if err != nil {
		t.Fatal(err)
	}
	resolvers, err := asking.population(servicesOf(c, c))
	if err != nil {
		t.Fatal(err)
	}
	if r.sites != nil {
		db, resolvers = placed(t, c, s, r.sites)
	}
	if r.change != nil {
		r.change(c, s)
	}
	return rehearse.Plan{Before: c, After: c, GeoBefore: db, GeoAfter: db, Scenario: s, Population: resolvers, Seed: 1}
}

// placed puts sites along the equator, of 60,000 sessions times their sizes, and at each of them 400 clients that need seven
// tenths of it. The first fails. Who is nearest to the clients of a site that fails is one neighbour.
func placed(t *testing.T, c *config.Config, s *config.Scenario, sizes []float64) (*geo.DB, []rehearse.Resolver) {
	t.Helper()
	shape, member := c.Sites[0], c.Services[0].Members[0]
	c.Sites, c.Services[0].Members = nil, nil
	var overrides []geo.Override
	var list []rehearse.Resolver
	total := 0.0
	for i, size := range sizes {
		shape.Name = fmt.Sprint("site", i+1)
		shape.Location = config.Location{Continent: "AF", Longitude: float64(10 * i), HasCoordinates: true}
		shape.Capacity.Sessions = uint64(60_000 * size)
		c.Sites = append(c.Sites, shape)
		member.Weight = int(100 * size)
		member.Name, member.Site, member.Addresses = shape.Name, shape.Name, []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
		c.Services[0].Members = append(c.Services[0].Members, member)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(i)}), 8)
		overrides = append(overrides, geo.Override{Prefix: prefix, Location: geo.Location{Continent: "AF", Longitude: float64(10 * i), HasCoordinates: true}})
		for k := range 400 {
			client := state.Client{LDNS: netip.AddrFrom4([4]byte{20 + byte(i), byte(k >> 8), byte(k), 53})}
			list = append(list, rehearse.Resolver{Service: c.Services[0].Name, Client: client, Weight: size})
		}
		total += size
	}
	s.Traffic.SessionsPerSecond = 0.7 * 60_000 * total / s.Traffic.SessionLength.Seconds()
	s.Events[0].Sites = []config.SiteChange{{Name: "site1", State: "down"}}
	db, err := geo.Open(geo.Options{Overrides: overrides})
	if err != nil {
		t.Fatal(err)
	}
	return db, list
}

// An outcome is what the page tells of a run. Shares are of 1.
type outcome struct {
	swing   float64 // how far the utilisation of a site goes up and down in the second half, of the site where it does most
	highest float64 // utilisation
	over    float64 // time in which a site is over its threshold
	breaks  int
	lost    float64 // sessions that found no site
	turns   float64 // verdicts an hour: how often a site becomes overloaded
}

// worst returns the worst of each.
func worst(list ...outcome) outcome {
	w := list[0]
	for _, o := range list[1:] {
		w = outcome{max(w.swing, o.swing), max(w.highest, o.highest), max(w.over, o.over), max(w.breaks, o.breaks), max(w.lost, o.lost), max(w.turns, o.turns)}
	}
	return w
}

// run lets a rehearsal come about, and returns what the page tells of it, and all of it.
func (r rehearsal) run(t *testing.T) (outcome, *rehearse.Result) {
	t.Helper()
	result, err := rehearse.Run(r.plan(t))
	if err != nil {
		t.Fatal(err)
	}
	s := result.After
	o := outcome{lost: s.Failed}
	for _, site := range s.Sites {
		late := site.Utilisation[len(site.Utilisation)/2:]
		o.swing = max(o.swing, slices.Max(late)-slices.Min(late))
		o.highest = max(o.highest, site.Peak)
		o.breaks += site.Breaks
		for i, shed := range site.Shed {
			if i > 0 && shed == 1 && site.Shed[i-1] < 1 {
				o.turns += 3600 / result.Duration
			}
		}
	}
	for i := range s.Seconds {
		if slices.ContainsFunc(s.Sites, func(site rehearse.SiteSeries) bool { return site.Utilisation[i] >= 1 }) {
			o.over += 1 / float64(len(s.Seconds))
		}
	}
	return o, result
}

// The words of the tables.
func points(v float64) string  { return fmt.Sprintf("%.0f", 100*v) }
func rounded(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
func fine(v float64) string    { return fmt.Sprintf("%.2f %%", 100*v) }
func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// ofSite changes every site's capacity.
func ofSite(change func(*config.Capacity)) func(*config.Config, *config.Scenario) {
	return func(c *config.Config, _ *config.Scenario) {
		for i := range c.Sites {
			change(&c.Sites[i].Capacity)
		}
	}
}

// both changes by one and then by the other.
func both(a, b func(*config.Config, *config.Scenario)) func(*config.Config, *config.Scenario) {
	return func(c *config.Config, s *config.Scenario) {
		a(c, s)
		b(c, s)
	}
}

// late has reports that are half a minute old.
func late(_ *config.Config, s *config.Scenario) { s.Traffic.ReportDelay = 30 * time.Second }

// A listing is a table of the page, between the marks that bear its name.
type listing struct {
	head []string
	rows [][]string
}

func (tb *listing) add(cells ...string) { tb.rows = append(tb.rows, cells) }

func (tb *listing) String() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(tb.head)
	b.WriteString(strings.Repeat("|---", len(tb.head)) + "|\n")
	for _, row := range tb.rows {
		line(row)
	}
	return b.String()
}

// capacityTables rehearses all that the page tells of, and returns its tables by name.
func capacityTables(t *testing.T) map[string]string {
	tables := map[string]string{}
	run := func(r rehearsal) outcome {
		o, _ := r.run(t)
		return o
	}

	steps := listing{head: []string{"", "swings by (points of utilisation)", "highest utilisation", "time with a site over its threshold"}}
	for _, r := range []struct{ name, config, scenario string }{
		{"step", "step.yaml", "region.yaml"},
		{"step, reports 30 s old", "step.yaml", "late.yaml"},
		{"`shed_from: 80%`", "shed.yaml", "region.yaml"},
		{"`shed_from: 80%`, reports 30 s old", "shed.yaml", "late.yaml"},
	} {
		o := run(rehearsal{config: r.config, scenario: r.scenario, clients: "clients.csv"})
		steps.add(r.name, points(o.swing), rounded(o.highest), rounded(o.over))
	}
	tables["steps"] = steps.String()

	thresholds := listing{head: []string{"", "swings by", "highest utilisation", "time with a site over its threshold", "verdicts an hour"}}
	for _, r := range []struct {
		name, config string
		change       func(*config.Capacity)
	}{
		{"step, `hold: 10s`", "step.yaml", func(c *config.Capacity) { c.Hold = 10 * time.Second }},
		{"step, `hold: 30s` (default)", "step.yaml", func(*config.Capacity) {}},
		{"step, `hold: 60s`", "step.yaml", func(c *config.Capacity) { c.Hold = 60 * time.Second }},
		{"step, `hold: 300s`", "step.yaml", func(c *config.Capacity) { c.Hold = 300 * time.Second }},
		{"step, `resume: 70%`", "step.yaml", func(c *config.Capacity) { c.Resume = 0.7 }},
		{"step, `resume: 100%`", "step.yaml", func(c *config.Capacity) { c.Resume = 1 }},
		{"`shed_from: 70%`", "shed.yaml", func(c *config.Capacity) { c.ShedFrom = 0.7 }},
		{"`shed_from: 80%`", "shed.yaml", func(*config.Capacity) {}},
		{"`shed_from: 90%`", "shed.yaml", func(c *config.Capacity) { c.ShedFrom = 0.9 }},
		{"`shed_from: 80%` and `cascade_guard`", "shed.yaml", func(c *config.Capacity) { c.CascadeGuard = true }},
	} {
		var list []outcome
		for _, ttl := range []uint32{30, 120, 300} {
			for _, scenario := range []string{"region.yaml", "late.yaml"} {
				change := both(ofSite(r.change), func(c *config.Config, _ *config.Scenario) { c.Services[0].TTL = ttl })
				list = append(list, run(rehearsal{config: r.config, scenario: scenario, clients: "clients.csv", change: change}))
			}
		}
		o := worst(list...)
		thresholds.add(r.name, points(o.swing), rounded(o.highest), rounded(o.over), fmt.Sprintf("%.0f", o.turns))
	}
	tables["thresholds"] = thresholds.String()

	failure := listing{head: []string{"all sites together at", "", "sites that broke", "highest utilisation", "sessions that found no site"}}
	minute := ofSite(func(c *config.Capacity) { c.Hold = time.Minute })
	for _, r := range []struct {
		name, scenario, how, config string
		change                      func(*config.Config, *config.Scenario)
	}{
		{"70 %", "failure.yaml", "step", "five-step.yaml", nil},
		{"70 %", "failure.yaml", "step, `hold: 60s`", "five-step.yaml", minute},
		{"70 %", "failure.yaml", "`shed_from: 80%`", "five-shed.yaml", nil},
		{"50 %", "half.yaml", "step", "five-step.yaml", nil},
		{"50 %", "half.yaml", "`shed_from: 80%`", "five-shed.yaml", nil},
	} {
		o := run(rehearsal{config: r.config, scenario: r.scenario, clients: "even.csv", change: r.change})
		failure.add(r.name, r.how, times(o.breaks), rounded(o.highest), fine(o.lost))
	}
	tables["failure"] = failure.String()

	largest := listing{head: []string{"sites", "without it the others are at", "`nearest`: step", "`shed_from: 80%`", "and `cascade_guard`", "`spread`: step", "`shed_from: 80%`"}}
	for _, r := range []struct {
		name  string
		sizes []float64
	}{
		{"3 alike", []float64{1, 1, 1}},
		{"4 alike", []float64{1, 1, 1, 1}},
		{"5 alike", []float64{1, 1, 1, 1, 1}},
		{"6 alike", []float64{1, 1, 1, 1, 1, 1}},
		{"8 alike", []float64{1, 1, 1, 1, 1, 1, 1, 1}},
		{"5, one twice as large", []float64{2, 1, 1, 1, 1}},
		{"8, one twice as large", []float64{2, 1, 1, 1, 1, 1, 1, 1}},
	} {
		total := 0.0
		for _, size := range r.sizes {
			total += size
		}
		row := []string{r.name, rounded(0.7 * total / (total - r.sizes[0]))}
		for _, how := range []struct{ policy, config string }{
			{"nearest", "five-step.yaml"}, {"nearest", "five-shed.yaml"}, {"nearest", "five-shed-guard.yaml"}, {"spread", "five-step.yaml"}, {"spread", "five-shed.yaml"},
		} {
			o := run(rehearsal{config: how.config, scenario: "failure.yaml", clients: "even.csv", sites: r.sizes, change: func(c *config.Config, _ *config.Scenario) {
				c.Services[0].Policy = how.policy
			}})
			row = append(row, fmt.Sprintf("%d (%.1f %%)", o.breaks, 100*o.lost))
		}
		largest.add(row...)
	}
	tables["largest"] = largest.String()

	guard := listing{head: []string{"after the failure", "", "swings by", "highest utilisation", "sites that broke"}}
	for _, r := range []struct {
		name, scenario string
		change         func(*config.Config, *config.Scenario)
	}{
		{"at 70 %", "failure.yaml", nil},
		{"at 70 %, sites break at 105 %", "fragile.yaml", nil},
		{"at 70 %, reports 30 s old", "failure.yaml", late},
		{"at 50 %", "half.yaml", nil},
		{"at 50 %, reports 30 s old", "half.yaml", late},
	} {
		for _, how := range []struct{ name, config string }{{"`shed_from: 80%`", "five-shed.yaml"}, {"and `cascade_guard`", "five-shed-guard.yaml"}} {
			o := run(rehearsal{config: how.config, scenario: r.scenario, clients: "even.csv", change: r.change})
			guard.add(r.name, how.name, points(o.swing), rounded(o.highest), times(o.breaks))
		}
	}
	tables["guard"] = guard.String()

	tolerance := listing{head: []string{"tolerance", "swings by", "highest utilisation", "swings by, users in equal parts", "highest utilisation"}}
	for _, share := range []float64{0, 0.1, 0.25, 0.5, 1} {
		name := rounded(share)
		if share == 1 {
			name += " (default)"
		}
		row := []string{name}
		for _, clients := range []string{"clients.csv", "even.csv"} {
			o := run(rehearsal{config: "wide.yaml", scenario: "region.yaml", clients: clients, change: func(c *config.Config, _ *config.Scenario) {
				for i := range c.Policy("load").Steps {
					if s := &c.Policy("load").Steps[i]; s.Metric == "connection-load" {
						s.Tolerance = share
					}
				}
			}})
			row = append(row, points(o.swing), rounded(o.highest))
		}
		tolerance.add(row...)
	}
	tables["tolerance"] = tolerance.String()
	return tables
}

// capacityPlots are the plots of the page, by file.
var capacityPlots = map[string]rehearsal{
	"step-region.svg":             {config: "step.yaml", scenario: "region.yaml", clients: "clients.csv"},
	"shed-region.svg":             {config: "shed.yaml", scenario: "region.yaml", clients: "clients.csv"},
	"five-step-failure.svg":       {config: "five-step.yaml", scenario: "failure.yaml", clients: "even.csv"},
	"five-shed-failure.svg":       {config: "five-shed.yaml", scenario: "failure.yaml", clients: "even.csv"},
	"five-shed-guard-failure.svg": {config: "five-shed-guard.yaml", scenario: "failure.yaml", clients: "even.csv"},
	"tight-region.svg":            {config: "tight.yaml", scenario: "region.yaml", clients: "even.csv"},
	"wide-region.svg":             {config: "wide.yaml", scenario: "region.yaml", clients: "even.csv"},
}

// TestCapacityPage fails when a table or a plot of docs/capacity.md is not what the simulation says. With -update it writes
// them anew.
func TestCapacityPage(t *testing.T) {
	if runtime.GOARCH != "amd64" || raced {
		t.Skip("other processors round a little differently, which swings enlarge; and the race detector takes minutes")
	}
	old, err := os.ReadFile(capacityPage)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	page := string(old)
	for name, text := range capacityTables(t) {
		begin, end := "<!-- "+name+": written by make capacity -->\n\n", "\n<!-- "+name+" ends -->"
		before, rest, found := strings.Cut(page, begin)
		_, after, ends := strings.Cut(rest, end)
		if !found || !ends {
			t.Fatalf("the page has no place for the table %s", name)
		}
		page = before + begin + text + end + after
	}
	files[capacityPage] = page
	for name, r := range capacityPlots {
		_, result := r.run(t)
		files[filepath.Join(filepath.Dir(capacityPage), "capacity", name)] = drawSimulation(result)
	}
	for path, text := range files {
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if is, err := os.ReadFile(path); err != nil || string(is) != text {
			t.Errorf("%s is not what the simulation says (%v); run make capacity, and read the diff:\n%s", path, err, cmp.Diff(string(is), text))
		}
	}
}

// TestCapacityStatements holds what the page concludes against the simulation, on any machine.
func TestCapacityStatements(t *testing.T) {
	of := func(config, scenario, clients string) outcome {
		t.Helper()
		o, _ := rehearsal{config: config, scenario: scenario, clients: clients}.run(t)
		return o
	}
	if o := of("step.yaml", "region.yaml", "clients.csv"); o.swing < 0.4 || o.turns < 10 {
		t.Errorf("a step at the threshold swings by %.2f only, with %.0f verdicts an hour", o.swing, o.turns)
	}
	if o := of("shed.yaml", "region.yaml", "clients.csv"); o.swing > 0.05 || o.highest > 1 {
		t.Errorf("a site that sheds: %+v", o)
	}
	if o := of("shed.yaml", "late.yaml", "clients.csv"); o.highest > 1 {
		t.Errorf("a site that sheds and reports late: %+v", o)
	}
	step, shed, guard := of("five-step.yaml", "failure.yaml", "even.csv"), of("five-shed.yaml", "failure.yaml", "even.csv"), of("five-shed-guard.yaml", "failure.yaml", "even.csv")
	if step.breaks < 1 || step.lost < 1.5*shed.lost {
		t.Errorf("with steps none breaks: %+v", step)
	}
	held := rehearsal{config: "five-step.yaml", scenario: "failure.yaml", clients: "even.csv", change: ofSite(func(c *config.Capacity) { c.Hold = time.Minute })}
	if o, _ := held.run(t); o.breaks < 10 || o.lost < 0.05 {
		t.Errorf("steps with a long hold do not cascade: %+v", o)
	}
	if shed.breaks > 0 || shed.lost > 0.005 || shed.highest > 1.15 {
		t.Errorf("shedding: %+v", shed)
	}
	if guard.breaks > 0 || guard.highest > 1.02 || guard.swing > 0.6*shed.swing {
		t.Errorf("guarded: %+v; not: %+v", guard, shed)
	}
	if o := of("five-shed.yaml", "fragile.yaml", "even.csv"); o.breaks < 10 {
		t.Errorf("sites that break at 105 %%, without the guard: %+v", o)
	}
	if o := of("five-shed-guard.yaml", "fragile.yaml", "even.csv"); o.breaks > 0 {
		t.Errorf("sites that break at 105 %%, with the guard: %+v", o)
	}
	alike := rehearsal{config: "five-shed.yaml", scenario: "failure.yaml", clients: "even.csv", sites: []float64{1, 1, 1}}
	if o, _ := alike.run(t); o.breaks > 0 || o.lost > 0.005 {
		t.Errorf("three alike that shed, of which one fails, spread what all would shed: %+v", o)
	}
	if tight, wide := of("tight.yaml", "region.yaml", "even.csv"), of("wide.yaml", "region.yaml", "even.csv"); tight.swing < 2*wide.swing {
		t.Errorf("connection-load swings by %.3f with a tight tolerance, by %.3f with the default", tight.swing, wide.swing)
	}
	short, long := outcome{}, outcome{}
	for _, scenario := range []string{"region.yaml", "late.yaml"} {
		for _, ttl := range []uint32{30, 120} {
			with := func(hold time.Duration) outcome {
				r := rehearsal{config: "step.yaml", scenario: scenario, clients: "clients.csv", change: func(c *config.Config, _ *config.Scenario) {
					c.Services[0].TTL = ttl
					for i := range c.Sites {
						if hold > 0 {
							c.Sites[i].Capacity.Hold = hold
						}
					}
				}}
				o, _ := r.run(t)
				return o
			}
			short, long = worst(short, with(0)), worst(long, with(2*time.Minute))
		}
	}
	if short.swing > 0.8*long.swing || short.highest > long.highest-0.2 {
		t.Errorf("with the default hold %+v, with a long one %+v", short, long)
	}
}
