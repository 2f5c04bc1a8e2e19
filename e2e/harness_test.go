package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"gslbd/e2e/lab"
)

// binaries is where TestMain puts the programs under test.
var binaries string

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := "8" // the tests wait for most of their time; -parallel says otherwise
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			parallel = f.Value.String()
		}
	})
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	dir, remove, err := lab.Programs(raceFlags...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	code := m.Run()
	remove()
	os.Exit(code)
}

// A process is a program under test. Its output is kept and shown when the test fails.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// log returns what the program has printed so far.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: filepath.Base(name), cmd: exec.Command(name, args...), done: make(chan struct{})}
	return p.begin()
}

// begin starts the program, and has it stopped when the test ends.
func (p *process) begin() *process {
	t, name := p.t, p.name
	t.Helper()
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit status is read from ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(15 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
			t.Errorf("%s did not stop within 15 s of SIGTERM", p.name)
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, p.log())
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	_ = p.cmd.Process.Signal(s) // a process that is gone has been noticed by done
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// waitLog waits until the program has printed text.
func (p *process) waitLog(text string, within time.Duration) {
	p.t.Helper()
	lab.Eventually(p.t, within, fmt.Sprintf("%s prints %q", p.name, text), func() bool { return strings.Contains(p.log(), text) })
}

// addrsGiven has what freePort has returned: who was given it may not listen there yet.
var addrsGiven sync.Map

// freeAddr returns an address and port of loopback that nothing listens on, for both UDP and TCP.
func freeAddr(t *testing.T) string { return freePort(t, "127.0.0.1") }

// freePort is freeAddr for a given address of loopback. The port is not one that the kernel gives to clients, so that it
// stays free until the program of the test listens there, and while that is restarted.
func freePort(t *testing.T, host string) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort(host, strconv.Itoa(10000+rand.IntN(20000)))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		u, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		u.Close()
		if _, given := addrsGiven.LoadOrStore(addr, true); !given {
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// A gslbd is a running server under test.
type gslbd struct {
	*process
	dns, reports, admin string   // host:port
	dir, config         string   // the configuration's folder and file
	etcd                []string // endpoints that share its orders
}

// startGSLBD writes the configuration body below the server's addresses and starts the real binary. In the body, the
// folder testdata stands for the project's.
func startGSLBD(t *testing.T, body string, etcd ...string) *gslbd {
	t.Helper()
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir(), etcd: etcd}
	s.config = filepath.Join(s.dir, "gslbd.yaml")
	s.write(t, body)
	s.run(t)
	return s
}

// run starts the binary on the configuration that is there, and waits until it is ready.
func (s *gslbd) run(t *testing.T) {
	t.Helper()
	s.process = start(t, filepath.Join(binaries, "gslbd"), "--config", s.config)
	lab.Eventually(t, 20*time.Second, "gslbd is ready", func() bool {
		if s.exited() {
			t.Fatalf("gslbd ended:\n%s", s.log())
		}
		resp, err := http.Get("http://" + s.admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// write replaces the configuration.
func (s *gslbd) write(t *testing.T, body string) {
	t.Helper()
	project, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("dns: {listen: [%q], drain_time: 0s}\nreports: {listen: %q, interval: 1s, stale_after: 3s, dead_after: 6s}\nadmin: {listen: %q}\nstate: {directory: state, etcd: {endpoints: [%s]}}\n",
		s.dns, s.reports, s.admin, quoted(s.etcd)) + strings.ReplaceAll(body, "testdata/", project+"/testdata/")
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// quoted writes a list of strings for YAML.
func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strconv.Quote(s)
	}
	return strings.Join(out, ", ")
}

// reload replaces the configuration and reloads it with gslbctl, as an operator would.
func (s *gslbd) reload(t *testing.T, body string) {
	t.Helper()
	s.write(t, body)
	s.ctl(t, "reload")
}

// ctl runs gslbctl against the server and returns what it printed; any other exit status than 0 fails the test.
func (s *gslbd) ctl(t *testing.T, args ...string) string {
	t.Helper()
	out, code := s.tryCtl(t, args...)
	if code != 0 {
		t.Fatalf("gslbctl %v: exit status %d\n%s", args, code, out)
	}
	return out
}

func (s *gslbd) tryCtl(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "gslbctl"), append(args, "--server", "http://"+s.admin)...)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// A question is one DNS query of a test.
type question struct {
	name   string
	qtype  uint16 // default A
	ecs    string // prefix, or ""
	source string // address to ask from, or ""
	tcp    bool
}

// ask sends q and returns the reply.
func (s *gslbd) ask(t *testing.T, q question) *dns.Msg {
	t.Helper()
	reply, err := exchange(s.dns, q)
	if err != nil {
		t.Fatalf("ask %+v: %v", q, err)
	}
	return reply
}

func exchange(server string, q question) (*dns.Msg, error) {
	if q.qtype == 0 {
		q.qtype = dns.TypeA
	}
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(q.name), q.qtype)
	if q.ecs != "" {
		prefix := netip.MustParsePrefix(q.ecs)
		family := uint16(1)
		if prefix.Addr().Is6() {
			family = 2
		}
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(1232)
		opt.Option = append(opt.Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: family, SourceNetmask: uint8(prefix.Bits()), Address: prefix.Addr().AsSlice()})
		m.Extra = append(m.Extra, opt)
	}
	c := &dns.Client{Timeout: 3 * time.Second, Dialer: &net.Dialer{Timeout: 3 * time.Second}}
	if q.tcp {
		c.Net = "tcp"
	}
	if q.source != "" {
		if q.tcp {
			c.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(q.source)}
		} else {
			c.Dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(q.source)}
		}
	}
	reply, _, err := c.Exchange(m, server)
	return reply, err
}

// addresses returns the addresses of a reply, in its order.
func addresses(m *dns.Msg) []string {
	var all []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			all = append(all, rr.A.String())
		case *dns.AAAA:
			all = append(all, rr.AAAA.String())
		}
	}
	return all
}

// answer asks and returns the addresses, joined.
func (s *gslbd) answer(t *testing.T, q question) string {
	t.Helper()
	return strings.Join(addresses(s.ask(t, q)), " ")
}

// wantAnswer asks until the answer is want.
func (s *gslbd) wantAnswer(t *testing.T, within time.Duration, q question, want string) time.Duration {
	t.Helper()
	var got string
	begin := time.Now()
	for {
		if got = s.answer(t, q); got == want {
			return time.Since(begin)
		}
		if time.Since(begin) > within {
			t.Fatalf("%+v: answered %q after %v, want %q\n%s", q, got, within, want, s.ctl(t, "explain", q.name))
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// postReport sends a site's report and returns the answer's status and body.
func (s *gslbd) postReport(t *testing.T, site, body string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+s.reports+"/v1/sites/"+site+"/report", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// report sends a report that must be accepted.
func (s *gslbd) report(t *testing.T, site, body string) string {
	t.Helper()
	code, answer := s.postReport(t, site, body)
	if code != http.StatusOK {
		t.Fatalf("report of %s: %d %s", site, code, answer)
	}
	return answer
}

// keepReporting posts the report that body returns every second until the test ends, as an agent would, and hands every
// answer to answered.
func (s *gslbd) keepReporting(t *testing.T, site string, body func() string, answered func(string)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	answered(s.report(t, site, body()))
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				resp, err := http.Post("http://"+s.reports+"/v1/sites/"+site+"/report", "application/json", strings.NewReader(body()))
				if err != nil {
					continue // the server is being restarted
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				answered(string(b))
			}
		}
	}()
}

// scrape returns the value of one series of /metrics, named as it is written there, or "" when it is not there.
func (s *gslbd) scrape(t *testing.T, series string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// explained is what the tests read of `gslbctl explain --json`.
type explained struct {
	Answer struct {
		Reason string `json:"reason"`
	} `json:"answer"`
}

// explain returns what settled the answer, and the text that an operator reads.
func (s *gslbd) explain(t *testing.T, args ...string) (reason, text string) {
	t.Helper()
	var e explained
	out := s.ctl(t, append([]string{"explain", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatalf("explain --json: %v\n%s", err, out)
	}
	return e.Answer.Reason, s.ctl(t, append([]string{"explain"}, args...)...)
}

// waitQueries waits until the server has answered n A queries over TCP.
func (s *gslbd) waitQueries(t *testing.T, n int) {
	t.Helper()
	lab.Eventually(t, 10*time.Second, fmt.Sprintf("%d queries are answered", n), func() bool {
		got, err := strconv.Atoi(s.scrape(t, `gslbd_queries_total{rcode="NOERROR",transport="tcp",type="A"}`))
		return err == nil && got >= n
	})
}
