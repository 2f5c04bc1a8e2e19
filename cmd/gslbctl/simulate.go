package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gslbd/admin"
	"gslbd/cmd/compile"
	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// mostMeasured is for how many networks of clients --against asks for round trips, the first of the log.
const mostMeasured = 2000

// A simulation is what the flags of the command say.
type simulation struct {
	config, before, scenario string
	queries, clients         string
	count                    int
	against                  string
	svg                      string
	seed                     uint64
}

func simulateCommand(set *settings) *cobra.Command {
	var sim simulation
	cmd := &cobra.Command{
		Use:   "simulate --config FILE [--before FILE] [--scenario FILE] (--queries FILE | --clients FILE)",
		Short: "rehearse a configuration: who would be answered what, and what becomes of the sites",
		Long: "Replays queries, or lets a population of resolvers ask, twice by the chain that serves: before, out of the configuration\n" +
			"--before (default: --config) with the sites as the scenario begins; and after, out of --config with what the scenario\n" +
			"brings. Nothing is sent to anybody, but that --against asks a gslbd how its sites are now. See docs/simulate.md.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return sim.run(cmd, set) },
	}
	flags := cmd.Flags()
	flags.StringVar(&sim.config, "config", "", "the configuration to rehearse")
	flags.StringVar(&sim.before, "before", "", "the configuration to compare it with, such as the one in force")
	flags.StringVar(&sim.scenario, "scenario", "", "file that says what befalls the sites")
	flags.StringVar(&sim.queries, "queries", "", "queries: a file of dnstap; or as dnsperf reads them, a name and a type a line, and here perhaps the resolver's address and its client subnet")
	flags.StringVar(&sim.clients, "clients", "", "who asks: lines of resolver,weight,subnet, of which the last two may be left out")
	flags.IntVar(&sim.count, "count", 100_000, "how many queries to draw for --clients, without --queries")
	flags.StringVar(&sim.against, "against", "", "URL of a gslbd: begin with its sites, members and round trips as they are now")
	flags.StringVar(&sim.svg, "svg", "", "file to draw shares and utilisation over time in")
	flags.Uint64Var(&sim.seed, "seed", 1, "of all chance: the same seed gives the same result")
	return cmd
}

func (sim *simulation) run(cmd *cobra.Command, set *settings) error {
	switch {
	case sim.config == "":
		return usage(cmd, errors.New("--config is missing: which configuration?"))
	case sim.queries == "" && sim.clients == "":
		return usage(cmd, errors.New("--queries or --clients is missing: who asks?"))
	case sim.count < 1 || sim.count > mostQueries:
		return usage(cmd, fmt.Errorf("--count: %d is not between 1 and %d", sim.count, mostQueries))
	}
	plan := rehearse.Plan{Scenario: &config.Scenario{}, Seed: sim.seed}
	var err error
	if plan.After, plan.GeoAfter, err = sim.load(sim.config); err != nil {
		return err
	}
	plan.Before, plan.GeoBefore = plan.After, plan.GeoAfter
	if sim.before != "" {
		if plan.Before, plan.GeoBefore, err = sim.load(sim.before); err != nil {
			return err
		}
	}
	if sim.scenario != "" {
		if plan.Scenario, err = config.LoadScenario(sim.scenario, plan.After); err != nil {
			return usageError{err}
		}
	}
	asking, err := sim.read()
	if err != nil {
		return err
	}
	services := servicesOf(plan.Before, plan.After)
	if plan.Scenario.Traffic != nil {
		plan.Population, err = asking.population(services)
	} else {
		plan.Queries, err = asking.queries(services, sim.count, sim.seed)
	}
	if err != nil {
		return err
	}
	if sim.against != "" {
		if plan.Present, err = sim.present(cmd.Context(), set, asking.addresses(plan.After, mostMeasured)); err != nil {
			return err
		}
	}
	bar := newBar(cmd.ErrOrStderr())
	plan.Progress = bar.show
	result, err := rehearse.Run(plan)
	bar.end()
	if err != nil {
		return err
	}
	said := simulated{result, asking.skipped, asking.unreadable}
	if set.json {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(said)
	} else {
		printf(cmd.OutOrStdout(), "%s", showSimulation(said, plan.Scenario.Traffic != nil))
	}
	if err == nil && sim.svg != "" {
		err = os.WriteFile(sim.svg, []byte(drawSimulation(result)), 0o666)
	}
	return err
}

// A simulated is what the command says: what came about, and what of the log is left out.
type simulated struct {
	*rehearse.Result
	Skipped    int `json:"skipped,omitempty"`    // queries of other types than A and AAAA
	Unreadable int `json:"unreadable,omitempty"` // messages of dnstap that gslbd could not read as queries
}

// load reads a configuration and its geo databases.
func (sim *simulation) load(path string) (*config.Config, *geo.DB, error) {
	c, _, err := config.Load(path)
	if err != nil {
		return nil, nil, usageError{err}
	}
	db, err := geo.Open(compile.Geo(c))
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	return c, db, nil
}

// present asks a gslbd how its sites and members are, and for the round trips to the addresses.
func (sim *simulation) present(ctx context.Context, set *settings, addresses []netip.Addr) (*rehearse.Present, error) {
	one := *set
	one.servers = []string{sim.against}
	servers, c, err := one.connect()
	if err != nil {
		return nil, err
	}
	defer c.http.CloseIdleConnections()
	get := func(path string, v any) error {
		body, err := c.do(ctx, http.MethodGet, servers[0]+path, nil)
		if err == nil {
			err = json.Unmarshal(body, v)
		}
		if err != nil {
			return fmt.Errorf("--against %s: %w", servers[0], err)
		}
		return nil
	}
	var status admin.Status
	if err := get("/v1/status", &status); err != nil {
		return nil, err
	}
	p := presentOf(&status)
	if status.RTTEntries == 0 {
		return p, nil
	}
	for _, a := range addresses {
		var rtts admin.RTTs
		if err := get("/v1/rtt?"+url.Values{"resolver": {a.String()}}.Encode(), &rtts); err != nil {
			return nil, err
		}
		for _, r := range rtts.Sites {
			method, ok := state.ParseRTTMethod(r.Method)
			if !ok { // of a later release
				continue
			}
			p.RTTs[r.Site] = append(p.RTTs[r.Site], state.RTTSample{
				Method: method, Resolver: a, RTT: time.Duration(r.RTTMS * float64(time.Millisecond)), Age: time.Duration(r.Age * float64(time.Second)),
			})
		}
	}
	return p, nil
}

// presentOf turns a status into what a rehearsal begins with.
func presentOf(status *admin.Status) *rehearse.Present {
	p := &rehearse.Present{RTTs: map[string][]state.RTTSample{}}
	words := map[string]string{"fresh": "up", "stale": "stale", "dead": "dead", "never reported": "unknown"}
	for _, s := range status.Sites {
		st := rehearse.SiteState{Name: s.Name, State: words[s.Report]}
		if s.Load != nil {
			st.Sessions, st.BitsIn, st.BitsOut = s.Load.Sessions, s.Load.BitsPerSecondIn, s.Load.BitsPerSecondOut
		}
		if s.NewSessions != nil {
			st.NewSessions = *s.NewSessions
		}
		p.Sites = append(p.Sites, st)
	}
	for _, svc := range status.Services {
		for _, m := range svc.Members {
			ms := rehearse.MemberState{Service: svc.Name, Member: m.Name}
			for _, a := range m.Addresses {
				for _, f := range []state.Family{state.V4, state.V6} {
					ms.Down[f] = ms.Down[f] || a.Family == f.String() && !a.Up
				}
			}
			for forced := state.ForcedUp; forced <= state.ForcedEvacuated; forced++ {
				if forced.String() == m.Forced {
					ms.Forced = forced
				}
			}
			for _, moved := range m.Moved {
				ms.Moved = append(ms.Moved, moved.Share)
			}
			if ms.Down != [2]bool{} || ms.Forced != state.NotForced || len(ms.Moved) > 0 {
				p.Members = append(p.Members, ms)
			}
		}
	}
	return p
}

// A bar shows on a terminal how far a long run is.
type bar struct {
	out   io.Writer
	began time.Time
	shown int // percent, of the last line; -1: none
}

// newBar returns a bar for a terminal; on anything else it shows nothing.
func newBar(out io.Writer) *bar {
	b := &bar{began: time.Now(), shown: -1}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			b.out = out
		}
	}
	return b
}

// show draws the bar, once a run has taken a second.
func (b *bar) show(done float64) {
	percent := int(100 * done)
	if b.out == nil || percent == b.shown || time.Since(b.began) < time.Second {
		return
	}
	b.shown = percent
	fmt.Fprintf(b.out, "\r[%-40s] %d %%", strings.Repeat("#", percent*40/100), percent)
}

// end removes it.
func (b *bar) end() {
	if b.shown >= 0 {
		fmt.Fprintf(b.out, "\r%50s\r", "")
	}
}

// showSimulation renders a result for people.
func showSimulation(r simulated, traffic bool) string {
	var b strings.Builder
	one, more := "query", "queries"
	if traffic {
		one, more = "resolver", "resolvers"
	}
	if r.Queries == 1 {
		more = one
	}
	fmt.Fprintf(&b, "%d %s", r.Queries, more)
	if r.Duration > 0 {
		fmt.Fprintf(&b, " over %s", span(time.Duration(r.Duration*float64(time.Second))))
	}
	if r.Unknown > 0 {
		fmt.Fprintf(&b, "; %d more ask for names that no service answers", r.Unknown)
	}
	if r.Lacking > 0 {
		fmt.Fprintf(&b, "; %d more for a family that the service has no address of", r.Lacking)
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "; %d of other types than A and AAAA are left out", r.Skipped)
	}
	if r.Unreadable > 0 {
		fmt.Fprintf(&b, "; %d cannot be read as queries", r.Unreadable)
	}
	b.WriteString("\n")
	for _, p := range r.Phases {
		switch {
		case traffic:
			b.WriteString("\nas it ends, if all asked at once\n")
		case r.Duration > 0:
			fmt.Fprintf(&b, "\nfrom %s to %s\n", clock(p.From), clock(p.To))
		}
		showPhase(&b, &p.Forecast)
	}
	if traffic {
		rows := [][]string{{"SITE", "SHARE BEFORE", "AFTER", "PEAK BEFORE", "AFTER", "BROKE"}}
		for _, site := range r.After.Sites {
			row := []string{site.Name, "-", fmt.Sprintf("%.1f %%", 100*site.Mean), "-", fmt.Sprintf("%.0f %%", 100*site.Peak), fmt.Sprint(site.Breaks)}
			for _, was := range r.Before.Sites {
				if was.Name == site.Name {
					row[1], row[3] = fmt.Sprintf("%.1f %%", 100*was.Mean), fmt.Sprintf("%.0f %%", 100*was.Peak)
				}
			}
			rows = append(rows, row)
		}
		b.WriteString("\nall the time\n")
		table(&b, rows)
		fmt.Fprintf(&b, "  sessions that found no site: %.2f %% before, %.2f %% after\n", 100*r.Before.Failed, 100*r.After.Failed)
	}
	return b.String()
}

// showPhase renders who changes, and what becomes of the sites.
func showPhase(b *strings.Builder, f *policy.Forecast) {
	share := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	for _, s := range f.Services {
		fmt.Fprintf(b, "service %s: %s of its clients change\n", s.Name, share(s.Shares.Changed))
		rows := [][]string{{"SITE", "BEFORE", "AFTER"}}
		add := func(name string, c policy.Change) {
			rows = append(rows, []string{name, share(c.Before), share(c.After)})
		}
		for _, site := range s.Shares.Sites {
			add(site.Site, site.Change)
		}
		if c := s.Shares.LastResort; c.Before+c.After > 0 {
			add("(last resort)", c)
		}
		if c := s.Shares.NoAnswer; c.Before+c.After > 0 {
			add("(no answer)", c)
		}
		table(b, rows)
		if len(s.Shares.Moves) > 0 {
			rows = [][]string{{"FROM", "TO", "SHARE", "BY"}}
			for _, m := range s.Shares.Moves {
				rows = append(rows, []string{m.From, m.To, share(m.Share), m.Metric})
			}
			table(b, rows)
		}
	}
	rows := [][]string{{"SITE", "CLIENTS", "AFTER", "OF THRESHOLDS", "AFTER", ""}}
	optional := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100**v)
	}
	for _, s := range f.Sites {
		rows = append(rows, []string{s.Name, share(s.Clients.Before), share(s.Clients.After), optional(s.UtilBefore), optional(s.UtilAfter), s.OverWhy})
	}
	if len(f.Sites) > 0 {
		b.WriteString("sites\n")
		table(b, rows)
	}
	for _, w := range f.Warnings {
		b.WriteString(wrap("warning: ", w))
	}
}

// drawSimulation draws what a Result says of time: the side after in full lines, the one before in dashes. One moment it
// draws as bars.
func drawSimulation(r *rehearse.Result) string {
	shares := panel{title: "share of the clients", unit: "%"}
	load := panel{title: "utilisation", unit: "%"}
	percent := func(list []float64) []float64 {
		out := make([]float64, len(list))
		for i, v := range list {
			out[i] = 100 * v
		}
		return out
	}
	names := map[string]int{}
	add := func(s *rehearse.Series, dashed bool) {
		for _, site := range s.Sites {
			if _, known := names[site.Name]; !known {
				names[site.Name] = len(names)
			}
			l := line{name: site.Name, colour: names[site.Name], dashed: dashed, x: s.Seconds}
			l.y = percent(site.Share)
			shares.lines = append(shares.lines, l)
			if len(site.Utilisation) > 0 {
				l.y = percent(site.Utilisation)
				load.lines = append(load.lines, l)
			}
		}
	}
	if r.Duration == 0 {
		for _, p := range r.Phases {
			for _, s := range p.Forecast.Sites {
				shares.bars = append(shares.bars, bars{s.Name, 100 * s.Clients.Before, 100 * s.Clients.After})
				if s.UtilBefore != nil && s.UtilAfter != nil {
					load.bars = append(load.bars, bars{s.Name, 100 * *s.UtilBefore, 100 * *s.UtilAfter})
				}
			}
		}
	} else {
		add(&r.After, false)
		add(&r.Before, true)
	}
	panels := []panel{shares}
	if len(load.lines)+len(load.bars) > 0 {
		load.mark = 100
		panels = append(panels, load)
	}
	if r.Duration == 0 {
		return draw("pale: before; full: after", panels)
	}
	return draw("dashed: before; full: after", panels)
}
