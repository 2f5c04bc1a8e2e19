package state

import (
	"runtime"
	"time"
)

const (
	// restAfter is how many clients or services are gone through between two rests: some 10 us, where the whole of a piece takes
	// 120, and has taken 470.
	restAfter = 32
	// Where there is more than one P, in one of handOverAfter rests, of a piece of 256 the fourth, it is given up too, for a worker that has
	// none while the collector has all others. Each time Go wakes a thread for a P that has no work: in each rest, that made two thirds
	// of the switches between threads.
	handOverAfter = 8
	// A rest is long where a worker is always busy: it gives the processor back after 10 ms only. After mostLongRests of them there
	// are no more, else the work would never be done, and who needs the lock that it holds would wait. One may be the machine's doing.
	longRest      = 5 * time.Millisecond
	mostLongRests = 4
)

// resting returns what recurring work calls after every restAfter clients or services, so that queries need not wait for the whole
// of it where there is one core.
func resting() func() {
	rests, long, handOver := 0, 0, handOverAfter
	if runtime.GOMAXPROCS(0) == 1 {
		handOver = 1
	}
	return func() {
		if long == mostLongRests {
			return
		}
		began := time.Now()
		if rests++; rests%handOver == handOver/2 {
			runtime.Gosched() // to who waits for this P
		}
		yield() // to who waits for this core
		if time.Since(began) > longRest {
			long++
		}
	}
}
