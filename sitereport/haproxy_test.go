package sitereport_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/sitereport"
)

var update = flag.Bool("update", false, "write the golden files of testdata/haproxy")

// haproxyStub answers at a socket as HAProxy does: it reads a line, writes the reply and closes.
func haproxyStub(t *testing.T, network, address string, reply func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					reply(c)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func says(reply string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, reply) }
}

// pairs are the virtual servers that the cases of testdata/haproxy are read with.
var pairs = []sitereport.HAProxyVirtualServer{
	{Name: "web", Frontend: "fe-https", Backend: "be-app", Address: netip.MustParseAddr("192.0.2.10"), Port: 443, Protocol: "tcp"},
	{Name: "tcp", Frontend: "fe-https", Backend: "be-tcp"},
	{Name: "empty", Frontend: "fe-https", Backend: "be-empty"},
}

// TestHAProxyCases reads every file of testdata/haproxy: a .csv is an answer to "show stat" alone, as people have them,
// a .reply is all that came from a socket.
func TestHAProxyCases(t *testing.T) {
	dir := filepath.Join("..", "testdata", "haproxy")
	files, err := filepath.Glob(filepath.Join(dir, "*.[cr]*[vy]"))
	if err != nil || len(files) < 10 {
		t.Fatalf("only %d cases: %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			reply := string(b)
			if filepath.Ext(name) == ".csv" {
				reply = "Name: HAProxy\nPid: 4711\nUptime_sec: 100\n\n" + reply + "\n"
			}
			socket := haproxyStub(t, "unix", filepath.Join(t.TempDir(), "s"), says(reply))
			h, err := sitereport.NewHAProxy(sitereport.HAProxyOptions{Socket: socket, VirtualServers: pairs})
			if err != nil {
				t.Fatal(err)
			}
			reading, err := h.Read(t.Context())
			got := struct {
				Error   string              `json:",omitempty"`
				Reading *sitereport.Reading `json:",omitempty"`
			}{Reading: &reading}
			if err != nil {
				got.Error, got.Reading = strings.ReplaceAll(err.Error(), socket, "SOCKET"), nil
				unknownOnly(t, reading)
			}
			var text strings.Builder
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			e.SetIndent("", " ")
			if err := e.Encode(got); err != nil {
				t.Fatal(err)
			}
			golden := file + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), text.String()); d != "" {
				t.Error("differs from the golden file (-want +got); go test -update writes it:\n", d)
			}
		})
	}
}

// unknownOnly checks what a reader returns that could not read.
func unknownOnly(t *testing.T, r sitereport.Reading) {
	t.Helper()
	if r.Load != (sitereport.Load{}) {
		t.Errorf("a failed reader reports load: %+v", r.Load)
	}
	if len(r.VirtualServers) == 0 {
		t.Error("a failed reader must go on listing its virtual servers")
	}
	for _, v := range r.VirtualServers {
		if v.Sessions != nil {
			t.Errorf("%s: a failed reader reports %d sessions", v.Name, *v.Sessions)
		}
		for _, s := range v.Servers {
			if s.State != sitereport.StateUnknown || s.Reason == "" {
				t.Errorf("%s: %+v", v.Name, s)
			}
		}
	}
}

// TestHAProxyStatusWords reads each word of the status column.
func TestHAProxyStatusWords(t *testing.T) {
	tests := []struct{ status, check, want, reason string }{
		{"UP", "L7OK,200,", "up", ""},
		{"UP 1/3", "L4TOUT,,", "up", "UP 1/3"},
		{"no check", ",,", "up", "no check"},
		{"DOWN", "L7STS,503,", "down", "L7STS 503"},
		{"DOWN", "* L7STS,503,", "down", "L7STS 503"},
		{"DOWN 1/2", "L4CON,,Connection refused", "down", "L4CON: Connection refused"},
		{"DOWN", ",,", "down", "DOWN"},
		{"DOWN (agent)", "L7OK,200,", "down", "agent check"},
		{"DRAIN", "L7OK,200,", "drain", ""},
		{"DRAIN 2/3", "L7OK,200,", "drain", "DRAIN 2/3"},
		{"DRAIN (agent)", "L7OK,200,", "drain", "DRAIN (agent)"},
		{"NOLB", "L7OKC,404,", "drain", "NOLB"},
		{"NOLB 1/2", "L7OKC,404,", "drain", "NOLB 1/2"},
		{"MAINT", ",,", "maint", ""},
		{"MAINT (via a/b)", ",,", "maint", "MAINT (via a/b)"},
		{"MAINT (resolution)", ",,", "maint", "MAINT (resolution)"},
		{"", ",,", "unknown", `status "" is not known`},
		{"no checks", ",,", "unknown", `status "no checks" is not known`},
		{"UPSIDE DOWN", ",,", "unknown", `status "UPSIDE DOWN" is not known`},
		{"up", ",,", "unknown", `status "up" is not known`},
	}
	for _, tc := range tests {
		t.Run(tc.status, func(t *testing.T) {
			reply := "# pxname,svname,scur,status,type,check_status,check_code,last_chk\n" +
				"fe,FRONTEND,1,OPEN,0,,,\nbe,s,1," + tc.status + ",2," + tc.check + "\nbe,BACKEND,0,UP,1,,,\n\n"
			h := newHAProxy(t, haproxyStub(t, "tcp", "127.0.0.1:0", says(reply)))
			r, err := h.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			name := "be/s"
			if tc.status == "MAINT (resolution)" { // the name must not change when the address comes
				name = "s"
			}
			want := []sitereport.Server{{Name: name, State: tc.want, Reason: tc.reason}}
			if d := cmp.Diff(want, r.VirtualServers[0].Servers); d != "" {
				t.Error(d)
			}
			if warned := len(r.Warnings) > 0; warned != (tc.want == "unknown") {
				t.Errorf("warnings %q", r.Warnings)
			}
		})
	}
}

func newHAProxy(t *testing.T, socket string) *sitereport.HAProxy {
	t.Helper()
	h, err := sitereport.NewHAProxy(sitereport.HAProxyOptions{
		Socket:         socket,
		Timeout:        500 * time.Millisecond,
		VirtualServers: []sitereport.HAProxyVirtualServer{{Name: "web", Frontend: "fe", Backend: "be"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestHAProxyFailureKeepsServers loses the process in several ways: the servers stay listed, as unknown.
func TestHAProxyFailureKeepsServers(t *testing.T) {
	good := "# pxname,svname,scur,bin,bout,status,type\nfe,FRONTEND,9,1,1,OPEN,0\nbe,s,1,,,UP,2\nbe,BACKEND,0,,,UP,1\n\n"
	tests := []struct {
		name, want string
		reply      func(net.Conn)
	}{
		{"closed at once", "the answer is empty", func(net.Conn) {}},
		{"silent", "no whole answer in 500ms", func(c net.Conn) { io.Copy(io.Discard, c) }},
		{"hangs half way", "no whole answer in 500ms, only 60 bytes", func(c net.Conn) { io.WriteString(c, good[:60]); io.Copy(io.Discard, c) }},
		{"cut off between lines", "cut off after", says(good[:len(good)-1])},
		{"cut off in a line", "cut off after", says(good[:len(good)-8])},
		{"cut off in quotes", "cut off or broken", says(strings.Replace(good, "be,s", "be,\"s", 1))},
		{"endless", "bytes" /* too many, or on a slow machine too late */, func(c net.Conn) {
			for line := strings.Repeat("x", 1<<20); ; {
				if _, err := io.WriteString(c, line); err != nil {
					return
				}
			}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			calls := 0
			h := newHAProxy(t, haproxyStub(t, "unix", filepath.Join(t.TempDir(), "s"), func(c net.Conn) {
				if calls++; calls == 1 {
					io.WriteString(c, good)
					return
				}
				tc.reply(c)
			}))
			r, err := h.Read(t.Context())
			if err != nil || r.VirtualServers[0].Servers[0].State != sitereport.StateUp {
				t.Fatal(r, err)
			}
			r, err = h.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			unknownOnly(t, r)
			if len(r.VirtualServers[0].Servers) != 1 {
				t.Error("the server is not listed any more")
			}
		})
	}
}

func TestHAProxySocket(t *testing.T) {
	for _, socket := range []string{"", "haproxy", "http://192.0.2.1/haproxy?stats", "127.0.0.1"} {
		if _, err := sitereport.NewHAProxy(sitereport.HAProxyOptions{Socket: socket}); err == nil {
			t.Errorf("%q is taken for a socket", socket)
		}
	}
	gone := filepath.Join(t.TempDir(), "none.sock")
	_, err := newHAProxy(t, gone).Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is HAProxy running") {
		t.Errorf("a socket that does not exist: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newHAProxy(t, gone).Read(ctx); err == nil {
		t.Error("no error with a cancelled context")
	}
}
