// Package probes measures: whether an address serves (health checks) and how far away it is (round trips).
//
// A [Monitor] runs health checks of type icmp, tcp, udp, http, https and dns, each on its own schedule, and resolves
// rise and fall. A [Prober] measures the round trip to many resolvers at a bounded rate, by ICMP echo and, where that
// is silent, by a TCP connection or a DNS query. Health checks by ICMP use pro-bing, one pinger a check; the Prober uses one ICMP socket a
// family for all its targets, with the kernel's receive timestamps, because a pinger for each resolver costs a
// descriptor, four goroutines and its precision each.
//
// It refuses to guess. A check that cannot be run (no permission, no CA certificates, no descriptors left) is neither
// a success nor a failure: it says what is missing. It decides nothing about members or sites, follows no redirect,
// uses no proxy and no resolver, and contacts nothing but the address that it was given.
//
// # Concurrency
//
// The methods of Monitor and Prober may be called from several goroutines. Each has one Run, which blocks until its
// context ends and leaves no goroutine and no descriptor behind. Monitor calls Notify from Run's goroutine only; Prober
// calls Result from several goroutines at once. Neither may block for long.
//
// # Failure
//
// A failing target costs its own timeout and nothing else. A Prober that is asked for more than it can send drops the
// newest and counts it; a Monitor with more checks due than it may run at once runs them late and says so once. Run
// fails only when nothing can be measured at all, with an error that says what to permit.
package probes
