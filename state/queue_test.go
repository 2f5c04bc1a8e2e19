package state

import (
	"testing"
	"time"
)

// A site that never reports must not let its queue grow with every target that came and went.
func TestQueueForgetsDroppedTargets(t *testing.T) {
	now := time.Now()
	q := new(queue)
	for i := range 3000 {
		*q = append(*q, queued{now.Add(time.Duration(-i) * time.Second), &target{dropped: i%10 != 0}})
	}
	q.compact(3000)
	if q.Len() != 3000 {
		t.Errorf("%d left of a queue that was short enough", q.Len())
	}
	q.compact(1000)
	if q.Len() != 300 {
		t.Fatalf("%d left, want 300", q.Len())
	}
	for _, item := range (*q)[1:] {
		if item.due.Before((*q)[0].due) {
			t.Fatal("the first is not the earliest")
		}
	}
}
