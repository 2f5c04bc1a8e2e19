package dns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// The bounds of a zone file. They are far above what a GSLB zone holds; they keep a wrong file (a disk image, a
// $GENERATE with a slip) from eating the memory of a running server.
const (
	maxZoneFile    = 64 << 20 // octets of one file
	maxZoneFiles   = 1000
	maxZoneRecords = 1 << 20
	maxZoneNames   = 4 << 20 // with the empty non-terminals
	maxZoneErrors  = 50      // listed for one file
	maxTTL         = 1<<31 - 1
)

// A fileRecord is a record and where it was written.
type fileRecord struct {
	dns.RR
	owner string // wire form, lower case
	where string // FILE:LINE
}

// A parsedZone is what one zone file says, before it is checked against the services.
type parsedZone struct {
	records []fileRecord
	errs    []string // each with FILE:LINE
}

func (p *parsedZone) fail(where, format string, args ...any) {
	if len(p.errs) == maxZoneErrors {
		p.errs = append(p.errs, where+": more errors follow")
	}
	if len(p.errs) < maxZoneErrors {
		p.errs = append(p.errs, where+": "+fmt.Sprintf(format, args...))
	}
}

// parseZoneFile reads the records of the zone with this apex (wire form, lower case) and refuses what is wrong with a
// record by itself.
func parseZoneFile(file, apex string) *parsedZone {
	p := &parsedZone{}
	abs, err := filepath.Abs(file)
	if err != nil {
		p.fail(file, "%v", err)
		return p
	}
	src := &zoneSource{shown: file, abs: abs}
	if err := src.push(abs); err != nil {
		p.fail(file, "%s", reasonOf(err))
		return p
	}
	zp := dns.NewZoneParser(src.top(), dns.Fqdn(showName(apex)), abs)
	zp.SetIncludeAllowed(true)
	zp.SetIncludeFS(src)
	seen := map[string]uint32{} // where in p.records, from 1
	for {
		src.mark()
		rr, ok := zp.Next()
		if src.err != nil {
			p.fail(src.where(), "%v", src.err)
			return p
		}
		if !ok {
			if err := zp.Err(); err != nil {
				p.fail(src.where(), "%s", explainParseError(err, src.text()))
			}
			break
		}
		if len(p.records) == maxZoneRecords {
			p.fail(src.where(), "more than %d records", maxZoneRecords)
			break
		}
		rec := fileRecord{RR: rr, where: src.where()}
		why := checkRecord(&rec, apex)
		if why == "" && strings.Contains(src.text(), `\#`) {
			why = checkGeneric(rr)
		}
		if why == "" {
			why = checkSVCB(rr)
		}
		if why != "" {
			p.fail(rec.where, "%s", why)
			continue
		}
		key := canonical(&rec)
		if i := seen[key]; i > 0 { // RFC 2181 section 5: a set holds each record once, and has one TTL
			first := p.records[i-1].Header()
			first.Ttl = min(first.Ttl, rr.Header().Ttl)
			continue
		}
		p.records = append(p.records, rec)
		seen[key] = uint32(len(p.records))
	}
	return p
}

// checkGeneric says what is wrong with a record that was written in the form of RFC 3597 section 5 (`MX \# 2 0001`), or
// "". The parser takes any octets for a type that it knows; those of a whole record survive being written in the type's
// own form.
func checkGeneric(rr dns.RR) string {
	rtype := rr.Header().Rrtype
	if _, known := dns.TypeToRR[rtype]; !known {
		return ""
	}
	wrong := fmt.Sprintf("the data is not that of a %s record: write it in the type's own form", dns.Type(rtype))
	same, err := dns.NewRR(rr.String())
	if err != nil || same == nil {
		return wrong
	}
	a, errA := packRecord(rr, "")
	b, errB := packRecord(same, "")
	if errA != nil || errB != nil || !bytes.Equal(a.wire, b.wire) {
		return wrong
	}
	return ""
}

// checkRecord fills in rec.owner and says what is wrong with the record by itself, or "".
func checkRecord(rec *fileRecord, apex string) string {
	h := rec.Header()
	wire, err := packName(h.Name)
	if err != nil {
		return err.Error()
	}
	rec.owner = lowerWire(wire)
	show, rtype := showName(rec.owner), dns.Type(h.Rrtype).String()
	switch {
	case !inside(rec.owner, apex):
		return fmt.Sprintf("%s lies outside the zone %s", show, showName(apex))
	case h.Class != dns.ClassINET:
		return fmt.Sprintf("%s: class %s is not served; only IN is", show, dns.Class(h.Class))
	case h.Ttl > maxTTL:
		return fmt.Sprintf("%s: a TTL of %d seconds is above the largest, %d (RFC 2181 section 8)", show, h.Ttl, maxTTL)
	}
	switch h.Rrtype {
	case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeNSEC3PARAM:
		return fmt.Sprintf("%s: a %s record cannot be in the file; give the zone unsigned", show, rtype)
	case dns.TypeNone, dns.TypeOPT:
		return fmt.Sprintf("%s: %s is not a type that a zone can hold", show, rtype)
	}
	if h.Rrtype >= 128 && h.Rrtype <= 255 {
		return fmt.Sprintf("%s: %s is not a type that a zone can hold", show, rtype)
	}
	if h.Rrtype == dns.TypeSOA && rec.owner != apex {
		return fmt.Sprintf("%s: a SOA record belongs at the apex of the zone, %s", show, showName(apex))
	}
	return ""
}

// canonical identifies a record by owner, type and data. The names in the data of the types that are mostly names
// compare without case; that other data differs in case alone is for its reader to judge.
func canonical(rec *fileRecord) string {
	c := dns.Copy(rec.RR)
	c.Header().Name, c.Header().Ttl = ".", 0
	switch rec.Header().Rrtype {
	case dns.TypeNS, dns.TypeCNAME, dns.TypeDNAME, dns.TypePTR, dns.TypeMX, dns.TypeSRV, dns.TypeSOA:
		return rec.owner + strings.ToLower(c.String())
	}
	buf := make([]byte, dns.Len(c)+maxName)
	n, err := dns.PackRR(c, buf, 0, nil, false)
	if err != nil { // building the zone reports it
		return rec.where
	}
	return rec.owner + string(buf[:n])
}

// soaFields are the seven fields of a SOA record's data in order.
var soaFields = [...]string{"mname", "rname", "serial", "refresh", "retry", "expire", "minimum"}

// explainParseError says in words what the parser found. The parser knows a broken SOA only as "bad zone parameter",
// which has sent more than one operator looking in the wrong place, so the fields are counted here.
func explainParseError(err error, text string) string {
	msg := err.Error()
	var pe *dns.ParseError
	if errors.As(err, &pe) && pe.Unwrap() != nil {
		return reasonOf(pe.Unwrap())
	}
	// FILE: dns: MESSAGE: "TOKEN" at line: L:C
	if _, after, ok := strings.Cut(msg, "dns: "); ok {
		msg = after
	}
	if i := strings.LastIndex(msg, " at line: "); i >= 0 {
		msg = msg[:i]
	}
	if key, ok := strings.CutPrefix(msg, ": "); ok {
		return "the parameter " + key + " cannot be read" // of an HTTPS or SVCB record: the parser says no more
	}
	fields := strings.Fields(strings.NewReplacer("(", " ", ")", " ").Replace(firstRecord(text)))
	at := slices.IndexFunc(fields, func(f string) bool { return strings.EqualFold(f, "SOA") })
	if !strings.HasPrefix(msg, "bad SOA") || at < 0 {
		return msg
	}
	fields = fields[at+1:]
	for i, f := range fields {
		if i >= len(soaFields) {
			return fmt.Sprintf("SOA has more than its %d fields: %q is too much", len(soaFields), f)
		}
		_, numErr := strconv.ParseUint(f, 10, 32)
		number := numErr == nil
		switch {
		case i < 2 && number && len(fields) < len(soaFields):
			return fmt.Sprintf("SOA is missing its %s: the fields are %s", soaFields[i], strings.Join(soaFields[:], ", "))
		case i >= 2 && !number && (i == 2 || f[0] < '0' || f[0] > '9'):
			return fmt.Sprintf("SOA has %q where its %s belongs: the fields are %s", f, soaFields[i], strings.Join(soaFields[:], ", "))
		}
	}
	if len(fields) < len(soaFields) {
		return fmt.Sprintf("SOA is missing its %s: the fields are %s", soaFields[len(fields)], strings.Join(soaFields[:], ", "))
	}
	return msg
}

// firstRecord returns text up to the end of its first record: looking for what is missing, the parser reads on into the
// next line.
func firstRecord(text string) string {
	text = strings.TrimSpace(text)
	depth := 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '\n' && depth == 0:
			return text[:i]
		}
	}
	return text
}

// reasonOf returns what the system said, without the path that the message names anyway.
func reasonOf(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return "cannot read " + pe.Path + ": " + pe.Err.Error()
	}
	return err.Error()
}

// A zoneSource feeds the zone parser octet by octet, so that the line that a record began at is known, and opens the
// files that $INCLUDE names. It also puts the TTL that $TTL set into the $GENERATE lines without one, since the parser
// gives their records a TTL of its own.
type zoneSource struct {
	shown, abs string // the zone's file, as configured and absolute
	open       []*zoneReader
	opened     int    // files, of all that were
	last       string // where the last record was, for records that come without reading ($GENERATE)
	err        error  // what the parser would not understand
}

// push opens a file and reads from it first. Its path is absolute.
func (s *zoneSource) push(abs string) error {
	if s.opened++; s.opened > maxZoneFiles {
		return &fs.PathError{Op: "open", Path: abs, Err: fmt.Errorf("more than %d files are included", maxZoneFiles)}
	}
	if st, err := os.Stat(abs); err != nil {
		return err
	} else if !st.Mode().IsRegular() { // opening a pipe would wait for its other end
		return &fs.PathError{Op: "read", Path: abs, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(abs)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxZoneFile+1))
	if err != nil {
		return err
	}
	if len(data) > maxZoneFile {
		return &fs.PathError{Op: "read", Path: abs, Err: fmt.Errorf("larger than %d octets", maxZoneFile)}
	}
	shown := s.shown
	if len(s.open) > 0 {
		if rel, err := filepath.Rel(filepath.Dir(s.abs), abs); err == nil && !filepath.IsAbs(s.shown) {
			shown = filepath.Join(filepath.Dir(s.shown), rel)
		} else {
			shown = abs
		}
	}
	data = append(bytes.TrimPrefix(data, []byte("\ufeff")), '\n')
	r := &zoneReader{src: s, name: shown, rest: data}
	if len(s.open) > 0 {
		r.ttl = s.top().ttl
	}
	s.open = append(s.open, r)
	return nil
}

// Open implements fs.FS for the parser, which strips the first slash of the path.
func (s *zoneSource) Open(path string) (fs.File, error) {
	file, err := s.confine("/" + path)
	if err == nil {
		err = s.push(file)
	}
	if err != nil {
		return nil, err
	}
	return s.top(), nil
}

// confine returns the file that path leads to. It must lie in the directory of the zone's file or below, wherever
// symbolic links lead, so that who may write a zone cannot have the server read, and quote in its errors, other files.
func (s *zoneSource) confine(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(s.abs))
	if err != nil {
		return "", err
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(dir, file); err != nil || !filepath.IsLocal(rel) {
		return "", &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("$INCLUDE may not leave the directory of the zone's file, %s", dir)}
	}
	return path, nil
}

func (s *zoneSource) top() *zoneReader { return s.open[len(s.open)-1] }

// mark says that the next record begins.
func (s *zoneSource) mark() {
	s.open = slices.DeleteFunc(s.open, func(r *zoneReader) bool { return r.ended && len(s.open) > 1 })
	for _, r := range s.open {
		r.first, r.text = 0, r.text[:0]
	}
}

// reading returns the innermost file of which the present record was read; nil if nothing was read.
func (s *zoneSource) reading() *zoneReader {
	for _, r := range slices.Backward(s.open) {
		if r.first > 0 {
			return r
		}
	}
	return nil
}

// where returns the file and line of the present record.
func (s *zoneSource) where() string {
	if r := s.reading(); r != nil {
		s.last = fmt.Sprintf("%s:%d", r.name, r.first)
	} else if s.last == "" {
		s.last = fmt.Sprintf("%s:%d", s.top().name, s.top().line)
	}
	return s.last
}

// text returns what was read for the present record, without its comments.
func (s *zoneSource) text() string {
	if r := s.reading(); r != nil {
		return string(r.text)
	}
	return ""
}

// A zoneReader is one open file. It implements fs.File and io.ByteReader.
type zoneReader struct {
	src  *zoneSource
	name string
	rest []byte // from the next line on
	cur  []byte // of the present line, not yet read
	line int    // number of the present line
	ttl  string // the last $TTL, of the including file if this one has none: back there it is what it was

	ended     bool // all of it was read
	directive bool // the present line is one

	first   int    // the line of the present record's first octet; 0: none was read
	text    []byte // of the present record, without comments
	depth   int    // of parentheses
	quoted  bool
	comment bool
	escaped bool
}

// ReadByte returns the next octet.
func (r *zoneReader) ReadByte() (byte, error) {
	if len(r.cur) == 0 && !r.nextLine() {
		r.ended = true
		return 0, io.EOF
	}
	c := r.cur[0]
	r.cur = r.cur[1:]
	r.scan(c)
	return c, nil
}

// scan keeps count of where in a record c stands.
func (r *zoneReader) scan(c byte) {
	switch {
	case c == '\n':
		r.comment, r.escaped = false, false
	case r.comment:
		return
	case r.escaped:
		r.escaped = false
	case c == '\\':
		r.escaped = true
	case c == '"':
		r.quoted = !r.quoted
	case r.quoted:
	case c == ';':
		r.comment = true
		return
	case c == '(':
		r.depth++
	case c == ')':
		r.depth--
	}
	if len(r.text) < 4096 {
		r.text = append(r.text, c)
	}
	if r.first == 0 && c != ' ' && c != '\t' && c != '\r' && c != '\n' {
		r.first = r.line
	}
}

// nextLine makes the next line the present one. Directives begin a line outside parentheses and quotes.
func (r *zoneReader) nextLine() bool {
	if len(r.rest) == 0 {
		return false
	}
	n := bytes.IndexByte(r.rest, '\n') + 1
	r.cur, r.rest = r.rest[:n], r.rest[n:]
	r.line++
	if r.directive {
		r.first, r.text = 0, r.text[:0]
	}
	r.directive = false
	if r.cur[0] != '$' || r.depth > 0 || r.quoted {
		return true
	}
	r.directive = true
	r.first, r.text = 0, r.text[:0]
	fields := strings.Fields(string(r.cur))
	switch strings.ToUpper(fields[0]) {
	case "$TTL":
		if len(fields) > 1 {
			r.ttl = fields[1]
		}
	case "$GENERATE":
		r.generate(fields)
	}
	return true
}

// generate rewrites a $GENERATE line without a TTL.
func (r *zoneReader) generate(fields []string) {
	const lhs = 2 // $GENERATE RANGE LHS [TTL] [CLASS] TYPE RHS
	if len(fields) < lhs+3 {
		return // the parser says what is missing
	}
	for _, f := range fields[lhs+1:] {
		if f[0] >= '0' && f[0] <= '9' {
			return
		}
		if strings.EqualFold(f, "IN") {
			continue
		}
		break
	}
	if r.ttl == "" {
		r.first = r.line
		if r.src.err == nil {
			r.src.err = errors.New("$GENERATE needs a TTL, in its line or by $TTL before it")
		}
		return
	}
	at := 0
	for _, f := range fields[:lhs+1] {
		at += bytes.Index(r.cur[at:], []byte(f)) + len(f)
	}
	r.cur = slices.Concat(r.cur[:at], []byte(" "+r.ttl), r.cur[at:])
}

// Read implements fs.File; the parser reads by ReadByte.
func (r *zoneReader) Read(b []byte) (int, error) {
	for i := range b {
		c, err := r.ReadByte()
		if err != nil {
			return i, err
		}
		b[i] = c
	}
	return len(b), nil
}

// Close implements fs.File; the file was closed when it had been read.
func (r *zoneReader) Close() error { return nil }

// Stat implements fs.File; the parser does not ask.
func (r *zoneReader) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
