package policy

import (
	"math"
	"time"

	"gslbd/state"
)

// downTTL is the most seconds that an answer of on_all_down or of an empty set may be cached: it is a stopgap, and
// clients should learn soon that a member is back.
const downTTL = 10

// A Chain is a compiled policy. It is immutable and safe for concurrent use; each Query belongs to one goroutine.
type Chain struct {
	name     string
	steps    []step
	health   int    // the step that is health; -1: there is none, or it is disabled
	disabled uint32 // the steps that are: 1<<i for the step i
	usesRTT  bool
	halfLife time.Duration
}

type step struct {
	reason   Reason
	metric   Metric
	disabled bool
	health   bool // see Chain.run
	orders   bool // the metric puts those that it keeps in an order
}

// Name returns the policy's name.
func (c *Chain) Name() string { return c.name }

// UsesRTT reports whether rtt is enabled in it, so that resolvers must be probed.
func (c *Chain) UsesRTT() bool { return c.usesRTT }

// HalfLife returns the half-life by which the counts that least-selected reads decay; a minute where it is not in use.
func (c *Chain) HalfLife() time.Duration { return c.halfLife }

// scratch is what deciding needs and a Query keeps between decisions.
type scratch struct {
	all    []Candidate // what the constraints left, in the order of the configuration; see Query.again
	aside  []Candidate // what they set aside
	set    []Candidate // what the metrics reorder
	answer int         // which answer is being chosen, from 0
	ready  bool        // the constraints are those of Chain.Prepare: nobody is held back but by shedding
	apart  bool        // a staged order, slow start or shedding holds this client back from some member

	client client // see client.go
	place  state.Place
	notes  map[*state.Member]TraceMember
	note   string
}

// NewQuery returns a Query for services of up to members members. For larger ones it grows by itself once, as the zero
// Query does.
func NewQuery(members int) *Query {
	q := &Query{}
	q.grow(members)
	return q
}

func (q *Query) grow(members int) {
	if cap(q.scratch.all) < members {
		q.scratch.all = make([]Candidate, 0, members)
		q.scratch.aside = make([]Candidate, 0, members)
		q.scratch.set = make([]Candidate, 0, members)
	}
}

// Decide decides q into d (docs/policies.md). It sets q.Scope, and fills q.Trace in when there is one.
//
// The k-th answer is what the chain chooses with the first k-1 taken away; a member that health rejected is never
// among them. Reason and Trace tell of the first answer; the scope covers all of them.
//
// Hot path: it does not allocate unless q is traced. It costs some tens of nanoseconds a metric and candidate.
func (c *Chain) Decide(q *Query, d *Decision) {
	d.Kind, d.N, d.Reason, d.TTL, d.AllDown, d.Empty, d.Apart = Answer, 0, 0, q.Service.TTL, false, false, false // N says how many Members count
	q.Scope = 0
	q.scratch.client, q.scratch.ready, q.scratch.apart = client{}, false, false
	if q.Trace != nil {
		*q.Trace = Trace{Constraints: []TraceStep{}, Steps: []TraceStep{}}
		q.scratch.notes = make(map[*state.Member]TraceMember)
	}

	answers, skip := min(max(q.Service.Answers, 1), MaxAnswers), c.disabled
	if ready := &q.Service.Ready[q.Family]; len(ready.Candidates) > 0 && q.Trace == nil {
		q.grow(len(ready.Candidates))
		q.scratch.ready, skip = true, ready.Skip
		d.Reason = Reason(ready.Reason)
		if answers > 1 {
			q.scratch.all = q.collect(q.scratch.all)
		}
	} else if !c.begin(q, d) {
		c.traceUnused(q)
		return
	}

	trace := q.Trace
	for ; d.N < answers; d.N++ {
		q.scratch.answer = d.N
		q.again()
		usable := false
		for i := 0; i < len(q.scratch.set) && !usable; i++ {
			usable = d.AllDown || !q.scratch.set[i].Rejected
		}
		if !usable {
			break
		}
		settled := c.run(q, d.AllDown, skip)
		if d.N == 0 {
			d.Apart = q.scratch.apart
			if !d.AllDown && settled != ReasonConstraints {
				d.Reason = settled
			}
		}
		first := q.scratch.set[0].Member
		d.Members[d.N], d.ready[d.N] = first, nil
		if q.scratch.ready {
			d.ready[d.N] = &q.Service.Ready[q.Family].Candidates[q.scratch.set[0].ready]
		}
		if d.N+1 == answers {
			continue // nobody reads the rest
		}
		q.scratch.all = partition(q.scratch.all, nil, func(c *Candidate) bool { return c.Member != first })
		q.Trace = nil // it tells of the first answer
	}
	q.Trace = trace
}

// again puts into q.scratch.set what an answer is chosen among.
func (q *Query) again() {
	if q.scratch.ready && q.scratch.answer == 0 {
		q.scratch.set = q.collect(q.scratch.set)
		return
	}
	q.scratch.set = append(q.scratch.set[:0], q.scratch.all...)
}

// begin leaves the candidates in q.scratch.all, with what health says of them. It reports false if d is decided without
// the chain: there is none, or on_all_down has another answer.
func (c *Chain) begin(q *Query, d *Decision) bool {
	q.grow(len(q.Service.Members))
	d.Reason = q.constrain()
	if len(q.scratch.all) == 0 {
		d.Kind, d.Empty, d.TTL = NoData, true, min(d.TTL, downTTL)
		if !q.served() {
			d.TTL = NoCeiling
		}
		return false
	}
	for i := range q.scratch.all {
		c := &q.scratch.all[i]
		c.Site = q.Snapshot.SiteOf(c.Member)
	}
	if c.health >= 0 && !mark(q, q.scratch.all) {
		d.AllDown, d.Reason, d.TTL = true, ReasonOnAllDown, min(d.TTL, downTTL)
		d.Kind = q.allDown()
		return d.Kind == Answer
	}
	return true
}

// Prepare works out once, for both families, what decisions for svc begin with where that is the same for all clients: the
// constraints, and whom health rejects. It is for a service that is about to be published, and fills in svc.Ready.
func (c *Chain) Prepare(svc *state.Service) {
	for _, m := range svc.Members {
		switch {
		case len(m.Moved) > 0:
			return // a staged order moves some clients away
		case max(m.Index, m.Site.Index) > math.MaxUint16:
			return // a ReadyCandidate has no room for it
		}
	}
	if svc.SlowStart > 0 {
		return // it holds some clients back, and not for ever
	}
	q := NewQuery(len(svc.Members))
	q.Service = svc
	all := make([]state.ReadyCandidate, 0, 2*len(svc.Members)) // one allocation for both
	for _, q.Family = range []state.Family{state.V4, state.V6} {
		reason := q.constrain()
		first, up := len(all), c.health < 0
		for i := range q.scratch.all {
			m := q.scratch.all[i].Member
			up = up || m.Up[q.Family]
			all = append(all, state.ReadyCandidate{
				Member: m, Counts: m.MemberCounts, Weight: int32(m.Weight), Preference: int16(m.Preference),
				Index: uint16(m.Index), Site: uint16(m.Site.Index), Down: c.health >= 0 && !m.Up[q.Family],
			})
			if addr := m.Addr[state.V4]; addr.IsValid() {
				r := &all[len(all)-1]
				r.Addr4, r.HasAddr4 = addr.As4(), true
			}
		}
		if up && len(all) > first { // else there is nobody, or on_all_down has a say
			svc.Ready[q.Family] = state.Ready{Candidates: all[first:len(all):len(all)], Reason: uint8(reason), Skip: c.disabled | c.idle(q)}
		}
	}
}

// idle returns the steps, as Ready.Skip does, that keep all of q.scratch.all and of any part of it, whoever asks.
func (c *Chain) idle(q *Query) (steps uint32) {
	for i := range c.steps {
		idle := true
		for k := range q.scratch.all {
			m, first := q.scratch.all[k].Member, q.scratch.all[0].Member
			switch c.steps[i].metric.(type) {
			case health:
				idle = idle && m.Up[q.Family]
			case preference:
				idle = idle && m.Preference == first.Preference
			default:
				idle = false
			}
		}
		if idle {
			steps |= 1 << i
		}
	}
	return steps
}

// collect returns the candidates as Prepare found them, in the memory of set.
func (q *Query) collect(set []Candidate) []Candidate {
	ready := q.Service.Ready[q.Family].Candidates
	set = set[:len(ready)]
	for i := range ready {
		r := &ready[i]
		c := &set[i] // field by field: a whole Candidate would be made elsewhere and copied
		c.Member, c.Site, c.Counts = r.Member, q.Snapshot.Sites[r.Site], r.Counts
		c.Weight, c.Preference, c.ready, c.Rejected = r.Weight, r.Preference, uint16(i), r.Down
	}
	return set
}

// served reports whether the service has an address of the asked family, whatever the state of it. Where it has none,
// NODATA is the plain truth and no stopgap.
func (q *Query) served() bool {
	for _, m := range q.Service.Members {
		if m.Has(q.Family) {
			return true
		}
	}
	for _, a := range q.Service.LastResort {
		if a.Is4() == (q.Family == state.V4) {
			return true
		}
	}
	return false
}

// constrain leaves the candidates in q.scratch.all (docs/policies.md, "Constraints"). It returns the reason that
// stands if no metric settles the answer.
func (q *Query) constrain() Reason {
	s := &q.scratch
	reason := q.gather("pool", false)
	if q.staged(q.Family) {
		if q.Trace != nil {
			q.note("moved away, and no candidate is up: the pool as if all staged orders stood at 100 %%")
		}
		reason = q.gather("staged pool", true)
	}

	// (3) and (4): the drained and those of weight 0 stand aside, and come back while nothing better is up.
	var up, some [classes]bool
	for i := range s.all {
		k := classOf(s.all[i].Member)
		some[k] = true
		up[k] = up[k] || s.all[i].Up[q.Family]
	}
	var in [classes]bool
	switch {
	case up[rest]:
		in = [classes]bool{rest: true}
	case up[weightless]:
		in = [classes]bool{rest: true, weightless: true}
	case up[drained]:
		in = [classes]bool{rest: true, weightless: true, drained: true}
	case some[rest]:
		in = [classes]bool{rest: true}
	case some[weightless]:
		in = [classes]bool{weightless: true}
	default:
		in = [classes]bool{drained: true}
	}
	s.all = partition(s.all, &s.aside, func(c *Candidate) bool { return in[classOf(c.Member)] })
	if q.Trace != nil {
		for _, set := range [][]Candidate{s.all, s.aside} {
			for _, c := range set {
				switch classOf(c.Member) {
				case weightless:
					q.number(c.Member, "", "weight 0")
				case drained:
					q.number(c.Member, "", because("drain", c.ForcedWhy))
				}
			}
		}
		if len(s.all) > 0 && (in[weightless] || in[drained]) {
			q.note("nothing better is up")
		}
	}
	q.recordConstraint("weight and drain")
	if len(s.all) == 0 {
		return ReasonConstraints
	}
	return reason
}

// add appends the candidate that a member is to set, which has room for it.
func add(set []Candidate, m *state.Member) []Candidate {
	set = set[:len(set)+1]
	c := &set[len(set)-1] // field by field: see collect
	c.Member, c.Site, c.Counts, c.Value = m, nil, m.MemberCounts, 0
	c.Weight, c.Preference, c.ready, c.NoData, c.Rejected = int32(m.Weight), int16(m.Preference), 0, false, false
	return set
}

// gather applies constraints (1) and (2) to the pool in force, or to the staged one.
func (q *Query) gather(name string, staged bool) Reason {
	s := &q.scratch
	s.all, s.aside = s.all[:0], s.aside[:0]

	// (1) The members of the pool with an address of the asked family.
	for _, m := range q.Service.Members {
		in := pooled(m, staged)
		if in && m.Has(q.Family) {
			s.all = add(s.all, m)
			continue
		}
		s.aside = add(s.aside, m)
		if q.Trace != nil {
			why := "no " + q.Family.String() + " address"
			if !in {
				why = m.Role.String() + ", not in the pool"
			}
			q.number(m, "", why)
		}
	}
	reason := ReasonConstraints
	if len(s.all) == 1 {
		reason = ReasonSingle
	}
	q.recordConstraint(name)

	// (2) Without those forced down, evacuated, or moved away from for this client.
	s.all = partition(s.all, &s.aside, func(c *Candidate) bool {
		if c.Forced >= state.ForcedDown {
			return false
		}
		moved := len(c.Moved) > 0 && q.moved(c.Member) != nil
		s.apart = s.apart || moved
		return !moved
	})
	q.traceOrders()
	q.recordConstraint("orders")
	return reason
}

func pooled(m *state.Member, staged bool) bool {
	if staged {
		return m.InStagedPool
	}
	return m.InPool
}

// moved returns the staged order that moves this client away from the member; nil: none does. A client that an order
// moves is moved away from all members of that order, and stays so at every larger share. It widens the scope if there
// is an order to ask.
func (q *Query) moved(m *state.Member) *state.Stage {
	for i := range m.Moved {
		st := &m.Moved[i]
		if drawn(q.clientHash(), st.Order, saltStage) < st.Share {
			return st
		}
	}
	return nil
}

// staged reports whether a question for f by this client is answered out of the staged pool: the client is moved away
// from some member of the pool in force, and no candidate in that is up.
func (q *Query) staged(f state.Family) bool {
	if q.Service.StagedPool == q.Service.Pool {
		return false
	}
	moved := false
	for _, m := range q.Service.Members {
		switch {
		case !m.InPool || m.Forced >= state.ForcedDown:
		case q.moved(m) != nil:
			moved = true
		case m.Has(f) && m.Up[f]:
			return false
		}
	}
	return moved
}

// serves reports whether a question for f by this client would find a candidate that is up.
func (q *Query) serves(f state.Family) bool {
	staged := q.staged(f)
	for _, m := range q.Service.Members {
		if pooled(m, staged) && m.Has(f) && m.Forced < state.ForcedDown && m.Up[f] && q.moved(m) == nil {
			return true
		}
	}
	return false
}

// The classes of constraints (3) and (4), by the order in which they serve.
const (
	rest = iota
	weightless
	drained
	classes
)

func classOf(m *state.Member) int {
	switch {
	case m.Forced == state.ForcedDrain:
		return drained
	case m.Weight == 0:
		return weightless
	}
	return rest
}

// partition returns those of set that keep accepts, in their order and in place, and puts the others into aside, if
// that is not nil.
func partition(set []Candidate, aside *[]Candidate, keep func(*Candidate) bool) []Candidate {
	if aside != nil {
		*aside = (*aside)[:0]
	}
	n := 0
	for i := range set {
		if keep(&set[i]) {
			if n != i { // mostly all are kept
				set[n] = set[i]
			}
			n++
		} else if aside != nil {
			*aside = append(*aside, set[i])
		}
	}
	return set[:n]
}

// allDown applies on_all_down. With Answer the chain runs over q.scratch.all without its health.
func (q *Query) allDown() Kind {
	choice := q.Service.OnAllDown
	if choice == state.AllDownLastKnownGood {
		good := 0
		for i := range q.scratch.all {
			if q.scratch.all[i].LastGood[q.Family] {
				good++
			}
		}
		if good > 0 {
			q.scratch.all = partition(q.scratch.all, &q.scratch.aside, func(c *Candidate) bool { return c.LastGood[q.Family] })
			if q.Trace != nil {
				for _, c := range q.scratch.aside {
					q.number(c.Member, "down", c.Why[q.Family])
				}
			}
			q.recordConstraint("last known good")
			q.traceAllDown(choice, "the members that were last up for %s", q.Family)
			return Answer
		}
		choice = state.AllDownAll
	}
	switch choice {
	case state.AllDownBackup:
		for _, a := range q.Service.LastResort {
			if a.Is4() == (q.Family == state.V4) {
				q.traceAllDown(choice, "the addresses of last_resort for %s", q.Family)
				return LastResort
			}
		}
		q.traceAllDown(choice, "no data, since last_resort has no address of %s", q.Family)
		return NoData
	case state.AllDownNoData:
		q.traceAllDown(choice, "no data for %s", q.Family)
		return NoData
	case state.AllDownServFail:
		q.traceAllDown(choice, "server failure for %s", q.Family)
		return ServFail
	}
	// A client that gets no data for this family uses the other one, which works.
	if other := q.Family.Other(); q.serves(other) {
		q.traceAllDown(q.Service.OnAllDown, "no data, since a member is up for %s", other)
		return NoData
	}
	q.traceAllDown(q.Service.OnAllDown, "all members for %s, by the chain without health", q.Family)
	return Answer
}

// run narrows q.scratch.set until its first candidate is the answer, and returns the reason of the metric that settled
// it: the last that narrowed the set or ordered it. When none did, the order of the configuration stands, and the
// reason is ReasonConstraints. When allDown, health has nothing to tell apart and is skipped like any other metric that
// would empty the set.
//
// skip are the steps that need not be consulted, as in Ready.Skip. A trace tells of all.
func (c *Chain) run(q *Query, allDown bool, skip uint32) Reason {
	settled := ReasonConstraints
	ordered := -1 // index of the trace step that ordered what is left, if that settled it
	n := len(q.scratch.set)
	for i := 0; i < len(c.steps); i++ {
		if q.Trace == nil && (skip>>i&1 != 0 || n == 1 && i != c.health) {
			continue
		}
		s := &c.steps[i]
		set := q.scratch.set[:n]
		if s.disabled {
			q.record(s, VerdictDisabled, set, n)
			continue
		}
		if n == 1 && !s.health {
			q.record(s, VerdictNotConsulted, set, n)
			continue
		}
		kept := s.metric.Keep(q, set)
		switch {
		case kept == Abstain:
			q.record(s, VerdictAbstained, set, n)
		case kept == 0 && s.health && !allDown:
			// All that earlier metrics left are down, and others are up. Begin again without the down.
			q.record(s, VerdictRestarted, set, 0)
			q.again()
			q.scratch.set = partition(q.scratch.set, nil, func(c *Candidate) bool { return !c.Rejected })
			n, i, ordered, settled = len(q.scratch.set), -1, -1, ReasonConstraints
			if n == 1 {
				settled = s.reason
			}
		case kept == 0:
			q.record(s, VerdictEmptied, set, n)
		case kept == n:
			q.record(s, VerdictKeptAll, set, n)
			if s.orders {
				settled = s.reason
				if q.Trace != nil {
					ordered = len(q.Trace.Steps) - 1
				}
			}
		default:
			verdict := VerdictNarrowed
			if kept == 1 {
				verdict = VerdictDecided
			}
			q.record(s, verdict, set, kept)
			n, ordered, settled = kept, -1, s.reason
		}
	}
	if ordered >= 0 {
		q.Trace.Steps[ordered].Verdict = VerdictDecided
	}
	return settled
}
