package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// A backend is a web server behind the HAProxy of a test; its health check can be made to fail.
type backend struct {
	addr string
	sick atomic.Bool
}

func startBackend(t *testing.T, name string) *backend {
	t.Helper()
	b := &backend{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.sick.Load() {
			http.Error(w, "sick", http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/slow" { // a session that stays open
			<-r.Context().Done()
			return
		}
		io.WriteString(w, name+"\n")
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return b
}

// A haproxySite is a site with a real HAProxy before two web servers, and a real agent beside it.
type haproxySite struct {
	vip     string // host:port that HAProxy listens on
	socket  string // its runtime socket
	servers [2]*backend
	haproxy *process
	agent   *process
}

// startHAProxySite starts a site whose frontend listens on host, a loopback address, and whose agent reports to servers.
// extra is added to the agent's file.
func startHAProxySite(t *testing.T, site, host, extra string, servers ...*gslbd) *haproxySite {
	t.Helper()
	var reports []string
	for _, s := range servers {
		reports = append(reports, "http://"+s.reports)
	}
	haproxy := lab.Program(t, "haproxy")
	x := &haproxySite{servers: [2]*backend{startBackend(t, site+"-server1"), startBackend(t, site+"-server2")}}
	x.vip = freePort(t, host)
	_, port, _ := net.SplitHostPort(x.vip)
	dir := t.TempDir()
	sock := filepath.Join(dir, "haproxy.sock")
	conf := fmt.Sprintf(`global
  stats socket %s mode 600 level admin
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend fe-web
  bind %s
  default_backend be-web
backend be-web
  option httpchk GET /healthz
  server server1 %s check inter 500ms fall 2 rise 2
  server server2 %s check inter 500ms fall 2 rise 2
`, sock, x.vip, x.servers[0].addr, x.servers[1].addr)
	write(t, filepath.Join(dir, "haproxy.cfg"), conf)
	x.haproxy = start(t, haproxy, "-db", "-f", filepath.Join(dir, "haproxy.cfg"))
	lab.Eventually(t, 10*time.Second, "HAProxy serves", func() bool {
		resp, err := http.Get("http://" + x.vip + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	write(t, filepath.Join(dir, "agent.yaml"), fmt.Sprintf(`site: %s
servers: [%s]
interval: 1s
haproxy:
  - socket: %s
    virtual_servers:
      - {name: web, frontend: fe-web, backend: be-web, address: %s, port: %s, protocol: tcp}
`, site, quoted(reports), sock, host, port)+extra)
	x.socket = sock
	x.agent = start(t, filepath.Join(binaries, "gslb-agent"), "--config", filepath.Join(dir, "agent.yaml"))
	return x
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A real HAProxy with two backends at each of two sites, and a real agent beside each: stopping the backends of a site
// changes the answer in time, and open connections show as sessions.
func TestHAProxyAndAgent(t *testing.T) {
	t.Parallel()
	lab.Program(t, "haproxy")
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [127.0.11.1], preference: 50}
      - {name: virginia, site: virginia, addresses: [127.0.12.1]}
`)
	startHAProxySite(t, "seoul", "127.0.11.1", "", s)
	virginia := startHAProxySite(t, "virginia", "127.0.12.1", "", s)
	s.wantAnswer(t, 10*time.Second, www, "127.0.12.1")

	// 500 connections, held open.
	conns := make([]net.Conn, 0, 500)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 500 {
		c, err := net.Dial("tcp", virginia.vip)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	lab.Eventually(t, 2*within, "500 open connections show as 500 sessions", func() bool {
		n, err := strconv.ParseFloat(s.scrape(t, `gslbd_site_sessions{site="virginia"}`), 64)
		return err == nil && n == 500
	})

	// One server down: the site still serves. Both down: the answer changes.
	virginia.servers[0].sick.Store(true)
	lab.Eventually(t, 10*time.Second, "one server of two is up in status", func() bool {
		var st struct {
			Sites []struct {
				Name      string `json:"name"`
				ServersUp *int   `json:"servers_up"`
			} `json:"sites"`
		}
		if err := json.Unmarshal([]byte(s.ctl(t, "status", "--json")), &st); err != nil {
			t.Fatal(err)
		}
		for _, site := range st.Sites {
			if site.Name == "virginia" {
				return site.ServersUp != nil && *site.ServersUp == 1
			}
		}
		return false
	})
	if got := s.answer(t, www); got != "127.0.12.1" {
		t.Errorf("with one server left the site is not answered: %q", got)
	}
	virginia.servers[1].sick.Store(true)
	took := s.wantAnswer(t, 10*time.Second, www, "127.0.11.1")
	t.Logf("the answer changed %v after the last server failed", took)

	virginia.servers[0].sick.Store(false)
	virginia.servers[1].sick.Store(false)
	s.wantAnswer(t, 10*time.Second, www, "127.0.12.1")

	// HAProxy itself dies: its servers are unknown, which is not down; after dead_after the site is.
	_ = virginia.agent.cmd.Process.Kill()
	s.waitLog("site dead", 20*time.Second)
	s.wantAnswer(t, within, www, "127.0.11.1")
}

// The agent measures the resolvers that ask, by real ICMP on loopback, and the round trips come back.
func TestAgentMeasuresResolvers(t *testing.T) {
	t.Parallel()
	lab.Need(t, os.Geteuid() == 0, "root (raw ICMP)")
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: fastest
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [127.0.11.1]}
      - {name: virginia, site: virginia, addresses: [127.0.12.1]}
`)
	for _, site := range []string{"seoul", "virginia"} {
		conf := filepath.Join(t.TempDir(), "agent.yaml")
		b := startBackend(t, site)
		_, port, _ := net.SplitHostPort(b.addr)
		write(t, conf, fmt.Sprintf(`site: %s
servers: ["http://%s"]
interval: 1s
virtual_servers:
  - name: web
    address: %s
    port: %s
    protocol: tcp
    servers: [{name: server1, address: "%s"}]
    check: {type: http, path: /healthz, interval: 1s, timeout: 500ms}
`, site, s.reports, map[string]string{"seoul": "127.0.11.1", "virginia": "127.0.12.1"}[site], port, b.addr))
		start(t, filepath.Join(binaries, "gslb-agent"), "--config", conf)
	}
	client := question{name: "www.gslb.example.com", source: "127.0.0.53"}
	lab.Eventually(t, 20*time.Second, "round trips of both sites to the resolver", func() bool {
		s.answer(t, client)
		out, code := s.tryCtl(t, "rtt", "127.0.0.53")
		return code == 0 && strings.Contains(out, "seoul") && strings.Contains(out, "virginia") && strings.Contains(out, "ms")
	})
}
