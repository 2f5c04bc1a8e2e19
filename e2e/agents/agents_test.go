//go:build linux

package agents

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/ipv4"

	"gslbd/e2e/lab"
	"gslbd/probes"
	"gslbd/sitereport"
)

var (
	numAgents    = flag.Int("agents", 5, "sites, each with an agent")
	numReal      = flag.Int("real", 2, "how many of them are processes, which read HAProxy and ping; the others are parts of the test")
	numGSLBD     = flag.Int("gslbd", 3, "gslbd, to each of which every agent reports every second")
	numResolvers = flag.Int("resolvers", 50, "resolvers, each in a network of its own")
	askEvery     = flag.Duration("ask", 2*time.Second, "how often each resolver asks each gslbd for a name")
	refresh      = flag.Duration("refresh", 10*time.Second, "rtt.refresh: how often each resolver is measured from each site of its name")
	long         = flag.Duration("time", 3*time.Second, "how long to measure, once all are heard")
)

const (
	servicesPerSite = 8 // each is a virtual server at the site
	serversEach     = 4
	resolversFirst  = "10.64.0.53" // the next one is in the next /24
	resolversAll    = "10.64.0.0/10"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(lab.Main(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// A fleet is the agents, what they report to, and the resolvers.
type fleet struct {
	*lab.Network
	t         *testing.T
	gslbd     []*lab.Host
	servers   []string // their URLs
	processes []*lab.Process
	resolvers *lab.Host

	realHosts []*lab.Host
	real      []*lab.Process
	parts     []*sitereport.Agent

	queries, answers, bytesOut, bytesIn []atomic.Int64 // by gslbd: of DNS, IP headers included

	mu    sync.Mutex
	taken []time.Duration // guarded by mu: from sending a report to its answer, of the agents that are parts of the test
}

// Every gslbd hears every agent, refuses no report and loses no round trip; what that costs is in the test's log.
func TestAgents(t *testing.T) {
	if *numReal > *numAgents || *numAgents < servicesPerSite/2 || *numResolvers > 16384 {
		t.Fatal("-agents: not fewer than -real and 4; -resolvers: at most 16384")
	}
	f := &fleet{
		Network: lab.New(t), t: t, queries: make([]atomic.Int64, *numGSLBD), answers: make([]atomic.Int64, *numGSLBD),
		bytesOut: make([]atomic.Int64, *numGSLBD), bytesIn: make([]atomic.Int64, *numGSLBD),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	f.startGSLBD()
	f.addResolvers()
	f.startReal()
	f.startParts(ctx, &running)
	running.Go(func() { f.ask(ctx) })

	lab.Eventually(t, time.Minute, "every gslbd hears every agent", func() bool {
		for i := range f.gslbd {
			ages := f.series(f.gslbd[i], "gslbd_site_report_age_seconds{")
			if len(ages) != *numAgents || slices.ContainsFunc(values(ages), func(age float64) bool { return age > 3 }) {
				return false
			}
		}
		return true
	})
	begin := time.Now()
	for _, g := range f.gslbd {
		lab.Eventually(t, time.Minute+3**askEvery, g.Name+" has the round trips of every resolver", func() bool {
			return f.series(g, "gslbd_rtt_entries")["gslbd_rtt_entries"] >= float64(*numResolvers)
		})
	}
	t.Logf("every gslbd had the round trips of every resolver %s after it heard every agent", time.Since(begin).Round(time.Second))
	f.measure()

	for i, g := range f.gslbd {
		reports := f.series(g, "gslbd_reports_total{")
		for series, n := range reports {
			if n > 0 && !strings.Contains(series, `result="accepted"`) {
				t.Errorf("%s: %s %v", g.Name, series, n)
			}
		}
		if f.answers[i].Load() == 0 {
			t.Errorf("%s answered none of %d queries", g.Name, f.queries[i].Load())
		}
	}
	for _, h := range f.realHosts {
		f.sound(h.Name, f.series(h, "gslb_agent_"))
	}
	for i, a := range f.parts {
		f.sound(fmt.Sprintf("agent %d", *numReal+i), gathered(t, a))
	}
}

// sound fails the test where an agent had a report refused or unanswered, or a round trip dropped.
func (f *fleet) sound(name string, series map[string]float64) {
	accepted := 0
	for s, n := range series {
		switch {
		case strings.Contains(s, `result="accepted"`) && n > 0:
			accepted++
		case n > 0 && (strings.HasPrefix(s, "gslb_agent_rtts_dropped_total") || strings.HasPrefix(s, "gslb_agent_reports_total") ||
			strings.HasPrefix(s, "gslb_agent_probes_total") && !strings.Contains(s, `result="answered"`)):
			f.t.Errorf("%s: %s %v", name, s, n)
		}
	}
	if accepted != *numGSLBD {
		f.t.Errorf("%s: %d gslbd accepted reports", name, accepted)
	}
}

func siteName(site int) string { return fmt.Sprintf("site%d", site) }

// vip returns the address of a site's virtual server.
func vip(site, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, byte(site), byte(n + 1)})
}

// startGSLBD starts the servers. Service s, of as many as there are sites, has members at eight sites from s on.
func (f *fleet) startGSLBD() {
	var conf strings.Builder
	fmt.Fprintf(&conf, "rtt: {refresh: %s}\nsites:\n", *refresh)
	for i := range *numAgents {
		fmt.Fprintf(&conf, "  - {name: %s, zone: z%[2]d, region: r%[2]d, token_file: token, capacity: {sessions: 1000000}}\n", siteName(i), i%50)
	}
	conf.WriteString("zones: [{name: gslb.example.com, file: zone}]\nservices:\n")
	for s := range *numAgents {
		fmt.Fprintf(&conf, "  - name: s%d.gslb.example.com\n    members:\n", s)
		for j := range min(servicesPerSite, *numAgents) {
			site := (s + j) % *numAgents
			fmt.Fprintf(&conf, "      - {name: m%d, site: %s, addresses: [%s], virtual_servers: [vs%d]}\n", j, siteName(site), vip(site, j), j)
		}
	}
	for i := range *numGSLBD {
		addr := fmt.Sprintf("10.0.0.%d", i+1)
		h := f.Host(fmt.Sprintf("gslbd%d", i+1), "", addr)
		h.File("zone", "$ORIGIN gslb.example.com.\n@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300\n@ 3600 IN NS ns1\nns1 3600 IN A 10.0.0.1\n")
		f.token(h)
		file := h.File("gslbd.yaml", fmt.Sprintf("dns: {listen: [\"%s:53\"], drain_time: 1s}\nreports: {listen: \"%[1]s:8054\", interval: 1s, stale_after: 3s, dead_after: 6s}\nstate: {directory: state}\n%s", addr, &conf))
		p := h.Start(filepath.Join(bin, "gslbd"), "--config", file)
		f.gslbd, f.processes, f.servers = append(f.gslbd, h), append(f.processes, p), append(f.servers, "http://"+addr+":8054")
	}
	for i, h := range f.gslbd {
		lab.Eventually(f.t, 30*time.Second, h.Name+" is ready", func() bool {
			if f.processes[i].Exited() {
				f.t.Fatalf("%s ended:\n%s", h.Name, f.processes[i].Log())
			}
			out, err := h.Run("curl", "-sS", "-f", "-m", "2", "http://127.0.0.1:8053/readyz")
			return err == nil && out != ""
		})
	}
}

func (f *fleet) token(h *lab.Host) {
	if err := os.Chmod(h.File("token", "token-of-the-sites\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// addResolvers makes one host that has the addresses of all resolvers, and so answers their pings.
func (f *fleet) addResolvers() {
	f.resolvers = f.Host("resolvers", "", "10.0.1.1")
	f.resolvers.Must("ip", "route", "add", "local", resolversAll, "dev", "lo")
	for i := range *numResolvers {
		f.Route(resolver(i), f.resolvers)
	}
}

func resolver(i int) netip.Addr {
	a := netip.MustParseAddr(resolversFirst).As4()
	a[1] += byte(i >> 8)
	a[2] = byte(i)
	return netip.AddrFrom4(a)
}

// startReal starts gslb-agent beside HAProxy at the first sites.
func (f *fleet) startReal() {
	for site := range *numReal {
		h := f.Host("agent-"+siteName(site), "", fmt.Sprintf("10.0.2.%d", site+1))
		h.Must("sh", "-c", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range")
		f.token(h)
		proxy := fmt.Sprintf("global\n  stats socket %s/haproxy.sock mode 600 level operator\ndefaults\n  mode tcp\n  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n", h.Dir())
		agent := fmt.Sprintf("site: %s\nagent: lb1\nservers: [%s]\ntoken_file: token\ninterval: 1s\ntelemetry: {listen: \"127.0.0.1:8055\"}\nhaproxy:\n  - socket: %s/haproxy.sock\n    virtual_servers:\n",
			siteName(site), strings.Join(f.servers, ", "), h.Dir())
		for n := range servicesPerSite {
			proxy += fmt.Sprintf("frontend fe%d\n  bind :%d\n  default_backend be%[1]d\nbackend be%[1]d\n", n, 8000+n)
			for s := range serversEach {
				proxy += fmt.Sprintf("  server server%d 127.0.0.1:%d\n", s, 9000+s)
			}
			agent += fmt.Sprintf("      - {name: vs%d, frontend: fe%[1]d, backend: be%[1]d, address: %s, port: 443}\n", n, vip(site, n))
		}
		h.Start(lab.Program(f.t, "haproxy"), "-db", "-f", h.File("haproxy.cfg", proxy))
		lab.Eventually(f.t, 10*time.Second, "HAProxy's socket is there", func() bool {
			_, err := os.Stat(h.Dir() + "/haproxy.sock")
			return err == nil
		})
		f.realHosts = append(f.realHosts, h)
		f.real = append(f.real, h.Start(filepath.Join(bin, "gslb-agent"), "--config", h.File("agent.yaml", agent)))
	}
}

// startParts starts the agents that are parts of the test: all of an agent but the load balancer and the packets of probes.
func (f *fleet) startParts(ctx context.Context, running *sync.WaitGroup) {
	const addresses = 4 // gslbd has at most 250 connections with each
	var from []string
	for i := range addresses {
		from = append(from, fmt.Sprintf("10.0.3.%d", i+1))
	}
	h := f.Host("agents", "", from...)
	for site := *numReal; site < *numAgents; site++ {
		transport := sitereport.NewTransport(nil)
		transport.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
			return h.DialFrom(from[site%addresses], network, address, 3*time.Second)
		}
		var agent *sitereport.Agent
		agent, err := sitereport.NewAgent(sitereport.AgentOptions{
			Site: siteName(site), Name: "lb1", Servers: f.servers, Interval: time.Second,
			Readers: []sitereport.Reader{balancer(site)},
			Probe: func(a netip.Addr, _ []string) bool {
				distance := time.Duration(5+(int(a.As4()[2])+17*site)%200) * time.Millisecond
				agent.RTT(probes.RTT{Addr: a, RTT: distance + rand.N(time.Millisecond), Method: "icmp", At: time.Now()})
				return true
			},
			Transport: &sender{f, transport},
		})
		if err != nil {
			f.t.Fatal(err)
		}
		f.parts = append(f.parts, agent)
		running.Go(func() { _ = agent.Run(ctx) })
	}
}

// A balancer is a site whose load changes all the time.
type balancer int

func (b balancer) Read(context.Context) (sitereport.Reading, error) {
	var r sitereport.Reading
	sum, rate, bits := uint64(0), 1000*rand.Float64(), rand.Uint64N(1e9)
	for n := range servicesPerSite {
		sessions := rand.Uint64N(10_000)
		sum += sessions
		v := sitereport.VirtualServer{Name: fmt.Sprintf("vs%d", n), Address: vip(int(b), n), Port: 443, Protocol: "tcp", Sessions: &sessions}
		for s := range serversEach {
			v.Servers = append(v.Servers, sitereport.Server{Name: fmt.Sprintf("server%d", s), Address: fmt.Sprintf("127.0.0.1:%d", 9000+s), State: sitereport.StateUp})
		}
		r.VirtualServers = append(r.VirtualServers, v)
	}
	r.Load = sitereport.Load{Sessions: &sum, NewSessions: &rate, BitsPerSecIn: &bits, BitsPerSecOut: &bits}
	return r, nil
}

// A sender presents the token, and takes the time until the answer is there.
type sender struct {
	*fleet
	http.RoundTripper
}

func (s *sender) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer token-of-the-sites")
	begin := time.Now()
	resp, err := s.RoundTripper.RoundTrip(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, time.Since(begin))
	return resp, err
}

// ask has each resolver ask each gslbd for its name, and counts the answers.
func (f *fleet) ask(ctx context.Context) {
	socket := f.resolvers.ListenPacket("udp4", ":0")
	go func() {
		for buf := make([]byte, 1500); ; {
			size, from, err := socket.ReadFrom(buf)
			if err != nil {
				return // the test is over
			}
			g := from.(*net.UDPAddr).AddrPort().Addr().Unmap().As4()[3] - 1
			f.bytesIn[g].Add(int64(size) + 28)
			f.answers[g].Add(1)
		}
	}()
	out := ipv4.NewPacketConn(socket)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begin, n := time.Now(), 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for due := int(time.Since(begin) * time.Duration(*numResolvers) / *askEvery); n < due; n++ {
			i := n % *numResolvers
			q := new(dns.Msg)
			q.SetQuestion(fmt.Sprintf("s%d.gslb.example.com.", i%*numAgents), dns.TypeA)
			q.SetEdns0(1232, false)
			text, err := q.Pack()
			if err != nil {
				panic(err)
			}
			for g := range f.gslbd {
				if _, err := out.WriteTo(text, &ipv4.ControlMessage{Src: resolver(i).AsSlice()}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, byte(g+1)), Port: 53}); err != nil {
					f.t.Errorf("asking as %s: %v", resolver(i), err)
					return
				}
				f.queries[g].Add(1)
				f.bytesOut[g].Add(int64(len(text)) + 28)
			}
		}
	}
}

// A use is what a process has used, and what passed its host's interface.
type use struct {
	cpu     time.Duration
	in, out int64
}

// measure waits, and logs what was used meanwhile.
func (f *fleet) measure() {
	f.t.Helper()
	hosts, all := slices.Concat(f.gslbd, f.realHosts), slices.Concat(f.processes, f.real)
	look := func() (u []use) {
		for i, p := range all {
			in, out := hosts[i].Traffic()
			if i < len(f.gslbd) { // without DNS
				in, out = in-f.bytesOut[i].Load(), out-f.bytesIn[i].Load()
			}
			u = append(u, use{p.CPU(), in, out})
		}
		return u
	}
	accepted := func(g *lab.Host) (sum float64) {
		for series, n := range f.series(g, "gslbd_reports_total{") {
			if strings.Contains(series, `result="accepted"`) {
				sum += n
			}
		}
		return sum
	}
	reports := make([]float64, len(f.gslbd))
	for i, g := range f.gslbd {
		reports[i] = -accepted(g)
	}
	f.mu.Lock()
	f.taken = nil
	f.mu.Unlock()
	before, begin := look(), time.Now()
	select {
	case <-time.After(*long):
	case <-f.t.Context().Done():
		f.t.Fatal(f.t.Context().Err())
	}
	after, took := look(), time.Since(begin)
	for i, g := range f.gslbd {
		reports[i] += accepted(g)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d agents, %d of them processes; %d gslbd; %d resolvers, each measured from %d sites every %s; %s\n\n", *numAgents, *numReal, *numGSLBD, *numResolvers,
		min(servicesPerSite, *numAgents), *refresh, took.Round(time.Second))
	fmt.Fprintf(&table, "| | reports a second | CPU, %% of a core | memory now; most | received | sent |\n|---|---|---|---|---|---|\n")
	for i, p := range all {
		perSecond := func(bytes int64) string { return fmt.Sprintf("%.1f kB/s", float64(bytes)/1e3/took.Seconds()) }
		rate := "1 to each"
		if i < len(reports) {
			rate = fmt.Sprintf("%.0f", reports[i]/took.Seconds())
		}
		now, most := p.Memory()
		fmt.Fprintf(&table, "| %s | %s | %.1f | %d; %d MB | %s | %s |\n", hosts[i].Name, rate, 100*(after[i].cpu-before[i].cpu).Seconds()/took.Seconds(),
			now/1e6, most/1e6, perSecond(after[i].in-before[i].in), perSecond(after[i].out-before[i].out))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.taken); n > 0 {
		slices.Sort(f.taken)
		fmt.Fprintf(&table, "\nFrom a report to its answer: median %s, 99th percentile %s, longest %s.\n", f.taken[n/2].Round(time.Microsecond), f.taken[n*99/100].Round(time.Microsecond), f.taken[n-1].Round(time.Microsecond))
	}
	f.t.Log(table.String())
}

// series returns the series of the telemetry on the host whose names begin so.
func (f *fleet) series(h *lab.Host, prefix string) map[string]float64 {
	port := "8053"
	if slices.Contains(f.realHosts, h) {
		port = "8055"
	}
	out, err := h.Run("curl", "-sS", "-m", "5", "http://127.0.0.1:"+port+"/metrics")
	if err != nil {
		return nil // whoever waits looks again
	}
	all := map[string]float64{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(line, prefix) {
			all[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return all
}

func values(m map[string]float64) (v []float64) {
	for _, x := range m {
		v = append(v, x)
	}
	return v
}

// gathered returns the series of an agent.
func gathered(t *testing.T, a *sitereport.Agent) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(a)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(",%s=%q", l.GetName(), l.GetValue())
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}
