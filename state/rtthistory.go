package state

import (
	"math"
	"slices"
	"time"
)

const (
	// rttSamples is the number of samples that a site's value is made of (docs/policies.md).
	rttSamples = 5
	// shiftSamples is how many samples running must lie on the same side of the level, and apart from it by more than the
	// larger of shiftLeast and the shiftPart of it, for the way to be another one.
	shiftSamples = 4
	shiftLeast   = 5000 // microseconds
	shiftPart    = 10
	// levelWeight is how slowly the level follows: what changes within a day is no other way.
	levelWeight = 8
	// rttOutcomes is of how many probes it is known whether they were lost.
	rttOutcomes = 15
)

// A time32 is a duration in microseconds: up to 71 minutes.
type time32 uint32

func makeTime32(d time.Duration) time32 { return time32(min(max(d.Microseconds(), 1), math.MaxUint32)) }

func (t time32) duration() time.Duration { return time.Duration(t) * time.Microsecond }

// An rttHistory is what is kept of one site, client network and method.
type rttHistory struct {
	newest  RTTMoment          // when the newest sample was measured
	samples [rttSamples]time32 // oldest first
	level   time32             // what is usual: a mean of those samples that are not far from it
	before  time32             // the level before shifted
	shifted int32              // when another level was there first, in seconds after the epoch; if before is not 0
	tried   int32              // when the last probe was made, likewise
	lost    uint16             // a bit for each of the last probes, the last one the lowest; above them a 1. Of RTTPassive: connections
	n       uint8              // samples in use
	apart   int8               // how many samples running are above the level (-: below) by too much
}

func (m RTTMoment) seconds() int32 { return int32(time.Duration(m) / time.Second) }

// repeated reports whether a probe, or its sample, is the last one, sent again: an agent does so until each gslbd has
// acknowledged it.
func (h *rttHistory) repeated(us time32, at RTTMoment) bool {
	if us == 0 {
		d := at.seconds() - h.tried
		return h.lost&1 == 1 && -1 <= d && d <= 1
	}
	return h.n > 0 && h.samples[h.n-1] == us && time.Duration(at-h.newest).Abs() < time.Second
}

// add takes in a sample, or with 0 the loss of one.
func (h *rttHistory) add(us time32, at RTTMoment) {
	h.outcome(us == 0)
	h.tried = at.seconds()
	if us == 0 {
		return
	}
	if h.n == rttSamples {
		copy(h.samples[:], h.samples[1:])
		h.n--
	}
	if h.n == 0 || at > h.newest {
		h.newest = at
	}
	h.samples[h.n] = us
	h.n++
	h.watch()
}

// forget leaves what is usual, and no sample.
func (h *rttHistory) forget() { h.n, h.apart = 0, 0 }

func (h *rttHistory) outcome(lost bool) {
	next := uint32(max(h.lost, 1)) << 1
	if lost {
		next |= 1
	}
	if next > math.MaxUint16 {
		next |= 1 << rttOutcomes
	}
	h.lost = uint16(next)
}

// watch tells another way from what disturbs single packets, and from what comes and goes with the hours: a step that
// stays.
func (h *rttHistory) watch() {
	us, level := int64(h.samples[h.n-1]), int64(h.level)
	off := us - level
	switch most := max(shiftLeast, level/shiftPart); {
	case level == 0:
		h.level = time32(us)
		return
	case off > most:
		h.apart = max(h.apart, 0) + 1
	case off < -most:
		h.apart = min(h.apart, 0) - 1
	default:
		h.apart = 0
		h.level = time32(level + off/levelWeight)
		return
	}
	if h.apart < shiftSamples && h.apart > -shiftSamples {
		return
	}
	last := h.samples[h.n-shiftSamples : h.n]
	h.before, h.level, h.shifted, h.apart = h.level, second(last), h.newest.seconds(), 0
}

// value is what queries compare.
func (h *rttHistory) value() time.Duration { return second(h.samples[:h.n]).duration() }

// second returns the second lowest sample, of one or two the lowest. What disturbs packets only ever makes them later, and may
// well last from one probe to the next: the median of five moved where three of them fell into bursts.
func second(of []time32) time32 {
	var s [rttSamples]time32
	n := copy(s[:], of)
	slices.Sort(s[:n])
	return s[min(n-1, 2)/2]
}

// jitter is the mean difference between one sample and the next; 0 if there is only one.
func (h *rttHistory) jitter() time.Duration {
	var sum time.Duration
	for i := 1; i < int(h.n); i++ {
		sum += (h.samples[i].duration() - h.samples[i-1].duration()).Abs()
	}
	return sum / time.Duration(max(h.n, 2)-1)
}
