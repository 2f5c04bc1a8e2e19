package policy_test

import (
	"net/netip"
	"testing"

	"gslbd/policy"
)

// A query without a usable address is still answered: what needs the client abstains, and hash treats all such alike.
func TestUnknownClient(t *testing.T) {
	w := busy(t, 3)
	w.of("m1").Preference = 900
	nobody := func(q *policy.Query) { q.LDNS = netip.Addr{} }
	got, d, trace := w.decide(build(t, "rtt", "geo", "preference"), nobody)
	if got != "m1" || d.Reason.String() != "preference" || verdicts(trace) != "rtt:abstained geo:abstained preference:decided" {
		t.Errorf("got %s by %s: %s", got, d.Reason, verdicts(trace))
	}
	one, _, trace := w.decide(build(t, "static=hash"), nobody)
	two, _, _ := w.decide(build(t, "static=hash"), nobody, turn(9))
	if one != two || trace.Steps[0].Note != "hash of unknown client" {
		t.Errorf("%s and %s (%s)", one, two, trace.Steps[0].Note)
	}
}
