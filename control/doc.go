// Package control keeps what operators have ordered: forced states, evacuations with their ledger, failback latches.
//
// Everything is a Record or a Tombstone that ends one, both immutable. What is in force is the union of the records that
// this gslbd knows, less those that a tombstone names; no order of arrival, repetition or partition changes it
// (docs/orders.md). Records are kept in a journal on disk before anyone is told that they are accepted, and shared
// through etcd where that is configured.
//
// The package refuses to judge health and to choose answers: it tells package state what is forced, latched and to be
// drained, and state makes it part of the next snapshot.
//
// # Concurrency
//
// All methods of Control may be called from any goroutine. What is known is an immutable set that is replaced as a whole,
// so that readers take no lock; whatever changes it is serialised from the journal to the Store.
//
// # Failure
//
// New never fails. A journal that is damaged, held by another process or cannot be written is left as it is: what could
// be read of it is in force, new orders are refused, and Problems says what to do; one that only could not be written is
// tried again. A write that fails refuses that order only, and what follows from others or came by etcd is in force all
// the same, and written later. Without etcd an order holds on the gslbd that was given it, and is delivered later. A gslbd that was away for
// more than 30 days may bring back orders that were cleared meanwhile: move its journal away before it starts.
package control
