package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gslbd/state"
)

// geo keeps the members whose site is near the client on the globe. Of its levels, the first that tells the candidates
// apart decides; distance, if it is among the levels, then narrows what that one kept.
type geo struct {
	levels    []level
	distance  bool    // among levels
	tolerance float64 // beyond the nearest, as a chord (state.ChordOfKm)
}

// A level is one way of comparing places.
type level uint8

const (
	levelOverride    level = iota // the site that an override names
	levelDistance                 // great circle
	levelSubdivision              // within the same country
	levelCountry
	levelContinent
)

// String returns the configuration's word.
func (l level) String() string {
	return [...]string{"override", "distance", "subdivision", "country", "continent"}[l]
}

func newGeo(o StepOptions) (Metric, error) {
	m := geo{tolerance: state.ChordOfKm(o.ToleranceKm)}
	if o.ToleranceKm < 0 {
		return nil, errors.New("tolerance_km must not be negative")
	}
	if len(o.Levels) == 0 {
		return nil, errors.New("levels is empty; list at least one, or disable the metric")
	}
	for _, name := range o.Levels {
		l := levelOverride
		for l.String() != name {
			if l++; l > levelContinent {
				return nil, fmt.Errorf("levels: unknown level %q; known are override, distance, subdivision, country, continent", name)
			}
		}
		if slices.Contains(m.levels, l) {
			return nil, fmt.Errorf("levels: %q is listed twice; keep one", name)
		}
		m.levels = append(m.levels, l)
		m.distance = m.distance || l == levelDistance
	}
	return m, nil
}

// Keep implements Metric. It abstains when no level has data of the client and of at least two candidates.
func (m geo) Keep(q *Query, set []Candidate) int {
	c := q.client()
	if !c.prefix.IsValid() {
		return Abstain
	}
	place := &q.scratch.place
	q.Snapshot.Geo.LookupInto(c.prefix.Addr(), place)
	if c.ecs {
		q.Widen(place.Bits)
	}
	compared := false
	for _, l := range m.levels {
		n := l.keep(set, place.Location, place.Site, m.tolerance)
		compared = compared || n != Abstain
		if n <= 0 || n == len(set) {
			continue // it does not tell them apart
		}
		then := ""
		if m.distance && l != levelDistance {
			if near := levelDistance.keep(set[:n], place.Location, place.Site, m.tolerance); near > 0 && near < n {
				n, then = near, ", then distance"
			}
		}
		if q.Trace != nil {
			describe(q, set, l, place.Location)
			q.note("by %s%s; %s, %s", l, then, c, place.Source)
		}
		return n
	}
	if q.Trace != nil {
		describe(q, set, levelDistance, place.Location)
		switch {
		case place.Location == nil && place.Site == "":
			q.note("%s has no known location", c)
		case compared:
			q.note("no level tells them apart; %s, %s", c, place.Source)
		default:
			q.note("too little is known of the sites; %s, %s", c, place.Source)
		}
	}
	if !compared {
		return Abstain
	}
	return len(set)
}

// keep keeps the candidates of set that the level prefers for a client at from (nil: unknown), or that an override
// sends to site, and those of which it knows nothing. It abstains when the client or all but one candidate are unknown.
func (l level) keep(set []Candidate, from *state.Location, site string, tolerance float64) int {
	if l == levelOverride {
		if site == "" {
			return Abstain
		}
		return keep(set, func(c *Candidate) bool { return c.Site.Name == site })
	}
	if from == nil || l.of(from) == "" {
		return Abstain
	}
	if l == levelDistance {
		for i := range set {
			c := &set[i]
			to := c.Site.Location
			if c.NoData = !to.HasCoordinates; !c.NoData {
				c.Value = state.ChordSquared(from, to) // grows with the distance, and costs no trigonometry
			}
		}
	} else {
		for i := range set {
			c := &set[i]
			to := c.Site.Location
			c.NoData, c.Value = l.of(to) == "", 1
			if l.of(to) == l.of(from) && (l != levelSubdivision || to.Country == from.Country) {
				c.Value = 0
			}
		}
	}
	best, known := lowest(set)
	switch {
	case known < 2:
		return Abstain
	case l == levelDistance:
		limit := state.AddChords(math.Sqrt(best), tolerance)
		return keepUpTo(set, max(best, limit*limit)) // rounding must not lose the best
	case best > 0:
		return len(set) // no site is there: the unknown ones are no better than the others
	}
	return keepUpTo(set, 0)
}

// of returns what the level compares of a place; empty: unknown.
func (l level) of(p *state.Location) string {
	switch {
	case l == levelSubdivision:
		return p.Subdivision
	case l == levelCountry:
		return p.Country
	case l == levelContinent:
		return p.Continent
	case l == levelDistance && p.HasCoordinates:
		return "coordinates"
	}
	return ""
}

// describe records the distance of every candidate, and what the level compares.
func describe(q *Query, set []Candidate, l level, from *state.Location) {
	for i := range set {
		to, number, note := set[i].Site.Location, "", ""
		if from != nil && from.HasCoordinates && to.HasCoordinates {
			number = fmt.Sprintf("%.0f km", state.DistanceKm(from, to))
		}
		switch {
		case l == levelOverride:
			note = "site " + set[i].Site.Name
		case l.of(to) == "":
			note = noData
		case l != levelDistance:
			note = l.String() + " " + l.of(to)
		}
		q.number(set[i].Member, number, note)
	}
}
