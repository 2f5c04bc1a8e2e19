package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxExpanded bounds the nodes that are read through aliases, so that a few nested ones cannot fill the memory.
const maxExpanded = 100_000

// maxFaults bounds the faults that are recorded: a file with more is not what it was taken for.
const maxFaults = 1000

// A decoder checks the nodes of a file against a struct and collects what is wrong.
type decoder struct {
	file     string
	origin   map[string]origin // of every value that was written, by path
	errs     Errors
	warnings []string
	failed   map[string]bool // the paths of errs

	fields   map[reflect.Type][]field // cache
	blanks   map[blank]reflect.Value  // cache
	known    []setting                // every key of the root
	expanded int                      // nodes read through aliases
	aliases  int                      // aliases around the present node
	entries  int                      // entries of lists around the present node

	least   int                     // bytes of a list that is read in pieces; 0: none is
	cuts    map[*yaml.Node]*cutList // that were not decoded yet, by the node that stands for the list
	cutAt   map[string]*cutList     // those that were decoded, by path
	torn    bool                    // one could not be read in pieces: nothing that was decoded counts
	quiet   bool                    // decode without paths and origins, and only set tripped at a fault
	tripped bool

	// The entry of a cutList that was asked for last, see recall.
	recalled       string
	recalledOrigin map[string]origin
	recalledFrom   *piece
	recalledNodes  []*yaml.Node
}

// A blank is a struct of which nothing is written: all its keys have their defaults.
type blank struct {
	typ  reflect.Type
	kind string // see kindField
}

// An origin says where a value was written.
type origin struct {
	line     int
	variable string // of the environment
}

// A field is a key of a struct.
type field struct {
	name  string // of viper and mapstructure
	key   string // of the file
	index []int  // of the struct, see reflect.Value.FieldByIndex
	typ   reflect.Type
	tag   tags
	kinds []string // see kindField: those that it belongs to; nil: all
}

// Tags are those of a field. They are few, and asked for at every value: neither reflect's nor a map's search is as short.
type tags []struct{ name, text string }

func newTags(t reflect.StructTag) tags {
	var out tags
	for _, name := range []string{"default", "required", "min", "max", "size", "repeat", "enum", "as", "off", "for", "later"} {
		if text, ok := t.Lookup(name); ok {
			out = append(out, struct{ name, text string }{name, text})
		}
	}
	return out
}

// Get returns the tag's text, "" without it.
func (t tags) Get(name string) string {
	text, _ := t.Lookup(name)
	return text
}

// Lookup returns the tag's text, and whether there is such a tag.
func (t tags) Lookup(name string) (text string, ok bool) {
	for i := range t {
		if t[i].name == name {
			return t[i].text, true
		}
	}
	return "", false
}

// A setting is a key of the root, at any depth.
type setting struct {
	path []string
	field
	list bool // it is a list, or lies in one
}

func newDecoder(file string, root reflect.Type) *decoder {
	d := &decoder{
		file: file, origin: map[string]origin{}, failed: map[string]bool{},
		fields: map[reflect.Type][]field{}, blanks: map[blank]reflect.Value{}, cutAt: map[string]*cutList{},
	}
	d.known = d.settings(nil, root, false)
	return d
}

// fail records a fault at path.
func (d *decoder) fail(path, format string, args ...any) {
	var o origin
	if !d.quiet {
		o = d.originOf(path)
	}
	d.failAt(o, path, format, args...)
}

func (d *decoder) failAt(o origin, path, format string, args ...any) {
	if d.quiet {
		d.tripped = true
		return
	}
	if d.full() {
		return
	}
	d.failed[path] = true
	file := d.file
	if o.variable != "" {
		file = "environment " + o.variable
	}
	d.errs = append(d.errs, &Error{File: file, Line: o.line, Path: path, Msg: fmt.Sprintf(format, args...)})
}

// full reports whether there are so many faults that no more are recorded.
func (d *decoder) full() bool { return len(d.errs) >= maxFaults }

// warn records something doubtful at path.
func (d *decoder) warn(path, format string, args ...any) {
	o := d.originOf(path)
	file := d.file
	if o.variable != "" {
		file = "environment " + o.variable
	}
	e := Error{File: file, Line: o.line, Path: path, Msg: fmt.Sprintf(format, args...)}
	d.warnings = append(d.warnings, e.Error())
}

// originOf says where path was written, or what encloses it where it was not.
func (d *decoder) originOf(path string) origin {
	d.recall(path)
	for {
		if o, ok := d.origin[path]; ok || path == "" {
			return o
		}
		if o, ok := d.recalledOrigin[path]; ok {
			return o
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

// given reports whether path was written, in the file or in the environment.
func (d *decoder) given(path string) bool {
	if d.quiet { // no part of an entry of a list is given by the environment
		return false
	}
	d.recall(path)
	_, ok := d.origin[path]
	_, recalled := d.recalledOrigin[path]
	return ok || recalled
}

// note records where path was written.
func (d *decoder) note(path string, line int) {
	if !d.quiet {
		d.origin[path] = origin{line: line}
	}
}

func (d *decoder) fieldsOf(t reflect.Type) []field {
	if f, ok := d.fields[t]; ok {
		return f
	}
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("mapstructure")
		switch {
		case name == "-":
		case name == ",squash":
			for _, inner := range d.fieldsOf(f.Type) {
				inner.index = append(slices.Clone(f.Index), inner.index...)
				out = append(out, inner)
			}
		default:
			key := f.Tag.Get("key")
			if key == "" {
				key = name
			}
			add := field{name: name, key: key, index: f.Index, typ: f.Type, tag: newTags(f.Tag)}
			add.kinds = add.words("for")
			out = append(out, add)
		}
	}
	d.fields[t] = out
	return out
}

// settings lists every key below t, in lists too.
func (d *decoder) settings(path []string, t reflect.Type, list bool) []setting {
	var out []setting
	for _, f := range d.fieldsOf(t) {
		elem, inList := f.typ, list
		if elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		if elem.Kind() == reflect.Slice {
			elem, inList = elem.Elem(), true
		}
		p := append(slices.Clone(path), f.key)
		out = append(out, setting{path: p, field: f, list: inList})
		if isSection(elem) {
			out = append(out, d.settings(p, elem, inList)...)
		}
	}
	return out
}

// isSection reports whether t is a mapping of keys, not a value.
func isSection(t reflect.Type) bool {
	switch t {
	case addrType, prefixType, addrPortType, thresholdType:
		return false
	}
	return t.Kind() == reflect.Struct
}

var (
	addrType      = reflect.TypeFor[netip.Addr]()
	prefixType    = reflect.TypeFor[netip.Prefix]()
	addrPortType  = reflect.TypeFor[netip.AddrPort]()
	thresholdType = reflect.TypeFor[Threshold]()
)

// value decodes n as f. It returns nil when there is nothing usable, having said why.
func (d *decoder) value(n *yaml.Node, f field, path string) any {
	n, done := d.enter(n, path)
	defer done()
	if n == nil {
		return nil
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.fail(path, "has no value: write one, or remove the line")
		return nil
	}
	t := f.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice:
		return d.list(n, f, path)
	case isSection(t):
		return d.section(n, t, path)
	}
	v := d.scalar(n, f, path, false)
	d.refuseLater(v, f, path)
	return v
}

// enter resolves an alias and counts what is read through it. It returns nil when that is too much. The caller calls
// done when it has read the node.
func (d *decoder) enter(n *yaml.Node, path string) (_ *yaml.Node, done func()) {
	done = func() {}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
		d.aliases++
		done = func() { d.aliases-- }
	}
	if !d.spend(1, path) {
		return nil, done
	}
	return n, done
}

// spend counts n nodes, if they are read through an alias, and returns false when that is too much.
func (d *decoder) spend(n int, path string) bool {
	if d.aliases == 0 {
		return true
	}
	before := d.expanded
	d.expanded += n
	if before <= maxExpanded && d.expanded > maxExpanded {
		d.fail(path, "the aliases of this file stand for more than %d values: write fewer", maxExpanded)
	}
	return d.expanded <= maxExpanded
}

// A pair is a key of a mapping with its value.
type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// pairs returns the entries of a mapping, those of merge keys (<<) after its own, without those that its own replace.
func (d *decoder) pairs(n *yaml.Node, path string, depth int) []pair {
	const few = 16 // keys: no map finds one of them sooner
	var merged []pair
	own := make([]pair, 0, len(n.Content)/2)
	var lines map[string]int
	if len(n.Content)/2 > few {
		lines = make(map[string]int, len(n.Content)/2)
	}
	seen := func(key string) (line int) {
		if lines != nil {
			return lines[key]
		}
		for i := range own {
			if own[i].key == key {
				return own[i].line
			}
		}
		return 0
	}
	add := func(p pair) {
		own = append(own, p)
		if lines != nil {
			lines[p.key] = p.line
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := origin{line: k.Line}
		switch {
		case k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge":
			merged = append(merged, d.merge(v, path, depth)...)
		case k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str":
			d.failAt(at, path, "line %d has a key that is not a word", k.Line)
		case seen(k.Value) > 0:
			d.failAt(at, join(path, k.Value), "is written twice, first on line %d", seen(k.Value))
		default:
			add(pair{k.Value, k.Line, v})
		}
	}
	for _, p := range merged {
		if seen(p.key) == 0 {
			add(p)
		}
	}
	return own
}

// merge returns what the value of a merge key stands for: a mapping, or a list of them, of which the first wins.
func (d *decoder) merge(v *yaml.Node, path string, depth int) []pair {
	const deepest = 16
	v, done := d.enter(v, path)
	defer done()
	switch {
	case v == nil:
	case depth == deepest:
		d.fail(path, "merge keys (<<) are nested too deeply")
	case v.Kind == yaml.MappingNode:
		if d.spend(len(v.Content)/2, path) {
			return d.pairs(v, path, depth+1)
		}
	case v.Kind == yaml.SequenceNode:
		var out []pair
		for _, e := range v.Content {
			out = append(out, d.merge(e, path, depth+1)...)
		}
		return out
	default:
		d.fail(path, "a merge key (<<) needs a mapping")
	}
	return nil
}

// section decodes a mapping as the struct t; with n nil it returns the defaults. An entry of a list, and what is in it,
// becomes a value of t: there may be very many. What the environment may overlay becomes a map, which viper reads.
func (d *decoder) section(n *yaml.Node, t reflect.Type, path string) any {
	var pairs []pair
	if n != nil {
		if n.Kind != yaml.MappingNode {
			d.fail(path, "is %s, and must hold keys: write \"key: value\" lines below it", kindOf(n))
			return nil
		}
		pairs = d.pairs(n, path, 0)
	}
	fields := d.fieldsOf(t)
	kind, hasKind := kindField(fields, pairs)

	out := d.newTarget(t, kind)
	for _, p := range pairs {
		if d.full() {
			return nil
		}
		at := d.join(path, p.key)
		d.note(at, p.line)
		f, kinds := find(fields, p.key, kind)
		switch {
		case f != nil:
			out.set(f, d.value(p.value, *f, at))
		case kinds == nil:
			d.fail(at, "%s", d.unknownKey(path, p.key, fields))
		case hasKind:
			d.fail(at, "%s %s takes no %s; it belongs to %s", fields[0].key, kind, p.key, strings.Join(kinds, ", "))
		}
	}
	for i := range fields {
		f := &fields[i]
		if !f.allows(kind) || slices.ContainsFunc(pairs, func(p pair) bool { return p.key == f.key }) {
			continue
		}
		if f.tag.Get("required") != "" && !d.given(d.join(path, f.key)) { // the environment may give it
			d.fail(d.join(path, f.key), "is missing")
			continue
		}
		if out.section != nil { // a blank has them
			out.set(f, d.defaultOf(*f, kind, d.join(path, f.key)))
		}
	}
	return out.value()
}

// A target is what a mapping is decoded into.
type target struct {
	section map[string]any // what viper reads, or nil
	entry   reflect.Value  // the struct, without section
}

func (d *decoder) newTarget(t reflect.Type, kind string) target {
	if d.entries == 0 {
		return target{section: map[string]any{}}
	}
	out := target{entry: reflect.New(t).Elem()}
	b, ok := d.blanks[blank{t, kind}]
	if !ok {
		b = reflect.New(t).Elem()
		for _, f := range d.fieldsOf(t) {
			if f.allows(kind) {
				target{entry: b}.set(&f, d.defaultOf(f, kind, ""))
			}
		}
		d.blanks[blank{t, kind}] = b
	}
	out.entry.Set(b)
	return out
}

// set stores what was decoded as f; nil: nothing usable, which leaves the zero value.
func (o target) set(f *field, v any) {
	switch {
	case o.section != nil && v != nil:
		o.section[f.name] = v
	case o.section != nil:
	case v == nil:
		o.entry.FieldByIndex(f.index).SetZero()
	case f.typ.Kind() == reflect.Pointer:
		p := reflect.New(f.typ.Elem())
		p.Elem().Set(reflect.ValueOf(v))
		o.entry.FieldByIndex(f.index).Set(p)
	default:
		o.entry.FieldByIndex(f.index).Set(reflect.ValueOf(v))
	}
}

func (o target) value() any {
	if o.section != nil {
		return o.section
	}
	return o.entry.Interface()
}

// kindField returns the value of the first key, when other keys depend on it.
func kindField(fields []field, pairs []pair) (kind string, ok bool) {
	if !slices.ContainsFunc(fields, func(f field) bool { return f.tag.Get("for") != "" }) {
		return "", false
	}
	for _, p := range pairs {
		v := p.value
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		if p.key == fields[0].key && slices.Contains(fields[0].words("enum"), v.Value) {
			return v.Value, true
		}
	}
	return "", false
}

// find returns the field of key, or the kinds that it belongs to when it is not one of this kind.
func find(fields []field, key, kind string) (_ *field, kinds []string) {
	for i := range fields {
		f := &fields[i]
		if f.key != key {
			continue
		}
		if f.allows(kind) {
			return f, nil
		}
		kinds = append(kinds, f.kinds...)
	}
	return nil, kinds
}

func (f field) words(tag string) []string {
	if s := f.tag.Get(tag); s != "" {
		return strings.Split(s, "|")
	}
	return nil
}

func (f *field) allows(kind string) bool { return f.kinds == nil || slices.Contains(f.kinds, kind) }

// defaultText returns the default of f as one would write it.
func (f field) defaultText(kind string) (_ string, ok bool) {
	s, ok := f.tag.Lookup("default")
	general, special, _ := strings.Cut(s, "|")
	if k, v, found := strings.Cut(special, "="); found && k == kind {
		return v, true
	}
	return general, ok
}

// defaultOf returns the default of f, nil for the zero value.
func (d *decoder) defaultOf(f field, kind, path string) any {
	text, ok := f.defaultText(kind)
	switch {
	case isSection(f.typ):
		return d.section(nil, f.typ, path)
	case !ok:
		return nil
	case f.typ.Kind() == reflect.Slice:
		out := reflect.MakeSlice(f.typ, 0, 1)
		for _, e := range strings.Split(text, ",") {
			v, _ := parse(e, f.element(), true)
			out = reflect.Append(out, reflect.ValueOf(v))
		}
		return out.Interface()
	}
	v, _ := parse(text, f, false)
	return v
}

func (f field) element() field {
	f.typ = f.typ.Elem()
	return f
}

// list decodes a sequence.
func (d *decoder) list(n *yaml.Node, f field, path string) any {
	if n.Kind != yaml.SequenceNode {
		d.fail(path, "is %s, and must be a list: write [a, b], or a line \"- a\" for each entry", kindOf(n))
		return nil
	}
	l := d.cuts[n]
	elem, size := f.element(), len(n.Content)
	if l != nil {
		size = l.count
		delete(d.cuts, n)
	}
	_, hasDefault := f.tag.Lookup("default")
	if size == 0 && (hasDefault || f.tag.Get("required") != "") {
		d.fail(path, "is empty, and needs at least one entry")
		return nil
	}
	if most, err := strconv.Atoi(f.tag.Get("size")); err == nil && size > most {
		d.fail(path, "has %d entries, and may have at most %d", size, most)
		return nil
	}
	var out reflect.Value
	switch {
	case l != nil && isSection(elem.typ):
		out = d.decodeCut(l, elem, path)
	case l != nil && !d.fill(n, l):
		return nil
	case isSection(elem.typ):
		out = reflect.MakeSlice(f.typ, 0, size)
		for i, e := range n.Content {
			out = reflect.Append(out, d.entry(e, elem, d.at(path, i)))
		}
	default:
		if out = d.values(n, f, path); !out.IsValid() {
			return nil
		}
	}
	d.refuseLater(out.Interface(), f, path)
	return out.Interface()
}

// entry decodes an entry of a list of mappings. Without anything usable it is zero, so that those that follow keep their
// indexes.
func (d *decoder) entry(e *yaml.Node, elem field, path string) reflect.Value {
	d.note(path, e.Line)
	d.entries++
	v := d.value(e, field{typ: elem.typ}, path)
	d.entries--
	if v == nil {
		return reflect.Zero(elem.typ)
	}
	return reflect.ValueOf(v)
}

// values decodes the entries of a list of single values; the zero Value: there was too much of them.
func (d *decoder) values(n *yaml.Node, f field, path string) reflect.Value {
	elem := f.element()
	out := reflect.MakeSlice(f.typ, 0, len(n.Content))
	var seen map[any]int
	if len(n.Content) > 1 {
		seen = make(map[any]int, len(n.Content))
	}
	for i, e := range n.Content {
		at := d.at(path, i)
		d.note(at, e.Line)
		e, done := d.enter(e, at)
		if e == nil {
			done()
			return reflect.Value{}
		}
		v := d.scalar(e, elem, at, true)
		done()
		if v == nil {
			continue
		}
		if first, twice := seen[v]; twice && f.tag.Get("repeat") == "" {
			d.fail(at, "%s is listed twice, first as entry [%d]", quote(e.Value), first)
			continue
		}
		if seen != nil {
			seen[v] = i
		}
		out = reflect.Append(out, reflect.ValueOf(v))
	}
	return out
}

// at returns the path of an entry of the list that path names; nothing while nobody asks for it.
func (d *decoder) at(path string, i int) string {
	if d.quiet {
		return ""
	}
	return at(path, i)
}

// refuseLater refuses v where only the default of f is supported.
func (d *decoder) refuseLater(v any, f field, path string) {
	if f.tag.Get("later") == "" || v == nil {
		return
	}
	text, _ := f.defaultText("")
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice {
		if list.Len() == 0 {
			return
		}
		text = "[]"
	} else if word, ok := v.(string); ok {
		if word == text {
			return
		}
		if text == "" {
			text = `""`
		}
	} else if def, _ := parse(text, f, false); def == v {
		return
	}
	d.fail(path, "is not supported by this version: remove it, or set it to %s", text)
}

// scalar decodes a single value; the kind that YAML gives it must be the one that f has.
func (d *decoder) scalar(n *yaml.Node, f field, path string, inList bool) any {
	if n.Kind != yaml.ScalarNode {
		d.fail(path, "is %s, and must be a single value", kindOf(n))
		return nil
	}
	if n.ShortTag() == "!!null" {
		d.fail(path, "has no value: write one, or remove it")
		return nil
	}
	if msg := checkKind(n, f); msg != "" {
		d.fail(path, "%s", msg)
		return nil
	}
	v, err := parse(n.Value, f, inList)
	if err != nil {
		d.fail(path, "%s", err)
		return nil
	}
	return v
}

// unknownKey says what is wrong with key: a typo, or the wrong place.
func (d *decoder) unknownKey(path, key string, fields []field) string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	if near := nearest(key, keys); near != "" {
		return "unknown key; did you mean " + strconv.Quote(near) + "?"
	}
	var places []string
	for _, s := range d.known {
		if s.key == key {
			if place := d.place(s); place != path && !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
	}
	switch {
	case len(places) == 0 || len(places) > 3:
		return "unknown key"
	case places[0] == "":
		return "unknown key here; it belongs to the top level of the file"
	}
	return "unknown key here; it belongs to " + strings.Join(places, " or ")
}

// place returns the path of what encloses s, with "[]" after lists.
func (d *decoder) place(s setting) string {
	var b strings.Builder
	for i := range len(s.path) - 1 {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.path[i])
		for _, o := range d.known {
			if slices.Equal(o.path, s.path[:i+1]) && o.typ.Kind() == reflect.Slice {
				b.WriteString("[]")
				break
			}
		}
	}
	return b.String()
}

// join returns the path of a key of what path names; nothing while nobody asks for it.
func (d *decoder) join(path, key string) string {
	if d.quiet {
		return ""
	}
	return join(path, key)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// nearest returns the candidate that word is most likely a misspelling of, or "".
func nearest(word string, candidates []string) string {
	best, bestAt := "", 1+max(1, min(3, len(word)/3))
	for _, c := range candidates {
		if n := distance(strings.ToLower(word), strings.ToLower(c)); n < bestAt {
			best, bestAt = c, n
		}
	}
	return best
}

// suggest returns "; did you mean ...?" or "".
func suggest(word string, candidates []string) string {
	if near := nearest(word, candidates); near != "" {
		return "; did you mean " + strconv.Quote(near) + "?"
	}
	return ""
}

// distance is the number of letters to insert, delete or replace to get from a to b (Levenshtein). Words too long to be
// misspelt names are infinitely far.
func distance(a, b string) int {
	if len(a) > 255 || len(b) > 255 {
		return 1 << 30
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
