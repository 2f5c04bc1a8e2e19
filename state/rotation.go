package state

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

// Rotation is the state of the rotating metrics of one service. It is kept by the service's name, so that it survives
// publications and reloads. All of it is atomic; whoever serves an answer advances it, explain only reads it.
type Rotation struct {
	// Turn counts the answered queries by family; round-robin and weighted read it.
	Turn [2]atomic.Uint64
}

// serviceCounts is what queries count of a service. What they read and write of every one stands on one line.
type serviceCounts struct {
	rotation Rotation
	sampled  atomic.Uint64 // see reservoir
	counters Counters
	_        [16]byte // it begins on a line
}

// SelectedUnit is what one selection adds to a Selections counter. Counters are fixed point, so that the decay folded
// in at publication leaves equal counts equal.
const SelectedUnit = 1 << 16

// Selections counts, by Family, how often one member was answered first, decayed by the half-life, in units of
// SelectedUnit. It is kept by service and member name.
type Selections [2]atomic.Int64

// MemberCounts is what queries write of a member, but for the rotation apart: two members share a line.
type MemberCounts struct {
	// What least-selected compares. Clients that a staged order, shedding or slow start holds back from a member rotate
	// apart from the others (Member.SelectedApart): what they are answered instead would else be made up for by sending the
	// others to that member. Atomic.
	Selected  Selections
	HandedOut HandedOut // atomic
}

// Clone returns a copy that counts on its own; of nil, one that has counted nothing.
func (c *MemberCounts) Clone() *MemberCounts {
	out := new(MemberCounts)
	if c != nil {
		out.Selected.copy(&c.Selected)
		out.HandedOut.since = c.HandedOut.since
		out.HandedOut.until.Store(c.HandedOut.until.Load())
	}
	return out
}

// Clone returns a copy that counts on its own; of nil, one that has counted nothing.
func (s *Selections) Clone() *Selections {
	c := new(Selections)
	if s != nil {
		c.copy(s)
	}
	return c
}

func (s *Selections) copy(from *Selections) {
	for f := range s {
		s[f].Store(from[f].Load())
	}
}

// Select counts that the member was answered first, to a client that nothing is held back from, or in the rotation
// apart (see MemberCounts). Hot path: one atomic addition.
func (m *Member) Select(f Family, apart bool) { m.Selections(apart)[f].Add(SelectedUnit) }

// Selections returns the member's counts in one of the two rotations; nil in a Member that no Store made.
func (m *Member) Selections(apart bool) *Selections {
	switch {
	case apart:
		return m.SelectedApart
	case m.MemberCounts == nil:
		return nil
	}
	return &m.Selected
}

// Counters counts the outcomes of one service. It is sharded by worker, so that cores do not contend, and summed when
// scraped. It is kept by the service's name, and what it counts of a member by the member's. All methods are safe for
// concurrent use.
type Counters struct {
	// Fixed once there are members. When those change, new Counters share the cells of the old ones, so that nothing is lost
	// that a reader of an older snapshot still adds.

	cells   shardedCells   // of a shard those of the members' answers, filled up to whole cache lines, then those of the reasons
	reasons int32          // where of a shard those of the reasons begin
	own     int32          // how many members have their answers in cells, in their order: all or none
	moved   []shardedCells // where none has, by member, whose cells are the first of these
	members []string
}

// shardedCells are the cells of all shards, one shard's after the other's.
type shardedCells struct {
	all    []atomic.Uint64
	stride int32 // from one shard's to the next one's
	shards int32
}

func newShardedCells(shards, stride int) shardedCells {
	return shardedCells{make([]atomic.Uint64, shards*stride), int32(stride), int32(shards)}
}

// of returns where the cells of a shard begin.
func (c *shardedCells) of(shard int) int {
	if n := int(c.shards); shard >= n {
		shard %= n
	}
	return shard * int(c.stride)
}

// from returns the cells without the first n of each shard.
func (c shardedCells) from(n int) shardedCells {
	c.all = c.all[n:]
	return c
}

// answer returns the cell of a member.
func (c *Counters) answer(shard, member int) *atomic.Uint64 {
	if member < int(c.own) {
		return &c.cells.all[c.cells.of(shard)+member]
	}
	of := &c.moved[member]
	return &of.all[of.of(shard)]
}

// lineCells is how many counters a cache line holds.
const lineCells = 8

// MaxReasons bounds the reasons of a decision: the metrics, and constraints, single, on_all_down.
const MaxReasons = 24

// follow returns the counters for a service that now has members with these names, in their order: c itself when they
// are the same, else new ones that go on from c. Zero Counters are set up.
func (c *Counters) follow(shards int, members []string) *Counters {
	stride := (len(members) + lineCells - 1) / lineCells * lineCells
	if c.cells.all == nil {
		*c = Counters{members: members, own: int32(len(members)), reasons: int32(stride), cells: newShardedCells(shards, stride+MaxReasons)}
		return c
	} else if slices.Equal(c.members, members) {
		return c
	}
	next := &Counters{members: members, reasons: c.reasons, cells: c.cells, moved: make([]shardedCells, len(members))}
	var fresh shardedCells // one allocation for those that are new
	for i, name := range members {
		switch j := slices.Index(c.members, name); {
		case j >= 0 && j >= int(c.own):
			next.moved[i] = c.moved[j]
		case j >= 0:
			next.moved[i] = c.cells.from(j)
		default:
			if fresh.all == nil {
				fresh = newShardedCells(shards, stride)
			}
			next.moved[i] = fresh.from(i)
		}
	}
	return next
}

// Add counts one decision for reason, and, with a member's Index of 0 or above, one answer of that member. A shard
// belongs to one worker; numbers beyond the Store's shards wrap around. Hot path: two atomic additions.
func (c *Counters) Add(shard int, reason uint8, member int) {
	if int(reason) < MaxReasons {
		c.cells.all[c.cells.of(shard)+int(c.reasons)+int(reason)].Add(1)
	}
	if member >= 0 && (member < int(c.own) || member < len(c.members)) { // mostly own says so, and members are on another line
		c.answer(shard, member).Add(1)
	}
}

// Decisions returns how often each reason settled a decision, since the start of the process.
func (c *Counters) Decisions() [MaxReasons]uint64 {
	var sum [MaxReasons]uint64
	for shard := range int(c.cells.shards) {
		for r := range sum {
			sum[r] += c.cells.all[c.cells.of(shard)+int(c.reasons)+r].Load()
		}
	}
	return sum
}

// Answers returns how often the member with this Index was the first answer, since the start of the process.
func (c *Counters) Answers(member int) uint64 {
	if member < 0 || member >= len(c.members) {
		return 0
	}
	var sum uint64
	for shard := range int(c.cells.shards) {
		sum += c.answer(shard, member).Load()
	}
	return sum
}

// decay folds the half-life into the selections of the service's members. It subtracts what was lost rather than
// storing what is left, so that selections made meanwhile are kept; and it is a function of the count alone, so that
// equal counts stay equal.
func (svc *service) decay(now time.Time) {
	lost := 1 - math.Exp2(-float64(now.Sub(svc.decayedAt))/float64(svc.cfg.HalfLife))
	svc.decayedAt = now
	share := uint64(lost * (1 << 32)) // of 2^32
	for _, m := range svc.members {
		for _, s := range m.rotations() {
			for f := range s {
				count := s[f].Load()
				if count <= 0 {
					continue
				}
				hi, lo := bits.Mul64(uint64(count), share)
				s[f].Add(-int64(hi<<32 | lo>>32))
			}
		}
	}
}

// join starts a member that comes up, or may be answered again, at the highest count per weight of its peers: those of
// its pool that are up and not forced away. It would else be given every answer until it had caught up.
func (svc *service) join(m *member, f Family) {
	if m.cfg.Weight <= 0 {
		return
	}
	for rotation, s := range m.rotations() {
		var highest float64
		for _, p := range svc.members {
			if p != m && p.cfg.Role == m.cfg.Role && p.cfg.Weight > 0 && p.up(f) && p.forced < ForcedDrain {
				highest = max(highest, float64(p.rotations()[rotation][f].Load())/float64(p.cfg.Weight))
			}
		}
		start := int64(math.Ceil(highest * float64(m.cfg.Weight)))
		if was := s[f].Load(); start > was {
			s[f].Add(start - was)
		}
	}
}

// rejoin does so for a member that was up all the time, and may be answered again.
func (svc *service) rejoin(m *member) {
	for f := range m.health {
		if m.up(Family(f)) {
			svc.join(m, Family(f))
		}
	}
}

// rotations returns the member's counts in both rotations, that apart last.
func (m *member) rotations() [2]*Selections { return [2]*Selections{&m.counts.Selected, m.apart} }

// reweigh keeps the member's counts per weight when its weight is about to become another one.
func (m *member) reweigh(weight int) {
	for _, s := range m.rotations() {
		for f := range s {
			was := s[f].Load()
			s[f].Add(int64(float64(was)*float64(weight)/float64(m.cfg.Weight)) - was)
		}
	}
}
