package state

import "syscall"

// yield lets another thread have the core. The kernel may leave a thread that a query woke waiting for 0.1 ms while this one runs,
// although they are of one process. The call is not made raw: the other thread takes the P, of which there may be no other.
func yield() { _, _, _ = syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
