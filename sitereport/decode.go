package sitereport

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gslbd/state"
)

// ErrTooLarge is what Decode returns for a report that is longer than its limit.
var ErrTooLarge = errors.New("the report is too large")

// Decode reads one report of at most limit bytes. It returns an error that names the field and says why for whatever it
// cannot read or that is out of range, for a field that is given twice, and for what follows the report; it never
// returns half a report. Unknown fields are ignored, and so are round trips by an unknown method, because agents and servers
// are upgraded at different times; null is the same as absent. Names of fields are compared exactly.
//
// It reads value by value, and not into the structs by reflection, so that counts are bounded while reading: four
// megabytes of "{},{}," must not become hundreds of megabytes of structs.
func Decode(r io.Reader, limit int64) (*Report, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	d := decoder{text: string(body)}
	switch {
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, d.cutOff()
	case err != nil:
		return nil, fmt.Errorf("the report cannot be read: %w", err)
	}
	var rep Report
	if err := d.report(&rep); err != nil {
		return nil, err
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return &rep, nil
}

// end fails where something else stands after the report.
func (d *decoder) end() error {
	if d.next(); d.at < len(d.text) {
		return errors.New("there is more after the report: send one JSON object")
	}
	return nil
}

// A decoder reads the report value by value and knows where it is.
type decoder struct {
	text    string // what is kept of it is copied, or 20 bytes would keep four megabytes
	at      int    // everything before is read
	path    []step
	servers int // read so far, behind all virtual servers
	drained int // likewise, of those in drain
}

// A step of a path is a field, or with an empty field an index.
type step struct {
	field string
	index int
}

func (d *decoder) errorf(format string, args ...any) error {
	var b strings.Builder
	for i, s := range d.path {
		switch {
		case s.field == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		case i > 0:
			b.WriteString("." + s.field)
		default:
			b.WriteString(s.field)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	fmt.Fprintf(&b, format, args...)
	return errors.New(b.String())
}

// object reads an object with the given fields; read reads the value of one.
func (d *decoder) object(fields []string, read func(field string) error) error {
	t, err := d.token()
	if err != nil || t.kind == 'n' {
		return err
	}
	if t.kind != '{' {
		return d.errorf("%s where an object belongs", t)
	}
	if d.take('}') {
		return nil
	}
	var seen uint
	for {
		if d.next() != '"' {
			return d.notJSON()
		}
		key, err := d.string()
		if err != nil {
			return err
		}
		at := slices.Index(fields, key)
		if at >= 0 {
			d.path = append(d.path, step{field: fields[at]})
			if seen&(1<<at) != 0 {
				return d.errorf("given twice")
			}
			seen |= 1 << at
		}
		if !d.take(':') {
			return d.notJSON()
		}
		if at >= 0 {
			err = read(fields[at])
		} else {
			err = d.skip(0)
		}
		if err != nil {
			return err
		}
		if at >= 0 {
			d.path = d.path[:len(d.path)-1]
		}
		switch {
		case d.take('}'):
			return nil
		case !d.take(','):
			return d.notJSON()
		}
	}
}

// array reads an array of at most most values; read reads one.
func (d *decoder) array(most int, read func() error) error {
	t, err := d.token()
	if err != nil || t.kind == 'n' {
		return err
	}
	if t.kind != '[' {
		return d.errorf("%s where a list belongs", t)
	}
	if d.take(']') {
		return nil
	}
	for i := 0; ; i++ {
		if i == most {
			return d.errorf("more than %d entries", most)
		}
		d.path = append(d.path, step{index: i})
		if err := read(); err != nil {
			return err
		}
		d.path = d.path[:len(d.path)-1]
		switch {
		case d.take(']'):
			return nil
		case !d.take(','):
			return d.notJSON()
		}
	}
}

// string reads a string, which may be a part of the report's text.
func (d *decoder) string() (string, error) {
	t, err := d.token()
	switch {
	case err != nil || t.kind == 'n':
		return "", err
	case t.kind != '"':
		return "", d.errorf("%s where a string belongs", t)
	}
	return t.string(), nil
}

// name reads a string that names something: it ends up in logs, in telemetry and on terminals.
func (d *decoder) name(into *string) error {
	s, err := d.string()
	if err != nil {
		return err
	}
	if len(s) > MaxName {
		return d.errorf("%d bytes are more than %d", len(s), MaxName)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return d.errorf("%q has a character that cannot be printed", s)
		}
	}
	*into = strings.Clone(s)
	return nil
}

// reason reads a text for people. What a health check was told by a server may be anything, and a site must not be
// unheard because of it; so it is made printable and short.
func (d *decoder) reason(into *string) error {
	s, err := d.string()
	if err != nil {
		return err
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > MaxReason {
		cut := MaxReason - len("…")
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	*into = strings.Clone(strings.TrimSpace(s))
	return nil
}

// word reads one of the given words.
func (d *decoder) word(into *string, words ...string) error {
	s, err := d.string()
	if at := slices.Index(words, s); err == nil && at >= 0 {
		*into = words[at]
		return nil
	}
	if err != nil || s == "" {
		return err
	}
	return d.errorf("%q is not one of %s", shorten(s), strings.Join(words, ", "))
}

// number reads a number of 0 to most; given is false for null.
func (d *decoder) number(most float64) (v float64, given bool, err error) {
	t, err := d.token()
	switch {
	case err != nil || t.kind == 'n':
		return 0, false, err
	case t.kind != '0':
		return 0, false, d.errorf("%s where a number belongs", t)
	}
	v, err = strconv.ParseFloat(t.text, 64)
	if err != nil || v < 0 || v > most {
		return 0, false, d.errorf("%s is not between 0 and %s", shorten(t.text), strconv.FormatFloat(most, 'f', -1, 64))
	}
	return v, true, nil
}

// whole reads a whole number of 0 to most, which is below 2^53. 3e5 and 3.0 are whole.
func (d *decoder) whole(most float64) (u uint64, given bool, err error) {
	v, given, err := d.number(most)
	if err == nil && v != math.Trunc(v) {
		err = d.errorf("%v is not a whole number", v)
	}
	return uint64(v), given, err
}

// rate reads a rate of 0 to most and rounds it, since who computes a rate seldom gets a whole number.
func (d *decoder) rate(most float64) (u uint64, given bool, err error) {
	v, given, err := d.number(most)
	return uint64(math.Round(v)), given, err
}

// sequence reads any uint64; nil for null.
func (d *decoder) sequence() (*uint64, error) {
	t, err := d.token()
	switch {
	case err != nil || t.kind == 'n':
		return nil, err
	case t.kind != '0':
		return nil, d.errorf("%s where a number belongs", t)
	}
	v, err := strconv.ParseUint(t.text, 10, 64)
	if err != nil {
		return nil, d.errorf("%s is not a whole number between 0 and %d", shorten(t.text), uint64(math.MaxUint64))
	}
	return &v, nil
}

func (d *decoder) truth(into *bool) error {
	t, err := d.token()
	switch {
	case err != nil || t.kind == 'n':
		return err
	case t.kind != 't' && t.kind != 'f':
		return d.errorf("%s where true or false belongs", t)
	}
	*into = t.kind == 't'
	return nil
}

func (d *decoder) address(into *netip.Addr) error {
	s, err := d.string()
	if err != nil || s == "" {
		return err
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return d.errorf("%q is not an IP address", shorten(s))
	}
	*into = a.Unmap()
	return nil
}

func (d *decoder) prefix(into *netip.Prefix) error {
	s, err := d.string()
	if err != nil || s == "" {
		return err
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return d.errorf("%q is not an IP prefix", shorten(s))
	}
	least := 56
	if p.Addr().Is4() {
		least = 24
	}
	if p.Bits() < least {
		return d.errorf("%s is shorter than /%d, so its hosts may be far apart", p, least)
	}
	*into = p.Masked()
	return nil
}

// shorten keeps an error short whatever was sent.
func shorten(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

func (d *decoder) report(r *Report) error {
	err := d.object([]string{"site", "agent", "boot_id", "sequence", "load", "virtual_servers", "rtts", "drained", "warnings"}, func(field string) (err error) {
		switch field {
		case "site":
			return d.name(&r.Site)
		case "agent":
			return d.name(&r.Agent)
		case "boot_id":
			return d.name(&r.BootID)
		case "sequence":
			r.Sequence, err = d.sequence()
		case "load":
			r.Load, err = d.load()
		case "virtual_servers":
			return d.virtualServers(&r.VirtualServers)
		case "rtts":
			return d.array(MaxRTTs, func() error {
				t, err := d.rtt()
				if t.Resolver.IsValid() && !slices.Contains([]string{"", "icmp", "dns", "tcp"}, t.Method) {
					// Agents and servers are upgraded at different times, and all else that the site says shall count.
					r.UnknownMethod = t.Method
					return err
				}
				r.RTTs = append(r.RTTs, t)
				return err
			})
		case "drained":
			return d.array(MaxVirtualServers, func() error {
				s, err := d.drainedServers()
				r.Drained = append(r.Drained, s)
				return err
			})
		case "warnings":
			return d.warnings(&r.Warnings)
		}
		return err
	})
	if err == nil && r.Site == "" {
		err = errors.New("site: missing")
	}
	return err
}

// reading reads the part of a report that a reader may tell.
func (d *decoder) reading(r *Reading) error {
	return d.object([]string{"load", "virtual_servers", "warnings"}, func(field string) error {
		switch field {
		case "load":
			l, err := d.load()
			r.Load = *l
			return err
		case "virtual_servers":
			return d.virtualServers(&r.VirtualServers)
		default:
			return d.warnings(&r.Warnings)
		}
	})
}

func (d *decoder) virtualServers(into *[]VirtualServer) error {
	return d.array(MaxVirtualServers, func() error {
		v, err := d.virtualServer()
		*into = append(*into, v)
		return err
	})
}

func (d *decoder) warnings(into *[]string) error {
	return d.array(MaxWarnings, func() error {
		var w string
		if err := d.reason(&w); err != nil || w == "" {
			return err
		}
		*into = append(*into, w)
		return nil
	})
}

func (d *decoder) load() (*Load, error) {
	l := new(Load)
	err := d.object([]string{"sessions", "new_sessions_per_second", "bits_per_second_in", "bits_per_second_out"}, func(field string) (err error) {
		switch field {
		case "sessions":
			l.Sessions, err = pointer(d.whole(MaxSessions))
		case "new_sessions_per_second":
			l.NewSessions, err = pointer(d.number(MaxNewSessions))
		case "bits_per_second_in":
			l.BitsPerSecIn, err = pointer(d.rate(MaxBits))
		case "bits_per_second_out":
			l.BitsPerSecOut, err = pointer(d.rate(MaxBits))
		}
		return err
	})
	return l, err
}

func (d *decoder) virtualServer() (v VirtualServer, err error) {
	err = d.object([]string{"name", "address", "port", "protocol", "sessions", "servers"}, func(field string) (err error) {
		switch field {
		case "name":
			return d.name(&v.Name)
		case "address":
			return d.address(&v.Address)
		case "port":
			port, _, err := d.whole(65535)
			v.Port = uint16(port)
			return err
		case "protocol":
			return d.word(&v.Protocol, "tcp", "udp")
		case "sessions":
			v.Sessions, err = pointer(d.whole(MaxSessions))
		case "servers":
			return d.array(MaxServers, func() error {
				if d.servers++; d.servers > MaxServers {
					return d.errorf("more than %d servers in the report", MaxServers)
				}
				s, err := d.server()
				v.Servers = append(v.Servers, s)
				return err
			})
		}
		return err
	})
	if err == nil && v.Name == "" && !v.Address.IsValid() {
		err = d.errorf("has neither a name nor an address")
	}
	return v, err
}

func (d *decoder) server() (s Server, err error) {
	err = d.object([]string{"name", "address", "state", "reason"}, func(field string) error {
		switch field {
		case "name":
			return d.name(&s.Name)
		case "address":
			return d.name(&s.Address)
		case "state":
			return d.word(&s.State, StateUp, StateDown, StateDrain, StateMaint, StateUnknown)
		default:
			return d.reason(&s.Reason)
		}
	})
	if err == nil && s.Name == "" && s.Address == "" {
		err = d.errorf("has neither a name nor an address")
	}
	return s, err
}

func (d *decoder) drainedServers() (s state.DrainedServers, err error) {
	err = d.object([]string{"virtual_server", "servers"}, func(field string) error {
		if field == "virtual_server" {
			return d.name(&s.VirtualServer)
		}
		return d.array(MaxServers, func() error {
			if d.drained++; d.drained > MaxServers {
				return d.errorf("more than %d servers in drain in the report", MaxServers)
			}
			var name string
			if err := d.name(&name); err != nil {
				return err
			}
			if name == "" {
				return d.errorf("names no server")
			}
			s.Servers = append(s.Servers, name)
			return nil
		})
	})
	if err == nil && s.VirtualServer == "" {
		err = d.errorf("names no virtual server")
	}
	return s, err
}

func (d *decoder) rtt() (t RTT, err error) {
	err = d.object([]string{"resolver", "prefix", "rtt_ms", "lost", "method", "age_ms", "connections"}, func(field string) (err error) {
		switch field {
		case "resolver":
			return d.address(&t.Resolver)
		case "prefix":
			return d.prefix(&t.Prefix)
		case "rtt_ms":
			t.Millis, err = pointer(d.number(MaxRTTMillis))
		case "lost":
			return d.truth(&t.Lost)
		case "method":
			at := d.at
			if d.word(&t.Method, "icmp", "dns", "tcp") == nil {
				return nil
			}
			d.at = at
			return d.name(&t.Method) // of another release, perhaps
		case "connections":
			t.Connections, err = pointer(d.whole(MaxSessions))
		case "age_ms":
			t.AgeMS, _, err = d.rate(MaxAgeMillis)
		}
		return err
	})
	switch {
	case err != nil:
	case t.Resolver.IsValid() == t.Prefix.IsValid():
		err = d.errorf("needs either a resolver or a prefix")
	case t.Lost == (t.Millis != nil):
		err = d.errorf("needs either rtt_ms or lost")
	}
	return t, err
}
