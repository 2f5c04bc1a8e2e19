package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gslbd/e2e/lab"
)

// A session is an HTTP connection through HAProxy that has a request open: its backend has not answered yet.
type session struct{ conn net.Conn }

// openSession opens a connection and has one request answered on it.
func openSession(t *testing.T, vip string) *session {
	t.Helper()
	conn, err := net.Dial("tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /slow HTTP/1.1\r\nHost: www\r\n\r\n")
	return &session{conn}
}

// open reports whether the request still waits. One that HAProxy ends is answered by 502, on a connection that stays.
func (s *session) open() bool {
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := s.conn.Read(make([]byte, 512))
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// haproxyCommand gives a command on the runtime socket.
func (x *haproxySite) command(t *testing.T, command string) string {
	t.Helper()
	conn, err := net.Dial("unix", x.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (x *haproxySite) sick(sick bool) {
	for _, b := range x.servers {
		b.sick.Store(sick)
	}
}

// waitReports waits until the server has taken n more reports of the site.
func (s *gslbd) waitReports(t *testing.T, site string, n int) {
	t.Helper()
	taken := func() int {
		all, err := strconv.Atoi(s.scrape(t, `gslbd_reports_total{result="accepted",site="`+site+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	until := taken() + n
	lab.Eventually(t, 60*time.Second, fmt.Sprintf("%d more reports of %s", n, site), func() bool { return taken() >= until })
}

// drainingTime is the timeout of drainingService: long enough for a failover and a failback to fit in on a slow machine.
const drainingTime = 8 * time.Second

const drainingService = `services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    failover: {connection_draining: {enabled: true, timeout: 8s}}
    members:
      - {name: seoul, site: seoul, addresses: [127.0.11.1]}
      - {name: virginia, site: virginia, addresses: [127.0.12.1], role: backup}
`

// After failback the backups' remaining sessions live until the deadline and are then ended once, if all gslbd agree;
// their servers stay ready. A failover in the middle cancels that.
func TestConnectionDraining(t *testing.T) {
	t.Parallel()
	lab.Program(t, "haproxy")
	a, b := startGSLBD(t, seedNetwork+drainingService), startGSLBD(t, seedNetwork+drainingService)
	fleet := []*gslbd{a, b}
	seoul := startHAProxySite(t, "seoul", "127.0.11.1", "draining: {enabled: true}\n", fleet...)
	virginia := startHAProxySite(t, "virginia", "127.0.12.1", "draining: {enabled: true}\n", fleet...)
	all := func(want string) {
		t.Helper()
		for _, s := range fleet {
			s.wantAnswer(t, 15*time.Second, www, want)
		}
	}
	ready := func() {
		t.Helper()
		if out := virginia.command(t, "show stat"); strings.Contains(out, "DRAIN") || strings.Contains(out, "MAINT") {
			t.Errorf("a server's administrative state was changed:\n%s", out)
		}
	}
	all("127.0.11.1")

	// Failover to the backups, clients connect there, failback.
	seoul.sick(true)
	all("127.0.12.1")
	first := openSession(t, virginia.vip)
	begin := time.Now() // the deadline counts from a moment after this
	seoul.sick(false)
	all("127.0.11.1")
	failedBack := time.Now() // at the latest
	if !first.open() && time.Since(begin) < drainingTime {
		t.Error("the session ended before the deadline")
	}
	ready()

	// A failover in the middle: the sessions are wanted again.
	seoul.sick(true)
	all("127.0.12.1")
	lab.Eventually(t, 60*time.Second, "the first deadline is over", func() bool { return time.Since(failedBack) > drainingTime })
	a.waitReports(t, "virginia", 3)
	if !first.open() {
		t.Fatal("the session was ended although its site serves again")
	}

	// Failback, and the deadline comes.
	begin = time.Now()
	seoul.sick(false)
	all("127.0.11.1")
	lab.Eventually(t, 60*time.Second, "the remaining session ends", func() bool { return !first.open() })
	if took := time.Since(begin); took < drainingTime {
		t.Errorf("the session ended %v after the primaries were well again, before the deadline of %v", took, drainingTime)
	} else {
		t.Logf("the session ended %v after the primaries were well again", took)
	}
	ready()
	virginia.agent.waitLog("sessions", 5*time.Second)

	// It ends the remaining sessions once: a client that comes later, with an old answer, stays.
	late := openSession(t, virginia.vip)
	a.waitReports(t, "virginia", 3)
	if !late.open() {
		t.Error("a session that came after the deadline was ended")
	}
}

// Two gslbd that disagree end nothing, and status says why.
func TestConnectionDrainingDisagreement(t *testing.T) {
	t.Parallel()
	lab.Program(t, "haproxy")
	a := startGSLBD(t, seedNetwork+drainingService)
	b := startGSLBD(t, seedNetwork+drainingService)
	seoul := startHAProxySite(t, "seoul", "127.0.11.1", "draining: {enabled: true}\n", a, b)
	virginia := startHAProxySite(t, "virginia", "127.0.12.1", "draining: {enabled: true}\n", a, b)
	seoul.sick(true)
	a.wantAnswer(t, 15*time.Second, www, "127.0.12.1")
	b.wantAnswer(t, 15*time.Second, www, "127.0.12.1")
	held := openSession(t, virginia.vip)

	// The order keeps one of them in its backups.
	b.ctl(t, "force", "down", "--member", "www.gslb.example.com/seoul", "--reason", "only here")
	seoul.sick(false)
	a.wantAnswer(t, 15*time.Second, www, "127.0.11.1")
	begin := time.Now()
	lab.Eventually(t, 60*time.Second, "the deadline is over", func() bool { return time.Since(begin) > drainingTime })
	a.waitReports(t, "virginia", 3)
	if !held.open() {
		t.Fatal("the session was ended although one gslbd still sends clients there")
	}
	lab.Eventually(t, 10*time.Second, "status says why nothing is done", func() bool {
		return strings.Contains(a.ctl(t, "status"), "agree")
	})
}

// An evacuation of type agent sets the servers that are up to drain, the ledger says which, and the restoration sets back
// exactly those: not one that was in maintenance before, nor one that an operator took into maintenance meanwhile.
func TestEvacuationOfServers(t *testing.T) {
	t.Parallel()
	lab.Program(t, "haproxy")
	s := startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    policy: active-standby
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [127.0.11.1], preference: 200}
      - {name: virginia, site: virginia, addresses: [127.0.12.1]}
`)
	seoul := startHAProxySite(t, "seoul", "127.0.11.1", "draining: {enabled: true}\n", s)
	startHAProxySite(t, "virginia", "127.0.12.1", "draining: {enabled: true}\n", s)
	lab.Eventually(t, 15*time.Second, "both sites report", func() bool { return strings.Count(s.log(), "site fresh") == 2 })
	s.wantAnswer(t, within, www, "127.0.11.1")

	out := s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,agent", "--dry-run", "--reason", "INC-1")
	for _, want := range []string{"www.gslb.example.com/seoul", "seoul/web"} {
		if !strings.Contains(out, want) {
			t.Errorf("the dry run does not name %s:\n%s", want, out)
		}
	}
	s.wantAnswer(t, 0, www, "127.0.11.1") // a dry run changes nothing

	s.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "member,agent", "--reason", "INC-1", "--wait", "--timeout", "60s")
	s.wantAnswer(t, 0, www, "127.0.12.1")
	if out := seoul.command(t, "show stat"); strings.Count(out, ",DRAIN,") != 2 {
		t.Errorf("the servers are not in drain:\n%s", out)
	}
	out = s.ctl(t, "evacuations")
	for _, want := range []string{"apne2-az1", "www.gslb.example.com/seoul", "seoul/web", "server1", "server2", "INC-1"} {
		if !strings.Contains(out, want) {
			t.Errorf("the ledger does not show %s:\n%s", want, out)
		}
	}

	seoul.command(t, "set server be-web/server2 state maint")
	s.ctl(t, "restore", "--zone", "apne2-az1", "--wait", "--timeout", "60s")
	s.wantAnswer(t, within, www, "127.0.11.1")
	stat := seoul.command(t, "show stat")
	if !strings.Contains(stat, ",MAINT,") || strings.Contains(stat, ",DRAIN,") {
		t.Errorf("after the restoration, want server1 ready and server2 in maintenance:\n%s", stat)
	}
	if out := s.ctl(t, "evacuations", "--json"); strings.Contains(out, "INC-1") {
		t.Errorf("the ledger is not empty:\n%s", out)
	}
}

// The operator's program is run once, its list picks by the zone's names, and a restoration adds back what it removed.
func TestEvacuationByProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "asg")
	write(t, filepath.Join(dir, "in"), "")
	script := `#!/bin/sh
cd "` + dir + `"
echo "$1" >>calls
case $1 in
list)
  state=in; [ -e removed ] && state=removed
  echo "[{\"id\":\"web-asg\",\"zone\":\"ap-northeast-2a\",\"state\":\"$state\"},{\"id\":\"other\",\"zone\":\"use1-az1\",\"state\":\"in\"}]" ;;
remove) cat >removed ;;
add) cat >added; rm removed ;;
esac
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	s := startGSLBD(t, seedNetwork+fleetService+fmt.Sprintf(`zone_aliases: [{id: apne2-az1, names: [ap-northeast-2a]}]
evacuation: {exec: {command: [%q], timeout: 5s}}
`, program))
	s.wantAnswer(t, within, www, "1.1.1.1")
	s.ctl(t, "evacuate", "--zone", "ap-northeast-2a", "--type", "member,exec", "--reason", "INC-2", "--wait", "--timeout", "60s")
	s.wantAnswer(t, 0, www, "2.2.2.2")
	removed, err := os.ReadFile(filepath.Join(dir, "removed"))
	if err != nil || !strings.Contains(string(removed), "web-asg") || strings.Contains(string(removed), "other") {
		t.Errorf("the program was given %q (%v), want web-asg only", removed, err)
	}
	s.kill()
	s.run(t)
	s.ctl(t, "restore", "--zone", "apne2-az1", "--wait", "--timeout", "60s")
	s.wantAnswer(t, within, www, "1.1.1.1")
	added, err := os.ReadFile(filepath.Join(dir, "added"))
	if err != nil || !strings.Contains(string(added), "web-asg") {
		t.Errorf("the program was told to add %q (%v), want web-asg", added, err)
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	if n := strings.Count(string(calls), "remove\n"); n != 1 {
		t.Errorf("the program removed %d times, want once:\n%s", n, calls)
	}
}

// A zone is moved in steps; which clients move is the same on every gslbd, and an unknown zone lists those that there are.
func TestStagedEvacuation(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+fleetService)
	s.wantAnswer(t, within, www, "1.1.1.1")
	out, code := s.tryCtl(t, "evacuate", "--zone", "apne2", "--reason", "INC-3")
	if code != 1 || !strings.Contains(out, "apne2-az1") || !strings.Contains(out, "use1-az1") {
		t.Errorf("an unknown zone: exit status %d\n%s", code, out)
	}
	share := func() int {
		n := 0
		for i := range 200 {
			if s.answer(t, question{name: www.name, ecs: fmt.Sprintf("20.%d.7.0/24", i)}) == "2.2.2.2" {
				n++
			}
		}
		return n
	}
	s.ctl(t, "evacuate", "--zone", "apne2-az1", "--stages", "25%,50%,100%", "--pause", "10s", "--reason", "INC-3")
	if n := share(); n < 30 || n > 70 {
		t.Errorf("%d of 200 clients are moved at 25 %%", n)
	}
	lab.Eventually(t, 12*time.Second, "half of the clients are moved", func() bool { n := share(); return n > 75 && n < 125 })
	s.wantAnswer(t, 15*time.Second, www, "2.2.2.2")
	lab.Eventually(t, 12*time.Second, "all clients are moved", func() bool { return share() == 200 })
	s.ctl(t, "restore", "--wait", "--timeout", "30s")
	if n := share(); n != 0 {
		t.Errorf("after the restoration %d of 200 clients are still moved", n)
	}
}

// What would leave a service without members is refused, and done with --force.
func TestEvacuationRefused(t *testing.T) {
	t.Parallel()
	s := startGSLBD(t, seedNetwork+fleetService)
	s.wantAnswer(t, within, www, "1.1.1.1")
	s.ctl(t, "force", "down", "--site", "virginia", "--reason", "it is broken")
	out, code := s.tryCtl(t, "evacuate", "--zone", "apne2-az1", "--reason", "INC-4")
	if code != 1 || !strings.Contains(out, "www.gslb.example.com") || !strings.Contains(out, "--force") {
		t.Errorf("exit status %d, want 1, the service and --force\n%s", code, out)
	}
	s.wantAnswer(t, 0, www, "1.1.1.1")
	s.ctl(t, "evacuate", "--zone", "apne2-az1", "--reason", "INC-4", "--force")
	s.wantAnswer(t, 0, www, "")
}
