package policy_test

import (
	"net/netip"
	"strings"
	"time"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// dice gives numbers from 0 up to but not including n. A *rand.Rand is one; so are the bytes of a fuzzer.
type dice interface{ IntN(n int) int }

// bytesDice takes one byte a throw, and is 0 when they are used up.
type bytesDice struct{ data []byte }

func (b *bytesDice) IntN(n int) int {
	if len(b.data) == 0 || n == 0 {
		return 0
	}
	v := int(b.data[0]) % n
	b.data = b.data[1:]
	return v
}

func one[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// rare is true once in n.
func rare(d dice, n int) bool { return d.IntN(n) == n-1 }

var memberNames = strings.Fields("a b c d e f g")

// randomWorld returns a service of up to seven members in any state, with few distinct values so that ties are common.
func randomWorld(d dice) *world {
	w := newWorld(memberNames[:1+d.IntN(len(memberNames))]...)
	w.Service.Answers = one(d, 1, 1, 1, 2, 10)
	w.OnAllDown = one(d, state.AllDownAll, state.AllDownAll, state.AllDownLastKnownGood, state.AllDownBackup, state.AllDownNoData, state.AllDownServFail)
	if rare(d, 2) {
		w.LastResort = []netip.Addr{one(d, netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("2001:db8::99"))}
	}
	w.StagedPool = one(d, state.Primary, state.Backup) // Pool is Primary
	down := one(d, 2, 3, 10)
	for _, m := range w.Members {
		m.InPool, m.InStagedPool = !rare(d, 5), rare(d, 2)
		for rare(d, 4) && len(m.Moved) < 2 {
			m.Moved = append(m.Moved, state.Stage{Order: uint64(d.IntN(9)), Share: one(d, 0.25, 0.5, 0.9)})
		}
		m.Forced = one(d, state.NotForced, state.NotForced, state.NotForced, state.NotForced, state.ForcedUp, state.ForcedDrain, state.ForcedDown, state.ForcedEvacuated)
		m.Weight = one(d, 100, 100, 100, 50, 300, 0)
		m.Preference = one(d, 100, 100, 200, 0)
		for _, f := range []state.Family{state.V4, state.V6} {
			if rare(d, 6) {
				m.Addr[f] = netip.Addr{}
			}
			m.Up[f] = m.Addr[f].IsValid() && !rare(d, down)
			m.LastGood[f] = rare(d, 3)
			m.HasLatency[f], m.Latency[f] = !rare(d, 4), one(d, 10*ms, 10500*time.Microsecond, 20*ms)
			m.Selected[f].Store(int64(one(d, 0, 1, 2)) * state.SelectedUnit)
			m.SelectedApart[f].Store(int64(one(d, 0, 1, 2)) * state.SelectedUnit)
		}
		m.HasServers, m.ServersUp = !rare(d, 4), d.IntN(3)
		s := w.snapshot.SiteOf(m)
		s.Cost = d.IntN(3)
		s.Freshness = one(d, state.Fresh, state.Fresh, state.Fresh, state.NeverReported, state.Stale, state.Dead)
		s.HasUtilisation, s.Utilisation = !rare(d, 4), one(d, 0.3, 0.95, 1, 1.05, 1.2)
		s.Overloaded = rare(d, 3)
		s.HasNewSessions, s.NewSessions = !rare(d, 4), one(d, 0, 4., 100, 250)
		s.HasSessions, s.SessionsLimit, s.Sessions = !rare(d, 4), one[uint64](d, 0, 1000, 1000), one[uint64](d, 0, 80, 500, 2000)
		s.HasLoad = s.HasSessions
		s.RTTBlind = rare(d, 8)
		for range d.IntN(4) {
			method := one(d, state.RTTICMP, state.RTTICMP, state.RTTTCP, state.RTTDNS, state.RTTPassive)
			w.rttBy(method, m.Name, "20.1.2.3", one(d, 20*ms, 21*ms, 30*ms, 200*ms), one(d, 0, 9*time.Minute, 11*time.Minute))
		}
		if !rare(d, 4) {
			s.Location = geo.NewLocation(geo.Location{
				Continent: one(d, "", "AS", "NA"), Country: one(d, "", "KR", "US"), Subdivision: one(d, "", "X", "Y"),
				Latitude: float64(d.IntN(3)), Longitude: float64(d.IntN(2)), HasCoordinates: !rare(d, 3),
			})
		}
	}
	return w
}

// wherever places the client of randomWorld's round trips.
func wherever(d dice) geo.Override {
	o := geo.Override{Prefix: prefixOf("20.1.0.0/16")}
	if rare(d, 3) {
		o.Site = one(d, memberNames...)
	}
	if !rare(d, 4) {
		o.Location = geo.Location{Country: one(d, "", "KR", "US"), Subdivision: one(d, "", "X"), Continent: one(d, "AS", "NA")}
		if rare(d, 2) {
			o.Location.HasCoordinates, o.Location.Latitude = true, float64(d.IntN(3))
		}
	} else if o.Site == "" {
		o.Site = "elsewhere"
	}
	return o
}

// randomChain returns some metrics in any order, some of them disabled, with various parameters.
func randomChain(d dice, methods ...string) []policy.StepOptions {
	names := policy.Reasons()[3:]
	for i := len(names) - 1; i > 0; i-- {
		j := d.IntN(i + 1)
		names[i], names[j] = names[j], names[i]
	}
	var steps []policy.StepOptions
	for _, name := range names[:1+d.IntN(len(names))] {
		o := defaults(name)
		o.Disabled = rare(d, 6)
		switch name {
		case "rtt":
			o.RequireData = rare(d, 3)
		case "geo":
			i := d.IntN(len(o.Levels))
			o.Levels = append(o.Levels[i:len(o.Levels):len(o.Levels)], o.Levels[:d.IntN(i+1)]...)
		case "connection-load":
			o.Limit = one(d, 0., 0, 100)
		case "static":
			o.Method = one(d, methods...)
		}
		steps = append(steps, o)
	}
	return steps
}

// randomOverrides places some networks around the bases.
func randomOverrides(d dice, bases []string) []geo.Override {
	seen := map[netip.Prefix]bool{}
	var list []geo.Override
	for range d.IntN(12) {
		addr := netip.MustParseAddr(one(d, bases...))
		o := wherever(d)
		o.Prefix, _ = near(d, addr, d.IntN(30)).Prefix(4 + d.IntN(26))
		if !seen[o.Prefix] {
			seen[o.Prefix] = true
			list = append(list, o)
		}
	}
	return list
}

// near returns a random address that shares the first bits with addr.
func near(d dice, addr netip.Addr, bits int) netip.Addr {
	b := addr.AsSlice()
	for i := bits; i < len(b)*8; i++ {
		if d.IntN(2) == 1 {
			b[i/8] ^= 0x80 >> (i % 8)
		}
	}
	other, _ := netip.AddrFromSlice(b)
	return other
}
