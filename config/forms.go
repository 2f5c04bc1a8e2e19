package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// forms are the forms that a string may have, by the tag "as". Each returns the canonical spelling of a text that is not
// empty.
var forms = map[string]func(string) (string, error){
	"name":      nameForm,
	"label":     labelForm,
	"domain":    domainForm,
	"owner":     ownerForm,
	"listen":    listenForm,
	"path":      pathForm,
	"shorttext": keep(128, unicode.IsPrint),
	"payload":   keep(1024, nil),
	"country":   countryForm,
	"regexp":    regexpForm,
	"urlpath":   urlPathForm,
	"host":      hostForm,
	"url":       urlForm("a gslbd", "http://192.0.2.1:8054"),
	"endpoint":  urlForm("a member of etcd", "https://192.0.2.1:2379"),
	"prefix":    prefixForm,
	"argument":  keep(4096, func(r rune) bool { return r != 0 }),
	"socket":    socketForm,
	"interface": interfaceForm,
	"alpn":      alpnForm,
	"source":    sourceForm,
	"series":    seriesForm,
	"oid":       oidForm,
}

var (
	nameSyntax    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	labelSyntax   = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	domainSyntax  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)
	prefixSyntax  = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)
	oidSyntax     = regexp.MustCompile(`^\.?1\.[0-3](\.(0|[1-9][0-9]{0,9}))+$`)
	countrySyntax = regexp.MustCompile(`^[A-Z]{2}$`)
)

// nameForm is a name that stands in URLs, telemetry and logs: of a site, zone, region, policy, member or agent.
func nameForm(s string) (string, error) {
	if !nameSyntax.MatchString(s) {
		return "", fmt.Errorf("%s is not a name: write 1 to 63 letters, digits, dots, hyphens or underscores, beginning with a letter or digit", quote(s))
	}
	return s, nil
}

// labelForm is a name that a load balancer gives: HAProxy allows these characters.
func labelForm(s string) (string, error) {
	if !labelSyntax.MatchString(s) {
		return "", fmt.Errorf("%s is not a name: write 1 to 128 letters, digits, dots, colons, hyphens or underscores", quote(s))
	}
	return s, nil
}

// domainForm is a domain name (RFC 1035 section 2.3), lower case and without final dot. Underscores are allowed.
func domainForm(s string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	switch {
	case name == "":
		return "", fmt.Errorf("%s is the root, which cannot stand here", quote(s))
	case len(name) > 253:
		return "", fmt.Errorf("%s has %d characters, and a domain name has at most 253", quote(s), len(name))
	}
	for _, label := range strings.Split(name, ".") {
		if domainSyntax.MatchString(label) {
			continue
		}
		switch {
		case strings.ContainsFunc(label, func(r rune) bool { return r > unicode.MaxASCII }):
			return "", fmt.Errorf("%s is not ASCII: write its label %s in the form that DNS carries (xn--...)", quote(s), quote(label))
		case label == "*":
			return "", fmt.Errorf("%s may not hold a wildcard here", quote(s))
		case label == "":
			return "", fmt.Errorf("%s has an empty label", quote(s))
		case len(label) > 63:
			return "", fmt.Errorf("%s has a label of %d characters, and a label has at most 63", quote(s), len(label))
		}
		return "", fmt.Errorf("%s has the label %s: write letters, digits, underscores and inner hyphens", quote(s), quote(label))
	}
	return name, nil
}

// ownerForm is a domain name whose first label may be "*" (RFC 4592).
func ownerForm(s string) (string, error) {
	rest, wild := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return "", fmt.Errorf("%s has a wildcard that is not its whole first label", quote(s))
	}
	name, err := domainForm(rest)
	switch {
	case err != nil || !wild:
		return name, err
	case len(name) > 251:
		return "", fmt.Errorf("%s has %d characters, and a domain name has at most 253", quote(s), len(name)+2)
	}
	return "*." + name, nil
}

// listenForm is an IP address and port to listen on; without an address it is every address.
func listenForm(s string) (string, error) {
	wrong := fmt.Errorf("%s is not an address to listen on: write an IP address and a port, such as 127.0.0.1:5300, [::1]:5300, or :5300 for every address", quote(s))
	if port, ok := strings.CutPrefix(s, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != port {
			return "", wrong
		}
		return s, nil
	}
	ap, err := netip.ParseAddrPort(s)
	switch {
	case err != nil || ap.Addr().Is4In6():
		return "", wrong
	case ap.Addr().IsMulticast():
		return "", fmt.Errorf("%s is a multicast address, and nobody can listen there", quote(s))
	}
	return ap.String(), nil
}

func keep(most int, allowed func(rune) bool) func(string) (string, error) {
	return func(s string) (string, error) {
		if len(s) > most {
			return "", fmt.Errorf("has %d bytes, and may have at most %d", len(s), most)
		}
		if allowed != nil && strings.ContainsFunc(s, func(r rune) bool { return !allowed(r) }) {
			return "", fmt.Errorf("%s holds a character that cannot be printed", quote(s))
		}
		return s, nil
	}
}

// pathForm is the path of a file, cleaned so that one file has one spelling.
func pathForm(s string) (string, error) {
	if len(s) > 4096 {
		return "", fmt.Errorf("has %d bytes, and a path has at most 4096", len(s))
	}
	return filepath.Clean(s), nil
}

func countryForm(s string) (string, error) {
	if !countrySyntax.MatchString(s) {
		return "", fmt.Errorf("%s is not a country: write its two capital letters (ISO 3166-1 alpha-2), such as KR", quote(s))
	}
	return s, nil
}

func regexpForm(s string) (string, error) {
	if len(s) > 1024 {
		return "", fmt.Errorf("has %d bytes, and may have at most 1024", len(s))
	}
	if _, err := regexp.Compile(s); err != nil {
		return "", fmt.Errorf("%s is not a regular expression: %s", quote(s), strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return s, nil
}

func urlPathForm(s string) (string, error) {
	u, err := url.ParseRequestURI(s)
	if err != nil || !strings.HasPrefix(s, "/") || len(s) > 1024 || u.Fragment != "" || strings.ContainsAny(s, " #") {
		return "", fmt.Errorf("%s is not the path of a URL: write one that begins with / and has no blanks", quote(s))
	}
	return s, nil
}

// hostForm is what a Host header holds: a domain name or address, and perhaps a port.
func hostForm(s string) (string, error) {
	if _, err := netip.ParseAddr(s); err == nil {
		return s, nil
	}
	if _, err := netip.ParseAddrPort(s); err == nil {
		return s, nil
	}
	host, port, hasPort := strings.Cut(s, ":")
	name, err := domainForm(host)
	if err != nil || hasPort && !isPort(port) {
		return "", fmt.Errorf("%s is not a host: write a domain name or address, and :port where it is not the usual one", quote(s))
	}
	if hasPort {
		name += ":" + port
	}
	return name, nil
}

// alpnForm is an ALPN identifier. Those in use need neither blanks, quotes, commas nor backslashes, and one that has them
// is a list in one text, or an escape copied from a zone file.
func alpnForm(s string) (string, error) {
	if len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"',\`, r) }) {
		return "", fmt.Errorf("%s is not an ALPN identifier: write a list of such as h2, h3 or http/1.1", quote(s))
	}
	return s, nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == s
}

// urlForm is the URL of a server; what follows the host is not the operator's to choose.
func urlForm(whose, example string) func(string) (string, error) {
	return func(s string) (string, error) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() != "" && !isPort(u.Port()) ||
			u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
			return "", fmt.Errorf("%s is not the URL of %s: write http or https, host and port only, such as %s", quote(s), whose, example)
		}
		return u.Scheme + "://" + strings.ToLower(u.Host), nil
	}
}

// prefixForm is what the keys of a fleet begin with.
func prefixForm(s string) (string, error) {
	if !prefixSyntax.MatchString(s) || len(s) > 128 {
		return "", fmt.Errorf("%s is not a prefix of keys: write one that begins with / and goes on with letters, digits, dots, hyphens, underscores and inner slashes, at most 128 characters, such as /gslbd", quote(s))
	}
	return s, nil
}

// socketForm is a unix socket or a TCP address.
func socketForm(s string) (string, error) {
	if filepath.IsAbs(s) {
		if len(s) > 107 {
			return "", errors.New("has more than 107 bytes, which no unix socket's path may have: use a shorter one")
		}
		return filepath.Clean(s), nil
	}
	if host, err := hostForm(s); err == nil && !strings.HasSuffix(s, "]") {
		if i := strings.LastIndexByte(host, ':'); i > 0 && isPort(host[i+1:]) {
			if _, err := netip.ParseAddr(host); err != nil {
				return host, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not a socket: write the absolute path of a unix socket, or host:port", quote(s))
}

func interfaceForm(s string) (string, error) {
	if len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }) {
		return "", fmt.Errorf("%s is not the name of a network interface", quote(s))
	}
	return s, nil
}

// oidForm is an object identifier of SNMP in digits, which begins with a dot.
func oidForm(s string) (string, error) {
	if !oidSyntax.MatchString(s) {
		return "", fmt.Errorf("%s is not an OID in digits, such as .1.3.6.1.2.1.1.3.0: `snmptranslate -On` turns names into them", quote(s))
	}
	parts := strings.Split(strings.TrimPrefix(s, "."), ".")
	if len(parts) > 128 {
		return "", fmt.Errorf("is an OID of %d parts, and may have at most 128", len(parts))
	}
	for _, part := range parts {
		if n, err := strconv.ParseUint(part, 10, 64); err != nil || n > math.MaxUint32 {
			return "", fmt.Errorf("%s is not an OID: %s is more than 4294967295", quote(s), part)
		}
	}
	return "." + strings.TrimPrefix(s, "."), nil
}
