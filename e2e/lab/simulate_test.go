//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const simulatedServices = `services:
  - name: www.gslb.example.com
    policy: nearest
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1], weight: 100}
      - {name: virginia, site: virginia, addresses: [2.2.2.2], weight: 300}
`

// TestSimulationAgrees holds `gslbctl simulate` against the real thing: the same networks ask a gslbd whose sites are real,
// and what each site gets is within 3 points of what the simulation says.
func TestSimulationAgrees(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, simulatedServices)
	w.reporting()
	g := w.GSLBD[0]
	var networks []string // some whose place is known, and more whose place is not
	for i := range 200 {
		networks = append(networks, fmt.Sprintf("8.8.%d.0", i), fmt.Sprintf("168.126.%d.0", i))
	}
	for i := range 600 {
		networks = append(networks, fmt.Sprintf("20.%d.%d.0", i/200, i%200))
	}
	asking := func() string {
		var text strings.Builder
		for _, n := range networks {
			fmt.Fprintf(&text, "www.gslb.example.com A 168.126.63.1 %s/24\n", n)
		}
		return g.File("log.txt", text.String())
	}
	log := asking()

	// served is the share of the networks that get the address, out of a gslbd.
	served := func(address string) float64 {
		got := 0
		for _, n := range networks {
			m := question("www.gslb.example.com")
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.ParseIP(n)}}
			reply, err := ask(w.Resolvers[Korea], g.Addr+":53", m, 3*time.Second)
			if err != nil {
				t.Fatalf("%s: %v", n, err)
			}
			if addresses(reply) == address {
				got++
			}
		}
		return float64(got) / float64(len(networks))
	}
	passes := func(what, scenario string) {
		t.Helper()
		agree(t, what, served(w.Korea.VIP), g.simulated(t, log, "--scenario", g.File("scenario.yaml", scenario)))
	}
	settledBy := func(reason string) {
		t.Helper()
		Eventually(t, 20*time.Second, "it is settled by "+reason, func() bool { got, _ := g.Explain("www.gslb.example.com", "20.0.0.1"); return got == reason })
	}

	passes("all is well", "duration: 0s\n")

	w.US.SetHealthy(false)
	settledBy("health")
	passes("Virginia is down", "events: [{at: 0s, sites: [{name: virginia, state: down}]}]\n")
	w.US.SetHealthy(true)
	settledBy("least-selected")

	var conns []net.Conn
	for range 100 {
		c, err := w.Clients[US].Dial("tcp", "2.2.2.2:80", 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	settledBy("capacity")
	passes("Virginia is overloaded", "start: [{name: virginia, state: overloaded}, {name: seoul, utilisation: 1%}]\n")
	for _, c := range conns {
		c.Close()
	}
	settledBy("least-selected")

	w.US.Agent.Kill()
	settledBy("health")
	passes("the reports of Virginia stop", "events: [{at: 0s, sites: [{name: virginia, state: dead}]}]\n")
	w.US.StartAgent()
	settledBy("least-selected")

	if out, err := g.Ctl("force", "drain", "--site", "seoul", "--reason", "a rehearsal"); err != nil {
		t.Fatalf("force: %v\n%s", err, out)
	}
	settledBy("constraints")
	passes("Seoul is drained", "events: [{at: 0s, sites: [{name: seoul, state: drain}]}]\n")
	agree(t, "Seoul is drained, as gslbd says", served(w.Korea.VIP), g.simulated(t, log, "--against", "http://127.0.0.1:8053"))
	if out, err := g.Ctl("clear", "--site", "seoul", "--reason", "rehearsed"); err != nil {
		t.Fatalf("clear: %v\n%s", err, out)
	}
	settledBy("least-selected")

	if out, err := g.Ctl("evacuate", "--zone", "use1-az1", "--stages", "50%,100%", "--pause", "1h", "--reason", "a rehearsal", "--force"); err != nil {
		t.Fatalf("evacuate: %v\n%s", err, out)
	}
	// Which clients move is chance, and another chance in the simulation: of 1,000 networks the two are 2 points apart as a rule,
	// and of 8,000 less than one.
	for i := range 7000 {
		networks = append(networks, fmt.Sprintf("21.%d.%d.0", i/200, i%200))
	}
	log = asking()
	passes("half of Virginia is evacuated", "events: [{at: 0s, sites: [{name: virginia, state: evacuated, share: 50%}]}]\n")
}

// simulated is what the simulation says is the share of Seoul, of a log's queries.
func (g *GSLBD) simulated(t *testing.T, log string, args ...string) float64 {
	t.Helper()
	out, err := g.Ctl(append([]string{"simulate", "--config", g.config, "--queries", log, "--json"}, args...)...)
	var r struct {
		Phases []struct {
			Forecast struct {
				Services []struct {
					Shares struct {
						Sites []struct {
							Site  string
							After float64
						}
					}
				}
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		t.Fatalf("simulate: %v\n%s", err, out)
	}
	return r.Phases[0].Forecast.Services[0].Shares.Sites[0].After
}

// agree fails if the two shares of Seoul are more than 3 points apart.
func agree(t *testing.T, what string, is, would float64) {
	t.Helper()
	t.Logf("%s: Seoul gets %.1f %%, the simulation says %.1f %%", what, 100*is, 100*would)
	if math.Abs(is-would) > 0.03 {
		t.Errorf("%s: Seoul gets %.1f %%, and the simulation says %.1f %%", what, 100*is, 100*would)
	}
}

// TestSimulationAgreesOnRoundTrips lets sites measure real resolvers, and holds a simulation that asks gslbd how far they are, and
// one that is told, against what the resolvers get.
func TestSimulationAgreesOnRoundTrips(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, strings.Replace(simulatedServices, "policy: nearest", "policy: fastest", 1))
	w.reporting()
	g := w.GSLBD[0]
	asks := map[string]int{Korea: 2, US: 3, HongKong: 5} // how often, of ten queries
	address := map[string]string{Korea: "168.126.63.1", US: "8.8.8.8", HongKong: "11.1.1.1"}
	var text strings.Builder
	for region, n := range asks {
		for range 10 * n {
			fmt.Fprintf(&text, "www.gslb.example.com A %s\n", address[region])
		}
	}
	log := g.File("log.txt", text.String())
	served := func() float64 {
		got, all := 0, 0
		for region, n := range asks {
			for range n {
				reply, err := ask(w.Resolvers[region], g.Addr+":53", question("www.gslb.example.com"), 3*time.Second)
				if err != nil {
					t.Fatalf("%s: %v", region, err)
				}
				if all++; addresses(reply) == w.Korea.VIP {
					got++
				}
			}
		}
		return float64(got) / float64(all)
	}
	Eventually(t, 60*time.Second, "all resolvers are measured by both sites", func() bool {
		served()
		for _, a := range address {
			if out, err := g.Ctl("rtt", a); err != nil || measuredBy(out) != 2 {
				return false
			}
		}
		return true
	})
	// Hong Kong is near Korea on the map, and near the United States on the wire.
	agree(t, "all is well, as gslbd says", served(), g.simulated(t, log, "--against", "http://127.0.0.1:8053"))
	told := g.File("scenario.yaml", `rtts:
  - {site: seoul, prefix: 168.126.63.0/24, rtt: 2ms}
  - {site: virginia, prefix: 168.126.63.0/24, rtt: 180ms}
  - {site: seoul, prefix: 8.8.8.0/24, rtt: 180ms}
  - {site: virginia, prefix: 8.8.8.0/24, rtt: 2ms}
  - {site: seoul, prefix: 11.1.1.0/24, rtt: 200ms}
  - {site: virginia, prefix: 11.1.1.0/24, rtt: 30ms}
`)
	agree(t, "all is well, as the scenario says", served(), g.simulated(t, log, "--scenario", told))
}
