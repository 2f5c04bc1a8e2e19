// Package state holds what is measured now, and publishes it as immutable snapshots.
//
// Reports of sites, results of own checks, and operators' orders come in; a Snapshot goes out. Staleness, coverage,
// hysteresis of capacity, flap damping, blindness, pools and forced states are all resolved here, once, at publication,
// so that a metric only reads plain values and every reader of one snapshot sees the same moment.
//
// The package refuses to choose: which member answers a query is decided by package policy. It does no network I/O,
// and it does not know DNS. The chains and zones that it publishes are opaque to it.
//
// # Concurrency
//
// Every exported method of Store may be called from any goroutine. Snapshot is one atomic load, and what it returns
// never changes, except for the counters and the RTT table, which say so. Asked and Served take no lock. All other
// methods serialise on one mutex, which is never held during I/O or logging. Lock order: Store.mu, then targets.mu or
// clients.mu, then a shard of the RTT table.
//
// # Failure
//
// A report or check result that names what is not configured changes nothing. A state file that cannot be read is
// kept aside and the store starts without it; a state file that cannot be written is logged once and tried again. When
// all feeds fail at once the store is blind: it keeps the published states (docs/operations.md), because a cut-off gslbd
// must not declare the world down.
package state
