package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gslbd/sitereport"
	"gslbd/testdata/certs"
)

// TestReaders has check and once read what stands at a site over HTTP and by a program, each with its own credentials, and
// say what cannot be read.
func TestReaders(t *testing.T) {
	dir := t.TempDir()
	ca := must[certs.Certificate](t)(certs.Authority("ours"))
	if err := ca.Write(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"token": "t0ken\n", "password": "passw0rd\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recording := func(w http.ResponseWriter, dir, path string) {
		b, err := os.ReadFile(filepath.Join("..", "..", "testdata", dir, strings.ReplaceAll(strings.Trim(path, "/"), "/", "_")+".json"))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write(b)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("gslbd is presented %q, which is of another", got)
		}
		io.WriteString(w, `{"accepted": true, "interval_ms": 5000}`)
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "monitor" || password != "passw0rd" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, "Active connections: 41 \nserver accepts handled requests\n 95 95 9 \nReading: 0 Writing: 1 Waiting: 3 \n")
	})
	mux.HandleFunc("/api/9/", func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || r.Header.Get("Authorization") != "Bearer t0ken" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		recording(w, "nginx_plus", strings.TrimPrefix(r.URL.Path, "/api/9/"))
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "sessions 3\nup{server=\"s1\"} 0\n") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { recording(w, "envoy", r.URL.Path) })
	plain, secure := httptest.NewServer(mux), httptest.NewUnstartedServer(mux)
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{*serverCertificate(t, ca, time.Now().Add(time.Hour)).TLS()}}
	secure.StartTLS()
	defer plain.Close()
	defer secure.Close()

	file := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf(`
site: seoul
agent: lb1
servers: [%[1]q]
rtt: {enabled: false}
nginx:
  - {url: "%[1]s/status?key=s3cret", user: monitor, password_file: password}
  - {url: "%[1]s/status?key=0ther"}
nginx_plus:
  - url: %[2]s/api/9
    tls: {ca: ca.pem}
    token_file: token
    virtual_servers: [{name: shop, zone: www, upstream: app}]
  - url: %[2]s/api/9/
    token_file: token
    virtual_servers: [{name: mail, kind: stream, zone: mail, upstream: mail}]
envoy:
  - url: %[1]s
    virtual_servers: [{name: envoy, listener: 0.0.0.0_443, stat_prefix: ingress_https, cluster: app}]
prometheus:
  - url: %[1]s/metrics
    load: {sessions: {series: sessions}, bits_per_second_in: {series: bytes, kind: counter, factor: 8}}
    virtual_servers: [{name: api, servers: {series: up, label: server}}]
exec:
  - command: [/bin/sh, -c, 'printf "{\"virtual_servers\": [{\"name\": \"$GSLB_SITE by $GSLB_AGENT\", \"servers\": [{\"name\": \"a\", \"state\": \"up\"}]}]}"']
    timeout: 10s
log: {level: error}
`, plain.URL, secure.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := load(file, true)
	if err != nil || len(p.warnings) > 0 {
		t.Fatal(p, err)
	}
	var out bytes.Buffer
	if err := p.check(t.Context(), &out); err == nil {
		t.Error("all is well")
	}
	want := fmt.Sprintf(`%[1]s: accepts reports of site seoul, every 5s
nginx %[1]s/status: sessions 40, not known from one reading: new sessions a second
nginx %[1]s/status: FAILED: it answers 401: let the agent's address in there, or give the agent a token_file, or user and password_file
nginx_plus %[2]s/api/9: 1 virtual servers, 7 servers: 1 drain, 1 maint, 1 unknown, 1 up, 3 down
nginx_plus %[2]s/api/9: 10.1.1.20:8080 of shop is down: unhealthy
nginx_plus %[2]s/api/9: 10.1.1.30:8080 of shop is down: unavail
nginx_plus %[2]s/api/9: 10.1.1.40:8080 of shop is down: checking
nginx_plus %[2]s/api/9: 10.1.1.50:8080 of shop is drain: draining
nginx_plus %[2]s/api/9: 10.1.1.60:8080 of shop is maint: down
nginx_plus %[2]s/api/9: 10.1.1.70:8080 of shop is unknown: the state "resting" is not known
nginx_plus %[2]s/api/9: warning: virtual server "shop": server "10.1.1.70:8080": the state "resting" is not known, so it is reported as unknown
nginx_plus %[2]s/api/9/: FAILED: connections: tls: failed to verify certificate: x509: certificate signed by unknown authority
envoy %[1]s: 1 virtual servers, 13 servers: 1 unknown, 2 drain, 4 up, 6 down
envoy %[1]s: 10.1.1.20:8080 of envoy is down: health check failed
envoy %[1]s: 10.1.1.30:8080 of envoy is down: health check timed out, ejected as an outlier
envoy %[1]s: 10.1.1.40:8080 of envoy is down: ejected as an outlier
envoy %[1]s: 10.1.1.50:8080 of envoy is down: awaits its first health check
envoy %[1]s: 10.1.1.60:8080 of envoy is down: EDS says UNHEALTHY
envoy %[1]s: 10.1.1.61:8080 of envoy is down: EDS says TIMEOUT
envoy %[1]s: 10.1.1.70:8080 of envoy is drain: EDS says DRAINING
envoy %[1]s: 10.1.1.71:8080 of envoy is drain: the server asked to be left out
envoy %[1]s: /run/app.sock of envoy is unknown: the eds_health_status "RESTING" is not known
envoy %[1]s: warning: virtual server "envoy": server "/run/app.sock": the eds_health_status "RESTING" is not known, so it is reported as unknown
prometheus %[1]s/metrics: 1 virtual servers, 1 servers: 1 down
prometheus %[1]s/metrics: api/s1 of api is down: up is 0
prometheus %[1]s/metrics: warning: load.bits_per_second_in: there is no series bytes, so the figure is not known
exec /bin/sh: 1 virtual servers, 1 servers: 1 up
`, plain.URL, secure.URL)
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", &out, want)
	}

	out.Reset()
	if err := p.once(t.Context(), &out, true); err != nil {
		t.Fatal(err)
	}
	var r sitereport.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.VirtualServers) != 5 || len(r.Warnings) != 5 || r.Load != nil || r.VirtualServers[4].Name != "seoul by lb1" {
		t.Errorf("%s", &out)
	}
	for _, secret := range []string{"s3cret", "0ther", "t0ken", "passw0rd"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%s is told in %s", secret, &out)
		}
	}
}
