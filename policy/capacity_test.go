package policy_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"gslbd/policy"
)

// loaded gives a site a utilisation; at 1 it is overloaded.
func (w *world) loaded(name string, utilisation float64) {
	s := w.at(name)
	s.HasLoad, s.HasUtilisation, s.Utilisation, s.Overloaded = true, true, utilisation, utilisation >= 1
}

func TestCapacity(t *testing.T) {
	tests := []struct {
		name  string
		set   func(*world)
		kept  string
		want  string
		other string // the verdict
	}{
		{
			"the US has come up to its threshold", func(w *world) {
				w.loaded("a", 0.4444)
				w.loaded("b", 1)
				w.at("b").OverloadedWhy = "900000 of 900000 sessions"
			},
			"a=44.44 % c(no data) | b=100 %(overloaded: 900000 of 900000 sessions)", "a c", "narrowed",
		},
		{"no data, no thresholds", func(*world) {}, "a(no data) b(no data) c(no data) | ", "a b c", "abstained"},
		{
			"all overloaded: within 10 points of the lowest", func(w *world) { w.loaded("a", 1.25); w.loaded("b", 1.05); w.loaded("c", 1.14) },
			"b=105 %(overloaded) c=114 %(overloaded) | a=125 %(overloaded)", "b c", "narrowed",
		},
		{
			"all overloaded, one fell silent", func(w *world) {
				w.loaded("a", 1.25)
				w.loaded("b", 1.05)
				w.at("c").Overloaded = true
			},
			"b=105 %(overloaded) c(overloaded) | a=125 %(overloaded)", "b c", "narrowed",
		},
		{
			"all overloaded, all but one silent", func(w *world) {
				w.loaded("a", 1.25)
				w.at("b").Overloaded, w.at("c").Overloaded = true, true
			},
			"a=125 %(overloaded) b(overloaded) c(overloaded) | ", "a b c", "kept all",
		},
		{
			"a verdict outlives the data", func(w *world) { w.at("a").Overloaded = true },
			"b(no data) c(no data) | a(overloaded)", "b c", "narrowed",
		},
		{
			"below the threshold but held", func(w *world) { w.loaded("a", 0.8); w.at("a").Overloaded = true },
			"b(no data) c(no data) | a=80 %(overloaded)", "b c", "narrowed",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			tt.set(w)
			c := build(t, "capacity", "static")
			_, _, trace := w.decide(c)
			if got := kept(trace, "capacity"); got != tt.kept || trace.Steps[0].Verdict != tt.other {
				t.Errorf("got %s: %s, want %s: %s", trace.Steps[0].Verdict, got, tt.other, tt.kept)
			}
			if got := w.always(c); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestShedding(t *testing.T) {
	shares := func(w *world) map[string]float64 {
		c, q, n := build(t, "capacity", "preference", "static"), w.query(), map[string]float64{}
		for i := range 6000 {
			q.LDNS, q.Turn = netip.AddrFrom4([4]byte{40, byte(i >> 8), byte(i), 5}), uint64(i)
			var d policy.Decision
			c.Decide(q, &d)
			n[d.Members[0].Name] += 1. / 6000
		}
		return n
	}
	tests := []struct {
		name string
		set  func(*world)
		want map[string]float64
	}{
		{"a third", func(w *world) { w.at("a").Shed = 0.33 }, map[string]float64{"a": 0.67, "b": 0.165, "c": 0.165}},
		{"all of it", func(w *world) { w.at("a").Shed = 1 }, map[string]float64{"b": 0.5, "c": 0.5}},
		{"never the last", func(w *world) {
			w.at("a").Shed = 1
			w.loaded("b", 1)
			w.loaded("c", 1)
		}, map[string]float64{"a": 1}},
		{"all shed: in equal parts", func(w *world) {
			w.at("a").Shed, w.at("b").Shed, w.at("c").Shed = 1, 1, 1
		}, map[string]float64{"a": 0.333, "b": 0.333, "c": 0.333}},
		{"all shed: more to who sheds less, but not all", func(w *world) {
			w.at("a").Shed, w.at("b").Shed, w.at("c").Shed = 1, 0.9, 1
		}, map[string]float64{"a": 0.27, "b": 0.46, "c": 0.27}},
		{"all shed: none to who sheds far more", func(w *world) {
			w.at("a").Shed, w.at("b").Shed, w.at("c").Shed = 1, 0.02, 0.02
			w.of("b").Preference = 800
		}, map[string]float64{"a": 0, "b": 0.98, "c": 0.02}},
		{"independent of each other", func(w *world) {
			w.at("a").Shed, w.at("b").Shed = 0.5, 0.5
			w.of("b").Preference = 800
		}, map[string]float64{"a": 0.5, "b": 0.25, "c": 0.25}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			w.of("a").Preference = 900
			tt.set(w)
			got := shares(w)
			for _, m := range w.Members {
				if math.Abs(got[m.Name]-tt.want[m.Name]) > 0.025 {
					t.Errorf("%s has %.3f, want %.3f", m.Name, got[m.Name], tt.want[m.Name])
				}
			}
		})
	}
	t.Run("the same clients go first as the share grows", func(t *testing.T) {
		w := newWorld("a", "b")
		w.of("a").Preference = 900
		c := build(t, "capacity", "preference")
		for i := range 200 {
			gone := false
			for share := 0.0; share <= 1; share += 0.02 {
				w.at("a").Shed = share
				got, _, _ := w.decide(c, from(fmt.Sprintf("40.1.%d.1", i)))
				if gone && got == "a" {
					t.Fatalf("client %d came back at %.2f", i, share)
				}
				gone = got != "a"
			}
		}
	})
	t.Run("trace and scope", func(t *testing.T) {
		w := newWorld("a", "b")
		w.loaded("a", 0.95)
		w.at("a").Shed = 1
		_, _, trace := w.decide(build(t, "capacity"), ecs("20.0.0.0/16"))
		if got := kept(trace, "capacity"); got != "b(no data) | a=95 %(sheds 100 % of clients, this one too)" {
			t.Error(got)
		}
		if note := trace.Steps[0].Note; note != "by a hash of ecs 20.0.0.0/16" {
			t.Error(note)
		}
		if got := w.scope(build(t, "capacity"), "20.0.0.0/16"); got != 24 {
			t.Errorf("scope %d, want 24", got)
		}
		w.at("a").Shed = 0
		if got := w.scope(build(t, "capacity"), "20.0.0.0/16"); got != 0 {
			t.Errorf("scope %d without shedding, want 0", got)
		}
	})
}

// The trace of a site that sheds says where its load is heading, if that is up.
func TestCapacityHeading(t *testing.T) {
	w := newWorld("a", "b")
	for name, heading := range map[string]float64{"a": 1.2, "b": 0.3} {
		s := w.at(name)
		s.HasUtilisation, s.Utilisation, s.Shed, s.Heading = true, 0.5, 0.01, heading
	}
	_, _, trace := w.decide(build(t, "capacity", "static"))
	const want = "b=50 %(sheds 1 % of clients, not this one) | a=50 %(sheds 1 % of clients, this one too; its new sessions lead to 120 %)"
	if got := kept(trace, "capacity"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
