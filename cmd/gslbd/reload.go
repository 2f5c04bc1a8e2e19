package main

import (
	"errors"
	"runtime/debug"

	"go.uber.org/zap"

	"gslbd/dns"
)

// reload reads the configuration anew and applies it whole, or changes nothing. It returns what the operator should
// know of a configuration that was applied.
func (s *server) reload() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.takingOver {
		err := errors.New("reload refused: a new process takes over, and has read the configuration; reload once it serves")
		s.log.Error(err.Error())
		return nil, err
	}
	defer s.reloading()()
	defer debug.SetGCPercent(debug.SetGCPercent(reloadGC))
	g, db, err := load(s.path, s.store.Snapshot().Geo)
	if err == nil {
		err = s.geo.Set(withPrevious(g.geo, db))
	}
	if err == nil {
		err = s.dns.SetRateLimit(s.rateLimit(g.config))
	}
	s.refused.Store(err != nil)
	if err != nil {
		s.reloads.WithLabelValues("failure").Inc()
		s.log.Error("reload refused, the running configuration stays", zap.Error(err))
		return nil, err
	}
	was, _ := s.store.Snapshot().Zones.(*dns.Tables)
	g.warnings = append(g.warnings, g.tables.ForgottenSerials(was)...)
	for _, key := range g.config.NeedsRestart(s.initial) {
		g.warnings = append(g.warnings, "needs a restart: "+key)
	}
	s.configure(g)
	s.dns.SetCertificate(g.certificate)
	s.secrets.set(g)
	s.monitor.Set(g.checks)
	s.dns.SetCookies(cookieOptions(g.config.DNS.Cookies))
	setLevel(s.level, g.config.Log)
	s.drainTime.Store(int64(g.config.DNS.DrainTime))
	s.reloads.WithLabelValues("success").Inc()
	s.log.Info("reloaded", zap.String("config", s.path), zap.Strings("warnings", g.warnings))
	return g.warnings, nil
}

// configure puts the sites and services of g in force, with what is ordered for them: before, so that no snapshot lacks what
// a new alias of a zone brings, and after, since the names of services are taken from the snapshot.
func (s *server) configure(g *generation) {
	s.control.Set(g.orders)
	s.store.Configure(g.state)
	s.control.Set(g.orders)
}
