package dns

import (
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

// svcParams returns the parameters of an HTTPS or SVCB record.
func svcParams(rr dns.RR) []dns.SVCBKeyValue {
	switch rr := rr.(type) {
	case *dns.HTTPS:
		return rr.Value
	case *dns.SVCB:
		return rr.Value
	}
	return nil
}

// checkSVCB says what is wrong with the parameters of an HTTPS or SVCB record, or "". A client ignores the whole set when
// one record of it is malformed or contradicts itself (RFC 9460 section 2.2), and the parser lets these through.
func checkSVCB(rr dns.RR) string {
	params := svcParams(rr)
	has := func(key dns.SVCBKey) bool {
		return slices.ContainsFunc(params, func(v dns.SVCBKeyValue) bool { return v.Key() == key })
	}
	for _, v := range params {
		switch v := v.(type) {
		case *dns.SVCBMandatory:
			if len(v.Code) == 0 {
				return "mandatory lists no key (RFC 9460 section 8)"
			}
			for i, key := range v.Code {
				switch {
				case key == dns.SVCB_MANDATORY:
					return "mandatory lists itself (RFC 9460 section 8)"
				case slices.Contains(v.Code[:i], key):
					return fmt.Sprintf("mandatory lists %s twice (RFC 9460 section 8)", key)
				case !has(key):
					return fmt.Sprintf("mandatory lists %s, which the record has not (RFC 9460 section 8)", key)
				}
			}
		case *dns.SVCBAlpn:
			if len(v.Alpn) == 0 {
				return "alpn has no value (RFC 9460 section 7.1.1)"
			}
		case *dns.SVCBNoDefaultAlpn:
			if !has(dns.SVCB_ALPN) {
				return "no-default-alpn needs alpn beside it (RFC 9460 section 7.1.1)"
			}
		}
	}
	return ""
}
