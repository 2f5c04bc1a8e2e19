package config

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What readPlain reads at all must be what the parser reads. It reports whether it did.
func comparePlain(t *testing.T, text string) bool {
	t.Helper()
	got, ok := readPlain([]byte(text), 1)
	if !ok {
		return false
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("read, and no YAML: %s\n%s", err, text)
	}
	if list := doc.Content[0]; list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 {
		t.Fatalf("read, and no block list:\n%s", text)
	}
	sameNodes(t, text, got, doc.Content[0].Content)
	return true
}

func sameNodes(t *testing.T, text string, got, want []*yaml.Node) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d nodes, want %d\n%s", len(got), len(want), text)
	}
	for i, g := range got {
		w := want[i]
		if g.Kind != w.Kind || g.Style != w.Style || g.Tag != w.Tag || g.Value != w.Value || g.Line != w.Line {
			t.Fatalf("%+v, want %+v\n%s", g, w, text)
		}
		sameNodes(t, text, g.Content, w.Content)
	}
}

func TestReadPlain(t *testing.T) {
	for text, plain := range map[string]bool{
		"- a":            true,
		"- a\n- b\n":     true,
		"  - a\n  - b":   true,
		"# x\n\n- a # b": false,
		"- a\n # x\n\n  # y\n- -5.5\n- 2001:db8::1\n- 10.0.0.1:53\n- 90%\n- a b  c\n- yes\n- 2001-01-01\n": false, // two blanks
		"- a\n # x\n\n  # y\n- -5.5\n- 2001:db8::1\n- 10.0.0.1:53\n- 90%\n- a b c \n- yes\n- 2001-01-01\n": true,
		"- \"x: {\"\n- 'a \"b\" #c'\n": true,
		"- \"x\\n\"\n":                 false,
		"- 'it''s'\n":                  false,
		"- name: a\n  members:\n    - {name: m, addresses: [192.0.2.1, 2001:db8::1], x: {}, y: []}\n  z: 5\n- b:\n  - c\n": true,
		"-   a: b\n    c: d\n": true,
		"-   a: b\n  c: d\n":   false,
		"- a: b\n   c: d\n":    false,
		"- a:\n    b: c\n":     true,
		"- a:\n  b: c\n":       false,
		"- a:\n":               false,
		"- a\n  b\n":           false,
		"- a: b\n    c\n":      false,
		"- a: b: c\n":          false,
		"- a: b:\n":            false,
		"- {a: b}\n  c: d\n":   false,
		"- {a: b,}\n":          false,
		"- {a:b}\n":            false,
		"- [a: b]\n":           false,
		"- [a,\n  b]\n":        false,
		"- [a]]\n":             false,
		"- a\n- <<: b\n":       false,
		"- a\nb\n":             false,
		"- a\n - b\n":          false,
		" - a\n- b\n":          false,
		"- a\n---\n- b\n":      false,
		"- a\n...\n":           false,
		"- ...\n":              true,
		"- true\n- FALSE\n- Null\n- tRue\n- y\n- .5\n- 0x1F\n- 1e3\n- 0b1\n- 0o7\n- 1_000\n- 1:30\n- .inf\n- -.INF\n- .nan\n- 12e03\n- 2001-12-14\n- 1.2.3\n- ..\n- .\n- a-b.c.d\n- 1-2.3.4\n": true,
		"-a\n":        false,
		"-\n  a\n":    false,
		"- - a\n":     false,
		"- a\tb\n":    false,
		"- \u00e9\n":  false,
		"- !!str a\n": false,
		"- *a\n":      false,
		"- |\n  a\n":  false,
		"a: b\n":      false,
		"":            false,
		"# a\n":       false,
		"- " + strings.Repeat("[", 40) + strings.Repeat("]", 40): false,
		"- " + strings.Repeat("a", 100) + ": b":                  false,
		"- {" + strings.Repeat("a", 100) + ": b}":                false,
	} {
		if got := comparePlain(t, text); got != plain {
			t.Errorf("read: %t, want %t\n%s", got, plain, text)
		}
	}
}

// The lists of every configuration, and what may become of them: lines and letters changed at random.
func TestReadPlainMutated(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := "-: {}[],#'\"\\\n\n  ab5%./&*!|>?~"
	read := 0
	for _, text := range lists(t) {
		comparePlain(t, text)
		for range 300 {
			b := []byte(text)
			if len(b) > 400 {
				at := random.IntN(len(b) - 400)
				b = b[at : at+400]
				if line := strings.IndexByte(string(b), '\n'); line >= 0 {
					b = b[line+1:]
				}
			}
			for range random.IntN(3) {
				if len(b) == 0 {
					break
				}
				at := random.IntN(len(b))
				switch random.IntN(3) {
				case 0:
					b[at] = letters[random.IntN(len(letters))]
				case 1:
					b = append(b[:at], b[at+1:]...)
				default:
					b = append(b[:at], append([]byte{letters[random.IntN(len(letters))]}, b[at:]...)...)
				}
			}
			if comparePlain(t, string(b)) {
				read++
			}
		}
	}
	if read < 500 {
		t.Errorf("only %d were read", read)
	}
}

// Lists put together at random of what YAML has rules for.
func TestReadPlainNasty(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(of []string) string { return of[random.IntN(len(of))] }
	keys := []string{"a", "b", "name", "null", "true", "y", "no", "_", "a_b", "on", "inf", "x y", "A", "1", "\"a\"", "'b'", "~", "<<", "a.b", "? a", "[a]", "-a"}
	values := []string{
		"a", "yes", "no", "on", "~", "null", "NULL", "nULL", "True", "0x1f", "0X1F", "0o17", "0b11", "017", "08", "1_000", "_1", "1__0", ".inf", "-.inf", "+.inf", ".NaN", ".nan", "nan",
		"1e3", "1e", "1.e3", "1.", ".1", ".", "..", "...", "---", "-", "--", "- a", "-1", "-a", "-.5", "-.", "-/", "-_", "-0x1", "+1", "1:30", "1:30:00", "190:20:30.15", "2001-12-14", "2001-1-1", "2001-12-14 21:59:43", "2001-12-14T21:59:43.10-05:00", "2001-12-14t21:59:43Z",
		"12e03", "1e400", "99999999999999999999", "-9223372036854775808", "18446744073709551615", "0x_1", "0b2", "0o8", "1-2.3", "1-2-3", "a-b", "a:b", "a::b", "::1", "2001:db8::1", "fe80::", "a:", ":a", "a :b", "a: b", "a:  b", "a #b", "a# b", "a#b", "# b", "#b",
		"%a", "a%", "50%", "@a", "`a", "&a b", "*a", "!a b", "|", ">", ">-", "|2", "? a", "?a", "a ?", "a, b", ",a", "a,b", "[]", "{}", "[a]", "[a, b]", "[a,b]", "[a , b ]", "[ a ]", "[a,]", "[,]", "[a b, c]", "[a: b]", "[a:b]", "[a::b]", "[::]", "[-1, -a]", "[- a]", "[-]", "[a -b]", "[a - b]", "[\"a\", 'b']", "[\"a\":b]",
		"{a: b}", "{a: b, c: d}", "{a: b,c: d}", "{a:b}", "{a: }", "{a}", "{a: b:c}", "{a: b: c}", "{null: a}", "{true: 1}", "{\"a\": b}", "{a: [b, {c: d}]}", "{a: {}}", "{a: []} ", "[[]]", "[{}]", "[a]]", "{a: b}}", "[a] b", "[a] #b", "[a]#b", "[#a]", "[a #b]", "[a\n  , b]",
		"\"\"", "''", "\"a\"", "'a'", "'a''b'", "''''", "\"a\\\"b\"", "\"a\\n\"", "'a\\n'", "\"a: #b\"", "'{a'", "\"a", "'a", "\"a\" b", "'a' #b", "'a'#b", "\"a\"b", "\"'\"", "'\"'", "\"a\n  b\"", "\" a \"", "' '", "a  b", "a ", " a", "a 'b'", "a \"b\"", "a'b", "a\"b", "a'", "a\\", "a [b]", "a{b}", "/a/b.c", "http://a:1/b", "a!b", "a&b", "a|b", "a>b", "a=b", "=", "a*", "<<", "a~", "a@b", "a;b", "a$b", "(a)", "a^", "a+b", "a?", "true", "tRUE", "false ", "t", "TRUE:",
	}
	blanks := []string{"", "", "", "", " ", "  ", "    "}
	read := 0
	for range 60_000 {
		var b strings.Builder
		for range 1 + random.IntN(5) {
			b.WriteString(pick([]string{"", "", "", "  ", "  ", "  ", "    ", " ", "   "}))
			switch random.IntN(14) {
			case 0, 1, 2, 3:
				b.WriteString("- " + pick(keys[:9]) + ": " + pick(blanks[3:5]) + pick(values))
			case 4, 5:
				b.WriteString("- " + pick(blanks) + pick(values))
			case 6, 7, 8:
				b.WriteString(pick(keys[:9]) + ": " + pick(values))
			case 9:
				b.WriteString("- " + pick(blanks) + pick(keys) + ":" + pick([]string{"", " ", "  "}) + pick(values))
			case 10:
				b.WriteString(pick([]string{"- ", ""}) + pick(keys) + ":" + pick(blanks))
			case 11:
				b.WriteString(pick([]string{"#", "# a", "# - a: b", "", " #", "---", "...", "--- a", "%YAML 1.2", "- --- a", "-", "- ", "-\t", "\t", "\ta: b", "- a\t# b", "- a\r", "\ufeff- a", "- \u0085", "- \u00a0a", "- a\x00", "- \x7f"}))
			case 12:
				b.WriteString(pick(values))
			default:
				b.WriteString("- - " + pick(values))
			}
			b.WriteString(pick([]string{"\n", "\n", "\n", "\n", "\n\n", " \n", ""}))
		}
		if comparePlain(t, b.String()) {
			read++
		}
	}
	if read < 2000 {
		t.Errorf("only %d were read", read)
	}
}

// lists returns the block lists of all configurations at hand.
func lists(t testing.TB) []string {
	var out []string
	for _, pattern := range []string{"../testdata/config/good/*.yaml", "../testdata/config/bad/*.yaml", "../*.example.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, cuts := cut(data, 1)
			for _, l := range cuts {
				for _, p := range l.pieces {
					out = append(out, string(p.text))
				}
			}
		}
	}
	return out
}

func FuzzReadPlain(f *testing.F) {
	for _, text := range lists(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { comparePlain(t, text) })
}
