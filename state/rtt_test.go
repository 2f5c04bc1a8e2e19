package state_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gslbd/state"
)

func sample(resolver string, ms float64, age time.Duration) state.RTTSample {
	return state.RTTSample{Resolver: addr(resolver), RTT: time.Duration(ms * float64(time.Millisecond)), Age: age}
}

// value returns the site's value by the first method that it has one of.
func value(row *state.RTTRow, site uint16) (state.RTTValue, bool) {
	for _, v := range row.All() {
		if v.SiteID == site {
			return v, true
		}
	}
	return state.RTTValue{}, false
}

func TestRTTKey(t *testing.T) {
	table := state.NewRTTTable(state.RTTConfig{})
	for in, want := range map[string]string{
		"203.0.113.53":        "203.0.113.0/24",
		"::ffff:203.0.113.53": "203.0.113.0/24",
		"2001:db8:1:2ff::53":  "2001:db8:1:200::/56",
		"fe80::1%eth0":        "fe80::/56",
	} {
		if got := table.Key(addr(in)).String(); got != want {
			t.Errorf("Key(%s) = %s, want %s", in, got, want)
		}
	}
	if got := table.Key(netip.Addr{}); got.IsValid() {
		t.Errorf("Key of no address = %v", got)
	}
	if a, b := table.Bits(addr("192.0.2.1")), table.Bits(addr("2001:db8::1")); a != 24 || b != 56 {
		t.Errorf("bits %d and %d", a, b)
	}
	other := state.NewRTTTable(state.RTTConfig{PrefixV4: 20, PrefixV6: 48})
	if got := other.Key(addr("203.0.113.53")).String(); got != "203.0.112.0/20" {
		t.Errorf("Key = %s", got)
	}
}

// An address finds the row of its network and no other, whatever the lengths of the networks are.
func TestRTTRowOfNetwork(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	flip := func(a netip.Addr, bit int) netip.Addr {
		b := a.AsSlice()
		b[bit/8] ^= 0x80 >> (bit % 8)
		other, _ := netip.AddrFromSlice(b)
		return other
	}
	for _, bits := range [][2]int{{8, 16}, {15, 48}, {20, 56}, {24, 63}, {25, 64}, {31, 65}, {32, 128}} {
		for range 100 {
			table := state.NewRTTTable(state.RTTConfig{PrefixV4: bits[0], PrefixV6: bits[1]})
			var b [16]byte
			binary.BigEndian.PutUint64(b[:], 0x2001_0000_0000_0000|rnd.Uint64()>>16)
			binary.BigEndian.PutUint64(b[8:], rnd.Uint64())
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte(b[8:])), netip.AddrFrom16(b)} {
				table.Add(1, []state.RTTSample{{Resolver: a, RTT: time.Millisecond}}, time.Now())
				for bit := range a.BitLen() {
					other := flip(a, bit)
					if got, want := table.Row(other) != nil, table.Key(other) == table.Key(a); got != want {
						t.Fatalf("lengths %v: %v is found by %v: %t, want %t", bits, a, other, got, want)
					}
				}
				if table.Row(netip.AddrFrom16(a.As16())) == nil {
					t.Fatalf("%v is not found as mapped into IPv6", a)
				}
			}
		}
	}
}

func TestRTTValue(t *testing.T) {
	now := time.Now()
	tests := []struct {
		ms   []float64
		want float64
	}{
		{[]float64{30}, 30},
		{[]float64{500, 30}, 30},
		{[]float64{30, 500, 31}, 31},
		{[]float64{30, 500, 31, 600}, 31},
		{[]float64{30, 500, 31, 600, 700}, 31},
		{[]float64{30, 31, 500, 501, 502, 503}, 500},  // only the last five, and not one alone
		{[]float64{1000, 1000.1, 1000.2, 30, 31}, 31}, // a shorter way is followed sooner
		{[]float64{0.0004}, 0.001},                    // a microsecond is the least
	}
	for _, test := range tests {
		table := state.NewRTTTable(state.RTTConfig{})
		for i, ms := range test.ms {
			table.Add(3, []state.RTTSample{sample("203.0.113.53", ms, 0)}, now.Add(time.Duration(i)*time.Minute))
		}
		v, ok := value(table.Row(addr("203.0.113.99")), 3)
		if got := float64(v.RTT) / float64(time.Millisecond); !ok || got != test.want {
			t.Errorf("%v: %g, want %g", test.ms, got, test.want)
		}
		if want := now.Add(time.Duration(len(test.ms)-1) * time.Minute); !v.Newest.Equal(want) {
			t.Errorf("newest %v, want %v", v.Newest, want)
		}
	}
}

func TestRTTSamples(t *testing.T) {
	now := time.Now()
	table := state.NewRTTTable(state.RTTConfig{})
	table.Add(1, []state.RTTSample{
		sample("203.0.113.53", 30, time.Second),
		{Resolver: addr("203.0.113.53"), Lost: true},
		{Resolver: addr("203.0.113.53"), RTT: -time.Second},
		{Resolver: addr("203.0.113.53"), RTT: time.Second, Age: -time.Second},
		{RTT: time.Second},
		sample("203.0.113.53", 30, time.Second), // sent again
	}, now)
	table.Add(1, []state.RTTSample{sample("203.0.113.53", 30, 6*time.Second)}, now.Add(5*time.Second)) // and again
	table.Add(2, []state.RTTSample{sample("203.0.113.54", 200, 0)}, now)
	table.Add(1, []state.RTTSample{sample("203.0.113.53", 90, time.Hour)}, now) // an old one that comes late
	row := table.Row(addr("203.0.113.1"))
	v, _ := value(row, 1)
	if v.RTT != 30*time.Millisecond || !v.Newest.Equal(now.Add(-time.Second)) {
		t.Errorf("site 1: %v at %v", v.RTT, v.Newest)
	}
	if v, ok := value(row, 2); !ok || v.RTT != 200*time.Millisecond {
		t.Errorf("site 2: %v", v.RTT)
	}
	if _, ok := value(row, 9); ok {
		t.Error("a value of a site that measured nothing")
	}
	if _, ok := value(nil, 1); ok {
		t.Error("a value of no row")
	}
	for _, other := range []netip.Addr{{}, addr("203.0.112.255"), addr("198.51.100.1")} {
		if table.Row(other) != nil {
			t.Errorf("Row(%v) is not nil", other)
		}
	}
	if table.Len() != 1 {
		t.Errorf("len %d", table.Len())
	}
}

// What is fresh is told apart site by site, however many there are.
func TestRTTFresh(t *testing.T) {
	for _, sites := range []int{1, 2, 3, 8, 9, 16, 17, 40} {
		table := state.NewRTTTable(state.RTTConfig{})
		now := time.Now()
		for i := range sites {
			table.Add(uint16(i), []state.RTTSample{sample("203.0.113.53", float64(10+i), time.Duration(i)*time.Minute)}, now)
		}
		row := table.Row(addr("203.0.113.1"))
		if row.Len() != sites {
			t.Errorf("%d sites of %d", row.Len(), sites)
		}
		for _, age := range []time.Duration{0, time.Minute, time.Minute + 1, 20 * time.Minute, time.Hour} {
			after := table.Moment(now.Add(-age))
			for i := range sites {
				rtt, ok := row.Fresh(uint16(i), state.RTTICMP, after)
				if want := time.Duration(10+i) * time.Millisecond; rtt != want || ok != (time.Duration(i)*time.Minute < age) {
					t.Errorf("%d sites, younger than %v: site %d has %v, %v", sites, age, i, rtt, ok)
				}
			}
			if _, ok := row.Fresh(uint16(sites), state.RTTICMP, after); ok {
				t.Error("a value of a site that measured nothing")
			}
		}
	}
}

// Each site and method has a median of its own. A map is the oracle.
func TestRTTMethods(t *testing.T) {
	type series struct {
		site   uint16
		method state.RTTMethod
	}
	methods := []state.RTTMethod{state.RTTICMP, state.RTTTCP, state.RTTDNS, state.RTTPassive}
	for _, sites := range []int{1, 2, 5, 12} {
		rnd := rand.New(rand.NewPCG(3, uint64(sites)))
		table := state.NewRTTTable(state.RTTConfig{})
		now := time.Now()
		last := map[series]time.Duration{}
		for range 100 * sites {
			s := series{uint16(rnd.IntN(sites)), methods[rnd.IntN(len(methods))]}
			sm := sample("203.0.113.53", float64(1+rnd.IntN(1000)), 0)
			sm.Method = s.method
			for range 5 {
				now = now.Add(time.Minute)
				table.Add(s.site, []state.RTTSample{sm}, now)
			}
			last[s] = sm.RTT
			row := table.Row(sm.Resolver)
			if row.Len() != len(last) {
				t.Fatalf("%d sites: %d values, want %d", sites, row.Len(), len(last))
			}
			first, end := methods[len(methods)-1], methods[0]
			for s, want := range last {
				first, end = min(first, s.method), max(end, s.method)
				if got, ok := row.Fresh(s.site, s.method, 0); !ok || got != want {
					t.Fatalf("%d sites: site %d by %s has %v %v, want %v", sites, s.site, s.method, got, ok, want)
				}
			}
			for _, v := range row.All() {
				if want := last[series{v.SiteID, v.Method}]; v.RTT != want {
					t.Fatalf("%d sites: site %d by %s has %v, want %v", sites, v.SiteID, v.Method, v.RTT, want)
				}
			}
			if a, b := row.Methods(); a != first || b != end {
				t.Fatalf("%d sites: methods %s to %s, want %s to %s", sites, a, b, first, end)
			}
		}
	}
}

// What is told of the path beside the value.
func TestRTTQuality(t *testing.T) {
	now := time.Now()
	table := state.NewRTTTable(state.RTTConfig{})
	at := now
	add := func(method state.RTTMethod, ms float64) {
		s := sample("203.0.113.53", ms, 0)
		s.Method, s.Lost = method, ms == 0
		at = at.Add(5 * time.Minute)
		for range 2 { // an agent sends again what it does not know to be taken
			table.Add(1, []state.RTTSample{s}, at)
		}
	}
	of := func(method state.RTTMethod) state.RTTValue {
		for _, v := range table.Row(addr("203.0.113.1")).All() {
			if v.Method == method {
				return v
			}
		}
		t.Fatalf("no value by %s", method)
		return state.RTTValue{}
	}
	add(state.RTTDNS, 0)
	if table.Len() != 0 {
		t.Error("a loss made a row")
	}
	for _, ms := range []float64{30, 31, 0, 33} {
		add(state.RTTICMP, ms)
	}
	add(state.RTTPassive, 40)
	if v := of(state.RTTICMP); v.Probes != 4 || v.Lost != 1 || v.Jitter != 1500*time.Microsecond || v.Before != 0 {
		t.Errorf("%+v, want 1 of 4 lost, jitter 1.5ms", v)
	}
	for range 20 {
		add(state.RTTICMP, 0)
	}
	if v := of(state.RTTICMP); v.Probes != 15 || v.Lost != 15 || v.RTT != 31*time.Millisecond {
		t.Errorf("%+v, want all of 15 lost", v)
	}
	if v := of(state.RTTPassive); v.Probes != 0 || v.Lost != 0 {
		t.Errorf("%+v, of which nothing is probed", v)
	}
	for range 6 {
		add(state.RTTICMP, 80)
	}
	fourth := at.Add(-10 * time.Minute)
	if v := of(state.RTTICMP); v.Before.Round(time.Millisecond) != 30*time.Millisecond || v.Shifted.Sub(fourth).Abs() > time.Second {
		t.Errorf("before %v, until %v, want 30ms, until %v", v.Before, v.Shifted, fourth)
	}
	add(state.RTTICMP, 300)
	add(state.RTTICMP, 30)
	add(state.RTTICMP, 80)
	if v := of(state.RTTICMP); v.Before.Round(time.Millisecond) != 30*time.Millisecond {
		t.Errorf("before %v: outliers are another path", v.Before)
	}
}

func TestParseRTTMethod(t *testing.T) {
	for name, want := range map[string]state.RTTMethod{
		"": state.RTTICMP, "icmp": state.RTTICMP, "tcp": state.RTTTCP, "dns": state.RTTDNS, "passive": state.RTTPassive,
	} {
		got, ok := state.ParseRTTMethod(name)
		if !ok || got != want || (name != "" && got.String() != name) {
			t.Errorf("%q: %s %v", name, got, ok)
		}
	}
	if _, ok := state.ParseRTTMethod("quic"); ok {
		t.Error("quic is a method")
	}
}

func network(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i)<<8|53)
	return netip.AddrFrom4(b)
}

// A map is the oracle: as long as the table has room, it holds exactly what was added.
func TestRTTTableAgainstMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	table := state.NewRTTTable(state.RTTConfig{MaxTargets: 200_000})
	oracle := map[netip.Prefix]time.Duration{}
	now := time.Now()
	for range 50_000 {
		a := network(1 + rnd.IntN(1<<24-1))
		if rnd.IntN(4) == 0 {
			b := [16]byte{0x20, 0x01, 0x0d, 0xb8}
			binary.BigEndian.PutUint32(b[4:], rnd.Uint32())
			a = netip.AddrFrom16(b)
		}
		rtt := time.Duration(1+rnd.IntN(1e6)) * time.Microsecond
		if _, ok := oracle[table.Key(a)]; ok {
			continue
		}
		table.Add(0, []state.RTTSample{{Resolver: a, RTT: rtt}}, now)
		oracle[table.Key(a)] = rtt
	}
	if table.Len() != len(oracle) {
		t.Errorf("len %d, want %d", table.Len(), len(oracle))
	}
	for key, want := range oracle {
		if v, ok := value(table.Row(key.Addr()), 0); !ok || v.RTT != want {
			t.Fatalf("%v: %v %v, want %v", key, ok, v.RTT, want)
		}
	}
}

func TestRTTTableIsBounded(t *testing.T) {
	for _, most := range []int{1, 7, 1000, 5000} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			table := state.NewRTTTable(state.RTTConfig{MaxTargets: most})
			now := time.Now()
			n := 3 * most
			for i := range n {
				table.Add(0, []state.RTTSample{{Resolver: network(i), RTT: time.Millisecond}}, now.Add(time.Duration(i)*time.Millisecond))
			}
			if got := table.Len(); got > most || got < most*9/10 {
				t.Errorf("len %d, want at most %d and little less", got, most)
			}
			// What goes first is what asked the longest ago.
			if table.Row(network(n-1)) == nil {
				t.Error("the newest is gone")
			}
			if most > 1 && table.Row(network(0)) != nil {
				t.Error("the oldest is still there")
			}
		})
	}
}

func TestRTTTableReadersWhileWriting(t *testing.T) {
	table := state.NewRTTTable(state.RTTConfig{MaxTargets: 2000})
	now := time.Now()
	keep := network(1 << 20)
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for i := range 500 {
					if row := table.Row(network(i)); row != nil && row.Len() == 0 {
						t.Error("an empty row")
						return
					}
				}
			}
		})
	}
	for w := range 2 {
		writers.Go(func() {
			for i := range 3000 {
				table.Add(uint16(w), []state.RTTSample{{Resolver: network(i % 5000), RTT: time.Millisecond}, {Resolver: keep, RTT: time.Second}}, now.Add(time.Duration(i)))
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if _, ok := value(table.Row(keep), 1); !ok {
		t.Error("the network that asked all along is gone")
	}
}

func TestRTTRowAllocatesNothing(t *testing.T) {
	table := state.NewRTTTable(state.RTTConfig{})
	table.Add(0, []state.RTTSample{sample("203.0.113.53", 30, 0)}, time.Now())
	a := addr("203.0.113.53")
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := table.Row(a).Fresh(0, state.RTTICMP, 0); !ok {
			t.Error("no value")
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// What a network's clients saw before they were sent elsewhere does not outvote what they see when they come back. Probes go
// on with what they had.
func TestPassiveBeginsAnew(t *testing.T) {
	for method, want := range map[state.RTTMethod]time.Duration{state.RTTPassive: 20 * time.Millisecond, state.RTTICMP: 200 * time.Millisecond} {
		table, now := state.NewRTTTable(state.RTTConfig{}), time.Now()
		add := func(ms float64, at time.Duration) time.Duration {
			s := sample("203.0.113.53", ms, 0)
			s.Method = method
			table.Add(1, []state.RTTSample{s}, now.Add(at))
			rtt, _ := table.Row(s.Resolver).Fresh(1, method, 0)
			return rtt
		}
		for i := range 5 {
			add(200, time.Duration(i)*4*time.Minute)
		}
		if got := add(20, 20*time.Minute); got != 200*time.Millisecond {
			t.Errorf("%s, one of five: %v", method, got)
		}
		for i := range 5 {
			add(200, 24*time.Minute+time.Duration(i)*time.Minute)
		}
		if got := add(20, 39*time.Minute); got != want {
			t.Errorf("%s, eleven minutes later: %v, want %v", method, got, want)
		}
	}
}
