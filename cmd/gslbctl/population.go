package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"gslbd/cmd/rehearse"
	"gslbd/config"
	"gslbd/state"
)

const (
	// mostQueries is the longest log, so that a file that is none does not fill the memory.
	mostQueries = 10_000_000
	// mostResolvers is the largest population, services times clients.
	mostResolvers = 2_000_000
	// longestName is that of a name as text: 253 octets and a dot.
	longestName = 254
)

// An asking is who asks for what: queries of a log, and clients that are weighed. Either may be absent.
type asking struct {
	log        []rehearse.Query // LDNS is invalid where the log does not tell
	clients    []weighed
	skipped    int               // queries of other types than A and AAAA
	unreadable int               // messages of dnstap that are no query that gslbd could read
	names      map[string]string // of the log, each once in memory
	lower      []byte            // scratch of name
}

type weighed struct {
	state.Client
	weight float64
}

// read reads the files that say who asks.
func (sim *simulation) read() (*asking, error) {
	a := &asking{names: map[string]string{}}
	if sim.clients != "" {
		if err := readFile(sim.clients, func(f *bufio.Reader) error { return eachLine(sim.clients, f, a.client) }); err != nil {
			return nil, err
		}
		if len(a.clients) == 0 {
			return nil, usageError{fmt.Errorf("--clients: %s names no client", sim.clients)}
		}
	}
	if sim.queries != "" {
		err := readFile(sim.queries, func(f *bufio.Reader) error {
			if head, _ := f.Peek(4); string(head) == "\x00\x00\x00\x00" { // a control frame of frame streams
				return a.readDnstap(sim.queries, f)
			}
			return eachLine(sim.queries, f, a.query)
		})
		if err != nil {
			return nil, err
		}
		if len(a.log) == 0 {
			return nil, usageError{fmt.Errorf("--queries: %s has no query for A or AAAA", sim.queries)}
		}
		if len(a.clients) == 0 && !a.log[0].LDNS.IsValid() {
			return nil, usageError{fmt.Errorf("--queries: %s does not tell who asks: add the resolver's address to each line, or give --clients", sim.queries)}
		}
	}
	return a, nil
}

// readFile opens a file to be read.
func readFile(path string, read func(*bufio.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return read(bufio.NewReaderSize(f, 1<<20))
}

// eachLine calls read with the number and the text of every line that says something.
func eachLine(path string, f io.Reader, read func(n int, text string) error) error {
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if err := read(n, text); err != nil {
			return usageError{fmt.Errorf("%s:%d: %w", path, n, err)}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// query reads "name type [resolver [subnet]]".
func (a *asking) query(_ int, text string) error {
	words := strings.Fields(text)
	if len(words) < 2 || len(words) > 4 {
		return fmt.Errorf("%.80q is not a name, a type, and perhaps a resolver and a client subnet", text)
	}
	if len(words[0]) > longestName {
		return fmt.Errorf("%q is too long for a name", words[0][:longestName])
	}
	name, family := a.name([]byte(words[0])), state.V4
	switch strings.ToUpper(words[1]) {
	case "A":
	case "AAAA":
		family = state.V6
	default:
		a.skipped++
		return nil
	}
	var client state.Client
	if len(words) > 2 {
		var err error
		if client, err = parseClient(words[2], strings.Join(words[3:], "")); err != nil {
			return err
		}
	}
	return a.add(name, family, client)
}

// name returns a name as services have theirs. The case of letters tells nothing: resolvers choose it by chance.
func (a *asking) name(text []byte) string {
	a.lower = a.lower[:0]
	for _, c := range bytes.TrimSuffix(text, []byte(".")) {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		a.lower = append(a.lower, c)
	}
	name, known := a.names[string(a.lower)]
	if !known {
		name = string(a.lower)
		a.names[name] = name
	}
	return name
}

// add adds a query to the log.
func (a *asking) add(name string, f state.Family, client state.Client) error {
	if len(a.log) == mostQueries {
		return fmt.Errorf("there are more than %d queries", mostQueries)
	}
	if len(a.log) > 0 && client.LDNS.IsValid() != a.log[0].LDNS.IsValid() {
		return errors.New("some queries tell who asks and some do not")
	}
	a.log = append(a.log, rehearse.Query{Service: name, Family: f, Client: client})
	return nil
}

// client reads "resolver[,weight[,subnet]]"; the first line may name the columns.
func (a *asking) client(n int, text string) error {
	cells := strings.Split(text, ",")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if n == 1 && strings.EqualFold(cells[0], "resolver") {
		return nil
	}
	if len(cells) > 3 {
		return fmt.Errorf("%.80q is not a resolver, and perhaps its weight and a client subnet", text)
	}
	if len(a.clients) == mostResolvers {
		return fmt.Errorf("there are more than %d clients", mostResolvers)
	}
	cells = append(cells, "", "")
	w := weighed{weight: 1}
	var err error
	if w.Client, err = parseClient(cells[0], cells[2]); err != nil {
		return err
	}
	if cells[1] != "" {
		if w.weight, err = strconv.ParseFloat(cells[1], 64); err != nil || !(w.weight > 0 && w.weight <= 1e12) {
			return fmt.Errorf("%q is not a weight above 0", cells[1])
		}
	}
	a.clients = append(a.clients, w)
	return nil
}

func parseClient(resolver, subnet string) (state.Client, error) {
	ldns, err := netip.ParseAddr(resolver)
	if err != nil || ldns.Zone() != "" {
		return state.Client{}, fmt.Errorf("%.80q is not the IP address of a resolver", resolver)
	}
	c := state.Client{LDNS: ldns.Unmap()}
	if subnet == "" {
		return c, nil
	}
	if c.ECS, err = netip.ParsePrefix(subnet); err != nil || c.ECS != c.ECS.Masked() {
		return state.Client{}, fmt.Errorf("%q is not a prefix such as 203.0.113.0/24", subnet)
	}
	return c, nil
}

// servicesOf returns the services of both configurations; those of the first that the second has as well, as that has them.
func servicesOf(before, after *config.Config) []*config.Service {
	var list []*config.Service
	seen := map[string]bool{}
	for _, c := range []*config.Config{after, before} {
		for i := range c.Services {
			if s := &c.Services[i]; !seen[s.Name] {
				seen[s.Name] = true
				list = append(list, s)
			}
		}
	}
	return list
}

// queries returns those of the log, with clients drawn by their weight where it does not tell; without a log, count of them
// in equal parts for the services.
func (a *asking) queries(services []*config.Service, count int, seed uint64) ([]rehearse.Query, error) {
	if len(a.log) > 0 && a.log[0].LDNS.IsValid() {
		return a.log, nil
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	sums := make([]float64, len(a.clients))
	sum := 0.0
	for i, w := range a.clients {
		sum += w.weight
		sums[i] = sum
	}
	draw := func() state.Client {
		i := sort.SearchFloat64s(sums, rng.Float64()*sum)
		return a.clients[min(i, len(a.clients)-1)].Client
	}
	if len(a.log) > 0 {
		for i := range a.log {
			a.log[i].Client = draw()
		}
		return a.log, nil
	}
	if len(services) == 0 {
		return nil, usageError{errors.New("the configuration has no services to ask for")}
	}
	list := make([]rehearse.Query, count)
	for i := range list {
		s := services[i%len(services)]
		list[i] = rehearse.Query{Service: s.Name, Family: family(s), Client: draw()}
	}
	return list, nil
}

// family returns the one that clients ask a service for: IPv4, if it has it.
func family(s *config.Service) state.Family {
	for _, m := range s.Members {
		if m.CNAME != "" || slices.ContainsFunc(m.Addresses, netip.Addr.Is4) {
			return state.V4
		}
	}
	return state.V6
}

// population returns who asks for what, and how much of it: of the log, each client of a service by how often it asks;
// else each client asks for every service alike.
func (a *asking) population(services []*config.Service) ([]rehearse.Resolver, error) {
	type key struct {
		service string
		client  state.Client
	}
	weights := map[key]float64{}
	var order []key
	add := func(k key, weight float64) {
		if weights[k] == 0 {
			order = append(order, k)
		}
		weights[k] += weight
	}
	parts := map[string]float64{} // of the queries whose clients are drawn
	for _, q := range a.log {
		if q.LDNS.IsValid() {
			add(key{q.Service, q.Client}, 1)
			continue
		}
		parts[q.Service]++
	}
	if len(a.log) == 0 {
		for _, s := range services {
			parts[s.Name] = 1
		}
	}
	names := slices.Sorted(maps.Keys(parts))
	if len(names)*len(a.clients)+len(order) > mostResolvers {
		return nil, usageError{fmt.Errorf("%d clients of %d services, and %d of the log, are more than %d resolvers: give fewer", len(a.clients), len(names), len(order), mostResolvers)}
	}
	for _, name := range names {
		for _, w := range a.clients {
			add(key{name, w.Client}, parts[name]*w.weight)
		}
	}
	list := make([]rehearse.Resolver, len(order))
	for i, k := range order {
		list[i] = rehearse.Resolver{Service: k.service, Client: k.client, Weight: weights[k]}
	}
	return list, nil
}

// addresses returns one of each network that round trips may be known of, at most so many: of the heaviest clients, or of the
// first of the log. Where the client subnet counts, the resolver's own distance does not.
func (a *asking) addresses(c *config.Config, most int) []netip.Addr {
	on, off := false, false // there are services whose clients go by their subnet, and others
	for i := range c.Services {
		ecs := c.ECSOn(&c.Services[i])
		on, off = on || ecs, off || !ecs
	}
	seen := map[netip.Prefix]bool{}
	var list []netip.Addr
	add := func(addr netip.Addr) {
		bits := c.RTT.Prefix.IPv6
		if addr.Is4() {
			bits = c.RTT.Prefix.IPv4
		}
		if network, err := addr.Prefix(bits); err == nil && addr.IsValid() && !seen[network] && len(list) < most {
			seen[network] = true
			list = append(list, addr)
		}
	}
	client := func(c *state.Client) {
		subnet := on && c.ECS.Bits() > 0
		if subnet {
			add(c.ECS.Addr())
		}
		if off || !subnet {
			add(c.LDNS)
		}
	}
	heaviest := slices.Clone(a.clients)
	slices.SortStableFunc(heaviest, func(x, y weighed) int { return cmp.Compare(y.weight, x.weight) })
	for i := range heaviest {
		client(&heaviest[i].Client)
	}
	for i := range a.log {
		client(&a.log[i].Client)
	}
	return list
}
