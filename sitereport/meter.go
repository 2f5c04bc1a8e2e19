package sitereport

import (
	"math"
	"time"
)

// A growth turns counters into rates. The zero growth has seen nothing. It is not safe for concurrent use.
//
// Counters are read at moments that are only roughly an interval apart, and start again from 0 when whoever keeps them
// restarts; so a rate is what was counted since the last reading by the monotonic time since then, and where that is not
// known for certain there is none. A rate that is absent for one interval does no harm; one that is negative or huge
// would move a site's clients.
type growth struct {
	at   time.Time
	last map[string]float64
}

// rates returns what each counter grew by a second since the last reading, and remembers this one. It returns nil for the
// first reading, after a reset, when the set of counters is another one, and when any of them went backward.
func (g *growth) rates(now time.Time, counters map[string]float64) map[string]float64 {
	last, elapsed := g.last, now.Sub(g.at).Seconds()
	g.at, g.last = now, counters
	if len(counters) == 0 || len(last) != len(counters) || elapsed <= 0 {
		return nil
	}
	rates := make(map[string]float64, len(counters))
	for name, c := range counters {
		before, ok := last[name]
		if !ok || c < before {
			return nil
		}
		rates[name] = (c - before) / elapsed
	}
	return rates
}

// reset forgets the last reading, because the counters started again.
func (g *growth) reset() { g.last = nil }

// A meter turns counters of bytes into bits a second, as a growth does.
type meter struct{ growth }

// traffic is bytes counted in both directions.
type traffic struct{ in, out uint64 }

// rate returns the bits per second in and out since the last reading, summed over all counters, and remembers this one;
// nil where growth has no rates, and for more than any site carries.
func (m *meter) rate(now time.Time, counters map[string]traffic) (in, out *uint64) {
	const inward, outward = '<', '>'
	bytes := make(map[string]float64, 2*len(counters))
	for name, c := range counters {
		bytes[string(inward)+name], bytes[string(outward)+name] = float64(c.in), float64(c.out)
	}
	rates := m.rates(now, bytes)
	if rates == nil {
		return nil, nil
	}
	var bitsIn, bitsOut float64
	for name, r := range rates {
		if name[0] == inward {
			bitsIn += r * 8
		} else {
			bitsOut += r * 8
		}
	}
	in, out = whole(bitsIn, MaxBits), whole(bitsOut, MaxBits)
	if in == nil || out == nil {
		return nil, nil
	}
	return in, out
}

// perSecond is the sum of what counters of sessions grew by; nil without any, and for more than a receiver takes.
func perSecond(rates map[string]float64) *float64 {
	if rates == nil {
		return nil
	}
	var sum float64
	for _, r := range rates {
		sum += r
	}
	if !(sum <= MaxNewSessions) {
		return nil
	}
	return &sum
}

// whole rounds a figure to a whole number; nil for one that is not between 0 and most, which a receiver would refuse.
func whole(v, most float64) *uint64 {
	v = math.Round(v)
	if !(v >= 0 && v <= most) {
		return nil
	}
	u := uint64(v)
	return &u
}
