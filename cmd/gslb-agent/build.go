package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"gslbd/config"
	"gslbd/probes"
	"gslbd/sitereport"
)

// packetsPerProbe is how many packets a probe of one resolver sends by one method.
const packetsPerProbe = 3

// parts are what one configuration runs.
type parts struct {
	warnings       []string // of the configuration
	site           string
	servers        int // of gslbd
	virtualServers int
	draining       bool            // the agent may act
	ping           bool            // it measures round trips by ICMP, unless gslbd asks for another method
	passive        bool            // it takes round trips from the connections of clients
	pings          map[bool]string // by whether IPv6: where the file has a check by ICMP

	log     *zap.Logger
	secured *secured
	agent   *sitereport.Agent
	readers []reader
	checked *sitereport.Checked // nil: no checks of its own
	prober  *probes.Prober      // nil: round trips are not measured

	telemetry string       // where it is served; "": nowhere
	handler   http.Handler // of it

	rounds rounds
	untold atomic.Bool // the service manager cannot be told, which was logged

	unprobed atomic.Bool // the prober cannot run, which was logged: what is asked for is forgotten
}

// A reader has the name that the operator knows it by.
type reader interface {
	sitereport.Reader
	fmt.Stringer
}

// A namedReader gives its name to a Reader that only reads.
type namedReader struct {
	sitereport.Reader
	name string
}

func (r namedReader) String() string { return r.name }

// load reads the file at path, with the files of certificates and tokens that it names, and makes the parts. It opens
// nothing else, so it also serves to validate a file. once is for an agent that sends a single report.
func load(path string, once bool) (*parts, error) {
	c, warnings, err := config.LoadAgent(path)
	if err != nil {
		return nil, usageError{err}
	}
	p := &parts{warnings: warnings, site: c.Site, telemetry: c.Telemetry.Listen, servers: len(c.Servers), draining: c.Draining.Enabled, ping: c.RTT.Enabled && slices.Contains(c.RTT.Methods, "icmp"), pings: make(map[bool]string)}
	for i, v := range c.VirtualServers {
		for _, s := range v.Servers {
			if v.Check.Type == string(probes.ICMP) {
				p.pings[s.Address.Addr().Unmap().Is6()] = fmt.Sprintf("%s: virtual_servers[%d].check", path, i)
			}
		}
	}
	if p.log, err = newLogger(c.Log); err != nil {
		return nil, err
	}
	if p.secured, err = newSecured(c.TLS, secret{key: "token_file", file: c.TokenFile}, p.log); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	opts := sitereport.AgentOptions{
		Site: c.Site, Name: c.Agent, Servers: c.Servers, Transport: p.secured, Interval: c.Interval,
		Draining: c.Draining.Enabled, Log: p.log,
	}
	if pr := c.PassiveRTT; pr.Enabled {
		p.passive = true
		opts.Passive = &sitereport.PassiveOptions{Interval: pr.Interval, MinConnections: pr.MinConnections, MaxPrefixes: pr.MaxPrefixes}
	}
	if once {
		opts.Name = onceName(c.Agent)
	}
	for i, h := range c.HAProxy {
		r, err := sitereport.NewHAProxy(haproxyOptions(h))
		if err != nil {
			return nil, usageError{fmt.Errorf("%s: haproxy[%d].socket: %w", path, i, err)}
		}
		p.readers = append(p.readers, r)
		p.virtualServers += len(h.VirtualServers)
	}
	if err := errors.Join(p.readHTTP(c), p.readKernel(c), p.readSNMP(c)); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	for i, x := range c.Exec {
		r, err := sitereport.NewExec(sitereport.ExecOptions{Command: x.Command, Timeout: x.Timeout, Site: c.Site, Agent: c.Agent})
		if err != nil {
			return nil, usageError{fmt.Errorf("%s: exec[%d].command: %w", path, i, err)}
		}
		p.readers = append(p.readers, namedReader{r, "exec " + x.Command[0]})
	}
	if len(c.VirtualServers) > 0 || c.Linux.Interface != "" {
		p.checked = sitereport.NewChecked(checkedOptions(c, p.log))
		p.readers = append(p.readers, p.checked)
		p.virtualServers += len(c.VirtualServers)
	}
	for _, r := range p.readers {
		opts.Readers = append(opts.Readers, r)
	}
	opts.Readers = append(opts.Readers, &p.rounds)
	if c.RTT.Enabled {
		// Results go to the agent, which is made only after the prober because it queues there.
		p.prober, err = probes.NewProber(probes.ProberOptions{
			Methods: c.RTT.Methods,
			Count:   packetsPerProbe,
			Rate:    c.RTT.Rate * packetsPerProbe,
			Result:  func(r probes.RTT) { p.agent.RTT(r) },
			Log:     p.log,
		})
		if err != nil {
			return nil, usageError{fmt.Errorf("%s: rtt: %w", path, err)}
		}
		opts.Probe = func(resolver netip.Addr, methods []string) bool {
			return p.unprobed.Load() || p.prober.Queue(resolver, methods...)
		}
	}
	if p.agent, err = sitereport.NewAgent(opts); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if p.handler, err = p.telemetryHandler(); err != nil {
		return nil, err
	}
	return p, nil
}

// onceName is how the sender of a single report is called: another name than that of the agent that may be running, which
// holds the site then, so that the report changes nothing.
func onceName(agent string) string {
	const suffix, most = ".once", 63
	return agent[:min(len(agent), most-len(suffix))] + suffix
}

// permitted fails when a configured check can never be run by this process. It is no part of load, because whoever
// validates a file may be permitted less than the service.
func (p *parts) permitted() error {
	for _, ipv6 := range []bool{false, true} {
		if where := p.pings[ipv6]; where != "" {
			if _, err := probes.CanICMP(ipv6); err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
		}
	}
	return nil
}

func haproxyOptions(h config.HAProxy) sitereport.HAProxyOptions {
	opts := sitereport.HAProxyOptions{Socket: h.Socket, Timeout: h.Timeout}
	for _, v := range h.VirtualServers {
		opts.VirtualServers = append(opts.VirtualServers, sitereport.HAProxyVirtualServer(v))
	}
	return opts
}

func checkedOptions(c *config.Agent, log *zap.Logger) sitereport.CheckedOptions {
	opts := sitereport.CheckedOptions{Sessions: c.Linux.Sessions, Interface: c.Linux.Interface, Log: log}
	for _, v := range c.VirtualServers {
		out := sitereport.CheckedVirtualServer{Name: v.Name, Address: v.Address, Port: v.Port, Protocol: v.Protocol}
		for _, s := range v.Servers {
			out.Servers = append(out.Servers, sitereport.CheckedServer{
				Name: s.Name, Address: s.Address.String(), Check: check(v.Check, s.Address),
			})
		}
		opts.VirtualServers = append(opts.VirtualServers, out)
	}
	return opts
}

// check is the check of one server. Its key is given by the reader.
func check(h *config.HealthCheck, server netip.AddrPort) probes.Check {
	return probes.Check{
		Type: probes.Type(h.Type), Addr: server.Addr(), Port: h.PortFor(server.Port()),
		Send: h.Send, Expect: h.Expect,
		Path: h.Path, Host: h.Host, ExpectCodes: h.ExpectCodes, Body: h.Body, Verify: h.Verify,
		DNSName: h.Name, DNSType: h.Record,
		Interval: h.Interval, Timeout: h.Timeout, Rise: h.Rise, Fall: h.Fall,
	}
}

// newLogger returns a logger to standard error.
func newLogger(c config.AgentLog) (*zap.Logger, error) {
	zc := zap.NewProductionConfig()
	zc.Sampling = nil // transitions are few, and each counts
	zc.DisableStacktrace = true
	zc.DisableCaller = true
	zc.EncoderConfig.TimeKey = "time"
	zc.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	zc.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if c.Format == "text" {
		zc.Encoding = "console"
	}
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	zc.Level.SetLevel(level)
	log, err := zc.Build()
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return log, nil
}

// run runs the parts until ctx is done.
func (p *parts) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.agent.Run(ctx) })
	group.Go(func() error { return p.supervised(ctx) })
	if p.telemetry != "" {
		group.Go(func() error {
			p.serveTelemetry(ctx)
			return nil
		})
	}
	if p.checked != nil {
		group.Go(func() error { return p.checked.Run(ctx) })
	}
	if p.prober != nil {
		group.Go(func() error {
			// The site's health and load matter more than its round trips. The prober says which ICMP it uses.
			if err := p.prober.Run(ctx); err != nil {
				p.unprobed.Store(true)
				p.log.Error("round trips are not measured", zap.Error(err))
			}
			return nil
		})
	}
	return group.Wait()
}

// serve runs the configuration at path until ctx is done, and reads it again at each signal of reload.
func serve(ctx context.Context, path string, reload <-chan os.Signal) error {
	p, err := load(path, false)
	if err == nil {
		err = p.permitted()
	}
	if err != nil {
		return err
	}
	p.start("started")
	for {
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- p.run(running) }()
		next, err := p.await(path, reload, ended)
		if ctx.Err() != nil {
			p.tell(daemon.SdNotifyStopping)
		}
		stop()
		if next == nil {
			p.log.Info("stopped")
			return err
		}
		if err := <-ended; err != nil {
			return err
		}
		p = next
		p.start("configuration reloaded")
	}
}

// start logs that the parts are about to run.
func (p *parts) start(what string) {
	p.log.Info(what, zap.String("site", p.site), zap.Int("gslbds", p.servers), zap.Int("virtual_servers", p.virtualServers),
		zap.String("version", versionText()))
	for _, w := range p.warnings {
		p.log.Warn("configuration", zap.String("warning", w))
	}
}

// await waits until the running parts ended, when it returns their error and nil, or until a reload brings others.
func (p *parts) await(path string, reload <-chan os.Signal, ended <-chan error) (*parts, error) {
	for {
		select {
		case err := <-ended:
			return nil, err
		case <-reload:
			next, err := load(path, false)
			if err == nil {
				err = next.permitted()
			}
			if err == nil {
				return next, nil
			}
			p.log.Error("configuration refused, the running one stays", zap.Error(err))
		}
	}
}
