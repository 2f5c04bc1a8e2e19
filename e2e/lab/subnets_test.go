package lab

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Clients everywhere use one distant resolver, which passes their networks on: each is decided by its own place, and the
// resolver keeps one answer a network, for whoever is in it.
func TestClientSubnets(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, strings.Replace(faultServices, "ttl: 1", "ttl: 60", 1))
	w.reporting()
	const distant = "9.9.9.9"
	resolver := w.Resolver("resolver-distant", US, distant, sendSubnets)
	page := func(h *Host) string {
		out, _ := h.Run("curl", "-sS", "-m", "5", "-H", "Connection: close", "http://www.example.com/")
		_, site, _ := strings.Cut(out, " ")
		return site
	}
	// answered counts what both gslbd have answered so far with each site.
	answered := func() (n [2]int) {
		for i, member := range []string{"seoul", "virginia"} {
			for _, g := range w.GSLBD {
				v, err := strconv.Atoi(g.Metric(`gslbd_answers_total{member="` + member + `",service="www.gslb.example.com"}`))
				if err != nil {
					t.Fatal(err)
				}
				n[i] += v
			}
		}
		return n
	}
	client := func(name, region, addr string) *Host {
		h := w.Host(name, region, addr)
		h.ResolveBy(netip.MustParseAddr(distant))
		return h
	}
	hongkong, neighbour := client("hongkong", HongKong, "11.1.1.10"), client("neighbour", HongKong, "11.1.1.11")
	korea, us := client("korean", Korea, "168.126.63.10"), client("american", US, "8.8.8.10")
	elsewhere := client("elsewhere", US, "8.8.4.10") // another network in the same country

	// Without their subnets, all would be where the resolver is.
	if reply, err := ask(resolver, w.GSLBD[0].Addr+":53", question("www.gslb.example.com"), 3*time.Second); err != nil || addresses(reply) != w.US.VIP {
		t.Fatalf("the resolver itself: %v %v", reply, err)
	}
	for i, step := range []struct {
		from   *Host
		site   string
		cached bool // nobody asks gslbd
	}{
		{hongkong, "seoul", false},
		{us, "virginia", false},
		{korea, "seoul", false},
		{hongkong, "seoul", true},
		{neighbour, "seoul", true}, // by the network
		{us, "virginia", true},
		{elsewhere, "virginia", false}, // a network of its own
		{neighbour, "seoul", true},
	} {
		before := answered()
		if got := page(step.from); got != step.site {
			t.Errorf("step %d: a client on %s is served by %q, want %s", i, step.from.Name, got, step.site)
		}
		if after := answered(); (after == before) != step.cached {
			t.Errorf("step %d, %s: cached: want %v; gslbd had given %v answers, and now %v", i, step.from.Name, step.cached, before, after)
		}
	}
	reason, text := w.GSLBD[0].Explain("www.gslb.example.com", distant)
	if reason != "geo" {
		t.Errorf("settled by %s\n%s", reason, text)
	}
}
