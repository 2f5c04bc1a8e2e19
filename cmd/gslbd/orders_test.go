package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gslbd/control"
	"gslbd/state"
)

// A farListener has its clients come from another machine.
type farListener struct{ net.Listener }

type farConn struct{ net.Conn }

func (l farListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{c}, nil
}

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711} }

// writeConfig writes the configuration text into dir, with the zone that it names, and returns its path.
func writeConfig(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "gslbd.yaml")
	const zone = "@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300\n@ 3600 IN NS ns1\nns1 3600 IN A 192.0.2.1\n"
	for file, text := range map[string]string{path: text, filepath.Join(dir, "gslb.test.zone"): zone} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// startServer runs the server of the configuration text, whose operators are on another machine, until the test calls stop
// or ends.
func startServer(t *testing.T, dir, text string) (s *server, stop func()) {
	t.Helper()
	path := writeConfig(t, dir, text)
	g, db, err := load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = newServer(path, g, db, new(handed)); err != nil {
		t.Fatal(err)
	}
	s.http[1].listener = farListener{s.http[1].listener}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error)
	go func() { ended <- s.run(ctx, nil) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

const served = `
dns: {listen: ["127.0.0.1:0"], drain_time: 0s, nsid: ns1}
reports: {listen: "127.0.0.1:0"}
log: {level: error}
sites: [{name: seoul, zone: z1}, {name: busan, zone: z2}]
zones: [{name: gslb.test, file: gslb.test.zone}]
services:
  - name: www.gslb.test
    policy: spread
    members: [{name: a, site: seoul, addresses: [192.0.2.1]}, {name: b, site: busan, addresses: [192.0.2.2]}]
`

func uuidv7() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	ms := time.Now().UnixMilli()
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	b[6], b[8] = b[6]&0x0f|0x70, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func forceDown(target control.Target) control.Order {
	return control.Order{ID: uuidv7(), Created: time.Now(), Author: "kim", Reason: "test", Target: target, Action: control.Down}
}

// forced lists the members that are forced down, as SERVICE/MEMBER.
func forced(s *server) string {
	var all []string
	for _, svc := range s.store.Snapshot().Services {
		for _, m := range svc.Members {
			if m.Forced == state.ForcedDown {
				all = append(all, svc.Name+"/"+m.Name)
			}
		}
	}
	return strings.Join(all, " ")
}

// What was ordered is in force after a restart before anything is served, also by names that only the configuration knows;
// and a reload applies it to what it brings. No pool changes meanwhile, as if the orders had been away.
func TestOrdersAreInForceFirst(t *testing.T) {
	dir := t.TempDir()
	text := strings.Replace(served, "policy: spread", "aliases: [w.gslb.test]\n    policy: spread", 1) + `
  - name: db.gslb.test
    policy: spread
    members: [{name: p, site: busan, addresses: [192.0.2.3]}, {name: q, site: seoul, addresses: [192.0.2.4], role: backup}]
` + "zone_aliases: [{id: z2, names: [zone-b]}]\nadmin: {listen: \"127.0.0.1:0\"}\n"
	s, stop := startServer(t, dir, text)
	for _, target := range []control.Target{{Zone: "zone-b"}, {Member: "w.gslb.test/a"}} {
		if _, err := s.control.Force(t.Context(), forceDown(target), control.Caller{}); err != nil {
			t.Fatal(err)
		}
	}
	const all = "www.gslb.test/a www.gslb.test/b db.gslb.test/p"
	if got := forced(s); got != all {
		t.Errorf("forced down: %q, want %q", got, all)
	}
	stop()

	g, db, err := load(s.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = newServer(s.path, g, db, new(handed)); err != nil {
		t.Fatal(err)
	}
	if got := forced(s); got != all {
		t.Errorf("after a restart forced down: %q, want %q", got, all)
	}
	if db := s.store.Snapshot().ServiceByName("db.gslb.test"); db.Pool != state.Backup || db.PoolTransitions != 0 {
		t.Errorf("after a restart the pool is %v, and has changed %d times", db.Pool, db.PoolTransitions)
	}
	if second, err := newServer(s.path, g, db, new(handed)); err == nil || !strings.Contains(err.Error(), "in use by another gslbd") {
		t.Errorf("a second one: %v, %v", second, err)
	}
	moved := strings.Replace(text, "names: [zone-b]", "names: [zone-b, z3]", 1)
	moved = strings.Replace(moved, "zone: z2", "zone: z3", 1)
	moved = strings.Replace(moved, "name: www.gslb.test\n    aliases: [w.gslb.test]", "name: w.gslb.test\n    aliases: [www.gslb.test]", 1)
	if err := os.WriteFile(s.path, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reload(); err != nil {
		t.Fatal(err)
	}
	if got, want := forced(s), "w.gslb.test/a w.gslb.test/b db.gslb.test/p"; got != want {
		t.Errorf("after a reload forced down: %q, want %q", got, want)
	}
	if db := s.store.Snapshot().ServiceByName("db.gslb.test"); db.Pool != state.Backup || db.PoolTransitions != 0 {
		t.Errorf("after a reload the pool is %v, and has changed %d times", db.Pool, db.PoolTransitions)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.run(ended, nil); err != nil {
		t.Error(err)
	}
}

// Without a state directory that can be written gslbd answers, takes no orders, and says so.
func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	const where = "/sys/kernel" // where nobody can make a directory, nor root
	if _, err := os.Stat(where); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	text := served + "admin: {listen: \"127.0.0.1:0\"}\nstate: {directory: " + filepath.Join(where, "gslbd") + "}\n"
	path := writeConfig(t, t.TempDir(), text)
	g, db, err := load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(path, g, db, new(handed))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.store.Snapshot().Services); n != 1 {
		t.Errorf("%d services", n)
	}
	if p := s.problems(); len(p) != 1 || !strings.Contains(p[0].Text, "cannot keep its state, which a restart would forget: state.directory: mkdir /sys/kernel/gslbd: ") {
		t.Errorf("problems are %+v", p)
	}
	if len(s.control.Problems()) == 0 {
		t.Error("control has no problem")
	}
	if _, err := s.control.Force(t.Context(), forceDown(control.Target{Site: "seoul"}), control.Caller{}); !errors.Is(err, control.ErrUnavailable) {
		t.Errorf("an order: %v", err)
	}
	if err := errors.Join(s.control.Close(), s.store.Close()); err != nil {
		t.Error(err)
	}
}

// Orders are shared through an etcd that asks for a client certificate, and not through one of another authority.
func TestOrdersOverTLSOfEtcd(t *testing.T) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("SKIPPED: no etcd: install etcd-server")
	}
	dir := t.TempDir()
	ours := newAuthority(t, "ours")
	ca := ours.writeCA(filepath.Join(dir, "ca.pem"))
	theirs := newAuthority(t, "theirs").writeCA(filepath.Join(dir, "theirs.pem"))
	certificate, key, _ := ours.write(dir, "etcd", time.Now().Add(time.Hour))
	var urls [2]string
	var held [2]net.Listener // both, or one port could be given twice; where no client of another test gets the port
	for i, scheme := range []string{"https://", "http://"} {
		if held[i], err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
			t.Fatal(err)
		}
		urls[i] = scheme + held[i].Addr().String()
	}
	for _, l := range held {
		l.Close()
	}
	endpoint, peer := urls[0], urls[1]
	etcd := exec.Command(program, "--name", "m", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", endpoint, "--advertise-client-urls", endpoint,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "m="+peer, "--log-level", "error",
		"--cert-file", certificate, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth")
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = etcd.Process.Kill()
		_ = etcd.Wait()
	})
	certificate, key, _ = ours.write(dir, "ns1", time.Now().Add(time.Hour))
	for _, tt := range []struct{ ca, problem, want string }{
		{ca, "", "etcd"}, {theirs, "unknown authority", "on this gslbd only"},
	} {
		text := served + fmt.Sprintf("admin: {listen: \"127.0.0.1:0\"}\nstate: {etcd: {endpoints: [%q], certificate: %s, key: %s, ca: %s}}\n", endpoint, certificate, key, tt.ca)
		s, stop := startServer(t, t.TempDir(), text)
		var receipt control.Receipt
		problems := ""
		for began := time.Now(); time.Since(began) < time.Minute; { // until etcd serves, which a busy machine may hold up
			if receipt, err = s.control.Force(t.Context(), forceDown(control.Target{Site: "seoul"}), control.Caller{}); err != nil {
				t.Fatal(err)
			}
			problems = strings.Join(s.control.Problems(), "; ")
			if receipt.Shared == tt.want && strings.Contains(problems, tt.problem) {
				break
			}
		}
		if receipt.Shared != tt.want || receipt.Node != "ns1" || !strings.Contains(problems, tt.problem) {
			t.Errorf("with ca %s: %+v, want %q; problems are %q", tt.ca, receipt, tt.want, problems)
		}
		stop()
	}
}

// An operator elsewhere gives an order with a client certificate, and nobody does without one. A reload takes another
// certificate and other authorities.
func TestAdminTLS(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	certificate, key, first := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	_, _, operator := ours.write(dir, "operator", time.Now().Add(time.Hour))
	_, _, stranger := theirs.write(dir, "stranger", time.Now().Add(time.Hour))
	_, _, expired := ours.write(dir, "expired", time.Now().Add(-time.Hour))
	ca := ours.writeCA(filepath.Join(dir, "ca.pem"))
	s, _ := startServer(t, dir, served+fmt.Sprintf("admin: {listen: \"127.0.0.1:0\", tls: {certificate: %s, key: %s, client_ca: %s}}\n", certificate, key, ca))
	addr := s.http[1].listener.Addr().String()

	// call sends a request on a connection of its own, and returns the status, the body and the server's certificate.
	call := func(method, path, body string, with *tls.Certificate) (int, string, []byte, error) {
		t.Helper()
		tc := &tls.Config{RootCAs: ours.pool()}
		if with != nil {
			// Not Certificates: of those a client leaves out what the server says it will not take.
			tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return with, nil }
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: tc, DisableKeepAlives: true}, Timeout: 20 * time.Second}
		req, err := http.NewRequest(method, "https://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", nil, err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(answer), resp.TLS.PeerCertificates[0].Raw, err
	}
	order := func() string {
		return fmt.Sprintf(`{"id": "%s", "created": %q, "author": "kim", "reason": "test", "target": {"member": "www.gslb.test/a"}, "action": "down"}`,
			uuidv7(), time.Now().Format(time.RFC3339Nano))
	}
	down := func() bool { return s.store.Snapshot().ServiceByName("www.gslb.test").Members[0].Forced != 0 }

	if status, body, cert, err := call("GET", "/healthz", "", nil); err != nil || status != http.StatusOK || !bytes.Equal(cert, first.Leaf.Raw) {
		t.Errorf("without a client certificate /healthz is %d %q, %v", status, body, err)
	}
	if status, body, _, err := call("POST", "/v1/orders", order(), nil); err != nil || status != http.StatusForbidden || down() {
		t.Errorf("without a client certificate an order is %d %q, %v", status, body, err)
	}
	for name, with := range map[string]tls.Certificate{"of another authority": stranger, "expired": expired} {
		if status, body, _, err := call("POST", "/v1/orders", order(), &with); err == nil || !strings.Contains(err.Error(), "tls: ") || down() {
			t.Errorf("with a client certificate %s an order is %d %q, %v", name, status, body, err)
		}
	}
	if status, body, _, err := call("POST", "/v1/orders", order(), &operator); err != nil || status/100 != 2 || !down() {
		t.Errorf("with a client certificate an order is %d %q, %v; in force: %v", status, body, err, down())
	} else if !strings.Contains(body, `"ns1"`) {
		t.Errorf("the receipt does not name this gslbd: %s", body)
	}
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP is %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ours.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}

	// What cannot be used leaves all as it was.
	if err := os.WriteFile(ca, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reload(); err == nil || !strings.Contains(err.Error(), "admin.tls.client_ca: "+ca+" holds no certificate") {
		t.Errorf("a wrong client_ca: %v", err)
	}
	if status, _, _, err := call("GET", "/v1/status", "", &operator); err != nil || status != http.StatusOK {
		t.Errorf("after a refused reload status is %d, %v", status, err)
	}
	theirs.writeCA(ca)
	ours.write(dir, "ns1.gslb.test", time.Now().Add(-time.Minute)) // nobody will take it
	warnings, err := s.reload()
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "admin.tls.certificate: the certificate expired at ") {
		t.Errorf("reload: %q, %v", warnings, err)
	}
	if p := s.problems(); len(p) != 1 || !strings.HasPrefix(p[0].Text, "admin.tls: the certificate expired at ") {
		t.Errorf("problems are %+v", p)
	}
	_, _, second := ours.write(dir, "ns1.gslb.test", time.Now().Add(time.Hour))
	if warnings, err := s.reload(); err != nil || len(warnings) != 0 {
		t.Errorf("reload: %q, %v", warnings, err)
	}
	if status, _, cert, err := call("GET", "/v1/status", "", &stranger); err != nil || status != http.StatusOK || !bytes.Equal(cert, second.Leaf.Raw) {
		t.Errorf("with a certificate of the new authority status is %d, %v", status, err)
	}
	if status, _, _, err := call("GET", "/v1/status", "", &operator); err == nil {
		t.Errorf("with a certificate of the old authority status is %d", status)
	}
}
