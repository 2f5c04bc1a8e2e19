package geo_test

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"gslbd/geo"
)

func TestDistanceKm(t *testing.T) {
	at := func(latitude, longitude float64) *geo.Location {
		return geo.NewLocation(geo.Location{Latitude: latitude, Longitude: longitude, HasCoordinates: true})
	}
	half := math.Pi * geo.EarthRadiusKm
	for _, c := range []struct {
		name      string
		a, b      *geo.Location
		want, tol float64
	}{
		{"the same place", at(37.57, 126.98), at(37.57, 126.98), 0, 0},
		{"Seoul to Virginia", at(37.57, 126.98), at(38.95, -77.45), 11130, 20},
		{"Seoul to Hong Kong", at(37.57, 126.98), at(22.28, 114.16), 2090, 10},
		{"Suva to Apia, over the antimeridian", at(-18.14, 178.44), at(-13.83, -171.76), 1150, 10},
		{"over the pole", at(80, 0), at(80, 180), 20 * half / 180, 1e-6},
		{"longitude means nothing at the pole", at(90, 10), at(90, -120), 0, 1e-6},
		{"antipodes", at(10, 20), at(-10, -160), half, 1e-3},
		{"a metre", at(50, 8), at(50.000009, 8), 0.001, 1e-5},
		{"180 and -180 are one", at(0, 180), at(0, -180), 0, 1e-6},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, got := range []float64{geo.DistanceKm(c.a, c.b), geo.DistanceKm(c.b, c.a)} {
				if math.Abs(got-c.want) > c.tol || math.IsNaN(got) {
					t.Errorf("got %v km, want %v ± %v", got, c.want, c.tol)
				}
			}
		})
	}
}

// Chords order places as distances do, and both ways of turning one into the other undo each other.
func TestChord(t *testing.T) {
	half := math.Pi * geo.EarthRadiusKm
	last := -1.0
	for _, km := range []float64{0, 1e-3, 1, 100, half / 2, half - 1, half} {
		chord := geo.ChordOfKm(km)
		if chord <= last || chord > 2 {
			t.Errorf("%v km: chord %v after %v", km, chord, last)
		}
		if got := geo.KmOfChord(chord); math.Abs(got-km) > 1e-3 {
			t.Errorf("%v km came back as %v", km, got)
		}
		last = chord
	}
	if got := geo.ChordOfKm(math.Inf(1)); got != 2 {
		t.Errorf("a distance beyond the globe: chord %v", got)
	}
}

// Arcs add up as their lengths do, and never reach beyond the other side of the globe.
func TestAddChords(t *testing.T) {
	half := math.Pi * geo.EarthRadiusKm
	for _, a := range []float64{0, 1e-3, 1, 100, 5000, half / 2, half - 1, half} {
		for _, b := range []float64{0, 1, 100, half / 2, half, math.Inf(1)} {
			got := geo.AddChords(geo.ChordOfKm(a), geo.ChordOfKm(b))
			if want := geo.ChordOfKm(a + b); math.Abs(got-want) > 1e-9 || got > 2 {
				t.Errorf("%v km and %v km: chord %v, want %v", a, b, got, want)
			}
		}
		if chord := geo.ChordOfKm(a); geo.AddChords(chord, 0) != chord {
			t.Errorf("%v km and nothing: chord %v, want %v", a, geo.AddChords(chord, 0), chord)
		}
	}
}

func TestSpecial(t *testing.T) {
	for network, addresses := range map[string]string{
		"0.0.0.0/8":         "0.0.0.0 0.255.255.255",
		"10.0.0.0/8":        "10.0.0.0 10.255.255.255",
		"100.64.0.0/10":     "100.64.0.0 100.127.255.255",
		"127.0.0.0/8":       "127.0.0.1 127.255.255.255",
		"169.254.0.0/16":    "169.254.0.0 169.254.255.255",
		"172.16.0.0/12":     "172.16.0.0 172.31.255.255",
		"192.0.0.0/24":      "192.0.0.0 192.0.0.255",
		"192.0.2.0/24":      "192.0.2.0 192.0.2.255",
		"192.88.99.0/24":    "192.88.99.0 192.88.99.255",
		"192.168.0.0/16":    "192.168.0.0 192.168.255.255",
		"198.18.0.0/15":     "198.18.0.0 198.19.255.255",
		"198.51.100.0/24":   "198.51.100.0 198.51.100.255",
		"203.0.113.0/24":    "203.0.113.0 203.0.113.255",
		"224.0.0.0/4":       "224.0.0.0 239.255.255.255",
		"240.0.0.0/4":       "240.0.0.0 255.255.255.254 255.255.255.255",
		"::/128":            "::",
		"::1/128":           "::1",
		"::ffff:0.0.0.0/96": "::ffff:0.0.0.0 ::ffff:8.8.8.8 ::ffff:255.255.255.255",
		"64:ff9b:1::/48":    "64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
		"100::/64":          "100:: 100::ffff:ffff:ffff:ffff",
		"100:0:0:1::/64":    "100:0:0:1:: 100:0:0:1:ffff:ffff:ffff:ffff",
		"2001:2::/48":       "2001:2:: 2001:2:0:ffff:ffff:ffff:ffff:ffff",
		"2001:10::/28":      "2001:10:: 2001:1f:ffff:ffff:ffff:ffff:ffff:ffff",
		"2001:20::/28":      "2001:20:: 2001:2f:ffff:ffff:ffff:ffff:ffff:ffff",
		"2001:30::/28":      "2001:30:: 2001:3f:ffff:ffff:ffff:ffff:ffff:ffff",
		"2001:db8::/32":     "2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
		"3fff::/20":         "3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
		"5f00::/16":         "5f00:: 5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"fc00::/7":          "fc00:: fd00::1 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"fe80::/10":         "fe80:: fe80::1%eth0 febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"fec0::/10":         "fec0:: feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"ff00::/8":          "ff00:: ff02::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		want := netip.MustParsePrefix(network)
		for a := range strings.FieldsSeq(addresses) {
			addr := netip.MustParseAddr(a)
			if bits, ok := geo.Special(addr); !ok || bits != want.Bits() {
				t.Errorf("Special(%v) = %d, %v; want %d, true", addr, bits, ok, want.Bits())
			}
		}
	}

	// The neighbours of the networks above, and those that look special and are not.
	for _, a := range strings.Fields(`1.0.0.0 9.255.255.255 11.0.0.0 11.1.1.1 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
		169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.1.0.0 192.88.98.255
		192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255
		203.0.114.0 223.255.255.255 8.8.8.8 192.31.196.1 192.52.193.1 192.175.48.1
		::2 ::1:0:0:0 64:ff9b::808:808 64:ff9b:2:: 100:0:0:2:: 2001::1 2001:1::1 2001:2:1:: 2001:3::1 2001:f:ffff:: 2001:40::
		2001:200::1 2001:db7:ffff:: 2001:db9:: 2001:4860:4860::8888 2002:808:808::1 2606:4700:4700::1111 3ffe:ffff:: 3fff:1000::
		5eff:ffff:: 5f01:: fbff:ffff:: fe00:: fe7f:ffff::`) {
		if bits, ok := geo.Special(netip.MustParseAddr(a)); ok || bits == 0 {
			t.Errorf("Special(%v) = %d, %v; want the length of its neighbourhood, false", a, bits, ok)
		}
	}
	if bits, ok := geo.Special(netip.Addr{}); ok || bits != 0 {
		t.Errorf("Special of the invalid address = %d, %v; want 0, false", bits, ok)
	}
}
