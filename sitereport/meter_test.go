package sitereport

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestHAProxyTraffic reads counters over time: only growth of the same counters of the same process is a rate.
func TestHAProxyTraffic(t *testing.T) {
	type reading struct {
		after    time.Duration // since the last reading
		pid      int
		uptime   int
		in, out  string
		want     bool
		bitsIn   uint64
		bitsOut  uint64
		describe string
	}
	s := 5 * time.Second
	for _, r := range [][]reading{
		{
			{0, 1, 100, "1000", "2000", false, 0, 0, "the first reading has nothing to compare with"},
			{s, 1, 105, "6000", "102000", true, 8000, 160000, "growth"},
			{s, 1, 110, "6000", "102000", true, 0, 0, "constant counters are a rate of 0"},
			{2 * s, 1, 120, "6100", "102000", true, 80, 0, "by the time that passed"},
			{s, 1, 125, "6000", "202000", false, 0, 0, "one went backward"},
			{s, 1, 130, "6010", "202000", true, 16, 0, "the next one counts again"},
			{s, 2, 3, "900000", "900000", false, 0, 0, "another process whose counters are above already"},
			{s, 2, 8, "900000", "900005", true, 0, 8, "the same process"},
			{s, 2, 4, "990000", "990005", false, 0, 0, "the same number, but it is younger"},
			{s, 2, 9, "", "990005", false, 0, 0, "an empty cell"},
			{s, 2, 14, "990000", "990005", false, 0, 0, "after an empty cell"},
			{s, 2, 19, "18446744073709551615", "990005", false, 0, 0, "more than any machine carries"},
		},
		{
			{0, 1, 3, "1000", "1000", false, 0, 0, "young process"},
			{60 * time.Second, 1, 4, "9000", "9000", false, 0, 0, "in a container: the number and almost the age, but a minute passed"},
		},
		{
			{0, 1, 3, "1000", "1000", false, 0, 0, "first"},
			{0, 1, 3, "2000", "2000", false, 0, 0, "no time passed"},
		},
	} {
		h, err := NewHAProxy(HAProxyOptions{Socket: "/s", VirtualServers: []HAProxyVirtualServer{
			{Name: "a", Frontend: "fe", Backend: "be"}, {Name: "b", Frontend: "fe", Backend: "be"}, // counted once
		}})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for _, r := range r {
			now = now.Add(r.after)
			got, err := h.interpret(now, fmt.Sprintf("Pid: %d\nUptime_sec: %d\n\n# pxname,svname,scur,bin,bout,rate,status,type\n"+
				"fe,FRONTEND,7,%s,%s,3,OPEN,0\nbe,s,1,,,,UP,2\nbe,BACKEND,1,5,5,1,UP,1\n\n", r.pid, r.uptime, r.in, r.out))
			if err != nil {
				t.Fatal(err)
			}
			if *got.Load.Sessions != 7 || *got.Load.NewSessions != 3 {
				t.Errorf("%s: %d sessions, %v new ones", r.describe, *got.Load.Sessions, *got.Load.NewSessions)
			}
			in, out := got.Load.BitsPerSecIn, got.Load.BitsPerSecOut
			if (in != nil) != r.want || (out != nil) != r.want {
				t.Errorf("%s: there is a rate: %t", r.describe, in != nil)
			} else if r.want && (*in != r.bitsIn || *out != r.bitsOut) {
				t.Errorf("%s: %d in and %d out, want %d and %d", r.describe, *in, *out, r.bitsIn, r.bitsOut)
			}
		}
	}
}

// TestMeter has counters that come and go.
func TestMeter(t *testing.T) {
	var m meter
	now := time.Now()
	rate := func(c map[string]traffic) string {
		now = now.Add(time.Second)
		in, out := m.rate(now, c)
		if in == nil || out == nil {
			return "none"
		}
		return fmt.Sprint(*in, " ", *out)
	}
	for i, step := range []struct {
		counters map[string]traffic
		want     string
	}{
		{map[string]traffic{"a": {1, 1}}, "none"},
		{map[string]traffic{"a": {2, 3}}, "8 16"},
		{map[string]traffic{"a": {3, 4}, "b": {9, 9}}, "none"},
		{map[string]traffic{"a": {4, 5}, "b": {10, 9}}, "16 8"},
		{map[string]traffic{"a": {4, 5}, "c": {10, 9}}, "none"},
		{map[string]traffic{"a": {4, 5}}, "none"},
		{nil, "none"},
		{nil, "none"},
		{map[string]traffic{"a": {math.MaxUint64, math.MaxUint64}}, "none"},
		{map[string]traffic{"a": {0, 0}}, "none"},
		{map[string]traffic{"a": {0, 0}}, "0 0"},
	} {
		if got := rate(step.counters); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// FuzzHAProxyReply gives a reader any bytes: it must not crash, and must list all its virtual servers or fail.
func FuzzHAProxyReply(f *testing.F) {
	f.Add("Pid: 1\n\n# pxname,svname,scur,status,type,bin,bout,rate\nfe,FRONTEND,1,OPEN,0,1,1,1\nbe,\"s\n1\",0,UP 1/2,2,,,\nbe,BACKEND,0,UP,1,,,\n\n")
	f.Add("# pxname,svname,scur,status\nfe,FRONTEND,1,OPEN\nbe,BACKEND,,\nbe,x,,no check\n\n")
	f.Add("<html>")
	f.Add("HTTP/1.1 200 OK\r\n\r\n# pxname,")
	f.Fuzz(func(t *testing.T, reply string) {
		h, err := NewHAProxy(HAProxyOptions{Socket: "/s", VirtualServers: []HAProxyVirtualServer{{Name: "a", Frontend: "fe", Backend: "be"}}})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for range 2 {
			now = now.Add(time.Second)
			r, err := h.interpret(now, reply)
			if err == nil && len(r.VirtualServers) != 1 {
				t.Fatalf("%d virtual servers", len(r.VirtualServers))
			}
			_, servers := merge([]Reading{r})
			for _, v := range servers {
				for _, s := range v.Servers {
					if len(s.Name) > MaxName || len(s.Reason) > MaxReason {
						t.Fatalf("a name of %d and a reason of %d bytes", len(s.Name), len(s.Reason))
					}
				}
			}
		}
	})
}
