package state_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"gslbd/state"
)

// A world is a Store to which everything happens that a service's state depends on.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	dir    string
	c      *state.Config
	r      *rig
	forced map[string]state.Force // by service and member
	latch  map[string]state.Latch
	orders state.Orders
	said   [worldSites][3]*state.Report // last, by site and agent
	found  map[string]state.CheckResult // last, by service, member and family
}

const worldServices, worldSites = 12, 4

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 5)), c: large(worldSites, worldServices),
		forced: map[string]state.Force{}, latch: map[string]state.Latch{}, found: map[string]state.CheckResult{},
	}
	if seed%2 == 0 { // else a restart forgets all
		w.dir = keptIn(t)
	}
	for i := range w.c.Sites {
		w.c.Sites[i].ShedFrom = []float64{0, 0.5}[i%2]
	}
	for i := range w.c.Services {
		svc := &w.c.Services[i]
		svc.OnDead = []state.OnDead{state.DeadCheck, state.DeadKeep, state.DeadDown}[i%3]
		svc.Failback, svc.FailbackDelay = []state.Failback{state.FailbackAuto, state.FailbackDelay, state.FailbackManual}[i/2%3], 30*time.Second
		svc.UnknownUp, svc.SlowStart = i%5 > 1, time.Duration(i%2)*time.Minute
		svc.FailoverRatio = []float64{0.5, 0, 1}[i%3]
		svc.HasCheck = seed%3 < 2 && i%2 == 0
		svc.LastResort = []netip.Addr{svc.Members[0].Addresses[state.V4], addr("192.0.2.1")}
		if i%4 == 3 {
			svc.Members[0].VirtualServers = []string{svc.Name, "extra"}[:1+i/4%2]
		}
		if i%6 == 5 {
			svc.Members[1].Addresses[state.V6] = netip.Addr{}
		}
	}
	w.orders.Force = func(service, member, _, _ string) state.Force { return w.forced[service+member] }
	w.orders.Latch = func(service string) state.Latch { return w.latch[service] }
	w.r = startIn(t, w.c, w.dir)
	return w
}

func (w *world) pause() {
	time.Sleep([]time.Duration{0, 10 * time.Millisecond, time.Second, time.Second, 4 * time.Second, 16 * time.Second, 61 * time.Second}[w.rnd.IntN(7)])
}

// happen lets something happen, and time pass.
func (w *world) happen() string {
	rnd := w.rnd
	svc := &w.c.Services[rnd.IntN(len(w.c.Services))]
	member := svc.Members[rnd.IntN(len(svc.Members))].Name
	defer w.pause()
	switch rnd.IntN(48) {
	case 0, 1, 2:
		w.forced[svc.Name+member] = state.Force{Forced: state.Forced(rnd.IntN(5)), Why: fmt.Sprint(rnd.IntN(3))}
		return "an order"
	case 3, 4:
		w.forced[svc.Name+member] = state.Force{Stages: []state.Stage{{Order: 1, Share: float64(1+rnd.IntN(3)) / 4}}}
		return "a staged order"
	case 5, 6:
		w.latch[svc.Name] = state.Latch{ID: []string{"", "a", "b"}[rnd.IntN(3)], Failback: []string{"", "", "x", "y"}[rnd.IntN(4)]}
		return "a latch"
	case 7:
		clear(w.forced)
		return "orders cleared"
	case 8, 9, 10, 11, 12, 13, 14, 15:
		w.check()
		return "a check"
	case 16:
		w.silence()
		return "silence"
	case 17:
		w.r.stop()
		w.pause()
		w.r = startIn(w.t, w.c, w.dir)
		if rnd.IntN(2) == 0 { // what was said before is said again
			w.pause()
			w.again()
			w.pause()
			w.r.s.SetOrders(w.orders)
			w.report(rnd.IntN(worldSites), 0, up, true)
		} else {
			w.said = [worldSites][3]*state.Report{}
		}
		return "a restart"
	case 18, 19:
		return "a reload: " + w.reload()
	case 20:
		for i := range 8 { // which damps
			w.report(rnd.IntN(worldSites), 0, []state.ServerState{up, down}[i%2], false)
			w.r.settle()
		}
		return "flaps"
	case 21:
		for st := range worldSites {
			w.report(st, 0, up, true)
		}
		return "reports of all sites"
	case 22:
		time.Sleep(5 * time.Minute)
		return "nothing for long"
	case 23, 24, 25:
		w.again()
		return "checks again"
	}
	w.report(rnd.IntN(worldSites), []int{0, 0, 0, 1, 2}[rnd.IntN(5)], []state.ServerState{up, up, down, maint, state.ServerDrain, state.ServerUnknown}[rnd.IntN(6)], rnd.IntN(3) == 0)
	return "a report"
}

// check lets one own check run, which finds something like the last time or something else.
func (w *world) check() {
	rnd := w.rnd
	var checked []*state.ServiceConfig
	for i := range w.c.Services {
		if w.c.Services[i].HasCheck {
			checked = append(checked, &w.c.Services[i])
		}
	}
	if len(checked) == 0 {
		return
	}
	svc := checked[rnd.IntN(len(checked))]
	m, f := svc.Members[rnd.IntN(len(svc.Members))].Name, state.Family(rnd.IntN(2))
	r, ok := w.found[fmt.Sprint(svc.Name, m, f)]
	if !ok || rnd.IntN(2) == 0 {
		r = state.CheckResult{Service: svc.Name, Member: m, Family: f, Up: rnd.IntN(2) == 0, Unreachable: rnd.IntN(2) == 0, Unrunnable: rnd.IntN(8) == 0}
	}
	if rnd.IntN(2) == 0 {
		r.Err = []string{"", "refused", "timeout"}[rnd.IntN(3)]
	}
	if r.Up {
		r.Latency = time.Duration(rnd.IntN(3)) * time.Millisecond
	}
	w.find(r)
}

func (w *world) find(r state.CheckResult) {
	w.found[fmt.Sprint(r.Service, r.Member, r.Family)] = r
	w.r.s.Check(r)
}

// again lets all own checks run, with the results that they had.
func (w *world) again() {
	w.each(func(service, member string, f state.Family) {
		if r, ok := w.found[fmt.Sprint(service, member, f)]; ok {
			w.r.s.Check(r)
		}
	})
}

// checks lets all own checks run, of which failing ones fail by err.
func (w *world) checks(up func() bool, err string) {
	w.each(func(service, member string, f state.Family) {
		r := state.CheckResult{Service: service, Member: member, Family: f, Up: up()}
		if !r.Up {
			r.Err, r.Unreachable = err, err == "timeout"
		}
		w.find(r)
	})
}

func (w *world) each(visit func(service, member string, f state.Family)) {
	for i := range w.c.Services {
		for _, m := range w.c.Services[i].Members {
			for f := range m.Addresses {
				visit(w.c.Services[i].Name, m.Name, state.Family(f))
			}
		}
	}
}

// report has an agent say something else, or the same as before.
func (w *world) report(st, agent int, servers state.ServerState, again bool) {
	rep := w.said[st][agent]
	if rep == nil || !again {
		rep = reportOf(w.c, w.c.Sites[st].Name, servers)
		rep.Agent = []string{"", "b", "c"}[agent]
		if w.rnd.IntN(4) == 0 {
			rep.VirtualServers = rep.VirtualServers[:w.rnd.IntN(len(rep.VirtualServers)+1)]
		}
		if w.rnd.IntN(3) == 0 { // each virtual server has its own
			for i := range rep.VirtualServers {
				rep.VirtualServers[i].Servers[0].State = state.ServerState(w.rnd.IntN(5))
				rep.VirtualServers[i].Servers[1].State = []state.ServerState{up, up, state.ServerUnknown}[w.rnd.IntN(3)]
			}
		}
		if w.rnd.IntN(2) == 0 {
			rep.VirtualServers = append(rep.VirtualServers, state.VirtualServer{Name: "extra", Servers: []state.Server{{Name: "x", State: servers}}})
		}
	}
	rep.Sessions = uint64(w.rnd.IntN(1500))
	w.said[st][agent] = rep
	w.r.report(rep)
}

// silence makes the Store blind, mostly: no site reports until all are dead, and then some of what told of members tells
// the same again.
func (w *world) silence() {
	never, maybe := func() bool { return false }, func() bool { return w.rnd.IntN(2) == 0 }
	why := []string{"timeout", "refused"}[w.rnd.IntN(2)]
	for st := range worldSites {
		w.report(st, 0, up, false)
		time.Sleep(2 * time.Second)
	}
	if maybe() {
		time.Sleep(20 * time.Second)
		w.checks(never, why)
		time.Sleep(34 * time.Second)
	} else { // when the first is dead and the last is not
		w.checks(func() bool { return true }, "")
		time.Sleep(54 * time.Second)
		w.checks(never, why)
	}
	time.Sleep(30 * time.Second)
	if maybe() {
		w.pause()
	}
	switch w.rnd.IntN(3) {
	case 0:
		w.checks(maybe, why)
	case 1:
		w.report(w.rnd.IntN(worldSites), 0, []state.ServerState{up, down}[w.rnd.IntN(2)], maybe())
	}
	w.r.settle()
	switch w.rnd.IntN(3) {
	case 0:
		w.again()
	case 1:
		w.checks(maybe, why)
	}
}

// reload changes something of the configuration.
func (w *world) reload() string {
	rnd := w.rnd
	svc := &w.c.Services[rnd.IntN(len(w.c.Services))]
	m := &svc.Members[rnd.IntN(len(svc.Members))]
	defer func() { w.r.s.Configure(w.c) }()
	switch rnd.IntN(9) {
	case 0:
		m.Name += "x"
		return "a member of another name"
	case 1:
		svc.Name = "x" + svc.Name
		return "a service of another name"
	case 2:
		m.Addresses[state.V4] = network(1<<17 + rnd.IntN(1<<16))
		return "another address"
	case 3:
		m.Role = 1 - m.Role
		return "another role"
	case 4:
		svc.HasCheck = !svc.HasCheck
		return "another check"
	case 5:
		w.c.Services[0], w.c.Services[len(w.c.Services)-1] = w.c.Services[len(w.c.Services)-1], w.c.Services[0]
		return "another order"
	case 6:
		m.Site = w.c.Sites[rnd.IntN(worldSites)].Name
		return "another site"
	case 7:
		svc.Failback, svc.FailbackDelay = state.Failback(rnd.IntN(3)), time.Duration(rnd.IntN(90))*time.Second
		return "another failback"
	}
	svc.OnDead, svc.UnknownUp, svc.MinHealthy.Count = state.OnDead(rnd.IntN(3)), !svc.UnknownUp, rnd.IntN(3)
	return "other health"
}
