package state

import (
	"runtime"
	"time"
)

const (
	// restAfter is how many clients or services are gone through between two rests: some 10 us, where the whole of a piece takes
	// 120, and has taken 470.
	restAfter = 32
	// restMost is the longest rest after which there are more.
	restMost = 5 * time.Millisecond
)

// resting returns what recurring work calls after every restAfter clients or services, so that queries need not wait for the whole
// of it where there is one core. A worker that is always busy gives the processor back only after 10 ms: then there are no more
// rests, else the work would never be done.
func resting() func() {
	busy := false
	return func() {
		if busy {
			return
		}
		began := time.Now()
		runtime.Gosched() // to who waits for this P
		yield()           // to who waits for this core
		busy = time.Since(began) > restMost
	}
}
