package policy

import (
	"fmt"
	"math"
	"strings"

	"gslbd/state"
)

// A Forecast says what would become of the recent clients, and of the load that they bring, if orders were others
// (docs/orders.md, "Forecasts"). Shares are of 1.
type Forecast struct {
	Warnings []string          `json:"warnings"` // what an operator should read before going on
	Services []ServiceForecast `json:"services"`
	Sites    []SiteForecast    `json:"sites"`
	Unplaced Load              `json:"unplaced"` // of the clients that would get no answer, or the last resort
}

// A ServiceForecast is what would become of the clients of one service.
type ServiceForecast struct {
	Name       string         `json:"name"`
	PoolBefore string         `json:"pool_before"` // primary or backup
	PoolAfter  string         `json:"pool_after"`
	Clients    int            `json:"clients"`           // that were decided for
	Unknown    string         `json:"unknown,omitempty"` // why nothing is forecast
	Shares     *ServiceShares `json:"shares,omitempty"`  // absent: nothing is forecast, which is not the same as no change
}

// ServiceShares are shares of the clients of one service, by their first answer. A client that asks for both families
// counts half for each of its answers. The sites, the last resort and those without an answer make up all of them.
type ServiceShares struct {
	Changed    float64       `json:"changed"`     // get another member than before, or none
	NoAnswer   Change        `json:"no_answer"`   // get no answer for any family
	LastResort Change        `json:"last_resort"` // get addresses of last_resort
	Sites      []SiteShare   `json:"sites"`       // those where the service has members
	Families   []FamilyShare `json:"families"`    // those that the service has
	Moves      []Move        `json:"moves"`       // who make up Changed, the most first
}

// A Move is the share of the clients that are answered one member in place of another, or the last resort, or nothing.
type Move struct {
	From   string  `json:"from"`   // a member, "last resort" or "no answer"
	To     string  `json:"to"`     // likewise
	Metric string  `json:"metric"` // what settles the answer after: a metric, constraints, single or on_all_down
	Share  float64 `json:"share"`
}

// A Change is a share before and after.
type Change struct {
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// A SiteShare is the share of the clients that a site gets.
type SiteShare struct {
	Site string `json:"site"`
	Change
}

// A FamilyShare is the share of the clients that get no answer for one family, whatever they get for the other.
type FamilyShare struct {
	Family   string `json:"family"` // ipv4 or ipv6
	NoAnswer Change `json:"no_answer"`
}

// A SiteForecast is what would become of the load of one site. A site that loses a share of its clients loses the same
// share of its load, which goes where they go.
type SiteForecast struct {
	Name     string `json:"name"`
	Zone     string `json:"zone"`
	Clients  Change `json:"clients"`  // its share of the clients of all services, by how often they ask
	Leaving  Load   `json:"leaving"`  // what its clients take along
	Arriving Load   `json:"arriving"` // what others bring, as far as their sites tell
	Before   *Load  `json:"before,omitempty"`
	After    *Load  `json:"after,omitempty"` // both absent: no fresh report tells its load

	SessionsLimit  uint64   `json:"sessions_limit"`  // open sessions; 0: none
	BandwidthLimit uint64   `json:"bandwidth_limit"` // bits per second; 0: none
	UtilBefore     *float64 `json:"utilisation_before,omitempty"`
	UtilAfter      *float64 `json:"utilisation_after,omitempty"` // 1 is the threshold
	Over           bool     `json:"over"`                        // it would be at a threshold or above
	OverWhy        string   `json:"over_why,omitempty"`          // the numbers
}

// Load is an amount of load, estimated except for what a site reports itself. What is not known is absent.
type Load struct {
	Sessions         *uint64 `json:"sessions,omitempty"` // open
	BitsPerSecondIn  *uint64 `json:"bits_per_second_in,omitempty"`
	BitsPerSecondOut *uint64 `json:"bits_per_second_out,omitempty"`
}

const (
	// nothing is the greatest share that rounding may leave of none.
	nothing = 1e-9
	// maxDecided is for how many clients of all services together a forecast decides, so that nobody waits for more than
	// a few seconds; but leastDecided of each service, beyond which its shares would be guesses.
	maxDecided   = 200_000
	leastDecided = 50
)

// NewForecast lets the chains of both snapshots, which must be of the same configuration, decide for the clients of every
// service and tells what differs. clients returns the recent clients of a service (Store.Clients).
//
// Rotating metrics go on from where the snapshots stand, on copies: nothing that either of them points to is changed.
// What they give one client is a matter of turns, so there only the shares are compared.
//
// Of many services with many clients each it decides for an even selection, of 200,000 in all. It costs a microsecond or
// two for each client, family and snapshot, and more with many members.
func NewForecast(before, after *state.Snapshot, clients func(service string) []state.Client) Forecast {
	c := NewComparison(before, after, false)
	olds := make(map[string]*state.Service, len(before.Services))
	for _, svc := range before.Services {
		olds[svc.Name] = svc
	}
	list := make([]ServiceForecast, 0, len(after.Services))
	for _, svc := range after.Services {
		list = append(list, c.forecast(olds[svc.Name], svc, clients(svc.Name), max(maxDecided/len(after.Services), leastDecided)))
	}
	f := c.conclude(list, true)
	var unknown []string
	for _, s := range list {
		if s.Shares == nil {
			unknown = append(unknown, s.Name)
		}
	}
	if len(unknown) > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("of %d of %d services no recent clients are known, so nothing is forecast of them: %s",
			len(unknown), len(f.Services), some(unknown)))
	}
	return f
}

// Forecast tells of all that was decided so far, and ends the Comparison. With load it lets the load follow the clients: the
// load before is what the sites told in the first snapshot before; the thresholds are those after. Without, it tells of
// the services only.
func (c *Comparison) Forecast(load bool) Forecast {
	var list []ServiceForecast
	for _, s := range c.services {
		out := ServiceForecast{Name: s.name(), Clients: s.clients}
		if svc := c.before.query.Snapshot.ServiceByName(s.names[0]); svc != nil {
			out.PoolBefore = svc.Pool.String()
		}
		if svc := c.after.query.Snapshot.ServiceByName(s.names[1]); svc != nil {
			out.PoolAfter = svc.Pool.String()
		}
		c.finish(s)
		out.Shares = c.shares(s, []state.Family{state.V4, state.V6})
		list = append(list, out)
	}
	return c.conclude(list, load)
}

// conclude lets the load follow the clients of the services, if it is asked to.
func (c *Comparison) conclude(services []ServiceForecast, load bool) Forecast {
	f := Forecast{Warnings: []string{}, Services: services, Sites: make([]SiteForecast, 0, len(c.sites))}
	if load {
		f.Warnings = append(f.Warnings, c.load(&f)...)
	}
	for i := range services {
		f.Warnings = append(f.Warnings, services[i].warnings()...)
	}
	f.Unplaced = c.unplaced()
	return f
}

// forecast decides for the clients of a service, or for a selection of most of them.
func (c *Comparison) forecast(old, svc *state.Service, clients []state.Client, most int) ServiceForecast {
	n := min(len(clients), most)
	out := ServiceForecast{Name: svc.Name, PoolAfter: svc.Pool.String(), Clients: n}
	if old == nil || !sameMembers(old, svc) {
		out.Unknown = "the configuration has just changed; ask again"
		return out
	}
	out.PoolBefore = old.Pool.String()
	for i, m := range svc.Members {
		if o := old.Members[i]; o.InPool && (!m.InPool || o.Forced != m.Forced || len(o.Moved) > 0 || len(m.Moved) > 0) {
			c.touched[m.Site.Index] = true
		}
	}
	if n == 0 {
		out.Unknown = "no recent clients are known"
		return out
	}
	if !c.before.begin(old) || !c.after.begin(svc) {
		out.Unknown = "it has no policy"
		return out
	}
	families := familiesOf(svc)
	for i := range n {
		client := &clients[i*len(clients)/n]
		weight := client.Weight
		if weight <= 0 {
			weight = 1
		}
		weight *= float64(len(clients)) / float64(n) // it stands for others as well
		c.Decide(old, svc, families, client, client, weight)
	}
	s := c.service(old, svc)
	c.finish(s)
	out.Shares = c.shares(s, families)
	return out
}

// some joins the first of names.
func some(names []string) string {
	const most = 5
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (s *ServiceForecast) warnings() []string {
	if s.Shares == nil {
		return nil
	}
	var list []string
	worse := func(c Change, format string, args ...any) {
		if c.After > c.Before+nothing {
			list = append(list, fmt.Sprintf("service %s: %s (now %s)", s.Name, fmt.Sprintf(format, args...), percent(c.Before)))
		}
	}
	none := s.Shares.NoAnswer
	worse(none, "%s of its clients would get no answer", percent(none.After))
	for _, f := range s.Shares.Families {
		if f.NoAnswer.After > none.After+nothing { // else it is told already
			worse(f.NoAnswer, "%s of its clients would get no answer for %s", percent(f.NoAnswer.After), f.Family)
		}
	}
	worse(s.Shares.LastResort, "%s of its clients would get addresses of last_resort", percent(s.Shares.LastResort.After))
	return list
}

func sameMembers(a, b *state.Service) bool {
	if len(a.Members) != len(b.Members) {
		return false
	}
	for i := range a.Members {
		if a.Members[i].Name != b.Members[i].Name || a.Members[i].Site.Name != b.Members[i].Site.Name {
			return false
		}
	}
	return true
}

// shares tells of the clients of a service whose changes are finished.
func (c *Comparison) shares(s *compared, families []state.Family) *ServiceShares {
	out := &ServiceShares{Sites: []SiteShare{}, Families: []FamilyShare{}, Moves: s.list()}
	at := map[string]int{}
	for i := range s.changes.n {
		change := s.changes.change(i, s.total)
		out.Changed += (s.total*change.Before - s.changes.from(i)[i]) / s.total
		switch i - len(s.members) {
		case 0:
			out.LastResort = change
		case 1:
			out.NoAnswer = change
		default:
			name := c.sites[s.members[i].site].Name
			k, ok := at[name]
			if !ok {
				k = len(out.Sites)
				at[name] = k
				out.Sites = append(out.Sites, SiteShare{Site: name})
			}
			out.Sites[k].Before += change.Before
			out.Sites[k].After += change.After
		}
	}
	if out.Changed < nothing {
		out.Changed = 0
	}
	for _, f := range families {
		out.Families = append(out.Families, FamilyShare{Family: f.String(), NoAnswer: Change{s.none[0][f] / s.total, s.none[1][f] / s.total}})
	}
	return out
}

// The quantities of load.
const (
	sessions = iota
	bitsIn
	bitsOut
	quantities
)

// An amount is the load of one site, by quantity.
type amount struct {
	known             [quantities]bool
	present           [quantities]float64
	leaving, arriving [quantities]float64
	guests            [quantities]bool // the load of some of those that arrive is known
}

func newAmount(s *state.Site) amount {
	var a amount
	if s == nil { // it is added, and has no load yet
		a.known = [quantities]bool{true, true, true}
		return a
	}
	if !s.HasLoad {
		return a
	}
	a.known = [quantities]bool{s.HasSessions, s.HasBits, s.HasBits}
	a.present = [quantities]float64{float64(s.Sessions), float64(s.BitsIn), float64(s.BitsOut)}
	return a
}

// load lets the load follow the clients, fills f.Sites in, and returns what to warn of.
func (c *Comparison) load(f *Forecast) []string {
	total := 0.0
	for _, v := range c.flow.to {
		total += v
	}
	for i := range c.sites {
		c.amounts = append(c.amounts, newAmount(c.sitesBefore[i]))
	}
	var warnings []string
	for i, s := range c.sites {
		a, clients := &c.amounts[i], 0.0
		for _, v := range c.flow.from(i) {
			clients += v
		}
		if clients == 0 {
			if c.touched[i] && a.present != [quantities]float64{} {
				warnings = append(warnings, fmt.Sprintf("site %s: none of its clients are known, so where its load would go is not", s.Name))
			}
			continue
		}
		moved := false
		for j, v := range c.flow.from(i) {
			if j == i || v <= 0 {
				continue
			}
			moved = moved || v > nothing*clients
			for k := range quantities {
				load := a.present[k] * v / clients
				a.leaving[k] += load
				if j >= len(c.sites) {
					c.lost[k] += load
					continue
				}
				c.amounts[j].arriving[k] += load
				c.amounts[j].guests[k] = c.amounts[j].guests[k] || a.known[k]
			}
		}
		if moved && a.known == [quantities]bool{} {
			warnings = append(warnings, fmt.Sprintf("site %s: no fresh report tells its load, so what its clients would bring to other sites is not counted", s.Name))
		}
	}
	for i, s := range c.sites {
		site := c.amounts[i].forecast(s)
		site.Clients = c.flow.change(i, total)
		if site.Over && c.amounts[i].arriving != [quantities]float64{} {
			warnings = append(warnings, fmt.Sprintf("site %s would be at %s of its thresholds: %s (now %s)",
				s.Name, percent(round3(*site.UtilAfter)), site.OverWhy, percent(round3(*site.UtilBefore))))
		}
		f.Sites = append(f.Sites, site)
	}
	return warnings
}

// round3 keeps three decimals: an estimate is no better.
func round3(x float64) float64 { return math.Round(x*1000) / 1000 }

// forecast tells what becomes of the site's load, and judges it by the thresholds (docs/policies.md, "capacity").
func (a *amount) forecast(s *state.Site) SiteForecast {
	f := SiteForecast{
		Name: s.Name, Zone: s.Zone, SessionsLimit: s.SessionsLimit, BandwidthLimit: s.BandwidthLimit,
		Leaving: newLoad(a.leaving, a.known), Arriving: newLoad(a.arriving, a.guests),
	}
	if a.known == [quantities]bool{} {
		return f
	}
	var later [quantities]float64
	for k := range quantities {
		later[k] = max(a.present[k]-a.leaving[k]+a.arriving[k], 0)
	}
	before, after := newLoad(a.present, a.known), newLoad(later, a.known)
	f.Before, f.After = &before, &after
	limits := [quantities]uint64{s.SessionsLimit, s.BandwidthLimit, s.BandwidthLimit}
	var was, is float64
	judged := false
	for k, limit := range limits {
		if limit == 0 || !a.known[k] {
			continue
		}
		judged = true
		was = max(was, a.present[k]/float64(limit))
		u := later[k] / float64(limit)
		if u >= 1 && u > is {
			unit := "sessions"
			if k != sessions {
				unit = "bits per second"
			}
			f.Over, f.OverWhy = true, fmt.Sprintf("%.0f %s of %d", later[k], unit, limit)
		}
		is = max(is, u)
	}
	if judged {
		f.UtilBefore, f.UtilAfter = &was, &is
	}
	return f
}

func newLoad(v [quantities]float64, known [quantities]bool) Load {
	rounded := func(k int) *uint64 {
		if !known[k] {
			return nil
		}
		n := uint64(math.Round(v[k]))
		return &n
	}
	return Load{Sessions: rounded(sessions), BitsPerSecondIn: rounded(bitsIn), BitsPerSecondOut: rounded(bitsOut)}
}

// unplaced returns the load that has nowhere to go, as far as some site with clients tells it.
func (c *Comparison) unplaced() Load {
	var known [quantities]bool
	for i := range c.amounts {
		for k := range known {
			known[k] = known[k] || c.amounts[i].known[k]
		}
	}
	return newLoad(c.lost, known)
}
