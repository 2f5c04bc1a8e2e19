package state_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gslbd/state"
)

// A Store that runs beats every second; one that hangs, here since its log takes nothing, does not.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writable := make(chan struct{})
		log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zapcore.DebugLevel),
			zap.Hooks(func(e zapcore.Entry) error {
				if e.Message == "site stale" {
					<-writable
				}
				return nil
			}))
		s, err := state.New(state.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		s.Configure(two())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		if _, err := s.Report(says("seoul", state.ServerUp)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if silent := time.Since(s.Beat()); silent > time.Second {
			t.Errorf("no beat for %s", silent)
		}
		time.Sleep(time.Minute) // the site is stale after 15 s
		if silent := time.Since(s.Beat()); silent < 50*time.Second {
			t.Errorf("it hangs, and its last beat was %s ago", silent)
		}
		close(writable)
		synctest.Wait()
		if silent := time.Since(s.Beat()); silent > time.Second {
			t.Errorf("it hangs no more, and there is no beat for %s", silent)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
