package state

import "syscall"

// yield lets another thread have the core. The kernel may leave a thread that a query woke waiting for 0.1 ms while this one runs,
// although they are of one process. The call is made raw, and so keeps the P: while it lasts, which is as long as others run, the
// runtime would else look every 20 us for what to do with it, and take an eighth of the core for that.
func yield() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
