package dns

import (
	"sync/atomic"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// durationSample is one in how many queries has its duration measured: two clock reads each would cost more than most
// of what they measure.
const durationSample = 1024

// The types and rcodes that are counted by name. What is not listed counts as "other", so that no query can add a
// series.
var (
	countedTypes = [...]uint16{
		dns.TypeA, dns.TypeNS, dns.TypeCNAME, dns.TypeSOA, dns.TypePTR, dns.TypeMX, dns.TypeTXT, dns.TypeAAAA,
		dns.TypeSRV, dns.TypeNAPTR, dns.TypeDS, dns.TypeDNSKEY, dns.TypeTLSA, dns.TypeSVCB, dns.TypeHTTPS, dns.TypeIXFR,
		dns.TypeAXFR, dns.TypeANY, dns.TypeCAA,
	}
	countedRcodes = [...]int{
		dns.RcodeSuccess, dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNameError, dns.RcodeNotImplemented,
		dns.RcodeRefused, dns.RcodeYXDomain, dns.RcodeNotAuth, dns.RcodeBadVers, dns.RcodeBadCookie,
	}
)

// The reasons for which no reply is sent.
const (
	dropMalformed = iota // too short, or a response
	dropOversize         // longer than any query that is looked at
	dropPort             // from port 0, which cannot be answered
	dropSend             // the kernel would not send the reply
	dropReasons
)

var dropNames = [dropReasons]string{"malformed", "oversize", "source_port", "send"}

// What comes of a set that needs a signature.
const (
	signMade    = iota
	signLimited // not now: too many were made
	signFailed
	signResults
)

var signNames = [signResults]string{"made", "limited", "failed"}

// The transports.
const (
	overUDP = iota
	overTCP
	overTLS
	transports
)

var transportNames = [transports]string{"udp", "tcp", "tls"}

// transport returns the one that the present query came by.
func (r *Responder) transport(tcp bool) int {
	switch {
	case !tcp:
		return overUDP
	case r.encrypted:
		return overTLS
	}
	return overTCP
}

const (
	types  = len(countedTypes) + 1
	rcodes = len(countedRcodes) + 1
)

// counters count the queries of one Responder. They have one writer and any number of readers.
type counters struct {
	queries    [transports][types][rcodes]atomic.Uint64
	truncated  atomic.Uint64
	dropped    [dropReasons]atomic.Uint64
	cookies    [cookieVerdicts]atomic.Uint64
	limited    [limitActions]atomic.Uint64 // by limitAction
	signatures [signResults]atomic.Uint64
	_          [64]byte // keeps the next Responder's apart
}

// typeIndexes and rcodeIndexes say where a type or rcode is counted.
var (
	typeIndexes  = indexes(countedTypes[:], int(dns.TypeCAA)+1)
	rcodeIndexes = indexes(countedRcodes[:], dns.RcodeBadCookie+1)
)

func indexes[T uint16 | int](counted []T, size int) []uint8 {
	at := make([]uint8, size)
	for i := range at {
		at[i] = uint8(len(counted))
	}
	for i, v := range counted {
		at[v] = uint8(i)
	}
	return at
}

// cell returns what counts such replies.
func (c *counters) cell(transport int, qtype uint16, rcode int) *atomic.Uint64 {
	t, rc := types-1, rcodes-1
	if int(qtype) < len(typeIndexes) {
		t = int(typeIndexes[qtype])
	}
	if rcode < len(rcodeIndexes) {
		rc = int(rcodeIndexes[rcode])
	}
	return &c.queries[transport][t][rc]
}

// A tally counts what mostly comes in runs of the same: it adds a run to its counter at once, since an atomic addition costs
// as much as all else that counting takes.
type tally struct {
	of *atomic.Uint64
	n  uint64
}

func (t *tally) add(of *atomic.Uint64) {
	if of != t.of {
		t.flush()
		t.of = of
	}
	t.n++
}

// flush adds what has not been added yet.
func (t *tally) flush() {
	if t.n > 0 {
		t.of.Add(t.n)
	}
	*t = tally{}
}

func typeName(i int) string {
	if i == types-1 {
		return "other"
	}
	return dns.TypeToString[countedTypes[i]]
}

func rcodeName(i int) string {
	switch {
	case i == rcodes-1:
		return "other"
	case countedRcodes[i] == dns.RcodeBadVers:
		return "BADVERS" // the value is BADSIG's too
	}
	return dns.RcodeToString[countedRcodes[i]]
}

// telemetry describes what a Server exports.
type telemetry struct {
	queries     *prometheus.Desc
	truncated   *prometheus.Desc
	dropped     *prometheus.Desc
	cookies     *prometheus.Desc
	connections *prometheus.Desc
	shed        *prometheus.Desc
	limited     *prometheus.Desc
	handshakes  *prometheus.Desc
	expiry      *prometheus.Desc
	signatures  *prometheus.Desc
	duration    prometheus.Histogram
}

func newTelemetry() *telemetry {
	return &telemetry{
		queries:     prometheus.NewDesc("gslbd_queries_total", "Queries answered.", []string{"transport", "type", "rcode"}, nil),
		truncated:   prometheus.NewDesc("gslbd_truncated_total", "Replies that told the client to ask again over TCP.", nil, nil),
		dropped:     prometheus.NewDesc("gslbd_queries_dropped_total", "Messages that got no reply.", []string{"reason"}, nil),
		cookies:     prometheus.NewDesc("gslbd_cookies_total", "Queries with a DNS cookie: without a server cookie yet, with a valid one, with another.", []string{"result"}, nil),
		connections: prometheus.NewDesc("gslbd_tcp_connections", "TCP connections that are open, TLS ones included.", nil, nil),
		shed:        prometheus.NewDesc("gslbd_tcp_connections_shed_total", "TCP connections that were closed to make room for another one.", nil, nil),
		limited:     prometheus.NewDesc("gslbd_rate_limited_total", "Replies above a client network's rate, by what became of them.", []string{"action"}, nil),
		handshakes:  prometheus.NewDesc("gslbd_tls_handshakes_total", "TLS handshakes, by result.", []string{"result"}, nil),
		expiry:      prometheus.NewDesc("gslbd_tls_certificate_expiry_timestamp_seconds", "When the certificate of DNS over TLS expires, in Unix time.", nil, nil),
		signatures:  prometheus.NewDesc("gslbd_dnssec_signatures_total", "Sets of records that needed a signature: made for a query, renewed in the background, limited since too many were made, failed.", []string{"result"}, nil),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "gslbd_query_duration_seconds",
			Help:    "Time from a query's bytes to its reply's bytes, without the sockets; one query in 1,024 is measured.",
			Buckets: []float64{1e-6, 2e-6, 3e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 1e-3, 10e-3},
		}),
	}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	t := s.telemetry
	for _, d := range []*prometheus.Desc{t.queries, t.truncated, t.dropped, t.cookies, t.connections, t.shed, t.limited, t.handshakes, t.expiry, t.signatures} {
		ch <- d
	}
	if s.tap != nil {
		ch <- tapDesc()
	}
	t.duration.Describe(ch)
}

// Collect implements prometheus.Collector. It sums what the workers counted; it may be called at any time.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	t := s.telemetry
	for transport, name := range transportNames {
		for i := range types {
			for j := range rcodes {
				n := uint64(0)
				for _, r := range s.responders {
					n += r.count.queries[transport][i][j].Load()
				}
				if n > 0 {
					ch <- prometheus.MustNewConstMetric(t.queries, prometheus.CounterValue, float64(n), name, typeName(i), rcodeName(j))
				}
			}
		}
	}
	truncated := uint64(0)
	var dropped [dropReasons]uint64
	var cookies [cookieVerdicts]uint64
	var limited [limitActions]uint64
	var signatures [signResults]uint64
	for _, r := range s.responders {
		truncated += r.count.truncated.Load()
		for i := range dropped {
			dropped[i] += r.count.dropped[i].Load()
		}
		for i := range cookies {
			cookies[i] += r.count.cookies[i].Load()
		}
		for i := range limited {
			limited[i] += r.count.limited[i].Load()
		}
		for i := range signatures {
			signatures[i] += r.count.signatures[i].Load()
		}
	}
	ch <- prometheus.MustNewConstMetric(t.truncated, prometheus.CounterValue, float64(truncated))
	for i, n := range dropped {
		ch <- prometheus.MustNewConstMetric(t.dropped, prometheus.CounterValue, float64(n), dropNames[i])
	}
	for i, n := range cookies {
		ch <- prometheus.MustNewConstMetric(t.cookies, prometheus.CounterValue, float64(n), cookieNames[i])
	}
	for i, n := range limited[limitPass+1:] {
		ch <- prometheus.MustNewConstMetric(t.limited, prometheus.CounterValue, float64(n), limitActionNames[int(limitPass)+1+i])
	}
	for i, n := range signatures {
		ch <- prometheus.MustNewConstMetric(t.signatures, prometheus.CounterValue, float64(n), signNames[i])
	}
	ch <- prometheus.MustNewConstMetric(t.signatures, prometheus.CounterValue, float64(s.signer.renewed.Load()), "renewed")
	ch <- prometheus.MustNewConstMetric(t.connections, prometheus.GaugeValue, float64(s.tcp.open()))
	ch <- prometheus.MustNewConstMetric(t.shed, prometheus.CounterValue, float64(s.tcp.shed.Load()))
	if s.certificate != nil {
		for i, result := range [handshakeResults]string{"success", "failure"} {
			ch <- prometheus.MustNewConstMetric(t.handshakes, prometheus.CounterValue, float64(s.tcp.handshakes[i].Load()), result)
		}
		ch <- prometheus.MustNewConstMetric(t.expiry, prometheus.GaugeValue, float64(s.certificate.current.Load().pair.Leaf.NotAfter.Unix()))
	}
	if s.tap != nil {
		s.tap.collect(ch)
	}
	t.duration.Collect(ch)
}
