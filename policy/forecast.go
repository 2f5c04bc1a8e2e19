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
	w := newWorkload(before, after)
	f := Forecast{
		Warnings: []string{}, Services: make([]ServiceForecast, 0, len(after.Services)), Sites: make([]SiteForecast, 0, len(after.Sites)),
	}
	var unknown, warnings []string
	for _, svc := range after.Services {
		s := w.service(svc, clients(svc.Name), max(maxDecided/len(after.Services), leastDecided))
		if s.Shares == nil {
			unknown = append(unknown, svc.Name)
		}
		warnings = append(warnings, s.warnings()...)
		f.Services = append(f.Services, s)
	}
	f.Warnings = append(f.Warnings, w.sites(&f)...)
	f.Warnings = append(f.Warnings, warnings...)
	f.Unplaced = w.unplaced()
	if len(unknown) > 0 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("of %d of %d services no recent clients are known, so nothing is forecast of them: %s",
			len(unknown), len(f.Services), some(unknown)))
	}
	return f
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

// A workload collects, over all services, which clients go from where to where.
type workload struct {
	before, after *run
	services      map[string]*state.Service // of the snapshot before
	list          []*state.Site             // of the snapshot after
	flow          flow                      // by Site.Index; then the last resort, and no answer
	touched       []bool                    // by Site.Index: orders or pools are others for a member of the site that was in its pool, and so may lose clients
	amounts       []amount                  // by Site.Index; leaving and arriving are filled in by sites
	lost          [quantities]float64       // leaving, and arriving nowhere
}

func newWorkload(before, after *state.Snapshot) *workload {
	w := &workload{
		before: &run{}, after: &run{}, services: make(map[string]*state.Service, len(before.Services)),
		list: after.Sites, flow: newFlow(len(after.Sites) + 2), touched: make([]bool, len(after.Sites)),
	}
	for _, svc := range before.Services {
		w.services[svc.Name] = svc
	}
	now := before.Published
	if after.Published.After(now) {
		now = after.Published
	}
	w.before.query.Snapshot, w.after.query.Snapshot = before, after
	w.before.query.Now, w.after.query.Now = now, now // so that samples and slow starts have the same age in both
	return w
}

// A flow says how much goes from where to where, in rows of n by origin.
type flow struct {
	n  int
	to []float64
}

func newFlow(n int) flow { return flow{n: n, to: make([]float64, n*n)} }

func (f flow) from(i int) []float64 { return f.to[i*f.n : (i+1)*f.n] }

// couple adds what goes from before to after, which have the same sum: what can stay stays, and the rest spreads over
// those that gain in proportion to their gain. It uses both vectors up.
func (f flow) couple(before, after []float64) {
	gain := 0.0
	for i := range before {
		stays := min(before[i], after[i])
		f.to[i*f.n+i] += stays
		before[i] -= stays
		after[i] -= stays
		gain += after[i]
	}
	if gain <= 0 {
		return
	}
	for i, loss := range before {
		if loss <= 0 {
			continue
		}
		row := f.from(i)
		for j, g := range after {
			row[j] += loss * g / gain
		}
	}
}

// A run decides for clients out of one snapshot, with rotation and selections of its own.
type run struct {
	query    Query
	chain    *Chain
	service  state.Service
	turn     [2]uint64
	noAnswer [2]float64 // by family
}

// begin turns to another service. It reports whether that has a chain.
func (r *run) begin(svc *state.Service) bool {
	r.service, r.turn, r.noAnswer = *svc, [2]uint64{}, [2]float64{}
	if svc.Rotation != nil {
		for f := range r.turn {
			r.turn[f] = svc.Rotation.Turn[f].Load()
		}
	}
	members := make([]state.Member, len(svc.Members))
	r.service.Members = make([]*state.Member, len(svc.Members))
	for i, m := range svc.Members {
		members[i] = *m
		members[i].Selected, members[i].SelectedApart = m.Selected.Clone(), m.SelectedApart.Clone()
		r.service.Members[i] = &members[i]
	}
	r.query.Service = &r.service
	var ok bool
	r.chain, ok = svc.Chain.(*Chain)
	return ok
}

// decide adds to outcome where a client of this weight goes: to members by their Index, then to the last resort, then
// nowhere. It reports whether a rotating metric may have had a say.
func (r *run) decide(c *state.Client, weight float64, families []state.Family, outcome []float64) (rotated bool) {
	clear(outcome)
	lastResort, none := len(outcome)-2, len(outcome)-1
	answered := 0.0
	for _, f := range families {
		q := &r.query
		q.Family, q.Turn, q.LDNS, q.ECS = f, r.turn[f], c.LDNS, c.ECS
		r.turn[f]++
		var d Decision
		r.chain.Decide(q, &d)
		rotated = rotated || r.chain.rotated(d.Reason)
		switch {
		case d.Kind == Answer && d.N > 0:
			first := d.Members[0]
			first.Select(f, d.Apart)
			outcome[first.Index]++
			answered++
		case d.Kind == LastResort:
			outcome[lastResort]++
			answered++
		default:
			r.noAnswer[f] += weight
		}
	}
	if answered == 0 {
		outcome[none] = weight
		return rotated
	}
	for i := range outcome {
		outcome[i] *= weight / answered
	}
	return rotated
}

// rotated reports whether a metric that goes by turns or counts may have had a say in what reason settled.
func (c *Chain) rotated(reason Reason) bool {
	rotates := false
	for i := range c.steps {
		s := &c.steps[i]
		if s.disabled {
			continue
		}
		switch m := s.metric.(type) {
		case leastSelected:
			rotates = true
		case static:
			rotates = rotates || m.method == "round-robin" || m.method == "weighted"
		}
		if s.reason == reason {
			break
		}
	}
	return rotates
}

// service decides for the clients of a service of the snapshot after, or for a selection of most of them.
func (w *workload) service(svc *state.Service, clients []state.Client, most int) ServiceForecast {
	n := min(len(clients), most)
	out := ServiceForecast{Name: svc.Name, PoolAfter: svc.Pool.String(), Clients: n}
	old := w.services[svc.Name]
	if old == nil || !sameMembers(old, svc) {
		out.Unknown = "the configuration has just changed; ask again"
		return out
	}
	out.PoolBefore = old.Pool.String()
	for i, m := range svc.Members {
		if o := old.Members[i]; o.InPool && (!m.InPool || o.Forced != m.Forced || len(o.Moved) > 0 || len(m.Moved) > 0) {
			w.touched[m.Site.Index] = true
		}
	}
	if n == 0 {
		out.Unknown = "no recent clients are known"
		return out
	}
	if !w.before.begin(old) || !w.after.begin(svc) {
		out.Unknown = "it has no policy"
		return out
	}

	families := familiesOf(svc)
	outcomes := len(svc.Members) + 2
	changes := newFlow(outcomes)
	before, after := make([]float64, outcomes), make([]float64, outcomes)
	turnsBefore, turnsAfter := make([]float64, outcomes), make([]float64, outcomes) // of the clients that rotation decides for
	total := 0.0
	for i := range n {
		c := &clients[i*len(clients)/n]
		weight := c.Weight
		if weight <= 0 {
			weight = 1
		}
		weight *= float64(len(clients)) / float64(n) // it stands for others as well
		total += weight
		was := w.before.decide(c, weight, families, before)
		is := w.after.decide(c, weight, families, after)
		if was || is {
			for k := range before {
				turnsBefore[k] += before[k]
				turnsAfter[k] += after[k]
			}
			continue
		}
		changes.couple(before, after)
	}
	changes.couple(turnsBefore, turnsAfter)
	w.add(svc, changes)
	out.Shares = newShares(svc, changes, total)
	for _, f := range families {
		out.Shares.Families = append(out.Shares.Families, FamilyShare{
			Family: f.String(), NoAnswer: Change{w.before.noAnswer[f] / total, w.after.noAnswer[f] / total},
		})
	}
	return out
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

// familiesOf returns those that the service has an address of, of a member or of the last resort.
func familiesOf(svc *state.Service) []state.Family {
	var list []state.Family
	for _, f := range []state.Family{state.V4, state.V6} {
		if (&Query{Service: svc, Family: f}).served() {
			list = append(list, f)
		}
	}
	return list
}

// add adds the changes within one service to those between sites.
func (w *workload) add(svc *state.Service, changes flow) {
	site := make([]int, changes.n)
	for i, m := range svc.Members {
		site[i] = m.Site.Index
	}
	site[changes.n-2], site[changes.n-1] = len(w.list), len(w.list)+1
	for i := range changes.n {
		row := w.flow.from(site[i])
		for j, v := range changes.from(i) {
			row[site[j]] += v
		}
	}
}

func newShares(svc *state.Service, changes flow, total float64) *ServiceShares {
	s := &ServiceShares{Sites: []SiteShare{}, Families: []FamilyShare{}}
	at := map[string]int{}
	for i := range changes.n {
		c := changes.change(i, total)
		s.Changed += (total*c.Before - changes.from(i)[i]) / total
		switch {
		case i == changes.n-2:
			s.LastResort = c
		case i == changes.n-1:
			s.NoAnswer = c
		default:
			name := svc.Members[i].Site.Name
			k, ok := at[name]
			if !ok {
				k = len(s.Sites)
				at[name] = k
				s.Sites = append(s.Sites, SiteShare{Site: name})
			}
			s.Sites[k].Before += c.Before
			s.Sites[k].After += c.After
		}
	}
	if s.Changed < nothing {
		s.Changed = 0
	}
	return s
}

// change returns the shares of total that i has before and after.
func (f flow) change(i int, total float64) Change {
	var c Change
	for j := range f.n {
		c.Before += f.from(i)[j]
		c.After += f.from(j)[i]
	}
	if total > 0 {
		c.Before, c.After = c.Before/total, c.After/total
	}
	return c
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
	if !s.HasLoad {
		return a
	}
	a.known = [quantities]bool{s.HasSessions, s.HasBits, s.HasBits}
	a.present = [quantities]float64{float64(s.Sessions), float64(s.BitsIn), float64(s.BitsOut)}
	return a
}

// sites lets the load follow the clients, fills f.Sites in, and returns what to warn of.
func (w *workload) sites(f *Forecast) []string {
	total := 0.0
	for _, v := range w.flow.to {
		total += v
	}
	for _, s := range w.list {
		w.amounts = append(w.amounts, newAmount(s))
	}
	var warnings []string
	for i, s := range w.list {
		a, clients := &w.amounts[i], 0.0
		for _, v := range w.flow.from(i) {
			clients += v
		}
		if clients == 0 {
			if w.touched[i] && a.present != [quantities]float64{} {
				warnings = append(warnings, fmt.Sprintf("site %s: none of its clients are known, so where its load would go is not", s.Name))
			}
			continue
		}
		moved := false
		for j, v := range w.flow.from(i) {
			if j == i || v <= 0 {
				continue
			}
			moved = moved || v > nothing*clients
			for k := range quantities {
				load := a.present[k] * v / clients
				a.leaving[k] += load
				if j >= len(w.list) {
					w.lost[k] += load
					continue
				}
				w.amounts[j].arriving[k] += load
				w.amounts[j].guests[k] = w.amounts[j].guests[k] || a.known[k]
			}
		}
		if moved && a.known == [quantities]bool{} {
			warnings = append(warnings, fmt.Sprintf("site %s: no fresh report tells its load, so what its clients would bring to other sites is not counted", s.Name))
		}
	}
	for i, s := range w.list {
		site := w.amounts[i].forecast(s)
		site.Clients = w.flow.change(i, total)
		if site.Over && w.amounts[i].arriving != [quantities]float64{} {
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
func (w *workload) unplaced() Load {
	var known [quantities]bool
	for i := range w.amounts {
		for k := range known {
			known[k] = known[k] || w.amounts[i].known[k]
		}
	}
	return newLoad(w.lost, known)
}
