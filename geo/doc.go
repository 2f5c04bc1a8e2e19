// Package geo places an address on the globe: by the operator's overrides first, then by databases in the MaxMind DB
// format. It also measures distances, knows the special-purpose networks that no database can place, and keeps the
// databases up to date while serving.
//
// Every lookup says how large the network is in which it would find the same thing (Result.Bits), which is what an
// answer to a client subnet must not exceed (RFC 7871, section 7.2.1).
//
// # What it refuses
//
// It does not guess. An address without an entry, a record without a usable field, coordinates that are missing, out of
// range or 0,0 (which stands for nothing): all of these are unknown, never a place. A country's registration is not taken for a
// location. A country alone gives its continent, since that is certain, but no coordinates.
//
// A file that is damaged, cut short, not a database or of a type without locations is refused whole, with an error that
// names the file.
//
// # Concurrency
//
// A DB is immutable and safe for any number of readers without a lock; the caches inside it are atomic. A Loader may be
// used from several goroutines; it opens one set of databases at a time.
//
// # Failure
//
// Files are read wholly into memory and verified before they are used, and never mapped, so that overwriting or cutting
// short a file in place can neither crash the process nor change what is served. When a new file is broken, the Loader
// keeps what it has, says so once, and tries again when the file changes.
package geo
