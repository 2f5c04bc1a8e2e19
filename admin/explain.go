package admin

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gslbd/policy"
	"gslbd/state"
)

// An Explanation is how a query would be decided now.
type Explanation struct {
	Time    time.Time `json:"time"` // on this machine's clock
	Name    string    `json:"name"`
	Service string    `json:"service"` // that answers for the name
	Policy  string    `json:"policy"`
	Type    string    `json:"type"` // A or AAAA
	PoolState
	Client Client       `json:"client"`
	Turn   uint64       `json:"turn"` // of the rotating metrics; explaining does not advance it
	Answer Answer       `json:"answer"`
	Trace  policy.Trace `json:"trace"`
}

// A Client is whom a query is decided for.
type Client struct {
	LDNS netip.Addr   `json:"ldns"`
	ECS  netip.Prefix `json:"ecs,omitzero"`

	// Used is which of the two metrics look at: "ecs" or "ldns". Why says so where it is not plain.
	Used string `json:"used"`
	Why  string `json:"why,omitempty"`
}

// An Answer is what the client would be told.
type Answer struct {
	Kind    string   `json:"kind"`   // answer, last resort, nodata or servfail
	Reason  string   `json:"reason"` // what settled the first record: a metric, constraints, single or on_all_down
	Records []Record `json:"records"`
	TTL     *uint32  `json:"ttl,omitempty"` // seconds; for nodata a ceiling beside the zone's own; absent: the zone's own
	AllDown bool     `json:"all_down"`

	// Scope is the ECS scope prefix length of the response; absent when the query has no ECS or the zone does not use it.
	Scope *int `json:"scope,omitempty"`
}

// A Record is one address, or CNAME target, of an answer.
type Record struct {
	Member string `json:"member,omitempty"` // empty: of last_resort
	Data   string `json:"data"`
}

func (s *Server) explain(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	args, err := arguments(req.URL.RawQuery, "name", "type", "client", "ecs")
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	name := canonical(args["name"])
	if name == "" {
		refuse(w, http.StatusBadRequest, "name: missing: which name would the client ask for?")
		return
	}
	family := state.V4
	kind := strings.ToUpper(args["type"])
	switch kind {
	case "":
		kind = "A"
	case "A":
	case "AAAA":
		family = state.V6
	default:
		refuse(w, http.StatusBadRequest, "type: %q is neither A nor AAAA, and only those are decided", args["type"])
		return
	}
	ldns, err := clientAddress(args["client"], req.RemoteAddr)
	if err != nil {
		refuse(w, http.StatusBadRequest, "client: %v", err)
		return
	}
	ecs, err := ecsPrefix(args["ecs"])
	if err != nil {
		refuse(w, http.StatusBadRequest, "ecs: %v", err)
		return
	}
	svc, usesECS, ok := s.opts.Find(snap, name)
	if !ok {
		refuse(w, http.StatusNotFound, "no service answers for %q; there are %s", name, serviceNames(snap))
		return
	}
	chain, ok := svc.Chain.(*policy.Chain)
	if !ok {
		refuse(w, http.StatusInternalServerError, "service %q has no policy", svc.Name)
		return
	}
	e := Explanation{
		Time: time.Now(), Name: name, Service: svc.Name, Policy: svc.PolicyName, Type: kind,
		PoolState: newPoolState(svc), Client: newClient(snap, ldns, ecs, usesECS),
		Turn: svc.Rotation.Turn[family].Load(),
	}
	q := policy.NewQuery(len(svc.Members))
	q.Snapshot, q.Service, q.Family = snap, svc, family
	q.Now, q.Rand, q.Turn = e.Time, rand.Uint64(), e.Turn
	q.LDNS = ldns
	if usesECS && ecs.Bits() > 0 {
		q.ECS = ecs
	}
	q.Trace = &e.Trace
	var d policy.Decision
	chain.Decide(q, &d)
	e.Answer = newAnswer(svc, family, &d)
	if usesECS && ecs.IsValid() {
		scope := int(q.Scope)
		e.Answer.Scope = &scope
	}
	answer(w, e)
}

// arguments reads a query string that has each of the given names at most once, and nothing else.
func arguments(query string, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("the query string cannot be read: %w", err)
	}
	args := map[string]string{}
	for name, v := range values {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown argument %q: there are %s", name, strings.Join(names, ", "))
		}
		if len(v) > 1 {
			return nil, fmt.Errorf("%s: given twice", name)
		}
		args[name] = v[0]
	}
	return args, nil
}

// clientAddress reads the address of a resolver; without one it is whoever asks us.
func clientAddress(s, remote string) (netip.Addr, error) {
	if s == "" {
		a, err := netip.ParseAddrPort(remote)
		return a.Addr().Unmap().WithZone(""), err
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// ecsPrefix reads an ECS prefix as strictly as a query's is read (RFC 7871 section 6: no bits beyond the length).
func ecsPrefix(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 203.0.113.0/24 or 2001:db8::/56", s)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has bits beyond its length; did you mean %s?", p, p.Masked())
	}
	return p, nil
}

// newClient says which of the client's networks is looked at (docs/policies.md, "rtt" and "geo").
func newClient(snap *state.Snapshot, ldns netip.Addr, ecs netip.Prefix, usesECS bool) Client {
	c := Client{LDNS: ldns, ECS: ecs, Used: "ldns"}
	switch {
	case !ecs.IsValid():
	case !usesECS:
		c.Why = "ECS is off for the zone"
	case ecs.Bits() == 0:
		c.Why = "ECS of length 0 asks not to be told apart"
	default:
		if _, special := state.Special(ecs.Addr()); special && !snap.Geo.LookupOverride(ecs.Addr()).Override {
			c.Why = "the ECS prefix is special-purpose, and no override matches it"
			break
		}
		c.Used = "ecs"
	}
	return c
}

func newAnswer(svc *state.Service, f state.Family, d *policy.Decision) Answer {
	a := Answer{Reason: d.Reason.String(), Records: []Record{}, TTL: &d.TTL, AllDown: d.AllDown}
	if d.TTL == policy.NoCeiling {
		a.TTL = nil
	}
	switch d.Kind {
	case policy.Answer:
		a.Kind = "answer"
		for _, m := range d.Members[:d.N] {
			data := m.CNAME
			if data == "" {
				data = m.Addr[f].String()
			}
			a.Records = append(a.Records, Record{Member: m.Name, Data: data})
		}
	case policy.LastResort:
		a.Kind = "last resort"
		for _, addr := range svc.LastResort {
			if addr.Is4() == (f == state.V4) {
				a.Records = append(a.Records, Record{Data: addr.String()})
			}
		}
	case policy.NoData:
		a.Kind = "nodata"
	case policy.ServFail:
		a.Kind = "servfail"
	}
	return a
}

// An RTTs is what is known of the round trips to a resolver's network.
type RTTs struct {
	Resolver netip.Addr   `json:"resolver"`
	Network  netip.Prefix `json:"network"` // whose resolvers share these round trips
	Sites    []SiteRTT    `json:"sites"`   // the nearest first; sites without samples are absent
}

// A SiteRTT is the round trip from one site by one method.
type SiteRTT struct {
	Site   string  `json:"site"`
	Method string  `json:"method"`      // icmp, tcp, dns or passive; values of different methods are not compared
	RTTMS  float64 `json:"rtt_ms"`      // the second lowest of the last 5 samples; of fewer than 3 the lowest
	Age    float64 `json:"age_seconds"` // of the newest of them
	Jitter float64 `json:"jitter_ms"`   // mean difference between one of them and the next
	Probes int     `json:"probes"`      // of which it is known whether they were lost, up to 15; 0 for passive
	Lost   int     `json:"lost"`        // of these

	Connections int `json:"connections,omitempty"` // passive: how many the newest sample is of, at least; absent: not told

	PathChange *PathChange `json:"path_change,omitempty"` // the last one that was seen
}

// A PathChange is a step of a round trip that stayed.
type PathChange struct {
	Since    time.Time `json:"since"`     // when it was found, by four probes
	BeforeMS float64   `json:"before_ms"` // what the round trip was
}

func (s *Server) rtt(w http.ResponseWriter, req *http.Request) {
	snap := s.present(w)
	if snap == nil {
		return
	}
	args, err := arguments(req.URL.RawQuery, "resolver")
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	if args["resolver"] == "" {
		m := RTTMatrix{Time: time.Now(), Known: snap.RTT.Len(), Networks: []NetworkRTTs{}}
		for _, n := range snap.RTT.Recent(maxMatrix) {
			m.Networks = append(m.Networks, NetworkRTTs{n.Network, siteRTTs(snap, n.Row, m.Time)})
		}
		answer(w, m)
		return
	}
	resolver, err := clientAddress(args["resolver"], "")
	if err != nil {
		refuse(w, http.StatusBadRequest, "resolver: %v", err)
		return
	}
	v := RTTs{Resolver: resolver, Network: snap.RTT.Key(resolver)}
	v.Sites = siteRTTs(snap, snap.RTT.Row(resolver), time.Now())
	answer(w, v)
}

// siteRTTs returns the round trips of a network, the shortest first. There may be no row.
func siteRTTs(snap *state.Snapshot, row *state.RTTRow, now time.Time) []SiteRTT {
	all := []SiteRTT{}
	for _, t := range row.All() {
		i := slices.IndexFunc(snap.Sites, func(s *state.Site) bool { return s.ID == t.SiteID })
		if i < 0 {
			continue
		}
		s := SiteRTT{
			Site: snap.Sites[i].Name, Method: t.Method.String(), RTTMS: inMS(t.RTT), Age: max(0, now.Sub(t.Newest).Seconds()),
			Jitter: inMS(t.Jitter), Probes: t.Probes, Lost: t.Lost, Connections: t.Connections,
		}
		if t.Before > 0 {
			s.PathChange = &PathChange{t.Shifted, inMS(t.Before)}
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b SiteRTT) int { return cmp.Compare(a.RTTMS, b.RTTMS) })
	return all
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// maxMatrix is how many networks an RTTMatrix has.
const maxMatrix = 50

// An RTTMatrix is the round trips to the networks that were measured last.
type RTTMatrix struct {
	Time     time.Time     `json:"time"`     // on this machine's clock
	Known    int           `json:"known"`    // networks with round trips in all
	Networks []NetworkRTTs `json:"networks"` // the last measured first
}

// NetworkRTTs are the round trips to one network.
type NetworkRTTs struct {
	Network netip.Prefix `json:"network"`
	Sites   []SiteRTT    `json:"sites"` // the nearest first; sites without samples are absent
}
