//go:build linux

package sitereport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
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

// dumpTries is how often the counters are listed, which a change of the rules breaks off.
const dumpTries = 3

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
