package geo

import (
	"math"
	"net/netip"
)

// A Location says where an address or a site is. Empty fields are unknown. A Location is immutable once it is
// published; build one with NewLocation, which computes what DistanceKm needs. What a distance reads stands first, on one
// cache line.
type Location struct {
	HasCoordinates bool

	// The point on the unit sphere, so that a distance costs no trigonometry of the site's side.
	x, y, z float64

	Continent   string // two letters: AF AN AS EU NA OC SA
	Country     string // ISO 3166-1 alpha-2
	Subdivision string // as the database names it: an ISO 3166-2 part ("CA") or a name ("California")

	Latitude, Longitude float64 // degrees; meaningful only when HasCoordinates
}

// NewLocation returns l with what DistanceKm needs computed.
func NewLocation(l Location) *Location {
	if l.HasCoordinates {
		lat, lon := l.Latitude*math.Pi/180, l.Longitude*math.Pi/180
		l.x = math.Cos(lat) * math.Cos(lon)
		l.y = math.Cos(lat) * math.Sin(lon)
		l.z = math.Sin(lat)
	}
	return &l
}

// EarthRadiusKm is the mean radius R1 of the IUGG, in kilometres.
const EarthRadiusKm = 6371.0088

// DistanceKm returns the great-circle distance of a and b in kilometres. Both must have coordinates and come from
// NewLocation. It is exact over the antimeridian and the poles, and for points close together, because it measures
// the chord.
func DistanceKm(a, b *Location) float64 { return KmOfChord(Chord(a, b)) }

// Chord returns the straight line between a and b, in radii of the earth: 0 to 2. It grows with DistanceKm, so that many
// distances are compared without trigonometry. Both must have coordinates and come from NewLocation.
func Chord(a, b *Location) float64 { return math.Sqrt(ChordSquared(a, b)) }

// ChordSquared returns the square of Chord, which costs less and grows with it.
func ChordSquared(a, b *Location) float64 {
	dx, dy, dz := a.x-b.x, a.y-b.y, a.z-b.z
	return dx*dx + dy*dy + dz*dz
}

// KmOfChord returns the great-circle distance in kilometres of two points that are a chord apart.
func KmOfChord(chord float64) float64 { return 2 * EarthRadiusKm * math.Asin(min(chord/2, 1)) }

// ChordOfKm returns the chord between two points that are km, at least 0, apart on a great circle; 2, all of the globe's
// width, from half of its circumference on.
func ChordOfKm(km float64) float64 { return 2 * math.Sin(min(km/(2*EarthRadiusKm), math.Pi/2)) }

// AddChords returns the chord of two arcs of a great circle one after the other, given the chords of each; 2 from half of
// the circumference on. It costs no trigonometry.
func AddChords(a, b float64) float64 {
	// Of half an arc, the chord's half is the sine.
	sinA, sinB := min(a/2, 1), min(b/2, 1)
	cosA, cosB := math.Sqrt(1-sinA*sinA), math.Sqrt(1-sinB*sinB)
	if cosA*cosB <= sinA*sinB {
		return 2
	}
	return 2 * (sinA*cosB + cosA*sinB)
}

// An Override places a prefix by the operator's word, before any database.
type Override struct {
	Prefix   netip.Prefix
	Site     string   // the site that clients of Prefix prefer; empty: none
	Location Location // replaces the whole of the database's location when any field is set
}
