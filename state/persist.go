package state

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	stateFile  = "state.json"
	rttFile    = "rtt.json"
	eventsFile = "events.json"
	lockFile   = "lock"

	stateFormat  = "gslbd state"
	rttFormat    = "gslbd round trips"
	eventsFormat = "gslbd events"
	fileVersion  = 1

	// keepFor is how old a kept state may be to come first after a restart (docs/operations.md).
	keepFor = 10 * time.Minute
	// A change is written within saveSoon, unless the last write was less than saveEvery ago: after a crash the first
	// failure of a night must not be forgotten, and a night full of them must not wear out the disk. saveAnyway is how
	// often an unchanged state is written, so that it never looks older than it is. Round trips are written at that pace.
	saveSoon   = time.Second
	saveEvery  = 10 * time.Second
	saveAnyway = time.Minute
	// maxKeptRTTs bounds the file of round trips in bytes, since a start waits until it is read. It is room for those of eight
	// sites to 100,000 networks; of more, networks that asked here come first.
	maxKeptRTTs = 64 << 20
	// Files are written in the background: that takes keepWork of the processor at a time, and rests for keepRest.
	// Within that, and while the state is gathered, there are the rests of resting, after every serviceRest services or 8 networks.
	keepWork    = 100 * time.Microsecond
	keepRest    = time.Millisecond
	serviceRest = 4
	// maxFile bounds what is read at the start; the largest configuration that is tested writes a twentieth of it.
	maxFile = 1 << 29
)

// header begins each file. Written is by the wall clock, the only one that survives a restart.
type header struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Written time.Time `json:"written"`
}

// fileState is what is kept of the measured state. Times are by the wall clock.
type fileState struct {
	header
	Sites    []fileSite    `json:"sites"`
	Services []fileService `json:"services"`

	rtt *fileRTT
}

type fileSite struct {
	Name            string    `json:"name"`
	Agent           string    `json:"agent,omitzero"`
	ReportAt        time.Time `json:"report_at,omitzero"`
	Alive           bool      `json:"alive,omitzero"` // it was not dead, or its death had not counted: see site.gone
	Overloaded      bool      `json:"overloaded,omitzero"`
	OverloadedSince time.Time `json:"overloaded_since,omitzero"`
	OverloadedWhy   string    `json:"overloaded_why,omitzero"`
	HighAt          time.Time `json:"high_at,omitzero"`
	Shed            float64   `json:"shed,omitzero"`

	// What only a takeover puts back: after a restart reports have been missed.
	Since       time.Time  `json:"since,omitzero"`
	GraceUntil  time.Time  `json:"grace_until,omitzero"`
	Load        fileLoad   `json:"load,omitzero"`
	NewSessions []float64  `json:"new_sessions,omitempty"`
	Servers     fileCounts `json:"servers,omitzero"`
}

type fileLoad struct {
	HasSessions    bool    `json:"has_sessions,omitzero"`
	Sessions       uint64  `json:"sessions,omitzero"`
	HasNewSessions bool    `json:"has_new_sessions,omitzero"`
	NewSessions    float64 `json:"new_sessions,omitzero"`
	HasBits        bool    `json:"has_bits,omitzero"`
	BitsIn         uint64  `json:"bits_in,omitzero"`
	BitsOut        uint64  `json:"bits_out,omitzero"`
}

type fileCounts struct {
	Known bool `json:"known,omitzero"`
	Fresh bool `json:"fresh,omitzero"`
	Up    int  `json:"up,omitzero"`
	Size  int  `json:"size,omitzero"`
}

type fileService struct {
	Name      string       `json:"name"`
	PoolMoved time.Time    `json:"pool_moved,omitzero"`
	Pool      Role         `json:"pool,omitzero"`
	PoolSince time.Time    `json:"pool_since,omitzero"`
	PoolWhy   string       `json:"pool_why,omitzero"`
	Hold      fileHold     `json:"hold,omitzero"`
	Turn      [2]uint64    `json:"turn,omitzero"`
	Members   []fileMember `json:"members"`
}

type fileHold struct {
	On       bool      `json:"on,omitzero"`
	Why      string    `json:"why,omitzero"`
	Since    time.Time `json:"since,omitzero"`
	Latch    string    `json:"latch,omitzero"`
	Passed   bool      `json:"passed,omitzero"`
	Failback string    `json:"failback,omitzero"`
	Released bool      `json:"released,omitzero"`
	Unproven bool      `json:"unproven,omitzero"`
}

type fileMember struct {
	Name      string `json:"name"`
	Site      string `json:"site"`
	Servers   int    `json:"servers,omitzero"`
	ServersUp int    `json:"servers_up,omitzero"`
	Counted   bool   `json:"counted,omitzero"` // a report told of servers
	Fresh     bool   `json:"fresh,omitzero"`   // and the share went by what it told

	Selected [2][2]int64 `json:"selected,omitzero"`

	// Listed says which agent last listed a virtual server that the member names.
	Listed map[string]string `json:"listed,omitempty"`
	Health [2]*fileHealth    `json:"health"` // by Family; null: the member lacks it
}

type fileHealth struct {
	Address     netip.Addr  `json:"address,omitzero"`
	Up          bool        `json:"up,omitzero"`
	Why         string      `json:"why,omitzero"`
	Since       time.Time   `json:"since,omitzero"`
	Recovered   time.Time   `json:"recovered,omitzero"`
	LastGood    bool        `json:"last_good,omitzero"`
	Measured    bool        `json:"measured,omitzero"` // before damping and orders
	MeasuredWhy string      `json:"measured_why,omitzero"`
	Known       bool        `json:"known,omitzero"` // some source covered it
	Flips       []time.Time `json:"flips,omitzero"`
	DampedUntil time.Time   `json:"damped_until,omitzero"`
	Report      *fileReport `json:"report,omitzero"`
	Check       *fileCheck  `json:"check,omitzero"`
}

type fileReport struct {
	Agent       string    `json:"agent"`
	State       coverage  `json:"state,omitzero"`
	SilentSince time.Time `json:"silent_since,omitzero"`
	Up          bool      `json:"up,omitzero"`
	Why         string    `json:"why,omitzero"`
}

type fileCheck struct {
	Up     bool   `json:"up,omitzero"`
	EverUp bool   `json:"ever_up,omitzero"`
	Why    string `json:"why,omitzero"`
}

// fileRTT is what is kept of the RTT table.
type fileRTT struct {
	header
	Sites []string  `json:"sites"` // the values name them by index
	Rows  []fileRow `json:"rows"`
}

type fileRow struct {
	Network netip.Prefix `json:"network"`
	Values  []fileValue  `json:"values"`
	Unasked bool         `json:"unasked,omitzero"` // nobody of the network asked here: it is known by its clients
}

type fileValue struct {
	Site    int      `json:"site"`
	Method  string   `json:"method"`
	AgeMs   int64    `json:"age_ms"` // of the newest sample, when the file was written
	Samples []uint32 `json:"us"`     // microseconds, oldest first
	Level   uint32   `json:"level_us,omitzero"`
	Before  uint32   `json:"before_us,omitzero"` // the level before the last shift, if there was one
	ShiftMs int64    `json:"shift_ms,omitzero"`  // how long ago that was
	Lost    uint16   `json:"lost,omitzero"`      // as in rttHistory
}

// open makes and locks the state directory, and reads what was kept there. A directory that cannot be written is no
// failure: answers matter more than what a restart would forget. The keeper tries it again.
func (s *Store) open() error {
	err := s.take()
	switch {
	case err == nil:
		err = s.tryWriting()
	case !unwritable(err):
		return err
	}
	(&keeper{s: s}).note(err)
	var past fileEvents
	if s.read(eventsFile, eventsFormat, &past, &past.header) {
		s.history.restore(&past, time.Now())
	}
	var st fileState
	if !s.read(stateFile, stateFormat, &st, &st.header) {
		return nil
	}
	s.restored = &st
	if s.tooOld(stateFile, &st.header) {
		st.forgetMeasured()
		return nil
	}
	s.log.Info("kept state found", zap.Duration("age", max(time.Since(st.Written), 0)))
	var rtt fileRTT
	if s.read(rttFile, rttFormat, &rtt, &rtt.header) && !s.tooOld(rttFile, &rtt.header) {
		st.rtt = &rtt
	}
	return nil
}

// forgetMeasured leaves what does not age: which latches were passed. One that was not is no matter of this gslbd, whose
// backups may not have been heard of yet.
func (f *fileState) forgetMeasured() {
	f.Sites = nil
	for i := range f.Services {
		kept := fileService{Name: f.Services[i].Name}
		if h := f.Services[i].Hold; h.Passed {
			kept.Hold = fileHold{Latch: h.Latch, Passed: true}
		}
		f.Services[i] = kept
	}
}

// take makes the state directory and takes its lock, if it is not held yet. Where nothing can be written there, a lock that
// is there is taken nevertheless, so that two gslbd never share a directory, and the error says why.
func (s *Store) take() error {
	if s.lock.Load() != nil {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return s.advise(err)
	}
	path := filepath.Join(s.dir, lockFile)
	f, why := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if why != nil {
		var err error
		if f, err = os.Open(path); err != nil || !unwritable(why) {
			return s.advise(why)
		}
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("state.directory: %s is in use by another gslbd: stop it, or give this one another directory", s.dir)
		}
		return fmt.Errorf("state.directory: lock %s: %w", path, err)
	}
	s.lock.Store(f)
	return s.advise(why)
}

// tryWriting makes the file that the first save begins with.
func (s *Store) tryWriting() error {
	f, err := os.OpenFile(filepath.Join(s.dir, stateFile+".tmp"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return s.advise(err)
	}
	return f.Close()
}

// advise adds to an error of the state directory where it is configured and what to do, if that is known.
func (s *Store) advise(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("state.directory: %w: make room on that disk", err)
	case unwritable(err):
		return fmt.Errorf("state.directory: %w: make %s a directory that the user of gslbd (uid %d) can write to", err, s.dir, os.Geteuid())
	}
	return fmt.Errorf("state.directory: %w", err)
}

// unwritable reports whether err says that nothing can be written where it happened, though it may be another time.
func unwritable(err error) bool {
	for _, e := range []error{fs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// read reads one kept file into v, whose header is h. It reports whether there is one. What cannot be read is kept aside,
// so that nothing is lost and the next start does not stumble over it again.
func (s *Store) read(name, format string, v any, h *header) bool {
	path := filepath.Join(s.dir, name)
	err := func() error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() > maxFile {
			return fmt.Errorf("%d bytes are more than the %d that a state file may have", info.Size(), maxFile)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return decodeFile(data, format, v, h)
	}()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		fields := []zap.Field{zap.String("file", path), zap.Error(err)}
		if err := os.Rename(path, path+".bad"); err == nil {
			fields = append(fields, zap.String("kept as", path+".bad"))
		}
		s.log.Warn("kept state unreadable; starting without it", fields...)
		return false
	}
	return true
}

// tooOld reports whether what a kept file says of measurements no longer counts.
func (s *Store) tooOld(name string, h *header) bool {
	age := time.Since(h.Written)
	old := age >= keepFor || age <= -keepFor
	if old {
		s.log.Info("kept state too old; starting without it", zap.String("file", filepath.Join(s.dir, name)), zap.Time("written", h.Written))
	}
	return old
}

func decodeFile(data []byte, format string, v any, h *header) error {
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	if h.Format != format || h.Version != fileVersion {
		return fmt.Errorf("format %q version %d, want %q version %d", h.Format, h.Version, format, fileVersion)
	}
	return nil
}

// A keeper writes the kept files. It is owned by Run's second goroutine.
type keeper struct {
	s              *Store
	stateAt, rttAt time.Time // of the last attempt to write
	failing        bool
}

// run saves what changes until ctx is done.
func (k *keeper) run(ctx context.Context) {
	if k.s.dir == "" {
		return
	}
	k.stateAt, k.rttAt, k.failing = time.Now().Add(-saveEvery), time.Now(), k.s.Unkept() != ""
	tick := time.NewTicker(saveSoon)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(k.stateAt) < saveEvery {
			continue
		}
		k.note(k.save(now, now.Sub(k.stateAt) >= saveAnyway, now.Sub(k.rttAt) >= saveAnyway, spacing(ctx)))
	}
}

// spacing returns what a long work calls between its pieces: it rests each time as resting does, and longer when the work has had
// its time, and fails when ctx is done. Without rests, queries would wait for the work where there is one core.
func spacing(ctx context.Context) func() error {
	began, short := time.Now(), resting()
	return func() error {
		if time.Since(began) < keepWork {
			short()
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(keepRest):
		}
		began = time.Now()
		return nil
	}
}

// note logs the first failure of a row, and the end of it.
func (k *keeper) note(err error) {
	switch {
	case err != nil && !k.failing:
		text := err.Error()
		k.s.unkept.Store(&text)
		k.s.log.Error("state cannot be kept; trying again", zap.Error(err))
	case err == nil && k.failing:
		k.s.unkept.Store(nil)
		k.s.log.Info("state kept again")
	}
	k.failing = err != nil
}

// Unkept says why the state cannot be written to the directory, so that a restart would forget it; "": it can.
func (s *Store) Unkept() string {
	if text := s.unkept.Load(); text != nil {
		return *text
	}
	return ""
}

// save writes the state if it has changed or anyway, and the round trips if asked to, with a rest now and then. Where rest
// fails, they are not written: it does when the last save is to follow.
func (k *keeper) save(now time.Time, anyway, rtt bool, rest func() error) error {
	s := k.s
	if s.dir == "" {
		return nil
	}
	if err := s.take(); err != nil {
		k.stateAt = now
		return err
	}
	s.mu.Lock()
	if !s.configured {
		s.mu.Unlock()
		return nil
	}
	var st *fileState
	if s.unsaved || anyway {
		s.unsaved = false
		st = s.capture(now)
	}
	table := s.rtt
	names := map[uint16]string{}
	for _, site := range s.siteOrder {
		names[site.id] = site.cfg.Name
	}
	s.mu.Unlock()

	var errs []error
	if st != nil {
		k.stateAt = now
		err := s.replace(stateFile, func(w *bufio.Writer) error { return st.encode(w, rest) })
		if err != nil {
			s.mu.Lock()
			s.unsaved = true
			s.mu.Unlock()
		}
		if !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	if past := s.history.capture(now); past != nil {
		k.stateAt = now
		if err := s.write(eventsFile, past); err != nil {
			errs = append(errs, err)
			s.history.notKept()
		}
	}
	if rtt {
		k.rttAt = now
		err := s.replace(rttFile, func(w *bufio.Writer) error { return table.keep(w, names, now, rest) })
		if !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// encode writes the state as one JSON object. It calls rest after every few services.
func (f *fileState) encode(w *bufio.Writer, rest func() error) error {
	head, err := json.Marshal(f.header)
	if err != nil {
		return err
	}
	sites, err := json.Marshal(f.Sites)
	if err != nil {
		return err
	}
	_, _ = w.Write(head[:len(head)-1]) // w remembers its first error
	_, _ = w.WriteString(`,"sites":`)
	_, _ = w.Write(sites)
	_, _ = w.WriteString(`,"services":[`)
	for i := range f.Services {
		if i%serviceRest == 0 {
			if err := rest(); err != nil {
				return err
			}
		}
		service, err := json.Marshal(&f.Services[i])
		if err != nil {
			return err
		}
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_, _ = w.Write(service)
	}
	_, err = w.WriteString("]}")
	return err
}

// write replaces a kept file by v.
func (s *Store) write(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("state: encode %s: %w", filepath.Join(s.dir, name), err)
	}
	return s.replace(name, func(w *bufio.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// replace replaces a kept file whole by what fill writes: whoever reads it finds the old one or the new one, also after a
// power cut.
func (s *Store) replace(name string, fill func(*bufio.Writer) error) (err error) {
	path := filepath.Join(s.dir, name)
	// Always the same name, so that what is left by a crash is written over. Nobody else writes here: see the lock.
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("state: %w", err)
		}
	}()
	w := bufio.NewWriterSize(f, 64<<10)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// capture returns what is to be kept of the private state. The caller holds mu.
func (s *Store) capture(now time.Time) *fileState {
	f := &fileState{header: header{stateFormat, fileVersion, now}}
	for _, st := range s.siteOrder {
		f.Sites = append(f.Sites, fileSite{
			Name: st.cfg.Name, Agent: st.holder, ReportAt: st.reportAt,
			Alive:      !st.reportAt.IsZero() && !st.gone,
			Overloaded: st.overloaded, OverloadedSince: st.overloadedSince, OverloadedWhy: st.overloadedWhy,
			HighAt: st.highAt, Shed: st.shed,
			Since: st.since, GraceUntil: st.graceUntil, Load: st.load.capture(), NewSessions: slices.Clone(st.newSessions), Servers: st.servers.capture(),
		})
	}
	rest := resting()
	for i, svc := range s.svcOrder {
		if i%serviceRest == 0 {
			rest()
		}
		fs := fileService{Name: svc.cfg.Name, Pool: svc.pool, PoolSince: svc.poolSince, PoolWhy: svc.poolWhy, Hold: svc.hold.capture()}
		for _, m := range svc.members {
			fm := fileMember{
				Name: m.cfg.Name, Site: m.site.cfg.Name,
				Counted: m.servers.known, Servers: m.servers.size, ServersUp: m.servers.up, Fresh: m.countsServers(),
				Listed: maps.Clone(m.listed),
			}
			for i, selected := range m.rotations() {
				for f := range selected {
					fm.Selected[i][f] = selected[f].Load()
				}
			}
			for f := range m.health {
				if m.has(Family(f)) {
					fm.Health[f] = m.health[f].capture(m.cfg.Addresses[f])
				}
			}
			fs.Members = append(fs.Members, fm)
		}
		fs.PoolMoved = svc.poolMoved
		for f := range fs.Turn {
			fs.Turn[f] = svc.rotation.Turn[f].Load()
		}
		f.Services = append(f.Services, fs)
	}
	return f
}

func (l load) capture() fileLoad {
	return fileLoad{l.hasSessions, l.sessions, l.hasNewSessions, l.newSessions, l.hasBits, l.bitsIn, l.bitsOut}
}

func (c serverCount) capture() fileCounts { return fileCounts{c.known, c.fresh, c.up, c.size} }

func (h *hold) capture() fileHold {
	return fileHold{h.on, h.why, h.since, h.latch, h.passed, h.failback, h.released, h.unproven}
}

func (h *health) capture(addr netip.Addr) *fileHealth {
	f := &fileHealth{
		Address: addr, Up: h.up, Why: h.why, Since: h.since, Recovered: h.recovered, LastGood: h.lastGood,
		Measured: h.raw, MeasuredWhy: h.rawWhy, Known: h.known, Flips: append([]time.Time(nil), h.flips...), DampedUntil: h.dampedUntil,
	}
	if r := h.report; r.ever {
		f.Report = &fileReport{r.agent, r.state, r.silentSince, r.up, r.why}
	}
	if c := h.check; c.has {
		f.Check = &fileCheck{c.up, c.everUp, c.why}
	}
	return f
}

// A clock turns kept times, which are by the wall clock, into ones that have a monotonic reading, so that ages count on
// that. Nothing that is past lies in the future: the wall clock may have been set back in between.
type clock struct{ now time.Time }

func (c clock) past(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return c.now.Add(min(t.Sub(c.now.Round(0)), 0))
}

func (c clock) until(t time.Time, most time.Duration) time.Time {
	if t.IsZero() {
		return t
	}
	return c.now.Add(min(t.Sub(c.now.Round(0)), most))
}

// restore puts back what was kept of what is still configured. A site that was alive is stale for dead_after: its
// members keep their state until a source speaks or that time is over, and then on_dead decides as if the site had
// died. After a takeover it goes on as it was. The caller holds mu.
func (s *Store) restore(f *fileState, now time.Time) {
	c := clock{now}
	for _, fst := range f.Sites {
		st := s.sites[fst.Name]
		if st == nil || fst.ReportAt.IsZero() {
			continue
		}
		st.holder = fst.Agent
		st.reportAt = c.past(fst.ReportAt)
		st.since = now
		if s.takeover && fst.Alive && now.Sub(st.reportAt) < s.cfg.DeadAfter {
			st.goOn(&fst, c, s.cfg)
		} else if fst.Alive {
			st.freshness, st.graceUntil = Stale, now.Add(s.cfg.DeadAfter)
		} else {
			// It died before the restart; the time is not known, and long enough ago to be no sign of blindness.
			st.freshness, st.graceUntil, st.deadAt, st.gone = Dead, now, now.Add(-s.cfg.DeadAfter), true
		}
		if st.cfg.SessionsLimit == 0 && st.cfg.BandwidthLimit == 0 {
			continue
		}
		st.loadAt = now
		st.overloaded, st.overloadedWhy = fst.Overloaded, fst.OverloadedWhy
		st.overloadedSince, st.highAt = c.past(fst.OverloadedSince), c.past(fst.HighAt)
		if st.cfg.ShedFrom > 0 {
			st.shed = min(max(fst.Shed, 0), 1)
		}
	}
	for _, fs := range f.Services {
		svc := s.services[fs.Name]
		if svc == nil {
			continue
		}
		svc.poolMoved = c.past(fs.PoolMoved)
		svc.decayedAt = c.past(f.Written)
		for f, n := range fs.Turn {
			svc.rotation.Turn[f].Store(n)
		}
		h := &fs.Hold
		svc.hold.latch, svc.hold.passed = h.Latch, h.Passed
		if svc.hasBackups && fs.Pool <= Backup && !fs.PoolSince.IsZero() {
			svc.poolSet, svc.pool, svc.poolSince, svc.poolWhy = true, fs.Pool, c.past(fs.PoolSince), fs.PoolWhy
			svc.stagedPool = fs.Pool
			svc.hold = hold{h.On, h.Why, c.past(h.Since), h.Latch, h.Passed, h.Failback, h.Released, h.Unproven}
		}
		for _, fm := range fs.Members {
			m := svc.member(fm.Name)
			if m == nil || m.cfg.Site != fm.Site {
				continue
			}
			for i, counts := range fm.Selected {
				for f, n := range counts {
					m.rotations()[i][f].Store(max(n, 0))
				}
			}
			if fm.Counted && fm.Servers >= 0 && fm.Servers <= math.MaxInt32 {
				m.servers = serverCount{known: true, fresh: fm.Fresh, up: min(max(fm.ServersUp, 0), fm.Servers), size: fm.Servers}
			}
			for _, name := range m.cfg.VirtualServers {
				if agent, ok := fm.Listed[name]; ok {
					m.list(name, agent)
				}
			}
			for fam, fh := range fm.Health {
				if fh != nil && m.has(Family(fam)) {
					m.health[fam].restore(fh, c, svc.cfg.HasCheck, fh.Address == m.cfg.Addresses[fam])
				}
			}
		}
	}
	if f.rtt != nil {
		s.rtt.restore(f.rtt, s.sites, now)
	}
}

// goOn puts back what was known of a site that has missed no report: its process hands over to this one.
func (st *site) goOn(f *fileSite, c clock, cfg Config) {
	st.since, st.graceUntil = c.past(f.Since), c.until(f.GraceUntil, cfg.DeadAfter)
	st.freshness = Fresh
	if !st.graceUntil.IsZero() || c.now.Sub(st.reportAt) >= cfg.StaleAfter {
		st.freshness = Stale
	}
	l := &f.Load
	st.load, st.newSessions = load{l.HasSessions, l.Sessions, l.HasNewSessions, l.NewSessions, l.HasBits, l.BitsIn, l.BitsOut}, f.NewSessions[:min(len(f.NewSessions), loadWindow)]
	st.servers = serverCount{f.Servers.Known, f.Servers.Fresh, f.Servers.Up, f.Servers.Size}
}

func (h *health) restore(f *fileHealth, c clock, hasCheck, sameAddress bool) {
	if !f.Known || (f.Report == nil && (f.Check == nil || !hasCheck)) {
		return // it was never measured, or its only source is no longer configured
	}
	h.resolved, h.raw, h.rawWhy, h.known = true, f.Measured, f.MeasuredWhy, true
	h.set, h.up, h.why, h.lastGood = true, f.Up, f.Why, f.LastGood
	h.since, h.recovered = c.past(f.Since), c.past(f.Recovered)
	for _, t := range f.Flips[:min(len(f.Flips), flapLimit)] {
		h.flips = append(h.flips, c.past(t))
	}
	h.dampedUntil = c.until(f.DampedUntil, flapHold)
	if r := f.Report; r != nil && r.State <= coverageUnlisted {
		h.report = reportSource{ever: true, agent: r.Agent, state: r.State, silentSince: c.past(r.SilentSince), up: r.Up, why: r.Why}
		if h.raw {
			h.report.silentSince = c.now // silence has not taken it down, and nobody could speak while gslbd did not run
		}
	}
	if k := f.Check; k != nil && hasCheck && sameAddress {
		// One that is down while the member is not has not counted, because gslbd was blind: its next run decides.
		h.check = checkSource{has: k.Up || !h.raw, up: k.Up, everUp: k.EverUp, why: k.Why}
	}
}

// keep writes what is to be kept of the table as a fileRTT: the networks that asked here, and then those that clients were
// seen of, as long as there is room. It holds no lock while it writes, and calls rest after every few networks.
func (t *RTTTable) keep(w *bufio.Writer, names map[uint16]string, now time.Time, rest func() error) error {
	head, err := json.Marshal(header{rttFormat, fileVersion, now})
	if err != nil {
		return err
	}
	_, _ = w.Write(head[:len(head)-1]) // w remembers its first error
	_, _ = w.WriteString(`,"rows":[`)
	sites, index := []string{}, map[uint16]int{}
	siteOf := func(id uint16) (at int, ok bool) {
		if at, ok = index[id]; ok {
			return at, true
		}
		name, ok := names[id]
		if ok {
			at = len(sites)
			index[id], sites = at, append(sites, name)
		}
		return at, ok
	}
	moment := t.Moment(now)
	var rows []keptRow
	var b []byte
	written := 0
	for _, unasked := range []bool{false, true} {
		for i := range t.shards {
			rows = t.kept(&t.shards[i], unasked, rows[:0])
			for n, r := range rows {
				if n%8 == 0 {
					if err := rest(); err != nil {
						return err
					}
				}
				if b = r.appendTo(b[:0], t, siteOf, moment); len(b) == 0 {
					continue
				}
				if written+len(b) > maxKeptRTTs {
					return endRTTs(w, sites)
				}
				if written > 0 {
					_ = w.WriteByte(',')
				}
				_, _ = w.Write(b)
				written += len(b) + 1
			}
		}
	}
	return endRTTs(w, sites)
}

// endRTTs writes what stands after the rows.
func endRTTs(w *bufio.Writer, sites []string) error {
	tail, err := json.Marshal(sites)
	if err != nil {
		return err
	}
	_, _ = w.WriteString(`],"sites":`)
	_, _ = w.Write(tail)
	return w.WriteByte('}')
}

// A keptRow is a network with its row.
type keptRow struct {
	hi, lo  uint64
	row     *RTTRow
	unasked bool
}

// kept appends the rows of a shard: of the networks that asked here, or of the others.
func (t *RTTTable) kept(sh *rttShard, unasked bool, to []keptRow) []keptRow {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t.visit(sh, func(sl *rttSlot, row *RTTRow) {
		if _, never := sl.asked.broughtBy(); never == unasked {
			to = append(to, keptRow{sl.hi, sl.lo, row, unasked})
		}
	})
	return to
}

// appendTo appends the row as a fileRow in JSON; nothing if all of it is too old, or if nobody of the network asked here and
// it is not known by its clients either.
func (r *keptRow) appendTo(b []byte, t *RTTTable, siteOf func(uint16) (int, bool), moment RTTMoment) []byte {
	if _, last := r.row.Methods(); r.unasked && last != RTTPassive {
		return b
	}
	b = append(b, `{"network":"`...)
	b = append(t.Key(join128(r.hi, r.lo).Unmap()).AppendTo(b), `","values":[`...)
	empty := true
	for i := range r.row.history {
		v, point := &r.row.history[i], r.row.points[i]
		age := time.Duration(moment - v.newest)
		site, ok := siteOf(point.site())
		if !ok || age >= keepFor {
			continue
		}
		if !empty {
			b = append(b, ',')
		}
		empty = false
		b = strconv.AppendInt(append(b, `{"site":`...), int64(site), 10)
		b = append(append(append(b, `,"method":"`...), point.method().String()...), `","age_ms":`...)
		b = append(strconv.AppendInt(b, max(age, 0).Milliseconds(), 10), `,"us":[`...)
		for j, us := range v.samples[:v.n] {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(us), 10)
		}
		b = append(b, ']')
		for _, f := range []struct {
			name  string
			value int64
			given bool
		}{
			{"level_us", int64(v.level), v.level != 0},
			{"before_us", int64(v.before), v.before > 0},
			{"shift_ms", int64(moment.seconds()-v.shifted) * 1000, v.before > 0 && moment.seconds() != v.shifted},
			{"lost", int64(v.lost), v.lost != 0},
		} {
			if f.given {
				b = strconv.AppendInt(append(append(append(b, `,"`...), f.name...), `":`...), f.value, 10)
			}
		}
		b = append(b, '}')
	}
	if empty {
		return b[:0]
	}
	b = append(b, ']')
	if r.unasked {
		b = append(b, `,"unasked":true`...)
	}
	return append(b, '}')
}

// restore puts kept round trips back, older by the time since they were written.
func (t *RTTTable) restore(f *fileRTT, sites map[string]*site, now time.Time) {
	since := max(now.Sub(f.Written), 0)
	for _, row := range f.Rows {
		if t.Key(row.Network.Addr()) != row.Network {
			continue // of other prefix lengths
		}
		asked, quota := f.Written, 0
		if row.Unasked {
			asked, quota = time.Time{}, t.max
		}
		for _, v := range row.Values {
			if v.Site < 0 || v.Site >= len(f.Sites) || v.AgeMs < 0 || v.AgeMs > keepFor.Milliseconds() {
				continue
			}
			st := sites[f.Sites[v.Site]]
			method, ok := ParseRTTMethod(v.Method)
			if st == nil || !ok {
				continue
			}
			h, ok := v.history(t.Moment(now.Add(-since)))
			if !ok {
				continue
			}
			if method != RTTPassive {
				h.lost = max(h.lost, 1)
			}
			series := makePoint(method, st.id, 0).series()
			t.change(st.id, row.Network.Addr(), asked, quota, func(r *RTTRow) *RTTRow { return r.put(series, h, t.epoch) })
		}
	}
}

// history returns what was written at the moment. It fails where there is no sample, or too many.
func (v *fileValue) history(written RTTMoment) (h *rttHistory, ok bool) {
	if len(v.Samples) == 0 || len(v.Samples) > rttSamples || slices.Contains(v.Samples, 0) {
		return nil, false
	}
	h = &rttHistory{
		newest: written - RTTMoment(time.Duration(v.AgeMs)*time.Millisecond),
		level:  time32(v.Level), lost: v.Lost, n: uint8(len(v.Samples)),
	}
	h.tried = h.newest.seconds()
	for i, us := range v.Samples {
		h.samples[i] = time32(us)
	}
	if v.Before > 0 && v.ShiftMs >= 0 && v.ShiftMs/1000 < math.MaxInt32/2 {
		h.before, h.shifted = time32(v.Before), written.seconds()-int32(v.ShiftMs/1000)
	}
	return h, true
}
