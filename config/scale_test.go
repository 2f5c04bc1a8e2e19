package config_test

import (
	"fmt"
	"strings"
	"testing"

	"gslbd/config"
)

// large is a configuration of many sites, services of four members each, and overrides.
func large(sites, services, overrides int) string {
	var b strings.Builder
	if overrides > 0 {
		b.WriteString("geo:\n  overrides:\n")
	}
	for i := range overrides {
		fmt.Fprintf(&b, "    - {prefix: 10.%d.%d.0/24, continent: AS, country: KR, latitude: 37.57, longitude: 126.98}\n", i>>8&255, i&255)
	}
	b.WriteString("sites:\n")
	for i := range sites {
		fmt.Fprintf(&b, "  - name: site%d\n    zone: z%d\n    location: {continent: AS, country: KR, latitude: 37.57, longitude: 126.98}\n"+
			"    capacity: {sessions: 900000, bandwidth: 900Mbps}\n", i, i%100)
	}
	b.WriteString("zones:\n  - {name: example.com, file: /dev/null}\nservices:\n")
	for i := range services {
		fmt.Fprintf(&b, "  - name: s%d.example.com\n    members:\n", i)
		for j := range 4 {
			fmt.Fprintf(&b, "      - {name: m%d, site: site%d, addresses: [20.%d.%d.%d]}\n", j, (i+j)%sites, i>>14&255, i>>6&255, i<<2&255+j)
		}
	}
	return b.String()
}

// BenchmarkLoad100k is the reading and checking of the largest configuration: 100,000 services of four members at 1,000
// sites.
func BenchmarkLoad100k(b *testing.B) {
	path := write(b, large(1000, 100_000, 0))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := config.Load(path); err != nil {
			b.Fatal(err)
		}
	}
}
