package policy

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gslbd/state"
)

// A Comparison decides for clients twice, out of a snapshot before and one after a change, and collects who goes where and
// why. The two may be of different configurations: services, members and sites are the same when their names are. It belongs
// to one goroutine.
type Comparison struct {
	before, after run
	sites         []*state.Site  // of after, by Site.Index; then those that only before has
	sitesBefore   []*state.Site  // in the same order; nil: before lacks it
	siteOf        map[string]int // their index, by name
	services      []*compared
	byNames       map[[2]string]*compared // by the names before and after; "": that side lacks it
	flow          flow                    // between sites; then the last resort, and no answer
	touched       []bool                  // by site: orders or pools are others for a member there that was in its pool, and so may lose clients
	amounts       []amount                // by site; leaving and arriving are filled in by load
	lost          [quantities]float64     // leaving, and arriving nowhere
}

// NewComparison begins to compare decisions out of the two snapshots. Rotating metrics go on from where the snapshots
// stand: on copies, unless both are the caller's own, so that turns may be taken in them.
func NewComparison(before, after *state.Snapshot, own bool) *Comparison {
	c := &Comparison{siteOf: map[string]int{}, byNames: map[[2]string]*compared{}}
	c.before.own, c.after.own = own, own
	now := before.Published
	if after.Published.After(now) {
		now = after.Published // so that samples and slow starts have the same age in both
	}
	for _, s := range after.Sites {
		c.siteOf[s.Name] = len(c.sites)
		c.sites, c.sitesBefore = append(c.sites, s), append(c.sitesBefore, nil)
	}
	for _, s := range before.Sites {
		if i, both := c.siteOf[s.Name]; both {
			c.sitesBefore[i] = s
			continue
		}
		c.siteOf[s.Name] = len(c.sites)
		c.sites, c.sitesBefore = append(c.sites, s), append(c.sitesBefore, s)
	}
	c.flow, c.touched = newFlow(len(c.sites)+2), make([]bool, len(c.sites))
	c.At(before, now, after, now)
	return c
}

// At goes on with later snapshots, of the configurations that it began with, and the time that it is on either side.
func (c *Comparison) At(before *state.Snapshot, beforeNow time.Time, after *state.Snapshot, afterNow time.Time) {
	c.before.query.Snapshot, c.after.query.Snapshot = before, after
	c.before.query.Now, c.after.query.Now = beforeNow, afterNow
	c.before.at, c.after.at = nil, nil
}

// A compared service is one that a Comparison decides for: that which answers before, and that which answers after.
type compared struct {
	names   [2]string
	members []comparedMember // of after, by Member.Index; then those that only before has
	from    []int            // the place in members of the members of before, by Member.Index; nil: before lacks it
	size    int              // of members of after; 0: after lacks it
	clients int
	total   float64 // the weight of the clients
	changes flow    // between members; then the last resort, and no answer
	turns   [2][]float64
	none    [2][2]float64 // no answer, by run and family
	moves   map[move]float64
	rotated map[Reason]*[2][]float64 // turns by what settled the answer after
	scratch [2][]float64
}

type comparedMember struct {
	name string
	site int // in Comparison.sites
}

// A move is who is answered in place of whom, and what settled it.
type move struct {
	from, to int
	reason   Reason
}

// name tells the names of the two sides where they differ, as where a service has taken over what a wildcard answered.
func (s *compared) name() string {
	switch before, after := s.names[0], s.names[1]; {
	case before == after:
		return after
	case before == "":
		return after + " (new)"
	case after == "":
		return before + " (gone)"
	default:
		return before + " -> " + after
	}
}

// service returns what is compared of the services of both sides.
func (c *Comparison) service(before, after *state.Service) *compared {
	var names [2]string
	for side, svc := range []*state.Service{before, after} {
		if svc != nil {
			names[side] = svc.Name
		}
	}
	if s := c.byNames[names]; s != nil {
		return s
	}
	s := &compared{names: names, moves: map[move]float64{}, rotated: map[Reason]*[2][]float64{}}
	at := map[comparedMember]int{}
	add := func(m *state.Member) int {
		key := comparedMember{m.Name, c.siteOf[m.Site.Name]}
		i, known := at[key]
		if !known {
			i = len(s.members)
			at[key] = i
			s.members = append(s.members, key)
		}
		return i
	}
	if after != nil {
		for _, m := range after.Members {
			add(m)
		}
		s.size = len(s.members)
	}
	if before != nil {
		for _, m := range before.Members {
			s.from = append(s.from, add(m))
		}
	}
	n := len(s.members) + 2
	s.changes = newFlow(n)
	for i := range s.turns {
		s.turns[i], s.scratch[i] = make([]float64, n), make([]float64, n)
	}
	c.services, c.byNames[names] = append(c.services, s), s
	return s
}

// Decide decides for a client that asks for these families, and counts it with a weight above 0. before and after are the
// services that answer it; of a side that has none, which is nil, it gets no answer. One of them is not nil. The client is
// given as either side sees it, since a subnet may count on one only. It returns the sites of the first answers for the last
// family, nil for none. Unless the snapshots are the caller's own, the clients of one service come in a row.
func (c *Comparison) Decide(before, after *state.Service, families []state.Family, clientBefore, clientAfter *state.Client, weight float64) (from, to *state.SiteInfo) {
	s := c.service(before, after)
	was, rotatedBefore, _ := c.before.decide(s, 0, before, clientBefore, weight, families)
	is, rotatedAfter, reason := c.after.decide(s, 1, after, clientAfter, weight, families)
	s.clients++
	s.total += weight
	if rotatedBefore || rotatedAfter {
		// Who gets what is a matter of turns, so there only the shares are compared.
		byReason := s.rotated[reason]
		if byReason == nil {
			byReason = &[2][]float64{make([]float64, len(was)), make([]float64, len(was))}
			s.rotated[reason] = byReason
		}
		for k := range was {
			s.turns[0][k] += was[k]
			s.turns[1][k] += is[k]
			byReason[0][k] += was[k]
			byReason[1][k] += is[k]
		}
	} else {
		s.couple(was, is, reason)
	}
	return c.before.site, c.after.site
}

// couple adds who goes from where to where, and counts those who change.
func (s *compared) couple(was, is []float64, reason Reason) {
	s.changes.couple(was, is, func(from, to int, v float64) { s.moves[move{from, to, reason}] += v })
}

// finish turns what is left to couple into changes, and adds those to the changes between sites.
func (c *Comparison) finish(s *compared) {
	turned, sum := map[move]float64{}, newFlow(len(s.members)+2)
	for _, reason := range slices.Sorted(maps.Keys(s.rotated)) { // in order, so that sums are rounded alike in every run
		t := s.rotated[reason]
		newFlow(sum.n).couple(t[0], t[1], func(from, to int, v float64) {
			turned[move{from, to, reason}] += v
			sum.from(from)[to] += v
		})
	}
	for m, v := range turned { // those who swap only took turns
		there, back := sum.from(m.from)[m.to], sum.from(m.to)[m.from]
		if there > back {
			s.moves[m] += v * (there - back) / there
		}
	}
	s.changes.couple(s.turns[0], s.turns[1], nil)
	at := func(i int) int {
		if i < len(s.members) {
			return s.members[i].site
		}
		return len(c.sites) + i - len(s.members)
	}
	for i := range s.changes.n {
		row := c.flow.from(at(i))
		for j, v := range s.changes.from(i) {
			row[at(j)] += v
		}
	}
}

// outcome names what members, the last resort and no answer are called.
func (s *compared) outcome(i int) string {
	switch i - len(s.members) {
	case 0:
		return "last resort"
	case 1:
		return "no answer"
	}
	return s.members[i].name
}

// list returns who changes, the most first.
func (s *compared) list() []Move {
	list := make([]Move, 0, len(s.moves))
	for _, m := range slices.SortedFunc(maps.Keys(s.moves), func(a, b move) int {
		return cmp.Or(cmp.Compare(s.moves[b], s.moves[a]), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.reason, b.reason))
	}) {
		if share := s.moves[m] / s.total; share > nothing {
			list = append(list, Move{From: s.outcome(m.from), To: s.outcome(m.to), Metric: m.reason.String(), Share: share})
		}
	}
	return list
}

// A flow says how much goes from where to where, in rows of n by origin.
type flow struct {
	n  int
	to []float64
}

func newFlow(n int) flow { return flow{n: n, to: make([]float64, n*n)} }

func (f flow) from(i int) []float64 { return f.to[i*f.n : (i+1)*f.n] }

// couple adds what goes from before to after, which have the same sum: what can stay stays, and the rest spreads over
// those that gain in proportion to their gain. It tells moved, if that is not nil, of the rest, and uses both vectors up.
func (f flow) couple(before, after []float64, moved func(from, to int, v float64)) {
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
			if g <= 0 {
				continue
			}
			v := loss * g / gain
			row[j] += v
			if moved != nil {
				moved(i, j, v)
			}
		}
	}
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

// A run decides for clients out of one snapshot, with rotation and selections of its own.
type run struct {
	own     bool // the snapshot is ours alone, and turns may be taken in it
	query   Query
	chain   *Chain
	at      *state.Service  // of the snapshot that is decided for
	service *state.Service  // that, or a copy
	site    *state.SiteInfo // of the last answer; nil: there was none
}

// begin turns to another service. It reports whether that has a chain.
func (r *run) begin(svc *state.Service) bool {
	if r.at == svc {
		return r.chain != nil
	}
	r.at, r.service = svc, svc
	if !r.own {
		r.service = copyOf(svc)
	}
	r.query.Service = r.service
	r.chain, _ = svc.Chain.(*Chain)
	return r.chain != nil
}

// copyOf returns a service whose turns and counts are its own.
func copyOf(svc *state.Service) *state.Service {
	out := *svc
	out.Rotation = new(state.Rotation)
	if svc.Rotation != nil {
		for f := range svc.Rotation.Turn {
			out.Rotation.Turn[f].Store(svc.Rotation.Turn[f].Load())
		}
	}
	members := make([]state.Member, len(svc.Members))
	out.Members = make([]*state.Member, len(svc.Members))
	for i, m := range svc.Members {
		members[i] = *m
		members[i].MemberCounts, members[i].SelectedApart = m.MemberCounts.Clone(), m.SelectedApart.Clone()
		out.Members[i] = &members[i]
	}
	out.Ready = [2]state.Ready{} // of the other members
	if chain, ok := out.Chain.(*Chain); ok {
		chain.Prepare(&out)
	}
	return &out
}

// decide returns where a client of this weight goes: to members of s, to the last resort, or nowhere. It reports whether a
// rotating metric may have had a say, and what settled the answer for the first family. side is 0 before and 1 after.
func (r *run) decide(s *compared, side int, svc *state.Service, c *state.Client, weight float64, families []state.Family) (outcome []float64, rotated bool, reason Reason) {
	outcome, r.site = s.scratch[side], nil
	clear(outcome)
	lastResort, none := len(outcome)-2, len(outcome)-1
	if svc == nil || !r.begin(svc) {
		outcome[none] = weight
		return outcome, false, ReasonConstraints
	}
	answered := 0.0
	q := &r.query
	q.LDNS, q.ECS = c.LDNS, c.ECS
	for i, f := range families {
		var d Decision
		q.Family, r.site = f, nil
		r.chain.Serve(q, &d)
		rotated = rotated || r.chain.rotated(d.Reason)
		if i == 0 {
			reason = d.Reason
		}
		switch {
		case d.Kind == Answer && d.N > 0:
			k := d.Members[0].Index
			r.site = d.Members[0].Site
			if side == 0 {
				k = s.from[k]
			}
			outcome[k]++
			answered++
		case d.Kind == LastResort:
			outcome[lastResort]++
			answered++
		default:
			s.none[side][f] += weight
		}
	}
	if answered == 0 {
		outcome[none] = weight
		return outcome, rotated, reason
	}
	for i := range outcome {
		outcome[i] *= weight / answered
	}
	return outcome, rotated, reason
}

// Serve decides q as serving does: it takes a turn of the service, and counts the selection. The service must be one that a
// Store published.
func (c *Chain) Serve(q *Query, d *Decision) {
	q.Turn = q.Service.Rotation.Turn[q.Family].Add(1) - 1
	c.Decide(q, d)
	if d.Kind == Answer && d.N > 0 {
		d.Select(q.Family)
	}
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
