package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write docs/reference.md anew")

const referenceIntro = `# Configuration reference

Every key of both files. This page is generated (` + "`make golden`" + `): values, ranges and defaults are what the program checks, the texts are
the comments of ` + "`config.example.yaml` and `agent.example.yaml`" + `, which run as they are. Where one line there holds several keys,
the comments in the code speak for each.

- ` + "`sites[].name`" + ` is the key ` + "`name`" + ` of each entry of the list ` + "`sites`" + `. An empty default: nothing is set.
- A *time* needs a unit: ms, s, m or h. A *percentage* needs its %. A *bit rate* needs bps, kbps, Mbps, Gbps or Tbps. Relative paths
  are relative to the file.
- Single values outside of lists can be set by the environment, two underscores for each level down: ` + "`GSLBD_DNS__MAX_UDP_PAYLOAD=1400`" + `,
  and ` + "`GSLB_AGENT_RTT__RATE=50`" + ` for the agent.
- Unknown keys, keys that are written twice and values out of range are errors: ` + "`gslbd check`" + ` names all of them, with their lines.
- "Of rtt" and the like: the key belongs to this metric, or this type of check, only.
`

// TestReference fails when docs/reference.md is not what the schema and the comments of the example files say.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(referenceIntro)
	docs := fieldDocs(t)
	for _, f := range []struct {
		file, title string
		root        reflect.Type
	}{
		{"config.example.yaml", "gslbd", reflect.TypeFor[Config]()},
		{"agent.example.yaml", "gslb-agent", reflect.TypeFor[Agent]()},
	} {
		_, _, whole := readExample(t, f.file)
		r := reference{t: t, b: &b, d: newDecoder("", f.root), comments: comments(t, whole), docs: docs}
		fmt.Fprintf(&b, "\n# %s\n", f.title)
		r.root(f.root)
	}
	const page = "../docs/reference.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), b.String()); diff != "" {
		t.Errorf("docs/reference.md is stale: run `make golden` (-page +now):\n%s", diff)
	}
}

// A reference writes the tables of one file.
type reference struct {
	t        *testing.T
	b        *strings.Builder
	d        *decoder
	comments map[string]string            // by path
	docs     map[string]map[string]string // by struct and field
}

func (r *reference) root(t reflect.Type) {
	const head = "\n| key | value | default | |\n|---|---|---|---|\n"
	var single []field
	for _, f := range r.d.fieldsOf(t) {
		if !isSection(element(f.typ)) {
			single = append(single, f)
		}
	}
	if len(single) > 0 {
		r.b.WriteString(head)
		for _, f := range single {
			r.row(t, f, f.key)
		}
	}
	for _, f := range r.d.fieldsOf(t) {
		elem := element(f.typ)
		if !isSection(elem) {
			continue
		}
		fmt.Fprintf(r.b, "\n## %s\n", f.key)
		path := f.key
		if text := r.comments[path]; text != "" {
			fmt.Fprintf(r.b, "\n%s\n", text)
		}
		if f.typ.Kind() == reflect.Slice {
			fmt.Fprintf(r.b, "\nA list of at most %s.\n", f.tag.Get("size"))
			path += "[]"
		}
		r.b.WriteString(head)
		r.rows(elem, path)
	}
}

func (r *reference) rows(t reflect.Type, path string) {
	for _, f := range r.d.fieldsOf(t) {
		r.row(t, f, path+"."+f.key)
	}
}

func (r *reference) row(t reflect.Type, f field, path string) {
	elem := element(f.typ)
	value, def := r.value(t, f, path), defaultWords(f)
	text := r.text(t, f, path)
	// A sentence that only repeats the range.
	text = strings.ReplaceAll(text, ". "+f.tag.Get("min")+" to "+f.tag.Get("max")+".", ".")
	if f.kinds != nil {
		text = "Of " + strings.Join(f.kinds, ", ") + ". " + text
	}
	if text != "" {
		fmt.Fprintf(r.b, "| `%s` | %s | %s | %s |\n", path, value, def, strings.ReplaceAll(text, "|", `\|`))
	}
	switch {
	case isSection(elem) && f.typ.Kind() == reflect.Slice:
		r.rows(elem, path+"[]")
	case isSection(elem):
		r.rows(elem, path)
	case text == "":
		r.t.Errorf("%s has no comment, neither in the example file nor in the code", path)
	}
}

// text is the comment on the key in the example; where it has none there, because it stands in a line with others, the
// first sentence of its comment in the code. What the example says of one kind of entry is not said of all.
func (r *reference) text(t reflect.Type, f field, path string) string {
	elem := element(f.typ)
	kinds := isSection(elem) && f.typ.Kind() == reflect.Slice && slices.ContainsFunc(r.d.fieldsOf(elem), func(f field) bool { return f.kinds != nil })
	if text := r.comments[path]; text != "" && !kinds {
		return text
	}
	owner := t
	for _, i := range f.index[:len(f.index)-1] {
		owner = owner.Field(i).Type
	}
	name := t.FieldByIndex(f.index).Name
	text := r.docs[owner.Name()][name]
	for _, other := range r.docs[owner.Name()] { // "Latitude and Longitude are ..." speaks of both
		if text == "" && regexp.MustCompile(`^\w+ and `+name+`\b`).MatchString(other) {
			text = other
		}
	}
	if text == "" && !isSection(elem) {
		return r.comments[path[:strings.LastIndexByte(path, '.')]]
	} else if text == "" {
		return ""
	}
	text, _, _ = strings.Cut(strings.TrimSuffix(text, "."), ". ")
	for _, sibling := range r.d.fieldsOf(t) {
		word := `\b` + t.FieldByIndex(sibling.index).Name + `\b`
		if sibling.name == f.name {
			word = "(^|^`[a-z]+` and )" + word // elsewhere it may be a word like any other
		} else {
			word = "()" + word
		}
		text = regexp.MustCompile(word).ReplaceAllString(text, "${1}`"+sibling.key+"`")
	}
	return text + "."
}

// forms in words; a form that is not here fails the test.
var formWords = map[string]string{
	"name": "name", "label": "name", "domain": "domain name", "owner": "domain name", "listen": "IP:port, or :port",
	"path": "file", "shorttext": "text of at most 128 bytes", "payload": "text of at most 1024 bytes",
	"country": "two capital letters", "regexp": "regular expression (RE2)", "urlpath": "path of a URL", "host": "host, or host:port",
	"url": "URL", "endpoint": "URL", "prefix": "path of keys", "argument": "text", "socket": "path, or host:port",
	"interface": "interface", "alpn": "ALPN identifier", "source": "URL", "series": "series", "oid": "OID in digits", "percent": "percentage", "bandwidth": "bit rate", "seconds": "seconds",
}

// value says what may stand at f: its type and unit, and its range.
func (r *reference) value(t reflect.Type, f field, path string) string {
	elem := element(f.typ)
	sf := t.FieldByIndex(f.index)
	var what string
	as := f.tag.Get("as")
	switch {
	case isSection(elem):
		what = "keys"
	case f.tag.Get("enum") != "":
		what = "`" + strings.Join(f.words("enum"), "`, `") + "`"
	case as != "":
		if what = formWords[as]; what == "" {
			r.t.Errorf("%s: no words for the form %s", path, as)
		}
	case elem == addrType:
		what = "IP address"
	case elem == prefixType:
		what = "prefix, such as 192.0.2.0/24"
	case elem == addrPortType:
		what = "IP:port"
	case elem == thresholdType:
		what = "number from 1, or percentage from 1% to 100%"
	case elem == durationType:
		what = "time"
	case elem.Kind() == reflect.Bool:
		what = "`true`, `false`"
	case elem.Kind() == reflect.String:
		what = "text"
	case isInt(elem) || elem.Kind() == reflect.Float64:
		what = "number"
		if unit := sf.Tag.Get("unit"); unit != "" {
			what = unit
		}
	default:
		r.t.Errorf("%s: no words for %s", path, elem)
	}
	switch lo, hi := f.tag.Get("min"), f.tag.Get("max"); {
	case lo != "" && hi != "":
		what += ", " + lo + " to " + hi
	case lo != "":
		what += ", from " + lo
	}
	if f.tag.Get("off") != "" {
		what += ", or `off`"
	}
	if f.typ.Kind() == reflect.Slice {
		if size := f.tag.Get("size"); size != "" {
			return "list of at most " + size + ": " + what
		}
		return "list of " + what
	}
	return what
}

// defaultWords says what holds where f is not written.
func defaultWords(f field) string {
	if f.tag.Get("required") != "" {
		return "required"
	}
	text, ok := f.defaultText("")
	switch {
	case f.typ.Kind() == reflect.Slice && !ok && !isSection(element(f.typ)):
		return "`[]`"
	case f.typ.Kind() == reflect.Slice && ok:
		text = "[" + strings.ReplaceAll(text, ",", ", ") + "]"
	case f.typ.Kind() == reflect.Bool && !ok:
		text = "false"
	case !ok:
		return ""
	}
	words := "`" + text + "`"
	for _, kind := range f.kinds {
		if special, _ := f.defaultText(kind); f.typ.Kind() != reflect.Slice && special != text {
			words += "; " + kind + ": `" + special + "`"
		}
	}
	return words
}

func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// comments returns those of an example file, by the path of the key that they stand above. One above an entry of a list that
// is written in one line is the list's.
func comments(t *testing.T, text []byte) map[string]string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	marks := regexp.MustCompile(`(?m)^[# ]+`)
	add := func(path, comment string) {
		paragraphs := strings.Split(comment, "\n\n")
		comment = strings.ReplaceAll(marks.ReplaceAllString(paragraphs[len(paragraphs)-1], ""), "\n", " ")
		if comment != "" && !strings.Contains(out[path], comment) {
			out[path] = strings.TrimSpace(out[path] + " " + comment)
		}
	}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i < len(n.Content); i += 2 {
				at := join(path, n.Content[i].Value)
				add(at, n.Content[i].HeadComment)
				walk(n.Content[i+1], at)
			}
		case yaml.SequenceNode:
			for _, e := range n.Content {
				switch {
				case e.Style&yaml.FlowStyle != 0:
					add(path, e.HeadComment)
				case e.Kind == yaml.MappingNode:
					add(join(path+"[]", e.Content[0].Value), e.HeadComment)
				}
				walk(e, path+"[]")
			}
		}
	}
	walk(doc.Content[0], "")
	return out
}

// fieldDocs returns the comments on the fields of every struct of this package.
func fieldDocs(t *testing.T) map[string]map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				out[spec.Name.Name] = map[string]string{}
				for _, field := range s.Fields.List {
					for _, id := range field.Names {
						out[spec.Name.Name][id.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return out
}
