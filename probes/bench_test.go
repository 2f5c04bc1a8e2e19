package probes

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkProber10000 measures 10,000 resolvers once an iteration at the default rate, as an agent does within a
// refresh: 30,000 echoes in 30 s. It reports the processor time of this process, in which loopback has the kernel's
// answers done as well, as a share of one core over a refresh of 60 s, and its resident memory. The goal is 10 % and
// 64 MiB.
func BenchmarkProber10000(b *testing.B) {
	inNamespace(b, "0 0")
	targets := loopbacks(10_000)
	before := processorTime(b)
	answered := 0
	var worst time.Duration
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
		results := make(chan RTT, 1024)
		p, err := NewProber(ProberOptions{Result: func(r RTT) { results <- r }})
		if err != nil {
			b.Fatal(err)
		}
		for _, addr := range targets {
			if !p.Queue(addr) {
				b.Fatalf("%v was not queued", addr)
			}
		}
		go func() {
			defer cancel()
			for range targets {
				select {
				case r := <-results:
					if !r.Lost {
						answered++
						worst = max(worst, r.RTT)
					}
				case <-ctx.Done():
					return
				}
			}
		}()
		if err := p.Run(ctx); err != nil {
			b.Fatal(err)
		}
	}
	used := processorTime(b) - before
	probes := float64(b.N * len(targets))
	if float64(answered) != probes {
		b.Errorf("%d answered, want %.0f", answered, probes)
	}
	b.ReportMetric(float64(used.Nanoseconds())/probes, "cpu-ns/probe")
	b.ReportMetric(100*used.Seconds()/float64(b.N)/60, "%core/60s")
	b.ReportMetric(resident(b), "MiB-peak")
	b.ReportMetric(float64(worst.Microseconds()), "worst-rtt-us")
}

func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// resident returns the peak of the resident memory of this process in MiB.
func resident(tb testing.TB) float64 {
	tb.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		tb.Fatal("no VmHWM in /proc/self/status")
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		tb.Fatal(err)
	}
	return kib / 1024
}
