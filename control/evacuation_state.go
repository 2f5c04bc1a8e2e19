package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gslbd/state"
)

// An EvacuationState is an evacuation and how far it is.
type EvacuationState struct {
	Evacuation
	Shared string      `json:"shared"`
	Share  float64     `json:"share"`         // of clients moved away now
	Next   time.Time   `json:"next,omitzero"` // of the next stage
	Parts  []PartState `json:"parts"`
	Ledger []Taken     `json:"ledger"`
}

// A PartState is how far an evacuation is with one type that is in force or in the ledger.
type PartState struct {
	Type  string `json:"type"`
	State string `json:"state"` // waiting, evacuating, evacuated, restoring, failed
	Why   string `json:"why"`
}

// The states of a part.
const (
	waiting    = "waiting"
	evacuating = "evacuating"
	evacuated  = "evacuated"
	restoring  = "restoring"
	failed     = "failed"
)

// Evacuations returns the evacuations of which something is in force or in the ledger, the oldest first.
func (c *Control) Evacuations() []EvacuationState { return c.evacuationsOn(c.view(c.now())) }

func (c *Control) evacuationsOn(v *view) []EvacuationState {
	pic := v.picture()
	all := []EvacuationState{}
	for _, e := range pic.all {
		s := EvacuationState{
			Evacuation: *e.Evacuation, Shared: c.sharedAs(Record{Evacuation: e.Evacuation}),
			Parts: []PartState{}, Ledger: []Taken{},
		}
		for _, p := range e.parts {
			if !p.open() {
				continue
			}
			s.Parts = append(s.Parts, c.partState(pic, p))
			for _, t := range sorted(p.lines) {
				s.Ledger = append(s.Ledger, *t)
			}
			if p.typ == TypeMember && !p.ended {
				s.Share, s.Next = e.share(v.now)
			}
		}
		if len(s.Parts) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// partState tells people how far a part is.
func (c *Control) partState(pic *picture, p *part) PartState {
	s := PartState{Type: p.typ}
	switch {
	case p.restoring():
		s.State, s.Why = c.restoringState(pic, p)
	case p.typ == TypeMember:
		s.State, s.Why = pic.memberState(p)
	case !p.begun:
		s.State, s.Why = waiting, pic.waitsFor(p)
	case p.typ == TypeAgent:
		s.State, s.Why = pic.agentState(p)
	default:
		s.State, s.Why = c.execState(pic, p)
	}
	return s
}

func (pic *picture) memberState(p *part) (word, why string) {
	if share, next := p.of.share(pic.now); share < 1 {
		then := p.of.Stages[slices.Index(p.of.Stages, share)+1]
		return evacuating, fmt.Sprintf("%s of the clients moved away, %s in %s", percent(share), percent(then), left(pic.now, next))
	}
	if z := p.of.zone; z.cached.After(pic.now) {
		return evacuating, fmt.Sprintf("waits for cached answers to expire, %s left", left(pic.now, z.cached))
	}
	return evacuated, count(len(p.lines), "member")
}

// waitsFor says what a part that has not begun waits for.
func (pic *picture) waitsFor(p *part) string {
	wait := left(pic.now, p.at)
	switch full := p.of.fullAt(); {
	case full.After(pic.now):
		return fmt.Sprintf("begins when all clients are moved away and cached answers have expired, in %s", wait)
	case p.typ == TypeExec && p.of.part(TypeAgent) != nil && p.of.part(TypeAgent).begun:
		return fmt.Sprintf("gives the agents time to drain, %s left", wait)
	}
	return fmt.Sprintf("begins when cached answers have expired, in %s", wait)
}

func (pic *picture) agentState(p *part) (word, why string) {
	serving, drained := pic.serving(p.of.zone), 0
	for _, s := range p.of.zone.sites {
		for _, d := range s.InDrain {
			drained += len(d.Servers)
		}
	}
	word, why = evacuated, count(drained, "server")+" in drain"
	if serving > 0 {
		word, why = evacuating, fmt.Sprintf("%d of %s in drain", drained, count(drained+serving, "server"))
	}
	remarks, silent := p.of.zone.remarks()
	if silent {
		word = evacuating
	}
	return word, strings.Join(append([]string{why}, remarks...), "; ")
}

// remarks are what keeps agents of the zone from doing what they are told. silent says that a site does not report.
func (z *zone) remarks() (all []string, silent bool) {
	for _, s := range z.sites {
		if s.Freshness != state.Fresh {
			silent = true
			all = append(all, unreported(s))
		}
		for _, w := range s.Warnings {
			if strings.Contains(w, "drain") {
				all = append(all, fmt.Sprintf("agent %s of %s: %s", s.Agent, s.Name, w))
			}
		}
	}
	return all, silent
}

// unreported says of a site that does not report that it does not.
func unreported(s *state.Site) string {
	if s.Freshness == state.NeverReported {
		return fmt.Sprintf("site %s has never reported", s.Name)
	}
	return fmt.Sprintf("the reports of site %s are %s", s.Name, s.Freshness)
}

func (c *Control) execState(pic *picture, p *part) (word, why string) {
	running, last := c.evac.state(p.of.ID, verbRemove)
	switch mark := c.mark(executeMark + p.of.ID); {
	case mark == markDone:
		return evacuated, count(len(p.lines), "resource")
	case mark == "" && len(p.lines) > 0:
		// It is in the ledger before the program runs, and only that gslbd knows how it ended.
		return waiting, count(len(p.lines), "resource") + ", whose state the gslbd tells that was asked to run the program"
	case mark == "":
		return waiting, "nothing is known yet of the gslbd that was asked to run the program"
	case running:
		return evacuating, "the program runs"
	case last.waits:
		return evacuating, last.why
	case last.why != "":
		return failed, fmt.Sprintf("%s; tried again in %s", last.why, left(pic.now, last.retry))
	}
	return evacuating, "the program is about to run"
}

// restoringState tells how far a part is on the way back.
func (c *Control) restoringState(pic *picture, p *part) (word, why string) {
	from := "restored by " + p.endedWhose()
	if len(p.by) == 0 {
		from = "expired"
	}
	if !p.free {
		why := c.partState(pic, p.behind).Why
		return restoring, fmt.Sprintf("%s; waits for type %s of evacuation %s (%s); `--type %s` restores this type alone", from, p.behind.typ, short(p.behind.of.ID), why, p.typ)
	}
	word, why = restoring, count(len(p.lines), "resource")+" left"
	switch p.typ {
	case TypeAgent:
		remarks, _ := p.of.zone.remarks()
		why = strings.Join(append([]string{count(len(p.lines), "server") + " still in drain"}, remarks...), "; ")
	case TypeExec:
		running, last := c.evac.state(p.of.ID, verbAdd)
		switch {
		case len(p.lines) == 0 || p.heir != nil:
		case !c.putsBack(p):
			why += ", by the gslbd that was asked to run the program"
		case running:
			why += ", the program runs"
		case last.waits:
			why += ": " + last.why
		case last.why != "":
			word, why = failed, fmt.Sprintf("%s: %s; tried again in %s", why, last.why, left(pic.now, last.retry))
		}
	}
	return word, from + "; " + why
}

// left writes for people how long it is from now until then, in whole seconds.
func left(now, then time.Time) string {
	d := max(then.Sub(now), 0)
	if r := d % time.Second; r > 0 {
		d += time.Second - r
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}

// count writes a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
