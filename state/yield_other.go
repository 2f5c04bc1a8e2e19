//go:build !linux

package state

// yield does nothing: workers wait in the runtime's poller, not in threads of their own.
func yield() {}
