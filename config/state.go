package config

// State is the section state: what outlives the process.
type State struct {
	// Directory holds health, round trips and timers over a restart. Default ./state.
	Directory string `mapstructure:"directory" default:"./state" as:"path"`
	Etcd      Etcd   `mapstructure:"etcd"`
}

// Etcd is the section state.etcd: orders shared between gslbds. This version shares none: endpoints must be empty, and
// the rest is read and has no effect.
type Etcd struct {
	Endpoints   []string `mapstructure:"endpoints" later:"true"`
	Prefix      string   `mapstructure:"prefix" default:"/gslbd"`
	Certificate string   `mapstructure:"certificate" later:"true"`
	Key         string   `mapstructure:"key" later:"true"`
	CA          string   `mapstructure:"ca" later:"true"`
}
