package geo_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"gslbd/geo"
)

// Whatever Special says of an address must hold in all of the network that it names, and that network must be the
// largest of its kind, or an answer would be kept for clients that it is not for.
func TestSpecialSaysHowFarItHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seeds := []string{
		"0.1.2.3", "9.255.255.255", "10.0.0.1", "11.0.0.0", "100.63.0.1", "100.64.0.1", "100.128.0.1", "126.1.1.1", "127.0.0.1",
		"169.253.1.1", "169.254.1.1", "172.15.0.1", "172.16.0.1", "172.32.0.1", "192.0.0.1", "192.0.1.1", "192.0.2.1", "192.88.98.1",
		"192.88.99.1", "192.167.1.1", "192.168.1.1", "198.17.0.1", "198.18.0.1", "198.20.0.1", "198.51.99.1", "198.51.100.1",
		"203.0.112.1", "203.0.113.1", "223.255.0.1", "224.0.0.1", "255.255.255.255", "8.8.8.8", "::", "::1", "::2", "::1:0:0", "::fffe:1.2.3.4",
		"::ffff:1.2.3.4", "0:1::", "64:ff9b::1", "64:ff9b:1::1", "64:ff9b:2::1", "100::1", "100:0:0:1::1", "100:0:0:2::1", "2001::1",
		"2001:2::1", "2001:2:1::1", "2001:10::1", "2001:1f::1", "2001:20::1", "2001:30::1", "2001:40::1", "2001:db7::1", "2001:db8::1",
		"2001:db9::1", "2400::1", "3ffe::1", "3fff::1", "3fff:1000::1", "5eff::1", "5f00::1", "5f01::1", "fbff::1", "fc00::1", "fdff::1",
		"fe00::1", "fe80::1", "febf::1", "fec0::1", "feff::1", "ff02::1", "2606:4700::1111",
	}
	addrs := make([]netip.Addr, 0, len(seeds))
	for _, s := range seeds {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	for _, addr := range addrs {
		length, ok := geo.Special(addr)
		network, err := addr.Prefix(length)
		if err != nil {
			t.Fatalf("%s: length %d: %v", addr, length, err)
		}
		for _, other := range addrs {
			if _, is := geo.Special(other); network.Contains(other) && is != ok {
				t.Errorf("%s: special %v in %s, but %s is not so", addr, ok, network, other)
			}
		}
		for range 2000 {
			other := within(rng, network)
			if _, is := geo.Special(other); is != ok {
				t.Fatalf("%s: special %v in %s, but %s is not so", addr, ok, network, other)
			}
		}
		if ok || length == 0 {
			continue
		}
		// One bit shorter, some special network lies inside: its first address is one of the seeds' networks.
		wider, _ := addr.Prefix(length - 1)
		found := false
		for _, other := range addrs {
			if l, is := geo.Special(other); is {
				special, _ := other.Prefix(l)
				found = found || wider.Overlaps(special)
			}
		}
		if !found {
			t.Errorf("%s: %s is needlessly small: nothing special lies in %s", addr, network, wider)
		}
	}
}

// within returns a random address of network.
func within(rng *rand.Rand, network netip.Prefix) netip.Addr {
	b := network.Addr().AsSlice()
	for i := network.Bits(); i < len(b)*8; i++ {
		if rng.Uint32()&1 == 1 {
			b[i/8] ^= 0x80 >> (i % 8)
		}
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
