package config

import (
	"bytes"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// leastCut is the size in bytes from which a list is read in pieces, each of an eighth of that.
const leastCut = 64 << 10

// A cutList is a block list that was taken out of the file, to be read a piece at a time. The nodes of 100,000 services
// take 700 MB, and the places of all that is written in them as much again; of a piece both are forgotten once it is
// decoded without fault. A fault, or a warning, reads the piece again.
type cutList struct {
	line   int // of its key, from 1
	count  int // entries
	pieces []piece

	typ reflect.Type // of the entries, once decoded
}

// A piece is some entries of a cutList, a YAML document by itself.
type piece struct {
	text  []byte
	line  int // of the file, where it begins, from 1
	first int // the index of its first entry
	count int // entries
}

// cut takes the block lists of at least so many bytes out of data. What is left has empty lines in their place, so that
// every line keeps its number.
//
// That is exact, since in a block list nothing but the next entry begins with "- " in the column of the entries: a block
// scalar or mapping of the entry before ends there, and a quoted scalar or flow collection that does not leaves its piece
// without an end, so that attach or read tells. Not cut is a file with an anchor or a %TAG, which say something of what
// stands in another piece, or with line breaks that are some for YAML only.
func cut(data []byte, least int) (rest []byte, lists []*cutList) {
	for _, c := range []string{"&", "%TAG", "\r", "\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(data, []byte(c)) {
			return data, nil
		}
	}
	kept := 0 // data is in rest up to here
	for at, line := 0, 1; at < len(data); line++ {
		next := lineEnd(data, at)
		if indent, ok := keyLine(data[at:next]); ok {
			l, end := findList(data, next, line, indent, least/8)
			if lines := bytes.Count(data[next:end], []byte("\n")); l.count > 0 && end-next >= least {
				lists = append(lists, l)
				rest = append(append(rest, data[kept:next]...), bytes.Repeat([]byte("\n"), lines)...)
				kept, next, line = end, end, line+lines
			}
		}
		at = next
	}
	return append(rest, data[kept:]...), lists
}

func lineEnd(data []byte, at int) int {
	if n := bytes.IndexByte(data[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(data)
}

// keyLine reports whether the line holds a key alone, whose value then is on the following lines, and its indentation.
func keyLine(line []byte) (indent int, ok bool) {
	line, _, _ = bytes.Cut(line, []byte(" #"))
	line = bytes.TrimRight(line, " \n")
	key := bytes.TrimLeft(line, " ")
	word, ok := bytes.CutSuffix(key, []byte(":"))
	notWord := func(r rune) bool { return (r < 'a' || r > 'z') && r != '_' }
	return len(line) - len(key), ok && len(word) > 0 && !bytes.ContainsFunc(word, notWord)
}

// findList returns the block list that begins at or after at, below a key on the given line with the given indentation,
// and where it ends; at, when there is none.
func findList(data []byte, at, keyAt, indent, size int) (l *cutList, end int) {
	l = &cutList{line: keyAt}
	begin, column := at, -1 // the column of the entries
	for line := keyAt + 1; at < len(data); line++ {
		next := lineEnd(data, at)
		text := bytes.TrimLeft(data[at:next], " ")
		col := next - at - len(text)
		text = bytes.TrimRight(text, "\n")
		entry := bytes.HasPrefix(text, []byte("- ")) || string(text) == "-"
		switch {
		case len(text) == 0 || text[0] == '#': // belongs to what is before it
		case entry && (col == column || column < 0 && col >= indent):
			column = col
			if n := len(l.pieces); n == 0 || at-begin >= size {
				if n > 0 {
					l.pieces[n-1].text = data[begin:at]
					begin = at
				}
				l.pieces = append(l.pieces, piece{line: line, first: l.count})
				if n == 0 {
					l.pieces[0].line = keyAt + 1
				}
			}
			l.pieces[len(l.pieces)-1].count++
			l.count++
		case col <= max(column, 0):
			return l.end(data[begin:at]), at
		case column < 0:
			return l, begin
		}
		at = next
	}
	return l.end(data[begin:at]), at
}

func (l *cutList) end(text []byte) *cutList {
	if n := len(l.pieces); n > 0 {
		l.pieces[n-1].text = text
	}
	return l
}

// attach finds the keys of the lists in what is left of the file, and makes their values lists. It reports whether all
// are there and have no other value. In {} there is no block list, but a fault.
func (d *decoder) attach(n *yaml.Node, lists []*cutList) bool {
	byLine := make(map[int]*cutList, len(lists))
	for _, l := range lists {
		byLine[l.line] = l
	}
	d.cuts = make(map[*yaml.Node]*cutList, len(lists))
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		for i, value := range n.Content {
			walk(value)
			if n.Kind != yaml.MappingNode || n.Style&yaml.FlowStyle != 0 || i%2 == 0 {
				continue
			}
			if l := byLine[n.Content[i-1].Line]; l != nil && value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" && value.Value == "" {
				*value = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: l.pieces[0].line}
				d.cuts[value] = l
				delete(byLine, l.line)
			}
		}
	}
	walk(n)
	return len(byLine) == 0
}

// read returns the nodes of the piece's entries, with the lines of the file; nil: it is no list of that many entries by
// itself, so that the file must be read as a whole.
func (p *piece) read() []*yaml.Node {
	if entries, ok := readPlain(p.text, p.line); ok {
		if len(entries) != p.count {
			return nil
		}
		return entries
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(p.text, &doc); err != nil || len(doc.Content) == 0 {
		return nil
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode || len(list.Content) != p.count {
		return nil
	}
	shift(list, p.line-1)
	return list.Content
}

func shift(n *yaml.Node, lines int) {
	n.Line += lines
	for _, c := range n.Content {
		shift(c, lines)
	}
}

// decodeCut decodes the entries of l, a piece at a time. One without fault leaves no trace of where it was written.
//
// That is on one core, though two would be done sooner: at a reload the other has queries to answer.
func (d *decoder) decodeCut(l *cutList, elem field, path string) reflect.Value {
	l.typ = elem.typ
	d.cutAt[path] = l
	out := reflect.MakeSlice(reflect.SliceOf(elem.typ), l.count, l.count)
	quiet := d.another()
	quiet.quiet, quiet.entries = true, d.entries
	for i := range l.pieces {
		p := &l.pieces[i]
		nodes := p.read()
		if nodes == nil { // it must be read as a whole
			d.torn = true
			return out
		}
		for j, e := range nodes {
			entry := out.Index(p.first + j)
			quiet.tripped = false
			if entry.Set(quiet.entry(e, elem, "")); quiet.tripped {
				entry.Set(d.entry(e, elem, at(path, p.first+j)))
			}
		}
	}
	return out
}

// another returns a decoder of entries of the same file, which has found nothing yet.
func (d *decoder) another() *decoder {
	return &decoder{
		file: d.file, origin: map[string]origin{}, failed: map[string]bool{}, known: d.known,
		fields: map[reflect.Type][]field{}, blanks: map[blank]reflect.Value{},
	}
}

// fill gives n the nodes of all entries of l. It reports whether they could be read in pieces.
func (d *decoder) fill(n *yaml.Node, l *cutList) bool {
	for i := range l.pieces {
		nodes := l.pieces[i].read()
		d.torn = d.torn || nodes == nil
		n.Content = append(n.Content, nodes...)
	}
	return !d.torn
}

// recall finds out where everything in the entry of a cutList was written that path lies in, if it lies in one.
func (d *decoder) recall(path string) {
	list, rest, ok := strings.Cut(path, "[")
	l := d.cutAt[list]
	if !ok || l == nil {
		return
	}
	number, _, _ := strings.Cut(rest, "]")
	index, err := strconv.Atoi(number)
	if entry := at(list, index); err == nil && index < l.count && d.recalled != entry && d.origin[entry] == (origin{}) {
		i, found := slices.BinarySearchFunc(l.pieces, index, func(p piece, index int) int { return p.first - index })
		if !found {
			i--
		}
		p := &l.pieces[i]
		if d.recalledFrom != p {
			d.recalledFrom, d.recalledNodes = p, p.read()
		}
		again := d.another()
		again.entry(d.recalledNodes[index-p.first], field{typ: l.typ}, entry)
		d.recalled, d.recalledOrigin = entry, again.origin
	}
}
