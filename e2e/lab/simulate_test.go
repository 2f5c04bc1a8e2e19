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
	var text strings.Builder
	for _, n := range networks {
		fmt.Fprintf(&text, "www.gslb.example.com A 168.126.63.1 %s/24\n", n)
	}
	log := g.File("log.txt", text.String())

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
	// simulated is the share of Seoul as a scenario has come about.
	simulated := func(scenario string) float64 {
		out, err := g.Ctl("simulate", "--config", g.config, "--queries", log, "--scenario", g.File("scenario.yaml", scenario), "--json")
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
	agree := func(what, scenario string) {
		t.Helper()
		is, would := served(w.Korea.VIP), simulated(scenario)
		t.Logf("%s: Seoul gets %.1f %%, the simulation says %.1f %%", what, 100*is, 100*would)
		if math.Abs(is-would) > 0.03 {
			t.Errorf("%s: Seoul gets %.1f %%, and the simulation says %.1f %%", what, 100*is, 100*would)
		}
	}
	settledBy := func(reason string) {
		t.Helper()
		Eventually(t, 20*time.Second, "it is settled by "+reason, func() bool { got, _ := g.Explain("www.gslb.example.com", "20.0.0.1"); return got == reason })
	}

	agree("all is well", "duration: 0s\n")

	w.US.SetHealthy(false)
	settledBy("health")
	agree("Virginia is down", "events: [{at: 0s, sites: [{name: virginia, state: down}]}]\n")
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
	agree("Virginia is overloaded", "start: [{name: virginia, state: overloaded}, {name: seoul, utilisation: 1%}]\n")
	for _, c := range conns {
		c.Close()
	}
	settledBy("least-selected")

	if out, err := g.Ctl("evacuate", "--zone", "use1-az1", "--stages", "50%,100%", "--pause", "1h", "--reason", "a rehearsal", "--force"); err != nil {
		t.Fatalf("evacuate: %v\n%s", err, out)
	}
	agree("half of Virginia is evacuated", "events: [{at: 0s, sites: [{name: virginia, state: evacuated, share: 50%}]}]\n")
}
