package main

import (
	"os"
	"runtime"
)

// startGC is GOGC while gslbd starts: nearly all that it reads stays, and to go through it again whenever it has
// doubled would be a quarter of the work.
const startGC = 800

// reloadGC is GOGC while a reload lasts: so that it ends before the collector begins, which would take a core of its own, when the
// reload has one and queries need the other. What a reload leaves as garbage, and both configurations, are below that.
const reloadGC = 400

// evenProcs raises GOMAXPROCS, unless it is set in the environment, to where the collector has Ps of its own.
//
// It marks with a quarter of the Ps. Where that is no whole number by some 30 %, as for 1, 2, 3 and 6, every P marks for a share
// of the time, 10 ms and more at once, and comes before queries that wait for a P (runtime/mgcpacer.go, fractional workers). Workers
// of UDP have threads of their own, so that more Ps than cores cost them nothing.
func evenProcs() {
	n := runtime.GOMAXPROCS(0)
	if more := even(n); more != n && os.Getenv("GOMAXPROCS") == "" { // once it is called, Go no longer follows a quota that changes
		runtime.GOMAXPROCS(more)
	}
}

// even returns the least number from n on of which the collector takes whole Ps.
func even(n int) int {
	switch {
	case n < 4:
		return 4
	case n == 6:
		return 7
	}
	return n
}
