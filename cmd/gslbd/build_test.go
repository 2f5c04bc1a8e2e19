package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"gslbd/config"
)

// What keeps orders outlives whoever may give one, however long that takes, and the state outlives both. One that fails
// ends all of them in the same order.
func TestRoomsEndInOrder(t *testing.T) {
	broken := errors.New("broken")
	for _, failing := range []string{"", "listener", "orders", "state"} {
		t.Run("failing="+failing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				running, cancel := context.WithCancel(t.Context())
				defer cancel()
				group, running := errgroup.WithContext(running)
				ended := make(chan string, 4)
				room := func(name string, lingers time.Duration) func(context.Context) error {
					return func(ctx context.Context) error {
						defer func() { ended <- name }()
						if name == failing {
							time.Sleep(time.Second)
							return broken
						}
						<-ctx.Done()
						time.Sleep(lingers)
						return nil
					}
				}
				listening := start(running, group, room("listener", 0), room("slow listener", 5*time.Second))
				ordering := start(listening, group, room("orders", 2*time.Second))
				start(ordering, group, room("state", time.Second))
				time.Sleep(time.Minute)
				if failing == "" {
					if len(ended) > 0 {
						t.Errorf("%s ended by itself", <-ended)
					}
					cancel()
				}
				if err := group.Wait(); failing != "" != errors.Is(err, broken) {
					t.Errorf("err = %v", err)
				}
				close(ended)
				var got []string
				for name := range ended {
					if name != failing {
						got = append(got, name)
					}
				}
				want := slices.DeleteFunc([]string{"listener", "slow listener", "orders", "state"}, func(name string) bool { return name == failing })
				if !slices.Equal(got, want) {
					t.Errorf("ended in the order %q, want %q", got, want)
				}
			})
		})
	}
}

// What a reload changes of the runtime for as long as it lasts is as before when it has ended, well or not.
func TestReloadGivesTheRuntimeBack(t *testing.T) {
	dir := t.TempDir()
	s, _ := startServer(t, dir, served)
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	procs, collect := runtime.GOMAXPROCS(0), percent()
	for _, text := range []string{served, "services: 1\n", served} {
		writeConfig(t, dir, text)
		if _, err := s.reload(); (err == nil) != (text == served) {
			t.Fatal(err)
		}
		if p, c := runtime.GOMAXPROCS(0), percent(); p != procs || c != collect {
			t.Errorf("GOMAXPROCS %d and GOGC %d, before the reload %d and %d", p, c, procs, collect)
		}
	}
}

// A gslbd is called by what it answers to those who ask for its name, else by that of its machine.
func TestNodeName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip("SKIPPED: this machine has no name: ", err)
	}
	for nsid, want := range map[string]string{"ns1.seoul": "ns1.seoul", "": host} {
		if got := nodeName(&config.Config{DNS: config.DNS{NSID: nsid}}); got != want {
			t.Errorf("nsid %q: %q, want %q", nsid, got, want)
		}
	}
}
