//go:build race

package e2e

// raceFlags has the programs under test built as the tests are.
var raceFlags = []string{"-race"}
