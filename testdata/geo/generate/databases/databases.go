// Package databases makes the small geo databases that tests, the example configuration and a first trial use. The data
// are our own: where well-known public resolvers say that they are, and made-up places for reserved networks.
package databases

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
)

// epoch is the build time of every file (2026-01-01), so that the same data give the same bytes.
const epoch = 1767225600

// A place is what an entry says. Empty fields are left out of the record.
type place struct {
	continent, country, subdivision, name, city string
	latitude, longitude                         float64
	coordinates                                 bool
}

func at(continent, country, subdivision, name, city string, latitude, longitude float64) place {
	return place{continent, country, subdivision, name, city, latitude, longitude, true}
}

// A network is one entry. Later entries replace earlier ones where they lie inside them.
type network struct {
	prefix string
	place  place
}

// cities is the data of the files of cities. No entry covers 192.0.2.0/24, 198.51.100.0/24 or 203.0.113.0/24: tests place
// those by overrides, or need them unknown.
func cities() []network {
	var (
		sanFrancisco = at("NA", "US", "CA", "California", "San Francisco", 37.77, -122.42)
		mountainView = at("NA", "US", "CA", "California", "Mountain View", 37.39, -122.08)
		berkeley     = at("NA", "US", "CA", "California", "Berkeley", 37.87, -122.27)
		sterling     = at("NA", "US", "VA", "Virginia", "Sterling", 39.01, -77.43)
		monroe       = at("NA", "US", "LA", "Louisiana", "Monroe", 32.51, -92.12)
		saoPaulo     = at("SA", "BR", "SP", "São Paulo", "São Paulo", -23.55, -46.63)
		sydney       = at("OC", "AU", "NSW", "New South Wales", "Sydney", -33.87, 151.21)
		seoul        = at("AS", "KR", "11", "Seoul", "Seoul", 37.57, 126.98)
		seongnam     = at("AS", "KR", "41", "Gyeonggi-do", "Seongnam-si", 37.42, 127.13)
		hongKong     = at("AS", "HK", "", "", "Hong Kong", 22.28, 114.16)
		taipei       = at("AS", "TW", "TPE", "Taipei City", "Taipei", 25.04, 121.56)
		tokyo        = at("AS", "JP", "13", "Tokyo", "Tokyo", 35.68, 139.69)
		nanjing      = at("AS", "CN", "JS", "Jiangsu", "Nanjing", 32.06, 118.78)
		hangzhou     = at("AS", "CN", "ZJ", "Zhejiang", "Hangzhou", 30.29, 120.16)
		beijing      = at("AS", "CN", "BJ", "Beijing", "Beijing", 39.91, 116.40)
		amsterdam    = at("EU", "NL", "NH", "North Holland", "Amsterdam", 52.37, 4.89)
		frankfurt    = at("EU", "DE", "HE", "Hesse", "Frankfurt am Main", 50.11, 8.68)
		zurich       = at("EU", "CH", "ZH", "Zurich", "Zurich", 47.37, 8.55)
		limassol     = at("EU", "CY", "02", "Limassol District", "Limassol", 34.68, 33.04)
		moscow       = at("EU", "RU", "MOW", "Moscow", "Moscow", 55.75, 37.62)
		suva         = at("OC", "FJ", "C", "Central", "Suva", -18.14, 178.44)
		apia         = at("OC", "WS", "TU", "Tuamasaga", "Apia", -13.83, -171.76)
		longyearbyen = at("EU", "SJ", "", "", "Longyearbyen", 78.22, 15.65)
	)
	return []network{
		// Public resolvers of North America.
		{"8.8.8.0/24", mountainView},
		{"8.8.4.0/24", mountainView},
		{"2001:4860:4860::/48", mountainView}, // Google
		{"9.9.9.0/24", berkeley},
		{"149.112.112.0/24", berkeley},
		{"2620:fe::/48", zurich}, // Quad9
		{"208.67.222.0/24", sanFrancisco},
		{"208.67.220.0/24", sanFrancisco}, // OpenDNS
		{"2620:119:35::/48", sanFrancisco},
		{"2620:119:53::/48", sanFrancisco},
		{"4.2.2.0/24", monroe},        // Level 3
		{"64.6.64.0/24", sterling},    // Verisign, later Vercara
		{"156.154.70.0/24", sterling}, // Vercara

		// South America.
		{"200.221.11.0/24", saoPaulo}, // UOL

		// Oceania.
		{"1.1.1.0/24", sydney},
		{"1.0.0.0/24", sydney},
		{"2606:4700:4700::/48", sanFrancisco}, // Cloudflare

		// Asia.
		{"168.126.63.0/24", seongnam}, // KT
		{"164.124.101.0/24", seoul},
		{"203.248.252.0/24", seoul}, // LG U+
		{"210.220.163.0/24", seoul},
		{"219.250.36.0/24", seoul},    // SK Broadband
		{"101.101.101.0/24", taipei},  // TWNIC
		{"114.114.114.0/24", nanjing}, // 114DNS
		{"223.5.5.0/24", hangzhou},
		{"223.6.6.0/24", hangzhou},   // AliDNS
		{"2400:3200::/48", hangzhou}, //
		{"119.29.29.0/24", beijing},
		{"180.76.76.0/24", beijing},  // DNSPod, Baidu
		{"202.14.67.0/24", hongKong}, // PCCW
		{"11.1.1.0/24", hongKong},    // the resolver of the worked example

		// Europe.
		{"80.80.80.0/24", amsterdam},
		{"80.80.81.0/24", amsterdam}, // Freenom
		{"84.200.69.0/24", frankfurt},
		{"84.200.70.0/24", frankfurt}, // DNS.WATCH
		{"94.140.14.0/24", limassol},
		{"94.140.15.0/24", limassol},
		{"2a10:50c0::/48", limassol}, // AdGuard
		{"77.88.8.0/24", moscow},
		{"2a02:6b8::/48", moscow}, // Yandex

		// Made up, in the benchmarking networks of RFC 2544 (198.18.0.0/15) and RFC 5180 (2001:2::/48) and in the
		// documentation network of RFC 3849 (2001:db8::/32).
		{"198.18.0.0/24", place{continent: "EU", country: "FR"}},                      // country only
		{"198.18.1.0/24", place{latitude: 48.86, longitude: 2.35, coordinates: true}}, // coordinates only
		{"198.18.2.0/24", place{continent: "EU"}},                                     // continent only
		{"198.18.3.0/24", place{country: "DE"}},                                       // no continent
		{"198.18.4.0/24", place{coordinates: true}},                                   // 0,0: nothing
		{"198.18.5.0/24", at("EU", "GB", "ENG", "England", "", 0, 0)},                 // 0,0 and a country
		{"198.18.6.0/24", at("EU", "ES", "", "", "", math.NaN(), 2)},                  // not a number
		{"198.18.7.0/24", at("EU", "IT", "", "", "", 91, 12)},                         // out of range
		{"198.18.8.0/24", at("EU", "PT", "", "", "", 38.7, math.Inf(-1))},             // infinite
		{"198.18.9.0/24", place{city: "Nowhere"}},                                     // nothing usable
		{"198.18.10.0/24", at("NA", "US", "", "Texas", "Dallas", 32.78, -96.8)},       // subdivision without a code
		{"198.18.16.0/20", tokyo},
		{"198.18.32.16/28", saoPaulo},
		{"198.18.48.0/20", frankfurt},
		{"198.18.50.0/24", amsterdam}, // a more specific entry inside
		{"198.18.64.0/24", suva},
		{"198.18.65.0/24", apia}, // on either side of the antimeridian
		{"198.18.66.0/24", longyearbyen},
		{"2001:2:0:100::/56", tokyo},
		{"2001:db8:6000::/48", seoul},
		{"2001:db8:6000:ab00::/56", hongKong}, // a more specific entry inside
		{"2001:db8:6001:100::/56", sterling},
		{"2001:db8:6002::/48", place{continent: "EU", country: "FR"}},
	}
}

// Files returns the content of every file of testdata/geo that is made here, by its path inside that directory.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, f := range []struct {
		name, databaseType string
		ipVersion          int
		keep               func(netip.Prefix) bool
		record             func(place) mmdbtype.DataType
	}{
		{"cities.mmdb", "GeoIP2-City", 6, nil, nested},
		{"countries.mmdb", "GeoIP2-Country", 6, nil, nestedCountry},
		{"flat-city.mmdb", "gslbd-Flat-City", 6, nil, flat},
		{"flat-city-ipv4.mmdb", "gslbd-Flat-City-IPv4", 4, func(p netip.Prefix) bool { return p.Addr().Is4() }, flat},
		{"flat-city-ipv6.mmdb", "gslbd-Flat-City-IPv6", 6, func(p netip.Prefix) bool { return p.Addr().Is6() }, flat},
		{"flat-strings.mmdb", "gslbd-Flat-Strings", 6, nil, flatStrings},
		{"flat-country.mmdb", "gslbd-Flat-Country", 6, nil, flatCountry},
		{"broken/asn.mmdb", "GeoLite2-ASN", 6, nil, autonomousSystem},
		{"broken/unknown-type.mmdb", "gslbd-Reputation", 6, nil, reputation},
	} {
		content, err := build(f.databaseType, f.ipVersion, f.keep, f.record)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		files[f.name] = content
	}

	whole := files["cities.mmdb"]
	files["broken/truncated.mmdb"] = bytes.Clone(whole[:len(whole)*2/3])
	// The head of the tree points into nowhere, and the metadata are whole.
	tree := bytes.Clone(whole)
	copy(tree, bytes.Repeat([]byte{0xff}, 64))
	files["broken/tree.mmdb"] = tree
	// Two copies of which the second was cut: the first one's metadata are found, but not the file's end.
	files["broken/twice.mmdb"] = append(bytes.Clone(whole), whole[:len(whole)/2]...)
	files["broken/empty.mmdb"] = nil
	files["broken/page.mmdb"] = []byte("<!DOCTYPE html>\n<html><head><title>503 Service Unavailable</title></head>\n" +
		"<body><h1>Your download will begin shortly</h1></body></html>\n")
	return files, nil
}

// build writes a database of every place for which record returns something.
func build(databaseType string, ipVersion int, keep func(netip.Prefix) bool, record func(place) mmdbtype.DataType) ([]byte, error) {
	tree, err := mmdbwriter.New(mmdbwriter.Options{
		BuildEpoch:              epoch,
		DatabaseType:            databaseType,
		Description:             map[string]string{"en": "Test data of gslbd, in the public domain"},
		Languages:               []string{"en"},
		IPVersion:               ipVersion,
		RecordSize:              24,
		IncludeReservedNetworks: true,
		DisableIPv4Aliasing:     true,
	})
	if err != nil {
		return nil, err
	}
	for _, n := range cities() {
		prefix, err := netip.ParsePrefix(n.prefix)
		if err != nil {
			return nil, err
		}
		value := record(n.place)
		if value == nil || keep != nil && !keep(prefix) {
			continue
		}
		if err := tree.Insert(&net.IPNet{
			IP:   prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		}, value); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	if _, err := tree.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// nested is a record as MaxMind's City type has it.
func nested(p place) mmdbtype.DataType {
	record := mmdbtype.Map{}
	if p.city != "" {
		record["city"] = mmdbtype.Map{"names": names(p.city)}
	}
	if p.continent != "" {
		record["continent"] = mmdbtype.Map{"code": mmdbtype.String(p.continent)}
	}
	if p.country != "" {
		record["country"] = mmdbtype.Map{"iso_code": mmdbtype.String(p.country)}
	}
	if p.name != "" {
		subdivision := mmdbtype.Map{"names": names(p.name)}
		if p.subdivision != "" {
			subdivision["iso_code"] = mmdbtype.String(p.subdivision)
		}
		record["subdivisions"] = mmdbtype.Slice{subdivision}
	}
	if p.coordinates {
		record["location"] = mmdbtype.Map{
			"latitude":        mmdbtype.Float64(p.latitude),
			"longitude":       mmdbtype.Float64(p.longitude),
			"accuracy_radius": mmdbtype.Uint16(20),
		}
	}
	return record
}

// nestedCountry is a record as MaxMind's Country type has it.
func nestedCountry(p place) mmdbtype.DataType {
	if p.country == "" {
		return nil
	}
	return nested(place{continent: p.continent, country: p.country})
}

// flat is a record as DB-IP's flat files have it.
func flat(p place) mmdbtype.DataType {
	record := mmdbtype.Map{}
	if p.city != "" {
		record["city"] = mmdbtype.String(p.city)
	}
	if p.country != "" {
		record["country_code"] = mmdbtype.String(p.country)
	}
	if p.name != "" {
		record["state1"] = mmdbtype.String(p.name)
	}
	if p.coordinates {
		record["latitude"] = mmdbtype.Float32(p.latitude)
		record["longitude"] = mmdbtype.Float32(p.longitude)
	}
	return record
}

// flatStrings has coordinates as strings and other names for the fields, as some makers do.
func flatStrings(p place) mmdbtype.DataType {
	record := mmdbtype.Map{}
	if p.country != "" {
		record["country"] = mmdbtype.String(p.country)
	}
	if p.name != "" {
		record["region"] = mmdbtype.String(p.name)
	}
	if p.coordinates {
		record["lat"] = mmdbtype.String(fmt.Sprint(p.latitude))
		record["lng"] = mmdbtype.String(fmt.Sprint(p.longitude))
	}
	return record
}

// flatCountry has the country and nothing else.
func flatCountry(p place) mmdbtype.DataType {
	if p.country == "" {
		return nil
	}
	return mmdbtype.Map{"country_code": mmdbtype.String(p.country)}
}

// autonomousSystem is a record of a type without locations.
func autonomousSystem(place) mmdbtype.DataType {
	return mmdbtype.Map{"autonomous_system_number": mmdbtype.Uint32(64496)}
}

// reputation is a record of a type that nobody knows.
func reputation(place) mmdbtype.DataType {
	return mmdbtype.Map{"country": mmdbtype.Uint32(7), "score": mmdbtype.Float64(0.5)}
}

func names(english string) mmdbtype.Map {
	return mmdbtype.Map{"en": mmdbtype.String(english)}
}
