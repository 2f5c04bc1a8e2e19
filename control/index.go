package control

import (
	"math/bits"
	"path"
	"strings"

	"gslbd/state"
)

// An index finds which of many targets are for a member. It matches names, not members: what the targets say of each name
// that is known when it is made is worked out once, and put together for a member. It does not change.
type index struct {
	names *names
	// By what a target names. A member of some services only, SERVICE/MEMBER, is matched by halves: such a name has one
	// slash, and nothing but a slash matches it.
	service, member, site, zone, halfService, halfMember patterns
}

// patterns are those of all targets that name the same kind of thing, with the numbers of the targets.
type patterns struct {
	exact map[string]numbers
	globs []glob
	known map[string]numbers // what they say of the names that were known
}

// numbers are a set of numbers of targets; nil: none.
type numbers []uint64

func (n numbers) with(i int) numbers {
	for len(n) <= i/64 {
		n = append(n, 0)
	}
	n[i/64] |= 1 << (i % 64)
	return n
}

func (n numbers) or(more numbers) numbers {
	for len(n) < len(more) {
		n = append(n, 0)
	}
	for i, w := range more {
		n[i] |= w
	}
	return n
}

// newIndex makes the index of targets for the names that things go by. Without a snapshot no name is known yet.
func newIndex(targets []Target, n *names, snap *state.Snapshot) *index {
	x := &index{names: n}
	for i, t := range targets {
		switch what, pattern := t.normal(); what {
		case "service":
			x.service.add(pattern, i)
		case "member":
			if service, member, ok := strings.Cut(pattern, "/"); ok {
				x.halfService.add(service, i)
				x.halfMember.add(member, i)
			} else {
				x.member.add(pattern, i)
			}
		case "site":
			x.site.add(pattern, i)
		case "zone":
			x.zone.add(pattern, i)
		}
	}
	if snap == nil {
		return x
	}
	for _, svc := range snap.Services {
		x.service.know(svc.Name, n.aliases[svc.Name]...)
		x.halfService.know(svc.Name, n.aliases[svc.Name]...)
		for _, m := range svc.Members {
			x.member.know(m.Name)
			x.halfMember.know(m.Name)
		}
	}
	for _, s := range snap.Sites {
		x.site.know(s.Name)
		x.zone.know(s.Zone, n.zoneNames(s.Zone)...)
	}
	return x
}

// matching returns the numbers of the targets that are for a member.
func (x *index) matching(service, member, site, zone string) numbers {
	var all numbers
	all = all.or(x.service.of(service, x.names.aliases[service]...))
	all = all.or(x.member.of(member))
	all = all.or(x.site.of(site))
	all = all.or(x.zone.of(zone, x.names.zoneNames(zone)...))
	if s := x.halfService.of(service, x.names.aliases[service]...); s != nil {
		m := x.halfMember.of(member)
		for i := range min(len(s), len(m)) {
			if w := s[i] & m[i]; w != 0 {
				all = all.or(append(make(numbers, i), w))
			}
		}
	}
	return all
}

// first returns at most so many of the numbers, the smallest first, and how many there are in all.
func (n numbers) first(most int) (some []int, all int) {
	for k, w := range n {
		all += bits.OnesCount64(w)
		for ; w != 0 && len(some) < most; w &= w - 1 {
			some = append(some, 64*k+bits.TrailingZeros64(w))
		}
	}
	return some, all
}

func (p *patterns) add(pattern string, i int) {
	if strings.ContainsAny(pattern, globbing) {
		p.globs = append(p.globs, newGlob(pattern, i))
	}
	if p.exact == nil {
		p.exact = map[string]numbers{}
	}
	p.exact[pattern] = p.exact[pattern].with(i)
}

// know works out what the patterns say of a thing, by its name and the others that it goes by.
func (p *patterns) know(name string, others ...string) {
	if _, ok := p.known[name]; ok || p.exact == nil {
		return
	}
	n := p.of(name, others...)
	if p.known == nil {
		p.known = map[string]numbers{}
	}
	p.known[name] = n
}

// of returns the targets whose patterns name exactly or match one of the names.
func (p *patterns) of(name string, others ...string) numbers {
	if p.exact == nil {
		return nil
	}
	if n, ok := p.known[name]; ok {
		return n
	}
	n := p.one(nil, name)
	for _, other := range others {
		n = p.one(n, other)
	}
	return n
}

func (p *patterns) one(n numbers, name string) numbers {
	n = n.or(p.exact[name])
	for i := range p.globs {
		if g := &p.globs[i]; g.matches(name) {
			n = n.with(g.number)
		}
	}
	return n
}

// A glob is a pattern of path.Match made ready.
type glob struct {
	number  int
	pattern string
	// What stands between the stars of a pattern that has no other character with a meaning; nil: it has one.
	between []string
}

// globbing are the characters that path.Match gives a meaning.
const globbing = `*?[\`

func newGlob(pattern string, number int) glob {
	g := glob{number: number, pattern: pattern}
	if !strings.ContainsAny(pattern, strings.TrimPrefix(globbing, "*")) {
		g.between = strings.Split(pattern, "*")
	}
	return g
}

func (g *glob) matches(name string) bool {
	if g.between == nil || strings.Contains(name, "/") { // which a star does not match
		ok, err := path.Match(g.pattern, name)
		return ok && err == nil
	}
	last := len(g.between) - 1
	rest, ok := strings.CutPrefix(name, g.between[0])
	for _, s := range g.between[1:last] {
		if ok {
			_, rest, ok = strings.Cut(rest, s)
		}
	}
	return ok && strings.HasSuffix(rest, g.between[last])
}
