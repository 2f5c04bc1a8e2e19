// Package control keeps what operators have ordered: forced states, evacuations with their ledger, failback latches.
//
// Everything is a Record or a Tombstone that ends one, both immutable. What is in force is the union of the records that
// this gslbd knows, less those that a tombstone names; no order of arrival, repetition or partition changes it
// (docs/operations.md). Records are kept in a journal on disk before anyone is told that they are accepted, and shared
// through etcd where that is configured.
package control
