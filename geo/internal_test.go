package geo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
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

// What Special says by the first octet of an IPv4 address is what a comparison with each network says.
func TestSpecialByOctet(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	for octet := range uint32(256) {
		rest := []uint32{0, 1<<24 - 1}
		for range 1000 {
			rest = append(rest, chance.Uint32()>>8)
		}
		for _, r := range rest {
			a := octet<<24 | r
			length, ok := special4(a)
			if wantLength, want := compare4(a); length != wantLength || ok != want {
				t.Fatalf("%x: %d, %v; want %d, %v", a, length, ok, wantLength, want)
			}
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

// A tree finds what the library finds, in files of every kind.
func TestTree(t *testing.T) {
	files, _ := filepath.Glob("../testdata/geo/*.mmdb")
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkTree(t, path, content)
	}
}

// A tree finds what the library finds, wherever its networks end.
func TestTreeOfAnything(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	for n := range 60 {
		o := mmdbwriter.Options{
			DatabaseType: "made-up-city", IncludeReservedNetworks: true,
			IPVersion: []int{4, 6}[n%2], RecordSize: []int{24, 28, 32}[n%3], DisableIPv4Aliasing: n%4 == 1,
		}
		writer, err := mmdbwriter.New(o)
		if err != nil {
			t.Fatal(err)
		}
		insert := func(network netip.Prefix) {
			record := mmdbtype.Map{"country_code": mmdbtype.String("KR"), "latitude": mmdbtype.Float64(float64(1 + chance.IntN(80)))}
			if err := writer.Insert(ipNet(network.Masked()), record); err != nil {
				t.Fatalf("%s: %v", network, err)
			}
		}
		switch n {
		case 1, 3: // IPv6 in which IPv4 is one network, or lies inside one
			insert(netip.PrefixFrom(netip.IPv6Unspecified(), 97-n))
		default:
			around := make([]uint32, 1+chance.IntN(20))
			for i := range around {
				around[i] = chance.Uint32()
			}
			for range chance.IntN(300) {
				a := around[chance.IntN(len(around))] ^ chance.Uint32()>>chance.IntN(33)
				insert(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}), 1+chance.IntN(32)))
			}
		}
		if o.IPVersion == 6 {
			insert(netip.MustParsePrefix("2001:db8::/40"))
		} else {
			insert(netip.MustParsePrefix("192.0.2.128/25"))
		}
		var file bytes.Buffer
		if _, err := writer.WriteTo(&file); err != nil {
			t.Fatal(err)
		}
		checkTree(t, fmt.Sprintf("tree %d, %+v", n, o), file.Bytes())
	}
}

// ipNet is a network as mmdbwriter takes it.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// checkTree asks a file for the addresses at both edges of each of its networks, and for others.
func checkTree(t *testing.T, name string, file []byte) {
	t.Helper()
	d, err := newDatabase(file)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if (d.tree.blocks == nil) != (d.tree.ipv4 >= d.tree.count) {
		t.Fatalf("%s: %d blocks, IPv4 begins at %d of %d", name, len(d.tree.blocks), d.tree.ipv4, d.tree.count)
	}
	walked := d.tree
	walked.blocks = nil

	chance := rand.New(rand.NewPCG(1, 2))
	var addresses []netip.Addr
	for n := range d.reader.Networks(maxminddb.IncludeNetworksWithoutData()) {
		first, b := n.Prefix().Addr().Unmap(), n.Prefix().Addr().AsSlice()
		for i := n.Prefix().Bits(); i < len(b)*8; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		last, _ := netip.AddrFromSlice(b)
		addresses = append(addresses, first.Prev(), first, first.Next(), last.Unmap().Prev(), last.Unmap(), last.Unmap().Next())
	}
	for range 3000 {
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
		for how, tree := range map[string]*tree{"blocks": &d.tree, "walk": &walked} {
			offset, length, found := tree.lookup(a)
			if length != wantLength || found != wantFound || found && offset != r.Offset() {
				t.Fatalf("%s, %v, %s: offset %d, %d bits, %v; want %d, %d, %v", name, a, how, offset, length, found, r.Offset(), wantLength, wantFound)
			}
			if a.Is6() || tree.noIPv4 {
				continue
			}
			key := binary.BigEndian.Uint32(a.AsSlice())
			at, _ := tree.lookup4(key)
			var ahead Ahead
			ahead.Begin(&DB{databases: []*database{{tree: *tree}}})
			ahead.Add(a)
			ahead.Blocks()
			if ahead.Descend(); ahead.all[0].at != at {
				t.Fatalf("%s, %v, %s: looked ahead to %d, not %d", name, a, how, ahead.all[0].at, at)
			}
		}
	}
}

// A file of so many nodes and bytes that its pointers do not fit into blocks is walked.
func TestTreeTooLarge(t *testing.T) {
	const nodes = 1<<29 - maxBlocks
	var b []byte
	for _, pointer := range []uint32{1, nodes, nodes + separator + 7, 2, nodes, nodes + separator + 1<<29} {
		b = binary.BigEndian.AppendUint32(b, pointer)
	}
	tr := newTree(b, nodes, 32, false)
	if tr.blocks != nil {
		t.Fatal("has blocks")
	}
	for a, want := range map[string][2]int{"0.0.0.0": {7, 2}, "64.0.0.0": {0, 3}, "96.0.0.0": {1 << 29, 3}, "128.0.0.0": {0, 1}} {
		offset, length, found := tr.lookup(netip.MustParseAddr(a))
		if got := [2]int{int(offset), length}; got != want || found != (want[0] > 0) {
			t.Errorf("%s: %v, %v; want %v", a, got, found, want)
		}
	}
}

// As many blocks as there can be, of a file of 32 nodes whose branches meet again: wherever a bit leads but for the last, it
// leads on.
func TestTreeFull(t *testing.T) {
	const nodes = 32
	var b []byte
	for n := range uint32(nodes) {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, n+1), n+1)
	}
	binary.BigEndian.PutUint32(b[len(b)-4:], nodes+separator+7)
	tr := newTree(b, nodes, 32, false)
	if len(tr.blocks) != maxBlocks || cap(tr.blocks) != maxBlocks {
		t.Fatalf("%d blocks, room for %d, want %d", len(tr.blocks), cap(tr.blocks), maxBlocks)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		a := chance.Uint32()
		if at, length := tr.lookup4(a); length != 32 || at != nodes+a%2*(separator+7) {
			t.Fatalf("%x: %d, %d bits", a, at, length)
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

// An Ahead that waits for its next use keeps no database from being freed.
func TestAheadLetsGo(t *testing.T) {
	db, err := Open(Options{Databases: []string{"../testdata/geo/cities.mmdb"}})
	if err != nil {
		t.Fatal(err)
	}
	var a Ahead
	for n := MostAhead; n > 0; n /= 2 {
		a.Begin(db)
		for range n {
			a.Add(netip.MustParseAddr("20.1.2.3"))
		}
		a.Blocks()
		a.Descend()
		a.Records()
		a.End()
		if a.db != nil || slices.ContainsFunc(a.all[:], func(w walker) bool { return w.d != nil || w.step != nil }) {
			t.Fatalf("%d addresses: it keeps a database", n)
		}
	}
}

// What a lookup reads of a cached record begins on a cache line.
func TestCachedRecordsBeginOnALine(t *testing.T) {
	if size := unsafe.Sizeof(cached{}); size%64 != 0 {
		t.Errorf("a cached record has %d octets, so that not each begins on a cache line", size)
	}
}
