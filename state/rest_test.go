package state

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// On one core, whoever has a query has a turn within a piece of the work that recurs, too: it does not wait for the whole of one.
func TestRests(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := New(Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := &Config{Sites: []SiteConfig{{Name: "seoul"}}}
	for i := range 1000 {
		c.Services = append(c.Services, ServiceConfig{Name: fmt.Sprintf("w%d.example.com", i), TTL: 30, UnknownUp: true, Members: []MemberConfig{
			{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}, Weight: 100},
		}})
	}
	s.Configure(c)
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1})
		s.targets.all[netip.PrefixFrom(addr, 32)] = &target{addr: addr, asked: now.Add(time.Hour)}
	}
	var turns atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				turns.Add(1)
				runtime.Gosched()
			}
		}
	}()
	for name, work := range map[string]func(){
		"tick":   func() { s.tick(now) },
		"decay":  func() { s.decay(now) },
		"sweep":  func() { s.sweep(now) },
		"gather": func() { s.capture(now) },
		"publish": func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.touchAll()
			s.publish(now)
		},
	} {
		most := int64(0)
		for try := 0; try < 100 && most < 4; try++ { // the machine may hold a rest up, and then there are no more
			before := turns.Load()
			work()
			most = max(most, turns.Load()-before)
			now = now.Add(2 * tickEvery)
		}
		if most < 4 {
			t.Errorf("%s: another goroutine had at most %d turns", name, most)
		}
	}
	close(done)
	<-ended
}
