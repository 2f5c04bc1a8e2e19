package config

import "strings"

// State is the section state: what outlives the process.
type State struct {
	// Directory holds orders, health, round trips and timers over a restart. Default ./state.
	Directory string `mapstructure:"directory" default:"./state" as:"path"`
	Etcd      Etcd   `mapstructure:"etcd"`
}

// Etcd is the section state.etcd: orders shared between gslbds. A change needs a restart.
type Etcd struct {
	// Endpoints are the URLs of the members, all http or all https. At most 16; default: none, nothing is shared.
	Endpoints []string `mapstructure:"endpoints" as:"endpoint" size:"16"`
	// Prefix begins every key, so that several fleets can share an etcd. Default /gslbd.
	Prefix string `mapstructure:"prefix" default:"/gslbd" as:"prefix"`
	// Certificate is a PEM file of the certificate that gslbd presents, with its chain. Default: none.
	Certificate string `mapstructure:"certificate" as:"path"`
	// Key is a PEM file of that certificate's private key, which only its owner may read.
	Key string `mapstructure:"key" as:"path"`
	// CA is a PEM file of the authorities that vouch for etcd. Default: those of the system.
	CA string `mapstructure:"ca" as:"path"`
}

// Secure reports whether the endpoints are https.
func (e *Etcd) Secure() bool {
	return len(e.Endpoints) > 0 && strings.HasPrefix(e.Endpoints[0], "https:")
}
