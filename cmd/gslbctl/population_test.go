package main

import (
	"fmt"
	"net/netip"
	"testing"

	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/state"
)

// TestAddresses asks a gslbd for the round trips that decide: of a subnet where that counts, else of the resolver, once a network.
func TestAddresses(t *testing.T) {
	client := func(ldns, ecs string) state.Client {
		c := state.Client{LDNS: netip.MustParseAddr(ldns)}
		if ecs != "" {
			c.ECS = netip.MustParsePrefix(ecs)
		}
		return c
	}
	a := &asking{
		clients: []weighed{{client("192.0.2.1", ""), 1}, {client("198.51.100.1", "203.0.113.0/24"), 9}, {client("2001:db8::1", ""), 3}},
		log:     []rehearse.Query{{Client: client("192.0.2.2", "")}, {}, {Client: client("2001:db8:1::1", "203.0.113.128/25")}},
	}
	c := &config.Config{Zones: []config.Zone{{Name: "on.test.", ECS: true}, {Name: "off.test."}}, Services: []config.Service{{Zone: "on.test."}}}
	c.RTT.Prefix.IPv4, c.RTT.Prefix.IPv6 = 24, 56
	for _, tt := range []struct {
		name string
		most int
		ecs  bool
		zone string // of another service
		want string
	}{
		{"by subnet", 9, true, "on.test.", "[203.0.113.0 2001:db8::1 192.0.2.1]"},
		{"by resolver", 9, false, "on.test.", "[198.51.100.1 2001:db8::1 192.0.2.1 2001:db8:1::1]"},
		{"by both", 9, true, "off.test.", "[203.0.113.0 198.51.100.1 2001:db8::1 192.0.2.1 2001:db8:1::1]"},
		{"not all", 2, true, "on.test.", "[203.0.113.0 2001:db8::1]"},
	} {
		c.DNS.ECS = tt.ecs
		c.Services = append(c.Services[:1], config.Service{Zone: tt.zone})
		if got := fmt.Sprint(a.addresses(c, tt.most)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
