package state

import "sync/atomic"

// Rotation is the state of the rotating metrics of one service. It is kept by the service's name, so that it survives
// publications and reloads. All of it is atomic; whoever serves an answer advances it, explain only reads it.
type Rotation struct {
	// Turn counts the answered queries by family; round-robin and weighted read it.
	Turn [2]atomic.Uint64
}

// SelectedUnit is what one selection adds to a Selections counter. Counters are fixed point, so that the decay folded
// in at publication leaves equal counts equal.
const SelectedUnit = 1 << 16

// Selections counts how often one member was answered first, decayed by the half-life, in units of SelectedUnit. It is
// kept by service and member name.
type Selections [2]atomic.Int64

// Counters counts the outcomes of one service. It is sharded by worker, so that cores do not contend, and summed when
// scraped. It is kept by the service's name.
type Counters struct {
	shards []counterShard
}

type counterShard struct {
	decisions [MaxReasons]atomic.Uint64
	answers   []atomic.Uint64
	_         [64]byte // keeps the next shard's first line apart
}

// MaxReasons bounds the reasons of a decision: the metrics, and constraints, single, on_all_down.
const MaxReasons = 24
