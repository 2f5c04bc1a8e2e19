package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// A chain of processes serves one after the other. Their output is that of the first.
type chain struct {
	*gslbd
	pid int // of the one that serves
}

// follow has whoever serves at the end of the test stopped.
func follow(t *testing.T, s *gslbd) *chain {
	c := &chain{gslbd: s, pid: s.cmd.Process.Pid}
	t.Cleanup(func() { c.kill(syscall.SIGTERM) })
	return c
}

func (c *chain) kill(s syscall.Signal) { _ = syscall.Kill(c.pid, s) }

var takenBy = regexp.MustCompile(`"taken over","by":(\d+)`)

// next asks for a takeover, and waits until it has succeeded.
func (c *chain) next(t *testing.T) {
	t.Helper()
	n, failed := len(takenBy.FindAllString(c.log(), -1)), strings.Count(c.log(), "takeover failed")
	c.kill(syscall.SIGUSR2)
	lab.Eventually(t, 60*time.Second, "a new process has taken over", func() bool {
		if strings.Count(c.log(), "takeover failed") > failed {
			t.Fatal("the takeover failed")
		}
		all := takenBy.FindAllStringSubmatch(c.log(), -1)
		if len(all) == n {
			return false
		}
		c.pid, _ = strconv.Atoi(all[n][1])
		return true
	})
}

// fails asks for a takeover, and waits until it has failed for the reason.
func (c *chain) fails(t *testing.T, why string) {
	t.Helper()
	n := strings.Count(c.log(), "takeover failed")
	c.kill(syscall.SIGUSR2)
	var line string
	lab.Eventually(t, 60*time.Second, "a takeover fails", func() bool {
		parts := strings.Split(c.log(), "takeover failed, this process goes on")
		line, _, _ = strings.Cut(parts[len(parts)-1], "\n")
		return len(parts) == n+2
	})
	if !strings.Contains(line, why) {
		t.Errorf("it failed by %s, want %q", line, why)
	}
}

// A load asks a server without a break, and keeps what went wrong.
type load struct {
	stop  chan struct{}
	wg    sync.WaitGroup
	asked atomic.Uint64

	mu   sync.Mutex
	bad  []string      // guarded by mu
	late time.Duration // the longest that an answer took; guarded by mu
}

// loaded asks until the test calls end, in the ways that are given: udp and tcp.
func loaded(t *testing.T, s *gslbd, ways ...func(server string, query []byte) error) *load {
	l := &load{stop: make(chan struct{})}
	t.Cleanup(l.end)
	for _, way := range ways {
		for range 2 {
			l.wg.Go(func() { l.run(s.dns, way) })
		}
	}
	return l
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}

func (l *load) run(server string, once func(string, []byte) error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(www.name), dns.TypeA)
	query, err := m.Pack()
	for err == nil {
		select {
		case <-l.stop:
			return
		default:
		}
		begin := time.Now()
		wrong := once(server, query)
		l.asked.Add(1)
		l.mu.Lock()
		if l.late = max(l.late, time.Since(begin)); wrong != nil {
			l.bad = append(l.bad, wrong.Error())
		}
		l.mu.Unlock()
	}
}

// check fails the test if anything went wrong.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.end()
	t.Logf("%d exchanges, the longest took %v", l.asked.Load(), l.late)
	if len(l.bad) > 0 {
		t.Errorf("%d of %d went wrong, the first: %s", len(l.bad), l.asked.Load(), l.bad[0])
	}
}

// udp asks from a new port.
func udp(server string, query []byte) error {
	c, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(query); err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	return answers(buf[:n])
}

// tcp asks by a connection of some pipelined queries, which are sent a part at a time.
func tcp(server string, query []byte) error {
	c, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	one := append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	const queries = 3
	all := bytes.Repeat(one, queries)
	for _, part := range [][]byte{all[:5], all[5 : len(one)+5], all[len(one)+5:]} {
		if _, err := c.Write(part); err != nil {
			return fmt.Errorf("tcp: %w", err)
		}
	}
	for i := range queries {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return fmt.Errorf("tcp, reply %d of %d: %w", i+1, queries, err)
		}
		reply := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, reply); err != nil {
			return fmt.Errorf("tcp, reply %d of %d: %w", i+1, queries, err)
		}
		if err := answers(reply); err != nil {
			return err
		}
	}
	return nil
}

func answers(wire []byte) error {
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return err
	}
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 {
		return errors.New(m.String())
	}
	return nil
}

// dnsperf runs until the test calls what it returns, which checks that it has lost nothing.
func dnsperf(t *testing.T, s *gslbd) (check func()) {
	t.Helper()
	program, err := exec.LookPath("dnsperf")
	lab.Need(t, err == nil, "dnsperf")
	host, port, _ := net.SplitHostPort(s.dns)
	queries := filepath.Join(t.TempDir(), "queries")
	if err := os.WriteFile(queries, []byte(www.name+" A\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, program, "-s", host, "-p", port, "-d", queries, "-l", "600", "-Q", "2000", "-c", "20", "-t", "20")
	return func() {
		t.Helper()
		p.signal(syscall.SIGINT)
		<-p.done
		out := p.log()
		lost := regexp.MustCompile(`Queries lost: +(\d+)`).FindStringSubmatch(out)
		codes := regexp.MustCompile(`Response codes: +(.*)`).FindStringSubmatch(out)
		if lost == nil || codes == nil {
			t.Fatalf("dnsperf printed\n%s", out)
		}
		t.Logf("dnsperf: %s lost, %s", lost[1], codes[1])
		if lost[1] != "0" || !strings.HasPrefix(codes[1], "NOERROR") || !strings.HasSuffix(codes[1], "(100.00%)") {
			t.Errorf("dnsperf lost something:\n%s", out)
		}
	}
}

// takeovers is how many follow each other: fewer of the slow programs of the race detector.
func takeovers() int {
	if len(raceFlags) > 0 {
		return 4
	}
	return 20
}

// Under load a new process takes over, again and again, and no query is lost, refused or failed. Health, load, orders and the
// order of the rotation go on.
func TestTakeovers(t *testing.T) {
	t.Parallel()
	s, program := prepareOwn(t, seedNetwork+fleetService)
	s.rewrite(t, "stale_after: 3s, dead_after: 6s", "stale_after: 60s, dead_after: 120s") // a busy machine reports late
	s.process = start(t, program, "--config", s.config)
	s.waitLog(`"serving"`, 20*time.Second)
	c := follow(t, s)
	for site, vip := range map[string]string{"seoul": "1.1.1.1", "virginia": "2.2.2.2"} {
		body := fmt.Sprintf(`{"site": %q, "load": {"sessions": 1000}, "virtual_servers": [{"name": "web", "address": %q, "servers": [{"name": "a", "state": "up"}]}]}`, site, vip)
		c.keepReporting(t, site, func() string { return body }, func(string) {})
	}
	c.wantAnswer(t, within, www, "1.1.1.1")
	c.ctl(t, "force", "down", "--site", "seoul", "--reason", "INC-1")
	l := loaded(t, c.gslbd, udp, tcp)
	check := dnsperf(t, c.gslbd)
	for i := range takeovers() {
		c.ctl(t, "force", "up", "--member", "www.gslb.example.com/virginia", "--reason", fmt.Sprint("INC-2-", i))
		c.next(t)
		if n := len(c.orders(t)); n != i+2 {
			t.Errorf("takeover %d: %d orders are in force, want %d", i, n, i+2)
		}
		if resp, err := http.Get("http://" + c.admin + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("takeover %d: not ready at once: %v %v", i, resp, err)
		}
		if got := c.scrape(t, `gslbd_site_sessions{site="seoul"}`); got != "1000" {
			t.Errorf("takeover %d: seoul has %q sessions", i, got)
		}
		if got := c.answer(t, www); got != "2.2.2.2" {
			t.Errorf("takeover %d: answered %q, against the order", i, got)
		}
		if out := c.ctl(t, "status"); strings.Contains(out, "takeover") {
			t.Errorf("takeover %d:\n%s", i, out)
		}
	}
	check()
	l.check(t)
	if log := c.log(); strings.Contains(log, "site stale") || strings.Contains(log, "member down") {
		t.Error("what was measured did not go on")
	}
}

// prepareOwn writes a configuration, and copies the program to a place where the test may replace it.
func prepareOwn(t *testing.T, body string) (s *gslbd, program string) {
	t.Helper()
	s = &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	s.config, program = filepath.Join(s.dir, "gslbd.yaml"), filepath.Join(s.dir, "gslbd")
	s.write(t, body)
	install(t, program, filepath.Join(binaries, "gslbd"))
	return s, program
}

// install puts a copy of the file in the place of the program, as packages do.
func install(t *testing.T, program, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, program, text)
}

// replace writes the program by another process: what this one writes may be open for writing in a process that another test
// just starts, and then cannot be run.
func replace(t *testing.T, program string, text []byte) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `cat >"$0.new" && chmod 700 "$0.new" && mv "$0.new" "$0"`, program)
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// goesOn checks that the server takes reports and orders, and reloads.
func (c *chain) goesOn(t *testing.T, body string) {
	t.Helper()
	lab.Eventually(t, 20*time.Second, "a report is taken", func() bool {
		code, _ := c.postReport(t, "seoul", `{"site": "seoul"}`) // another one may have been there a moment ago
		return code == http.StatusOK
	})
	c.ctl(t, "force", "down", "--site", "seoul", "--reason", "INC-3")
	c.wantAnswer(t, 0, www, "2.2.2.2")
	c.reload(t, body)
	for id := range c.orders(t) {
		c.ctl(t, "clear", id)
	}
	c.wantAnswer(t, 0, www, "1.1.1.1")
}

// A new program that does not start, a wrong configuration, an address that is taken, a new process that is killed at any
// moment: the old process goes on, loses no query, takes orders, and tells of it. The next takeover succeeds.
func TestTakeoverFails(t *testing.T) {
	t.Parallel()
	body := seedNetwork + fleetService
	s, program := prepareOwn(t, body)
	s.process = start(t, program, "--config", s.config)
	c := follow(t, s)
	s.waitLog(`"serving"`, 20*time.Second)
	l := loaded(t, s, udp, tcp)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	for _, f := range []struct{ name, text, why string }{
		{"no program", "", "no such file"},
		{"not executable", "nonsense", "exec format error"},
		{"ends at once", "#!/bin/sh\nexit 3\n", "ended before it was prepared (exit status 3)"},
		{"another program", "#!/bin/sh\necho hello >&3\nexec sleep 60\n", `says \"hello\\n\" and not that it is prepared`},
		{"does not speak", "#!/bin/sh\nexec 3>&-\nexec sleep 60\n", "ended before it was prepared (signal: killed)"},
		{"ends when it is its turn", "#!/bin/sh\necho prepared >&3\nread line <&3\nexit 4\n", "ended before it was serving (exit status 4)"},
	} {
		if f.text == "" {
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
		} else {
			replace(t, program, []byte(f.text))
		}
		c.fails(t, f.why)
		if out := c.ctl(t, "status"); !strings.Contains(out, "the last takeover failed") {
			t.Errorf("%s: status does not tell of it:\n%s", f.name, out)
		}
	}
	// The last one was given the state; and so are two that follow each other, of which the second waits.
	failed, begun := strings.Count(c.log(), "takeover failed"), strings.Count(c.log(), "takeover begins")
	c.kill(syscall.SIGUSR2)
	lab.Eventually(t, 20*time.Second, "a takeover begins", func() bool { return strings.Count(c.log(), "takeover begins") > begun })
	c.kill(syscall.SIGUSR2)
	c.waitLogs("takeover failed", failed+2)
	if n := strings.Count(c.log(), "ended before it was serving (exit status 4)"); n != 3 {
		t.Errorf("%d processes ended when it was their turn, want 3", n)
	}
	c.goesOn(t, body)
	install(t, program, filepath.Join(binaries, "gslbd"))
	c.write(t, body+"no: configuration\n")
	c.fails(t, "ended before it was prepared (exit status 2)")
	c.goesOn(t, body)
	c.rewrite(t, c.admin, taken.Addr().String())
	c.fails(t, "ended before it was serving (exit status 1)")
	c.goesOn(t, body)
	c.next(t)
	l.check(t)
	if out := c.ctl(t, "status"); strings.Contains(out, "takeover") {
		t.Errorf("after one that succeeded:\n%s", out)
	}
}

// rewrite replaces a text of the configuration.
func (s *gslbd) rewrite(t *testing.T, old, text string) {
	t.Helper()
	was, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, bytes.ReplaceAll(was, []byte(old), []byte(text)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// asks has a new process begin to take over, which waits for its configuration, and returns its number.
func (c *chain) asks(t *testing.T) (pid int) {
	t.Helper()
	begins := regexp.MustCompile(`"takeover begins","pid":(\d+)`)
	n := len(begins.FindAllString(c.log(), -1))
	if err := errors.Join(os.Remove(c.config), syscall.Mkfifo(c.config, 0o600)); err != nil {
		t.Fatal(err)
	}
	c.kill(syscall.SIGUSR2)
	lab.Eventually(t, 20*time.Second, "a takeover begins", func() bool {
		all := begins.FindAllStringSubmatch(c.log(), -1)
		if len(all) == n {
			return false
		}
		pid, _ = strconv.Atoi(all[n][1])
		return true
	})
	return pid
}

// A new process that is killed while it reads its configuration leaves the old one serving. Reloads wait for their end. An old
// one that is stopped for a while hands over when it goes on, and its clients have waited. When it is killed, the new one ends.
func TestTakeoverIsDisturbed(t *testing.T) {
	t.Parallel()
	body := seedNetwork + fleetService
	c := follow(t, startGSLBD(t, body))
	l := loaded(t, c.gslbd, udp, tcp)

	pid := c.asks(t)
	if out, code := c.tryCtl(t, "reload"); code != 1 || !strings.Contains(out, "a new process takes over") {
		t.Errorf("reload during a takeover: exit status %d\n%s", code, out)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	c.waitLog("ended before it was prepared (signal: killed)", 20*time.Second)
	if err := os.Remove(c.config); err != nil {
		t.Fatal(err)
	}
	c.goesOn(t, body)

	pid = c.asks(t)
	c.kill(syscall.SIGSTOP)
	c.write(t, body) // and now the new one reads it
	stopped := l.asked.Load()
	c.kill(syscall.SIGCONT)
	c.waitLog(fmt.Sprintf(`"taken over","by":%d`, pid), 60*time.Second)
	c.pid = pid
	lab.Eventually(t, 20*time.Second, "the clients go on", func() bool { return l.asked.Load() > stopped+100 })
	l.check(t)

	c.asks(t)
	c.kill(syscall.SIGKILL)
	c.write(t, body)
	<-c.done
	if log := c.log(); !strings.Contains(log, "the old process does not hand over") {
		t.Error("the new process does not say why it ended")
	}
}

// systemd is told which process is the main one before that one speaks, which goes on with the signs of life. A program that it
// runs inherits neither the sockets nor the means to speak to systemd.
func TestTakeoverIsTold(t *testing.T) {
	t.Parallel()
	m := newServiceManager(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	replace(t, program, []byte("#!/bin/sh\nenv >"+dir+"/env\nls -l /proc/self/fd >>"+dir+"/env\necho '[]'\n"))
	s := m.prepare(t, seedNetwork+fleetService+"evacuation: {exec: {command: ["+program+"]}}\n")
	m.start(t, s, filepath.Join(binaries, "gslbd"), 400*time.Millisecond)
	c := follow(t, s)
	at := m.wait(t, 0, "READY=1\n")
	for range 2 {
		c.next(t)
		at = m.wait(t, at, fmt.Sprintf("MAINPID=%d", c.pid))
		at = m.wait(t, at, "READY=1\nSTATUS=answers")
		at = m.wait(t, at, "WATCHDOG=1")
	}
	c.ctl(t, "evacuate", "--zone", "apne2-az1", "--type", "exec", "--reason", "INC-9", "--dry-run")
	env, err := os.ReadFile(dir + "/env")
	if err != nil || strings.Contains(string(env), "NOTIFY_SOCKET") || strings.Contains(string(env), "TAKEOVER") || strings.Contains(string(env), "socket:") {
		t.Errorf("the program's environment and descriptors: %v\n%s", err, env)
	}
	c.kill(syscall.SIGTERM)
	m.wait(t, at, "STOPPING=1\n")
	<-c.done
	var stopping []int
	for i, text := range m.from(0) {
		if strings.HasPrefix(text, "STOPPING") {
			stopping = append(stopping, i)
		}
	}
	if len(stopping) != 1 {
		t.Errorf("STOPPING=1 is told %d times: %q", len(stopping), m.from(0))
	}
}

// A takeover changes what a reload cannot: addresses that stay are handed on, others are opened and closed.
func TestTakeoverChangesAddresses(t *testing.T) {
	t.Parallel()
	body := seedNetwork + fleetService
	c := follow(t, startGSLBD(t, body))
	l := loaded(t, c.gslbd, udp, tcp)
	second, admin := freeAddr(t), freeAddr(t)
	c.rewrite(t, strconv.Quote(c.dns), strconv.Quote(c.dns)+", "+strconv.Quote(second))
	c.rewrite(t, c.admin, admin)
	old := c.admin
	c.next(t)
	c.admin = admin
	for _, server := range []string{c.dns, second} {
		for _, byTCP := range []bool{false, true} {
			q := www
			q.tcp = byTCP
			if reply, err := exchange(server, q); err != nil || reply.Rcode != dns.RcodeSuccess {
				t.Errorf("%s, TCP %v: %v %v", server, byTCP, reply, err)
			}
		}
	}
	c.ctl(t, "status")
	lab.Eventually(t, 20*time.Second, "nobody listens where the admin interface was", func() bool {
		conn, err := net.Dial("tcp", old)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	c.rewrite(t, ", "+strconv.Quote(second), "")
	c.next(t)
	lab.Eventually(t, 20*time.Second, "the second address is free", func() bool {
		u, err := net.ListenPacket("udp", second)
		if err == nil {
			u.Close()
		}
		return err == nil
	})
	l.check(t)
}

// A service manager may keep the sockets, so that a query that comes between two processes waits.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	s, program := prepareOwn(t, seedNetwork+fleetService)
	packets, err := net.ListenPacket("udp", s.dns)
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	uf, err := packets.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer uf.Close()
	var files []*os.File
	for _, addr := range []string{s.dns, s.reports, s.admin} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	// The sockets are the shell's from here on, as they are systemd's, over two runs of the program.
	l := loaded(t, s, udp)
	stop := filepath.Join(s.dir, "stop")
	script := `while [ ! -e "$2" ]; do sh -c 'LISTEN_FDS=4 LISTEN_PID=$$ exec "$0" --config "$1"' "$0" "$1" & echo $! >"$2.pid"; wait $!; done`
	p := &process{t: t, name: "gslbd", cmd: exec.Command("sh", "-c", script, program, s.config, stop), done: make(chan struct{})}
	p.cmd.ExtraFiles = append([]*os.File{uf}, files...)
	s.process = p.begin()
	for round := range 3 {
		s.waitLogs(`"serving"`, round+1)
		n := l.asked.Load()
		lab.Eventually(t, 20*time.Second, "it answers", func() bool { return l.asked.Load() > n+100 })
		if round == 2 {
			l.check(t)
			if err := os.WriteFile(stop, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(stop + ".pid")
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	<-s.done
}

// The service manager keeps copies of the sockets, so that what comes after gslbd was killed waits for the next process, which
// stores what it has then. One that cannot start leaves nothing in the store: resolvers see at once that nobody is there.
func TestSocketsAreKept(t *testing.T) {
	t.Parallel()
	m := newServiceManager(t)
	s := m.prepare(t, seedNetwork+fleetService)
	const sockets = 5 // of two workers, DNS over TCP, reports and admin
	run := func(given int) {
		p := &process{t: t, name: "gslbd", done: make(chan struct{})}
		kept := m.stored(t, given)
		p.cmd = exec.Command("sh", "-c", `[ "$2" = 0 ] || export LISTEN_PID=$$ LISTEN_FDS=$2; exec "$0" --config "$1"`, filepath.Join(binaries, "gslbd"), s.config, strconv.Itoa(len(kept)))
		p.cmd.Env, p.cmd.ExtraFiles = append(os.Environ(), "NOTIFY_SOCKET="+m.socket, "GOMAXPROCS=2"), kept
		s.process = p.begin()
		closeFiles(kept)
	}
	run(0)
	s.waitLog(`"serving"`, 20*time.Second)
	for round := range 3 {
		kept, given := m.stored(t, sockets), sockets
		if round == 1 { // as with a socket unit, whose sockets systemd passes beside those of the store
			m.mu.Lock()
			m.store = append(m.store, kept...)
			m.mu.Unlock()
			kept, given = nil, 2*sockets
		}
		closeFiles(kept)
		s.signal(syscall.SIGKILL)
		<-s.done
		l := loaded(t, s, udp, tcp)
		run(given)
		s.waitLog(`"serving"`, 20*time.Second)
		lab.Eventually(t, 20*time.Second, "it answers", func() bool { return l.asked.Load() > 50 })
		l.check(t)
	}
	closeFiles(m.stored(t, sockets))
	other := freeAddr(t)
	s.rewrite(t, s.dns, other)
	s.dns = other
	s.signal(syscall.SIGTERM)
	<-s.done
	run(sockets)
	s.waitLog("nothing in the configuration listens there", 20*time.Second)
	if got := s.answer(t, www); got == "" {
		t.Error("no answer at the other address")
	}
	closeFiles(m.stored(t, sockets))
	s.rewrite(t, "zones:", "no: configuration\nzones:")
	s.signal(syscall.SIGTERM)
	<-s.done
	run(sockets)
	<-s.done
	m.stored(t, 0)
}

// A service manager that takes nothing in, as one that is busy with something else, keeps nobody from starting on its sockets.
func TestServiceManagerIsBusy(t *testing.T) {
	t.Parallel()
	s, program := prepareOwn(t, seedNetwork+fleetService)
	packets, err := net.ListenPacket("udp", s.dns)
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	f, err := packets.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	socket := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(s.dir, "notify")}
	manager, err := net.ListenUnixgram("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	full, err := net.DialUnix("unixgram", nil, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for err == nil {
		_ = full.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = full.Write([]byte("STATUS=another service"))
	}
	p := &process{t: t, name: "gslbd", cmd: exec.Command("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" --config "$1"`, program, s.config), done: make(chan struct{})}
	p.cmd.Env, p.cmd.ExtraFiles = append(os.Environ(), "NOTIFY_SOCKET="+socket.Name), []*os.File{f}
	s.process = p.begin()
	s.waitLog(`"serving"`, 20*time.Second)
	s.waitLog("the service manager cannot be told", 20*time.Second)
	if got := s.answer(t, www); got == "" {
		t.Error("no answer")
	}
}

func closeFiles(all []*os.File) {
	for _, f := range all {
		f.Close()
	}
}

// waitLogs waits until the program has printed text n times.
func (p *process) waitLogs(text string, n int) {
	p.t.Helper()
	lab.Eventually(p.t, 20*time.Second, fmt.Sprintf("%s prints %q for the %d. time", p.name, text, n), func() bool { return strings.Count(p.log(), text) >= n })
}

// What own checks have counted goes on: after a takeover it takes as many failures in a row as ever to bring a member down.
func TestTakeoverKeepsChecks(t *testing.T) {
	t.Parallel()
	vip, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer vip.Close()
	_, port, _ := net.SplitHostPort(vip.Addr().String())
	c := follow(t, startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    health_check: {type: tcp, port: `+port+`, interval: 60s, timeout: 1s, fall: 3}
    members:
      - {name: seoul, site: seoul, addresses: [127.0.0.1]}
`))
	const up = `gslbd_member_up{family="ipv4",member="seoul",service="www.gslb.example.com"}`
	lab.Eventually(t, 20*time.Second, "the member is up", func() bool {
		return c.scrape(t, up) == "1" && c.scrape(t, `gslbd_probes_total{method="tcp",result="success"}`) == "1"
	})
	vip.Close()
	c.next(t)
	lab.Eventually(t, 20*time.Second, "a check has failed", func() bool {
		return c.scrape(t, `gslbd_probes_total{method="tcp",result="failure"}`) == "1"
	})
	c.report(t, "seoul", `{"site": "seoul"}`) // what is published next knows of it
	lab.Eventually(t, 20*time.Second, "the report is published", func() bool { return strings.Contains(c.log(), `"site fresh"`) })
	if got := c.scrape(t, up); got != "1" {
		t.Errorf("after one failure %s is %s", up, got)
	}
}

// The counters of telemetry go on in a takeover, those of services as well, and through one takeover after another.
func TestTakeoverKeepsCounters(t *testing.T) {
	t.Parallel()
	c := follow(t, startGSLBD(t, seedNetwork+`services:
  - name: www.gslb.example.com
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
`))
	c.report(t, "seoul", `{"site": "seoul"}`)
	counters := []string{
		`gslbd_queries_total{rcode="NOERROR",transport="udp",type="A"}`, `gslbd_answers_total{member="seoul",service="www.gslb.example.com"}`,
		`gslbd_reports_total{result="accepted",site="seoul"}`, `gslbd_query_duration_seconds_count`, `gslbd_config_reloads_total{result="success"}`,
	}
	read := func() (all []float64) {
		for _, series := range counters {
			v, err := strconv.ParseFloat(cmp.Or(c.scrape(t, series), "0"), 64) // a series begins with what it counts first
			if err != nil {
				t.Fatalf("%s: %v", series, err)
			}
			all = append(all, v)
		}
		return all
	}
	for range 2 {
		c.ctl(t, "reload")
		before := read()
		for range 10 {
			c.answer(t, question{name: "www.gslb.example.com."})
		}
		asked := read()
		if asked[0] != before[0]+10 || asked[1] != before[1]+10 || asked[2] != 1 || asked[4] == 0 {
			t.Fatalf("%q: %v, and after ten queries %v", counters, before, asked)
		}
		c.next(t)
		if after := read(); !slices.Equal(after, asked) {
			t.Errorf("%q: %v, and after the takeover %v", counters, asked, after)
		}
	}
}
