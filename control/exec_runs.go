package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// execRetry is how long a run of the program that failed is left alone.
const execRetry = time.Minute

// programLock is the file of the state directory that a run of the program has locked; see alone.
const programLock = "program.lock"

// errUnderWay says that a run of the program goes on that this gslbd did not start.
var errUnderWay = errors.New("a run from before gslbd was restarted still goes on; it is killed when its time is over")

// The marks say what only this gslbd does: another one that knows the same records must not run the program too. That
// of an evacuation is markAsked until the program has removed everything, then markDone.
const (
	executeMark = "execute/" // and the evacuation's id
	restoreMark = "restore/" // and the restoration's id
	markAsked   = "asked"
	markDone    = "done"
)

// programs runs the operator's program, one run at a time, beside Run: nothing else waits for it.
type programs struct {
	wg sync.WaitGroup

	// mu protects what follows.
	mu      sync.Mutex
	running string             // the id of the evacuation that it runs for; "": it does not run
	failed  map[string]failure // by the id of the evacuation and the verb
	found   time.Time          // when a run was found that is left over; zero: there is none
}

type failure struct {
	why   string
	retry time.Time
	waits bool // for a run that another gslbd started: nothing has failed
}

// state returns what became of the last run of the verb for the evacuation.
func (g *programs) state(id, verb string) (running bool, last failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running == id, g.failed[id+"/"+verb]
}

// start starts the next run that is due, unless one is under way.
func (g *programs) start(ctx context.Context, c *Control, pic *picture) {
	for _, e := range pic.all {
		p := e.part(TypeExec)
		if p == nil || !p.open() {
			continue
		}
		var job func(context.Context, ExecConfig, *part) error
		verb := verbRemove
		switch {
		case p.stays() && p.begun && c.mark(executeMark+e.ID) == markAsked:
			job = c.remove
		case p.restoring() && p.heir == nil && len(p.lines) > 0 && c.putsBack(p):
			job, verb = c.putBack, verbAdd
		default:
			continue
		}
		g.mu.Lock()
		if g.running != "" {
			g.mu.Unlock()
			return
		}
		run := e.ID + "/" + verb
		if f, ok := g.failed[run]; ok && pic.now.Before(f.retry) {
			g.mu.Unlock()
			continue
		}
		g.running = e.ID
		g.mu.Unlock()
		g.wg.Go(func() {
			err := c.alone(func(x ExecConfig) error { return job(ctx, x, p) })
			news := g.ended(run, err, c.now())
			switch {
			case err == nil:
				c.log.Info("evacuation program done", zap.String("evacuation", e.ID), zap.String("verb", verb))
			case errors.Is(err, errUnderWay):
				if news {
					c.log.Warn("evacuation program waits", zap.String("evacuation", e.ID), zap.String("verb", verb), zap.Error(err))
				}
				return // without waking Run, which would try again at once
			case ctx.Err() == nil:
				c.log.Error("evacuation program failed", zap.String("evacuation", e.ID), zap.String("verb", verb),
					zap.Duration("retry", execRetry), zap.Error(err))
			}
			c.kick()
		})
		return
	}
}

// ended notes how a run ended. news is false if it failed as the last one did.
func (g *programs) ended(run string, err error, now time.Time) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = ""
	last := g.failed[run]
	if err == nil {
		delete(g.failed, run)
		return true
	}
	if g.failed == nil {
		g.failed = map[string]failure{}
	}
	f := failure{why: strings.TrimPrefix(err.Error(), "control: "), retry: now.Add(execRetry)}
	if errors.Is(err, errUnderWay) {
		f.retry, f.waits = now, true
	}
	g.failed[run] = f
	return f.why != last.why
}

// alone runs job while no other run of the program goes on, also none that was left over when a gslbd was killed: every
// process that job starts inherits the lock, and only those keep it when gslbd dies.
func (c *Control) alone(job func(ExecConfig) error) error {
	x := c.cfg.Load().Exec
	if c.opts.Directory == "" {
		return job(x)
	}
	// Not to write: a disk that takes nothing must not keep what was taken from being put back.
	f, err := os.OpenFile(filepath.Join(c.opts.Directory, programLock), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	busy := errors.Is(err, syscall.EWOULDBLOCK)
	if c.evac.leftOver(busy, c.now()) > x.timeout() {
		n, err := killHolders(f)
		c.log.Warn("evacuation program left over from before gslbd was restarted took too long and was killed",
			zap.Duration("timeout", x.timeout()), zap.Int("processes", n), zap.Error(err))
	}
	switch {
	case busy:
		return errUnderWay
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	defer func() { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }() // from what the program has left behind, too
	x.lock = f
	return job(x)
}

// leftOver returns for how long a run has been found that is left over; busy says whether there is one now.
func (g *programs) leftOver(busy bool, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !busy {
		g.found = time.Time{}
		return 0
	}
	if g.found.IsZero() {
		g.found = now
	}
	return now.Sub(g.found)
}

// killHolders kills the processes that have inherited the lock of the file, and returns how many. One that only has the
// file open, as a backup does, is left alone.
func killHolders(f *os.File) (n int, err error) {
	want, err := f.Stat()
	if err != nil {
		return 0, err
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	killed := map[int]bool{os.Getpid(): true}
	for _, path := range open {
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil || killed[pid] {
			continue
		}
		is, err := os.Stat(path)
		if err != nil || !os.SameFile(is, want) {
			continue
		}
		info, err := os.ReadFile(strings.Replace(path, "/fd/", "/fdinfo/", 1))
		if err == nil && bytes.Contains(info, []byte("FLOCK")) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed[pid] = true
			n++
		}
	}
	return n, nil
}

// putsBack reports whether it is this gslbd that runs the program to put back what the part took: the one that was asked
// to restore, or, where nobody was, the one that took it.
func (c *Control) putsBack(p *part) bool {
	for _, r := range p.by {
		if c.mark(restoreMark+r.ID) != "" {
			return true
		}
	}
	return len(p.by) == 0 && c.mark(executeMark+p.of.ID) != ""
}

// remove takes what the program lists for the zone out of service. It may be broken off anywhere and begun again: what
// is about to be removed is in the ledger before, and what has been is no longer in service.
func (c *Control) remove(ctx context.Context, x ExecConfig, p *part) error {
	all, err := x.list(ctx)
	if err != nil {
		return err
	}
	e := p.of
	v := c.view(c.now())
	in := map[string]*evacuation{} // by zone: all that are evacuated under this id
	for _, o := range v.picture().all {
		if o.ID == e.ID && o.part(TypeExec).stays() {
			in[o.zone.id] = o
		}
	}
	if len(in) == 0 {
		return nil // restored while the program listed
	}
	var out []Listed
	w := &writer{pic: v.picture()}
	for _, l := range all {
		e := in[v.names.zoneID(l.Zone)]
		if !l.in() || e == nil {
			continue
		}
		id := e.takenID(TypeExec, l.ID)
		if v.ended(id) != nil {
			continue
		}
		out = append(out, l)
		if v.taken[id] == nil {
			w.take(e, TypeExec, l.ID, "", []string{l.State}, v.now)
		}
	}
	if len(w.recs) > 0 {
		if err := c.keep(ctx, nil, w.recs...); err != nil {
			return err
		}
	}
	if len(out) > 0 {
		if err := x.change(ctx, verbRemove, out); err != nil {
			return err
		}
	}
	// Another gslbd may have been asked to restore while the program ran here, and seen as in service what it then removed.
	v = c.view(c.now())
	back := slices.DeleteFunc(out, func(l Listed) bool { return v.ended(e.takenID(TypeExec, l.ID)) == nil })
	if len(back) > 0 {
		if err := x.change(ctx, verbAdd, back); err != nil {
			return fmt.Errorf("restored while the program ran: %w", err)
		}
	}
	return c.keep(ctx, map[string]string{executeMark + e.ID: markDone})
}

// putBack puts what the part took and is still out of service back as it was. It may be broken off anywhere and begun
// again.
func (c *Control) putBack(ctx context.Context, x ExecConfig, p *part) error {
	all, err := x.list(ctx)
	if err != nil {
		return err
	}
	v := c.view(c.now())
	w := &writer{pic: v.picture()}
	var in []Listed
	var lines []*Taken
	for _, t := range sorted(p.lines) {
		if v.ended(t.ID) != nil {
			continue
		}
		i := slices.IndexFunc(all, func(l Listed) bool { return l.ID == t.Resource })
		switch {
		case i < 0:
			w.back(p, t, true)
		case all[i].in() || len(t.Removed) == 0: // someone has put it back already
			w.back(p, t, false)
		default:
			in = append(in, Listed{ID: t.Resource, Zone: all[i].Zone, State: t.Removed[0]})
			lines = append(lines, t)
		}
	}
	if len(in) > 0 {
		if err := x.change(ctx, verbAdd, in); err != nil {
			return err
		}
		for _, t := range lines {
			w.back(p, t, false)
		}
	}
	c.note(w.recs, w.gone)
	return nil
}

// listZone lists what the program would take out of the zone.
func (v *view) listZone(ctx context.Context, zoneID string) ([]Resource, error) {
	all, err := v.cfg.Exec.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []Resource
	for _, l := range all {
		if l.in() && v.names.zoneID(l.Zone) == zoneID {
			out = append(out, Resource{Type: TypeExec, Name: l.ID, Zone: l.Zone, Removed: []string{l.State}})
		}
	}
	slices.SortFunc(out, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// sorted returns the lines by their ids.
func sorted(lines []*Taken) []*Taken {
	return slices.SortedFunc(slices.Values(lines), func(a, b *Taken) int { return cmp.Compare(a.ID, b.ID) })
}

// program refuses what needs the operator's program where there is none.
func (v *view) program(what string) error {
	if len(v.cfg.Exec.Command) > 0 {
		return nil
	}
	return fmt.Errorf("control: %w: %s needs a program, and evacuation.exec.command is not set on this gslbd", ErrInvalid, what)
}
