package config

import "time"

// HealthCheck is one check, of members by gslbd (services[].health_check) or of servers by gslb-agent
// (virtual_servers[].check). See docs/operations.md for its timing.
type HealthCheck struct {
	// Type is icmp, tcp, udp, http, https or dns. Required.
	Type string `mapstructure:"type" required:"true" enum:"icmp|tcp|udp|http|https|dns"`
	// Interval is the time between checks; each may come up to 10 % later. 100ms to 1h, default 10s.
	Interval time.Duration `mapstructure:"interval" default:"10s" min:"100ms" max:"1h"`
	// Timeout bounds one check. 10ms to 1m and below interval, default 2s.
	Timeout time.Duration `mapstructure:"timeout" default:"2s" min:"10ms" max:"1m"`
	// Rise is how many successes in a row make it up. 1 to 100, default 2.
	Rise int `mapstructure:"rise" default:"2" min:"1" max:"100"`
	// Fall is how many failures in a row make it down. 1 to 100, default 3.
	Fall int `mapstructure:"fall" default:"3" min:"1" max:"100"`
	// Port is the one to check. 1 to 65535; default 0: see PortFor.
	Port uint16 `mapstructure:"port" min:"1" max:"65535" for:"tcp|udp|http|https|dns"`

	// Send is the datagram's content. At most 1024 bytes; default: empty.
	Send string `mapstructure:"send" as:"payload" for:"udp"`
	// Expect is what the reply must contain. At most 1024 bytes; default: empty, which any reply satisfies.
	Expect string `mapstructure:"expect_reply" key:"expect" as:"payload" for:"udp"`

	// Path is the request's path and query. Begins with "/"; default "/".
	Path string `mapstructure:"path" default:"/" as:"urlpath" for:"http|https"`
	// Host is the Host header, and the TLS server name for https. Default: the address.
	Host string `mapstructure:"host" as:"host" for:"http|https"`
	// ExpectCodes are the status codes that count as success. 100 to 599, default [200]. Redirects are not followed.
	ExpectCodes []int `mapstructure:"expect_codes" key:"expect" default:"200" min:"100" max:"599" size:"64" for:"http|https"`
	// Body is a regular expression (RE2) that the body must match. Default: empty, which any body satisfies.
	Body string `mapstructure:"body" as:"regexp" for:"http|https"`
	// Verify says whether the certificate must be valid for Host. Default true.
	Verify bool `mapstructure:"verify" default:"true" for:"https"`

	// Name is the name to ask for. Required for dns.
	Name string `mapstructure:"name" required:"true" as:"domain" for:"dns"`
	// Record is the record type to ask for ("type" is taken by the kind of check). Default A.
	Record string `mapstructure:"record" default:"A" enum:"A|AAAA|CNAME|MX|NS|SOA|TXT" for:"dns"`
}

// PortFor returns the port to check where the thing checked has port own (0: none): Port, else own, else the usual one
// of the type. It is 0 for icmp.
func (h *HealthCheck) PortFor(own uint16) uint16 {
	switch {
	case h.Type == "icmp":
		return 0
	case h.Port != 0:
		return h.Port
	case own != 0:
		return own
	}
	return map[string]uint16{"http": 80, "https": 443, "dns": 53}[h.Type]
}
