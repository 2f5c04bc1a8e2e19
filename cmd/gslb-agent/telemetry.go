package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"
)

const (
	listenAgain = 2 * time.Second // after the address of telemetry could not be had
	maxScrapers = 50              // connections; an agent has a few monitors
	scrapeTime  = 10 * time.Second
)

// telemetryHandler serves /metrics (docs/agent.md has the series) and /healthz, which fails while the agent hangs.
func (p *parts) telemetryHandler() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "gslb_agent_build_info", Help: "1, with what the agent was built from.",
	}, []string{"version", "site"})
	build.WithLabelValues(version, p.site).Set(1)
	all := []prometheus.Collector{
		build, p.agent, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	if p.prober != nil {
		all = append(all, p.prober)
	}
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            zap.NewStdLog(p.log),
		ErrorHandling:       promhttp.ContinueOnError, // one broken series must not hide all others
		MaxRequestsInFlight: 4,
		Timeout:             scrapeTime,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if silent, hung := p.hung(); hung {
			http.Error(w, fmt.Sprintf("hangs: no report for %s", silent.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux, nil
}

// serveTelemetry serves on the address of the configuration until ctx is done. An address that cannot be had is logged, once,
// and tried again: the agent reports all the same.
func (p *parts) serveTelemetry(ctx context.Context) {
	for waiting := false; ; waiting = true {
		listener, err := net.Listen("tcp", p.telemetry)
		if err == nil {
			p.log.Info("telemetry is served", zap.Stringer("listen", listener.Addr()))
			err = p.answer(ctx, listener)
			waiting = false
		}
		if ctx.Err() != nil {
			return
		}
		if !waiting {
			p.log.Error("telemetry cannot be served, and is tried again; reports go on", zap.Error(fmt.Errorf("telemetry.listen: %w", err)))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenAgain):
		}
	}
}

// answer serves on listener, which it closes, until ctx is done.
func (p *parts) answer(ctx context.Context, listener net.Listener) error {
	srv := &http.Server{
		Handler:           p.handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       scrapeTime,
		WriteTimeout:      3 * scrapeTime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(p.log),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() }) // a scrape that is cut off is repeated
	defer stop()
	return srv.Serve(netutil.LimitListener(listener, maxScrapers))
}
