package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"gslbd/admin"
	"gslbd/config"
	"gslbd/control"
	"gslbd/dns"
	"gslbd/geo"
	"gslbd/probes"
	"gslbd/sitereport"
	"gslbd/state"
)

// firstChecks is how long readiness waits for the first results of gslbd's own checks (docs/operations.md).
const firstChecks = 5 * time.Second

// A server is everything that runs, wired together. What starts what stands in newServer and run.
type server struct {
	// Fixed at construction.
	path     string
	log      *zap.Logger
	level    zap.AtomicLevel
	started  time.Time
	workers  int            // for each address
	initial  *config.Config // what listeners and the state directory were made from
	store    *state.Store
	control  *control.Control
	dns      *dns.Server
	receiver *sitereport.Receiver
	monitor  *probes.Monitor
	geo      *geo.Loader
	http     []*httpServer
	secrets  *secrets
	reloads  *prometheus.CounterVec
	manager  *manager
	face     *admin.Server
	sockets  []syscall.Conn // all

	from *predecessor // that this process takes over from; nil: there is none

	stopping atomic.Bool
	pausing  atomic.Bool            // the state is a new process's, for now
	refused  atomic.Bool            // the last reload was
	untaken  atomic.Pointer[string] // why the last takeover failed; nil: none has

	drainTime atomic.Int64 // time.Duration

	mu         sync.Mutex // one reload at a time
	takingOver bool       // a new process starts: guarded by mu
}

// newServer builds every room and binds every socket, or takes those of h, so that whatever can fail has failed before
// anything is served. In a takeover it waits until the process before it has given up the state.
func newServer(path string, g *generation, db *geo.DB, h *handed) (_ *server, err error) {
	c := g.config
	s := &server{path: path, initial: c, started: time.Now(), from: h.from, workers: runtime.GOMAXPROCS(0)}
	s.drainTime.Store(int64(c.DNS.DrainTime))
	s.log, s.level, err = newLogger(c.Log)
	if err != nil {
		return nil, err
	}
	for _, w := range g.warnings {
		s.log.Warn("configuration", zap.String("warning", w))
	}
	if s.manager, err = newManager(s.log); err != nil {
		return nil, err
	}
	if err := checkOpenFiles(filesNeeded(c, s.workers), s.log); err != nil {
		return nil, err
	}
	var before handover
	if s.from != nil {
		if before, err = s.from.release(); err != nil {
			return nil, fmt.Errorf("gslbd: %w", err)
		}
		s.log.Info("takes over", zap.Int("from", before.PID))
	}
	s.store, err = state.New(state.Options{Directory: c.State.Directory, Takeover: s.from != nil, Log: s.log, Shards: s.workers})
	if err != nil {
		return nil, fmt.Errorf("gslbd: %w", err)
	}
	s.store.SetGeo(db) // before the first snapshot, so that no query is answered without it; and so are the orders
	s.control = control.New(controlOptions(g, s.store, s.log))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.control.Close(), s.store.Close())
		}
	}()
	s.configure(g)

	s.geo = geo.NewLoader(geo.LoaderOptions{Options: withPrevious(g.geo, db), OnLoad: s.store.SetGeo, Log: s.log})
	s.monitor = probes.NewMonitor(probes.MonitorOptions{Notify: func(r probes.Result) { s.store.Check(checkResult(r)) }, Log: s.log})
	s.monitor.Set(g.checks)
	s.monitor.Resume(before.Checks)
	s.receiver = sitereport.NewReceiver(sitereport.ReceiverOptions{Report: s.store.Report, Config: g.receiver, Log: s.log})
	s.dns, err = dns.New(dns.Options{
		Cookies: cookieOptions(c.DNS.Cookies),
		Listen:  c.DNS.Listen, NSID: c.DNS.NSID, Version: c.DNS.Version, ECS: true /* the zones say */, MaxUDPPayload: c.DNS.MaxUDPPayload,
		TCP: dns.TCPOptions{
			IdleTimeout: c.DNS.TCP.IdleTimeout, MaxConnections: c.DNS.TCP.MaxConnections, MaxConnectionsPerClient: c.DNS.TCP.MaxConnectionsPerClient,
		},
		TLS: dns.TLSOptions{Listen: c.DNS.TLS.Listen, Certificate: g.certificate},
		Tap: dns.TapOptions{
			File: c.Dnstap.File, Socket: c.Dnstap.Socket, Share: c.Dnstap.Share, Identity: nodeName(c), Version: "gslbd " + version,
		},
		RateLimit: rateLimit(c), QueryLog: c.Log.Queries, Workers: s.workers, Store: s.store, Log: s.log,
		HandedUDP: h.takeUDP, HandedTCP: h.takeTCP, CookieSecret: before.CookieSecret,
	})
	if err != nil {
		return nil, fmt.Errorf("gslbd: %w", err)
	}
	s.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gslbd_config_reloads_total", Help: "Reloads of the configuration, by result.",
	}, []string{"result"})
	for _, result := range []string{"success", "failure"} {
		s.reloads.WithLabelValues(result)
	}
	s.http = []*httpServer{
		{key: "reports.listen", listen: c.Reports.Listen, handler: s.receiver.Handler(), log: s.log},
		{key: "admin.listen", listen: c.Admin.Listen, log: s.log},
	}
	s.http[0].tls.Store(g.reports)
	s.http[1].tls.Store(g.admin)
	s.secrets = &secrets{log: s.log, receiver: s.receiver, reports: s.http[0], admin: s.http[1]}
	s.secrets.set(g)
	s.face, err = admin.New(admin.Options{
		Tokens: s.secrets.adminTokens, Snapshot: s.store.Snapshot, Find: find, Zones: zones, SignedZones: signedZones, Reload: s.reload, Ready: s.ready, Problems: s.problems,
		Control: s.control, Preview: s.store.Preview, Clients: s.store.Clients, Events: s.store.Events, Changed: s.store.Changed, Loads: s.store.Loads,
		Collectors: []prometheus.Collector{s.dns, s.receiver, s.monitor, s.geo, s.secrets, s.reloads}, Counters: before.Counters,
		PerService: c.Admin.TelemetryPerService, Version: version, Node: nodeName(c), Log: s.log,
	})
	if err != nil {
		return nil, fmt.Errorf("gslbd: %w", err)
	}
	s.http[1].handler, s.http[1].stopped = s.face.Handler(), s.face.EndStreams
	if err := s.dns.Bind(); err != nil {
		return nil, fmt.Errorf("gslbd: %w", err)
	}
	for _, l := range s.http {
		if err := l.bind(h.takeTCP); err != nil {
			return nil, fmt.Errorf("gslbd: %w", err)
		}
	}
	h.closeRest(s.log)
	s.sockets = s.dns.Sockets()
	for _, l := range s.http {
		s.sockets = append(s.sockets, l.socket)
	}
	if err := s.dns.SetRateLimit(s.rateLimit(c)); err != nil { // its own addresses are known now
		return nil, fmt.Errorf("gslbd: %w", err)
	}
	return s, nil
}

// withPrevious has what db read shared, and kept where its file has become unusable.
func withPrevious(o geo.Options, db *geo.DB) geo.Options {
	o.Previous, o.KeepPrevious = db, true
	return o
}

// start runs rooms in group until ctx is done. The context that it returns is done when they have ended.
func start(ctx context.Context, group *errgroup.Group, rooms ...func(context.Context) error) context.Context {
	ended, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, room := range rooms {
		running.Add(1)
		group.Go(func() error {
			defer running.Done()
			return room(ctx)
		})
	}
	group.Go(func() error {
		defer end()
		<-ctx.Done()
		running.Wait()
		return nil
	})
	return ended
}

// period runs what gives orders, what keeps them and the state, until ctx is done or one of them fails. They end in this
// order, the state last, whose lock is for both.
func (s *server) period(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	ordering := start(ctx, group, s.http[0].run, s.http[1].run)
	keeping := start(ordering, group, s.control.Run)
	start(keeping, group, s.store.Run)
	return group.Wait()
}

// run serves until ctx is done, a room fails or a new process has taken over; SIGHUP reloads, and SIGUSR2 has a new process
// take over. At the end readiness fails first, then after drain_time everything stops.
func (s *server) run(ctx context.Context, signals <-chan os.Signal) error {
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	group, running := errgroup.WithContext(running)
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(running, stop)
	group.Go(func() error { return s.dns.Run(running) })
	if s.from != nil { // it reads the sockets until it is told, so that no query waits
		if err := s.from.serving(); err != nil {
			cancel(dns.ErrTakenOver) // it goes on
			return fmt.Errorf("gslbd: %w", errors.Join(err, group.Wait(), s.control.Close(), s.store.Close()))
		}
	}
	for _, room := range []func(context.Context) error{s.monitor.Run, s.geo.Run, s.secrets.run, s.supervised} {
		group.Go(func() error { return room(running) })
	}
	usr2, prepared := make(chan struct{}, 1), make(chan *successor)
	group.Go(func() error {
		s.succeed(stopping, usr2, prepared)
		return nil
	})
	group.Go(func() error {
		return s.keep(running, stopping, prepared, func() { cancel(dns.ErrTakenOver) })
	})
	group.Go(func() error {
		for {
			select {
			case <-running.Done():
				return nil
			case sig := <-signals:
				if sig == syscall.SIGHUP {
					_, _ = s.reload() // logged and counted there
					continue
				}
				select {
				case usr2 <- struct{}{}:
				default: // one more is to come already
				}
			case <-ctx.Done():
				s.stopping.Store(true)
				s.manager.tell(daemon.SdNotifyStopping + "\nSTATUS=stopping")
				drain := time.Duration(s.drainTime.Load())
				s.log.Info("stopping", zap.Duration("drain_time", drain))
				select {
				case <-running.Done():
				case <-time.After(drain):
				}
				cancel(nil)
				return nil
			}
		}
	})
	s.log.Info("serving", zap.String("version", version), zap.Strings("listen", s.initial.DNS.Listen), zap.Strings("tls", s.initial.DNS.TLS.Listen),
		zap.String("reports", s.initial.Reports.Listen), zap.String("admin", s.initial.Admin.Listen))
	err := group.Wait()
	s.log.Info("stopped")
	_ = s.log.Sync() // a terminal cannot be synced
	if err != nil {
		return fmt.Errorf("gslbd: %w", err)
	}
	return nil
}
