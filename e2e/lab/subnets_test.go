//go:build linux

package lab

import (
	"net/netip"
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
	Program(t, "dig")
	const distant = "9.9.9.9"
	resolver := w.Resolver("resolver-distant", US, distant, sendSubnets)
	page := func(h *Host) string {
		out, _ := h.Run("curl", "-sS", "-m", "5", "-H", "Connection: close", "http://www.example.com/")
		_, site, _ := strings.Cut(out, " ")
		return site
	}
	client := func(name, region, addr string) *Host {
		h := w.Host(name, region, addr)
		h.ResolveBy(netip.MustParseAddr(distant))
		return h
	}
	hongkong, neighbour := client("hongkong", HongKong, "11.1.1.10"), client("neighbour", HongKong, "11.1.1.11")
	korea, us := client("korean", Korea, "168.126.63.10"), client("american", US, "8.8.8.10")
	elsewhere, stranger := client("elsewhere", US, "8.8.4.10"), client("stranger", US, "8.8.5.10") // other networks in the same country

	// Without their subnets, all would be where the resolver is.
	if reply, err := ask(resolver, w.GSLBD[0].Addr+":53", question("www.gslb.example.com"), 3*time.Second); err != nil || addresses(reply) != w.US.VIP {
		t.Fatalf("the resolver itself: %v %v", reply, err)
	}
	for _, step := range []struct {
		from *Host
		site string
	}{{hongkong, "seoul"}, {us, "virginia"}, {korea, "seoul"}, {elsewhere, "virginia"}, {hongkong, "seoul"}} {
		if got := page(step.from); got != step.site {
			t.Errorf("a client on %s is served by %q, want %s", step.from.Name, got, step.site)
		}
	}
	reason, text := w.GSLBD[0].Explain("www.gslb.example.com", distant)
	if reason != "geo" {
		t.Errorf("settled by %s\n%s", reason, text)
	}

	// Cut off from gslbd, the resolver has an answer for whoever is in a network that asked, and that network's own.
	for _, g := range w.GSLBD {
		w.Set(resolver.Name, g.Name, Link{Cut: true})
	}
	for _, step := range []struct {
		from *Host
		want string
	}{
		{neighbour, w.Korea.VIP}, // who never asked before
		{us, w.US.VIP},
		{korea, w.Korea.VIP},
		{elsewhere, w.US.VIP},
		{stranger, ""},
	} {
		out, _ := step.from.Run("dig", "+short", "+time=2", "+tries=1", "@"+distant, "www.example.com", "A")
		out = strings.TrimPrefix(out, "www.gslb.example.com.\n") // the alias
		if strings.HasPrefix(out, ";;") {                        // nothing came back
			out = ""
		}
		if out != step.want {
			t.Errorf("a client on %s gets %q out of the resolver's cache, want %q", step.from.Name, out, step.want)
		}
	}
}
