package state

import (
	"net/netip"
	"time"
)

// An RTTTable holds the round trips from sites to client networks. Reading it takes no lock.
type RTTTable struct{}

// An RTTRow is what is known of one client network. It is immutable.
type RTTRow struct {
	Values []RTTValue
}

// An RTTValue is one site's median round trip to a client network.
type RTTValue struct {
	SiteID uint16
	RTT    time.Duration // median of the last (up to) 5 samples
	Newest time.Time     // when the newest of them was measured
}

// Key returns the client network of addr: cut to the configured prefix length.
func (t *RTTTable) Key(addr netip.Addr) netip.Prefix { return netip.Prefix{} }

// Bits returns the configured prefix length for the address's family.
func (t *RTTTable) Bits(addr netip.Addr) int { return 24 }

// Row returns what is known of the client network, or nil.
func (t *RTTTable) Row(key netip.Prefix) *RTTRow { return nil }

// Of returns the site's value.
func (r *RTTRow) Of(siteID uint16) (RTTValue, bool) { return RTTValue{}, false }
