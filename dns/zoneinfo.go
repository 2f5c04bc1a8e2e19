package dns

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/miekg/dns"
)

// A ZoneInfo tells of one zone of the Tables.
type ZoneInfo struct {
	Name    string // lower case, no final dot; "." for the root
	Serial  uint32 // of the SOA record
	Records int    // in the zone file; those of the services do not count
	ECS     bool   // client subnets are looked at
	content uint64 // a sum over all records, whatever their order
}

// Zones returns what is known of each zone, in the order of the configuration. The caller must not change it.
func (t *Tables) Zones() []ZoneInfo { return t.listed }

// ForgottenSerials warns, each with its path, of the zones whose records differ from those in previous (nil: none) under
// the same serial. The serial is by what people tell which content a server has loaded.
func (t *Tables) ForgottenSerials(previous *Tables) []string {
	var warnings []string
	if previous == nil {
		return nil
	}
	for i, z := range t.listed {
		for _, was := range previous.listed {
			if was.Name == z.Name && was.Serial == z.Serial && was.content != z.content {
				warnings = append(warnings, fmt.Sprintf("zones[%d].file: the records of %s have changed and its serial is still %d: give it a higher one, by which people see what a server has loaded", i, z.Name, z.Serial))
			}
		}
	}
	return warnings
}

// info tells of a zone that is built.
func (zb *zoneBuilder) info() ZoneInfo {
	info := ZoneInfo{Name: showName(zb.apex), ECS: zb.ecs}
	if soa := zb.records[zb.apex][dns.TypeSOA]; len(soa) > 0 {
		info.Serial = soa[0].RR.(*dns.SOA).Serial
	}
	for _, owner := range zb.order {
		for i := range zb.nodes[owner].sets {
			set := &zb.nodes[owner].sets[i]
			info.Records += len(set.recs)
			for _, rec := range set.recs {
				h := fnv.New64a()
				h.Write([]byte(owner))
				h.Write(rec.wire)
				for _, p := range rec.ptrs { // which names were shortened
					h.Write(binary.BigEndian.AppendUint16(nil, p))
				}
				info.content += h.Sum64()
			}
		}
	}
	return info
}
