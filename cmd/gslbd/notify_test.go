package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// A server whose state is no longer published is not alive, whatever it answers.
func TestHangOfThePublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := state.New(state.Options{}) // nobody runs it
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(publisherLate + time.Second)
		s := &server{store: store}
		if err := s.alive(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "published") {
			t.Errorf("err = %v, want one that says that the state is not published", err)
		}
	})
}

// A watchdog that makes no sense stops the start, with a line that names it.
func TestWatchdogOfTheEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
	for text, want := range map[string]time.Duration{"2000000": 2 * time.Second, "": 0, "soon": -1, "-1": -1} {
		t.Setenv("WATCHDOG_USEC", text)
		t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
		switch m, err := newManager(nil); {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), "watchdog")):
			t.Errorf("WATCHDOG_USEC=%q: err = %v", text, err)
		case want >= 0 && (err != nil || m.watchdog != want):
			t.Errorf("WATCHDOG_USEC=%q: %v, err = %v, want %v", text, m, err, want)
		}
	}
}
