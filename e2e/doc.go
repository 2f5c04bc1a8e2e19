// Package e2e holds the tests of the whole: the real binaries, a real HAProxy, a real resolver, and the rules that the
// tree itself must keep.
//
// Tests that need root or a program of the system say loudly what they skip; with E2E=require in the environment, a
// skip is a failure. Everything listens on loopback, or in network namespaces that a test makes and removes.
//
// Concurrency: tests run one after the other where they share a port or a namespace. Failure: a process that a test
// started is killed with it, and its log is printed.
package e2e
