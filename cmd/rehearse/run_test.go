package rehearse_test

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gslbd/cmd/compile"
	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/geo"
	"gslbd/state"
)

// three is a service at three alike sites.
const three = `
zones: [{name: gslb.test, file: gslb.test.zone}]
sites:
  - {name: a, capacity: {sessions: 1000}}
  - {name: b, capacity: {sessions: 1000}}
  - {name: c, capacity: {sessions: 1000}}
policies: [{name: turns, chain: [{metric: health}, {metric: capacity}, {metric: static, method: round-robin}]}]
services:
  - name: www.gslb.test
    policy: turns
    members: [{name: a, site: a, addresses: [192.0.2.1]}, {name: b, site: b, addresses: [192.0.2.2]}, {name: c, site: c, addresses: [192.0.2.3]}]
`

// plan returns one of the configuration and the scenario, without anybody who asks.
func plan(t *testing.T, text, scenario string) rehearse.Plan {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"gslbd.yaml": text, "scenario.yaml": scenario,
		"off.zone":       "$ORIGIN off.gslb.test.\n@ 60 IN SOA ns1 h 1 2 3 4 5\n@ 60 IN NS ns1\nns1 60 IN A 127.0.0.1\n",
		"gslb.test.zone": "$ORIGIN gslb.test.\n@ 60 IN SOA ns1 h 1 2 3 4 5\n@ 60 IN NS ns1\nns1 60 IN A 127.0.0.1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := config.Load(filepath.Join(dir, "gslbd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.LoadScenario(filepath.Join(dir, "scenario.yaml"), c)
	if err != nil {
		t.Fatal(err)
	}
	db, err := geo.Open(compile.Geo(c))
	if err != nil {
		t.Fatal(err)
	}
	return rehearse.Plan{Before: c, After: c, GeoBefore: db, GeoAfter: db, Scenario: s, Seed: 1}
}

func clientOf(i int) state.Client {
	return state.Client{LDNS: netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1})}
}

func queries(n int) []rehearse.Query {
	list := make([]rehearse.Query, n)
	for i := range list {
		list[i] = rehearse.Query{Service: "www.gslb.test", Client: clientOf(i)}
	}
	return list
}

func population(n int) []rehearse.Resolver {
	list := make([]rehearse.Resolver, n)
	for i := range list {
		list[i] = rehearse.Resolver{Service: "www.gslb.test", Client: clientOf(i), Weight: 1}
	}
	return list
}

func run(t *testing.T, p rehearse.Plan) *rehearse.Result {
	t.Helper()
	r, err := rehearse.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []rehearse.Series{r.Before, r.After} {
		for i := range s.Seconds {
			sum := 0.0
			for _, site := range s.Sites {
				sum += site.Share[i]
			}
			if sum > 1.0001 {
				t.Errorf("after %g s the sites have %g of the clients", s.Seconds[i], sum)
			}
		}
	}
	return r
}

// shares writes the shares of the sites after, in percent, of a phase.
func shares(r *rehearse.Result, phase int) string {
	var list []string
	for _, s := range r.Phases[phase].Forecast.Sites {
		list = append(list, fmt.Sprintf("%s %.0f", s.Name, 100*s.Clients.After))
	}
	return fmt.Sprint(list)
}

// TestReplay lets sites fail, be evacuated and join while a log is replayed, and looks at who gets what in between.
func TestReplay(t *testing.T) {
	p := plan(t, three, `
duration: 10m
start: [{name: c, state: absent}]
events:
  - {at: 2m, sites: [{name: a, state: down}]}
  - {at: 4m, sites: [{name: a}, {name: c}]}
  - {at: 6m, sites: [{name: a, utilisation: 120%}, {name: b, utilisation: 10%}, {name: c, utilisation: 10%}]}
  - {at: 8m, sites: [{name: b, state: evacuated}]}
`)
	p.Queries = append(queries(30000), rehearse.Query{Service: "nope.gslb.test", Client: clientOf(1)})
	r := run(t, p)
	if r.Queries != 30000 || r.Unknown != 1 || len(r.Phases) != 5 {
		t.Fatalf("%d queries, %d unknown, %d phases", r.Queries, r.Unknown, len(r.Phases))
	}
	for i, want := range []string{"[a 50 b 50 c 0]", "[a 0 b 100 c 0]", "[a 33 b 33 c 33]", "[a 0 b 50 c 50]", "[a 0 b 0 c 100]"} {
		if got := shares(r, i); got != want {
			t.Errorf("phase %d: %s, want %s", i, got, want)
		}
	}
	if m := r.Phases[1].Forecast.Services[0].Shares.Moves; len(m) != 1 || m[0].From != "a" || m[0].To != "b" || m[0].Metric != "health" || m[0].Share < 0.49 {
		t.Errorf("moves %+v", m)
	}
}

// TestReplayMoment decides a log at one moment, at which states have lasted, of two configurations.
func TestReplayMoment(t *testing.T) {
	p := plan(t, three, `
start: [{name: a, utilisation: 60%}, {name: b, utilisation: 60%}, {name: c, utilisation: 60%}]
events: [{at: 0s, sites: [{name: a, state: dead}]}]
`)
	q := plan(t, three+"    ttl: 20\n", "duration: 0s")
	p.Before = q.After
	p.Queries = queries(900)
	r := run(t, p)
	if got := shares(r, 0); got != "[a 0 b 50 c 50]" {
		t.Errorf("shares %s", got)
	}
	for _, s := range r.Phases[0].Forecast.Sites {
		if s.Name != "a" && (s.UtilAfter == nil || math.Abs(*s.UtilAfter-0.9) > 0.01) {
			t.Errorf("%s would be at %v", s.Name, s.UtilAfter)
		}
	}
}

// TestReplayUnknown begins one moment with a site that has never reported: that is not a site that fell silent.
func TestReplayUnknown(t *testing.T) {
	for state, want := range map[string]string{"unknown": "[a 33 b 33 c 33]", "dead": "[a 0 b 50 c 50]"} {
		p := plan(t, three, "events: [{at: 0s, sites: [{name: a, state: "+state+"}]}]")
		p.Queries = queries(900)
		if got := shares(run(t, p), 0); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}

// TestReplayNames lets services take over what a wildcard answered, and the other way round, and loses one.
func TestReplayNames(t *testing.T) {
	const members = "policy: turns, members: [{name: a, site: a, addresses: [192.0.2.1]}, {name: b, site: b, addresses: [192.0.2.2]}]}\n"
	sites := three[:strings.Index(three, "services:")]
	services := plan(t, sites+"services:\n  - {name: www.gslb.test, "+members+"  - {name: gone.gslb.test, "+members+
		"  - {name: web.gslb.test, policy: turns, members: [{name: c, site: c, addresses: [192.0.2.3]}]}\n  - {name: alone.other.gslb.test, "+members, "duration: 0s")
	wildcard := plan(t, sites+"services:\n  - {name: new.other.gslb.test, "+members+"  - {name: \"*.gslb.test\", policy: turns, members: [{name: b, site: b, addresses: [192.0.2.9]}]}\n", "duration: 0s")
	ask := queries(10)
	for i, name := range []string{"www", "web", "any", "gone", "www", "alone.other", "new.other"} {
		ask[i].Service = name + ".gslb.test"
	}
	ask = ask[:7]
	for _, tt := range []struct {
		before, after rehearse.Plan
		want          []string
	}{
		{services, wildcard, []string{
			"www.gslb.test -> *.gslb.test 2", "web.gslb.test -> *.gslb.test 1", "*.gslb.test (new) 1", "gone.gslb.test -> *.gslb.test 1",
			"alone.other.gslb.test (gone) 1", "new.other.gslb.test (new) 1",
		}},
		{wildcard, services, []string{
			"*.gslb.test -> www.gslb.test 2", "*.gslb.test -> web.gslb.test 1", "*.gslb.test (gone) 1", "*.gslb.test -> gone.gslb.test 1",
			"alone.other.gslb.test (new) 1", "new.other.gslb.test (gone) 1",
		}},
	} {
		p := tt.after
		p.Before, p.Queries = tt.before.After, ask
		var got []string
		for _, s := range run(t, p).Phases[0].Forecast.Services {
			got = append(got, fmt.Sprint(s.Name, " ", s.Clients))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// byRTT has a near to the resolvers of 20.0.0.0/8, and b to those of 30.0.0.0/8.
const byRTT = `
rtts:
  - {site: a, prefix: 0.0.0.0/0, rtt: 90ms}
  - {site: b, prefix: 0.0.0.0/0, rtt: 90ms}
  - {site: c, prefix: 0.0.0.0/0, rtt: 90ms}
  - {site: a, prefix: 20.0.0.0/8, rtt: 10ms}
  - {site: b, prefix: 30.0.0.0/8, rtt: 10ms}
`

// fastest is three with a policy by round trips.
var fastest = strings.Replace(three, "{metric: capacity}", "{metric: capacity}, {metric: rtt, max_age: 2m}", 1)

// TestReplaySubnet checks that a client's subnet counts on that side where it does in the configuration.
func TestReplaySubnet(t *testing.T) {
	on, off := plan(t, fastest, byRTT), plan(t, fastest+"dns: {ecs: false}\n", byRTT)
	ask := queries(100) // of resolvers in 20.0.0.0/8
	for i := range ask {
		ask[i].ECS = netip.PrefixFrom(netip.AddrFrom4([4]byte{30, 0, byte(i), 0}), 24)
	}
	for _, tt := range []struct {
		before, after rehearse.Plan
		from, to      string
	}{{on, off, "b", "a"}, {off, on, "a", "b"}} {
		p := tt.after
		p.Before, p.Queries = tt.before.After, ask
		m := run(t, p).Phases[0].Forecast.Services[0].Shares.Moves
		if len(m) != 1 || m[0].From != tt.from || m[0].To != tt.to || m[0].Share < 0.999 {
			t.Errorf("moves %+v, want all from %s to %s", m, tt.from, tt.to)
		}
	}
}

// TestReplayRTT has round trips that are known of single addresses, and of a side whose states last longer to come about than
// those of the other.
func TestReplayRTT(t *testing.T) {
	single := plan(t, fastest+"rtt: {prefix: {ipv4: 32}}\n", byRTT)
	single.Queries = []rehearse.Query{{Service: "www.gslb.test", Client: clientOf(1)}, {Service: "www.gslb.test", Client: clientOf(1)}}
	single.Queries[1].LDNS = single.Queries[1].LDNS.Next()
	if got := shares(run(t, single), 0); got != "[a 100 b 0 c 0]" {
		t.Errorf("two resolvers of one network: %s", got)
	}
	p := plan(t, fastest, "start: [{name: c, utilisation: 50%}]"+byRTT)
	p.Before = plan(t, strings.ReplaceAll(fastest, "sessions: 1000", "sessions: 1000, shed_from: 80%"), "duration: 0s").After
	p.Queries = queries(100)
	if got := shares(run(t, p), 0); got != "[a 100 b 0 c 0]" {
		t.Errorf("before takes longer to settle than after: %s", got)
	}

	var many strings.Builder
	for i := range 990 {
		fmt.Fprintf(&many, "  - {name: s%d}\n", i)
	}
	p = plan(t, strings.Replace(fastest, "policies:", many.String()+"policies:", 1), byRTT)
	p.Queries = queries(10_200)
	if _, err := rehearse.Run(p); err == nil || !strings.Contains(err.Error(), "give fewer clients") {
		t.Errorf("ten million round trips: %v", err)
	}
}

// TestReplayNearlyFull checks that a small site that is said to be under its threshold is not over it.
func TestReplayNearlyFull(t *testing.T) {
	p := plan(t, strings.ReplaceAll(three, "1000", "10"), "start: [{name: a, utilisation: 99%}, {name: b, utilisation: 99%}, {name: c, utilisation: 100%}]")
	p.Queries = queries(900)
	if got := shares(run(t, p), 0); got != "[a 50 b 50 c 0]" {
		t.Errorf("shares %s", got)
	}
}

// TestTrafficNames checks that queries for names that nobody answers here are no sessions that find no site.
func TestTrafficNames(t *testing.T) {
	p := plan(t, three, "duration: 1m\ntraffic: {sessions_per_second: 30}\n")
	p.Population = population(20)
	p.Population[0].Service = "nope.gslb.test"
	r := run(t, p)
	if r.Queries != 19 || r.Unknown != 1 || r.After.Failed != 0 || r.Before.Failed != 0 {
		t.Errorf("%d known, %d unknown, %g and %g failed", r.Queries, r.Unknown, r.Before.Failed, r.After.Failed)
	}
}

// TestTraffic closes the loop: what a site reports follows from whom it was given, a failure moves clients within their
// TTL, and what they open meanwhile is lost.
func TestTraffic(t *testing.T) {
	p := plan(t, three, `
duration: 10m
events: [{at: 5m, sites: [{name: a, state: down}]}]
traffic: {sessions_per_second: 30, floor_share: 0%, prefetch_share: 0%}
`)
	p.Population = population(3000)
	r := run(t, p)
	at := func(s rehearse.Series, site int, second float64) (share, utilisation float64) {
		for i, x := range s.Seconds {
			if x >= second {
				return s.Sites[site].Share[i], s.Sites[site].Utilisation[i]
			}
		}
		t.Fatal("the series is too short")
		return 0, 0
	}
	for site := range 3 {
		if share, u := at(r.After, site, 290); math.Abs(share-1./3) > 0.03 || math.Abs(u-0.6) > 0.06 {
			t.Errorf("before the failure site %d has %.3f of the clients and is at %.3f", site, share, u)
		}
	}
	if share, u := at(r.After, 0, 305); share < 0.2 || u != 0 {
		t.Errorf("5 s after the failure %.3f still go to a, which is at %.3f", share, u)
	}
	// A resolver of 0.01 sessions a second asks again 100 s after its TTL, as a mean.
	if share, _ := at(r.After, 0, 420); share > 0.15 {
		t.Errorf("2 min after the failure %.3f still go to a", share)
	}
	if share, u := at(r.After, 1, 600); math.Abs(share-0.49) > 0.03 || math.Abs(u-0.89) > 0.06 {
		t.Errorf("at the end b has %.3f and is at %.3f", share, u)
	}
	if r.Before.Failed != 0 || r.After.Failed < 0.03 || r.After.Failed > 0.15 {
		t.Errorf("failed: %.4f before, %.4f after", r.Before.Failed, r.After.Failed)
	}
	if again := run(t, p); !reflect.DeepEqual(r, again) {
		t.Error("the same seed gave another result")
	}
}

// TestTrafficResolvers checks that a floor keeps clients longer at a site that failed, and that a prefetch does not.
func TestTrafficResolvers(t *testing.T) {
	left := func(traffic string) float64 {
		p := plan(t, strings.ReplaceAll(three, "1000", "1000000"), `
duration: 2m
events: [{at: 10s, sites: [{name: a, state: down}]}]
traffic: {sessions_per_second: 3000, `+traffic+`}
`)
		p.Population = population(3000)
		return run(t, p).After.Failed
	}
	plain := left("floor_share: 0%, prefetch_share: 0%")
	floor := left("floor_share: 100%, floor: 90s, prefetch_share: 0%")
	prefetch := left("floor_share: 0%, prefetch_share: 100%")
	if !(prefetch < plain && plain < floor/2) {
		t.Errorf("failed: %.4f with prefetch, %.4f plain, %.4f with a floor", prefetch, plain, floor)
	}
}

// TestTrafficBreaks checks that a site that bears too much fails, recovers, and is counted.
func TestTrafficBreaks(t *testing.T) {
	p := plan(t, three, `
duration: 20m
events: [{at: 1m, sites: [{name: a, state: down}, {name: b, state: down}]}]
traffic: {sessions_per_second: 30, breaks_at: 110%, breaks_after: 30s, repair: 60s}
`)
	p.Population = population(300)
	r := run(t, p)
	if n := r.After.Sites[2].Breaks; n < 2 || n > 10 {
		t.Errorf("c broke %d times", n)
	}
	if r.Before.Sites[2].Breaks != 0 || r.After.Sites[2].Peak < 1.1 {
		t.Errorf("before %d, peak %.2f", r.Before.Sites[2].Breaks, r.After.Sites[2].Peak)
	}
}

// TestReportDelay checks that late figures reach gslbd late: a site sheds later.
func TestReportDelay(t *testing.T) {
	overloadedAt := func(delay string) float64 {
		p := plan(t, three, `
duration: 15m
events: [{at: 1m, sites: [{name: a, state: down}, {name: b, state: down}]}]
traffic: {sessions_per_second: 30, report_delay: `+delay+`}
`)
		p.Population = population(300)
		r := run(t, p)
		for i, x := range r.After.Seconds {
			if r.After.Sites[2].Shed[i] == 1 {
				return x
			}
		}
		t.Fatalf("c is never overloaded with a delay of %s", delay)
		return 0
	}
	if now, late := overloadedAt("0s"), overloadedAt("60s"); late < now+50 || late > now+70 {
		t.Errorf("overloaded after %g s, and with a delay of 60 s after %g s", now, late)
	}
}
