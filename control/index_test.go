package control

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path"
	"strings"
	"testing"
	"time"

	"gslbd/state"
)

// isFor is what a target means, worked out the slow way.
func isFor(t Target, aliases []string, service, member, site, zone string) bool {
	what, pattern := t.normal()
	is := func(name string) bool {
		ok, _ := path.Match(pattern, name)
		return ok || name == pattern
	}
	switch what {
	case "site":
		return is(site)
	case "zone":
		return is(zone) || zone == "z1" && is("zone-a")
	case "member":
		if is(member) || is(service+"/"+member) {
			return true
		}
		for _, a := range aliases {
			if is(a + "/" + member) {
				return true
			}
		}
		return false
	}
	if is(service) {
		return true
	}
	for _, a := range aliases {
		if is(a) {
			return true
		}
	}
	return false
}

func TestIndex(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 3))
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	services := []string{"www.example.com", "api.example.com", "*.cdn.example.com", "example.com"}
	members := []string{"seoul", "busan", "s*"}
	sites := []string{"seoul", "busan", ""}
	zones := []string{"z1", "z2", ""}
	cfg := Config{ZoneAliases: []ZoneAlias{{ID: "z1", Names: []string{"zone-a"}}}}
	aliases := map[string][]string{"www.example.com": {"shop.example.com", "w.example.com"}}
	snap := &state.Snapshot{}
	for i, s := range sites[:2] {
		snap.Sites = append(snap.Sites, &state.Site{SiteInfo: &state.SiteInfo{Name: s, Zone: zones[i]}})
	}
	for _, name := range services[:2] {
		svc := &state.Service{Name: name, Aliases: aliases[name]}
		for i, s := range snap.Sites {
			svc.Members = append(svc.Members, &state.Member{Name: members[i], Site: s.SiteInfo})
		}
		snap.Services = append(snap.Services, svc)
	}
	for range 300 {
		var targets []Target
		for range rnd.IntN(150) {
			service := pick("*", "www.example.com", "*.example.com", "[ws]*.example.com", "*cdn*", "*w*.*", "**", `\*.cdn.example.com`, "*.cdn.example.com", "w?w.*", "shop.example.com", "www*")
			member := pick("*", "seoul", "*ou*", "s*", `s\*`, "[^s]*", "b*n", "seou?")
			targets = append(targets, []Target{
				{Service: service}, {Member: member}, {Member: service + "/" + member}, {Site: member}, {Zone: pick("z1", "zone-?", "z*", "*", "z[2-3]")},
			}[rnd.IntN(5)])
		}
		known := snap
		if rnd.IntN(3) == 0 {
			known = nil
		}
		x := newIndex(targets, newNames(cfg, snap), known)
		for _, service := range services {
			for _, member := range members {
				for _, site := range sites {
					for _, zone := range zones {
						got := map[int]bool{}
						in, n := x.matching(service, member, site, zone).first(len(targets))
						for _, i := range in {
							got[i] = true
						}
						if n != len(got) {
							t.Fatalf("%d of %d", len(got), n)
						}
						for i, target := range targets {
							if want := isFor(target, aliases[service], service, member, site, zone); got[i] != want {
								t.Fatalf("%s is for %s/%s at %q in %q: %t, want %t", target, service, member, site, zone, got[i], want)
							}
						}
					}
				}
			}
		}
	}
}

// BenchmarkOrders resolves what 200 globs over members order for 5,000 services of four members, as at each order: what is
// done before the Store is asked, and while it holds its lock.
func BenchmarkOrders(b *testing.B) {
	sites := []string{"seoul", "busan", "virginia", "dublin"}
	cfg := &state.Config{}
	for _, s := range sites {
		cfg.Sites = append(cfg.Sites, state.SiteConfig{Name: s, Zone: s + "-az1"})
	}
	for i := range 5000 {
		svc := state.ServiceConfig{Name: fmt.Sprintf("s%04d.team%d.example.com", i, i%50), UnknownUp: true}
		for j, s := range sites {
			svc.Members = append(svc.Members, state.MemberConfig{
				Name: s, Site: s, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})},
			})
		}
		cfg.Services = append(cfg.Services, svc)
	}
	store, err := state.New(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	store.Configure(cfg)
	for _, k := range []struct{ name, pattern string }{
		{"of some services", "*.team%d.*/s*l"}, {"of all services", "*o*"}, {"classes", "s?[0-8]%d*.example.com/*"}, {"exact", "s%04d.team1.example.com/seoul"},
	} {
		b.Run(k.name, func(b *testing.B) {
			c := New(Options{Store: store})
			recs := make([]Record, 200)
			for i := range recs {
				pattern := k.pattern
				if strings.Contains(pattern, "%") {
					pattern = fmt.Sprintf(pattern, i)
				}
				o := orderTo(Down, Target{Member: pattern})
				recs[i] = Record{Order: &o}
			}
			c.arrived(recs)
			var before, within time.Duration
			for b.Loop() {
				begin := time.Now()
				v := c.view(begin)
				orders := v.orders()
				before += time.Since(begin)
				begin = time.Now()
				for _, svc := range v.snap.Services {
					for _, m := range svc.Members {
						orders.Force(svc.Name, m.Name, m.Site.Name, m.Site.Zone)
					}
				}
				within += time.Since(begin)
			}
			b.ReportMetric(float64(before.Milliseconds())/float64(b.N), "ms-before")
			b.ReportMetric(float64(within.Milliseconds())/float64(b.N), "ms-locked")
		})
	}
}
