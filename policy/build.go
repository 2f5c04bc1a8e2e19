package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gslbd/state"
)

// StepOptions configure one metric of a chain. Every parameter is resolved: a zero is a zero, not a default (the
// defaults are in docs/policies.md and belong to config). A metric ignores the parameters that are not its own.
type StepOptions struct {
	Metric   string // its name, as in the configuration
	Disabled bool   // enabled: false

	Tolerance     float64       // rtt, connection-load, headroom, probe-latency: share of the best value, 0..; 0.1 is 10 %
	ToleranceAbs  time.Duration // rtt: at least this much above the best is kept
	ToleranceRate float64       // connection-load: the same, in sessions per second
	MaxAge        time.Duration // rtt: how old the newest sample may be
	RequireData   bool          // rtt: rejects candidates without fresh data
	Explore       float64       // rtt: share of client networks sent elsewhere than what their own round trips say, 0..1
	Levels        []string      // geo: override, distance, subdivision, country, continent, in any order, each at most once
	ToleranceKm   float64       // geo: kilometres beyond the nearest that distance keeps
	Limit         float64       // connection-load: new sessions per second; 0: off
	HalfLife      time.Duration // least-selected: of the decay of its counts
	Method        string        // static: round-robin, weighted, hash or ordered
}

// A Reason says what settled a decision: a metric, or one of the three that are none. It is below state.MaxReasons.
type Reason uint8

// The reasons that are no metrics.
const (
	// ReasonConstraints: orders, weights and drains left one member of several, or none; or no metric told the
	// candidates apart, so that the order of the configuration stood.
	ReasonConstraints Reason = iota
	// ReasonSingle: the pool has only one member with an address of the asked family.
	ReasonSingle
	// ReasonOnAllDown: no candidate of the asked family was up.
	ReasonOnAllDown

	firstMetric // the reason of metrics[0]
)

// A metricEntry names a metric and builds it.
type metricEntry struct {
	name  string
	build func(StepOptions) (Metric, error)
}

// metrics lists every metric. Its place here is its reason, and the order of their names in telemetry.
var metrics = [...]metricEntry{
	{"health", newHealth},
	{"capacity", newCapacity},
	{"rtt", newRTT},
	{"geo", newGeo},
	{"connection-load", newConnectionLoad},
	{"preference", newPreference},
	{"least-selected", newLeastSelected},
	{"static", newStatic},
	{"headroom", newHeadroom},
	{"active-servers", newActiveServers},
	{"cost", newCost},
	{"probe-latency", newProbeLatency},
}

// A negative constant here means that state.MaxReasons no longer suffices.
const _ = uint(state.MaxReasons - int(firstMetric) - len(metrics))

// String returns the metric's name, or constraints, single or on_all_down.
func (r Reason) String() string {
	switch {
	case r == ReasonConstraints:
		return "constraints"
	case r == ReasonSingle:
		return "single"
	case r == ReasonOnAllDown:
		return "on_all_down"
	case int(r-firstMetric) < len(metrics):
		return metrics[r-firstMetric].name
	}
	return fmt.Sprintf("reason %d", r)
}

// Reasons returns the names of all reasons; each stands at the index that is its Reason.
func Reasons() []string {
	names := make([]string, int(firstMetric)+len(metrics))
	for i := range names {
		names[i] = Reason(i).String()
	}
	return names
}

// Build compiles a policy. It reports every step that is wrong: an unknown or repeated metric, a parameter out of its
// range, a chain without steps.
func Build(name string, steps []StepOptions) (*Chain, error) {
	c := &Chain{name: name, halfLife: time.Minute, health: -1}
	var errs []error
	if len(steps) == 0 {
		errs = append(errs, errors.New("the chain is empty; list at least one metric"))
	}
	for i, o := range steps {
		index := slices.IndexFunc(metrics[:], func(m metricEntry) bool { return m.name == o.Metric })
		if index < 0 {
			errs = append(errs, fmt.Errorf("chain[%d]: unknown metric %q; known are %s", i, o.Metric, strings.Join(Reasons()[firstMetric:], ", ")))
			continue
		}
		reason := firstMetric + Reason(index)
		if slices.ContainsFunc(c.steps, func(s step) bool { return s.reason == reason }) {
			errs = append(errs, fmt.Errorf("chain[%d]: metric %q is listed twice; keep one", i, o.Metric))
			continue
		}
		metric, err := metrics[index].build(o)
		if err != nil {
			errs = append(errs, fmt.Errorf("chain[%d]: %s: %w", i, o.Metric, err))
			continue
		}
		s := step{reason: reason, metric: metric, disabled: o.Disabled}
		switch m := metric.(type) {
		case health:
			s.health = true
			if !o.Disabled {
				c.health = len(c.steps)
			}
		case static:
			s.orders = true
		case rtt:
			c.usesRTT = !o.Disabled
		case leastSelected:
			if !o.Disabled {
				c.halfLife = m.halfLife
			}
		}
		if o.Disabled {
			c.disabled |= 1 << len(c.steps)
		}
		c.steps = append(c.steps, s)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("policy %q: %w", name, errors.Join(errs...))
	}
	return c, nil
}
