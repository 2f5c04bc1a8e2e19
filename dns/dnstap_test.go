package dns_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dnstap/golang-dnstap"
	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"gslbd/dns"
)

// tapped runs a server that tells of its queries, and returns it with what stops it.
func tapped(t *testing.T, opts dns.TapOptions, log *zap.Logger) (s *dns.Server, stop func()) {
	t.Helper()
	w := newWorld(t, []dns.ZoneOptions{testZone(t)}, testService{name: "www.example.com", members: []string{"192.0.2.1", "192.0.2.2"}, ttl: 30})
	opts.Share, opts.Identity, opts.Version = 1, "gslb1", "gslbd test"
	s, err := dns.New(dns.Options{Listen: []string{"127.0.0.1:0"}, ECS: true, Store: w.store, Tap: opts, Log: log, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func testZone(t *testing.T) dns.ZoneOptions {
	t.Helper()
	path := filepath.Join(t.TempDir(), "zone")
	if err := os.WriteFile(path, []byte("@ 3600 IN SOA ns1 hostmaster 1 7200 900 1209600 300\n@ 3600 IN NS ns1\nns1 3600 IN A 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dns.ZoneOptions{Name: "example.com", File: path, ECS: true}
}

// ecsQuery asks for a name on behalf of 203.0.113.0/24.
func ecsQuery(t *testing.T, s *dns.Server, network, name string) {
	t.Helper()
	m := question(name, "A", edns(1232, &mdns.EDNS0_SUBNET{Code: mdns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(203, 0, 113, 0).To4()}))
	if _, _, err := (&mdns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(m, s.Addrs()[0].String()); err != nil {
		t.Fatal(err)
	}
}

// frames decodes what a reader holds.
func frames(t *testing.T, r dnstap.Reader) []*dnstap.Dnstap {
	t.Helper()
	var all []*dnstap.Dnstap
	buf := make([]byte, 1<<16)
	for {
		n, err := r.ReadFrame(buf)
		if err != nil {
			return all
		}
		d := new(dnstap.Dnstap)
		if err := proto.Unmarshal(buf[:n], d); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
}

func wantFrames(t *testing.T, all []*dnstap.Dnstap) {
	t.Helper()
	if len(all) != 3 {
		t.Fatalf("%d messages, want 3", len(all))
	}
	for i, d := range all {
		m := d.Message
		q, r := new(mdns.Msg), new(mdns.Msg)
		if q.Unpack(m.QueryMessage) != nil || r.Unpack(m.ResponseMessage) != nil || r.Id != q.Id || !r.Response || q.Response {
			t.Errorf("message %d does not hold a query and its reply", i)
		}
		if m.GetType() != dnstap.Message_AUTH_RESPONSE || string(d.Identity) != "gslb1" || string(d.Version) != "gslbd test" || m.GetSocketFamily() != dnstap.SocketFamily_INET ||
			time.Since(time.Unix(int64(m.GetQueryTimeSec()), 0)) > time.Minute || !net.IP(m.QueryAddress).IsLoopback() || m.GetQueryPort() == 0 || m.GetResponsePort() == 0 {
			t.Errorf("message %d: %v", i, d)
		}
	}
	const decision = "service=www.example.com reason=geo member=s1 ecs=203.0.113.0/24 scope=24"
	if a, b, c := string(all[0].Extra), string(all[1].Extra), string(all[2].Extra); a != decision || b != "" || c != decision {
		t.Errorf("extra: %q, %q, %q", a, b, c)
	}
	if all[0].Message.GetSocketProtocol() != dnstap.SocketProtocol_UDP || all[2].Message.GetSocketProtocol() != dnstap.SocketProtocol_TCP {
		t.Errorf("%v, %v", all[0].Message.GetSocketProtocol(), all[2].Message.GetSocketProtocol())
	}
}

func askThree(t *testing.T, s *dns.Server) {
	ecsQuery(t, s, "udp", "www.example.com.")
	ecsQuery(t, s, "udp", "nothing.example.com.")
	ecsQuery(t, s, "tcp", "www.example.com.")
}

func TestDnstapFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queries.fstrm")
	for range 2 { // the first is renamed
		s, stop := tapped(t, dns.TapOptions{File: path}, nil)
		askThree(t, s)
		stop()
	}
	for _, name := range []string{path, path + ".1"} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := dnstap.NewReader(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantFrames(t, frames(t, r))
	}
}

func TestDnstapSocket(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "dnstap.sock")
			}
			ln, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			reached, got := make(chan struct{}), make(chan []*dnstap.Dnstap)
			go func() {
				defer close(got)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				r, err := dnstap.NewReader(conn, &dnstap.ReaderOptions{Bidirectional: true})
				if err != nil {
					return
				}
				close(reached)
				got <- frames(t, r)
			}()
			s, stop := tapped(t, dns.TapOptions{Socket: ln.Addr().String()}, nil)
			askThree(t, s)
			select {
			case <-reached: // a server that stops while it is about to connect leaves it at that
			case <-time.After(10 * time.Second):
				t.Fatal("the collector is not reached")
			}
			go stop()
			wantFrames(t, <-got)
			if n := testutil.ToFloat64(counted{s, `written`}); n != 3 {
				t.Errorf("%v are counted", n)
			}
		})
	}
}

// counted collects one series of gslbd_dnstap_messages_total.
type counted struct {
	s      *dns.Server
	result string
}

func (c counted) Describe(chan<- *prometheus.Desc) {}

func (c counted) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric, 1000)
	c.s.Collect(all)
	close(all)
	for m := range all {
		if strings.Contains(m.Desc().String(), "gslbd_dnstap_messages_total") && strings.Contains(metricText(m), c.result) {
			ch <- m
		}
	}
}

// A collector that is away costs messages, and no query.
func TestDnstapWithoutCollector(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	s, stop := tapped(t, dns.TapOptions{Socket: filepath.Join(t.TempDir(), "nobody.sock")}, zap.New(core))
	conn, err := mdns.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m := question("www.example.com.", "A")
	const queries = 4096 + 100
	for range queries {
		if err := conn.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.ReadMsg(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testutil.ToFloat64(counted{s, `dropped`}); n < 99 || n > 101 { // the last may not be counted yet
		t.Errorf("%v are dropped", n)
	}
	if n := log.FilterMessage("dnstap collector not reached; trying again").Len(); n != 1 {
		t.Errorf("%d lines", n)
	}
	stop()
}

func metricText(m prometheus.Metric) string {
	var d dto.Metric
	_ = m.Write(&d) // a metric of constants does not fail
	return d.String()
}
