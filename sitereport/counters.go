package sitereport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nftFamilies are the address families of tables, by the words of nft.
var nftFamilies = map[string]byte{"inet": 1, "ip": 2, "arp": 3, "netdev": 5, "bridge": 7, "ip6": 10}

// maxIPTables bounds what is read of one program in bytes: above 100,000 rules.
const maxIPTables = 16 << 20

// CountersOptions configure a Counters reader.
type CountersOptions struct {
	// Table is the table that has the counters: of nft its family and name, such as "inet gslb"; of iptables its name.
	Table string

	// Programs are iptables-save and ip6tables-save, whichever are needed, by absolute path. None: nft's counters are read.
	Programs []string

	// In and Out are the names of the counters of traffic from and to clients: named counters of nft, or comments of rules of
	// iptables. What all rules with one comment count is added up. Both are required.
	In, Out []string

	Timeout time.Duration // for one reading; default 2s
}

// A Counters reads the site's traffic off counters of the packet filter, which the operator puts where packets from and to
// the virtual addresses pass. It needs CAP_NET_ADMIN, and CAP_NET_RAW for the legacy iptables.
//
// Counters of nft are read by netlink, those of iptables off what its programs print. A Counters is for one reader at a
// time.
type Counters struct {
	// Fixed at construction.
	opts   CountersOptions
	family byte
	table  string

	// Owned by Read.
	meter meter
}

// A counted is what one counter says. Another id is another counter, although it has the name.
type counted struct {
	bytes uint64
	id    string
}

// NewCounters returns a reader. It fails when the table of nft has no family.
func NewCounters(opts CountersOptions) (*Counters, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = 2 * time.Second
	}
	c := &Counters{opts: opts, table: opts.Table}
	if len(opts.Programs) == 0 {
		family, table, _ := strings.Cut(opts.Table, " ")
		var known bool
		if c.family, known = nftFamilies[family]; !known || table == "" {
			return nil, fmt.Errorf("counters: %q is not a table of nft: write its family (%s) and its name, such as \"inet gslb\"",
				opts.Table, strings.Join(slices.Sorted(maps.Keys(nftFamilies)), ", "))
		}
		c.table = table
	}
	return c, nil
}

// Read reads the counters once.
func (c *Counters) Read(ctx context.Context) (Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	read := c.readNft
	if len(c.opts.Programs) > 0 {
		read = c.readIPTables
	}
	r := Reading{WholeSite: true}
	all, err := read(ctx)
	if err == nil {
		var counters map[string]traffic
		if counters, err = c.choose(all); err == nil {
			r.Load.BitsPerSecIn, r.Load.BitsPerSecOut = c.meter.rate(time.Now(), counters)
			return r, nil
		}
	}
	c.meter.reset()
	return r, fmt.Errorf("counters of table %s: %w", c.opts.Table, err)
}

// choose returns the configured counters out of all.
func (c *Counters) choose(all map[string]counted) (map[string]traffic, error) {
	out := make(map[string]traffic)
	for i, names := range [][]string{c.opts.In, c.opts.Out} {
		for _, name := range names {
			n, ok := all[name]
			if !ok {
				return nil, fmt.Errorf("there is no counter %q; there are %s", name, list(slices.Collect(maps.Keys(all))))
			}
			t := traffic{in: n.bytes}
			if i == 1 {
				t = traffic{out: n.bytes}
			}
			out[name+"#"+n.id] = t
		}
	}
	return out, nil
}

// readIPTables runs the programs, and adds up what rules with one comment count.
func (c *Counters) readIPTables(ctx context.Context) (map[string]counted, error) {
	counters := make(map[string]counted)
	for _, path := range c.opts.Programs {
		p := program{
			command: []string{path, "--counters", "--table", c.table}, environment: []string{"LC_ALL=C"},
			most: maxIPTables, timeout: c.opts.Timeout,
		}
		output, complaint, err := p.run(ctx)
		if err == nil {
			err = parseIPTables(output, counters)
		}
		if err != nil && complaint != "" {
			err = fmt.Errorf("%w: %s", err, complaint)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return counters, nil
}

var (
	iptablesRule    = regexp.MustCompile(`^\[([0-9]+):([0-9]+)\] -A `)
	iptablesComment = regexp.MustCompile(` --comment (?:"((?:[^"\\]|\\.)*)"|([^" ]+))(?: |$)`)
)

// parseIPTables adds what iptables-save prints: [packets:bytes] -A CHAIN ... --comment NAME.
func parseIPTables(output []byte, to map[string]counted) error {
	if len(output) > 0 && !bytes.Contains(output, []byte("\nCOMMIT\n")) { // it prints nothing of a table that nobody used yet
		return errors.New("it printed no whole table")
	}
	for line := range bytes.Lines(output) {
		line = bytes.TrimSpace(line)
		rule := iptablesRule.FindSubmatch(line)
		if rule == nil {
			continue
		}
		comment := iptablesComment.FindSubmatch(line)
		if comment == nil {
			continue
		}
		n, err := strconv.ParseUint(string(rule[2]), 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number of bytes", printable(string(rule[2]), 40))
		}
		name := string(comment[1]) + string(comment[2])
		c := to[name]
		c.bytes += n
		to[name] = c
	}
	return nil
}
