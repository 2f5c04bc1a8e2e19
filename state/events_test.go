package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gslbd/state"
)

// told writes events as a line each: level, message, and what they are about.
func told(events []state.Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %s %s", e.Level, e.Message, e.Service, e.Member, e.Site, e.Family)), " "))
	}
	return all
}

func TestEventsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		r.report(says("seoul", up))
		r.settle()
		r.report(says("seoul", down, down))
		r.settle()
		r.stop()
		time.Sleep(5 * time.Hour) // far longer than measurements are kept
		r = startIn(t, two(), dir)
		want := []string{
			"info gslbd started",
			"info site fresh seoul",
			"warn member down www.example.com seoul seoul ipv4",
			"info gslbd started",
		}
		events := r.s.Events(0)
		if got := told(events); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		if !slices.IsSortedFunc(events, func(a, b state.Event) int { return int(a.ID) - int(b.ID) }) {
			t.Errorf("ids do not rise: %+v", events)
		}
		if e := events[2]; !strings.Contains(e.Why, "0 of 2 servers up") || time.Since(e.Time) < 5*time.Hour {
			t.Errorf("%+v", e)
		}
		if more := r.s.Events(events[2].ID); len(more) != 1 || more[0] != events[3] {
			t.Errorf("after the third: %+v", more)
		}
		time.Sleep(20 * time.Hour)
		if got := told(r.s.Events(0)); slices.Contains(got, want[2]) || len(got) == 0 {
			t.Errorf("25 hours later: %q", got)
		}
	})
}

func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		r := startIn(t, two(), dir)
		for range 10_100 {
			r.s.Configure(two())
		}
		events := r.s.Events(0)
		if len(events) != 10_000 || events[9_999].Message != "configuration loaded" {
			t.Errorf("%d events", len(events))
		}
		r.stop()
		r = startIn(t, two(), dir)
		if events := r.s.Events(0); len(events) != 10_000 || events[9_999].Message != "gslbd started" {
			t.Errorf("%d events after a restart", len(events))
		}
	})
}

func TestWarningsOfReportsAreNoEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		for i := range 20 {
			rep := says("seoul", up)
			rep.VirtualServers = append(rep.VirtualServers, state.VirtualServer{Name: fmt.Sprint("unknown", i)})
			r.report(rep)
			r.settle()
		}
		if got := told(r.s.Events(0)); len(got) != 2 || r.logged("report has warnings") != 20 {
			t.Errorf("%d lines, %q", r.logged("report has warnings"), got)
		}
	})
}

func TestHistoryThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := keptIn(t)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "events.json")
		if err := os.WriteFile(path, []byte(`{"format":"gslbd events","version":1,"events":[{"id":`), 0o600); err != nil {
			t.Fatal(err)
		}
		r := startIn(t, two(), dir)
		if got := told(r.s.Events(0)); len(got) != 1 {
			t.Errorf("%q", got)
		}
		if _, err := os.Stat(path + ".bad"); err != nil {
			t.Error(err)
		}
	})
}

func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, two())
		changed := r.s.Changed()
		version := r.s.Snapshot().Version
		select {
		case <-changed:
			t.Fatal("closed before anything changed")
		default:
		}
		r.report(says("seoul", up))
		<-changed
		if got := r.s.Snapshot().Version; got != version+1 {
			t.Errorf("version %d after %d", got, version)
		}
		if got := told(r.s.Events(0)); !slices.Contains(got, "info site fresh seoul") {
			t.Errorf("woken before the history had it: %q", got)
		}
	})
}
