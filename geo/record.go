package geo

import (
	"strconv"
	"strings"

	"github.com/oschwald/geoip2-golang/v2"
	"github.com/oschwald/maxminddb-golang/v2"
	"github.com/oschwald/maxminddb-golang/v2/mmdbdata"
)

// A layout is how a database's records are written.
type layout int

const (
	unknownLayout layout = iota
	nestedLayout         // MaxMind's: {country: {iso_code}, location: {latitude, longitude}, ...}
	flatLayout           // {country_code, latitude, longitude, state1, ...}
)

// nestedRecord is what we need of a record of MaxMind's City, Country and Enterprise types. The rest is not decoded.
type nestedRecord struct {
	Continent    geoip2.Continent         `maxminddb:"continent"`
	Country      geoip2.CountryRecord     `maxminddb:"country"`
	Subdivisions []geoip2.CitySubdivision `maxminddb:"subdivisions"`
	Location     geoip2.Location          `maxminddb:"location"`
}

// flatRecord is what we need of a flat record, by every name that is in use for it.
type flatRecord struct {
	ContinentCode text    `maxminddb:"continent_code"`
	CountryCode   text    `maxminddb:"country_code"`
	Country       text    `maxminddb:"country"`
	State1        text    `maxminddb:"state1"`
	Region        text    `maxminddb:"region"`
	Latitude      degrees `maxminddb:"latitude"`
	Lat           degrees `maxminddb:"lat"`
	Longitude     degrees `maxminddb:"longitude"`
	Lng           degrees `maxminddb:"lng"`
}

// decode returns the location in a record, or nil when there is nothing in it that can be used: a record that cannot be
// read is as good as none.
func (l layout) decode(r maxminddb.Result) *Location {
	switch l {
	case nestedLayout:
		var n nestedRecord
		if r.Decode(&n) != nil {
			return nil
		}
		var (
			latitude, longitude degrees
			subdivision         string
		)
		if n.Location.HasCoordinates() {
			latitude = degrees{*n.Location.Latitude, true}
			longitude = degrees{*n.Location.Longitude, true}
		}
		if len(n.Subdivisions) > 0 {
			subdivision = first(n.Subdivisions[0].ISOCode, n.Subdivisions[0].Names.English)
		}
		return usable(n.Continent.Code, n.Country.ISOCode, subdivision, latitude, longitude)
	case flatLayout:
		var f flatRecord
		if r.Decode(&f) != nil {
			return nil
		}
		latitude, longitude := f.Latitude, f.Longitude
		if !latitude.known && !longitude.known {
			latitude, longitude = f.Lat, f.Lng
		}
		country := first(string(f.CountryCode), string(f.Country))
		return usable(string(f.ContinentCode), country, first(string(f.State1), string(f.Region)), latitude, longitude)
	}
	return nil
}

// usable makes a location of what can be believed, or returns nil if that is nothing.
func usable(continent, country, subdivision string, latitude, longitude degrees) *Location {
	l := Location{Country: countryCode(country), Subdivision: strings.TrimSpace(subdivision)}
	switch continent = strings.ToUpper(continent); continent {
	case "AF", "AN", "AS", "EU", "NA", "OC", "SA":
		l.Continent = continent
	default:
		l.Continent = ContinentOf(l.Country)
	}
	// The point 0,0 lies in the sea. It is how some databases write that they do not know.
	if latitude.known && longitude.known && validCoordinates(latitude.value, longitude.value) &&
		(latitude.value != 0 || longitude.value != 0) {
		l.Latitude, l.Longitude, l.HasCoordinates = latitude.value, longitude.value, true
	}
	if l == (Location{}) {
		return nil
	}
	return NewLocation(l)
}

// countryCode returns a code of two letters in capitals; empty: none, or one that stands for "unknown".
func countryCode(s string) string {
	if len(s) != 2 {
		return ""
	}
	s = strings.ToUpper(s)
	if s[0] < 'A' || s[0] > 'Z' || s[1] < 'A' || s[1] > 'Z' || s == "ZZ" || s == "XX" {
		return ""
	}
	return s
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// text is a string of a record; empty when the record has something else there.
type text string

// UnmarshalMaxMindDBCursor reads a string and passes over anything else.
func (t *text) UnmarshalMaxMindDBCursor(c mmdbdata.Cursor) (mmdbdata.Cursor, error) {
	kind, err := c.Kind()
	if err != nil {
		return mmdbdata.Cursor{}, err
	}
	if kind != mmdbdata.KindString {
		return c.Skip()
	}
	s, next, err := c.ReadString()
	if err != nil {
		return mmdbdata.Cursor{}, err
	}
	*t = text(s)
	return next, nil
}

// degrees is a coordinate of a record, which databases write as a float of 32 or 64 bits, a whole number or a string.
type degrees struct {
	value float64
	known bool
}

// UnmarshalMaxMindDBCursor reads a number in any of its spellings and passes over anything else.
func (d *degrees) UnmarshalMaxMindDBCursor(c mmdbdata.Cursor) (mmdbdata.Cursor, error) {
	kind, err := c.Kind()
	if err != nil {
		return mmdbdata.Cursor{}, err
	}
	switch kind {
	case mmdbdata.KindFloat64, mmdbdata.KindFloat32:
		value, next, err := c.ReadFloat()
		if err != nil {
			return mmdbdata.Cursor{}, err
		}
		*d = degrees{value, true}
		return next, nil
	case mmdbdata.KindInt32:
		value, next, err := c.ReadInt32()
		if err != nil {
			return mmdbdata.Cursor{}, err
		}
		*d = degrees{float64(value), true}
		return next, nil
	case mmdbdata.KindUint16, mmdbdata.KindUint32:
		value, next, err := c.ReadUint()
		if err != nil {
			return mmdbdata.Cursor{}, err
		}
		*d = degrees{float64(value), true}
		return next, nil
	case mmdbdata.KindString:
		s, next, err := c.ReadString()
		if err != nil {
			return mmdbdata.Cursor{}, err
		}
		if value, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil {
			*d = degrees{value, true}
		}
		return next, nil
	}
	return c.Skip()
}
