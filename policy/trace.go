package policy

import (
	"fmt"
	"strings"
	"time"

	"gslbd/state"
)

// A Trace records how the first answer of a decision came about, for explain. Decide empties it first, so one Trace
// can be used again.
type Trace struct {
	Constraints []TraceStep `json:"constraints"`           // pool, orders (both again for a staged pool), weight and drain; then last known good, where on_all_down applied it
	Steps       []TraceStep `json:"steps"`                 // the chain's; after a restart its steps appear again
	OnAllDown   string      `json:"on_all_down,omitempty"` // what on_all_down did; empty when it did not apply
}

// A TraceStep is what one constraint or metric did.
type TraceStep struct {
	Metric  string        `json:"metric"`
	Verdict string        `json:"verdict"` // one of the Verdict constants
	Kept    []TraceMember `json:"kept"`    // in order of preference
	Fell    []TraceMember `json:"fell"`
	Note    string        `json:"note,omitempty"` // why, and which of the client's networks was used
}

// Text says who was kept and who fell, with the numbers.
func (s *TraceStep) Text() string {
	var parts []string
	if s.Verdict != VerdictDisabled && s.Verdict != VerdictNotConsulted {
		if len(s.Kept) > 0 {
			parts = append(parts, "kept "+memberList(s.Kept))
		}
		if len(s.Fell) > 0 {
			parts = append(parts, "fell "+memberList(s.Fell))
		}
	}
	text := strings.Join(parts, "; ")
	if s.Note != "" {
		text += " [" + s.Note + "]"
	}
	return text
}

func memberList(members []TraceMember) string {
	list := make([]string, len(members))
	for i, m := range members {
		list[i] = m.Member
		if m.Number != "" {
			list[i] += " " + m.Number
		}
		if m.Note != "" {
			list[i] += " (" + m.Note + ")"
		}
	}
	return strings.Join(list, ", ")
}

// A TraceMember is one member within a step.
type TraceMember struct {
	Member string `json:"member"`
	Number string `json:"number,omitempty"` // what was compared, with its unit
	Note   string `json:"note,omitempty"`
}

// The verdicts of a step (docs/policies.md).
const (
	VerdictAbstained    = "abstained"     // it lacked the data
	VerdictKeptAll      = "kept all"      // it could not tell the candidates apart
	VerdictNarrowed     = "narrowed"      // some fell, and several are left
	VerdictDecided      = "decided"       // it settled the first answer
	VerdictEmptied      = "emptied"       // all would have fallen, so it was skipped
	VerdictDisabled     = "disabled"      // enabled: false
	VerdictNotConsulted = "not consulted" // the answer was settled without it
	VerdictRestarted    = "restarted"     // health rejected all that was left, and the chain began again without the down
)

// noData is the note of a candidate without fresh data: it stays beside those kept.
const noData = "no data"

// number records what the present step compares of a member. It may only be called while tracing.
func (q *Query) number(m *state.Member, number, note string) {
	q.scratch.notes[m] = TraceMember{Member: m.Name, Number: number, Note: note}
}

// numbers records the Value of every candidate of set, as format writes it. It does nothing unless tracing.
func (q *Query) numbers(set []Candidate, format func(c *Candidate) string) {
	if q.Trace == nil {
		return
	}
	for i := range set {
		if set[i].NoData {
			q.number(set[i].Member, "", noData)
		} else {
			q.number(set[i].Member, format(&set[i]), "")
		}
	}
}

// note records why the present step decides as it does. It may only be called while tracing.
func (q *Query) note(format string, args ...any) { q.scratch.note = fmt.Sprintf(format, args...) }

// record appends what s did with set to the trace: the first kept were kept. It does nothing unless tracing.
func (q *Query) record(s *step, verdict string, set []Candidate, kept int) {
	if q.Trace != nil {
		q.Trace.Steps = append(q.Trace.Steps, q.traceStep(s.reason.String(), verdict, set[:kept], set[kept:]))
	}
}

// recordConstraint appends what a constraint left and set aside.
func (q *Query) recordConstraint(name string) {
	if q.Trace == nil {
		return
	}
	verdict := VerdictKeptAll
	switch s := &q.scratch; {
	case len(s.all) == 0 && len(s.aside) == 0:
		verdict = VerdictNotConsulted
	case len(s.all) == 0:
		verdict = VerdictEmptied
	case len(s.aside) > 0 && len(s.all) == 1:
		verdict = VerdictDecided
	case len(s.aside) > 0:
		verdict = VerdictNarrowed
	}
	q.Trace.Constraints = append(q.Trace.Constraints, q.traceStep(name, verdict, q.scratch.all, q.scratch.aside))
}

func (q *Query) traceStep(name, verdict string, kept, fell []Candidate) TraceStep {
	t := TraceStep{Metric: name, Verdict: verdict, Kept: q.traceMembers(kept), Fell: q.traceMembers(fell), Note: q.scratch.note}
	clear(q.scratch.notes)
	q.scratch.note = ""
	return t
}

// traceMembers describes set with what the present step recorded. It is never nil, so that JSON has a list.
func (q *Query) traceMembers(set []Candidate) []TraceMember {
	list := make([]TraceMember, 0, len(set))
	for _, c := range set {
		m := q.scratch.notes[c.Member]
		m.Member = c.Name
		list = append(list, m)
	}
	return list
}

// traceOrders notes which orders took members away from this client, and which did not. It does nothing unless tracing.
func (q *Query) traceOrders() {
	if q.Trace == nil {
		return
	}
	for _, c := range q.scratch.aside {
		if c.Forced >= state.ForcedDown { // whom the staged orders move then does not count, in the scope either
			q.number(c.Member, "", because(c.Forced.String(), c.ForcedWhy))
		} else if st := q.moved(c.Member); st != nil {
			q.number(c.Member, "", because("moved away: "+percent(st.Share)+" of clients, this one too", st.Why))
		}
	}
	for _, c := range q.scratch.all {
		var notes []string
		for _, st := range c.Moved {
			notes = append(notes, because("moved away: "+percent(st.Share)+" of clients, not this one", st.Why))
		}
		q.number(c.Member, "", strings.Join(notes, "; "))
	}
}

// traceUnused appends the steps of a chain that did not run: the constraints or on_all_down answered.
func (c *Chain) traceUnused(q *Query) {
	if q.Trace == nil {
		return
	}
	for i := range c.steps {
		s := &c.steps[i]
		verdict := VerdictNotConsulted
		switch {
		case s.disabled:
			verdict = VerdictDisabled
		case s.health && len(q.scratch.all) > 0:
			verdict = VerdictEmptied
			s.metric.Keep(q, q.scratch.all) // notes why each is down
		}
		q.record(s, verdict, q.scratch.all, len(q.scratch.all))
	}
}

// traceAllDown records what on_all_down did; what has a place for the family. It does nothing unless tracing.
func (q *Query) traceAllDown(choice state.OnAllDown, what string, f state.Family) {
	if q.Trace != nil {
		q.Trace.OnAllDown = choice.String() + ": " + fmt.Sprintf(what, f)
	}
}

// because joins a word and the reason that is known for it.
func because(word, why string) string {
	if why == "" {
		return word
	}
	return word + ": " + why
}

// milliseconds writes a duration as "30.4 ms".
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// percent writes a share as "44 %", to a tenth.
func percent(share float64) string { return fmt.Sprintf("%.4g %%", share*100) }
