package state

import (
	"time"
)

type fileState struct{}

func (s *Store) open() error                         { return nil }
func (s *Store) restore(f *fileState, now time.Time) {}

type keeper struct{ s *Store }

func newKeeper(s *Store, now time.Time) *keeper { return &keeper{s} }
func (k *keeper) maybe(now time.Time)           {}
func (k *keeper) save(now time.Time) error      { return nil }
