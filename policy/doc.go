// Package policy narrows the members of a service to an answer: the constraints first, then an ordered chain of metrics
// (docs/policies.md). "Why this answer?" is answered by chain.go, and by a Trace of the same code.
//
// To add a metric, write a file with its Keep and one line in build.go.
//
// # What it refuses
//
// It does no I/O, reads no clock, draws no chance and writes to nothing but the Query and the Decision: time, chance and
// rotation come in through the Query, and whoever serves the answer advances the rotation. It resolves nothing over
// time: staleness, hysteresis, damping, pools and orders are settled in the snapshot that it reads. It knows no DNS.
//
// # Concurrency
//
// A Chain is immutable and may be used by any number of goroutines. A Query is the scratch of one of them.
//
// # Failure
//
// Build reports all that is wrong with a policy at once. Decide cannot fail: a metric without data abstains, one that
// would leave nothing is skipped, so the answer is empty only if no member may serve, and then the Decision says so.
package policy
