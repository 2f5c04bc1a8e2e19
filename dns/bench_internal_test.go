package dns

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkParse measures reading a query, without answering it.
func BenchmarkParse(b *testing.B) {
	plain := []byte("\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03wWw\x04gslb\x07example\x03com\x00\x00\x01\x00\x01")
	withOPT := append([]byte(nil), plain...)
	withOPT[11] = 1
	ecs := append(append([]byte(nil), withOPT...), "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x0b\x00\x08\x00\x07\x00\x01\x18\x00\xcb\x00\x71"...)
	withOPT = append(withOPT, "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"...)
	for _, c := range []struct {
		name  string
		query []byte
	}{{"plain", plain}, {"OPT", withOPT}, {"ECS", ecs}} {
		b.Run(c.name, func(b *testing.B) {
			var q query
			b.ReportAllocs()
			CPUTime(b)
			for b.Loop() {
				if rcode := q.parse(c.query, optionSet{ecs: true, cookies: true}); rcode != 0 {
					b.Fatal(rcode)
				}
			}
		})
	}
}

// CPUTime has a benchmark report the CPU time of the process too: on a machine that has other work it tells more than
// the time that passed. It is for benchmarks on one core.
func CPUTime(b *testing.B) {
	now := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := now()
	b.Cleanup(func() { b.ReportMetric(float64(now()-before)/float64(b.N), "cpu-ns/op") })
}
