package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// Two servers that share a file of secrets accept each other's DNS cookies, and keep doing so while the secret is rolled
// over, of which a reload tells them though the configuration itself stays.
func TestCookiesOfAFleet(t *testing.T) {
	const before, after = "000102030405060708090a0b0c0d0e0f", "101112131415161718191a1b1c1d1e1f"
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, before+"\n")
	t.Setenv("GSLBD_DNS__COOKIES__SECRET_FILE", secret)
	fleet := []*gslbd{startGSLBD(t, seedNetwork+seedService("nearest")), startGSLBD(t, seedNetwork+seedService("nearest"))}
	cookie := "0102030405060708"
	ask := func(s *gslbd, what string) {
		t.Helper()
		// A query for a cookie alone is told when its cookie is wrong (RFC 7873 section 5.4).
		m := new(dns.Msg)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: cookie}}
		m.Id = dns.Id()
		reply, err := dns.Exchange(m, s.dns)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		o := reply.IsEdns0()
		if o == nil || len(o.Option) != 1 || reply.Rcode != dns.RcodeSuccess {
			t.Fatalf("%s: %v", what, reply)
		}
		cookie = o.Option[0].(*dns.EDNS0_COOKIE).Cookie
	}
	ask(fleet[0], "a first cookie")
	for _, step := range []string{before, before + "\n" + after, after + "\n" + before, after} {
		write(t, secret, step+"\n")
		for _, s := range fleet {
			s.ctl(t, "reload")
			for _, other := range fleet {
				ask(other, "while "+strings.ReplaceAll(step, "\n", ", ")+" is rolled out")
			}
		}
	}
	if got := fleet[0].scrape(t, `gslbd_cookies_total{result="invalid"}`); got != "0" {
		t.Errorf("%s cookies were invalid", got)
	}
	for _, s := range fleet {
		if n := strings.Count(s.log(), "cookie secrets changed"); n != 3 {
			t.Errorf("%d changes in the log, want 3:\n%s", n, s.log())
		}
	}
}
