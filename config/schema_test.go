package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestTagNames finds tags that nothing reads.
func TestTagNames(t *testing.T) {
	allowed := []string{"mapstructure", "key", "unit"} // a unit is for docs/reference.md
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if !isSection(typ) {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			known, rest := newTags(f.Tag), string(f.Tag)
			for rest != "" {
				name, after, _ := strings.Cut(rest, `:"`)
				if _, ok := known.Lookup(name); !ok && !slices.Contains(allowed, name) {
					t.Errorf("%s.%s: unknown tag %s", typ, f.Name, name)
				}
				_, rest, _ = strings.Cut(after, `"`)
				rest = strings.TrimPrefix(rest, " ")
			}
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[Config]())
	visit(reflect.TypeFor[Agent]())
}

// TestTags holds every field's tags against each other: what they say must be readable in the field's own spelling.
func TestTags(t *testing.T) {
	for _, root := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[Agent](), reflect.TypeFor[Scenario]()} {
		for _, s := range newDecoder("", root).known {
			path := strings.Join(s.path, ".")
			f := s.field
			if f.typ.Kind() == reflect.Pointer || isSection(f.typ) {
				continue
			}
			inList := f.typ.Kind() == reflect.Slice
			if inList {
				if f.tag.Get("size") == "" && f.tag.Get("enum") == "" && f.tag.Get("later") == "" {
					t.Errorf("%s: a list needs a size", path)
				}
				f = f.element()
				if isSection(f.typ) {
					continue
				}
			}
			if as := f.tag.Get("as"); as != "" && forms[as] == nil && as != "percent" && as != "bandwidth" && as != "seconds" {
				t.Errorf("%s: unknown form %s", path, as)
			}
			for _, kind := range append([]string{""}, f.kinds...) {
				text, ok := f.defaultText(kind)
				if !ok {
					continue
				}
				for _, e := range strings.Split(text, ",") {
					if v, err := parse(e, f, inList); err != nil || reflect.TypeOf(v) != f.typ {
						t.Errorf("%s: default %s: %v, %v", path, e, v, err)
					}
				}
			}
			for _, bound := range []string{"min", "max"} {
				if text := f.tag.Get(bound); text != "" {
					if _, err := parse(text, f, inList); err != nil {
						t.Errorf("%s: %s %s: %v", path, bound, text, err)
					}
				}
			}
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"seol", "seoul", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}, {"ab", "ba", 2}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	if got := nearest("x", []string{"seoul", "virginia"}); got != "" {
		t.Errorf("x is near %s", got)
	}
}

// FuzzLoad finds no input that makes Load panic or give a configuration together with an error; what it accepts has
// its references.
func FuzzLoad(f *testing.F) {
	seed(f, "good", "bad")
	path := filepath.Join("..", "testdata", "config", "good", "fuzz.yaml")
	f.Fuzz(func(t *testing.T, data []byte, env string) {
		compareCut(t, "f.yaml", data)
		c, _, err := load(path, data, []string{"GSLBD_" + env})
		if (c == nil) == (err == nil) {
			t.Fatalf("both or neither of %v and %v", c, err)
		}
		if c == nil {
			return
		}
		for _, s := range c.Services {
			if s.Zone == "" || c.Policy(s.Policy) == nil || len(s.Members) == 0 || s.Answers < 1 || s.Answers > 10 || s.TTL > 86400 {
				t.Errorf("service %+v", s)
			}
			for _, m := range s.Members {
				if c.Site(m.Site) == nil || m.Name == "" || len(m.Addresses) == 0 && m.CNAME == "" {
					t.Errorf("member %+v", m)
				}
			}
		}
		if c.Reports.Interval <= 0 || c.Reports.StaleAfter <= c.Reports.Interval || c.Reports.DeadAfter <= c.Reports.StaleAfter {
			t.Errorf("reports %+v", c.Reports)
		}
	})
}

// FuzzLoadAgent is FuzzLoad for the agent's file.
func FuzzLoadAgent(f *testing.F) {
	seed(f, "agent-good", "agent-bad")
	path := filepath.Join("..", "testdata", "config", "agent-good", "fuzz.yaml")
	f.Fuzz(func(t *testing.T, data []byte, env string) {
		a, _, err := loadAgent(path, data, []string{"GSLB_AGENT_" + env})
		if (a == nil) == (err == nil) {
			t.Fatalf("both or neither of %v and %v", a, err)
		}
		if a != nil && (a.Site == "" || a.Agent == "" || len(a.Servers) == 0 || !slices.ContainsFunc(slices.Collect(maps.Values(a.reported())), func(entries int) bool { return entries > 0 })) {
			t.Errorf("agent %+v", a)
		}
	})
}

// FuzzLoadScenario is FuzzLoad for scenarios.
func FuzzLoadScenario(f *testing.F) {
	seed(f, "scenario-bad", "scenario-good")
	c := &Config{Sites: []Site{{Name: "seoul", Capacity: Capacity{Sessions: 10}}, {Name: "virginia"}}}
	f.Fuzz(func(t *testing.T, data []byte, _ string) {
		s, err := loadScenario("f.yaml", data, c)
		if (s == nil) == (err == nil) {
			t.Fatalf("both or neither of %v and %v", s, err)
		}
		if s == nil {
			return
		}
		for _, e := range append([]Event{{Sites: s.Start}}, s.Events...) {
			for _, change := range e.Sites {
				if c.Site(change.Name) == nil || change.Share <= 0 || e.At > s.Duration || s.Traffic != nil && change.Utilisation > 0 {
					t.Errorf("%s: %+v", e.At, change)
				}
			}
		}
	})
}

func seed(f *testing.F, dirs ...string) {
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join("..", "testdata", "config", dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			f.Fatalf("no files in %s: %v", dir, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if len(data) < 8<<10 {
				f.Add(data, "LOG__LEVEL=debug")
			}
		}
	}
}
