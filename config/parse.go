package config

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

var durationType = reflect.TypeFor[time.Duration]()

// checkKind says what is wrong with the kind that YAML gives a value, or "". The environment has no kinds; parse then
// judges the text alone.
func checkKind(n *yaml.Node, f field) string {
	tag := n.ShortTag()
	number := tag == "!!int" || tag == "!!float"
	text := tag == "!!str"
	if text && f.tag.Get("off") != "" && n.Value == "off" {
		return ""
	}
	as := f.tag.Get("as")
	switch {
	case f.typ == durationType:
		if number {
			return n.Value + " has no unit: write ms, s, m or h after the number, such as " + example(f)
		}
	case as == "percent":
		if number {
			return n.Value + " has no unit: write a percentage, such as " + example(f)
		}
	case as == "bandwidth":
		if number {
			return n.Value + " has no unit: write bps, kbps, Mbps, Gbps or Tbps after the number, such as 900Mbps"
		}
	case f.typ == thresholdType, f.typ == addrType, f.typ == prefixType, f.typ == addrPortType, f.tag.Get("enum") != "":
		if number || tag == "!!bool" {
			return "" // parse says what may stand there; quotes would not help
		}
	case f.typ.Kind() == reflect.Bool:
		if tag != "!!bool" {
			return quote(n.Value) + " is not true or false"
		}
		return ""
	case isInt(f.typ), f.typ.Kind() == reflect.Float64:
		switch {
		case text && as == "seconds":
			return quote(n.Value) + " is not a whole number of seconds: write it without unit and quotes, such as 30"
		case text && plainNumber.MatchString(n.Value):
			return quote(n.Value) + " is text: write the number without quotes"
		case !number && !text:
			return quote(n.Value) + " is not a number"
		}
		return "" // what is not a number at all, parse says
	}
	switch {
	case text:
		return ""
	case number || tag == "!!bool" || tag == "!!timestamp":
		return n.Value + " is not text here: write it in quotes, \"" + n.Value + "\""
	}
	return quote(n.Value) + " has the YAML type " + tag + ", and must be text"
}

// example returns something that could stand for f.
func example(f field) string {
	s, _ := f.defaultText("")
	switch {
	case s != "" && s != "off":
		return s
	case f.tag.Get("as") == "percent":
		return "90%"
	}
	return f.tag.Get("min")
}

func isInt(t reflect.Type) bool {
	return t != durationType && (t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64)
}

var (
	wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	plainNumber = regexp.MustCompile(`^-?[0-9]{1,18}(\.[0-9]{1,18})?$`)
	bitRate     = regexp.MustCompile(`^([0-9]{1,18}(?:\.[0-9]{1,18})?)(bps|kbps|Mbps|Gbps|Tbps)$`)
)

// parse reads text as f, in the form that a file and the environment share. An entry of a list must not be empty. The
// value has exactly the type of f.
func parse(text string, f field, inList bool) (any, error) {
	if f.tag.Get("off") != "" && text == "off" {
		return reflect.Zero(f.typ).Interface(), nil
	}
	switch f.typ {
	case addrType:
		return parseAddr(text)
	case prefixType:
		return parsePrefix(text)
	case addrPortType:
		return parseAddrPort(text)
	case thresholdType:
		return parseThreshold(text)
	}
	switch f.typ.Kind() {
	case reflect.Bool:
		if text != "true" && text != "false" {
			return nil, fmt.Errorf("%s is not true or false", quote(text))
		}
		return text == "true", nil
	case reflect.String:
		return parseString(text, f, inList)
	}

	v, size, err := parseNumber(text, f)
	if err != nil {
		return nil, err
	}
	lo, hi := f.tag.Get("min"), f.tag.Get("max")
	_, least, loErr := parseNumber(lo, f)
	_, most, hiErr := parseNumber(hi, f)
	switch {
	case loErr == nil && hiErr == nil && (size < least || size > most):
		return nil, fmt.Errorf("%s is not between %s and %s%s", text, lo, hi, off(f))
	case loErr == nil && size < least:
		return nil, fmt.Errorf("%s is below %s%s", text, lo, off(f))
	}
	return v, nil
}

// off names the word that f takes in place of a number.
func off(f field) string {
	if f.tag.Get("off") != "" {
		return ", or off"
	}
	return ""
}

// parseNumber reads a number with the unit that f has. size is for comparing.
func parseNumber(text string, f field) (v any, size float64, err error) {
	switch as := f.tag.Get("as"); {
	case f.typ == durationType:
		t, err := time.ParseDuration(text)
		if err != nil || text == "0" {
			return nil, 0, fmt.Errorf("%s is not a time: write a number and ms, s, m or h, such as %s", quote(text), example(f))
		}
		return t, float64(t), nil
	case as == "percent":
		number, ok := strings.CutSuffix(text, "%")
		if !ok || !plainNumber.MatchString(number) {
			return nil, 0, fmt.Errorf("%s is not a percentage: write a number and %%%s, such as %s", quote(text), off(f), example(f))
		}
		x, _ := strconv.ParseFloat(number, 64)
		return x / 100, x / 100, nil
	case as == "bandwidth":
		m := bitRate.FindStringSubmatch(text)
		if m == nil {
			return nil, 0, fmt.Errorf("%s is not a bandwidth: write a number and bps, kbps, Mbps, Gbps or Tbps%s, such as 900Mbps", quote(text), off(f))
		}
		x, _ := new(big.Rat).SetString(m[1])
		x.Mul(x, new(big.Rat).SetInt64(map[string]int64{"bps": 1, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9, "Tbps": 1e12}[m[2]]))
		if !x.IsInt() {
			return nil, 0, fmt.Errorf("%s is not a whole number of bits per second", text)
		}
		size, _ := x.Float64()
		return x.Num().Uint64(), size, nil // too large for 64 bits is beyond every max
	case f.typ.Kind() == reflect.Float64:
		if !plainNumber.MatchString(text) {
			return nil, 0, fmt.Errorf("%s is not a number%s: write digits, such as 5 or 0.5", quote(text), off(f))
		}
		x, _ := strconv.ParseFloat(text, 64)
		return x, x, nil
	}
	if !wholeNumber.MatchString(text) {
		return nil, 0, fmt.Errorf("%s is not a whole number in decimal digits%s", quote(text), off(f))
	}
	out := reflect.New(f.typ).Elem()
	if out.CanUint() {
		u, err := strconv.ParseUint(text, 10, 64)
		if strings.HasPrefix(text, "-") {
			x, _ := strconv.ParseFloat(text, 64)
			return nil, x, belowOr(text, f, errors.New("must not be negative"))
		}
		if err != nil || out.OverflowUint(u) {
			return nil, 0, belowOr(text, f, errors.New("is too large"))
		}
		out.SetUint(u)
		return out.Interface(), float64(u), nil
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, 0, belowOr(text, f, errors.New("is too large"))
	}
	out.SetInt(i)
	return out.Interface(), float64(i), nil
}

// belowOr names the range of f where it has one, for a number that its type cannot hold.
func belowOr(text string, f field, why error) error {
	if lo, hi := f.tag.Get("min"), f.tag.Get("max"); lo != "" && hi != "" {
		return fmt.Errorf("%s is not between %s and %s", text, lo, hi)
	}
	return fmt.Errorf("%s %w", text, why)
}

func parseString(text string, f field, inList bool) (string, error) {
	if strings.ContainsRune(text, 0) && f.tag.Get("as") != "payload" {
		return "", errors.New("must not hold a zero byte")
	}
	_, hasDefault := f.tag.Lookup("default")
	if text == "" {
		if inList || hasDefault || f.tag.Get("required") != "" {
			return "", errors.New("must not be empty")
		}
		return "", nil
	}
	if words := f.words("enum"); words != nil {
		if !slices.Contains(words, text) {
			return "", fmt.Errorf("%s is none of %s%s", quote(text), strings.Join(words, ", "), suggest(text, words))
		}
		return text, nil
	}
	if form, ok := forms[f.tag.Get("as")]; ok {
		return form(text)
	}
	return text, nil
}

func parseThreshold(text string) (Threshold, error) {
	wrong := fmt.Errorf("%s is not a number from 1 to 100000 or a percentage from 1%% to 100%%", quote(text))
	if number, ok := strings.CutSuffix(text, "%"); ok {
		x, err := strconv.ParseFloat(number, 64)
		if !plainNumber.MatchString(number) || err != nil || x < 1 || x > 100 {
			return Threshold{}, wrong
		}
		return Threshold{Share: x / 100}, nil
	}
	n, err := strconv.Atoi(text)
	if !wholeNumber.MatchString(text) || err != nil || n < 1 || n > 100_000 {
		return Threshold{}, wrong
	}
	return Threshold{Count: n}, nil
}

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%s is not an IP address", quote(text))
	}
	return a, checkAddr(a)
}

// checkAddr refuses what no client can connect to.
func checkAddr(a netip.Addr) error {
	var what string
	switch {
	case a.Zone() != "":
		what = "has a zone, which means nothing elsewhere"
	case a.Is4In6():
		return fmt.Errorf("%s is an IPv4 address in IPv6 notation: write %s", a, a.Unmap())
	case a.IsUnspecified(), a.Is4() && a.As4()[0] == 0:
		what = "is no host's address (RFC 1122 section 3.2.1.3)"
	case a.IsMulticast():
		what = "is a multicast address"
	case a.IsLinkLocalUnicast():
		what = "is a link-local address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		what = "is the broadcast address"
	default:
		return nil
	}
	return fmt.Errorf("%s %s: write an address that clients can connect to", a, what)
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%s is not a prefix: write one such as 203.0.113.0/24", quote(text))
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%s is IPv4 in IPv6 notation: write the IPv4 prefix", p)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits set beyond its length: write %s", p, p.Masked())
	}
	return p, nil
}

func parseAddrPort(text string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil || ap.Port() == 0 {
		return ap, fmt.Errorf("%s is not an address and port: write it such as 10.1.1.10:443 or [2001:db8::1]:443", quote(text))
	}
	return ap, checkAddr(ap.Addr())
}

// quote quotes text for a message, cut to what a line can hold.
func quote(text string) string {
	const most = 80
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "..."
	}
	return strconv.Quote(text)
}
