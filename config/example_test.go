package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
)

// switchedOff matches a setting that an example file has as a comment: "#" directly before a word, a list entry, or
// what stands below one.
var switchedOff = regexp.MustCompile(`(?m)^( *)#((?: {2,})?(- |[a-z_]+:|\{))`)

// readExample reads an example file, with what is switched off switched on, into a directory that has the files it names.
func readExample(t *testing.T, name string) (path string, asIs, whole []byte) {
	t.Helper()
	asIs, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range []string{"testdata/geo/cities.mmdb", "testdata/zones/gslb.example.com.zone"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"snmp-community", "snmp-authentication", "snmp-privacy"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("correct horse\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole = switchedOff.ReplaceAll(asIs, []byte("$1$2"))
	// An example entry below an empty list takes its place.
	whole = regexp.MustCompile(`(?m): \[\]\n( *- )`).ReplaceAll(whole, []byte(":\n$1"))
	return filepath.Join(dir, name), asIs, whole
}

// namesEveryKey fails for each key of the structs that the text does not set. Keys of one kind of metric or check only
// need to be spelled somewhere, since no entry can have them all.
func namesEveryKey(t *testing.T, root reflect.Type, text []byte) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		for i, c := range n.Content {
			switch n.Kind {
			case yaml.MappingNode:
				if i%2 == 0 {
					p := join(path, c.Value)
					written[p] = true
					walk(n.Content[i+1], p)
				}
			default:
				walk(c, path)
			}
		}
	}
	walk(&doc, "")
	for _, s := range newDecoder("", root).known {
		path := strings.Join(s.path, ".")
		spelled := regexp.MustCompile(`\b` + s.key + `\b`).Match(text)
		// A member has addresses or cname; health checks are explained by the comment above theirs.
		loose := s.tag.Get("for") != "" || strings.HasPrefix(path, "services.members.")
		if !written[path] && !(loose && spelled) {
			t.Errorf("%s is not in the file", path)
		}
	}
}

func TestExampleFile(t *testing.T) {
	path, asIs, whole := readExample(t, "config.example.yaml")
	got, warnings, err := load(path, asIs, nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("config.example.yaml: %q, %v", warnings, err)
	}
	namesEveryKey(t, reflect.TypeFor[Config](), whole)

	// The values are the defaults, but for those that config.example.yaml calls examples.
	text := `
zones: [{name: gslb.example.com, file: testdata/zones/gslb.example.com.zone}]
sites: [{name: seoul}]
services: [{name: www.gslb.example.com, members: [{name: seoul, site: seoul, addresses: [1.1.1.1]}]}]
`
	want, _, err := load(path, []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	compare := func(got *Config) {
		t.Helper()
		want.Sites = got.Sites
		if len(got.Policies) != len(want.Policies) {
			t.Errorf("%d policies", len(got.Policies))
		}
		// The default of state.directory is the folder of a package in the sources, where the example lies.
		examples := cmp.Options{cmpopts.IgnoreFields(State{}, "Directory"), cmpopts.IgnoreTypes(Geo{}, []ZoneAlias{}, []Member{}, &HealthCheck{}, []Test{})}
		a, b := *want, *got
		normalise(reflect.ValueOf(&a).Elem())
		normalise(reflect.ValueOf(&b).Elem())
		if diff := cmp.Diff(a, b, examples); diff != "" {
			t.Errorf("not the defaults (-want +got):\n%s", diff)
		}
	}
	compare(got)
	if c := got.Sites[0].Capacity; c.Resume != 0.9 || c.Hold != want.Sites[0].Capacity.Hold || c.ShedFrom != 0 || c.Sessions != 900000 || c.Bandwidth != 900e6 {
		t.Errorf("capacity is %+v", c)
	}
	if diff := cmp.Diff(shipped()[0], got.Policies[0]); diff != "" {
		t.Errorf("the policy default is not the shipped one (-want +got):\n%s", diff)
	}
	if got.Services[0].HealthCheck != nil || got.Services[0].Members[0].Weight != got.Services[0].Members[1].Weight {
		t.Errorf("service is %+v", got.Services[0])
	}

	all, _, err := load(path, whole, nil)
	if err != nil {
		t.Fatalf("with everything switched on: %v", err)
	}
	compare(all)
	if all.Services[0].HealthCheck == nil || len(all.ZoneAliases) != 1 || len(all.Geo.Overrides) != 3 {
		t.Error("what is switched off was not found")
	}
}

// normalise makes empty slices nil, which mean the same.
func normalise(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				normalise(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.SetZero()
			return
		}
		fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(fresh, v)
		v.Set(fresh)
		for i := range v.Len() {
			normalise(v.Index(i))
		}
	}
}

func TestAgentExampleFile(t *testing.T) {
	path, asIs, whole := readExample(t, "agent.example.yaml")
	got, warnings, err := loadAgent(path, asIs, nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("agent.example.yaml: %q, %v", warnings, err)
	}
	namesEveryKey(t, reflect.TypeFor[Agent](), whole)
	if _, _, err := loadAgent(path, whole, nil); err != nil {
		t.Errorf("with everything switched on: %v", err)
	}
	text := `
site: seoul
agent: lb1
servers: ["http://127.0.0.1:8054"]
virtual_servers:
  - {name: www, address: 1.1.1.1, port: 80, servers: [{name: server1, address: "127.0.0.1:8081"}, {name: server2, address: "127.0.0.1:8082"}], check: {type: http}}
`
	want, _, err := loadAgent(path, []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("not the defaults:\n%+v\nwant\n%+v", got, want)
	}
}
