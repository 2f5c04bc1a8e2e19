package geo

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// defaultInterval is how often files are looked at unless the options say otherwise.
const defaultInterval = 5 * time.Second

// LoaderOptions are what a Loader needs. Only OnLoad is required.
type LoaderOptions struct {
	// Options are those of the DB to keep up to date. With a Previous that was opened from the same files, Run starts by
	// sharing what it holds.
	Options Options

	// Interval is the time between two looks at the files; default 5s. A changed file is read when two looks in a row
	// found it the same, so that a copy under way is left alone.
	Interval time.Duration

	// OnLoad gets every DB that was opened, in order, never two at a time. It must not call the Loader.
	OnLoad func(*DB)

	Log *zap.Logger // nil: none
}

// A Loader opens a DB and opens it again whenever a file changes: its place, size, time of modification, mode or inode.
// It looks at the files rather than waiting for events, because that works alike on every filesystem and for links that
// are swapped. It is a prometheus.Collector.
type Loader struct {
	// Fixed at construction.
	interval  time.Duration
	onLoad    func(*DB)
	log       *zap.Logger
	reloads   *prometheus.Desc
	buildTime *prometheus.Desc

	// Atomic.
	current           atomic.Pointer[DB] // the last DB that was opened; nil: none yet
	succeeded, failed atomic.Uint64
	failing           atomic.Pointer[string] // the last failure, which was logged; nil: the files are as they were read

	// Guarded by mu, which is held while files are read.
	mu      sync.Mutex
	options Options
	tried   []stamp // of the files when they were last read, well or not; nil: not yet
	pending []stamp // differs from tried, was seen once
	retry   bool    // the last failure may pass without the file changing
}

// NewLoader returns a Loader that has not read anything yet.
func NewLoader(o LoaderOptions) *Loader {
	l := &Loader{
		interval: o.Interval,
		onLoad:   o.OnLoad,
		log:      o.Log,
		reloads: prometheus.NewDesc("gslbd_geo_reloads_total",
			"Times that the geo databases were read, by result.", []string{"result"}, nil),
		buildTime: prometheus.NewDesc("gslbd_geo_database_build_timestamp_seconds",
			"When the maker of the geo database in use built it, in Unix time.", []string{"database"}, nil),
		options: o.Options,
	}
	if l.interval <= 0 {
		l.interval = defaultInterval
	}
	if l.log == nil {
		l.log = zap.NewNop()
	}
	return l
}

// Run reads the files at once, unless Set has done so, and then again whenever they have changed, until ctx is done. A
// file that cannot be used is logged once, and what was read before stays in force. It returns nil.
func (l *Loader) Run(ctx context.Context) error {
	l.mu.Lock()
	if l.tried == nil {
		l.load(l.stamps())
	}
	l.mu.Unlock()

	ticker := time.NewTicker(l.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			l.look()
		}
	}
}

// Set replaces the options, for a reload of the configuration: it opens the DB anew, gives it to OnLoad, and keeps it up
// to date from then on. Databases that are in use already and have not changed are not read again. If the new DB cannot
// be opened, nothing changes and Set returns the error, which is not logged.
func (l *Loader) Set(o Options) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Previous == nil {
		o.Previous = l.current.Load()
	}
	db, err := Open(o)
	if err != nil {
		return err
	}
	l.options = o
	l.use(db)
	return nil
}

// look reads the files if they have changed and have then stayed the same for one interval.
func (l *Loader) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.stamps()
	switch {
	case slices.EqualFunc(now, l.tried, stamp.equal):
		l.pending = nil
		if l.retry {
			l.load(now)
		}
	case l.pending != nil && slices.EqualFunc(now, l.pending, stamp.equal):
		l.load(now)
	default:
		l.pending = now
	}
}

// load opens the DB of the options. now are the stamps of its files. mu is held.
func (l *Loader) load(now []stamp) {
	o := l.options
	o.KeepPrevious = false // nothing else wants the change, so that all of it may wait
	if db := l.current.Load(); db != nil {
		o.Previous = db
	}
	db, err := Open(o)
	if err != nil {
		again, last := l.retry, l.Failing()
		l.tried, l.pending = now, nil
		// Descriptors that ran out or a filesystem that does not answer leave no trace in a stamp.
		l.retry = errors.As(err, new(*fs.PathError))
		if !again || err.Error() != last {
			l.failed.Add(1)
		}
		if err.Error() != last {
			l.fail(err)
			l.log.Error("geo databases not loaded, keeping those in force", zap.Error(err))
		}
		return
	}
	l.use(db)
	for _, d := range db.Databases() {
		l.log.Info("geo database loaded", zap.String("file", d.Path), zap.String("type", d.Type),
			zap.Time("built", d.Built), zap.Bool("coordinates", d.Coordinates))
	}
}

// use puts db in force. mu is held.
func (l *Loader) use(db *DB) {
	l.options.Previous = nil // current takes its place, and what it held may go
	l.tried = make([]stamp, len(db.databases))
	for i, d := range db.databases {
		l.tried[i] = d.stamp
	}
	l.pending, l.retry = nil, false
	l.fail(errors.Join(db.kept...))
	l.current.Store(db)
	l.succeeded.Add(1)
	l.onLoad(db)
}

// fail remembers why the files are not what is in force; nil: they are.
func (l *Loader) fail(err error) {
	if err == nil {
		l.failing.Store(nil)
		return
	}
	text := err.Error()
	l.failing.Store(&text)
}

// Failing says why a file is not in force as it is now, but as it was read before; "": all are.
func (l *Loader) Failing() string {
	if text := l.failing.Load(); text != nil {
		return *text
	}
	return ""
}

// stamps looks at the files. mu is held.
func (l *Loader) stamps() []stamp {
	s := make([]stamp, len(l.options.Databases))
	for i, path := range l.options.Databases {
		s[i] = stampOf(path)
	}
	return s
}

// Describe implements prometheus.Collector.
func (l *Loader) Describe(c chan<- *prometheus.Desc) {
	c <- l.reloads
	c <- l.buildTime
}

// Collect implements prometheus.Collector. It does not wait for a file that is being read.
func (l *Loader) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.MustNewConstMetric(l.reloads, prometheus.CounterValue, float64(l.succeeded.Load()), "success")
	c <- prometheus.MustNewConstMetric(l.reloads, prometheus.CounterValue, float64(l.failed.Load()), "failure")
	db := l.current.Load()
	if db == nil {
		return
	}
	for _, d := range db.Databases() {
		c <- prometheus.MustNewConstMetric(l.buildTime, prometheus.GaugeValue, float64(d.Built.Unix()), d.Path)
	}
}
