package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// passiveServices prefers Korea, unless round trips speak against it.
const passiveServices = `policies: [{name: felt, chain: [{metric: health}, {metric: rtt}, {metric: static, method: ordered}]}]
services:
  - name: www.gslb.example.com
    policy: felt
    ttl: 1
    members:
      - {name: seoul, site: seoul, addresses: [1.1.1.1]}
      - {name: virginia, site: virginia, addresses: [2.2.2.2]}
`

// What the users of a network feel at each site decides where they are sent, and when their path changes they follow.
// It takes three users, and counts only for whoever asks for them.
func TestPassiveRTT(t *testing.T) {
	t.Parallel()
	w := NewWorld(t, bin, passiveServices)
	w.reporting()
	for _, s := range []*Site{w.Korea, w.US} {
		text, err := os.ReadFile(s.agentConf)
		if err != nil {
			t.Fatal(err)
		}
		s.SLB.File("agent.yaml", string(text)+"passive_rtt: {enabled: true, interval: 5s}\n")
		s.Agent.Signal(syscall.SIGHUP)
	}
	users, couple := w.Host("users", HongKong, "12.1.1.10"), w.Host("couple", HongKong, "12.2.2.10")
	ctx, leave := context.WithCancel(t.Context())
	var browsing sync.WaitGroup
	defer browsing.Wait()
	defer leave()
	for _, s := range []*Site{w.Korea, w.US} {
		for i := range 4 {
			browsing.Go(func() { browse(ctx, users, s.VIP) })
			if i < 2 {
				browsing.Go(func() { browse(ctx, couple, s.VIP) })
			}
		}
	}

	answered := func(network, want string) func() bool {
		return func() bool {
			for _, g := range w.GSLBD {
				m := question("www.gslb.example.com")
				_, subnet, _ := net.ParseCIDR(network)
				m.SetEdns0(1232, false)
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: subnet.IP})
				reply, err := ask(w.Clients[Korea], g.Addr+":53", m, 3*time.Second)
				if err != nil || addresses(reply) != want {
					return false
				}
				for _, o := range reply.IsEdns0().Option {
					if e, ok := o.(*dns.EDNS0_SUBNET); ok && e.SourceScope != 24 {
						t.Errorf("%s: scope %d", network, e.SourceScope)
					}
				}
			}
			return true
		}
	}
	took := Eventually(t, 90*time.Second, "Hong Kong, 30 ms from the US and 200 ms from Korea, is sent to the US", answered("12.1.1.0/24", w.US.VIP))
	t.Logf("sent to the nearer site after %v", took.Round(time.Second))
	if out, err := w.GSLBD[0].Ctl("rtt", "12.1.1.10"); err != nil || strings.Count(out, "passive") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _ := w.GSLBD[0].Ctl("explain", "www.gslb.example.com", "--client", "8.8.8.8", "--ecs", "12.1.1.0/24"); !strings.Contains(out, "settled by rtt") {
		t.Errorf("explain says\n%s", out)
	}
	if !answered("12.2.2.0/24", w.Korea.VIP)() {
		t.Error("two connections decided")
	}
	if reply, err := ask(users, w.GSLBD[0].Addr+":53", question("www.gslb.example.com"), 3*time.Second); err != nil || addresses(reply) != w.Korea.VIP {
		t.Errorf("the users' round trips decided for a resolver among them: %v %v", reply, err)
	}

	w.Set(users.Name, US, Link{Delay: 200 * time.Millisecond})
	took = Eventually(t, 3*time.Minute, "the US became the farther, and Hong Kong is sent to Korea", answered("12.1.1.0/24", w.Korea.VIP))
	t.Logf("sent to the other site %v after the path changed", took.Round(time.Second))
	for _, s := range []*Site{w.Korea, w.US} {
		if log := s.Agent.Log(); strings.Contains(log, "round trips of clients are not measured") {
			t.Error(log)
		}
	}
}

// browse keeps a connection to a site and uses it four times a second, until it may leave; another when it breaks.
func browse(ctx context.Context, h *Host, vip string) {
	again := time.NewTicker(250 * time.Millisecond)
	defer again.Stop()
	for ctx.Err() == nil {
		c, err := h.Dial("tcp", vip+":80", 3*time.Second)
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		replies := bufio.NewReader(c)
		for ctx.Err() == nil {
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
			reply, err := http.ReadResponse(replies, nil)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, reply.Body)
			reply.Body.Close()
			select {
			case <-ctx.Done():
			case <-again.C:
			}
		}
		stop()
		c.Close()
	}
}
