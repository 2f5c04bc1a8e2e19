//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"gslbd/dns"
	"gslbd/geo"
	"gslbd/state"
)

// BenchmarkStalls measures how long a query waits for gslbd itself, with 100,000 services, 1,000 sites and round trips of
// 1,000,000 networks, while nothing else goes on, 1,000 reports a second come, the geo database is swapped 20 times a
// second, or the configuration is reloaded.
//
// In place of a client, which would take part in what it measures, the kernel has a timer that expires 2,000 times a
// second. What reads it waits as a socket's worker does, and answers a query for each time. The wait is from the time of
// expiry, whoever was late, to the answer: it has what the runtime adds, and what the kernel does when others want the core.
// The row "nothing" is what the machine adds.
func BenchmarkStalls(b *testing.B) {
	const networks = 1_000_000
	path := huge(b, "dns: {listen: [\"127.0.0.1:0\"]}\nreports: {listen: \"127.0.0.1:0\", stale_after: 1h, dead_after: 2h}\n"+
		"admin: {listen: \"127.0.0.1:0\", telemetry_per_service: false}\nlog: {level: error}\nrtt: {max_targets: 5000000}\n")
	g, db, err := load(path, nil)
	if err != nil {
		b.Fatal(err)
	}
	s, err := newServer(path, g, db, new(handed))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, nil) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	report := func(i int, rtts ...state.RTTSample) {
		_, err := s.store.Report(&state.Report{
			Site: fmt.Sprintf("site%d", i%1000), HasSessions: true, Sessions: uint64(i), HasBits: true, BitsIn: 1e6, BitsOut: uint64(i) * 1000, RTTs: rtts,
		})
		if err != nil {
			b.Error(err)
		}
	}
	network := func(i int) netip.Addr {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x30000000+uint32(i%networks)<<8+7)
		return netip.AddrFrom4(a)
	}
	rtt := func(i int) state.RTTSample {
		return state.RTTSample{Resolver: network(i), RTT: time.Duration(i%100+1) * time.Millisecond, Method: state.RTTICMP}
	}
	for i := 0; i < networks; i += 2000 {
		samples := make([]state.RTTSample, 2000)
		for j := range samples {
			samples[j] = rtt(i + j)
		}
		report(i/2000, samples...)
	}

	every := func(interval time.Duration, f func(i int)) func(context.Context) {
		return func(ctx context.Context) {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for i := 0; ; {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
					f(i)
					i++
				}
			}
		}
	}
	// A millisecond's tick may be skipped where all is busy.
	reports := func(ctx context.Context) {
		begin, sent := time.Now(), 0
		every(time.Millisecond, func(int) {
			for ; sent < int(time.Since(begin)/time.Millisecond); sent++ {
				report(sent, rtt(sent))
			}
		})(ctx)
	}
	swap := every(50*time.Millisecond, func(int) {
		db, err := geo.Open(geo.Options{Databases: []string{"../../testdata/geo/cities.mmdb"}})
		if err != nil {
			b.Error(err)
		}
		s.store.SetGeo(db)
	})
	reload := func(ctx context.Context) {
		for ctx.Err() == nil {
			if _, err := s.reload(); err != nil {
				b.Error(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		beside []func(context.Context)
	}{
		{"nothing", nil},
		{"reports", []func(context.Context){reports}},
		{"geo", []func(context.Context){swap}},
		{"reload", []func(context.Context){reload}},
		{"all", []func(context.Context){reports, swap, reload}},
	} {
		b.Run(c.name, func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0)) // testing sets it before each
			evenProcs()
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			for _, f := range c.beside {
				running.Go(func() { f(ctx) })
			}
			published, stopped := s.store.Snapshot().Version, longestPause()
			held, began := runDelay(b), time.Now()
			waits := waits(b, s.store, network)
			held = runDelay(b) - held
			b.ReportMetric(float64(held.Milliseconds())/time.Since(began).Seconds(), "kernel-ms/s")
			published = s.store.Snapshot().Version - published
			cancel()
			running.Wait()
			slices.Sort(waits)
			over := len(waits) - sortedUpTo(waits, time.Millisecond)
			for unit, v := range map[string]time.Duration{"p50-us": waits[len(waits)/2], "p99-us": waits[len(waits)*99/100], "max-us": waits[len(waits)-1]} {
				b.ReportMetric(float64(v.Microseconds()), unit)
			}
			b.ReportMetric(float64(over)/float64(len(waits))*1e6, "over-1ms-in-a-million")
			b.ReportMetric(float64(published), "publications")
			if p := longestPause(); p > stopped {
				b.ReportMetric(float64(p.Microseconds()), "new-longest-gc-pause-us")
			}
			b.ReportMetric(float64(heap())/(1<<20), "heap-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func sortedUpTo(waits []time.Duration, most time.Duration) int {
	n, _ := slices.BinarySearch(waits, most)
	return n
}

// waits answers b.N queries, each when a timer of the kernel expires, and returns how long each waited.
func waits(b *testing.B, store *state.Store, from func(i int) netip.Addr) []time.Duration {
	const interval = 500 * time.Microsecond
	var queries [][]byte
	for i := range 1000 {
		m := new(mdns.Msg).SetQuestion(fmt.Sprintf("s%d.example.com.", i*97), mdns.TypeA)
		wire, err := m.Pack()
		if err != nil {
			b.Fatal(err)
		}
		queries = append(queries, wire)
	}
	runtime.LockOSThread() // as a worker does, in short slices
	defer runtime.UnlockOSThread()
	usual, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		b.Fatal(err)
	}
	short := *usual
	short.Runtime = uint64(100 * time.Microsecond)
	if err := unix.SchedSetAttr(0, &short, 0); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.SchedSetAttr(0, usual, 0) }()
	r, err := dns.NewResponder(dns.Options{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	now := func() (t time.Duration) {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail
		return time.Duration(ts.Nano())
	}
	begin := now() + 10*time.Millisecond
	err = unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{
		Interval: unix.NsecToTimespec(int64(interval)), Value: unix.NsecToTimespec(int64(begin)),
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	out := make([]time.Duration, 0, b.N)
	expired := make([]byte, 8)
	reply := make([]byte, 1232)
	local := netip.MustParseAddrPort("127.0.0.1:53")
	for len(out) < b.N {
		fds := [...]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		most := unix.NsecToTimespec(int64(time.Millisecond)) // as long as a worker keeps its P
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1, uintptr(unsafe.Pointer(&most)), 0, 0, 0)
		if errno == 0 && n == 0 {
			if _, err := unix.Ppoll(fds[:], nil, nil); err != nil && err != unix.EINTR {
				b.Fatal(err)
			}
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&expired[0])), uintptr(len(expired))); errno == unix.EINTR || errno == unix.EAGAIN {
			continue
		} else if errno != 0 {
			b.Fatal(errno)
		}
		r.Refresh(time.Now())
		for range binary.NativeEndian.Uint64(expired) {
			i := len(out)
			if n := r.Respond(queries[i%len(queries)], reply, local, netip.AddrPortFrom(from(i*7919), 4053), false); n == 0 || reply[3]&0xf != 0 {
				b.Fatalf("no answer: %d octets, %x", n, reply[:min(n, 4)])
			}
			out = append(out, now()-begin-time.Duration(i)*interval)
		}
	}
	return out
}

// longestPause returns the longest time that the collector has stopped the world so far, rounded up as the runtime does.
func longestPause() time.Duration {
	samples := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(samples)
	h := samples[0].Value.Float64Histogram()
	for i := len(h.Counts) - 1; i >= 0; i-- {
		if h.Counts[i] > 0 {
			return time.Duration(min(h.Buckets[i+1], math.MaxInt32) * float64(time.Second))
		}
	}
	return 0
}

// runDelay returns how long the threads of this process have been ready to run, and had no core.
func runDelay(b *testing.B) (sum time.Duration) {
	threads, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		var running, waiting, slices int64
		if _, scanErr := fmt.Sscan(string(text), &running, &waiting, &slices); err == nil && scanErr == nil { // else it has ended
			sum += time.Duration(waiting)
		}
	}
	return sum
}

func heap() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}
