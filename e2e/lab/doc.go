// Package lab builds a network of hosts between continents on one Linux machine, for tests: each host is a network
// namespace with real programs in it, and a router in this process carries packets between them with delay, jitter and
// loss, drops ICMP, and cuts links, each direction for itself.
//
// Nothing of it outlives the tests, which run by Main in namespaces of their own: when they end, however they do, all
// processes, namespaces and files are gone. It needs root, and neither a kernel module nor netem.
package lab
