//go:build !linux

package state

import "runtime"

// yield lets a worker have the P: workers wait in the runtime's poller, not in threads of their own.
func yield() { runtime.Gosched() }
