//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
)

const (
	domain = "peers.test"
	ttl    = 30

	// The client's address is one that every database knows; it stands on the loopback device of our namespace.
	clientAddress = "8.8.8.8"
	serverAddress = "192.0.2.53"

	// manySets is how many sets of sites the services of the large world are spread over.
	manySets = 25
	// manyNetworks is how many client networks have round trips there, and askedNetworks how many of them ask.
	manyNetworks  = 1_000_000
	askedNetworks = 100_000
)

// A place is where sites stand.
type place struct {
	continent, country  string
	latitude, longitude float64
}

var places = []place{
	{"NA", "US", 38.9, -77.4},
	{"EU", "DE", 50.1, 8.7},
	{"AS", "KR", 37.6, 127.0},
	{"AS", "JP", 35.7, 139.7},
	{"SA", "BR", -23.5, -46.6},
	{"OC", "AU", -33.9, 151.2},
	{"EU", "GB", 51.5, -0.1},
	{"EU", "FR", 48.9, 2.4},
	{"AS", "IN", 19.1, 72.9},
	{"AS", "SG", 1.4, 103.8},
	{"NA", "CA", 43.7, -79.4},
	{"AF", "ZA", -26.2, 28.0},
	{"EU", "NL", 52.4, 4.9},
	{"AS", "HK", 22.3, 114.2},
	{"EU", "SE", 59.3, 18.1},
	{"EU", "ES", 40.4, -3.7},
	{"EU", "IT", 45.5, 9.2},
	{"EU", "PL", 52.2, 21.0},
	{"NA", "MX", 19.4, -99.1},
	{"SA", "CL", -33.4, -70.7},
	{"AS", "TW", 25.0, 121.6},
	{"AS", "AE", 25.2, 55.3},
	{"AF", "NG", 6.5, 3.4},
	{"EU", "IE", 53.3, -6.3},
	{"AS", "ID", -6.2, 106.8},
}

// A world is what the servers are told to serve.
type world struct {
	sites, services, members int
	networks                 int    // client networks with round trips
	database                 string // path of the geo database
}

func (w *world) large() bool { return w.services > 1 }

// place returns where a site stands: each round of the places a little beside the one before.
func (w *world) place(site int) place {
	p := places[site%len(places)]
	p.latitude += float64(site/len(places)) * 1.5
	return p
}

// set returns the set of sites that a service has, and in which a client network is measured.
func set(i int) int { return i % manySets }

// site returns the site of the j-th member of a service, or of the j-th measurement of a client network.
func (w *world) site(i, j int) int { return (set(i)*w.members + j) % w.sites }

func serviceName(i int) string { return fmt.Sprintf("w%d.%s", i, domain) }

// address returns that of the j-th member of a service.
func address(i, j int) string { return fmt.Sprintf("10.%d.%d.%d", i>>8, i&0xff, j+1) }

// network returns the i-th client network: a /24 that is routed.
func network(i int) netip.Prefix {
	n := uint32(i) * 11
	first := 1 + n>>16
	switch first {
	case 10, 100, 127: // private, shared by providers, loopback
		first = 200 + first%20 // beyond those of the others
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], first<<24|n&0xffff<<8)
	return netip.PrefixFrom(netip.AddrFrom4(b), 24)
}

// roundTrip returns what the j-th site measures to a client network, in milliseconds: three are near, within what rtt
// tolerates.
func roundTrip(i, j int) int {
	if j < 3 {
		return 30 + j
	}
	return 50 + 10*j + i%7
}

// query returns a query for A records; with a valid client it carries ECS.
func query(name string, client netip.Prefix) []byte {
	b := []byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0, 0, 1, 0, 1)
	if !client.IsValid() {
		return b
	}
	b[11] = 1
	a := client.Addr().As4()
	n := (client.Bits() + 7) / 8
	b = append(b, 0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, byte(8+n)) // OPT, 4096 octets
	b = append(b, 0, 8, 0, byte(4+n), 0, 1, byte(client.Bits()), 0)
	return append(b, a[:n]...)
}

// queries returns what a workload asks, in random order that is always the same.
func queries(w *world, kind string) [][]byte {
	chance := rand.New(rand.NewPCG(1, 2))
	var all [][]byte
	switch {
	case kind == "nxdomain":
		for range 100_000 {
			all = append(all, query(fmt.Sprintf("x%016x.%s", chance.Uint64(), domain), netip.Prefix{}))
		}
	case w.large():
		for range min(askedNetworks, w.networks) {
			i := chance.IntN(w.networks)
			service := set(i) + manySets*chance.IntN(w.services/manySets) // one with the sites that measure this network
			all = append(all, query(serviceName(service), network(i)))
		}
	default:
		all = append(all, query(serviceName(0), netip.Prefix{}))
	}
	return all
}

// writeQueries writes the queries as dnsperf's option -B reads them: each after its length in two octets.
func writeQueries(path string, all [][]byte) error {
	var b []byte
	for _, q := range all {
		b = binary.BigEndian.AppendUint16(b, uint16(len(q)))
		b = append(b, q...)
	}
	return os.WriteFile(path, b, 0o644)
}
