//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A World is the seeds' network: a site in Korea with VIP 1.1.1.1 and one in the United States with VIP 2.2.2.2, each with
// HAProxy, two servers and an agent; a gslbd beside each; a root and a parent zone that delegates to both; resolvers in
// Korea, the United States and Hong Kong, and clients there.
//
//	one way   Korea   US      Hong Kong
//	Korea     1 ms    90 ms   100 ms
//	US                1 ms    15 ms
//
// So a resolver in Hong Kong is 200 ms from Korea and 30 ms from the United States.
type World struct {
	*Network
	Korea, US    *Site
	Root, Parent *Host
	GSLBD        [2]*GSLBD        // in Korea and in the United States
	Resolvers    map[string]*Host // by region
	Clients      map[string]*Host // by region

	bin string
}

// The regions.
const (
	Korea    = "korea"
	US       = "us"
	HongKong = "hongkong"
)

// A Site is a data centre.
type Site struct {
	Name    string
	VIP     string
	SLB     *Host // with HAProxy and the agent
	Servers [2]*Server
	HAProxy *Process
	Agent   *Process

	world     *World
	agentConf string
}

// A Server is a web server behind a site's SLB, which names itself. Its health can be taken away.
type Server struct {
	Name string
	Addr string
	host *Host
	sick atomic.Bool
}

// SetHealthy says whether the server passes its health check.
func (s *Server) SetHealthy(ok bool) { s.sick.Store(!ok) }

// A GSLBD is a gslbd of the world.
type GSLBD struct {
	*Host
	Addr    string
	Process *Process

	// Listen are more addresses that it answers DNS on. A change takes Configure and Restart.
	Listen []string

	world  *World
	config string
}

// Programs builds gslbd, gslb-agent and gslbctl into a folder that is removed by the returned function.
func Programs(flags ...string) (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "gslbd-lab-bin")
	if err != nil {
		return "", nil, err
	}
	_ = os.Chmod(dir, 0o755)
	out, err := exec.Command("go", append(append([]string{"build"}, flags...), "-o", dir+"/", "gslbd/cmd/...")...).CombinedOutput()
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, func() { os.RemoveAll(dir) }, nil
}

// NewWorld builds the world. Programs come from bin; services is the part of gslbd's configuration from "policies" on.
func NewWorld(t testing.TB, bin, services string) *World {
	t.Helper()
	w := &World{Network: New(t), bin: bin, Resolvers: map[string]*Host{}, Clients: map[string]*Host{}}
	w.build(t, services)
	return w
}

// delays sets how far the regions are from each other.
func (w *World) delays() {
	for _, r := range []string{Korea, US, HongKong} {
		w.Set(r, r, Link{Delay: time.Millisecond})
	}
	w.Set(Korea, US, Link{Delay: 90 * time.Millisecond})
	w.Set(Korea, HongKong, Link{Delay: 100 * time.Millisecond})
	w.Set(US, HongKong, Link{Delay: 15 * time.Millisecond})
}

// build builds all hosts and starts their programs.
func (w *World) build(t testing.TB, services string) {
	t.Helper()
	w.delays()
	w.names(t)
	w.Korea = w.site(t, "seoul", Korea, "1.1.1.1", "10.1.1")
	w.US = w.site(t, "virginia", US, "2.2.2.2", "10.2.1")
	for i, at := range []struct{ name, region, addr string }{{"gslbd1", Korea, "10.1.0.53"}, {"gslbd2", US, "10.2.0.53"}} {
		g := &GSLBD{Host: w.Host(at.name, at.region, at.addr), Addr: at.addr, world: w}
		w.GSLBD[i] = g
		g.Configure(services)
		g.Run()
	}
	for _, s := range []*Site{w.Korea, w.US} {
		s.StartAgent()
	}
	for _, at := range []struct{ region, resolver, client string }{
		{Korea, "168.126.63.1", "168.126.63.100"}, {US, "8.8.8.8", "8.8.8.100"}, {HongKong, "11.1.1.1", "11.1.1.100"},
	} {
		w.Resolvers[at.region] = w.Resolver("resolver-"+at.region, at.region, at.resolver, "")
		client := w.Host("client-"+at.region, at.region, at.client)
		client.ResolveBy(netip.MustParseAddr(at.resolver))
		w.Clients[at.region] = client
	}
}

// names starts the root and the parent zone, by NSD.
func (w *World) names(t testing.TB) {
	t.Helper()
	nsd := Program(t, "nsd")
	start := func(h *Host, addr, zone, text string) {
		file := h.File("zone", text)
		conf := h.File("nsd.conf", fmt.Sprintf(`server:
  ip-address: %s
  username: ""
  chroot: ""
  zonesdir: %q
  database: ""
  pidfile: ""
  xfrdfile: %q
  zonelistfile: %q
  server-count: 1
remote-control:
  control-enable: no
zone:
  name: %q
  zonefile: %q
`, addr, h.Dir(), h.Dir()+"/xfrd", h.Dir()+"/zone.list", zone, file))
		h.Start(nsd, "-d", "-c", conf)
	}
	w.Root = w.Host("root", US, "10.0.0.1")
	start(w.Root, "10.0.0.1", ".", `. 3600 IN SOA a.root. hostmaster.root. 1 7200 900 1209600 300
. 3600 IN NS a.root.
a.root. 3600 IN A 10.0.0.1
example.com. 3600 IN NS ns.example.com.
ns.example.com. 3600 IN A 10.0.0.2
`)
	w.Parent = w.Host("parent", US, "10.0.0.2")
	start(w.Parent, "10.0.0.2", "example.com.", `$ORIGIN example.com.
@ 3600 IN SOA ns hostmaster 1 7200 900 1209600 300
@ 3600 IN NS ns
ns 3600 IN A 10.0.0.2
www 60 IN CNAME www.gslb
gslb 3600 IN NS ns1.gslb
gslb 3600 IN NS ns2.gslb
ns1.gslb 3600 IN A 10.1.0.53
ns2.gslb 3600 IN A 10.2.0.53
`)
}

// sendSubnets has unbound pass its clients' networks on to gslbd, and keep answers for the networks that they are for.
const sendSubnets = `  module-config: "subnetcache iterator"
  send-client-subnet: 10.1.0.53
  send-client-subnet: 10.2.0.53
  client-subnet-always-forward: yes
  max-client-subnet-ipv4: 24
`

// Resolver starts an unbound that knows the root; more is the rest of its section server.
func (w *World) Resolver(name, region, addr, more string) *Host {
	w.t.Helper()
	h := w.Host(name, region, addr)
	hints := h.File("root.hints", ". 3600 IN NS a.root.\na.root. 3600 IN A 10.0.0.1\n")
	if more == "" {
		more = "  module-config: \"iterator\"\n"
	}
	// A query that is under way when a server dies is sent to it again, or to another one, by chance, and unbound waits twice as
	// long each time: after five tries, by default, longer than a client does. And of what took it 1.9 s, by default, unbound tells
	// the client nothing at all, who then waits for its own timeout: two tries at a server that has died may take as long.
	conf := h.File("unbound.conf", fmt.Sprintf(`server:
  outbound-msg-retry: 2
  discard-timeout: 0
  interface: %s
  access-control: 0.0.0.0/0 allow
  username: ""
  chroot: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  do-ip6: no
  root-hints: %q
  num-threads: 1
  infra-cache-min-rtt: 50
  cache-max-negative-ttl: 2
%sremote-control:
  control-enable: no
`, addr, h.Dir(), hints, more))
	h.Start(Program(w.t, "unbound"), "-d", "-p", "-c", conf)
	return h
}

// site starts two servers and an SLB in front of them.
func (w *World) site(t testing.TB, name, region, vip, network string) *Site {
	t.Helper()
	s := &Site{Name: name, VIP: vip, world: w}
	for i := range s.Servers {
		n := i + 1
		if region == US {
			n += 2
		}
		srv := &Server{Name: fmt.Sprintf("server%d", n), Addr: fmt.Sprintf("%s.%d0", network, i+1)}
		srv.host = w.Host(srv.Name, region, srv.Addr)
		srv.host.Serve(srv.Addr+":80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch {
			case srv.sick.Load():
				http.Error(rw, "sick", http.StatusServiceUnavailable)
			case r.URL.Path == "/slow": // a session that stays open
				<-r.Context().Done()
			default:
				io.WriteString(rw, srv.Name+" "+name+"\n")
			}
		}))
		s.Servers[i] = srv
	}
	s.SLB = w.Host("slb-"+name, region, vip)
	conf := s.SLB.File("haproxy.cfg", fmt.Sprintf(`global
  stats socket %s/haproxy.sock mode 600 level admin
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend fe-web
  bind %s:80
  default_backend be-web
backend be-web
  option httpchk GET /healthz
  server %s %s:80 check inter 500ms fall 2 rise 2
  server %s %s:80 check inter 500ms fall 2 rise 2
`, s.SLB.Dir(), vip, s.Servers[0].Name, s.Servers[0].Addr, s.Servers[1].Name, s.Servers[1].Addr))
	s.HAProxy = s.SLB.Start(Program(t, "haproxy"), "-db", "-f", conf)
	s.agentConf = s.SLB.File("agent.yaml", fmt.Sprintf(`site: %s
agent: lb1
servers: ["http://10.1.0.53:8054", "http://10.2.0.53:8054"]
token_file: token
interval: 1s
draining: {enabled: true}
haproxy:
  - socket: %s/haproxy.sock
    virtual_servers:
      - {name: web, frontend: fe-web, backend: be-web, address: %s, port: 80, protocol: tcp}
`, name, s.SLB.Dir(), vip))
	s.SLB.secret("token", "token-of-"+name)
	return s
}

func (h *Host) secret(name, text string) {
	path := h.File(name, text+"\n")
	if err := os.Chmod(path, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// StartAgent starts the site's agent, again if it was stopped.
func (s *Site) StartAgent() {
	s.Agent = s.SLB.Start(filepath.Join(s.world.bin, "gslb-agent"), "--config", s.agentConf)
}

// SetHealthy says whether both servers pass their health checks.
func (s *Site) SetHealthy(ok bool) {
	for _, srv := range s.Servers {
		srv.SetHealthy(ok)
	}
}

// project is the folder of the project.
func project(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "gslbd").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// Configure writes the configuration; services is its part from "policies" on.
func (g *GSLBD) Configure(services string) {
	g.t.Helper()
	g.secret("token-seoul", "token-of-seoul")
	g.secret("token-virginia", "token-of-virginia")
	g.File("gslb.example.com.zone", `$ORIGIN gslb.example.com.
@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300
@ 3600 IN NS ns1
@ 3600 IN NS ns2
ns1 3600 IN A 10.1.0.53
ns2 3600 IN A 10.2.0.53
`)
	listen := ""
	for _, a := range g.Listen {
		listen += fmt.Sprintf(", %q", a+":53")
	}
	g.config = g.File("gslbd.yaml", fmt.Sprintf(`dns: {listen: ["%s:53"%[4]s], nsid: %[2]s, drain_time: 2s}
reports: {listen: "%[1]s:8054", interval: 1s, stale_after: 3s, dead_after: 6s}
admin: {listen: "127.0.0.1:8053"}
rtt: {refresh: 10s, silent_for: 10s}
geo: {databases: [%[3]s/testdata/geo/cities.mmdb], overrides: [{prefix: 11.1.1.0/24, continent: AS, country: HK, latitude: 22.28, longitude: 114.16}]}
sites:
  - {name: seoul, zone: apne2-az1, region: ap-northeast-2, location: {continent: AS, country: KR, latitude: 37.57, longitude: 126.98}, capacity: {sessions: 100, bandwidth: 900Mbps, hold: 2s}, token_file: token-seoul}
  - {name: virginia, zone: use1-az1, region: us-east-1, location: {continent: NA, country: US, latitude: 38.95, longitude: -77.45}, capacity: {sessions: 100, bandwidth: 900Mbps, hold: 2s}, token_file: token-virginia}
zones: [{name: gslb.example.com, file: gslb.example.com.zone}]
`, g.Addr, g.Name, project(g.t), listen)+services)
}

// Run starts the server and waits until it is ready.
func (g *GSLBD) Run() {
	g.t.Helper()
	g.Process = g.Start(filepath.Join(g.world.bin, "gslbd"), "--config", g.config)
	g.await()
}

// Launch starts another build of the server, with more in its environment, and does not wait.
func (g *GSLBD) Launch(program string, env ...string) *Process {
	g.Process = g.Start("env", append(env, program, "--config", g.config)...)
	return g.Process
}

// Restart ends the server in order and starts it again.
func (g *GSLBD) Restart() {
	g.t.Helper()
	g.Process.stop()
	g.Run()
}

func (g *GSLBD) await() {
	g.t.Helper()
	Eventually(g.t, 30*time.Second, g.Name+" is ready", func() bool {
		if g.Process.Exited() {
			g.t.Fatalf("%s ended:\n%s", g.Name, g.Process.Log())
		}
		out, err := g.Host.Run("curl", "-sS", "-m", "2", "http://127.0.0.1:8053/readyz")
		return err == nil && strings.Contains(out, "ready") && !strings.Contains(out, "not ready")
	})
}

// Ctl runs gslbctl beside the server.
func (g *GSLBD) Ctl(args ...string) (string, error) {
	return g.Host.Run(filepath.Join(g.world.bin, "gslbctl"), args...)
}

// Explain returns what settles the answer for a resolver, and what gslbctl prints of it.
func (g *GSLBD) Explain(name, client string) (reason, text string) {
	g.t.Helper()
	out, err := g.Ctl("explain", name, "--client", client, "--json")
	var e struct {
		Answer struct {
			Reason string `json:"reason"`
		} `json:"answer"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &e)
	}
	if err != nil {
		g.t.Fatalf("explain: %v\n%s", err, out)
	}
	text, _ = g.Ctl("explain", name, "--client", client)
	return e.Answer.Reason, text
}

// Metric returns the value of a series of the server's telemetry; "": it has none.
func (g *GSLBD) Metric(series string) string {
	out, _ := g.Host.Run("curl", "-sS", "-m", "2", "http://127.0.0.1:8053/metrics")
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Fetch gets the page as a client of the region does, by name through its resolver. It returns the page, which names the
// server and the site; "": there was none.
func (w *World) Fetch(region string) string {
	out, err := w.Clients[region].Run("curl", "-sS", "-m", "3", "-H", "Connection: close", "http://www.example.com/")
	if err != nil {
		return ""
	}
	return out
}

// Reaches fetches until the page is of the site, and returns how long that took.
func (w *World) Reaches(region string, s *Site, within time.Duration) time.Duration {
	w.t.Helper()
	var page string
	return Eventually(w.t, within, "a client in "+region+" reaches "+s.Name, func() bool {
		page = w.Fetch(region)
		return strings.HasSuffix(page, " "+s.Name)
	})
}

// Eventually polls until ok and returns how long that took; it fails the test after within.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > within {
			t.Fatalf("did not happen within %v: %s", within, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return time.Since(begin)
}
