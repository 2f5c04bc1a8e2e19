package state

import (
	"net/netip"

	"gslbd/geo"
)

// DistanceKm is geo.DistanceKm, for packages that may not import geo.
func DistanceKm(a, b *Location) float64 { return geo.DistanceKm(a, b) }

// Place is geo.Result, for packages that may not import geo.
type Place = geo.Result

// ChordSquared is geo.ChordSquared, for packages that may not import geo.
func ChordSquared(a, b *Location) float64 { return geo.ChordSquared(a, b) }

// AddChords is geo.AddChords, for packages that may not import geo.
func AddChords(a, b float64) float64 { return geo.AddChords(a, b) }

// ChordOfKm is geo.ChordOfKm, for packages that may not import geo.
func ChordOfKm(km float64) float64 { return geo.ChordOfKm(km) }

// Special is geo.Special, for packages that may not import geo.
func Special(addr netip.Addr) (length int, ok bool) { return geo.Special(addr) }
