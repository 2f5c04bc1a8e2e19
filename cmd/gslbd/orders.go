package main

import (
	"os"

	"go.uber.org/zap"

	"gslbd/config"
	"gslbd/control"
	"gslbd/state"
)

// controlOptions says how orders are kept and shared.
func controlOptions(g *generation, store *state.Store, log *zap.Logger) control.Options {
	c := g.config
	o := control.Options{Directory: c.State.Directory, Node: nodeName(c), Store: store, Config: g.orders, Log: log}
	if e := c.State.Etcd; len(e.Endpoints) > 0 {
		o.Etcd = &control.EtcdOptions{Endpoints: e.Endpoints, Prefix: e.Prefix, TLS: g.etcd}
	}
	return o
}

// nodeName is what this gslbd calls itself among its siblings.
func nodeName(c *config.Config) string {
	if c.DNS.NSID != "" {
		return c.DNS.NSID
	}
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "gslbd" // a machine without a name has no siblings to be told from
}

// controlConfig is what a reload may change of the orders.
func controlConfig(c *config.Config) control.Config {
	exec := c.Evacuation.Exec
	cc := control.Config{ReportInterval: c.Reports.Interval, Exec: control.ExecConfig{Command: exec.Command, Timeout: exec.Timeout}}
	for _, a := range c.ZoneAliases {
		cc.ZoneAliases = append(cc.ZoneAliases, control.ZoneAlias{ID: a.ID, Names: a.Names})
	}
	return cc
}
