package dns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestLimiterShared takes from one budget on many goroutines: they get no more than there is.
func TestLimiterShared(t *testing.T) {
	l := newLimiter(zap.NewNop())
	if err := l.set(RateLimitOptions{ResponsesPerSecond: 1000, Slip: 3}); err != nil {
		t.Fatal(err)
	}
	rules := l.rules.Load()
	if got := rules.take(7, 1); got != limitPass { // now the entry is there
		t.Fatal(got)
	}
	var n [limitActions]atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				n[rules.take(7, 1)].Add(1)
			}
		})
	}
	wg.Wait()
	if pass, slip, drop := n[limitPass].Load(), n[limitSlip].Load(), n[limitDrop].Load(); pass != 999 || slip != 1000 || drop != 2001 {
		t.Errorf("%d passed, %d slipped, %d dropped", pass, slip, drop)
	}
}

// TestLimiterDisplaces checks who makes room in a full set: never one at its limit for one that is not.
func TestLimiterDisplaces(t *testing.T) {
	l := newLimiter(zap.NewNop())
	if err := l.set(RateLimitOptions{ResponsesPerSecond: 10}); err != nil {
		t.Fatal(err)
	}
	rules := l.rules.Load()
	key := func(i int) uint64 { return uint64(i)*limitSets + 5 } // all in one set
	for i := range 3 {
		for range 20 {
			rules.take(key(1+i), 1)
		}
	}
	for i := range 1000 {
		if rules.take(key(10+i), 2) != limitPass {
			t.Fatalf("newcomer %d is limited for another", i)
		}
	}
	for i := range 3 {
		if rules.take(key(1+i), 3) == limitPass {
			t.Errorf("entry %d was displaced while at its limit", i)
		}
	}
	// Four at their limit fill the set: a fifth is served all the same, as if it were new.
	for range 20 {
		rules.take(key(9), 4)
	}
	for i := range 20 {
		if got := rules.take(key(2000), 5); (got == limitPass) != (i < 10) {
			t.Errorf("reply %d to the fifth: %v", i, got)
		}
	}
}

// TestPrefixSet compares the set with the list that it was made from.
func TestPrefixSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		a := [16]byte{0x20, 1, 14: byte(rng.IntN(4)), 15: byte(rng.Uint32())}
		if rng.IntN(2) == 0 {
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte(a[12:]))
	}
	for range 2000 {
		var list []netip.Prefix
		for range rng.IntN(8) {
			a := addr()
			p, _ := a.Prefix(a.BitLen() - rng.IntN(12))
			if rng.IntN(30) == 0 {
				p, _ = a.Prefix(0)
			}
			list = append(list, p)
		}
		set := newPrefixSet(list)
		for range 50 {
			a := addr()
			want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
			if got := set.contains(a); got != want {
				t.Fatalf("%v in %v: %v, want %v", a, list, got, want)
			}
		}
	}
}

// TestLimiterReload checks that budgets outlive a change of the options, and end with the limit.
func TestLimiterReload(t *testing.T) {
	l := newLimiter(zap.NewNop())
	set := func(o RateLimitOptions) {
		if err := l.set(o); err != nil {
			t.Fatal(err)
		}
	}
	set(RateLimitOptions{ResponsesPerSecond: 1})
	l.rules.Load().take(7, 1)
	set(RateLimitOptions{ResponsesPerSecond: 2, Slip: 1})
	if got := l.rules.Load().take(7, 1); got != limitSlip {
		t.Errorf("after a change: %v", got)
	}
	set(RateLimitOptions{})
	if l.rules.Load() != nil {
		t.Error("there are rules while off")
	}
}

// TestLimiterLog checks that the log tells of the beginning and the end, once each, and that no flood can fill it.
func TestLimiterLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		l := newLimiter(zap.New(core))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.watch(ctx)
			close(done)
		}()
		for second := range 30 {
			for range 100 {
				l.note(11, netip.MustParsePrefix("192.0.2.0/24"), limitMissing, l.ticks(time.Now()))
			}
			if second == 0 {
				l.note(13, netip.MustParsePrefix("2001:db8::/56"), limitOther, l.ticks(time.Now()))
			}
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		var got []string
		for _, e := range logs.TakeAll() {
			f := e.ContextMap()
			got = append(got, fmt.Sprint(e.Message, " ", f["network"], " ", f["class"], " ", f["limited"]))
		}
		want := []string{
			"rate limit reached 192.0.2.0/24 nxdomain <nil>", "rate limit reached 2001:db8::/56 other <nil>",
			"rate limit no longer reached 2001:db8::/56 other 1", "rate limit no longer reached 192.0.2.0/24 nxdomain 3000",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("logged\n%q, want\n%q", got, want)
		}

		// A flood from everywhere, for two hours.
		const minutes = 120
		for i := range minutes * 60 {
			for j := range 500 {
				n := uint64(i*500+j)*0x9e3779b97f4a7c15 | 1
				l.note(n, netip.MustParsePrefix("192.0.2.0/24"), limitName, l.ticks(time.Now()))
			}
			time.Sleep(time.Second)
		}
		if n := logs.Len(); n > 2*limitLines*(minutes+1) || n < limitLines {
			t.Errorf("%d lines in %d minutes", n, minutes)
		}
		cancel()
		<-done
	})
}
