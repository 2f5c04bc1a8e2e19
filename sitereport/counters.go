package sitereport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Figures of the kernel's nf_tables interface (linux/netfilter/nf_tables.h), which x/sys has no names for.
const (
	nfSubsystemTables = 10
	nftObjectCounter  = 1
	nftaObjectHandle  = 6
	nfHeader          = 4 // bytes of struct nfgenmsg
)

// nftFamilies are the address families of tables, by the words of nft.
var nftFamilies = map[string]byte{"inet": 1, "ip": 2, "arp": 3, "netdev": 5, "bridge": 7, "ip6": 10}

const (
	maxIPTables = 16 << 20 // bytes read of one program: above 100,000 rules
	dumpTries   = 3        // of listing the counters of nft, which a change of the rules breaks off
)

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

// readNft asks the kernel for the named counters of the table.
func (c *Counters) readNft(ctx context.Context) (map[string]counted, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_OBJ_TABLE, Data: append([]byte(c.table), 0)},
		{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, nftObjectCounter)},
	})
	if err != nil {
		return nil, err
	}
	request := netlink.Message{
		Header: netlink.Header{Type: nfSubsystemTables<<8 | unix.NFT_MSG_GETOBJ, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{c.family, 0, 0, 0}, attributes...),
	}
	for try := 1; ; try++ {
		messages, err := conn.Execute(request)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("nf_tables: the kernel did not list the counters in %s", c.opts.Timeout)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("nf_tables: %w: the agent needs CAP_NET_ADMIN (systemctl edit gslb-agent)", err)
		case err != nil:
			return nil, fmt.Errorf("nf_tables: %w", err)
		}
		if slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			if try < dumpTries {
				continue
			}
			return nil, errors.New("nf_tables: the rules change all the time while the counters are listed")
		}
		counters := make(map[string]counted)
		for _, m := range messages {
			if err := parseNftCounter(m.Data, counters); err != nil {
				return nil, fmt.Errorf("nf_tables: %w", err)
			}
		}
		return counters, nil
	}
}

// parseNftCounter adds the counter that a message describes.
func parseNftCounter(message []byte, to map[string]counted) error {
	if len(message) < nfHeader {
		return fmt.Errorf("a message of %d bytes", len(message))
	}
	attributes, err := netlink.NewAttributeDecoder(message[nfHeader:])
	if err != nil {
		return err
	}
	attributes.ByteOrder = binary.BigEndian
	var name string
	var c counted
	read := false // its bytes
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_OBJ_NAME:
			name = attributes.String()
		case nftaObjectHandle:
			c.id = strconv.FormatUint(attributes.Uint64(), 10)
		case unix.NFTA_OBJ_DATA:
			attributes.Nested(func(data *netlink.AttributeDecoder) error {
				data.ByteOrder = binary.BigEndian
				for data.Next() {
					if data.Type() == unix.NFTA_COUNTER_BYTES {
						c.bytes, read = data.Uint64(), true
					}
				}
				return nil
			})
		}
	}
	if err := attributes.Err(); err != nil {
		return err
	}
	if name == "" || !read {
		return errors.New("a counter without name or bytes")
	}
	to[name] = c
	return nil
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
