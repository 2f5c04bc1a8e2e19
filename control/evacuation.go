package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
)

// Limits of the stages of an evacuation.
const (
	maxStages = 20
	minPause  = 10 * time.Second
)

// An EvacuationRequest is an Evacuation with what the asking operator wants of it.
type EvacuationRequest struct {
	Evacuation
	Force   bool `json:"force"`   // although a service keeps fewer than min_serving members up
	Execute bool `json:"execute"` // this gslbd runs the program for type exec; a client asks it of one only
}

// A Plan is what an evacuation would do.
type Plan struct {
	Zone      string     `json:"zone"`      // the id
	Resources []Resource `json:"resources"` // that it takes, by type and name
	Refusals  []string   `json:"refusals"`  // services that would keep fewer than min_serving; --force overrides
	Warnings  []string   `json:"warnings"`
	Already   string     `json:"already"` // the id of an evacuation of the zone that already has all of the types; "": none

	// Force is what the members would be forced to, for a forecast.
	Force func(service, member, site, zone string) state.Force `json:"-"`
}

// A Resource is something that an evacuation takes.
type Resource struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Zone    string   `json:"zone"` // as configured or listed
	Removed []string `json:"removed"`
}

// Plan says what an evacuation would do, and changes nothing. Of the program of type exec it runs list.
func (c *Control) Plan(ctx context.Context, r EvacuationRequest) (Plan, error) {
	v := c.view(c.now())
	e := v.normal(r.Evacuation)
	if err := c.judgeEvacuation(v, e); err != nil {
		return Plan{}, err
	}
	p := v.plan(&e)
	if slices.Contains(e.Types, TypeExec) {
		listed, err := v.listZone(ctx, p.Zone)
		if err != nil {
			p.Warnings = append(p.Warnings, "type exec cannot be listed: "+err.Error())
		}
		p.Resources = append(p.Resources, listed...)
	}
	return p, nil
}

// Evacuate accepts an evacuation. Beside the errors of Force it returns ErrRefused where a service would keep fewer than
// min_serving members. What is evacuated already, as far and for as long, is not evacuated again: only the types that are
// missing are.
func (c *Control) Evacuate(ctx context.Context, r EvacuationRequest, by Caller) (Receipt, error) {
	rec, err := c.evacuate(ctx, r)
	c.audit("evacuation", rec, err, by, r.Author, r.Reason, zap.String("id", r.ID), zap.String("zone", r.Zone),
		zap.Strings("types", r.Types), zap.Float64s("stages", r.Stages), expiry(r.Expires), zap.Bool("force", r.Force))
	return rec, err
}

func (c *Control) evacuate(ctx context.Context, r EvacuationRequest) (Receipt, error) {
	c.evacuating.Lock()
	defer c.evacuating.Unlock()
	v := c.view(c.now())
	e := v.normal(r.Evacuation)
	receipt := Receipt{ID: e.ID, Node: c.opts.Node, Warnings: []string{}}
	var also []Record
	if known := v.evacuations[e.ID]; known != nil {
		// The types that were evacuated before are not in the record.
		if !slices.ContainsFunc(known.Types, func(t string) bool { return !slices.Contains(e.Types, t) }) {
			e.limit(known.Types)
		}
		if err := c.judge(Record{Evacuation: &e}); err != nil {
			return Receipt{}, err
		}
		receipt.Repeated = true
	} else {
		if err := c.judgeEvacuation(v, e); err != nil {
			return Receipt{}, err
		}
		p := v.plan(&e)
		receipt.Warnings = append(receipt.Warnings, p.Warnings...)
		switch {
		case p.Already != "":
			e = *v.evacuations[p.Already]
			receipt.ID, receipt.Repeated = e.ID, true
			receipt.Warnings = append(receipt.Warnings, "zone "+p.Zone+" is evacuated already: "+e.why())
		case len(p.Refusals) > 0 && !r.Force:
			return Receipt{}, fmt.Errorf("control: %w: %s; --force evacuates all the same", ErrRefused, strings.Join(p.Refusals, "; "))
		default:
			receipt.Warnings = append(receipt.Warnings, p.Refusals...)
			for _, res := range p.Resources {
				if res.Type == TypeMember {
					also = append(also, Record{Taken: &Taken{
						ID: e.takenID(TypeMember, res.Name), Evacuation: e.ID, Zone: p.Zone, Type: TypeMember,
						Resource: res.Name, Removed: res.Removed, Created: e.Created, Author: e.Author, Reason: e.Reason,
					}})
				}
			}
		}
	}
	// What came from another gslbd is run by the one that was asked.
	var marks map[string]string
	if r.Execute && v.evacuations[r.ID] == nil && v.unrun(&e) && c.mark(executeMark+e.ID) == "" {
		marks = map[string]string{executeMark + e.ID: markAsked}
	}
	var err error
	receipt.Shared, _, err = c.acceptMarked(ctx, marks, append([]Record{{Evacuation: &e}}, also...)...)
	if err != nil {
		return Receipt{}, err
	}
	return receipt, nil
}

// unrun reports whether the evacuation has a program to run that has taken nothing yet.
func (v *view) unrun(e *Evacuation) bool {
	for _, known := range v.picture().all {
		if p := known.part(TypeExec); known.ID == e.ID && p != nil && len(p.lines) > 0 {
			return false
		}
	}
	return slices.Contains(e.Types, TypeExec)
}

// normal returns the evacuation with its defaults and its zone's id. The order of types does not matter.
func (v *view) normal(e Evacuation) Evacuation {
	if len(e.Types) == 0 {
		e.Types = []string{TypeMember}
	}
	e.Types = slices.Clone(e.Types)
	slices.SortFunc(e.Types, func(a, b string) int { return slices.Index(types[:], a) - slices.Index(types[:], b) })
	e.Zone = v.names.zoneID(e.Zone)
	return e
}

// judgeEvacuation refuses what makes no sense.
func (c *Control) judgeEvacuation(v *view, e Evacuation) error {
	if err := c.judge(Record{Evacuation: &e}); err != nil {
		return err
	}
	fail := func(kind error, format string, args ...any) error {
		return fmt.Errorf("control: %w: "+format, append([]any{kind}, args...)...)
	}
	n := len(e.Stages)
	switch there := v.zoneNames(); {
	case !slices.Contains(there, e.Zone):
		return fail(ErrNotFound, "no zone %s; there are %s", quote(e.Zone), listed(there))
	case n > maxStages:
		return fail(ErrInvalid, "%d stages, of at most %d", n, maxStages)
	case n > 1 && !slices.Contains(e.Types, TypeMember):
		return fail(ErrInvalid, "stages move clients away step by step, which only type member does")
	case n > 1 && (e.pause() < minPause || e.pause() > maxPause):
		return fail(ErrInvalid, "the pause between stages must be %s to %s, and is %s", minPause, maxPause, e.pause())
	case !e.Expires.IsZero() && !e.Expires.After(e.fullAt()):
		return fail(ErrInvalid, "it expires at %s, which is not after its last stage at %s", clock(e.Expires), clock(e.fullAt()))
	case !e.Expires.IsZero() && !e.Expires.After(v.now):
		return fail(ErrRefused, "it expires at %s, which is past", clock(e.Expires))
	}
	if slices.Contains(e.Types, TypeExec) {
		return v.program("type exec")
	}
	return nil
}

// zoneNames returns the ids of the zones that sites stand in.
func (v *view) zoneNames() []string {
	var all []string
	if v.snap != nil {
		for _, s := range v.snap.Sites {
			if s.Zone != "" {
				all = append(all, v.names.zoneID(s.Zone))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// plan works out what the evacuation would do, without running a program. It takes from e the types that the zone is
// evacuated of already.
func (v *view) plan(e *Evacuation) Plan {
	p := Plan{Zone: e.Zone, Resources: []Resource{}, Refusals: []string{}, Warnings: []string{}}
	p.Already = v.covered(e)
	z := &zone{id: e.Zone}
	(&picture{view: v, zones: map[string]*zone{e.Zone: z}}).survey()
	away := false
	for _, typ := range e.Types {
		if p.Already != "" {
			break
		}
		switch typ {
		case TypeMember:
			away = true
			p.Resources = append(p.Resources, z.memberResources()...)
			if len(z.members) == 0 {
				p.Warnings = append(p.Warnings, "type member: no member stands in zone "+e.Zone)
			}
		case TypeAgent:
			away = true
			p.Resources = append(p.Resources, z.agentResources()...)
			for _, s := range z.sites {
				if s.Freshness != state.Fresh {
					p.Warnings = append(p.Warnings, fmt.Sprintf("type agent: %s; its servers are drained when an agent reports again", unreported(s)))
				}
			}
		}
	}
	if away {
		p.Refusals = v.tooFew(z)
	}
	for _, other := range v.picture().inZone[e.Zone] {
		m := other.part(TypeMember)
		if share, _ := other.share(v.now); p.Already == "" && share < 1 && m != nil && m.stays() {
			p.Warnings = append(p.Warnings, fmt.Sprintf("evacuation %s of the zone is under way in stages; whichever moves more clients away wins", other.ID))
		}
	}
	present := v.orders().Force
	p.Force = func(service, member, site, zone string) state.Force {
		f := present(service, member, site, zone)
		if away && v.names.zoneID(zone) == e.Zone {
			return state.Force{Forced: state.ForcedEvacuated, Why: e.why(), Since: e.Created}
		}
		return f
	}
	return p
}

// covered takes out of e the types that an evacuation of the zone has already, and returns the id of one if nothing is
// left. One that ends earlier, or moves clients away later, does not stand for e.
func (v *view) covered(e *Evacuation) string {
	var by string
	left := slices.DeleteFunc(slices.Clone(e.Types), func(typ string) bool {
		for _, other := range v.picture().inZone[e.Zone] {
			if p := other.part(typ); p != nil && p.stays() && other.outdoes(e) {
				by = other.ID
				return true
			}
		}
		return false
	})
	if len(left) == 0 {
		return by
	}
	e.limit(left)
	return ""
}

// outdoes reports whether e lasts as long as the other, and has moved as many clients away at each of its stages.
func (e *Evacuation) outdoes(other *Evacuation) bool {
	if !e.Expires.IsZero() && (other.Expires.IsZero() || e.Expires.Before(other.Expires)) {
		return false
	}
	for at := other.Created; ; {
		share, next := other.share(at)
		if ours, _ := e.share(at); ours < share {
			return false
		}
		if at = next; at.IsZero() {
			return true
		}
	}
}

// limit takes out all types but those given, and the stages with type member.
func (e *Evacuation) limit(of []string) {
	if e.Types = of; !slices.Contains(of, TypeMember) {
		e.Stages, e.PauseMS = nil, 0
	}
}

func (z *zone) memberResources() []Resource {
	var all []Resource
	for _, m := range z.members {
		all = append(all, Resource{Type: TypeMember, Name: m.resource(), Zone: m.Site.Zone, Removed: m.addresses()})
	}
	slices.SortFunc(all, byName)
	return all
}

func (z *zone) agentResources() []Resource {
	var all []Resource
	for _, s := range z.sites {
		for _, vs := range s.Listed {
			all = append(all, Resource{Type: TypeAgent, Name: s.Name + "/" + vs, Zone: s.Zone, Removed: []string{}})
		}
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b Resource) int { return strings.Compare(a.Name, b.Name) }

// tooFew names the services of the zone that would keep fewer members up than their min_serving. Members that an order
// keeps from answering, or that a staged evacuation is about to, are not counted.
func (v *view) tooFew(z *zone) []string {
	all := []string{}
	var last *state.Service
	for _, zm := range z.members {
		svc := zm.service
		if svc == last { // they come by service
			continue
		}
		last = svc
		keeps := 0
		for _, m := range svc.Members {
			if v.names.zoneID(m.Site.Zone) != z.id && m.AnyUp() && m.Forced < state.ForcedDrain && len(m.Moved) == 0 {
				keeps++
			}
		}
		if keeps < svc.MinServing {
			all = append(all, fmt.Sprintf("%s would keep %d members up outside zone %s, and min_serving is %d", svc.Name, keeps, z.id, svc.MinServing))
		}
	}
	return all
}
