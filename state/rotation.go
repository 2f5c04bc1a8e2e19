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

// SelectedUnit is what one selection adds to a Selections counter. Counters are fixed point, so that the decay folded
// in at publication leaves equal counts equal.
const SelectedUnit = 1 << 16

// Selections counts, by Family, how often one member was answered first, decayed by the half-life, in units of
// SelectedUnit. It is kept by service and member name.
type Selections [2]atomic.Int64

// memberCounts is what queries write of a member, but for the rotation apart: two members share a line.
type memberCounts struct {
	selected  Selections // of Member.Selected
	handedOut HandedOut
}

// Clone returns a copy that counts on its own; of nil, one that has counted nothing.
func (s *Selections) Clone() *Selections {
	c := new(Selections)
	if s != nil {
		for f := range s {
			c[f].Store(s[f].Load())
		}
	}
	return c
}

// Select counts that the member was answered first, to a client that nothing is held back from, or in the rotation
// apart (see Member.Selected). Hot path: one atomic addition.
func (m *Member) Select(f Family, apart bool) { m.Selections(apart)[f].Add(SelectedUnit) }

// Selections returns the member's counts in one of the two rotations; nil in a Member that no Store made.
func (m *Member) Selections(apart bool) *Selections {
	if apart {
		return m.SelectedApart
	}
	return m.Selected
}

// Counters counts the outcomes of one service. It is sharded by worker, so that cores do not contend, and summed when
// scraped. It is kept by the service's name, and what it counts of a member by the member's. All methods are safe for
// concurrent use.
type Counters struct {
	// Fixed at construction. When the members change, new Counters share the shards of the old ones, so that nothing is
	// lost that a reader of an older snapshot still adds.
	decisions []decisionShard
	answerCells
	moved   []answerCells // by member, whose cells are the first of these; nil: they are those of the members in their order
	members []string
}

type decisionShard struct {
	reasons [MaxReasons]atomic.Uint64 // three whole cache lines
}

// answerCells are the cells of members that were new together: a shard's lie side by side, on whole cache lines.
type answerCells struct {
	cells  []atomic.Uint64
	stride int // to the next shard's
}

// answer returns the cell of a member.
func (c *Counters) answer(shard, member int) *atomic.Uint64 {
	if c.moved == nil {
		return &c.cells[shard*c.stride+member]
	}
	of := &c.moved[member]
	return &of.cells[shard*of.stride]
}

// lineCells is how many counters a cache line holds.
const lineCells = 8

// MaxReasons bounds the reasons of a decision: the metrics, and constraints, single, on_all_down.
const MaxReasons = 24

// follow returns the counters for a service that now has members with these names, in their order: c itself when they
// are the same, else new ones that go on from c. c may be nil.
func (c *Counters) follow(shards int, members []string) *Counters {
	stride := (len(members) + lineCells - 1) / lineCells * lineCells
	if c == nil {
		c = &Counters{members: members, decisions: make([]decisionShard, shards)}
		c.answerCells = answerCells{make([]atomic.Uint64, shards*stride), stride}
		return c
	} else if slices.Equal(c.members, members) {
		return c
	}
	next := &Counters{members: members, decisions: c.decisions, moved: make([]answerCells, len(members))}
	var fresh []atomic.Uint64 // one allocation for those that are new
	for i, name := range members {
		switch j := slices.Index(c.members, name); {
		case j >= 0 && c.moved != nil:
			next.moved[i] = c.moved[j]
		case j >= 0:
			next.moved[i] = answerCells{c.cells[j:], c.stride}
		default:
			if fresh == nil {
				fresh = make([]atomic.Uint64, shards*stride)
			}
			next.moved[i] = answerCells{fresh[i:], stride}
		}
	}
	return next
}

// Add counts one decision for reason, and, with a member's Index of 0 or above, one answer of that member. A shard
// belongs to one worker; numbers beyond the Store's shards wrap around. Hot path: two atomic additions.
func (c *Counters) Add(shard int, reason uint8, member int) {
	shard %= len(c.decisions)
	if int(reason) < MaxReasons {
		c.decisions[shard].reasons[reason].Add(1)
	}
	if member >= 0 && member < len(c.members) {
		c.answer(shard, member).Add(1)
	}
}

// Decisions returns how often each reason settled a decision, since the start of the process.
func (c *Counters) Decisions() [MaxReasons]uint64 {
	var sum [MaxReasons]uint64
	for i := range c.decisions {
		for r := range sum {
			sum[r] += c.decisions[i].reasons[r].Load()
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
	for shard := range c.decisions {
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
		for _, s := range m.selected {
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
	for rotation, s := range m.selected {
		var highest float64
		for _, p := range svc.members {
			if p != m && p.cfg.Role == m.cfg.Role && p.cfg.Weight > 0 && p.up(f) && p.forced < ForcedDrain {
				highest = max(highest, float64(p.selected[rotation][f].Load())/float64(p.cfg.Weight))
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

// reweigh keeps the member's counts per weight when its weight is about to become another one.
func (m *member) reweigh(weight int) {
	for _, s := range m.selected {
		for f := range s {
			was := s[f].Load()
			s[f].Add(int64(float64(was)*float64(weight)/float64(m.cfg.Weight)) - was)
		}
	}
}
