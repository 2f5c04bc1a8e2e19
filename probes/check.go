package probes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// A Type says how a check asks.
type Type string

// The types of checks.
const (
	ICMP  Type = "icmp"  // one echo
	TCP   Type = "tcp"   // connect; with Send or Expect an exchange as well
	UDP   Type = "udp"   // one datagram and its answer
	HTTP  Type = "http"  // one GET
	HTTPS Type = "https" // one GET over TLS
	DNS   Type = "dns"   // one query over UDP
)

// maxAnswer bounds what a check reads of an answer, in bytes.
const maxAnswer = 64 << 10

// maxReason bounds the reason of a failure, in bytes: it may quote what the target sent.
const maxReason = 200

// The defaults of a check (docs/operations.md).
const (
	DefaultInterval = 10 * time.Second
	DefaultTimeout  = 2 * time.Second
	DefaultRise     = 2
	DefaultFall     = 3
)

// A Check says what to ask an address, and how often. It is plain data; a zero field means its default.
type Check struct {
	Key  string     // identifies the check in Results and across Set; not empty
	Type Type       // how to ask
	Addr netip.Addr // whom to ask
	Port uint16     // 0: 80 for http, 443 for https, 53 for dns; tcp and udp need one, icmp has none

	// Send and Expect belong to tcp and udp. Expect must occur in the answer (for tcp: in its first 64 KiB).
	//
	// A udp check without Expect succeeds with any answer at once. Silence until the timeout counts as success too,
	// because many services do not answer what they do not understand: such a check only notices a refusal (ICMP port
	// unreachable) and no route. Where the service answers anything at all, give Send and Expect.
	Send, Expect string

	Path        string // http, https: the path and query to GET; default /
	Host        string // http, https: the Host header, and the SNI if that is empty; default: the address
	ExpectCodes []int  // http, https: the status codes that mean success; default 200. Redirects are not followed
	Body        string // http, https: a regular expression (RE2) that must match the first 64 KiB of the body; "": any
	Verify      bool   // https: verify the certificate, for SNI (else Host, else the address)
	SNI         string // https: the server name in the TLS handshake; default Host without its port, if that is a name

	DNSName string // dns: the name to ask for; default the root
	DNSType string // dns: the type to ask for, "A" or "AAAA", say; default NS

	Interval time.Duration // from the start of one run to the start of the next, default 10s
	Timeout  time.Duration // of one run as a whole, default 2s; at most Interval
	Rise     int           // consecutive successes that bring it up, default 2
	Fall     int           // consecutive failures that bring it down, default 3
}

// Validate says what keeps the check from being run as written, or nil. A [Monitor] shows an invalid check as
// unrunnable, with this error.
func (c Check) Validate() error {
	_, err := c.resolved()
	return err
}

// resolved returns the check with its defaults in place.
func (c Check) resolved() (Check, error) {
	c.Addr = c.Addr.Unmap()
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = min(DefaultTimeout, c.Interval)
	}
	if c.Rise == 0 {
		c.Rise = DefaultRise
	}
	if c.Fall == 0 {
		c.Fall = DefaultFall
	}
	switch {
	case c.Key == "":
		return c, errors.New("key: must not be empty")
	case !c.Addr.IsValid() || c.Addr.IsUnspecified() || c.Addr.IsMulticast():
		return c, fmt.Errorf("address: %v cannot be checked", c.Addr)
	case c.Interval < 0 || c.Timeout < 0 || c.Timeout > c.Interval:
		return c, fmt.Errorf("timeout: %v must be above 0 and at most the interval, %v", c.Timeout, c.Interval)
	case c.Rise < 0 || c.Fall < 0:
		return c, fmt.Errorf("rise %d, fall %d: must be at least 1", c.Rise, c.Fall)
	}
	switch c.Type {
	case ICMP:
	case TCP, UDP:
		if c.Port == 0 {
			return c, fmt.Errorf("port: a %s check needs one", c.Type)
		}
	case HTTP, HTTPS:
		if c.Port == 0 {
			c.Port = defaultPort(c.Type)
		}
		if c.Path == "" {
			c.Path = "/"
		}
		if !strings.HasPrefix(c.Path, "/") {
			return c, fmt.Errorf("path: %q must begin with /", c.Path)
		}
		if _, err := newRequest(context.Background(), c); err != nil {
			return c, err
		}
		if len(c.ExpectCodes) == 0 {
			c.ExpectCodes = []int{200}
		}
		for _, code := range c.ExpectCodes {
			if code < 200 || code > 599 {
				return c, fmt.Errorf("expect: %d is not a status code between 200 and 599", code)
			}
		}
		if _, err := regexp.Compile(c.Body); err != nil {
			return c, fmt.Errorf("body: %w", err)
		}
	case DNS:
		if c.Port == 0 {
			c.Port = defaultPort(c.Type)
		}
		if c.DNSType == "" {
			c.DNSType = "NS"
		}
		if _, ok := dns.StringToType[strings.ToUpper(c.DNSType)]; !ok {
			return c, fmt.Errorf("type: %q is not a record type", c.DNSType)
		}
		if _, ok := dns.IsDomainName(c.DNSName); !ok && c.DNSName != "" {
			return c, fmt.Errorf("name: %q is not a domain name", c.DNSName)
		}
	default:
		return c, fmt.Errorf("type: %q is none of icmp, tcp, udp, http, https, dns", c.Type)
	}
	return c, nil
}

// defaultPort returns the port of a type of check, or 0.
func defaultPort(t Type) uint16 {
	switch t {
	case HTTP:
		return 80
	case HTTPS:
		return 443
	case DNS:
		return 53
	}
	return 0
}

// sameTarget says whether two checks ask the same in the same way, whatever their schedule.
func sameTarget(a, b Check) bool {
	codes := len(a.ExpectCodes) == len(b.ExpectCodes)
	for i := 0; codes && i < len(a.ExpectCodes); i++ {
		codes = a.ExpectCodes[i] == b.ExpectCodes[i]
	}
	return codes && a.Type == b.Type && a.Addr == b.Addr && a.Port == b.Port && a.Send == b.Send && a.Expect == b.Expect &&
		a.Path == b.Path && a.Host == b.Host && a.Body == b.Body && a.Verify == b.Verify && a.SNI == b.SNI &&
		a.DNSName == b.DNSName && a.DNSType == b.DNSType
}

// sameSchedule says whether two checks run at the same times and count alike.
func sameSchedule(a, b Check) bool {
	return a.Interval == b.Interval && a.Timeout == b.Timeout && a.Rise == b.Rise && a.Fall == b.Fall
}

// An Outcome is what one run of a check found.
type Outcome struct {
	OK          bool
	Err         string        // why not OK, short and plain: "HTTP 503", "connection refused", "no answer in 2s"
	Unrunnable  bool          // it could not be run here, which says nothing about the target
	Unreachable bool          // nothing came back: timeout before any sign of life, or no route
	Latency     time.Duration // of a success, from the start to the answer; 0: unknown
}

// A checker runs checks. It is safe for concurrent use.
type checker struct {
	roots   *x509.CertPool // of https checks that verify; nil: the system's
	echoIDs atomic.Uint32  // ids of pingers: random ones collide
}

// run runs the check once. The check has its defaults in place, and ctx a deadline, which run keeps.
func (r *checker) run(ctx context.Context, c Check) Outcome {
	start := time.Now()
	var out Outcome
	switch c.Type {
	case ICMP:
		return r.icmp(ctx, c)
	case TCP:
		out = checkTCP(ctx, c)
	case UDP:
		return checkUDP(ctx, c)
	case HTTP, HTTPS:
		out = r.http(ctx, c)
	case DNS:
		out = checkDNS(ctx, c)
	}
	if out.OK {
		out.Latency = time.Since(start)
	}
	return out
}

// failure turns an error into an outcome. The peer is alive when it has answered anything, a TCP handshake say: then
// silence is its own, not the network's.
func failure(err error, c Check, alive bool) Outcome {
	var record tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	var noRoots x509.SystemRootsError
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		errors.Is(err, net.ErrClosed), // only the context closes a connection under a check
		errors.As(err, &timeout) && timeout.Timeout():
		return Outcome{Err: fmt.Sprintf("no answer in %v", c.Timeout), Unreachable: !alive}
	case errors.Is(err, syscall.ECONNREFUSED):
		if c.Type == UDP || c.Type == DNS {
			return Outcome{Err: "port unreachable"}
		}
		return Outcome{Err: "connection refused"}
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Outcome{Err: "connection reset"}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return Outcome{Err: "host unreachable", Unreachable: true}
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.ENETDOWN):
		return Outcome{Err: "network unreachable", Unreachable: true}
	case errors.Is(err, syscall.EACCES):
		return Outcome{Err: "administratively prohibited"} // what ICMPv6 says for a firewall's refusal
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Outcome{Err: "connection closed without an answer"}
	case errors.As(err, &noRoots):
		return Outcome{Err: "cannot be run: no CA certificates on this machine", Unrunnable: true}
	case errors.As(err, &unverified):
		return Outcome{Err: "certificate: " + strings.TrimPrefix(unverified.Err.Error(), "x509: ")}
	case errors.As(err, &record):
		return Outcome{Err: "TLS: the server does not speak it on this port"}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.EPERM, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
			syscall.EINVAL, syscall.ENODEV, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT:
			return Outcome{Err: "cannot be run: " + errno.Error(), Unrunnable: true} // refused by this machine
		}
		return Outcome{Err: errno.Error()}
	}
	text := err.Error()
	if alert, ok := strings.CutPrefix(text, "remote error: tls: "); ok {
		text = "TLS: the server says: " + alert
		if serverName(c) == "" {
			text += " (no server name was sent: set host or sni)"
		}
	} else if reason, ok := strings.CutPrefix(text, "tls: "); ok {
		text = "TLS: " + reason
	}
	return Outcome{Err: text[:min(len(text), maxReason)]}
}
