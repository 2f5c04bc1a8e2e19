//go:build race

package dns_test

// raceEnabled makes the longest tests shorter.
const raceEnabled = true
