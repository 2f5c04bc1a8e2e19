package policy

import (
	"errors"
	"fmt"
	"math"
	"time"

	"gslbd/state"
)

// exploreWindow is how long a client network is explored, or not, at a time: long enough for an agent to see connections.
const exploreWindow = time.Minute

// rtt keeps the members whose site is near the client in the network's view: a round trip of at most
// max(best x (1+tolerance), best + toleranceAbs). The value is what state makes of the last samples; a query never waits for one.
// Only values of one method are compared; what clients see themselves counts only for them, that is with ECS.
type rtt struct {
	tolerance    float64
	toleranceAbs time.Duration
	maxAge       time.Duration // older values are no data
	requireData  bool          // reject the candidates without data, instead of keeping them beside the near ones
	explore      float64       // share of client networks that are sent elsewhere than what their own round trips say
}

func newRTT(o StepOptions) (Metric, error) {
	if o.Tolerance < 0 || o.ToleranceAbs < 0 {
		return nil, errors.New("tolerance and tolerance_abs must not be negative")
	}
	if o.MaxAge <= 0 {
		return nil, errors.New("max_age must be above 0")
	}
	if o.Explore < 0 || o.Explore > 1 {
		return nil, errors.New("explore must be a share between 0 and 1")
	}
	return rtt{tolerance: o.Tolerance, toleranceAbs: o.ToleranceAbs, maxAge: o.MaxAge, requireData: o.RequireData, explore: o.Explore}, nil
}

// Keep implements Metric.
//
// An ECS prefix that is shorter than the table's networks makes it abstain, and still widens the scope to their length:
// that tells the resolver to send more, and to keep this answer for no more than the prefix that it sent (RFC 7871,
// section 7.2.1).
func (m rtt) Keep(q *Query, set []Candidate) int {
	c := q.client()
	if !c.prefix.IsValid() {
		return Abstain
	}
	length := q.Snapshot.RTT.Bits(c.prefix.Addr())
	if c.ecs {
		q.Widen(length)
		if c.prefix.Bits() < length {
			if q.Trace != nil {
				q.note("%s is shorter than /%d", c, length)
			}
			return Abstain
		}
	}
	row := q.Snapshot.RTT.Row(c.prefix.Addr())
	if row == nil && q.Trace == nil { // the usual case where little is measured: nobody has data
		if m.requireData {
			return 0
		}
		return Abstain
	}
	return m.keep(q, set, row)
}

// keep compares the candidates by the row of the client's network; nil: nothing is known of it.
func (m rtt) keep(q *Query, set []Candidate, row *state.RTTRow) int {
	oldest := q.Snapshot.RTT.Moment(q.Now.Add(-m.maxAge))
	first, last := methods(q, row)
	if first > last {
		row = nil
	}
	method := first
	if first < last {
		method = common(set, row, last, oldest)
	}
	for i := range set {
		c := &set[i]
		value, ok := roundTrip(c, row, method, oldest)
		c.Value, c.NoData = float64(value), !ok
	}
	if q.Trace != nil {
		trace(q, set, row, method, oldest)
	}
	best, known := lowest(set)
	if m.explore > 0 && row != nil && last == state.RTTPassive && (method == last || known < 2) {
		if n := m.elsewhere(q, set, row, oldest); n > 0 {
			return n
		}
	}
	limit := max(best*(1+m.tolerance), best+float64(m.toleranceAbs))
	switch {
	case m.requireData:
		return keep(set, func(c *Candidate) bool { return !c.NoData && c.Value <= limit })
	case known < 2:
		return Abstain
	}
	return keepUpTo(set, limit)
}

// methods returns the first and the last method of the row by which this client may be compared; the first is after the
// last where there is none. A resolver's network may hold users whose connections say nothing of those that it asks for.
func methods(q *Query, row *state.RTTRow) (first, last state.RTTMethod) {
	if row == nil {
		return 1, 0
	}
	if first, last = row.Methods(); !q.client().ecs {
		last = min(last, state.RTTPassive-1)
	}
	return first, last
}

// elsewhere keeps one candidate that is not the nearest by what the clients of the network see, if it is the network's turn
// to be explored, so that other sites are measured too; else it returns 0. Only the first answer is explored, and never
// to a member that is down or whose site is overloaded, wherever rtt stands in the chain, or tells nothing at present: it would
// measure nothing either, and its load is not known.
func (m rtt) elsewhere(q *Query, set []Candidate, row *state.RTTRow, oldest state.RTTMoment) int {
	if q.scratch.answer > 0 {
		return 0
	}
	client := q.clientHash()
	// Each network has a beginning of its own, so that they do not all change at once.
	window := uint64(q.Now.UnixNano()+int64(client%uint64(exploreWindow))) / uint64(exploreWindow)
	if drawn(client, window, saltExplore) >= m.explore {
		return 0
	}
	var nearest *state.Member
	least := time.Duration(math.MaxInt64)
	for i := range set {
		if value, ok := roundTrip(&set[i], row, state.RTTPassive, oldest); ok && value < least {
			nearest, least = set[i].Member, value
		}
	}
	if nearest == nil {
		return 0
	}
	var chosen *state.Member
	highest := -1.0
	for i := range set {
		c := &set[i]
		if c.Member == nearest || c.Rejected || !c.Up[q.Family] || c.Site.Overloaded || c.Site.Shed > 0 || believed(c) == 0 {
			continue
		}
		if d := drawn(client, c.Hash+window, saltExplore); d > highest {
			chosen, highest = c.Member, d
		}
	}
	if chosen == nil {
		return 0
	}
	if q.Trace != nil {
		q.note("explored: %s of clients are sent elsewhere for a minute, so that other sites are measured; this one too [%s, by %s]",
			percent(m.explore), q.client(), state.RTTPassive)
	}
	return keep(set, func(c *Candidate) bool { return c.Member == chosen })
}

// roundTrip returns the candidate's fresh value by the method, if its site may be believed.
func roundTrip(c *Candidate, row *state.RTTRow, method state.RTTMethod, oldest state.RTTMoment) (time.Duration, bool) {
	if believed(c)&(1<<method) == 0 {
		return 0, false
	}
	return row.Fresh(c.Site.ID, method, oldest)
}

// believed returns by which methods the candidate's site may be believed, as RTTRow.FreshBy does. A blind site knows the
// connections of its clients as well as any.
func believed(c *Candidate) uint8 {
	switch {
	case c.Site.Freshness == state.Stale || c.Site.Freshness == state.Dead:
		return 0
	case c.Site.RTTBlind:
		return 1 << state.RTTPassive
	}
	return 1<<state.RTTMethods - 1
}

// common returns the method, up to the last, by which the candidates are compared where the row has several: passive if two
// candidates have it, since it is what the users see; else the one that the most have, and of those the first.
func common(set []Candidate, row *state.RTTRow, last state.RTTMethod, oldest state.RTTMoment) state.RTTMethod {
	var have [state.RTTMethods]int
	for i := range set {
		c := &set[i]
		methods := row.FreshBy(c.Site.ID, oldest) & believed(c) & (2<<last - 1)
		for m := range have {
			have[m] += int(methods >> m & 1)
		}
	}
	if have[state.RTTPassive] >= 2 {
		return state.RTTPassive
	}
	best := 0
	for m := range have {
		if have[m] > have[best] {
			best = m
		}
	}
	return state.RTTMethod(best)
}

// trace records what was compared, and what was not since it is of another method.
func trace(q *Query, set []Candidate, row *state.RTTRow, method state.RTTMethod, oldest state.RTTMoment) {
	q.numbers(set, func(c *Candidate) string { return milliseconds(time.Duration(c.Value)) })
	q.note("%s", q.client())
	if row == nil {
		return
	}
	first, last := methods(q, row)
	if last != state.RTTICMP {
		q.note("%s, by %s", q.client(), method)
	}
	for i := range set {
		c := &set[i]
		for other := first; c.NoData && other <= last; other++ {
			if value, ok := roundTrip(c, row, other, oldest); ok {
				q.number(c.Member, "", fmt.Sprintf("%s by %s only: %s", milliseconds(value), other, noData))
				break
			}
		}
	}
}
