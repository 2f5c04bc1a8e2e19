package policy_test

import "testing"

func TestHeadroom(t *testing.T) {
	free := func(w *world, name string, sessions, limit uint64) {
		s := w.at(name)
		s.HasLoad, s.HasSessions, s.Sessions, s.SessionsLimit = true, true, sessions, limit
	}
	compare(t, "headroom", []comparison{
		{"within 10 % of the most", func(w *world) {
			free(w, "a", 400_000, 900_000)
			free(w, "b", 450_000, 900_000)
			free(w, "c", 450_001, 900_000)
		}, "a=500000 free sessions b=450000 free sessions | c=449999 free sessions", "narrowed"},
		{"size counts, not share", func(w *world) {
			free(w, "a", 10, 100)
			free(w, "b", 800_000, 900_000)
		}, "b=100000 free sessions c(no data) | a=90 free sessions", "narrowed"},
		{"over the threshold is none free", func(w *world) {
			free(w, "a", 200, 100)
			free(w, "b", 100, 100)
			free(w, "c", 99, 100)
		}, "c=1 free sessions | a=0 free sessions b=0 free sessions", "decided"},
		{"no threshold is no data", func(w *world) {
			free(w, "a", 10, 0)
			free(w, "b", 10, 100)
		}, "a(no data) b=90 free sessions c(no data) | ", "abstained"},
		{"no load is no data", func(w *world) {
			free(w, "a", 10, 100)
			free(w, "b", 10, 200)
			w.at("b").HasLoad, w.at("b").HasSessions = false, false
		}, "a=90 free sessions b(no data) c(no data) | ", "abstained"},
		{"a load without sessions is no data", func(w *world) {
			free(w, "a", 10, 100)
			free(w, "b", 50, 100)
			s := w.at("c") // it reports bandwidth only
			s.HasLoad, s.HasBits, s.BitsIn, s.SessionsLimit = true, true, 1000, 900_000
		}, "a=90 free sessions c(no data) | b=50 free sessions", "narrowed"},
	})
}
