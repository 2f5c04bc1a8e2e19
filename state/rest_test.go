package state_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"gslbd/state"
)

// On one core, whoever has a query has a turn within a piece of the work that recurs, too: it does not wait for the whole of one.
func TestRestsWithinAPiece(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := state.New(state.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := &state.Config{Sites: []state.SiteConfig{{Name: "seoul"}}}
	for i := range 1000 {
		c.Services = append(c.Services, state.ServiceConfig{Name: fmt.Sprintf("w%d.example.com", i), TTL: 30, UnknownUp: true, Members: []state.MemberConfig{
			{Name: "seoul", Site: "seoul", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}, Weight: 100},
		}})
	}
	s.Configure(c)
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
	most := int64(0)
	for end := now.Add(10 * time.Second); now.Before(end) && most < 4; {
		before := turns.Load()
		next := s.Advance()
		most = max(most, turns.Load()-before)
		now = next
	}
	close(done)
	<-ended
	if most < 4 {
		t.Errorf("another goroutine had at most %d turns while a piece was done", most)
	}
}
