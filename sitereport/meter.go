package sitereport

import (
	"math"
	"time"
)

// A meter turns counters of bytes into rates. The zero meter has seen nothing. It is not safe for concurrent use.
//
// Counters are read at moments that are only roughly an interval apart, and start again from 0 when whoever keeps them
// restarts; so a rate is what was counted since the last reading by the monotonic time since then, and where that is not
// known for certain there is none. A rate that is absent for one interval does no harm; one that is negative or huge
// would move a site's clients.
type meter struct {
	at   time.Time
	last map[string]traffic
}

// traffic is bytes counted in both directions.
type traffic struct{ in, out uint64 }

// rate returns the bits per second in and out since the last reading, summed over all counters, and remembers this one.
// It returns nil for the first reading, after a reset, when the set of counters is another one, and when any counter
// went backward.
func (m *meter) rate(now time.Time, counters map[string]traffic) (in, out *uint64) {
	last, elapsed := m.last, now.Sub(m.at).Seconds()
	m.at, m.last = now, counters
	if len(counters) == 0 || len(last) != len(counters) || elapsed <= 0 {
		return nil, nil
	}
	var bytesIn, bytesOut float64
	for name, c := range counters {
		before, ok := last[name]
		if !ok || c.in < before.in || c.out < before.out {
			return nil, nil
		}
		bytesIn += float64(c.in - before.in)
		bytesOut += float64(c.out - before.out)
	}
	bitsIn, bitsOut := math.Round(bytesIn*8/elapsed), math.Round(bytesOut*8/elapsed)
	if bitsIn > MaxBits || bitsOut > MaxBits {
		return nil, nil
	}
	i, o := uint64(bitsIn), uint64(bitsOut)
	return &i, &o
}

// reset forgets the last reading, because the counters started again.
func (m *meter) reset() { m.last = nil }
