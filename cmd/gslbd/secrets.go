package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"gslbd/config"
	"gslbd/sitereport"
)

// secretsLook is the time between two looks at the files of certificates, authorities and tokens.
const secretsLook = 2 * time.Second

// secrets are what the HTTP interfaces prove themselves with and know their callers by. They take up their files when those
// change: each of them on its own, and what cannot be used leaves in force what was read before.
type secrets struct {
	// Fixed at construction.
	log            *zap.Logger
	receiver       *sitereport.Receiver
	reports, admin *httpServer

	orderers atomic.Pointer[[]string] // the tokens of the admin interface in force

	mu         sync.Mutex                // guards what follows
	config     sitereport.ReceiverConfig // in force
	reportsTLS *listenerTLS              // in force; nil: the listener speaks plain HTTP
	adminTLS   *listenerTLS              // likewise
	kept       []*kept
}

// A kept is what was read of some files.
type kept struct {
	setting string                                                // that names the files
	read    func() (sum [sha256.Size]byte, use func(), err error) // use puts it in force, and is called with secrets.mu held
	inForce [sha256.Size]byte                                     // the sum of what is
	seen    [sha256.Size]byte                                     // by the last look
	failing string                                                // why the files are not in force as they are; "": they are
}

// set puts a configuration in force. Whether a listener speaks TLS cannot change while it runs.
func (s *secrets) set(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config, s.kept = g.receiver, nil
	for i, site := range g.config.Sites {
		if site.TokenFile != "" {
			s.kept = append(s.kept, s.tokens(i, site))
		}
	}
	c := g.config
	own := plain(c.Admin.Tokens)
	s.orderers.Store(&own)
	if c.Admin.TokenFile != "" {
		s.kept = append(s.kept, &kept{setting: "admin.token_file", inForce: sumOfTokens(c.Admin.Tokens), read: func() ([sha256.Size]byte, func(), error) {
			tokens, err := config.ReadTokens(c.Admin.TokenFile)
			return sumOfTokens(tokens), func() {
				own := plain(tokens)
				s.orderers.Store(&own)
			}, err
		}})
	}
	if (g.reports != nil) == (s.reports.tls.Load() != nil) {
		s.useReports(g.reports)
		if g.reports != nil {
			s.kept = append(s.kept, &kept{setting: "reports.tls", inForce: g.reports.sum, read: func() ([sha256.Size]byte, func(), error) {
				l, err := readReportsTLS(c)
				if err == nil {
					err = apart(l, s.adminTLS)
				}
				if err != nil {
					return [sha256.Size]byte{}, nil, err
				}
				return l.sum, func() { s.useReports(l) }, nil
			}})
		}
	}
	if (g.admin != nil) == (s.admin.tls.Load() != nil) {
		s.useAdmin(g.admin)
		if g.admin != nil {
			s.kept = append(s.kept, &kept{setting: "admin.tls", inForce: g.admin.sum, read: func() ([sha256.Size]byte, func(), error) {
				l, err := readAdminTLS(c)
				if err == nil {
					err = apart(s.reportsTLS, l)
				}
				if err != nil {
					return [sha256.Size]byte{}, nil, err
				}
				return l.sum, func() { s.useAdmin(l) }, nil
			}})
		}
	}
	s.apply()
}

// tokens keeps the tokens of a site, which is the one at index i.
func (s *secrets) tokens(i int, site config.Site) *kept {
	return &kept{setting: "token_file of site " + site.Name, inForce: sumOfTokens(site.Tokens), read: func() ([sha256.Size]byte, func(), error) {
		tokens, err := config.ReadTokens(site.TokenFile)
		return sumOfTokens(tokens), func() {
			s.config.Sites = slices.Clone(s.config.Sites)
			s.config.Sites[i].Tokens = plain(tokens)
		}, err
	}}
}

func sumOfTokens(tokens []config.Secret) [sha256.Size]byte {
	files := make([][]byte, len(tokens))
	for i, t := range tokens {
		files[i] = []byte(t)
	}
	return sumOf(files...)
}

// plain returns tokens as the receiver takes them.
func plain(tokens []config.Secret) []string {
	out := make([]string, len(tokens))
	for i, t := range tokens {
		out[i] = string(t)
	}
	return out
}

// adminTokens returns the tokens of the admin interface. It may be called at any time.
func (s *secrets) adminTokens() []string { return *s.orderers.Load() }

func (s *secrets) useReports(l *listenerTLS) {
	s.reportsTLS = l
	s.reports.setTLS(l)
}

func (s *secrets) useAdmin(l *listenerTLS) {
	s.adminTLS = l
	s.admin.setTLS(l)
}

// apply tells the receiver whom it knows. s.mu is held.
func (s *secrets) apply() {
	s.config.ClientCAs = nil
	if s.reportsTLS != nil {
		s.config.ClientCAs = poolOf(s.reportsTLS.clients)
	}
	s.receiver.Set(s.config)
}

// run looks at the files until ctx is done.
func (s *secrets) run(ctx context.Context) error {
	ticker := time.NewTicker(secretsLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.look()
		}
	}
}

// look reads the files. What two looks in a row found the same, and is not what is in force, takes its place: a
// certificate and its key are two files, which are not replaced at the same moment.
func (s *secrets) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, k := range s.kept {
		sum, use, err := k.read()
		if err != nil {
			sum = sumOf([]byte(err.Error()))
		}
		settled := sum == k.seen
		k.seen = sum
		switch {
		case sum == k.inForce:
			k.failing = ""
		case !settled:
		case err == nil:
			use()
			k.inForce, k.failing, changed = sum, "", true
			s.log.Info("secrets read again", zap.String("setting", k.setting))
		case k.failing != err.Error():
			k.failing = err.Error()
			s.log.Error("secrets not read again, keeping those in force", zap.String("setting", k.setting), zap.Error(err))
		}
	}
	if changed {
		s.apply()
	}
}

// A problem is what is wrong with a setting.
type problem struct{ setting, why string }

// problems says what is wrong with the files or with what is in force.
func (s *secrets) problems(now time.Time) (all []problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if k.failing != "" {
			all = append(all, problem{k.setting, "what was read before stays in force: " + k.failing})
		}
	}
	for _, l := range s.listeners() {
		if why := certificateProblem(l.tls, now); why != "" {
			all = append(all, problem{l.name + ".tls", why})
		}
	}
	return all
}

// A namedTLS is what the listener of that name speaks TLS with.
type namedTLS struct {
	name string
	tls  *listenerTLS
}

// listeners returns what is in force. s.mu is held.
func (s *secrets) listeners() [2]namedTLS {
	return [...]namedTLS{{"reports", s.reportsTLS}, {"admin", s.adminTLS}}
}

// Describe implements prometheus.Collector.
func (s *secrets) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc() }

// Collect implements prometheus.Collector: when the certificate in force at each listener that speaks TLS expires.
func (s *secrets) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners() {
		if l.tls != nil {
			expiry := l.tls.config.Certificates[0].Leaf.NotAfter
			ch <- prometheus.MustNewConstMetric(expiryDesc(), prometheus.GaugeValue, float64(expiry.Unix()), l.name)
		}
	}
}

func expiryDesc() *prometheus.Desc {
	return prometheus.NewDesc("gslbd_http_certificate_expiry_timestamp_seconds", "When the TLS certificate in force expires, by listener.", []string{"listener"}, nil)
}

// readReportsTLS reads the files of reports.tls. The receiver verifies client certificates itself, with each report.
func readReportsTLS(c *config.Config) (*listenerTLS, error) {
	return readTLS(c.Reports.TLS, "reports.tls", tls.RequestClientCert)
}

// readAdminTLS reads the files of admin.tls. A client may show a certificate, and one that it shows must be of client_ca;
// what it may do then is the interface's to decide.
func readAdminTLS(c *config.Config) (*listenerTLS, error) {
	return readTLS(c.Admin.TLS, "admin.tls", tls.VerifyClientCertIfGiven)
}
