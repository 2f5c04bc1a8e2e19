package dns

import (
	"context"
	"net/netip"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
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

// BenchmarkTap measures what dnstap adds to a query: for the worker alone, and with the writing, which another core may do.
func BenchmarkTap(b *testing.B) {
	query := []byte("\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x04gslb\x07example\x03com\x00\x00\x01\x00\x01")
	reply := append(append([]byte(nil), query...), make([]byte, 60)...)
	r := &Responder{now: time.Now(), service: &state.Service{Name: "www.gslb.example.com"}}
	addr := netip.MustParseAddrPort("198.51.100.7:4242")
	t, err := newTap(TapOptions{File: filepath.Join(b.TempDir(), "x"), Share: 1}, zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("noted", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t.note(r, query, reply, addr, addr, false)
			t.free <- <-t.queue
		}
	})
	b.Run("written", func(b *testing.B) {
		w, err := t.open(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		CPUTime(b)
		done := make(chan error)
		go func() { done <- t.copy(ctx, w) }()
		for b.Loop() {
			for len(t.free) == 0 {
				runtime.Gosched()
			}
			t.note(r, query, reply, addr, addr, false)
		}
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
}

// What is noted takes no memory once the slots have theirs.
func TestTapAllocatesNothing(t *testing.T) {
	tap, err := newTap(TapOptions{Socket: "127.0.0.1:1", Share: 1}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r := &Responder{now: time.Now(), service: &state.Service{Name: "www.gslb.example.com"}}
	message, addr := make([]byte, 512), netip.MustParseAddrPort("198.51.100.7:4242")
	round := func() {
		tap.note(r, message, message, addr, addr, false)
		select {
		case m := <-tap.queue:
			tap.free <- m
		default:
		}
	}
	for range tapSlots {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for range 2 * tapSlots { // nobody takes them: the slots run out
		tap.note(r, message, message, addr, addr, false)
	}
	if n := testing.AllocsPerRun(200, func() { tap.note(r, message, message, addr, addr, false) }); n != 0 || tap.dropped.Load() != tapSlots+201 {
		t.Errorf("%v allocations, %d dropped", n, tap.dropped.Load())
	}
}
