package admin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// A continued Gatherer adds to the counters of a process those of the process that it has taken over from, so that they go on.
// It is immutable.
type continued struct {
	prometheus.Gatherer
	before map[string]*dto.MetricFamily
}

// goOn returns a Gatherer whose counters go on from those that Server.Counters told of.
func goOn(g prometheus.Gatherer, counters []byte) (prometheus.Gatherer, error) {
	if len(counters) == 0 {
		return g, nil
	}
	c := &continued{g, map[string]*dto.MetricFamily{}}
	decoder := expfmt.NewDecoder(bytes.NewReader(counters), counterFormat)
	for {
		f := new(dto.MetricFamily)
		err := decoder.Decode(f)
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return g, fmt.Errorf("admin: counters of the process before: %w", err)
		}
		c.before[f.GetName()] = f
	}
}

// counterFormat is how counters are told to another process, which may be of another version.
var counterFormat = expfmt.NewFormat(expfmt.TypeProtoDelim)

// Gather implements prometheus.Gatherer. What was counted before and not yet again is told as well, unless its service,
// member or site is no longer there.
func (c *continued) Gather() ([]*dto.MetricFamily, error) {
	families, err := c.Gatherer.Gather()
	there := map[string]bool{} // what things are named by, as labels spells it
	for _, f := range families {
		for _, m := range f.Metric {
			_, thing := labels(m)
			there[thing] = true
		}
	}
	all := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		all[f.GetName()] = f
	}
	for name, before := range c.before {
		f := all[name]
		if f == nil {
			f = &dto.MetricFamily{Name: before.Name, Help: before.Help, Type: before.Type}
			families = append(families, f)
		}
		series := make(map[string]*dto.Metric, len(f.Metric))
		for _, m := range f.Metric {
			key, _ := labels(m)
			series[key] = m
		}
		for _, b := range before.Metric {
			key, thing := labels(b)
			if m := series[key]; m != nil {
				addCounts(m, b)
			} else if thing == "" || there[thing] {
				f.Metric = append(f.Metric, b)
			}
		}
	}
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, err
}

// addCounts adds the counts of b to m, which is of the same series.
func addCounts(m, b *dto.Metric) {
	if m.Counter != nil && b.Counter != nil {
		sum := m.Counter.GetValue() + b.Counter.GetValue()
		m.Counter.Value = &sum
	}
	h, was := m.Histogram, b.Histogram
	if h == nil || was == nil || !slices.EqualFunc(h.Bucket, was.Bucket, func(x, y *dto.Bucket) bool { return x.GetUpperBound() == y.GetUpperBound() }) {
		return
	}
	count, sum := h.GetSampleCount()+was.GetSampleCount(), h.GetSampleSum()+was.GetSampleSum()
	h.SampleCount, h.SampleSum = &count, &sum
	for i, bucket := range h.Bucket {
		cumulative := bucket.GetCumulativeCount() + was.Bucket[i].GetCumulativeCount()
		bucket.CumulativeCount = &cumulative
	}
}

// labels spells the labels of a series, which are sorted, and those of them that name what the configuration names.
func labels(m *dto.Metric) (all, thing string) {
	var a, t strings.Builder
	for _, l := range m.Label {
		fmt.Fprintf(&a, "%s=%q,", l.GetName(), l.GetValue())
		switch l.GetName() {
		case "service", "member", "site":
			fmt.Fprintf(&t, "%s=%q,", l.GetName(), l.GetValue())
		}
	}
	return a.String(), t.String()
}

// Counters returns the counters of telemetry for Options.Counters of the process that takes over from this one. Those of the
// Go runtime and the operating system are left out, since they are a process's own.
func (s *Server) Counters() ([]byte, error) {
	families, err := s.gatherer.Gather()
	if err != nil {
		return nil, fmt.Errorf("admin: counters: %w", err)
	}
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, counterFormat)
	for _, f := range families {
		counts := f.GetType() == dto.MetricType_COUNTER || f.GetType() == dto.MetricType_HISTOGRAM
		if !counts || !strings.HasPrefix(f.GetName(), "gslbd_") {
			continue
		}
		if err := encoder.Encode(f); err != nil {
			return nil, fmt.Errorf("admin: counters: %w", err)
		}
	}
	return b.Bytes(), nil
}
