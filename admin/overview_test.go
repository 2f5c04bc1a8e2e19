package admin_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"gslbd/admin"
	"gslbd/state"
)

func TestOverview(t *testing.T) {
	in(t, func(o *admin.Options, c *state.Config) {
		c.Sites[0].Location.Latitude, c.Sites[0].Location.Longitude, c.Sites[0].Location.HasCoordinates = 37.57, 126.98, true
		c.Sites = append(c.Sites, state.SiteConfig{Name: "empty"})
		base := c.Services[0]
		for i := range 600 {
			svc := base
			svc.Name, svc.Aliases = fmt.Sprintf("s%d.gslb.example.com", i), []string{fmt.Sprintf("alias%d.example.com", i)}
			svc.Members = []state.MemberConfig{base.Members[0]}
			if i == 577 {
				svc.Members = []state.MemberConfig{{Name: "far", Site: "virginia", Addresses: [2]netip.Addr{addr("2.2.2.2")}}}
			}
			c.Services = append(c.Services, svc)
		}
	}, func(t *testing.T, h *house) {
		h.report(servers("seoul", "1.1.1.1", state.ServerUp))
		h.report(servers("virginia", "2.2.2.2", state.ServerDown))
		var v admin.Overview
		h.get("/v1/overview", &v)
		if v.ServicesTotal != 601 || v.ServicesFound != 601 || len(v.Services) != 50 || v.KeepsOrders {
			t.Errorf("%d of %d, %d shown", v.ServicesFound, v.ServicesTotal, len(v.Services))
		}
		if first := v.Services[0]; first.Name != "s577.gslb.example.com" || first.Severity != admin.Critical || first.Members[0].Up {
			t.Errorf("what is wrong does not come first: %+v", first)
		}
		if second := v.Services[1]; second.Name != name || second.Severity != admin.Warning {
			t.Errorf("then what is less so: %+v", second)
		}
		if third := v.Services[2]; third.Severity != "" {
			t.Errorf("then the others: %+v", third)
		}
		conditions := map[string]string{}
		for _, s := range v.Sites {
			conditions[s.Name] = fmt.Sprintf("%s %s %d/%d", s.Severity, s.Condition, s.MembersUp, s.Members)
		}
		want := map[string]string{"virginia": "warning down 0/2", "seoul": " up 600/600", "empty": "notice unreported 0/0"}
		if !maps.Equal(conditions, want) || v.Sites[0].Name != "virginia" || v.Sites[0].Latitude != nil {
			t.Errorf("%v, want %v", conditions, want)
		}
		if s := v.Sites[2]; s.Name != "seoul" || *s.Latitude != 37.57 || *s.Longitude != 126.98 {
			t.Errorf("%+v", s)
		}
		var st admin.Status
		h.get("/v1/status", &st)
		counts := map[string]int{admin.Critical: 0, admin.Warning: 0, admin.Notice: 0}
		for _, p := range st.Problems {
			counts[p.Severity]++
		}
		if !maps.Equal(counts, v.Counts) || len(v.Problems) > 200 || v.Problems[0] != st.Problems[0] {
			t.Errorf("%v, want %v", v.Counts, counts)
		}
		for query, n := range map[string]int{"find=ALIAS57": 11, "find=far": 1, "find=virginia": 2, "find=nothing": 0, "find=default": 601, "limit=0": 601} {
			var v admin.Overview
			h.get("/v1/overview?"+query, &v)
			if v.ServicesFound != n {
				t.Errorf("%s: %d, want %d", query, v.ServicesFound, n)
			}
		}
		for _, query := range []string{"limit=501", "limit=-1", "limit=x", "found=x"} {
			if w := h.do(call{path: "/v1/overview?" + query}); w.Code != 400 {
				t.Errorf("%s: %d", query, w.Code)
			}
		}

		time.Sleep(2 * time.Minute)
		v = admin.Overview{}
		h.get("/v1/overview", &v)
		if v.Sites[0].Condition != "dead" || v.Sites[0].Severity != admin.Critical {
			t.Errorf("%+v", v.Sites[0])
		}
	})
}

func TestOverviewOfOrders(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		h.report(servers("seoul", "1.1.1.1", state.ServerUp))
		h.store.SetOrders(state.Orders{Force: func(_, _, site, _ string) state.Force {
			if site == "seoul" {
				return state.Force{Forced: state.ForcedEvacuated, Why: "by kim"}
			}
			return state.Force{Forced: state.ForcedDrain, Why: "by kim"}
		}})
		var v admin.Overview
		h.get("/v1/overview", &v)
		if v.Sites[0].Condition != "evacuated" || v.Sites[1].Condition != "drained" || v.Services[0].Members[0].Forced != "evacuated" {
			t.Errorf("%+v", v.Sites)
		}
	})
}

func TestLoadsOfTheLastHour(t *testing.T) {
	var store func(*state.Site) []state.LoadPoint
	in(t, func(o *admin.Options, _ *state.Config) {
		o.Loads = func(s *state.Site) []state.LoadPoint { return store(s) }
	}, func(t *testing.T, h *house) {
		store = h.store.Loads
		for i := range 100 {
			r := servers("seoul", "1.1.1.1", state.ServerUp)
			r.HasSessions, r.Sessions, r.HasBits, r.BitsIn, r.BitsOut = true, uint64(i), true, 7, 9
			h.report(r)
			time.Sleep(50 * time.Second)
		}
		var v admin.PastLoads
		h.get("/v1/loads", &v)
		seoul, virginia := v.Sites[0].Points, v.Sites[1].Points
		if len(seoul) != 120 || len(virginia) != 120 || virginia[0][1] != -1 || virginia[0][2] != -1 || virginia[0][3] != -1 {
			t.Fatalf("%d and %d points, %v", len(seoul), len(virginia), virginia)
		}
		known := 0
		for i, p := range seoul {
			if i > 0 && p[0]-seoul[i-1][0] != 30 {
				t.Errorf("points %d seconds apart", p[0]-seoul[i-1][0])
			}
			if p[1] >= 0 {
				known++
				if p[1] < 20 || p[2] != 9 || p[3] > 15_000 {
					t.Errorf("%v", p)
				}
			}
		}
		if known == 0 || known == 120 { // its reports are stale for most of the time
			t.Errorf("%d points are known", known)
		}
	})
}

func TestRTTMatrix(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		for i := range 60 {
			h.report(&state.Report{Site: "seoul", RTTs: []state.RTTSample{{Resolver: netip.AddrFrom4([4]byte{203, 0, byte(i), 53}), RTT: time.Duration(i+1) * time.Millisecond}}})
		}
		h.report(&state.Report{Site: "virginia", RTTs: []state.RTTSample{{Resolver: addr("203.0.59.1"), RTT: time.Millisecond}}})
		var m admin.RTTMatrix
		h.get("/v1/rtt", &m)
		if m.Known != 60 || len(m.Networks) != 50 {
			t.Fatalf("%d of %d", len(m.Networks), m.Known)
		}
		if n := m.Networks[0]; n.Network.String() != "203.0.59.0/24" || len(n.Sites) != 2 || n.Sites[0].Site != "virginia" || n.Sites[1].RTTMS != 60 {
			t.Errorf("%+v", n)
		}
	})
}

func TestRecentDecisions(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		h.report(servers("seoul", "1.1.1.1", state.ServerUp))
		h.report(servers("virginia", "2.2.2.2", state.ServerDown))
		path := "/v1/services/" + name + "/decisions"
		var v admin.RecentDecisions
		if h.get(path, &v); len(v.Decisions) != 0 || v.Decisions == nil {
			t.Errorf("nobody asked: %+v", v)
		}
		svc := h.store.Snapshot().Services[0]
		for i := range 40 {
			h.store.Served(svc, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.Prefix{}, uint64(i)<<32)
		}
		time.Sleep(2 * time.Second)
		before := svc.Rotation.Turn[state.V4].Load()
		h.get(path, &v)
		if len(v.Decisions) != 12 || svc.Rotation.Turn[state.V4].Load() != before {
			t.Fatalf("%d decisions", len(v.Decisions))
		}
		for _, d := range v.Decisions {
			if d.Member != "seoul" || d.Kind != "answer" || d.Type != "A" || d.Reason != "health" {
				t.Errorf("%+v", d)
			}
		}
		if w := h.do(call{path: "/v1/services/nope/decisions"}); w.Code != 404 {
			t.Errorf("%d", w.Code)
		}
	})
}

// TestDashboardPage sees to what the browser is not told by TestDashboard in e2e: everybody may have the page, it has no
// script or style of its own, and it may load nothing from elsewhere.
func TestDashboardPage(t *testing.T) {
	in(t, nil, func(t *testing.T, h *house) {
		for path, media := range map[string]string{
			"/": "text/html", "/dashboard/style.css": "text/css", "/dashboard/script.js": "text/javascript", "/dashboard/world.js": "text/javascript",
		} {
			w := h.do(call{path: path, from: "192.0.2.9:4711", host: "gslb1.example.com:8053"})
			if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), media) || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %d %v", path, w.Code, w.Header())
			}
			policy := w.Header().Get("Content-Security-Policy")
			if !strings.Contains(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: %s", path, policy)
			}
			if path == "/" {
				for _, bad := range []string{`(?i)<script[^>]*>[^<]`, `(?i)<style`, `(?i)\sstyle=`, `(?i)\son[a-z]+=`, `(?i)(src|href)="(http|//)`} {
					if found := regexp.MustCompile(bad).FindString(w.Body.String()); found != "" {
						t.Errorf("the page has %q", found)
					}
				}
			}
			if path == "/dashboard/script.js" {
				for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://127", "https://"} {
					if strings.Contains(w.Body.String(), bad) {
						t.Errorf("the script has %q", bad)
					}
				}
			}
		}
		for _, path := range []string{"/v1/overview", "/v1/loads", "/v1/events", "/v1/", "/v1/rtt", "/v1/services/" + name + "/decisions"} {
			if w := h.do(call{path: path, from: "192.0.2.9:4711"}); w.Code != 401 {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
		if w := h.do(call{path: "/v1/"}); w.Code != 200 || !strings.Contains(w.Body.String(), "/v1/overview") {
			t.Errorf("%d", w.Code)
		}
		if w := h.do(call{path: "/dashboard/../admin.go"}); w.Code == 200 {
			t.Errorf("%d", w.Code)
		}
	})
}
