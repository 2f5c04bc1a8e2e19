package rehearse_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"gslbd/cmd/rehearse"
	"gslbd/state"
)

// TestPresent begins with what a running gslbd told: a member that is down, one that is evacuated, one that a staged order
// moves clients away from, load, and round trips.
func TestPresent(t *testing.T) {
	const fastest = "policies: [{name: turns, chain: [{metric: health}, {metric: rtt}, {metric: static}]}]"
	text := three[:strings.Index(three, "policies:")] + fastest + three[strings.Index(three, "\nservices:"):]
	seven, client := uint64(700), clientOf(1)
	present := func(members ...rehearse.MemberState) *rehearse.Present {
		for i := range members {
			members[i].Service = "www.gslb.test"
		}
		return &rehearse.Present{Sites: []rehearse.SiteState{{Name: "a", State: "up", Sessions: &seven}}, Members: members}
	}
	for _, tt := range []struct {
		name    string
		present *rehearse.Present
		want    string
	}{
		{"as it begins", present(), "[a 33 b 33 c 33]"},
		{"a member is down", present(rehearse.MemberState{Member: "a", Down: [2]bool{true}}), "[a 0 b 50 c 50]"},
		{"one is evacuated, and one drained", present(rehearse.MemberState{Member: "a", Forced: state.ForcedEvacuated}, rehearse.MemberState{Member: "b", Forced: state.ForcedDrain}), "[a 0 b 0 c 100]"},
		{"what is down is forced up", present(rehearse.MemberState{Member: "a", Down: [2]bool{true}, Forced: state.ForcedUp}), "[a 33 b 33 c 33]"},
		{"two of three are moved away", present(rehearse.MemberState{Member: "a", Moved: []float64{0.999}}, rehearse.MemberState{Member: "b", Moved: []float64{0.999}}), "[a 0 b 0 c 100]"},
		{"a member that is not there", present(rehearse.MemberState{Member: "z", Down: [2]bool{true}}), "[a 33 b 33 c 33]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := plan(t, text, "duration: 0s")
			p.Present, p.Queries = tt.present, queries(3000)
			r := run(t, p)
			if got := shares(r, 0); got != tt.want {
				t.Errorf("shares %s, want %s", got, tt.want)
			}
			if got := r.Phases[0].Forecast.Sites[0].Before; got == nil || *got.Sessions != 700 {
				t.Errorf("the load of a is %+v", got)
			}
		})
	}
	// The one family of a member may be down, and the other not.
	both := strings.ReplaceAll(text, "[192.0.2.1]", `[192.0.2.1, "2001:db8::1"]`)
	p := plan(t, both, "duration: 0s")
	p.Present = present(rehearse.MemberState{Member: "a", Down: [2]bool{state.V6: true}})
	p.Queries = []rehearse.Query{{Service: "www.gslb.test", Family: state.V6, Client: client}}
	if f := run(t, p).Phases[0].Forecast.Services[0]; f.Shares.Sites[0].Before != 0 {
		t.Errorf("a member whose IPv6 is down answers it: %+v", f.Shares)
	}
	p.Queries = queries(300)
	if got := shares(run(t, p), 0); got != "[a 33 b 33 c 33]" {
		t.Errorf("with the IPv6 of one member down: %s", got)
	}

	p = plan(t, text, "duration: 20m")
	p.Present, p.Queries = present(), []rehearse.Query{{Service: "www.gslb.test", Client: client}, {Service: "www.gslb.test", Client: client}}
	p.Present.RTTs = map[string][]state.RTTSample{
		"b": {{Resolver: client.LDNS, RTT: 10 * time.Millisecond}}, "c": {{Resolver: client.LDNS, RTT: 90 * time.Millisecond}},
		"a": {{Resolver: client.LDNS, RTT: 90 * time.Millisecond}}, "z": {{Resolver: client.LDNS, RTT: time.Millisecond}},
	}
	// They are measured again, so that they count to the end.
	if got := shares(run(t, p), 0); got != "[a 0 b 100 c 0]" {
		t.Errorf("with round trips: %s", got)
	}
}

// TestService finds services by their names, aliases and wildcards, and knows where the client subnet counts.
func TestService(t *testing.T) {
	text := strings.Replace(three, "file: gslb.test.zone}", "file: gslb.test.zone}, {name: off.gslb.test, file: off.zone, ecs: false}", 1)
	text = strings.Replace(text, "    policy: turns", "    aliases: [web.gslb.test]\n    policy: turns", 1)
	text += `  - {name: "*.gslb.test", policy: turns, members: [{name: a, site: a, addresses: [192.0.2.1]}]}
  - {name: x.off.gslb.test, policy: turns, members: [{name: a, site: a, addresses: [192.0.2.1]}]}
`
	p := plan(t, text, "duration: 0s")
	w, err := rehearse.NewWorld(rehearse.Options{Config: p.After})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"www.gslb.test": "www.gslb.test", "web.gslb.test": "www.gslb.test", "any.gslb.test": "*.gslb.test", "a.b.gslb.test": "*.gslb.test",
		"under.www.gslb.test": "", "off.gslb.test": "", "y.off.gslb.test": "", "www.gslb.test.other": "", "gslb.test": "", "other.test": "", "": "", "x.off.gslb.test": "x.off.gslb.test",
	} {
		svc, usesECS := w.Service(name)
		got := ""
		if svc != nil {
			got = svc.Name
		}
		if got != want || usesECS != (want != "" && want != "x.off.gslb.test") {
			t.Errorf("%q: %q, ECS %v; want %q", name, got, usesECS, want)
		}
	}
	d, trace := w.Explain("any.gslb.test", state.V6, netip.MustParseAddr("192.0.2.53"), netip.Prefix{})
	if d.N != 0 || len(trace.Constraints) == 0 {
		t.Errorf("a service without IPv6: %+v", d)
	}
}
