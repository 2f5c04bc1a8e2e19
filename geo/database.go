package geo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/oschwald/geoip2-golang/v2"
	"github.com/oschwald/maxminddb-golang/v2"
)

const (
	// maxFileSize bounds the memory that a file named by mistake can take. The largest databases sold have 1 GiB.
	maxFileSize = 4 << 30

	// maxCached records stay decoded, in 2 MiB of pointers a database and some 40 MiB of locations. A full database of cities
	// has a few hundred thousand, and ECS brings clients from most of them.
	maxCached = 1 << 18

	// cacheWays is in how many places of the cache, one after the other, a record may stand: where two that are both asked
	// for shared one, each lookup would decode.
	cacheWays = 4

	// golden is 2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly.
	golden = 0x9e3779b97f4a7c15

	// maxScanned networks are looked at when a database is opened, to see what its records hold. A database of cities
	// shows coordinates in the first few; one of countries has none to show. Without a bound, a tree whose branches share
	// their nodes could take for ever.
	maxScanned = 1 << 20
)

// A database is one file, read and verified. Its cache is atomic, all else is fixed at construction.
type database struct {
	path, name  string
	stamp       stamp
	reader      *maxminddb.Reader
	tree        tree
	layout      layout
	coordinates bool

	cache []atomic.Pointer[cached] // a power of two, by a hash of the record's offset
	shift uint                     // of that hash
}

// A cached record is what was decoded at an offset of the file.
type cached struct {
	offset   uintptr
	usable   bool
	location Location // where usable; beside the offset, which a lookup reads first
	_        [16]byte // it begins on a cache line
}

// A stamp tells whether a file is still the one that was seen. Its zero value is of no file.
type stamp struct {
	info fs.FileInfo
	err  string // why the file could not be looked at
}

func stampOf(path string) stamp {
	info, err := os.Stat(path) // follows symbolic links, whose target may be swapped
	if err != nil {
		return stamp{err: err.Error()}
	}
	return stamp{info: info}
}

func (s stamp) equal(o stamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil && s.err == o.err
	}
	return os.SameFile(s.info, o.info) && s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime()) &&
		s.info.Mode() == o.info.Mode()
}

// openDatabase reads and verifies a file, or shares it with previous when the file has not changed since.
func openDatabase(path string, previous *DB) (*database, error) {
	if d := previous.database(path); d != nil {
		if now := stampOf(path); now.info != nil && d.stamp.equal(now) {
			return d, nil
		}
	}
	buffer, s, err := readWhole(path)
	if err != nil {
		return nil, fmt.Errorf("geo: %w", err)
	}
	d, err := newDatabase(buffer)
	if err != nil {
		return nil, fmt.Errorf("geo: %s: %w", path, err)
	}
	d.path, d.name, d.stamp = path, filepath.Base(path), s
	return d, nil
}

// readWhole reads a file and makes sure that nobody wrote to it meanwhile. The error names the file.
func readWhole(path string) ([]byte, stamp, error) {
	// Opening a pipe would wait for its other end.
	if before := stampOf(path); before.info != nil && !before.info.Mode().IsRegular() {
		return nil, stamp{}, fmt.Errorf("%s: is not a regular file: name a database file (.mmdb)", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, stamp{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	switch {
	case info.Size() == 0:
		return nil, stamp{}, fmt.Errorf("%s: is empty: fetch the database again", path)
	case info.Size() > maxFileSize:
		return nil, stamp{}, fmt.Errorf("%s: has %d bytes, more than a database can have (%d)", path, info.Size(), int64(maxFileSize))
	}
	buffer := make([]byte, info.Size())
	if _, err := io.ReadFull(f, buffer); err != nil {
		return nil, stamp{}, fmt.Errorf("%s: %w (was the file cut short while it was read?)", path, err)
	}
	s := stamp{info: info}
	info, err = f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if !s.equal(stamp{info: info}) {
		return nil, stamp{}, fmt.Errorf("%s: changed while it was read: write a new file beside it and rename it into place", path)
	}
	return buffer, s, nil
}

// newDatabase verifies the bytes of a file, which it keeps. The error does not name the file.
func newDatabase(buffer []byte) (*database, error) {
	reader, err := maxminddb.OpenBytes(buffer)
	if err != nil {
		if !bytes.Contains(buffer, []byte("\xab\xcd\xefMaxMind.com")) {
			return nil, fmt.Errorf("is not a MaxMind DB file, or was cut short (it begins with %q): fetch the database again", buffer[:min(len(buffer), 16)])
		}
		return nil, fmt.Errorf("is damaged: %w: fetch the database again", err)
	}
	// The description says nothing to us, and files without one are about (DB-IP's flat ones), but Verify insists on it.
	if len(reader.Metadata.Description) == 0 {
		reader.Metadata.Description = map[string]string{"en": reader.Metadata.DatabaseType}
	}
	if err := reader.Verify(); err != nil {
		return nil, fmt.Errorf("is damaged: %w: fetch the database again", err)
	}

	d := &database{reader: reader}
	known, err := layoutOfType(buffer)
	if err != nil {
		return nil, err
	}
	d.layout, d.coordinates = scan(reader, known)
	if d.layout == unknownLayout {
		return nil, noLocations(reader.Metadata.DatabaseType)
	}

	m := &reader.Metadata
	d.tree = newTree(buffer, m.NodeCount, m.RecordSize, m.IPVersion == 6)
	size := 1 << bits.Len(min(reader.Metadata.NodeCount, maxCached-1))
	d.cache = make([]atomic.Pointer[cached], size)
	d.shift = uint(64 - bits.Len(uint(size-1)))
	return d, nil
}

// layoutOfType goes by the type that the file declares: the nested layout for MaxMind's types, unknownLayout for a type
// that geoip2 does not know, and an error for one that has no locations.
func layoutOfType(buffer []byte) (layout, error) {
	r, err := geoip2.OpenBytes(buffer)
	if unknown := (geoip2.UnknownDatabaseTypeError{}); errors.As(err, &unknown) {
		return unknownLayout, nil
	}
	if err != nil {
		return unknownLayout, fmt.Errorf("is damaged: %w: fetch the database again", err)
	}
	_, err = r.City(netip.IPv4Unspecified())
	if wrong := (geoip2.InvalidMethodError{}); errors.As(err, &wrong) {
		return unknownLayout, noLocations(wrong.DatabaseType)
	}
	return nestedLayout, nil
}

func noLocations(databaseType string) error {
	return fmt.Errorf("is of type %q, which has no locations: use a City database, or one of type Country where no distance is needed", databaseType)
}

// scan looks at the records until one shows coordinates. Where the declared type does not tell the layout, the first
// record that can be used in either does; it stays unknown when there is none.
func scan(reader *maxminddb.Reader, known layout) (layout, bool) {
	seen := make(map[uintptr]struct{})
	networks := 0
	for r := range reader.Networks(maxminddb.IncludeNetworksWithoutData()) { // those count too, or the bound is none
		if networks++; networks > maxScanned || r.Err() != nil {
			break
		}
		if _, ok := seen[r.Offset()]; ok || !r.Found() {
			continue
		}
		seen[r.Offset()] = struct{}{}
		var location *Location
		for _, l := range [...]layout{nestedLayout, flatLayout} {
			if known != unknownLayout && known != l {
				continue
			}
			if location = l.decode(r); location != nil {
				known = l
				break
			}
		}
		if location != nil && location.HasCoordinates {
			return known, true
		}
	}
	return known, false
}

// lookup returns the location of addr, nil if the database has none, and the length of the network of which that is
// true. addr is valid and not IPv4-mapped.
func (d *database) lookup(addr netip.Addr) (*Location, int) {
	offset, length, found := d.tree.lookup(addr)
	if !found {
		return nil, length
	}
	return d.location(offset), length
}

// location returns what the record at an offset says, nil for nothing usable, out of the cache if it is there.
func (d *database) location(offset uintptr) *Location {
	first := uint64(offset) * golden >> d.shift
	free := &d.cache[first] // of another record, where all places are taken
	for way := range uint64(cacheWays) {
		slot := &d.cache[(first+way)%uint64(len(d.cache))]
		c := slot.Load()
		if c == nil {
			free = slot
			break
		}
		if c.offset == offset {
			return c.get()
		}
	}
	c := &cached{offset: offset}
	if l := d.layout.decode(d.reader.LookupOffset(offset)); l != nil {
		c.usable, c.location = true, *l
	}
	free.Store(c)
	return c.get()
}

func (c *cached) get() *Location {
	if !c.usable {
		return nil
	}
	return &c.location
}
