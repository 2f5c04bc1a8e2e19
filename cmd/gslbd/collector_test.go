package main

import (
	"math"
	"testing"
)

// Of as many Ps as there are after it, the collector takes a whole number, and there are no more than is needed for that.
func TestEven(t *testing.T) {
	whole := func(n int) bool { // as the runtime reckons
		quarter := float64(n) / 4
		return math.Abs(math.Floor(quarter+0.5)/quarter-1) <= 0.3
	}
	for n := 1; n <= 256; n++ {
		want := n
		for !whole(want) {
			want++
		}
		if got := even(n); got != want {
			t.Errorf("even(%d) is %d, want %d", n, got, want)
		}
	}
}
