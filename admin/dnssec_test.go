package admin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/admin"
	"gslbd/state"
)

func TestDNSSEC(t *testing.T) {
	h := newHouse(t, func(*admin.Options, *state.Config) {})
	if w := h.do(call{path: "/v1/dnssec"}); w.Code != 200 || !strings.Contains(w.Body.String(), `"zones":[]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	next := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	zones := []admin.SignedZone{{
		Name: "gslb.test", Problem: "why",
		Keys: []admin.Key{{Tag: 1, Role: "csk", Algorithm: "ed25519", State: "active", Next: &next, Synced: true, File: "f", DS: "d"}},
	}}
	h = newHouse(t, func(o *admin.Options, _ *state.Config) {
		o.SignedZones = func(*state.Snapshot) []admin.SignedZone { return zones }
	})
	var got admin.DNSSEC
	if h.get("/v1/dnssec", &got); got.Time.IsZero() || !cmp.Equal(got.Zones, zones) {
		t.Error(cmp.Diff(zones, got.Zones))
	}
}
