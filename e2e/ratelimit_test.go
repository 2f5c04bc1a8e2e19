package e2e

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A limit that a reload switches on holds for one client network and not for another; the limited client gets its answer
// over TCP; and a reload switches it off again.
func TestRateLimit(t *testing.T) {
	body := seedNetwork + seedService("nearest")
	s := startGSLBD(t, body)
	limit := func(options string) {
		t.Helper()
		s.write(t, body)
		text, err := os.ReadFile(s.config)
		if err != nil {
			t.Fatal(err)
		}
		with := strings.Replace(string(text), "drain_time: 0s}", "drain_time: 0s, rate_limit: {"+options+"}}", 1)
		if err := os.WriteFile(s.config, []byte(with), 0o600); err != nil {
			t.Fatal(err)
		}
		s.ctl(t, "reload")
	}
	query, err := new(dns.Msg).SetQuestion("www.gslb.example.com.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	// burst sends n queries at once and counts what comes back.
	burst := func(source string, n int) (full, truncated int) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
		conn, err := d.Dial("udp", s.dns)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range n {
			if _, err := conn.Write(query); err != nil {
				t.Fatal(err)
			}
		}
		var buf [512]byte
		for full+truncated < n {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			switch k, err := conn.Read(buf[:]); {
			case err != nil:
				return full, truncated
			case k > 2 && buf[2]&2 != 0:
				truncated++
			default:
				full++
			}
		}
		return full, truncated
	}
	if full, _ := burst("127.0.1.1", 200); full != 200 {
		t.Fatalf("without a limit %d of 200 are answered", full)
	}
	limit("responses_per_second: 10, slip: 2, exempt: [127.0.3.0/24]")
	full, truncated := burst("127.0.1.1", 200)
	if full < 10 || full > 30 || truncated < 80 || truncated > 95 {
		t.Errorf("of 200 queries %d are answered and %d truncated, want about 10 and 95", full, truncated)
	}
	if full, _ := burst("127.0.2.1", 10); full != 10 {
		t.Errorf("another network gets %d of 10 answers", full)
	}
	if full, _ := burst("127.0.3.1", 200); full != 200 {
		t.Errorf("an exempt network gets %d of 200 answers", full)
	}
	if reply, err := exchange(s.dns, question{name: "www.gslb.example.com", source: "127.0.1.1", tcp: true}); err != nil || len(reply.Answer) != 1 {
		t.Errorf("over TCP: %v, %v", reply, err)
	}
	s.waitLog(`"rate limit reached","network":"127.0.1.0/24","class":"name"`, within)
	for _, action := range []string{"drop", "slip"} {
		if got := s.scrape(t, `gslbd_rate_limited_total{action="`+action+`"}`); got == "" || got == "0" {
			t.Errorf("%s is counted %q times", action, got)
		}
	}
	limit("responses_per_second: 10, log_only: true")
	if full, _ := burst("127.0.1.1", 200); full != 200 {
		t.Errorf("with log_only %d of 200 are answered", full)
	}
	if got := s.scrape(t, `gslbd_rate_limited_total{action="log_only"}`); got == "" || got == "0" {
		t.Errorf("log_only is counted %q times", got)
	}
	limit("responses_per_second: 0")
	if full, _ := burst("127.0.1.1", 200); full != 200 {
		t.Errorf("without the limit again %d of 200 are answered", full)
	}
}
