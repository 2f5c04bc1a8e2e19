package main

import (
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"gslbd/config"
)

const (
	maxChecks = 1024 // how many of gslbd's own checks run at a time, each with a socket of its own (probes)

	// otherFiles is what else may be open: databases and zones that are read, the state, links to etcd, a program.
	otherFiles = 128
)

// filesNeeded returns how many files gslbd may have open at a time, sockets among them, with workers for each address.
func filesNeeded(c *config.Config, workers int) uint64 {
	checks := 0
	for _, svc := range c.Services {
		if svc.HealthCheck == nil {
			continue
		}
		for _, m := range svc.Members {
			checks += len(m.Addresses)
		}
	}
	const listeners = 2 // of HTTP: reports and admin
	// A worker has a socket, and another file by which it is woken.
	sockets := len(c.DNS.Listen)*(2*workers+1) + len(c.DNS.TLS.Listen) + listeners
	return uint64(sockets + c.DNS.TCP.MaxConnections + listeners*maxConnections + min(checks, maxChecks) + maxAsks + otherFiles)
}

// checkOpenFiles says so where fewer files may be open than are needed. The limit is the hard one: the Go runtime raises the
// soft one to it at the start.
func checkOpenFiles(needed uint64, log *zap.Logger) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("gslbd: the limit of open files: %w", err)
	}
	if uint64(limit.Cur) < needed { // FreeBSD has int64
		log.Warn("the limit of open files is too low: under load connections and checks will fail; raise LimitNOFILE of the unit (ulimit -Hn), or lower dns.tcp.max_connections",
			zap.Uint64("limit", uint64(limit.Cur)), zap.Uint64("needed", needed))
	}
	return nil
}
