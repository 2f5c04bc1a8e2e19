//go:build !linux

package sitereport

import (
	"context"
	"errors"
	"net/netip"
)

// errLinux says that what an agent reads off its own machine is Linux's.
var errLinux = errors.New("sessions and traffic can only be read off Linux: remove linux from the agent's file, or run the agent there")

func establishedSockets(context.Context, func(netip.AddrPort)) error { return errLinux }

func interfaceTraffic(string, string) (string, traffic, error) { return "", traffic{}, errLinux }
