package geo

import "net/netip"

// A DB is an immutable set of overrides and databases.
type DB struct{}

// A Result is what a lookup found.
type Result struct {
	Location *Location // nil: unknown
	Site     string    // of the matching override; empty: none
	Override bool      // an override matched
	Source   string    // for traces: "override PREFIX", or the database file's base name; empty: no entry
	Bits     int       // length of the largest network around the address in which the result is the same, see RFC 7871 section 7.2.1
}

// Lookup places addr: the longest matching override, else the first database that has an entry. Hot path.
func (db *DB) Lookup(addr netip.Addr) Result { return Result{} }

// LookupOverride looks only at the overrides. Hot path.
func (db *DB) LookupOverride(addr netip.Addr) Result { return Result{} }

// Special reports whether addr lies in a special-purpose network (IANA registries, RFC 6890), and its length.
func Special(addr netip.Addr) (bits int, ok bool) { return 0, false }
