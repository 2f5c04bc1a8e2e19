package e2e

import (
	"bytes"
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
	n := len(takenBy.FindAllString(c.log(), -1))
	c.kill(syscall.SIGUSR2)
	lab.Eventually(t, 60*time.Second, "a new process has taken over", func() bool {
		if strings.Contains(c.log(), "takeover failed") {
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
	c.failed(t, n, why)
}

// failed waits until one more takeover than n has failed.
func (c *chain) failed(t *testing.T, n int, why string) {
	t.Helper()
	var line string
	lab.Eventually(t, 60*time.Second, "a takeover fails", func() bool {
		lines := strings.Split(c.log(), "\n")
		for _, l := range lines {
			if strings.Contains(l, "takeover failed, this process goes on") {
				if line = l; n == 0 {
					return true
				}
				n--
			}
		}
		return false
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

// loaded asks by UDP from always new ports, and by TCP with connections of some pipelined queries, which are sent a part at
// a time, until the test calls end.
func loaded(t *testing.T, s *gslbd) *load {
	l := &load{stop: make(chan struct{})}
	t.Cleanup(l.end)
	for range 2 {
		l.wg.Go(func() { l.run(s.dns, l.udp) })
		l.wg.Go(func() { l.run(s.dns, l.tcp) })
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

func (l *load) udp(server string, query []byte) error {
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

func (l *load) tcp(server string, query []byte) error {
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
	c := follow(t, startGSLBD(t, seedNetwork+fleetService))
	for site, vip := range map[string]string{"seoul": "1.1.1.1", "virginia": "2.2.2.2"} {
		body := fmt.Sprintf(`{"site": %q, "load": {"sessions": 1000}, "virtual_servers": [{"name": "web", "address": %q, "servers": [{"name": "a", "state": "up"}]}]}`, site, vip)
		c.keepReporting(t, site, func() string { return body }, func(string) {})
	}
	c.wantAnswer(t, within, www, "1.1.1.1")
	c.ctl(t, "force", "down", "--site", "seoul", "--reason", "INC-1")
	l := loaded(t, c.gslbd)
	check := dnsperf(t, c.gslbd)
	for i := range takeovers() {
		c.next(t)
		if resp, err := http.Get("http://" + c.admin + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("takeover %d: not ready at once: %v %v", i, resp, err)
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
