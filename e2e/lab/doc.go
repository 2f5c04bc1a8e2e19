// Package lab builds a network of hosts between continents on one Linux machine, for tests: each host is a network
// namespace with real programs in it, and a router in this process carries packets between them with delay, jitter and
// loss, drops ICMP, and cuts links, each direction for itself.
//
// Nothing has a name outside this process: when it ends, however it does, the namespaces, the processes in them and the
// network are gone. It needs root, and neither a kernel module nor netem.
package lab
