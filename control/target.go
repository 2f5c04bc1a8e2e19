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

// zoneNames returns all that a zone goes by beside the name that a site gives it.
func (n *names) zoneNames(zone string) []string {
	id := n.zoneID(zone)
	return append(slices.Clip(n.zones[id]), id)
}

// normal returns the one field that is set, and its pattern as things go by.
func (t Target) normal() (what, pattern string) {
	what, pattern = t.only()
	switch what {
	case "service":
		pattern = canonical(pattern)
	case "member":
		if service, member, ok := strings.Cut(pattern, "/"); ok {
			pattern = canonical(service) + "/" + member
		}
	}
	return what, pattern
}

// canonical is how a service is called, however it was written.
func canonical(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// there lists what a target of this kind could name, for whoever named something else.
func there(what string, snap *state.Snapshot) []string {
	var all []string
	for _, svc := range snap.Services {
		switch what {
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
		switch what {
		case "site":
			all = append(all, site.Name)
		case "zone":
			all = append(all, site.Zone)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
}

// maxNamed is how many of many names are written.
const maxNamed = 10

// listed writes at most maxNamed of all, "and N more".
func listed(all []string) string { return cut(all[:min(len(all), maxNamed)], len(all)) }

// cut writes some of so many.
func cut(some []string, all int) string {
	if all == 0 {
		return "none"
	}
	text := strings.Join(some, ", ")
	if n := all - len(some); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
