package policy_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"gslbd/geo"
	"gslbd/policy"
	"gslbd/state"
)

// atlas places four sites and some clients.
func atlas(t testing.TB) *world {
	w := newWorld("seoul", "busan", "virginia", "nowhere")
	w.place("seoul", "AS", "KR", 37.57, 126.98)
	w.place("busan", "AS", "KR", 35.18, 129.08)
	w.place("virginia", "NA", "US", 38.95, -77.45)
	at := func(prefix string, l geo.Location) geo.Override {
		return geo.Override{Prefix: prefixOf(prefix), Location: l}
	}
	w.overrides(
		t,
		at("11.1.1.0/24", geo.Location{Continent: "AS", Country: "HK"}),
		at("12.0.0.0/16", geo.Location{Continent: "AS", Country: "JP", Latitude: 35.68, Longitude: 139.69, HasCoordinates: true}),
		at("13.0.0.0/16", geo.Location{Continent: "NA", Country: "US", Subdivision: "VA"}),
		at("14.0.0.0/16", geo.Location{Continent: "OC", Country: "FJ", Latitude: -17, Longitude: 179.9, HasCoordinates: true}),
		geo.Override{Prefix: prefixOf("10.20.0.0/16"), Site: "virginia"},
		geo.Override{Prefix: prefixOf("15.0.0.0/16"), Site: "elsewhere"},
	)
	return w
}

func TestGeo(t *testing.T) {
	tests := []struct {
		name    string
		set     func(*world)
		levels  []string
		client  func(*policy.Query)
		kept    string
		verdict string
		note    string
	}{
		{
			name: "the seed: Hong Kong is in Asia", client: from("11.1.1.1"),
			kept:    "busan(continent AS) nowhere(no data) seoul(continent AS) | virginia(continent NA)",
			verdict: "narrowed", note: "by continent; ldns 11.1.1.1, override 11.1.1.0/24",
		},
		{
			name: "distance", client: from("12.0.9.9"),
			kept:    "busan=962 km nowhere(no data) | seoul=1153 km virginia=10883 km",
			verdict: "narrowed", note: "by distance; ldns 12.0.9.9, override 12.0.0.0/16",
		},
		{
			name: "over the antimeridian", client: from("14.0.0.1"), set: func(w *world) {
				w.place("seoul", "OC", "TO", -17, -179.9)
			},
			kept:    "nowhere(no data) seoul=21 km | busan=7896 km virginia=12263 km",
			verdict: "narrowed", note: "by distance; ldns 14.0.0.1, override 14.0.0.0/16",
		},
		{
			name: "an override names a site", client: ecs("10.20.3.0/24"),
			kept:    "virginia(site virginia) | busan(site busan) nowhere(site nowhere) seoul(site seoul)",
			verdict: "decided", note: "by override; ecs 10.20.3.0/24, override 10.20.0.0/16",
		},
		{
			name: "the override's site is no candidate", client: from("15.0.0.1"),
			kept:    "busan nowhere(no data) seoul virginia | ",
			verdict: "kept all", note: "no level tells them apart; ldns 15.0.0.1, override 15.0.0.0/16",
		},
		{
			name: "a private ECS without an override falls back to the LDNS", client: func(q *policy.Query) {
				from("11.1.1.1")(q)
				ecs("10.21.3.0/24")(q)
			},
			kept:    "busan(continent AS) nowhere(no data) seoul(continent AS) | virginia(continent NA)",
			verdict: "narrowed", note: "by continent; ldns 11.1.1.1, override 11.1.1.0/24",
		},
		{
			name: "nothing is known of the client", client: from("99.0.0.1"),
			kept: "busan nowhere(no data) seoul virginia | ", verdict: "abstained", note: "ldns 99.0.0.1 has no known location",
		},
		{
			name: "no client at all", client: func(q *policy.Query) { q.LDNS = q.ECS.Addr() },
			kept: "busan nowhere seoul virginia | ", verdict: "abstained",
		},
		{
			name: "country first, then the nearest in it", levels: []string{"country", "distance"}, client: from("12.0.9.9"),
			set: func(w *world) {
				w.place("seoul", "AS", "JP", 43.06, 141.35)
				w.place("virginia", "AS", "JP", 34.69, 135.5)
			},
			kept:    "nowhere(no data) virginia=396 km(country JP) | busan=962 km(country KR) seoul=833 km(country JP)",
			verdict: "narrowed", note: "by country, then distance; ldns 12.0.9.9, override 12.0.0.0/16",
		},
		{
			name: "without distance nothing narrows it", levels: []string{"country"}, client: from("12.0.9.9"),
			set: func(w *world) {
				w.place("seoul", "AS", "JP", 43.06, 141.35)
				w.place("virginia", "AS", "JP", 34.69, 135.5)
			},
			kept:    "nowhere(no data) seoul=833 km(country JP) virginia=396 km(country JP) | busan=962 km(country KR)",
			verdict: "narrowed", note: "by country; ldns 12.0.9.9, override 12.0.0.0/16",
		},
		{
			name: "a subdivision counts within its country", levels: []string{"subdivision", "country"}, client: from("13.0.0.1"),
			set: func(w *world) {
				for name, l := range map[string]geo.Location{
					"seoul": {Country: "US", Subdivision: "CA"}, "busan": {Country: "IT", Subdivision: "VA"}, "virginia": {Country: "US", Subdivision: "VA"},
				} {
					w.at(name).Location = geo.NewLocation(l)
				}
			},
			kept:    "nowhere(no data) virginia(subdivision VA) | busan(subdivision VA) seoul(subdivision CA)",
			verdict: "narrowed", note: "by subdivision; ldns 13.0.0.1, override 13.0.0.0/16",
		},
		{
			name: "too little is known of the sites", client: from("12.0.9.9"),
			set: func(w *world) {
				w.at("busan").Location, w.at("virginia").Location = &state.Location{}, &state.Location{}
			},
			kept:    "busan(no data) nowhere(no data) seoul=1153 km virginia(no data) | ",
			verdict: "abstained", note: "too little is known of the sites; ldns 12.0.9.9, override 12.0.0.0/16",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := atlas(t)
			if tt.set != nil {
				tt.set(w)
			}
			o := defaults("geo")
			if tt.levels != nil {
				o.Levels = tt.levels
			}
			_, _, trace := w.decide(buildOptions(t, o), tt.client)
			s := trace.Steps[0]
			if got := kept(trace, "geo"); got != tt.kept || s.Verdict != tt.verdict || s.Note != tt.note {
				t.Errorf("\n got %s: %s (%s)\nwant %s: %s (%s)", s.Verdict, got, s.Note, tt.verdict, tt.kept, tt.note)
			}
		})
	}
}

func TestGeoTolerance(t *testing.T) {
	o := defaults("geo")
	o.ToleranceKm = 200 // Seoul is 191 km farther from Tokyo than Busan
	_, _, trace := atlas(t).decide(buildOptions(t, o), from("12.0.9.9"))
	if got := kept(trace, "geo"); got != "busan=962 km nowhere(no data) seoul=1153 km | virginia=10883 km" {
		t.Error(got)
	}
}

// The scope is of the entry that was found, or of the hole between the entries, and of the special-purpose networks.
// Without a tolerance the nearest alone is kept, and never nobody: what is compared must not be lost to rounding.
func TestGeoWithoutTolerance(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	for i := range 2000 {
		w := newWorld("a", "b")
		w.place("a", "AS", "KR", rng.Float64()*180-90, rng.Float64()*360-180)
		w.place("b", "AS", "KR", rng.Float64()*180-90, rng.Float64()*360-180)
		client := geo.Location{Latitude: rng.Float64()*180 - 90, Longitude: rng.Float64()*360 - 180, HasCoordinates: true}
		w.overrides(t, geo.Override{Prefix: prefixOf("8.0.0.0/8"), Location: client})
		from, want := geo.NewLocation(client), "a"
		if geo.DistanceKm(from, w.of("b").Site.Location) < geo.DistanceKm(from, w.of("a").Site.Location) {
			want = "b"
		}
		_, _, trace := w.decide(buildOptions(t, policy.StepOptions{Metric: "geo", Levels: []string{"distance"}}))
		if got, _, _ := strings.Cut(kept(trace, "geo"), "="); got != want || trace.Steps[0].Verdict != policy.VerdictDecided {
			t.Fatalf("case %d: %s: %s, want %s", i, trace.Steps[0].Verdict, kept(trace, "geo"), want)
		}
	}
}

func TestGeoScope(t *testing.T) {
	c := build(t, "geo")
	for prefix, want := range map[string]uint8{
		"12.0.9.0/24":     16,
		"12.0.0.0/8":      16, // longer than what was sent: the resolver should send more
		"11.1.1.0/24":     24,
		"11.1.0.0/24":     24, // the network beside it
		"11.128.0.0/24":   9,
		"99.0.0.0/24":     6,  // 100.64.0.0/10 is special-purpose
		"10.20.3.0/24":    16, // an override makes it usable
		"10.21.3.0/24":    16, // falls back to the LDNS, as its neighbours up to 10.20.0.0/16
		"10.128.0.0/24":   9,
		"203.0.113.0/24":  24,
		"203.0.112.0/24":  24,
		"2400::/56":       6, // 2001:db8::/32 lies in 2000::/5
		"2001:db8:1::/56": 32,
	} {
		if got := atlas(t).scope(c, prefix); got != want {
			t.Errorf("%s: scope %d, want %d", prefix, got, want)
		}
	}
	if got := atlas(t).scope(c, "0.0.0.0/0"); got != 0 {
		t.Errorf("/0: scope %d, want 0", got)
	}
}

// A /0 asks to be decided by the LDNS.
func TestECSOptOut(t *testing.T) {
	_, _, trace := atlas(t).decide(build(t, "geo"), func(q *policy.Query) { from("11.1.1.1")(q); ecs("0.0.0.0/0")(q) })
	if note := trace.Steps[0].Note; note != "by continent; ldns 11.1.1.1, override 11.1.1.0/24" {
		t.Error(note)
	}
}
