package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"gslbd/admin"
	"gslbd/control"
	"gslbd/state"
)

const agreeing = `
dns: {listen: ["127.0.0.1:0"], drain_time: 0s}
reports: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
state: {directory: state}
log: {level: error}
sites:
  - {name: s0, zone: z0, capacity: {sessions: 1000, bandwidth: 1Mbps}}
  - {name: s1, zone: z1, capacity: {sessions: 1000, bandwidth: 1Mbps}}
  - {name: s2, zone: z1, capacity: {sessions: 1000}}
zones: [{name: gslb.test, file: gslb.test.zone}]
policies:
  - {name: strict, chain: [{metric: health}, {metric: capacity}, {metric: rtt}, {metric: preference}, {metric: static, method: ordered}]}
services:
  - name: www.gslb.test
    policy: strict
    answers: 2
    members:
      - {name: m0, site: s0, addresses: [192.0.2.1, "2001:db8::1"]}
      - {name: m1, site: s1, addresses: [192.0.2.2], preference: 200}
      - {name: m2, site: s2, addresses: [192.0.2.3, "2001:db8::3"], weight: 0}
  - name: turn.gslb.test
    policy: spread
    on_all_down: servfail
    members:
      - {name: m0, site: s0, addresses: [192.0.2.11]}
      - {name: m1, site: s1, addresses: [192.0.2.12]}
      - {name: m2, site: s2, addresses: [192.0.2.13]}
  - name: db.gslb.test
    policy: strict
    failover: {ratio: 0.6, failback: manual}
    on_all_down: nodata
    members:
      - {name: m0, site: s0, addresses: [192.0.2.21, "2001:db8::21"]}
      - {name: m1, site: s1, addresses: [192.0.2.22, "2001:db8::22"]}
      - {name: m2, site: s2, addresses: [192.0.2.23], role: backup}
  - name: last.gslb.test
    policy: strict
    on_all_down: backup
    last_resort: [192.0.2.99]
    members:
      - {name: m0, site: s0, addresses: [192.0.2.31]}
`

// An agreement is a server and what the test has asked it.
type agreement struct {
	t *testing.T
	s *server
	r *rand.Rand

	orders  []string
	staged  bool               // a zone is evacuated for some of the clients
	decided int                // queries that were decided so far
	counted map[string]float64 // what telemetry should count by now of answers and decisions
}

// Status, overview, explain, telemetry and the answers of the DNS never disagree, whatever is reported, ordered and asked.
func TestAllTellTheSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s, _ := startServer(t, t.TempDir(), agreeing)
	a := &agreement{t: t, s: s, r: rand.New(rand.NewPCG(seed, 0))}
	a.agree()
	for range 60 {
		changed := s.store.Changed()
		for range a.r.IntN(3) {
			a.order()
		}
		if a.r.IntN(3) == 0 {
			a.evacuate()
		}
		if a.r.IntN(3) == 0 {
			f := control.Failback{ID: uuidv7(), Created: time.Now(), Author: "kim", Reason: "test", Service: "db.gslb.test"}
			_, err := s.control.Failback(t.Context(), f, control.Caller{})
			a.may(err, control.ErrNothing, control.ErrRefused) // it is in its primaries, or they do not suffice
		}
		for range 1 + a.r.IntN(3) {
			a.report()
		}
		<-changed // a report always is published
		a.agree()
		if t.Failed() {
			return
		}
	}
}

// report sends a random report of a site.
func (a *agreement) report() {
	i := a.r.IntN(3)
	rep := &state.Report{Site: fmt.Sprint("s", i), Agent: "lb1"}
	rep.HasSessions, rep.Sessions = a.r.IntN(4) > 0, uint64(a.r.IntN(1300))
	rep.HasBits, rep.BitsIn, rep.BitsOut = a.r.IntN(2) == 0, uint64(a.r.IntN(1_200_000)), uint64(a.r.IntN(1_200_000))
	states := []state.ServerState{state.ServerUp, state.ServerUp, state.ServerDown, state.ServerMaint, state.ServerDrain}
	for _, base := range []int{1, 11, 21, 31} {
		vs := state.VirtualServer{Name: fmt.Sprint("v", base), Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(base + i)})}
		for j := range 1 + a.r.IntN(3) {
			vs.Servers = append(vs.Servers, state.Server{Name: fmt.Sprint("server", j), State: states[a.r.IntN(len(states))], Reason: "HTTP 503"})
		}
		rep.VirtualServers = append(rep.VirtualServers, vs)
	}
	if _, err := a.s.store.Report(rep); err != nil {
		a.t.Fatal(err)
	}
}

// order gives a random order, or ends one.
func (a *agreement) order() {
	if n := len(a.orders); n > 0 && a.r.IntN(2) == 0 {
		id := a.orders[a.r.IntN(n)]
		if _, err := a.s.control.Clear(a.t.Context(), control.Tombstone{ID: id, Created: time.Now(), Author: "kim", Reason: "test"}, control.Caller{}); err != nil {
			a.t.Fatal(err)
		}
		return
	}
	o := forceDown([]control.Target{
		{Site: fmt.Sprint("s", a.r.IntN(3))}, {Zone: fmt.Sprint("z", a.r.IntN(2))}, {Member: fmt.Sprint("m", a.r.IntN(3))}, {Member: "db.gslb.test/m1"},
	}[a.r.IntN(4)])
	o.Action = []string{control.Up, control.Drain, control.Down}[a.r.IntN(3)]
	if _, err := a.s.control.Force(a.t.Context(), o, control.Caller{}); err != nil {
		a.t.Fatal(err)
	}
	a.orders = append(a.orders, o.ID)
}

// evacuate takes a zone out of service, at once or for half of the clients, or puts all back.
func (a *agreement) evacuate() {
	if a.r.IntN(3) > 0 {
		r := control.RestorationRequest{ID: uuidv7(), Created: time.Now(), Author: "kim", Reason: "test"}
		_, err := a.s.control.Restore(a.t.Context(), r, control.Caller{})
		a.may(err, control.ErrNothing)
		return
	}
	e := control.Evacuation{ID: uuidv7(), Created: time.Now(), Author: "kim", Reason: "test", Zone: fmt.Sprint("z", a.r.IntN(2)), Types: []string{control.TypeMember}}
	if a.r.IntN(2) == 0 {
		e.Stages, e.PauseMS = []float64{0.5, 1}, time.Hour.Milliseconds()
	}
	_, err := a.s.control.Evacuate(a.t.Context(), control.EvacuationRequest{Evacuation: e, Force: true}, control.Caller{})
	a.may(err)
}

// may fails the test for an error that is none of those expected.
func (a *agreement) may(err error, expected ...error) {
	if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		a.t.Fatal(err)
	}
}

func (a *agreement) get(path string) []byte {
	req := httptest.NewRequest("GET", path, nil)
	req.RemoteAddr, req.Host = "127.0.0.1:4711", "127.0.0.1:8053"
	w := httptest.NewRecorder()
	a.s.http[1].handler.ServeHTTP(w, req)
	if w.Code != 200 {
		a.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

func (a *agreement) read(path string, v any) {
	if err := json.Unmarshal(a.get(path), v); err != nil {
		a.t.Fatalf("%s: %v", path, err)
	}
}

// telemetry returns the samples of the rooms, by name and labels as they are written, once all queries are counted: a worker
// does so after it has sent the reply.
func (a *agreement) telemetry() map[string]float64 {
	for deadline := time.Now().Add(20 * time.Second); ; {
		samples, decided := a.scrape(), 0.0
		for name, n := range counters(samples) {
			if strings.HasPrefix(name, "gslbd_decisions_total") {
				decided += n
			}
		}
		if decided == float64(a.decided) {
			return samples
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%v decisions are counted of %d", decided, a.decided)
		}
	}
}

func (a *agreement) scrape() map[string]float64 {
	samples := map[string]float64{}
	for line := range strings.Lines(string(a.get("/metrics"))) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasPrefix(name, "gslbd_") {
			samples[name] = n
		}
	}
	return samples
}

// agree asks everybody, and compares. When something is published meanwhile, or a restoration ends, it begins again.
func (a *agreement) agree() {
	for {
		version, evacuations := a.s.store.Snapshot().Version, len(a.s.control.Evacuations())
		complaints := a.compare()
		if a.s.store.Snapshot().Version == version && len(a.s.control.Evacuations()) == evacuations {
			for _, c := range complaints {
				a.t.Error(c)
			}
			return
		}
	}
}

func (a *agreement) compare() (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	var st admin.Status
	var o admin.Overview
	a.counted = maps.Collect(counters(a.telemetry()))
	a.read("/v1/status", &st)
	a.read("/v1/overview", &o)
	a.staged = slices.ContainsFunc(st.Evacuations, func(e control.EvacuationState) bool { return e.Share < 1 })
	for _, svc := range st.Services {
		for _, kind := range []string{"A", "AAAA"} {
			for _, c := range a.ask(&svc, kind) {
				complain("%s", c)
			}
		}
	}
	want := map[string]float64{"gslbd_blind": number(st.Blind), "gslbd_rtt_entries": float64(st.RTTEntries), "gslbd_evacuations": float64(len(st.Evacuations))}
	for _, action := range []string{control.Up, control.Drain, control.Down} {
		n := 0
		for _, o := range st.Orders {
			if o.Action == action {
				n++
			}
		}
		want[fmt.Sprintf("gslbd_orders{action=%q}", action)] = float64(n)
	}
	for _, s := range st.Sites {
		l := fmt.Sprintf("{site=%q}", s.Name)
		want["gslbd_site_overloaded"+l], want["gslbd_site_rtt_blind"+l] = number(s.Overloaded), number(s.RTTBlind)
		if s.Load != nil && s.Load.Sessions != nil {
			want["gslbd_site_sessions"+l] = float64(*s.Load.Sessions)
		}
		if s.Load != nil && s.Load.BitsPerSecondIn != nil {
			want[fmt.Sprintf("gslbd_site_bits_per_second{direction=\"in\",site=%q}", s.Name)] = float64(*s.Load.BitsPerSecondIn)
			want[fmt.Sprintf("gslbd_site_bits_per_second{direction=\"out\",site=%q}", s.Name)] = float64(*s.Load.BitsPerSecondOut)
		}
	}
	for i, svc := range st.Services {
		l := fmt.Sprintf("service=%q", svc.Name)
		for _, pool := range []string{"primary", "backup"} {
			want[fmt.Sprintf("gslbd_pool_active{pool=%q,%s}", pool, l)] = number(svc.Pool == pool)
		}
		want["gslbd_pool_transitions_total{"+l+"}"] = float64(svc.PoolTransitions)
		for _, m := range svc.Members {
			lm := fmt.Sprintf("{member=%q,%s}", m.Name, l)
			want["gslbd_member_transitions_total"+lm] = float64(m.Transitions)
			for _, addr := range m.Addresses {
				want[fmt.Sprintf("gslbd_member_up{family=%q,member=%q,%s}", addr.Family, m.Name, l)] = number(addr.Up)
				down := slices.ContainsFunc(st.Problems, func(p admin.Problem) bool {
					return p.Subject == "member "+svc.Name+"/"+m.Name && strings.HasPrefix(p.Text, "is down")
				})
				if !addr.Up && !down {
					complain("%s/%s is down for %s, and no problem says so", svc.Name, m.Name, addr.Family)
				}
			}
		}
		j := slices.IndexFunc(o.Services, func(v admin.ServiceOverview) bool { return v.Name == svc.Name })
		if v := o.Services[j]; v.Pool != svc.Pool || len(v.Members) != len(svc.Members) {
			complain("overview of %s: %+v", st.Services[i].Name, v)
		} else {
			for k, m := range svc.Members {
				up := !slices.ContainsFunc(m.Addresses, func(a admin.Address) bool { return !a.Up })
				if v.Members[k].Up != up || v.Members[k].Forced != m.Forced || v.Members[k].InPool != m.InPool {
					complain("overview of %s/%s: %+v, status %+v", svc.Name, m.Name, v.Members[k], m)
				}
			}
		}
	}
	maps.Copy(want, a.counted)
	got := a.telemetry()
	for name, n := range want {
		if value, ok := got[name]; !ok || value != n {
			complain("telemetry has %s %v (%v), and not %v", name, value, ok, n)
		}
	}
	for name := range got {
		for _, kind := range []string{"gslbd_site_sessions{", "gslbd_site_bits_per_second{", "gslbd_member_up{", "gslbd_site_overloaded{"} {
			if _, ok := want[name]; strings.HasPrefix(name, kind) && !ok {
				complain("telemetry has %s, and status does not", name)
			}
		}
	}
	a.read("/v1/status", &st)
	for _, svc := range st.Services {
		for _, m := range svc.Members {
			if n := a.counted[answersOf(svc.Name, m.Name)]; float64(m.Answers) != n {
				complain("status counts %d answers of %s/%s, and the test %v", m.Answers, svc.Name, m.Name, n)
			}
		}
	}
	return wrong
}

// counters yields what counts answers and decisions.
func counters(samples map[string]float64) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for name, n := range samples {
			if (strings.HasPrefix(name, "gslbd_answers_total{") || strings.HasPrefix(name, "gslbd_decisions_total{")) && !yield(name, n) {
				return
			}
		}
	}
}

func answersOf(service, member string) string {
	return fmt.Sprintf("gslbd_answers_total{member=%q,service=%q}", member, service)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ask explains a query and asks it, and says what the two do not agree on, and what status does not allow.
func (a *agreement) ask(svc *admin.Service, kind string) (wrong []string) {
	var e admin.Explanation
	a.read("/v1/explain?client=127.0.0.1&name="+svc.Name+"&type="+kind, &e)
	m := new(mdns.Msg)
	m.SetQuestion(mdns.Fqdn(svc.Name), mdns.StringToType[kind])
	reply, _, err := new(mdns.Client).Exchange(m, a.s.dns.Addrs()[0].String())
	if err != nil {
		a.t.Fatal(err)
	}
	complain := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s %s: ", svc.Name, kind)+fmt.Sprintf(format, args...))
	}
	var told, explained []string
	for _, rr := range reply.Answer {
		switch rr := rr.(type) {
		case *mdns.A:
			told = append(told, rr.A.String())
		case *mdns.AAAA:
			told = append(told, rr.AAAA.String())
		}
		if e.Answer.TTL != nil && rr.Header().Ttl != *e.Answer.TTL {
			complain("TTL %d, explain says %d", rr.Header().Ttl, *e.Answer.TTL)
		}
	}
	for _, r := range e.Answer.Records {
		explained = append(explained, r.Data)
	}
	if !slices.Equal(told, explained) {
		complain("answer %v, explain says %v", told, explained)
	}
	if want := map[bool]int{true: mdns.RcodeServerFailure}[e.Answer.Kind == "servfail"]; reply.Rcode != want {
		complain("rcode %d, explain says %s", reply.Rcode, e.Answer.Kind)
	}
	if e.Pool != svc.Pool || e.PoolWhy != svc.PoolWhy {
		complain("explain has pool %s (%s), status %s (%s)", e.Pool, e.PoolWhy, svc.Pool, svc.PoolWhy)
	}
	has := slices.ContainsFunc(svc.Members, func(m admin.Member) bool {
		return slices.ContainsFunc(m.Addresses, func(a admin.Address) bool { return (a.Family == "ipv6") == (kind == "AAAA") })
	})
	if !has { // no member ever has an address of the family, so the DNS asks no policy
		return wrong
	}
	a.decided++
	a.counted[fmt.Sprintf("gslbd_decisions_total{metric=%q,service=%q}", e.Answer.Reason, svc.Name)]++
	if e.Answer.Kind != "answer" || len(e.Answer.Records) == 0 {
		return wrong
	}
	a.counted[answersOf(svc.Name, e.Answer.Records[0].Member)]++
	if a.staged {
		return wrong // whom a client may be sent to is then a matter of the client, which status does not tell of
	}
	out := func(m *admin.Member) bool { return m.Forced == "down" || m.Forced == "evacuated" }
	anyUp := false // of those that may be answered
	for _, m := range svc.Members {
		for _, addr := range m.Addresses {
			anyUp = anyUp || m.InPool && addr.Up && !out(&m) && (addr.Family == "ipv6") == (kind == "AAAA")
		}
	}
	for _, r := range e.Answer.Records {
		m := svc.Members[slices.IndexFunc(svc.Members, func(m admin.Member) bool { return m.Name == r.Member })]
		addr := m.Addresses[slices.IndexFunc(m.Addresses, func(a admin.Address) bool { return a.Address.String() == r.Data })]
		if !m.InPool || out(&m) || (anyUp && !addr.Up) {
			complain("%s is answered, of which status says: in the pool %v, forced %q, up %v (any: %v)", r.Data, m.InPool, m.Forced, addr.Up, anyUp)
		}
	}
	return wrong
}
