package config

import "time"

// Evacuation is the section evacuation.
type Evacuation struct {
	Exec Exec `mapstructure:"exec"`
}

// Exec is the section evacuation.exec: the operator's program. This version runs none: command must be empty, and
// timeout is read and has no effect.
type Exec struct {
	Command []string      `mapstructure:"command" later:"true"`
	Timeout time.Duration `mapstructure:"timeout" default:"60s" min:"1s" max:"1h"`
}
