package state

import (
	"context"
	"net/netip"

	"go.uber.org/zap"

	"gslbd/geo"
)

// Options configure a Store.
type Options struct {
	Directory string // where the measured state is kept over a restart; locked; empty: nothing is kept
	Log       *zap.Logger
	Shards    int // workers that count; default 1
}

// A Store holds what is measured and publishes it as Snapshots.
type Store struct{}

// New opens the state directory.
func New(opts Options) (*Store, error) { return &Store{}, nil }

// Configure applies a configuration, keeping the state of what it still names, and publishes at once.
func (s *Store) Configure(c *Config) {}

// Run publishes until ctx is done.
func (s *Store) Run(ctx context.Context) error { return nil }

// Snapshot returns the present snapshot; nil before the first Configure.
func (s *Store) Snapshot() *Snapshot { return nil }

// Report applies a site's report.
func (s *Store) Report(r *Report) (ReportResult, error) { return ReportResult{}, nil }

// Check applies the result of an own check.
func (s *Store) Check(r CheckResult) {}

// SetGeo publishes another geo database.
func (s *Store) SetGeo(db *geo.DB) {}

// Asked records that a resolver asked for the service. Hot path.
func (s *Store) Asked(ldns netip.Addr, service *Service) {}
