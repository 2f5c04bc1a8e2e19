// Package patterns runs patterns for a floating address, each as a reader would set it up: the files are in the folder of
// its name, and docs/patterns.md says when to choose which. Its tests are part of make e2e.
package patterns
