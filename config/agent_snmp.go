package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// SNMP is one device that is read by SNMP. OIDs are those of its vendor's MIB.
type SNMP struct {
	// Version of SNMP: v2c (a community, in plain text) or v3 (a user, authenticated and encrypted). Required.
	Version string `mapstructure:"version" required:"true" enum:"v2c|v3"`
	// Address of the device: host, or host:port. Default port 161. Required; no address is listed twice.
	Address string `mapstructure:"address" required:"true" as:"host"`
	// CommunityFile holds the community, in a file that only its owner may read. Required.
	CommunityFile string `mapstructure:"community_file" required:"true" as:"path" for:"v2c"`
	// User is the name of the user. Required.
	User string `mapstructure:"user" required:"true" as:"shorttext" for:"v3"`
	// Authentication is how messages are authenticated. Default sha256.
	Authentication string `mapstructure:"authentication" default:"sha256" enum:"md5|sha|sha224|sha256|sha384|sha512" for:"v3"`
	// AuthenticationFile holds the password for that, at least 8 characters, in a file that only its owner may read. Required.
	AuthenticationFile string `mapstructure:"authentication_file" required:"true" as:"path" for:"v3"`
	// Privacy is how messages are encrypted. Default aes, which is AES-128.
	Privacy string `mapstructure:"privacy" default:"aes" enum:"des|aes|aes192|aes256" for:"v3"`
	// PrivacyFile holds the password for that, likewise. Required.
	PrivacyFile string `mapstructure:"privacy_file" required:"true" as:"path" for:"v3"`
	// Timeout bounds one reading. 100ms to 30s, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"100ms" max:"30s"`

	// Sessions are values of the sessions that are open, which are added up. Default: those of the virtual servers.
	Sessions []string `mapstructure:"sessions" as:"oid" size:"1000"`
	// NewSessions are values of new sessions a second. Default: none.
	NewSessions []string `mapstructure:"new_sessions" as:"oid" size:"1000"`
	// Connections are counters of sessions, in place of new_sessions. Default: none.
	Connections []string `mapstructure:"connections" as:"oid" size:"1000"`
	// OctetsIn are counters of bytes from clients. Default: none.
	OctetsIn []string `mapstructure:"octets_in" as:"oid" size:"1000"`
	// OctetsOut are counters of bytes to clients. Default: none; required with octets_in.
	OctetsOut []string `mapstructure:"octets_out" as:"oid" size:"1000"`

	// VirtualServers are required, 1 to 1000.
	VirtualServers []SNMPVirtualServer `mapstructure:"virtual_servers" required:"true" size:"1000"`

	// Community, AuthenticationPassword and PrivacyPassword are what is in the files.
	Community, AuthenticationPassword, PrivacyPassword Secret `mapstructure:"-"`
}

// SNMPVirtualServer is a virtual server whose servers are rows of a table.
type SNMPVirtualServer struct {
	// Name is what members name in virtual_servers. Required, unique within the file.
	Name string `mapstructure:"name" required:"true" as:"label"`
	// Address is the VIP, by which gslbd matches members. Default: none; then members must name the virtual server.
	Address netip.Addr `mapstructure:"address"`
	// Port of the VIP. 1 to 65535; default 0, which is not reported.
	Port uint16 `mapstructure:"port" min:"1" max:"65535"`
	// Protocol of the VIP: tcp or udp. Default tcp.
	Protocol string `mapstructure:"protocol" default:"tcp" enum:"tcp|udp"`
	// Sessions is the value of the sessions that are open at it. Default: not known.
	Sessions string `mapstructure:"sessions" as:"oid"`
	// States are columns of the servers' states; the first that does not say up decides. Required, 1 to 8.
	States []SNMPStates `mapstructure:"states" required:"true" size:"8"`
	// Names is the column of the servers' names. Default: the index of the row is the name.
	Names string `mapstructure:"names" as:"oid"`
}

// SNMPStates is a column of states, with the meaning of its values. A value that is not listed is unknown.
type SNMPStates struct {
	// Column is an OID, of a column or of what stands below it with one beginning of the index. Required.
	Column string `mapstructure:"column" required:"true" as:"oid"`
	// Up are the values of servers that take sessions. Required, 1 to 64.
	Up []int64 `mapstructure:"up" required:"true" min:"-2147483648" max:"4294967295" size:"64"`
	// Down are the values of servers that failed. Default: none.
	Down []int64 `mapstructure:"down" min:"-2147483648" max:"4294967295" size:"64"`
	// Drain are the values of servers that take no new sessions on purpose. Default: none.
	Drain []int64 `mapstructure:"drain" min:"-2147483648" max:"4294967295" size:"64"`
	// Maint are the values of servers that are out of service on purpose. Default: none.
	Maint []int64 `mapstructure:"maint" min:"-2147483648" max:"4294967295" size:"64"`
}

// snmpReaders checks what is read by SNMP. names are those of the virtual servers.
func (d *decoder) snmpReaders(a *Agent, names map[string]string) {
	addresses := map[string]string{}
	for i := range a.SNMP {
		s, path := &a.SNMP[i], at("snmp", i)
		d.unique(addresses, s.Address, path+".address")
		s.Community = d.password(&s.CommunityFile, path+".community_file", 1)
		const least = 8 // RFC 3414 section 11.2
		s.AuthenticationPassword = d.password(&s.AuthenticationFile, path+".authentication_file", least)
		s.PrivacyPassword = d.password(&s.PrivacyFile, path+".privacy_file", least)
		if len(s.Connections) > 0 && len(s.NewSessions) > 0 {
			d.fail(path+".connections", "new_sessions gives the same figure: remove one of them")
		}
		if (len(s.OctetsIn) == 0) != (len(s.OctetsOut) == 0) && !d.failed[path+".octets_in"] && !d.failed[path+".octets_out"] {
			d.fail(path, "has octets_in or octets_out alone: traffic is reported of both directions or not at all")
		}
		for j, v := range s.VirtualServers {
			path := at(path+".virtual_servers", j)
			d.unique(names, v.Name, path+".name")
			for k, c := range v.States {
				d.meanings(&c, at(path+".states", k))
			}
		}
	}
}

// meanings refuses values that mean two things.
func (d *decoder) meanings(c *SNMPStates, path string) {
	var seen []int64
	for _, l := range []struct {
		key    string
		values []int64
	}{{"up", c.Up}, {"down", c.Down}, {"drain", c.Drain}, {"maint", c.Maint}} {
		for i, n := range l.values {
			if slices.Contains(seen, n) {
				d.fail(at(path+"."+l.key, i), "%d has another meaning already", n)
			}
		}
		seen = append(seen, l.values...)
	}
}

// password reads a file with one secret, if one is named, and makes its path absolute. Errors do not show the secret.
func (d *decoder) password(file *string, path string, least int) Secret {
	if *file == "" {
		return ""
	}
	*file = d.resolve(*file)
	data, err := ReadSecret(*file, mostSecret)
	secret := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		d.fail(path, "%s", err)
	case strings.ContainsFunc(secret, func(r rune) bool { return r < ' ' || r == 0x7f }):
		d.fail(path, "%s holds more than one line, or what cannot be printed", *file)
	case len(secret) < least:
		d.fail(path, "%s holds fewer than %d characters, which is the least that SNMP version 3 takes", *file, least)
	}
	return Secret(secret)
}
