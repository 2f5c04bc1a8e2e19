package control

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gslbd/state"
)

// TestMain lets the test binary be the process that is killed: see TestKilledWhileWriting.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CONTROL_TEST_WRITER"); dir != "" {
		writeUntilKilled(dir)
		return
	}
	os.Exit(m.Run())
}

// fleetStore returns a configured Store: two services of which one has another name, three sites in two zones.
func fleetStore(t testing.TB) *state.Store {
	t.Helper()
	s, err := state.New(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	configureFleet(s)
	return s
}

func configureFleet(s *state.Store, more ...string) {
	member := func(name string, last byte) state.MemberConfig {
		return state.MemberConfig{Name: name, Site: name, Weight: 100, Addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}}
	}
	s.Configure(&state.Config{
		Sites: []state.SiteConfig{
			{Name: "seoul", Zone: "apne2-az1"}, {Name: "busan", Zone: "apne2-az2"}, {Name: "virginia", Zone: "use1-az1"},
		},
		Services: []state.ServiceConfig{
			{
				Name: "www.example.com", Aliases: append([]string{"shop.example.com"}, more...), UnknownUp: true, TTL: 30,
				Members: []state.MemberConfig{member("seoul", 1), member("busan", 2), member("virginia", 3)},
			},
			{Name: "api.example.com", UnknownUp: true, TTL: 30, Members: []state.MemberConfig{member("seoul", 4), member("virginia", 5)}},
		},
	})
}

var fleetConfig = Config{ZoneAliases: []ZoneAlias{{ID: "apne2-az1", Names: []string{"ap-northeast-2a"}}}}

func openControl(t testing.TB, dir string) *Control {
	t.Helper()
	c := New(Options{Directory: dir, Node: "gslb1", Store: fleetStore(t), Config: fleetConfig})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func orderTo(action string, target Target) Order {
	return Order{ID: newID(), Created: time.Now().UTC().Round(0), Author: "kim@ops", Reason: "bad disk", Target: target, Action: action}
}

// forced returns what the members of a service are forced to, in the order of the configuration.
func forced(s *state.Store, service string) string {
	var all []string
	for _, m := range s.Snapshot().ServiceByName(service).Members {
		f := m.Forced.String()
		if f == "" {
			f = "-"
		}
		all = append(all, f)
	}
	return strings.Join(all, " ")
}

func mustForce(t testing.TB, c *Control, o Order) Receipt {
	t.Helper()
	r, err := c.Force(context.Background(), o, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// expectError fails unless err wraps kind and says all of what.
func expectError(t testing.TB, err, kind error, what ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v", kind)
	}
	if !errors.Is(err, kind) {
		t.Errorf("error %q is not %q", err, kind)
	}
	for _, w := range what {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not say %q: %v", w, err)
		}
	}
}
