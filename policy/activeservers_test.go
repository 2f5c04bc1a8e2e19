package policy_test

import "testing"

func TestActiveServers(t *testing.T) {
	up := func(w *world, name string, n int) { w.of(name).HasServers, w.of(name).ServersUp = true, n }
	compare(t, "active-servers", []comparison{
		{"the most", func(w *world) { up(w, "a", 2); up(w, "b", 3); up(w, "c", 3) }, "b=3 servers up c=3 servers up | a=2 servers up", "narrowed"},
		{"no data stays", func(w *world) { up(w, "a", 2); up(w, "b", 3) }, "b=3 servers up c(no data) | a=2 servers up", "narrowed"},
		{"one with data is not enough", func(w *world) { up(w, "a", 2) }, "a=2 servers up b(no data) c(no data) | ", "abstained"},
	})
}
