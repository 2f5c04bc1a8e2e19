package policy

import (
	"net/netip"
	"time"

	"gslbd/state"
)

// Abstain is what Keep returns when a metric lacks the data to decide.
const Abstain = -1

// A Metric keeps the candidates that it prefers.
//
// Keep reorders set so that those kept come first, in order of preference, and returns their number, or Abstain if it
// lacks the data to decide. It must not retain set, allocate or block. Time (q.Now), chance (q.Rand) and rotation
// (q.Turn) come in through q; what it consults of the client's network it widens in q.Scope; the numbers that it
// compared go to q.Trace when that is not nil (it is nil when serving).
type Metric interface {
	Keep(q *Query, set []Candidate) int
}

// A Candidate is a member within one query. What most metrics compare stands here too, so that a query need not read of
// members that others are preferred to.
type Candidate struct {
	*state.Member
	Site       *state.Site         // as it is known in the query's snapshot
	Value      float64             // the number that the present metric compares; scratch
	Counts     *state.MemberCounts // Member.MemberCounts
	Weight     int32               // Member.Weight
	Preference int16               // Member.Preference
	ready      uint16              // where it stands in the service's Ready.Candidates, if it comes from there
	NoData     bool                // the present metric has no fresh data for it; scratch
	Rejected   bool                // health rejects it: down, or held back from this client by slow start; false where health is off
}

// A Query is one question to a policy, and the scratch that deciding it needs. It belongs to one worker, which reuses
// it; nothing keeps a pointer into it.
type Query struct {
	Snapshot *state.Snapshot
	Service  *state.Service
	Family   state.Family
	Now      time.Time
	Rand     uint64 // chance: one random number a query; no metric uses it so far
	Turn     uint64 // rotation: the service's turn for this family

	LDNS netip.Addr   // unmapped
	ECS  netip.Prefix // as sent, masked; the zero Prefix without ECS, with ECS off for the zone, and for length 0

	// Scope is the ECS scope prefix length that the decision needs so far. See Widen.
	Scope uint8

	Trace *Trace // nil when serving

	scratch scratch
}

// Widen records that the decision depends on the first bits of the client's network. It has no effect on a query
// without ECS.
func (q *Query) Widen(bits int) {
	if q.hasECS() && bits > int(q.Scope) {
		q.Scope = uint8(bits)
	}
}

// hasECS reports whether the query brings a client's prefix; /0 asks not to use any.
func (q *Query) hasECS() bool { return q.ECS.IsValid() && q.ECS.Bits() > 0 }

// A Kind says what to answer.
type Kind uint8

// The kinds of a decision.
const (
	Answer     Kind = iota // the members in Decision.Members, best first
	LastResort             // the addresses in Service.LastResort (on_all_down: backup)
	NoData                 // NODATA
	ServFail               // SERVFAIL (on_all_down: servfail)
)

// MaxAnswers is the most that services[].answers may be.
const MaxAnswers = 10

// NoCeiling is the TTL of a NODATA that lasts as long as the zone says: no member, and no last resort, has an address of
// the asked family at all.
const NoCeiling = 1<<32 - 1

// A Decision is what a chain chose. It is plain data, filled in by Chain.Decide.
type Decision struct {
	Kind    Kind
	N       int                       // how many of Members are set
	Members [MaxAnswers]*state.Member // best first; only the first counts for least-selected
	Reason  Reason                    // what settled the first answer
	TTL     uint32                    // seconds: the service's, or at most 10 where on_all_down or an empty set answers; for NODATA a ceiling, or NoCeiling
	AllDown bool                      // on_all_down answered
	Empty   bool                      // there was no candidate at all
	Apart   bool                      // the first is counted in the rotation apart: see state.MemberCounts

	ready [MaxAnswers]*state.ReadyCandidate // what Chain.Prepare has put together of Members; nil: nothing
}

// Address returns the i-th member's of a family. It is the zero Addr where the member has a CNAME target instead.
func (d *Decision) Address(i int, f state.Family) netip.Addr {
	if r := d.ready[i]; r != nil && r.HasAddr4 && f == state.V4 {
		return netip.AddrFrom4(r.Addr4)
	}
	return d.Members[i].Addr[f]
}

// Index returns the i-th member's.
func (d *Decision) Index(i int) int {
	if r := d.ready[i]; r != nil {
		return int(r.Index)
	}
	return d.Members[i].Index
}

// Counts returns the i-th member's.
func (d *Decision) Counts(i int) *state.MemberCounts {
	if r := d.ready[i]; r != nil {
		return r.Counts
	}
	return d.Members[i].MemberCounts
}

// Select counts that the first member was answered first. Hot path: one atomic addition.
func (d *Decision) Select(f state.Family) {
	if d.Apart {
		d.Members[0].Select(f, true)
		return
	}
	d.Counts(0).Selected[f].Add(state.SelectedUnit)
}
