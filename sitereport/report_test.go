package sitereport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/state"
)

const example = `{
  "site": "seoul", "agent": "lb1", "boot_id": "6f1c", "sequence": 42,
  "load": {"sessions": 400000, "new_sessions_per_second": 1200.5, "bits_per_second_in": 100000000, "bits_per_second_out": 500000000.4},
  "virtual_servers": [
    {"name": "web", "address": "1.1.1.1", "port": 443, "protocol": "tcp", "sessions": 4e5,
     "servers": [{"name": "server1", "address": "10.1.1.10:443", "state": "up"},
                 {"name": "server2", "address": "10.1.1.20:443", "state": "down", "reason": "HTTP\n503"},
                 {"name": "server3"}]}
  ],
  "rtts": [{"resolver": "203.0.113.53", "rtt_ms": 30.4, "method": "icmp", "age_ms": 1500},
           {"resolver": "::ffff:198.51.100.53", "lost": true, "age_ms": 1500},
           {"prefix": "198.51.100.128/25", "rtt_ms": 3, "method": "tcp", "connections": 12}],
  "of_a_later_version": {"nested": [1, {"a": null}]}
}`

// addresses lets cmp compare netip's types, which have unexported fields.
var addresses = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func TestDecodeExample(t *testing.T) {
	r, err := Decode(strings.NewReader(example), MaxReport)
	if err != nil {
		t.Fatal(err)
	}
	if r.BootID != "6f1c" || r.Sequence == nil || *r.Sequence != 42 {
		t.Errorf("boot %q, sequence %v", r.BootID, r.Sequence)
	}
	want := &state.Report{
		Site: "seoul", Agent: "lb1",
		HasSessions: true, Sessions: 400000,
		HasNewSessions: true, NewSessions: 1200.5,
		HasBits: true, BitsIn: 100000000, BitsOut: 500000000,
		VirtualServers: []state.VirtualServer{{
			Name: "web", Address: netip.MustParseAddr("1.1.1.1"), Port: 443, Protocol: "tcp",
			Servers: []state.Server{
				{Name: "server1", Address: "10.1.1.10:443", State: state.ServerUp},
				{Name: "server2", Address: "10.1.1.20:443", State: state.ServerDown, Reason: "HTTP 503"},
				{Name: "server3"},
			},
		}},
		RTTs: []state.RTTSample{
			{Resolver: netip.MustParseAddr("203.0.113.53"), RTT: 30400 * time.Microsecond, Age: 1500 * time.Millisecond},
			{Resolver: netip.MustParseAddr("198.51.100.53"), Lost: true, Age: 1500 * time.Millisecond},
			{Resolver: netip.MustParseAddr("198.51.100.128"), RTT: 3 * time.Millisecond, Method: state.RTTPassive, Connections: 12},
		},
	}
	if d := cmp.Diff(want, r.Measured(), addresses); d != "" {
		t.Error(d)
	}
}

func TestDecodeAbsentIsNotZero(t *testing.T) {
	for _, body := range []string{
		`{"site":"a"}`,
		`{"site":"a","load":null,"virtual_servers":null,"rtts":null,"sequence":null,"agent":null}`,
		`{"site":"a","load":{}}`,
		`{"site":"a","Load":{"sessions":1},"SEQUENCE":1}`,
	} {
		r, err := Decode(strings.NewReader(body), MaxReport)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		m := r.Measured()
		if m.HasSessions || m.HasNewSessions || m.HasBits || r.Sequence != nil || m.Agent != "default" {
			t.Errorf("%s: something was taken as given: %+v", body, m)
		}
	}
	r, err := Decode(strings.NewReader(`{"site":"a","sequence":0,"load":{"sessions":0,"bits_per_second_out":0}}`), MaxReport)
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Measured(); !m.HasSessions || !m.HasBits || r.Sequence == nil {
		t.Errorf("a zero was taken as absent: %+v", m)
	}
}

func TestDecodeRefuses(t *testing.T) {
	vs := func(s string) string { return `{"site":"a","virtual_servers":[{"name":"v"},` + s + `]}` }
	rtt := func(s string) string { return `{"site":"a","rtts":[` + s + `]}` }
	load := func(s string) string { return `{"site":"a","load":{` + s + `}}` }
	for _, c := range []struct{ body, err string }{
		{``, `there is no report: the body is empty`},
		{`  `, `there is no report: the body is empty`},
		{`<html>`, `not JSON: invalid character '<'`},
		{`null`, `site: missing`},
		{`[]`, `a list where an object belongs`},
		{`{}`, `site: missing`},
		{`{"site":""}`, `site: missing`},
		{`{"site":7}`, `site: a number where a string belongs`},
		{`{"site":"a\u001b[2J"}`, `site: "a\x1b[2J" has a character that cannot be printed`},
		{`{"site":"` + strings.Repeat("a", 256) + `"}`, `site: 256 bytes are more than 255`},
		{`{"site":"a"} {}`, `there is more after the report`},
		{`{"site":"a"}x`, `there is more after the report`},
		{"{\"site\":\"a\"}\x00", `there is more after the report`},
		{`{"site":"a\x"}`, `site: not JSON: invalid character 'x' in string escape code`},
		{"{\"site\":\"a\n\"}", `site: not JSON: invalid character '\n' in string literal`},
		{`{"site":"a","x":01}`, `not JSON: invalid character '1' after object key:value pair`},
		{`{"site":"a","x":{"y":1,}}`, `not JSON`},
		{`{"site":"a","rtts":[null,]}`, `rtts[0]: needs either a resolver or a prefix`},
		{`{"site":"a"`, `the report is cut off after 11 bytes`},
		{`{"site":"a","virtual_servers":[{"name":"v","servers":[{"na`, `virtual_servers[0].servers[0]: the report is cut off`},
		{`{"site":"a","site":"b"}`, `site: given twice`},
		{`{"site":"a",}`, `not JSON`},
		{`{"site":"a","sequence":-1}`, `sequence: -1 is not a whole number between 0 and 18446744073709551615`},
		{`{"site":"a","sequence":1.5}`, `sequence: 1.5 is not a whole number`},
		{`{"site":"a","sequence":"1"}`, `sequence: a string where a number belongs`},
		{`{"site":"a","load":[]}`, `load: a list where an object belongs`},
		{load(`"sessions":-1`), `load.sessions: -1 is not between 0 and 1000000000000`},
		{load(`"sessions":1e13`), `load.sessions: 1e13 is not between 0 and 1000000000000`},
		{load(`"sessions":1e999`), `load.sessions: 1e999 is not between`},
		{load(`"sessions":1.5`), `load.sessions: 1.5 is not a whole number`},
		{load(`"sessions":NaN`), `load.sessions: not JSON`},
		{load(`"sessions":"1"`), `load.sessions: a string where a number belongs`},
		{load(`"sessions":true`), `load.sessions: a truth value where a number belongs`},
		{load(`"new_sessions_per_second":-0.1`), `load.new_sessions_per_second: -0.1 is not between`},
		{load(`"bits_per_second_in":1e16`), `load.bits_per_second_in: 1e16 is not between`},
		{load(`"bits_per_second_out":-5`), `load.bits_per_second_out: -5 is not between`},
		{load(`"sessions":1,"sessions":2`), `load.sessions: given twice`},
		{`{"site":"a","virtual_servers":{}}`, `virtual_servers: an object where a list belongs`},
		{vs(`7`), `virtual_servers[1]: a number where an object belongs`},
		{vs(`{}`), `virtual_servers[1]: has neither a name nor an address`},
		{vs(`null`), `virtual_servers[1]: has neither a name nor an address`},
		{vs(`{"address":"1.1.1"}`), `virtual_servers[1].address: "1.1.1" is not an IP address`},
		{vs(`{"address":"fe80::1%eth0"}`), `virtual_servers[1].address: "fe80::1%eth0" is not an IP address`},
		{vs(`{"name":"w","port":65536}`), `virtual_servers[1].port: 65536 is not between 0 and 65535`},
		{vs(`{"name":"w","protocol":"sctp"}`), `virtual_servers[1].protocol: "sctp" is not one of tcp, udp`},
		{vs(`{"name":"w","sessions":-3}`), `virtual_servers[1].sessions: -3 is not between`},
		{vs(`{"name":"w","servers":[{"name":"s"},{"name":"t","state":"Up"}]}`), `virtual_servers[1].servers[1].state: "Up" is not one of up, down, drain, maint, unknown`},
		{vs(`{"name":"w","servers":[{"state":"up"}]}`), `virtual_servers[1].servers[0]: has neither a name nor an address`},
		{rtt(`{"rtt_ms":1}`), `rtts[0]: needs either a resolver or a prefix`},
		{rtt(`{"resolver":"192.0.2.1","prefix":"192.0.2.0/24","rtt_ms":1}`), `rtts[0]: needs either a resolver or a prefix`},
		{rtt(`{"resolver":"192.0.2.1"}`), `rtts[0]: needs either rtt_ms or lost`},
		{rtt(`{"resolver":"192.0.2.1","rtt_ms":1,"lost":true}`), `rtts[0]: needs either rtt_ms or lost`},
		{rtt(`{"resolver":"192.0.2.1","rtt_ms":60001}`), `rtts[0].rtt_ms: 60001 is not between 0 and 60000`},
		{rtt(`{"resolver":"192.0.2.1","rtt_ms":-1}`), `rtts[0].rtt_ms: -1 is not between`},
		{rtt(`{"resolver":"192.0.2.1","lost":1}`), `rtts[0].lost: a number where true or false belongs`},
		{rtt(`{"resolver":"192.0.2.1","lost":true,"age_ms":-1}`), `rtts[0].age_ms: -1 is not between`},
		{rtt(`{"prefix":"192.0.2.0/24","rtt_ms":1,"connections":-1}`), `rtts[0].connections: -1 is not`},
		{rtt(`{"prefix":"192.0.2.0/23","rtt_ms":1}`), `rtts[0].prefix: 192.0.2.0/23 is shorter than /24`},
		{rtt(`{"prefix":"2001:db8::/48","rtt_ms":1}`), `rtts[0].prefix: 2001:db8::/48 is shorter than /56`},
		{`{"site":"a","drained":{}}`, `drained: an object where a list belongs`},
		{`{"site":"a","drained":[{"servers":["s"]}]}`, `drained[0]: names no virtual server`},
		{`{"site":"a","drained":[{"virtual_server":"w","servers":["s",""]}]}`, `drained[0].servers[1]: names no server`},
		{`{"site":"a","drained":[{"virtual_server":"w","servers":["s\u0007"]}]}`, `drained[0].servers[0]: "s\a" has a character`},
		{`{"site":"a","warnings":["w",7]}`, `warnings[1]: a number where a string belongs`},
		{`{"site":"a","x":[1,}`, `not JSON`},
	} {
		r, err := Decode(strings.NewReader(c.body), MaxReport)
		if err == nil || !strings.HasPrefix(err.Error(), c.err) || r != nil {
			t.Errorf("%s:\n got %v, %v\nwant %s", c.body, r, err, c.err)
		}
	}
}

func TestDecodeBounds(t *testing.T) {
	many := func(n int, head, one, tail string) string {
		return head + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + tail
	}
	for _, c := range []struct {
		name, body, err string
	}{
		{"virtual servers", many(MaxVirtualServers+1, `{"site":"a","virtual_servers":[`, `{"name":"v"}`, `]}`), "virtual_servers: more than 10000 entries"},
		{"servers", many(3, `{"site":"a","virtual_servers":[`, many(MaxServers/2, `{"name":"v","servers":[`, `{"name":"s"}`, `]}`), `]}`), "virtual_servers[2].servers[0]: more than 50000 servers in the report"},
		{"servers in drain", many(3, `{"site":"a","drained":[`, many(MaxServers/2, `{"virtual_server":"v","servers":[`, `"s"`, `]}`), `]}`), "drained[2].servers[0]: more than 50000 servers in drain"},
		{"virtual servers with servers in drain", many(MaxVirtualServers+1, `{"site":"a","drained":[`, `{"virtual_server":"v"}`, `]}`), "drained: more than 10000 entries"},
		{"warnings", many(MaxWarnings+1, `{"site":"a","warnings":[`, `"w"`, `]}`), "warnings: more than 100 entries"},
		{"rtts", many(MaxRTTs+1, `{"site":"a","rtts":[`, `{"resolver":"::1","lost":true}`, `]}`), "rtts: more than 50000 entries"},
		{"depth", `{"site":"a","x":` + strings.Repeat("[", 20000), "not JSON: invalid character '[' exceeded max depth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Decode(strings.NewReader(c.body), MaxReport)
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("got %v, want %s", err, c.err)
			}
		})
	}

	body := `{"site":"a"}`
	if _, err := Decode(strings.NewReader(body), int64(len(body))); err != nil {
		t.Errorf("exactly at the limit: %v", err)
	}
	for _, more := range []string{" ", "x", strings.Repeat(" ", 1<<16)} {
		if _, err := Decode(strings.NewReader(body+more), int64(len(body))); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes over the limit: %v", len(more), err)
		}
	}
	broken := errors.New("connection reset")
	if _, err := Decode(io.MultiReader(strings.NewReader(body), failing{broken}), MaxReport); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("a report whose connection broke before its end: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestDecodeShortensReasons(t *testing.T) {
	long := strings.Repeat("ü", 300)
	r, err := Decode(strings.NewReader(fmt.Sprintf(`{"site":"a","virtual_servers":[{"name":"v","servers":[{"name":"s","state":"down","reason":%q}]}]}`, long)), MaxReport)
	if err != nil {
		t.Fatal(err)
	}
	got := r.VirtualServers[0].Servers[0].Reason
	if len(got) > MaxReason || !strings.HasSuffix(got, "ü…") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// FuzzDecode asserts that whatever is accepted is within bounds and means the same when it is sent again by us.
// TestDecodeDraining takes over what an agent says of draining, and makes its warnings short and printable.
func TestDecodeDraining(t *testing.T) {
	r, err := Decode(strings.NewReader(`{"site":"a","drained":[{"virtual_server":"web","servers":["s1","s2"],"later":1}],
		"warnings":["", "two\nlines", "`+strings.Repeat("x", 300)+`"]}`), MaxReport)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Measured()
	if d := cmp.Diff([]state.DrainedServers{{VirtualServer: "web", Servers: []string{"s1", "s2"}}}, m.Drained); d != "" {
		t.Error(d)
	}
	if len(m.Warnings) != 2 || m.Warnings[0] != "two lines" || len(m.Warnings[1]) > MaxReason {
		t.Errorf("%q", m.Warnings)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"site":"a","load":{"sessions":1e12},"rtts":[{"resolver":"::1","rtt_ms":60000,"age_ms":1e12}]}`))
	f.Add([]byte(`{"site":"a","site":"b"}`))
	f.Add([]byte(`{ "s\u0069te" : "a\n\ud83d\ude00", "x":[-0.5e+7,{"y":null},[],{}, true,false], "load":null}`))
	f.Add([]byte("{\"site\":\"a\",\"virtual_servers\":[{\"name\":\"\xff\"}]}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Decode(strings.NewReader(string(body)), 1<<16)
		if (r == nil) == (err == nil) {
			t.Fatalf("%v with error %v", r, err)
		}
		broken := err != nil && (strings.Contains(err.Error(), "not JSON") || strings.Contains(err.Error(), "cut off"))
		if valid := json.Valid(body); broken && valid || err == nil && !valid {
			t.Fatalf("%v, and JSON: %t", err, valid)
		}
		if err != nil {
			return
		}
		m := r.Measured()
		if m.Site == "" || m.Sessions > MaxSessions || m.BitsIn > MaxBits || m.BitsOut > MaxBits || m.NewSessions < 0 || math.IsNaN(m.NewSessions) {
			t.Fatalf("out of bounds: %+v", m)
		}
		for _, s := range m.RTTs {
			if !s.Resolver.IsValid() || s.RTT < 0 || s.RTT > time.Minute || s.Age < 0 {
				t.Fatalf("out of bounds: %+v", s)
			}
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		r2, err := Decode(strings.NewReader(string(again)), MaxReport)
		if err != nil {
			t.Fatalf("what we send ourselves is refused: %v\n%s", err, again)
		}
		if d := cmp.Diff(m, r2.Measured(), addresses); d != "" {
			t.Fatal(d)
		}
	})
}
