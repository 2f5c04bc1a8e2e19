package main

import (
	"testing"

	"gslbd/cmd/rehearse"
	"gslbd/config"
)

// rehearsed runs what docs/capacity.md shows.
func rehearsed(t *testing.T, name, scenario, clients string) *rehearse.Series {
	t.Helper()
	const dir = "../../testdata/capacity/"
	sim := simulation{clients: dir + clients}
	c, db, err := sim.load(dir + name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.LoadScenario(dir+scenario, c)
	if err != nil {
		t.Fatal(err)
	}
	asking, err := sim.read()
	if err != nil {
		t.Fatal(err)
	}
	resolvers, err := asking.population(servicesOf(c, c))
	if err != nil {
		t.Fatal(err)
	}
	r, err := rehearse.Run(rehearse.Plan{Before: c, After: c, GeoBefore: db, GeoAfter: db, Scenario: s, Population: resolvers, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return &r.After
}

// TestCapacityPage holds what docs/capacity.md says of steps, shedding and tolerances against the simulation.
func TestCapacityPage(t *testing.T) {
	// swing is how far the utilisation of a site goes up and down in the second half, of the site where it does most.
	swing := func(s *rehearse.Series) float64 {
		most := 0.0
		for _, site := range s.Sites {
			lowest, highest := 1e9, 0.0
			for _, u := range site.Utilisation[len(site.Utilisation)/2:] {
				lowest, highest = min(lowest, u), max(highest, u)
			}
			most = max(most, highest-lowest)
		}
		return most
	}
	peak := func(s *rehearse.Series) (p float64, breaks int) {
		for _, site := range s.Sites {
			p, breaks = max(p, site.Peak), breaks+site.Breaks
		}
		return p, breaks
	}
	if s := rehearsed(t, "step.yaml", "region.yaml", "clients.csv"); swing(s) < 0.6 {
		t.Errorf("a step at the threshold swings by %.2f only", swing(s))
	}
	for _, scenario := range []string{"region.yaml", "late.yaml"} {
		s := rehearsed(t, "shed.yaml", scenario, "clients.csv")
		if p, _ := peak(s); p > 1 {
			t.Errorf("%s: a site that sheds reaches %.2f", scenario, p)
		}
	}
	if s := rehearsed(t, "shed.yaml", "region.yaml", "clients.csv"); swing(s) > 0.05 {
		t.Errorf("a site that sheds swings by %.2f", swing(s))
	}
	step, shed := rehearsed(t, "five-step.yaml", "failure.yaml", "even.csv"), rehearsed(t, "five-shed.yaml", "failure.yaml", "even.csv")
	if _, breaks := peak(step); breaks < 10 || step.Failed < 0.05 {
		t.Errorf("steps: %d breaks, %.3f failed: the failure does not cascade", breaks, step.Failed)
	}
	if p, breaks := peak(shed); breaks > 0 || shed.Failed > 0.005 || p > 1.15 {
		t.Errorf("shedding: %d breaks, %.3f failed, peak %.2f", breaks, shed.Failed, p)
	}
	guard := rehearsed(t, "five-shed-guard.yaml", "failure.yaml", "even.csv")
	if p, breaks := peak(guard); breaks > 0 || p > 1 || swing(guard) > swing(shed)/2 {
		t.Errorf("guarded: %d breaks, peak %.2f, swing %.2f, and %.2f without", breaks, p, swing(guard), swing(shed))
	}
	if _, breaks := peak(rehearsed(t, "five-shed.yaml", "fragile.yaml", "even.csv")); breaks < 10 {
		t.Errorf("sites that break at 105 %% break %d times without the guard", breaks)
	}
	if _, breaks := peak(rehearsed(t, "five-shed-guard.yaml", "fragile.yaml", "even.csv")); breaks > 0 {
		t.Errorf("sites that break at 105 %% break %d times with the guard", breaks)
	}
	tight, wide := rehearsed(t, "tight.yaml", "region.yaml", "even.csv"), rehearsed(t, "wide.yaml", "region.yaml", "even.csv")
	if swing(tight) < 2*swing(wide) {
		t.Errorf("connection-load swings by %.3f with a tight tolerance, by %.3f with the default", swing(tight), swing(wide))
	}
}
