// Package config reads the YAML files of gslbd, gslb-agent and simulations into plain validated data.
//
// Load, LoadAgent and LoadScenario return a value in which every default is resolved, every name is lower case where DNS wants it,
// every path is resolved against the file, and every reference is known to exist; nobody else needs to check again.
// What is wrong is reported all at once, each fault with file, line and path (Errors); what is merely doubtful comes
// back as warnings. The environment overrides single values: GSLBD_DNS__MAX_UDP_PAYLOAD is dns.max_udp_payload.
//
// A knob, its unit, default and range stand in one place: the field of its section's file (dns.go, sites.go, ...). The
// struct tags there are read by schema.go:
//
//	mapstructure  the key
//	key           the key in the file, where it differs because two kinds of one list share it
//	default       the value of an absent key, in the file's spelling; without it, the zero value
//	required      the key must be written
//	min, max      the range, both inclusive, in the file's spelling; of a list: of each value
//	size          the largest number of entries of a list
//	repeat        entries of the list may be equal
//	enum          the words allowed, separated by "|"
//	as            the spelling: percent, bandwidth, seconds, or the form of a string (domain, name, listen, ...)
//	off           the word "off" means zero
//	for           the kinds (metric, or type of check) that take this key; for others it is refused
//	later         known, but not supported by this version: only the default may be written
//
// It refuses what viper and mapstructure would let pass: unknown keys, keys in another case, duplicate keys, a second
// document, an empty file, empty values, numbers without unit where a time belongs, fractions and octal numbers in
// integers, .nan and .inf, single values in place of lists. The file is therefore parsed into nodes and checked against
// the structs first; viper then lays the environment over it and decodes exactly.
//
// Concurrency: all functions may be called at the same time; a Config is not changed after Load has returned it.
//
// Failure: no input makes it panic; a file that is not entirely right yields no Config at all.
package config
