package sitereport_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gslbd/sitereport"
)

// TestRealCounters counts what passes the system's nft and iptables.
func TestRealCounters(t *testing.T) {
	save := program(t, "iptables-save")
	for name, tc := range map[string]struct {
		opts                       sitereport.CountersOptions
		setup, reset, anew, remove [][]string
		missing                    string
	}{
		"nft": {
			opts: sitereport.CountersOptions{Table: "inet gslb", In: []string{"web-in"}, Out: []string{"web-out"}},
			setup: [][]string{
				{"nft", "add table inet gslb; add table ip gslb; add counter ip gslb web-in; add counter inet gslb web-in; add counter inet gslb web-out"},
				{"nft", "add chain inet gslb in { type filter hook input priority 0; }; add rule inet gslb in ip daddr 127.0.0.10 counter name web-in"},
				{"nft", "add rule inet gslb in ip saddr 127.0.0.10 counter name web-out"},
			},
			reset:   [][]string{{"nft", "reset counters"}},
			anew:    [][]string{{"nft", "flush chain inet gslb in; delete counter inet gslb web-in; add counter inet gslb web-in { packets 1 bytes 99999 }; add rule inet gslb in ip daddr 127.0.0.10 counter name web-in"}},
			remove:  [][]string{{"nft", "delete table inet gslb"}},
			missing: `there is no counter "web-in"; there are none`,
		},
		"iptables": {
			opts: sitereport.CountersOptions{Table: "filter", Programs: []string{save}, In: []string{"web-in"}, Out: []string{"web-out"}},
			setup: [][]string{
				{"iptables", "-N", "gslb"},
				{"iptables", "-A", "INPUT", "-j", "gslb"},
				{"iptables", "-A", "gslb", "-d", "127.0.0.10", "-m", "comment", "--comment", "web-in"},
				{"iptables", "-A", "gslb", "-s", "127.0.0.10", "-m", "comment", "--comment", "web-out"},
			},
			reset:   [][]string{{"iptables", "-Z"}},
			remove:  [][]string{{"iptables", "-F", "gslb"}},
			missing: `there is no counter "web-in"; there are none`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				command(t, "ip", "link", "set", "lo", "up")
				do := func(commands [][]string) {
					t.Helper()
					for _, c := range commands {
						command(t, c[0], c[1:]...)
					}
				}
				do(tc.setup)
				c, err := sitereport.NewCounters(tc.opts)
				if err != nil {
					t.Fatal(err)
				}
				server, err := net.ListenPacket("udp4", "127.0.0.10:0")
				if err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				client, err := net.Dial("udp4", server.LocalAddr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				send := func() {
					t.Helper()
					if _, err := client.Write(make([]byte, 1000)); err != nil {
						t.Fatal(err)
					}
				}
				// read says whether traffic was seen in and out; "": it is not known.
				read := func() string {
					t.Helper()
					r, err := c.Read(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if len(r.Warnings) > 0 || !r.WholeSite || r.Load.Sessions != nil || r.Load.NewSessions != nil {
						t.Errorf("%+v", r)
					}
					in, out := r.Load.BitsPerSecIn, r.Load.BitsPerSecOut
					if in == nil || out == nil {
						if in != out {
							t.Errorf("%+v", r.Load)
						}
						return ""
					}
					word := map[bool]string{true: "some", false: "none"}
					return word[*in > 0] + " in, " + word[*out > 0] + " out"
				}
				expect := func(when, want string) {
					t.Helper()
					if got := read(); got != want {
						t.Errorf("%s: %q, want %q", when, got, want)
					}
				}
				expect("at first", "")
				send()
				expect("after a packet", "some in, none out")
				expect("after nothing", "none in, none out")
				if _, err := server.WriteTo(make([]byte, 1000), client.LocalAddr()); err != nil {
					t.Fatal(err)
				}
				expect("after an answer", "none in, some out")
				do(tc.reset)
				expect("after a reset", "")
				send()
				expect("then", "some in, none out")
				if len(tc.anew) > 0 {
					do(tc.anew)
					expect("another counter of that name", "")
					expect("then", "none in, none out")
				}

				// Without the permission. It is the thread's, which ends with this test.
				header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				var all, fewer [2]unix.CapUserData
				if err := unix.Capget(&header, &all[0]); err != nil {
					t.Fatal(err)
				}
				fewer = all
				fewer[0].Effective &^= 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
				fails := func(reason string) {
					t.Helper()
					r, err := c.Read(t.Context())
					if err == nil || !strings.Contains(err.Error(), "counters of table "+tc.opts.Table+": ") || !strings.Contains(err.Error(), reason) {
						t.Errorf("error %v, want %s", err, reason)
					}
					if r.Load != (sitereport.Load{}) || !r.WholeSite {
						t.Errorf("%+v", r)
					}
				}
				if name == "nft" { // a program of root's gets all capabilities back
					if err := unix.Capset(&header, &fewer[0]); err != nil {
						t.Fatal(err)
					}
					fails("operation not permitted: the agent needs CAP_NET_ADMIN")
					if err := unix.Capset(&header, &all[0]); err != nil {
						t.Fatal(err)
					}
					expect("after a failure", "")
				}
				do(tc.remove)
				fails(tc.missing)
			})
		})
	}
}

// TestDocsCounters reads the counters of docs/agent.md.
func TestDocsCounters(t *testing.T) {
	page, err := os.ReadFile("../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, found := strings.Cut(string(page), "```\ntable inet gslb")
	rules, _, _ = strings.Cut("table inet gslb"+rules, "```")
	if !found {
		t.Fatal("the page has no such block")
	}
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	inNamespace(t, func(t *testing.T) {
		command(t, "nft", "-f", file)
		c, err := sitereport.NewCounters(sitereport.CountersOptions{Table: "inet gslb", In: []string{"web-in", "web6-in"}, Out: []string{"web-out", "web6-out"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err := c.Read(t.Context()); err != nil || r.Load.BitsPerSecIn == nil || r.Load.BitsPerSecOut == nil {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
