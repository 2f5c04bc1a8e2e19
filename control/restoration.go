package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// A RestorationRequest asks for a restoration.
type RestorationRequest struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Zone    string    `json:"zone"` // "": all
	Type    string    `json:"type"` // "": all
}

// Restore accepts a restoration of what is evacuated now. What it puts back, it puts back in the reverse order of types,
// and each resource exactly as far as the ledger says that it was taken. It returns ErrNotFound for a zone that is not
// there, ErrNothing where nothing is evacuated, and otherwise the errors of Force.
func (c *Control) Restore(ctx context.Context, r RestorationRequest, by Caller) (Receipt, error) {
	rec, err := c.restore(ctx, r)
	c.audit("restoration", rec, err, by, r.Author, r.Reason, zap.String("id", r.ID), zap.String("zone", r.Zone), zap.String("type", r.Type))
	return rec, err
}

func (c *Control) restore(ctx context.Context, r RestorationRequest) (Receipt, error) {
	rec := Restoration{ID: r.ID, Created: r.Created, Author: r.Author, Reason: r.Reason, Types: types[:]}
	if r.Type != "" {
		if !slices.Contains(types[:], r.Type) {
			return Receipt{}, fmt.Errorf("control: %w: no type %s; there are %s", ErrInvalid, quote(r.Type), strings.Join(types[:], ", "))
		}
		rec.Types = []string{r.Type}
	}
	v := c.view(c.now())
	receipt := Receipt{ID: r.ID, Node: c.opts.Node, Warnings: []string{}}
	var marks map[string]string
	if known := v.restorations[r.ID]; known != nil {
		for _, r := range known.contents() {
			if slices.Equal(union(r.Types, nil), union(rec.Types, nil)) {
				rec.Evacuations = r.Evacuations
			}
		}
		if err := c.judge(Record{Restoration: &rec}); err != nil {
			return Receipt{}, err
		}
		receipt.Repeated = true
	} else {
		if err := c.judge(Record{Restoration: &rec}); err != nil {
			return Receipt{}, err
		}
		parts, err := v.restorable(r.Zone, rec.Types)
		if err != nil {
			return Receipt{}, err
		}
		for _, p := range parts {
			if !slices.Contains(rec.Evacuations, p.of.ID) {
				rec.Evacuations = append(rec.Evacuations, p.of.ID)
			}
			if p.typ == TypeExec && len(p.lines) > 0 {
				if err := v.program("restoring type exec"); err != nil {
					return Receipt{}, fmt.Errorf("%w; ask the gslbd that has it, or restore the other types alone", err)
				}
			}
		}
		slices.Sort(rec.Evacuations)
		receipt.Warnings = append(receipt.Warnings, stillOut(parts)...)
		if slices.Contains(rec.Types, TypeExec) {
			marks = map[string]string{restoreMark + rec.ID: markAsked}
		}
	}
	var err error
	receipt.Shared, _, err = c.acceptMarked(ctx, marks, Record{Restoration: &rec})
	if err != nil {
		return Receipt{}, err
	}
	return receipt, nil
}

// restorable returns the parts of the given types in the zone ("": all zones) that are open.
func (v *view) restorable(name string, of []string) ([]*part, error) {
	pic := v.picture()
	var parts []*part
	var evacuated []string
	for _, e := range pic.all {
		var open []string
		for _, p := range e.parts {
			if !p.open() {
				continue
			}
			open = append(open, p.typ)
			if slices.Contains(of, p.typ) && (name == "" || e.zone.id == v.names.zoneID(name)) {
				parts = append(parts, p)
			}
		}
		if len(open) > 0 {
			evacuated = append(evacuated, fmt.Sprintf("%s (%s)", e.zone.id, strings.Join(open, ", ")))
		}
	}
	if len(parts) > 0 {
		return parts, nil
	}
	slices.Sort(evacuated)
	what := "nothing of type " + strings.Join(of, ", ") + " is evacuated"
	if name != "" {
		if there := v.zoneNames(); !slices.Contains(there, v.names.zoneID(name)) {
			return nil, fmt.Errorf("control: %w: no zone %s; there are %s", ErrNotFound, quote(name), listed(there))
		}
		what += " in zone " + name
	}
	return nil, fmt.Errorf("control: %w: %s; evacuated are %s", ErrNothing, what, listed(slices.Compact(evacuated)))
}

// stillOut warns of members that get traffic again while their servers stay out of service.
func stillOut(parts []*part) []string {
	var all []string
	for _, p := range parts {
		if p.typ != TypeMember {
			continue
		}
		for _, q := range p.of.parts {
			if q.typ != TypeMember && q.open() && !slices.Contains(parts, q) {
				all = append(all, fmt.Sprintf("zone %s gets traffic again while type %s stays evacuated", p.of.zone.id, q.typ))
			}
		}
	}
	return all
}
