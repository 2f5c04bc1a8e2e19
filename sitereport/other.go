//go:build !linux

package sitereport

import (
	"context"
	"errors"
)

// errLinux says that what an agent reads off its own machine is Linux's.
var errLinux = errors.New("sessions, traffic and the round trips of clients can only be read off Linux: remove linux and passive_rtt from the agent's file, or run the agent there")

func establishedSockets(context.Context, diagRequest, func(diagSocket)) error { return errLinux }

func interfaceTraffic(string, string) (string, traffic, error) { return "", traffic{}, errLinux }

func (c *Counters) readNft(context.Context) (map[string]counted, error) {
	return nil, errors.New("nf_tables is Linux's: remove counters from the agent's file, or run the agent there")
}
