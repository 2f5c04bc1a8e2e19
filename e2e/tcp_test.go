package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"gslbd/e2e/lab"
)

// behindZone is the zone that has something of all that a resolver must cope with; big has 20 records of its kind.
var behindZone = `$ORIGIN gslb.example.com.
$TTL 300
@ SOA ns1 hostmaster 1 7200 900 1209600 60
@ NS ns1
ns1 A 127.0.0.1
*.wild A 192.0.2.40
one CNAME two
two CNAME x.wild
shop CNAME www
$GENERATE 1-20 big TXT "$ ` + strings.Repeat("x", 200) + `"
`

// behind puts behindZone in the place of the example's.
func behind(network string) string {
	return strings.Replace(network, "testdata/zones/gslb.example.com.zone", "behind.zone", 1)
}

// startWithDNS is startGSLBD with more keys in the section dns, which end in a comma, and behindZone beside it.
func startWithDNS(t *testing.T, keys func(s *gslbd) string, body string) *gslbd {
	t.Helper()
	s := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "gslbd.yaml")
	s.write(t, body)
	write(t, filepath.Join(s.dir, "behind.zone"), behindZone)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.config, strings.Replace(string(text), "dns: {", "dns: {"+keys(s), 1))
	s.run(t)
	return s
}

// writeCertificate writes a new certificate for ns1.gslb.example.com and its key to dir/tls.pem and dir/tls.key.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "gslbd test"}, DNSNames: []string{"ns1.gslb.example.com"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tls.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	if err := os.Chmod(filepath.Join(dir, "tls.key"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// withTLS has the server listen at addr with a new certificate.
func withTLS(t *testing.T, addr, more string) func(s *gslbd) string {
	return func(s *gslbd) string {
		writeCertificate(t, s.dir)
		return fmt.Sprintf("tls: {listen: [%q], certificate: tls.pem, key: tls.key}, %s", addr, more)
	}
}

// Over TLS, with a client that checks the certificate; the certificate is replaced, well and badly, with a reload and
// without one.
func TestDNSOverTLS(t *testing.T) {
	t.Parallel()
	kdig := lab.Program(t, "kdig")
	secure := freeAddr(t)
	s := startWithDNS(t, withTLS(t, secure, ""), seedNetwork+seedService("nearest"))
	host, port, _ := net.SplitHostPort(secure)
	certificate := filepath.Join(s.dir, "tls.pem")
	ask := func(ca string) string {
		t.Helper()
		out, _ := exec.Command(kdig, "@"+host, "-p", port, "+short", "+retry=0", "+timeout=3", "+tls-ca="+ca, "+tls-hostname=ns1.gslb.example.com",
			"www.gslb.example.com", "A", "+subnet=11.1.1.0/24").CombinedOutput() // what it says is looked at
		return strings.TrimSpace(string(out))
	}
	if got := ask(certificate); got != "1.1.1.1" {
		t.Errorf("kdig: %q", got)
	}
	old := filepath.Join(s.dir, "old.pem")
	if err := os.Rename(certificate, old); err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, s.dir)
	s.ctl(t, "reload")
	if got := ask(certificate); got != "1.1.1.1" {
		t.Errorf("kdig after the reload: %q", got)
	}
	if got := ask(old); !strings.Contains(got, "certificate") {
		t.Errorf("kdig with the authority before: %q", got)
	}
	// A certificate without its key: the reload is refused, and what was read before stays, also for who looks later.
	read, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	current := filepath.Join(s.dir, "current.pem")
	write(t, current, string(read))
	broken, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certificate, string(broken))
	if out, code := s.tryCtl(t, "reload"); code != 1 || !strings.Contains(out, "dns.tls.key "+s.dir+"/tls.key") {
		t.Errorf("reload: exit status %d: %s", code, out)
	}
	s.waitLog("TLS certificate not loaded, keeping the one in force", 20*time.Second)
	if out := s.ctl(t, "status"); !strings.Contains(out, "DNS over TLS: the TLS certificate stays in force as it was read before") {
		t.Errorf("status says nothing of the certificate:\n%s", out)
	}
	if got := ask(current); got != "1.1.1.1" {
		t.Errorf("kdig after the refused reload: %q", got)
	}
	writeCertificate(t, s.dir)
	s.waitLog("TLS certificate loaded", 20*time.Second)
	if got := ask(certificate); got != "1.1.1.1" {
		t.Errorf("kdig after the files changed: %q", got)
	}
	if got := s.scrape(t, `gslbd_queries_total{rcode="NOERROR",transport="tls",type="A"}`); got != "4" {
		t.Errorf("%q queries over TLS are counted, want 4", got)
	}
}

// Under a crowd of idle connections, of which a part is over TLS, and a flood of connections that never come to a query,
// UDP loses nothing, those that have asked keep their connection, and the server's memory stays bounded.
func TestTCPUnderAttack(t *testing.T) {
	const (
		idle     = 5000
		overTLS  = 500             // of them
		networks = 250             // that they come from
		flood    = 4 * time.Second // how long it lasts
		held     = 2400            // connections that it holds open
		deaf     = 200             // connections that ask for much and read nothing
		memory   = 256 << 10       // KiB; docs/protocol.md states it
	)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	lab.Need(t, files.Cur >= idle+held+1000, "8400 open files (ulimit -n)")
	secure := freeAddr(t)
	s := startWithDNS(t, withTLS(t, secure, "tcp: {idle_timeout: 1m, max_connections: 7000}, "), behind(seedNetwork)+seedService("nearest"))
	query := new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA)

	// A client by UDP, before, during and after: each query once, without another try.
	ctx, cancel := context.WithCancel(t.Context())
	var asked atomic.Int64
	var clients sync.WaitGroup
	clients.Go(func() {
		conn, err := dns.Dial("udp", s.dns)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		q := query.Copy()
		for ctx.Err() == nil {
			q.Id = dns.Id()
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			err := conn.WriteMsg(q)
			if err == nil {
				var m *dns.Msg
				if m, err = conn.ReadMsg(); err == nil && (m.Id != q.Id || len(m.Answer) != 1) {
					err = fmt.Errorf("unfit answer %v", m)
				}
			}
			asked.Add(1)
			if err != nil {
				t.Errorf("UDP: %v", err)
				return
			}
		}
	})
	defer clients.Wait()
	defer cancel()

	dial := func(addr string, i int) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+i/250), byte(i%250), 1)}, Timeout: 5 * time.Second}
		return d.Dial("tcp", addr)
	}
	talk := func(c net.Conn) error {
		conn := &dns.Conn{Conn: c}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := conn.WriteMsg(query); err != nil {
			return err
		}
		m, err := conn.ReadMsg()
		if err == nil && len(m.Answer) != 1 {
			err = fmt.Errorf("unfit answer %v", m)
		}
		return err
	}
	began := time.Now()
	crowd := make([]net.Conn, idle)
	for i := range crowd {
		addr := s.dns
		if i < overTLS {
			addr = secure
		}
		c, err := dial(addr, i%networks)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		if i < overTLS {
			c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		}
		if err := talk(c); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		crowd[i] = c
	}
	t.Logf("%d connections in %v", idle, time.Since(began))

	greedy, err := new(dns.Msg).SetQuestion("big.gslb.example.com.", dns.TypeTXT).Pack()
	if err != nil {
		t.Fatal(err)
	}
	greedy = bytes.Repeat(append(binary.BigEndian.AppendUint16(nil, uint16(len(greedy))), greedy...), 1000)
	for i := range deaf {
		c, err := dial(s.dns, 4*networks+i)
		if err != nil {
			t.Fatalf("connection %d that does not read: %v", i, err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Millisecond)) // enough to fill what there is to fill
		for err == nil {
			_, err = c.Write(greedy)
		}
	}

	// The flood comes from other networks; each connection sends a single octet, or nothing.
	opened := make([]int, 2)
	var flooders sync.WaitGroup
	until := time.Now().Add(flood)
	for k, addr := range []string{s.dns, secure} {
		flooders.Go(func() {
			ring := make([]net.Conn, held/2)
			for n := 0; time.Now().Before(until); n++ {
				if old := ring[n%len(ring)]; old != nil {
					old.Close()
				}
				c, err := dial(addr, networks*(2+k)+n%networks)
				if err != nil {
					t.Errorf("flood: %v", err)
					return
				}
				if n%4 > 0 {
					_, _ = c.Write([]byte{22}) // it may have had to make room already
				}
				ring[n%len(ring)] = c
				opened[k]++
			}
			for _, c := range ring {
				if c != nil {
					c.Close()
				}
			}
		})
	}
	flooders.Wait()
	t.Logf("%d connections flooded, %s shed", opened[0]+opened[1], s.scrape(t, "gslbd_tcp_connections_shed_total"))

	for i, c := range crowd {
		if err := talk(c); err != nil {
			t.Fatalf("connection %d, after the flood: %v", i, err)
		}
	}
	cancel()
	clients.Wait()
	t.Logf("%d queries by UDP", asked.Load())
	peak := peakMemory(t, s.cmd.Process.Pid)
	t.Logf("peak memory %d MiB", peak>>10)
	if len(raceFlags) == 0 && peak > memory {
		t.Errorf("the server took %d KiB at its peak, more than %d", peak, memory)
	}
}

// Where the system lets the process open fewer files than there may be connections, an idle one makes room for a
// newcomer, which would otherwise wait unseen.
func TestTCPWithoutFiles(t *testing.T) {
	s := startGSLBD(t, seedNetwork+seedService("nearest"))
	pid := s.cmd.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	limit := uint64(len(open) + 40)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
		t.Fatal(err)
	}
	for range 120 {
		c, err := net.Dial("tcp", s.dns)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if m := s.ask(t, question{name: "www.gslb.example.com", tcp: true}); len(m.Answer) != 1 {
		t.Errorf("a newcomer got %v", m)
	}
	s.waitLog("cannot accept TCP connections", within)
}

// peakMemory returns the most resident memory that a process has had, in KiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if f := strings.Fields(string(line)); f[0] == "VmHWM:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("/proc has no VmHWM")
	return 0
}

// PowerDNS Recursor in front: what it makes of our answers is what its users get.
func TestPowerDNSRecursor(t *testing.T) {
	recursor := lab.Program(t, "pdns_recursor")
	body := behind(seedNetwork) + strings.Replace(seedService("nearest"), "addresses: [1.1.1.1]", `addresses: [1.1.1.1, "2001:db8::1"]`, 1)
	s := startWithDNS(t, func(s *gslbd) string { return "" }, body)
	resolver := freeAddr(t)
	host, port, _ := net.SplitHostPort(resolver)
	// It must ask nobody but us: neither the root servers nor its vendor.
	start(t, recursor, "--config-dir="+s.dir, "--socket-dir="+s.dir, "--daemon=no", "--write-pid=no", "--disable-syslog", "--local-address="+host,
		"--local-port="+port, "--forward-zones=gslb.example.com="+s.dns, "--dont-query=", "--dnssec=off", "--hint-file=no", "--security-poll-suffix=",
		"--allow-from=127.0.0.0/8", "--threads=1", "--quiet")
	ask := func(name, qtype string) string {
		m, err := exchange(resolver, question{name: name + ".gslb.example.com", qtype: dns.StringToType[qtype]})
		if err == nil && m.Truncated {
			m, err = exchange(resolver, question{name: name + ".gslb.example.com", qtype: dns.StringToType[qtype], tcp: true})
		}
		if err != nil {
			return err.Error()
		}
		got := []string{dns.RcodeToString[m.Rcode]}
		for _, rr := range m.Answer {
			f := strings.Fields(rr.String())
			got = append(got, strings.Join([]string{strings.TrimSuffix(f[0], ".gslb.example.com."), f[3], f[4]}, " "))
		}
		return strings.Join(got, ", ")
	}
	lab.Eventually(t, 15*time.Second, "the recursor answers", func() bool { return strings.HasPrefix(ask("www", "A"), "NOERROR") })
	for _, x := range []struct{ name, qtype, want string }{
		{"www", "AAAA", "NOERROR, www AAAA 2001:db8::1"},
		{"www", "MX", "NOERROR"},
		{"nope", "A", "NXDOMAIN"},
		{"y.wild", "A", "NOERROR, y.wild A 192.0.2.40"},
		{"y.wild", "AAAA", "NOERROR"},
		{"wild", "A", "NOERROR"},
		{"one", "A", "NOERROR, one CNAME two.gslb.example.com., two CNAME x.wild.gslb.example.com., x.wild A 192.0.2.40"},
	} {
		if got := ask(x.name, x.qtype); got != x.want {
			t.Errorf("%s %s: %q, want %q", x.name, x.qtype, got, x.want)
		}
	}
	vips := []string{"NOERROR, shop CNAME www.gslb.example.com., www A 1.1.1.1", "NOERROR, shop CNAME www.gslb.example.com., www A 2.2.2.2"}
	if got := ask("shop", "A"); !slices.Contains(vips, got) {
		t.Errorf("shop: %q", got)
	}
	if got := ask("big", "TXT"); strings.Count(got, ", ") != 20 {
		t.Errorf("big: %q", got)
	}
	if got := s.scrape(t, `gslbd_queries_total{rcode="NOERROR",transport="tcp",type="TXT"}`); got == "" || got == "0" {
		t.Error("the recursor did not come back by TCP for the big answer")
	}
}
