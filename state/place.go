package state

import (
	"net/netip"

	"gslbd/geo"
)

// DistanceKm is geo.DistanceKm, for packages that may not import geo.
func DistanceKm(a, b *Location) float64 { return geo.DistanceKm(a, b) }

// Special is geo.Special, for packages that may not import geo.
func Special(addr netip.Addr) (length int, ok bool) { return geo.Special(addr) }
