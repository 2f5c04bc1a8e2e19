package main

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gslbd/config"
	"gslbd/control"
	"gslbd/state"
)

// controlOptions says how orders are kept and shared.
func controlOptions(g *generation, store *state.Store, log *zap.Logger) control.Options {
	c := g.config
	o := control.Options{Directory: c.State.Directory, Node: nodeName(c), Store: store, Config: g.orders, Log: log.WithOptions(zap.WrapCore(boundRefused))}
	if e := c.State.Etcd; len(e.Endpoints) > 0 {
		o.Etcd = &control.EtcdOptions{Endpoints: e.Endpoints, Prefix: e.Prefix, TLS: g.etcd}
	}
	return o
}

// maxRefused is how many characters a field of a refused order has in the log: it may be of anybody who reaches the
// listener, and as long as a request. What is accepted is bounded by control, and stands whole.
const maxRefused = 200

// A refusedCore shortens the fields of the entries that tell of refused orders.
type refusedCore struct{ zapcore.Core }

func boundRefused(core zapcore.Core) zapcore.Core { return refusedCore{core} }

func (c refusedCore) With(fields []zap.Field) zapcore.Core { return refusedCore{c.Core.With(fields)} }

func (c refusedCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c refusedCore) Write(e zapcore.Entry, fields []zap.Field) error {
	if strings.HasSuffix(e.Message, " refused") {
		short := make([]zap.Field, len(fields))
		for i, f := range fields {
			short[i] = shortened(f)
		}
		fields = short
	}
	return c.Core.Write(e, fields)
}

// shortened returns the field, or its beginning as text with how long it was.
func shortened(f zap.Field) zap.Field {
	values := zapcore.NewMapObjectEncoder()
	f.AddTo(values)
	text, ok := values.Fields[f.Key].(string)
	if !ok {
		text = fmt.Sprint(values.Fields[f.Key])
	}
	n := 0
	for i := range text {
		if n++; n > maxRefused {
			return zap.String(f.Key, fmt.Sprintf("%s… (%d characters)", text[:i], utf8.RuneCountInString(text)))
		}
	}
	return f
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
