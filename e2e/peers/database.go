//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/inserter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
)

// writeDatabase writes a geo database of MaxMind's City type, which all servers can read: from is a full one of flat
// records, as `make geodb` gets it. Where from is empty, made-up networks take its place. It returns the number of networks made
// up, 0 for none.
func writeDatabase(path, from string, networks int) error {
	opts := mmdbwriter.Options{
		DatabaseType: "GeoLite2-City", Description: map[string]string{"en": "for gslbd's side by side benchmark"},
		IPVersion: 4, RecordSize: 28, IncludeReservedNetworks: true,
		Inserter: func(value mmdbtype.DataType) inserter.Func {
			return func(mmdbtype.DataType) (mmdbtype.DataType, error) { return nested(value), nil }
		},
	}
	var tree *mmdbwriter.Tree
	var err error
	if from != "" {
		tree, err = mmdbwriter.Load(from, opts)
	} else if tree, err = mmdbwriter.New(opts); err == nil {
		err = makeUp(tree, networks)
	}
	if err != nil {
		return fmt.Errorf("geo database: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := tree.WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}

// nested turns a flat record into one of MaxMind's form.
func nested(value mmdbtype.DataType) mmdbtype.DataType {
	flat, ok := value.(mmdbtype.Map)
	if !ok {
		return value
	}
	country, _ := flat["country_code"].(mmdbtype.String)
	location := mmdbtype.Map{}
	for _, axis := range []mmdbtype.String{"latitude", "longitude"} {
		switch v := flat[axis].(type) {
		case mmdbtype.Float32:
			location[axis] = mmdbtype.Float64(v)
		case mmdbtype.Float64:
			location[axis] = v
		}
	}
	return mmdbtype.Map{
		"continent": mmdbtype.Map{"code": mmdbtype.String(continentOf(string(country)))},
		"country":   mmdbtype.Map{"iso_code": country},
		"location":  location,
	}
}

// continentOf returns that of the sites' countries; of others it makes one up, since no server looks at it where there are
// coordinates or a country.
func continentOf(country string) string {
	for _, p := range places {
		if p.country == country {
			return p.continent
		}
	}
	return "EU"
}

// makeUp fills tree with the client networks, and the client itself.
func makeUp(tree *mmdbwriter.Tree, networks int) error {
	for i := range networks + 1 {
		p := network(i)
		if i == networks {
			p = netip.MustParsePrefix(clientAddress + "/24").Masked()
		}
		at := places[i*7919%len(places)]
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(p.Addr().AsSlice()))
		err := tree.Insert(&net.IPNet{IP: b[:], Mask: net.CIDRMask(p.Bits(), 32)}, mmdbtype.Map{
			"country_code": mmdbtype.String(at.country),
			"latitude":     mmdbtype.Float64(at.latitude + float64(i%100)/50), "longitude": mmdbtype.Float64(at.longitude + float64(i/100%100)/50),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
