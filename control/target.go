package control

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"gslbd/state"
)

// validate reports what is wrong with the target by itself.
func (t Target) validate() error {
	what, pattern := t.only()
	if what == "" {
		return errors.New("target: exactly one of service, member, site and zone must be given")
	}
	if len(pattern) > 2*maxText || !printable(pattern) {
		return fmt.Errorf("target: %s %s must be printable text of at most %d bytes", what, quote(pattern), 2*maxText)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf(`target: %s %s is not a pattern that can be read: close each "[", or write "\[" for the character itself`, what, quote(pattern))
	}
	return nil
}

// only returns the field that is set, and its pattern; "" unless it is exactly one.
func (t Target) only() (what, pattern string) {
	n := 0
	for _, f := range [...][2]string{{"service", t.Service}, {"member", t.Member}, {"site", t.Site}, {"zone", t.Zone}} {
		if f[1] != "" {
			what, pattern = f[0], f[1]
			n++
		}
	}
	if n != 1 {
		return "", ""
	}
	return what, pattern
}

// String returns the target as logs and people read it.
func (t Target) String() string {
	what, pattern := t.only()
	return what + " " + pattern
}

// names are all the names that things go by, as they are configured now.
type names struct {
	aliases map[string][]string // of services, by name
	zoneIDs map[string]string   // the id of a zone's other name
	zones   map[string][]string // the other names of a zone, by id
}

func newNames(cfg Config, snap *state.Snapshot) *names {
	n := &names{aliases: map[string][]string{}, zoneIDs: map[string]string{}, zones: map[string][]string{}}
	for _, z := range cfg.ZoneAliases {
		n.zones[z.ID] = append(n.zones[z.ID], z.Names...)
		for _, name := range z.Names {
			n.zoneIDs[name] = z.ID
		}
	}
	if snap != nil {
		for _, svc := range snap.Services {
			if len(svc.Aliases) > 0 {
				n.aliases[svc.Name] = svc.Aliases
			}
		}
	}
	return n
}

// zoneID returns the id of the zone that goes by name: name itself where zone_aliases does not know it.
func (n *names) zoneID(name string) string {
	if id, ok := n.zoneIDs[name]; ok {
		return id
	}
	return name
}

// A matcher is a Target made ready.
type matcher struct {
	what    string
	pattern string
	glob    bool // the pattern has a character that path.Match gives a meaning
	slash   bool // of a member: SERVICE/MEMBER
}

func (t Target) matcher() matcher {
	what, pattern := t.only()
	m := matcher{what: what, pattern: pattern}
	switch {
	case what == "service":
		m.pattern = strings.TrimSuffix(strings.ToLower(pattern), ".")
	case what == "member":
		var service, member string
		if service, member, m.slash = strings.Cut(pattern, "/"); m.slash {
			m.pattern = strings.TrimSuffix(strings.ToLower(service), ".") + "/" + member
		}
	}
	m.glob = strings.ContainsAny(m.pattern, `*?[\`)
	return m
}

// is reports whether the pattern names exactly or matches name.
func (m *matcher) is(name string) bool {
	if name == m.pattern {
		return true
	}
	if !m.glob {
		return false
	}
	ok, err := path.Match(m.pattern, name)
	return ok && err == nil
}

// matches reports whether the target is for the member.
func (m *matcher) matches(n *names, service, member, site, zone string) bool {
	switch m.what {
	case "service":
		return m.is(service) || slices.ContainsFunc(n.aliases[service], m.is)
	case "member":
		if !m.slash {
			return m.is(member)
		}
		return m.is(service+"/"+member) ||
			slices.ContainsFunc(n.aliases[service], func(a string) bool { return m.is(a + "/" + member) })
	case "site":
		return m.is(site)
	case "zone":
		id := n.zoneID(zone)
		return m.is(zone) || m.is(id) || slices.ContainsFunc(n.zones[id], m.is)
	}
	return false
}

// there lists what a target of this kind could name, for whoever named something else.
func (m *matcher) there(snap *state.Snapshot) []string {
	var all []string
	for _, svc := range snap.Services {
		switch m.what {
		case "service":
			all = append(all, svc.Name)
			all = append(all, svc.Aliases...)
		case "member":
			for _, mb := range svc.Members {
				all = append(all, svc.Name+"/"+mb.Name)
			}
		}
	}
	for _, site := range snap.Sites {
		switch m.what {
		case "site":
			all = append(all, site.Name)
		case "zone":
			all = append(all, site.Zone)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
}

// listed writes at most ten of all, "and N more".
func listed(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	shown := all[:min(len(all), 10)]
	text := strings.Join(shown, ", ")
	if n := len(all) - len(shown); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
