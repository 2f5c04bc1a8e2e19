package state

import (
	"net/netip"
	"slices"
	"time"
)

// recentLooked is how many networks Recent looks at, of more some.
const recentLooked = 1 << 16

// An RTTNetwork is a client network and what is known of it.
type RTTNetwork struct {
	Network netip.Prefix
	Row     *RTTRow
}

// Recent returns the n networks that were measured last, the last first. Of a table of more than 65,536 networks it
// looks at as many only. It takes no lock.
func (t *RTTTable) Recent(n int) []RTTNetwork {
	type found struct {
		e      *rttEntry
		row    *RTTRow
		newest time.Time
	}
	var all []found
	for i := range t.shards {
		slots, most := *t.shards[i].slots.Load(), recentLooked*(i+1)/len(t.shards)
		for j := range slots {
			e := slots[j].Load()
			if e == nil || e == t.gone || len(all) >= most {
				continue
			}
			f := found{e: e, row: e.row.Load()}
			if f.row == nil || len(f.row.Values) == 0 {
				continue
			}
			for k := range f.row.Values {
				if at := f.row.Values[k].Newest; at.After(f.newest) {
					f.newest = at
				}
			}
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b found) int { return b.newest.Compare(a.newest) })
	out := make([]RTTNetwork, 0, min(n, len(all)))
	for _, f := range all[:min(n, len(all))] {
		out = append(out, RTTNetwork{t.Key(f.e.addr()), f.row})
	}
	return out
}
