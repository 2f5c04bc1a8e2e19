package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

// startHTTP runs a server of handler until the test calls stop, which waits for its end.
func startHTTP(t *testing.T, handler http.HandlerFunc) (addr string, stop func()) {
	t.Helper()
	s := &httpServer{key: "admin.listen", listen: "127.0.0.1:0", handler: handler, log: zap.NewNop()}
	if err := s.bind(new(handed).takeTCP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.run(ctx) }()
	return s.listener.Addr().String(), func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A request that is being answered when the server stops gets its answer; after that nobody listens.
func TestHTTPServerStops(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	addr, stop := startHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-goOn
		io.WriteString(w, "answered")
	})
	taken := &httpServer{key: "admin.listen", listen: addr, log: zap.NewNop()}
	if err := taken.bind(new(handed).takeTCP); err == nil || !strings.HasPrefix(err.Error(), "admin.listen: listen tcp") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a taken address: %v", err)
	}
	got := make(chan string)
	go func() {
		resp, err := http.Get("http://" + addr + "/")
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		got <- string(body)
	}()
	<-began
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	for { // until nobody listens any more
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		conn.Close()
	}
	close(goOn)
	if text := <-got; text != "answered" {
		t.Errorf("got %q", text)
	}
	http.DefaultClient.CloseIdleConnections()
	<-stopped
}

// Whoever opens all the connections that he can keeps nobody else away.
func TestHTTPServerSharesConnections(t *testing.T) {
	addr, stop := startHTTP(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	from := func(ip string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		return conn
	}
	for range maxConnections + 50 {
		from("127.0.0.2")
	}
	other := from("127.0.0.3")
	other.SetReadDeadline(time.Now().Add(10 * time.Second))
	status := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(other, status); err != nil || string(status) != "HTTP/1.1 200" {
		t.Errorf("another address got %q, %v", status, err)
	}
	stop()
}

// A stream of events ends well when the server stops, and is not waited for until it is cut off.
func TestStreamsEndWithTheServer(t *testing.T) {
	dir := t.TempDir()
	const token = "a-token-of-32-characters-at-least"
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	s, stop := startServer(t, dir, served+"admin: {listen: \"127.0.0.1:0\", token_file: token}\n")
	req, err := http.NewRequest("GET", "http://"+s.http[1].listener.Addr().String()+"/v1/events?since=1h", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len("event: event\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "event: event\n" {
		t.Fatalf("%q, %v", first, err)
	}
	stop()
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), "gslbd started") {
		t.Errorf("%q, %v", rest, err) // unexpected EOF: it was cut off
	}
}
