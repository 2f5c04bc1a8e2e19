package sitereport

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gosnmp/gosnmp"
)

// snmpDevice answers each request by what f returns, until the test ends.
func snmpDevice(t *testing.T, f func(*gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError)) (addr string) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		x := &gosnmp.GoSNMP{Version: gosnmp.Version2c, Community: "public", MaxOids: 1000}
		for buf := make([]byte, 64<<10); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			request, err := x.SnmpDecodePacket(buf[:n])
			if err != nil {
				panic(err)
			}
			response := &gosnmp.SnmpPacket{Version: gosnmp.Version2c, Community: "public", PDUType: gosnmp.GetResponse, RequestID: request.RequestID}
			response.Variables, response.Error = f(request)
			b, err := response.MarshalMsg()
			if err != nil {
				panic(err)
			}
			conn.WriteTo(b, from)
		}
	}()
	return conn.LocalAddr().String()
}

// TestSNMPFaults asks devices that do not answer as they should.
func TestSNMPFaults(t *testing.T) {
	const column = ".1.3.6.1.4.1.8072.9999.1"
	endless := 0
	for name, tc := range map[string]struct {
		answer func(*gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError)
		err    string
	}{
		"an error": {func(r *gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError) {
			if r.PDUType == gosnmp.GetRequest {
				return r.Variables, gosnmp.NoError
			}
			return r.Variables, gosnmp.GenErr
		}, "the device answers with the error GenErr"},
		"a circle": {func(r *gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError) {
			return []gosnmp.SnmpPDU{{Name: column + ".5", Type: gosnmp.Integer, Value: 1}}, gosnmp.NoError
		}, "the device goes around in circles at " + column + ".5"},
		"no end": {func(r *gosnmp.SnmpPacket) (all []gosnmp.SnmpPDU, _ gosnmp.SNMPError) {
			for range 200 {
				endless++
				all = append(all, gosnmp.SnmpPDU{Name: column + "." + strings.Repeat("1.", endless%2+1) + "7", Type: gosnmp.Integer, Value: 1})
			}
			return all, gosnmp.NoError
		}, "there are more than 10000 values below " + column},
		"nothing": {func(r *gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError) { return nil, gosnmp.NoError }, "the device answers with nothing below " + column},
		"half": {func(r *gosnmp.SnmpPacket) ([]gosnmp.SnmpPDU, gosnmp.SNMPError) {
			if r.Variables[0].Name != column {
				return nil, gosnmp.NoError
			}
			return []gosnmp.SnmpPDU{{Name: column + ".5", Type: gosnmp.Integer, Value: 1}}, gosnmp.NoError
		}, "the device answers with nothing below " + column + ".5"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewSNMP(SNMPOptions{Address: snmpDevice(t, tc.answer), Community: "public", Timeout: 10 * time.Second, VirtualServers: []SNMPVirtualServer{
				{Name: "web", States: []SNMPStates{{Column: column, Up: []int64{1}}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			s.known["web"] = []Server{{Name: "web/1", State: StateUp}}
			r, err := s.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v", err)
			}
			if got := summary(r); !strings.HasPrefix(got, "web, web/1 unknown\n") || r.Load != (Load{}) {
				t.Error(got)
			}
		})
	}
	for _, tc := range []struct {
		opts SNMPOptions
		err  string
	}{
		{SNMPOptions{Address: "192.0.2.1:0"}, "has no port that can be one"},
		{SNMPOptions{Address: "192.0.2.1", User: "u", Authentication: "sha256", Privacy: "rot13"}, `encrypt by "rot13"`},
		{SNMPOptions{Address: "192.0.2.1", User: "u", Authentication: "none", Privacy: "aes"}, `authenticate by "none"`},
		{SNMPOptions{Address: "192.0.2.1", VirtualServers: []SNMPVirtualServer{{Name: "web"}}}, `virtual server "web" has no column`},
	} {
		if _, err := NewSNMP(tc.opts); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("error %v, want %s", err, tc.err)
		}
	}
}

// TestSNMPCounters makes rates of counters of both sizes.
func TestSNMPCounters(t *testing.T) {
	const in, out, opened = ".1.3.1.1", ".1.3.1.2", ".1.3.1.3"
	s, err := NewSNMP(SNMPOptions{Address: "192.0.2.1", OctetsIn: []string{in}, OctetsOut: []string{out}, Connections: []string{opened}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i, step := range []struct {
		uptime, in, out, opened float64
		want                    string
	}{
		{100, 1<<32 - 1000, 1 << 50, 10, ""},
		{105, 9_000, 1<<50 + 5_000, 20, "new 2.0\nin 16000\nout 8000\n"}, // the small one began again
		{110, 14_000, 1<<50 + 5_000, 20, "new 0.0\nin 8000\nout 0\n"},
		{115, 1<<32 - 1, 1<<50 + 5_000, 20, "new 0.0\nin 6871925272\nout 0\n"},
		{120, 1<<30 + 5, 1<<50 + 5_000, 20, "new 0.0\n"}, // too much in 5 seconds: rather somebody cleared it
		{125, 1<<30 + 5_005, 1<<50 + 10_000, 20, "new 0.0\nin 8000\nout 8000\n"},
		{130, 1<<30 + 5_005, 10, 20, "new 0.0\n"}, // a large one does not begin again
		{135, 1<<30 + 5_005, 5_010, 20, "new 0.0\nin 0\nout 8000\n"},
		{3, 1<<30 + 10_005, 10_010, 30, ""}, // a restart, after which all are larger
		{8, 1<<30 + 10_005, 10_010, 40, "new 2.0\nin 0\nout 0\n"},
		{13, -1, 10_010, 50, "new 2.0\n"}, // one is missing
		{18, 1<<30 + 10_005, 10_010, 50, "new 0.0\n"},
		{23, 1<<30 + 10_005, 10_010, 8e9 + 50, "in 0\nout 0\n"}, // more than any device takes
	} {
		a := &snmpAnswers{values: map[string]snmpValue{
			sysUpTime: {number: step.uptime, isNumber: true},
			out:       {number: step.out, isNumber: true},
			opened:    {number: step.opened, isNumber: true},
		}}
		if step.in >= 0 {
			a.values[in] = snmpValue{number: step.in, isNumber: true, counter32: true}
		}
		now = now.Add(5 * time.Second)
		got := summary(s.interpret(now, a))
		if got, _, _ = strings.Cut(got, "warning: "); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// FuzzSNMP interprets what any packet says.
func FuzzSNMP(f *testing.F) {
	const column, sessions = ".1.3.6.1.4.1.2", ".1.3.6.1.4.1.2.1.0"
	b, err := (&gosnmp.SnmpPacket{
		Version: gosnmp.Version2c, Community: "public", PDUType: gosnmp.GetResponse,
		Variables: []gosnmp.SnmpPDU{
			{Name: sessions, Type: gosnmp.Counter64, Value: uint64(1 << 40)},
			{Name: column + ".2", Type: gosnmp.Integer, Value: 7},
			{Name: column + ".3", Type: gosnmp.OctetString, Value: []byte("5")},
			{Name: column + ".4", Type: gosnmp.NoSuchInstance},
			{Name: column + ".5", Type: gosnmp.IPAddress, Value: "192.0.2.1"},
		},
	}).MarshalMsg()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		x := &gosnmp.GoSNMP{Version: gosnmp.Version2c, Community: "public", Context: t.Context()}
		packet, err := x.SnmpDecodePacket(b)
		if err != nil {
			return
		}
		s, err := NewSNMP(SNMPOptions{Address: "192.0.2.1", Sessions: []string{sessions}, OctetsIn: []string{sessions}, OctetsOut: []string{sessions}, VirtualServers: []SNMPVirtualServer{
			{Name: "web", Names: column, States: []SNMPStates{{Column: column, Up: []int64{7}}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		a := &snmpAnswers{values: make(map[string]snmpValue), columns: make(map[string][]snmpRow)}
		for _, p := range packet.Variables {
			if v, ok := snmpValueOf(p); ok {
				a.values[p.Name] = v
				if index, below := strings.CutPrefix(p.Name, column+"."); below {
					a.columns[column] = append(a.columns[column], snmpRow{index, v})
				}
			}
		}
		now := time.Now()
		s.interpret(now, a)
		r := s.interpret(now.Add(time.Second), a)
		if n := r.Load.Sessions; n != nil && *n > MaxSessions {
			t.Fatalf("%d sessions", *n)
		}
	})
}
