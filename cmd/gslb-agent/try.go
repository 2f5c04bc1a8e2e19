package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"gslbd/probes"
	"gslbd/sitereport"
)

// readTime is how long check waits for what stands at the site: an agent's own checks may take a while.
const readTime = 10 * time.Second

// errFailed is returned when what failed has been printed.
var errFailed = errors.New("gslb-agent: not everything works, see above")

// check says whether everything that the configuration names can be reached and used from here, and what the agent may do.
// It sends no report and changes nothing.
func (p *parts) check(ctx context.Context, out io.Writer) error {
	failed := false
	say := func(what string, err error, format string, args ...any) {
		if err == nil {
			fmt.Fprintf(out, "%s: %s\n", what, fmt.Sprintf(format, args...))
			return
		}
		failed = true
		fmt.Fprintf(out, "%s: FAILED: %s\n", what, strings.TrimPrefix(err.Error(), what+": "))
	}
	for _, o := range p.agent.Permitted(ctx) {
		if o.Err != nil {
			say(o.Server, o.Err, "")
			continue
		}
		say(o.Server, nil, "accepts reports of site %s, every %s", p.site, time.Duration(o.Answer.IntervalMS)*time.Millisecond)
	}

	if c := p.secured.credentials().client; c != nil {
		var err error
		if now := time.Now(); now.After(c.NotAfter) || now.Before(c.NotBefore) {
			err = fmt.Errorf("it is valid from %s to %s, and now is %s: renew it, or set this machine's clock", date(c.NotBefore), date(c.NotAfter), date(now))
		}
		say("client certificate", err, "valid until %s", date(c.NotAfter))
	}

	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	readings, errs := make([]sitereport.Reading, len(p.readers)), make([]error, len(p.readers))
	p.during(ctx, func(ctx context.Context) {
		var reading sync.WaitGroup
		for i, r := range p.readers {
			reading.Go(func() { readings[i], errs[i] = r.Read(ctx) })
		}
		reading.Wait()
	})
	for i, r := range p.readers {
		say(r.String(), errs[i], "%s", summary(&readings[i]))
		for _, v := range readings[i].VirtualServers {
			for _, s := range v.Servers {
				if s.Reason != "" && s.State != sitereport.StateUp {
					fmt.Fprintf(out, "%s: %s of %s is %s: %s\n", r, cmp.Or(s.Name, s.Address), cmp.Or(v.Name, v.Address.String()), s.State, s.Reason)
				}
			}
		}
		for _, w := range readings[i].Warnings {
			fmt.Fprintf(out, "%s: warning: %s\n", r, w)
		}
		for _, a := range slices.SortedFunc(maps.Keys(readings[i].Elsewhere), netip.Addr.Compare) {
			fmt.Fprintf(out, "%s: %s is not served here: %s\n", r, a, readings[i].Elsewhere[a])
		}
		if actor, ok := r.(sitereport.Actor); ok && p.draining {
			say(r.String(), actor.May(ctx), "may end sessions and set servers to drain and back (draining.enabled)")
		} else if ok {
			say(r.String(), nil, "only read (draining.enabled is false)")
		}
	}
	if p.ping {
		v4, err4 := probes.CanICMP(false)
		v6, err6 := probes.CanICMP(true)
		switch {
		case err4 == nil && err6 == nil:
			say("round trips", nil, "by ICMP (%s, IPv6 %s)", v4, v6)
		case err4 == nil:
			say("round trips", nil, "by ICMP (%s), not to IPv6: %v", v4, err6)
		case err6 == nil:
			say("round trips", nil, "by ICMP (%s), not to IPv4: %v", v6, err4)
		default:
			say("round trips", err4, "")
		}
	}
	if p.passive {
		var servers []sitereport.VirtualServer
		for _, r := range readings {
			servers = append(servers, r.VirtualServers...)
		}
		connections, measured, err := sitereport.CheckPassive(ctx, servers)
		say("round trips of clients", err, "%d connections at the virtual servers, round trips known of %d", connections, measured)
	}
	if failed {
		return errFailed
	}
	return nil
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// summary says what was read: how many servers are in which state, or what there is without virtual servers.
func summary(r *sitereport.Reading) string {
	if len(r.VirtualServers) == 0 {
		return figures(r)
	}
	states, servers := map[string]int{}, 0
	for _, v := range r.VirtualServers {
		for _, s := range v.Servers {
			states[s.State]++
			servers++
		}
	}
	text := fmt.Sprintf("%d virtual servers, %d servers", len(r.VirtualServers), servers)
	var parts []string
	for state, n := range states {
		parts = append(parts, fmt.Sprintf("%d %s", n, state))
	}
	if slices.Sort(parts); len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// figures says what a reader without virtual servers is there for, and what it knows of that.
func figures(r *sitereport.Reading) string {
	wanted := r.Supplies
	if r.WholeSite {
		wanted |= sitereport.FigureBitsIn | sitereport.FigureBitsOut
	}
	var known, unknown []string
	say := func(figure sitereport.Figures, name string, is bool, value func() any) {
		switch {
		case is:
			known = append(known, fmt.Sprintf("%s %v", name, value()))
		case wanted&figure != 0:
			unknown = append(unknown, name)
		}
	}
	l := &r.Load
	say(sitereport.FigureSessions, "sessions", l.Sessions != nil, func() any { return *l.Sessions })
	say(sitereport.FigureNewSessions, "new sessions a second", l.NewSessions != nil, func() any { return *l.NewSessions })
	say(sitereport.FigureBitsIn, "bits a second in", l.BitsPerSecIn != nil, func() any { return *l.BitsPerSecIn })
	say(sitereport.FigureBitsOut, "bits a second out", l.BitsPerSecOut != nil, func() any { return *l.BitsPerSecOut })
	if len(unknown) > 0 {
		known = append(known, "not known from one reading: "+strings.Join(unknown, ", "))
	}
	switch {
	case len(known) > 0:
		return strings.Join(known, ", ")
	case len(r.Elsewhere) > 0:
		return fmt.Sprintf("addresses that are not served here: %d", len(r.Elsewhere))
	case r.Elsewhere != nil:
		return "all addresses are served here"
	}
	return "nothing"
}

// during runs f while the agent's own checks run.
func (p *parts) during(ctx context.Context, f func(context.Context)) {
	running, stop := context.WithCancel(ctx)
	var checks sync.WaitGroup
	if p.checked != nil {
		checks.Go(func() { _ = p.checked.Run(running) }) // it ends with running, and without error
	}
	f(ctx)
	stop()
	checks.Wait()
}

// once prints one report, or sends it to every gslbd and prints their answers.
func (p *parts) once(ctx context.Context, out io.Writer, dryRun bool) error {
	var report *sitereport.Report
	p.during(ctx, func(ctx context.Context) { report = p.agent.Once(ctx) })
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if dryRun {
		return enc.Encode(report)
	}
	outcomes, err := p.agent.Send(ctx, report)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		answer := struct {
			Server string             `json:"server"`
			Answer *sitereport.Answer `json:"answer,omitempty"`
			Error  string             `json:"error,omitempty"`
		}{Server: o.Server, Answer: o.Answer}
		if o.Err != nil {
			answer.Error = o.Err.Error()
			err = errFailed
		}
		if e := enc.Encode(answer); e != nil {
			return e
		}
	}
	return err
}
