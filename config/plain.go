package config

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// deepestFlow bounds how deep readPlain goes into {} and [].
const deepestFlow = 16

// readPlain reads a block list of plain YAML, as nearly all of a long file is, in a sixth of the time that the YAML parser
// takes. It returns the nodes of its entries that the parser would, without columns and comments; line is the number
// of the text's first line. What it does not know for certain it leaves to the parser by returning false: whether it is YAML
// at all, too.
//
// It knows block lists and mappings, keys of the letters a to z and "_", lists and mappings in brackets on one line,
// scalars on one line, plain ones of harmless letters or in quotes without escapes, and lines of comments.
func readPlain(text []byte, line int) ([]*yaml.Node, bool) {
	if bytes.ContainsFunc(text, func(r rune) bool { return (r < ' ' || r > '~') && r != '\n' }) {
		return nil, false
	}
	r := plainReader{rest: string(text), line: line - 1}
	r.next()
	list := r.list(r.indent)
	if r.odd || !r.end {
		return nil, false
	}
	return list.Content, true
}

// A plainReader stands at a line that is neither empty nor a comment.
type plainReader struct {
	rest   string // after that line
	line   int    // its number
	indent int    // the column of text
	text   string // what of the line is not read yet, without blanks around it
	end    bool   // there is no line any more; indent is -1
	odd    bool   // something is not plain, and nothing that was read counts

	nodes []yaml.Node // to be given out: one allocation for many
}

func (r *plainReader) node(kind yaml.Kind, style yaml.Style, tag, value string) *yaml.Node {
	if len(r.nodes) == 0 {
		r.nodes = make([]yaml.Node, 128)
	}
	n := &r.nodes[0]
	r.nodes = r.nodes[1:]
	n.Kind, n.Style, n.Tag, n.Value, n.Line = kind, style, tag, value, r.line
	if kind != yaml.ScalarNode {
		n.Content = make([]*yaml.Node, 0, 8)
	}
	return n
}

// fail says that something is not plain.
func (r *plainReader) fail() *yaml.Node {
	r.odd, r.end, r.indent, r.text = true, true, -1, ""
	return &yaml.Node{}
}

func (r *plainReader) next() {
	for r.rest != "" {
		var text string
		text, r.rest, _ = strings.Cut(r.rest, "\n")
		r.line++
		r.text = strings.TrimLeft(text, " ")
		r.indent = len(text) - len(r.text)
		if r.text != "" && r.text[0] != '#' {
			r.text = strings.TrimRight(r.text, " ")
			return
		}
	}
	r.end, r.indent, r.text = true, -1, ""
}

// list reads the entries whose dashes stand in the given column.
func (r *plainReader) list(column int) *yaml.Node {
	list := r.node(yaml.SequenceNode, 0, "!!seq", "")
	for r.indent == column && strings.HasPrefix(r.text, "- ") {
		text := strings.TrimLeft(r.text[1:], " ")
		r.indent += len(r.text) - len(text)
		r.text = text
		if word := wordLength(text); word > 0 && strings.HasPrefix(text[word:], ":") {
			list.Content = append(list.Content, r.mapping(r.indent))
		} else {
			list.Content = append(list.Content, r.single(column))
		}
	}
	if r.indent > column || len(list.Content) == 0 {
		return r.fail()
	}
	return list
}

// mapping reads the keys that stand in the given column.
func (r *plainReader) mapping(column int) *yaml.Node {
	m := r.node(yaml.MappingNode, 0, "!!map", "")
	for r.indent == column {
		word := wordLength(r.text)
		if word == 0 || !strings.HasPrefix(r.text[word:], ":") {
			return r.fail()
		}
		m.Content = append(m.Content, r.node(yaml.ScalarNode, 0, scalarTag(r.text[:word]), r.text[:word]))
		text := r.text[word+1:]
		if text != "" {
			if r.text = strings.TrimLeft(text, " "); r.text == text {
				return r.fail()
			}
			m.Content = append(m.Content, r.single(column))
			continue
		}
		switch r.next(); {
		case r.indent >= column && strings.HasPrefix(r.text, "- "):
			m.Content = append(m.Content, r.list(r.indent))
		case r.indent > column:
			m.Content = append(m.Content, r.mapping(r.indent))
		default: // no value
			return r.fail()
		}
	}
	if r.indent > column {
		return r.fail()
	}
	return m
}

// single reads the rest of the line as one value. The next line must not belong to it: it would, if it stood to the right of
// the column of what has the value.
func (r *plainReader) single(column int) *yaml.Node {
	n, rest, ok := r.value(r.text, 0)
	if r.next(); !ok || rest != "" || r.indent > column {
		return r.fail()
	}
	return n
}

// value reads the value at the beginning of text, depth brackets deep, and returns what follows it.
func (r *plainReader) value(text string, depth int) (n *yaml.Node, rest string, ok bool) {
	switch {
	case text == "" || depth > deepestFlow:
		return nil, "", false
	case text[0] == '{', text[0] == '[':
		return r.flow(text, depth+1)
	case text[0] == '"', text[0] == '\'':
		style := yaml.DoubleQuotedStyle
		if text[0] == '\'' {
			style = yaml.SingleQuotedStyle
		}
		end := 1 + strings.IndexByte(text[1:], text[0])
		if end < 1 || strings.IndexByte(text[:end], '\\') >= 0 {
			return nil, "", false
		}
		return r.node(yaml.ScalarNode, style, "!!str", text[1:end]), text[end+1:], true
	}
	end := scalarLength(text)
	if end == 0 {
		return nil, "", false
	}
	return r.node(yaml.ScalarNode, 0, scalarTag(text[:end]), text[:end]), text[end:], true
}

// flow reads a list or mapping in brackets.
func (r *plainReader) flow(text string, depth int) (n *yaml.Node, rest string, ok bool) {
	closing := byte(']')
	if text[0] == '{' {
		closing = '}'
		n = r.node(yaml.MappingNode, yaml.FlowStyle, "!!map", "")
	} else {
		n = r.node(yaml.SequenceNode, yaml.FlowStyle, "!!seq", "")
	}
	text = strings.TrimLeft(text[1:], " ")
	if text != "" && text[0] == closing {
		return n, text[1:], true
	}
	for {
		if closing == '}' {
			word := wordLength(text)
			if word == 0 || !strings.HasPrefix(text[word:], ": ") {
				return nil, "", false
			}
			n.Content = append(n.Content, r.node(yaml.ScalarNode, 0, scalarTag(text[:word]), text[:word]))
			text = strings.TrimLeft(text[word+1:], " ")
		}
		value, after, ok := r.value(text, depth)
		after = strings.TrimLeft(after, " ")
		switch {
		case !ok || after == "":
			return nil, "", false
		case after[0] == closing:
			n.Content = append(n.Content, value)
			return n, after[1:], true
		case after[0] != ',':
			return nil, "", false
		}
		n.Content = append(n.Content, value)
		text = strings.TrimLeft(after[1:], " ")
	}
}

// scalarTag is the tag that the parser gives a plain scalar: text, unless it is a word of YAML, a number or a date. Most
// texts begin with a letter, or are addresses.
func scalarTag(text string) string {
	letter := text[0]|0x20 >= 'a' && text[0]|0x20 <= 'z'
	switch text {
	case "true", "True", "TRUE", "false", "False", "FALSE", "null", "Null", "NULL":
		letter = false
	}
	address := strings.IndexByte(text, '-') < 0 && (strings.Count(text, ".") > 1 || strings.IndexByte(text, ':') >= 0)
	if letter || address {
		return "!!str"
	}
	return (&yaml.Node{Kind: yaml.ScalarNode, Value: text}).ShortTag()
}

// wordLength is the length of the key that text begins with.
func wordLength(text string) int {
	const longest = 64 // that is one for certain
	n := 0
	for n < len(text) && n <= longest && (text[n] >= 'a' && text[n] <= 'z' || text[n] == '_') {
		n++
	}
	if n > longest {
		return 0
	}
	return n
}

// scalarLength is the length of the plain scalar that text begins with, 0 for what may mean something else. It ends before
// what cannot be in it here, which the caller then does not expect.
func scalarLength(text string) int {
	harmless := func(at int) bool {
		if at >= len(text) {
			return false
		}
		c := text[at]
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c == '.' || c == '/' || c == '_'
	}
	n := 0
	if !harmless(0) && (text[0] != '-' || !harmless(1)) {
		return 0
	}
	for n < len(text) {
		switch c := text[n]; {
		case harmless(n), c == '-', c == '%':
		case c == ' ' && harmless(n+1), c == ':' && (harmless(n+1) || n+1 < len(text) && text[n+1] == ':'):
		default:
			return n
		}
		n++
	}
	return n
}
