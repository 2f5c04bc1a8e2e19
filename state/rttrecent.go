package state

import (
	"cmp"
	"net/netip"
	"slices"
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
		slot   *rttSlot
		row    *RTTRow
		newest RTTMoment
	}
	var all []found
	for i := range t.shards {
		slots, most := *t.shards[i].slots.Load(), recentLooked*(i+1)/len(t.shards)
		for j := range slots {
			row := slots[j].row.Load()
			if row == nil || row == t.gone || len(all) >= most {
				continue
			}
			f := found{slot: &slots[j], row: row, newest: row.oldest}
			for k := range row.history {
				f.newest = max(f.newest, row.history[k].newest)
			}
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(b.newest, a.newest) })
	out := make([]RTTNetwork, 0, min(n, len(all)))
	for _, f := range all[:min(n, len(all))] {
		out = append(out, RTTNetwork{t.Key(join128(f.slot.hi, f.slot.lo).Unmap()), f.row})
	}
	return out
}
