package geo

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oschwald/maxminddb-golang/v2"
)

// Every country is on one continent, and there are as many as ISO 3166-1 has (249) and Kosovo.
func TestContinentOf(t *testing.T) {
	seen := map[string]bool{}
	for _, list := range []string{africa, antarctica, asia, europe, northAmerica, oceania, southAmerica} {
		for c := range strings.FieldsSeq(list) {
			if seen[c] || len(c) != 2 || c != strings.ToUpper(c) {
				t.Errorf("%q is listed twice or is no code", c)
			}
			seen[c] = true
		}
	}
	if len(seen) != 250 {
		t.Errorf("%d countries, want 250", len(seen))
	}
	for country, want := range map[string]string{"KR": "AS", "US": "NA", "NA": "AF", "AS": "OC", "BR": "SA", "AQ": "AN", "GB": "EU", "QQ": "", "": "", "A": "", "O ": "", " A": ""} {
		if got := ContinentOf(countryCode(country)); got != want {
			t.Errorf("%q: %q, want %q", country, got, want)
		}
	}
}

// A tree of 96 nodes whose branches all meet again has 2^96 networks. It must be refused or opened in reasonable time.
func TestOpenSharedBranches(t *testing.T) {
	const nodes = 96
	var b []byte
	for n := range nodes {
		b = append(b, 0, 0, byte(n+1), 0, 0, byte(n+1)) // the last points to "nothing", which is written as the number of nodes
	}
	b[5] = nodes + 16                  // the root's right branch is the record, which Verify wants to be in use
	b = append(b, make([]byte, 16)...) // separator
	b = append(b, "\xe0"...)           // the data: an empty map
	b = append(b, "\xab\xcd\xefMaxMind.com\xe9"...)
	text := func(s string) { b = append(append(b, 0x40|byte(len(s))), s...) }
	for _, name := range []string{"binary_format_major_version", "binary_format_minor_version", "ip_version", "node_count", "record_size"} {
		value := map[string]byte{"binary_format_major_version": 2, "ip_version": 6, "node_count": nodes, "record_size": 24}[name]
		text(name)
		b = append(b, 0xa1, value)
	}
	text("build_epoch")
	b = append(b, 0x01, 0x02, 1)
	text("database_type")
	text("GeoLite2-City")
	text("description")
	b = append(b, 0xe1)
	text("en")
	text("none")
	text("languages")
	b = append(b, 0x00, 0x04)

	d, err := newDatabase(b)
	if err != nil {
		t.Fatal(err)
	}
	if location, _ := d.lookup(netip.MustParseAddr("2001:db8::1")); location != nil || d.coordinates {
		t.Error("found something in an empty database")
	}
}

// Two records that want the same place in the cache do not take each other's.
func TestCacheCollision(t *testing.T) {
	db, err := Open(Options{Databases: []string{"../testdata/geo/cities.mmdb"}})
	if err != nil {
		t.Fatal(err)
	}
	d := db.databases[0]
	d.cache, d.shift = d.cache[:1], 64
	for range 3 {
		for a, want := range map[string]string{"8.8.8.8": "US", "11.1.1.1": "HK", "168.126.63.1": "KR"} {
			if l := db.Lookup(netip.MustParseAddr(a)).Location; l == nil || l.Country != want {
				t.Errorf("%s: got %+v, want %s", a, l, want)
			}
		}
	}
}

// The walk down the tree finds what the library finds, in files of every kind.
func TestTree(t *testing.T) {
	files, _ := filepath.Glob("../testdata/geo/*.mmdb")
	chance := rand.New(rand.NewPCG(1, 2))
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := newDatabase(content)
		if err != nil {
			t.Fatal(err)
		}
		var addresses []netip.Addr
		for n := range d.reader.Networks(maxminddb.IncludeNetworksWithoutData()) {
			first := n.Prefix().Addr().Unmap()
			addresses = append(addresses, first, first.Prev(), first.Next())
		}
		for range 10_000 {
			var a [16]byte
			binary.BigEndian.PutUint64(a[:], chance.Uint64()>>chance.IntN(64))
			addresses = append(addresses, netip.AddrFrom16(a), netip.AddrFrom4([4]byte(a[4:8])), netip.AddrFrom4([4]byte(a[:4])))
		}
		for _, a := range addresses {
			if !a.IsValid() || a.Is4In6() || a.Is6() && d.reader.Metadata.IPVersion == 4 {
				continue
			}
			r := d.reader.Lookup(a)
			wantLength, wantFound := r.Prefix().Bits(), r.Found()
			if r.Prefix().Addr().Is4() != a.Is4() {
				wantLength, wantFound = 0, false
			}
			offset, length, found := d.tree.lookup(a)
			if length != wantLength || found != wantFound || found && offset != r.Offset() {
				t.Fatalf("%s, %v: offset %d, %d bits, %v; want %d, %d, %v", path, a, offset, length, found, r.Offset(), wantLength, wantFound)
			}
		}
	}
}

// Nodes of 24, 28 and 32 bits are read as the format says.
func TestTreeChild(t *testing.T) {
	for recordSize, node := range map[uint][]byte{
		24: {0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc},
		28: {0x12, 0x34, 0x56, 0xab, 0x78, 0x9a, 0xbc},
		32: {0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0},
	} {
		want := map[uint][2]uint32{24: {0x123456, 0x789abc}, 28: {0xa123456, 0xb789abc}, 32: {0x12345678, 0x9abcdef0}}[recordSize]
		tr := tree{nodes: append(make([]byte, len(node)), node...), size: recordSize / 4}
		if got := [2]uint32{tr.child(1, 0), tr.child(1, 1)}; got != want {
			t.Errorf("%d bits: %x, want %x", recordSize, got, want)
		}
	}
}

// However short a file was cut, it is never loaded.
func TestOpenCutShort(t *testing.T) {
	for _, name := range []string{"cities.mmdb", "flat-city-ipv4.mmdb"} {
		whole, err := os.ReadFile("../testdata/geo/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newDatabase(whole); err != nil {
			t.Fatal(err)
		}
		for n := range whole {
			if _, err := newDatabase(whole[:n:n]); err == nil {
				t.Errorf("%s: opened with %d bytes of %d", name, n, len(whole))
			}
		}
	}
}

// Whatever the bytes, a database is refused or can be asked.
func FuzzOpen(f *testing.F) {
	paths, _ := filepath.Glob("../testdata/geo/*.mmdb")
	broken, _ := filepath.Glob("../testdata/geo/broken/*.mmdb")
	for _, path := range append(paths, broken...) {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	if len(paths) == 0 {
		f.Fatal("no seeds")
	}
	addresses := []netip.Addr{
		netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("198.18.32.17"),
		netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("::"), netip.MustParseAddr("2001:4860:4860::8888"),
		netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) > 1<<16 {
			return
		}
		d, err := newDatabase(content)
		if err != nil {
			return
		}
		for _, a := range addresses {
			location, bits := d.lookup(a)
			if bits < 0 || bits > a.BitLen() {
				t.Fatalf("%v: %d bits", a, bits)
			}
			if location == nil {
				continue
			}
			if location.HasCoordinates && !validCoordinates(location.Latitude, location.Longitude) {
				t.Fatalf("%v: %+v", a, location)
			}
			if again, _ := d.lookup(a); again != location {
				t.Fatalf("%v: not cached", a)
			}
		}
	})
}
