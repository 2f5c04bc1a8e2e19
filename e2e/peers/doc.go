//go:build linux

// Command peers measures gslbd and other DNS servers side by side: `make bench-peers` runs it and docs/performance.md
// has its table.
//
// All servers of a workload are started in a network, process and mount namespace of their own, on one core, and asked
// from another, each in turn, round by round; those whose turn it is not are stopped by SIGSTOP. What is compared are
// the servers' own CPU nanoseconds for a query, since queries per second depend on the client as well. A server that
// is not installed, or that cannot do what a workload needs, is named and left out.
//
// It sends nothing beyond its own namespace, ends by itself, and leaves nothing behind: when its first process in the
// namespace ends, however it does, the kernel ends the others. It needs root and Linux.
package main
