package config

import "time"

// Evacuation is the section evacuation.
type Evacuation struct {
	Exec Exec `mapstructure:"exec"`
}

// Exec is the section evacuation.exec: the operator's program for resources of type exec.
type Exec struct {
	// Command is the program's path and its first arguments, at most 64. No shell reads it, and PATH is not searched.
	// Default: none; there are no such resources.
	Command []string `mapstructure:"command" as:"argument" size:"64" repeat:"true"`
	// Timeout is how long one run may take. 1s to 1h, default 60s.
	Timeout time.Duration `mapstructure:"timeout" default:"60s" min:"1s" max:"1h"`
}
