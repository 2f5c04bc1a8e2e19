package config

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// maxFile is the largest configuration file in bytes: room for 100,000 services and as many overrides.
const maxFile = 128 << 20

// keyDelimiter joins nested keys for viper. It cannot occur in a key, while viper's own "." occurs in domain names.
const keyDelimiter = "\x00"

// Load reads the configuration of gslbd at path, with the GSLBD_ variables of the environment over it. The error is an
// Errors when the content is at fault. Warnings say what is allowed but hardly meant; they come with an error too.
func Load(path string) (*Config, []string, error) {
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	return load(path, data, os.Environ())
}

// LoadAgent reads the configuration of gslb-agent at path, with the GSLB_AGENT_ variables of the environment over it.
// Its results are like those of Load.
func LoadAgent(path string) (*Agent, []string, error) {
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	return loadAgent(path, data, os.Environ())
}

// Files returns the zones and the geo databases that the configuration at path names, as far as they can be read, for a
// configuration that Load refuses: whoever mends it wants to hear what is wrong with those as well. It reads the file
// again, and so only a regular one.
func Files(path string) (zones []Zone, databases []string) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	data, err := read(path)
	if err != nil {
		return nil, nil
	}
	c, _ := decodeConfig(path, data, os.Environ(), leastCut)
	return c.Zones, c.Geo.Databases
}

func load(path string, data []byte, environ []string) (*Config, []string, error) {
	c, d := decodeConfig(path, data, environ, leastCut)
	if err := d.err(); err != nil {
		return nil, d.warnings, err
	}
	return c, d.warnings, nil
}

// decodeConfig returns what could be read of the configuration, and the decoder that has its faults. Lists of at least so
// many bytes are read in pieces, as far as that goes; 0: none is.
func decodeConfig(path string, data []byte, environ []string, least int) (*Config, *decoder) {
	var c Config
	d := newDecoder(path, reflect.TypeFor[Config]())
	d.least = least
	ok := d.decode(data, environ, "GSLBD_", &c)
	if d.torn {
		return decodeConfig(path, data, environ, 0)
	}
	if ok {
		(&checker{decoder: d, c: &c}).check()
	}
	return &c, d
}

func loadAgent(path string, data []byte, environ []string) (*Agent, []string, error) {
	var a Agent
	d := newDecoder(path, reflect.TypeFor[Agent]())
	if d.decode(data, environ, "GSLB_AGENT_", &a) {
		d.checkAgent(&a)
	}
	if err := d.err(); err != nil {
		return nil, d.warnings, err
	}
	return &a, d.warnings, nil
}

// read reads the file at path, if it is not too large.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("config: %w", err)
	case len(data) > maxFile:
		return nil, Errors{{File: path, Msg: fmt.Sprintf("has more than %d MiB, and cannot be meant", maxFile>>20)}}
	}
	return data, nil
}

func (d *decoder) err() error {
	if len(d.errs) == 0 {
		return nil
	}
	d.errs.sort()
	return d.errs
}

// decode checks data and the environment and decodes both into out. It returns false when there is nothing to check
// further; faults of single values leave those at zero and the rest usable.
func (d *decoder) decode(data []byte, environ []string, prefix string, out any) bool {
	root := d.document(data)
	if root == nil {
		return false
	}
	overlay := d.environment(environ, prefix)
	tree, ok := d.section(root, reflect.TypeOf(out).Elem(), "").(map[string]any)
	d.torn = d.torn || len(d.cuts) > 0 // a list stands where none is read, and may be no YAML
	if !ok || d.torn || d.expanded > maxExpanded || d.full() {
		return false
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(keyDelimiter))
	if err := v.MergeConfigMap(tree); err != nil {
		d.fail("", "cannot be decoded: %s", err)
		return false
	}
	for path, o := range overlay {
		d.origin[path] = o.origin // and no longer the file
		v.Set(strings.ReplaceAll(path, ".", keyDelimiter), o.value)
	}
	// The tree holds every value in its field's own type; whatever viper or mapstructure would still convert is a fault.
	err := v.UnmarshalExact(out, func(c *mapstructure.DecoderConfig) {
		c.WeaklyTypedInput = false
		c.DecodeHook = nil
	})
	if err != nil {
		d.fail("", "cannot be decoded: %s", err)
		return false
	}
	return true
}

// document parses data, which must be one YAML document with something in it.
func (d *decoder) document(data []byte) *yaml.Node {
	const empty = "is empty; config.example.yaml shows what belongs into it"
	var lists []*cutList
	if d.least > 0 {
		data, lists = cut(data, d.least)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case err != nil && lists != nil:
		d.torn = true
		return nil
	case errors.Is(err, io.EOF):
		d.fail("", empty)
		return nil
	case err != nil:
		d.fail("", "is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		d.failAt(origin{line: second.Line}, "", "has a second document, which would be ignored: join both, or remove the line \"---\" between them")
	case errors.Is(err, io.EOF):
	case lists != nil:
		d.torn = true
		return nil
	default:
		d.fail("", "is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	root := doc.Content[0]
	if lists != nil && !d.attach(root, lists) {
		d.torn = true
		return nil
	}
	if root.ShortTag() == "!!null" {
		d.fail("", empty)
		return nil
	}
	return root
}

// An envValue is a value of the environment.
type envValue struct {
	origin origin
	value  any
}

// environment returns the values of the variables that begin with prefix, by the path of the setting that each names.
func (d *decoder) environment(environ []string, prefix string) map[string]envValue {
	out := map[string]envValue{}
	byName := map[string]setting{}
	var names []string
	for _, s := range d.known {
		name := prefix + strings.ToUpper(strings.Join(s.path, "__"))
		byName[name] = s
		if !s.list && !isSection(s.typ) {
			names = append(names, name)
		}
	}
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		s, ok := byName[name]
		at := origin{variable: name}
		path := strings.Join(s.path, ".")
		switch {
		case d.inList(name, prefix):
			d.failAt(at, "", "stands for a list or an entry of one, and the environment sets single values only: write it in the file")
		case !ok:
			d.warnings = append(d.warnings, fmt.Sprintf("environment %s: matches no setting and has no effect%s", name, suggest(name, names)))
		case isSection(s.typ):
			d.failAt(at, "", "stands for a section, and the environment sets single values only: add __ and a key")
		default:
			// A fault of the value that it replaces in the file is reported all the same.
			d.origin[path] = at
			value, err := parse(text, s.field, false)
			if err != nil {
				d.fail(path, "%s", err)
				continue
			}
			d.refuseLater(value, s.field, path)
			out[path] = envValue{at, value}
		}
	}
	return out
}

// inList reports whether the variable name stands for a list, or for something below one.
func (d *decoder) inList(name, prefix string) bool {
	for _, s := range d.known {
		if s.list {
			list := prefix + strings.ToUpper(strings.Join(s.path, "__"))
			if name == list || strings.HasPrefix(name, list+"__") {
				return true
			}
		}
	}
	return false
}

// resolve returns p relative to the directory of the file.
func (d *decoder) resolve(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(d.file), p)
}

// tokens reads a file of tokens, if one is named.
func (d *decoder) tokens(file, path string) []Secret {
	if file == "" {
		return nil
	}
	tokens, err := ReadTokens(file)
	if err != nil {
		d.fail(path, "%s", err)
	}
	return tokens
}

// mostCookieSecrets is how many secrets of cookies may be in force: the present one, and its neighbours in a rollover.
const mostCookieSecrets = 3

// cookieSecrets reads a secret file of 32 hexadecimal digits a line. Errors do not show what they complain of.
func (d *decoder) cookieSecrets(file, path string) []Secret {
	if file == "" {
		return nil
	}
	data, err := ReadSecret(file, mostSecret)
	if err != nil {
		d.fail(path, "%s", err)
		return nil
	}
	var secrets []Secret
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		key, err := hex.DecodeString(strings.TrimSpace(line))
		secret := Secret(key)
		switch {
		case len(secrets) == mostCookieSecrets:
			d.fail(path, "%s has more than %d lines: the secret in force, and at most two others that are still accepted", file, mostCookieSecrets)
			return nil
		case err != nil || len(key) != 16:
			d.fail(path, "%s line %d is not a secret of 32 hexadecimal digits: `openssl rand -hex 16` makes one", file, i+1)
			return nil
		case slices.Contains(secrets, secret):
			d.fail(path, "%s line %d repeats the secret of line %d", file, i+1, slices.Index(secrets, secret)+1)
			return nil
		}
		secrets = append(secrets, secret)
	}
	return secrets
}

// certificate checks the two files of a certificate in the section at path, which have to stand together; needs is the
// setting that has none without them, if any.
func (d *decoder) certificate(certificate, key *string, path, needs string) {
	files := []struct{ file, key, what string }{{*certificate, path + ".certificate", "certificate"}, {*key, path + ".key", "private key of the certificate"}}
	for i, f := range files {
		other := files[1-i]
		switch {
		case f.file != "" || d.failed[f.key]:
		case needs != "":
			d.fail(f.key, "is missing, and %s needs it: name the file of the %s", needs, f.what)
		case other.file != "":
			d.fail(f.key, "is missing, and %s is of no use without it: name the file of the %s, or remove both", other.key, f.what)
		}
	}
	*certificate, *key = d.resolve(*certificate), d.resolve(*key)
	d.checkFile(*certificate, path+".certificate")
	if *key != "" {
		// Only whether it can be used is of interest: its content is not ours to judge.
		if _, err := ReadSecret(*key, MostPEM); err != nil {
			d.fail(path+".key", "%s", err)
		}
	}
}

// checkFile refuses a path where there is no file to read.
func (d *decoder) checkFile(file, path string) {
	if file == "" {
		return
	}
	switch info, err := os.Stat(file); {
	case err != nil:
		d.fail(path, "%s", err)
	case info.IsDir():
		d.fail(path, "%s is a directory, and must be a file", file)
	}
}
