package sitereport

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"gslbd/state"
)

const (
	defaultDeadAfter = time.Minute    // of a gslbd whose answer does not say
	maxDeadAfter     = time.Hour      // bounds of what an answer may say
	maxDeadline      = 24 * time.Hour //
	drainAgain       = time.Minute    // after servers could not be set to drain
	quietFor         = time.Minute    // longer than gslbd that start again may take to find what they ask for
	maxHeldBack      = 20             // warnings of a report
	offInFile        = "draining is off in the agent's file"
)

// A drainer does at the SLB what gslbd ask for, and only what enough of them agree on (docs/agent.md): every gslbd that
// was reached within its dead_after, and these are more than half of those configured.
//
// Servers are told of in a report before they are set to drain, so that gslbd know what to restore whenever the agent
// dies; a new agent knows nothing of what the one before did, and need not.
type drainer struct {
	// Fixed at construction.
	enabled bool
	log     *zap.Logger
	actors  []Actor

	mu    sync.Mutex
	views []view // guarded by mu: by peer
	// pending are the virtual servers that a gslbd was seen to leave and about whose sessions nothing is decided yet.
	// Guarded by mu.
	pending map[string]bool

	// Owned by Agent.Run.
	servers map[string][]Server             // by virtual server, as last read
	planned map[string]map[string]uint64    // servers to be set to drain, with the sequence of the report that first told of them
	drained map[string]map[string]bool      // servers that were
	notOurs map[string]map[string]time.Time // servers in drain that no evacuation drained, and since when; see findNotOurs
	failed  map[string]failure              // virtual servers whose servers could not be
	undone  map[string]string               // why sessions were not ended, by virtual server
	notes   []string                        // of this round: what is held back, and why
	said    map[string]bool                 // those of the last round
}

type failure struct {
	until time.Time
	why   string
}

// A view is what one gslbd last answered. Its maps are not changed once they are in it.
type view struct {
	name      string
	at        time.Time // of the answer; zero: none yet
	deadAfter time.Duration
	sequence  uint64 // of the report that it answers
	services  map[string]use
	drain     map[string]bool
	restore   map[string]map[string]bool
}

// A use says what services do with a virtual server.
type use struct {
	active   []string  // the services that use it
	draining bool      // no service is active, and one still waits
	deadline time.Time // of the last that waits, or waited; zero: it never was seen to
}

func newDrainer(opts *AgentOptions, peers []string) *drainer {
	d := &drainer{
		enabled: opts.Draining, log: opts.Log, views: make([]view, len(peers)),
		pending: make(map[string]bool), servers: make(map[string][]Server), planned: make(map[string]map[string]uint64),
		drained: make(map[string]map[string]bool), failed: make(map[string]failure), undone: make(map[string]string),
	}
	for i, name := range peers {
		d.views[i].name = name
	}
	for _, r := range opts.Readers {
		if a, ok := r.(Actor); ok {
			d.actors = append(d.actors, a)
		}
	}
	return d
}

// observe takes in an answer of a peer to the report with that sequence.
func (d *drainer) observe(peer int, now time.Time, sequence uint64, answer *Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.views[peer]
	v := view{
		name: before.name, at: now, deadAfter: defaultDeadAfter, sequence: sequence,
		services: make(map[string]use), drain: make(map[string]bool), restore: make(map[string]map[string]bool),
	}
	if ms := answer.DeadAfterMS; ms > 0 {
		v.deadAfter = time.Duration(min(ms, maxDeadAfter.Milliseconds())) * time.Millisecond
	}
	type at struct{ service, virtual string }
	named := make(map[at]bool)
	for _, s := range answer.Services {
		for _, name := range s.VirtualServers {
			named[at{s.Name, name}] = true
			u := v.services[name]
			switch s.State {
			case ServiceDraining:
				u.draining = true
				if ms := min(s.DeadlineMS, maxDeadline.Milliseconds()); ms > 0 {
					if at := now.Add(time.Duration(ms) * time.Millisecond); at.After(u.deadline) {
						u.deadline = at
					}
				}
			case ServiceInactive:
			default: // what is not understood has not left
				u.active = append(u.active, s.Name)
			}
			v.services[name] = u
		}
	}
	for name, u := range v.services {
		was := before.services[name]
		switch {
		case len(u.active) > 0:
			u.draining, u.deadline = false, time.Time{}
		case u.deadline.IsZero() && !was.deadline.IsZero():
			u.deadline = was.deadline
		case u.deadline.IsZero() && u.draining:
			u.deadline = now
		}
		v.services[name] = u
		// A service that is no longer configured has not moved, and nobody knows how long its sessions may stay.
		removed := func(service string) bool { return !named[at{service, name}] }
		if len(was.active) > 0 && u.draining && !slices.ContainsFunc(was.active, removed) {
			d.pending[name] = true
		}
	}
	for _, name := range answer.Drain {
		v.drain[name] = true
	}
	for _, r := range answer.Restore {
		if v.restore[r.VirtualServer] == nil {
			v.restore[r.VirtualServer] = make(map[string]bool, len(r.Servers))
		}
		for _, server := range r.Servers {
			v.restore[r.VirtualServer][server] = true
		}
	}
	d.views[peer] = v
}

// reached returns the views that count now, and the pending virtual servers.
func (d *drainer) reached(now time.Time) (views []view, pending []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.views {
		if !v.at.IsZero() && now.Sub(v.at) < v.deadAfter {
			views = append(views, v)
		}
	}
	return views, slices.Sorted(maps.Keys(d.pending))
}

// decided takes virtual servers out of pending.
func (d *drainer) decided(names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.pending, name)
	}
}

// objection returns why what is to be done may not be, or "". objects returns what speaks against it in one view.
func (d *drainer) objection(views []view, objects func(v *view) string) string {
	if why := disagreement(views, objects); why != "" {
		return why
	}
	return d.tooFew(views)
}

func disagreement(views []view, objects func(v *view) string) string {
	for i := range views {
		if why := objects(&views[i]); why != "" {
			return fmt.Sprintf("no agreement, gslbd %s %s", views[i].name, why)
		}
	}
	return ""
}

// tooFew returns why the views are not those of more than half of the gslbd, or "".
func (d *drainer) tooFew(views []view) string {
	if 2*len(views) <= len(d.views) {
		return fmt.Sprintf("%d of %d gslbd answered lately, and more than half must agree", len(views), len(d.views))
	}
	return ""
}

// note says what is held back in this round.
func (d *drainer) note(format string, args ...any) {
	d.notes = append(d.notes, printable(fmt.Sprintf(format, args...), MaxReason))
}

// actor returns who acts on the virtual server, and the virtual servers that share its servers. It is nil for a virtual
// server that nobody can act on.
func (d *drainer) actor(name string) (Actor, []string) {
	for _, a := range d.actors {
		if group := a.Shares(name); len(group) > 0 {
			return a, group
		}
	}
	return nil, nil
}

// act does what was decided and agreed on. It comes before the readers, so that the report tells what came of it. What there is
// no time for waits for the next report.
func (d *drainer) act(ctx context.Context) {
	now := time.Now()
	views, pending := d.reached(now)
	for _, name := range pending {
		if ctx.Err() != nil {
			return
		}
		d.endSessions(ctx, now, views, name)
	}
	for name := range d.undone {
		if activeInAll(views, name) {
			delete(d.undone, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.planned)) {
		if ctx.Err() != nil {
			return
		}
		d.drain(ctx, now, views, name)
	}
	asked := make(map[string]bool)
	for i := range views {
		for name := range views[i].restore {
			asked[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if ctx.Err() != nil {
			return
		}
		d.restore(ctx, views, name)
	}
}

// activeInAll says whether every gslbd that was reached has an active service at the virtual server.
func activeInAll(views []view, name string) bool {
	return len(views) > 0 && !slices.ContainsFunc(views, func(v view) bool { return len(v.services[name].active) == 0 })
}

// endSessions decides about the sessions of a virtual server that is pending.
func (d *drainer) endSessions(ctx context.Context, now time.Time, views []view, name string) {
	undone := func(why string) {
		d.undone[name] = fmt.Sprintf("the sessions of virtual server %q are not ended: %s", name, why)
		d.decided(name)
	}
	delete(d.undone, name)
	if _, here := d.servers[name]; !here {
		d.decided(name)
		return
	}
	if !d.enabled {
		undone(offInFile)
		return
	}
	actor, group := d.actor(name)
	if actor == nil {
		undone("the agent only checks its servers, and has no load balancer to end them at")
		return
	}
	var deadline time.Time
	for _, v := range views {
		for _, other := range group {
			if at := v.services[other].deadline; at.After(deadline) {
				deadline = at
			}
		}
	}
	if activeInAll(views, name) {
		d.log.Info("service came back, sessions stay", zap.String("virtual_server", name))
		d.decided(name)
		return
	}
	// What counts is what each says once the deadline has passed. One that has fallen silent is waited for until it
	// counts as not reached. When none is reached, nobody says when the deadline passes.
	if len(views) == 0 || now.Before(deadline) || slices.ContainsFunc(views, func(v view) bool { return v.at.Before(deadline) }) {
		return
	}
	if why := disagreement(views, func(v *view) string {
		for _, other := range group {
			switch u, named := v.services[other]; {
			case !named:
				return fmt.Sprintf("knows of no service that left virtual server %q", other)
			case len(u.active) > 0:
				return fmt.Sprintf("has an active service at virtual server %q", other)
			}
		}
		return ""
	}); why != "" {
		undone(why)
		return
	}
	if why := d.tooFew(views); why != "" {
		d.note("the sessions of virtual server %q are not ended: %s", name, why)
		return // and waited for
	}
	if err := actor.EndSessions(ctx, name); err != nil {
		d.note("the sessions of virtual server %q are not ended: %v", name, err)
		return // and tried again
	}
	d.log.Info("sessions ended", zap.String("virtual_server", name), zap.Strings("with", group))
	d.decided(group...)
}

// mayDrain returns why the servers of the group may not be set to drain.
func (d *drainer) mayDrain(views []view, group []string) string {
	return d.objection(views, func(v *view) string {
		for _, other := range group {
			switch {
			case len(v.restore[other]) > 0:
				return fmt.Sprintf("asks to restore virtual server %q", other)
			case !v.drain[other]:
				return fmt.Sprintf("does not ask to drain virtual server %q", other)
			}
		}
		return ""
	})
}

// drain sets the planned servers to drain that enough gslbd have been told of.
func (d *drainer) drain(ctx context.Context, now time.Time, views []view, name string) {
	actor, group := d.actor(name)
	if actor == nil || d.mayDrain(views, group) != "" {
		return // plan says why
	}
	var servers []string
	for server, sequence := range d.planned[name] {
		told := 0
		for _, v := range views {
			if v.sequence >= sequence {
				told++
			}
		}
		if 2*told > len(d.views) {
			servers = append(servers, server)
		}
	}
	if len(servers) == 0 {
		return
	}
	slices.Sort(servers)
	changed, err := actor.Drain(ctx, name, servers)
	for _, server := range changed { // what was not set after all, keepDrained forgets
		if d.drained[name] == nil {
			d.drained[name] = make(map[string]bool)
		}
		d.drained[name][server] = true
	}
	if err != nil {
		d.failed[name] = failure{now.Add(drainAgain), err.Error()}
		return
	}
	if len(changed) > 0 {
		d.log.Warn("servers set to drain", zap.String("virtual_server", name), zap.Strings("servers", changed))
	}
}

// restore sets servers back that are in drain.
func (d *drainer) restore(ctx context.Context, views []view, name string) {
	var servers []string // that all agree on
	wanted := false
	for _, s := range d.servers[name] {
		if _, kept := d.notOurs[name][s.Name]; kept || s.State != StateDrain {
			continue
		}
		missing := false
		for _, v := range views {
			asks := v.restore[name][s.Name]
			wanted, missing = wanted || asks, missing || !asks
		}
		if !missing {
			servers = append(servers, s.Name)
		}
	}
	if !wanted {
		return // what is to be restored is out of drain already, or never was here
	}
	if !d.enabled {
		d.note("servers of virtual server %q are not set back to ready: %s", name, offInFile)
		return
	}
	actor, group := d.actor(name)
	if actor == nil {
		d.note("servers of virtual server %q are not set back to ready: the agent only checks them", name)
		return
	}
	why := d.objection(views, func(v *view) string {
		for _, other := range group {
			if v.drain[other] {
				return fmt.Sprintf("asks to drain virtual server %q", other)
			}
		}
		if len(v.restore[name]) == 0 {
			return "does not ask for it"
		}
		return ""
	})
	if why == "" && len(servers) == 0 {
		why = "gslbd name different servers"
	}
	if why != "" {
		d.note("servers of virtual server %q are not set back to ready: %s", name, why)
		return
	}
	changed, err := actor.Ready(ctx, name, servers)
	if err != nil {
		d.note("servers of virtual server %q are not set back to ready: %v", name, err)
		return
	}
	if len(changed) > 0 {
		d.log.Info("servers set back to ready", zap.String("virtual_server", name), zap.Strings("servers", changed))
	}
	slices.Sort(changed)
	for _, server := range servers {
		if _, found := slices.BinarySearch(changed, server); !found { // out of drain meanwhile, which findNotOurs sees, or not by us
			if d.notOurs[name] == nil {
				d.notOurs[name] = make(map[string]time.Time)
			}
			d.notOurs[name][server] = time.Time{}
			delete(d.drained[name], server)
		}
	}
}

// plan takes in what was read and decides which servers are to be set to drain once this report has been taken. It fills
// in what the report tells of draining.
func (d *drainer) plan(ctx context.Context, r *round) {
	now := time.Now()
	views, _ := d.reached(now)
	d.servers = make(map[string][]Server, len(r.servers))
	for _, v := range r.servers {
		d.servers[v.Name] = v.Servers
	}
	before, notOurs := d.planned, d.notOurs
	d.planned, d.notOurs = make(map[string]map[string]uint64), make(map[string]map[string]time.Time)
	permitted := make(map[Actor]error)
	for _, v := range r.servers {
		d.keepDrained(v.Name, v.Servers, views)
		d.findNotOurs(now, v.Name, v.Servers, views, notOurs[v.Name])
		if !slices.ContainsFunc(views, func(w view) bool { return w.drain[v.Name] }) {
			continue
		}
		var up []string
		for _, s := range v.Servers {
			if s.State == StateUp {
				up = append(up, s.Name)
			}
		}
		if len(up) == 0 {
			continue
		}
		if why := d.holdsBack(ctx, now, views, v.Name, permitted); why != "" {
			d.note("servers of virtual server %q are not set to drain: %s", v.Name, why)
			continue
		}
		d.planned[v.Name] = make(map[string]uint64, len(up))
		for _, server := range up {
			sequence, known := before[v.Name][server]
			if !known {
				sequence = r.sequence
			}
			d.planned[v.Name][server] = sequence
		}
	}
	r.drained = d.tell()
	warnings, heldBack := d.warnings()
	r.warnings, r.heldBack = append(r.warnings, warnings...), heldBack
}

// holdsBack returns why the servers of a virtual server are not to be set to drain, or "".
func (d *drainer) holdsBack(ctx context.Context, now time.Time, views []view, name string, permitted map[Actor]error) string {
	if !d.enabled {
		return offInFile
	}
	actor, group := d.actor(name)
	if actor == nil {
		return "the agent only checks them, and has no load balancer to do it at"
	}
	if why := d.mayDrain(views, group); why != "" {
		return why
	}
	if f, ok := d.failed[name]; ok && now.Before(f.until) {
		return f.why
	}
	delete(d.failed, name)
	err, asked := permitted[actor]
	if !asked {
		err = actor.May(ctx)
		permitted[actor] = err
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// keepDrained forgets the servers of a virtual server that are out of drain. Those that cannot be read now are kept, and
// so are those that nobody asks for any more: whoever lost the order may have lost it by a fault, and to send clients to
// servers of a zone that was being left is worse than to leave them out.
func (d *drainer) keepDrained(name string, servers []Server, views []view) {
	drained := d.drained[name]
	if len(drained) == 0 {
		return
	}
	still := make(map[string]bool, len(servers))
	for _, s := range servers {
		still[s.Name] = s.State == StateDrain || s.State == StateUnknown
	}
	maps.DeleteFunc(drained, func(server string, _ bool) bool { return len(servers) > 0 && !still[server] })
	if len(drained) == 0 {
		delete(d.drained, name)
		return
	}
	if len(views) > 0 && !slices.ContainsFunc(views, func(v view) bool { return v.drain[name] || len(v.restore[name]) > 0 }) {
		d.note("virtual server %q has servers in drain that no gslbd asks for any more; set them to ready by hand: %s",
			name, list(slices.Collect(maps.Keys(drained))))
	}
}

// findNotOurs finds the servers of a virtual server that were in drain for quietFor while enough gslbd answered and none asked
// for anything: whoever did that, an evacuation that comes later did not. gslbd do not know which agent of a site drained
// a server, and may ask to restore one here that only the other agent drained. restore adds those that stand aside by their
// own word. All are reported as in maintenance while a restoration asks for them, which is what it passes over, or it
// would never end.
func (d *drainer) findNotOurs(now time.Time, name string, servers []Server, views []view, before map[string]time.Time) {
	quiet := d.tooFew(views) == "" && !slices.ContainsFunc(views, func(v view) bool { return v.drain[name] || len(v.restore[name]) > 0 })
	notOurs := make(map[string]time.Time)
	for i := range servers {
		s := &servers[i]
		since, known := before[s.Name]
		switch {
		case s.State != StateDrain && s.State != StateUnknown:
			continue
		case known && (quiet || now.Sub(since) >= quietFor):
			notOurs[s.Name] = since
		case s.State == StateDrain && quiet && !d.drained[name][s.Name]:
			notOurs[s.Name] = now
		default:
			continue
		}
		if s.State == StateDrain && slices.ContainsFunc(views, func(v view) bool { return v.restore[name][s.Name] }) {
			s.State, s.Reason = StateMaint, "in drain, but not by the evacuation"
		}
	}
	if len(notOurs) > 0 {
		d.notOurs[name] = notOurs
	}
}

// tell returns the servers that are drained, and those that are planned to be.
func (d *drainer) tell() (all []state.DrainedServers) {
	names := make(map[string]map[string]bool)
	add := func(name, server string) {
		if names[name] == nil {
			names[name] = make(map[string]bool)
		}
		names[name][server] = true
	}
	for name, servers := range d.drained {
		for server := range servers {
			add(name, server)
		}
	}
	for name, servers := range d.planned {
		for server := range servers {
			add(name, server)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, state.DrainedServers{VirtualServer: name, Servers: slices.Sorted(maps.Keys(names[name]))})
	}
	return all
}

// warnings ends the round: it returns what is held back and how much that is, and logs what was not in the last round.
func (d *drainer) warnings() (all []string, heldBack int) {
	for _, name := range slices.Sorted(maps.Keys(d.undone)) {
		d.note("%s", d.undone[name])
	}
	said := make(map[string]bool, len(d.notes))
	var news []string
	for _, text := range d.notes {
		said[text] = true
		if !d.said[text] {
			news = append(news, text)
		}
	}
	if len(news) > 0 {
		d.log.Warn("held back", zap.String("why", strings.Join(news[:min(len(news), maxLogged)], "; ")), zap.Int("reasons", len(news)))
	}
	all, heldBack = d.notes, len(d.notes)
	d.said, d.notes = said, nil
	if len(all) > maxHeldBack {
		all = append(all[:maxHeldBack:maxHeldBack], fmt.Sprintf("and %d more", len(all)-maxHeldBack))
	}
	return all, heldBack
}
