// Package agents runs many agents against several gslbd, and measures what they cost one another. With its flags as they are
// it is a test of some seconds, which is part of make e2e; make bench-agents is the size that docs/performance.md tells of.
package agents
