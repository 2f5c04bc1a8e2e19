package geo

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Options say what a DB is made of. The zero value is a DB that knows no address.
type Options struct {
	// Databases are the paths of files in the MaxMind DB format, in order: the first that has a usable entry for an
	// address places it. A file for IPv4 and another for IPv6 stand side by side.
	Databases []string

	// Overrides place prefixes by the operator's word, before any database. The longest that matches an address counts.
	Overrides []Override

	// Previous, when not nil, lends its databases: a file that is the same as when Previous read it is shared and not
	// read again. Previous stays as it is.
	Previous *DB

	// KeepPrevious leaves what Previous read in force where its file has become unusable since, and DB.Kept tells of it:
	// a bad download must not stand in the way of a reload for another reason.
	KeepPrevious bool
}

// A DB is an immutable set of overrides and databases. The zero value knows no address. It is safe for concurrent use
// and must not be copied.
type DB struct {
	overrides overrides
	databases []*database
	kept      []error
}

// Open reads and verifies every database and checks every override. It returns all that is wrong in one error, and then
// no DB.
func Open(o Options) (*DB, error) {
	var (
		db   DB
		errs []error
	)
	table, err := newOverrides(o.Overrides)
	if err != nil {
		errs = append(errs, err)
	}
	db.overrides = table

	seen := make(map[string]bool, len(o.Databases))
	for _, path := range o.Databases {
		if seen[path] {
			errs = append(errs, fmt.Errorf("geo: %s is listed twice: remove one", path))
			continue
		}
		seen[path] = true
		d, err := openDatabase(path, o.Previous)
		if err != nil && o.KeepPrevious {
			if before := o.Previous.database(path); before != nil {
				d, db.kept, err = before, append(db.kept, err), nil
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		db.databases = append(db.databases, d)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &db, nil
}

// A Result is what a lookup found.
type Result struct {
	Location *Location // nil: unknown
	Site     string    // of the matching override; empty: none
	Override bool      // an override matched
	Source   string    // for traces: "override PREFIX", or the database file's base name; empty: no entry

	// Bits is the length of the network around the address that gets this very result: no other entry, and no more
	// specific one, lies inside it (RFC 7871, section 7.2.1). A miss has such a network as well. It counts in the family
	// of the address that was given, so that it is 96 or more for an IPv4-mapped IPv6 address.
	Bits int
}

// Lookup places addr: the longest matching override, else the first database that has a usable entry. An override that
// only names a site leaves the location to the databases. Both then narrow Bits, as does every database that was asked.
//
// An IPv4-mapped IPv6 address is the IPv4 address that it carries; the invalid address is unknown.
//
// Hot path: a binary search of the overrides, and in each database a few loads of memory for IPv4 and a walk down the tree
// for IPv6; no lock; no allocation, except where a database's record is decoded for the first time, or again after another
// took its place in the cache.
func (db *DB) Lookup(addr netip.Addr) Result {
	var r Result
	db.LookupInto(addr, &r)
	return r
}

// LookupInto is Lookup for who looks up often: a Result takes as long to copy as to find.
func (db *DB) LookupInto(addr netip.Addr, r *Result) {
	*r = Result{}
	if !addr.IsValid() {
		return
	}
	plain := addr.Unmap()
	if len(db.overrides.entries) > 0 {
		*r = db.overrides.lookup(plain)
	}
	if r.Location == nil {
		for _, d := range db.databases {
			location, bits := d.lookup(plain)
			r.Bits = max(r.Bits, bits)
			if location != nil {
				r.Location = location
				if !r.Override {
					r.Source = d.name
				}
				break
			}
		}
	}
	r.Bits += addr.BitLen() - plain.BitLen()
}

// LookupOverride looks only at the overrides. Location is nil where the override only names a site. Bits is as short as
// it can be: a network one bit larger would hold an address with another result.
//
// Hot path: a binary search; no allocation, no lock.
func (db *DB) LookupOverride(addr netip.Addr) Result {
	if !addr.IsValid() {
		return Result{}
	}
	plain := addr.Unmap()
	r := db.overrides.lookup(plain)
	r.Bits += addr.BitLen() - plain.BitLen()
	return r
}

// HasCoordinates reports whether some database or override gives coordinates. Where none does, a distance from a client
// can never be computed: databases of countries are not enough.
func (db *DB) HasCoordinates() bool {
	for _, d := range db.databases {
		if d.coordinates {
			return true
		}
	}
	return db.overrides.coordinates
}

// Kept says what is wrong with the files whose previous content stays in force, see Options.KeepPrevious.
func (db *DB) Kept() []error { return db.kept }

// database returns the database that was read from path, or nil. db may be nil.
func (db *DB) database(path string) *database {
	if db != nil {
		for _, d := range db.databases {
			if d.path == path {
				return d
			}
		}
	}
	return nil
}

// Info describes a database that is in use.
type Info struct {
	Path        string    // as configured
	Type        string    // as the file calls itself, such as "GeoLite2-City"
	IPVersion   int       // 4: IPv4 only; 6: the tree holds IPv6, and mostly IPv4 as well
	Built       time.Time // when its maker built it
	Coordinates bool      // it has records with coordinates
}

// Databases describes the databases in the order in which they are asked.
func (db *DB) Databases() []Info {
	infos := make([]Info, len(db.databases))
	for i, d := range db.databases {
		infos[i] = Info{
			Path:        d.path,
			Type:        d.reader.Metadata.DatabaseType,
			IPVersion:   int(d.reader.Metadata.IPVersion),
			Built:       d.reader.Metadata.BuildTime().UTC(),
			Coordinates: d.coordinates,
		}
	}
	return infos
}
