package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"gslbd/sitereport"
)

// lateRounds is after how many intervals without a new report the agent counts as hung. Its readers have most of one.
const lateRounds = 3

// rounds is a reader that has nothing to report: it notes when the agent last began to put a report together.
type rounds struct{ last atomic.Pointer[time.Time] }

func (r *rounds) Read(context.Context) (sitereport.Reading, error) {
	now := time.Now()
	r.last.Store(&now)
	return sitereport.Reading{}, nil
}

// supervised tells the service manager, where there is one that wants to be told (sd_notify(3)), that the agent runs, and
// from then on that it lives, for as long as it puts reports together, until ctx is done.
func (p *parts) supervised(ctx context.Context) error {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("gslb-agent: the watchdog of the environment: %w", err)
	}
	_, _ = p.rounds.Read(ctx) // the first is not late before it was due
	p.tell(fmt.Sprintf("%s\nSTATUS=site %s, %d virtual servers, reports to %d gslbd", daemon.SdNotifyReady, p.site, p.virtualServers, p.servers))
	if watchdog == 0 {
		return nil
	}
	tick := time.NewTicker(watchdog / 4) // one that comes while the interval changes may be left out
	defer tick.Stop()
	for hung := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		silent, late := p.hung()
		switch {
		case !late:
			p.tell(daemon.SdNotifyWatchdog)
		case !hung:
			p.log.Error("gslb-agent hangs: the service manager gets no sign of life any more and restarts it after WatchdogSec",
				zap.Duration("no_report_for", silent))
		}
		hung = late
	}
}

// hung reports whether the agent has put no report together for too long, and for how long. Before it began, it has not hung.
func (p *parts) hung() (silent time.Duration, late bool) {
	last := p.rounds.last.Load()
	if last == nil {
		return 0, false
	}
	silent = time.Since(*last)
	return silent, silent > lateRounds*p.agent.Interval()
}

// tell sends assignments, separated by newlines, to the service manager.
func (p *parts) tell(text string) {
	_, err := daemon.SdNotify(false, text)
	if failed := err != nil; p.untold.Swap(failed) != failed && failed {
		p.log.Warn("the service manager cannot be told how gslb-agent does", zap.Error(err))
	}
}
