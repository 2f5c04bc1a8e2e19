package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"gslbd/state"
)

// A world is what an evacuation changes: the servers behind the SLBs of sites, with an agent that does what the answers
// to its reports say, and the resources of the operator's program. It outlives the gslbd that are opened on it.
type world struct {
	t         *testing.T
	servers   map[string]string   // state, by SITE/VIRTUAL SERVER/NAME
	ours      map[string]bool     // that the agent has drained
	silent    map[string]bool     // sites that do not report
	handedOut *state.MemberCounts // of all members; nil: nothing is known
	// stubborn agents drain nothing, since their file forbids it
	stubborn bool
	dir      string // of the program's resources: a file each, with zone and state
	program  []string
}

// The program keeps a file for each resource. It refuses everything while there is a file "broken" beside them, and
// breaks off in the middle of a change while there is a file "half".
const fleetProgram = `
cd "$1" || exit 9
[ -e ../broken ] && { echo "the API is down" >&2; exit 4; }
case $2 in
list)
	sep='['
	for f in *; do
		[ -e "$f" ] || continue
		read -r zone state <"$f"
		printf '%s{"id":"%s","zone":"%s","state":"%s"}' "$sep" "$f" "$zone" "$state"
		sep=','
	done
	[ "$sep" = '[' ] && printf '['
	echo ']';;
remove|add)
	echo "$2" >>../runs
	while [ -e ../wait ]; do sleep 0.02; done
	tr '{' '\n' | sed -n 's/.*"id":"\([^"]*\)","zone":"\([^"]*\)","state":"\([^"]*\)".*/\1 \2 \3/p' |
	while read -r id zone state; do
		[ "$2" = remove ] && state=removed
		echo "$zone $state" >"$id"
		[ -e ../half ] && exit 7
		:
	done;;
*) exit 2;;
esac
`

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, ours: map[string]bool{}, silent: map[string]bool{}, dir: filepath.Join(t.TempDir(), "fleet"),
		servers: map[string]string{
			"seoul/web/s1": "up", "seoul/web/s2": "up", "seoul/web/s3": "down", "seoul/api/s4": "up",
			"busan/web/s5": "up", "virginia/web/s6": "up", "virginia/api/s7": "up",
		},
	}
	w.program = script(t, fleetProgram, w.dir)
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for id, s := range map[string]string{"asg-1": "ap-northeast-2a in", "asg-2": "apne2-az1 in:3", "asg-3": "use1-az1 in", "asg-4": "apne2-az1 removed"} {
		w.resource(id, s)
	}
	return w
}

func (w *world) resource(id, content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, id), []byte(content+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// flag sets or clears a file that the program looks for.
func (w *world) flag(name string, on bool) {
	w.t.Helper()
	path := filepath.Join(filepath.Dir(w.dir), name)
	_ = os.Remove(path)
	if on {
		write(w.t, path, nil)
	}
}

// runs returns the changes that the program was asked for.
func (w *world) runs() string {
	b, _ := os.ReadFile(filepath.Join(filepath.Dir(w.dir), "runs"))
	return strings.Join(strings.Fields(string(b)), " ")
}

// String returns all that the world has, to be compared.
func (w *world) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(w.servers)) {
		all = append(all, name+"="+w.servers[name])
	}
	files, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(w.dir, f.Name()))
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, f.Name()+"="+strings.TrimSpace(string(b)))
	}
	return strings.Join(all, "\n")
}

func (w *world) config() Config {
	cfg := fleetConfig
	cfg.ReportInterval = 5 * time.Second
	cfg.Exec = ExecConfig{Command: w.program, Timeout: 30 * time.Second}
	return cfg
}

// open opens a gslbd on a directory.
func (w *world) open(dir string) *Control {
	w.t.Helper()
	c := New(Options{Directory: dir, Node: "gslb1", Store: fleetStore(w.t), Config: w.config()})
	if p := c.Problems(); len(p) > 0 {
		w.t.Fatal(p)
	}
	return c
}

// view is the control's view of the world, into which the agents have just reported.
func (w *world) view(c *Control) *view {
	v := c.view(c.now())
	snap := *v.snap
	snap.Sites, snap.Services = nil, nil
	sites := map[string]*state.Site{}
	for _, s := range v.snap.Sites {
		out := *s
		out.Freshness, out.ReportAt, out.Agent = state.Fresh, v.now, "lb1"
		if w.stubborn {
			out.Warnings = []string{"virtual server \"x\" matches no member", "draining is off in the agent's file"}
		}
		drained, inDrain := map[string][]string{}, map[string][]string{}
		for _, name := range slices.Sorted(maps.Keys(w.servers)) {
			f := strings.Split(name, "/")
			if f[0] != s.Name {
				continue
			}
			if !slices.Contains(out.Listed, f[1]) {
				out.Listed = append(out.Listed, f[1])
			}
			if w.ours[name] {
				drained[f[1]] = append(drained[f[1]], f[2])
			}
			if w.servers[name] == "drain" {
				inDrain[f[1]] = append(inDrain[f[1]], f[2])
			}
		}
		for vs, names := range drained {
			out.Drained = append(out.Drained, state.DrainedServers{VirtualServer: vs, Servers: names})
		}
		for vs, names := range inDrain {
			out.InDrain = append(out.InDrain, state.DrainedServers{VirtualServer: vs, Servers: names})
		}
		if w.silent[s.Name] {
			out.Freshness, out.Drained, out.InDrain = state.Dead, nil, nil
		}
		sites[s.Name] = &out
		snap.Sites = append(snap.Sites, &out)
	}
	for _, svc := range v.snap.Services {
		out := *svc
		out.Members, out.MinServing = nil, 1
		vs := strings.TrimSuffix(map[string]string{"www.example.com": "web/", "api.example.com": "api/"}[svc.Name], "/")
		for _, m := range svc.Members {
			mb := *m
			mb.Site, mb.MemberCounts = sites[m.Site.Name].SiteInfo, w.handedOut
			for name, st := range w.servers {
				if strings.HasPrefix(name, mb.Site.Name+"/"+vs+"/") {
					mb.HasServers = true
					if st == "up" {
						mb.ServersUp++
					}
				}
			}
			out.Members = append(out.Members, &mb)
		}
		snap.Services = append(snap.Services, &out)
	}
	v.snap = &snap
	return v
}

// agents lets the agents do what all of the gslbd tell them.
func (w *world) agents(all ...*Control) {
	for name, st := range w.servers {
		f := strings.Split(name, "/")
		zone := map[string]string{"seoul": "apne2-az1", "busan": "apne2-az2", "virginia": "use1-az1"}[f[0]]
		drain, restore := !w.silent[f[0]], !w.silent[f[0]]
		for _, c := range all {
			o := w.view(c).siteOrders(f[0], zone)
			drain = drain && o.Drain
			restore = restore && slices.ContainsFunc(o.Restore, func(d state.DrainedServers) bool {
				return d.VirtualServer == f[1] && slices.Contains(d.Servers, f[2])
			})
		}
		switch {
		case w.ours[name] && st != "drain":
			delete(w.ours, name) // an operator has changed it
		case w.stubborn:
		case drain && st == "up":
			w.servers[name], w.ours[name] = "drain", true
		case restore && st == "drain":
			w.servers[name] = "up"
			delete(w.ours, name)
		}
	}
}

// pass lets a time pass, second by second. The gslbd step until one of them breaks off.
func (w *world) pass(d time.Duration, all ...*Control) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		w.agents(all...)
		for _, c := range all {
			c.stepOn(context.Background(), w.view(c))
			c.evac.wg.Wait()
		}
	}
}

func evacuationOf(zone string, types ...string) EvacuationRequest {
	return EvacuationRequest{Execute: true, Evacuation: Evacuation{
		ID: newID(), Created: time.Now().UTC().Round(0), Author: "kim@ops", Reason: "power failure", Zone: zone, Types: types,
	}}
}

func restorationOf(zone, typ string) RestorationRequest {
	return RestorationRequest{ID: newID(), Created: time.Now().UTC().Round(0), Author: "lee@ops", Reason: "power is back", Zone: zone, Type: typ}
}

func mustEvacuate(t testing.TB, c *Control, r EvacuationRequest) Receipt {
	t.Helper()
	rec, err := c.Evacuate(context.Background(), r, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func mustRestore(t testing.TB, c *Control, r RestorationRequest) Receipt {
	t.Helper()
	rec, err := c.Restore(context.Background(), r, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// states returns the parts of all evacuations as TYPE STATE, and their words.
func (w *world) states(c *Control) (short, words string) {
	var a, b []string
	for _, e := range c.evacuationsOn(w.view(c)) {
		for _, p := range e.Parts {
			a = append(a, p.Type+" "+p.State)
			b = append(b, p.Type+": "+p.Why)
		}
	}
	return strings.Join(a, ", "), strings.Join(b, "\n")
}

func (w *world) expectStates(c *Control, want string, words ...string) {
	w.t.Helper()
	got, why := w.states(c)
	if got != want {
		w.t.Errorf("the parts are %q, want %q\n%s", got, want, why)
	}
	for _, s := range words {
		if !strings.Contains(why, s) {
			w.t.Errorf("nothing says %q:\n%s", s, why)
		}
	}
}

// ledger returns the resources in the ledger.
func ledger(c *Control) string {
	var all []string
	for _, e := range c.Evacuations() {
		for _, t := range e.Ledger {
			all = append(all, t.Type+":"+t.Resource+"="+strings.Join(t.Removed, "+"))
		}
	}
	return strings.Join(all, " ")
}

func TestRefusedEvacuations(t *testing.T) {
	w := newWorld(t)
	c := w.open(t.TempDir())
	defer c.Close()
	without := openControl(t, t.TempDir())
	for _, k := range []struct {
		name string
		c    *Control
		kind error
		edit func(e *EvacuationRequest)
		want []string
	}{
		{"unknown zone", c, ErrNotFound, func(e *EvacuationRequest) { e.Zone = "mars" }, []string{`no zone "mars"`, "apne2-az1, apne2-az2, use1-az1"}},
		{"no zone", c, ErrInvalid, func(e *EvacuationRequest) { e.Zone = "" }, []string{"zone is missing"}},
		{"unknown type", c, ErrInvalid, func(e *EvacuationRequest) { e.Types = []string{"pod"} }, []string{`"pod" is not one of member, agent, exec`}},
		{"type twice", c, ErrInvalid, func(e *EvacuationRequest) { e.Types = []string{"member", "member"} }, []string{"twice"}},
		{"no reason", c, ErrInvalid, func(e *EvacuationRequest) { e.Reason = "" }, []string{"reason is missing"}},
		{"old", c, ErrRefused, func(e *EvacuationRequest) { e.Created = e.Created.Add(-time.Minute) }, []string{"1m0s behind"}},
		{"stages fall", c, ErrInvalid, func(e *EvacuationRequest) { e.Stages, e.PauseMS = []float64{.5, .25, 1}, 60000 }, []string{"rise"}},
		{"stages end early", c, ErrInvalid, func(e *EvacuationRequest) { e.Stages, e.PauseMS = []float64{.25, .5}, 60000 }, []string{"100 %"}},
		{"stages without a pause", c, ErrInvalid, func(e *EvacuationRequest) { e.Stages = []float64{.25, 1} }, []string{"10s to 24h0m0s, and is 0s"}},
		{"short pause", c, ErrInvalid, func(e *EvacuationRequest) { e.Stages, e.PauseMS = []float64{.25, 1}, 9999 }, []string{"and is 9.999s"}},
		{"endless pause", c, ErrInvalid, func(e *EvacuationRequest) { e.Stages, e.PauseMS = []float64{.25, 1}, 1<<62 }, []string{"pause_ms"}},
		{"many stages", c, ErrInvalid, func(e *EvacuationRequest) {
			for i := range 21 {
				e.Stages = append(e.Stages, float64(i+1)/21)
			}
			e.PauseMS = 60000
		}, []string{"21 stages, of at most 20"}},
		{"stages of agents", c, ErrInvalid, func(e *EvacuationRequest) {
			e.Types, e.Stages, e.PauseMS = []string{TypeAgent}, []float64{.25, 1}, 60000
		}, []string{"only type member"}},
		{"expires before the last stage", c, ErrInvalid, func(e *EvacuationRequest) {
			e.Stages, e.PauseMS, e.Expires = []float64{.25, 1}, 60000, e.Created.Add(time.Minute)
		}, []string{"not after its last stage"}},
		{"no program", without, ErrInvalid, func(e *EvacuationRequest) { e.Types = []string{TypeExec} }, []string{"evacuation.exec.command"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := evacuationOf("apne2-az1")
			k.edit(&r)
			_, err := k.c.Evacuate(context.Background(), r, Caller{})
			expectError(t, err, k.kind, k.want...)
			if _, err := k.c.Plan(context.Background(), r); !errors.Is(err, k.kind) {
				t.Errorf("Plan says %v", err)
			}
		})
	}
	if all := c.Evacuations(); len(all) > 0 {
		t.Errorf("in force: %+v", all)
	}
}

func TestPlan(t *testing.T) {
	w := newWorld(t)
	c := w.open(t.TempDir())
	defer c.Close()
	p, err := c.Plan(context.Background(), evacuationOf("ap-northeast-2a", TypeExec, TypeMember))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(p.Resources)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"type":"member","name":"api.example.com/seoul","zone":"apne2-az1","removed":["192.0.2.4"]},` +
		`{"type":"member","name":"www.example.com/seoul","zone":"apne2-az1","removed":["192.0.2.1"]},` +
		`{"type":"exec","name":"asg-1","zone":"ap-northeast-2a","removed":["in"]},` +
		`{"type":"exec","name":"asg-2","zone":"apne2-az1","removed":["in:3"]}]`
	if string(got) != want || p.Zone != "apne2-az1" || p.Already != "" || len(p.Warnings)+len(p.Refusals) > 0 {
		t.Errorf("%+v\n%s", p, got)
	}
	mustForce(t, c, orderTo(Down, Target{Member: "busan"}))
	p, err = c.Plan(context.Background(), evacuationOf("apne2-az1"))
	if err != nil {
		t.Fatal(err)
	}
	for site, want := range map[string]state.Forced{"seoul": state.ForcedEvacuated, "busan": state.ForcedDown, "virginia": state.NotForced} {
		zone := map[string]string{"seoul": "ap-northeast-2a", "busan": "apne2-az2", "virginia": "use1-az1"}[site]
		if f := p.Force("www.example.com", site, site, zone); f.Forced != want {
			t.Errorf("%s would be %q", site, f.Forced)
		}
	}
	if all := forced(c.opts.Store, "www.example.com"); all != "- down -" {
		t.Errorf("a plan has changed something: %s", all)
	}
	w.flag("broken", true)
	p, err = c.Plan(context.Background(), evacuationOf("apne2-az1", TypeMember, TypeExec))
	if err != nil || len(p.Resources) != 2 || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "the API is down") {
		t.Errorf("%+v (%v)", p, err)
	}
	// The agents' part comes from what the sites list.
	e := c.view(c.now()).normal(evacuationOf("apne2-az1", TypeAgent).Evacuation)
	p = w.view(c).plan(&e)
	if len(p.Resources) != 2 || p.Resources[0].Name != "seoul/api" || p.Resources[1].Name != "seoul/web" {
		t.Errorf("%+v", p.Resources)
	}
	w.silent["seoul"] = true
	if p = w.view(c).plan(&e); len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "site seoul are dead") {
		t.Errorf("%q", p.Warnings)
	}
}

func TestMinServing(t *testing.T) {
	store := fleetStore(t)
	member := func(name string, last byte) state.MemberConfig {
		return state.MemberConfig{Name: name, Site: name, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}}
	}
	store.Configure(&state.Config{
		Sites: []state.SiteConfig{{Name: "seoul", Zone: "z1"}, {Name: "busan", Zone: "z2"}, {Name: "virginia", Zone: "z3"}},
		Services: []state.ServiceConfig{
			{Name: "two.example.com", UnknownUp: true, MinServing: 2, Members: []state.MemberConfig{member("seoul", 1), member("busan", 2), member("virginia", 3)}},
			{Name: "one.example.com", UnknownUp: true, MinServing: 1, Members: []state.MemberConfig{member("seoul", 4), member("busan", 5)}},
			{Name: "none.example.com", UnknownUp: true, MinServing: 0, Members: []state.MemberConfig{member("seoul", 6)}},
		},
	})
	c := New(Options{Directory: t.TempDir(), Node: "gslb1", Store: store})
	defer c.Close()
	if r := mustEvacuate(t, c, evacuationOf("z1")); len(r.Warnings) > 0 {
		t.Errorf("%q", r.Warnings)
	}
	mustRestore(t, c, restorationOf("", ""))
	c.step(context.Background(), c.now())

	mustForce(t, c, orderTo(Drain, Target{Member: "busan"}))
	r := evacuationOf("z1")
	_, err := c.Evacuate(context.Background(), r, Caller{})
	expectError(t, err, ErrRefused, "two.example.com would keep 1 members up outside zone z1, and min_serving is 2", "one.example.com would keep 0", "--force")
	if strings.Contains(fmt.Sprint(err), "none.example.com") {
		t.Error(err)
	}
	r.Force = true
	if rec := mustEvacuate(t, c, r); len(rec.Warnings) != 2 {
		t.Errorf("%q", rec.Warnings)
	}
}

// Two evacuations that come at the same moment must not each count on the members that the other takes.
func TestEvacuationsAtOnce(t *testing.T) {
	for range 20 {
		store := fleetStore(t)
		member := func(name string, last byte) state.MemberConfig {
			return state.MemberConfig{Name: name, Site: name, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}}
		}
		store.Configure(&state.Config{
			Sites:    []state.SiteConfig{{Name: "seoul", Zone: "z1"}, {Name: "busan", Zone: "z2"}},
			Services: []state.ServiceConfig{{Name: "one.example.com", UnknownUp: true, MinServing: 1, Members: []state.MemberConfig{member("seoul", 4), member("busan", 5)}}},
		})
		c := New(Options{Directory: t.TempDir(), Node: "gslb1", Store: store})
		errs := make(chan error)
		for _, zone := range []string{"z1", "z2"} {
			go func() {
				_, err := c.Evacuate(t.Context(), evacuationOf(zone), Caller{})
				errs <- err
			}()
		}
		first, second := <-errs, <-errs
		if first == nil {
			first, second = second, first
		}
		expectError(t, first, ErrRefused, "one.example.com would keep 0 members up")
		if second != nil {
			t.Error(second)
		}
		_ = c.Close()
	}
}

func TestEvacuatedMembersAndReload(t *testing.T) {
	w := newWorld(t)
	c := w.open(t.TempDir())
	defer c.Close()
	r := evacuationOf("ap-northeast-2a")
	if rec := mustEvacuate(t, c, r); rec.ID != r.ID || rec.Repeated {
		t.Errorf("%+v", rec)
	}
	if got := forced(c.opts.Store, "www.example.com"); got != "evacuated - -" {
		t.Error(got)
	}
	m := c.opts.Store.Snapshot().ServiceByName("www.example.com").Members[0]
	for _, want := range []string{"power failure", "kim@ops", short(r.ID)} {
		if !strings.Contains(m.ForcedWhy, want) {
			t.Errorf("%q does not say %q", m.ForcedWhy, want)
		}
	}
	if got := ledger(c); got != "member:api.example.com/seoul=192.0.2.4 member:www.example.com/seoul=192.0.2.1" {
		t.Error(got)
	}
	// The same again, the same by another id, and a retry of what was answered by another's id.
	if rec := mustEvacuate(t, c, r); rec.ID != r.ID || !rec.Repeated {
		t.Errorf("%+v", rec)
	}
	if rec := mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember)); rec.ID != r.ID || !rec.Repeated || len(rec.Warnings) == 0 {
		t.Errorf("%+v", rec)
	}
	other := r
	other.Reason = "something else"
	_, err := c.Evacuate(context.Background(), other, Caller{})
	expectError(t, err, ErrRefused, "another content")

	// Members that a reload brings into the zone are evacuated at once, and get lines.
	c.opts.Store.Configure(&state.Config{
		Sites: []state.SiteConfig{{Name: "seoul", Zone: "apne2-az1"}, {Name: "jeju", Zone: "ap-northeast-2a"}, {Name: "virginia", Zone: "use1-az1"}},
		Services: []state.ServiceConfig{{Name: "www.example.com", UnknownUp: true, Members: []state.MemberConfig{
			{Name: "jeju", Site: "jeju", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}},
			{Name: "virginia", Site: "virginia", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.3")}},
		}}},
	})
	if got := forced(c.opts.Store, "www.example.com"); got != "evacuated -" {
		t.Error(got)
	}
	c.step(context.Background(), c.now())
	if got := ledger(c); !strings.Contains(got, "member:www.example.com/jeju=192.0.2.9+2001:db8::9") {
		t.Error(got)
	}
	mustRestore(t, c, restorationOf("apne2-az1", ""))
	c.step(context.Background(), c.now())
	if got := forced(c.opts.Store, "www.example.com"); got != "- -" || ledger(c) != "" {
		t.Error(got, ledger(c))
	}
	_, err = c.Restore(context.Background(), restorationOf("apne2-az1", ""), Caller{})
	expectError(t, err, ErrNothing, "nothing of type member, agent, exec is evacuated in zone apne2-az1", "evacuated are none")
	_, err = c.Restore(context.Background(), restorationOf("mars", ""), Caller{})
	expectError(t, err, ErrNotFound, `no zone "mars"`, "apne2-az1, use1-az1")
	_, err = c.Restore(context.Background(), restorationOf("", "pod"), Caller{})
	expectError(t, err, ErrInvalid, "member, agent, exec")
}

// What is in the ledger stays out until it is restored, though a reload calls its zone another name.
func TestEvacuatedMembersOfAZoneThatIsRenamed(t *testing.T) {
	dir := t.TempDir()
	c := openControl(t, dir)
	mustEvacuate(t, c, evacuationOf("apne2-az1"))
	member := func(name string, last byte) state.MemberConfig {
		return state.MemberConfig{Name: name, Site: name, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}}
	}
	renamed := &state.Config{
		Sites:    []state.SiteConfig{{Name: "seoul", Zone: "kr-1"}, {Name: "busan", Zone: "apne2-az2"}},
		Services: []state.ServiceConfig{{Name: "www.example.com", UnknownUp: true, Members: []state.MemberConfig{member("seoul", 1), member("busan", 2)}}},
	}
	c.opts.Store.Configure(renamed)
	expect := func(when, want string) {
		t.Helper()
		c.step(context.Background(), c.now())
		if got := forced(c.opts.Store, "www.example.com"); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	expect("with the reload", "evacuated -")
	c.Set(fleetConfig)
	expect("after it", "evacuated -")
	_ = c.Close()
	c = openControl(t, dir)
	c.opts.Store.Configure(renamed)
	c.Set(fleetConfig)
	expect("after a restart", "evacuated -")
	mustRestore(t, c, restorationOf("apne2-az1", ""))
	expect("restored", "- -")
	if got := ledger(c); got != "" {
		t.Error(got)
	}
}

// Only what is missing is evacuated, and a retry of that is the same evacuation.
func TestMissingTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		mustEvacuate(t, c, evacuationOf("apne2-az1"))
		r := evacuationOf("apne2-az1", TypeAgent, TypeMember)
		r.Stages, r.PauseMS = []float64{.5, 1}, 60000
		for _, repeated := range []bool{false, true} {
			if rec := mustEvacuate(t, c, r); rec.ID != r.ID || rec.Repeated != repeated {
				t.Errorf("%+v", rec)
			}
		}
		all := c.Evacuations()
		if len(all) != 2 || !slices.Equal(all[1].Types, []string{TypeAgent}) || len(all[1].Stages) != 0 {
			t.Fatalf("%+v", all)
		}
		// Traffic goes first, although another evacuation takes it away.
		w.pass(34*time.Second, c)
		w.expectStates(c, "member evacuated, agent waiting", "begins when cached answers have expired, in 1 s")
		w.pass(3*time.Second, c)
		w.expectStates(c, "member evacuated, agent evacuated", "3 servers in drain")
		// They come back in the reverse order, although they are two evacuations.
		w.silent["seoul"] = true
		mustRestore(t, c, restorationOf("apne2-az1", ""))
		w.pass(5*time.Second, c)
		w.expectStates(c, "member restoring, agent restoring", "waits for type agent", "the reports of site seoul are dead")
		delete(w.silent, "seoul")
		w.pass(5*time.Second, c)
		w.expectStates(c, "")
	})
}

func TestStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		r := evacuationOf("apne2-az1")
		r.Stages, r.PauseMS = []float64{.25, .5, 1}, 300_000
		r.Expires = r.Created.Add(time.Hour)
		mustEvacuate(t, c, r)
		share := func() string {
			f := c.view(c.now()).orders().Force("www.example.com", "seoul", "seoul", "apne2-az1")
			if f.Forced != state.NotForced {
				return f.Forced.String()
			}
			if len(f.Stages) != 1 || f.Stages[0].Order != state.HashName(r.ID) || f.Stages[0].Why == "" {
				return fmt.Sprintf("%+v", f)
			}
			return percent(f.Stages[0].Share)
		}
		for _, k := range []struct {
			wait  time.Duration
			want  string
			words string
		}{
			{0, "25 %", "25 % of the clients moved away, 50 % in 5 min 0 s"},
			{5*time.Minute - time.Second, "25 %", "50 % in 1 s"},
			{2 * time.Second, "50 %", "100 % in 4 min 59 s"},
			{5 * time.Minute, "evacuated", "2 members"},
			{50 * time.Minute, "- (expired)", ""},
		} {
			time.Sleep(k.wait)
			synctest.Wait()
			got := share()
			if strings.HasPrefix(k.want, "-") {
				if all := forced(c.opts.Store, "www.example.com"); all != "- - -" || len(c.Evacuations()) > 0 {
					t.Errorf("after the expiry: %s, %+v", all, c.Evacuations())
				}
				continue
			}
			_, why := w.states(c)
			if got != k.want || !strings.Contains(why, k.words) {
				t.Errorf("%s, want %s: %s", got, k.want, why)
			}
			if k.want == "evacuated" && forced(c.opts.Store, "www.example.com") != "evacuated - -" {
				t.Error("time did not bring it to the Store")
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// An evacuation at once takes over from one in stages, and a restoration ends both, in the midst of stages too.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		staged := evacuationOf("apne2-az1")
		staged.Stages, staged.PauseMS = []float64{.1, 1}, 3_600_000
		mustEvacuate(t, c, staged)
		again := evacuationOf("apne2-az1")
		again.Stages, again.PauseMS = []float64{.05, 1}, 3_600_000
		if rec := mustEvacuate(t, c, again); rec.ID != staged.ID || !rec.Repeated {
			t.Errorf("%+v", rec)
		}
		again = evacuationOf("apne2-az1")
		again.Stages, again.PauseMS = []float64{.05, 1}, 60_000 // which is less now, and more in a minute
		if rec := mustEvacuate(t, c, again); rec.ID != again.ID || rec.Repeated || len(rec.Warnings) == 0 {
			t.Errorf("%+v", rec)
		}
		at := evacuationOf("apne2-az1", TypeMember, TypeAgent)
		if rec := mustEvacuate(t, c, at); rec.ID != at.ID || rec.Repeated || len(rec.Warnings) == 0 {
			t.Errorf("%+v", rec)
		}
		if got := forced(c.opts.Store, "www.example.com"); got != "evacuated - -" {
			t.Error(got)
		}
		w.pass(40*time.Second, c)
		if got := w.servers["seoul/web/s1"]; got != "drain" {
			t.Errorf("the agents wait for the staged evacuation: %s", got)
		}
		mustRestore(t, c, restorationOf("", ""))
		w.pass(5*time.Second, c)
		if got := forced(c.opts.Store, "www.example.com"); got != "- - -" || len(c.Evacuations()) > 0 {
			t.Errorf("%s %+v", got, c.Evacuations())
		}
	})
}

// The whole of it: traffic, servers and the program's resources leave one after the other, and come back the other way
// round, each exactly as far as it was taken.
func TestEvacuateAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		c := w.open(t.TempDir())
		defer c.Close()
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec))
		w.pass(3*time.Second, c)
		w.expectStates(c, "member evacuated, agent waiting, exec waiting")
		w.pass(31*time.Second, c)
		if w.String() != before {
			t.Fatalf("something was taken while answers are cached:\n%s", w)
		}
		w.pass(2*time.Second, c)
		w.expectStates(c, "member evacuated, agent evacuated, exec evacuated", "3 servers in drain", "2 resources")
		taken := strings.NewReplacer(
			"seoul/web/s1=up", "seoul/web/s1=drain", "seoul/web/s2=up", "seoul/web/s2=drain", "seoul/api/s4=up", "seoul/api/s4=drain",
			"asg-1=ap-northeast-2a in", "asg-1=ap-northeast-2a removed", "asg-2=apne2-az1 in:3", "asg-2=apne2-az1 removed",
		).Replace(before)
		if w.String() != taken {
			t.Fatalf("taken:\n%s\nwant:\n%s", w, taken)
		}
		if got, want := ledger(c), "member:api.example.com/seoul=192.0.2.4 member:www.example.com/seoul=192.0.2.1 "+
			"agent:seoul/api=s4 agent:seoul/web=s1 agent:seoul/web=s2 exec:asg-1=in exec:asg-2=in:3"; got != want {
			t.Errorf("the ledger is %s", got)
		}

		// Meanwhile: an operator repairs a server, takes another one out for good, and puts one resource back by hand. One
		// more server comes up and is drained too.
		w.servers["seoul/web/s1"] = "maint"
		w.servers["seoul/web/s3"] = "up"
		w.resource("asg-1", "ap-northeast-2a in:9")
		w.pass(5*time.Second, c)
		if w.servers["seoul/web/s3"] != "drain" || !strings.Contains(ledger(c), "agent:seoul/web=s3") {
			t.Errorf("s3 is %s, the ledger %s", w.servers["seoul/web/s3"], ledger(c))
		}

		// The program fails: everything else waits for it, and says so.
		w.flag("broken", true)
		mustRestore(t, c, restorationOf("apne2-az1", ""))
		w.pass(5*time.Second, c)
		w.expectStates(c, "member restoring, agent restoring, exec failed",
			"exec: restored by lee@ops; 2 resources left", "exit status 4: the API is down; tried again in 5", "waits for type exec", "`--type member` restores this type alone")
		if got := forced(c.opts.Store, "www.example.com"); got != "evacuated - -" || w.servers["seoul/web/s2"] != "drain" {
			t.Errorf("restored before its turn: %s, s2 is %s", got, w.servers["seoul/web/s2"])
		}
		w.servers["seoul/api/s8"] = "up" // while the rest waits, the evacuation goes on
		w.pass(5*time.Second, c)
		if got := w.servers["seoul/api/s8"]; got != "drain" {
			t.Errorf("s8 is %s", got)
		}
		w.flag("broken", false)
		w.pass(40*time.Second, c)
		if w.runs() != "remove" {
			t.Errorf("it was not left alone for a minute: %s", w.runs())
		}
		w.pass(30*time.Second, c)
		w.expectStates(c, "")
		after := strings.NewReplacer("seoul/web/s1=up", "seoul/api/s8=up\nseoul/web/s1=maint", "seoul/web/s3=down", "seoul/web/s3=up",
			"asg-1=ap-northeast-2a in", "asg-1=ap-northeast-2a in:9").Replace(before)
		if w.String() != after {
			t.Errorf("restored:\n%s\nwant:\n%s", w, after)
		}
		if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
			t.Error(got)
		}
		if got := w.runs(); got != "remove add" {
			t.Errorf("the program ran for: %s", got)
		}
	})
}

// What is gone has nothing to be restored to, and holds nothing up.
func TestRestoreWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec))
		w.pass(45*time.Second, c)
		if err := os.Remove(filepath.Join(w.dir, "asg-1")); err != nil {
			t.Fatal(err)
		}
		for name := range w.servers {
			if strings.HasPrefix(name, "seoul/") {
				delete(w.servers, name)
				delete(w.ours, name)
			}
		}
		c.opts.Store.Configure(&state.Config{
			Sites:    []state.SiteConfig{{Name: "busan", Zone: "apne2-az2"}},
			Services: []state.ServiceConfig{{Name: "www.example.com", UnknownUp: true, Members: []state.MemberConfig{{Name: "busan", Site: "busan", Addresses: [2]netip.Addr{netip.MustParseAddr("192.0.2.2")}}}}},
		})
		// The zone has no site any more, and can be named all the same.
		mustRestore(t, c, restorationOf("ap-northeast-2a", ""))
		w.pass(5*time.Second, c)
		w.expectStates(c, "")
		if b, err := os.ReadFile(filepath.Join(w.dir, "asg-2")); err != nil || string(b) != "apne2-az1 in:3\n" {
			t.Errorf("asg-2 is %q (%v)", b, err)
		}
	})
}

// A type can be restored alone, past one that is stuck.
func TestRestoreTypeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent))
		w.pass(45*time.Second, c)
		w.silent["seoul"] = true
		mustRestore(t, c, restorationOf("", ""))
		w.pass(5*time.Second, c)
		if got := forced(c.opts.Store, "www.example.com"); got != "evacuated - -" {
			t.Error(got)
		}
		rec := mustRestore(t, c, restorationOf("", TypeMember))
		if len(rec.Warnings) != 1 || !strings.Contains(rec.Warnings[0], "while type agent stays evacuated") {
			t.Errorf("%q", rec.Warnings)
		}
		w.pass(2*time.Second, c)
		if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
			t.Error(got)
		}
		w.expectStates(c, "agent restoring", "3 servers still in drain")
	})
}

// A program that fails holds nothing up, is tried again, and may break off in the middle.
func TestFailingProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		c := w.open(t.TempDir())
		defer c.Close()
		w.flag("half", true)
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeExec))
		w.pass(40*time.Second, c)
		w.expectStates(c, "member evacuated, exec failed", "exit status 7", "tried again in")
		if got := ledger(c); !strings.Contains(got, "exec:asg-1=in exec:asg-2=in:3") {
			t.Errorf("what may have been taken is not in the ledger: %s", got)
		}
		w.pass(2*time.Minute, c)
		w.flag("half", false)
		w.pass(time.Minute, c)
		w.expectStates(c, "member evacuated, exec evacuated")
		w.flag("half", true)
		mustRestore(t, c, restorationOf("", ""))
		w.pass(3*time.Second, c)
		w.expectStates(c, "member restoring, exec failed")
		w.flag("half", false)
		w.pass(2*time.Minute, c)
		w.expectStates(c, "")
		if w.String() != before {
			t.Errorf("restored:\n%s\nwant:\n%s", w, before)
		}
	})
}

// What is ordered while a step works on what was known before keeps its program run.
func TestOrderedInTheMomentOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		c := w.open(t.TempDir())
		defer c.Close()
		v := w.view(c)
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeExec))
		c.stepOn(context.Background(), v)
		w.pass(20*time.Second, c)
		w.expectStates(c, "exec evacuated", "2 resources")
		v = w.view(c)
		mustRestore(t, c, restorationOf("", ""))
		c.stepOn(context.Background(), v)
		w.pass(10*time.Second, c)
		w.expectStates(c, "")
		if got := w.runs(); got != "remove add" || w.String() != before {
			t.Errorf("the program ran for %q:\n%s", got, w)
		}
	})
}

// Agents wait for the answers that were given last, also where those had a longer TTL than is configured now.
func TestAgentsWaitForCachedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		w.handedOut = c.opts.Store.Snapshot().Services[0].Members[0].MemberCounts
		w.handedOut.HandedOut.Mark(time.Now(), 300)
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent))
		w.pass(299*time.Second, c)
		w.expectStates(c, "member evacuating, agent waiting", "member: waits for cached answers to expire, 2 s left", "agent: begins when cached answers have expired, in 7 s")
		w.pass(6*time.Second, c)
		if got := w.servers["seoul/web/s1"]; got != "up" {
			t.Errorf("s1 is %s", got)
		}
		w.pass(3*time.Second, c)
		w.expectStates(c, "member evacuated, agent evacuated")
	})
}

// The program waits for the agents, and not for ever.
func TestProgramWaitsForAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		c := w.open(t.TempDir())
		defer c.Close()
		w.stubborn = true
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec))
		w.pass(35*time.Second+14*time.Second, c)
		if w.String() != before {
			t.Errorf("it did not wait:\n%s", w)
		}
		w.expectStates(c, "member evacuated, agent evacuating, exec waiting", "0 of 3 servers in drain", "gives the agents time to drain, 1 s left",
			"agent lb1 of seoul: draining is off in the agent's file")
		w.pass(2*time.Second, c)
		w.expectStates(c, "member evacuated, agent evacuating, exec evacuated")
		w.stubborn = false
		w.pass(2*time.Second, c)
		w.expectStates(c, "member evacuated, agent evacuated, exec evacuated")
	})
}

// An evacuation that expires hands what it took to one that is still in force.
func TestExpiryWithAnHeir(t *testing.T) {
	for _, expires := range []string{"the first", "the second"} {
		t.Run(expires, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				before := w.String()
				c := w.open(t.TempDir())
				defer c.Close()
				first := evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec)
				first.Stages, first.PauseMS = []float64{.5, 1}, (20 * time.Minute).Milliseconds()
				second := evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec)
				stays := first.ID
				if expires == "the first" {
					first.Expires, stays = first.Created.Add(time.Hour), second.ID
				} else {
					second.Expires = second.Created.Add(time.Hour)
				}
				mustEvacuate(t, c, first)
				mustEvacuate(t, c, second)
				w.pass(time.Minute, c)
				out := w.String()
				if out == before {
					t.Fatal("nothing was taken")
				}
				time.Sleep(time.Hour)
				w.pass(time.Minute, c)
				if w.String() != out {
					t.Errorf("what the other evacuation wants out was restored:\n%s", w)
				}
				all := c.Evacuations()
				if len(all) != 1 || all[0].ID != stays || len(all[0].Ledger) != 7 {
					t.Errorf("%+v", all)
				}
				mustRestore(t, c, restorationOf("", ""))
				w.pass(10*time.Second, c)
				if w.String() != before || len(c.Evacuations()) > 0 {
					t.Errorf("%+v\n%s", c.Evacuations(), w)
				}
			})
		})
	}
}

// Of two evacuations of a zone the longer one holds, whichever was given first and whatever types it has.
func TestLongerEvacuationHolds(t *testing.T) {
	for _, k := range []struct {
		name        string
		given, more time.Duration // until it expires; 0: never
		types       []string      // of the second
		repeated    bool
		after       string // of the parts, an hour later
	}{
		{"until cleared", time.Hour, 0, []string{TypeMember}, false, "member evacuated"},
		{"later", time.Hour, 2 * time.Hour, []string{TypeMember, TypeAgent}, false, "member evacuated, agent evacuated"},
		{"longer, other types", time.Hour, 0, []string{TypeAgent, TypeExec}, false, "agent evacuated, exec evacuated"},
		{"shorter", 0, time.Hour, []string{TypeMember}, true, "member evacuated, agent evacuated"},
		{"shorter, one type more", 0, time.Hour, []string{TypeMember, TypeExec}, false, "member evacuated, agent evacuated"},
		{"as long", time.Hour, time.Hour, []string{TypeMember}, true, ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				before := w.String()
				c := w.open(t.TempDir())
				defer c.Close()
				evacuate := func(d time.Duration, types ...string) Receipt {
					e := evacuationOf("apne2-az1", types...)
					if d > 0 {
						e.Expires = e.Created.Add(d)
					}
					return mustEvacuate(t, c, e)
				}
				evacuate(k.given, TypeMember, TypeAgent)
				if rec := evacuate(k.more, k.types...); rec.Repeated != k.repeated {
					t.Errorf("%+v", rec)
				}
				w.pass(time.Minute, c)
				time.Sleep(time.Hour)
				w.pass(time.Minute, c)
				w.expectStates(c, k.after)
				want := "- - -"
				if strings.Contains(k.after, "member") {
					want = "evacuated - -"
				}
				if got := forced(c.opts.Store, "www.example.com"); got != want {
					t.Errorf("forced are %s, want %s", got, want)
				}
				if k.after != "" {
					mustRestore(t, c, restorationOf("", ""))
					w.pass(10*time.Second, c)
				}
				w.expectStates(c, "")
				if w.String() != before {
					t.Errorf("%s", w)
				}
			})
		})
	}
}

// An evacuation ends on time although the disk takes nothing, and the ledger is written when it does again.
func TestExpiryOnAFullDisk(t *testing.T) {
	for _, types := range [][]string{{TypeMember}, {TypeMember, TypeAgent, TypeExec}} {
		t.Run(strings.Join(types, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				before := w.String()
				dir := t.TempDir()
				c := w.open(dir)
				r := evacuationOf("apne2-az1", types...)
				r.Expires = r.Created.Add(10 * time.Minute)
				mustEvacuate(t, c, r)
				w.pass(time.Minute, c)
				mend := breakJournal(c)
				time.Sleep(time.Until(r.Expires))
				if len(types) == 1 {
					c.applyDue(c.now())
					if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
						t.Errorf("at the moment of its end: %s", got)
					}
				}
				w.pass(10*time.Second, c)
				w.expectStates(c, "")
				if got := forced(c.opts.Store, "www.example.com"); got != "- - -" || w.String() != before {
					t.Errorf("%s\n%s", got, w)
				}
				mend()
				c.keepUnkept()
				_ = c.Close()
				c = w.open(dir)
				defer c.Close()
				w.expectStates(c, "")
				if n := len(c.unkept); n > 0 {
					t.Errorf("%d records are not kept", n)
				}
			})
		})
	}
}

// A run that is left over from a gslbd that was killed is waited for as long as it may take, and then killed.
func TestLeftOverProgramThatHangs(t *testing.T) {
	w := newWorld(t)
	before := w.String()
	dir := t.TempDir()
	left := exec.Command("/bin/sh", "-c", "exec sleep 600")
	lock, err := os.OpenFile(filepath.Join(dir, programLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	left.ExtraFiles = []*os.File{lock}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	t.Cleanup(func() { _ = left.Process.Kill() })
	reads := exec.Command("/bin/sh", "-c", "exec sleep 600 <"+programLock) // as a backup does
	reads.Dir = dir
	if err := reads.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reads.Process.Kill(); _ = reads.Wait() })

	core, logs := observer.New(zapcore.InfoLevel)
	c := New(Options{Directory: dir, Node: "gslb1", Store: fleetStore(t), Config: w.config(), Log: zap.New(core)})
	defer c.Close()
	mustEvacuate(t, c, evacuationOf("apne2-az1", TypeExec))
	step := func() {
		c.stepOn(context.Background(), w.view(c))
		c.evac.wg.Wait()
	}
	step()
	w.expectStates(c, "exec evacuating", "a run from before gslbd was restarted still goes on")
	select {
	case err := <-ended:
		t.Fatal("killed before its time is over: ", err)
	default:
	}
	c.evac.found = c.evac.found.Add(-w.config().Exec.Timeout - time.Second) // so much time passes
	step()
	<-ended
	step()
	w.expectStates(c, "exec evacuated")
	if w.String() == before || w.runs() != "remove" {
		t.Errorf("the program ran for %q", w.runs())
	}
	killed := logs.FilterMessageSnippet("took too long and was killed").All()
	if len(killed) != 1 || killed[0].ContextMap()["processes"] != int64(1) {
		t.Errorf("the log says %+v", killed)
	}
}

// An agent may act on an older word: what it drained after all is over is set back too.
func TestDrainedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		c := w.open(t.TempDir())
		defer c.Close()
		w.stubborn = true
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeAgent))
		w.pass(10*time.Second, c)
		w.expectStates(c, "agent evacuating")
		mustRestore(t, c, restorationOf("", ""))
		w.pass(5*time.Second, c)
		w.expectStates(c, "")
		w.stubborn = false
		w.servers["seoul/web/s1"], w.ours["seoul/web/s1"] = "drain", true
		w.pass(time.Second, c)
		w.expectStates(c, "agent restoring", "1 server still in drain")
		w.pass(5*time.Second, c)
		w.expectStates(c, "")
		if w.String() != before {
			t.Errorf("%s", w)
		}
	})
}

// The same through the Store: its answers to reports tell the agent, and its snapshots tell what the agent did.
func TestReportsDrainAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 2)
		go func() { done <- c.opts.Store.Run(ctx) }()
		go func() { done <- c.Run(ctx) }()
		servers := map[string]state.ServerState{"s1": state.ServerUp, "s2": state.ServerUp, "s3": state.ServerDown}
		ours := []string{}
		report := func() {
			t.Helper()
			r := &state.Report{Site: "seoul", Agent: "lb1"}
			vs := state.VirtualServer{Name: "web", Address: netip.MustParseAddr("192.0.2.1")}
			for _, name := range slices.Sorted(maps.Keys(servers)) {
				vs.Servers = append(vs.Servers, state.Server{Name: name, State: servers[name]})
			}
			r.VirtualServers = []state.VirtualServer{vs}
			if len(ours) > 0 {
				r.Drained = []state.DrainedServers{{VirtualServer: "web", Servers: ours}}
			}
			res, err := c.opts.Store.Report(r)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(res.Drain, "web") {
				for name, st := range servers {
					if st == state.ServerUp {
						servers[name] = state.ServerDrain
						ours = append(ours, name)
					}
				}
			}
			for _, d := range res.Restore {
				for _, name := range d.Servers {
					if servers[name] == state.ServerDrain {
						servers[name] = state.ServerUp
						ours = slices.DeleteFunc(ours, func(s string) bool { return s == name })
					}
				}
			}
			time.Sleep(5 * time.Second)
		}
		report()
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeMember, TypeAgent))
		for range 10 {
			report()
		}
		slices.Sort(ours)
		if !slices.Equal(ours, []string{"s1", "s2"}) || !strings.Contains(ledger(c), "agent:seoul/web=s1 agent:seoul/web=s2") {
			t.Errorf("drained are %s, the ledger is %s", ours, ledger(c))
		}
		servers["s2"] = state.ServerMaint
		ours = []string{"s1"}
		report()
		mustRestore(t, c, restorationOf("apne2-az1", ""))
		for range 4 {
			report()
		}
		if servers["s1"] != state.ServerUp || servers["s2"] != state.ServerMaint || servers["s3"] != state.ServerDown || len(c.Evacuations()) > 0 {
			t.Errorf("%v, %+v", servers, c.Evacuations())
		}
		if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
			t.Error(got)
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// An agent that says it has drained ever more servers does not fill the ledger.
func TestLedgerOfASiteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		mustEvacuate(t, c, evacuationOf("apne2-az1", TypeAgent))
		w.pass(2*time.Second, c)
		v := w.view(c)
		names := make([]string, maxSiteLines+5)
		for i := range names {
			names[i] = fmt.Sprintf("odd%d", i)
		}
		sites := map[string]*state.Site{}
		for _, s := range v.snap.Sites {
			sites[s.Name] = s
		}
		sites["seoul"].Drained = []state.DrainedServers{{VirtualServer: "web", Servers: names}, {VirtualServer: "api", Servers: names}}
		lines := strings.Count(ledger(c), "agent:seoul/")
		recs, _ := newPicture(v).ledger(new(progress))
		for _, r := range recs {
			if r.Taken != nil {
				lines++
			}
		}
		if lines != maxSiteLines {
			t.Errorf("%d lines, want %d", lines, maxSiteLines)
		}
	})
}

func TestOutOfDrain(t *testing.T) {
	told := time.Now()
	web := func(servers ...string) []state.DrainedServers {
		return []state.DrainedServers{{VirtualServer: "api", Servers: []string{"s1"}}, {VirtualServer: "web", Servers: servers}}
	}
	for _, k := range []struct {
		name string
		site state.Site
		want bool
	}{
		{"later, and out of it", state.Site{Freshness: state.Fresh, ReportAt: told.Add(1), InDrain: web("s2")}, true},
		{"still in drain", state.Site{Freshness: state.Fresh, ReportAt: told.Add(1), InDrain: web("s2", "s1")}, false},
		{"about to be", state.Site{Freshness: state.Fresh, ReportAt: told.Add(1), Drained: web("s1")}, false},
		{"of before", state.Site{Freshness: state.Fresh, ReportAt: told}, false},
		{"stale", state.Site{Freshness: state.Stale, ReportAt: told.Add(1)}, false},
	} {
		if got := outOfDrain(&k.site, "web", []string{"s1"}, told); got != k.want {
			t.Errorf("%s: %t", k.name, got)
		}
	}
	if outOfDrain(&state.Site{Freshness: state.Fresh, ReportAt: told}, "web", []string{"s1"}, time.Time{}) {
		t.Error("no agent has been told")
	}
}

// Time alone changes what is ordered, also of what has no members.
func TestNextChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.open(t.TempDir())
		defer c.Close()
		begin := c.now()
		agent := evacuationOf("use1-az1", TypeAgent)
		agent.Expires = begin.Add(time.Minute)
		mustEvacuate(t, c, agent)
		staged := evacuationOf("apne2-az1", TypeMember, TypeAgent)
		staged.Stages, staged.PauseMS = []float64{.5, 1}, 80_000
		mustEvacuate(t, c, staged)
		var got []string
		for next := c.view(c.now()).nextChange(); !next.IsZero() && len(got) < 9; next = c.view(c.now()).nextChange() {
			got = append(got, next.Sub(begin).String())
			time.Sleep(time.Until(next))
		}
		// The expiry, the last stage, and the agents of the staged one: a TTL and a report later.
		if want := "1m0s 1m20s 1m55s"; strings.Join(got, " ") != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// Two gslbd that share records: the program is run by the one that was asked, and whoever is asked to restore restores.
func TestRestoreWhatAnotherEvacuated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.String()
		a, b := w.open(t.TempDir()), w.open(t.TempDir())
		defer a.Close()
		defer b.Close()
		share := func() {
			for _, pair := range [][2]*Control{{a, b}, {b, a}} {
				pair[1].arrived(slices.Collect(pair[0].set.Load().all()))
			}
		}
		pass := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				w.pass(time.Second, a, b)
				share()
			}
		}
		mustEvacuate(t, a, evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec))
		share()
		if got := forced(b.opts.Store, "www.example.com"); got != "evacuated - -" {
			t.Error(got)
		}
		w.expectStates(b, "member evacuated, agent waiting, exec waiting")
		pass(45 * time.Second)
		w.expectStates(b, "member evacuated, agent evacuated, exec waiting", "2 resources, whose state the gslbd tells that was asked")
		if got := w.runs(); got != "remove" {
			t.Errorf("the program ran for: %s", got)
		}
		mustRestore(t, b, restorationOf("", ""))
		share()
		_, why := w.states(a)
		if !strings.Contains(why, "by the gslbd that was asked to run the program") {
			t.Error(why)
		}
		w.pass(2*time.Second, a)
		if got := w.runs(); got != "remove" {
			t.Errorf("it was run by a gslbd that nobody asked: %s", got)
		}
		pass(5 * time.Second)
		if w.String() != before || len(a.Evacuations())+len(b.Evacuations()) > 0 {
			t.Errorf("%+v\n%s", a.Evacuations(), w)
		}
		if got := w.runs(); got != "remove add" {
			t.Errorf("the program ran for: %s", got)
		}
	})
}

// One gslbd is asked to restore while the program of another still removes. What the first sees as in service, the other
// is about to remove.
func TestRestoredWhileTheProgramRuns(t *testing.T) {
	w := newWorld(t)
	before := w.String()
	a, b := w.open(t.TempDir()), w.open(t.TempDir())
	defer a.Close()
	defer b.Close()
	share := func(from, to *Control) { to.arrived(slices.Collect(from.set.Load().all())) }
	mustEvacuate(t, a, evacuationOf("apne2-az1", TypeExec))
	w.flag("wait", true)
	a.stepOn(context.Background(), w.view(a))
	for w.runs() == "" {
		runtime.Gosched()
	}
	w.expectStates(a, "exec evacuating", "the program runs")
	share(a, b)
	mustRestore(t, b, restorationOf("", ""))
	for range 3 {
		b.stepOn(context.Background(), w.view(b))
		b.evac.wg.Wait()
	}
	w.expectStates(b, "")
	share(b, a)
	w.flag("wait", false)
	a.evac.wg.Wait()
	a.stepOn(context.Background(), w.view(a))
	w.expectStates(a, "")
	if w.String() != before || w.runs() != "remove add" {
		t.Errorf("%s:\n%s\nwant:\n%s", w.runs(), w, before)
	}
}

// Whatever is taken, in whatever order and however it is broken off: once all of it is restored, everything is as before,
// but for what operators changed meanwhile.
func TestTakenAndRestored(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { takeAndRestore(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func takeAndRestore(t *testing.T, r *rand.Rand) {
	w := newWorld(t)
	dir := t.TempDir()
	c := w.open(dir)
	defer func() { _ = c.Close() }()
	want := w.String()
	var did []string
	for range 15 {
		zone := []string{"apne2-az1", "ap-northeast-2a", "use1-az1", "apne2-az2"}[r.IntN(4)]
		op := []string{"evacuate", "evacuate", "evacuate", "restore", "broken", "half", "silent", "stop", "maint"}[r.IntN(9)]
		did = append(did, op)
		switch op {
		case "evacuate":
			e := evacuationOf(zone)
			for _, typ := range types {
				if r.IntN(3) > 0 {
					e.Types = append(e.Types, typ)
				}
			}
			if r.IntN(3) == 0 && slices.Contains(e.Types, TypeMember) {
				e.Stages, e.PauseMS = []float64{.3, .6, 1}, 20_000
			}
			if r.IntN(3) == 0 {
				e.Expires = e.Created.Add(time.Minute + time.Duration(r.IntN(60))*time.Second)
			}
			e.Force = true
			mustEvacuate(t, c, e)
		case "restore":
			if r.IntN(2) == 0 {
				zone = ""
			}
			typ := append([]string{""}, types[:]...)[r.IntN(4)]
			if _, err := c.Restore(context.Background(), restorationOf(zone, typ), Caller{}); err != nil && !errors.Is(err, ErrNothing) {
				t.Fatal(err)
			}
		case "broken", "half":
			w.flag(op, r.IntN(2) == 0)
		case "silent":
			w.silent["seoul"] = r.IntN(2) == 0
		case "stop":
			_ = c.Close()
			c = w.open(dir)
		case "maint":
			for _, s := range []string{"seoul/web/s1", "virginia/web/s6"} {
				if r.IntN(3) == 0 {
					w.servers[s] = "maint"
					want = strings.Replace(want, s+"=up", s+"=maint", 1)
				}
			}
		}
		w.pass(time.Duration(r.IntN(50))*time.Second, c)
	}
	w.flag("broken", false)
	w.flag("half", false)
	clear(w.silent)
	if _, err := c.Restore(context.Background(), restorationOf("", ""), Caller{}); err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	w.pass(3*time.Minute, c)
	w.expectStates(c, "")
	if got := forced(c.opts.Store, "www.example.com") + forced(c.opts.Store, "api.example.com"); strings.Trim(got, "- ") != "" {
		t.Error(got)
	}
	if w.String() != want || t.Failed() {
		t.Errorf("after %s:\n%s\nwant:\n%s", did, w, want)
	}
}

// A gslbd is stopped before each of its writes in turn, once and for all; another one goes on with its journal.
func TestStoppedBetweenAnyTwoWrites(t *testing.T) {
	stopped := errors.New("stopped")
	for _, back := range []string{"restored", "expired"} {
		for n := 0; ; n++ {
			more := false
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				before := w.String()
				dir := t.TempDir()
				c := w.open(dir)
				writes := 0
				c.evac.beforeWrite = func() error {
					if writes++; writes > n {
						more = true
						return stopped
					}
					return nil
				}
				pass := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); {
						w.pass(time.Second, c)
						if more && c.evac.beforeWrite != nil {
							_ = c.Close()
							c = w.open(dir)
						}
					}
				}
				r := evacuationOf("apne2-az1", TypeMember, TypeAgent, TypeExec)
				if back == "expired" {
					r.Expires = r.Created.Add(5 * time.Minute)
				}
				mustEvacuate(t, c, r)
				pass(60 * time.Second)
				w.expectStates(c, "member evacuated, agent evacuated, exec evacuated")
				if got := ledger(c); strings.Count(got, ":") != 7+1 { // "in:3" has one
					t.Errorf("the ledger is %s", got)
				}
				if back == "restored" {
					mustRestore(t, c, restorationOf("apne2-az1", ""))
				} else {
					time.Sleep(4 * time.Minute)
				}
				pass(20 * time.Second)
				w.expectStates(c, "")
				if w.String() != before {
					t.Errorf("restored:\n%s\nwant:\n%s", w, before)
				}
				if got := forced(c.opts.Store, "www.example.com"); got != "- - -" {
					t.Error(got)
				}
				_ = c.Close()
			})
			if t.Failed() {
				t.Fatalf("%s, stopped before write %d", back, n)
			}
			if !more {
				if n < 7 {
					t.Errorf("%s: it had only %d writes", back, n)
				}
				break
			}
		}
	}
}
