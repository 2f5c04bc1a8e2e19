package policy_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// evacuate takes members out.
func (w *world) evacuate(names ...string) {
	for _, n := range names {
		w.of(n).Forced = state.ForcedEvacuated
	}
}

// only leaves all members one family.
func (w *world) only(f state.Family) {
	for _, m := range w.Members {
		m.Addr[f.Other()], m.Up[f.Other()] = netip.Addr{}, false
	}
}

// A forecastCase is what changes between two worlds of the same members.
type forecastCase struct {
	name    string
	members string // default: a b c
	steps   string
	both    func(t testing.TB, w *world) // of the worlds before and after
	after   func(w *world)
	clients []state.Client // default: 600 resolvers of different networks
	want    string         // see shares
}

func (c *forecastCase) worlds(t testing.TB) (before, after *world) {
	members := c.members
	if members == "" {
		members = "a b c"
	}
	chain := build(t, strings.Fields(c.steps)...)
	make := func() *world {
		w := newWorld(strings.Fields(members)...)
		w.Service.Chain, w.Rotation = chain, new(state.Rotation)
		if c.both != nil {
			c.both(t, w)
		}
		return w
	}
	before, after = make(), make()
	if c.after != nil {
		c.after(after)
	}
	return before, after
}

func resolvers(n int) []state.Client {
	var list []state.Client
	for i := range n {
		list = append(list, state.Client{LDNS: netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 53})})
	}
	return list
}

func clientsOf(list []state.Client) func(string) []state.Client {
	return func(string) []state.Client { return list }
}

// shares writes what is forecast of a service as "a 33>0 b 33>50 | changed 33", in percent, without what stays.
func shares(s *policy.ServiceForecast) string {
	if s.Shares == nil {
		return s.Unknown
	}
	var list []string
	add := func(name string, c policy.Change) {
		if c != (policy.Change{}) {
			list = append(list, fmt.Sprintf("%s %.0f>%.0f", name, c.Before*100, c.After*100))
		}
	}
	for _, site := range s.Shares.Sites {
		add(site.Site, site.Change)
	}
	add("last resort", s.Shares.LastResort)
	add("no answer", s.Shares.NoAnswer)
	for _, f := range s.Shares.Families {
		add("no "+f.Family, f.NoAnswer)
	}
	return strings.Join(list, ", ") + fmt.Sprintf(" | changed %.0f", s.Shares.Changed*100)
}

// places puts a, b and c on the map, and resolvers in 20.0.0.0/9 near a, those in 20.128.0.0/9 near b, others nowhere.
func places(t testing.TB, w *world) {
	w.place("a", "AS", "KR", 37, 127)
	w.place("b", "AS", "JP", 35, 139)
	w.place("c", "NA", "US", 38, -77)
	w.overrides(t,
		geo.Override{Prefix: prefixOf("20.0.0.0/9"), Location: geo.Location{Continent: "AS", Country: "KR", Latitude: 37, Longitude: 126, HasCoordinates: true}},
		geo.Override{Prefix: prefixOf("20.128.0.0/9"), Location: geo.Location{Continent: "AS", Country: "JP", Latitude: 35, Longitude: 140, HasCoordinates: true}},
	)
}

func times(n int, c state.Client) []state.Client {
	return slices.Repeat([]state.Client{c}, n)
}

var (
	nearA = state.Client{LDNS: netip.MustParseAddr("20.1.2.3")}
	nearB = state.Client{LDNS: netip.MustParseAddr("20.201.2.3")}
	// Its resolver is near a and its users are near b.
	fromB = state.Client{LDNS: netip.MustParseAddr("20.1.2.3"), ECS: netip.MustParsePrefix("20.201.9.0/24")}
)

func TestForecastShares(t *testing.T) {
	for _, tt := range []forecastCase{
		{
			name: "nothing changes", steps: "health static",
			want: "a 33>33, b 33>33, c 33>33 | changed 0",
		},
		{
			name: "round-robin moves only those of the member that goes", steps: "health static",
			after: func(w *world) { w.evacuate("a") },
			want:  "a 33>0, b 33>50, c 33>50 | changed 33",
		},
		{
			name: "and so does least-selected", steps: "health least-selected static=ordered",
			after: func(w *world) { w.evacuate("a") },
			want:  "a 33>0, b 33>50, c 33>50 | changed 33",
		},
		{
			name: "weighted", steps: "health static=weighted",
			both:  func(_ testing.TB, w *world) { w.of("a").Weight = 200 },
			after: func(w *world) { w.evacuate("b") },
			want:  "a 50>67, b 25>0, c 25>33 | changed 25",
		},
		{
			name: "least-selected goes on from its counts", steps: "health least-selected static=ordered", members: "a b",
			both: func(_ testing.TB, w *world) {
				for f := range 2 {
					w.of("a").Selected[f].Store(300 * state.SelectedUnit)
				}
			},
			want: "a 25>25, b 75>75 | changed 0",
		},
		{
			name: "geo decides for each client", steps: "health geo least-selected static", both: places,
			clients: append(times(70, nearA), times(30, nearB)...),
			after:   func(w *world) { w.evacuate("a") },
			want:    "a 70>0, b 30>100 | changed 70",
		},
		{
			name: "geo looks at the prefix", steps: "health geo least-selected static", both: places,
			clients: append(times(70, fromB), times(30, nearA)...),
			after:   func(w *world) { w.evacuate("b") },
			want:    "a 30>100, b 70>0 | changed 70",
		},
		{
			name: "clients that change places are told, where rotation has no say", steps: "health geo least-selected static", both: places,
			clients: append(times(50, nearA), times(50, nearB)...),
			after: func(w *world) {
				at := w.at("a").Location
				w.at("a").Location, w.at("b").Location = w.at("b").Location, at
			},
			want: "a 50>50, b 50>50 | changed 100",
		},
		{
			name: "failover", steps: "health static",
			both: func(_ testing.TB, w *world) { w.of("c").Role, w.of("c").InPool = state.Backup, false },
			after: func(w *world) {
				w.evacuate("a", "b")
				w.Pool = state.Backup
				w.of("a").InPool, w.of("b").InPool, w.of("c").InPool = false, false, true
			},
			want: "a 50>0, b 50>0, c 0>100 | changed 100",
		},
		{
			name: "all are taken out", steps: "health static",
			after: func(w *world) { w.evacuate("a", "b", "c") },
			want:  "a 33>0, b 33>0, c 33>0, no answer 0>100, no ipv4 0>100, no ipv6 0>100 | changed 100",
		},
		{
			name: "server failure is no answer", steps: "health static=ordered", members: "a",
			both:  func(_ testing.TB, w *world) { w.OnAllDown = state.AllDownServFail },
			after: func(w *world) { w.down("a") },
			want:  "a 100>0, no answer 0>100, no ipv4 0>100, no ipv6 0>100 | changed 100",
		},
		{
			name: "the last resort is an answer", steps: "health static=ordered", members: "a",
			both: func(_ testing.TB, w *world) {
				w.OnAllDown, w.LastResort = state.AllDownBackup, []netip.Addr{netip.MustParseAddr("192.0.2.99")}
			},
			after: func(w *world) { w.down("a") },
			want:  "a 100>0, last resort 0>100, no ipv6 0>100 | changed 100",
		},
		{
			name: "the other family still answers", steps: "health static=ordered", members: "a b",
			both:  func(_ testing.TB, w *world) { w.of("b").Addr[state.V6] = netip.Addr{} },
			after: func(w *world) { w.evacuate("a") },
			want:  "a 100>0, b 0>100, no ipv6 0>100 | changed 100",
		},
		{
			name: "a family that the service lacks is not missed", steps: "health static=ordered", members: "a b",
			both:  func(_ testing.TB, w *world) { w.only(state.V4) },
			after: func(w *world) { w.evacuate("a") },
			want:  "a 100>0, b 0>100 | changed 100",
		},
		{
			name: "no clients", steps: "health static", clients: []state.Client{},
			after: func(w *world) { w.evacuate("a") },
			want:  "no recent clients are known",
		},
		{
			name: "a reload between the snapshots", steps: "health static",
			after: func(w *world) { w.Members = w.Members[:2] },
			want:  "the configuration has just changed; ask again",
		},
		{
			name: "a new service", steps: "health static",
			after: func(w *world) { w.Name = "new.gslb.test" },
			want:  "the configuration has just changed; ask again",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.clients == nil {
				tt.clients = resolvers(600)
			}
			before, after := tt.worlds(t)
			f := policy.NewForecast(before.snapshot, after.snapshot, clientsOf(tt.clients))
			if got := shares(&f.Services[0]); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if s := f.Services[0]; s.Clients != len(tt.clients) || s.PoolAfter != after.Pool.String() {
				t.Errorf("%d clients, pool %q", s.Clients, s.PoolAfter)
			}
		})
	}
}

// load gives a site load and thresholds.
func (w *world) load(site string, sessions, bitsIn, bitsOut, sessionsLimit, bandwidthLimit uint64) {
	s := w.at(site)
	s.HasLoad, s.HasSessions, s.HasBits = true, true, true
	s.Sessions, s.BitsIn, s.BitsOut, s.SessionsLimit, s.BandwidthLimit = sessions, bitsIn, bitsOut, sessionsLimit, bandwidthLimit
}

// loads writes what is forecast of the sites as "a 600/10/60>0/0/0 | b ...": sessions, bits in and out.
func loads(f *policy.Forecast) string {
	number := func(n *uint64) string {
		if n == nil {
			return "?"
		}
		return fmt.Sprint(*n)
	}
	load := func(l *policy.Load) string {
		if l == nil {
			return "unknown"
		}
		return number(l.Sessions) + "/" + number(l.BitsPerSecondIn) + "/" + number(l.BitsPerSecondOut)
	}
	var list []string
	for _, s := range f.Sites {
		line := s.Name + " " + load(s.Before) + ">" + load(s.After)
		if s.Before == nil {
			line += " arriving " + load(&s.Arriving)
		}
		if s.UtilAfter != nil {
			line += fmt.Sprintf(" %.0f%%>%.0f%%", *s.UtilBefore*100, *s.UtilAfter*100)
		}
		if s.Over {
			line += " over: " + s.OverWhy
		}
		list = append(list, line)
	}
	if n := f.Unplaced.Sessions; n != nil && *n > 0 {
		list = append(list, "unplaced "+load(&f.Unplaced))
	}
	return strings.Join(list, " | ")
}

func TestForecastLoad(t *testing.T) {
	for _, tt := range []struct {
		forecastCase
		warnings []string
	}{
		{
			forecastCase: forecastCase{
				name: "the seed's thresholds", steps: "health static", members: "a b",
				both: func(_ testing.TB, w *world) {
					w.load("a", 600_000, 100e6, 500e6, 900_000, 900e6)
					w.load("b", 500_000, 50e6, 300e6, 900_000, 900e6)
				},
				after: func(w *world) { w.evacuate("a") },
				want: "a 600000/100000000/500000000>0/0/0 67%>0% | " +
					"b 500000/50000000/300000000>1100000/150000000/800000000 56%>122% over: 1100000 sessions of 900000",
			},
			warnings: []string{"site b would be at 122.2 % of its thresholds: 1100000 sessions of 900000 (now 55.6 %)"},
		},
		{
			forecastCase: forecastCase{
				name: "bandwidth", steps: "health static", members: "a b",
				both: func(_ testing.TB, w *world) {
					w.load("a", 10, 100, 500, 0, 0)
					w.load("b", 10, 50, 400, 0, 900)
				},
				after: func(w *world) { w.evacuate("a") },
				want:  "a 10/100/500>0/0/0 | b 10/50/400>20/150/900 44%>100% over: 900 bits per second of 900",
			},
			warnings: []string{"site b would be at 100 % of its thresholds: 900 bits per second of 900 (now 44.4 %)"},
		},
		{
			forecastCase: forecastCase{
				name: "those of a that go go where geo says", steps: "health geo static=ordered", both: func(t testing.TB, w *world) {
					places(t, w)
					w.load("a", 700, 0, 0, 1000, 0)
					w.load("b", 300, 0, 0, 1000, 0)
					w.load("c", 100, 0, 0, 1000, 0)
				},
				clients: append(times(70, nearA), times(30, nearB)...),
				after:   func(w *world) { w.evacuate("b") },
				want:    "a 700/0/0>1000/0/0 70%>100% over: 1000 sessions of 1000 | b 300/0/0>0/0/0 30%>0% | c 100/0/0>100/0/0 10%>10%",
			},
			warnings: []string{"site a would be at 100 % of its thresholds: 1000 sessions of 1000 (now 70 %)"},
		},
		{
			forecastCase: forecastCase{
				name: "a share of the clients takes a share of the load", steps: "health static=ordered", members: "a b",
				clients: append(times(75, nearA), times(25, nearB)...), // those near b are moved in the world after
				both: func(t testing.TB, w *world) {
					w.load("a", 1000, 0, 0, 0, 0)
					w.load("b", 0, 0, 0, 0, 0)
					w.overrides(t, geo.Override{Prefix: prefixOf("20.128.0.0/9"), Site: "a"}, geo.Override{Prefix: prefixOf("20.0.0.0/9"), Site: "a"})
					w.Service.Chain = build(t, "health", "geo", "static=ordered")
				},
				after: func(w *world) {
					db, err := geo.Open(geo.Options{Overrides: []geo.Override{{Prefix: prefixOf("20.128.0.0/9"), Site: "b"}}})
					if err != nil {
						panic(err)
					}
					w.snapshot.Geo = db
				},
				want: "a 1000/0/0>750/0/0 | b 0/0/0>250/0/0",
			},
		},
		{
			forecastCase: forecastCase{
				name: "already over, and it gets more", steps: "health static=ordered", members: "a b",
				clients: append(times(1, nearA), times(1, nearB)...),
				both: func(t testing.TB, w *world) {
					w.load("a", 100, 0, 0, 0, 0)
					w.load("b", 95, 0, 0, 90, 0)
				},
				after: func(w *world) { w.evacuate("a") },
				want:  "a 100/0/0>0/0/0 | b 95/0/0>195/0/0 106%>217% over: 195 sessions of 90",
			},
			warnings: []string{"site b would be at 216.7 % of its thresholds: 195 sessions of 90 (now 105.6 %)"},
		},
		{
			forecastCase: forecastCase{
				name: "over, but not by this", steps: "health static=ordered", members: "a b",
				both: func(t testing.TB, w *world) { w.load("a", 100, 0, 0, 90, 0) },
				want: "a 100/0/0>100/0/0 111%>111% over: 100 sessions of 90 | b unknown>unknown arriving ?/?/?",
			},
		},
		{
			forecastCase: forecastCase{
				name: "a site that tells no load", steps: "health static", members: "a b",
				both:  func(_ testing.TB, w *world) { w.load("b", 500, 0, 0, 900, 0) },
				after: func(w *world) { w.evacuate("a") },
				want:  "a unknown>unknown arriving ?/?/? | b 500/0/0>500/0/0 56%>56%",
			},
			warnings: []string{"site a: no fresh report tells its load, so what its clients would bring to other sites is not counted"},
		},
		{
			forecastCase: forecastCase{
				name: "they go to a site that tells no load", steps: "health static", members: "a b",
				both:  func(_ testing.TB, w *world) { w.load("a", 500, 1, 2, 900, 0) },
				after: func(w *world) { w.evacuate("a") },
				want:  "a 500/1/2>0/0/0 56%>0% | b unknown>unknown arriving 500/1/2",
			},
		},
		{
			forecastCase: forecastCase{
				name: "they go nowhere", steps: "health static", members: "a b",
				both: func(_ testing.TB, w *world) {
					w.load("a", 500, 0, 0, 900, 0)
					w.load("b", 300, 0, 0, 900, 0)
				},
				after: func(w *world) { w.evacuate("a", "b") },
				want:  "a 500/0/0>0/0/0 56%>0% | b 300/0/0>0/0/0 33%>0% | unplaced 800/0/0",
			},
			warnings: []string{"service www.gslb.test: 100 % of its clients would get no answer (now 0 %)"},
		},
		{
			forecastCase: forecastCase{
				name: "nobody is known", steps: "health static", members: "a b", clients: []state.Client{},
				both: func(_ testing.TB, w *world) {
					w.load("a", 500, 0, 0, 900, 0)
					w.load("b", 300, 0, 0, 900, 0)
				},
				after: func(w *world) { w.evacuate("a") },
				want:  "a 500/0/0>500/0/0 56%>56% | b 300/0/0>300/0/0 33%>33%",
			},
			warnings: []string{
				"site a: none of its clients are known, so where its load would go is not",
				"of 1 of 1 services no recent clients are known, so nothing is forecast of them: www.gslb.test",
			},
		},
		{
			forecastCase: forecastCase{
				name: "nobody is known, and the backups take over", steps: "health static", members: "a b", clients: []state.Client{},
				both: func(_ testing.TB, w *world) {
					w.load("a", 500, 0, 0, 900, 0)
					w.load("b", 300, 0, 0, 900, 0)
					w.of("b").Role, w.of("b").InPool = state.Backup, false
				},
				after: func(w *world) {
					w.evacuate("a")
					w.of("a").InPool, w.of("b").InPool = false, true
				},
				want: "a 500/0/0>500/0/0 56%>56% | b 300/0/0>300/0/0 33%>33%",
			},
			warnings: []string{
				"site a: none of its clients are known, so where its load would go is not",
				"of 1 of 1 services no recent clients are known, so nothing is forecast of them: www.gslb.test",
			},
		},
		{
			forecastCase: forecastCase{
				name: "no answer for one family", steps: "health static=ordered", members: "a b",
				both:  func(_ testing.TB, w *world) { w.of("b").Addr[state.V6] = netip.Addr{} },
				after: func(w *world) { w.evacuate("a") },
				want:  "a unknown>unknown arriving ?/?/? | b unknown>unknown arriving ?/?/?",
			},
			warnings: []string{
				"site a: no fresh report tells its load, so what its clients would bring to other sites is not counted",
				"service www.gslb.test: 100 % of its clients would get no answer for ipv6 (now 0 %)",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.clients == nil {
				tt.clients = resolvers(600)
			}
			before, after := tt.worlds(t)
			f := policy.NewForecast(before.snapshot, after.snapshot, clientsOf(tt.clients))
			if got := loads(&f); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if d := cmp.Diff(append([]string{}, tt.warnings...), f.Warnings); d != "" {
				t.Errorf("warnings:\n%s", d)
			}
		})
	}
}

// Services weigh by how often they are asked: here the one that leaves a is asked three times as often as the other.
func TestForecastWeighsServices(t *testing.T) {
	make := func() *world {
		w := newWorld("a", "b")
		w.Service.Chain = build(t, "health", "static=ordered")
		second := *w.Service
		second.Name = "second.gslb.test"
		second.Members = nil
		for _, m := range w.Members {
			c := *m
			second.Members = append(second.Members, &c)
		}
		w.snapshot.Services = append(w.snapshot.Services, &second)
		w.load("a", 1000, 0, 0, 0, 0)
		return w
	}
	before, after := make(), make()
	after.evacuate("a")
	f := policy.NewForecast(before.snapshot, after.snapshot, func(service string) []state.Client {
		c := nearA
		if c.Weight = 1; service == "www.gslb.test" {
			c.Weight = 3
		}
		return times(10, c)
	})
	if got, want := loads(&f), "a 1000/0/0>250/0/0 | b unknown>unknown arriving 750/0/0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := f.Sites[0].Clients, (policy.Change{Before: 1, After: 0.25}); got != want {
		t.Errorf("clients of a: %v, want %v", got, want)
	}
}

// Of many services an even selection of the clients is decided for, and it weighs as much as all of them.
func TestForecastSelects(t *testing.T) {
	make := func() *world {
		w := newWorld("a", "b")
		w.Service.Chain = build(t, "health", "geo", "static=ordered")
		w.place("a", "AS", "KR", 37, 127)
		w.place("b", "AS", "JP", 35, 139)
		w.overrides(t, geo.Override{Prefix: prefixOf("20.0.0.0/9"), Site: "a"}, geo.Override{Prefix: prefixOf("20.128.0.0/9"), Site: "b"})
		for i := range 199 {
			svc := *w.Service
			svc.Name = fmt.Sprintf("s%d.gslb.test", i)
			w.snapshot.Services = append(w.snapshot.Services, &svc)
		}
		w.load("a", 1000, 0, 0, 0, 0)
		return w
	}
	f := policy.NewForecast(make().snapshot, make().snapshot, func(service string) []state.Client {
		switch service {
		case "www.gslb.test":
			return append(times(3000, nearA), times(1000, nearB)...)
		case "s0.gslb.test":
			return times(1000, nearB)
		}
		return nil
	})
	if got, want := shares(&f.Services[0]), "a 75>75, b 25>25 | changed 0"; got != want || f.Services[0].Clients != 1000 {
		t.Errorf("%d clients: %s, want 1000: %s", f.Services[0].Clients, got, want)
	}
	if got := f.Sites[0].Clients.Before; math.Abs(got-0.6) > 1e-9 {
		t.Errorf("a has %g of the clients, want 3,000 of 5,000", got)
	}
	if got := f.Warnings[len(f.Warnings)-1]; !strings.Contains(got, "of 198 of 200 services") || !strings.HasSuffix(got, "s5.gslb.test and 193 more") {
		t.Error(got)
	}
}

// What is not known is absent, and lists are lists, so that nobody takes no data for zero.
func TestForecastJSON(t *testing.T) {
	c := forecastCase{steps: "health static=ordered", members: "a", both: func(_ testing.TB, w *world) {
		w.only(state.V4)
		w.at("a").HasLoad, w.at("a").HasSessions = true, true
	}}
	before, after := c.worlds(t)
	for _, tt := range []struct {
		clients []state.Client
		want    string
	}{
		{nil, `{"warnings":["of 1 of 1 services no recent clients are known, so nothing is forecast of them: www.gslb.test"],` +
			`"services":[{"name":"www.gslb.test","pool_before":"primary","pool_after":"primary","clients":0,"unknown":"no recent clients are known"}],` +
			`"sites":[{"name":"a","zone":"","clients":{"before":0,"after":0},"leaving":{"sessions":0},"arriving":{},"before":{"sessions":0},"after":{"sessions":0},` +
			`"sessions_limit":0,"bandwidth_limit":0,"over":false}],"unplaced":{"sessions":0}}`},
		{times(1, nearA), `{"warnings":[],` +
			`"services":[{"name":"www.gslb.test","pool_before":"primary","pool_after":"primary","clients":1,` +
			`"shares":{"changed":0,"no_answer":{"before":0,"after":0},"last_resort":{"before":0,"after":0},"sites":[{"site":"a","before":1,"after":1}],` +
			`"families":[{"family":"ipv4","no_answer":{"before":0,"after":0}}],"moves":[]}}],` +
			`"sites":[{"name":"a","zone":"","clients":{"before":1,"after":1},"leaving":{"sessions":0},"arriving":{},"before":{"sessions":0},"after":{"sessions":0},` +
			`"sessions_limit":0,"bandwidth_limit":0,"over":false}],"unplaced":{"sessions":0}}`},
	} {
		got, err := json.Marshal(policy.NewForecast(before.snapshot, after.snapshot, clientsOf(tt.clients)))
		if err != nil || string(got) != tt.want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, tt.want)
		}
	}
}

// Properties of any forecast: the shares are of all clients, load neither appears nor vanishes, nothing changes when
// nothing does, and the snapshots stay as they are.
func TestForecastProperties(t *testing.T) {
	chains := [][]string{
		defaultChain,
		{"health", "static=hash"},
		{"preference", "health", "capacity", "static=weighted"},
		{"geo", "least-selected", "static=ordered"},
		{"static"},
	}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		w := randomWorld(rnd)
		w.Service.Chain, w.Rotation = build(t, chains[seed%uint64(len(chains))]...), new(state.Rotation)
		w.snapshot.Published = now
		for _, m := range w.Members {
			w.snapshot.SiteOf(m).HasLoad, w.snapshot.SiteOf(m).HasSessions, w.snapshot.SiteOf(m).Sessions = true, rnd.IntN(4) > 0, uint64(rnd.IntN(1000))
			if !w.snapshot.SiteOf(m).HasSessions {
				w.snapshot.SiteOf(m).Sessions = 0
			}
			w.snapshot.SiteOf(m).HasBits, w.snapshot.SiteOf(m).BitsIn, w.snapshot.SiteOf(m).BitsOut = rnd.IntN(4) > 0, 0, 0
			if w.snapshot.SiteOf(m).HasBits {
				w.snapshot.SiteOf(m).BitsIn, w.snapshot.SiteOf(m).BitsOut = uint64(rnd.IntN(1000)), uint64(rnd.IntN(1000))
			}
		}
		after := *w.snapshot
		svc := *w.Service
		after.Services = []*state.Service{&svc}
		svc.Members = nil
		for _, m := range w.Members {
			c := *m
			c.Forced = one(rnd, m.Forced, state.NotForced, state.ForcedDrain, state.ForcedDown, state.ForcedEvacuated)
			c.InPool = m.InPool != rare(rnd, 4)
			svc.Members = append(svc.Members, &c)
		}
		list := resolvers(1 + rnd.IntN(200))
		for i := range list {
			list[i].Weight = 0.25
		}
		selected := func() (all []int64) {
			for _, m := range w.Members {
				all = append(all, m.Selected[0].Load(), m.Selected[1].Load())
			}
			return append(all, int64(w.Rotation.Turn[0].Load()), int64(w.Rotation.Turn[1].Load()))
		}
		counts := selected()

		f := policy.NewForecast(w.snapshot, &after, clientsOf(list))
		if !slices.Equal(selected(), counts) {
			t.Fatalf("seed %d: the forecast counted in a snapshot", seed)
		}
		s := f.Services[0].Shares
		sum := policy.Change{Before: s.NoAnswer.Before + s.LastResort.Before, After: s.NoAnswer.After + s.LastResort.After}
		lost := math.Max(0, s.NoAnswer.Before-s.NoAnswer.After) + math.Max(0, s.LastResort.Before-s.LastResort.After)
		for _, site := range s.Sites {
			sum.Before += site.Before
			sum.After += site.After
			lost += math.Max(0, site.Before-site.After)
		}
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
		if !near(sum.Before, 1) || !near(sum.After, 1) {
			t.Errorf("seed %d: the shares sum to %v: %s", seed, sum, shares(&f.Services[0]))
		}
		if s.Changed < lost-1e-6 || s.Changed > 1+1e-6 {
			t.Errorf("seed %d: changed %g, while sites lose %g", seed, s.Changed, lost)
		}
		var leaving, arriving, clients float64
		value := func(n *uint64) float64 {
			if n == nil {
				return 0
			}
			return float64(*n)
		}
		total := func(l policy.Load) float64 {
			return value(l.Sessions) + value(l.BitsPerSecondIn) + value(l.BitsPerSecondOut)
		}
		for _, site := range f.Sites {
			leaving += total(site.Leaving)
			arriving += total(site.Arriving)
			clients += site.Clients.After
			if site.After != nil && site.Before.Sessions != nil {
				if d := value(site.Before.Sessions) - value(site.Leaving.Sessions) + value(site.Arriving.Sessions) - value(site.After.Sessions); math.Abs(d) > 2 {
					t.Errorf("seed %d: site %s: sessions do not add up: %s", seed, site.Name, loads(&f))
				}
			}
		}
		if d := leaving - arriving - total(f.Unplaced); math.Abs(d) > float64(3*len(f.Sites)) { // each is rounded
			t.Errorf("seed %d: %g leaves, %g arrives, %g is unplaced", seed, leaving, arriving, total(f.Unplaced))
		}
		if !near(clients+s.NoAnswer.After+s.LastResort.After, 1) {
			t.Errorf("seed %d: the sites have %g of the clients, no answer %g", seed, clients, s.NoAnswer.After)
		}

		still := policy.NewForecast(w.snapshot, w.snapshot, clientsOf(list))
		if c := still.Services[0].Shares.Changed; c != 0 {
			t.Errorf("seed %d: %g change although nothing does: %s", seed, c, shares(&still.Services[0]))
		}
		for _, site := range still.Sites {
			if total(site.Leaving) != 0 || total(site.Arriving) != 0 {
				t.Errorf("seed %d: load moves although nothing changes: %s", seed, loads(&still))
			}
		}
	}
}

// Where nothing rotates, a forecast counts what explain says for each client.
func TestForecastIsTheChain(t *testing.T) {
	c := forecastCase{
		members: "a b c d e", steps: "health static=hash",
		both:  func(_ testing.TB, w *world) { w.of("c").Weight = 300 },
		after: func(w *world) { w.evacuate("b"); w.down("d") },
	}
	before, after := c.worlds(t)
	list := resolvers(500)
	want, changed := map[string]policy.Change{}, 0
	for _, client := range list {
		ask := func(w *world) string {
			name, _, _ := w.decide(w.Service.Chain.(*policy.Chain), func(q *policy.Query) { q.LDNS = client.LDNS })
			return name
		}
		was, is := ask(before), ask(after)
		b, a := want[was], want[is]
		if b.Before++; was == is {
			b.After++
			want[was] = b
			continue
		}
		a.After++
		want[was], want[is] = b, a
		changed++
	}
	s := policy.NewForecast(before.snapshot, after.snapshot, clientsOf(list)).Services[0].Shares
	for _, site := range s.Sites {
		w := want[site.Site]
		if math.Abs(site.Before-w.Before/500) > 1e-9 || math.Abs(site.After-w.After/500) > 1e-9 {
			t.Errorf("%s: %v, want %v of 500", site.Site, site.Change, w)
		}
	}
	if math.Abs(s.Changed-float64(changed)/500) > 1e-9 {
		t.Errorf("changed %g, want %d of 500", s.Changed, changed)
	}
}

// BenchmarkForecast is an evacuation as an operator waits for it: 100 services of 10 members, 5,000 clients each, of which
// it selects, and both families.
func BenchmarkForecast(b *testing.B) {
	w := busy(b, 10)
	chain := build(b, defaultChain...)
	w.snapshot.Services = nil
	var out []*state.Service
	for i := range 100 {
		svc := *w.Service
		svc.Name, svc.Chain = fmt.Sprintf("s%d.gslb.test", i), chain
		gone := svc
		gone.Members = slices.Clone(svc.Members)
		m := *gone.Members[i%10]
		m.Forced = state.ForcedEvacuated
		gone.Members[i%10] = &m
		w.snapshot.Services, out = append(w.snapshot.Services, &svc), append(out, &gone)
	}
	after := *w.snapshot
	after.Services = out
	list := resolvers(5000)
	for b.Loop() {
		policy.NewForecast(w.snapshot, &after, clientsOf(list))
	}
}
