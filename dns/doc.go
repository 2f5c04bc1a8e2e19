// Package dns speaks DNS: it reads queries, finds the name in the zones, asks the service's policy where there is one,
// and writes the answer.
//
// What it is for. Build turns zone files and the names of the services into Tables, which hold every static record
// already packed. A Responder turns the bytes of one query and its sender's address into the bytes of the reply; it
// needs no socket. A Server owns the UDP, TCP and TLS sockets and gives their queries to Responders.
//
// A zone with keys is signed as it is asked: ZoneKeys say which keys do what when, a signer keeps the signatures that were
// made. Nothing of it is in the way of a zone without.
//
// What it refuses. It is authoritative only: it never recurses, transfers no zone, takes no update and knows no class
// but IN (and, in CHAOS, its version and identity where these are configured). A zone file with an error is refused
// as a whole, with all its errors. A message that is not a well-formed query gets FORMERR, or nothing where an answer
// could start a loop.
//
// Concurrency. Tables are immutable once built. A Responder belongs to one goroutine at a time. A Server is started
// once; its Collect, SetCookies and SetCertificate may be called at any time. ZoneKeys may be used by any number of goroutines.
//
// Failure. A datagram that cannot be sent costs only itself. A TCP client that is slow, silent or greedy is bounded by
// the idle timeout and by the limits on connections, and cannot hold up another one. A client network above its rate gets
// truncated replies or none, over UDP. Nothing that a query can contain makes a Responder panic or allocate. The package
// needs Linux (recvmmsg, sendmmsg, SO_REUSEPORT).
package dns
