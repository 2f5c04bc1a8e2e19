//go:build linux

package lab

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

var bin string // where TestMain puts the programs

func TestMain(m *testing.M) {
	os.Exit(Main(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// The seed's chain, by whose metrics its four examples are decided.
const seedServices = `services:
  - name: www.gslb.example.com
    policy: default
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
      - {name: virginia, site: virginia, addresses: [2.2.2.2]}
`

// The four examples of the seed, each from a client's fetch by name, through its resolver, to the page that names the
// server.
func TestSeed(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, seedServices)
	for _, s := range []*Site{w.Korea, w.US} {
		Eventually(t, 15*time.Second, s.Name+" reports to both", func() bool {
			return strings.Count(s.Agent.Log(), "reports accepted") == 2
		})
	}
	for region := range w.Clients {
		Eventually(t, 20*time.Second, "a client in "+region+" is served", func() bool { return w.Fetch(region) != "" })
	}

	t.Run("a: server health", func(t *testing.T) {
		w.US.SetHealthy(false)
		took := w.Reaches(US, w.Korea, 20*time.Second)
		t.Logf("both servers of the United States fail; a client there is served from Korea after %v", took.Round(10*time.Millisecond))
		if reason, text := w.GSLBD[0].Explain("www.gslb.example.com", "8.8.8.8"); reason != "health" {
			t.Errorf("settled by %s\n%s", reason, text)
		}
		for _, g := range w.GSLBD {
			if !strings.Contains(g.Process.Log(), `"member down"`) {
				t.Errorf("%s has not logged it", g.Name)
			}
			if v := g.Metric(`gslbd_member_up{family="ipv4",member="virginia",service="www.gslb.example.com"}`); v != "0" {
				t.Errorf("%s counts the member as %q", g.Name, v)
			}
		}
		w.US.SetHealthy(true)
		w.Reaches(US, w.US, 20*time.Second)
	})

	t.Run("c: round trip", func(t *testing.T) {
		// Asked for again and again, the resolver is measured by both sites: 200 ms and 30 ms.
		Eventually(t, 30*time.Second, "the resolver in Hong Kong is measured", func() bool {
			w.Fetch(HongKong)
			out, _ := w.GSLBD[0].Ctl("rtt", "11.1.1.1")
			other, _ := w.GSLBD[1].Ctl("rtt", "11.1.1.1")
			return measuredBy(out) == 2 && measuredBy(other) == 2
		})
		took := w.Reaches(HongKong, w.US, 10*time.Second)
		t.Logf("after %v a client in Hong Kong is served from the United States", took.Round(10*time.Millisecond))
		reason, text := w.GSLBD[0].Explain("www.gslb.example.com", "11.1.1.1")
		if reason != "rtt" || !strings.Contains(text, "20") || !strings.Contains(text, "3") {
			t.Errorf("settled by %s\n%s", reason, text)
		}
		out, _ := w.GSLBD[0].Ctl("rtt", "11.1.1.1")
		t.Log(out)
	})

	t.Run("b: capacity", func(t *testing.T) {
		// Real sessions, up to the threshold of 100.
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				c.Close()
			}
		}()
		for range 100 {
			c, err := w.Clients[US].Dial("tcp", "2.2.2.2:80", 3*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		took := w.Reaches(US, w.Korea, 20*time.Second)
		t.Logf("100 sessions are open; a client in the United States is served from Korea after %v", took.Round(10*time.Millisecond))
		if reason, text := w.GSLBD[0].Explain("www.gslb.example.com", "8.8.8.8"); reason != "capacity" {
			t.Errorf("settled by %s\n%s", reason, text)
		}
		for _, c := range conns {
			c.Close()
		}
		w.Reaches(US, w.US, 30*time.Second)
	})

	t.Run("d: geography", func(t *testing.T) {
		// The resolver falls silent to ICMP; what was measured ages, and a restarted gslbd without state knows nothing.
		w.Change("resolver-hongkong", Korea, func(l *Link) { *l = w.link(HongKong, Korea); l.DropICMP = true })
		w.Change("resolver-hongkong", US, func(l *Link) { *l = w.link(HongKong, US); l.DropICMP = true })
		for _, g := range w.GSLBD {
			g.Forget()
		}
		took := w.Reaches(HongKong, w.Korea, 20*time.Second)
		t.Logf("after %v a client in Hong Kong is served from Korea", took.Round(10*time.Millisecond))
		if reason, text := w.GSLBD[0].Explain("www.gslb.example.com", "11.1.1.1"); reason != "geo" {
			t.Errorf("settled by %s\n%s", reason, text)
		}
	})
}

// measuredBy returns how many round trips gslbctl rtt has printed, one for each site and method.
func measuredBy(out string) int { return strings.Count(out, " icmp ") }
