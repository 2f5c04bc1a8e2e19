package main

import (
	"fmt"
	"strings"

	"gslbd/cmd/compile"
	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// failedTests runs the tests of the configuration, each in a world of its own that holds only the service that it asks, and
// tells of those that fail, with the trace of what was decided in place of what was expected.
func failedTests(c *config.Config, db *geo.DB) ([]string, error) {
	chains, err := compile.Chains(c)
	if err != nil {
		return nil, err
	}
	services := map[string]config.Service{}
	if len(c.Tests) > 0 {
		for _, s := range c.Services {
			services[s.Name] = s
		}
	}
	var failed []string
	for i := range c.Tests {
		t, only := &c.Tests[i], *c
		only.Services = []config.Service{services[t.Service]}
		var states []rehearse.SiteState
		for _, s := range t.Sites {
			states = append(states, rehearse.SiteState{Name: s.Name, State: s.State, Utilisation: s.Utilisation, NewSessions: s.NewSessions})
		}
		w, err := rehearse.NewWorld(rehearse.Options{Config: &only, Chains: chains, Geo: db, RTTs: 2, Sites: states})
		if err != nil {
			return nil, err
		}
		if said := runTest(w, t, states); said != "" {
			failed = append(failed, fmt.Sprintf("tests[%d] (%s): %s", i, t.Name, said))
		}
	}
	return failed, nil
}

// runTest says what is other than the test expects, with the trace; "": nothing.
func runTest(w *rehearse.World, t *config.Test, states []rehearse.SiteState) string {
	for _, s := range t.Sites {
		if s.RTT == 0 {
			continue
		}
		rtts := []state.RTTSample{{Resolver: t.Client, RTT: s.RTT}}
		if t.ECS.IsValid() {
			rtts = append(rtts, state.RTTSample{Resolver: t.ECS.Addr(), RTT: s.RTT})
		}
		w.SetRTTs(s.Name, rtts)
	}
	w.Hold(states)
	family := state.V4
	if t.Type == "AAAA" {
		family = state.V6
	}
	d, trace := w.Explain(t.Service, family, t.Client, t.ECS)

	kind, member := [...]string{"answer", "last-resort", "nodata", "servfail"}[d.Kind], ""
	if d.Kind == policy.Answer {
		member = d.Members[0].Name
	}
	e := t.Expect
	if (e.Member == "" || e.Member == member) && (e.Metric == "" || e.Metric == d.Reason.String()) && (e.Answer == "" || e.Answer == kind) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, expected %s", outcome(member, d.Reason.String(), kind), outcome(e.Member, e.Metric, e.Answer))
	for _, list := range [][]policy.TraceStep{trace.Constraints, trace.Steps} {
		for _, s := range list {
			b.WriteString("\n" + strings.TrimRight(fmt.Sprintf("  %-16s  %-13s  %s", s.Metric, s.Verdict, s.Text()), " "))
		}
	}
	if trace.OnAllDown != "" {
		fmt.Fprintf(&b, "\n  all down: %s", trace.OnAllDown)
	}
	return b.String()
}

// outcome writes what was decided, or what of it was expected.
func outcome(member, metric, kind string) string {
	what := member
	if what == "" {
		what = kind
	}
	switch {
	case what == "":
		return "by " + metric
	case metric == "":
		return what
	}
	return what + " by " + metric
}
