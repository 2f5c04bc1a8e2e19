package sitereport

import (
	"encoding/json"
	"errors"
	"strings"
)

// encoding/json's tokens cost an allocation and 100 ns each, and a report of 2,000 round trips has 36,000 of them. So the
// decoder finds them itself; what is hard about strings, and the words of a syntax error, encoding/json still does.

// A token is a value or its beginning.
type token struct {
	kind byte   // its first letter: { [ " t f n, and 0 for a number
	text string // of a string and a number, as it was sent
}

// String names the token in an error.
func (t token) String() string {
	switch t.kind {
	case '[':
		return "a list"
	case '{':
		return "an object"
	case '"':
		return "a string"
	case '0':
		return "a number"
	}
	return "a truth value"
}

// string returns what the token of a string stands for, in which invalid UTF-8 is U+FFFD.
func (t token) string() string {
	inner := t.text[1 : len(t.text)-1]
	for i := range len(inner) {
		if inner[i] == '\\' || inner[i] >= 0x80 {
			var s string
			_ = json.Unmarshal([]byte(t.text), &s) // the decoder has found no fault in it
			return s
		}
	}
	return inner
}

// next returns the next letter that is no blank, without reading it; 0 at the end.
func (d *decoder) next() byte {
	for d.at < len(d.text) {
		switch c := d.text[d.at]; c {
		case ' ', '\t', '\n', '\r':
			d.at++
		default:
			return c
		}
	}
	return 0
}

// take reads c, if it is the next letter.
func (d *decoder) take(c byte) bool {
	if d.next() != c {
		return false
	}
	d.at++
	return true
}

// token reads a string, number, truth value or null, or the bracket that a list or an object begins with.
func (d *decoder) token() (token, error) {
	c := d.next()
	begin, rest := d.at, d.text[d.at:]
	switch {
	case c == '{' || c == '[':
		d.at++
		return token{kind: c}, nil
	case c == '"':
		n := stringLength(rest)
		if n == 0 {
			return token{}, d.notJSON()
		}
		d.at += n
	case c == '-' || c >= '0' && c <= '9':
		n := numberLength(rest)
		if n == 0 {
			return token{}, d.notJSON()
		}
		d.at += n
		c = '0'
	case strings.HasPrefix(rest, "true"), strings.HasPrefix(rest, "null"):
		d.at += 4
	case strings.HasPrefix(rest, "false"):
		d.at += 5
	default:
		return token{}, d.notJSON()
	}
	return token{kind: c, text: d.text[begin:d.at]}, nil
}

// stringLength returns the length of the string that text begins with, quotes included; 0: it is none.
func stringLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return 0
		case c == '\\':
			i++
			switch {
			case i == len(text):
				return 0
			case text[i] == 'u':
				for range 4 {
					if i++; i == len(text) || !strings.ContainsRune("0123456789abcdefABCDEF", rune(text[i])) {
						return 0
					}
				}
			case !strings.ContainsRune(`"\/bfnrt`, rune(text[i])):
				return 0
			}
		}
	}
	return 0
}

// numberLength returns the length of the number that text begins with; 0: it is none.
func numberLength(text string) int {
	at := 0
	digits := func() bool {
		begin := at
		for at < len(text) && text[at] >= '0' && text[at] <= '9' {
			at++
		}
		return at > begin
	}
	if text[0] == '-' {
		at++
	}
	if at < len(text) && text[at] == '0' { // nothing but a fraction follows it
		at++
	} else if !digits() {
		return 0
	}
	if at < len(text) && text[at] == '.' {
		if at++; !digits() {
			return 0
		}
	}
	if at < len(text) && (text[at] == 'e' || text[at] == 'E') {
		if at++; at < len(text) && (text[at] == '+' || text[at] == '-') {
			at++
		}
		if !digits() {
			return 0
		}
	}
	return at
}

// skip reads a value that nobody asks for, inside of so many others.
func (d *decoder) skip(depth int) error {
	const deepest = 10_000 // of encoding/json
	t, err := d.token()
	if err != nil || t.kind != '{' && t.kind != '[' {
		return err
	}
	if depth == deepest {
		return d.notJSON()
	}
	closing := t.kind + 2 // of both, in ASCII
	if d.take(closing) {
		return nil
	}
	for {
		if t.kind == '{' {
			if d.next() != '"' {
				return d.notJSON()
			}
			if _, err := d.token(); err != nil {
				return err
			}
			if !d.take(':') {
				return d.notJSON()
			}
		}
		if err := d.skip(depth + 1); err != nil {
			return err
		}
		switch {
		case d.take(closing):
			return nil
		case !d.take(','):
			return d.notJSON()
		}
	}
}

// notJSON says what is wrong where something else should stand.
func (d *decoder) notJSON() error {
	err := json.Unmarshal([]byte(d.text), new(json.RawMessage))
	var syntax *json.SyntaxError
	switch {
	case strings.TrimLeft(d.text, " \t\r\n") == "":
		return errors.New("there is no report: the body is empty")
	case !errors.As(err, &syntax):
		return d.errorf("not JSON (byte %d)", d.at+1)
	case syntax.Offset == int64(len(d.text)) && strings.HasPrefix(syntax.Error(), "unexpected end"):
		return d.cutOff()
	}
	return d.errorf("not JSON: %s (byte %d)", syntax, syntax.Offset)
}

func (d *decoder) cutOff() error {
	return d.errorf("the report is cut off after %d bytes", len(d.text))
}

// pointer returns a pointer to v, nil where none is given.
func pointer[T any](v T, given bool, err error) (*T, error) {
	if !given || err != nil {
		return nil, err
	}
	return &v, nil
}
