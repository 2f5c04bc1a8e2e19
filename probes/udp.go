package probes

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"
)

// checkUDP sends one datagram and judges the first that comes back; see [Check.Send] for silence.
func checkUDP(ctx context.Context, c Check) Outcome {
	start := time.Now()
	conn, err := dial(ctx, "udp", c)
	if err != nil {
		return failure(err, c, false)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write([]byte(c.Send)); err != nil {
		return failure(err, c, false)
	}
	answer := make([]byte, maxAnswer)
	n, err := conn.Read(answer)
	switch {
	case err == nil && strings.Contains(string(answer[:n]), c.Expect):
		return Outcome{OK: true, Latency: time.Since(start)}
	case err == nil:
		return Outcome{Err: "answer does not match"}
	case c.Expect == "" && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded)):
		return Outcome{OK: true}
	}
	return failure(err, c, false)
}
