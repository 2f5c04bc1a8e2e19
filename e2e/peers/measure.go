//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// errNoAnswer is of a measurement in which nothing was answered: on a machine that has other work a server may just not have run.
var errNoAnswer = errors.New("no answer")

// attempts is how often a server is asked before that counts.
const attempts = 5

// A workload is what all servers are asked alike.
type workload struct {
	key, title string
	large      bool
	kind       string // of queries
	tcp        bool
	connect    bool // a connection for each query
	cores      bool // all cores serve, and all ask
}

var workloads = []workload{
	{key: "one", title: "(a) one name, UDP, no ECS"},
	{key: "large", title: "(b) 10,000 services, 100 sites, ECS of 100,000 networks, round trips of 1,000,000, UDP", large: true},
	{key: "nxdomain", title: "(c) names that do not exist, UDP", kind: "nxdomain"},
	{key: "tcp", title: "(d) one name, TCP, 20 connections kept", tcp: true},
	{key: "tcp-new", title: "(d) one name, TCP, a connection for each query", connect: true},
	{key: "cores", title: "(e) one name, UDP, all cores serve and ask", cores: true},
}

// expected returns what client.expected says for a server's answers.
func (w *workload) expected(s *server) int {
	switch {
	case s.blind:
		return -1
	case w.kind == "nxdomain":
		return 3
	}
	return 0
}

// A sample is one server's result in one round.
type sample struct {
	Rate   float64       // queries a second
	CPU    float64       // nanoseconds a query
	P99    time.Duration // at half load, see plan.pace; 0: not measured
	Lost   int
	Allocs float64 // heap allocations a query; below 0: not known
}

// A result is what a workload brought: by server, the rounds.
type result struct {
	Workload string
	Samples  map[string][]sample
	Pace     float64           // queries a second at half load; 0: not measured
	Why      map[string]string // of the servers that were left out
}

// A plan is what the process in the namespace is to do. It comes by standard input.
type plan struct {
	Dir      string
	Database string
	Programs map[string]string // by server
	Why      map[string]string // of those that are missing
	Rounds   int
	Long     time.Duration // of one measurement
	Serve    int           // core
	Ask      int
	Cores    int // of the machine
	Services int // of the large world
	Networks int
	Only     []string // keys of workloads
	DNSPerf  bool     // asks over UDP too
	HaveDNS  bool     // dnsperf is installed
}

func (p *plan) world(large bool) *world {
	if large {
		return &world{sites: 100, services: p.Services, members: 8, networks: p.Networks, database: p.Database}
	}
	return &world{sites: 4, services: 1, members: 4, database: p.Database}
}

// measureAll runs all workloads. Those with the same world and cores share the servers.
func (p *plan) measureAll() ([]result, error) {
	var results []result
	for _, group := range []struct{ large, cores bool }{{false, false}, {true, false}, {false, true}} {
		var of []workload
		for _, w := range workloads {
			if w.large == group.large && w.cores == group.cores && slices.Contains(p.Only, w.key) {
				of = append(of, w)
			}
		}
		if len(of) == 0 {
			continue
		}
		more, err := p.measureGroup(p.world(group.large), of)
		if err != nil {
			return nil, err
		}
		results = append(results, more...)
	}
	slices.SortFunc(results, func(a, b result) int { return order(a.Workload) - order(b.Workload) })
	return results, nil
}

func order(key string) int {
	return slices.IndexFunc(workloads, func(w workload) bool { return w.key == key })
}

// A running server waits for its turn.
type running struct {
	*server
	*process
	port int
}

func (p *plan) measureGroup(w *world, of []workload) ([]result, error) {
	dir, err := os.MkdirTemp(p.Dir, "group")
	if err != nil {
		return nil, err
	}
	why := map[string]string{}
	var up []*running
	defer func() {
		for _, r := range up {
			r.stop()
		}
	}()
	for i := range servers {
		s := &servers[i]
		if p.Programs[s.name] == "" {
			why[s.name] = p.Why[s.name]
			continue
		}
		if w.large() && s.cannot["large"] != "" || of[0].cores && s.cannot["cores"] != "" {
			continue
		}
		r, err := p.launch(s, w, dir, 5300+i, of[0].cores)
		if err != nil {
			why[s.name] = "it did not start"
			fmt.Fprintf(os.Stderr, "NOT MEASURED: %s: %v\n", s.name, err)
			continue
		}
		up = append(up, r)
		r.signal(syscall.SIGSTOP)
	}

	results := make([]result, len(of))
	for i, load := range of {
		results[i] = result{Workload: load.key, Samples: map[string][]sample{}, Why: map[string]string{}}
		if load.tcp && !p.HaveDNS {
			results[i].Why = map[string]string{"all": "dnsperf is not installed (Debian package dnsperf)"}
			continue
		}
		all := queries(w, load.kind)
		file := filepath.Join(dir, load.key+".queries")
		if err := writeQueries(file, all); err != nil {
			return nil, err
		}
		for _, s := range servers {
			if text := s.cannot[load.key]; text != "" {
				results[i].Why[s.name] = text
			} else if text := why[s.name]; text != "" {
				results[i].Why[s.name] = text
			}
		}
		for _, r := range up {
			if results[i].Why[r.name] == "" && !load.tcp && !load.connect {
				p.warm(r, &load, all)
			}
		}
		for round := range p.Rounds {
			for _, r := range turn(up, round) {
				if results[i].Why[r.name] != "" {
					continue
				}
				sample, err := p.measure(r, &load, all, file)
				for try := 1; err == errNoAnswer && try < attempts; try++ {
					sample, err = p.measure(r, &load, all, file)
				}
				if err != nil {
					results[i].Why[r.name] = err.Error()
					delete(results[i].Samples, r.name)
					fmt.Fprintf(os.Stderr, "NOT MEASURED: %s, %s: %v\n", r.name, load.key, err)
					continue
				}
				fmt.Fprintf(os.Stderr, "%-8s round %d %-12s %8.0f queries/s %6.0f ns/query allocations/query %.4f lost %d\n", load.key, round+1, r.name, sample.Rate, sample.CPU, sample.Allocs, sample.Lost)
				results[i].Samples[r.name] = append(results[i].Samples[r.name], sample)
			}
		}
		if !load.tcp && !load.connect && !load.cores {
			if err := p.pace(&results[i], &load, up, all); err != nil {
				return nil, err
			}
		}
	}
	return results, nil
}

// turn returns the order in which the servers have their turns in a round.
func turn(up []*running, round int) []*running {
	out := slices.Clone(up)
	if round%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// pace asks all servers at half load: half of what the slower of gslbd and gdnsd answers, so that both are asked alike, and
// half of its own for who answers less.
func (p *plan) pace(of *result, w *workload, up []*running, all [][]byte) error {
	half := func(name string) float64 {
		samples := of.Samples[name]
		return spreadOf(samples, func(i int) float64 { return samples[i].Rate }).median / 2
	}
	for _, name := range []string{"gslbd", "gdnsd"} {
		if len(of.Samples[name]) > 0 && (of.Pace == 0 || half(name) < of.Pace) {
			of.Pace = half(name)
		}
	}
	for round := range p.Rounds {
		for _, r := range turn(up, round) {
			if samples := of.Samples[r.name]; round < len(samples) {
				rate := half(r.name)
				if of.Pace > 0 {
					rate = min(rate, of.Pace)
				}
				r.signal(syscall.SIGCONT)
				_, err := p.ask(r, w, all, rate, p.Long/4, 1) // to warm it up
				var paced load
				if err == nil {
					paced, err = p.ask(r, w, all, rate, p.Long, 1)
				}
				r.signal(syscall.SIGSTOP)
				if err != nil {
					return err
				}
				samples[round].P99 = paced.percentile(0.99)
				fmt.Fprintf(os.Stderr, "%-8s round %d %-12s at %.0f queries/s: p50 %v p99 %v\n", w.key, round+1, r.name, rate, paced.percentile(0.5), samples[round].P99)
			}
		}
	}
	return nil
}

// launch starts a server and waits until it answers.
func (p *plan) launch(s *server, w *world, groupDir string, port int, allCores bool) (*running, error) {
	dir := filepath.Join(groupDir, strconv.Itoa(port))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	cores, threads := []int{p.Serve}, 1
	if allCores {
		cores, threads = nil, p.Cores
		for c := range p.Cores {
			cores = append(cores, c)
		}
	}
	args, err := s.configure(w, dir, port, threads)
	if err != nil {
		return nil, err
	}
	proc, err := start(cores, p.Programs[s.name], dir, args...)
	if err != nil {
		return nil, err
	}
	r := &running{server: s, process: proc, port: port}
	if err := r.wait(w); err != nil {
		r.stop()
		return nil, fmt.Errorf("%w\n%s", err, r.output.String())
	}
	if s.name == "gslbd" {
		if err := feed(w); err != nil {
			r.stop()
			return nil, fmt.Errorf("%w\n%s", err, r.output.String())
		}
	}
	return r, nil
}

// wait returns when the server has answered.
func (r *running) wait(w *world) error {
	c, err := dial(r.port, queries(w, "")[:1], 0)
	if err != nil {
		return err
	}
	defer c.close()
	for until := time.Now().Add(5 * time.Minute); time.Now().Before(until); {
		select {
		case <-r.ended:
			return fmt.Errorf("%s has ended", r.name)
		default:
		}
		l, err := c.run(20, 200*time.Millisecond)
		if err == nil && l.answered > 0 && l.wrong == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s gives no right answer", r.name)
}

// warm asks all there is to ask once, so that what a server keeps of a client is there when it is measured. What goes wrong
// shows when it is measured.
func (p *plan) warm(r *running, w *workload, all [][]byte) {
	r.signal(syscall.SIGCONT)
	defer r.signal(syscall.SIGSTOP)
	answered := 0
	for try := 0; answered < len(all) && try < 40; try++ {
		l, err := p.ask(r, w, all[answered:], 0, p.Long/4, 1)
		if err != nil || l.answered == 0 {
			return
		}
		answered += l.answered
	}
}

// measure gives a server its turn.
func (p *plan) measure(r *running, w *workload, all [][]byte, file string) (sample, error) {
	r.signal(syscall.SIGCONT)
	defer r.signal(syscall.SIGSTOP)
	askers := 1
	if w.cores {
		askers = p.Cores
	}
	ask := func(long time.Duration) (load, error) {
		switch {
		case w.connect:
			var l load
			err := pinned([]int{p.Ask}, func() (err error) {
				l, err = connect(r.port, all[0], w.expected(r.server), long)
				return err
			})
			return l, err
		case w.tcp:
			return dnsperf(p.Ask, r.port, "tcp", file, w.expected(r.server), long)
		case p.DNSPerf:
			return dnsperf(p.Ask, r.port, "udp", file, w.expected(r.server), long)
		}
		return p.ask(r, w, all, 0, long, askers)
	}
	if _, err := ask(p.Long / 4); err != nil { // to warm it up
		return sample{}, err
	}
	mallocs := r.mallocs()
	before, err := r.cpu()
	if err != nil {
		return sample{}, err
	}
	l, err := ask(p.Long)
	if err != nil {
		return sample{}, err
	}
	after, err := r.cpu()
	if err != nil {
		return sample{}, err
	}
	switch {
	case l.answered == 0:
		return sample{}, errNoAnswer
	case l.wrong > l.answered/1000:
		return sample{}, fmt.Errorf("%d of %d answers are not what was asked for", l.wrong, l.answered)
	}
	s := sample{Rate: l.rate(), CPU: float64(after-before) / float64(l.answered), Lost: l.lost, Allocs: -1}
	if mallocs >= 0 {
		s.Allocs = (r.mallocs() - mallocs) / float64(l.answered)
	}
	return s, nil
}

// ask asks over UDP with so many clients.
func (p *plan) ask(r *running, w *workload, all [][]byte, rate float64, long time.Duration, askers int) (load, error) {
	type done struct {
		load
		err error
	}
	results := make(chan done, askers)
	for i := range askers {
		cores := []int{p.Ask}
		if askers > 1 {
			cores = []int{i % p.Cores}
		}
		go func() {
			var d done
			d.err = pinned(cores, func() error {
				c, err := dial(r.port, all, w.expected(r.server))
				if err != nil {
					return err
				}
				defer c.close()
				c.at = i * len(all) / askers
				d.load, err = c.run(rate, long)
				return err
			})
			results <- d
		}()
	}
	var sum load
	var err error
	for range askers {
		d := <-results
		if d.err != nil {
			err = d.err
		}
		sum.answered, sum.lost, sum.wrong = sum.answered+d.answered, sum.lost+d.lost, sum.wrong+d.wrong
		sum.took, sum.latencies = max(sum.took, d.took), d.latencies
	}
	return sum, err
}

var mallocsTotal = regexp.MustCompile(`(?m)^go_memstats_mallocs_total (\S+)$`)

// mallocs returns how many heap objects gslbd has allocated so far, and -1 for other servers. The query for it allocates
// some thousand itself.
func (r *running) mallocs() float64 {
	if r.name != "gslbd" {
		return -1
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", adminPort))
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	m := mallocsTotal.FindSubmatch(b)
	if err != nil || m == nil {
		return -1
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return -1
	}
	return n
}
