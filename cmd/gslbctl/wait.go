package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

const (
	// pollInterval is how often a server is asked while waiting.
	pollInterval = time.Second
	// tellInterval is how often one who waits is told what for.
	tellInterval = 30 * time.Second
)

// A waiter waits until what was ordered has come about.
type waiter struct {
	cmd     *cobra.Command
	client  *client
	timeout time.Duration
}

func newWaiter(cmd *cobra.Command, set *settings, c *client) *waiter {
	w := &waiter{cmd: cmd, client: c, timeout: waitTimeout}
	if cmd.Flags().Changed("timeout") {
		w.timeout = set.timeout
	}
	return w
}

// An overError says that what is waited for will not come about, since the order does not stand any more.
type overError struct{ error }

// waitFor asks every server that has the order until look says of each answer that nothing is left, which it does by "";
// otherwise it says what is left. A server that does not answer is asked again. It ends with an overError of look.
func waitFor[T any](ctx context.Context, w *waiter, r receipts, path string, look func(server string, v T) (string, error)) error {
	out := w.cmd.ErrOrStderr() // what is waited for is no result
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	var told time.Time
	left := ""
	for {
		before := left
		left = ""
		for _, server := range slices.Sorted(maps.Keys(r)) {
			body, err := w.client.do(ctx, http.MethodGet, server+path, nil)
			var v T
			if err == nil {
				err = json.Unmarshal(body, &v)
			}
			text := ""
			if err == nil {
				text, err = look(server, v)
			}
			if errors.As(err, new(overError)) {
				return fmt.Errorf("%s: %w", server, err)
			}
			if err != nil {
				text = err.Error()
			}
			if text != "" && left == "" {
				left = server + ": " + text
			}
		}
		if ctx.Err() != nil && before != "" {
			left = before // a question that the end of the time cut off tells nothing
		}
		switch {
		case left == "":
			return nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fmt.Errorf("not done within %s (the order stands): %s", span(w.timeout), left)
		case ctx.Err() != nil:
			return fmt.Errorf("not waited for to the end (the order stands): %s", left)
		case time.Since(told) >= tellInterval:
			printf(out, "waiting: %s\n", left)
			told = time.Now()
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}
