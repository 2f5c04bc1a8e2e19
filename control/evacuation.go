package control

import (
	"context"
	"time"

	"gslbd/state"
)

// step does what evacuations and restorations need now: ledger lines, programs, tombstones. It must not block.
func (c *Control) step(ctx context.Context, now time.Time) {}

// nextChange returns when time alone changes what evacuationForce or siteOrders return; zero: never.
func (c *Control) nextChange(now time.Time) time.Time { return time.Time{} }

// evacuationForce returns what evacuations order for a member.
func (v *view) evacuationForce(service, member, site, zone string) state.Force { return state.Force{} }

// siteOrders returns what evacuations and restorations want of the agents of a site.
func (v *view) siteOrders(site, zone string) state.SiteOrders { return state.SiteOrders{} }

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

// Plan says what an evacuation would do, and changes nothing.
func (c *Control) Plan(ctx context.Context, r EvacuationRequest) (Plan, error) { return Plan{}, nil }

// Evacuate accepts an evacuation.
func (c *Control) Evacuate(ctx context.Context, r EvacuationRequest, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// A RestorationRequest asks for a restoration.
type RestorationRequest struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Zone    string    `json:"zone"` // "": all
	Type    string    `json:"type"` // "": all
}

// Restore accepts a restoration.
func (c *Control) Restore(ctx context.Context, r RestorationRequest, by Caller) (Receipt, error) {
	return Receipt{}, nil
}

// Evacuations returns the evacuations of which something is in force or in the ledger, the oldest first.
func (c *Control) Evacuations() []EvacuationState { return nil }

// An EvacuationState is an evacuation and how far it is.
type EvacuationState struct {
	Evacuation
	Shared string      `json:"shared"`
	Share  float64     `json:"share"`         // of clients moved away now
	Next   time.Time   `json:"next,omitzero"` // of the next stage
	Parts  []PartState `json:"parts"`
	Ledger []Taken     `json:"ledger"`
}

// A PartState is how far an evacuation is with one type.
type PartState struct {
	Type  string `json:"type"`
	State string `json:"state"` // waiting, evacuating, evacuated, restoring, failed
	Why   string `json:"why"`
}
