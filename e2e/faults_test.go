package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// Whatever is wrong with a new configuration or with what it names, a reload says all of it and changes nothing.
func TestBrokenReloadChangesNothing(t *testing.T) {
	s := startGSLBD(t, seedNetwork+seedService("nearest"))
	hongKong := question{name: "www.gslb.example.com", ecs: "11.1.1.0/24"}
	good := seedNetwork + seedService("nearest")
	html := filepath.Join(s.dir, "page.mmdb")
	write(t, html, "<html><body>404 Not Found</body></html>")
	zone := filepath.Join(s.dir, "broken.zone")
	write(t, zone, "$ORIGIN gslb.example.com.\n@ 3600 IN SOA ns1 hostmaster ( 1 2 3 )\n")
	for name, x := range map[string]struct{ body, want string }{
		"unknown site": {
			strings.ReplaceAll(strings.ReplaceAll(good, "site: seoul,", "site: seol,"), "addresses: [1.1.1.1]", "addresses: [9.9.9.9]"),
			`unknown site "seol"`,
		},
		"unit":     {strings.Replace(good, "bandwidth: 900Mbps", "bandwidth: \"900\"", 1), "sites[0].capacity.bandwidth"},
		"database": {strings.Replace(good, "testdata/geo/cities.mmdb", html, 1), "page.mmdb"},
		"zone":     {strings.Replace(good, "testdata/zones/gslb.example.com.zone", zone, 1), "broken.zone:"},
		"not YAML": {"sites: [\n", "yaml"},
	} {
		s.write(t, x.body)
		out, code := s.tryCtl(t, "reload")
		if code != 1 || !strings.Contains(out, x.want) {
			t.Errorf("%s: gslbctl reload: exit status %d, want 1 and %q\n%s", name, code, x.want, out)
		}
		check, err := exec.Command(filepath.Join(binaries, "gslbd"), "check", "--config", s.config).CombinedOutput()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 2 || !strings.Contains(string(check), x.want) {
			t.Errorf("%s: gslbd check: %v\n%s", name, err, check)
		}
		if got := s.answer(t, hongKong); got != "1.1.1.1" {
			t.Errorf("%s: the answer became %q", name, got)
		}
	}
	if got := s.scrape(t, `gslbd_config_reloads_total{result="failure"}`); got != "5" {
		t.Errorf("%q failed reloads are counted, want 5", got)
	}
	// The running server still reloads a good file, by signal too.
	s.write(t, strings.ReplaceAll(good, "addresses: [1.1.1.1]", "addresses: [9.9.9.9]"))
	s.signal(syscall.SIGHUP)
	s.wantAnswer(t, within, hongKong, "9.9.9.9")
}

// A reload keeps what is measured, the counters and the sockets, and says what needs a restart.
func TestReloadKeeps(t *testing.T) {
	t.Parallel()
	s, _, virginia := startSeed(t, "", "active-standby")
	virginia.set(0, "down", "")
	lab.Eventually(t, within, "virginia is down", func() bool {
		return s.scrape(t, `gslbd_member_up{family="ipv4",member="virginia",service="www.gslb.example.com"}`) == "0"
	})
	for range 10 {
		s.answer(t, www)
	}
	before := s.scrape(t, `gslbd_answers_total{member="seoul",service="www.gslb.example.com"}`)
	conn, err := dns.Dial("tcp", s.dns)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.reload(t, seedNetwork+strings.Replace(seedService("nearest"), "ttl: 1", "ttl: 7", 1))
	m := new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA)
	if err := conn.WriteMsg(m); err != nil {
		t.Fatalf("the connection from before the reload: %v", err)
	}
	reply, err := conn.ReadMsg()
	if err != nil {
		t.Fatalf("the connection from before the reload: %v", err)
	}
	if len(reply.Answer) != 1 || reply.Answer[0].Header().Ttl != 7 || addresses(reply)[0] != "1.1.1.1" {
		t.Errorf("after the reload: %v", reply)
	}
	if after := s.scrape(t, `gslbd_answers_total{member="seoul",service="www.gslb.example.com"}`); before == "" || after < before && len(after) <= len(before) {
		t.Errorf("the counter went from %s to %s", before, after)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	moved := freeAddr(t)
	write(t, s.config, strings.Replace(string(text), s.dns, moved, 1))
	if out := s.ctl(t, "reload"); !strings.Contains(out, "restart") || !strings.Contains(out, "dns.listen") {
		t.Errorf("a changed dns.listen is not said to need a restart:\n%s", out)
	}
}

// A second server on the same state or the same addresses refuses to start, with a reason.
func TestSecondServerRefuses(t *testing.T) {
	s := startGSLBD(t, seedNetwork+seedService("nearest"))
	run := func() string {
		cmd := exec.Command(filepath.Join(binaries, "gslbd"), "--config", s.config)
		out, err := cmd.CombinedOutput()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 1 {
			t.Errorf("a second gslbd ended with %v, want exit status 1", err)
		}
		return string(out)
	}
	if out := run(); !strings.Contains(out, "another gslbd") {
		t.Errorf("same directory: %s", out)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.config, strings.Replace(string(text), "directory: state", "directory: state2", 1))
	if out := run(); !strings.Contains(out, s.dns) || !strings.Contains(out, "in use") {
		t.Errorf("same address: %s", out)
	}
	if got := s.answer(t, question{name: "www.gslb.example.com", ecs: "11.1.1.0/24"}); got != "1.1.1.1" {
		t.Errorf("the first server answers %q", got)
	}
}

// Wrong usage and wrong configuration exit with status 2, what cannot be reached with 1, and a valid configuration with 0.
func TestExitStatus(t *testing.T) {
	example, err := os.ReadFile("../agent.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(agent, bytes.Replace(example, []byte("127.0.0.1:8054"), []byte("127.0.0.1:9"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		want int
		text string
	}{
		{[]string{"gslbd"}, 2, "--config"},
		{[]string{"gslbd", "--config", "/nonexistent.yaml"}, 2, "/nonexistent.yaml"},
		{[]string{"gslbd", "--nope"}, 2, "nope"},
		{[]string{"gslbd", "frobnicate"}, 2, "frobnicate"},
		{[]string{"gslbd", "version"}, 0, "gslbd "},
		{[]string{"gslbd", "check", "--config", "../config.example.yaml"}, 0, "valid"},
		{[]string{"gslb-agent", "check", "--config", agent}, 1, "valid"},
		{[]string{"gslb-agent", "once", "--dry-run", "--config", agent}, 0, `"site": "seoul"`},
		{[]string{"gslb-agent", "--config", "/nonexistent.yaml"}, 2, "/nonexistent.yaml"},
		{[]string{"gslbctl", "status", "--server", "http://127.0.0.1:9"}, 1, "refused"},
		{[]string{"gslbctl", "frobnicate"}, 2, "frobnicate"},
	} {
		cmd := exec.Command(filepath.Join(binaries, x.args[0]), x.args[1:]...)
		out, _ := cmd.CombinedOutput() // the status is compared below
		if got := cmd.ProcessState.ExitCode(); got != x.want || !strings.Contains(string(out), x.text) {
			t.Errorf("%v: exit status %d, want %d and %q\n%s", x.args, got, x.want, x.text, out)
		}
	}
}

// A site that falls silent is stale, then dead: without a check of our own its members are down. When all sites fall
// silent at once the fault is ours: the answers stay.
func TestSilence(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+strings.Replace(seedService("active-standby"), "addresses: [2.2.2.2]}", "addresses: [2.2.2.2], preference: 200}", 1))
	seoul := &seedSite{site: "seoul", vip: "1.1.1.1", servers: "up"}
	virginia := &seedSite{site: "virginia", vip: "2.2.2.2", servers: "up"}
	s.keepReporting(t, "seoul", seoul.body, seoul.answered)
	s.report(t, "virginia", virginia.body())
	s.wantAnswer(t, within, www, "2.2.2.2")
	s.waitLog("site stale", 10*time.Second)
	if got := s.answer(t, www); got != "2.2.2.2" {
		t.Errorf("a stale site lost its health: %q", got)
	}
	took := s.wantAnswer(t, 10*time.Second, www, "1.1.1.1")
	t.Logf("the silent site left the answers %v after it was stale", took)
	s.report(t, "virginia", virginia.body())
	s.wantAnswer(t, within, www, "2.2.2.2")
}

func TestBlindness(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+strings.Replace(seedService("active-standby"), "addresses: [2.2.2.2]}", "addresses: [2.2.2.2], preference: 200}", 1))
	seoul := &seedSite{site: "seoul", vip: "1.1.1.1", servers: "up"}
	virginia := &seedSite{site: "virginia", vip: "2.2.2.2", servers: "down"}
	s.report(t, "seoul", seoul.body())
	s.report(t, "virginia", virginia.body())
	s.wantAnswer(t, within, www, "1.1.1.1")
	lab.Eventually(t, 15*time.Second, "gslbd knows that it is blind", func() bool { return s.scrape(t, "gslbd_blind") == "1" })
	if got := s.answer(t, www); got != "1.1.1.1" {
		t.Errorf("blind, it answers %q, want what it knew", got)
	}
	if m := s.ask(t, www); m.Answer[0].Header().Ttl != 1 || m.Rcode != dns.RcodeSuccess {
		t.Errorf("blind, it answers %v", m)
	}
	resp, err := http.Get("http://" + s.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("readiness failed by blindness: %s", resp.Status)
	}
	s.report(t, "seoul", seoul.body())
	lab.Eventually(t, within, "the first fresh report ends it", func() bool { return s.scrape(t, "gslbd_blind") == "0" })
}

// gslbd's own check takes a member out whose VIP cannot be used, whatever the site reports.
func TestOwnCheck(t *testing.T) {
	t.Parallel()
	near, far := startBackend(t, "near"), startBackend(t, "far")
	_, nearPort, _ := net.SplitHostPort(near.addr)
	_, farPort, _ := net.SplitHostPort(far.addr)
	s := startGSLBD(t, seedNetwork+fmt.Sprintf(`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    health_check: {type: http, path: /healthz, expect: [200], interval: 300ms, timeout: 200ms, rise: 2, fall: 3}
    members:
      - {name: near, site: seoul, addresses: [127.0.0.1], port: %s, preference: 200}
      - {name: far, site: virginia, addresses: [127.0.0.2], port: %s}
`, nearPort, farPort))
	// The backend of far listens on 127.0.0.1 only, so its check is refused.
	lab.Eventually(t, within, "far is down by its own check", func() bool {
		return s.scrape(t, `gslbd_member_up{family="ipv4",member="far",service="www.gslb.example.com"}`) == "0"
	})
	if got := s.answer(t, www); got != "127.0.0.1" {
		t.Errorf("answered %q", got)
	}
	near.sick.Store(true)
	lab.Eventually(t, within, "near is down: HTTP 503", func() bool { return strings.Contains(s.ctl(t, "status"), "HTTP 503") })
	near.sick.Store(false)
	lab.Eventually(t, within, "near is up again", func() bool {
		return s.scrape(t, `gslbd_member_up{family="ipv4",member="near",service="www.gslb.example.com"}`) == "1"
	})
}

// A database that is overwritten in place, cut short, replaced by a web page or removed while queries come in leaves the
// old one in force; a good one takes effect.
func TestDatabaseReplacedWhileServing(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile("../testdata/geo/cities.mmdb")
	if err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(t.TempDir(), "cities.mmdb")
	write(t, db, string(good))
	s := startGSLBD(t, strings.Replace(seedNetwork, "testdata/geo/cities.mmdb", db, 1)+seedService("nearest"))
	california := question{name: "www.gslb.example.com", ecs: "8.8.8.0/24"}
	hongKong := question{name: "www.gslb.example.com", ecs: "11.1.1.0/24"}
	for name, broken := range map[string][]byte{
		"cut short":  good[:len(good)/2],
		"zeroes":     bytes.Repeat([]byte{0}, len(good)),
		"a web page": []byte("<html>quota exceeded</html>"),
		"empty":      nil,
	} {
		f, err := os.OpenFile(db, os.O_WRONLY|os.O_TRUNC, 0) // in place, as a careless download does
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(broken); err != nil {
			t.Fatal(err)
		}
		f.Close()
		until := time.Now().Add(300 * time.Millisecond)
		for time.Now().Before(until) {
			if s.answer(t, california) != "2.2.2.2" || s.answer(t, hongKong) != "1.1.1.1" {
				t.Fatalf("%s: the answers changed", name)
			}
		}
	}
	s.waitLog("cities.mmdb", 15*time.Second)
	lab.Eventually(t, 20*time.Second, "the failure is counted", func() bool { return s.scrape(t, `gslbd_geo_reloads_total{result="failure"}`) != "0" })
	if out := s.ctl(t, "status"); !strings.Contains(out, "keeps a geo database") {
		t.Errorf("status does not tell of the database:\n%s", out)
	}
	// A bad download does not stand in the way of a change elsewhere, in an emergency.
	if out := s.ctl(t, "reload"); !strings.Contains(out, "stays in force") {
		t.Errorf("the reload does not say that the database is an old one:\n%s", out)
	}
	if s.answer(t, california) != "2.2.2.2" || s.answer(t, hongKong) != "1.1.1.1" {
		t.Error("the reload lost the database that was in force")
	}
	loaded := s.scrape(t, `gslbd_geo_reloads_total{result="success"}`)
	write(t, db, string(good))
	lab.Eventually(t, 20*time.Second, "the good database is loaded", func() bool { return s.scrape(t, `gslbd_geo_reloads_total{result="success"}`) != loaded })
	if s.answer(t, california) != "2.2.2.2" {
		t.Error("the good database does not place California")
	}
}

// Reports that cannot be read are refused with a reason, and what was known stays.
func TestBadReports(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+strings.Replace(seedService("active-standby"), "addresses: [2.2.2.2]}", "addresses: [2.2.2.2], preference: 200}", 1))
	down := &seedSite{site: "virginia", vip: "2.2.2.2", servers: "down"}
	s.report(t, "virginia", down.body())
	s.wantAnswer(t, within, www, "1.1.1.1")
	for name, x := range map[string]struct {
		site, body string
		code       int
		want       string
	}{
		"not JSON":     {"virginia", "<html>", 400, ""},
		"cut off":      {"virginia", `{"site": "virginia", "virtual_servers": [{"name": "we`, 400, ""},
		"negative":     {"virginia", `{"site": "virginia", "load": {"sessions": -1}}`, 400, "load.sessions"},
		"state":        {"virginia", `{"site": "virginia", "virtual_servers": [{"name": "web", "servers": [{"name": "a", "state": "fine"}]}]}`, 400, "state"},
		"other site":   {"virginia", `{"site": "seoul"}`, 400, "site"},
		"unknown site": {"atlantis", `{"site": "atlantis"}`, 404, "atlantis"},
		"too large":    {"virginia", `{"site": "virginia", "agent": "` + strings.Repeat("x", 5<<20) + `"}`, 413, ""},
	} {
		code, answer := s.postReport(t, x.site, x.body)
		if code != x.code || !strings.Contains(answer, x.want) {
			t.Errorf("%s: %d %s, want %d and %q", name, code, answer, x.code, x.want)
		}
		if got := s.answer(t, www); got != "1.1.1.1" {
			t.Errorf("%s: the answer became %q", name, got)
		}
	}
	if out := s.ctl(t, "status"); !strings.Contains(out, "site virginia: its reports are refused") {
		t.Errorf("status does not tell of the refused reports:\n%s", out)
	}
	lab.Eventually(t, within, "a report is accepted again", func() bool {
		code, _ := s.postReport(t, "virginia", down.body())
		return code == http.StatusOK
	})
	if out := s.ctl(t, "status"); strings.Contains(out, "are refused") {
		t.Errorf("status still tells of refused reports:\n%s", out)
	}
}

// Connections that the kernel has accepted by the time that the server stops are answered, not reset.
func TestStopAnswersQueuedConnections(t *testing.T) {
	s := startGSLBD(t, seedNetwork+seedService("nearest"))
	s.signal(syscall.SIGSTOP) // so that they queue
	var conns []*dns.Conn
	for i := range 240 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(i%4), 1)}}
		c, err := d.Dial("tcp", s.dns)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conn := &dns.Conn{Conn: c}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	s.signal(os.Interrupt)
	s.signal(syscall.SIGCONT)
	for i, conn := range conns {
		if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
			t.Fatalf("connection %d: %v %v", i, m, err)
		}
	}
}
