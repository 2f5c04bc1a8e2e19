// Command generate writes the series of testdata/rtt: a day of probes of one resolver, as a site sees it. Run it from the
// root of the repository:
//
//	go run ./testdata/rtt/generate
//
// They are made up, after the shapes that round trips over the Internet have. A line is a probe: seconds since midnight,
// the round trip of an empty path in milliseconds, and those of its three packets, empty where a packet was lost.
package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// every is how many seconds lie between two probes: the default of rtt.refresh.
const every = 300

// A day is one kind of path.
type day struct {
	name string
	// at says what is so at an hour of the day.
	at func(hour float64) weather
}

// weather is what a probe meets.
type weather struct {
	base   float64 // milliseconds of an empty path
	queue  float64 // the mean of what queues add to each packet
	spike  float64 // the share of packets that are late by 50 to 400 ms
	burst  float64 // the share of probes all packets of which are
	losses float64 // the share of packets that are lost
	detour float64 // the share of packets that take another path, which is longer by 45 ms
}

func within(hour, from, minutes float64) bool { return hour >= from && hour < from+minutes/60 }

var days = []day{
	{"calm", func(float64) weather { return weather{base: 30, queue: 0.8, losses: 0.002} }},
	{"spikes", func(float64) weather { return weather{base: 30, queue: 1, spike: 0.1, burst: 0.05, losses: 0.01} }},
	{"step", func(hour float64) weather {
		w := weather{base: 30, queue: 1, spike: 0.02, losses: 0.005}
		if hour >= 12 {
			w.base = 48
		}
		return w
	}},
	{"flap", func(hour float64) weather {
		w := weather{base: 30, queue: 1, spike: 0.02, losses: 0.005}
		// For forty minutes, for half an hour, for one probe, and for two.
		if within(hour, 6, 40) || within(hour, 14, 30) || within(hour, 18, 5) || within(hour, 21, 10) {
			w.base = 75
		}
		return w
	}},
	{"diurnal", func(hour float64) weather {
		// Links fill in the evening: the least grows little, what queues add grows much.
		evening := math.Exp(-math.Pow((hour-20.5)/2.2, 2))
		return weather{base: 30 + 9*evening, queue: 0.8 + 7*evening, spike: 0.01 + 0.04*evening, losses: 0.002 + 0.01*evening}
	}},
	// Two paths that packets are spread over by their ports.
	{"balanced", func(float64) weather { return weather{base: 30, queue: 1, spike: 0.02, losses: 0.01, detour: 0.5} }},
	{"bursts", func(hour float64) weather {
		w := weather{base: 30, queue: 1, spike: 0.02, losses: 0.01}
		switch {
		case within(hour, 3, 20), within(hour, 9, 20), within(hour, 16, 20):
			w.losses = 0.7
		case within(hour, 12, 20): // longer than max_age
			w.losses = 1
		}
		return w
	}},
}

func main() {
	for _, d := range days {
		if err := os.WriteFile(filepath.Join("testdata", "rtt", d.name+".csv"), d.csv(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}

func (d day) csv() []byte {
	seed := fnv.New64()
	seed.Write([]byte(d.name))
	rnd := rand.New(rand.NewPCG(seed.Sum64(), 1))
	var b bytes.Buffer
	b.WriteString("seconds,path_ms,packet1_ms,packet2_ms,packet3_ms\n")
	for t := 0; t < 86400; t += every {
		w := d.at(float64(t) / 3600)
		late := func(share float64) float64 {
			if rnd.Float64() >= share {
				return 0
			}
			return 50 + 350*rnd.Float64()
		}
		all := late(w.burst)
		fmt.Fprintf(&b, "%d,%.1f", t, w.base)
		for range 3 {
			ms := w.base + w.queue*rnd.ExpFloat64() + max(all, late(w.spike))
			if rnd.Float64() < w.detour {
				ms += 45
			}
			if rnd.Float64() < w.losses {
				b.WriteString(",")
			} else {
				fmt.Fprintf(&b, ",%.1f", ms)
			}
		}
		b.WriteString("\n")
	}
	return b.Bytes()
}
