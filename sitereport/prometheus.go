package sitereport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	maxSeriesLine = 64 << 10 // bytes of one line of the series that are read
	maxSeries     = 200_000  // series that are read of one answer: 25,000 servers with a series for each of 7 states
)

// PrometheusOptions configure a Prometheus reader.
type PrometheusOptions struct {
	HTTP           HTTPOptions
	Load           PrometheusLoad
	VirtualServers []PrometheusVirtualServer // none: Load is that of virtual servers that others tell of
}

// PrometheusLoad says which series the figures of a Load come from; nil: the figure is not known.
type PrometheusLoad struct {
	Sessions, NewSessions       *PrometheusFigure
	BitsPerSecIn, BitsPerSecOut *PrometheusFigure
}

// A PrometheusFigure is one figure: the sum of all series that match, times Factor.
type PrometheusFigure struct {
	Series  string  // name, or name{label="value",...}: all labels that are given must be equal
	Counter bool    // the figure is what each series grew by a second; else it is their value
	Factor  float64 // such as 8 for bits of bytes
}

// A PrometheusVirtualServer is a virtual server whose servers are told by series.
type PrometheusVirtualServer struct {
	Name string

	// Address, Port and Protocol are reported as they are; a member of gslbd is found by them or by Name.
	Address  netip.Addr
	Port     uint16
	Protocol string

	Sessions *PrometheusFigure // nil: not known
	Servers  PrometheusServers
}

// PrometheusServers say what series tell the state of servers: each that matches Series is one, whose name is the value of
// Label. It is up when the value is Up, else down; unless a series that matches Drain or Maint and names the server too
// has another value than 0.
type PrometheusServers struct {
	Series, Label string
	Up            float64
	Drain, Maint  string // "": there are none
}

// A Prometheus reads a page of telemetry in Prometheus' text format, of any exporter.
//
// A series that does not exist, or whose value is no number, is a warning, and what comes from it is unknown. Of other
// series nothing is read, so that they may be as they like. It is for one reader at a time.
type Prometheus struct {
	// Fixed at construction.
	source   *source
	figures  [4]*prometheusFigure // sessions, new sessions, bits in, bits out; nil: not known
	load     Figures              // those that are known
	servers  []prometheusServers
	selected map[string][]*selector // by the name of the series

	known map[string][]Server // owned by Read: the servers last seen, by virtual server
}

type prometheusFigure struct {
	selector *selector
	what     string // in warnings
	factor   float64
	growth   *growth // nil: it is no counter
}

type prometheusServers struct {
	opts                PrometheusVirtualServer
	sessions            *prometheusFigure // nil: not known
	state, drain, maint *selector         // nil: there are none
}

// A selector chooses series, and holds those of one reading.
type selector struct {
	text   string
	name   string
	labels []label

	samples []sample
	others  int // series of that name with other labels
}

type (
	label  struct{ name, value string }
	sample struct {
		labels []label
		value  float64
	}
)

// NewPrometheus returns a reader. It fails when the URL is none, or a series cannot be read.
func NewPrometheus(o PrometheusOptions) (*Prometheus, error) {
	s, err := newSource("prometheus", o.HTTP)
	if err != nil {
		return nil, err
	}
	p := &Prometheus{source: s, selected: make(map[string][]*selector), known: make(map[string][]Server)}
	for i, f := range []struct {
		*PrometheusFigure
		what string
		is   Figures
	}{
		{o.Load.Sessions, "sessions", FigureSessions},
		{o.Load.NewSessions, "new_sessions_per_second", FigureNewSessions},
		{o.Load.BitsPerSecIn, "bits_per_second_in", FigureBitsIn},
		{o.Load.BitsPerSecOut, "bits_per_second_out", FigureBitsOut},
	} {
		if f.PrometheusFigure == nil {
			continue
		}
		if p.figures[i], err = p.figure("load."+f.what, f.PrometheusFigure); err != nil {
			return nil, err
		}
		p.load |= f.is
	}
	for _, v := range o.VirtualServers {
		out := prometheusServers{opts: v}
		what := fmt.Sprintf("virtual server %q: ", v.Name)
		if v.Sessions != nil {
			if out.sessions, err = p.figure(what+"sessions", v.Sessions); err != nil {
				return nil, err
			}
		}
		for _, s := range []struct {
			text string
			into **selector
		}{{v.Servers.Series, &out.state}, {v.Servers.Drain, &out.drain}, {v.Servers.Maint, &out.maint}} {
			if s.text == "" && s.into != &out.state {
				continue
			}
			if *s.into, err = p.selector(s.text); err != nil {
				return nil, fmt.Errorf("prometheus: %sservers: %w", what, err)
			}
		}
		p.servers = append(p.servers, out)
	}
	return p, nil
}

func (p *Prometheus) figure(what string, f *PrometheusFigure) (*prometheusFigure, error) {
	s, err := p.selector(f.Series)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %s: %w", what, err)
	}
	out := &prometheusFigure{selector: s, what: what, factor: f.Factor}
	if f.Counter {
		out.growth = new(growth)
	}
	return out, nil
}

// selector reads a selector, which looks like a series without its value.
func (p *Prometheus) selector(text string) (*selector, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	name, one, err := parseSeries(&parser, []byte(text+" 0"))
	if err != nil || strings.Contains(text, "\n") || !strings.HasSuffix(text, "}") && strings.ContainsAny(text, " \t") {
		return nil, fmt.Errorf("%q is not a series: write name, or name{label=\"value\"}", shorten(text))
	}
	s := &selector{text: text, name: name, labels: one.labels}
	p.selected[name] = append(p.selected[name], s)
	return s, nil
}

// parseSeries reads one line of the format.
func parseSeries(parser *expfmt.TextParser, line []byte) (name string, s sample, err error) {
	families, err := parser.TextToMetricFamilies(bytes.NewReader(append(line[:len(line):len(line)], '\n')))
	if err != nil {
		return "", sample{}, err
	}
	for name, f := range families {
		m := f.GetMetric()[0]
		s.value = m.GetUntyped().GetValue()
		for _, l := range m.GetLabel() {
			s.labels = append(s.labels, label{l.GetName(), l.GetValue()})
		}
		return name, s, nil
	}
	return "", sample{}, errors.New("no series")
}

// Read reads the page once.
func (p *Prometheus) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, p.source.timeout)
	defer cancel()
	page, err := p.source.get(ctx, "", "")
	if err == nil {
		err = p.collect(page)
	}
	if err == nil {
		return p.interpret(time.Now()), nil
	}
	err = p.source.failed(err)
	r := p.reading()
	for _, f := range p.figures {
		f.reset()
	}
	for i := range p.servers {
		v := &p.servers[i]
		v.sessions.reset()
		r.VirtualServers = append(r.VirtualServers, v.with(unknownServers(p.known[v.opts.Name], err.Error())))
	}
	return r, err
}

// reading returns a reading that says what this reader is there for.
func (p *Prometheus) reading() Reading {
	if len(p.servers) == 0 {
		return Reading{Supplies: p.load}
	}
	return Reading{Yields: AllFigures &^ p.load}
}

// collect gives the selectors the series of a page.
func (p *Prometheus) collect(page []byte) error {
	for _, all := range p.selected {
		for _, s := range all {
			s.samples, s.others = nil, 0
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	series := 0
	for line := range bytes.Lines(page) {
		line = bytes.TrimSpace(line)
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 {
			continue
		}
		selectors := p.selected[string(line[:end])]
		if len(selectors) == 0 {
			continue
		}
		if len(line) > maxSeriesLine {
			return fmt.Errorf("a line of %s is longer than %d bytes", line[:end], maxSeriesLine)
		}
		if series++; series > maxSeries {
			return fmt.Errorf("more than %d series have the names that are read", maxSeries)
		}
		_, one, err := parseSeries(&parser, line)
		if err != nil {
			return fmt.Errorf("%s cannot be read as a series", printable(shorten(string(line)), 128))
		}
		for _, s := range selectors {
			if s.matches(one.labels) {
				s.samples = append(s.samples, one)
			} else {
				s.others++
			}
		}
	}
	return nil
}

func (s *selector) matches(labels []label) bool {
	for _, want := range s.labels {
		if value(labels, want.name) != want.value {
			return false
		}
	}
	return true
}

// value returns that of a label, "" without it, which is the same.
func value(labels []label, name string) string {
	i := slices.IndexFunc(labels, func(l label) bool { return l.name == name })
	if i < 0 {
		return ""
	}
	return labels[i].value
}

// missing says why there is no sample; "" when there are some.
func (s *selector) missing() string {
	switch {
	case len(s.samples) > 0:
		return ""
	case s.others > 0:
		return fmt.Sprintf("there is no series %s; the %d of that name have other labels", s.text, s.others)
	}
	return fmt.Sprintf("there is no series %s", s.text)
}

// of returns the figure, and what to warn of when there is none. A counter has none at first, which is no fault.
func (f *prometheusFigure) of(now time.Time, most float64) (v *float64, warning string) {
	if f == nil {
		return nil, ""
	}
	if why := f.selector.missing(); why != "" {
		f.reset()
		return nil, f.what + ": " + why + ", so the figure is not known"
	}
	series := make(map[string]float64)
	for _, s := range f.selector.samples {
		series[fmt.Sprintf("%q", s.labels)] = s.value
	}
	var sum float64
	for _, v := range series {
		sum += v
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		f.reset()
		return nil, fmt.Sprintf("%s: %s is %v, so the figure is not known", f.what, f.selector.text, sum)
	}
	if f.growth != nil {
		rates := f.growth.rates(now, series)
		if rates == nil {
			return nil, ""
		}
		sum = 0
		for _, r := range rates {
			sum += r
		}
	}
	if sum *= f.factor; !(sum >= 0 && sum <= most) {
		return nil, fmt.Sprintf("%s: %v is not between 0 and %v, so the figure is not known", f.what, sum, most)
	}
	return &sum, ""
}

func (f *prometheusFigure) reset() {
	if f != nil && f.growth != nil {
		f.growth.reset()
	}
}

// interpret makes a reading of what the selectors hold.
func (p *Prometheus) interpret(now time.Time) Reading {
	r := p.reading()
	figure := func(f *prometheusFigure, most float64) *float64 {
		v, warning := f.of(now, most)
		if warning != "" {
			r.Warnings = append(r.Warnings, warning)
		}
		return v
	}
	rounded := func(f *prometheusFigure, most float64) *uint64 {
		if v := figure(f, most); v != nil {
			return whole(*v, most)
		}
		return nil
	}
	r.Load = Load{
		Sessions: rounded(p.figures[0], MaxSessions), NewSessions: figure(p.figures[1], MaxNewSessions),
		BitsPerSecIn: rounded(p.figures[2], MaxBits), BitsPerSecOut: rounded(p.figures[3], MaxBits),
	}
	for i := range p.servers {
		v := &p.servers[i]
		servers, warnings := v.states()
		for _, w := range warnings {
			r.Warnings = append(r.Warnings, fmt.Sprintf("virtual server %q: %s", v.opts.Name, w))
		}
		if servers == nil {
			servers = unknownServers(p.known[v.opts.Name], warnings[0])
		} else {
			p.known[v.opts.Name] = servers
		}
		out := v.with(servers)
		out.Sessions = rounded(v.sessions, MaxSessions)
		r.VirtualServers = append(r.VirtualServers, out)
	}
	return r
}

// states returns the servers; nil, with a warning, when there is no series of them.
func (v *prometheusServers) states() (servers []Server, warnings []string) {
	if why := v.state.missing(); why != "" {
		return nil, []string{why + ", so nothing is known of its servers"}
	}
	at, nameless := make(map[string]int), 0
	for _, s := range v.state.samples {
		name := value(s.labels, v.opts.Servers.Label)
		if name == "" {
			nameless++
			continue
		}
		one := v.server(name, s.value)
		if one.State == StateUnknown {
			warnings = append(warnings, fmt.Sprintf("server %q: %s, so it is reported as unknown", name, one.Reason))
		}
		if i, twice := at[name]; !twice {
			at[name] = len(servers)
			servers = append(servers, one)
		} else if servers[i].State != one.State {
			servers[i].State, servers[i].Reason = StateUnknown, "several series name it, and differ"
			warnings = append(warnings, fmt.Sprintf("several series of %s name the server %q, and differ, so it is reported as unknown: add labels", v.state.text, name))
		}
	}
	if nameless > 0 {
		warnings = append(warnings, fmt.Sprintf("%d series of %s have no label %s, so they name no server", nameless, v.state.text, v.opts.Servers.Label))
	}
	for _, out := range []struct {
		selector *selector
		state    string
	}{{v.drain, StateDrain}, {v.maint, StateMaint}} {
		if out.selector == nil {
			continue
		}
		if why := out.selector.missing(); why != "" {
			warnings = append(warnings, why+", so no server is known to be in "+out.state)
		}
		for _, s := range out.selector.samples {
			if i, known := at[value(s.labels, v.opts.Servers.Label)]; known && s.value != 0 && !math.IsNaN(s.value) {
				servers[i].State, servers[i].Reason = out.state, out.selector.text
			}
		}
	}
	if len(servers) == 0 {
		return nil, warnings
	}
	return servers, warnings
}

// server returns the server of one series. Without an address the name is all there is, and those of different virtual
// servers are often called alike.
func (v *prometheusServers) server(name string, value float64) Server {
	s := Server{Name: v.opts.Name + "/" + name, State: StateDown, Reason: fmt.Sprintf("%s is %v", v.state.name, value)}
	if _, err := netip.ParseAddrPort(name); err == nil {
		s.Name, s.Address = name, name
	}
	switch {
	case value == v.opts.Servers.Up:
		s.State, s.Reason = StateUp, ""
	case math.IsNaN(value) || math.IsInf(value, 0):
		s.State = StateUnknown
	}
	return s
}

// with returns the virtual server with the servers.
func (v *prometheusServers) with(servers []Server) VirtualServer {
	return VirtualServer{Name: v.opts.Name, Address: v.opts.Address, Port: v.opts.Port, Protocol: v.opts.Protocol, Servers: servers}
}
