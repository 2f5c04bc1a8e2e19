package sitereport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gosnmp/gosnmp"
)

const (
	sysUpTime      = ".1.3.6.1.2.1.1.3.0" // RFC 3418
	maxSNMPRows    = 10_000               // of one column
	snmpGetOIDs    = 20                   // in one request, so that the answer fits into a packet
	snmpRepetition = 25                   // rows of one answer
	counter32      = 1 << 32              // where a Counter32 starts again from 0 (RFC 2578 section 7.1.6)
)

// SNMPOptions configure an SNMP reader.
type SNMPOptions struct {
	Address string // of the device: host, or host:port; default port 161

	// Community is that of SNMP version 2c. Version 3 is spoken where User is set, authenticated and encrypted.
	Community string

	User                                   string
	Authentication, AuthenticationPassword string // by md5, sha, sha224, sha256, sha384 or sha512; required with User
	Privacy, PrivacyPassword               string // by des, aes, aes192 or aes256; likewise

	Timeout time.Duration // for one reading; default 2s

	// Figures of the whole device. All are OIDs of single values that begin with a dot, and are added up.
	Sessions            []string // open now; none: the sum of the virtual servers' sessions
	NewSessions         []string // a second
	Connections         []string // counters of sessions that were opened, in place of NewSessions
	OctetsIn, OctetsOut []string // counters

	VirtualServers []SNMPVirtualServer
}

// An SNMPVirtualServer is a virtual server whose servers are the rows of a table.
type SNMPVirtualServer struct {
	Name     string
	Address  netip.Addr
	Port     uint16
	Protocol string
	Sessions string // OID of a single value; "": not known

	// States are columns that tell the state of a server, or what stands below a column: the rows of one pool. The first that
	// does not say up decides.
	States []SNMPStates

	// Names is the column, or what stands below it likewise, that has the servers' names; "": the index is the name.
	Names string
}

// SNMPStates is a column with the meaning of its values. One that is not listed is unknown.
type SNMPStates struct {
	Column                 string // OID
	Up, Down, Drain, Maint []int64
}

// An SNMP reads a load balancer of any kind by SNMP, from objects that its vendor's MIB has and the operator names.
//
// Counters of 32 bits that start again from 0 are taken as such when that makes a growth of less than a quarter of what
// they hold, since one that was cleared looks the same; those of 64 bits never do. After a restart of the device, or of
// its SNMP agent, rates are left out once (sysUpTime).
//
// An SNMP is for one reader at a time.
type SNMP struct {
	// Fixed at construction.
	opts       SNMPOptions
	host       string
	port       uint16
	gets       []string // OIDs of single values
	walks      []string // OIDs of columns
	configured map[string]string

	// Owned by Read.
	known       map[string][]Server
	uptime      float64
	last, base  map[string]float64 // of counters of 32 bits: the last value, and what was counted before it began at 0
	bytes       meter
	connections growth
}

// An snmpValue is one value as SNMP has it.
type snmpValue struct {
	number    float64
	isNumber  bool
	counter32 bool
	text      string
}

// An snmpRow is one value of a column.
type snmpRow struct {
	index string
	value snmpValue
}

// snmpAnswers is what a device said.
type snmpAnswers struct {
	values  map[string]snmpValue
	columns map[string][]snmpRow
}

var (
	snmpAuthentication = map[string]gosnmp.SnmpV3AuthProtocol{
		"md5": gosnmp.MD5, "sha": gosnmp.SHA, "sha224": gosnmp.SHA224, "sha256": gosnmp.SHA256, "sha384": gosnmp.SHA384, "sha512": gosnmp.SHA512,
	}
	snmpPrivacy = map[string]gosnmp.SnmpV3PrivProtocol{"des": gosnmp.DES, "aes": gosnmp.AES, "aes192": gosnmp.AES192, "aes256": gosnmp.AES256}
)

// NewSNMP returns a reader. It fails when the address has no port that can be one, and for what it cannot authenticate or encrypt by.
func NewSNMP(opts SNMPOptions) (*SNMP, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = 2 * time.Second
	}
	s := &SNMP{
		opts: opts, host: opts.Address, port: 161, known: make(map[string][]Server), configured: make(map[string]string),
		last: make(map[string]float64), base: make(map[string]float64),
	}
	if host, port, err := net.SplitHostPort(opts.Address); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("snmp: %q has no port that can be one", opts.Address)
		}
		s.host, s.port = host, uint16(n)
	}
	if opts.User != "" {
		if snmpAuthentication[opts.Authentication] == 0 || snmpPrivacy[opts.Privacy] == 0 {
			return nil, fmt.Errorf("snmp: cannot authenticate by %q and encrypt by %q", opts.Authentication, opts.Privacy)
		}
	}
	s.gets = append(s.gets, sysUpTime)
	for what, oids := range map[string][]string{
		"sessions": opts.Sessions, "new_sessions": opts.NewSessions, "connections": opts.Connections,
		"octets_in": opts.OctetsIn, "octets_out": opts.OctetsOut,
	} {
		for _, oid := range oids {
			s.configured[oid] = what
		}
	}
	for _, v := range opts.VirtualServers {
		if len(v.States) == 0 {
			return nil, fmt.Errorf("snmp: virtual server %q has no column of states", v.Name)
		}
		if v.Sessions != "" {
			s.configured[v.Sessions] = "sessions of virtual server " + v.Name
		}
		for _, c := range v.States {
			s.walks = append(s.walks, c.Column)
		}
		if v.Names != "" {
			s.walks = append(s.walks, v.Names)
		}
	}
	for oid := range s.configured {
		s.gets = append(s.gets, oid)
	}
	slices.Sort(s.gets)
	slices.Sort(s.walks)
	s.gets, s.walks = slices.Compact(s.gets), slices.Compact(s.walks)
	return s, nil
}

// Read asks the device once.
func (s *SNMP) Read(ctx context.Context) (Reading, error) {
	answers, err := s.ask(ctx)
	if err == nil {
		return s.interpret(time.Now(), answers), nil
	}
	s.forget()
	var r Reading
	for i := range s.opts.VirtualServers {
		v := &s.opts.VirtualServers[i]
		out := v.reported()
		out.Servers = unknownServers(s.known[v.Name], err.Error())
		r.VirtualServers = append(r.VirtualServers, out)
	}
	return r, fmt.Errorf("snmp %s: %w", s.opts.Address, err)
}

// forget forgets all counters.
func (s *SNMP) forget() {
	clear(s.last)
	clear(s.base)
	s.bytes.reset()
	s.connections.reset()
}

func (v *SNMPVirtualServer) reported() VirtualServer {
	return VirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol}
}

// ask gets all values and columns.
func (s *SNMP) ask(ctx context.Context) (*snmpAnswers, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	const tries = 3
	c := &gosnmp.GoSNMP{
		Target: s.host, Port: s.port, Transport: "udp", Context: ctx,
		Version: gosnmp.Version2c, Community: s.opts.Community,
		Timeout: s.opts.Timeout / tries, Retries: tries - 1,
	}
	if s.opts.User != "" {
		c.Version, c.SecurityModel, c.MsgFlags = gosnmp.Version3, gosnmp.UserSecurityModel, gosnmp.AuthPriv
		// Made anew: each reading asks for the device's clock, which a restart sets back.
		c.SecurityParameters = &gosnmp.UsmSecurityParameters{
			UserName:               s.opts.User,
			AuthenticationProtocol: snmpAuthentication[s.opts.Authentication], AuthenticationPassphrase: s.opts.AuthenticationPassword,
			PrivacyProtocol: snmpPrivacy[s.opts.Privacy], PrivacyPassphrase: s.opts.PrivacyPassword,
		}
	}
	if err := c.Connect(); err != nil {
		return nil, err
	}
	defer c.Close()
	a := &snmpAnswers{values: make(map[string]snmpValue), columns: make(map[string][]snmpRow)}
	for some := range slices.Chunk(s.gets, snmpGetOIDs) {
		packet, err := c.Get(some)
		if err := s.failed(ctx, packet, err); err != nil {
			return nil, err
		}
		for _, p := range packet.Variables {
			if v, ok := snmpValueOf(p); ok {
				a.values[p.Name] = v
			}
		}
	}
	for _, column := range s.walks {
		rows, err := s.walk(ctx, c, column)
		if err != nil {
			return nil, err
		}
		a.columns[column] = rows
	}
	return a, nil
}

// walk gets what stands below an OID. gosnmp's own walk takes an error of the device for the end of the table.
func (s *SNMP) walk(ctx context.Context, c *gosnmp.GoSNMP, column string) ([]snmpRow, error) {
	var rows []snmpRow
	for next := column; ; {
		packet, err := c.GetBulk([]string{next}, 0, snmpRepetition)
		if err := s.failed(ctx, packet, err); err != nil {
			return nil, err
		}
		if len(packet.Variables) == 0 {
			return nil, fmt.Errorf("the device answers with nothing below %s, not even its end", next)
		}
		for _, p := range packet.Variables {
			index, below := strings.CutPrefix(p.Name, column+".")
			v, ok := snmpValueOf(p)
			if !below || !ok {
				return rows, nil // the end of the column, or of all that the device has
			}
			if len(rows) == maxSNMPRows {
				return nil, fmt.Errorf("there are more than %d values below %s", maxSNMPRows, column)
			}
			if len(rows) > 0 && p.Name == next {
				return nil, fmt.Errorf("the device goes around in circles at %s", p.Name)
			}
			rows, next = append(rows, snmpRow{index, v}), p.Name
		}
	}
}

// failed says what is wrong with an exchange, and what to do.
func (s *SNMP) failed(ctx context.Context, packet *gosnmp.SnmpPacket, err error) error {
	switch {
	case err == nil && packet.Error == gosnmp.NoError:
		return nil
	case err == nil:
		return fmt.Errorf("the device answers with the error %s", packet.Error)
	case ctx.Err() != nil, errors.Is(err, gosnmp.ErrMaxRetriesExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in %s: is the address right, does the device know the community or user, and may this machine ask it?", s.opts.Timeout)
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // the text would tell another port of this machine each time
		return errors.New("connection refused: is the port right, and does the device speak SNMP?")
	}
	text, _, _ := strings.Cut(err.Error(), "\n") // the library adds a stack where it did not understand a packet
	text = printable(text, MaxReason)
	if s.opts.User != "" {
		text += ": are user, passwords, authentication and privacy those of the device?"
	}
	return errors.New(text)
}

// snmpValueOf returns the value of an object; false where there is none.
func snmpValueOf(p gosnmp.SnmpPDU) (snmpValue, bool) {
	switch p.Type {
	case gosnmp.NoSuchObject, gosnmp.NoSuchInstance, gosnmp.EndOfMibView, gosnmp.Null:
		return snmpValue{}, false
	case gosnmp.OctetString:
		b, _ := p.Value.([]byte)
		v := snmpValue{text: printable(string(b), MaxName)}
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil { // from a script of net-snmp, say
			v.number, v.isNumber = float64(n), true
		}
		return v, true
	case gosnmp.Integer, gosnmp.Counter32, gosnmp.Gauge32, gosnmp.Counter64, gosnmp.Uinteger32, gosnmp.TimeTicks:
		n := gosnmp.ToBigInt(p.Value)
		f, _ := n.Float64()
		return snmpValue{number: f, isNumber: true, counter32: p.Type == gosnmp.Counter32, text: n.String()}, true
	}
	return snmpValue{text: printable(fmt.Sprint(p.Value), MaxName)}, true
}

// interpret makes a reading of a device's answers.
func (s *SNMP) interpret(now time.Time, a *snmpAnswers) Reading {
	var r Reading
	missing := make(map[string]bool)
	for _, oid := range s.gets {
		if v := a.values[oid]; oid != sysUpTime && (!v.isNumber || v.number < 0) {
			missing[oid] = true
			r.Warnings = append(r.Warnings, fmt.Sprintf("snmp %s: %s (%s) is no number, or the device does not have it", s.opts.Address, oid, s.configured[oid]))
		}
	}
	up := a.values[sysUpTime].number
	if up < s.uptime {
		s.forget()
	}
	s.uptime = up
	// sum adds up single values; nil where one is missing, and where there are none.
	sum := func(oids []string) *float64 {
		total := new(float64)
		for _, oid := range oids {
			if missing[oid] {
				return nil
			}
			*total += a.values[oid].number
		}
		if len(oids) == 0 {
			return nil
		}
		return total
	}
	perServer := new(uint64)
	for i := range s.opts.VirtualServers {
		v := &s.opts.VirtualServers[i]
		out := v.reported()
		if v.Sessions != "" && !missing[v.Sessions] {
			out.Sessions = whole(a.values[v.Sessions].number, MaxSessions)
		}
		perServer = add(perServer, out.Sessions)
		var warnings []string
		out.Servers, warnings = v.servers(a)
		if len(out.Servers) > 0 {
			s.known[v.Name] = out.Servers
		} else {
			warnings = append(warnings, fmt.Sprintf("there is nothing below %s", v.States[0].Column))
			out.Servers = unknownServers(s.known[v.Name], warnings[0])
		}
		for _, w := range warnings {
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s", v.Name, w))
		}
		r.VirtualServers = append(r.VirtualServers, out)
	}
	if len(s.opts.Sessions) == 0 && len(s.opts.VirtualServers) > 0 {
		r.Load.Sessions = perServer
	} else if n := sum(s.opts.Sessions); n != nil {
		r.Load.Sessions = whole(*n, MaxSessions)
	}
	if n := sum(s.opts.NewSessions); n != nil && *n <= MaxNewSessions {
		r.Load.NewSessions = n
	}
	if len(s.opts.Connections) > 0 {
		r.Load.NewSessions = perSecond(s.connections.rates(now, s.counters(a, missing, s.opts.Connections)))
	}
	if in, out := s.counters(a, missing, s.opts.OctetsIn), s.counters(a, missing, s.opts.OctetsOut); in != nil && out != nil {
		octets := make(map[string]traffic)
		for oid, n := range in {
			octets["in"+oid] = traffic{in: uint64(n)}
		}
		for oid, n := range out {
			octets["out"+oid] = traffic{out: uint64(n)}
		}
		r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = s.bytes.rate(now, octets)
	} else {
		s.bytes.reset()
	}
	return r
}

// counters returns what was counted, by OID; nil where one is missing, and where there are none.
func (s *SNMP) counters(a *snmpAnswers, missing map[string]bool, oids []string) map[string]float64 {
	if len(oids) == 0 || slices.ContainsFunc(oids, func(oid string) bool { return missing[oid] }) {
		return nil
	}
	out := make(map[string]float64)
	for _, oid := range oids {
		v := a.values[oid]
		if last, known := s.last[oid]; known && v.counter32 && v.number < last {
			s.base[oid] += counter32
			if v.number+counter32-last >= counter32/4 {
				s.base[oid] = 0 // it was cleared: less than before, which is no rate
			}
		}
		s.last[oid] = v.number
		out[oid] = s.base[oid] + v.number
	}
	return out
}

// servers returns the servers that the rows tell of.
func (v *SNMPVirtualServer) servers(a *snmpAnswers) (servers []Server, warnings []string) {
	columns := make([]map[string]snmpValue, len(v.States))
	for i, c := range v.States {
		columns[i] = make(map[string]snmpValue)
		for _, row := range a.columns[c.Column] {
			columns[i][row.index] = row.value
		}
	}
	names, taken := make(map[string]string), make(map[string]bool)
	for _, row := range a.columns[v.Names] {
		names[row.index] = row.value.text
	}
	for _, row := range a.columns[v.States[0].Column] {
		name := names[row.index]
		if name == "" {
			name = row.index
		} else if taken[name] { // one machine by several ports
			name += " " + row.index
		}
		taken[name] = true
		// Without an address the name is all there is, and other pools have servers of that name.
		s := Server{Name: v.Name + "/" + name, State: StateUp}
		for i := 0; i < len(v.States) && s.State == StateUp; i++ {
			value, ok := columns[i][row.index]
			if s.State = v.States[i].meaning(value); s.State == StateUp {
				continue
			}
			s.Reason = fmt.Sprintf("%s.%s is %s", v.States[i].Column, row.index, value.text)
			if !ok {
				s.Reason = fmt.Sprintf("there is no %s.%s", v.States[i].Column, row.index)
			}
			if s.State == StateUnknown {
				warnings = append(warnings, fmt.Sprintf("server %q: %s, which the file gives no meaning", name, s.Reason))
			}
		}
		servers = append(servers, s)
	}
	return servers, warnings
}

// meaning returns the state that a value stands for.
func (c *SNMPStates) meaning(v snmpValue) string {
	if v.isNumber {
		for state, values := range map[string][]int64{StateUp: c.Up, StateDown: c.Down, StateDrain: c.Drain, StateMaint: c.Maint} {
			if slices.ContainsFunc(values, func(n int64) bool { return float64(n) == v.number }) {
				return state
			}
		}
	}
	return StateUnknown
}
