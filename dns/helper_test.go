package dns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/dns"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

var (
	local  = netip.MustParseAddrPort("192.0.2.53:53")
	remote = netip.MustParseAddrPort("198.51.100.7:4242")
)

// A testService is one service for a testWorld.
type testService struct {
	name       string
	aliases    []string
	members    []string // "ADDRESS[,ADDRESS]" or a CNAME target that ends in a dot; the site has the member's number
	ttl        uint32
	answers    int
	down       bool // no member is up
	checked    bool // gslbd checks the members itself
	onAllDown  state.OnAllDown
	lastResort []string
	alpn       []string
	steps      []policy.StepOptions // default: health, geo overrides, ordered
	backups    int                  // so many members, the last ones, are backups
	ratio      float64              // of failover
}

var testSteps = []policy.StepOptions{
	{Metric: "health"},
	{Metric: "geo", Levels: []string{"override"}},
	{Metric: "static", Method: "ordered"},
}

// A testWorld is a store that publishes zones and services. Its sites are s0 to s3; 203.0.113.0/24 and
// 2001:db8:aaaa::/48 belong to s1.
type testWorld struct {
	store  *state.Store
	tables *dns.Tables
}

func newWorld(t testing.TB, zones []dns.ZoneOptions, services ...testService) *testWorld {
	t.Helper()
	cfg := &state.Config{}
	for i := range 8 {
		cfg.Sites = append(cfg.Sites, state.SiteConfig{Name: fmt.Sprintf("s%d", i), SessionsLimit: 1000})
	}
	var opts []dns.ServiceOptions
	chains := map[*policy.StepOptions]*policy.Chain{} // services with the same steps share one, as those with the same policy do
	for _, s := range services {
		steps := s.steps
		if steps == nil {
			steps = testSteps
		}
		chain := chains[&steps[0]]
		if chain == nil {
			var err error
			if chain, err = policy.Build("test", steps); err != nil {
				t.Fatal(err)
			}
			chains[&steps[0]] = chain
		}
		so := dns.ServiceOptions{Name: s.name, Aliases: s.aliases, ALPN: s.alpn}
		sc := state.ServiceConfig{
			Name: s.name, Aliases: s.aliases, TTL: s.ttl, Answers: max(s.answers, 1), UnknownUp: !s.down, HasCheck: s.checked,
			OnAllDown: s.onAllDown, Chain: chain, PolicyName: "test", FailoverRatio: s.ratio,
		}
		for _, a := range s.lastResort {
			so.LastResort = append(so.LastResort, netip.MustParseAddr(a))
		}
		sc.LastResort = so.LastResort
		for i, m := range s.members {
			mo := dns.MemberOptions{}
			if strings.HasSuffix(m, ".") {
				mo.CNAME = m
			} else {
				for _, text := range strings.Split(m, ",") {
					addr := netip.MustParseAddr(text)
					f := state.V4
					if addr.Is6() {
						f = state.V6
					}
					mo.Addresses[f] = addr
				}
			}
			so.Members = append(so.Members, mo)
			name := fmt.Sprintf("s%d", i)
			role := state.Primary
			if i >= len(s.members)-s.backups {
				role = state.Backup
			}
			sc.Members = append(sc.Members, state.MemberConfig{
				Name: name, Site: name, Addresses: mo.Addresses, CNAME: mo.CNAME, Weight: 100, Preference: 100, Role: role,
			})
		}
		opts = append(opts, so)
		cfg.Services = append(cfg.Services, sc)
	}
	tables, err := dns.Build(zones, opts)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Zones = tables
	db, err := geo.Open(geo.Options{Overrides: []geo.Override{
		{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Site: "s1"},
		{Prefix: netip.MustParsePrefix("2001:db8:aaaa::/48"), Site: "s1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store.SetGeo(db)
	store.Configure(cfg)
	return &testWorld{store: store, tables: tables}
}

// responder returns a Responder that serves the world.
func (w *testWorld) responder(t testing.TB, opts dns.Options) *dns.Responder {
	t.Helper()
	opts.Store = w.store
	r, err := dns.NewResponder(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Refresh(time.Now())
	return r
}

// question returns a query; edit may change it.
func question(name, qtype string, edit ...func(*mdns.Msg)) *mdns.Msg {
	m := new(mdns.Msg)
	m.SetQuestion(name, mdns.StringToType[qtype])
	if rest, ok := strings.CutPrefix(qtype, "TYPE"); ok {
		_, _ = fmt.Sscan(rest, &m.Question[0].Qtype)
	}
	m.RecursionDesired = false
	for _, f := range edit {
		f(m)
	}
	return m
}

// edns adds an OPT record with a payload size and options.
func edns(size uint16, options ...mdns.EDNS0) func(*mdns.Msg) {
	return func(m *mdns.Msg) {
		m.SetEdns0(size, false)
		m.IsEdns0().Option = options
	}
}

// raw packs an option that miekg/dns does not build.
func raw(code uint16, data ...byte) mdns.EDNS0 { return &mdns.EDNS0_LOCAL{Code: code, Data: data} }

func pack(t testing.TB, m *mdns.Msg) []byte {
	t.Helper()
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

// exchange sends wire to r and returns the reply's bytes; nil if there was none.
func exchange(r *dns.Responder, wire []byte, tcp bool) []byte {
	buf := make([]byte, 65535)
	return buf[:r.Respond(wire, buf, local, remote, tcp)]
}

// ask asks and unpacks the reply.
func ask(t testing.TB, r *dns.Responder, m *mdns.Msg, tcp bool) (*mdns.Msg, []byte) {
	t.Helper()
	wire := exchange(r, pack(t, m), tcp)
	reply := new(mdns.Msg)
	if err := reply.Unpack(wire); err != nil {
		t.Fatalf("the reply to %v does not unpack: %v\n%x", m.Question, err, wire)
	}
	if reply.Id != m.Id || !reply.Response {
		t.Fatalf("the reply's header is wrong: %v", reply.MsgHdr)
	}
	return reply, wire
}

// show renders a reply in one line for each section that is not empty.
func show(m *mdns.Msg) string {
	var b strings.Builder
	b.WriteString(mdns.RcodeToString[m.Rcode])
	for _, f := range []struct {
		set  bool
		name string
	}{{m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionAvailable, "ra"}, {m.AuthenticatedData, "ad"}} {
		if f.set {
			b.WriteString(" " + f.name)
		}
	}
	for _, s := range []struct {
		name string
		rrs  []mdns.RR
	}{{"an", m.Answer}, {"ns", m.Ns}, {"ar", m.Extra}} {
		for _, rr := range s.rrs {
			if rr.Header().Rrtype != mdns.TypeOPT {
				b.WriteString("\n" + s.name + " " + strings.Join(strings.Fields(rr.String()), " "))
			}
		}
	}
	return b.String()
}

// lines joins what show gives.
func lines(s ...string) string { return strings.Join(s, "\n") }
